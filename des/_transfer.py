"""The link from the pool that computes prompts to the one that generates."""

from __future__ import annotations

import numpy as np

from des._arrival import place_again, wake
from des._batch import give_blocks, kind_of, pop_by_number
from des._blocks import blocks_of
from des._jit import jit
from des._state import GROW
from des._time import schedule


@jit
def start_transfer(state, slot, now):
    """Let the link move a request's KV."""
    tokens = float(kind_of(state, slot)["input"])
    state.now[0]["transfer_s"] = now + state.transfer_latency_s + tokens * state.transfer_s_per_token


@jit
def queue_transfers(state, now):
    """Let the requests that were handed over at this boundary join the queue of the link, in order of number."""
    at = state.now[0]
    while at["handed"] > 0:
        slot = pop_by_number(state, at["handed"])
        at["handed"] -= 1
        state.requests[slot]["next"] = 0
        if at["last_transfer"] == 0:
            at["first_transfer"] = slot + 1
            start_transfer(state, slot, now)
        else:
            state.requests[at["last_transfer"] - 1]["next"] = slot + 1
        at["last_transfer"] = slot + 1


@jit
def end_transfer(state):
    """A request's KV has reached the decoding pool: its first token is out; the blocks of its prompt pool are free."""
    at = state.now[0]
    now = at["transfer_s"]
    slot = at["first_transfer"] - 1
    request = state.requests[slot]
    journey = state.journeys[slot]
    at["first_transfer"] = request["next"]
    if at["first_transfer"] > 0:
        start_transfer(state, at["first_transfer"] - 1, now)
    else:
        at["last_transfer"] = 0
        at["transfer_s"] = np.inf
    request["first_s"] = now
    r = np.int64(journey["prefill_replica"])
    rep = state.replicas[r]
    if journey["life"] == rep["life"]:
        kind = kind_of(state, slot)
        give_blocks(rep, blocks_of(kind["input"], rep["block"]) if state.kv == GROW else np.int64(kind["blocks"]))
        if rep["first_queued"] > 0:
            wake(state, r, now)
            schedule(state, r)
    request["choice"] = 1
    place_again(state, slot, now)
