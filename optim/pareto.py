"""The cost of a low P99, and its power: every threshold as a design of exact size, and which of them nothing beats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import jax.numpy as jnp
import numpy as np

from des.execution import HERE, Execution
from jaxsim._checks import invalid, require_x64, unknown
from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.units import MS_PER_S, SECONDS_PER_HOUR, TOKENS_PER_MILLION
from optim.cases import Case, case_metrics, choice_of, sized_designs, without_empty_pools
from optim.power_terms import Aim
from optim.priced import priced
from optim.problem import PlanProblem
from optim.sizing import whole_replicas
from optim.workers import Programs, require_cpu_workers

NUM_THRESHOLDS = 24

AXES = {
    "cost": "cost, $ per hour",
    "ttft": "P99 TTFT by the model, ms",
    "tpot": "P99 TPOT by the model, ms",
    "energy": "mean power at the meter by the model, kW",
}
"""What designs may be compared in, all the less the better. Energy is kW: all serve the same tokens."""


@dataclass(frozen=True)
class ParetoPoint:
    """One design of exact size, unverified.

    Attributes:
        design, analytic: pools with requests, and the model's figures.
        threshold: tokens between the two pools; None for a single pool.
        slo_met: by the model's figures (in `kimura` sizing tests the wait alone, so this can be false).
        dominated: another point is no worse in every axis and better in one.
        kilowatts, kwh_per_million_tokens: at the meter, of output tokens; None where the problem says nothing of power.
        within_budget: on power; true without one.
    """

    design: FleetDesign
    analytic: Metrics
    usd_per_hour: float
    threshold: float | None
    slo_met: bool
    dominated: bool
    kilowatts: float | None = None
    kwh_per_million_tokens: float | None = None
    within_budget: bool = True

    def along(self, axis: str) -> float:
        """Its place on one of `AXES`; milliseconds for times."""
        if axis == "cost":
            return self.usd_per_hour
        if axis == "energy":
            return np.inf if self.kilowatts is None else self.kilowatts
        seconds = self.analytic.ttft_p99_s if axis == "ttft" else self.analytic.tpot_p99_s
        return float(seconds) * MS_PER_S


@dataclass(frozen=True)
class ParetoFront:
    """All points by cost.

    Attributes:
        points: all.
        recommended: index of the non-dominated one that is least in what is to be least, by default the cheapest, of
            those that meet the SLO and a budget on power; None without one.
        axes: that domination is in.
    """

    points: tuple[ParetoPoint, ...]
    recommended: int | None
    axes: tuple[str, ...] = ("cost", "ttft")


def pareto(
    problem: PlanProblem,
    *,
    thresholds: Sequence[float] | None = None,
    axes: Sequence[str] | None = None,
    execution: Execution = HERE,
    progress: Callable[[str], None] = lambda _: None,
) -> ParetoFront:
    """Size one pool, and two pools at every threshold, for each choice of hardware.

    Sizes are the fewest replicas that meet the objectives; where the problem has power and more of them draw less, the
    sizes of least power are further points.

    Args:
        problem: `max_pools` above 2 is treated as 2; each pool's max_context is its threshold.
        thresholds: tokens, between the shortest request and `max_context`; left out, the breakpoints of a CDF
            workload or quantiles of the lengths.
        axes: two or more of `AXES`; left out, cost and P99 TTFT, and energy where the problem has power.
        execution: who sizes each choice of hardware; left out, this process. Its folder is not used.
        progress: told what is being done.
    """
    require_x64()
    compared = _axes(problem, axes)
    cuts = _thresholds(problem, thresholds)
    require_cpu_workers(execution)
    pairs = list(product(range(len(problem.profiles)), repeat=2))
    sized: list[list[ParetoPoint]] = [[] for _ in pairs]
    progress(f"sizing {len(cuts)} thresholds on {len(pairs)} choices of hardware")
    for done, (place, points) in enumerate(execution.map(_Sizing(problem, cuts, Programs.here()), pairs), start=1):
        sized[place] = points
        progress(f"sized {len(cuts)} thresholds on {done} of {len(pairs)} choices of hardware")
    found = [point for points in sized for point in points]
    costs = np.array([[point.along(axis) for axis in compared] for point in found]).reshape(-1, len(compared))
    first = np.array([[point.along("ttft"), point.usd_per_hour] for point in found]).reshape(-1, 2)
    order = np.lexsort((first[:, 0], first[:, 1]))
    dominated = _dominated(costs)
    ordered = tuple(replace(found[i], dominated=bool(dominated[i])) for i in order)
    good = [i for i, point in enumerate(ordered) if point.slo_met and point.within_budget and not point.dominated]
    least = min(good, key=lambda i: (_value(problem, ordered[i]), i), default=None)
    return ParetoFront(ordered, least, compared)


@dataclass(frozen=True)
class _Sizing:
    """All designs of two profiles, by their places: one pool where these are equal, and two at each cut."""

    problem: PlanProblem
    cuts: np.ndarray
    programs: Programs

    def __call__(self, places: tuple[int, int]) -> list[ParetoPoint]:
        self.programs.share()
        longest = self.problem.context
        profiles, case = choice_of(self.problem, tuple(self.problem.profiles[i] for i in places))
        single = [np.array([longest, longest])] if str(profiles[0].name) == str(profiles[1].name) else []
        rows = [*single, *(np.array([cut, longest]) for cut in self.cuts)]
        return _points(self.problem, profiles, case, np.stack(rows)) if rows else []


def _axes(problem: PlanProblem, given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ("cost", "ttft") if problem.power is None else ("cost", "ttft", "energy")
    for axis in given:
        if axis not in AXES:
            raise unknown("axis", axis, AXES)
    if len(set(given)) != len(given) or len(given) < 2:
        raise invalid("axes", list(given), "two or more different ones", f"of {', '.join(AXES)}")
    if "energy" in given and problem.power is None:
        raise invalid("axes", list(given), "without energy", "power is not known: give power terms, in a file [power]")
    return tuple(given)


def _value(problem: PlanProblem, point: ParetoPoint) -> float:
    return float(problem.aim.value(point.usd_per_hour, point.kilowatts))


def _points(problem: PlanProblem, profiles: tuple[Profile, ...], case: Case, upper: np.ndarray) -> list[ParetoPoint]:
    sized = sized_designs(case, upper, model=problem.model)
    replicas, feasible = whole_replicas(sized.replicas), sized.feasible
    if problem.power is None:
        return [_point(problem, profiles, case, upper[i], replicas[i], None) for i in np.flatnonzero(feasible)]
    power = problem.power.at_meter(profiles)
    aims = Aim(power=power), Aim(usd=0.0, kw=1.0, power=power)
    cheap, thrifty = (priced(case, upper, replicas, feasible, aim) for aim in aims)
    rows = [(i, cheap) for i in np.flatnonzero(feasible)]
    rows += [(i, thrifty) for i in np.flatnonzero(feasible & np.any(thrifty.replicas > cheap.replicas, axis=1))]
    return [_point(problem, profiles, case, upper[i], by.replicas[i], float(by.kilowatts[i])) for i, by in rows]


def _point(
    problem: PlanProblem,
    profiles: tuple[Profile, ...],
    case: Case,
    upper: np.ndarray,
    replicas: np.ndarray,
    kilowatts: float | None,
) -> ParetoPoint:
    one = case_metrics(case, jnp.asarray(replicas), jnp.asarray(upper), model=problem.model)
    design, figures, _ = without_empty_pools(profiles, replicas, upper, one)
    millions = problem.output_tokens_per_s * SECONDS_PER_HOUR / TOKENS_PER_MILLION
    return ParetoPoint(
        design=design,
        analytic=figures,
        usd_per_hour=float(replicas @ np.asarray(case.profile.usd_per_hour)),
        threshold=None if design.num_pools == 1 else float(upper[0]),
        slo_met=_meets(figures, problem),
        dominated=False,
        kilowatts=kilowatts,
        kwh_per_million_tokens=None if kilowatts is None else kilowatts / millions,
        within_budget=kilowatts is None or kilowatts <= problem.aim.max_kw,
    )


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
    """Weakly dominated points: another is no worse in any and better in one; of equals the first is kept."""
    no_worse = np.all(costs[None, :, :] <= costs[:, None, :], axis=2)
    better = np.any(costs[None, :, :] < costs[:, None, :], axis=2)
    equal_before = no_worse & ~better & (np.arange(len(costs))[None, :] < np.arange(len(costs))[:, None])
    return np.any((no_worse & better) | equal_before, axis=1)


def _meets(figures: Metrics, problem: PlanProblem) -> bool:
    slo = problem.slo
    tpot = np.inf if slo.tpot_p99_s is None else slo.tpot_p99_s
    pools = figures.pools
    return bool(np.all(pools.ttft_p99_s <= slo.ttft_p99_s) and np.all(pools.tpot_p99_s <= tpot))
