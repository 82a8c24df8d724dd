r"""Every fleet on a lattice of thresholds: the cheapest in whole sizes, and a bound that holds between the nodes too.

A pool serves the requests with lower < total <= upper. Between the nodes $g_0 < g_1 < \dots < g_G$ of the lattice
there are few such intervals, so the replicas that each needs on each hardware are computed once, in a batch. What a
fleet costs is a sum over its pools, so the cheapest of all fleets with thresholds on nodes is a shortest path, in whole
replicas, for every choice of hardware.

**Bound.** Thresholds elsewhere lie between nodes: a pool whose thresholds are in the cells $(g_{i-1}, g_i]$ and
$[g_j, g_{j+1})$ serves at least the requests of $(g_i, g_j]$. The path over these inner intervals, each priced at the
fewest whole replicas that it or any wider interval of the lattice needs, costs no more than any fleet, provided that
inside a cell no pool needs fewer replicas than at the cell's corners. Cells hold equal parts of the requests and of
their tokens, so the bound loses about two cells of load for each threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import jax
import numpy as np

from optim.cases import FEW_POOLS, Case, pool_sizes
from optim.lattice_power import Point, Weighted, dual_bound, power_tables, within_budget
from optim.power_terms import Aim
from optim.sizing import Targets, whole_replicas

NODES = {1: 1, 2: 192, 3: 96, 4: 64, 5: 48, 6: 40}
"""Cells of the lattice by the number of pools: middle pools need every pair of nodes."""

_CHEAPEST = Aim()


@dataclass(frozen=True)
class Path:
    """The cheapest fleet on the lattice for one choice of hardware.

    Attributes:
        hardware: index of each pool's profile.
        upper_tokens: thresholds; a pool that ends where it begins is empty.
        used: which pools are not.
        replicas: whole numbers.
        usd_per_hour: in whole replicas.
        value: what is to be least; dollars per hour unless power has a say.
        kilowatts: at the meter, where power counts.
    """

    hardware: tuple[int, ...]
    upper_tokens: np.ndarray
    used: tuple[bool, ...]
    replicas: np.ndarray
    usd_per_hour: float
    value: float
    kilowatts: float = math.nan


@dataclass(frozen=True)
class Lattice:
    """What the lattice says.

    Attributes:
        paths: the best fleet of each choice of hardware, best first, those above the budget on power last; choices
            that differ only in empty pools are one. Empty where no fleet on the lattice is feasible.
        bound: no fleet is below it in what is to be least; inf where none is feasible.
        nodes: number of nodes.
    """

    paths: tuple[Path, ...]
    bound: float
    nodes: int


def nodes_of(case: Case, cells: int) -> np.ndarray:
    """Thresholds of the lattice, whole tokens: below the shortest request, ..., the limit; cells hold equal parts.

    Parts of the mean of the share of requests and the share of their tokens.
    """
    lengths = jax.tree.map(lambda leaf: np.asarray(leaf)[0], case.tables.lengths)
    knots, requests = np.asarray(lengths.knots), np.asarray(lengths.sums)[:, 0]
    longest, below = float(case.longest), max(float(case.shortest) - 1.0, 0.0)
    inside = knots <= longest
    knots, requests = knots[inside], requests[inside]
    tokens = np.concatenate([[0.0], np.cumsum(np.diff(requests) * knots[1:])])
    if len(knots) < 2 or requests[-1] <= requests[0]:
        return np.array([below, longest])
    part = 0.5 * (requests - requests[0]) / (requests[-1] - requests[0]) + 0.5 * tokens / tokens[-1]
    inner = np.floor(np.interp(np.linspace(0.0, 1.0, cells + 1)[1:-1], part, knots))
    inner = np.unique(inner[(inner > below) & (inner < longest)])
    return np.concatenate([[below], inner, [longest]])


def interval_sizes(
    case: Case, nodes: np.ndarray, pairs: np.ndarray, targets: Targets, *, model: str, many: bool = False
) -> np.ndarray:
    """Whole replicas of the intervals between pairs of nodes (rows of two indices); inf where no number is enough.

    `many` is for searches among more than a few pools, where the program pays that runs fast and compiles slowly.
    """
    low, high = nodes[np.asarray(pairs)].T
    aimed = case.with_targets(np.asarray(targets.ttft_s)[None], np.asarray(targets.tpot_s)[None])
    size, feasible = pool_sizes(aimed, 0, low, high, model=model, many=many)
    return np.where(feasible, whole_replicas(size), np.inf)


def lattice(
    hardware: list[Case], targets: list[Targets], *, model: str, cells: int | None = None, aim: Aim = _CHEAPEST
) -> Lattice:
    """The best fleet of each choice of hardware on the lattice, and a bound for all fleets.

    Args:
        hardware: one case a profile, of one pool; equal in everything else.
        targets: of each pool allowed, in order of length.
        model: "step" or "kimura".
        cells: of the lattice; left out, by the number of pools.
        aim: what is to be least, and the budget on power; its laws are along the hardware.
    """
    num_pools = len(targets)
    nodes = nodes_of(hardware[0], NODES[num_pools] if cells is None else cells)
    sizes = _sizes(hardware, targets, nodes, model=model)
    if aim.powered:
        return _powered(hardware, sizes, nodes, aim)
    prices = np.array([float(np.asarray(case.profile.usd_per_hour)[0]) for case in hardware])
    costs = prices[None, :, None, None] * sizes
    costs = np.where(np.isfinite(sizes), costs, np.inf)  # free replicas do not make the impossible possible
    paths = [_path(sizes, costs, choice, nodes) for choice in product(range(len(hardware)), repeat=num_pools)]
    return Lattice(_unlike(paths, aim), _bound(costs), len(nodes))


def _powered(hardware: list[Case], sizes: np.ndarray, nodes: np.ndarray, aim: Aim) -> Lattice:
    """The same where the power of each size counts."""
    tables = power_tables(hardware, aim.power, sizes, nodes)
    known: dict[tuple[float, float], Weighted] = {}

    def weighted(usd: float, kw: float) -> Weighted:
        if (usd, kw) not in known:
            known.clear()  # they are large, and asked for again at once or never
            known[usd, kw] = tables.weighted(usd, kw)
        return known[usd, kw]

    def found(choice: tuple[int, ...], usd: float, kw: float) -> Point[Path]:
        best = weighted(usd, kw)
        path = _path(best.replicas, best.value, choice, nodes)
        used = np.isfinite(path.value)
        kilowatts = float(_along(best.kilowatts, path, nodes).sum()) if used else np.inf
        dollars = float(path.replicas @ tables.usd_per_replica[list(choice)]) if used else np.inf
        path = replace(path, usd_per_hour=dollars, value=float(aim.value(dollars, kilowatts)), kilowatts=kilowatts)
        return Point(path.value, kilowatts, path)

    paths, prices = [], []
    for choice in product(range(len(hardware)), repeat=len(sizes)):
        point, price = within_budget(partial(found, choice), aim)
        paths.append(point.path)
        prices += [price] if 0.0 < price < np.inf else []
    ranked = _unlike(paths, aim)
    if not ranked or ranked[0].kilowatts > aim.max_kw:
        return Lattice(ranked, _bound(weighted(aim.usd, aim.kw).bound), len(nodes))  # between nodes there may be
    first = max([*prices, ranked[0].value / aim.max_kw])
    bound = dual_bound(lambda usd, kw: _bound(weighted(usd, kw).bound), aim, first)
    return Lattice(ranked, bound, len(nodes))


def _along(table: np.ndarray, path: Path, nodes: np.ndarray) -> np.ndarray:
    """A table's entries of the intervals of a path."""
    ends = np.searchsorted(nodes, path.upper_tokens)
    steps = zip(path.hardware, [0, *ends[:-1]], ends, strict=True)
    return np.array([table[pool, p, low, high] for pool, (p, low, high) in enumerate(steps)])


def _sizes(hardware: list[Case], targets: list[Targets], nodes: np.ndarray, *, model: str) -> np.ndarray:
    """Whole replicas, pools x hardware x lower node x upper node; inf where impossible.

    The first pool begins at the first node and the last ends at the last; empty intervals need nothing. Pools with
    equal targets share their sizes.
    """
    count, num_pools = len(nodes), len(targets)
    sizes = np.full((num_pools, len(hardware), count, count), np.inf)
    known: dict[tuple[float, float, int], np.ndarray] = {}
    ascending = np.array([(i, j) for i in range(count) for j in range(i + 1, count)])
    for pool, target in enumerate(targets):
        begins = (ascending[:, 0] == 0) | (pool > 0)
        allowed = ascending[begins & ((ascending[:, 1] == count - 1) | (pool < num_pools - 1))]
        for p, case in enumerate(hardware):
            key = (float(target.ttft_s), float(target.tpot_s), p)
            table = known.setdefault(key, np.full((count, count), np.nan))
            missing = allowed[np.isnan(table[allowed[:, 0], allowed[:, 1]])]
            if len(missing):
                found = interval_sizes(case, nodes, missing, target, model=model, many=num_pools > FEW_POOLS)
                table[missing[:, 0], missing[:, 1]] = found
            sizes[pool, p, allowed[:, 0], allowed[:, 1]] = table[allowed[:, 0], allowed[:, 1]]
    sizes[:, :, np.arange(count), np.arange(count)] = 0.0
    return sizes


def _path(sizes: np.ndarray, costs: np.ndarray, choice: tuple[int, ...], nodes: np.ndarray) -> Path:
    """The shortest path for one choice of hardware."""
    value = np.where(np.arange(len(nodes)) == 0, 0.0, np.inf)
    before = []
    for pool, p in enumerate(choice):
        through = value[:, None] + costs[pool, p]
        before.append(through.argmin(axis=0))
        value = through.min(axis=0)
    at, ends = len(nodes) - 1, []
    for came in reversed(before):
        ends.append(at)
        at = int(came[at])
    ends = ends[::-1]
    steps = zip(choice, [0, *ends[:-1]], ends, strict=True)
    replicas = np.array([sizes[pool, p, low, high] for pool, (p, low, high) in enumerate(steps)])
    return Path(
        choice, nodes[ends], tuple((np.diff([0, *ends]) > 0).tolist()), replicas, float(value[-1]), float(value[-1])
    )


def _unlike(paths: list[Path], aim: Aim) -> tuple[Path, ...]:
    """The feasible ones, best first; of those that differ only in the hardware of empty pools, one."""
    found: dict[tuple[tuple[int, float], ...], Path] = {}
    for path in sorted(paths, key=lambda path: (path.kilowatts > aim.max_kw, path.value)):
        pools = zip(path.hardware, path.upper_tokens.tolist(), path.used, strict=True)
        key = tuple((p, high) for p, high, there in pools if there)
        if np.isfinite(path.usd_per_hour):
            found.setdefault(key, path)
    return tuple(found.values())


def _bound(costs: np.ndarray) -> float:
    """The shortest path through the cells: thresholds in cell c lie above node c - 1 and not above node c.

    One cell more than nodes: the last is the last node itself, where the last pool ends.
    """
    num_pools, _, count, _ = costs.shape
    value = np.where(np.arange(count + 1) == 0, 0.0, np.inf)
    for pool in range(num_pools):
        least = costs[pool].min(axis=0)
        wider = np.minimum.accumulate(np.minimum.accumulate(least, axis=0)[:, ::-1], axis=1)[:, ::-1]
        inner = np.full((count + 1, count + 1), np.inf)
        for low in range(count):
            inner[low, low : low + 2] = 0.0  # nothing need lie between
            inner[low, low + 2 :] = wider[low, low + 1 :]
        inner[count, count] = 0.0
        if pool == num_pools - 1:
            inner[:, :count] = np.inf
        value = (value[:, None] + inner).min(axis=0)
    return float(value[-1])
