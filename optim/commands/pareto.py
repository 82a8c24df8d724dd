"""`fleetgrad pareto`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optim.commands import _common as common
from optim.commands._common import Exit

if TYPE_CHECKING:
    from optim.pareto import ParetoFront
    from optim.problem import PlanProblem

Thresholds = Annotated[
    str | None, typer.Option(help="Total tokens, as 1024,4096 or 1024:8192:1024; left out, the workload's own.")
]
Axes = Annotated[
    str | None, typer.Option(help="To compare in, two or more of cost,ttft,tpot,energy; energy if power is given.")
]


def pareto(
    context: typer.Context,
    file: common.File = None,
    thresholds: Thresholds = None,
    axes: Axes = None,
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
    model: common.Model = None,
    pue: common.Pue = None,
    usd_per_kwh: common.UsdPerKwh = None,
    kg_co2_per_kwh: common.Carbon = None,
    minimize: common.Minimize = None,
    max_kw: common.MaxKw = None,
    max_kwh_per_million_tokens: common.MaxKwh = None,
    workers: common.Workers = None,
    engine: common.Engine = "local",
    as_json: common.AsJson = False,
    out: common.Out = None,
) -> None:
    """Size one pool, and two pools at every threshold: cost, power and P99s of each, by the model."""
    flags = common.flags(locals()) | common.power_flags(locals())
    from optim.config import read_settings

    cuts = common.grid("--thresholds", thresholds)
    with common.clean_errors():
        settings = read_settings(file, flags)
    folder = common.folder(out)
    execution = common.execution(workers, engine, folder)

    from optim.build import plan_request
    from optim.documents import pareto_document, to_json
    from optim.inputs import flag
    from optim.pareto import pareto as sweep
    from optim.tables import pareto_report

    with common.clean_errors():
        request = plan_request(settings, power=True)
    thresholds_input = flag(cuts or "own", given=cuts is not None, default="default: the workload's own")
    compared = None if axes is None else [axis.strip() for axis in axes.split(",")]
    inputs = {**request.inputs, "thresholds_tokens": thresholds_input}
    inputs.pop("max_pools")
    with common.progress("sweeping thresholds") as told, common.clean_errors():
        front = sweep(request.problem, thresholds=cuts, axes=compared, execution=execution, progress=told)
    inputs["axes"] = flag(list(front.axes), given=compared is not None)
    document = pareto_document(front, request, inputs)
    report = pareto_report(front, request, inputs)
    if folder is not None:
        from optim.documents import plain
        from optim.html_front import pareto_page
        from optim.html_page import write_page
        from optim.tables import pareto_verdict

        common.write_report(folder / "report.txt", report)
        (folder / "pareto.json").write_text(to_json(document) + "\n", encoding="utf-8")
        write_front(folder, front, request.problem)
        page = pareto_page(
            plain(document), verdict=pareto_verdict(front, request).plain, command=common.command_line(context)
        )
        write_page(folder / "report.html", page)
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report, *common.report_line(folder))
    if front.recommended is None:
        raise typer.Exit(Exit.INFEASIBLE)


def write_front(folder: Path, front: ParetoFront, problem: PlanProblem) -> None:
    """pareto.csv and pareto.png."""
    from optim.documents import point_entry
    from optim.pareto_plot import plot_pareto
    from optim.words import fleet, number

    rows = []
    for k, point in enumerate(front.points):
        entry = point_entry(point)
        entry["design"] = fleet(point.design)
        rows.append({**entry, "recommended": k == front.recommended})
    if not rows:
        return
    common.write_csv(folder / "pareto.csv", rows)
    title = f"{problem.workload.name} at {number(problem.rate)} req/s: one pool, or two at each threshold"
    plot_pareto(front, folder / "pareto.png", slo=problem.slo, title=title, max_kw=problem.aim.max_kw)
