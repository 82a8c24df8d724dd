"""The summaries of GenAI-Perf and of AIPerf, which followed it: one block of statistics for each metric.

A block has a unit, which decides; `avg`; and percentiles, where the metric is one of requests. Inter-token latency is a
mean of each request first, (request latency - TTFT) / (output tokens - 1), which is our TPOT. Failed requests and
warm-up are in no block.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxsim._trace_columns import refusal
from jaxsim.bench_files._entries import Entry, is_finite
from jaxsim.benchmark_doctor import Benchmark
from jaxsim.benchmark_run import HALF_WIDTH_PER_DEVIATION, MOST_SPREAD, BenchmarkRun, Percentile

TTFT, ITL, E2E = "time_to_first_token", "inter_token_latency", "request_latency"
INPUT, OUTPUT = "input_sequence_length", "output_sequence_length"
RATE, COUNT, ERRORS = "request_throughput", "request_count", "error_request_count"
DURATION = "benchmark_duration"

KEYS = (TTFT, ITL, E2E, INPUT, OUTPUT, RATE, COUNT, ERRORS, DURATION)
"""Metrics that another name can be mapped to."""

SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
}
"""Seconds in each unit of time."""

FIGURES = {TTFT: ("ttft",), ITL: ("tpot",), E2E: ("e2e",)}
"""Our latencies by metric."""

GENAI_PERF, AIPERF = "GenAI-Perf", "AIPerf"


def is_summary(record: Mapping[str, Any]) -> bool:
    """Blocks of statistics under the names of metrics."""
    return any(isinstance(record.get(key), dict) and "unit" in record[key] for key in KEYS)


def read_summary(entry: Entry, tool: str = AIPERF) -> BenchmarkRun:
    """The run of a summary.

    Raises:
        ValueError: a metric that is missing, of an unknown unit or out of its domain, with its place.
    """
    notes = [f"a summary without requests; {AIPERF} writes them to profile_export.jsonl" if tool == AIPERF else
             "a summary without requests"]  # fmt: skip
    completed = _whole(entry, COUNT)
    ttft = seconds(entry, TTFT, hint="a TTFT needs a stream: measure with --streaming")
    e2e, itl = _known_seconds(entry, E2E), _known_seconds(entry, ITL)
    inputs, outputs = _tokens(entry, INPUT), _tokens(entry, OUTPUT)
    failed = _whole(entry, ERRORS) if entry.has(ERRORS) else 0
    notes.append(f"{ITL} is each request's (latency - TTFT) / (tokens - 1), which is TPOT; it stands for ITL too")
    rate, concurrency = _load(entry, notes)
    return BenchmarkRun(
        file=entry.file,
        tool=tool,
        model=_model(entry),
        summary=Benchmark(
            completed=completed,
            duration_s=_duration(entry, completed, notes),
            mean_ttft_s=ttft,
            mean_e2e_s=e2e,
            mean_itl_s=itl,
            total_output_tokens=None if outputs is None else round(outputs * completed),
            offered_rate=rate,
            max_concurrency=concurrency,
            failed=failed,
        ),
        mean_tpot_s=itl,
        mean_input_tokens=inputs,
        mean_output_tokens=outputs,
        spread=_spread(entry),
        percentiles=tuple(_percentiles(entry)),
        unsteady="the run was cancelled before its end" if entry.values.get("was_cancelled") is True else "",
        notes=tuple(notes),
    )


def factor(block: Entry) -> float:
    """Seconds in the unit of a block of times."""
    unit = block.words("unit")
    if unit is None:
        raise block.missing("unit", hint="a time without its unit cannot be read")
    if unit.strip().lower() not in SECONDS:
        raise block.wrong("unit", "a unit of time: s, ms, us or ns")
    return SECONDS[unit.strip().lower()]


def seconds(entry: Entry, key: str, hint: str = "") -> float:
    """The mean of a metric of time; refused where it is missing."""
    if not entry.has(key):
        raise entry.missing(key, hint=hint)
    block = entry.inner(key)
    return block.number("avg") * factor(block)


def _known_seconds(entry: Entry, key: str) -> float | None:
    return seconds(entry, key) if entry.has(key) else None


def _tokens(entry: Entry, key: str) -> float | None:
    """Mean tokens of a request; None where they are not there."""
    if not entry.has(key):
        return None
    block = entry.inner(key)
    if (block.words("unit") or "").strip().lower() not in ("tokens", "token"):
        raise block.wrong("unit", "tokens")
    return block.number("avg")


def _whole(entry: Entry, key: str) -> int:
    return entry.inner(key).count("avg")


def _duration(entry: Entry, completed: int, notes: list[str]) -> float | None:
    """As it is said, else what the request throughput makes it."""
    if entry.has(DURATION):
        return seconds(entry, DURATION) or None
    if not entry.has(RATE):
        notes.append("neither a duration nor a request throughput: no rate is known")
        return None
    block = entry.inner(RATE)
    if not re.fullmatch(r"(req(uest)?s?)?\s*(/|per)\s*s(ec(ond)?)?", (block.words("unit") or "").strip().lower()):
        raise block.wrong("unit", "requests/sec")
    rate = block.number("avg", positive=completed > 0)
    if not rate or not completed:
        return None
    notes.append(f"the duration is {completed:,} requests over their throughput, {completed / rate:.4g} s")
    return completed / rate


def _spread(entry: Entry) -> float | None:
    """From the standard deviations of both lengths, where both are there."""
    found = []
    for key in (INPUT, OUTPUT):
        block = entry.known_inner(key)
        deviation = None if block is None else block.known("std")
        average = 0.0 if block is None else block.number("avg")
        if deviation is None or not average:
            return None
        found.append(HALF_WIDTH_PER_DEVIATION * deviation / average)
    return min(sum(found) / len(found), MOST_SPREAD)


def _percentiles(entry: Entry) -> Iterator[Percentile]:
    for key, figures in FIGURES.items():
        block = entry.known_inner(key)
        if block is None:
            continue
        for name in block.values:
            match = re.fullmatch(r"p(\d+(?:\.\d+)?)", name)
            if match and 0.0 < float(match[1]) < 100.0 and block.has(name):
                value = block.number(name) * factor(block)
                yield from (Percentile(figure, float(match[1]) / 100.0, value, value) for figure in figures)


def _load(entry: Entry, notes: list[str]) -> tuple[float | None, int | None]:
    """Offered rate and clients, where the configuration that is saved with the figures says them."""
    found: dict[str, set[float]] = {"request_rate": set(), "concurrency": set()}
    for key, value in _configured(entry.values.get("input_config")):
        if key in found and is_finite(value) and value > 0:
            found[key].add(float(value))
    for key, values in found.items():
        if len(values) > 1:
            several = " and ".join(f"{value:g}" for value in sorted(values))
            notes.append(f"input_config has more than one {key} ({several}): none is used")
            values.clear()
    rate, clients = (next(iter(values), None) for values in found.values())
    if rate is None and clients is None:
        notes.append("the file does not say what load was offered")
    if clients is not None and clients != int(clients):
        notes.append(f"input_config has a concurrency of {clients:g}, which is no whole number: it is not used")
        clients = None
    return rate, None if clients is None else int(clients)


def _configured(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key of a nested configuration with its value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key), inner
            yield from _configured(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _configured(inner)


def _model(entry: Entry) -> str | None:
    """The one model of the configuration."""
    for key, value in _configured(entry.values.get("input_config")):
        if key in ("model_names", "model") and isinstance(value, list) and len(value) == 1:
            value = value[0]
        if key in ("model_names", "model", "model_name") and isinstance(value, str):
            return value
    return None


def read_csv(file: str, text: str, columns: Mapping[str, str] | None) -> BenchmarkRun:
    """The run of a CSV summary: a block of metrics with statistics, then one of metrics with a value.

    Numbers with commas between thousands are read as such.
    """
    blocks: dict[str, dict[str, Any]] = {}
    lines: dict[str, int] = {}
    header: list[str] = []
    reader = csv.reader(text.splitlines())
    for fields in reader:
        names = [field.strip() for field in fields]
        if not any(names):
            header = []
        elif not header:
            header = names
            if names[0] != "Metric":
                expected = "a block's header, 'Metric,avg,...' or 'Metric,Value'"
                raise refusal(file, f"line {reader.line_num}: expected {expected}, got {names[0]!r}")
        elif len(names) != len(header):
            raise refusal(
                file, f"line {reader.line_num}: {len(names)} fields, expected the {len(header)} of the header"
            )
        else:
            name, unit = _metric(names[0], columns)
            blocks[name] = _block(file, reader.line_num, header, names, unit)
            lines[name] = reader.line_num
    return read_summary(Entry(file, blocks, lines.get), GENAI_PERF)


def _metric(label: str, columns: Mapping[str, str] | None) -> tuple[str, str]:
    """``Time To First Token (ms)`` as a metric's name and its unit."""
    match = re.fullmatch(r"(.*?)\s*(?:\(([^()]*)\))?", label)
    title, unit = (match[1], match[2] or "") if match else (label, "")
    ours = {theirs: ours for ours, theirs in (columns or {}).items()}
    return ours.get(label) or ours.get(title) or re.sub(r"\s+", "_", title.lower()), unit


def _block(file: str, line: int, header: list[str], names: list[str], unit: str) -> dict[str, Any]:
    block: dict[str, Any] = {"unit": unit}
    for column, text in zip(header[1:], names[1:], strict=True):
        if text in ("", "N/A"):
            continue
        if not re.fullmatch(r"[-+]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][-+]?\d+)?", text):
            what = f"a number such as 1046.2 or 1,046.20 was expected, got {text!r}"
            raise refusal(file, f"line {line}, column {column!r}: {what}", "correct the file, or export it again")
        block["avg" if column == "Value" else column] = float(text.replace(",", ""))
    return block
