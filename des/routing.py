"""What happens to a request before the event loop sees it: the pool it goes to, what it becomes, or why none takes it.

A router (`des.routers`) says what may become of each row of a workload: its *outcomes*, each with a chance, a pool
and lengths (`Served`). `capability` says which pool can hold which row. `settle` joins the two into a `RouteTable`,
which routes a stream of requests by looking each up (and, where there is a chance, by one random number a request),
and which knows the expectation of everything it does. So a simulated fleet and its offered load rest on one table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsim.fleet import FleetDesign
from jaxsim.physics import kv_blocks
from jaxsim.workload import Workload

REASONS = (
    "longer than the last threshold",
    "longer than max_context",
    "larger than the KV cache",
    "empty pool",
)
"""Why a request is rejected, in the order in which the reasons are tested; the index is `Routed.reason`."""

BEYOND_FLEET, BEYOND_CONTEXT, BEYOND_KV, EMPTY_POOL = range(len(REASONS))
NOWHERE = -1
"""No reason, or no pool that was meant."""
ANY_POOL = -1
"""Any pool that can hold the request; the event loop chooses."""
NO_POOL = -2
"""Rejected."""


class Routed(NamedTuple):
    """Per request of a stream.

    Attributes:
        row: of `Served`, the lengths that it is served with.
        pool: that it goes to; `ANY_POOL`, or `NO_POOL` where it is rejected.
        reason: index in `REASONS`; -1 where it is accepted.
        meant: the pool that the router chose; -1 where that is none or any. It differs from `pool` where the request
            is rejected, or spills over from an empty pool.
    """

    row: Int[np.ndarray, " requests"]
    pool: Int[np.ndarray, " requests"]
    reason: Int[np.ndarray, " requests"]
    meant: Int[np.ndarray, " requests"]


class Served(NamedTuple):
    """What a router makes of a workload: the rows that requests are served with, and the outcomes of each given row.

    Attributes:
        input_tokens, output_tokens: of each served row: the workload's own rows, then those that compression makes.
        source: the workload row that each served row comes from.
        share: of each given row; sums to 1.
        up_to: chance of each given row to have this outcome or an earlier one; 1 for the last.
        row: served row of each outcome.
        meant: pool of each outcome; `ANY_POOL`, or `NO_POOL` for longer than the fleet's last threshold.
        belongs: the pool of each served row by its true total, `NO_POOL` where that is beyond the last threshold;
            None where length is not what decides.
    """

    input_tokens: Float[np.ndarray, " served"]
    output_tokens: Float[np.ndarray, " served"]
    source: Int[np.ndarray, " served"]
    share: Float[np.ndarray, " given"]
    up_to: Float[np.ndarray, "outcomes given"]
    row: Int[np.ndarray, "outcomes given"]
    meant: Int[np.ndarray, "outcomes given"]
    belongs: Int[np.ndarray, " served"] | None

    @property
    def total_tokens(self) -> Float[np.ndarray, " served"]:
        """Input + output of each served row."""
        return self.input_tokens + self.output_tokens

    @property
    def num_given(self) -> int:
        """Rows of the workload; served rows from this number on are compressed ones."""
        return len(self.share)

    @property
    def outcome_weight(self) -> Float[np.ndarray, "outcomes given"]:
        """Share of all requests that is of a given row and has an outcome; sums to 1."""
        return np.diff(self.up_to, axis=0, prepend=0.0) * self.share

    @property
    def weight(self) -> Float[np.ndarray, " served"]:
        """Expected share of all requests that is served as each row, rejected ones included; sums to 1."""
        return np.bincount(self.row.ravel(), self.outcome_weight.ravel(), minlength=len(self.source))

    @property
    def compressed_share(self) -> float:
        """Expected share of requests that are compressed."""
        return float(self.weight[self.num_given :].sum())


class Expected(NamedTuple):
    """Expectation of what a `RouteTable` does, as shares of all requests; exact, nothing is drawn.

    Attributes:
        weight: served by each pool as each row; the last line by any pool. Times the rate it is the offered load.
        rejected: by reason and by the pool that was meant, the last column for none.
        compressed: served with a shorter prompt.
        too_short, too_long: sent to a pool of shorter or longer requests than their true total asks for: the price
            of not knowing it. (The former are rejected there unless its `max_context` lets them in.) 0 where length
            is not what decides.
    """

    weight: Float[np.ndarray, "pools_and_any served"]
    rejected: Float[np.ndarray, "reasons pools_and_none"]
    compressed: float
    too_short: float
    too_long: float


class Tally(NamedTuple):
    """Counts of routed requests: compressed, and sent to a pool of too short or too long ones (see `Expected`)."""

    compressed: int
    too_short: int
    too_long: int


class RouteTable(NamedTuple):
    """Where each outcome ends, once it is known what each pool can hold.

    Attributes:
        served: rows and outcomes.
        holds: whether a pool can hold a row at all.
        row, pool, reason, meant: of each outcome of each given row, outcome after outcome; see `Routed`.
    """

    served: Served
    holds: Bool[np.ndarray, "pools served"]
    row: Int[np.ndarray, " ends"]
    pool: Int[np.ndarray, " ends"]
    reason: Int[np.ndarray, " ends"]
    meant: Int[np.ndarray, " ends"]

    @property
    def draws(self) -> bool:
        """Whether chance decides anything: then `route` takes one number of the generator a request."""
        return len(self.served.up_to) > 1

    def route(self, rows: Int[np.ndarray, " requests"], generator: np.random.Generator) -> Routed:
        """Route requests, given by workload row, in order of arrival.

        The n-th number of the generator belongs to its n-th request, whatever the design, and however the stream is
        cut into calls.
        """
        if not self.draws:
            at = rows.astype(np.intp)
            return Routed(rows.astype(np.int32, copy=False), self.pool[at], self.reason[at], self.meant[at])
        at = self._ends(rows, generator.random(len(rows)))
        return Routed(self.row[at], self.pool[at], self.reason[at], self.meant[at])

    def _ends(self, rows: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Index of each request's outcome: the first whose `up_to` exceeds its number."""
        at = rows.astype(np.intp)
        outcome = np.zeros(len(rows), dtype=np.intp)
        for up_to in self.served.up_to[:-1]:
            outcome += uniform >= up_to[at]
        return outcome * self.served.num_given + at

    def expected(self) -> Expected:
        """The expectation of what `route` does with requests drawn by the workload's weights."""
        served, (num_pools, num_served) = self.served, self.holds.shape
        weight = served.outcome_weight.ravel()
        by_pool = np.zeros((num_pools + 1, num_served))
        rejected = np.zeros((len(REASONS), num_pools + 1))
        kept = self.reason == NOWHERE
        np.add.at(by_pool, (self.pool[kept], self.row[kept]), weight[kept])  # ANY_POOL is the last line,
        np.add.at(rejected, (self.reason[~kept], self.meant[~kept]), weight[~kept])  # and NOWHERE the last column
        short, long = self._astray(self.row, self.meant)
        return Expected(
            by_pool, rejected, served.compressed_share, float(weight[short].sum()), float(weight[long].sum())
        )

    def tally(self, routed: Routed) -> Tally:
        """Count what happened to routed requests."""
        short, long = self._astray(routed.row, routed.meant)
        compressed = np.count_nonzero(routed.row >= self.served.num_given)
        return Tally(int(compressed), int(np.count_nonzero(short)), int(np.count_nonzero(long)))

    def _astray(self, row: np.ndarray, meant: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which were sent to a pool of too short, and of too long requests; beyond the fleet is the longest."""
        if self.served.belongs is None:
            none = np.zeros(len(row), dtype=bool)
            return none, none
        beyond = len(self.holds)
        sent = np.where(meant == NOWHERE, beyond, meant)
        right = np.where(self.served.belongs == NO_POOL, beyond, self.served.belongs)[row]
        return sent < right, sent > right


def pool_of_length(upper: Float[np.ndarray, " pools"], tokens: Float[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """The first pool whose `upper` is at least `tokens`; `NO_POOL` above the last."""
    pool = np.searchsorted(upper, tokens, side="left")
    return np.where(pool == len(upper), NO_POOL, pool).astype(np.int16)


def capability(
    design: FleetDesign,
    rows: Workload | Served,
    *,
    max_active: Int[np.ndarray, " pools"],
    free_blocks: Int[np.ndarray, " pools"],
) -> Int[np.ndarray, "pools rows"]:
    """Why a pool cannot hold a row: the index in `REASONS` of the first reason, -1 where it can.

    Args:
        design: pools with their `max_context` and replicas.
        rows: lengths, with those that compression makes.
        max_active: running requests that a replica of each pool admits; where it is 0 the pool runs nothing
            (in the reference model a `max_context` beyond the KV cache has no slot).
        free_blocks: KV blocks of an empty replica.
    """
    total = np.asarray(rows.total_tokens)
    reasons = np.full((design.num_pools, len(total)), NOWHERE, dtype=np.int16)
    blocks = kv_blocks(total, np.asarray(design.profile.block_tokens)[:, None])
    no_room = (blocks > free_blocks[:, None]) | (max_active < 1)[:, None]
    reasons[np.asarray(design.replicas) < 1] = EMPTY_POOL
    reasons[no_room] = BEYOND_KV
    reasons[total > np.asarray(design.max_context)[:, None]] = BEYOND_CONTEXT
    return reasons


def settle(served: Served, reasons: Int[np.ndarray, "pools served"], *, pass_empty: bool = False) -> RouteTable:
    """Where each outcome ends: in its pool, or rejected by it.

    A request for any pool is rejected where none can hold it, for the last reason in `REASONS` that one gives: that
    pool came nearest, and counts as meant.

    Args:
        served: rows and outcomes of a router.
        reasons: `capability` of the served rows.
        pass_empty: a pool without replicas hands its requests on to the next longer one that has some.
    """
    num_pools = len(reasons)
    row, meant = served.row.ravel(), served.meant.ravel()
    home = np.maximum(meant, 0)
    taker = _first_filled(reasons)[home, row] if pass_empty else home
    pool = np.where(meant >= 0, taker, meant)
    reason = np.where(meant == NO_POOL, BEYOND_FLEET, reasons[taker, row])
    anywhere = pool == ANY_POOL
    if anywhere.any():
        nearest = num_pools - 1 - np.argmax(reasons[::-1], axis=0)
        none = ~(reasons == NOWHERE).any(axis=0)
        reason[anywhere] = np.where(none, reasons.max(axis=0), NOWHERE)[row[anywhere]]
        meant = np.where(anywhere & none[row], nearest[row], meant)
    return RouteTable(
        served,
        reasons == NOWHERE,
        row,
        np.where(reason == NOWHERE, pool, NO_POOL).astype(np.int16),
        reason.astype(np.int16),
        np.where(meant == NO_POOL, NOWHERE, meant).astype(np.int16),
    )


def _first_filled(reasons: np.ndarray) -> np.ndarray:
    """Of each pool and row, the first pool from it on that is not empty; the pool itself where all are."""
    filled = np.repeat(np.arange(len(reasons))[:, None], reasons.shape[1], axis=1)
    for p in reversed(range(len(reasons) - 1)):
        later_filled = reasons[filled[p + 1], np.arange(reasons.shape[1])] != EMPTY_POOL
        filled[p] = np.where((reasons[p] == EMPTY_POOL) & later_filled, filled[p + 1], p)
    return filled
