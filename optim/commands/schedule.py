"""`fleetgrad schedule`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optim.commands import _common as common
from optim.commands._common import Exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from optim.plan import Plan
    from optim.schedule import DaySchedule
    from optim.schedule_request import ScheduleRequest

DemandPath = Annotated[str | None, typer.Option("--demand", metavar="PATH", help="CSV of a day: hour and rate.")]
FromTrace = Annotated[bool, typer.Option("--from-trace", help="Count the trace's own arrivals in intervals.")]
IntervalMinutes = Annotated[float | None, typer.Option(help="Length of an interval (all but a table).")]
MeanRate = Annotated[float | None, typer.Option(help="Scale the demand to this mean, requests per second.")]
GridPath = Annotated[
    str | None, typer.Option("--grid", metavar="PATH", help="CSV of a day: hour, usd_per_kwh and g_co2_per_kwh.")
]
ColdStart = Annotated[
    float | None, typer.Option("--cold-start-s", "--cold-start", help="Order to first request, s; default 300.")
]
HoldMinutes = Annotated[float | None, typer.Option(help="Kept after it is not needed any more; default 0.")]
SparePercent = Annotated[float | None, typer.Option(help="Raise every rate by this before sizing; default 0.")]
OnDemand = Annotated[
    float | None,
    typer.Option("--on-demand-usd-per-gpu-hour", "--on-demand-price", help="Default: the profiles' own prices."),
]
Reserved = Annotated[
    float | None,
    typer.Option("--reserved-usd-per-gpu-hour", "--reserved-price", help="Paid all the time, used or not."),
]
DeferShare = Annotated[float | None, typer.Option(help="Share of the requests that may wait, 0 to 1.")]
DeferHours = Annotated[float | None, typer.Option(help="Longest wait of those.")]
Minimize = Annotated[str | None, typer.Option(help="What they wait for: usd (default) or carbon.")]
Pue = Annotated[float | None, typer.Option("--pue", help="Power of the building over that of its GPUs.")]
UsdPerKwh = Annotated[float | None, typer.Option("--usd-per-kwh", help="Price of electricity, all day.")]
Carbon = Annotated[float | None, typer.Option("--kg-co2-per-kwh", help="Carbon intensity of the grid, all day.")]
NoVerify = Annotated[bool, typer.Option("--no-verify", help="The model alone; nothing is simulated.")]
PlayHours = Annotated[float | None, typer.Option(help="Longest stretch to simulate; default as much as there is.")]
Rounds = Annotated[
    int | None, typer.Option(min=0, help="Times that intervals which miss get a replica more; default 3.")
]


def schedule(
    file: common.File = None,
    demand: DemandPath = None,
    from_trace: FromTrace = False,
    interval_minutes: IntervalMinutes = None,
    mean_rate: MeanRate = None,
    grid: GridPath = None,
    workload: common.WorkloadName = None,
    trace: common.TracePath = None,
    cdf: common.CdfPath = None,
    output_share: common.OutputShare = None,
    columns: common.Map = None,
    time_unit: common.TimeUnit = None,
    failed: common.Failed = None,
    ttft_p99_ms: common.TtftMs = None,
    tpot_p99_ms: common.TpotMs = None,
    profile: common.Profiles = None,
    max_pools: common.MaxPools = None,
    max_context: common.MaxContext = None,
    long_requests: common.LongRequests = None,
    model: common.Model = None,
    max_gpus: common.MaxGpus = None,
    cold_start_s: ColdStart = None,
    hold_minutes: HoldMinutes = None,
    spare_percent: SparePercent = None,
    on_demand_usd_per_gpu_hour: OnDemand = None,
    reserved_usd_per_gpu_hour: Reserved = None,
    defer_share: DeferShare = None,
    defer_hours: DeferHours = None,
    minimize: Minimize = None,
    pue: Pue = None,
    usd_per_kwh: UsdPerKwh = None,
    kg_co2_per_kwh: Carbon = None,
    no_verify: NoVerify = False,
    play_hours: PlayHours = None,
    rounds: Rounds = None,
    seed: common.Seed = 0,
    as_json: common.AsJson = False,
    out: common.Out = None,
) -> None:
    """Replicas over a day: who must be there when, what that costs beside a static fleet, and does it keep the SLO.

    The demand is a table (--demand), the trace's arrivals (--from-trace) or what [demand] says; the fleet's hardware
    and thresholds are [[fleet.pools]], or those of the best plan for the highest rate. Exit status: 0 found (and not
    refused), 2 bad input, 3 some interval cannot be served, 4 the simulator finds intervals above the objectives.
    """
    given = locals()
    flags = common.flags(given) | {
        key: value for key, name in _FLAGS.items() if (value := given[name]) is not None and value is not False
    }
    if play_hours is not None:
        common.positive("--play-hours", play_hours)
    from optim.config import read_settings

    with common.clean_errors():
        settings = read_settings(file, flags)
    folder = common.folder(out)

    from optim.documents import to_json
    from optim.inputs import flag
    from optim.schedule import ROUNDS, ScheduleStatus
    from optim.schedule_document import flat_rows, schedule_document
    from optim.schedule_report import schedule_report
    from optim.schedule_request import schedule_request

    with common.clean_errors():
        request = schedule_request(settings)
    wanted = ROUNDS if rounds is None else rounds
    inputs = {**request.inputs, "simulate": flag(not no_verify, given=no_verify)}
    if not no_verify:
        inputs |= {
            "seed": flag(seed, given=seed != 0),
            "rounds": flag(wanted, given=rounds is not None),
            "play_hours": flag(play_hours, given=play_hours is not None, default="default: as much as there is"),
        }
    with common.progress("planning") as told, common.clean_errors():
        found, planned = _day(request, wanted, play_hours, not no_verify, seed, told)
    document = schedule_document(found, planned, request.notes, inputs)
    page = schedule_report(found, planned, request.notes, inputs)
    if folder is not None:
        common.write_report(folder / "report.txt", page)
        (folder / "schedule.json").write_text(to_json(document) + "\n", encoding="utf-8")
        if found is not None:
            common.write_csv(folder / "intervals.csv", flat_rows(found))
            _plot(found, folder)
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(page)
    if found is None:
        raise typer.Exit(Exit.REFUSED if planned is not None and planned.design is not None else Exit.INFEASIBLE)
    if found.status is ScheduleStatus.INFEASIBLE:
        raise typer.Exit(Exit.INFEASIBLE)
    if found.status is ScheduleStatus.REFUSED:
        raise typer.Exit(Exit.REFUSED)


_FLAGS = {
    "demand.table": "demand",
    "demand.from_trace": "from_trace",
    "demand.interval_minutes": "interval_minutes",
    "demand.mean_rps": "mean_rate",
    "demand.grid_table": "grid",
    "scaling.cold_start_s": "cold_start_s",
    "scaling.hold_minutes": "hold_minutes",
    "scaling.spare_percent": "spare_percent",
    "scaling.on_demand_usd_per_gpu_hour": "on_demand_usd_per_gpu_hour",
    "scaling.reserved_usd_per_gpu_hour": "reserved_usd_per_gpu_hour",
    "defer.share": "defer_share",
    "defer.max_wait_hours": "defer_hours",
    "defer.minimize": "minimize",
    "power.pue": "pue",
    "power.usd_per_kwh": "usd_per_kwh",
    "power.kg_co2_per_kwh": "kg_co2_per_kwh",
}
"""The parameter of this command that overrides each key of a plan file."""


def _day(
    request: ScheduleRequest,
    rounds: int,
    play_hours: float | None,
    verify: bool,
    seed: int,
    told: Callable[[str], None],
) -> tuple[DaySchedule | None, Plan | None]:
    """The plan for the highest rate where none is spelled out, and the day of its fleet."""
    from jaxsim.units import SECONDS_PER_HOUR
    from optim.plan import PlanStatus, plan
    from optim.schedule import schedule as schedule_day
    from optim.sensitivity_request import correction_of

    design, planned, correction = request.fleet.design, None, None
    if design is None:
        planned = plan(request.problem, seed=seed, simulate=verify, progress=told)
        if planned.design is None or planned.status is PlanStatus.REFUSED:
            return None, planned
        design, correction = planned.design, correction_of(planned)
    found = schedule_day(
        request.problem,
        design,
        request.demand,
        scaling=request.scaling,
        prices=request.prices_of(design),
        correction=correction,
        electric=request.electric_of(design),
        deferrable=request.deferrable,
        verify=verify,
        rounds=rounds,
        play_s=None if play_hours is None else play_hours * SECONDS_PER_HOUR,
        seed=seed,
        progress=told,
    )
    return found, planned


def _plot(found: Any, folder: Path) -> None:
    from optim.schedule_plots import plot_schedule
    from optim.words import compact

    if found.outcome is None:
        return
    names = [str(name) for name in found.design.profile.name]
    most, hours = compact(names, found.outcome.static.most), found.outcome.cost.hours
    title = f"{found.problem.workload.name}: {hours:.6g} h on up to {most}"
    plot_schedule(found, folder / "schedule.png", title=title)
