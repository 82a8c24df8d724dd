"""Streams of requests: when they arrive and which row of the workload each is.

Replication ``i`` of seed ``s`` draws its gaps and its lengths from two generators of its own, seeded by ``(s,
i)``. So every design and every rate sees the same gaps (scaled) and the same lengths: common random numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from des._draw import invert
from des.lower import Stream
from jaxsim._checks import require_positive
from jaxsim.workload import Workload

ARRIVALS = ("poisson", "trace")


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


def poisson_stream(lengths: Lengths, rate: float, num_requests: int, *, seed: int, replication: int) -> Stream:
    """Poisson arrivals at `rate` requests per second, rows drawn independently by their weight."""
    for_gaps, for_lengths = generators(seed, replication)
    arrival_s = for_gaps.standard_exponential(num_requests)
    np.cumsum(arrival_s, out=arrival_s)
    arrival_s /= rate
    return Stream(arrival_s, lengths.draw(for_lengths, num_requests))


def trace_stream(workload: Workload, rate: float | None, num_requests: int | None) -> Stream:
    """The workload's own arrivals, once, in their order; `rate` stretches time to that mean rate.

    `num_requests` keeps the first so many.

    Raises:
        ValueError: the workload has no arrival times.
    """
    if workload.arrival_s is None or workload.arrival_row is None:
        raise ValueError(
            "arrivals='trace' needs a workload with arrival times, got one without; "
            "use arrivals='poisson', or read a trace that has a time column"
        )
    factor = 1.0
    if rate is not None:
        require_positive("the trace's own rate", 0.0 if workload.rate is None else workload.rate)
        factor = float(workload.rate or 1.0) / rate
    return Stream(workload.arrival_s[:num_requests] * factor, workload.arrival_row[:num_requests].astype(np.int32))
