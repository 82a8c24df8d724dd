"""Dispatch: which replica a request goes to.

Load is active + queued requests. The accepting replicas of a pool that have one load form a doubly linked list. A
replica whose load changes joins the tail of its new list, and the least loaded is the head of the list of the least
load: **of equally loaded replicas, the one whose load has been the same for longest** (at the start, the lowest
number). So ties spread over all of them, in constant time.

The pools that a request may go to are its *scope*: its own, or every pool that can hold it. Their members, pool
after pool, are what random, round robin and power of two choose from.
"""

from __future__ import annotations

import numpy as np

from des._jit import inline, jit
from des._prefix import hit_tokens
from des._random import uniform
from des._state import LEAST_LOADED, POWER_OF_TWO, PREFIX_AFFINITY, RANDOM


@inline
def first_list(state, pool):
    """Where the lists of a pool start: one for each load."""
    return pool * (state.list_heads.size // state.pools.size)


@inline
def link(state, place, r):
    """Append replica `r` to the list at `place`."""
    last = state.list_tails[place]
    state.replicas[r]["before"] = last
    state.replicas[r]["after"] = 0
    if last == 0:
        state.list_heads[place] = r + 1
    else:
        state.replicas[last - 1]["after"] = r + 1
    state.list_tails[place] = r + 1


@inline
def unlink(state, place, r):
    """Take replica `r` out of the list at `place`."""
    before = state.replicas[r]["before"]
    after = state.replicas[r]["after"]
    if before == 0:
        state.list_heads[place] = after
    else:
        state.replicas[before - 1]["after"] = after
    if after == 0:
        state.list_tails[place] = before
    else:
        state.replicas[after - 1]["before"] = before


@jit
def change_load(state, r, change):
    """Move replica `r` from the list of its load to that of its load + `change`, and keep the pool's least load."""
    rep = state.replicas[r]
    old = rep["load"]
    new = old + change
    rep["load"] = new
    if rep["place"] < 0:
        return
    pool = state.pools[rep["pool"]]
    first = first_list(state, rep["pool"])
    unlink(state, first + old, r)
    link(state, first + new, r)
    pool["load"] += change
    if new < pool["least_load"] or (old == pool["least_load"] and state.list_heads[first + old] == 0):
        pool["least_load"] = new


@jit
def accept(state, r):
    """Let a replica take requests."""
    rep = state.replicas[r]
    pool = state.pools[rep["pool"]]
    rep["place"] = pool["accepting"]
    state.members[pool["first_member"] + pool["accepting"]] = r
    pool["accepting"] += 1
    pool["load"] += rep["load"]
    link(state, first_list(state, rep["pool"]) + rep["load"], r)
    if pool["accepting"] == 1 or rep["load"] < pool["least_load"]:
        pool["least_load"] = rep["load"]


@jit
def refuse(state, r):
    """Let a replica take no further request."""
    rep = state.replicas[r]
    pool = state.pools[rep["pool"]]
    pool["accepting"] -= 1
    last = state.members[pool["first_member"] + pool["accepting"]]
    state.members[pool["first_member"] + rep["place"]] = last
    state.replicas[last]["place"] = rep["place"]
    rep["place"] = -1
    pool["load"] -= rep["load"]
    first = first_list(state, rep["pool"])
    unlink(state, first + rep["load"], r)
    if pool["accepting"] > 0:
        while state.list_heads[first + pool["least_load"]] == 0:
            pool["least_load"] += 1


@inline
def least_loaded(state, pool):
    """The least loaded replica of a pool."""
    return np.int64(state.list_heads[first_list(state, pool) + state.pools[pool]["least_load"]]) - 1


@inline
def can_hold(state, pool, row):
    """Whether a pool can run a request of that row."""
    return state.kinds[pool * state.num_rows + row]["can_hold"] != 0


@jit
def pressure(pool):
    """Running and queued requests over the sequences of a pool's accepting replicas."""
    if pool["accepting"] == 0:
        return np.inf
    return pool["load"] / (float(pool["accepting"]) * float(pool["max_active"]))


@jit
def spilled(state, pool, row):
    """The pool that a request of `pool` goes to when the pools before it are under pressure."""
    while (
        pressure(state.pools[pool]) >= state.spill_pressure
        and pool + 1 < state.pools.size
        and can_hold(state, pool + 1, row)
        and state.pools[pool + 1]["accepting"] > 0
    ):
        pool += 1
    return pool


@inline
def in_scope(state, choice, pool, row):
    """Whether a request may go to `pool`."""
    return choice == pool or (choice < 0 and can_hold(state, pool, row))


@inline
def accepting_in(state, choice, row):
    """Replicas that a request may go to."""
    if choice >= 0:
        return state.pools[choice]["accepting"]
    number = np.int64(0)
    for pool in range(state.pools.size):
        if can_hold(state, pool, row):
            number += state.pools[pool]["accepting"]
    return number


@jit
def member(state, choice, row, index):
    """Replica number `index` of the scope."""
    for pool in range(state.pools.size):
        if in_scope(state, choice, pool, row):
            if index < state.pools[pool]["accepting"]:
                return np.int64(state.members[state.pools[pool]["first_member"] + index])
            index -= state.pools[pool]["accepting"]
    return np.int64(-1)


@inline
def relative_load(state, r):
    """Running and queued requests of a replica over its sequences."""
    return state.replicas[r]["load"] / float(state.replicas[r]["max_active"])


@inline
def least_of_scope(state, choice, row):
    """The least loaded replica of the pool that is the least loaded for its size."""
    if choice >= 0:
        return least_loaded(state, choice)
    best = np.int64(-1)
    for pool in range(state.pools.size):
        if can_hold(state, pool, row) and state.pools[pool]["accepting"] > 0:
            r = least_loaded(state, pool)
            if best < 0 or relative_load(state, r) < relative_load(state, best):
                best = r
    return best


@jit
def longest_hit(state, choice, row):
    """Of the replicas not loaded far above the least, the one that holds most of the prompt; ties: least loaded."""
    least = np.int64(2**62)
    for pool in range(state.pools.size):
        if in_scope(state, choice, pool, row) and state.pools[pool]["accepting"] > 0:
            least = min(least, state.pools[pool]["least_load"])
    best = np.int64(-1)
    most = np.int64(-1)
    for pool in range(state.pools.size):
        if not (in_scope(state, choice, pool, row) and state.pools[pool]["accepting"] > 0):
            continue
        first = first_list(state, pool)
        last_list = state.list_heads.size // state.pools.size
        for load in range(state.pools[pool]["least_load"], min(least + state.affinity_slack + 1, last_list)):
            r = np.int64(state.list_heads[first + load]) - 1
            while r >= 0:
                hit = hit_tokens(state, r, row)
                if hit > most or (hit == most and relative_load(state, r) < relative_load(state, best)):
                    best, most = r, hit
                r = np.int64(state.replicas[r]["after"]) - 1
    return best


@jit
def chosen(state, choice, slot):
    """The replica of a scope by any rule but the least load; some replica of it accepts."""
    request = state.requests[slot]
    row = request["row"]
    number = accepting_in(state, choice, row)
    if state.dispatch == PREFIX_AFFINITY:
        return longest_hit(state, choice, row)
    first_draw = 2 * state.journeys[slot]["retries"] if state.eventful else 0
    if state.dispatch == RANDOM:
        return member(state, choice, row, int(uniform(state.seed, request["number"], first_draw) * number))
    if state.dispatch == POWER_OF_TWO:
        one = int(uniform(state.seed, request["number"], first_draw) * number)
        two = int(uniform(state.seed, request["number"], first_draw + 1) * number)
        a = member(state, choice, row, one)
        b = member(state, choice, row, two)
        return b if relative_load(state, b) < relative_load(state, a) else a
    if choice < 0:
        state.now[0]["turn"] += 1
        return member(state, choice, row, (state.now[0]["turn"] - 1) % number)
    state.pools[choice]["turn"] += 1
    return member(state, choice, row, (state.pools[choice]["turn"] - 1) % number)


@inline
def dispatch(state, slot):
    """The replica that the request goes to, -1 where none accepts."""
    request = state.requests[slot]
    choice = np.int64(request["choice"])
    if choice >= 0 and state.spill_pressure < np.inf:
        choice = spilled(state, choice, request["row"])
    if accepting_in(state, choice, request["row"]) == 0:
        return np.int64(-1)
    if state.dispatch == LEAST_LOADED:
        return least_of_scope(state, choice, request["row"])
    return chosen(state, choice, slot)
