"""`fleetgrad trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optim.commands import _common as common

Source = Annotated[str, typer.Argument(metavar="FILE", help="Request trace, or the name of an embedded workload.")]


def trace(
    file: Source,
    columns: common.Map = None,
    time_unit: common.TimeUnit = None,
    failed: common.Failed = None,
    as_json: common.AsJson = False,
) -> None:
    """What a trace says: lengths, rate, burstiness, tails, and everything its reader decided."""
    from jaxsim.embedded import workload, workload_names
    from jaxsim.trace_stats import trace_statistics
    from jaxsim.traces import RawTrace, read_trace
    from jaxsim.workload import Workload
    from optim.documents import to_json, trace_document
    from optim.tables import trace_report

    chosen = common.mapping(columns)
    with common.clean_errors():
        path = Path(file)
        read: RawTrace | Workload
        if not path.exists() and file in workload_names():
            if chosen or time_unit or failed:
                common.fail(f"--map, --time-unit and --failed are for files; {file} comes with the package")
            read = workload(file)
        else:
            read = read_trace(path, columns=chosen, time_unit=time_unit, failed=failed or "drop")
        statistics = trace_statistics(read)
    prefix = read.prefix_hit_share if isinstance(read, RawTrace) else None
    if as_json:
        common.show_json(to_json(trace_document(path.name, statistics, read.notes, prefix)))
    else:
        common.show(trace_report(path.name, statistics, read.notes, prefix))
