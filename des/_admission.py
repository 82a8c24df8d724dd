"""Who may join the running requests of a replica, and how each joins."""

from __future__ import annotations

import numpy as np

from des._batch import count_piece, kind_of, law_of, prompt_of, start_decoding, start_prompt
from des._blocks import blocks_of
from des._gaps import record_gap
from des._jit import inline, jit, law
from des._prefix import hit_tokens, remember
from des._state import CACHED, CHUNKED, GROW, INDEPENDENT, PREFILL_FIRST, SWAPPED, UNSET
from jaxsim import physics

step_work = law(physics.step_work)
kimura_work = law(physics.kimura_work)


@jit
def blocks_left(state, rep, slot, prompt):
    """Blocks of a preempted request that nobody has taken since, of those that its prompt can use.

    Free blocks form a queue: freed ones join its tail, a request's first block last, and allocation takes from its
    head. Victims come back in the opposite order of their preemption, so what joined the tail since is what lies
    behind.
    """
    journey = state.journeys[slot]
    if state.preemption != CACHED or journey["preemptions"] == 0:
        return np.int64(0)
    behind = rep["appended"] - journey["stamp"]
    left = min(max(rep["free_blocks"] - behind, 0), journey["computed"] // rep["block"])
    return min(left, (prompt - 1) // rep["block"])


@jit
def cached_tokens(state, r, slot, prompt):
    """Tokens of the prompt whose KV is at hand: its kind's, what is left of a victim's blocks, or the cache's."""
    rep = state.replicas[r]
    request = state.requests[slot]
    cached = max(blocks_left(state, rep, slot, prompt) * rep["block"], np.int64(state.kinds[request["kind"]]["cached"]))
    if state.cache_blocks > 0:
        most = np.int64(state.kinds[request["kind"]]["input"]) - 1
        cached = max(cached, min(hit_tokens(state, r, request["row"]), most))
    return cached


@inline
def may_hit(state, slot):
    """Whether part of a prompt may be at hand."""
    if state.cache_blocks > 0 or state.kinds[state.requests[slot]["kind"]]["cached"] > 0:
        return True
    return state.preemption == CACHED and state.journeys[slot]["preemptions"] > 0


@inline
def blocks_wanted(state, rep, request):
    """KV blocks that the request takes at admission, with that of the token it stores at once if it decodes at once."""
    if state.kv == GROW:
        at_once = 1 if request["ready"] and state.scheduling != PREFILL_FIRST else 0
        return blocks_of(prompt_of(state, request) + at_once, rep["block"])
    return np.int64(state.kinds[request["kind"]]["blocks"])


@jit
def within_budget(state, r, slot):
    """Whether the coming step has tokens left for the request's prompt."""
    rep = state.replicas[r]
    request = state.requests[slot]
    if request["ready"]:
        return True
    decoding = rep["active"] - rep["prefilling"]
    if state.scheduling == CHUNKED:
        return decoding + rep["tokens"] < rep["budget"]
    prompt = prompt_of(state, request)
    if may_hit(state, slot):
        prompt -= cached_tokens(state, r, slot, prompt)
    if state.scheduling == PREFILL_FIRST:
        return rep["tokens"] == 0 or rep["tokens"] + prompt <= rep["budget"]
    return decoding + rep["tokens"] == 0 or decoding + rep["tokens"] + prompt <= rep["budget"]


@inline
def fits(state, r, slot):
    """The admission rule: a free sequence, KV blocks, and tokens of the step's budget."""
    rep = state.replicas[r]
    request = state.requests[slot]
    if rep["active"] >= rep["max_active"] or blocks_wanted(state, rep, request) > rep["free_blocks"]:
        return False
    return state.scheduling == INDEPENDENT or within_budget(state, r, slot)


@jit
def enqueue(state, rep, slot):
    """Put a request behind all others of its replica."""
    state.requests[slot]["next"] = 0
    if rep["last_queued"] == 0:
        rep["first_queued"] = slot + 1
    else:
        state.requests[rep["last_queued"] - 1]["next"] = slot + 1
    rep["last_queued"] = slot + 1


@jit
def take_piece(state, rep, slot, prompt):
    """Give the request's prompt what is left of the budget, or all it wants where prompts stay whole.

    Returns whether this finishes the prompt.
    """
    journey = state.journeys[slot]
    piece = prompt - journey["held"]
    if state.scheduling == CHUNKED:
        piece = min(piece, rep["budget"] - (rep["active"] - rep["prefilling"]) - rep["tokens"])
    journey["held"] += piece
    journey["piece"] = piece
    count_piece(state, rep, slot, 1.0)
    return journey["held"] == prompt


@jit
def join_budget(state, rep, slot, prompt):
    """Put the next piece of a prompt into the coming step."""
    done = take_piece(state, rep, slot, prompt)
    state.prefill[rep["heap_start"] + rep["prefilling"]] = slot << 1 | np.int64(done)
    rep["prefilling"] += 1
    if state.scheduling == PREFILL_FIRST:
        rep["paused"] = 1


@jit
def join_ready(state, r, slot):
    """Let a request whose KV is at hand decode in the coming step."""
    rep = state.replicas[r]
    request = state.requests[slot]
    request["kind"] = rep["pool"] * state.num_rows + request["row"]
    kind = kind_of(state, slot)
    note_decode_admission(state, rep, slot)
    rep["active"] += 1
    start_decoding(state, rep, slot, np.int64(kind["output"] - request["generated"]))
    since_s = request["first_s"]
    if request["ready"] == SWAPPED:
        since_s = state.journeys[slot]["stop_s"]
        seconds = float(prompt_of(state, request)) * state.swap_s_per_token
        rep["swap_s"] += seconds
        rep["extra_s"] += seconds
    if state.gaps.size > 0 and rep["clock_s"] > since_s:
        record_gap(state, rep, rep["clock_s"] - since_s)
    request["ready"] = 0


@jit
def prepare_prompt(state, r, slot, prompt):
    """Find what of a prompt is cached, and what is left to compute, for a request that is not as its kind says."""
    rep = state.replicas[r]
    request = state.requests[slot]
    request["kind"] = rep["pool"] * state.num_rows + request["row"]
    kind = kind_of(state, slot)
    cached = cached_tokens(state, r, slot, prompt)
    rep["appended"] -= blocks_left(state, rep, slot, prompt)
    if state.cache_blocks > 0:
        remember(state, r, request["row"])
    state.journeys[slot]["cached"] = cached
    if cached == kind["cached"] and request["generated"] == 0:
        return
    pool = state.pools[rep["pool"]]
    left = float(kind["output"] - request["generated"])
    if state.kimura:
        work = kimura_work(law_of(pool), pool["chunk"], float(prompt), left, float(cached))
    else:
        work = step_work(law_of(pool), pool["chunk"], float(prompt), left, float(cached))
    own = state.kinds[state.pools.size * state.num_rows + slot]
    own["full_steps"] = work.full_steps
    own["full_first_s"] = work.full_first_s
    own["full_slope_s"] = work.full_slope_s
    own["last_s"] = work.last_s
    own["decode_steps"] = work.decode_steps
    own["decode_first_s"] = work.decode_first_s
    own["decode_slope_s"] = work.decode_slope_s
    own["blocks"] = kind["blocks"]
    own["input"] = kind["input"]
    own["output"] = kind["output"]
    own["cached"] = kind["cached"]
    request["kind"] = state.pools.size * state.num_rows + slot


@jit
def note_decode_admission(state, rep, slot):
    """When a request that was handed over started here."""
    journey = state.journeys[slot]
    if journey["prefill_replica"] >= 0 and journey["decode_admit_s"] == UNSET:
        journey["decode_admit_s"] = rep["clock_s"]


@jit
def begin_life(state, r, slot):
    """What an eventful request needs before its prompt starts."""
    request = state.requests[slot]
    journey = state.journeys[slot]
    note_decode_admission(state, state.replicas[r], slot)
    journey["cached"] = state.kinds[request["kind"]]["cached"]
    if request["generated"] > 0 or journey["preemptions"] > 0 or state.cache_blocks > 0:
        prepare_prompt(state, r, slot, prompt_of(state, request))


@jit
def admit(state, r, slot):
    """Start a request at the replica's clock."""
    rep = state.replicas[r]
    request = state.requests[slot]
    blocks = blocks_wanted(state, rep, request)
    if request["admit_s"] == UNSET:
        request["admit_s"] = rep["clock_s"]
    request["joined"] = rep["ran"]
    if request["ready"]:
        rep["free_blocks"] -= blocks
        join_ready(state, r, slot)
        return
    if state.eventful:
        begin_life(state, r, slot)
    rep["free_blocks"] -= blocks
    if state.scheduling == INDEPENDENT:
        start_prompt(state, rep, slot)
    else:
        state.journeys[slot]["held"] = state.journeys[slot]["cached"]
        join_budget(state, rep, slot, prompt_of(state, request))
    rep["active"] += 1
