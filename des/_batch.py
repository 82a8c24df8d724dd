"""The running requests of a replica: what each adds to the steps.

In the budget schedulings every prompt piece lasts one step, so the entries of a replica's prefill heap all end at the
next boundary; otherwise they are ordered by the step at which they end, as those of the decode heap always are.
"""

from __future__ import annotations

import numpy as np

from des._blocks import count_residue
from des._heap import drop_first, push
from des._jit import inline, jit, law
from des._state import GROW, KEY_BITS, SLOT_BITS
from jaxsim import physics

held_work = law(physics.held_work)
prompt_work = law(physics.prompt_work)
StepLaw = physics.StepLaw


@inline
def law_of(pool):
    """The coefficients of a pool's step time."""
    return StepLaw(
        pool["base_s"],
        pool["per_sequence_s"],
        pool["per_token_s"],
        pool["prefill_per_token_s"],
        pool["prefill_per_token2_s"],
        pool["overhead_s"],
    )


@inline
def slot_of(key):
    """The slot that a heap key holds."""
    return (key >> 1) & (2 ** (KEY_BITS - 1) - 1)


@inline
def kind_of(state, slot):
    """The kind of the request in a slot."""
    return state.kinds[state.requests[slot]["kind"]]


@inline
def prompt_of(state, request):
    """Tokens that the request must hold before it decodes."""
    kind = state.kinds[request["kind"]]
    return np.int64(kind["input"]) + request["generated"] - (1 if request["ready"] else 0)


@inline
def give_blocks(rep, blocks):
    """Give blocks back."""
    rep["free_blocks"] += blocks
    rep["appended"] += blocks


@inline
def vacate(rep):
    """Forget the sums of a replica that has become idle, and with them their rounding."""
    if rep["active"] == 0:
        rep["work_s"] = 0.0
        rep["growth_s"] = 0.0
        rep["step"] = 0
        rep["stall_s"] = 0.0


@inline
def decode_work(kind, left):
    """Work of a request in a step from which on it decodes for `left` more steps."""
    return kind["decode_first_s"] + kind["decode_slope_s"] * (kind["decode_steps"] - float(left))


@inline
def full_chunk_work(kind, done):
    """Work of a request in its next full prompt chunk after `done` of them."""
    return kind["full_first_s"] + kind["full_slope_s"] * done


@inline
def push_by_number(state, slot, size):
    """Add a slot to the `size` ones in `scratch`, which come out in order of their requests' numbers."""
    push(state.scratch, 0, size, state.requests[slot]["number"] << SLOT_BITS | slot)


@inline
def pop_by_number(state, size):
    """Take the slot with the least number out of the `size` ones in `scratch`."""
    slot = state.scratch[0] & (2**SLOT_BITS - 1)
    drop_first(state.scratch, 0, size)
    return slot


@jit
def start_decoding(state, rep, slot, left):
    """Let a request decode `left` more steps from the coming one on."""
    kind = kind_of(state, slot)
    last_step = rep["step"] + left
    rep["work_s"] += decode_work(kind, left)
    rep["growth_s"] += kind["decode_slope_s"]
    if state.kv == GROW:
        count_residue(state, rep, last_step, kind, 1)
    push(state.decode, rep["heap_start"], rep["active"] - rep["prefilling"] - 1, last_step << KEY_BITS | slot << 1)


@inline
def start_prompt(state, rep, slot):
    """Start the prompt of a request that chunks by itself."""
    kind = kind_of(state, slot)
    full = int(kind["full_steps"])
    if full > 0:
        rep["work_s"] += kind["full_first_s"]
        rep["growth_s"] += kind["full_slope_s"]
        key = (rep["step"] + full) << KEY_BITS | slot << 1
    else:
        rep["work_s"] += kind["last_s"]
        key = (rep["step"] + 1) << KEY_BITS | slot << 1 | 1
    push(state.prefill, rep["heap_start"], rep["prefilling"], key)
    rep["prefilling"] += 1


@jit
def count_piece(state, rep, slot, sign):
    """Add a request's piece to the coming step (+1), or take it out (-1)."""
    coefficients = law_of(state.pools[rep["pool"]])
    journey = state.journeys[slot]
    context = float(journey["held"])
    rep["tokens"] += int(sign) * journey["piece"]
    rep["area"] += sign * journey["piece"] * context
    rep["held_s"] += sign * held_work(coefficients, context)
    rep["extra_s"] = rep["swap_s"]
    if rep["tokens"] > 0:
        rep["extra_s"] += rep["held_s"] + prompt_work(coefficients, float(rep["tokens"]), rep["area"])
