"""`fleetgrad power`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optim.commands import _common as common
from optim.commands._common import Exit

if TYPE_CHECKING:
    from optim.inputs import Inputs
    from optim.power_request import PowerRequest

REPORTS = ("flex", "tokens")
LEVELS = "5,10,20,30,40,50"
UTILIZATIONS = "0.1:0.9:0.1"

Report = Annotated[
    str, typer.Option(help="flex: what the fleet spelled out can give to the grid; tokens: GPUs by tokens per watt.")
]
Levels = Annotated[str, typer.Option(help="Percent less than now, such as 5,10 or 10:50:10 (flex); 0 is always there.")]
Lever = Annotated[str, typer.Option(help="cap: fewer requests at a time in every engine; off: fewer replicas (flex).")]
EventMinutes = Annotated[float, typer.Option(help="Length of the simulated curtailment (flex).")]
StartupMinutes = Annotated[float, typer.Option(help="Until a replica that was off takes requests again (flex, off).")]
Utilization = Annotated[str, typer.Option(help="Of full batch, at which each fleet is looked at (tokens).")]
NoSimulate = Annotated[bool, typer.Option("--no-simulate", help="The model alone.")]


def power(
    context: typer.Context,
    file: common.File = None,
    report: Report = "flex",
    workload: common.WorkloadName = None,
    trace: common.TracePath = None,
    cdf: common.CdfPath = None,
    output_share: common.OutputShare = None,
    columns: common.Map = None,
    time_unit: common.TimeUnit = None,
    failed: common.Failed = None,
    rate: common.Rate = None,
    prefix_cache_hit_rate: common.HitRate = None,
    ttft_p99_ms: common.TtftMs = None,
    tpot_p99_ms: common.TpotMs = None,
    profile: common.Profiles = None,
    max_context: common.MaxContext = None,
    long_requests: common.LongRequests = None,
    pue: common.Pue = None,
    usd_per_kwh: common.UsdPerKwh = None,
    kg_co2_per_kwh: common.Carbon = None,
    levels: Levels = LEVELS,
    lever: Lever = "cap",
    event_minutes: EventMinutes = 15.0,
    startup_minutes: StartupMinutes = 0.0,
    utilization: Utilization = UTILIZATIONS,
    no_simulate: NoSimulate = False,
    seed: common.Seed = 0,
    as_json: common.AsJson = False,
    out: common.Out = None,
) -> None:
    """Power and energy at the load a fleet really carries, its flexibility for the grid, and tokens per watt.

    flex needs the pools spelled out ([[fleet.pools]]), tokens needs fleet.profiles. Exit status: 0, 2 bad input, 3 no
    profile meets the SLO (tokens), 4 the simulator refused every profile (tokens).
    """
    flags = common.flags(locals()) | common.power_flags(locals())
    if report not in REPORTS:
        common.fail(f"--report must be one of {', '.join(REPORTS)}, got {report!r}")
    common.positive("--event-minutes", event_minutes)
    if startup_minutes != 0:
        common.positive("--startup-minutes", startup_minutes)
    from optim.config import read_settings

    with common.clean_errors():
        settings = read_settings(file, flags)
    folder = common.folder(out)

    from optim.inputs import flag
    from optim.power_request import power_request

    with common.clean_errors():
        request = power_request(settings, flex=report == "flex", tokens=report == "tokens")
    further = {
        "seed": flag(seed, given=seed != 0),
        "simulate": flag(not no_simulate, given=no_simulate),
    }
    if report == "flex":
        further |= {
            "levels_percent": flag(levels, given=levels != LEVELS),
            "lever": flag(lever, given=lever != "cap"),
            "event_minutes": flag(event_minutes, given=event_minutes != 15.0),
        }
        if lever == "off":
            further["startup_minutes"] = flag(startup_minutes, given=startup_minutes != 0)
        command = common.command_line(context)
        timing = (levels, lever, event_minutes, startup_minutes)
        _flex(request, further, folder, *timing, not no_simulate, seed, as_json, command)
    else:
        further["utilization"] = flag(utilization, given=utilization != UTILIZATIONS)
        _tokens(request, further, folder, utilization, not no_simulate, seed, as_json, common.command_line(context))


def _flex(
    request: PowerRequest,
    further: Inputs,
    folder: Path | None,
    levels: str,
    lever: str,
    event_minutes: float,
    startup_minutes: float,
    simulate: bool,
    seed: int,
    as_json: bool,
    command: Sequence[str],
) -> None:
    from jaxsim.energy import stack_power
    from optim.documents import profile_warnings, to_json
    from optim.power_document import flex_document, flex_rows
    from optim.power_flex import flexibility
    from optim.power_plots import plot_flex
    from optim.power_report import flex_report, profile_notes
    from optim.words import fleet, number

    assert request.fleet is not None
    asked = request.fleet
    shares = [0.0, *(level / 100.0 for level in common.grid("--levels", levels) or ())]
    if max(shares) >= 1.0:
        common.fail(f"--levels must be below 100 percent, got {levels!r}")
    if asked.rate is None:
        common.fail("a closed loop has no rate of its own to hold against; give --rate")
    profiles = [asked.design.profile.at(p) for p in range(asked.design.num_pools)]
    with common.progress("curtailing") as told, common.clean_errors():
        found = flexibility(
            asked.design,
            asked.workload,
            float(asked.rate or 0.0),
            stack_power([request.law_of(profile) for profile in profiles]),
            shares=shares,
            event_s=60.0 * event_minutes,
            slo=asked.slo,
            lever=lever,
            startup_s=60.0 * startup_minutes,
            simulate=simulate,
            seed=seed,
            progress=told,
        )
    names = {str(profile.name): profile for profile in profiles}
    warnings = [*request.notes, *profile_warnings(list(names.values())), *profile_notes(list(names.values()))]
    rules = set(asked.rules.inputs)
    inputs = {**{k: v for k, v in asked.inputs.items() if k not in rules}, **request.inputs, **further}
    document = flex_document(found, request.prices, inputs, seed, warnings)
    page = flex_report(found, request.prices, inputs, warnings)
    if folder is not None:
        title = f"{fleet(found.design)}: {found.workload.name} at {number(found.rate)} req/s, an event of"
        plot_flex([found], folder / "flex.png", title=f"{title} {event_minutes:g} min")
        common.write_csv(folder / "flex.csv", flex_rows(found))
        from optim.documents import plain
        from optim.html_page import write_page
        from optim.html_power import flex_page
        from optim.power_report import flex_verdict

        html = flex_page(plain(document), verdict=flex_verdict(found).plain, command=command)
        write_page(folder / "report.html", html)
    _written(folder, "flex.json", to_json(document), page, as_json)


def _tokens(
    request: PowerRequest,
    further: Inputs,
    folder: Path | None,
    utilization: str,
    simulate: bool,
    seed: int,
    as_json: bool,
    command: Sequence[str],
) -> None:
    from optim.documents import profile_warnings, to_json
    from optim.plan import PlanStatus
    from optim.power_document import tokens_document, tokens_rows
    from optim.power_plots import plot_tokens
    from optim.power_report import profile_notes, tokens_report
    from optim.power_tokens import ranking
    from optim.words import number

    assert request.plan is not None
    problem = request.plan.problem
    loads = common.grid("--utilization", utilization) or []
    with common.progress("planning") as told, common.clean_errors():
        found = ranking(
            problem,
            request.laws,
            request.prices,
            utilizations=loads,
            seed=seed,
            simulate=simulate,
            progress=told,
        )
    warnings = [*request.notes, *profile_warnings(problem.profiles), *profile_notes(problem.profiles)]
    inputs = {**request.plan.inputs, **request.inputs, **further}
    del inputs["max_pools"]
    document = tokens_document(found, inputs, seed, warnings)
    page = tokens_report(found, request.prices, inputs, warnings)
    if folder is not None:
        title = f"{problem.workload.name}: fleets for {number(problem.rate)} req/s at equal SLO"
        plot_tokens(found, folder / "tokens.png", title=title)
        common.write_csv(folder / "tokens.csv", tokens_rows(found))
        from optim.documents import plain
        from optim.html_page import write_page
        from optim.html_power import tokens_page
        from optim.power_report import tokens_verdict

        html = tokens_page(plain(document), verdict=tokens_verdict(found).plain, command=command)
        write_page(folder / "report.html", html)
    _written(folder, "tokens.json", to_json(document), page, as_json)
    statuses = [one.plan.status for one in found.ranked]
    if all(status is PlanStatus.INFEASIBLE for status in statuses):
        raise typer.Exit(Exit.INFEASIBLE)
    if all(status in (PlanStatus.INFEASIBLE, PlanStatus.REFUSED) for status in statuses):
        raise typer.Exit(Exit.REFUSED)


def _written(folder: Path | None, name: str, document: str, page: Any, as_json: bool) -> None:
    if folder is not None:
        common.write_report(folder / "report.txt", page)
        (folder / name).write_text(document + "\n", encoding="utf-8")
    if as_json:
        common.show_json(document)
    else:
        common.show(page, *common.report_line(folder))
