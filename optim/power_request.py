"""From checked settings to what the power reports take: the fleet or the problem, power laws, prices, with sources."""

from __future__ import annotations

from dataclasses import dataclass

from jaxsim.power import PowerLaw
from jaxsim.profiles import Profile
from optim.build import FleetRequest, PlanRequest, fleet_request, plan_request
from optim.config import Settings
from optim.inputs import Inputs
from optim.plan_file import SIMULATOR
from optim.power_settings import electricity_prices, power_laws, unused_terms
from optim.power_terms import Prices
from optim.table_types import Table


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
    plan = plan_request(settings, used=("power",)) if tokens else None
    profiles: list[Profile] = []
    if fleet is not None:
        profiles += [fleet.design.profile.at(p) for p in range(fleet.design.num_pools)]
    if plan is not None:
        profiles += plan.problem.profiles
    inputs: Inputs = {}
    laws = power_laws(settings, [str(profile.gpu) for profile in profiles], inputs)
    notes = (*(_notes(settings) if plan is None else plan.notes), *unused_terms(settings))
    return PowerRequest(fleet, plan, laws, electricity_prices(settings, inputs), inputs, notes)


def _notes(settings: Settings) -> tuple[str, ...]:
    given = []
    for name in SIMULATOR:
        found = settings.value(name)
        if found is not None and (not isinstance(found, Table) or found.model_fields_set):
            given.append(name)
    if not given:
        return ()
    return (f"{', '.join(given)}: not used; events are simulated under the default rules and Poisson arrivals",)
