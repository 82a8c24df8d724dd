"""Request traces: files of (arrival time, input tokens, output tokens) in the formats people have.

Formats: CSV (`.csv`, `.csv.gz`), parquet and JSON lines (`.jsonl`, `.jsonl.gz`) whose columns carry known
names (`jaxsim._trace_columns`): the Azure LLM inference traces, BurstGPT, Mooncake, Splitwise, Vidur, and
tables of one's own; request logs in JSON lines: OpenAI responses, AIPerf request records, OpenTelemetry spans;
and benchmark results that have their requests (`jaxsim.bench_files`).

Nothing is guessed by position, defaulted, clipped or dropped in silence: a wrong value is an error that names
its line, and everything the reader decided is a sentence in `RawTrace.notes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsim._checks import unknown
from jaxsim._trace_columns import INPUT, OUTPUT, TIME, TRACE, refusal
from jaxsim.cdf import cdf_lengths
from jaxsim.workload import PrefixBlocks

__all__ = ["FAILED_POLICIES", "TIME_UNITS", "RawTrace", "cdf_lengths", "read_trace"]

FAILED_POLICIES = ("drop", "keep")
"""What happens to requests without output: left out, or kept as load with one output token; counted."""

TIME_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks of each time unit in a second."""

_TICKED_SHARE = 0.5  # share of equal arrival times above which the clock is called coarse


@dataclass(frozen=True)
class RawTrace:
    """What a trace file says, one entry per request, in order of arrival.

    Attributes:
        input_tokens, output_tokens: whole numbers >= 1.
        arrival_s: seconds since the first arrival, ascending; None where the file has no arrival times.
        notes: what was read, chosen, repaired and left out, one sentence each.
        prefix_hit_share: share of prompt blocks already seen earlier in the trace (an infinite prefix cache);
            None where the file lists no block hashes.
        prefix_blocks: the prompt blocks of each request; None likewise.
    """

    input_tokens: Int[np.ndarray, " requests"]
    output_tokens: Int[np.ndarray, " requests"]
    arrival_s: Float[np.ndarray, " requests"] | None
    notes: tuple[str, ...] = ()
    prefix_hit_share: float | None = None
    prefix_blocks: PrefixBlocks | None = None


def read_trace(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    failed: str = "drop",
) -> RawTrace:
    """Read a request trace.

    Args:
        path: a CSV, parquet or JSON lines file; the first and last may be gzipped.
        columns: our names (`input_tokens`, `output_tokens`, `timestamp`) to the file's, for names unknown
            here; nested JSON keys are joined with dots.
        time_unit: "s", "ms", "us" or "ns" for numeric timestamps; left out, it is taken from the column's
            name, from the magnitude of epoch times or from the format, in this order, and otherwise is
            seconds. The choice and the mean rate that follows from it are noted.
        failed: "drop" leaves out requests with 0 output tokens; "keep" counts each as load with one.

    Raises:
        FileNotFoundError: no such file.
        ValueError: anything else that stands between the file and a sound trace, with file, line and column.
    """
    from jaxsim._trace_benchmarks import open_benchmark
    from jaxsim._trace_files import open_table
    from jaxsim._trace_values import read_values

    path = Path(path)
    TRACE.check_mapping(columns)
    if failed not in FAILED_POLICIES:
        raise unknown("failed policy", failed, FAILED_POLICIES)
    if time_unit is not None and time_unit not in TIME_UNITS:
        raise unknown("time_unit", time_unit, TIME_UNITS)
    if not path.exists():
        raise FileNotFoundError(f"trace file not found: {path}; check the path")
    table = (None if columns else open_benchmark(path)) or open_table(path, columns)
    chosen = TRACE.resolve(table.names, columns, table.header)
    values = read_values(table, chosen)
    if values.input_tokens.size == 0:
        raise refusal(path.name, "no data rows: 0 requests", "a trace needs at least one request")
    columns_note = () if table.time_name else (_columns_note(table.names, chosen),)  # a log's names are ours
    notes = [*columns_note, *table.notes, *values.notes]
    if values.times is None and time_unit is not None:
        why = "has no arrival times" if TIME not in chosen else "has no arrival time on every row"
        raise refusal(path.name, f"time_unit {time_unit!r} was given but the trace {why}")
    times = None
    if values.times is not None:
        name = table.time_name or table.names[chosen[TIME]]
        mooncake = _is_mooncake(table.names, chosen)
        times, unit_note = values.times.seconds(path.name, name, time_unit, "ms" if mooncake else "s")
        notes.append(_rate_note(unit_note, times))
    kept, outputs, failed_notes = _apply_failed(values.output_tokens, failed)
    notes += failed_notes
    if not kept.any():
        raise refusal(path.name, "0 requests are left", *notes)
    rows = np.flatnonzero(kept)
    inputs, outputs = values.input_tokens[kept], outputs[kept]
    if times is not None:
        times, order, order_notes = _in_order(times[kept])
        rows, inputs, outputs = rows[order], inputs[order], outputs[order]
        notes += order_notes
    if table.blocks is None:
        return RawTrace(inputs, outputs, times, tuple(notes))
    blocks, block_notes = table.blocks.check(values.input_tokens, table.place)
    notes += block_notes
    if blocks is None:
        return RawTrace(inputs, outputs, times, tuple(notes))
    return RawTrace(inputs, outputs, times, tuple(notes), blocks.seen_before, blocks.of_rows(rows))


def _columns_note(names: tuple[str, ...], chosen: dict[str, int]) -> str:
    used = ", ".join(f"{ours} = {names[at]!r}" for ours, at in chosen.items())
    rest = [name for at, name in enumerate(names) if at not in chosen.values()]
    text = f"columns: {used}" + (f"; not used: {', '.join(map(repr, rest))}" if rest else "")
    return text + ("" if TIME in chosen else "; no arrival times: a rate must be given")


def _is_mooncake(names: tuple[str, ...], chosen: dict[str, int]) -> bool:
    used = {ours: names[at].lower() for ours, at in chosen.items()}
    return (used[INPUT], used[OUTPUT], used.get(TIME)) == ("input_length", "output_length", "timestamp")


def _rate_note(unit_note: str, times: Float[np.ndarray, " rows"]) -> str:
    duration = float(times.max() - times.min())
    rate = f"mean rate {len(times) / duration:.4g} requests/s" if duration > 0 else "no mean rate"
    return f"{unit_note}: {len(times)} rows over {duration:.7g} s, {rate}"


def _apply_failed(
    outputs: Int[np.ndarray, " rows"], failed: str
) -> tuple[Bool[np.ndarray, " rows"], Int[np.ndarray, " rows"], list[str]]:
    """Which rows stay, their output tokens, and the note that counts those with none."""
    none = outputs == 0
    count = int(none.sum())
    if not count:
        return ~none, outputs, []
    what = f"{count} of {len(outputs)} requests have 0 output tokens, which means failed"
    if failed == "drop":
        return ~none, outputs, [f'{what}: left out (failed="drop"; "keep" counts them as load)']
    note = f'{what}: kept as load with ONE output token each (failed="keep")'
    return np.ones_like(none), np.where(none, 1, outputs), [note]


def _in_order(
    times: Float[np.ndarray, " kept"],
) -> tuple[Float[np.ndarray, " kept"], Int[np.ndarray, " kept"], list[str]]:
    """Times from the first arrival, ascending, the order of rows that gives them, and notes."""
    notes = []
    late = int(np.sum(times < np.maximum.accumulate(times)))
    if late:
        notes.append(f"{late} of {len(times)} rows are earlier than one before them: sorted by arrival")
    order = np.argsort(times, kind="stable")
    times = times[order] - times[order[0]]
    gaps = np.diff(times)
    equal = float(np.mean(gaps == 0)) if gaps.size else 0.0
    if equal > _TICKED_SHARE:
        steps = gaps[gaps > 0]
        tick = f" of about {np.median(steps):.4g} s" if steps.size else ""
        notes.append(
            f"{equal:.1%} of the gaps between arrivals are zero: the clock has ticks{tick}, "
            "so bursts shorter than a tick say nothing"
        )
    return times, order, notes
