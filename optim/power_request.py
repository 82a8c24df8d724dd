"""From checked settings to what the power reports take: the fleet or the problem, power laws, prices, with sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxsim.power import PowerLaw, power_law, power_source
from jaxsim.profiles import Profile
from optim.build import FleetRequest, PlanRequest, fleet_request, plan_request
from optim.config import ConfigError, Settings
from optim.inputs import Input, Inputs
from optim.plan_file import SIMULATOR, Table

GPUS_ALONE = 1.0


@dataclass(frozen=True)
class Prices:
    """What electricity comes with: PUE, $/kWh and kg CO2/kWh; None where not given."""

    pue: float
    usd_per_kwh: float | None
    kg_co2_per_kwh: float | None


@dataclass(frozen=True)
class PowerRequest:
    """What a plan file asks of `fleetgrad power`.

    Attributes:
        fleet: the pools spelled out; None where there are none.
        plan: the problem and the profiles to rank; None where there are none.
        laws: power law of each GPU by its name.
        inputs: of power and prices alone.
    """

    fleet: FleetRequest | None
    plan: PlanRequest | None
    laws: dict[str, PowerLaw]
    prices: Prices
    inputs: Inputs
    notes: tuple[str, ...]

    def law_of(self, profile: Profile) -> PowerLaw:
        """Of one GPU of a profile."""
        return self.laws[str(profile.gpu)]


def power_request(settings: Settings, *, flex: bool, tokens: bool) -> PowerRequest:
    """What the settings say for the reports asked for.

    Raises:
        ConfigError: something required is missing, a value is out of its domain, or the model is not "step".
    """
    if settings.tables.fleet.model == "kimura":
        problem = "must be step, got 'kimura'; its slots are full or empty, which says nothing of the batch that power"
        raise settings.error("fleet.model", f"{problem} depends on")
    fleet = fleet_request(settings) if flex else None
    plan = plan_request(settings) if tokens else None
    profiles: list[Profile] = []
    if fleet is not None:
        profiles += [fleet.design.profile.at(p) for p in range(fleet.design.num_pools)]
    if plan is not None:
        profiles += plan.problem.profiles
    inputs: Inputs = {}
    laws = power_laws(settings, [str(profile.gpu) for profile in profiles], inputs)
    return PowerRequest(fleet, plan, laws, electricity_prices(settings, inputs), inputs, _notes(settings))


def power_laws(settings: Settings, gpus: Sequence[str], inputs: Inputs) -> dict[str, PowerLaw]:
    """Power law of each GPU by its name, the file's own or the published one; both are noted in `inputs`.

    Raises:
        ConfigError: none is published for a GPU, or a row of the file is out of its domain.
    """
    rows = settings.tables.power.laws or []
    own: dict[str, PowerLaw] = {}
    for k, row in enumerate(rows):
        where = f"power.laws[{k}]"
        if row.gpu not in gpus:
            raise settings.error(f"{where}.gpu", f"must be a GPU of the profiles, {sorted(set(gpus))}, got {row.gpu!r}")
        if row.gpu in own:
            raise settings.error(f"{where}.gpu", f"is there twice: {row.gpu!r}")
        if row.nominal_w <= row.idle_w:
            raise settings.error(f"{where}.nominal_w", f"must be > idle_w ({row.idle_w:g}), got {row.nominal_w:g}")
        own[row.gpu] = PowerLaw(row.idle_w, row.nominal_w - row.idle_w, row.steepness, row.log2_midpoint)
    found: dict[str, PowerLaw] = {}
    for gpu in dict.fromkeys(gpus):
        try:
            found[gpu] = own[gpu] if gpu in own else power_law(gpu)
        except ValueError as error:
            hint = "; in a plan file they are a row [[power.laws]]"
            raise ConfigError(f"{settings.where('power.laws')}: {error}{hint}") from error
        law = found[gpu]
        shown = {
            "idle_w": float(law.idle_w),
            "nominal_w": float(law.nominal_w),
            "steepness": float(law.steepness),
            "log2_midpoint": float(law.log2_midpoint),
        }
        source = settings.source("power.laws") if gpu in own else f"default: {power_source()}"
        inputs[f"power_law_{gpu}"] = Input(shown, source)
    return found


def electricity_prices(settings: Settings, inputs: Inputs) -> Prices:
    """PUE, price and carbon of the file and flags, noted in `inputs`."""
    table = settings.tables.power
    pue = GPUS_ALONE if table.pue is None else table.pue
    alone = "default: the GPUs alone; cooling, CPUs and network are not in the figures"
    inputs["pue"] = Input(pue, settings.source("power.pue", alone))
    for key, missing in (("usd_per_kwh", "nothing is priced"), ("kg_co2_per_kwh", "no emissions are given")):
        inputs[key] = Input(getattr(table, key), settings.source(f"power.{key}", f"not given: {missing}"))
    return Prices(pue, table.usd_per_kwh, table.kg_co2_per_kwh)


def _notes(settings: Settings) -> tuple[str, ...]:
    given = []
    for name in SIMULATOR:
        found = settings.value(name)
        if found is not None and (not isinstance(found, Table) or found.model_fields_set):
            given.append(name)
    if not given:
        return ()
    return (f"{', '.join(given)}: not used; events are simulated under the default rules and Poisson arrivals",)
