"""Replicas that come and go, or run fewer requests for a while: failures, schedules with a cold start, caps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from des import _state
from jaxsim._checks import invalid, require, require_non_negative, require_positive, unknown

REPAIRS = ("exponential", "fixed")


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Replicas that fail, each by itself, and come back.

    What runs or waits on a replica that fails is tried again elsewhere from the start. Failures stop with the last
    arrival, and every replica is repaired.

    Attributes:
        mean_up_s: mean time from repair to failure, seconds; exponential.
        mean_repair_s: mean time from failure to repair, seconds, until the replica takes requests again.
        repair: ``"exponential"`` or ``"fixed"``.
    """

    mean_up_s: float
    mean_repair_s: float
    repair: str = "exponential"

    def __post_init__(self) -> None:
        require_positive("mean_up_s", self.mean_up_s)
        require_non_negative("mean_repair_s", self.mean_repair_s)
        if self.repair not in REPAIRS:
            raise unknown("repair", self.repair, REPAIRS)

    @property
    def availability(self) -> float:
        """Share of the time that a replica is up."""
        return self.mean_up_s / (self.mean_up_s + self.mean_repair_s)

    def timeline(self, num_replicas: int, end_s: float, generator: np.random.Generator) -> np.ndarray:
        """Changes from 0 to `end_s`, and the repairs of what is down then; each replica has a generator of its own."""
        rows = [
            row
            for replica, own in enumerate(generator.spawn(num_replicas))
            for row in self._of_one(replica, end_s, own)
        ]
        return in_order(rows)

    def _of_one(self, replica: int, end_s: float, generator: np.random.Generator) -> list[tuple[float, int, int]]:
        rows = []
        now = generator.exponential(self.mean_up_s)
        while now < end_s:
            rows.append((now, replica, _state.DOWN))
            now += self.mean_repair_s * (generator.exponential() if self.repair == "exponential" else 1.0)
            rows.append((now, replica, _state.UP))
            now += generator.exponential(self.mean_up_s)
        return rows


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Numbers of replicas over time.

    A pool's design has the most it may come to. Replicas that a row adds take requests after `startup_s`; those that it
    takes away finish what they have. Of a pool without a row at time 0 all replicas are there from the start.

    Attributes:
        time_s: instants of the rows, >= 0, ascending.
        pool: pool of each row.
        replicas: its replicas from then on.
        startup_s: from the instant to the first request that a new replica takes, seconds.
    """

    time_s: Sequence[float]
    pool: Sequence[int]
    replicas: Sequence[int]
    startup_s: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.time_s) == len(self.pool) == len(self.replicas):
            sizes = f"{len(self.time_s)}, {len(self.pool)}, {len(self.replicas)}"
            raise ValueError(f"time_s, pool and replicas of a schedule must have one entry per row, got {sizes}")
        require_non_negative("schedule time_s", np.asarray(self.time_s, dtype=float))
        require(np.all(np.diff(self.time_s) >= 0), "schedule time_s", list(self.time_s), "ascending")
        require_non_negative("startup_s", self.startup_s)

    def timeline(self, replicas: np.ndarray) -> np.ndarray:
        """Changes of a fleet with `replicas` in each pool at most."""
        first = np.cumsum(replicas) - replicas
        at = np.array(replicas)
        rows: list[tuple[float, int, int]] = []
        for time, pool, target in zip(self.time_s, self.pool, self.replicas, strict=True):
            require(0 <= pool < len(replicas), "schedule pool", pool, f"from 0 to {len(replicas) - 1}")
            if not 0 <= target <= replicas[pool]:
                raise invalid(
                    "schedule replicas",
                    target,
                    f"from 0 to {replicas[pool]}, the replicas of pool {pool}",
                    "give the design the most that the schedule asks for",
                )
            for r in range(at[pool], target):
                rows.append((time + self.startup_s, int(first[pool] + r), _state.UP))
            for r in range(target, at[pool]):
                rows.append((time, int(first[pool] + r), _state.DRAIN))
            at[pool] = target
        return in_order(rows)


@dataclass(frozen=True, kw_only=True)
class Caps:
    """Running requests that each replica of a pool may have, over time; before a pool's first row, the profile's.

    Under a new cap those that run, or were let in at the end of the step in progress, go on to their end; those that
    wait join as soon as there is room.

    Attributes:
        time_s: instants of the rows, >= 0, ascending.
        pool: pool of each row.
        max_active: from then on, from 1 to the pool's own limit; inf for that limit.
    """

    time_s: Sequence[float]
    pool: Sequence[int]
    max_active: Sequence[float]

    def __post_init__(self) -> None:
        if not len(self.time_s) == len(self.pool) == len(self.max_active):
            sizes = f"{len(self.time_s)}, {len(self.pool)}, {len(self.max_active)}"
            raise ValueError(f"time_s, pool and max_active of caps must have one entry per row, got {sizes}")
        require_non_negative("caps time_s", np.asarray(self.time_s, dtype=float))
        require(np.all(np.diff(self.time_s) >= 0), "caps time_s", list(self.time_s), "ascending")
        most = np.asarray(self.max_active, dtype=float)
        require((most >= 1) & (most == np.floor(most)), "caps max_active", most, "whole numbers >= 1, or inf")

    @classmethod
    def event(cls, start_s: float, end_s: float, max_active: Sequence[float]) -> Caps:
        """A cap for each pool (inf for none) that is on from `start_s` to `end_s`."""
        require(start_s < end_s, "end_s of a caps event", end_s, f"> start_s ({start_s:g})")
        pools, none = range(len(max_active)), [np.inf] * len(max_active)
        times = [start_s] * len(max_active) + [end_s] * len(max_active)
        return cls(time_s=times, pool=[*pools, *pools], max_active=[*max_active, *none])

    def timeline(self, replicas: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """Changes of a fleet with `replicas` in each pool, each of which may run `limits` requests."""
        first = np.cumsum(replicas) - replicas
        rows: list[tuple[float, int, int]] = []
        for time, pool, most in zip(self.time_s, self.pool, self.max_active, strict=True):
            require(0 <= pool < len(replicas), "caps pool", pool, f"from 0 to {len(replicas) - 1}")
            cap = int(limits[pool]) if np.isinf(most) else int(most)
            require(cap <= limits[pool], "caps max_active", cap, f"<= {limits[pool]}, the limit of pool {pool}")
            rows += [(time, int(first[pool] + r), _state.CAP + cap) for r in range(int(replicas[pool]))]
        return in_order(rows)


def in_order(rows: Sequence[tuple[float, int, int]]) -> np.ndarray:
    """The event loop's timeline: rows of (instant, replica, what), by instant and otherwise as given."""
    timeline = np.array(list(rows), dtype=_state.TIMELINE)
    return timeline[np.argsort(timeline["time_s"], kind="stable")]


def accepting_s(timeline: np.ndarray, pool: np.ndarray, num_pools: int, start: float, end: float) -> np.ndarray:
    """Replica-seconds within [start, end] that replicas of each pool take requests; `pool` is each replica's."""
    seconds = np.bincount(pool, minlength=num_pools) * (end - start)
    since = np.full(len(pool), np.nan)
    for time, replica, what in timeline.tolist():
        now = min(max(time, start), end)
        if what == _state.UP and not np.isnan(since[replica]):
            seconds[pool[replica]] -= now - since[replica]
            since[replica] = np.nan
        elif what in (_state.DOWN, _state.DRAIN) and np.isnan(since[replica]):
            since[replica] = now
    for replica in np.flatnonzero(~np.isnan(since)):
        seconds[pool[replica]] -= end - since[replica]
    return seconds
