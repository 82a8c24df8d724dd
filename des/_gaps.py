"""A histogram of the gaps between consecutive tokens, 128 bins to a factor of two."""

from __future__ import annotations

import math

import numpy as np

from des._jit import jit
from des._state import KEY_BITS

PER_OCTAVE = 128
FIRST_OCTAVE = -24
OCTAVES = 48
NUM_BINS = OCTAVES * PER_OCTAVE
"""From 2**-24 s to 2**24 s; what lies outside is counted in the first or last bin."""


def bin_edges() -> np.ndarray:
    """Lower edge of each bin and the last one's upper edge, seconds."""
    octave, part = np.divmod(np.arange(NUM_BINS + 1), PER_OCTAVE)
    return np.ldexp(0.5 + 0.5 * part / PER_OCTAVE, octave + FIRST_OCTAVE + 1)


@jit
def bin_of(gap):
    """The bin of a gap in seconds."""
    mantissa, exponent = math.frexp(gap)
    place = (exponent - 1 - FIRST_OCTAVE) * PER_OCTAVE + int((mantissa - 0.5) * (2 * PER_OCTAVE))
    return min(max(place, 0), NUM_BINS - 1)


@jit
def record_gap(state, rep, gap):
    """One gap of one request that ends at the replica's clock."""
    if state.window[0] <= rep["clock_s"] < state.window[1]:
        state.gaps[rep["pool"], bin_of(gap)] += 1.0


@jit
def record_late(state, rep, step_s):
    """The gaps that end with the first step after a pause; they began with it, or with a first token within it."""
    paused_s = rep["clock_s"] - rep["stall_s"]
    start = rep["heap_start"]
    for j in range(start, start + rep["active"] - rep["prefilling"]):
        slot = (state.decode[j] >> 1) & (2 ** (KEY_BITS - 1) - 1)
        since_s = max(state.requests[slot]["first_s"], paused_s)
        state.gaps[rep["pool"], bin_of(step_s + rep["clock_s"] - since_s)] += 1.0


@jit
def record_gaps(state, rep, steps):
    """The gaps that the decoding requests see in the next `steps` steps, or that decoding is paused."""
    if rep["clock_s"] < state.window[0] or rep["clock_s"] >= state.window[1]:
        return
    decoding = rep["active"] - rep["prefilling"]
    if rep["paused"]:
        rep["stall_s"] += rep["base_s"] + rep["extra_s"]
        return
    if decoding == 0:
        return
    counts = state.gaps[rep["pool"]]
    first = rep["base_s"] + rep["work_s"]
    if rep["stall_s"] > 0.0:
        record_late(state, rep, first + rep["extra_s"])
        rep["stall_s"] = 0.0
    else:
        counts[bin_of(first + rep["extra_s"])] += decoding
    step = 1
    while step < steps:
        gap = first + rep["growth_s"] * step
        place = bin_of(gap)
        count = steps - step
        if rep["growth_s"] > 0.0:
            upper = gap * (1.0 + 1.0 / (2 * PER_OCTAVE))
            count = min(count, max(int((upper - gap) / rep["growth_s"]), 1))
        counts[place] += float(decoding) * count
        step += count
