r"""What a percentile of independent requests rests on: the interval between two of the values themselves.

Whatever the distribution, of n values $X_{(1)} \le \dots \le X_{(n)}$ the number below the q-quantile is binomial, so

$$P\left(X_{(l)} \le \xi_q \le X_{(u)}\right) \ge 1 - \alpha, \qquad
P(B < l) \le \alpha/2, \quad P(B \ge u) \le \alpha/2, \quad B \sim \text{Binomial}(n, q)$$

(H. A. David, H. N. Nagaraja, Order Statistics, 2003, section 7.1). With few values no u is high enough: a P99 needs
368 for an upper end at 95 %. Latencies of requests that shared a queue are not independent, and then the interval is
too narrow; it is never too wide.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jaxsim._checks import require

FEW_BEYOND = 10
"""Requests beyond a percentile below which it is worth a word."""


class Interval(NamedTuple):
    """Ends of a percentile's interval; 0 and inf where no value is far enough."""

    low: float
    high: float


def ranks(number: int, q: float, *, confidence: float = 0.95) -> tuple[int, int]:
    """Ranks, from 1, of the values between which the quantile lies; 0 and ``number + 1`` stand for none.

    Args:
        number: of values, >= 1.
        q: which quantile, in (0, 1).
        confidence: that it lies between them, in (0, 1).
    """
    require(number >= 1, "number", number, ">= 1")
    require(0.0 < q < 1.0, "q", q, "between 0 and 1", "P99 is 0.99, not 99")
    require(0.0 < confidence < 1.0, "confidence", confidence, "between 0 and 1")
    from scipy.stats import binom  # here, since it takes long to import and only a report needs it

    tail = 0.5 * (1.0 - confidence)
    low = int(binom.ppf(tail, number, q))
    low -= int(binom.cdf(low - 1, number, q) > tail)
    high = int(binom.isf(tail, number, q)) + 1
    high += int(binom.sf(high - 1, number, q) > tail)
    return max(low, 0), min(high, number + 1)


def interval(values: Any, q: float, *, confidence: float = 0.95) -> Interval:
    """The two values between which the quantile lies, in their unit."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    low, high = ranks(len(ordered), q, confidence=confidence)
    return Interval(
        float(ordered[low - 1]) if low > 0 else 0.0,
        float(ordered[high - 1]) if high <= len(ordered) else math.inf,
    )


def beyond(number: int, q: float) -> int:
    """Values above the quantile, on which it rests."""
    return round(number * (1.0 - q))


def needed(q: float, *, confidence: float = 0.95) -> int:
    """The least number of values that gives the interval an upper end."""
    return math.ceil(math.log(0.5 * (1.0 - confidence)) / math.log(q))
