"""Whole sizes of given thresholds where power counts: of the sizes that each pool may have, the best together."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from optim.cases import Case
from optim.pool_power import Options, hardware_of, kilowatts, options
from optim.power_terms import Aim

MOST_OPTIONS = {1: 24, 2: 8, 3: 6, 4: 5, 5: 5, 6: 4}
"""Sizes of a pool that are tried with every one of the other pools, by the number of pools."""

_ROUNDING = 1e-9


class Priced(NamedTuple):
    """Designs, one a row, with the sizes that suit the aim.

    Attributes:
        replicas: of each pool, whole; 0 where it is empty.
        usd_per_hour, kilowatts: of the whole fleet; inf where the thresholds are infeasible.
    """

    replicas: Float[np.ndarray, "rows pools"]
    usd_per_hour: Float[np.ndarray, " rows"]
    kilowatts: Float[np.ndarray, " rows"]

    def within(self, aim: Aim) -> Bool[np.ndarray, " rows"]:
        """Rows that keep the budget on power."""
        return self.kilowatts <= aim.max_kw * (1.0 + _ROUNDING)


def priced(
    case: Case,
    upper: Float[np.ndarray, "rows pools"],
    replicas: Float[np.ndarray, "rows pools"],
    feasible: Bool[np.ndarray, " rows"],
    aim: Aim,
) -> Priced:
    """The sizes of each row at or above `replicas` that are least in `aim`, within its budgets where any are.

    Args:
        case: hardware.
        upper: thresholds.
        replicas: that the objectives need, whole.
        feasible: rows to look at.
        aim: what counts, with the power of the pools.
    """
    most = MOST_OPTIONS[case.num_pools]
    found = [_pool_options(case, pool, upper, replicas, feasible, most, aim) for pool in range(case.num_pools)]
    width = max(one.replicas.shape[1] for one in found)
    sizes, power = (np.stack([np.broadcast_to(one[k], (len(upper), width)) for one in found], 1) for k in (0, 1))
    if width == 1:
        usd = sizes[:, :, 0] @ np.asarray(case.profile.usd_per_hour)
        return _masked(sizes[:, :, 0], usd, power[:, :, 0].sum(1), feasible)
    chosen = _choose(case, sizes, power, aim)
    rows = np.arange(len(upper))[:, None], np.arange(case.num_pools)[None, :], chosen
    usd = sizes[rows] @ np.asarray(case.profile.usd_per_hour)
    return _masked(sizes[rows], usd, power[rows].sum(1), feasible)


def settled(case: Case, upper: np.ndarray, needed: np.ndarray, replicas: np.ndarray, aim: Aim) -> Priced:
    """One design whose sizes were looked for in strides, with those between looked at too.

    Args:
        case: hardware.
        upper, needed, replicas: thresholds, what the objectives need, and what was chosen, of each pool.
        aim: what counts, with the power of the pools.
    """
    pools, most = case.num_pools, MOST_OPTIONS[case.num_pools]
    reach = np.maximum(np.ceil((2.0 * replicas + 8.0) / most), 1.0)
    best = replicas.astype(float)
    while True:
        low, high = np.maximum(best - reach, needed), np.where(needed > 0, best + reach, 0.0)
        sizes = np.floor(low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, most) + 0.5)
        sizes = np.sort(np.concatenate([sizes, best[:, None]], axis=1), axis=1)
        power = np.zeros_like(sizes)
        for p in np.flatnonzero(needed > 0):
            first, last = (np.full(sizes.shape[1], v) for v in _range(upper, int(p)))
            power[p] = kilowatts(hardware_of(case, aim.power, int(p)), first, last, sizes[p])
        chosen = _choose(case, sizes[None], power[None], aim)[0]
        best = sizes[np.arange(pools), chosen]
        if np.all(reach <= (most - 1) // 2):
            usd = np.array([best @ np.asarray(case.profile.usd_per_hour)])
            kw = np.array([power[np.arange(pools), chosen].sum()])
            return Priced(best[None], usd, kw)
        reach = np.maximum(np.ceil(2.0 * reach / most), 1.0)


def _pool_options(
    case: Case, pool: int, upper: np.ndarray, replicas: np.ndarray, feasible: np.ndarray, most: int, aim: Aim
) -> Options:
    rows = np.flatnonzero(feasible & (replicas[:, pool] > 0))
    low = np.zeros(len(upper)) if pool == 0 else upper[:, pool - 1]
    if len(rows) == 0:
        return Options(replicas[:, pool : pool + 1], np.zeros((len(upper), 1)))
    found = options(hardware_of(case, aim.power, pool), low[rows], upper[rows, pool], replicas[rows, pool], most=most)
    width = found.replicas.shape[1]
    sizes, power = np.repeat(replicas[:, pool : pool + 1], width, axis=1), np.zeros((len(upper), width))
    sizes[rows], power[rows] = found
    return Options(sizes, power)


def _range(upper: np.ndarray, pool: int) -> tuple[float, float]:
    return (0.0 if pool == 0 else float(upper[pool - 1])), float(upper[pool])


def _choose(case: Case, sizes: np.ndarray, power: np.ndarray, aim: Aim) -> np.ndarray:
    """Which option of each pool, rows x pools: of all combinations the least; within the budgets where any are."""
    rows, pools, width = sizes.shape
    prices, gpus = np.asarray(case.profile.usd_per_hour), np.asarray(case.profile.gpus_per_replica)

    def total(values: np.ndarray) -> np.ndarray:
        """Of every combination, the first pool's option slowest."""
        each = (values[:, p, :] for p in range(pools))
        return reduce(lambda sums, more: (sums[:, :, None] + more[:, None, :]).reshape(rows, -1), each)

    kw = total(power)
    value = aim.value(total(sizes * prices[None, :, None]), kw)
    over_power = kw > aim.max_kw * (1.0 + _ROUNDING)
    over_gpus = total(sizes * gpus[None, :, None]) > aim.max_gpus
    for over in (over_power, over_gpus):  # the least power where none is within its budget, then the cap on GPUs
        some = ~over.all(axis=1, keepdims=True)
        value = np.where(over & some, np.inf, value)
    value = np.where(over_power.all(axis=1, keepdims=True), np.where(np.isfinite(value), kw, np.inf), value)
    at = value.argmin(axis=1)
    return np.stack(np.unravel_index(at, (width,) * pools), axis=1)


def _masked(replicas: np.ndarray, usd: np.ndarray, kw: np.ndarray, feasible: np.ndarray) -> Priced:
    return Priced(replicas, np.where(feasible, usd, np.inf), np.where(feasible, kw, np.inf))
