"""`fleetgrad disagg`."""

from __future__ import annotations

from typing import Annotated

import typer

from optim.commands import _common as common
from optim.commands._common import Exit

LinkBandwidth = Annotated[
    float | None, typer.Option("--link-gb-per-s", help="Bandwidth of the link for KV caches, GB (1e9 bytes) a second.")
]
LinkLatency = Annotated[float | None, typer.Option("--link-latency-ms", help="Fixed time of a transfer; 0.")]
KvBytes = Annotated[
    float | None, typer.Option("--kv-bytes-per-token", help="KV cache of a token, bytes; that of the profiles' MODEL.")
]
Precision = Annotated[float | None, typer.Option(help="Relative half-width of the simulated P99s' intervals.")]
NoSimulate = Annotated[bool, typer.Option("--no-simulate", help="Skip the simulator; nothing is then verified.")]
AlphaPrefill = Annotated[float, typer.Option(help="Reference model: share of the prefill rate that is reached.")]
AlphaDecode = Annotated[float, typer.Option(help="Reference model: share of the decode rate that is reached.")]
BetaTtft = Annotated[float, typer.Option(help="Reference model: TTFT over the time of a prompt.")]


def disagg(
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
    link_gb_per_s: LinkBandwidth = None,
    link_latency_ms: LinkLatency = None,
    kv_bytes_per_token: KvBytes = None,
    alpha_prefill: AlphaPrefill = 0.90,
    alpha_decode: AlphaDecode = 0.92,
    beta_ttft: BetaTtft = 1.80,
    seed: common.Seed = 0,
    precision: Precision = None,
    no_simulate: NoSimulate = False,
    as_json: common.AsJson = False,
    out: common.Out = None,
) -> None:
    """Prefill and decode in pools of their own: the cheapest that meet the SLO, beside the best fleet without.

    Both are checked by simulation at the same objectives. Exit status: 0 a disaggregated fleet found and verified, 2
    bad input, 3 infeasible, 4 the simulator said no to every candidate.
    """
    flags = common.flags(locals())
    from optim.config import read_settings

    with common.clean_errors():
        settings = read_settings(file, flags)
    for name, value in (
        ("--alpha-prefill", alpha_prefill),
        ("--alpha-decode", alpha_decode),
        ("--beta-ttft", beta_ttft),
    ):
        common.positive(name, value)
    if precision is not None:
        common.positive("--precision", precision)
    folder = common.folder(out)

    from jaxsim.disagg import Factors
    from optim.build import disagg_request
    from optim.disagg import DisaggStatus
    from optim.disagg import disagg as find
    from optim.disagg_report import disagg_document, disagg_report
    from optim.documents import to_json
    from optim.inputs import flag
    from optim.plan import PRECISION

    with common.clean_errors():
        request = disagg_request(settings)
    wanted = PRECISION if precision is None else precision
    factors, usual = Factors(alpha_prefill, alpha_decode, beta_ttft), Factors()
    inputs = {
        **request.inputs,
        "reference_factors": flag(list(factors), given=factors != usual),
        "seed": flag(seed, given=seed != 0),
        "precision": flag(wanted, given=precision is not None),
        "simulate": flag(not no_simulate, given=no_simulate),
    }
    with common.progress("planning") as told, common.clean_errors():
        found = find(
            request.problem,
            request.link,
            factors=factors,
            seed=seed,
            precision=wanted,
            simulate=not no_simulate,
            progress=told,
        )
    document, report = disagg_document(found, request.notes, inputs, seed), disagg_report(found, request.notes, inputs)
    if folder is not None:
        common.write_report(folder / "report.txt", report)
        (folder / "disagg.json").write_text(to_json(document) + "\n", encoding="utf-8")
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report)
    if found.status is DisaggStatus.INFEASIBLE:
        raise typer.Exit(Exit.INFEASIBLE)
    if found.status is DisaggStatus.REFUSED:
        raise typer.Exit(Exit.REFUSED)
