"""`fleetgrad whatif`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optim.commands import _common as common
from optim.commands._common import Exit

if TYPE_CHECKING:
    from optim.documents import Document
    from optim.whatif import WhatIf

MAX_POINTS = 100_000
"""Of a grid that is held in memory and listed."""

Rates = Annotated[str | None, typer.Option("--rate", help="Requests per second: 50,100,200 or start:stop:step.")]
Ttfts = Annotated[str | None, typer.Option("--ttft-p99-ms", help="Objectives on P99 time to first token, likewise.")]
Tpots = Annotated[str | None, typer.Option("--tpot-p99-ms", help="Objectives on P99 time per output token, likewise.")]


def whatif(
    context: typer.Context,
    file: common.File = None,
    rate: Rates = None,
    ttft_p99_ms: Ttfts = None,
    tpot_p99_ms: Tpots = None,
    workload: common.WorkloadName = None,
    trace: common.TracePath = None,
    cdf: common.CdfPath = None,
    output_share: common.OutputShare = None,
    columns: common.Map = None,
    time_unit: common.TimeUnit = None,
    failed: common.Failed = None,
    profile: common.Profiles = None,
    max_pools: common.MaxPools = None,
    max_context: common.MaxContext = None,
    long_requests: common.LongRequests = None,
    model: common.Model = None,
    workers: common.Workers = None,
    engine: common.Engine = "local",
    as_json: common.AsJson = False,
    out: common.Out = None,
    resume: common.Resume = False,
) -> None:
    """The least-cost fleet for every combination of rates and objectives, by the model, in one batch.

    Grids of more than 100,000 points are written to DIR/parts of --out, and resumed, in any case.
    """
    parameters = dict(locals())
    names = ("rate", "ttft_p99_ms", "tpot_p99_ms")
    grids = {name: common.grid(f"--{name.replace('_', '-')}", parameters[name]) for name in names}
    first = {name: None if values is None else values[0] for name, values in grids.items()}
    flags = common.flags({**parameters, **first})
    size = _size(grids, out)

    import numpy as np

    from optim.config import read_settings

    with common.clean_errors():
        settings = read_settings(file, flags)
    folder = common.folder(out)
    execution = common.execution(workers, engine, folder, resume=resume or size > MAX_POINTS)

    from optim.build import plan_request
    from optim.documents import sweep_document, to_json, whatif_document
    from optim.sweep import sweep
    from optim.tables import whatif_report
    from optim.whatif import whatif as solve

    with common.clean_errors():
        request = plan_request(settings)
    inputs = {**request.inputs}
    axes: list[Any] = []
    for at, (name, unit) in enumerate(zip(names, (1.0, 1e3, 1e3), strict=True)):
        key, values = "rate_rps" if name == "rate" else name, grids[name]
        if values is not None:
            inputs[key] = type(inputs[key])(values, inputs[key].source)
        shape = [1, 1, 1]
        shape[at] = -1
        axes.append(None if values is None else np.reshape(np.asarray(values) / unit, shape))
    with common.progress("solving") as told, common.clean_errors():
        axis = dict(zip(("rate", "ttft_p99_s", "tpot_p99_s"), axes, strict=True))
        answers: WhatIf | None = None
        if execution.folder is None:
            answers = solve(request.problem, **axis, execution=execution, progress=told)
        else:
            swept = sweep(request.problem, **axis, execution=execution, progress=told)
            answers = swept.answers() if size <= MAX_POINTS else None
    if answers is not None:
        document = whatif_document(answers, request, inputs)
    else:
        document = sweep_document(swept, request, inputs)
    report = whatif_report(document, request, inputs)
    if folder is not None:
        common.write_report(folder / "report.txt", report)
        (folder / "whatif.json").write_text(to_json(document) + "\n", encoding="utf-8")
        if answers is not None:
            _write_details(folder, answers, document, context)
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report, *(common.report_line(folder) if answers is not None else _parts_line(folder)))
    if document["status"] == "infeasible":
        raise typer.Exit(Exit.INFEASIBLE)


def _size(grids: dict[str, list[float] | None], out: Path | None) -> int:
    size = math.prod(1 if values is None else len(values) for values in grids.values())
    if size > MAX_POINTS and out is None:
        common.fail(
            f"the grid must have at most {MAX_POINTS:,} points without --out DIR, got {size:,}; give the folder that "
            "their parts go to, or take larger steps"
        )
    return size


def _write_details(folder: Path, answers: WhatIf, document: Document, context: typer.Context) -> None:
    """whatif.csv, whatif.parquet and the report."""
    from optim.documents import plain
    from optim.html_grid import whatif_page
    from optim.html_page import write_page

    common.write_csv(folder / "whatif.csv", [_row(point) for point in document["points"]])
    with common.clean_errors():
        answers.write(folder / "whatif.parquet")
    write_page(folder / "report.html", whatif_page(plain(document), command=common.command_line(context)))


def _parts_line(folder: Path | None) -> list[str]:
    return [] if folder is None else ["", f"What-ifs: {folder / common.PARTS}/part-*.parquet"]


def _row(point: dict[str, Any]) -> dict[str, Any]:
    pools = " + ".join(f"{p['replicas']} x {p['profile']} to {p['upper_tokens']:.0f}" for p in point["pools"])
    return {**point, "pools": pools}
