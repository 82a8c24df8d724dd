"""Replicas that go down, are drained, come up, and are capped."""

from __future__ import annotations

import numpy as np

from des._arrival import place_again, wake
from des._batch import pop_by_number, push_by_number, slot_of
from des._blocks import forget_residues
from des._dispatch import accept, refuse
from des._jit import jit
from des._prefix import forget
from des._state import CAP, DOWN, DRAIN, UNSET
from des._time import account, note_queue, schedule, steps_until


@jit
def go_down(state, r, now):
    """Everything on a replica is lost and tried again elsewhere."""
    rep = state.replicas[r]
    if rep["place"] >= 0:
        refuse(state, r)
    if rep["active"] > 0 and rep["clock_s"] < now:  # the time since its last event, without the step that is lost
        used = state.pools[rep["pool"]]["kv_blocks"] - rep["free_blocks"]
        account(state, rep, rep["clock_s"], now, steps_until(rep, now) - 1, float(used))
    start = rep["heap_start"]
    number = 0
    for j in range(start, start + rep["prefilling"]):
        push_by_number(state, slot_of(state.prefill[j]), number)
        number += 1
    for j in range(start, start + rep["active"] - rep["prefilling"]):
        push_by_number(state, slot_of(state.decode[j]), number)
        number += 1
    queued = np.int64(rep["first_queued"])
    while queued > 0:
        push_by_number(state, queued - 1, number)
        number += 1
        queued = np.int64(state.requests[queued - 1]["next"])
        note_queue(state, rep["pool"], now, -1.0)
    clear(state, r)
    for j in range(number):
        slot = pop_by_number(state, number - j)
        retry(state, slot)
        place_again(state, slot, now)


@jit
def clear(state, r):
    """A replica as new, but for its life and its count of steps."""
    rep = state.replicas[r]
    rep["work_s"] = 0.0
    rep["growth_s"] = 0.0
    rep["extra_s"] = 0.0
    rep["held_s"] = 0.0
    rep["swap_s"] = 0.0
    rep["area"] = 0.0
    rep["stall_s"] = 0.0
    forget_residues(state, rep)
    rep["step"] = 0
    rep["call"] = 0
    rep["tokens"] = 0
    rep["active"] = 0
    rep["prefilling"] = 0
    rep["load"] = 0
    rep["first_queued"] = 0
    rep["last_queued"] = 0
    rep["paused"] = 0
    rep["closed"] = 0
    rep["granted"] = 0
    rep["refused"] = 0
    rep["life"] += 1
    rep["free_blocks"] = state.pools[rep["pool"]]["kv_blocks"]
    if state.cache_blocks > 0:
        forget(state, r)
    schedule(state, r)


@jit
def retry(state, slot):
    """A request from scratch."""
    request = state.requests[slot]
    journey = state.journeys[slot]
    journey["retries"] += 1
    journey["steps"] = 0
    journey["prefill_steps"] = 0
    request["generated"] = 0
    request["ready"] = 0
    journey["computed"] = 0
    journey["stamp"] = 0
    request["admit_s"] = UNSET
    request["first_s"] = UNSET
    journey["prefill_end_s"] = UNSET
    journey["decode_admit_s"] = UNSET
    if journey["prefill_replica"] >= 0:
        request["choice"] = 0
        journey["prefill_replica"] = -1


@jit
def place_held(state, now):
    """Try again to place the requests that wait for a replica to come up."""
    at = state.now[0]
    slot = at["first_held"] - 1
    at["first_held"] = 0
    at["last_held"] = 0
    while slot >= 0:
        behind = np.int64(state.requests[slot]["next"]) - 1
        place_again(state, slot, now)
        slot = behind


@jit
def cap(state, r, most, now):
    """Let at most `most` requests run. Who is in stays; who waits joins at the next boundary where there is room."""
    rep = state.replicas[r]
    rep["max_active"] = most
    if rep["first_queued"] > 0:
        wake(state, r, now)
        schedule(state, r)


@jit
def change_fleet(state):
    """The next change of the timeline; after the last of an instant, requests that wait for a replica are placed."""
    at = state.now[0]
    entry = state.timeline[at["timeline"]]
    at["timeline"] += 1
    r = np.int64(entry["replica"])
    rep = state.replicas[r]
    if entry["what"] == DOWN:
        go_down(state, r, entry["time_s"])
    elif entry["what"] == DRAIN:
        if rep["place"] >= 0:
            refuse(state, r)
    elif entry["what"] >= CAP:
        cap(state, r, np.int64(entry["what"]) - CAP, entry["time_s"])
    elif rep["place"] < 0:
        accept(state, r)
    last = at["timeline"] == state.timeline.size or state.timeline[at["timeline"]]["time_s"] > entry["time_s"]
    if last and at["first_held"] > 0:
        place_held(state, entry["time_s"])
