"""The prefix cache of each replica: the blocks of prompts that it holds, least recently used out first.

A replica's blocks form a ring around entry 0 of its stretch of two arrays of links, most recent first; entry
``id + 1`` is block `id`. Links hold ``entry + 1``; 0 says that the block is not there.
"""

from __future__ import annotations

import numpy as np

from des._jit import jit


@jit
def ring_start(state, r):
    """Where a replica's links start."""
    return r * (state.cache_after.size // state.cache_size.size)


@jit
def take_out(state, start, entry):
    """Remove a block from the ring."""
    before = state.cache_before[start + entry] - 1
    after = state.cache_after[start + entry] - 1
    state.cache_after[start + before] = after + 1
    state.cache_before[start + after] = before + 1
    state.cache_after[start + entry] = 0
    state.cache_before[start + entry] = 0


@jit
def put_first(state, start, entry):
    """Make a block the most recent one."""
    first = state.cache_after[start] - 1
    state.cache_after[start + entry] = first + 1
    state.cache_before[start + entry] = 1
    state.cache_before[start + first] = entry + 1
    state.cache_after[start] = entry + 1


@jit
def hit_tokens(state, r, row):
    """Tokens of a prompt's leading blocks that are there."""
    if state.cache_blocks == 0:
        return np.int64(0)
    start = ring_start(state, r)
    first = state.first_block[row]
    hits = np.int64(0)
    for j in range(first, state.first_block[row + 1]):
        if state.cache_after[start + state.block_ids[j] + 1] == 0:
            break
        hits += 1
    return hits * state.cache_block_tokens


@jit
def remember(state, r, row):
    """Use all blocks of a prompt, the last first, so that its first block stays longest."""
    start = ring_start(state, r)
    for j in range(state.first_block[row + 1] - 1, state.first_block[row] - 1, -1):
        entry = np.int64(state.block_ids[j]) + 1
        if state.cache_after[start + entry] == 0:
            if state.cache_size[r] == state.cache_blocks:
                take_out(state, start, np.int64(state.cache_before[start]) - 1)
            else:
                state.cache_size[r] += 1
        else:
            take_out(state, start, entry)
        put_first(state, start, entry)


@jit
def forget(state, r):
    """Empty a replica's cache."""
    start = ring_start(state, r)
    while state.cache_size[r] > 0:
        take_out(state, start, np.int64(state.cache_before[start]) - 1)
        state.cache_size[r] -= 1
