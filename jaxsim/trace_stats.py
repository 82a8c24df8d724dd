"""What people want to know of a trace before they plan with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxsim.traces import RawTrace
from jaxsim.workload import Workload

WINDOWS_S = (1, 10, 60)
"""Windows of the index of dispersion."""

TAILS_TOKENS = (2048, 4096, 8192, 32768)
"""Totals whose tail shares are given."""

_MIN_WINDOWS = 10  # a variance of fewer counts says nothing


@dataclass(frozen=True)
class LengthSummary:
    """Tokens of a request: moments and quantiles; `cv2` is variance over mean squared."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float
    cv2: float


@dataclass(frozen=True)
class TraceStatistics:
    """A trace in numbers; those of arrivals are None where it has no arrival times or too few.

    Attributes:
        num_requests: None for a workload that is a law, not a list of requests.
        duration_s: first to last arrival.
        mean_rate: requests per second, ``num_requests / duration_s``.
        interarrival_cv2: squared coefficient of variation of the gaps; 1 for Poisson arrivals.
        zero_gap_share: share of gaps that are zero: near 1, the clock has coarse ticks.
        dispersion: variance over mean of the counts in windows of so many seconds; 1 for Poisson arrivals.
        input_tokens, output_tokens, total_tokens: summaries of lengths.
        correlation: Pearson correlation of input and output tokens; None where one is constant.
        input_share: share of all tokens that are input.
        share_above: share of requests with more tokens in all than the key.
    """

    num_requests: int | None
    duration_s: float | None
    mean_rate: float | None
    interarrival_cv2: float | None
    zero_gap_share: float | None
    dispersion: dict[int, float | None]
    input_tokens: LengthSummary
    output_tokens: LengthSummary
    total_tokens: LengthSummary
    correlation: float | None
    input_share: float
    share_above: dict[int, float]


def trace_statistics(trace: RawTrace | Workload) -> TraceStatistics:
    """Statistics of a trace as read, or of a workload.

    Quantiles of a list of requests interpolate between its order statistics (NumPy's default); those of a law
    without arrivals are the smallest length whose cumulative weight reaches them.
    """
    inputs, outputs = np.asarray(trace.input_tokens, float), np.asarray(trace.output_tokens, float)
    weight = None
    if isinstance(trace, Workload) and trace.arrival_row is None:
        weight = np.asarray(trace.weight)
    elif isinstance(trace, Workload):
        inputs, outputs = inputs[trace.arrival_row], outputs[trace.arrival_row]
    total = inputs + outputs
    duration, rate, cv2, zero = _arrivals(trace.arrival_s)
    deviations = inputs - np.average(inputs, weights=weight), outputs - np.average(outputs, weights=weight)
    spread = np.sqrt(np.prod([np.average(d**2, weights=weight) for d in deviations]))
    covariance = np.average(deviations[0] * deviations[1], weights=weight)
    return TraceStatistics(
        num_requests=len(inputs) if weight is None else None,
        duration_s=duration,
        mean_rate=trace.rate if rate is None and isinstance(trace, Workload) else rate,
        interarrival_cv2=cv2,
        zero_gap_share=zero,
        dispersion={window: _dispersion(trace.arrival_s, window) for window in WINDOWS_S},
        input_tokens=_summary(inputs, weight),
        output_tokens=_summary(outputs, weight),
        total_tokens=_summary(total, weight),
        correlation=float(covariance / spread) if spread > 0 else None,
        input_share=float(np.average(inputs, weights=weight) / np.average(total, weights=weight)),
        share_above={tail: float(np.average(total > tail, weights=weight)) for tail in TAILS_TOKENS},
    )


def _arrivals(
    arrival_s: Float[np.ndarray, " requests"] | None,
) -> tuple[float | None, float | None, float | None, float | None]:
    """Duration, mean rate, cv2 of the gaps and share of zero gaps."""
    if arrival_s is None or len(arrival_s) < 2 or arrival_s[-1] <= arrival_s[0]:
        return None, None, None, None
    duration = float(arrival_s[-1] - arrival_s[0])
    gaps = np.diff(arrival_s)
    cv2 = float(np.var(gaps) / np.mean(gaps) ** 2)
    return duration, len(arrival_s) / duration, cv2, float(np.mean(gaps == 0))


def _dispersion(arrival_s: Float[np.ndarray, " requests"] | None, window_s: int) -> float | None:
    if arrival_s is None:
        return None
    # Whole windows only; the last one keeps an arrival at its very end.
    edges = np.arange(0.0, arrival_s[-1], window_s)
    if len(edges) <= _MIN_WINDOWS:
        return None
    counts: Int[np.ndarray, " windows"] = np.histogram(arrival_s, edges)[0]
    return float(np.var(counts, ddof=1) / np.mean(counts))


def _summary(tokens: Float[np.ndarray, " rows"], weight: Float[np.ndarray, " rows"] | None) -> LengthSummary:
    mean = float(np.average(tokens, weights=weight))
    variance = float(np.average((tokens - mean) ** 2, weights=weight))
    if weight is None:
        p50, p90, p99 = np.quantile(tokens, (0.5, 0.9, 0.99))
    else:
        order = np.argsort(tokens)
        cumulative = np.cumsum(weight[order])
        at = np.searchsorted(cumulative, np.asarray((0.5, 0.9, 0.99)) * cumulative[-1] * (1 - 1e-12))
        p50, p90, p99 = tokens[order][at]
    return LengthSummary(mean, float(p50), float(p90), float(p99), float(tokens.max()), variance / mean**2)
