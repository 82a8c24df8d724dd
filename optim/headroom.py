"""Headroom: the rate at which the next replica is due, exact on whole sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsim.workload import Workload
from optim.rate_sizes import RATES_AT_ONCE, sizes_at_rates
from optim.slopes import Point

_RATES = RATES_AT_ONCE
"""Rates of a pass, which narrows the bracket 63 times."""
_REACH = 1e4
"""Times the rate given that are looked at, up and down."""
_PRECISION = 1e-9
_ENOUGH = 1e-4
"""Relative precision of `due_rates`, of which there are many."""
_MOST_PASSES = 12


@dataclass(frozen=True)
class Headroom:
    """Until when the replicas that there are suffice, thresholds and the mix of lengths as they are.

    Attributes:
        rate: requests per second of the whole fleet given.
        due_rate: of each pool, the highest rate of the fleet at which its replicas suffice by the model; above it the
            next is due. inf where none is due up to 10,000 times the rate given, 0 where none suffices down to a
            10,000th of it.
        required: whole replicas that each pool needs at the rate given.
        usd_per_hour: price of one replica more in each pool.
    """

    rate: float
    due_rate: tuple[float, ...]
    required: tuple[int, ...]
    usd_per_hour: tuple[float, ...]

    @property
    def pool(self) -> int:
        """Where the first replica is due."""
        return int(np.argmin(self.due_rate))

    @property
    def fleet_due_rate(self) -> float:
        """Where the first replica is due, requests per second of the fleet."""
        return min(self.due_rate)

    @property
    def spare(self) -> float:
        """Growth of the rate, as a share of it, until then; below 0 a pool is already short."""
        return self.fleet_due_rate / self.rate - 1.0


def headroom(point: Point, workload: Workload, *, model: str) -> Headroom:
    """Find it for each pool of a fleet that some number of replicas could serve."""

    def required(rates: np.ndarray) -> np.ndarray:
        return sizes_at_rates(point, workload, rates, model=model).replicas

    rate, replicas = float(point.rate), np.asarray(point.replicas)
    first = rate * np.geomspace(1.0 / _REACH, _REACH, _RATES)
    sized = required(first)
    now = required(np.array([rate]))[0]
    due = tuple(_due(required, first, sized, p, float(n)) for p, n in enumerate(replicas))
    prices = np.asarray(point.profile.usd_per_hour)
    return Headroom(rate, due, tuple(int(n) for n in now), tuple(float(v) for v in prices))


def due_rates(
    point: Point, workload: Workload, counts: Sequence[int], *, model: str
) -> Float[np.ndarray, "counts pools"]:
    """Of each pool with each of these numbers of replicas, the highest rate of the fleet at which they suffice.

    Args:
        point: hardware, thresholds and objectives; its rate is where the search begins, its replicas do not matter.
        workload: joint lengths alone (`optim.figures.lengths_alone`).
        counts: replicas, whole.
        model: "step" or "kimura".

    Returns:
        Requests per second of the whole fleet, within `_ENOUGH` of the exact rate and never above it; inf and 0 as in
        `Headroom.due_rate`.
    """

    def required(rates: np.ndarray) -> np.ndarray:
        return sizes_at_rates(point, workload, rates, model=model).replicas

    first = float(point.rate) * np.geomspace(1.0 / _REACH, _REACH, _RATES)
    sized = required(first)
    pools = range(sized.shape[1])
    return np.array([[_due(required, first, sized, p, float(n), _ENOUGH) for p in pools] for n in counts])


def _due(
    required: Callable[[np.ndarray], np.ndarray],
    rates: np.ndarray,
    sized: np.ndarray,
    pool: int,
    replicas: float,
    precision: float = _PRECISION,
) -> float:
    """The rate up to which `replicas` suffice; whole sizes do not fall as the rate rises."""
    low = 0.0
    for _ in range(_MOST_PASSES):
        short = sized[:, pool] > replicas
        if not short.any():
            return float("inf")
        at = int(short.argmax())
        if at == 0:
            return 0.0
        low, high = float(rates[at - 1]), float(rates[at])
        if high - low <= precision * high:
            break
        rates = np.linspace(low, high, _RATES)
        sized = required(rates)
    return low
