"""What a fleet is worth under uncertainty: the share of scenarios in which it is enough, and how its P99s spread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from optim.chance import covered
from optim.scenario_batch import ScenarioFigures
from optim.scenarios import Scenarios
from optim.verdict import Verdict, wilson

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """A figure over the scenarios that were drawn: median and central 95 % interval; corners may be outside."""

    median: float
    low: float
    high: float
    worst: float

    @classmethod
    def of(cls, values: Float[np.ndarray, " scenarios"], probability: Float[np.ndarray, " scenarios"]) -> Spread:
        """By their probabilities; `worst` is the largest of all, corners included."""
        tail = 0.5 * (1.0 - CONFIDENCE)
        low, median, high = (weighted_quantile(values, probability, q) for q in (tail, 0.5, 1.0 - tail))
        return cls(median, low, high, float(values.max()))

    def crosses(self, limit: float | None) -> bool:
        """Whether the interval has the limit inside."""
        return limit is not None and self.low <= limit < self.high


@dataclass(frozen=True)
class PoolSpread:
    """P99s in seconds and utilisation of one pool, by the model."""

    ttft_p99_s: Spread
    tpot_p99_s: Spread
    utilization: Spread


@dataclass(frozen=True)
class Assessment:
    """A fleet in all scenarios.

    Attributes:
        share_met: probability of the scenarios in which every pool meets its objectives.
        low, high: Wilson's 95 % interval of it; the share itself where every scenario was looked at.
        met_everywhere: corners included.
        verdict: met where the share is at least 97.5 %, so that the central 95 % interval of what matters lies below
            the objective; missed where it is at most 2.5 %; between them a coin flip.
        pools: spread of each pool's figures.
        rejected_share: the largest of all scenarios.
    """

    share_met: float
    low: float
    high: float
    met_everywhere: bool
    verdict: Verdict
    pools: tuple[PoolSpread, ...]
    rejected_share: float


def assess(
    scenarios: Scenarios,
    required: Float[np.ndarray, "scenarios pools"],
    replicas: Float[np.ndarray, " pools"],
    figures: ScenarioFigures,
    fleet: int,
) -> Assessment:
    """Of one of the fleets that `figures` has."""
    enough = covered(required, replicas)
    probability = scenarios.probability
    share = float(np.clip(probability[enough].sum(), 0.0, 1.0))
    share = 1.0 if share > 1.0 - 1e-12 else share
    low, high = (share, share) if scenarios.exact else wilson(share, scenarios.effective_number, CONFIDENCE)

    def spread(values: np.ndarray, pool: int) -> Spread:
        return Spread.of(values[:, fleet, pool], probability)

    return Assessment(
        share_met=share,
        low=low,
        high=high,
        met_everywhere=bool(enough.all()),
        verdict=verdict_of_share(share),
        pools=tuple(
            PoolSpread(
                spread(figures.ttft_p99_s, pool), spread(figures.tpot_p99_s, pool), spread(figures.utilization, pool)
            )
            for pool in range(len(replicas))
        ),
        rejected_share=float(figures.rejected_share[:, fleet].max()),
    )


def verdict_of_share(share: float) -> Verdict:
    """What the probability of meeting the objectives says of a fleet."""
    tail = 0.5 * (1.0 - CONFIDENCE)
    if share >= 1.0 - tail:
        return Verdict.MET
    return Verdict.MISSED if share <= tail else Verdict.COIN_FLIP


def weighted_quantile(
    values: Float[np.ndarray, " scenarios"], probability: Float[np.ndarray, " scenarios"], q: float
) -> float:
    """The least value that is not exceeded with probability q."""
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(probability[order])
    at = int(np.searchsorted(mass, q * mass[-1] * (1.0 - 1e-12)))
    return float(values[order[min(at, len(order) - 1)]])
