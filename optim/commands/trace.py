"""`fleetgrad trace`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optim.commands import _common as common

if TYPE_CHECKING:
    from jaxsim.bench_files import Kind

Source = Annotated[
    str, typer.Argument(metavar="FILE", help="Request trace, benchmark result, or the name of an embedded workload.")
]


def trace(
    file: Source,
    columns: common.Map = None,
    time_unit: common.TimeUnit = None,
    failed: common.Failed = None,
    as_json: common.AsJson = False,
) -> None:
    """What a trace says: lengths, rate, burstiness, tails, and everything its reader decided.

    Of a benchmark's result, what the doctor says of it: Little's law, the E2E identity, a cold first wave, failed
    requests, overload, waits at the client, percentiles on few requests. Where it has its requests, they are a trace.
    """
    from jaxsim.bench_files import recognise
    from jaxsim.embedded import workload, workload_names

    chosen, path = common.mapping(columns), Path(file)
    of_package = not path.exists() and file in workload_names()
    if of_package:
        if chosen or time_unit or failed:
            common.fail(f"--map, --time-unit and --failed are for files; {file} comes with the package")
        _show(file, workload(file), (), as_json)
        return
    kind = None if chosen else recognise(path)
    if kind is not None:
        _benchmark(path, kind, time_unit, failed, as_json)
        return
    with common.clean_errors():
        read = _read(path, chosen, time_unit, failed)
    from jaxsim.request_doctor import examine_trace

    _show(path.name, read, examine_trace(read), as_json)


def _read(path: Path, columns: dict[str, str] | None, time_unit: str | None, failed: str | None) -> Any:
    from jaxsim.traces import read_trace

    return read_trace(path, columns=columns, time_unit=time_unit, failed=failed or "drop")


def _show(name: str, read: Any, findings: tuple[Any, ...], as_json: bool) -> None:
    from jaxsim.trace_stats import trace_statistics
    from jaxsim.traces import RawTrace
    from optim.documents import to_json, trace_document
    from optim.report import bullets
    from optim.tables import trace_report

    statistics = trace_statistics(read)
    prefix = read.prefix_hit_share if isinstance(read, RawTrace) else None
    if as_json:
        listed = [{"kind": each.symptom, "text": each.text} for each in findings]
        common.show_json(to_json(trace_document(name, statistics, read.notes, prefix) | {"findings": listed}))
    else:
        page = trace_report(name, statistics, read.notes, prefix)
        common.show(page, *bullets("Findings", [each.text for each in findings]))


def _benchmark(path: Path, kind: Kind, time_unit: str | None, failed: str | None, as_json: bool) -> None:
    """The runs of a benchmark, and the trace that its requests are."""
    from jaxsim.bench_files import Kind, read_benchmark
    from jaxsim.request_doctor import examine
    from jaxsim.trace_stats import trace_statistics
    from optim.benchmark_report import examination_entry, examination_report
    from optim.documents import document, to_json, trace_document
    from optim.tables import trace_report

    with common.clean_errors():
        examined = [examine(run) for run in read_benchmark(path)]
        has_requests = kind is Kind.AIPERF_RECORDS or (len(examined) == 1 and examined[0].run.requests is not None)
        if not has_requests and (time_unit or failed):
            common.fail(f"--time-unit and --failed are for traces; {path.name} has no requests, it is {kind.value}")
        read = _read(path, None, time_unit, failed) if has_requests else None
    statistics = None if read is None else trace_statistics(read)
    if as_json:
        doc = document("benchmark", "ok", file=path.name, read_as=kind.value)
        doc["runs"] = [examination_entry(each) for each in examined]
        known = None if read is None or statistics is None else trace_document(path.name, statistics, read.notes, None)
        doc["trace"] = known
        common.show_json(to_json(doc))
        return
    parts: list[Any] = [f"{path.name} holds {kind.value}.", ""]
    for each in examined:
        parts += [examination_report(each), ""]
    if read is not None and statistics is not None:
        parts += [trace_report(f"{path.name} as a trace", statistics, read.notes, None)]
    else:
        parts += ["No lengths of requests in it, so it is no trace to plan with."]
    common.show(*parts)
