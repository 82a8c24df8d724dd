"""Distributions as counts: the figures of 100 million requests in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from jaxsim._checks import invalid, require

LOWEST_S, HIGHEST_S = 1e-7, 1e7
"""What a `LogHistogram` resolves, in seconds: from a tenth of a microsecond to four months."""
NUM_BINS = 32_253
"""Bins between them; each is 0.09995 % wide, so a value is known to 0.05 %."""
LOG_WIDTH = float(np.log(HIGHEST_S / LOWEST_S)) / NUM_BINS
_ZERO, _BELOW, _FIRST, _ABOVE = 0, 1, 2, NUM_BINS + 2


@dataclass(frozen=True, eq=False)
class Histogram:
    """Observations as ascending values and how often each occurred.

    Attributes:
        values: ascending.
        counts: >= 0.
        total: sum of the observations where it is known better than from the values.
    """

    values: Float[np.ndarray, " bins"]
    counts: Int[np.ndarray, " bins"]
    total: float | None = None

    def __post_init__(self) -> None:
        require(
            np.diff(self.values) >= 0, "steps of values", np.diff(self.values), ">= 0", "sort them with their counts"
        )
        require(self.counts >= 0, "counts", self.counts, ">= 0")

    def __len__(self) -> int:
        """Observations."""
        return int(self.ranks[-1]) if len(self.ranks) else 0

    @cached_property
    def ranks(self) -> Int[np.ndarray, " bins"]:
        """Observations up to each value."""
        return np.cumsum(self.counts)

    def mean(self) -> float:
        """Mean; NaN of nothing."""
        total = float(self.values @ self.counts) if self.total is None else self.total
        return total / len(self) if len(self) else np.nan

    def quantile(self, q: float) -> float:
        """The q-quantile, linear between neighbouring observations as `np.quantile`; NaN of nothing."""
        if not len(self):
            return np.nan
        rank = q * (len(self) - 1)
        below = int(rank)
        low, high = (self._at(min(r, len(self) - 1)) for r in (below, below + 1))
        return low + (rank - below) * (high - low)

    def _at(self, rank: int) -> float:
        return float(self.values[np.searchsorted(self.ranks, rank, side="right")])

    @classmethod
    def pooled(cls, groups: Iterable[Float[np.ndarray, " _"] | Histogram]) -> Histogram:
        """All observations of some groups together."""
        parts = [group if isinstance(group, Histogram) else cls.of(group) for group in groups]
        values = np.concatenate([part.values for part in parts])
        order = np.argsort(values, kind="stable")
        total = float(sum(part.mean() * len(part) for part in parts if len(part)))
        return cls(values[order], np.concatenate([part.counts for part in parts])[order], total)

    @classmethod
    def of(cls, observations: Float[np.ndarray, " _"]) -> Histogram:
        """Single observations, exactly."""
        return cls(np.sort(observations), np.ones(len(observations), dtype=np.int64), float(np.sum(observations)))


class LogHistogram:
    """Counts durations (seconds) in bins of equal relative width; number, sum, least and greatest stay exact.

    A quantile errs by half a bin at most, 0.05 %. 0 has a bin of its own. What lies outside 1e-7 to 1e7 s is counted
    in two more: a quantile below the range is given as 1e-7, one above it as the greatest observation, and
    `below` and `above` say how many there are.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(NUM_BINS + 3, dtype=np.int64)
        self.total = 0.0
        self.least = np.inf
        self.greatest = -np.inf

    def __len__(self) -> int:
        """Observations."""
        return int(self.counts.sum())

    @property
    def below(self) -> int:
        """Observations between 0 and 1e-7 s, exclusive."""
        return int(self.counts[_BELOW])

    @property
    def above(self) -> int:
        """Observations of 1e7 s or more."""
        return int(self.counts[_ABOVE])

    def add(self, seconds: Float[np.ndarray, " _"]) -> None:
        """Count observations.

        Raises:
            ValueError: one is negative, infinite or NaN; nothing was counted.
        """
        if not seconds.size:
            return
        least, greatest = float(np.min(seconds)), float(np.max(seconds))
        if not 0.0 <= least <= greatest < np.inf:
            bad = seconds[~((seconds >= 0) & (seconds < np.inf))][0]
            raise invalid("durations to count", float(bad), ">= 0 and finite", "leave undefined ones out first")
        place = np.log(np.maximum(seconds, 0.5 * LOWEST_S))
        place -= np.log(LOWEST_S)
        place *= 1.0 / LOG_WIDTH
        np.floor(place, out=place)
        place += _FIRST
        np.clip(place, _BELOW, _ABOVE, out=place)
        counts = np.bincount(place.astype(np.intp), minlength=len(self.counts))
        zeros = len(seconds) - np.count_nonzero(seconds)
        counts[_BELOW] -= zeros
        counts[_ZERO] += zeros
        self.counts += counts
        self.total += float(np.sum(seconds))
        self.least, self.greatest = min(self.least, least), max(self.greatest, greatest)

    def merge(self, other: LogHistogram) -> None:
        """Count all that another has counted."""
        self.counts += other.counts
        self.total += other.total
        self.least, self.greatest = min(self.least, other.least), max(self.greatest, other.greatest)

    def histogram(self) -> Histogram:
        """What was counted, each bin at its middle, but never outside what was observed."""
        used = np.flatnonzero(self.counts)
        values = np.clip(MIDDLES[used], self.least, self.greatest)
        return Histogram(values, self.counts[used], self.total)


def _middles() -> Float[np.ndarray, " bins"]:
    """What stands for each bin: its geometric middle."""
    inner = LOWEST_S * np.exp((np.arange(NUM_BINS) + 0.5) * LOG_WIDTH)
    return np.concatenate([[0.0, LOWEST_S], inner, [np.inf]])


MIDDLES = _middles()
