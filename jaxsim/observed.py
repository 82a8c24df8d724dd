"""What a running fleet, or a benchmark of it, showed: load, lengths, and latencies with what they are known to.

`jaxsim.bench_files.read_served` makes it of Prometheus scrapes, `observed_run` of a benchmark's run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jaxsim._trace_columns import refusal
from jaxsim.benchmark_doctor import Verdict
from jaxsim.benchmark_run import BenchmarkRun, RequestTable
from jaxsim.percentiles import interval
from jaxsim.request_doctor import Examination, examine

FIGURES = ("ttft", "tpot", "itl", "e2e")
MEAN = "mean"
QUANTILES = {"p50": 0.5, "p99": 0.99}
STATISTICS = (MEAN, *QUANTILES)


class Reading(NamedTuple):
    """A latency as it was measured, seconds.

    Attributes:
        figure: one of `FIGURES`; "itl" is the gap between two tokens of a request, all gaps together.
        statistic: one of `STATISTICS`.
        value_s: the figure; of a histogram's quantile, interpolated in its bucket.
        low_s, high_s: what it is known to: the edges of the buckets, or an interval of the quantile of requests that
            were listed; both are the value where the file has a number and no more. `high_s` is inf above the last
            edge.
        bucket: whether the ends are edges of a histogram.
    """

    figure: str
    statistic: str
    value_s: float
    low_s: float
    high_s: float
    bucket: bool

    @property
    def key(self) -> tuple[str, str]:
        """What is measured."""
        return self.figure, self.statistic


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A steady load and what it was served at.

    Attributes:
        source: the files.
        tool: what they were read as.
        model: name of the model that was served; None where it is not said.
        seconds: of the window or the run.
        rate: requests per second that came, over all replicas that the figures cover.
        completed, failed: requests that ended, well and otherwise.
        replicas: engines counted in the files; None where they do not say.
        window: whether it is one of servers that go on running, so that other replicas of theirs are loaded alike.
        concurrency: clients of a closed loop, whose rate is a result; None where requests came at a rate of their own.
        mean_input_tokens, mean_output_tokens: of a request; None where they are not known.
        requests: rows, where the file lists them.
        readings: latencies.
        running, waiting: requests of all replicas, the mean of the moments that were seen; None without.
        kv_usage: mean share of the KV cache in use, at the same moments.
        preemptions: in the window.
        cached_share: share of prompt tokens that a prefix cache had; None where it is not known.
        unsteady: why its latencies are those of no steady state; "" where nothing says so.
        notes: what the reader decided or missed, one sentence each.
    """

    source: str
    tool: str
    model: str | None = None
    seconds: float
    rate: float
    completed: int
    failed: int = 0
    replicas: int | None = None
    window: bool = False
    concurrency: int | None = None
    mean_input_tokens: float | None = None
    mean_output_tokens: float | None = None
    requests: RequestTable | None = field(default=None, repr=False)
    readings: tuple[Reading, ...] = ()
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    preemptions: float | None = None
    cached_share: float | None = None
    unsteady: str = ""
    notes: tuple[str, ...] = ()

    def reading(self, figure: str, statistic: str) -> Reading | None:
        """One of the readings; None where it is not there."""
        return next((each for each in self.readings if each.key == (figure, statistic)), None)


def observed_run(run: BenchmarkRun, *, duration_s: float | None = None) -> Observed:
    """A benchmark's run as what its endpoint showed.

    Args:
        run: from `jaxsim.bench_files.read_benchmark`.
        duration_s: seconds from the first request to the end of the last one, for files that do not say.

    Raises:
        ValueError: no request was completed, or no duration is known, so that there is no rate.
    """
    summary, examined = run.summary, examine(run)
    if not summary.completed:
        raise refusal(run.label, "no request was completed", "there is nothing to compare")
    if duration_s is not None and summary.duration_s not in (None, duration_s):
        what = f"it took {summary.duration_s:g} s by its own account, not {duration_s:g} s as given"
        raise refusal(run.label, what, "leave --seconds out")
    seconds = duration_s or summary.duration_s
    if seconds is None:
        raise refusal(run.label, "it does not say how long it took, so no rate is known", "give it with --seconds")
    closed = examined.verdict is Verdict.CLOSED_LOOP
    sending = summary.sending_s or seconds
    said = (f"{run.label}: {each}" for each in (*run.notes, *examined.findings))
    return Observed(
        source=run.label,
        tool=run.tool,
        model=run.model,
        seconds=seconds,
        rate=summary.completed / seconds if closed else summary.sent / sending,
        completed=summary.completed,
        failed=summary.failed,
        replicas=run.engines,
        concurrency=summary.max_concurrency if closed else None,
        mean_input_tokens=run.mean_input_tokens,
        mean_output_tokens=run.mean_output_tokens,
        requests=run.requests,
        readings=tuple(_readings(run)),
        running=run.in_flight,
        unsteady="" if examined.steady else _why_unsteady(examined),
        notes=tuple(said),
    )


def _why_unsteady(examined: Examination) -> str:
    if examined.verdict is Verdict.UNKNOWN:
        return f"{examined.verdict.value}; give the clients that were in flight with --concurrency"
    return examined.reason or examined.verdict.value


def _readings(run: BenchmarkRun) -> Iterator[Reading]:
    summary = run.summary
    means = {"ttft": summary.mean_ttft_s, "tpot": run.mean_tpot_s, "itl": summary.mean_itl_s, "e2e": summary.mean_e2e_s}
    for figure, mean in means.items():
        if mean:
            yield Reading(figure, MEAN, mean, mean, mean, bucket=False)
        for name, q in QUANTILES.items():
            found = run.percentile(figure, q)
            rows = _rows(run, figure)
            if rows is not None and len(rows) > 1:
                value = float(np.quantile(rows, q))
                yield Reading(figure, name, value, *interval(rows, q), bucket=False)
            elif found is not None:
                value = found.low_s if math.isinf(found.high_s) else 0.5 * (found.low_s + found.high_s)
                yield Reading(figure, name, value, found.low_s, found.high_s, bucket=not found.exact)


def _rows(run: BenchmarkRun, figure: str) -> np.ndarray | None:
    """The latencies of the requests that count; None where rows do not have them."""
    if run.requests is None or figure == "itl":
        return None
    table = run.requests
    columns = {"ttft": table.ttft_s, "tpot": table.tpot_s, "e2e": table.e2e_s}
    values = columns[figure][table.counted]
    return values[~np.isnan(values)]
