"""KV blocks that grow token by token.

A decoding request takes a block in the steps in which the token it stores is the first of one. Those steps are equal
modulo the block's size, so a replica needs only to count its decoding requests by residue to know the blocks of any
step ahead.
"""

from __future__ import annotations

from des._jit import inline, jit, law
from des._state import GROW
from jaxsim import physics

_blocks = law(physics.kv_blocks)


@inline
def blocks_of(tokens, block):
    """Blocks that hold `tokens` tokens."""
    return int(_blocks(float(tokens), float(block)))


@inline
def residue(rep, last_step, kind):
    """The residue of the steps in which a request takes a block that decodes until before step `last_step`.

    Its context in step s is input + output - (last_step - s), and it takes a block where that is 1 more than a
    multiple.
    """
    return (last_step + 1 - kind["input"] - kind["output"]) % rep["block"]


@inline
def count_residue(state, rep, last_step, kind, change):
    """Let a request begin (+1) or cease (-1) to take blocks."""
    state.residues[rep["first_residue"] + residue(rep, last_step, kind)] += change


@jit
def forget_residues(state, rep):
    """Let no request of a replica take blocks; only growing ones have residues."""
    if state.kv == GROW:
        for j in range(rep["first_residue"], rep["first_residue"] + rep["block"]):
            state.residues[j] = 0


@inline
def blocks_at(state, rep, step):
    """Blocks that decoding takes in step number `step`."""
    return state.residues[rep["first_residue"] + step % rep["block"]]


@jit
def blocks_ahead(state, rep, steps):
    """Blocks that decoding takes in the `steps` steps after the coming one."""
    cycles = steps // rep["block"]
    taken = cycles * (rep["active"] - rep["prefilling"])
    for step in range(rep["step"] + 1 + cycles * rep["block"], rep["step"] + 1 + steps):
        taken += blocks_at(state, rep, step)
    return taken


@jit
def exhausted(state, rep, ahead):
    """Steps to the boundary at which the free blocks do not suffice for the step that starts there; at most `ahead`."""
    decoding = rep["active"] - rep["prefilling"]
    free = rep["free_blocks"]
    if decoding == 0 or decoding * ((ahead - 1) // rep["block"] + 1) <= free:
        return ahead
    cycles = free // decoding
    steps = cycles * rep["block"]
    free -= cycles * decoding
    while steps < ahead:
        steps += 1
        free -= blocks_at(state, rep, rep["step"] + steps)
        if free < 0:
            break
    return min(steps, ahead)
