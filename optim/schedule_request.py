"""From checked settings to what `fleetgrad schedule` takes: demand, scaling, prices and grid, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from jaxsim.energy import stack_power
from jaxsim.fleet import FleetDesign
from jaxsim.power import PowerLaw
from jaxsim.units import SECONDS_PER_HOUR
from jaxsim.workload import Workload
from optim.config import FLAGS, ConfigError, Settings
from optim.defer import Deferrable
from optim.demand import RateProfile, resampled
from optim.demand_table import DayTable, read_day_table, read_demand
from optim.inputs import Input, Inputs
from optim.plan_file import DemandTable, ScalingTable
from optim.power_settings import electricity_prices, power_laws, unused_terms
from optim.power_tables import PowerTable
from optim.problem import PlanProblem
from optim.schedule_cost import GpuPrices
from optim.schedule_day import COLD_START_S, Electric, Scaling
from optim.schedule_power import Grid
from optim.sensitivity_request import SensitivityRequest, sensitivity_request

SECONDS_PER_MINUTE = 60.0
_ANY_RATE = 1.0
_SAME_S = 1e-3
_SUCH_AS = 'such as table = "day.csv" (--demand day.csv), a CSV with hour and rate'

GpuRow = tuple[float | None, float | None]
"""On-demand and reserved dollars per GPU-hour; None where not given."""


@dataclass(frozen=True)
class ScheduleRequest:
    """What a plan file asks of `fleetgrad schedule`.

    Attributes:
        fleet: the problem at the highest rate, and the fleet where the file spells it out.
        demand: of the day.
        grid: None where no electricity is reckoned.
        laws: power of each GPU by its name; empty likewise.
        prices: of each profile by its name, and for all under "".
        deferrable: None where nothing may wait.
    """

    fleet: SensitivityRequest
    demand: RateProfile
    scaling: Scaling
    grid: Grid | None
    laws: dict[str, PowerLaw]
    prices: dict[str, GpuRow]
    deferrable: Deferrable | None
    inputs: Inputs
    notes: tuple[str, ...]

    @property
    def problem(self) -> PlanProblem:
        """At the highest rate."""
        return self.fleet.problem

    def prices_of(self, design: FleetDesign) -> GpuPrices:
        """Of a GPU-hour of each pool."""
        own = np.asarray(design.profile.usd_per_gpu_hour).tolist()
        rows = [self.prices.get(str(name), self.prices[""]) for name in design.profile.name]
        demanded = tuple(usd if row[0] is None else row[0] for usd, row in zip(own, rows, strict=True))
        reserved = tuple(row[1] for row in rows if row[1] is not None)
        return GpuPrices(demanded, reserved if len(reserved) == len(rows) else None)

    def electric_of(self, design: FleetDesign) -> Electric | None:
        """Power laws of each pool, and the grid."""
        if self.grid is None:
            return None
        gpus = [str(design.profile.at(p).gpu) for p in range(design.num_pools)]
        return Electric(stack_power([self.laws[gpu] for gpu in gpus]), self.grid)


def schedule_request(settings: Settings) -> ScheduleRequest:
    """The day, the fleet and the prices that a plan file and flags describe.

    Raises:
        ConfigError: something required is missing, a table that cannot be read, or a value out of its domain.
    """
    inputs: Inputs = {}
    fleet = sensitivity_request(_without_own(settings))
    demand, table = _demand(settings, fleet.problem.workload, inputs)
    peak = float(demand.rates.max())
    fleet = replace(fleet, problem=fleet.problem.with_rate(peak))
    scaling = _scaling(settings, inputs)
    profiles = fleet.problem.profiles
    prices = _prices(settings, [str(profile.name) for profile in profiles], inputs)
    deferrable = _deferrable(settings, inputs)
    notes = [*fleet.notes, *demand.notes, *unused_terms(settings)]
    grid, laws, said = _electric(settings, fleet, demand, table, inputs)
    notes += said
    if settings.tables.workload.rate is not None:
        notes.append("workload.rate: not used; the demand has rates of its own (demand.mean_rps scales them)")
    if fleet.design is not None:
        notes.append("fleet.pools.replicas: not used; every interval is sized")
    rate = {"rate_rps": Input(peak, "the highest of the demand")}
    all_inputs = {**{k: v for k, v in fleet.inputs.items() if k != "rate_rps"}, **rate, **inputs}
    return ScheduleRequest(fleet, demand, scaling, grid, laws, prices, deferrable, all_inputs, tuple(notes))


def _without_own(settings: Settings) -> Settings:
    """For what does not know this command's tables; the rate comes with the demand."""
    workload = settings.tables.workload.model_copy(update={"rate": _ANY_RATE})
    blank = {"power": PowerTable.model_validate({}), "demand": DemandTable.model_validate({})}
    blank |= {"scaling": ScalingTable.model_validate({})}
    return replace(settings, tables=settings.tables.model_copy(update={**blank, "defer": None, "workload": workload}))


def _demand(settings: Settings, workload: Workload, inputs: Inputs) -> tuple[RateProfile, DayTable | None]:
    given = settings.tables.demand
    kinds = {
        "table": given.table is not None,
        "rates_rps": given.rates_rps is not None,
        "from_trace": bool(given.from_trace),
        "peak_rps": given.peak_rps is not None,
    }
    chosen = [kind for kind, there in kinds.items() if there]
    if len(chosen) != 1:
        found = " and ".join(chosen) or "none"
        raise ConfigError(
            f"{settings.where('demand')} must be exactly one of {', '.join(kinds)}, got {found}; {_SUCH_AS}"
        )
    kind = chosen[0]
    _check_keys(settings, kind)
    repeat = True if given.repeat is None else given.repeat
    table = None
    key = f"demand.{kind}"
    try:
        if given.table is not None:
            path = settings.path(key, given.table)
            zeros = given.zeros or "missing"
            demand, table = read_demand(path, columns=given.map, only=given.only, zeros=zeros, repeat=repeat)
        else:
            demand = _made(settings, kind, workload, repeat)
    except ConfigError:
        raise
    except (ValueError, OSError) as error:
        raise settings.error(key, error) from error
    if given.mean_rps is not None:
        demand = demand.scaled_to(given.mean_rps)
    hours = demand.end_s / SECONDS_PER_HOUR
    text = (
        f"{demand.source}: {demand.num_intervals} intervals over {hours:.6g} h, {demand.rates.min():.6g} to "
        f"{demand.rates.max():.6g} requests/s, mean {demand.mean_rate:.6g}"
    )
    inputs["demand"] = Input(text, settings.source(key))
    for name in ("zeros", "map", "only", "mean_rps"):
        if getattr(given, name) is not None:
            inputs[f"demand_{name}"] = Input(getattr(given, name), settings.source(f"demand.{name}"))
    inputs["demand_repeats"] = Input(repeat, settings.source("demand.repeat"))
    return demand, table


_OF_KINDS = {
    "interval_minutes": ("rates_rps", "from_trace", "peak_rps"),
    "trough_rps": ("peak_rps",),
    "peak_hour": ("peak_rps",),
    "zeros": ("table",),
    "map": ("table",),
    "only": ("table",),
}
"""Keys of [demand] that only some kinds take; the first three are required there."""


def _check_keys(settings: Settings, kind: str) -> None:
    for name, kinds in _OF_KINDS.items():
        key, there = f"demand.{name}", settings.value(f"demand.{name}") is not None
        if there and kind not in kinds:
            raise settings.error(key, f"is for {' or '.join(kinds)}; the demand is given by {kind}")
        if not there and kind in kinds and kinds != ("table",):
            flag = f" (or {FLAGS[key]})" if key in FLAGS else ""
            raise settings.error(key, f"is required beside {kind}{flag}")


def _made(settings: Settings, kind: str, workload: Workload, repeat: bool) -> RateProfile:
    """All but a table; what a kind needs is there."""
    given = settings.tables.demand
    interval_s = float(given.interval_minutes or np.nan) * SECONDS_PER_MINUTE
    if given.rates_rps is not None:
        return RateProfile.of(given.rates_rps, interval_s, repeat=repeat, source="a list of rates")
    if kind == "from_trace":
        return RateProfile.from_trace(workload, interval_s, repeat=repeat)
    shape = partial(RateProfile.daily, peak=float(given.peak_rps or np.nan), trough=float(given.trough_rps or 0.0))
    return replace(shape(peak_hour=float(given.peak_hour or 0.0), interval_s=interval_s), repeat=repeat)


def _scaling(settings: Settings, inputs: Inputs) -> Scaling:
    table = settings.tables.scaling
    values = {"cold_start_s": COLD_START_S, "hold_minutes": 0.0, "spare_percent": 0.0}
    for name, default in values.items():
        found = getattr(table, name)
        values[name] = default if found is None else found
        assumed = "default: an assumption, measure yours" if name == "cold_start_s" else "default"
        inputs[name] = Input(values[name], settings.source(f"scaling.{name}", assumed))
    return Scaling(values["cold_start_s"], values["hold_minutes"] * SECONDS_PER_MINUTE, values["spare_percent"] / 100.0)


def _prices(settings: Settings, profiles: list[str], inputs: Inputs) -> dict[str, GpuRow]:
    """By profile, and for all under ""."""
    table = settings.tables.scaling
    found: dict[str, GpuRow] = {"": (table.on_demand_usd_per_gpu_hour, table.reserved_usd_per_gpu_hour)}
    names = {"on_demand_usd_per_gpu_hour": "default: the profiles' own", "reserved_usd_per_gpu_hour": "default: none"}
    for name, default in names.items():
        value, key = getattr(table, name), f"scaling.{name}"
        if value is not None and len(profiles) > 1:
            problem = f"is for a fleet of one profile, here are {', '.join(profiles)}; give rows [[scaling.prices]]"
            raise settings.error(key, problem)
        inputs[name] = Input(value, settings.source(key, default))
    for k, row in enumerate(table.prices or ()):
        key = f"scaling.prices[{k}].profile"
        if row.profile not in profiles:
            raise settings.error(key, f"must be a profile of the fleet, {profiles}, got {row.profile!r}")
        if row.profile in found:
            raise settings.error(key, f"is there twice: {row.profile!r}")
        found[row.profile] = (row.on_demand_usd_per_gpu_hour, row.reserved_usd_per_gpu_hour)
    if table.prices is not None:
        left = [name for name in profiles if name not in found]
        if left:
            raise settings.error("scaling.prices", f"must have every profile, {', '.join(left)} has no row")
        shown = {name: row[1] for name, row in found.items() if name}
        inputs["reserved_usd_per_gpu_hour"] = Input(shown, settings.source("scaling.prices"))
    return found


def _deferrable(settings: Settings, inputs: Inputs) -> Deferrable | None:
    table = settings.tables.defer
    if table is None:
        inputs["defer"] = Input(None, "default: nothing waits")
        return None
    minimize = table.minimize or "usd"
    inputs["defer_share"] = Input(table.share, settings.source("defer.share"))
    inputs["defer_max_wait_hours"] = Input(table.max_wait_hours, settings.source("defer.max_wait_hours"))
    inputs["minimize"] = Input(minimize, settings.source("defer.minimize"))
    return Deferrable(table.share, table.max_wait_hours * SECONDS_PER_HOUR, minimize)


def _electric(
    settings: Settings, fleet: SensitivityRequest, demand: RateProfile, table: DayTable | None, inputs: Inputs
) -> tuple[Grid | None, dict[str, PowerLaw], list[str]]:
    """The grid and power laws where they can be had; an error where something needs them and they cannot."""
    hourly, source, notes = _hourly(settings, demand, table)
    given = settings.tables.power
    needed = bool(given.model_fields_set) or (
        settings.tables.defer is not None and settings.tables.defer.minimize == "carbon"
    )
    needed |= bool(hourly)
    if fleet.problem.model != "step":
        if needed:
            raise settings.error("fleet.model", "must be step to reckon electricity, got 'kimura'")
        return None, {}, [*notes, "no electricity is reckoned: it needs the occupancy of the step model"]
    noted: Inputs = {}
    try:
        laws = power_laws(settings, [str(profile.gpu) for profile in fleet.problem.profiles], noted)
    except ConfigError as error:
        if needed:
            raise
        return None, {}, [*notes, f"no electricity is reckoned: {error}"]
    flat = electricity_prices(settings, noted)
    prices: dict[str, tuple[float, ...] | None] = {}
    for name in ("usd_per_kwh", "kg_co2_per_kwh"):
        scalar = getattr(flat, name)
        if name in hourly and scalar is not None:
            raise settings.error(f"power.{name}", f"is given twice: {source} has it by the hour; keep one")
        if name in hourly:
            values = hourly[name]
            noted[name] = Input(f"by the interval, {values.min():.6g} to {values.max():.6g}", f"given in {source}")
            prices[name] = tuple(values.tolist())
        else:
            prices[name] = None if scalar is None else (float(scalar),) * demand.num_intervals
    inputs |= noted
    with settings.naming("power"):
        return Grid(flat.pue, prices["usd_per_kwh"], prices["kg_co2_per_kwh"]), laws, notes


def _hourly(
    settings: Settings, demand: RateProfile, table: DayTable | None
) -> tuple[dict[str, np.ndarray], str, list[str]]:
    """Prices and intensities by interval, the file that has them, and notes."""
    own = {} if table is None else {name: v for name, v in table.columns.items() if name != "rate"}
    path = settings.tables.demand.grid_table
    if path is None:
        return own, "" if table is None else table.file, []
    if own:
        raise settings.error(
            "demand.grid_table", f"must be left out: {table.file if table else ''} has {', '.join(own)}"
        )
    try:
        grid = read_day_table(settings.path("demand.grid_table", path))
        if abs(grid.origin_s - demand.origin_s) > _SAME_S:
            starts = f"starts at {grid.origin_s / SECONDS_PER_HOUR:g} h, the demand at"
            raise ValueError(f"{grid.file}: {starts} {demand.origin_s / SECONDS_PER_HOUR:g} h; let both start together")
        found = {n: resampled(grid.edges_s, v, demand.edges_s) for n, v in grid.columns.items() if n != "rate"}
        if not found:
            raise ValueError(f"{grid.file}: no column usd_per_kwh or g_co2_per_kwh")
    except (ValueError, OSError) as error:
        raise settings.error("demand.grid_table", error) from error
    notes = [*grid.notes]
    if "rate" in grid.columns:
        notes.append(f"{grid.file}: its rates are not used")
    if grid.edges_s[-1] > demand.end_s * (1.0 + 1e-9):
        notes.append(
            f"{grid.file}: goes on to {grid.edges_s[-1] / SECONDS_PER_HOUR:g} h, after the demand's end; not used"
        )
    return found, grid.file, notes
