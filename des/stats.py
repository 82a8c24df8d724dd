"""Estimates with intervals, from independent replications or from batches of one run.

A quantile of latency comes from dependent observations: neighbours share a queue. So its interval rests on
the spread of the same quantile over groups that are (nearly) independent: replications, or long consecutive
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from des.histogram import Histogram, LogHistogram
from jaxsim._checks import require

__all__ = [
    "NUM_BATCHES",
    "Estimate",
    "Histogram",
    "LogHistogram",
    "Sample",
    "half_width",
    "lower_bound",
    "mser5",
    "next_length",
]

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


Group = Float[np.ndarray, " _"] | Histogram


@dataclass(frozen=True, eq=False)
class Sample:
    """Observations of one quantity (seconds), in groups: replications, or consecutive batches of one run.

    Attributes:
        groups: each an array of observations, or a `Histogram` of them. A single array is one run in order of arrival
            and is cut into batches; a single histogram has no order, so no interval.
        unbounded: the run was overloaded, so the figure grows with its length.
    """

    groups: tuple[Group, ...] = field(repr=False)
    unbounded: bool = False

    @property
    def n(self) -> int:
        """Observations in all."""
        return sum(len(g) for g in self.groups)

    @property
    def values(self) -> Float[np.ndarray, " n"]:
        """All observations, group after group.

        Raises:
            ValueError: a group is a histogram; see `pooled`.
        """
        arrays = [group for group in self.groups if isinstance(group, np.ndarray)]
        if len(arrays) < len(self.groups):
            raise ValueError("the observations were counted, not kept: use Sample.pooled()")
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def pooled(self) -> Histogram:
        """All observations as ascending values and counts."""
        return Histogram.pooled(self.groups)

    def quantile(self, q: float, confidence: float = 0.95) -> Estimate:
        """The q-quantile (0 < q < 1) of all observations, with a Student t interval over the groups' quantiles."""
        require(0.0 < q < 1.0, "q", q, "between 0 and 1", "a quantile is 0.99, not 99")
        return self._estimate(lambda group: _quantile(group, q), confidence)

    def mean(self, confidence: float = 0.95) -> Estimate:
        """The mean of all observations, with a Student t interval over the groups' means."""
        return self._estimate(_mean, confidence)

    def _estimate(self, statistic: Callable[[Group], float], confidence: float) -> Estimate:
        require(0.0 < confidence < 1.0, "confidence", confidence, "between 0 and 1")
        if self.n == 0:
            return Estimate(np.nan, np.nan, np.nan, 0, confidence)
        value = statistic(self._together())
        half = half_width(np.array([statistic(g) for g in self._apart() if len(g) > 0]), confidence)
        high = np.inf if self.unbounded else value + half
        return Estimate(value, max(value - half, 0.0), high, self.n, confidence)

    def _together(self) -> Group:
        counted = any(isinstance(group, Histogram) for group in self.groups)
        return self.pooled() if counted else self.values

    def _apart(self) -> Sequence[Group]:
        only = self.groups[0]
        if len(self.groups) > 1 or isinstance(only, Histogram):
            return self.groups
        return np.array_split(only, NUM_BATCHES)


def _quantile(group: Group, q: float) -> float:
    return group.quantile(q) if isinstance(group, Histogram) else float(np.quantile(group, q))


def _mean(group: Group) -> float:
    return group.mean() if isinstance(group, Histogram) else float(np.mean(group))


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


def mser5(values: Float[np.ndarray, " n"]) -> int:
    r"""How many first observations to leave out of a run that starts away from its steady state: the MSER-5 rule.

    Of the means z of every 5 observations, d are left out such that the marginal standard error of the rest,
    :math:`\sum_{j > d} (z_j - \bar z_d)^2 / (k - d)^2` with k means, is least; d is at most k/2, since beyond that
    a few means that happen to be alike win. A result near half the run says that the run is too short.

    Sources: White (1997), "An effective truncation heuristic for bias reduction in simulation output", Simulation 69;
    batches of 5 and the comparison with other rules: White, Cobb and Spratt (2000), Winter Simulation Conference.

    Args:
        values: observations in order, finite.

    Returns:
        A multiple of 5; 0 for fewer than 10 observations.
    """
    require(np.isfinite(values), "values", values, "finite")
    number = len(values) // 5
    if number < 2:
        return 0
    means = values[: 5 * number].reshape(number, 5).mean(axis=1)
    means -= means[-1]  # the spread alone matters, and its sums should not cancel; equal means give exactly 0
    last = np.arange(number, 0, -1)
    sums, squares = (np.cumsum(m[::-1])[::-1] for m in (means, means * means))
    spread = np.maximum(squares - sums * sums / last, 0.0)
    error = spread / (last * last.astype(np.float64))
    return 5 * int(np.argmin(error[: number // 2 + 1]))
