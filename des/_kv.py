"""What happens at a boundary once its phases have ended: blocks for the next tokens, preemption, admission.

**No livelock.** Where blocks grow, a victim is always the request that arrived last, so the first never loses its
place: it fits alone, or it would have been rejected, and so it ends. Under the overflow rule a request that has been
preempted waits for room, so it preempts others at most once.
"""

from __future__ import annotations

import numpy as np

from des._admission import admit, blocks_wanted, fits, take_piece, within_budget
from des._batch import count_piece, decode_work, full_chunk_work, give_blocks, kind_of, prompt_of, slot_of, vacate
from des._blocks import blocks_at, blocks_of, count_residue
from des._heap import remove
from des._jit import jit
from des._state import (
    CHUNKED,
    DECODES,
    GROW,
    INDEPENDENT,
    KEY_BITS,
    OVERFLOW,
    PREFILL_FIRST,
    SWAP,
    SWAPPED,
    UNSET,
)
from des._time import note_queue


@jit
def put_first(state, rep, slot):
    """Put a request before all others of its replica's queue."""
    state.requests[slot]["next"] = rep["first_queued"]
    rep["first_queued"] = slot + 1
    if rep["last_queued"] == 0:
        rep["last_queued"] = slot + 1


@jit
def take_first(state, rep):
    """Take the head of a replica's queue out of it."""
    slot = np.int64(rep["first_queued"]) - 1
    rep["first_queued"] = state.requests[slot]["next"]
    if rep["first_queued"] == 0:
        rep["last_queued"] = 0
    return slot


@jit
def stop_decoding(state, rep, place):
    """Take entry `place` of the decode heap out; what it has generated and computed stays noted."""
    key = state.decode[rep["heap_start"] + place]
    slot = slot_of(key)
    request = state.requests[slot]
    kind = kind_of(state, slot)
    left = (key >> KEY_BITS) - rep["step"]
    remove(state.decode, rep["heap_start"], rep["active"] - rep["prefilling"], place)
    rep["work_s"] -= decode_work(kind, left)
    rep["growth_s"] -= kind["decode_slope_s"]
    journey = state.journeys[slot]
    request["generated"] = kind["output"] - left
    journey["computed"] = kind["input"] + request["generated"] - 1
    if state.kv == GROW:
        count_residue(state, rep, key >> KEY_BITS, kind, -1)
        give_blocks(rep, blocks_of(journey["computed"], rep["block"]))
    return slot


@jit
def stop_prompt(state, rep, place):
    """Take entry `place` of the prefill heap out; what it has computed stays noted."""
    key = state.prefill[rep["heap_start"] + place]
    slot = slot_of(key)
    request = state.requests[slot]
    journey = state.journeys[slot]
    kind = kind_of(state, slot)
    if state.scheduling != INDEPENDENT:
        if journey["piece"] > 0:
            count_piece(state, rep, slot, -1.0)
        journey["computed"] = journey["held"] - journey["piece"]
    elif key & 1:
        rep["work_s"] -= kind["last_s"]
        journey["computed"] = journey["cached"] + int(kind["full_steps"] * state.pools[rep["pool"]]["chunk"])
    else:
        age = kind["full_steps"] - float((key >> KEY_BITS) - rep["step"])
        rep["work_s"] -= full_chunk_work(kind, age)
        rep["growth_s"] -= kind["full_slope_s"]
        journey["computed"] = journey["cached"] + int(age * state.pools[rep["pool"]]["chunk"])
    remove(state.prefill, rep["heap_start"], rep["prefilling"], place)
    rep["prefilling"] -= 1
    if rep["prefilling"] == 0:
        rep["paused"] = 0
    if state.kv == GROW:
        give_blocks(rep, blocks_of(prompt_of(state, request), rep["block"]))
    return slot


@jit
def longer(state, slot, other):
    """Whether the overflow rule preempts the request in `slot` rather than that in `other`."""
    kind = kind_of(state, slot)
    than = kind_of(state, other)
    difference = kind["input"] + kind["output"] - than["input"] - than["output"]
    return difference > 0 or (difference == 0 and state.requests[slot]["number"] > state.requests[other]["number"])


@jit
def rather(state, slot, other):
    """Whether the request in `slot` is a victim rather than that in `other`."""
    if state.kv == OVERFLOW:
        return longer(state, slot, other)
    return state.requests[slot]["number"] > state.requests[other]["number"]


@jit
def preempt(state, r):
    """Stop one running request, the rule's victim, and put it at the head of the queue."""
    rep = state.replicas[r]
    start = rep["heap_start"]
    victim = np.int64(-1)
    place = 0
    decodes = False
    for j in range(rep["prefilling"]):
        slot = slot_of(state.prefill[start + j])
        if victim < 0 or rather(state, slot, victim):
            victim, place = slot, j
    for j in range(rep["active"] - rep["prefilling"]):
        slot = slot_of(state.decode[start + j])
        if victim < 0 or rather(state, slot, victim):
            victim, place, decodes = slot, j, True
    request = state.requests[victim]
    journey = state.journeys[victim]
    journey["steps"] += rep["ran"] - request["joined"]
    if decodes:
        stop_decoding(state, rep, place)
    else:
        stop_prompt(state, rep, place)
    rep["active"] -= 1
    journey["preemptions"] += 1
    journey["stop_s"] = rep["clock_s"]
    journey["stamp"] = rep["appended"]
    if state.kv == OVERFLOW:
        give_blocks(rep, np.int64(kind_of(state, victim)["blocks"]))
        request["generated"] = 0
        request["ready"] = 0
        request["first_s"] = UNSET
        journey["decode_admit_s"] = UNSET
        if state.pools[rep["pool"]]["role"] != DECODES:
            request["admit_s"] = UNSET
    elif state.preemption == SWAP and decodes:
        request["ready"] = SWAPPED
        seconds = float(prompt_of(state, request)) * state.swap_s_per_token
        rep["swap_s"] += seconds
        rep["extra_s"] += seconds
    put_first(state, rep, victim)
    note_queue(state, rep["pool"], rep["clock_s"], 1.0)


@jit
def grow(state, r):
    """Take the blocks that the coming step's tokens are stored in, from victims where there are too few."""
    rep = state.replicas[r]
    while blocks_at(state, rep, rep["step"]) > rep["free_blocks"]:
        preempt(state, r)
        rep["closed"] = 1
        rep["refused"] = 1
    rep["free_blocks"] -= blocks_at(state, rep, rep["step"])
    rep["granted"] = 1


@jit
def reclaimable(state, rep):
    """Blocks of the running requests."""
    blocks = np.int64(0)
    start = rep["heap_start"]
    for j in range(start, start + rep["prefilling"]):
        blocks += kind_of(state, slot_of(state.prefill[j]))["blocks"]
    for j in range(start, start + rep["active"] - rep["prefilling"]):
        blocks += kind_of(state, slot_of(state.decode[j]))["blocks"]
    return blocks


@jit
def make_room(state, r, slot):
    """The overflow rule: preempt the longest running requests until one that never was a victim fits."""
    rep = state.replicas[r]
    request = state.requests[slot]
    if state.journeys[slot]["preemptions"] > 0 or rep["active"] >= rep["max_active"]:
        return False
    if state.scheduling != INDEPENDENT and not within_budget(state, r, slot):
        return False
    if blocks_wanted(state, rep, request) > rep["free_blocks"] + reclaimable(state, rep):
        return False
    take_first(state, rep)
    while blocks_wanted(state, rep, request) > rep["free_blocks"]:
        preempt(state, r)
    put_first(state, rep, slot)
    return True


@jit
def admissible(state, r, slot):
    """Whether the head of the queue may start now, if need be at the cost of others."""
    return fits(state, r, slot) or (state.kv == OVERFLOW and make_room(state, r, slot) and fits(state, r, slot))


@jit
def admit_queued(state, r):
    """Admit from the head of the queue until it is empty or its head must wait."""
    rep = state.replicas[r]
    if state.scheduling == PREFILL_FIRST and rep["granted"]:
        rep["closed"] = 1
    if rep["closed"]:
        rep["refused"] = 1
        return
    while rep["first_queued"] > 0:
        slot = np.int64(rep["first_queued"]) - 1
        if not admissible(state, r, slot):
            rep["refused"] = 1
            return
        take_first(state, rep)
        note_queue(state, rep["pool"], rep["clock_s"], -1.0)
        admit(state, r, slot)
    rep["refused"] = 0


@jit
def go_on(state, r):
    """Give the one unfinished prompt its next piece."""
    rep = state.replicas[r]
    slot = slot_of(state.prefill[rep["heap_start"]])
    request = state.requests[slot]
    done = take_piece(state, rep, slot, prompt_of(state, request))
    state.prefill[rep["heap_start"]] = slot << 1 | np.int64(done)


@jit
def open_step(state, r):
    """Settle what the step that starts at the clock is made of."""
    rep = state.replicas[r]
    if state.scheduling == PREFILL_FIRST:
        if rep["first_queued"] > 0:
            admit_queued(state, r)
        if state.kv == GROW and rep["paused"] == 0 and rep["active"] > 0:
            grow(state, r)
        return
    if state.kv == GROW and rep["active"] > rep["prefilling"]:
        grow(state, r)
    if state.scheduling == CHUNKED and rep["prefilling"] > 0:
        go_on(state, r)
    if rep["first_queued"] > 0:
        admit_queued(state, r)
    vacate(rep)
