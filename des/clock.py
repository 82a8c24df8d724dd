"""The clock behind all arrival processes: a unit Poisson process, cut into blocks, scaled or run at a changing speed.

Every random process is made of the same unit-exponential gaps, so two of them with one generator see the same
arrivals, only moved. They are drawn and computed in blocks of one size, whatever a caller asks for: no result
depends on how the calls are cut, to the last bit, and memory stays flat.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

BLOCK = 16_384
"""Arrivals computed at a time: they fit a core's cache."""

PathPiece = tuple[Float[np.ndarray, " edges"], Float[np.ndarray, " pieces"]]
"""Edges of consecutive pieces of time (seconds, ascending), and the rate on each (per second)."""


class Sampler:
    """Serves a stream of blocks in portions of any size: each call returns the next `number` entries.

    A stream that ends gives fewer than `number`, and then none.
    """

    def __init__(self, blocks: Iterator[np.ndarray], *, dtype: type = np.float64) -> None:
        self._blocks = blocks
        self._rest: np.ndarray = np.empty(0, dtype=dtype)

    def __call__(self, number: int) -> np.ndarray:
        served = np.empty(number, dtype=self._rest.dtype)
        filled = 0
        while filled < number:
            if not self._rest.size:
                block = next(self._blocks, None)
                if block is None:
                    break
                self._rest = block
            part = self._rest[: number - filled]
            served[filled : filled + part.size] = part
            self._rest = self._rest[part.size :]
            filled += part.size
        return served[:filled]


def unit_gaps(generator: np.random.Generator) -> Iterator[Float[np.ndarray, " block"]]:
    """Independent exponential gaps of mean 1, for ever."""
    while True:
        yield generator.standard_exponential(BLOCK)


def accumulated(gaps: Iterator[Float[np.ndarray, " block"]]) -> Iterator[Float[np.ndarray, " block"]]:
    """Instants from gaps, which are overwritten."""
    now = 0.0
    for block in gaps:
        block[0] += now
        np.cumsum(block, out=block)
        now = block[-1]
        yield block


def time_changed(
    units: Iterator[Float[np.ndarray, " block"]], path: Iterator[PathPiece]
) -> Iterator[Float[np.ndarray, " _"]]:
    r"""Arrivals at a rate :math:`\lambda(t)`, from those at rate 1.

    A unit arrival at :math:`u` comes at :math:`t = \Lambda^{-1}(u)`, :math:`\Lambda(t) = \int_0^t \lambda`: the
    time-change theorem (Daley and Vere-Jones 2003, theorem 7.4.I). Nothing arrives where the rate is 0. Ends
    where the path does.

    Args:
        units: ascending unit arrivals, endless.
        path: consecutive stretches of the rate's path.
    """
    pending = next(units)
    reached = 0.0
    for edges_s, rates in path:
        intensity = reached + intensity_at(edges_s, rates)
        reached = intensity[-1]
        while pending[-1] < reached:
            yield inverse_intensity(pending, intensity, edges_s, rates)
            pending = next(units)
        count = int(np.searchsorted(pending, reached))
        yield inverse_intensity(pending[:count], intensity, edges_s, rates)
        pending = pending[count:]


def intensity_at(
    edges_s: Float[np.ndarray, " edges"], rates: Float[np.ndarray, " pieces"]
) -> Float[np.ndarray, " edges"]:
    """Mean number of arrivals from the first edge to each."""
    return np.concatenate([[0.0], np.cumsum(np.diff(edges_s) * rates)])


def inverse_intensity(
    units: Float[np.ndarray, " _"],
    intensity: Float[np.ndarray, " edges"],
    edges_s: Float[np.ndarray, " edges"],
    rates: Float[np.ndarray, " pieces"],
) -> Float[np.ndarray, " _"]:
    """Instants at which the intensity reaches `units`, all below its end; never outside their piece by rounding."""
    piece = np.searchsorted(intensity, units, side="right") - 1
    instants = edges_s[piece] + (units - intensity[piece]) / rates[piece]
    return np.minimum(instants, edges_s[piece + 1], out=instants)
