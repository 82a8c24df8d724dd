"""The ends of a request's phases: prompt chunks, the first token, the last one."""

from __future__ import annotations

import numpy as np

from des._batch import (
    decode_work,
    full_chunk_work,
    give_blocks,
    kind_of,
    push_by_number,
    slot_of,
    start_decoding,
    vacate,
)
from des._blocks import blocks_of, count_residue, forget_residues
from des._gaps import record_gap
from des._heap import drop_first, replace_first
from des._jit import inline, jit
from des._state import GROW, INDEPENDENT, KEY_BITS, PREFILLS, TRANSFERRED, UNSET


@jit
def tell_journey(state, slot, out):
    """Write what else there is to say of a request into its record."""
    journey = state.journeys[slot]
    out["steps"] += journey["steps"]
    out["prefill_steps"] = journey["prefill_steps"]
    out["preemptions"] = journey["preemptions"]
    out["retries"] = journey["retries"]
    out["prefill_replica"] = journey["prefill_replica"]
    out["due_s"] = journey["due_s"]
    out["prefill_end_s"] = journey["prefill_end_s"]
    out["arrive_s"] = journey["arrive_s"]
    out["decode_admit_s"] = journey["decode_admit_s"]


@inline
def finish(state, rep, slot):
    """Hand out the record of a request whose last token is out, and free its slot."""
    request = state.requests[slot]
    now = state.now[0]
    out = state.finished[now["finished"]]
    now["finished"] += 1
    out["sent_s"] = request["sent_s"]
    out["admit_s"] = request["admit_s"]
    out["first_s"] = request["first_s"]
    out["end_s"] = rep["clock_s"]
    out["number"] = request["number"]
    out["row"] = request["row"]
    out["replica"] = request["replica"]
    out["steps"] = rep["ran"] - request["joined"]
    if state.eventful:
        tell_journey(state, slot, out)
    request["next"] = now["free_slot"]
    now["free_slot"] = slot + 1
    now["outstanding"] -= 1
    now["freed_s"] = rep["clock_s"]


@jit
def leave(state, rep, slot):
    """The last token of a request: its room is free."""
    kind = kind_of(state, slot)
    blocks = np.int64(kind["blocks"])
    if state.kv == GROW:
        blocks = blocks_of(kind["input"] + kind["output"] - 1, rep["block"])
    give_blocks(rep, blocks)
    rep["active"] -= 1
    finish(state, rep, slot)
    vacate(rep)


@jit
def hand_over(state, r, slot):
    """The prompt of a request is computed where only prompts are: its KV is to join the queue of the link."""
    rep = state.replicas[r]
    request = state.requests[slot]
    journey = state.journeys[slot]
    now = state.now[0]
    journey["steps"] += rep["ran"] - request["joined"]
    journey["prefill_steps"] = journey["steps"]
    journey["prefill_end_s"] = rep["clock_s"]
    journey["prefill_replica"] = r
    request["generated"] = 1
    request["ready"] = TRANSFERRED
    journey["life"] = rep["life"]
    rep["active"] -= 1
    vacate(rep)
    push_by_number(state, slot, now["handed"])
    now["handed"] += 1


@jit
def first_token(state, r, slot):
    """From the prompt to decoding, or out where there is nothing to decode. Returns the change of the load."""
    rep = state.replicas[r]
    request = state.requests[slot]
    kind = kind_of(state, slot)
    rep["prefilling"] -= 1
    if state.scheduling == INDEPENDENT:
        rep["work_s"] -= kind["last_s"]
    role = state.pools[rep["pool"]]["role"]
    if role == PREFILLS and kind["output"] > 1:
        hand_over(state, r, slot)
        return -1
    if request["first_s"] == UNSET:
        request["first_s"] = rep["clock_s"]
    elif state.gaps.size > 0:
        record_gap(state, rep, rep["clock_s"] - state.journeys[slot]["stop_s"])
    if kind["decode_steps"] == 0.0:
        leave(state, rep, slot)
        return -1
    start_decoding(state, rep, slot, np.int64(kind["decode_steps"]))
    return 0


@jit
def finish_full_chunks(state, rep, slot):
    """From the full prompt chunks to the last one."""
    kind = kind_of(state, slot)
    rep["work_s"] += kind["last_s"] - full_chunk_work(kind, kind["full_steps"])
    rep["growth_s"] -= kind["full_slope_s"]
    key = (rep["step"] + 1) << KEY_BITS | slot << 1 | 1
    replace_first(state.prefill, rep["heap_start"], rep["prefilling"], key)


@jit
def end_prefills(state, r):
    """All prompt phases that end at this boundary. Returns the change of the load."""
    rep = state.replicas[r]
    change = 0
    start = rep["heap_start"]
    while rep["prefilling"] > 0 and state.prefill[start] >> KEY_BITS == rep["step"]:
        key = state.prefill[start]
        if key & 1:
            drop_first(state.prefill, start, rep["prefilling"])
            change += first_token(state, r, slot_of(key))
        else:
            finish_full_chunks(state, rep, slot_of(key))
    return change


@jit
def end_pieces(state, r):
    """The prompt pieces of the step that ended; at most the last prompt goes on. Returns the change of the load."""
    rep = state.replicas[r]
    start = rep["heap_start"]
    number = rep["prefilling"]
    change = 0
    for j in range(start, start + number):
        key = state.prefill[j]
        if key & 1:
            change += first_token(state, r, slot_of(key))
        else:
            state.prefill[start] = key
            state.journeys[slot_of(key)]["piece"] = 0
    return change


@jit
def end_decodes(state, r):
    """All requests whose last token comes at this boundary. Returns the change of the load."""
    rep = state.replicas[r]
    change = 0
    start = rep["heap_start"]
    while rep["active"] > rep["prefilling"] and state.decode[start] >> KEY_BITS == rep["step"]:
        slot = slot_of(state.decode[start])
        kind = kind_of(state, slot)
        drop_first(state.decode, start, rep["active"] - rep["prefilling"])
        rep["work_s"] -= decode_work(kind, 0)
        rep["growth_s"] -= kind["decode_slope_s"]
        if state.kv == GROW:
            count_residue(state, rep, rep["step"], kind, -1)
        leave(state, rep, slot)
        change -= 1
    return change


@jit
def refresh(state, r):
    """Compute the sums from the requests in the heaps, which ends rounding drift, and count steps from 0."""
    rep = state.replicas[r]
    start = rep["heap_start"]
    step = rep["step"]
    rep["work_s"] = 0.0
    rep["growth_s"] = 0.0
    rep["step"] = 0
    forget_residues(state, rep)
    if state.scheduling == INDEPENDENT:
        for j in range(start, start + rep["prefilling"]):
            state.prefill[j] -= step << KEY_BITS
            key = state.prefill[j]
            kind = kind_of(state, slot_of(key))
            if key & 1:
                rep["work_s"] += kind["last_s"]
            else:
                age = kind["full_steps"] - float(key >> KEY_BITS)
                rep["work_s"] += full_chunk_work(kind, age)
                rep["growth_s"] += kind["full_slope_s"]
    for j in range(start, start + rep["active"] - rep["prefilling"]):
        state.decode[j] -= step << KEY_BITS
        key = state.decode[j]
        kind = kind_of(state, slot_of(key))
        left = key >> KEY_BITS
        rep["work_s"] += decode_work(kind, left)
        rep["growth_s"] += kind["decode_slope_s"]
        if state.kv == GROW:
            count_residue(state, rep, left, kind, 1)
