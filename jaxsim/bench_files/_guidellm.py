"""GuideLLM's report: one benchmark for each rate or number of streams of a sweep.

Of each metric the distribution over successful requests is used. `request_latency` is in seconds, what ends in _ms in
milliseconds. `time_per_output_token_ms` counts the first token, so our TPOT is `inter_token_latency_ms`, which is over
gaps. Read in the layouts of versions 0.2 (`args`, `run_stats`) and 0.4 and later (`config`, `scheduler_metrics`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxsim._checks import unknown
from jaxsim._trace_columns import refusal
from jaxsim.bench_files._entries import Entry
from jaxsim.benchmark_doctor import Benchmark
from jaxsim.benchmark_run import HALF_WIDTH_PER_DEVIATION, MOST_SPREAD, BenchmarkRun, Percentile, RequestTable
from jaxsim.units import MS_PER_S

TOOL = "GuideLLM"
TTFT, ITL, E2E = "time_to_first_token_ms", "inter_token_latency_ms", "request_latency"
INPUT, OUTPUT = "prompt_token_count", "output_token_count"
FIGURES = {TTFT: ("ttft", 1e-3), ITL: ("itl", 1e-3), E2E: ("e2e", 1.0)}
"""Our latency and the seconds in its unit."""

STRATEGIES = ("synchronous", "concurrent", "throughput", "constant", "poisson")


class _Counts(NamedTuple):
    successful: int
    incomplete: int
    errored: int


def read_report(entry: Entry) -> tuple[BenchmarkRun, ...]:
    """Every benchmark of a report.

    Raises:
        ValueError: a report without benchmarks, or a figure that is missing or cannot be one, with its place.
    """
    benchmarks = entry.entries("benchmarks")
    if not benchmarks:
        raise refusal(entry.file, f"{entry.place('benchmarks')}: the list is empty: 0 benchmarks")
    return tuple(_read(each) for each in benchmarks)


def _read(entry: Entry) -> BenchmarkRun:
    metrics = entry.inner("metrics")
    notes = ["figures are those of successful requests; TPOT is inter_token_latency_ms, a mean over gaps"]
    counts = _counts(entry, metrics)
    completed = counts.successful
    ttft, itl, e2e = (_mean(metrics, key) if completed else None for key in (TTFT, ITL, E2E))
    if completed and ttft is None:
        raise metrics.missing(TTFT, hint="a TTFT needs a stream")
    inputs, outputs = (_tokens(metrics, key) if completed else None for key in (INPUT, OUTPUT))
    rate, clients = _load(entry)
    rows = _requests(entry, completed, notes)
    return BenchmarkRun(
        file=entry.file,
        place=entry.path,
        tool=TOOL,
        model=_model(entry),
        summary=Benchmark(
            completed=completed,
            duration_s=_duration(entry, metrics, completed, notes),
            mean_ttft_s=math.nan if ttft is None else ttft,
            mean_e2e_s=e2e,
            mean_itl_s=itl,
            total_output_tokens=None if outputs is None else round(outputs * completed),
            offered_rate=rate,
            max_concurrency=clients,
            failed=counts.errored,
            incomplete=counts.incomplete,
        ),
        mean_tpot_s=itl or None,
        mean_input_tokens=inputs,
        mean_output_tokens=outputs,
        spread=_spread(metrics) if completed else None,
        percentiles=tuple(_percentiles(metrics)) if completed else (),
        requests=rows,
        notes=tuple(notes),
    )


def _distribution(metrics: Entry, key: str) -> Entry | None:
    """The statistics of a metric over successful requests."""
    metric = metrics.known_inner(key)
    return None if metric is None else metric.known_inner("successful")


def _mean(metrics: Entry, key: str) -> float | None:
    found = _distribution(metrics, key)
    return None if found is None else found.number("mean") * FIGURES[key][1]


def _tokens(metrics: Entry, key: str) -> float | None:
    found = _distribution(metrics, key)
    return None if found is None else found.number("mean")


def _counts(entry: Entry, metrics: Entry) -> _Counts:
    """Of the measured requests, wherever the version keeps them."""
    places = (
        metrics.known_inner("request_totals"),
        entry.known_inner("request_totals"),
        *(
            None if stats is None else stats.known_inner("requests_made")
            for stats in (entry.known_inner("scheduler_metrics"), entry.known_inner("run_stats"))
        ),
    )
    for found in places:
        if found is not None:
            return _Counts(*(found.count(name) for name in _Counts._fields))
    distribution = _distribution(metrics, E2E)
    if distribution is None:
        raise metrics.missing("request_totals", E2E)
    return _Counts(distribution.count("count"), 0, 0)


def _duration(entry: Entry, metrics: Entry, completed: int, notes: list[str]) -> float | None:
    """As it is said, else from both instants, else what the request rate makes it."""
    if entry.has("duration"):
        return entry.number("duration", positive=True)
    if entry.has("start_time") and entry.has("end_time"):
        length = entry.number("end_time") - entry.number("start_time")
        if length <= 0:
            raise entry.wrong("end_time", "after start_time")
        return length
    rate = _distribution(metrics, "requests_per_second")
    if rate is None or not completed:
        return None
    duration = completed / rate.number("mean", positive=True)
    notes.append(f"the duration is {completed:,} requests over their rate, {duration:.4g} s")
    return duration


def _strategy(entry: Entry) -> Entry | None:
    for key in ("config", "args", "scheduler"):
        around = entry.known_inner(key)
        if around is not None and around.has("strategy"):
            return around.inner("strategy")
    return None


def _load(entry: Entry) -> tuple[float | None, int | None]:
    """Offered rate and clients' limit of the strategy."""
    strategy = _strategy(entry)
    if strategy is None:
        return None, None
    kind = strategy.words("type_") or strategy.words("kind") or strategy.words("type") or ""
    limit = strategy.known_count("max_concurrency") or None
    if kind == "synchronous":
        return math.inf, 1
    if kind == "concurrent":
        streams = strategy.count("streams")
        if streams < 1:
            raise strategy.wrong("streams", "a whole number >= 1")
        return math.inf, streams
    if kind == "throughput":
        return math.inf, limit
    if kind in ("constant", "poisson"):
        return strategy.number("rate", positive=True), limit
    if kind:
        found = unknown("strategy", kind, STRATEGIES)
        raise refusal(entry.file, f"{strategy.place('type_')}: {found}")
    return None, limit


def _model(entry: Entry) -> str | None:
    for keys in (("config", "backend"), ("worker",), ("config", "requests")):
        around: Entry | None = entry
        for key in keys:
            around = None if around is None or not isinstance(around.values.get(key), dict) else around.inner(key)
        if around is not None:
            for name in ("model", "backend_model"):
                if isinstance(around.values.get(name), str):
                    return str(around.values[name])
    return None


def _spread(metrics: Entry) -> float | None:
    found = []
    for key in (INPUT, OUTPUT):
        distribution = _distribution(metrics, key)
        deviation = None if distribution is None else distribution.known("std_dev")
        average = 0.0 if distribution is None else distribution.number("mean")
        if deviation is None or not average:
            return None
        found.append(HALF_WIDTH_PER_DEVIATION * deviation / average)
    return min(sum(found) / len(found), MOST_SPREAD)


def _percentiles(metrics: Entry) -> Iterator[Percentile]:
    """``p50`` is 0.5, ``p001`` 0.001 and ``p999`` 0.999."""
    for key, (figure, unit) in FIGURES.items():
        distribution = _distribution(metrics, key)
        listed = None if distribution is None else distribution.known_inner("percentiles")
        for name in () if listed is None else listed.values:
            match = re.fullmatch(r"p(\d{2,3})", name)
            if match and listed is not None and listed.has(name):
                value = listed.number(name) * unit
                yield Percentile(figure, int(match[1]) / 10.0 ** len(match[1]), value, value)


def _requests(entry: Entry, completed: int, notes: list[str]) -> RequestTable | None:
    """The successful requests, where the report has all of them."""
    listed = entry.known_inner("requests")
    rows = [] if listed is None or not listed.has("successful") else listed.entries("successful")
    if not rows:
        return None
    if len(rows) < completed:
        notes.append(f"the report has a sample of {len(rows):,} of {completed:,} requests: it is not used")
        return None
    keys = (("request_start_time", "start_time"), ("prompt_tokens",), ("output_tokens",), (TTFT,), (E2E,), (ITL,))
    columns = {names[0]: np.array([_first(row, names) for row in rows]) for names in keys}
    outputs = columns["output_tokens"]
    return RequestTable(
        start_s=columns["request_start_time"],
        input_tokens=columns["prompt_tokens"],
        output_tokens=outputs,
        ttft_s=columns[TTFT] / MS_PER_S,
        e2e_s=columns[E2E],
        queue_s=np.full(len(rows), np.nan),
        itl_s=columns[ITL] / MS_PER_S,
        num_gaps=np.where(np.isnan(columns[ITL]), np.nan, np.maximum(outputs - 1.0, 0.0)),
        left_out=("",) * len(rows),
        failed=np.zeros(len(rows), dtype=bool),
        word="request",
        numbers=np.arange(1, len(rows) + 1),
    )


def _first(row: Entry, names: tuple[str, ...]) -> float:
    """The first of the named numbers that is there; NaN for none."""
    return next((row.number(name) for name in names if row.has(name)), math.nan)
