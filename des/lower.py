"""The boundary: profile, design and workload become plain numbers for the event loop.

Here alone JAX types turn into NumPy arrays and named tuples. The loop knows pools by base step time,
admission limits and replica counts, and requests by kind (one kind a workload row), whose work comes from the
laws of `jaxsim.physics` in one vectorised call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from des import _engine
from des._heap import tree
from des.routing import Routing
from jaxsim._checks import invalid, require, unknown
from jaxsim.fleet import FleetDesign
from jaxsim.physics import RequestWork, StepLaw, kimura_work, kv_blocks, num_slots, step_work
from jaxsim.workload import Workload

CONVENTIONS = ("step", "kimura")
NO_BLOCK_LIMIT = 2**62
NUM_WINDOWS = 20
"""Stretches of the measured time whose totals the loop keeps apart."""


class Fleet(NamedTuple):
    """What the loop knows of the pools, one entry per pool.

    `base_s` is the step's base time in seconds, `max_active` the running requests a replica admits,
    `kv_blocks` the blocks it reserves from, `replicas` the number of replicas.
    """

    base_s: np.ndarray
    max_active: np.ndarray
    kv_blocks: np.ndarray
    replicas: np.ndarray


class Stream(NamedTuple):
    """Requests in order of arrival: their instants in seconds, and their kinds."""

    arrival_s: np.ndarray
    kind: np.ndarray


class History(NamedTuple):
    """What happened to each request of a stream (replica; instants in seconds), and each pool's totals.

    `totals` has one row per pool and one column per stretch of the measured time; see `_engine.TOTAL`.
    """

    replica: np.ndarray
    admit_s: np.ndarray
    first_s: np.ndarray
    end_s: np.ndarray
    totals: np.ndarray


def whole(name: str, values: Any, least: int) -> np.ndarray:
    """`values` as integers; relaxed designs must be rounded before they are simulated."""
    values = np.asarray(values, dtype=np.float64)
    good = (values >= least) & (values == np.floor(values))
    require(good, name, values, f"whole numbers >= {least}", "round a relaxed design first")
    return values.astype(np.int64)


def lower_fleet(design: FleetDesign, convention: str) -> Fleet:
    """The pools' admission limits under a convention.

    ``step``: `max_num_seqs` sequences, and KV blocks reserved for each request's whole length. ``kimura``:
    the slots of the pool's `max_context` and no look at blocks.
    """
    if convention not in CONVENTIONS:
        raise unknown("convention", convention, CONVENTIONS)
    profile = design.profile
    seqs = whole("max_num_seqs", profile.max_num_seqs, 1)
    blocks = whole("kv_blocks", profile.kv_blocks, 1)
    if convention == "kimura":
        context = np.asarray(design.max_context)
        total, size, cap = (np.asarray(v) for v in (profile.kv_blocks, profile.block_tokens, seqs))
        seqs = num_slots(total, size, cap, np.asarray(profile.calibration_context), context).astype(np.int64)
        blocks = np.full_like(blocks, NO_BLOCK_LIMIT)
    return Fleet(np.asarray(profile.base_s), seqs, blocks, whole("replicas", design.replicas, 0))


def lower_kinds(design: FleetDesign, workload: Workload, routing: Routing, convention: str) -> np.ndarray:
    """The kinds table: each workload row's work and blocks under the profile of the pool it is routed to."""
    profile = design.profile
    pool = np.maximum(routing.pool, 0)
    law = StepLaw(*(np.asarray(v)[pool] for v in profile.law))
    inputs, outputs = np.asarray(workload.input_tokens), np.asarray(workload.output_tokens)
    work_of = step_work if convention == "step" else kimura_work
    work = work_of(law, np.asarray(profile.chunk_tokens)[pool], inputs, outputs)
    blocks = kv_blocks(inputs + outputs, np.asarray(profile.block_tokens)[pool])
    return kinds_table(work, np.where(convention == "step", blocks, 0.0), routing.pool)


def kinds_table(work: RequestWork, blocks: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """The loop's record of each kind of request: its work, the blocks it reserves and its pool (-1 for none)."""
    table = np.empty(len(pool), dtype=_engine.KIND)
    for name, values in work._asdict().items():
        table[name] = values
    table["blocks"] = blocks
    table["pool"] = pool
    return table


def _replicas(fleet: Fleet, pool: np.ndarray, num_requests: int) -> tuple[np.ndarray, int]:
    """The loop's record of each replica, idle, and the length of all heaps together."""
    replicas = np.zeros(len(pool), dtype=_engine.REPLICA)
    replicas["base_s"] = fleet.base_s[pool]
    replicas["max_active"] = np.minimum(fleet.max_active[pool], num_requests)
    replicas["free_blocks"] = fleet.kv_blocks[pool]
    replicas["pool"] = pool
    lengths = replicas["max_active"].astype(np.int64)
    replicas["heap_start"] = np.cumsum(lengths) - lengths
    return replicas, int(lengths.sum())


def _idle_lists(
    replicas: np.ndarray, pools: np.ndarray, counts: np.ndarray, heads: np.ndarray, tails: np.ndarray
) -> None:
    """Put every replica in its pool's list of load 0, in order of number."""
    number = np.arange(1, len(replicas) + 1)
    last = np.cumsum(counts)
    first = last - counts + 1
    replicas["before"] = np.where(number == first[replicas["pool"]], 0, number - 1)
    replicas["after"] = np.where(number == last[replicas["pool"]], 0, number + 1)
    filled = counts > 0
    heads[pools["first_list"][filled]] = first[filled]
    tails[pools["first_list"][filled]] = last[filled]


def play(
    fleet: Fleet,
    kinds: np.ndarray,
    stream: Stream,
    *,
    window_s: tuple[float, float] = (0.0, 1e300),
    refresh_steps: int = _engine.REFRESH_STEPS,
) -> History:
    """Run a stream of accepted requests through a fleet until the last has left.

    Args:
        fleet: the pools. Replicas are numbered through, pool after pool.
        kinds: `kinds_table`; every request of the stream must fit its pool's empty replica.
        stream: the requests.
        window_s: measured time, for the totals.
        refresh_steps: steps after which a busy replica's sums are computed anew.
    """
    num_requests = len(stream.arrival_s)
    if num_requests > _engine.MAX_REQUESTS:
        raise invalid("requests of one run", num_requests, f"<= {_engine.MAX_REQUESTS}", "use replications")
    pool = np.repeat(np.arange(len(fleet.replicas)), fleet.replicas)
    replicas, heap_size = _replicas(fleet, pool, num_requests)
    per_pool = np.bincount(kinds["pool"][stream.kind], minlength=len(fleet.replicas))
    pools = np.zeros(len(fleet.replicas), dtype=_engine.POOL)
    pools["first_list"] = np.cumsum(per_pool + 1) - (per_pool + 1)
    num_lists = int(per_pool.sum()) + len(pools)
    heads, tails = np.zeros(num_lists, dtype=np.int32), np.zeros(num_lists, dtype=np.int32)
    _idle_lists(replicas, pools, fleet.replicas, heads, tails)
    start, end = window_s
    state = _engine.State(
        arrival_s=np.ascontiguousarray(stream.arrival_s, dtype=np.float64),
        kind=np.ascontiguousarray(stream.kind, dtype=np.int32),
        kinds=kinds,
        replica=np.empty(num_requests, dtype=np.int32),
        admit_s=np.empty(num_requests),
        first_s=np.empty(num_requests),
        end_s=np.empty(num_requests),
        next_queued=np.zeros(num_requests, dtype=np.int32),
        pools=pools,
        replicas=replicas,
        list_heads=heads,
        list_tails=tails,
        prefill=np.zeros(heap_size, dtype=np.int64),
        decode=np.zeros(heap_size, dtype=np.int64),
        event_s=tree(len(pool)),
        totals=np.zeros((len(pools), NUM_WINDOWS), dtype=_engine.TOTAL),
        window=np.array([start, end, (end - start) / NUM_WINDOWS]),
        refresh_steps=refresh_steps,
    )
    _engine.run(state)
    return History(state.replica, state.admit_s, state.first_s, state.end_s, state.totals)
