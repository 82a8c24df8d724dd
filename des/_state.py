"""What the event loop reads and writes: its records, its arrays, its constants.

Everything is a NumPy array that the Python caller owns. A request in the fleet lives in a *slot* of `requests`;
when it has left, its record goes to `finished` and its slot to the next one that arrives, so memory holds the
requests in flight and not all that ever were.

Links between slots and between replicas hold ``index + 1``; 0 is "none".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxsim.physics import RequestWork, StepLaw

KEY_BITS = 32
"""A heap key is ``step << 32 | slot << 1 | flag``; the flag marks the last piece of a prompt."""

NEVER = 2**63 - 1
SLOT_BITS = 30
MAX_SLOTS = 2**SLOT_BITS
"""Requests in flight of one run; slots have 31 bits in a key and in the queues."""

REFRESH_STEPS = 2**20
"""Steps after which a replica's sums are computed anew and its step count starts again from 0."""

UNSET = -1.0
"""An instant that has not come."""

INDEPENDENT, CHUNKED, DECODE_FIRST, PREFILL_FIRST = range(4)
RESERVE, OVERFLOW, GROW = range(3)
RECOMPUTE, CACHED, SWAP = range(3)
LEAST_LOADED, RANDOM, ROUND_ROBIN, POWER_OF_TWO, PREFIX_AFFINITY = range(5)
DOWN, DRAIN, UP, CAP = range(4)
"""What a row of the timeline does to its replica; ``CAP + n``: at most n requests run from then on."""

SERVES, PREFILLS, DECODES = range(3)
TRANSFERRED, SWAPPED = 1, 2
DONE, MORE_ARRIVALS, MORE_SLOTS, FULL = range(4)
"""Why `run` returns: every request has left; the stream's next part, slots or room for results are wanted."""

KIND = np.dtype(
    [(name, np.float64) for name in RequestWork._fields]
    + [(name, np.int32) for name in ("blocks", "input", "output", "can_hold", "cached")]
)
"""A kind of request, one for each pool and row: its `RequestWork` there, the KV blocks it reserves, and how much of its
prompt is known to be cached wherever it goes.

After the pools' kinds comes one for each slot: the work of a request whose prompt is not its kind's, because part of it
is cached or because it is computed again."""

POOL = np.dtype(
    [(name, np.float64) for name in StepLaw._fields]
    + [
        ("chunk", np.float64),
        ("least_load", np.int64),
        ("load", np.int64),  # of its accepting replicas
        ("turn", np.int64),  # of round robin
        ("first_member", np.int64),  # of its stretch of `members`
        ("accepting", np.int64),
        ("max_active", np.int64),
        ("kv_blocks", np.int64),
        ("role", np.int32),
    ],
    align=True,
)

REPLICA = np.dtype(
    [
        ("clock_s", np.float64),  # instant of the step boundary that the sums below are for
        ("work_s", np.float64),  # decode work (independent: all work) of the step that starts there
        ("growth_s", np.float64),  # what that work gains a step
        ("base_s", np.float64),
        ("extra_s", np.float64),  # further seconds of that one step: its prompt pieces and swaps
        ("step", np.int64),  # number of that step; steps in which decoding pauses do not count
        ("ahead", np.int64),  # steps to the next event
        ("ran", np.int64),  # steps run since the start
        ("heap_start", np.int64),  # of this replica's stretch of both heaps
        ("free_blocks", np.int64),
        ("active", np.int32),
        ("prefilling", np.int32),
        ("max_active", np.int32),
        ("load", np.int32),
        ("first_queued", np.int32),  # slot + 1, 0 for none
        ("pool", np.int32),
        ("before", np.int32),  # links of the dispatcher's lists
        ("after", np.int32),
        ("place", np.int32),  # in its pool's stretch of `members`, -1 where it does not accept
        ("paused", np.int8),  # decoding pauses in the coming step
        ("closed", np.int8),  # no admission at this boundary
        ("granted", np.int8),  # by `grow`: the coming step's decode tokens have their blocks
        ("refused", np.int8),  # a request waits because the admission rule refused it
        ("tokens", np.int64),  # prompt tokens of the coming step
        ("call", np.int64),  # number of the step before which a boundary is asked for, 0 for none
        ("last_queued", np.int32),
        ("block", np.int32),  # tokens of a block
        ("appended", np.int64),  # blocks that joined the queue of free blocks, less those that a hit took back
        ("budget", np.int64),
        ("first_residue", np.int64),  # of this replica's stretch of `residues`
        ("held_s", np.float64),  # of these, what its prompts hold
        ("swap_s", np.float64),  # of these, swaps
        ("area", np.float64),  # prompt tokens of that step times their contexts
        ("stall_s", np.float64),  # time for which decoding has been paused
        ("life", np.int32),  # how often it has gone down
    ],
    align=True,
)
"""A replica; what every event of it needs comes first."""

REQUEST = np.dtype(
    [
        ("sent_s", np.float64),
        ("admit_s", np.float64),
        ("first_s", np.float64),
        ("number", np.int64),
        ("joined", np.int64),  # steps its replica had run when it was admitted
        ("kind", np.int32),
        ("row", np.int32),
        ("next", np.int32),
        ("replica", np.int32),
        ("generated", np.int32),  # tokens out before its present life in the engine began
        ("choice", np.int16),  # pool it is for, -1 for any that can hold it
        ("ready", np.int8),  # its KV is at hand: TRANSFERRED or SWAPPED
    ],
    align=True,
)
"""A request in flight: what every request needs, in 64 bytes, the line of a cache."""

JOURNEY = np.dtype(
    [
        ("due_s", np.float64),  # when it was to be sent; later than that where its client had to wait
        ("stop_s", np.float64),  # of its last preemption
        ("prefill_end_s", np.float64),
        ("arrive_s", np.float64),  # at the replica it is on
        ("decode_admit_s", np.float64),
        ("stamp", np.int64),  # `appended` of its replica when it was preempted
        ("computed", np.int64),  # tokens whose KV it held then
        ("held", np.int32),  # context so far, while its prompt is computed piece by piece
        ("piece", np.int32),  # of these, tokens of the coming step
        ("cached", np.int32),  # context that its prompt started from
        ("life", np.int32),  # of its replica, when it was handed over
        ("prefill_replica", np.int32),
        ("steps", np.int32),  # of its former lives
        ("prefill_steps", np.int32),  # of these, where only prompts are computed
        ("preemptions", np.int32),
        ("retries", np.int32),
    ],
    align=True,
)
"""What else a request needs where it may be more than queued, admitted and served (`State.eventful`)."""

FINISHED = np.dtype(
    [
        ("sent_s", np.float64),
        ("admit_s", np.float64),
        ("first_s", np.float64),
        ("end_s", np.float64),
        ("number", np.int64),
        ("row", np.int32),
        ("replica", np.int32),
        ("steps", np.int32),
        ("prefill_steps", np.int32),
        ("preemptions", np.int32),
        ("retries", np.int32),
        ("prefill_replica", np.int32),
        ("due_s", np.float64),
        ("prefill_end_s", np.float64),
        ("arrive_s", np.float64),
        ("decode_admit_s", np.float64),
    ],
    align=True,
)
"""A request that has left. From `prefill_steps` on what `uneventful` says, unless the run is eventful."""


def uneventful(size: int) -> np.ndarray:
    """Room for records of requests of which nothing is to be said but when they were sent, admitted and served."""
    records = np.zeros(size, dtype=FINISHED)
    records["prefill_replica"] = -1
    for name in ("due_s", "prefill_end_s", "arrive_s", "decode_admit_s"):
        records[name] = UNSET
    return records


TIMELINE = np.dtype([("time_s", np.float64), ("replica", np.int32), ("what", np.int32)])

TOTAL = np.dtype(
    [
        (name, np.float64)
        for name in ("steps", "busy_s", "full_steps", "full_s", "active_s", "block_s", "before", "queued", "queued_s")
    ]
)
"""Steps run and their seconds; steps times batch, and seconds, while a request waited for room; integrals of running
requests and of blocks in use; changes of the queue's length before the measured time (first window) and in it, and
the latter times their instants."""

NOW = np.dtype(
    [
        ("next", np.int64),  # arrival of the buffer
        ("number", np.int64),  # of the next request
        ("arrivals", np.int64),  # in the buffer
        ("last", np.int64),  # whether the stream ends with it
        ("free_slot", np.int64),  # first of the list of free slots, + 1
        ("fresh_slot", np.int64),  # first slot never used
        ("finished", np.int64),
        ("outstanding", np.int64),
        ("turn", np.int64),  # of round robin over all pools
        ("timeline", np.int64),
        ("freed_s", np.float64),  # when a request last left
        ("transfer_s", np.float64),  # when the transfer under way ends
        ("first_transfer", np.int64),
        ("last_transfer", np.int64),
        ("handed", np.int64),  # requests in `scratch` that wait to join it
        ("first_held", np.int64),  # requests that wait for a replica to come up
        ("last_held", np.int64),
    ],
    align=True,
)


class State(NamedTuple):
    """Everything the loop reads and writes."""

    now: np.ndarray  # one NOW
    arrival_s: np.ndarray  # the next part of the stream: instants, ascending
    row: np.ndarray  # of the kinds table
    choice: np.ndarray  # pool, -1 for any that can hold the request
    requests: np.ndarray
    journeys: np.ndarray  # of the same slots
    finished: np.ndarray
    kinds: np.ndarray
    num_rows: int
    pools: np.ndarray
    replicas: np.ndarray
    members: np.ndarray  # accepting replicas, pool after pool
    list_heads: np.ndarray
    list_tails: np.ndarray
    prefill: np.ndarray  # heaps of the requests in their prompt, all replicas in one array
    decode: np.ndarray  # heaps of the requests that decode
    residues: np.ndarray  # per replica and step number modulo the block: blocks that decoding takes
    event_s: np.ndarray  # winner tree of each replica's next event
    totals: np.ndarray  # pools x windows
    window: np.ndarray  # start and end of the measured time, seconds a window
    levels: np.ndarray  # pools x running requests: seconds of steps with so many
    gaps: np.ndarray  # histogram of the gaps between tokens; empty where it is not asked for
    timeline: np.ndarray
    scratch: np.ndarray  # room to sort slots
    block_ids: np.ndarray  # prefix blocks of each row, one after the other
    first_block: np.ndarray  # of each row in it; one more than rows
    cache_after: np.ndarray  # least-recently-used lists of prefix blocks, replicas x (ids + 1)
    cache_before: np.ndarray
    cache_size: np.ndarray
    cache_blocks: int
    cache_block_tokens: int
    refresh_steps: int
    eventful: int  # whether requests may be preempted, handed over, tried again, held back or hit a cache
    kimura: int  # constant work (the reference convention)
    scheduling: int
    kv: int
    preemption: int
    swap_s_per_token: float
    dispatch: int
    affinity_slack: int
    spill_pressure: float
    concurrency: int
    transfer_latency_s: float
    transfer_s_per_token: float
    seed: int
