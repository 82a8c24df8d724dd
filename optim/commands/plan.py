"""`fleetgrad plan`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from optim.commands import _common as common
from optim.commands._common import Exit

if TYPE_CHECKING:
    from optim.documents import Document
    from optim.plan import Plan

Precision = Annotated[float | None, typer.Option(help="Relative half-width of the simulated P99s' intervals.")]
Replications = Annotated[
    int | None, typer.Option(min=1, help="Independent runs of each simulation; left out, 8 or fewer.")
]
NoSimulate = Annotated[bool, typer.Option("--no-simulate", help="Skip the simulator; the plan is then not verified.")]


def plan(
    context: typer.Context,
    file: common.File = None,
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
    max_pools: common.MaxPools = None,
    max_context: common.MaxContext = None,
    long_requests: common.LongRequests = None,
    model: common.Model = None,
    max_gpus: common.MaxGpus = None,
    pue: common.Pue = None,
    usd_per_kwh: common.UsdPerKwh = None,
    kg_co2_per_kwh: common.Carbon = None,
    minimize: common.Minimize = None,
    max_kw: common.MaxKw = None,
    max_kwh_per_million_tokens: common.MaxKwh = None,
    seed: common.Seed = 0,
    precision: Precision = None,
    no_simulate: NoSimulate = False,
    replications: Replications = None,
    workers: common.Workers = None,
    engine: common.Engine = "local",
    as_json: common.AsJson = False,
    out: common.Out = None,
    resume: common.Resume = False,
    schema: common.Schema = False,
) -> None:
    """Find the cheapest fleet that meets the SLO, or the one of least energy, and check it by simulation.

    `fleetgrad export` turns the plan.json of --out into what is deployed.
    Exit status: 0 plan found and verified, 2 bad input, 3 infeasible, 4 the simulator said no to every candidate.
    """
    flags = common.flags(locals()) | common.power_flags(locals())
    if schema:
        common.show_schema()
        return
    from optim.config import read_settings

    with common.clean_errors():
        settings = read_settings(file, flags)
    if precision is not None:
        common.positive("--precision", precision)
    folder = common.folder(out)
    execution = common.execution(workers, engine, folder, resume=resume)

    from optim.build import plan_request
    from optim.documents import plan_document, to_json
    from optim.inputs import flag
    from optim.plan import PRECISION, PlanStatus
    from optim.plan import plan as find
    from optim.report import plan_report

    with common.clean_errors():
        request = plan_request(settings, power=True)
    wanted = PRECISION if precision is None else precision
    inputs = {
        **request.inputs,
        "seed": flag(seed, given=seed != 0),
        "precision": flag(wanted, given=precision is not None),
        "simulate": flag(not no_simulate, given=no_simulate),
    }
    with common.progress("planning") as told:
        with common.clean_errors():
            found = find(
                request.problem,
                seed=seed,
                precision=wanted,
                simulate=not no_simulate,
                replications=replications,
                execution=execution,
                progress=told,
            )
        if found.verification is not None:
            played = len(found.verification.result.replications)
            inputs["replications"] = flag(played, given=replications is not None, default="default: 8 or fewer")
        document = plan_document(found, request, inputs)
        report = plan_report(found, request, inputs)
        if folder is not None:
            told(f"writing {folder}")
            write_plan(folder, found, document, report, common.command_line(context))
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report, *common.report_line(folder))
    if found.status is PlanStatus.INFEASIBLE:
        raise typer.Exit(Exit.INFEASIBLE)
    if found.status is PlanStatus.REFUSED:
        raise typer.Exit(Exit.REFUSED)


def write_plan(folder: Path, found: Plan, document: Document, report: RenderableType, command: Sequence[str]) -> None:
    """All files of a plan: report.txt, plan.json, report.html, and the tables and plots beside them.

    Args:
        folder: there already.
        found, document, report: the plan, as a document, which gets what only files have, and as a page of text.
        command: that made it.
    """
    from optim.documents import to_json
    from optim.report import verdict

    document |= _further(found)
    common.write_report(folder / "report.txt", report)
    (folder / "plan.json").write_text(to_json(document) + "\n", encoding="utf-8")
    _write_details(folder, found, document, verdict(found).plain, command)


def _further(found: Plan) -> Document:
    """What the report has beside the plan: other loads, the knobs and the simulator's series."""
    from optim.load_document import load_entry
    from optim.plan_load import plan_knobs, plan_load
    from optim.sensitivity_report import knob_entry
    from optim.simulation_document import series_entry

    if found.design is None:
        return {}
    knobs = [knob_entry(knob, place) for place, knob in enumerate(plan_knobs(found), start=1)]
    further: Document = {"load": load_entry(plan_load(found), float(found.problem.rate)), "knobs": knobs}
    if found.verification is not None:
        further["time_series"] = series_entry(found.verification.result)
    return further


def _write_details(folder: Path, found: Plan, document: Document, verdict: str, command: Sequence[str]) -> None:
    """pools.csv, the sweep over thresholds, the plots and the report."""
    from optim.commands.pareto import write_front
    from optim.documents import front_entry, plain
    from optim.html_page import write_page
    from optim.html_plan import plan_page
    from optim.pareto import pareto
    from optim.plots import plot_ttft
    from optim.tails import tails
    from optim.words import fleet, number

    drawn, front = None, None
    problem = found.problem
    if found.design is not None:
        common.write_csv(folder / "pools.csv", [_pool_row(document, p) for p in range(found.design.num_pools)])
        swept = pareto(problem)
        write_front(folder, swept, problem)
        front = plain(front_entry(swept))
        if found.verification is not None and found.verification.result.ttft.n:
            result = found.verification.result
            drawn = tails(
                result, found.design, problem.limited, rate=problem.rate, model=problem.model, slo=problem.slo
            )
            title = f"{fleet(found.design)}: {problem.workload.name} at {number(problem.rate)} req/s"
            plot_ttft(drawn.ttft, folder / "ttft.png", title=title)
    write_page(
        folder / "report.html", plan_page(plain(document), verdict=verdict, command=command, tails=drawn, front=front)
    )


def _pool_row(document: Document, p: int) -> dict[str, Any]:
    row = {"pool": p, **document["design"]["pools"][p], **document["analytic"]["pools"][p]}
    row["binding_constraint"] = row["binding_constraint"].name.lower()
    if document["verification"] is not None:
        simulated = document["verification"]["pools"][p]
        for name in ("ttft_p99_ms", "tpot_p99_ms"):
            figures = simulated[name] or {}
            row |= {f"simulated_{name}": figures.get("value"), f"simulated_{name}_low": figures.get("low")}
            row[f"simulated_{name}_high"] = figures.get("high")
    return row
