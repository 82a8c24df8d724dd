"""Two orders of the hot loop: binary heaps of packed integers, and a tree that knows the earliest replica.

A heap is a stretch of a flat array: entry ``j`` of the heap that starts at ``start`` is ``keys[start + j]``.
Entries are 64-bit integers whose high bits are a step number, so one comparison orders and one move moves.
"""

from __future__ import annotations

import numpy as np

from des._jit import inline, jit


@inline
def push(keys, start, size, key):
    """Add `key` to a heap of `size` entries."""
    j = size
    while j > 0:
        parent = (j - 1) >> 1
        if keys[start + parent] <= key:
            break
        keys[start + j] = keys[start + parent]
        j = parent
    keys[start + j] = key


@inline
def replace_first(keys, start, size, key):
    """Put `key` in the place of the smallest of `size` entries.

    The hole first sinks to the bottom along the smaller children, then `key` climbs: a new key is nearly
    always a late one, and this asks for one comparison a level instead of two.
    """
    j = 0
    child = 1
    while child + 1 < size:
        child += keys[start + child + 1] < keys[start + child]
        keys[start + j] = keys[start + child]
        j = child
        child = 2 * j + 1
    if child < size:
        keys[start + j] = keys[start + child]
        j = child
    push(keys, start, j, key)


@inline
def drop_first(keys, start, size):
    """Remove the smallest of `size` entries."""
    if size > 1:
        replace_first(keys, start, size - 1, keys[start + size - 1])


@jit
def remove(keys, start, size, place):
    """Remove entry `place` of `size` entries, wherever it is."""
    key = keys[start + size - 1]
    if place == size - 1:
        return
    j = place
    child = 2 * j + 1
    while child < size - 1:
        if child + 1 < size - 1 and keys[start + child + 1] < keys[start + child]:
            child += 1
        if keys[start + child] >= key:
            break
        keys[start + j] = keys[start + child]
        j = child
        child = 2 * j + 1
    push(keys, start, j, key)


def tree(num_leaves: int) -> np.ndarray:
    """Winner tree over `num_leaves` instants, all of them never: node ``i`` is the least of ``2i, 2i + 1``."""
    width = 1
    while width < num_leaves:
        width *= 2
    return np.full(2 * width, np.inf)


@inline
def earliest(times):
    """The leaf with the least time; of equal times the lowest leaf."""
    width = times.size >> 1
    i = 1
    while i < width:
        i = 2 * i + (times[2 * i + 1] < times[2 * i])
    return i - width


@inline
def set_time(times, leaf, time):
    """Give a leaf a new time; stops at the first ancestor that another leaf decides."""
    i = leaf + (times.size >> 1)
    times[i] = time
    while i > 1:
        least = min(times[i], times[i ^ 1])
        i >>= 1
        if times[i] == least:
            break
        times[i] = least
