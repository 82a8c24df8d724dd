r"""The lattice where power counts: each interval has several sizes, each with its price and its power.

**A budget** on power binds pools together, which a shortest path does not see. It is priced: with a multiplier
$\mu \ge 0$ per kilowatt the path is shortest in value $+ \mu$ kW, and

$$L(\mu) = \min_{\text{fleets}}(\text{value} + \mu\, \text{kW}) - \mu\, \text{kW}_{\max}$$

is below the value of every fleet within the budget, whatever $\mu$ (Lagrangian duality; Handler and Zang, Networks 10,
1980, for paths): so the lattice's bound with those prices stays one. The fleets within the budget that the paths of
the best multipliers find are starts for the search between the nodes, not the last word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from jaxsim.power import PowerLaw
from optim.cases import Case
from optim.pool_power import hardware_of, options
from optim.power_terms import Aim

_MOST_OPTIONS = 8
_MOST_TURNS = 40
_SEARCHES = 24
_SAME = 1e-12

Path = TypeVar("Path")

Table = Float[np.ndarray, "pools hardware lower upper"]
Options = Float[np.ndarray, "pools hardware lower upper options"]


@dataclass(frozen=True)
class Weighted:
    """The intervals with the size of each that is least under some weights.

    Attributes:
        value: that least.
        bound: what no whole size from the necessary one on is below.
        replicas, kilowatts: of that size.
    """

    value: Table
    bound: Table
    replicas: Table
    kilowatts: Table


@dataclass(frozen=True)
class PowerTables:
    """Sizes of every interval to choose from; `usd_per_hour` and `kilowatts` are inf where no number is enough."""

    replicas: Options
    usd_per_hour: Options
    kilowatts: Options
    usd_per_replica: Float[np.ndarray, " hardware"]

    def weighted(self, usd: float, kw: float) -> Weighted:
        """The best sizes where a dollar per hour and a kilowatt weigh this much."""
        values = _sum(usd, self.usd_per_hour, kw, self.kilowatts)
        at = values.argmin(axis=-1)[..., None]
        value, replicas, kilowatts = (
            np.take_along_axis(table, at, axis=-1)[..., 0] for table in (values, self.replicas, self.kilowatts)
        )
        return Weighted(value, self._bound(usd, kw, values), replicas, kilowatts)

    def _bound(self, usd: float, kw: float, values: Options) -> Table:
        """No whole size from the first option on is below it; between two options as `optim.pool_power` says."""
        least = values.min(axis=-1)
        if values.shape[-1] > 1:
            sizes = np.where(np.isfinite(self.replicas), self.replicas, 0.0)
            dollars = self.usd_per_hour[..., :-1] + self.usd_per_replica[None, :, None, None, None]
            part = (sizes[..., :-1] + 1.0) / np.maximum(sizes[..., 1:], 1.0)
            between = _sum(usd, dollars, kw, part * np.where(sizes[..., 1:] > 0, self.kilowatts[..., 1:], 0.0))
            apart = np.diff(sizes, axis=-1) > 1.0
            least = np.minimum(least, np.where(apart, between, np.inf).min(axis=-1))
        return least


def _sum(usd: float, dollars: np.ndarray, kw: float, kilowatts: np.ndarray) -> np.ndarray:
    """Weighted; what is impossible stays so when it is free."""
    possible = np.isfinite(dollars) & np.isfinite(kilowatts)
    return np.where(possible, usd * np.where(possible, dollars, 0.0) + kw * np.where(possible, kilowatts, 0.0), np.inf)


def power_tables(hardware: list[Case], power: PowerLaw | None, sizes: Table, nodes: np.ndarray) -> PowerTables:
    """The sizes at or above the necessary ones of every interval, with their power.

    Args:
        hardware: one case a profile, of one pool.
        power: law of one GPU of each profile, at the meter.
        sizes: necessary whole replicas; inf where none is enough, 0 where an interval is empty.
        nodes: thresholds of the lattice.
    """
    laws = [jax.tree.map(lambda leaf, p=p: leaf[p : p + 1], power) for p in range(len(hardware))]
    found = [_options_of(case, laws[p], sizes[:, p], nodes) for p, case in enumerate(hardware)]
    width = max(one[0].shape[-1] for one in found)
    wide = (*sizes.shape[:1], *sizes.shape[2:], width)
    replicas, kilowatts = (np.stack([np.broadcast_to(one[k], wide) for one in found], axis=1) for k in (0, 1))
    prices = np.array([float(np.asarray(case.profile.usd_per_hour)[0]) for case in hardware])
    dollars = np.where(np.isfinite(replicas), prices[None, :, None, None, None] * replicas, np.inf)
    return PowerTables(replicas, np.where(np.isfinite(replicas), dollars, np.inf), kilowatts, prices)


def _options_of(case: Case, law: PowerLaw, sizes: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replicas and kilowatts on one hardware: pools x lower x upper x options; equal intervals are looked at once."""
    at = np.argwhere(np.isfinite(sizes) & (sizes > 0))
    rows = np.column_stack([at[:, 1:], sizes[tuple(at.T)]])
    unlike, back = np.unique(rows, axis=0, return_inverse=True)
    low, high = (nodes[unlike[:, k].astype(int)] for k in (0, 1))
    if len(unlike) == 0:
        return sizes[..., None], np.where(np.isfinite(sizes), 0.0, np.inf)[..., None]
    found = options(hardware_of(case, law, 0), low, high, unlike[:, 2], most=_MOST_OPTIONS)
    width = found.replicas.shape[1]
    replicas = np.repeat(sizes[..., None], width, axis=-1)
    kilowatts = np.repeat(np.where(np.isfinite(sizes), 0.0, np.inf)[..., None], width, axis=-1)
    replicas[tuple(at.T)], kilowatts[tuple(at.T)] = found.replicas[back.ravel()], found.kilowatts[back.ravel()]
    return replicas, kilowatts


@dataclass(frozen=True)
class Point(Generic[Path]):
    """A path under some multiplier: its value, its power, and the path itself."""

    value: float
    kilowatts: float
    path: Path


def within_budget(found: Callable[[float, float], Point[Path]], aim: Aim) -> tuple[Point[Path], float]:
    """The best point within the budget that a multiplier finds, and the best multiplier.

    The multiplier is the slope between the best point above the budget and the best within; a point below that line
    takes the place of one of the two, until there is none.

    Args:
        found: the least point for weights of a dollar per hour and of a kilowatt.
        aim: whose budget it is.

    Returns:
        The point; where nothing is within the budget that of least power, above it, and an infinite multiplier.
    """
    above = found(aim.usd, aim.kw)
    if above.kilowatts <= aim.max_kw or not np.isfinite(above.value):
        return above, 0.0
    within = found(0.0, 1.0)
    if within.kilowatts > aim.max_kw:
        return within, np.inf
    price = 0.0
    for _ in range(_MOST_TURNS):
        price = max((within.value - above.value) / max(above.kilowatts - within.kilowatts, _SAME), 0.0)
        point = found(aim.usd, aim.kw + price)
        line = within.value + price * within.kilowatts
        if point.value + price * point.kilowatts >= line - _SAME * abs(line):
            break
        if point.kilowatts <= aim.max_kw:
            within = point
        else:
            above = point
    return within, price


def dual_bound(bound: Callable[[float, float], float], aim: Aim, first_price: float) -> float:
    """The best of the bounds that multipliers give: looked for between 0 and where a higher one gives less.

    Args:
        bound: on value plus price for weights of a dollar per hour and of a kilowatt.
        aim: whose budget it is.
        first_price: of a kilowatt, value per kW, to begin with; > 0 and finite where there is a budget.
    """

    @cache
    def at(price: float) -> float:
        lowest = bound(aim.usd, aim.kw + price)
        return lowest if price == 0.0 else lowest - price * aim.max_kw

    free = at(0.0)
    if not np.isfinite(aim.max_kw) or not np.isfinite(free):
        return free
    low, high = 0.0, first_price
    best, last = max(free, at(high)), free
    for _ in range(_SEARCHES):  # the bound is concave in the price
        if at(high) < last:
            break
        last, high = at(high), 2.0 * high
        best = max(best, at(high))
    for _ in range(_SEARCHES):
        third = (high - low) / 3.0
        left, right = at(low + third), at(high - third)
        best = max(best, left, right)
        low, high = (low + third, high) if left < right else (low, high - third)
    return best
