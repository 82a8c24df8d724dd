"""A day, or its hardest stretch, played in the simulator: the P99s of each interval against the objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from jaxtyping import Int

import des
from des import Estimate, Sample
from des.ledger import Columns, Ledger
from des.simulate import MAX_REQUESTS
from des.stats import NUM_BATCHES
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload
from optim.demand import RateProfile
from optim.problem import SLO
from optim.staffing import Staffing

QUANTILE = 0.99
MOST_REQUESTS = 8_000_000
"""Requests of all replications of one play; a day with more is played in part."""
MOST_REPLICATIONS = 8
FEW_IN_A_BATCH = 500
"""Requests below which a batch of an interval has no P99 worth having."""
LEAST_LEAD_S, RESIDENCES = 60.0, 20.0
"""Lead of a play: a minute and this many mean stays of a request."""


class Verdict(Enum):
    """What the simulator says of an interval. The values are the sentences."""

    MET = "the P99s are below the objectives, intervals and all"
    COIN_FLIP = "an objective lies within the interval of a P99"
    MISSED = "a P99 is above its objective, interval and all"
    EMPTY = "nothing arrived"


@dataclass(frozen=True)
class Window:
    """What of a day is played: whole intervals, or the first part of one.

    Attributes:
        intervals: their numbers, in order; of a day that repeats they may go on past its end.
        first_s, last_s: of the measured time; `last_s` may be beyond the end of the day.
        lead_s: played before and after and not measured, so that the fleet is neither empty nor emptying.
    """

    intervals: tuple[int, ...]
    first_s: float
    last_s: float
    lead_s: float

    def whole_day(self, demand: RateProfile) -> bool:
        """Whether nothing is left out."""
        return self.last_s - self.first_s >= demand.end_s * (1.0 - 1e-9)


@dataclass(frozen=True)
class PoolFigures:
    """P99s of the requests that a pool got in an interval, seconds; None where there were none."""

    ttft_p99_s: Estimate | None
    tpot_p99_s: Estimate | None


@dataclass(frozen=True)
class IntervalFigures:
    """What the simulator found of the requests that arrived in one interval, all replications together.

    Attributes:
        interval: its number.
        requests: served, of all pools.
        fleet: of all pools together.
        pools: of each.
        verdict: the worst of all of them.
        short: pools that miss an objective; where the fleet does and no pool does, the one nearest to missing.
    """

    interval: int
    requests: int
    fleet: PoolFigures
    pools: tuple[PoolFigures, ...]
    verdict: Verdict
    short: tuple[int, ...]


@dataclass(frozen=True)
class Played:
    """A staffing in the simulator.

    Attributes:
        intervals: those of the window.
        replications: plays of the same stretch, with arrivals of their own.
        requests: served, of those that arrived in the measured time.
        rejected_share: of all that arrived, the lead included; for their length.
    """

    intervals: tuple[IntervalFigures, ...]
    replications: int
    requests: int
    rejected_share: float

    def of(self, *verdicts: Verdict) -> tuple[int, ...]:
        """Numbers of the intervals with these verdicts."""
        return tuple(found.interval for found in self.intervals if found.verdict in verdicts)


def hardest_stretch(
    demand: RateProfile,
    needed: Int[np.ndarray, "intervals pools"],
    *,
    lead_s: float,
    most_requests: float = MOST_REQUESTS,
    most_s: float | None = None,
) -> Window:
    """The whole day where its requests are few enough; else consecutive intervals around its peak.

    Of the stretches within both limits that hold the highest rate, the one in which the most replicas come up, and of
    equals the one with the most requests.

    Args:
        demand: of the day.
        needed: replicas of each interval and pool.
        lead_s: see `Window`.
        most_requests: in one replication.
        most_s: longest stretch, seconds; None for no limit but the day.
    """
    length, count = demand.lengths_s, demand.num_intervals
    limit_s = demand.end_s if most_s is None else min(most_s, demand.end_s)
    whole = tuple(range(count))
    if demand.requests <= most_requests and limit_s >= demand.end_s:
        return Window(whole, 0.0, demand.end_s, lead_s)
    peak = int(demand.rates.argmax())
    rises = np.maximum(np.asarray(needed) - np.roll(np.asarray(needed), 1, axis=0), 0).sum(axis=1)
    if not demand.repeat:
        rises[0] = 0
    best: tuple[tuple[float, float], tuple[int, ...]] | None = None
    for first in range(count):
        taken: list[int] = []
        seconds = requests = 0.0
        for at in range(first, first + count):
            k = at % count
            seconds, requests = seconds + length[k], requests + length[k] * demand.rate[k]
            over = requests > most_requests or seconds > limit_s * (1.0 + 1e-9)
            if over or (at >= count and not demand.repeat):
                break
            taken.append(k)
        if peak in taken:
            worth = (float(rises[taken[1:]].sum()), float((length[taken] * demand.rates[taken]).sum()))
            if best is None or worth > best[0]:
                best = worth, tuple(taken)
    first_s = float(demand.edges_s[peak if best is None else best[1][0]])
    if best is None:  # the peak alone is too much
        seconds = min(limit_s, most_requests / demand.rate[peak], float(length[peak]))
        return Window((peak,), first_s, first_s + seconds, lead_s)
    return Window(best[1], first_s, first_s + float(length[list(best[1])].sum()), lead_s)


def schedule_rows(staffing: Staffing, first_s: float, last_s: float) -> des.Schedule:
    """The replicas of a staffing from `first_s` to `last_s`, on a clock that starts at `first_s`.

    Outside a day that does not repeat, those of its first and last instant. Replicas are ordered a cold start before
    (`Staffing`), so each takes requests from its row on.
    """
    end = staffing.end_s
    edges = staffing.stretches().edges_s
    days = (-end, 0.0, end) if staffing.repeat else (0.0,)
    edges = np.unique(np.concatenate([edges + day for day in days]))
    edges = np.array([first_s, *edges[(edges > first_s) & (edges < last_s)], last_s])
    middles = 0.5 * (edges[1:] + edges[:-1])
    inside = np.mod(middles, end) if staffing.repeat else np.clip(middles, 0.0, np.nextafter(end, 0.0))
    counts = staffing.running(inside)
    rows: list[tuple[float, int, int]] = []
    for k, row in enumerate(counts.tolist()):
        for pool, replicas in enumerate(row):
            if k == 0 or replicas != counts[k - 1, pool]:
                rows.append((float(edges[k] - first_s), pool, replicas))
    return des.Schedule(time_s=[r[0] for r in rows], pool=[r[1] for r in rows], replicas=[r[2] for r in rows])


def play_staffing(
    staffing: Staffing,
    demand: RateProfile,
    window: Window,
    design: FleetDesign,
    workload: Workload,
    slo: SLO,
    *,
    model: str = "step",
    seed: int = 0,
) -> Played:
    """Simulate a staffing under a demand, and judge each interval of the window.

    Arrivals are Poisson at each interval's rate. Two staffings with one seed and demand see the same arrivals and
    lengths.

    Args:
        staffing: of the design's pools.
        demand: of the day.
        window: what is played.
        design: hardware and thresholds; its own replicas do not matter.
        workload: joint lengths.
        slo: objectives.
        model: convention of the simulator, "step" or "kimura".
        seed: of the simulator.
    """
    lead = window.lead_s
    first_s, last_s = window.first_s - lead, window.last_s + lead
    arrivals = demand.stretch(first_s, last_s)
    expected = arrivals.expected_requests(None, workload)
    count = int(np.clip(MOST_REQUESTS / expected, 1, MOST_REPLICATIONS))
    result = des.simulate(
        FleetDesign(design.profile, np.array(staffing.most, dtype=float), design.upper_tokens, design.max_context),
        workload,
        arrivals=arrivals,
        schedule=schedule_rows(staffing, first_s, last_s),
        convention=model,
        warmup_fraction=0.0,
        replications=count,
        num_requests=min(count * (int(expected + 10.0 * np.sqrt(expected)) + 1), count * MAX_REQUESTS),
        seed=seed,
    )
    columns = [run.kept.columns for run in result.replications if isinstance(run.kept, Ledger)]
    length_s = demand.lengths_s[list(window.intervals)]
    edges = lead + np.append(0.0, np.cumsum(length_s))
    edges[-1] = lead + window.last_s - window.first_s
    made = []
    for at, interval in enumerate(window.intervals):
        taken = [_sent(of, *edges[at : at + 2].tolist()) for of in columns]
        pools = tuple(_figures(taken, p) for p in range(design.num_pools))
        requests = sum(len(of.pool) for of in taken)
        made.append(judged(interval, requests, _figures(taken, None), pools, slo))
    served = sum(found.requests for found in made)
    return Played(tuple(made), count, served, result.rejected / max(result.requests, 1))


def _sent(columns: Columns, first_s: float, last_s: float) -> Columns:
    """The requests that arrived from one instant to another, of requests in order."""
    first, last = np.searchsorted(columns.sent_s, [first_s, last_s]).tolist()
    return Columns(*(column[first:last] for column in columns))


def _figures(taken: Sequence[Columns], pool: int | None) -> PoolFigures:
    mine = [np.ones(len(of.pool), dtype=bool) if pool is None else of.pool == pool for of in taken]
    return PoolFigures(
        _p99([of.ttft_s[kept] for of, kept in zip(taken, mine, strict=True)]),
        _p99([of.tpot_s[kept & ~np.isnan(of.tpot_s)] for of, kept in zip(taken, mine, strict=True)]),
    )


def _p99(runs: Sequence[np.ndarray]) -> Estimate | None:
    """Over all replications; the interval from consecutive batches of each, as many as leave each a P99."""
    number = sum(len(values) for values in runs)
    if number == 0:
        return None
    batches = int(np.clip(number // (FEW_IN_A_BATCH * len(runs)), 1, max(NUM_BATCHES // len(runs), 1)))
    groups = [batch for values in runs for batch in np.array_split(values, batches)]
    if len(groups) == 1:
        groups.append(np.empty(0))  # too few for an interval; a lone group would be cut into batches
    return Sample(tuple(groups)).quantile(QUANTILE)


def judged(
    interval: int, requests: int, fleet: PoolFigures, pools: tuple[PoolFigures, ...], slo: SLO
) -> IntervalFigures:
    """Hold an interval's figures against the objectives: those of the fleet, and those of every pool."""
    if requests == 0:
        return IntervalFigures(interval, 0, fleet, pools, Verdict.EMPTY, ())
    each = [_verdict(figures, slo) for figures in pools]
    worst = [Verdict.MET, Verdict.COIN_FLIP, Verdict.MISSED]
    verdict = max([_verdict(fleet, slo), *each], key=worst.index)
    short = tuple(p for p, one in enumerate(each) if one is Verdict.MISSED)
    if verdict is Verdict.MISSED and not short:
        short = (int(np.argmax([_nearness(figures, slo) for figures in pools])),)
    return IntervalFigures(interval, requests, fleet, pools, verdict, short)


def _against(figures: PoolFigures, slo: SLO) -> list[tuple[Estimate, float]]:
    """Each P99 that has an objective, and the objective."""
    both = ((figures.ttft_p99_s, slo.ttft_p99_s), (figures.tpot_p99_s, slo.tpot_p99_s))
    return [(found, limit) for found, limit in both if found is not None and limit is not None]


def _verdict(figures: PoolFigures, slo: SLO) -> Verdict:
    held = _against(figures, slo)
    if any(found.low > limit for found, limit in held):
        return Verdict.MISSED
    return Verdict.MET if all(found.high <= limit for found, limit in held) else Verdict.COIN_FLIP


def _nearness(figures: PoolFigures, slo: SLO) -> float:
    return max((found.value / limit for found, limit in _against(figures, slo)), default=0.0)
