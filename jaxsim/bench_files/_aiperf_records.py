"""AIPerf's records of requests: one JSON object a line, each figure with its unit.

Cancelled and failed requests and those of the warm-up are in the table with the reason, and in no figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxsim._trace_columns import refusal
from jaxsim.bench_files._entries import Entry
from jaxsim.bench_files._nvidia import AIPERF, E2E, INPUT, ITL, OUTPUT, TTFT, factor
from jaxsim.bench_files._rows import held_concurrency, mean_of, per_token_gap
from jaxsim.benchmark_doctor import Benchmark
from jaxsim.benchmark_run import BenchmarkRun, RequestTable, spread_of

NS_PER_S = 1e9
LATEST_NS = 2**63
START, END = "request_start_ns", "request_end_ns"
WARM_UP = "warm-up of the benchmark"
TIMES = {"ttft_s": TTFT, "e2e_s": E2E, "itl_s": ITL}
LENGTHS = {"input_tokens": INPUT, "output_tokens": OUTPUT}


class _Row(NamedTuple):
    """A request: its instants in whole nanoseconds, None where they are not there."""

    start_ns: int | None
    end_ns: int | None
    left_out: str
    failed: bool
    figures: dict[str, float]


def is_record(record: Mapping[str, Any]) -> bool:
    """Metadata and metrics side by side."""
    return isinstance(record.get("metadata"), dict) and isinstance(record.get("metrics"), dict)


def read_records(entries: list[tuple[int, Entry]]) -> BenchmarkRun:
    """The run whose requests these lines are.

    Raises:
        ValueError: a record that counts and lacks a time or a length, or whose value cannot be one, with its line.
    """
    file = entries[0][1].file
    rows = [_row(entry) for _, entry in entries]
    measured = [row for row in rows if row.left_out != WARM_UP]
    if not measured:
        raise refusal(file, f"all {len(rows)} requests are warm-up", "0 requests are left")
    table = RequestTable(
        start_s=_instants([row.start_ns for row in rows]),
        **{name: np.array([row.figures.get(name, math.nan) for row in rows]) for name in (*LENGTHS, *TIMES)},
        queue_s=np.full(len(rows), np.nan),
        num_gaps=np.array([_gaps(row) for row in rows]),
        left_out=tuple(row.left_out for row in rows),
        failed=np.array([row.failed for row in rows]),
        word="line",
        numbers=np.array([line for line, _ in entries]),
    )
    counted = table.counted
    completed = int(counted.sum())
    clients = held_concurrency(table.start_s[counted], (table.start_s + table.e2e_s)[counted])
    inputs, outputs = (column[counted] for column in (table.input_tokens, table.output_tokens))
    return BenchmarkRun(
        file=file,
        tool=f"{AIPERF} request records",
        summary=Benchmark(
            completed=completed,
            duration_s=_duration(measured),
            mean_ttft_s=float(table.ttft_s[counted].mean()) if completed else math.nan,
            mean_e2e_s=mean_of(table, "e2e_s"),
            mean_itl_s=per_token_gap(table),
            total_output_tokens=int(outputs.sum()) if completed and not np.isnan(outputs).any() else None,
            offered_rate=None,
            max_concurrency=clients,
            failed=int(table.failed.sum()),
        ),
        mean_tpot_s=mean_of(table, "tpot_s"),
        mean_input_tokens=float(inputs.mean()) if completed else None,
        mean_output_tokens=float(outputs.mean()) if completed else None,
        spread=spread_of(inputs, outputs),
        requests=table,
        notes=tuple(_notes(table, clients)),
    )


def _row(entry: Entry) -> _Row:
    about, metrics = entry.inner("metadata"), entry.inner("metrics")
    start, end = (_ns(about, key) for key in (START, END))
    error = entry.known_inner("error")
    if about.values.get("was_cancelled"):
        return _Row(start, end, "cancelled", True, {})
    if error is not None:
        kind = error.values.get("type") or error.values.get("code") or "an error"
        return _Row(start, end, f"failed: {kind}", True, {})
    if about.words("benchmark_phase") == "warmup":
        return _Row(start, end, WARM_UP, False, {})
    if start is None:
        raise about.missing(START)
    if not metrics.has(TTFT):
        raise metrics.missing(TTFT, hint="a TTFT needs a stream: measure with --streaming")
    figures = {}
    for name, key in LENGTHS.items():
        figures[name] = float(_value(metrics, key).count("value"))
    for name, key in TIMES.items():
        if metrics.has(key):
            block = _value(metrics, key)
            figures[name] = block.number("value") * factor(block)
    if "e2e_s" not in figures and end is not None:
        figures["e2e_s"] = (end - start) / NS_PER_S
    return _Row(start, end, "", False, figures)


def _value(metrics: Entry, key: str) -> Entry:
    if not metrics.has(key):
        raise metrics.missing(key)
    return metrics.inner(key)


def _ns(about: Entry, key: str) -> int | None:
    """An instant, exact: a float of epoch nanoseconds would be off by 128 ns."""
    value = about.values.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < LATEST_NS:
        raise about.wrong(key, "a whole number of nanoseconds from 0 to 2^63")
    return value


def _gaps(row: _Row) -> float:
    """Gaps that its mean gap is over: AIPerf divides by the tokens after the first."""
    return row.figures["output_tokens"] - 1.0 if "itl_s" in row.figures else math.nan


def _instants(starts: list[int | None]) -> Float[np.ndarray, " rows"]:
    """Seconds since the earliest."""
    first = min((start for start in starts if start is not None), default=0)
    return np.array([math.nan if start is None else (start - first) / NS_PER_S for start in starts], dtype=np.float64)


def _duration(rows: list[_Row]) -> float | None:
    """From the first start to the last end, in seconds."""
    starts = [row.start_ns for row in rows if row.start_ns is not None]
    ends = [row.end_ns for row in rows if row.end_ns is not None]
    return (max(ends) - min(starts)) / NS_PER_S if starts and ends and max(ends) > min(starts) else None


def _notes(table: RequestTable, clients: int | None) -> list[str]:
    notes = [f"{len(table):,} records of requests, {int(table.counted.sum()):,} of which count"]
    for reason in dict.fromkeys(reason for reason in table.left_out if reason):
        chosen = np.array([each == reason for each in table.left_out])
        notes.append(f"left out: {table.name(chosen)} ({reason})")
    if clients is not None:
        notes.append(f"the records do not say the load; by their times {clients} in flight all along: a closed loop")
    else:
        notes.append("the records do not say what load was offered")
    return notes
