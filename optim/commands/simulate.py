"""`fleetgrad simulate`."""

from __future__ import annotations

from typing import Annotated

import typer

from optim.commands import _common as common

Requests = Annotated[int | None, typer.Option(min=1, help="Requests in all replications; default 400,000.")]
Replications = Annotated[int | None, typer.Option(min=1, help="Independent runs that share the requests; default 8.")]
Precision = Annotated[float | None, typer.Option(help="Run longer until the P99s' intervals are this narrow.")]
Arrivals = Annotated[str, typer.Option(help="poisson, or trace: the workload's own arrival times.")]
Warmup = Annotated[float, typer.Option(help="Share of the time left out at the start.")]


def simulate(
    file: common.File,
    workload: common.WorkloadName = None,
    trace: common.TracePath = None,
    cdf: common.CdfPath = None,
    output_share: common.OutputShare = None,
    columns: common.Map = None,
    time_unit: common.TimeUnit = None,
    failed: common.Failed = None,
    rate: common.Rate = None,
    ttft_p99_ms: common.TtftMs = None,
    tpot_p99_ms: common.TpotMs = None,
    long_requests: common.LongRequests = None,
    model: common.Model = None,
    requests: Requests = None,
    replications: Replications = None,
    precision: Precision = None,
    arrivals: Arrivals = "poisson",
    warmup: Warmup = 0.2,
    seed: common.Seed = 0,
    as_json: common.AsJson = False,
    out: common.Out = None,
) -> None:
    """Simulate a fleet whose pools the file spells out ([[fleet.pools]]), beside the model's figures of it."""
    flags = common.flags(locals())
    from optim.config import read_settings

    with common.clean_errors():
        settings = read_settings(file, flags)
    if precision is not None:
        common.positive("--precision", precision)
    if not 0 <= warmup < 1:
        common.fail(f"--warmup must be in [0, 1), got {warmup}")
    folder = common.folder(out)

    import des
    from optim.build import Input, fleet_request
    from optim.documents import simulation_document, to_json
    from optim.figures import figures
    from optim.tables import simulation_report
    from optim.verify import judge

    with common.clean_errors():
        request = fleet_request(settings)
    own_time = arrivals == "trace" and settings.tables.workload.rate is None
    with common.progress("simulating") as told:
        with common.clean_errors():
            result = des.simulate(
                request.design,
                request.workload,
                rate=None if own_time else request.rate,
                num_requests=requests,
                seed=seed,
                convention=request.model,
                warmup_fraction=warmup,
                replications=replications,
                precision=precision,
                arrivals=arrivals,
            )
        told("evaluating the model")
        analytic = figures(request.design, request.workload, result.rate, model=request.model)
    given = "given on the command line"
    inputs = {
        **request.inputs,
        "arrivals": Input(arrivals, "default" if arrivals == "poisson" else given),
        "requests": Input(result.num_requests, given if requests is not None else "default"),
        "replications": Input(len(result.replications), given if replications is not None else "default"),
        "precision": Input(precision, given if precision is not None else "default: not asked for"),
        "warmup_fraction": Input(warmup, "default" if warmup == 0.2 else given),
        "seed": Input(seed, given if seed else "default"),
    }
    slo_met = None if request.slo is None else judge(result, request.slo).slo_met
    document = simulation_document(request, result, inputs, analytic, slo_met)
    report = simulation_report(request, result, inputs, analytic, slo_met)
    if folder is not None:
        from optim.plots import plot_ttft
        from optim.words import fleet, number

        common.write_report(folder / "report.txt", report)
        (folder / "simulation.json").write_text(to_json(document) + "\n", encoding="utf-8")
        plot_ttft(
            result,
            request.design,
            request.workload,
            folder / "ttft.png",
            rate=result.rate,
            model=request.model,
            slo=request.slo,
            title=f"{fleet(request.design)}: {request.workload.name} at {number(result.rate)} req/s",
        )
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report)
