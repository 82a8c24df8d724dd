"""`fleetgrad compare-routers`."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from optim.commands import _common as common
from optim.commands._common import Exit

REQUESTS = 200_000

Routers = Annotated[str | None, typer.Option("--routers", metavar="A,B,...", help="Which; left out, all that apply.")]
Requests = Annotated[int, typer.Option(min=1, help="Requests of each router, in all replications.")]
Pressure = Annotated[float | None, typer.Option(help="spillover: (active + queued) / slots of a pool; default 1.")]
Gamma = Annotated[float | None, typer.Option(help="compress: upper end of the band over a threshold; default 1.5.")]
Error = Annotated[float | None, typer.Option(help="predicted: sigma of log(predicted / true output); default 0.3.")]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", help="input-plus-max: clients' cap; default the longest output.")
]


def compare_routers(
    file: common.File = None,
    routers: Routers = None,
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
    pressure: Pressure = None,
    gamma: Gamma = None,
    error: Error = None,
    max_tokens: MaxTokens = None,
    requests: Requests = REQUESTS,
    replications: common.Replications = None,
    warmup: common.Warmup = 0.2,
    seed: common.Seed = 0,
    as_json: common.AsJson = False,
    out: common.Out = None,
) -> None:
    """The same fleet and the same requests under each router, and the price of not knowing the output length.

    Routers: length (oracle), input-plus-max, input, predicted, spillover, compress, and over any pool least-loaded,
    random, round-robin, power-of-two, prefix-affinity. Exit status: 0 compared, 2 bad input, 4 no router meets the SLO.
    """
    flags = common.flags(locals())
    from optim.config import read_settings

    with common.clean_errors():
        settings = read_settings(file, flags)
    common.check_warmup(warmup)

    from optim.build import fleet_request
    from optim.compare_report import comparison_document, comparison_report, csv_rows
    from optim.compare_routers import NAMES, compare, contenders
    from optim.documents import to_json
    from optim.inputs import flag

    names = _names(routers, NAMES)
    folder = common.folder(out)
    with common.clean_errors():
        request = fleet_request(settings, routers=True)
        inputs = {**request.inputs}
        chosen, left_out = contenders(settings, request, names, inputs)
    with common.progress("simulating") as told, common.simulator_errors(settings):
        ending = request.rules.arrivals.expected_requests(request.rate, request.workload) < float("inf")
        found = compare(
            request,
            chosen,
            progress=told,
            num_requests=None if ending and requests == REQUESTS else requests,
            replications=replications,
            warmup_fraction=warmup,
            seed=seed,
        )
    first = found.standings[0].result
    inputs |= {
        "routers": flag([c.name for c in chosen], given=names is not None, default="default: all that apply"),
        "requests": flag(first.num_requests, given=requests != REQUESTS),
        "replications": flag(len(first.replications), given=replications is not None),
        "warmup_fraction": flag(warmup, given=warmup != 0.2),
        "seed": flag(seed, given=seed != 0),
    }
    document = comparison_document(request, found, inputs, left_out, seed)
    report = comparison_report(request, found, inputs, left_out)
    if folder is not None:
        from optim.plots import plot_routers
        from optim.words import fleet, number

        common.write_report(folder / "report.txt", report)
        (folder / "routers.json").write_text(to_json(document) + "\n", encoding="utf-8")
        common.write_csv(folder / "routers.csv", csv_rows(found))
        title = f"{fleet(request.design)}: {request.workload.name} at {number(first.rate)} req/s"
        plot_routers(found, folder / "routers.png", title=title)
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report)
    if document["status"] == "refused":
        raise typer.Exit(Exit.REFUSED)


def _names(text: str | None, known: tuple[str, ...]) -> list[str] | None:
    """`--routers a,b,c` as names, each known and given once."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            common.fail(f"--routers must be names of routers, got {name!r}; {hint}known: {', '.join(known)}")
        if names.count(name) > 1:
            common.fail(f"--routers must name each router once, got {name!r} twice")
    return names
