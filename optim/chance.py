r"""The cheapest fleet that is enough in a given share of the scenarios, exactly.

In scenario $k$ of probability $w_k$ pool $p$ needs $N_{kp}$ replicas; a fleet $n$ is enough in it where $n_p \ge
N_{kp}$ in every pool. To be found is

$$\min_n \sum_p c_p n_p \quad \text{such that} \quad \sum_{k:\, N_k \le n} w_k \ge \text{share}$$

which scenarios to leave is part of the choice. For one pool it is a quantile. For more, pools are decided in turn: each
tries the sizes that some scenario needs, from the quantile of what the earlier ones left upwards, and a branch ends
where its price and the quantiles of the pools to come are not below the best fleet so far. A pool alone never needs
less than its quantile, so nothing cheaper is lost.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

_ROUNDING = 1e-9
"""Of sums of probabilities, and of prices that are equal."""


def cheapest_cover(
    required: Float[np.ndarray, "scenarios pools"],
    probability: Float[np.ndarray, " scenarios"],
    price: Float[np.ndarray, " pools"],
    share: float,
) -> Float[np.ndarray, " pools"] | None:
    """Sizes of the cheapest fleet that is enough with probability `share` at least; None where none is.

    Args:
        required: whole replicas; inf where no number is enough.
        probability: of each scenario, summing to 1; those without count for nothing.
        price: of a replica of each pool, >= 0.
        share: in (0, 1].
    """
    possible = (probability > 0) & np.all(np.isfinite(required), axis=1)
    rows, back = np.unique(required[possible], axis=0, return_inverse=True)
    mass = np.bincount(back.reshape(-1), probability[possible], minlength=len(rows))
    if mass.sum() < share - _ROUNDING:
        return None
    search = _Search(rows, mass, price, share - _ROUNDING)
    search.branch(0, np.ones(len(rows), dtype=bool), np.zeros(0))
    return search.best


def covered(
    required: Float[np.ndarray, "scenarios pools"], replicas: Float[np.ndarray, " pools"]
) -> Bool[np.ndarray, " scenarios"]:
    """Which scenarios a fleet is enough in."""
    return np.all(required <= replicas, axis=1)


class _Search:
    """The best fleet so far, and what is left to choose from."""

    def __init__(self, rows: np.ndarray, mass: np.ndarray, price: np.ndarray, needed: float) -> None:
        self.rows, self.mass, self.price, self.needed = rows, mass, price, needed
        self.best: np.ndarray | None = None
        self._cost = np.inf

    def branch(self, pool: int, left: np.ndarray, chosen: np.ndarray) -> None:
        """Decide one pool after those chosen; `left` are the rows that they are enough for."""
        if pool == len(self.price):
            self._cost, self.best = float(self.price @ chosen), chosen
            return
        bound = self.price[:pool] @ chosen + sum(
            self.price[later] * self._quantile(later, left) for later in range(pool + 1, len(self.price))
        )
        sizes = np.unique(self.rows[left, pool])
        for size in sizes[sizes >= self._quantile(pool, left)]:
            if bound + self.price[pool] * size >= self._cost - _ROUNDING:
                return
            self.branch(pool + 1, left & (self.rows[:, pool] <= size), np.append(chosen, size))

    def _quantile(self, pool: int, left: np.ndarray) -> float:
        """The fewest replicas of a pool that are enough for the share, of the rows left."""
        values, mass = self.rows[left, pool], self.mass[left]
        order = np.argsort(values, kind="stable")
        at = int(np.searchsorted(np.cumsum(mass[order]), self.needed))
        return float(values[order[min(at, len(order) - 1)]])
