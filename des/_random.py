"""Random numbers of the hot loop: a hash of (seed, request, draw), so that they need no memory and no order.

Every design sees the same numbers for the same request: common random numbers.
"""

from __future__ import annotations

import numpy as np

from des._jit import COMPILED, inline, jit

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@inline
def _mixed(bits):
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))


@jit
def uniform(seed, number, draw):
    """A number in [0, 1) for draw `draw` of request `number`; 53 bits."""
    bits = _mixed(np.uint64(seed) + _GAMMA * np.uint64(draw + 1))
    bits = _mixed(bits + _GAMMA * np.uint64(number + 1))
    return float(bits >> np.uint64(11)) * 2.0**-53


if not COMPILED:
    uniform = np.errstate(over="ignore")(uniform)  # the hash wraps around on purpose
