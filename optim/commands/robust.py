"""`fleetgrad robust`."""

from __future__ import annotations

from typing import Annotated

import typer

from optim.commands import _common as common
from optim.commands._common import Exit

DRAWS = 256
PROBABILITIES = "0.5,0.9,0.95,0.99"
WORST = "worst"

RateRange = Annotated[str | None, typer.Option(metavar="LOW,HIGH", help="Requests per second, all as likely.")]
RateCv = Annotated[float | None, typer.Option(help="Coefficient of variation of a log-normal rate.")]
StepTime = Annotated[str | None, typer.Option(metavar="LOW,HIGH", help="Factor of all step times, such as 0.95,1.05.")]
Fit = Annotated[
    bool, typer.Option("--fit", help="Draw coefficients from the errors that `fit --out` wrote into profiles.")
]
InputTokens = Annotated[str | None, typer.Option(metavar="LOW,HIGH", help="Factor of every prompt's length.")]
OutputTokens = Annotated[str | None, typer.Option(metavar="LOW,HIGH", help="Factor of every output's length.")]
LengthSample = Annotated[int | None, typer.Option(help="Requests that the mix of lengths was seen in (bootstrap).")]
Probability = Annotated[str, typer.Option(help="With which the SLO is to be met: a fleet for each.")]
Choose = Annotated[str, typer.Option(help="The answer, which is simulated: worst (every scenario) or a probability.")]
Draws = Annotated[int, typer.Option(help="Scenarios drawn, a power of two.")]
Precision = Annotated[float | None, typer.Option(help="Relative half-width of the simulated P99s' intervals.")]
NoSimulate = Annotated[bool, typer.Option("--no-simulate", help="Skip the simulator; nothing is then verified.")]


def robust(
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
    rate_range: RateRange = None,
    rate_cv: RateCv = None,
    step_time_factor: StepTime = None,
    fit: Fit = False,
    input_tokens_factor: InputTokens = None,
    output_tokens_factor: OutputTokens = None,
    length_sample: LengthSample = None,
    probability: Probability = PROBABILITIES,
    choose: Choose = WORST,
    draws: Draws = DRAWS,
    seed: common.Seed = 0,
    precision: Precision = None,
    no_simulate: NoSimulate = False,
    as_json: common.AsJson = False,
    out: common.Out = None,
) -> None:
    """The plan under uncertain demand, coefficients and lengths: met, missed or a coin flip, and what robust costs.

    The file's [uncertainty], or the flags, say what is not known. The plan's fleet is looked at in many scenarios; for
    the worst case and for every --probability the cheapest sizes of its pools are found. Exit status: 0 found and
    verified, 2 bad input, 3 infeasible, 4 the simulator said no.
    """
    flags = common.flags(locals())
    own = {
        "rate": _pair("--rate-range", rate_range),
        "rate_cv": rate_cv,
        "step_time_factor": _pair("--step-time-factor", step_time_factor),
        "fit": fit or None,
        "input_tokens_factor": _pair("--input-tokens-factor", input_tokens_factor),
        "output_tokens_factor": _pair("--output-tokens-factor", output_tokens_factor),
        "length_sample": length_sample,
    }
    flags |= {f"uncertainty.{key}": value for key, value in own.items() if value is not None}
    wanted = [_share("--probability", text) for text in probability.split(",")]
    chosen = None if choose == WORST else _share("--choose", choose)
    if precision is not None:
        common.positive("--precision", precision)
    from optim.config import read_settings

    with common.clean_errors():
        settings = read_settings(file, flags)
    folder = common.folder(out)

    from optim.documents import to_json
    from optim.inputs import flag
    from optim.plan import PRECISION
    from optim.robust import RobustStatus
    from optim.robust import robust as find
    from optim.robust_document import robust_document, scenario_rows
    from optim.robust_report import robust_report
    from optim.robust_request import robust_request

    with common.clean_errors():
        request = robust_request(settings)
    simulated = PRECISION if precision is None else precision
    inputs = {
        **request.inputs,
        "probability": flag(wanted, given=probability != PROBABILITIES),
        "choose": flag(choose, given=choose != WORST),
        "draws": flag(draws, given=draws != DRAWS),
        "seed": flag(seed, given=seed != 0),
        "precision": flag(simulated, given=precision is not None),
        "simulate": flag(not no_simulate, given=no_simulate),
    }
    with common.progress("planning") as told, common.clean_errors():
        found = find(
            request.problem,
            request.uncertainty,
            probabilities=wanted,
            choose=chosen,
            draws=draws,
            seed=seed,
            precision=simulated,
            simulate=not no_simulate,
            progress=told,
        )
    document = robust_document(found, request.notes, inputs, seed=seed)
    report = robust_report(found, request.notes, inputs)
    if folder is not None:
        common.write_report(folder / "report.txt", report)
        (folder / "robust.json").write_text(to_json(document) + "\n", encoding="utf-8")
        if rows := scenario_rows(found):
            common.write_csv(folder / "scenarios.csv", rows)
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report)
    refused = (RobustStatus.COIN_FLIP, RobustStatus.REFUSED)
    if found.status in refused or (found.status is RobustStatus.NO_PLAN and found.plan.design is not None):
        raise typer.Exit(Exit.REFUSED)
    if found.status not in (RobustStatus.VERIFIED, RobustStatus.UNVERIFIED):
        raise typer.Exit(Exit.INFEASIBLE)


def _pair(option: str, text: str | None) -> list[float] | None:
    """`LOW,HIGH`."""
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 2:
        common.fail(f"{option} must be LOW,HIGH such as 0.9,1.2, got {text!r}")
    return numbers


def _share(option: str, text: str) -> float:
    """A probability."""
    try:
        share = float(text)
    except ValueError:
        share = float("nan")
    if not 0.0 < share < 1.0:
        common.fail(
            f"{option} must be between 0 and 1, got {text.strip()!r}; the worst case is {WORST}, and always shown"
        )
    return share
