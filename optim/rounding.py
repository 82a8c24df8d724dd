"""From the relaxation to integers: whole replicas, and thresholds on token boundaries.

For whole sizes of all pools but the last, longer thresholds only help the last pool, so each pool in turn is
filled: its threshold is the longest that its replicas can serve (found by bisection over tokens). The last pool
takes the exact `ceil` of its root. Every candidate is priced exactly, in dollars or what else is to be least; the
cheapest wins, and among equals the one with the most slack. Where power counts, sizes above the necessary ones are
candidates too (`optim.priced`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from optim.cases import Case, margins, pool_margins, sized_designs
from optim.power_terms import Aim
from optim.priced import priced, settled
from optim.sizing import whole_replicas

_LOCAL_OPTIMA = 3
_BOX = {1: 1, 2: 33, 3: 81, 4: 125, 5: 81, 6: 243}
"""Candidates around a relaxed optimum, by pools; for two pools a window of sizes, beyond that the +-1 box or more."""
_SLOT_EDGES = 10
_GRID = 256
_WINDOW = 0.03
_BISECTIONS = 24
_CHEAPEST = Aim()


@dataclass(frozen=True)
class Rounded:
    """A whole design: replicas and thresholds per pool, its price, and the log-tail slack (<= 0 is feasible).

    `kilowatts` at the meter are known where power counts.
    """

    replicas: np.ndarray
    upper_tokens: np.ndarray
    relaxed_replicas: np.ndarray
    usd_per_hour: float
    worst_excess: float
    kilowatts: float = math.nan


def round_plan(case: Case, relaxed_upper: np.ndarray, *, model: str, aim: Aim = _CHEAPEST) -> Rounded | None:
    """The best whole design near the relaxed optima; None where no candidate is feasible.

    Args:
        case: hardware and targets.
        relaxed_upper: thresholds of the relaxed solutions, best first.
        model: "step" or "kimura".
        aim: what is to be least, and its budgets; a candidate above that on power is not feasible.
    """
    starts = _distinct(relaxed_upper, _LOCAL_OPTIMA)
    sizes = sized_designs(case, starts, model=model).replicas
    leading = np.concatenate([_box(row) for row in sizes])
    upper = _fill(case, leading, model=model)
    singles = _single_pools(case)
    rounded = np.maximum(np.floor(starts), 1.0)
    edges = _slot_edges(case, starts) if model == "kimura" else rounded
    best = best_of(case, np.concatenate([upper, rounded, singles, edges]), model=model, aim=aim)
    return None if best is None else _settled(case, _closer(case, best, model=model, aim=aim), model=model, aim=aim)


def _closer(case: Case, best: Rounded, *, model: str, aim: Aim) -> Rounded:
    """The best of a design and of those with one threshold elsewhere: anywhere on a grid, then in a window around it.

    Whole sizes are not monotone in a threshold: who leaves a pool changes its mix as well as its load.
    """
    first, last = float(case.shortest), float(case.longest)
    for pool in range(case.num_pools - 1):
        for near in (False, True):
            low, high, number = first, last, _GRID
            if near:
                number = _GRID // 2
                low, high = (max(part * best.upper_tokens[pool], first) for part in (1.0 - _WINDOW, 1.0 + _WINDOW))
            rows = np.repeat(best.upper_tokens[None], number + 1, axis=0)
            rows[1:, pool] = np.floor(np.geomspace(low, max(high, low), number))
            below = rows[:, pool - 1] if pool else np.ones(len(rows))
            rows[:, pool] = np.clip(rows[:, pool], below, rows[:, pool + 1])
            again = best_of(case, rows, model=model, aim=aim)
            best = best if again is None else again
    return best


def best_of(case: Case, upper: np.ndarray, *, model: str, aim: Aim = _CHEAPEST) -> Rounded | None:
    """The best of a batch of token-boundary thresholds, each with its exact sizes."""
    sized = sized_designs(case, upper, model=model)
    if not sized.feasible.any():
        return None
    replicas, feasible = whole_replicas(sized.replicas), sized.feasible
    power = np.full(len(upper), math.nan)
    if aim.powered:
        found = priced(case, upper, replicas, feasible, aim)
        replicas, price, power = found.replicas, found.usd_per_hour, found.kilowatts
        feasible = feasible & found.within(aim)
        if not feasible.any():
            return None
    else:
        price = replicas @ np.asarray(case.profile.usd_per_hour)
    value = aim.value(price, power)
    cheapest = np.flatnonzero(feasible & (value <= value[feasible].min() + 1e-9))
    slack = margins(case, upper[cheapest], replicas[cheapest], model=model).excess.max(axis=(1, 2))
    at = cheapest[slack.argmin()]
    return Rounded(replicas[at], upper[at], sized.replicas[at], float(price[at]), float(slack.min()), float(power[at]))


def _settled(case: Case, best: Rounded, *, model: str, aim: Aim) -> Rounded:
    """The design with its exact sizes, where they were looked for in strides."""
    if not aim.powered:
        return best
    needed = whole_replicas(best.relaxed_replicas)
    if np.all(best.replicas == needed) and aim.kw == 0.0:
        return best
    found = settled(case, best.upper_tokens, needed, best.replicas, aim)
    usd, kilowatts = float(found.usd_per_hour[0]), float(found.kilowatts[0])
    if not found.within(aim)[0] or aim.value(usd, kilowatts) >= aim.value(best.usd_per_hour, best.kilowatts):
        return best
    upper, replicas = best.upper_tokens, found.replicas[0]
    slack = margins(case, upper[None], replicas[None], model=model).excess.max()
    return Rounded(replicas, upper, best.relaxed_replicas, usd, float(slack), kilowatts)


def _single_pools(case: Case) -> np.ndarray:
    """Thresholds that leave all requests to one pool."""
    longest = float(case.longest)
    below = max(float(case.shortest) - 1.0, 1.0)
    pools = case.num_pools
    return np.array([[below if j < k else longest for j in range(pools)] for k in range(pools)])


def _distinct(upper: np.ndarray, most: int) -> np.ndarray:
    kept: list[np.ndarray] = []
    for row in upper:
        if all(np.max(np.abs(np.log(row / other))) > 0.05 for other in kept):
            kept.append(row)
        if len(kept) == most:
            break
    while len(kept) < most:  # a fixed number keeps the compiled shape
        kept.append(kept[-1])
    return np.stack(kept)


def _box(sizes: np.ndarray) -> np.ndarray:
    """Whole sizes of all pools but the last, around the relaxed ones; the last is filled in later (0 here)."""
    leading = np.ceil(sizes[:-1])
    cuts, total = len(leading), _BOX[len(sizes)]
    if cuts == 0:
        return np.zeros((1, 1))
    reach = round(total ** (1.0 / cuts)) // 2
    shifts = np.array(list(product(range(-reach, reach + 1), repeat=cuts)), dtype=float)
    return np.concatenate([np.maximum(leading + shifts, 1.0), np.zeros((len(shifts), 1))], axis=1)


def _slot_edges(case: Case, starts: np.ndarray) -> np.ndarray:
    """Thresholds near the relaxed ones at which a replica of the reference model just keeps a slot.

    Its slots are a whole number that falls as max_context grows, so sizes jump there and the best whole design is
    often the longest threshold before a jump.
    """
    profile, longest = case.profile, float(case.longest)
    budget = np.minimum(
        np.asarray(profile.kv_tokens), np.asarray(profile.max_num_seqs) * np.asarray(profile.calibration_context)
    )
    rows = []
    for row in starts:
        for pool, shift in product(range(case.num_pools - 1), range(-_SLOT_EDGES, _SLOT_EDGES + 1)):
            slots = max(np.floor(budget[pool] / row[pool]) + shift, 1.0)
            moved = np.maximum(np.floor(row), 1.0)
            moved[pool] = min(np.floor(budget[pool] / slots), longest)
            rows.append(np.append(np.maximum.accumulate(moved[:-1]), longest))
    return np.array(rows).reshape(-1, case.num_pools)


def _fill(case: Case, replicas: np.ndarray, *, model: str) -> np.ndarray:
    """Longest thresholds that the leading pools' replicas can serve, in tokens."""
    longest = float(case.longest)
    below = np.floor(max(float(case.shortest) - 1.0, 1.0))
    upper = np.full(replicas.shape, longest)
    floor = np.full(len(replicas), below)
    engines = np.maximum(replicas, 1.0)
    for pool in range(replicas.shape[1] - 1):
        low, high = floor.copy(), np.full(len(replicas), longest)
        for _ in range(_BISECTIONS):
            middle = np.ceil(0.5 * (low + high))
            worst = pool_margins(case, pool, floor, middle, engines[:, pool], model=model).excess.max(axis=1)
            low, high = (
                np.where(worst <= 0, middle, low),
                np.where(worst <= 0, high, np.maximum(middle - 1.0, low)),
            )
        upper[:, pool] = floor = low
    return upper
