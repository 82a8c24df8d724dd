"""A percentile that was measured in several runs: how far it can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from jaxsim._checks import require, require_non_negative


@dataclass(frozen=True)
class Repeats:
    """The same figure from independent runs; in the unit it was given in.

    Attributes:
        quantile: which percentile, such as 0.99.
        mean: over the runs.
        cv: standard deviation over the mean (n - 1 in the denominator); NaN for one run.
        low, high: Student t interval of the mean; 0 and inf for one run, of which nothing is known.
        num_runs, num_requests: runs, and requests of each.
        confidence: of the interval.
    """

    quantile: float
    mean: float
    cv: float
    low: float
    high: float
    num_runs: int
    num_requests: int
    confidence: float

    @property
    def beyond(self) -> int:
        """Requests of a run above the percentile, on which it rests."""
        return round(self.num_requests * (1.0 - self.quantile))

    def __str__(self) -> str:
        runs = f"{self.num_runs} run{'s' if self.num_runs > 1 else ''} of {self.num_requests:,} requests"
        spread = f"{self.confidence:.0%} interval {self.low:.4g} to {self.high:.4g}"
        tail = f"{self.beyond:,} beyond it in each; runs differ by {self.cv:.1%}"
        return f"P{100 * self.quantile:g} {self.mean:.4g} ({spread}; {runs}, {tail})"


def repeats(values: Any, *, quantile: float, num_requests: int, confidence: float = 0.95) -> Repeats:
    """Pool one percentile over runs.

    Args:
        values: the percentile of each run, >= 0.
        quantile: which, in (0, 1).
        num_requests: of each run.
        confidence: of the interval, in (0, 1).
    """
    found = np.asarray(values, dtype=np.float64)
    require(found.size >= 1, "the number of values", found.size, ">= 1")
    require_non_negative("values", found)
    require(0.0 < quantile < 1.0, "quantile", quantile, "between 0 and 1", "P99 is 0.99, not 99")
    require(0.0 < confidence < 1.0, "confidence", confidence, "between 0 and 1")
    require(num_requests >= 1, "num_requests", num_requests, ">= 1")
    mean = float(found.mean())
    if found.size == 1:
        return Repeats(quantile, mean, np.nan, 0.0, np.inf, 1, num_requests, confidence)
    deviation = float(found.std(ddof=1))
    half = float(stdtrit(found.size - 1, 0.5 + 0.5 * confidence)) * deviation / found.size**0.5
    cv = deviation / mean if mean > 0 else 0.0
    return Repeats(quantile, mean, cv, max(mean - half, 0.0), mean + half, found.size, num_requests, confidence)
