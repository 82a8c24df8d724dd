"""Playing a stream of requests: the event loop's arrays, which grow with the requests in flight, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from des import _engine, _gaps, _state
from des._heap import tree
from des.lower import Fleet
from des.router import DISPATCH
from des.serving import KV_RULES, PREEMPTION, SCHEDULING, Serving
from jaxsim._checks import invalid
from jaxsim.workload import PrefixBlocks

NUM_WINDOWS = 20
"""Stretches of the measured time whose totals the loop keeps apart."""

FIRST_SLOTS = 1 << 10
BUFFERED = 1 << 13
"""Results that the loop hands over at a time."""


class Stream(NamedTuple):
    """Requests in order of arrival: their instants in seconds, their rows of the kinds table, and their pools (-1 for
    any that can hold it)."""

    arrival_s: np.ndarray
    row: np.ndarray
    pool: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How requests and replicas meet, beside the design itself.

    Attributes:
        serving: of every engine.
        dispatch: one of `DISPATCH`.
        affinity_slack: load above the least one up to which ``"prefix-affinity"`` follows the cache.
        spill_pressure: running and queued requests over sequences of a pool from which on requests go to the next pool.
        concurrency: requests outstanding at most, 0 for no limit.
        transfer: seconds a transfer and seconds a token from prefill pool to decode pool; None for whole service.
        timeline: changes of the fleet (`_state.TIMELINE`), ascending in time.
        blocks: prefix blocks of the rows, for the prefix cache.
        seed: of random dispatch.
    """

    serving: Serving = field(default_factory=Serving)
    dispatch: str = "least-loaded"
    affinity_slack: int = 2
    spill_pressure: float = np.inf
    concurrency: int = 0
    transfer: tuple[float, float] | None = None
    timeline: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=_state.TIMELINE))
    blocks: PrefixBlocks | None = None
    seed: int = 0

    @property
    def eventful(self) -> bool:
        """Whether anything can happen to a request but to be queued, admitted and served."""
        plain = self.serving == Serving() and self.transfer is None and not self.concurrency
        return not plain or len(self.timeline) > 0


class Totals(NamedTuple):
    """What the loop counts beside the requests.

    Attributes:
        windows: `_state.TOTAL`, pools x windows.
        levels: seconds of steps with 0, 1, 2, ... running requests, pools x numbers.
        gaps: counts of the gaps between tokens, pools x bins.
    """

    windows: np.ndarray
    levels: np.ndarray
    gaps: np.ndarray


Sink = Callable[[np.ndarray], None]


def play(
    fleet: Fleet,
    kinds: np.ndarray,
    parts: Iterable[Stream],
    sink: Sink,
    rules: Rules | None = None,
    *,
    window_s: tuple[float, float] = (0.0, 1e300),
    windows: int = NUM_WINDOWS,
    gaps: bool = False,
    refresh_steps: int = _state.REFRESH_STEPS,
) -> Totals:
    """Run a stream of accepted requests through a fleet until the last has left.

    Args:
        fleet: the pools. Replicas are numbered through, pool after pool.
        kinds: pools x rows (`lower.lower_kinds`); every request must fit some pool of its choice, empty.
        parts: the stream, part after part.
        sink: called with records of requests that have left (`_state.FINISHED`), in no order; it must not keep the
            array.
        rules: the rest.
        window_s: measured time, for the totals.
        windows: stretches of it whose totals are kept apart.
        gaps: whether to count the gaps between tokens.
        refresh_steps: steps after which a busy replica's sums are computed anew.

    Raises:
        RuntimeError: requests are left that no replica will ever take (the timeline took all away).
    """
    rules = Rules() if rules is None else rules
    window = (*window_s, (window_s[1] - window_s[0]) / windows)
    state = _start(fleet, kinds, rules, np.array(window), windows=windows, gaps=gaps, refresh_steps=refresh_steps)
    remaining = iter(parts)
    while True:
        wanted = _engine.run(state)
        _drain(state, sink)
        if wanted == _state.MORE_ARRIVALS:
            state = _refill(state, remaining)
        elif wanted == _state.MORE_SLOTS:
            state = _widen(state)
        elif wanted == _state.DONE:
            break
    left = int(state.now[0]["outstanding"])
    if left:
        raise RuntimeError(f"{left} requests wait for a replica that never comes up; let the timeline end with one")
    return Totals(state.totals, state.levels, state.gaps)


def _drain(state: _state.State, sink: Sink) -> None:
    now = state.now[0]
    if now["finished"]:
        sink(state.finished[: now["finished"]])
        now["finished"] = 0


def _refill(state: _state.State, parts: Iterator[Stream]) -> _state.State:
    now = state.now[0]
    part = next(parts, None)
    now["next"] = now["arrivals"] = 0
    if part is None:
        now["last"] = 1
        return state
    if not len(part.arrival_s) == len(part.row) == len(part.pool):
        sizes = f"{len(part.arrival_s)}, {len(part.row)}, {len(part.pool)}"
        raise ValueError(f"the columns of a stream must be of one length, got {sizes}")
    now["arrivals"] = len(part.arrival_s)
    return state._replace(
        arrival_s=_plain(part.arrival_s, np.float64),
        row=_plain(part.row, np.int32),
        choice=_plain(part.pool, np.int16),
    )


def _plain(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The array as the loop is compiled for: contiguous and writable. Any other would have it compiled once more."""
    return np.require(array, dtype=dtype, requirements=("C", "W"))


def _widen(state: _state.State) -> _state.State:
    """Twice the slots; the dispatcher's lists, one for each load, and the kinds of slots go with them."""
    old = len(state.requests)
    if old > _state.MAX_SLOTS // 2:
        raise invalid(
            "requests in flight", old, f"<= {_state.MAX_SLOTS}", "the fleet is overloaded: play a shorter stream"
        )
    pools = len(state.pools)

    def longer(array: np.ndarray, size: int) -> np.ndarray:
        wide = np.zeros(size, dtype=array.dtype)
        wide[: len(array)] = array
        return wide

    def lists(array: np.ndarray) -> np.ndarray:
        wide = np.zeros((pools, 2 * old + 1), dtype=array.dtype)
        wide[:, : old + 1] = array.reshape(pools, old + 1)
        return wide.ravel()

    return state._replace(
        requests=longer(state.requests, 2 * old),
        journeys=longer(state.journeys, 2 * old),
        scratch=longer(state.scratch, 2 * old),
        kinds=longer(state.kinds, len(state.kinds) + old),
        list_heads=lists(state.list_heads),
        list_tails=lists(state.list_tails),
    )


def _pools(fleet: Fleet) -> np.ndarray:
    pools = np.zeros(len(fleet.replicas), dtype=_state.POOL)
    for name, values in fleet.law._asdict().items():
        pools[name] = values
    pools["chunk"] = fleet.chunk_tokens
    pools["first_member"] = np.cumsum(fleet.replicas) - fleet.replicas
    pools["accepting"] = fleet.replicas
    pools["max_active"] = fleet.max_active
    pools["kv_blocks"] = fleet.kv_blocks
    pools["role"] = fleet.role
    return pools


def _replicas(fleet: Fleet, pool: np.ndarray, budget: int) -> np.ndarray:
    """The loop's record of each replica, idle."""
    replicas = np.zeros(len(pool), dtype=_state.REPLICA)
    replicas["base_s"] = (fleet.law.base_s + fleet.law.overhead_s)[pool]
    replicas["block"] = fleet.block_tokens[pool]
    replicas["max_active"] = fleet.max_active[pool]
    replicas["free_blocks"] = fleet.kv_blocks[pool]
    replicas["budget"] = budget
    replicas["pool"] = pool
    lengths = _stretch(fleet)[pool]
    replicas["heap_start"] = np.cumsum(lengths) - lengths
    replicas["first_residue"] = np.cumsum(fleet.block_tokens[pool]) - fleet.block_tokens[pool]
    replicas["place"] = np.arange(len(pool)) - (np.cumsum(fleet.replicas) - fleet.replicas)[pool]
    return replicas


def _stretch(fleet: Fleet) -> np.ndarray:
    """Length of a replica's stretch of the heaps: requests that may run at a time, each with a block of its own."""
    return np.maximum(np.minimum(fleet.max_active, fleet.kv_blocks), 1)


def _idle_lists(replicas: np.ndarray, counts: np.ndarray, heads: np.ndarray, tails: np.ndarray) -> None:
    """Put every replica in its pool's list of load 0, in order of number; `heads` and `tails` have one row a pool."""
    number = np.arange(1, len(replicas) + 1)
    last = np.cumsum(counts)
    first = last - counts + 1
    replicas["before"] = np.where(number == first[replicas["pool"]], 0, number - 1)
    replicas["after"] = np.where(number == last[replicas["pool"]], 0, number + 1)
    filled = counts > 0
    heads[filled, 0] = first[filled]
    tails[filled, 0] = last[filled]


def _start(
    fleet: Fleet,
    kinds: np.ndarray,
    rules: Rules,
    window: np.ndarray,
    *,
    windows: int,
    gaps: bool,
    refresh_steps: int,
) -> _state.State:
    serving = rules.serving
    pool = np.repeat(np.arange(len(fleet.replicas)), fleet.replicas)
    replicas = _replicas(fleet, pool, serving.max_num_batched_tokens or 0)
    num_pools, num_rows = kinds.shape
    heads = np.zeros((num_pools, FIRST_SLOTS + 1), dtype=np.int32)
    tails = np.zeros_like(heads)
    _idle_lists(replicas, fleet.replicas, heads, tails)
    now = np.zeros(1, dtype=_state.NOW)
    now["transfer_s"] = np.inf
    all_kinds = np.zeros(kinds.size + FIRST_SLOTS, dtype=_state.KIND)
    all_kinds[: kinds.size] = kinds.ravel()
    heap = int(_stretch(fleet)[pool].sum())
    blocks = rules.blocks if serving.prefix_cache_blocks else None
    ids = np.empty(0, dtype=np.int32) if blocks is None else _plain(blocks.ids, np.int32)
    entries = 0 if blocks is None else blocks.num_ids + 1
    links = np.zeros((2, len(pool) * entries), dtype=np.int32)
    if entries:
        links[:, ::entries] = 1
    latency, per_token = rules.transfer or (0.0, 0.0)
    return _state.State(
        now=now,
        arrival_s=np.empty(0),
        row=np.empty(0, dtype=np.int32),
        choice=np.empty(0, dtype=np.int16),
        requests=np.zeros(FIRST_SLOTS, dtype=_state.REQUEST),
        journeys=np.zeros(FIRST_SLOTS, dtype=_state.JOURNEY),
        finished=_state.uneventful(BUFFERED + int(_stretch(fleet).max(initial=0)) + 1),
        kinds=all_kinds,
        num_rows=num_rows,
        pools=_pools(fleet),
        replicas=replicas,
        members=np.arange(len(pool), dtype=np.int64),
        list_heads=heads.ravel(),
        list_tails=tails.ravel(),
        prefill=np.zeros(heap, dtype=np.int64),
        decode=np.zeros(heap, dtype=np.int64),
        residues=np.zeros(int(fleet.block_tokens[pool].sum()) if serving.kv == "grow" else 0, dtype=np.int64),
        event_s=tree(len(pool)),
        totals=np.zeros((num_pools, windows), dtype=_state.TOTAL),
        window=window,
        levels=np.zeros((num_pools, int(_stretch(fleet).max(initial=0)) + 1)),
        gaps=np.zeros((num_pools, _gaps.NUM_BINS if gaps else 0)),
        timeline=_plain(rules.timeline, _state.TIMELINE),
        scratch=np.zeros(FIRST_SLOTS, dtype=np.int64),
        block_ids=ids,
        first_block=np.zeros(1, dtype=np.int64) if blocks is None else _plain(blocks.first, np.int64),
        cache_after=links[0],
        cache_before=links[1],
        cache_size=np.zeros(len(pool) if entries else 1, dtype=np.int64),
        cache_blocks=int(serving.prefix_cache_blocks) if blocks is not None else 0,
        cache_block_tokens=1 if blocks is None else int(blocks.tokens),
        refresh_steps=refresh_steps,
        eventful=int(rules.eventful),
        kimura=int(fleet.kimura),
        scheduling=SCHEDULING.index(serving.scheduling),
        kv=KV_RULES.index(serving.kv),
        preemption=PREEMPTION.index(serving.preemption),
        swap_s_per_token=float(serving.swap_s_per_token),
        dispatch=DISPATCH.index(rules.dispatch),
        affinity_slack=int(rules.affinity_slack),
        spill_pressure=float(rules.spill_pressure),
        concurrency=int(rules.concurrency),
        transfer_latency_s=float(latency),
        transfer_s_per_token=float(per_token),
        seed=int(rules.seed) % 2**63,
    )
