"""The event loop: every replica of every pool, exact to the step, at a cost per request and not per token.

A replica runs steps back to back while it has requests. Between two events of a replica the work of its steps
is an arithmetic series, so an event that lies a known number of steps ahead has a known instant. Events of a
replica are the ends of the step in which a request finishes its full prompt chunks, yields its first token,
or its last. In between, only an arrival changes a replica: it joins at the first step boundary at or after
its arrival.

**Order.** Time first. At one instant step ends come before arrivals, step ends in order of replica number,
arrivals in their own order. At one step end: first tokens, then departures, then admissions, so that room
freed at a boundary is used at that boundary, and a request that arrives at the instant of a boundary joins
there.

**Joining ahead of time.** A request that fits, with nobody queued before it, is admitted as it arrives: the
replica's clock is set forward to the boundary at which it joins. Nothing can change the replica before that
but further arrivals, which come behind it; departures at that very boundary only make room. So only requests
that the admission rule refused ever queue. Load for dispatch counts active and queued alike and does not see
the difference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from des._dispatch import change_load, least_loaded
from des._heap import drop_first, earliest, push, replace_first, set_time
from des._jit import entry, jit, law
from jaxsim import physics

span_s = law(physics.span_s)

KEY_BITS = 32
"""A heap key is ``step << 32 | request << 1 | flag``; the flag marks the end of the last prompt chunk."""

NEVER = 2**63 - 1
MAX_REQUESTS = 2**30
"""Requests of one run; their numbers have 31 bits in a key and in the queues."""

REFRESH_STEPS = 2**20
"""Steps after which a replica's sums are computed anew and its step count starts again from 0."""

KIND = np.dtype(
    [(name, np.float64) for name in physics.RequestWork._fields] + [("blocks", np.int32), ("pool", np.int32)]
)
"""What the loop knows of a kind of request: its `RequestWork`, the KV blocks it reserves, and its pool."""

POOL = np.dtype([("least_load", np.int64), ("first_list", np.int64)])

REPLICA = np.dtype(
    [
        ("clock_s", np.float64),  # instant of the step boundary that the sums below are for
        ("work_s", np.float64),  # work of the step that starts there
        ("growth_s", np.float64),  # what that work gains a step
        ("base_s", np.float64),
        ("step", np.int64),  # number of that step
        ("next_step", np.int64),  # number of the step that starts at the next event
        ("heap_start", np.int64),  # of this replica's stretch of both heaps
        ("free_blocks", np.int64),
        ("max_active", np.int32),
        ("active", np.int32),
        ("prefilling", np.int32),
        ("load", np.int32),
        ("first_queued", np.int32),  # request + 1, 0 for none
        ("last_queued", np.int32),
        ("pool", np.int32),
        ("before", np.int32),  # links of the dispatcher's lists
        ("after", np.int32),
    ],
    align=True,
)

TOTAL = np.dtype([(name, np.float64) for name in ("steps", "busy_s", "full_steps", "full_s")])
"""Steps run and their seconds; the same while a request waited for room, each step times its batch."""


class State(NamedTuple):
    """Everything the loop reads and writes."""

    arrival_s: np.ndarray  # per request, ascending
    kind: np.ndarray  # per request, index into `kinds`
    kinds: np.ndarray
    replica: np.ndarray  # per request, written by the loop, as are the three instants
    admit_s: np.ndarray
    first_s: np.ndarray
    end_s: np.ndarray
    next_queued: np.ndarray  # per request: the request behind it + 1
    pools: np.ndarray
    replicas: np.ndarray
    list_heads: np.ndarray
    list_tails: np.ndarray
    prefill: np.ndarray  # heaps of the requests in their prompt, all replicas in one array
    decode: np.ndarray  # heaps of the requests that decode
    event_s: np.ndarray  # winner tree of each replica's next event
    totals: np.ndarray  # pools x windows
    window: np.ndarray  # start and end of the measured time, seconds a window
    refresh_steps: int


@jit
def account(state, rep, start, end, steps):
    """Add a stretch of steps to the totals of the windows it lies in, shared by time."""
    origin = state.window[0]
    width = state.window[2]
    begin = max(start, origin)
    stop = min(end, state.window[1])
    if begin >= stop:
        return
    last = min(int((stop - origin) / width), state.totals.shape[1] - 1)
    for cell in range(int((begin - origin) / width), last + 1):
        part = min(stop, origin + (cell + 1) * width) - max(begin, origin + cell * width)
        share = float(steps) * (part / (end - start))
        total = state.totals[rep["pool"], cell]
        total["steps"] += share
        total["busy_s"] += part
        if rep["first_queued"] > 0:
            total["full_steps"] += share * rep["active"]
            total["full_s"] += part


@jit
def advance(state, rep, steps):
    """Run `steps` steps in which nothing changes but ages."""
    start = rep["clock_s"]
    end = start + span_s(rep["base_s"], rep["work_s"], rep["growth_s"], float(steps))
    account(state, rep, start, end, steps)
    rep["clock_s"] = end
    rep["work_s"] += rep["growth_s"] * steps
    rep["step"] += steps


@jit
def schedule(state, r):
    """Find the replica's next event and tell the tree."""
    rep = state.replicas[r]
    if rep["active"] == 0:
        set_time(state.event_s, r, np.inf)
        return
    key = NEVER
    if rep["prefilling"] > 0:
        key = state.prefill[rep["heap_start"]]
    if rep["active"] > rep["prefilling"]:
        key = min(key, state.decode[rep["heap_start"]])
    rep["next_step"] = key >> KEY_BITS
    steps = float(rep["next_step"] - rep["step"])
    time = rep["clock_s"] + span_s(rep["base_s"], rep["work_s"], rep["growth_s"], steps)
    set_time(state.event_s, r, time)


@jit
def steps_until(rep, instant):
    """Steps to the first boundary at or after `instant`, which lies after the clock and before the next event.

    The boundary solves a quadratic; two comparisons with the very instants that the replica's clock would
    take make the whole number exact.
    """
    need = instant - rep["clock_s"]
    half_growth = 0.5 * rep["growth_s"]
    first = rep["base_s"] + rep["work_s"] - half_growth
    root = np.sqrt(max(first * first + 4.0 * half_growth * need, 0.0))
    last = rep["next_step"] - rep["step"]
    steps = int(min(max(np.ceil(2.0 * need / (first + root)), 1.0), float(last)))
    while (
        steps < last and rep["clock_s"] + span_s(rep["base_s"], rep["work_s"], rep["growth_s"], float(steps)) < instant
    ):
        steps += 1
    while (
        steps > 1
        and rep["clock_s"] + span_s(rep["base_s"], rep["work_s"], rep["growth_s"], float(steps - 1)) >= instant
    ):
        steps -= 1
    return steps


@jit
def fits(state, rep, request):
    """The admission rule: a free sequence and blocks for the whole request."""
    blocks = state.kinds[state.kind[request]]["blocks"]
    return rep["active"] < rep["max_active"] and blocks <= rep["free_blocks"]


@jit
def admit(state, rep, request):
    """Start a request at the replica's clock."""
    work = state.kinds[state.kind[request]]
    state.admit_s[request] = rep["clock_s"]
    rep["free_blocks"] -= work["blocks"]
    full = int(work["full_steps"])
    if full > 0:
        rep["work_s"] += work["full_first_s"]
        rep["growth_s"] += work["full_slope_s"]
        key = (rep["step"] + full) << KEY_BITS | request << 1
    else:
        rep["work_s"] += work["last_s"]
        key = (rep["step"] + 1) << KEY_BITS | request << 1 | 1
    push(state.prefill, rep["heap_start"], rep["prefilling"], key)
    rep["prefilling"] += 1
    rep["active"] += 1


@jit
def enqueue(state, rep, request):
    """Put a request behind all others of its replica."""
    if rep["last_queued"] == 0:
        rep["first_queued"] = request + 1
    else:
        state.next_queued[rep["last_queued"] - 1] = request + 1
    rep["last_queued"] = request + 1


@jit
def admit_queued(state, rep):
    """Admit from the head of the queue until it is empty or its head must wait."""
    while rep["first_queued"] > 0 and fits(state, rep, rep["first_queued"] - 1):
        request = np.int64(rep["first_queued"]) - 1
        rep["first_queued"] = state.next_queued[request]
        admit(state, rep, request)
    if rep["first_queued"] == 0:
        rep["last_queued"] = 0


@jit
def leave(state, rep, request, work):
    """The last token of a request: its room is free."""
    state.end_s[request] = rep["clock_s"]
    rep["free_blocks"] += work["blocks"]
    rep["active"] -= 1
    if rep["active"] == 0:
        rep["work_s"] = 0.0
        rep["growth_s"] = 0.0
        rep["step"] = 0


@jit
def finish_full_chunks(state, rep, request, work):
    """From the full prompt chunks to the last one."""
    rep["work_s"] += work["last_s"] - (work["full_first_s"] + work["full_slope_s"] * work["full_steps"])
    rep["growth_s"] -= work["full_slope_s"]
    key = (rep["step"] + 1) << KEY_BITS | request << 1 | 1
    replace_first(state.prefill, rep["heap_start"], rep["prefilling"], key)


@jit
def first_token(state, rep, request, work):
    """From the last prompt chunk to decoding, or out where there is nothing to decode."""
    state.first_s[request] = rep["clock_s"]
    drop_first(state.prefill, rep["heap_start"], rep["prefilling"])
    rep["prefilling"] -= 1
    rep["work_s"] -= work["last_s"]
    if work["decode_steps"] == 0:
        leave(state, rep, request, work)
        return 1
    rep["work_s"] += work["decode_first_s"]
    rep["growth_s"] += work["decode_slope_s"]
    key = (rep["step"] + int(work["decode_steps"])) << KEY_BITS | request << 1
    push(state.decode, rep["heap_start"], rep["active"] - rep["prefilling"] - 1, key)
    return 0


@jit
def request_of(key):
    """The request number that a heap key holds."""
    return (key >> 1) & (2 ** (KEY_BITS - 1) - 1)


@jit
def end_prefills(state, rep, step):
    """All prompt phases that end at the boundary before `step`; returns how many requests left."""
    left = 0
    start = rep["heap_start"]
    while rep["prefilling"] > 0 and state.prefill[start] >> KEY_BITS == step:
        key = state.prefill[start]
        request = request_of(key)
        work = state.kinds[state.kind[request]]
        if key & 1:
            left += first_token(state, rep, request, work)
        else:
            finish_full_chunks(state, rep, request, work)
    return left


@jit
def end_decodes(state, rep, step):
    """All requests whose last token comes at the boundary before `step`; returns how many."""
    left = 0
    start = rep["heap_start"]
    while rep["active"] > rep["prefilling"] and state.decode[start] >> KEY_BITS == step:
        request = request_of(state.decode[start])
        work = state.kinds[state.kind[request]]
        drop_first(state.decode, start, rep["active"] - rep["prefilling"])
        rep["work_s"] -= work["decode_first_s"] + work["decode_slope_s"] * work["decode_steps"]
        rep["growth_s"] -= work["decode_slope_s"]
        leave(state, rep, request, work)
        left += 1
    return left


@jit
def refresh(state, rep):
    """Compute the sums from the requests in the heaps, which ends rounding drift, and count steps from 0."""
    start = rep["heap_start"]
    shift = rep["step"] << KEY_BITS
    rep["work_s"] = 0.0
    rep["growth_s"] = 0.0
    for j in range(start, start + rep["prefilling"]):
        state.prefill[j] -= shift
        key = state.prefill[j]
        work = state.kinds[state.kind[request_of(key)]]
        if key & 1:
            rep["work_s"] += work["last_s"]
        else:
            age = work["full_steps"] - float(key >> KEY_BITS)
            rep["work_s"] += work["full_first_s"] + work["full_slope_s"] * age
            rep["growth_s"] += work["full_slope_s"]
    for j in range(start, start + rep["active"] - rep["prefilling"]):
        state.decode[j] -= shift
        key = state.decode[j]
        work = state.kinds[state.kind[request_of(key)]]
        age = work["decode_steps"] - float(key >> KEY_BITS)
        rep["work_s"] += work["decode_first_s"] + work["decode_slope_s"] * age
        rep["growth_s"] += work["decode_slope_s"]
    rep["step"] = 0


@jit
def step_end(state, r):
    """A replica reaches its next event: phases end, requests leave, others enter. Returns the change of its load."""
    rep = state.replicas[r]
    advance(state, rep, rep["next_step"] - rep["step"])
    step = rep["step"]
    left = end_prefills(state, rep, step)
    left += end_decodes(state, rep, step)
    if rep["first_queued"] > 0:
        admit_queued(state, rep)
    if rep["step"] > state.refresh_steps:
        refresh(state, rep)
    return -left


@jit
def arrive(state, r, request):
    """A request reaches the replica it was given to. Returns the change of its load."""
    rep = state.replicas[r]
    now = state.arrival_s[request]
    state.replica[request] = r
    if rep["first_queued"] > 0 or not fits(state, rep, request):
        enqueue(state, rep, request)
        return 1
    if rep["active"] == 0:
        rep["clock_s"] = now
    elif rep["clock_s"] < now:
        advance(state, rep, steps_until(rep, now))
    admit(state, rep, request)
    return 1


@entry
def run(state):
    """Let every request arrive, and run until the last has left."""
    request = 0
    num_requests = state.arrival_s.size
    while True:
        r = earliest(state.event_s)
        event_s = state.event_s[r + (state.event_s.size >> 1)]
        if request < num_requests and state.arrival_s[request] < event_s:
            r = least_loaded(state.pools, state.list_heads, state.kinds[state.kind[request]]["pool"])
            change = arrive(state, r, request)
            request += 1
        elif event_s < np.inf:
            change = step_end(state, r)
        else:
            return
        if change != 0:
            change_load(state.replicas, state.pools, state.list_heads, state.list_tails, r, change)
        schedule(state, r)
