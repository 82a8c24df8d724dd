"""A request reaches a replica, which lets it join at the next boundary or queue."""

from __future__ import annotations

import numpy as np

from des._admission import admit, enqueue, fits
from des._dispatch import change_load, dispatch
from des._jit import inline, jit
from des._kv import admit_queued, open_step
from des._state import GROW, INDEPENDENT, OVERFLOW, PREFILL_FIRST, RESERVE
from des._time import advance, note_queue, schedule, span, steps_until


@jit
def settle(state, r, change):
    """Tell the dispatcher the change of a replica's load, and the tree its next event."""
    if change != 0:
        change_load(state, r, change)
    schedule(state, r)


@inline
def joins_ahead(state):
    """Whether nothing at a boundary but departures changes what fits there, and nothing sees who joined before it."""
    return state.scheduling == INDEPENDENT and state.kv == RESERVE and state.cache_blocks == 0


@jit
def wake(state, r, now):
    """Let the head of a replica's queue join at the next boundary at or after `now`, if it fits there."""
    rep = state.replicas[r]
    if rep["active"] == 0:
        rep["clock_s"] = now
        open_step(state, r)
    elif rep["clock_s"] >= now:
        admit_queued(state, r)
    elif state.kv == OVERFLOW or fits(state, r, np.int64(rep["first_queued"]) - 1):
        steps = steps_until(rep, now)
        settled = state.scheduling == PREFILL_FIRST and state.kv == GROW
        if settled and rep["clock_s"] + span(rep, steps) == now:
            steps += 1  # the step that starts now has the blocks for its decoding
        if settled or state.cache_blocks > 0:
            rep["call"] = rep["step"] + steps
        elif steps < rep["ahead"] or joins_ahead(state):
            advance(state, rep, steps)
            open_step(state, r)
    else:
        rep["refused"] = 1
    if rep["active"] == 0:
        rep["refused"] = 0


@jit
def arrive(state, r, slot, now):
    """A request reaches the replica it was given to."""
    rep = state.replicas[r]
    request = state.requests[slot]
    request["replica"] = r
    if state.eventful:
        state.journeys[slot]["arrive_s"] = now
    request["kind"] = rep["pool"] * state.num_rows + request["row"]
    if joins_ahead(state) and rep["first_queued"] == 0 and fits(state, r, slot):
        if rep["active"] == 0:
            rep["clock_s"] = now
        elif rep["clock_s"] < now:
            advance(state, rep, steps_until(rep, now))
        admit(state, r, slot)
        return
    empty = rep["first_queued"] == 0
    enqueue(state, rep, slot)
    note_queue(state, rep["pool"], now, 1.0)
    if empty:
        wake(state, r, now)


@jit
def place(state, slot, now):
    """Give a request to a replica, or let it wait for one to come up. Returns the replica, -1 for none."""
    r = dispatch(state, slot)
    if r >= 0:
        arrive(state, r, slot, now)
        return r
    at = state.now[0]
    state.requests[slot]["next"] = 0
    if at["last_held"] == 0:
        at["first_held"] = slot + 1
    else:
        state.requests[at["last_held"] - 1]["next"] = slot + 1
    at["last_held"] = slot + 1
    return r


@jit
def place_again(state, slot, now):
    """Give a request to a replica, apart from the arrivals."""
    r = place(state, slot, now)
    if r >= 0:
        settle(state, r, 1)
