"""Time of one replica: how long its next steps take, what they add to the totals, and when its next event is.

Between two events of a replica the work of its steps is an arithmetic series, so an event that lies a known number of
steps ahead has a known instant.
"""

from __future__ import annotations

import numpy as np

from des._blocks import blocks_ahead, exhausted
from des._gaps import record_gaps
from des._heap import set_time
from des._jit import inline, jit, law
from des._state import GROW, INDEPENDENT, KEY_BITS, NEVER
from jaxsim import physics

span_s = law(physics.span_s)


@inline
def span(rep, steps):
    """Seconds that the next `steps` steps take."""
    if rep["paused"]:
        return rep["base_s"] + rep["extra_s"]
    return span_s(rep["base_s"], rep["work_s"], rep["growth_s"], float(steps)) + rep["extra_s"]


@jit
def account(state, rep, start, end, steps, blocks):
    """Add a stretch of steps to the totals of the windows it lies in, shared by time."""
    origin = state.window[0]
    width = state.window[2]
    begin = max(start, origin)
    stop = min(end, state.window[1])
    if begin >= stop:
        return
    state.levels[rep["pool"], rep["active"]] += stop - begin
    last = min(int((stop - origin) / width), state.totals.shape[1] - 1)
    for cell in range(int((begin - origin) / width), last + 1):
        part = min(stop, origin + (cell + 1) * width) - max(begin, origin + cell * width)
        share = float(steps) * (part / (end - start))
        total = state.totals[rep["pool"], cell]
        total["steps"] += share
        total["busy_s"] += part
        total["active_s"] += part * rep["active"]
        total["block_s"] += part * blocks
        if rep["refused"]:
            total["full_steps"] += share * rep["active"]
            total["full_s"] += part


@jit
def note_queue(state, pool, instant, change):
    """Add a change of a pool's queue to the totals, for the integral of its length over time."""
    start = state.window[0]
    if instant < start:
        state.totals[pool, 0]["before"] += change
    elif instant < state.window[1]:
        cell = int((instant - start) / state.window[2])
        total = state.totals[pool, min(cell, state.totals.shape[1] - 1)]
        total["queued"] += change
        total["queued_s"] += change * instant


@jit
def advance(state, rep, steps):
    """Run `steps` steps in which nothing changes but ages, and forget what was said of the first of them."""
    start = rep["clock_s"]
    end = start + span(rep, steps)
    used = state.pools[rep["pool"]]["kv_blocks"] - rep["free_blocks"]
    if state.kv == GROW and not rep["paused"]:
        grown = blocks_ahead(state, rep, steps - 1)
        rep["free_blocks"] -= grown
        account(state, rep, start, end, steps, used + 0.5 * grown)
    else:
        account(state, rep, start, end, steps, float(used))
    if state.gaps.size > 0:
        record_gaps(state, rep, steps)
    rep["clock_s"] = end
    rep["ran"] += steps
    if not rep["paused"]:
        rep["work_s"] += rep["growth_s"] * steps
        rep["step"] += steps
        rep["granted"] = 0
    rep["call"] = 0
    rep["paused"] = 0
    rep["closed"] = 0
    if rep["extra_s"] > 0.0 or rep["tokens"] > 0:
        rep["extra_s"] = 0.0
        rep["held_s"] = 0.0
        rep["swap_s"] = 0.0
        rep["area"] = 0.0
        rep["tokens"] = 0


@inline
def steps_ahead(state, rep):
    """Steps to the replica's next event."""
    if rep["closed"] or rep["extra_s"] > 0.0 or (state.scheduling != INDEPENDENT and rep["prefilling"] > 0):
        return np.int64(1)
    key = NEVER
    if rep["prefilling"] > 0:
        key = state.prefill[rep["heap_start"]]
    if rep["active"] > rep["prefilling"]:
        key = min(key, state.decode[rep["heap_start"]])
    ahead = (key >> KEY_BITS) - rep["step"]
    if rep["call"] > 0:
        ahead = min(ahead, rep["call"] - rep["step"])
    if state.kv == GROW:
        ahead = exhausted(state, rep, ahead)
    return ahead


@jit
def schedule(state, r):
    """Find the replica's next event and tell the tree."""
    rep = state.replicas[r]
    if rep["active"] == 0:
        set_time(state.event_s, r, np.inf)
        return
    rep["ahead"] = steps_ahead(state, rep)
    set_time(state.event_s, r, rep["clock_s"] + span(rep, rep["ahead"]))


@inline
def steps_until(rep, instant):
    """Steps to the first boundary at or after `instant`, which lies after the clock and before the next event.

    The boundary solves a quadratic; two comparisons with the very instants that the replica's clock would
    take make the whole number exact.
    """
    last = rep["ahead"]
    if last <= 1:
        return last
    need = instant - rep["clock_s"]
    half_growth = 0.5 * rep["growth_s"]
    first = rep["base_s"] + rep["work_s"] - half_growth
    root = np.sqrt(max(first * first + 4.0 * half_growth * need, 0.0))
    steps = int(min(max(np.ceil(2.0 * need / (first + root)), 1.0), float(last)))
    while steps < last and rep["clock_s"] + span(rep, steps) < instant:
        steps += 1
    while steps > 1 and rep["clock_s"] + span(rep, steps - 1) >= instant:
        steps -= 1
    return steps
