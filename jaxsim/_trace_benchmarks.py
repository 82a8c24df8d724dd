"""Benchmark results as request traces: the lengths of their requests, and the clients' send times as arrivals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float

from jaxsim._trace_columns import INPUT, OUTPUT, TIME, refusal
from jaxsim._trace_files import TraceTable
from jaxsim.bench_files import Kind, broken_document, read_benchmark, recognise
from jaxsim.benchmark_run import BenchmarkRun, RequestTable

START_TIME_S = "start_time_s"
"""The name of the send times, whose suffix says their unit."""

WHERE_REQUESTS_ARE = {
    Kind.VLLM: "save it with --save-detailed",
    Kind.SGLANG: "save it with --output-details",
    Kind.GUIDELLM: "give the report with all of its requests in it",
    Kind.SUMMARY_JSON: "AIPerf writes its requests to profile_export.jsonl",
    Kind.SUMMARY_CSV: "AIPerf writes its requests to profile_export.jsonl",
    Kind.SCRAPE: "a server's metrics have histograms of lengths, no requests",
}


def open_benchmark(path: Path) -> TraceTable | None:
    """The requests of a benchmark's result; None for anything else, and for logs that are read as such.

    A failed request is one without output: what becomes of it is for the trace's policy.

    Raises:
        ValueError: a result without requests, or with several runs; or one that its own reader refuses.
    """
    kind = recognise(path)
    if kind is None and (broken := broken_document(path)) is not None:
        raise broken
    if kind is None or kind is Kind.AIPERF_RECORDS:
        return None
    without = f"the summary of a benchmark is no trace: {kind.value}, without the lengths of its requests"
    if kind is Kind.SCRAPE:
        raise refusal(path.name, without, WHERE_REQUESTS_ARE[kind])
    runs = read_benchmark(path)
    if all(run.requests is None for run in runs):
        raise refusal(path.name, without, WHERE_REQUESTS_ARE[kind])
    if len(runs) > 1:
        what = f"{len(runs)} benchmark runs, each with requests of its own"
        raise refusal(path.name, what, "a trace is one of them: split the file")
    run = runs[0]
    assert run.requests is not None
    return _table(path, run, run.requests)


def _table(path: Path, run: BenchmarkRun, requests: RequestTable) -> TraceTable:
    outputs = np.where(requests.failed, 0.0, requests.output_tokens)
    columns = {INPUT: requests.input_tokens, OUTPUT: outputs}
    timed = not np.isnan(requests.start_s).any()
    if timed:
        columns[TIME] = requests.start_s
    texts = [pl.Series(str(k), _texts(column), pl.String) for k, column in enumerate(columns.values())]
    return TraceTable(
        path.name,
        path.name,
        tuple(columns),
        pl.LazyFrame(texts),
        place=requests.place,
        explain=lambda error: f"cannot be read ({error})",
        notes=(f"read as the requests of {run.tool}", _arrivals(run, timed)),
        time_name=START_TIME_S,
    )


def _texts(column: Float[np.ndarray, " rows"]) -> list[str | None]:
    return [None if np.isnan(value) else repr(float(value)) for value in column]


def _arrivals(run: BenchmarkRun, timed: bool) -> str:
    if not timed:
        return "no arrival times: a rate must be given"
    limit = run.summary.max_concurrency
    closed = "" if limit is None else f": in a closed loop of at most {limit}, a request waits for another to end"
    return f"arrivals are the times at which the client sent, not those of its users{closed}"
