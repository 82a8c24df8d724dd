"""The event loop: every replica of every pool, exact to the step, at a cost per request and not per token.

A replica runs steps back to back while it has requests. Events of a replica are the boundaries at which its batch
changes: the ends of the steps in which a request finishes its full prompt chunks, a prompt piece, its first token or
its last one, and those at which its blocks no longer suffice. In between, only an arrival changes a replica: it
joins at the first boundary at or after its arrival.

**Order.** Time first. At one instant step ends come before the timeline's changes, these before transfers that end,
and those before arrivals; step ends in order of replica number, arrivals in their own order. At one step end: first
tokens, then departures, then blocks for the coming tokens, then admissions (`des._kv.open_step`), so that room freed at
a boundary is used there, and a request that arrives at the instant of a boundary joins there.

**Joining ahead of time.** A request that fits, with nobody queued before it, is admitted as it arrives: the
replica's clock is set forward to the boundary at which it joins. Nothing can change the replica before that but
further arrivals, which come behind it. Where a boundary's own event decides what fits (a shared budget, blocks that
grow), a request that arrives in the step before it queues until then. Load for dispatch counts active and queued
alike and does not see the difference.
"""

from __future__ import annotations

import numpy as np

from des._arrival import place, settle
from des._fleet import change_fleet
from des._heap import earliest
from des._jit import by_reference, entry, inline, jit
from des._kv import open_step
from des._phases import end_decodes, end_pieces, end_prefills, refresh
from des._state import DONE, FULL, INDEPENDENT, MORE_ARRIVALS, MORE_SLOTS, UNSET
from des._time import advance
from des._transfer import end_transfer, queue_transfers


@jit
def step_end(state, r):
    """A replica reaches its next event: phases end, requests leave, others enter. Returns the change of its load."""
    rep = state.replicas[r]
    if rep["ahead"] > 0:
        advance(state, rep, rep["ahead"])
    change = end_prefills(state, r) if state.scheduling == INDEPENDENT else end_pieces(state, r)
    change += end_decodes(state, r)
    if state.now[0]["handed"] > 0:
        queue_transfers(state, rep["clock_s"])
    if rep["active"] > 0 or rep["first_queued"] > 0:
        open_step(state, r)
    if rep["step"] > state.refresh_steps:
        refresh(state, r)
    return change


@jit
def new_journey(state, slot, due_s):
    """The start of an eventful request."""
    journey = state.journeys[slot]
    journey["due_s"] = due_s
    journey["prefill_end_s"] = UNSET
    journey["decode_admit_s"] = UNSET
    journey["prefill_replica"] = -1
    journey["steps"] = 0
    journey["prefill_steps"] = 0
    journey["preemptions"] = 0
    journey["retries"] = 0
    journey["piece"] = 0


@inline
def take_slot(state, sent_s):
    """Put the next request of the stream into a free slot."""
    now = state.now[0]
    if now["free_slot"] > 0:
        slot = now["free_slot"] - 1
        now["free_slot"] = state.requests[slot]["next"]
    else:
        slot = now["fresh_slot"]
        now["fresh_slot"] += 1
    request = state.requests[slot]
    request["sent_s"] = sent_s
    request["admit_s"] = UNSET
    request["first_s"] = UNSET
    request["number"] = now["number"]
    request["row"] = state.row[now["next"]]
    request["choice"] = state.choice[now["next"]]
    request["generated"] = 0
    request["ready"] = 0
    if state.eventful:
        new_journey(state, slot, state.arrival_s[now["next"]])
    now["next"] += 1
    now["number"] += 1
    now["outstanding"] += 1
    return slot


@inline
def next_arrival(state):
    """When the next request is sent, as far as is known."""
    now = state.now[0]
    if now["next"] == now["arrivals"]:
        return np.inf
    due = state.arrival_s[now["next"]]
    if state.concurrency == 0:
        return due
    return max(due, now["freed_s"]) if now["outstanding"] < state.concurrency else np.inf


@jit
def most_active(state):
    """Most requests that one step can finish."""
    most = np.int64(0)
    for pool in range(state.pools.size):
        most = max(most, min(state.pools[pool]["max_active"], state.pools[pool]["kv_blocks"]))
    return most


@entry
def run(arrays):
    """Let the requests of the buffer arrive and the fleet serve them; returns what is wanted to go on."""
    state = by_reference(arrays)
    now = state.now[0]
    room = state.finished.size - most_active(state) - 1
    while True:
        if now["next"] == now["arrivals"] and not now["last"]:
            return MORE_ARRIVALS
        r = earliest(state.event_s)
        event_s = state.event_s[r + (state.event_s.size >> 1)]
        arrival_s = next_arrival(state)
        change_s = np.inf
        if now["timeline"] < state.timeline.size:
            change_s = state.timeline[now["timeline"]]["time_s"]
        if event_s <= min(arrival_s, min(now["transfer_s"], change_s)):
            if event_s == np.inf:
                return DONE
            if now["finished"] > room:
                return FULL
            settle(state, r, step_end(state, r))
        elif change_s <= min(arrival_s, now["transfer_s"]):
            change_fleet(state)
        elif now["transfer_s"] <= arrival_s:
            end_transfer(state)
        else:
            if now["free_slot"] == 0 and now["fresh_slot"] == state.requests.size:
                return MORE_SLOTS
            r = place(state, take_slot(state, arrival_s), arrival_s)
            if r >= 0:
                settle(state, r, 1)
