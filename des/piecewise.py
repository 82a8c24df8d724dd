"""Poisson arrivals at a rate that is constant on pieces: days, peaks, tables of measured rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from des.clock import Sampler, accumulated, intensity_at, inverse_intensity, time_changed, unit_gaps
from des.processes import ArrivalProcess
from jaxsim._checks import require, require_non_negative, require_positive, unknown
from jaxsim.workload import Workload

ZEROS = ("missing", "idle")
"""What a rate of 0 in a table means: no data, or no requests."""


@dataclass(frozen=True, kw_only=True)
class PiecewiseRate(ArrivalProcess):
    """A Poisson process with ``rate[i]`` requests per second from ``start_s[i]`` to the next start.

    Attributes:
        start_s: starts of the pieces in seconds, ascending, the first 0.
        rate: requests per second on each, >= 0, not all 0. Nothing arrives where it is 0. Asked for another mean
            rate, all are scaled to it.
        end_s: end of the last piece, seconds.
        repeat: whether it starts anew at `end_s`, for ever; if not, arrivals stop there.
    """

    start_s: tuple[float, ...]
    rate: tuple[float, ...]
    end_s: float
    repeat: bool = False

    def __post_init__(self) -> None:
        start_s, rate = np.array(self.start_s, dtype=np.float64), np.array(self.rate, dtype=np.float64)
        require(start_s.size >= 1, "the number of start_s", start_s.size, ">= 1")
        require(start_s[0] == 0, "start_s[0]", start_s[0], "0", "shift the times: the simulation starts there")
        require(np.diff(start_s) > 0, "steps of start_s", np.diff(start_s), "> 0", "sort the pieces by time")
        require(start_s[-1] < self.end_s < np.inf, "end_s", self.end_s, f"above the last start ({start_s[-1]:g})")
        require(rate.size == start_s.size, "the number of rate", rate.size, f"{start_s.size}, one for each piece")
        require_non_negative("rate", rate)
        require(rate.sum() > 0, "the largest rate", rate.max(), "> 0")
        object.__setattr__(self, "start_s", tuple(start_s.tolist()))
        object.__setattr__(self, "rate", tuple(rate.tolist()))

    @classmethod
    def from_table(cls, time_s: Any, rate: Any, *, repeat: bool = False, zeros: str = "missing") -> PiecewiseRate:
        """From a table of windows: their starts and mean rates. The last is as long as the one before.

        Args:
            time_s: starts in seconds, ascending, two or more; the first becomes 0.
            rate: requests per second in each, >= 0.
            repeat: see the class.
            zeros: what a rate of 0 means. ``"missing"``, as in many published tables: no data, an error.
                ``"idle"``: no requests, kept.

        Raises:
            ValueError: windows are missing (no row, no number, or a 0 that may be one), or a bad value.
        """
        if zeros not in ZEROS:
            raise unknown("meaning of zeros", zeros, ZEROS)
        time, rates = np.asarray(time_s, dtype=np.float64), np.asarray(rate, dtype=np.float64)
        require(time.size >= 2, "the number of windows", time.size, ">= 2", "one window does not say how long it is")
        require(rates.size == time.size, "the number of rates", rates.size, f"{time.size}, one for each window")
        require(np.diff(time) > 0, "steps of time_s", np.diff(time), "> 0", "sort the windows; is it one table?")
        _refuse_missing(time, rates, zeros)
        start_s = time - time[0]
        end_s = float(2.0 * start_s[-1] - start_s[-2])
        return cls(start_s=tuple(start_s.tolist()), rate=tuple(rates.tolist()), end_s=end_s, repeat=repeat)

    @property
    def name(self) -> str:
        return "piecewise"

    def mean_rate(self, rate: float | None, workload: Workload) -> float:
        if rate is None:
            return float(np.diff([*self.start_s, self.end_s]) @ np.array(self.rate) / self.end_s)
        require_positive("rate", rate)
        return float(rate)

    def expected_requests(self, rate: float | None, workload: Workload) -> float:
        return np.inf if self.repeat else self.mean_rate(rate, workload) * self.end_s

    def sampler(self, rate: float | None, gaps: np.random.Generator, workload: Workload) -> Sampler:
        factor = 1.0 if rate is None else self.mean_rate(rate, workload) / self.mean_rate(None, workload)
        rates = np.array(self.rate) * factor
        units, edges_s = accumulated(unit_gaps(gaps)), np.append(self.start_s, self.end_s)
        return Sampler(
            _repeated(units, edges_s, rates) if self.repeat else time_changed(units, iter(((edges_s, rates),)))
        )


def _repeated(
    units: Iterator[np.ndarray], edges_s: Float[np.ndarray, " edges"], rates: Float[np.ndarray, " pieces"]
) -> Iterator[Float[np.ndarray, " block"]]:
    """The time change of a table that starts over and over: by whole cycles, then within one."""
    intensity = intensity_at(edges_s, rates)
    last_s = 0.0
    for block in units:
        cycle = np.floor(block / intensity[-1])
        rest = np.clip(block - cycle * intensity[-1], 0.0, np.nextafter(intensity[-1], 0.0))
        instants = cycle * edges_s[-1] + inverse_intensity(rest, intensity, edges_s, rates)
        instants[0] = max(instants[0], last_s)
        np.maximum.accumulate(instants, out=instants)  # against rounding where a cycle ends
        last_s = instants[-1]
        yield instants


def _refuse_missing(time: Float[np.ndarray, " windows"], rates: Float[np.ndarray, " windows"], zeros: str) -> None:
    steps = np.diff(time)
    usual = float(np.median(steps))
    # A table with one usual window and a few longer ones has lost rows; one of unequal windows is as it is.
    if np.mean(np.abs(steps - usual) <= 0.01 * usual) > 0.5 and np.any(steps > 1.5 * usual):
        at = int(np.argmax(steps > 1.5 * usual))
        raise ValueError(
            f"windows are missing: none starts between {time[at]:g} s and {time[at + 1]:g} s, where others are "
            f"{usual:g} s apart; cut the table, fill the windows in, or give pieces: PiecewiseRate(start_s=...)"
        )
    empty = np.isnan(rates)
    if empty.any():
        raise ValueError(
            f"windows are missing: {_share(empty)} no rate, the first at {time[np.argmax(empty)]:g} s; "
            "cut the table or fill them in"
        )
    zero = rates == 0
    if zeros == "missing" and zero.any() and not zero.all():
        raise ValueError(
            f"windows may be missing: {_share(zero)} a rate of 0, the first at {time[np.argmax(zero)]:g} s, which in "
            'many tables means no data; cut the table, or pass zeros="idle" if no requests came'
        )


def _share(windows: np.ndarray) -> str:
    count = int(windows.sum())
    return f"{count} of {len(windows)} windows {'has' if count == 1 else 'have'}"
