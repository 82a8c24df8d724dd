"""What an arrival process is, and the two that need no parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from des.clock import Sampler, accumulated, unit_gaps
from jaxsim._checks import require_positive
from jaxsim.workload import Workload


class ArrivalProcess(ABC):
    """When requests arrive. Interface; the leaves hold parameters only, so one can serve many runs at once."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What results and documents call it."""

    @abstractmethod
    def mean_rate(self, rate: float | None, workload: Workload) -> float:
        """Long-run requests per second where `rate` is asked for; with None, the process's or the workload's own.

        Raises:
            ValueError: `rate` is not > 0, or there is none to be had.
        """

    @abstractmethod
    def expected_requests(self, rate: float | None, workload: Workload) -> float:
        """Mean number of arrivals until the process ends; inf where it never does."""

    @abstractmethod
    def sampler(self, rate: float | None, gaps: np.random.Generator, workload: Workload) -> Callable[[int], np.ndarray]:
        """A function that returns the next `n` ascending instants (seconds from 0), fewer once the process ends.

        Args:
            rate: as for `mean_rate`.
            gaps: the first of `des.arrivals.generators`. Processes that share its seed see the same arrivals, moved.
            workload: the source of what is not given.
        """


@dataclass(frozen=True, kw_only=True)
class Poisson(ArrivalProcess):
    """Independent arrivals at a constant rate: gaps are exponential, counts are Poisson."""

    @property
    def name(self) -> str:
        return "poisson"

    def mean_rate(self, rate: float | None, workload: Workload) -> float:
        return given_or_own(rate, workload)

    def expected_requests(self, rate: float | None, workload: Workload) -> float:
        return np.inf

    def sampler(self, rate: float | None, gaps: np.random.Generator, workload: Workload) -> Sampler:
        mean = self.mean_rate(rate, workload)
        return Sampler(block / mean for block in accumulated(unit_gaps(gaps)))


@dataclass(frozen=True, kw_only=True)
class Trace(ArrivalProcess):
    """The workload's own arrivals, once, in their order and with their lengths; a rate stretches time."""

    @property
    def name(self) -> str:
        return "trace"

    def mean_rate(self, rate: float | None, workload: Workload) -> float:
        arrival_s, _ = own_arrivals(workload)
        if rate is not None or arrival_s[-1] > 0:
            return given_or_own(rate, workload)
        return np.inf

    def expected_requests(self, rate: float | None, workload: Workload) -> float:
        return float(len(own_arrivals(workload)[0]))

    def sampler(self, rate: float | None, gaps: np.random.Generator, workload: Workload) -> Sampler:
        arrival_s, _ = own_arrivals(workload)
        return Sampler(iter((arrival_s * stretch(rate, workload),)))


def given_or_own(rate: float | None, workload: Workload) -> float:
    """`rate`, or where it is None the workload's."""
    if rate is None:
        rate = workload.rate
    if rate is None:
        raise ValueError("rate must be given in requests per second: the workload has none of its own")
    require_positive("rate", rate)
    return float(rate)


def own_arrivals(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Instants and rows of a trace.

    Raises:
        ValueError: the workload has no arrival times.
    """
    if workload.arrival_s is None or workload.arrival_row is None:
        raise ValueError(
            "arrivals='trace' needs a workload with arrival times, got one without; "
            "use arrivals='poisson', or read a trace that has a time column"
        )
    return workload.arrival_s, workload.arrival_row


def stretch(rate: float | None, workload: Workload) -> float:
    """The factor on a trace's time that gives it the mean rate `rate`; 1 for None."""
    if rate is None:
        return 1.0
    require_positive("rate", rate)
    require_positive("the trace's own rate", 0.0 if workload.rate is None else workload.rate)
    return float(workload.rate or 1.0) / rate
