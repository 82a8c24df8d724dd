"""`fleetgrad simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from optim.commands import _common as common

if TYPE_CHECKING:
    from des import SimulationResult
    from optim.build import FleetRequest
    from optim.documents import Document
    from optim.tails import Tails
    from optim.verdict import Verdict

Precision = Annotated[float | None, typer.Option(help="Run longer until the P99s' intervals are this narrow.")]
Windows = Annotated[int, typer.Option(min=4, help="Stretches of the time series of occupancy and queues.")]
Itl = Annotated[bool, typer.Option("--itl", help="Also count the gaps between tokens (ITL).")]
RequestsOut = Annotated[
    bool, typer.Option("--requests-out", help="With --out: also every request, as requests.parquet.")
]


def simulate(
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
    long_requests: common.LongRequests = None,
    model: common.Model = None,
    scheduling: common.Scheduling = None,
    max_num_batched_tokens: common.BatchedTokens = None,
    kv: common.Kv = None,
    arrivals: common.Arrivals = None,
    cv: common.Cv = None,
    concurrency: common.Concurrency = None,
    dispatch: common.Dispatch = None,
    requests: common.Requests = None,
    replications: common.Replications = None,
    precision: Precision = None,
    warmup: common.Warmup = 0.2,
    windows: Windows = 20,
    itl: Itl = False,
    seed: common.Seed = 0,
    as_json: common.AsJson = False,
    out: common.Out = None,
    requests_out: RequestsOut = False,
    workers: common.Workers = None,
    engine: common.Engine = "local",
    resume: common.Resume = False,
    schema: common.Schema = False,
) -> None:
    """Simulate a fleet whose pools the file spells out ([[fleet.pools]]), beside the model's figures of it.

    Rules of the simulator are tables of the file: [serving], [arrivals], [router], [transfer], [failures] and
    [[schedule]]; --schema prints them all.
    """
    flags = common.flags(locals())
    if schema:
        common.show_schema()
        return
    from optim.config import read_settings

    with common.clean_errors():
        settings = read_settings(file, flags)
    if precision is not None:
        common.positive("--precision", precision)
    common.check_warmup(warmup)
    if requests_out and out is None:
        common.fail("--requests-out needs --out DIR, the folder that requests.parquet goes to")
    folder = common.folder(out)
    execution = common.execution(workers, engine, folder, resume=resume)

    import des
    from optim.build import fleet_request
    from optim.documents import to_json
    from optim.figures import model_figures
    from optim.inputs import flag
    from optim.simulation_document import simulation_document
    from optim.simulation_report import simulation_report
    from optim.verify import judge

    with common.clean_errors():
        request = fleet_request(settings)
    with common.progress("simulating") as told:
        with common.simulator_errors(settings):
            result = des.simulate(
                request.design,
                request.workload,
                rate=request.rate,
                num_requests=requests,
                seed=seed,
                convention=request.model,
                warmup_fraction=warmup,
                replications=replications,
                precision=precision,
                windows=windows,
                itl=itl,
                keep="requests" if requests_out else "latencies",
                execution=execution,
                **request.rules.arguments,
            )
        told("evaluating the model")
        analytic = model_figures(request.design, request.workload, result.rate, request.rules, model=request.model)
    inputs = {
        **request.inputs,
        "requests": flag(result.num_requests, given=requests is not None),
        "replications": flag(len(result.replications), given=replications is not None),
        "precision": flag(precision, given=precision is not None, default="default: not asked for"),
        "warmup_fraction": flag(warmup, given=warmup != 0.2),
        "itl": flag(itl, given=itl),
        "windows": flag(windows, given=windows != 20),
        "seed": flag(seed, given=seed != 0),
    }
    verdict = None if request.slo is None else judge(result, request.slo).verdict
    document = simulation_document(request, result, inputs, analytic, verdict)
    report = simulation_report(request, result, inputs, analytic, verdict)
    if folder is not None:
        with common.clean_errors():
            written = SimulationFiles(request, result, document, report, verdict, modelled=analytic is not None)
            written.write(folder, common.command_line(context))
            if requests_out:
                result.write_requests(folder / "requests.parquet")
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report, *common.report_line(folder))


@dataclass(frozen=True)
class SimulationFiles:
    """A simulated fleet and what is said of it, to be written.

    Attributes:
        document, report: as JSON will have it, and as a page of text.
        verdict: on the objectives; None without any.
        modelled: whether the model has figures of the fleet.
    """

    request: FleetRequest
    result: SimulationResult
    document: Document
    report: RenderableType
    verdict: Verdict | None
    modelled: bool

    def write(self, folder: Path, command: Sequence[str]) -> None:
        """report.txt, simulation.json, report.html and the plots, into a folder that is there already."""
        from optim.documents import plain, to_json
        from optim.html_page import write_page
        from optim.html_simulation import simulation_page
        from optim.simulation_report import pool_names, rules_lines, simulation_verdict

        common.write_report(folder / "report.txt", self.report)
        (folder / "simulation.json").write_text(to_json(self.document) + "\n", encoding="utf-8")
        drawn = _write_plots(folder, self.request, self.result, modelled=self.modelled)
        page = simulation_page(
            plain(self.document),
            verdict=simulation_verdict(self.request, self.result, self.verdict).plain,
            command=command,
            tails=drawn,
            pools=pool_names(self.request),
            rules=[line.plain for line in rules_lines(self.request.rules, self.result)],
        )
        write_page(folder / "report.html", page)


def _write_plots(folder: Path, request: FleetRequest, result: SimulationResult, *, modelled: bool) -> Tails | None:
    """ttft.png and occupancy.png; the distributions that were drawn."""
    from optim.plots import plot_occupancy, plot_ttft
    from optim.simulation_report import fleet_words, pool_names, rate_words
    from optim.tails import tails

    if not result.ttft.n:
        return None
    title = f"{fleet_words(request)}: {request.workload.name} at {rate_words(request, result)}"
    drawn = tails(
        result,
        request.design,
        request.workload,
        rate=result.rate,
        model=request.model if modelled else None,
        slo=request.slo,
        rules=request.rules,
    )
    plot_ttft(drawn.ttft, folder / "ttft.png", title=title)
    plot_occupancy(result, folder / "occupancy.png", pools=pool_names(request), title=title)
    return drawn
