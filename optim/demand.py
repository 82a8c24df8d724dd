"""RateProfile: requests per second over a day, constant on intervals; from lists, a trace or two extremes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

import des
from des.processes import own_arrivals
from jaxsim._checks import require, require_positive
from jaxsim.units import SECONDS_PER_HOUR
from jaxsim.workload import Workload

SECONDS_PER_DAY = 24.0 * SECONDS_PER_HOUR
_WHOLE = 1e-9


@dataclass(frozen=True)
class RateProfile:
    """Poisson arrivals at ``rate[k]`` requests per second from ``start_s[k]`` to the next start.

    Attributes:
        start_s: starts of the intervals in seconds, ascending, the first 0.
        rate: requests per second in each, >= 0 and finite, not all 0.
        end_s: end of the last interval, seconds: the length of the day.
        repeat: the same day follows for ever, so what is started before its first interval is started at the end of the
            day before. If not, there is nothing before it and nothing after it.
        source: where it is from, in words.
        notes: what its making decided.
        origin_s: time of the day at which the first interval begins, seconds, for words alone.
    """

    start_s: tuple[float, ...]
    rate: tuple[float, ...]
    end_s: float
    repeat: bool = True
    source: str = "given"
    notes: tuple[str, ...] = ()
    origin_s: float = 0.0

    def __post_init__(self) -> None:
        made = des.PiecewiseRate(start_s=self.start_s, rate=self.rate, end_s=self.end_s)  # checks everything
        object.__setattr__(self, "start_s", made.start_s)
        object.__setattr__(self, "rate", made.rate)
        object.__setattr__(self, "end_s", float(self.end_s))

    @classmethod
    def of(cls, rates: Any, interval_s: float, *, repeat: bool = True, source: str = "given") -> RateProfile:
        """Equal intervals of `interval_s` seconds with these mean rates."""
        require_positive("interval_s", interval_s)
        starts = tuple(float(interval_s * k) for k in range(len(rates)))
        return cls(starts, tuple(float(r) for r in rates), float(interval_s * len(rates)), repeat, source)

    @classmethod
    def daily(cls, *, peak: float, trough: float, peak_hour: float, interval_s: float) -> RateProfile:
        r"""24 hours between two extremes, which repeat: a cosine, taken in the middle of each interval.

        :math:`\lambda_k = trough + (peak - trough) (1 + \cos(2 \pi (m_k - m^*) / 24 h)) / 2` with the middle
        :math:`m^*` of the interval that `peak_hour` falls in, whose rate is the peak.

        Args:
            peak, trough: highest and lowest requests per second; 0 <= trough <= peak, peak > 0.
            peak_hour: of the day, in [0, 24).
            interval_s: length of an interval, seconds; a day must be a whole number of them.
        """
        require_positive("peak", peak)
        require((trough >= 0) & (trough <= peak), "trough", trough, f"from 0 to the peak ({peak:g})")
        require((peak_hour >= 0) & (peak_hour < 24), "peak_hour", peak_hour, "in [0, 24)")
        require_positive("interval_s", interval_s)
        number = round(SECONDS_PER_DAY / interval_s)
        whole = number >= 2 and abs(number * interval_s - SECONDS_PER_DAY) <= _WHOLE * SECONDS_PER_DAY
        require(whole, "interval_s", interval_s, "two or more times in 24 h without a rest", "3600 is an hour")
        top = int(peak_hour * SECONDS_PER_HOUR / interval_s)
        turn = 2.0 * np.pi * (np.arange(number) - top) / number
        rates = trough + (peak - trough) * 0.5 * (1.0 + np.cos(turn))
        words = f"a cosine from {trough:g} to {peak:g} requests/s at hour {peak_hour:g}"
        return cls.of(rates.tolist(), SECONDS_PER_DAY / number, source=words)

    @classmethod
    def from_trace(cls, workload: Workload, interval_s: float, *, repeat: bool = True) -> RateProfile:
        """The arrivals of a trace, counted in intervals from the first one on.

        What follows the last whole interval is left out, and its requests are counted in `notes`.

        Args:
            workload: read from a trace with arrival times.
            interval_s: length of an interval, seconds; the trace must fill two or more.
            repeat: see the class.

        Raises:
            ValueError: the workload has no arrival times, or they fill fewer than two intervals.
        """
        require_positive("interval_s", interval_s)
        if workload.arrival_s is None:
            raise ValueError(
                f"a rate over time needs a workload with arrival times; workload {workload.name!r} has none: read a "
                "trace that has a time column, or give the rates in a table"
            )
        arrival_s = own_arrivals(workload)[0]
        number = int(float(arrival_s[-1]) / interval_s)
        require(
            number >= 2,
            "interval_s",
            interval_s,
            f"at most half of the trace's {arrival_s[-1]:g} s",
            "one interval is one rate: `fleetgrad plan`",
        )
        edges = interval_s * np.arange(number + 1)
        counts = np.histogram(arrival_s[arrival_s < edges[-1]], edges)[0]
        left = len(arrival_s) - int(counts.sum())
        made = cls.of((counts / interval_s).tolist(), interval_s, repeat=repeat, source=f"arrivals of {workload.name}")
        note = (
            f"{left:,} of {len(arrival_s):,} arrivals are after the last whole interval of {interval_s:g} s: not in "
            "the demand"
        )
        return replace(made, notes=(note,) if left else ())

    @property
    def num_intervals(self) -> int:
        """How many."""
        return len(self.rate)

    @property
    def rates(self) -> Float[np.ndarray, " intervals"]:
        """Requests per second of each interval."""
        return np.array(self.rate)

    @property
    def edges_s(self) -> Float[np.ndarray, " edges"]:
        """Starts and the end, seconds."""
        return np.array([*self.start_s, self.end_s])

    @property
    def lengths_s(self) -> Float[np.ndarray, " intervals"]:
        """Length of each interval, seconds."""
        return np.diff(self.edges_s)

    @property
    def requests(self) -> float:
        """Expected number of the whole day."""
        return float(self.rates @ self.lengths_s)

    @property
    def mean_rate(self) -> float:
        """Requests per second over the whole day."""
        return self.requests / self.end_s

    def clock(self, interval: int) -> str:
        """When an interval begins, hours and minutes, and seconds where there are any: 08:30."""
        whole = round(self.start_s[interval] + self.origin_s % SECONDS_PER_DAY)
        text = f"{whole // 3600:02d}:{whole % 3600 // 60:02d}"
        return f"{text}:{whole % 60:02d}" if whole % 60 else text

    def named(self, intervals: Sequence[int] | np.ndarray, most: int = 6) -> str:
        """Some intervals in words, by their beginning: those from 03:00, 04:00 and 2 more."""
        shown = [self.clock(int(k)) for k in list(intervals)[:most]]
        more = len(intervals) - len(shown)
        few = "the interval from " if len(intervals) == 1 else "the intervals from "
        return few + ", ".join(shown) + (f" and {more} more" if more > 0 else "")

    def with_rates(self, rates: Any, source: str | None = None) -> RateProfile:
        """The same intervals at other rates."""
        source = self.source if source is None else source
        return replace(self, rate=tuple(float(r) for r in rates), source=source)

    def scaled_to(self, mean_rate: float) -> RateProfile:
        """The same shape at another mean rate, requests per second."""
        require_positive("mean_rate", mean_rate)
        factor = mean_rate / self.mean_rate
        return self.with_rates(factor * self.rates, f"{self.source}, scaled to a mean of {mean_rate:g} requests/s")

    def at(self, time_s: float) -> float:
        """Requests per second at an instant. Outside the day: that of the day before or after, or of the nearest
        interval where the day does not repeat."""
        if self.repeat:
            time_s %= self.end_s
        at = np.searchsorted(self.edges_s, time_s, side="right") - 1
        return self.rate[int(np.clip(at, 0, self.num_intervals - 1))]

    def stretch(self, first_s: float, last_s: float) -> des.PiecewiseRate:
        """Arrivals from `first_s` to `last_s`, on a clock that starts at `first_s`; outside the day, see `at`.

        Raises:
            ValueError: nothing arrives in that time, or the stretch is longer than three days.
        """
        reach = self.end_s if self.repeat else 0.0
        require(first_s < last_s, "last_s", last_s, f"> first_s ({first_s:g})")
        require((first_s >= -self.end_s) & (last_s <= 2 * self.end_s), "first_s", first_s, "within a day of the day")
        edges = np.unique(np.concatenate([self.edges_s + shift for shift in (-reach, 0.0, reach)]))
        inside = edges[(edges > first_s) & (edges < last_s)]
        starts = np.array([first_s, *inside])
        return des.PiecewiseRate(
            start_s=tuple((starts - first_s).tolist()),
            rate=tuple(self.at(float(s)) for s in starts),
            end_s=float(last_s - first_s),
        )


def resampled(
    edges_s: Float[np.ndarray, " edges"], values: Float[np.ndarray, " pieces"], onto_s: Float[np.ndarray, " others"]
) -> Float[np.ndarray, " intervals"]:
    """Means over other intervals of a value that is constant on pieces.

    Args:
        edges_s: of the pieces, ascending.
        values: on each.
        onto_s: edges of the intervals, ascending, within those of the pieces.

    Raises:
        ValueError: the pieces do not cover the intervals.
    """
    covered = edges_s[0] <= onto_s[0] and edges_s[-1] >= onto_s[-1] * (1.0 - _WHOLE)
    span = f"{edges_s[0]:g} to {edges_s[-1]:g} s"
    require(covered, "the time that prices cover", span, f"at least that of the demand, 0 to {onto_s[-1]:g} s")
    integral = np.append(0.0, np.cumsum(values * np.diff(edges_s)))
    return np.diff(np.interp(onto_s, edges_s, integral)) / np.diff(onto_s)
