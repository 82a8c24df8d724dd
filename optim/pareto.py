"""The cost of a low P99: every threshold as a design of exact size, and which of them nothing beats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxsim._checks import invalid, require_x64
from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from optim.cases import Case, case_metrics, cases, sized_designs, without_empty_pools
from optim.problem import PlanProblem
from optim.sizing import whole_replicas

NUM_THRESHOLDS = 24


@dataclass(frozen=True)
class ParetoPoint:
    """One design of exact size, unverified.

    Attributes:
        design, analytic: pools with requests, and the model's figures.
        threshold: tokens between the two pools; None for a single pool.
        slo_met: by the model's figures (in `kimura` sizing tests the wait alone, so this can be false).
        dominated: another point is no worse in cost and P99 TTFT and better in one.
    """

    design: FleetDesign
    analytic: Metrics
    usd_per_hour: float
    threshold: float | None
    slo_met: bool
    dominated: bool


@dataclass(frozen=True)
class ParetoFront:
    """All points by cost, and the index of the cheapest non-dominated one that meets the SLO (None without one)."""

    points: tuple[ParetoPoint, ...]
    recommended: int | None


def pareto(
    problem: PlanProblem,
    *,
    thresholds: Sequence[float] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ParetoFront:
    """Size one pool, and two pools at every threshold, for each choice of hardware.

    Args:
        problem: `max_pools` above 2 is treated as 2; each pool's max_context is its threshold.
        thresholds: tokens, between the shortest request and `max_context`; left out, the breakpoints of a CDF
            workload or quantiles of the lengths.
        progress: told what is being done.
    """
    require_x64()
    cuts = _thresholds(problem, thresholds)
    longest = problem.context
    found: list[tuple[FleetDesign, Metrics, float, float | None]] = []
    for profiles, case in cases(problem, num_pools=2):
        names = [str(p.name) for p in profiles]
        single = [] if names[0] != names[1] else [np.array([longest, longest])]
        rows = np.stack([*single, *(np.array([cut, longest]) for cut in cuts)])
        progress(f"sizing {len(rows)} designs on {' + '.join(dict.fromkeys(names))}")
        found += _points(profiles, case, rows, problem.model)
    costs = np.array([[usd, float(figures.ttft_p99_s)] for _, figures, usd, _ in found]).reshape(-1, 2)
    order = np.lexsort((costs[:, 1], costs[:, 0]))
    dominated = _dominated(costs)
    points = tuple(
        ParetoPoint(
            found[i][0], found[i][1], found[i][2], found[i][3], _meets(found[i][1], problem), bool(dominated[i])
        )
        for i in order
    )
    good = [i for i, point in enumerate(points) if point.slo_met and not point.dominated]
    return ParetoFront(points, good[0] if good else None)


def _points(
    profiles: tuple[Profile, ...], case: Case, upper: np.ndarray, model: str
) -> list[tuple[FleetDesign, Metrics, float, float | None]]:
    sized = sized_designs(case, upper, model=model)
    replicas, feasible = whole_replicas(sized.replicas), sized.feasible
    prices = replicas @ np.asarray(case.profile.usd_per_hour)
    rows = []
    for i in np.flatnonzero(feasible):
        one = case_metrics(case, jnp.asarray(replicas[i]), jnp.asarray(upper[i]), model=model)
        design, figures, _ = without_empty_pools(profiles, replicas[i], upper[i], one)
        rows.append((design, figures, float(prices[i]), None if design.num_pools == 1 else float(upper[i][0])))
    return rows


def _thresholds(problem: PlanProblem, given: Sequence[float] | None) -> np.ndarray:
    totals = np.asarray(problem.limited.total_tokens)
    if given is not None:
        cuts = np.unique(np.asarray(given, dtype=np.float64))
        wrong = cuts[~((cuts >= 1) & (cuts < problem.context) & (cuts == np.floor(cuts)))]
        if wrong.size:
            raise invalid("threshold", float(wrong[0]), f"whole tokens from 1 to below max_context {problem.context:g}")
        return cuts
    if problem.workload.breakpoints:
        return np.array([b for b in problem.workload.breakpoints if totals[0] <= b < min(problem.context, totals[-1])])
    share = np.cumsum(problem.limited.weight)
    levels = np.linspace(0.02, 0.998, NUM_THRESHOLDS)
    cuts = totals[np.minimum(np.searchsorted(share, levels), len(totals) - 1)]
    return np.unique(cuts[cuts < problem.context])


def _dominated(costs: np.ndarray) -> np.ndarray:
    """Weakly dominated points: another is no worse in both and better in one; of equals the first is kept."""
    no_worse = np.all(costs[None, :, :] <= costs[:, None, :], axis=2)
    better = np.any(costs[None, :, :] < costs[:, None, :], axis=2)
    equal_before = no_worse & ~better & (np.arange(len(costs))[None, :] < np.arange(len(costs))[:, None])
    return np.any((no_worse & better) | equal_before, axis=1)


def _meets(figures: Metrics, problem: PlanProblem) -> bool:
    slo = problem.slo
    tpot = np.inf if slo.tpot_p99_s is None else slo.tpot_p99_s
    pools = figures.pools
    return bool(np.all(pools.ttft_p99_s <= slo.ttft_p99_s) and np.all(pools.tpot_p99_s <= tpot))
