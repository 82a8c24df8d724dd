"""The table of power, checked: laws, prices and what a plan makes of them, each with its source."""

from __future__ import annotations

from collections.abc import Sequence

from jaxsim.power import PowerLaw, power_law, power_source
from jaxsim.profiles import Profile
from optim.config import FLAGS, ConfigError, Settings
from optim.inputs import Input, Inputs
from optim.power_terms import GPUS_ALONE, PowerTerms, Prices

MINIMIZE = "cost"
_OF_PLANS = ("minimize", "max_kw", "max_kwh_per_million_tokens")


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


def power_terms(
    settings: Settings, profiles: Sequence[Profile], model: str, inputs: Inputs
) -> tuple[PowerTerms | None, tuple[str, ...]]:
    """What a plan makes of power, noted in `inputs`, and notes; None where nothing is said of it or it is not known.

    Raises:
        ConfigError: power is to decide something and cannot: the `kimura` model, no power law of a GPU, no price.
    """
    table = settings.tables.power
    inputs["minimize"] = Input(table.minimize or MINIMIZE, settings.source("power.minimize"))
    if not table.model_fields_set:
        return None, ()
    decisive = [f"power.{key}" for key in _OF_PLANS if getattr(table, key) not in (None, MINIMIZE)]
    missing = _unknown(settings, profiles, model)
    if missing is not None and not decisive:
        return None, (f"power: not used; {missing}",)
    if missing is not None and model != "step":
        raise settings.error("fleet.model", f"must be step for {decisive[0]}, got {model!r}; {missing}")
    for key, minimize in (("usd_per_kwh", "cost+electricity"), ("kg_co2_per_kwh", "carbon")):
        if table.minimize == minimize and not getattr(table, key):
            name = f"power.{key}"
            problem = f"must be > 0 to minimize {minimize!r}, got {getattr(table, key)} ({FLAGS[name]})"
            raise settings.error(name, problem)
    found: Inputs = {}
    laws = power_laws(settings, [str(profile.gpu) for profile in profiles], found)
    prices = electricity_prices(settings, found)
    for key in _OF_PLANS[1:]:
        found[key] = Input(getattr(table, key), settings.source(f"power.{key}", "default: no budget"))
    inputs |= found
    with settings.naming("power"):
        terms = PowerTerms(laws, prices, table.minimize or MINIMIZE, table.max_kw, table.max_kwh_per_million_tokens)
        terms.check(tuple(profiles), model)
    return terms, ()


def _unknown(settings: Settings, profiles: Sequence[Profile], model: str) -> str | None:
    """Why the power of these profiles is not known; None where it is."""
    if model != "step":
        return (
            f"the slots of the {model} model are full or empty, which says nothing of the batch that power depends on"
        )
    own = {row.gpu for row in settings.tables.power.laws or ()}
    for profile in profiles:
        if str(profile.gpu) not in own:
            try:
                power_law(str(profile.gpu))
            except ValueError as error:
                return f"{error}; in a plan file they are a row [[power.laws]]"
    return None


def unused_terms(settings: Settings) -> tuple[str, ...]:
    """A note on what only plans make of power, for commands that read the rest of the table."""
    there = [f"power.{key}" for key in _OF_PLANS if getattr(settings.tables.power, key) is not None]
    if not there:
        return ()
    was = "it was not used" if len(there) == 1 else "they were not used"
    return (f"{', '.join(there)}: for `fleetgrad plan` and `pareto`; {was}",)
