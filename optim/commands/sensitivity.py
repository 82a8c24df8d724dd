"""`fleetgrad sensitivity`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from optim.commands import _common as common
from optim.commands._common import Exit


class Figure(Enum):
    """Whose P99 ranks the knobs."""

    TTFT = "ttft"
    TPOT = "tpot"


By = Annotated[Figure, typer.Option("--by", help="Rank the knobs by P99 TTFT or P99 TPOT bought for a dollar.")]
Precision = Annotated[float | None, typer.Option(help="Relative half-width of the simulated P99s' intervals.")]
NoSimulate = Annotated[bool, typer.Option("--no-simulate", help="Skip the simulator; the plan is then not verified.")]


def sensitivity(
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
    by: By = Figure.TTFT,
    seed: common.Seed = 0,
    precision: Precision = None,
    no_simulate: NoSimulate = False,
    as_json: common.AsJson = False,
    out: common.Out = None,
) -> None:
    """What everything costs at the best plan (or at the file's [[fleet.pools]]), and which knob to turn next.

    Derivatives of cost and P99s in every input, the price of each constraint, the knobs ranked by P99 bought for a
    dollar, and the rate at which the next replica is due. Exit status: 0 found, 2 bad input, 3 infeasible, 4 the
    simulator said no to every candidate.
    """
    flags = common.flags(locals())
    from optim.config import read_settings

    with common.clean_errors():
        settings = read_settings(file, flags)
    if precision is not None:
        common.positive("--precision", precision)
    folder = common.folder(out)

    from optim.documents import to_json
    from optim.inputs import flag
    from optim.plan import PRECISION, PlanStatus
    from optim.sensitivity_report import knob_rows, sensitivity_document, sensitivity_report, slope_rows
    from optim.sensitivity_request import sensitivity_request, study_fleet

    with common.clean_errors():
        request = sensitivity_request(settings)
    wanted = PRECISION if precision is None else precision
    inputs = {**request.inputs, "ranked_by": flag(by.value, given=by is not Figure.TTFT)}
    if request.design is None:
        inputs |= {
            "seed": flag(seed, given=seed != 0),
            "precision": flag(wanted, given=precision is not None),
            "simulate": flag(not no_simulate, given=no_simulate),
        }
    with common.progress("planning") as told, common.clean_errors():
        found, planned = study_fleet(
            request, seed=seed, precision=wanted, simulate=not no_simulate, by=by.value, progress=told
        )
    document = sensitivity_document(found, planned, request.notes, inputs, by=by.value)
    report = sensitivity_report(found, planned, request.notes, inputs, by=by.value)
    if folder is not None:
        common.write_report(folder / "report.txt", report)
        (folder / "sensitivity.json").write_text(to_json(document) + "\n", encoding="utf-8")
        if found is not None:
            common.write_csv(folder / "sensitivities.csv", slope_rows(found))
            common.write_csv(folder / "knobs.csv", knob_rows(found))
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report)
    if planned is not None and planned.status is PlanStatus.REFUSED:
        raise typer.Exit(Exit.REFUSED)
    if found is None or not found.feasible:
        raise typer.Exit(Exit.INFEASIBLE)
