"""Estimates with intervals, from independent replications or from batches of one run.

A quantile of latency comes from dependent observations: neighbours share a queue. So its interval rests on
the spread of the same quantile over groups that are (nearly) independent: replications, or long consecutive
batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from jaxsim._checks import require

NUM_BATCHES = 20
"""Consecutive batches that one run is cut into (20 to 30 is the customary range)."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its confidence interval.

    `low` and `high` are 0 and inf where no interval can be computed (fewer than two groups with data), and
    `high` is inf where the figure has no steady state because a pool is overloaded. `n` is the number of
    observations.
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95

    @property
    def relative_half_width(self) -> float:
        """Half the interval over the value; inf where there is no interval."""
        return 0.5 * (self.high - self.low) / self.value if self.value > 0 else np.inf


@dataclass(frozen=True, eq=False)
class Sample:
    """Observations of one quantity (seconds), in groups: replications, or one run in order of arrival.

    `unbounded`: the run was overloaded, so the figure grows with its length.
    """

    groups: tuple[Float[np.ndarray, " _"], ...] = field(repr=False)
    unbounded: bool = False

    @property
    def n(self) -> int:
        """Observations in all."""
        return sum(len(g) for g in self.groups)

    @property
    def values(self) -> Float[np.ndarray, " n"]:
        """All observations, group after group."""
        return self.groups[0] if len(self.groups) == 1 else np.concatenate(self.groups)

    def quantile(self, q: float, confidence: float = 0.95) -> Estimate:
        """The q-quantile (0 < q < 1) of all observations, with a Student t interval over the groups' quantiles."""
        require(0.0 < q < 1.0, "q", q, "between 0 and 1", "a quantile is 0.99, not 99")
        return self._estimate(lambda x: float(np.quantile(x, q)), confidence)

    def mean(self, confidence: float = 0.95) -> Estimate:
        """The mean of all observations, with a Student t interval over the groups' means."""
        return self._estimate(lambda x: float(np.mean(x)), confidence)

    def _estimate(self, statistic: Callable[[np.ndarray], float], confidence: float) -> Estimate:
        require(0.0 < confidence < 1.0, "confidence", confidence, "between 0 and 1")
        if self.n == 0:
            return Estimate(np.nan, np.nan, np.nan, 0, confidence)
        value = statistic(self.values)
        groups = self.groups if len(self.groups) > 1 else np.array_split(self.groups[0], NUM_BATCHES)
        half = half_width(np.array([statistic(g) for g in groups if len(g) > 0]), confidence)
        high = np.inf if self.unbounded else value + half
        return Estimate(value, max(value - half, 0.0), high, self.n, confidence)


def half_width(values: Float[np.ndarray, " groups"], confidence: float) -> float:
    """Half the Student t interval of a mean over groups; inf for fewer than two."""
    if len(values) < 2:
        return np.inf
    quantile = stdtrit(len(values) - 1, 0.5 + 0.5 * confidence)
    return float(quantile * np.std(values, ddof=1) / np.sqrt(len(values)))


def lower_bound(values: Float[np.ndarray, " groups"], confidence: float) -> float:
    """One-sided Student t lower bound of a mean over groups; -inf for fewer than two."""
    return float(np.mean(values)) - half_width(values, 2.0 * confidence - 1.0) if len(values) > 1 else -np.inf


def next_length(num_requests: int, reached: float, wanted: float, limit: int) -> int:
    """Length of the next try of a run that reached the relative half-width `reached` and wants `wanted`.

    The half-width falls with the root of the length; a fifth is added, and one try grows 1.5 to 8 times.
    """
    factor = 1.2 * (reached / wanted) ** 2 if np.isfinite(reached) else 8.0
    return min(int(num_requests * min(max(factor, 1.5), 8.0)), limit)
