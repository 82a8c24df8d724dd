"""Streams of requests: when they arrive and which row of the workload each is.

Replication ``i`` of seed ``s`` draws its gaps and its lengths from two generators of its own, seeded by ``(s,
i)``. So every design and every rate sees the same gaps (scaled) and the same lengths: common random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from des._draw import invert
from des.clock import Sampler
from des.modulated import MarkovModulated
from des.piecewise import PiecewiseRate
from des.processes import ArrivalProcess, Poisson, Trace, own_arrivals
from des.renewal import Renewal
from jaxsim._checks import unknown
from jaxsim.workload import Workload

__all__ = [
    "ARRIVALS",
    "ArrivalProcess",
    "Lengths",
    "MarkovModulated",
    "PiecewiseRate",
    "Poisson",
    "Renewal",
    "Trace",
    "as_process",
    "generators",
    "row_sampler",
]

ARRIVALS = ("poisson", "trace")
"""Processes without parameters, which go by name."""

PARAMETRISED = {
    "gamma": 'Renewal(law="gamma", cv=...)',
    "weibull": 'Renewal(law="weibull", cv=...)',
    "markov-modulated": "MarkovModulated(rates=..., mean_stay_s=...)",
    "piecewise": "PiecewiseRate(start_s=..., rate=..., end_s=...)",
}
"""The other names, and what to pass instead."""


def as_process(arrivals: str | ArrivalProcess) -> ArrivalProcess:
    """The process itself, or the one of that name.

    Raises:
        ValueError: an unknown name, or one of a process that takes parameters.
    """
    if isinstance(arrivals, ArrivalProcess):
        return arrivals
    if arrivals in PARAMETRISED:
        raise ValueError(f"arrivals {arrivals!r} takes parameters; pass des.arrivals.{PARAMETRISED[arrivals]}")
    if arrivals not in ARRIVALS:
        raise unknown("arrivals", arrivals, (*ARRIVALS, *PARAMETRISED))
    return Poisson() if arrivals == "poisson" else Trace()


def generators(seed: int, replication: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Random numbers for the gaps and for the lengths of one replication."""
    gaps, lengths = np.random.SeedSequence(seed, spawn_key=(replication,)).spawn(2)
    return np.random.default_rng(gaps), np.random.default_rng(lengths)


class Lengths(NamedTuple):
    """The rows of a workload as a law to draw from: cumulative weights, and where to look them up."""

    cumulative: np.ndarray
    guide: np.ndarray

    @classmethod
    def of(cls, workload: Workload) -> Lengths:
        """The law of a workload's rows."""
        cumulative = np.cumsum(np.asarray(workload.weight, dtype=np.float64))
        cumulative /= cumulative[-1]
        size = 1 << int(len(cumulative) - 1).bit_length()
        guide = np.searchsorted(cumulative, np.arange(size) / size, side="right")
        return cls(cumulative, guide.astype(np.int32))

    def draw(self, generator: np.random.Generator, number: int) -> np.ndarray:
        """`number` independent rows."""
        row = np.empty(number, dtype=np.int32)
        invert(self.cumulative, self.guide, generator.random(number), row)
        return row


def row_sampler(
    process: ArrivalProcess, workload: Workload, lengths: np.random.Generator
) -> Callable[[int], np.ndarray]:
    """A function that returns the workload rows of the next `n` arrivals, in step with `process.sampler`.

    A trace's own for `Trace`, fewer than `n` once it ends; for all others drawn independently by weight, without
    end.
    """
    if isinstance(process, Trace):
        return Sampler(iter((own_arrivals(workload)[1].astype(np.int32),)), dtype=np.int32)
    law = Lengths.of(workload)
    return lambda number: law.draw(lengths, number)
