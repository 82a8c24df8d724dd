r"""When each replica is ordered, takes requests and goes: a staffing that covers a need that is constant on intervals.

Replica n of a pool is needed while the pool needs n or more. It is ordered a cold start before, kept for a hold after,
and not let go where it would have to be ordered again at once: between two needs a gap of :math:`g` costs
:math:`\min(g, hold + cold start)`, so a gap of at most that is bridged. The times of replica n + 1 lie within those of
replica n, so the number that run at a time says which do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsim._checks import require, require_non_negative


class Run(NamedTuple):
    """A replica from its order to its release, seconds of the day.

    Where the day repeats, `order_s` may be below 0 (the day before) and `release_s` above the end (the day after); one
    that is never let go is ordered and ready at 0 and released at the end.
    """

    order_s: float
    ready_s: float
    release_s: float

    @property
    def billed_s(self) -> float:
        """From order to release."""
        return self.release_s - self.order_s


class Stretches(NamedTuple):
    """Replicas of each pool on consecutive stretches of time on which nothing changes.

    Attributes:
        edges_s: of the stretches, seconds; before 0 only what a day that does not repeat orders before it begins.
        running: replicas that take requests.
        starting: replicas that are ordered and do not yet.
    """

    edges_s: Float[np.ndarray, " edges"]
    running: Int[np.ndarray, "stretches pools"]
    starting: Int[np.ndarray, "stretches pools"]

    @property
    def lengths_s(self) -> Float[np.ndarray, " stretches"]:
        """Of each."""
        return np.diff(self.edges_s)

    @property
    def middles_s(self) -> Float[np.ndarray, " stretches"]:
        """Of each."""
        return 0.5 * (self.edges_s[1:] + self.edges_s[:-1])


@dataclass(frozen=True)
class Staffing:
    """Replicas of each pool over a day.

    Attributes:
        pools: of each pool, the runs of its first replica, its second, ... until the most it ever has.
        end_s: length of the day.
        repeat: whether the same day follows.
        lead_s: before the day begins, paid for where it does not repeat: the cold start.
    """

    pools: tuple[tuple[tuple[Run, ...], ...], ...]
    end_s: float
    repeat: bool
    lead_s: float

    @property
    def most(self) -> tuple[int, ...]:
        """The most replicas that each pool has at a time."""
        return tuple(len(levels) for levels in self.pools)

    @property
    def paid_s(self) -> float:
        """The time that a replica which is always there is paid for."""
        return self.end_s if self.repeat else self.end_s + self.lead_s

    def billed_s(self, pool: int) -> Float[np.ndarray, " levels"]:
        """Seconds of a day that each replica of a pool is paid for, the busiest first; cold starts included."""
        return np.array([sum(run.billed_s for run in runs) for runs in self.pools[pool]])

    @property
    def starts(self) -> tuple[int, ...]:
        """Cold starts of each pool in a day."""
        return tuple(sum(run.ready_s > run.order_s for runs in levels for run in runs) for levels in self.pools)

    @property
    def starting_s(self) -> tuple[float, ...]:
        """Replica-seconds of each pool from orders to first requests."""
        return tuple(sum(run.ready_s - run.order_s for runs in levels for run in runs) for levels in self.pools)

    def stretches(self, further_s: Sequence[float] = ()) -> Stretches:
        """The day cut where anything changes, and at `further_s`."""
        runs = [run for levels in self.pools for runs in levels for run in runs]
        instants = np.array([instant for run in runs for instant in run] or [0.0])
        first = 0.0 if self.repeat else min(0.0, float(instants.min()))
        if self.repeat:
            instants = np.mod(instants, self.end_s)
        edges = np.unique(np.concatenate([[first, 0.0, self.end_s], instants, np.asarray(further_s, dtype=float)]))
        edges = _apart(edges[(edges >= first) & (edges <= self.end_s)], self.end_s)
        middles = 0.5 * (edges[1:] + edges[:-1])
        starting = self._count(middles, "order_s", "ready_s")
        return Stretches(edges, self._count(middles, "ready_s", "release_s"), starting)

    def running(self, time_s: Float[np.ndarray, " times"]) -> Int[np.ndarray, "times pools"]:
        """Replicas of each pool that take requests at instants of the day."""
        return self._count(np.asarray(time_s, dtype=float), "ready_s", "release_s")

    def _count(self, time_s: Float[np.ndarray, " times"], since: str, until: str) -> Int[np.ndarray, "times pools"]:
        days = (-self.end_s, 0.0, self.end_s) if self.repeat else (0.0,)
        found = np.zeros((len(time_s), len(self.pools)), dtype=np.int64)
        for pool, levels in enumerate(self.pools):
            for run in (run for runs in levels for run in runs):
                for day in days:
                    found[:, pool] += (time_s >= getattr(run, since) + day) & (time_s < getattr(run, until) + day)
        return found


def _apart(edges: Float[np.ndarray, " edges"], end_s: float) -> Float[np.ndarray, " kept"]:
    """Without those that rounding alone tells from the one before."""
    return edges[np.append(True, np.diff(edges) > 1e-9 * end_s)]


def staffing(
    needed: Int[np.ndarray, "intervals pools"],
    edges_s: Float[np.ndarray, " edges"],
    *,
    cold_start_s: float,
    hold_s: float = 0.0,
    repeat: bool,
) -> Staffing:
    """The least staffing that has what is needed at every instant.

    Args:
        needed: replicas in each interval and pool, >= 0.
        edges_s: of the intervals, ascending from 0.
        cold_start_s: from the order of a replica to the first request it takes, seconds, >= 0.
        hold_s: for which a replica that is not needed any more still takes requests, seconds, >= 0.
        repeat: whether the same day follows.

    Raises:
        ValueError: an argument out of its domain.
    """
    require_non_negative("needed", needed)
    require_non_negative("cold_start_s", cold_start_s)
    require_non_negative("hold_s", hold_s)
    require(len(edges_s) == len(needed) + 1, "the number of edges_s", len(edges_s), f"{len(needed) + 1}")
    end_s = float(edges_s[-1])
    pools = tuple(
        tuple(_of_level(column >= level, edges_s, cold_start_s, hold_s, repeat) for level in range(1, column.max() + 1))
        for column in np.asarray(needed).T
    )
    return Staffing(pools, end_s, repeat, cold_start_s)


def always(replicas: Sequence[int], end_s: float, *, cold_start_s: float, repeat: bool) -> Staffing:
    """The same replicas of each pool all day: a static fleet."""
    needed, edges_s = np.array([replicas], dtype=np.int64), np.array([0.0, end_s])
    return staffing(needed, edges_s, cold_start_s=cold_start_s, repeat=repeat)


def _of_level(
    on: Bool[np.ndarray, " intervals"], edges_s: Float[np.ndarray, " edges"], cold: float, hold: float, repeat: bool
) -> tuple[Run, ...]:
    """The runs of one replica that is needed where `on`."""
    end = float(edges_s[-1])
    if repeat and on.all():
        return (Run(0.0, 0.0, end),)
    kept: list[list[float]] = []
    for since, until in _needs(on, edges_s, repeat):
        released = until + hold if repeat else min(until + hold, end)
        if kept and since - cold <= kept[-1][1]:
            kept[-1][1] = max(kept[-1][1], released)
        else:
            kept.append([since, released])
    if repeat and kept[0][0] + end - cold <= kept[-1][1]:  # the last run reaches the first one of the next day
        if len(kept) == 1:
            return (Run(0.0, 0.0, end),)
        last = kept.pop()
        kept[0][0] = last[0] - end
    return tuple(Run(since - cold, since, released) for since, released in kept)


def _needs(
    on: Bool[np.ndarray, " intervals"], edges_s: Float[np.ndarray, " edges"], repeat: bool
) -> list[tuple[float, float]]:
    """Stretches of consecutive intervals that are on; of a day that repeats, one across midnight ends after it."""
    before = np.append(on[-1] if repeat else False, on[:-1])
    after = np.append(on[1:], on[0] if repeat else False)
    starts, ends = edges_s[:-1][on & ~before].tolist(), edges_s[1:][on & ~after].tolist()
    if repeat and ends[0] <= starts[0]:
        ends = [*ends[1:], ends[0] + float(edges_s[-1])]
    return list(zip(starts, ends, strict=True))


class Reserved(NamedTuple):
    """Replicas of one pool that are reserved, and what the pool costs with every number of them.

    Attributes:
        replicas: the least-cost number; of equals, the smallest.
        usd: for a day, with 0, 1, 2, ... reserved.
    """

    replicas: int
    usd: Float[np.ndarray, " numbers"]


def reserve(
    billed_s: Float[np.ndarray, " levels"], paid_s: float, *, reserved_usd_per_s: float, on_demand_usd_per_s: float
) -> Reserved:
    r"""How many replicas to reserve, exactly: every number is priced.

    :math:`C(r) = p_r T r + p_d \sum_{n > r} u_n` with :math:`u_n` the time that replica n is paid for on demand. A
    replica is worth its reservation where it is there for more than :math:`p_r / p_d` of the time (the critical ratio
    of the newsvendor).

    Args:
        billed_s: seconds of a day that each replica would be paid for on demand, the busiest first.
        paid_s: seconds of a day that a reserved replica is paid for.
        reserved_usd_per_s, on_demand_usd_per_s: prices of one replica, > 0.
    """
    rest = np.append(np.cumsum(billed_s[::-1])[::-1], 0.0)
    usd = reserved_usd_per_s * paid_s * np.arange(len(rest)) + on_demand_usd_per_s * rest
    return Reserved(int(np.argmin(usd)), usd)
