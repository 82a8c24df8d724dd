"""A measured benchmark run: its setting, its figures and, where the file has them, its requests.

`jaxsim.bench_files` reads them, `jaxsim.request_doctor` examines them, `jaxsim.fit.runs_of` makes a table for a fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsim._checks import invalid
from jaxsim.benchmark_doctor import Benchmark
from jaxsim.units import MS_PER_S

Column = Float[np.ndarray, " rows"]

NAMED_ROWS = 5
"""Rows of a finding that are named one by one; the others are counted."""

HALF_WIDTH_PER_DEVIATION = 3.0**0.5
"""Half-width over standard deviation of a uniform law."""

MOST_SPREAD = 0.99


class Percentile(NamedTuple):
    """A reported percentile of a latency, seconds; `low` and `high` differ where only a bucket is known.

    `figure` is "ttft", "tpot", "itl" or "e2e"; `high_s` is inf above the last edge of a histogram.
    """

    figure: str
    q: float
    low_s: float
    high_s: float

    @property
    def exact(self) -> bool:
        """Whether it is a number, not a bucket."""
        return self.low_s == self.high_s

    @property
    def text(self) -> str:
        """Milliseconds: ``85``, ``250 to 7,500`` or ``> 7,500``."""
        low, high = (milliseconds(edge) for edge in (self.low_s, self.high_s))
        if math.isinf(self.high_s):
            return f"> {low}"
        return low if self.exact else f"{low} to {high}"


@dataclass(frozen=True, kw_only=True)
class RequestTable:
    """The requests of a run, in the file's order, one entry of each column for each; NaN is not known.

    Attributes:
        start_s: when the client sent it; from any zero.
        input_tokens, output_tokens: whole numbers >= 0.
        ttft_s, e2e_s: from then on.
        queue_s: wait at the client before it was sent, in no other figure.
        itl_s: mean of its gaps between tokens.
        num_gaps: how many gaps these are; fewer than output tokens less one where several tokens came at a time.
        left_out: why it counts in no figure; "" where it counts.
        failed: whether it was left out since it failed.
        word, numbers: what a row is called in the file: "line" and its number, or "request" and its position from 1.
    """

    start_s: Column
    input_tokens: Column
    output_tokens: Column
    ttft_s: Column
    e2e_s: Column
    queue_s: Column
    itl_s: Column
    num_gaps: Column
    left_out: tuple[str, ...] = field(repr=False)
    failed: Bool[np.ndarray, " rows"] = field(repr=False)
    word: str
    numbers: Int[np.ndarray, " rows"] = field(repr=False)

    def __post_init__(self) -> None:
        columns = (self.start_s, self.input_tokens, self.output_tokens, self.ttft_s, self.e2e_s, self.queue_s)
        lengths = {len(column) for column in (*columns, self.itl_s, self.num_gaps, self.failed, self.numbers)}
        if lengths != {len(self.left_out)}:
            raise invalid("columns of requests", sorted({*lengths, len(self.left_out)}), "of one length")

    def __len__(self) -> int:
        return len(self.left_out)

    @property
    def counted(self) -> Bool[np.ndarray, " rows"]:
        """Rows that count in the figures."""
        return np.array([not reason for reason in self.left_out], dtype=bool)

    @property
    def tpot_s(self) -> Column:
        """Mean time per token after the first; NaN where there is no second one, or a time is not known."""
        later = self.output_tokens - 1.0
        safe = np.where(later > 0, later, 1.0)
        timed = np.where(later > 0, (self.e2e_s - self.ttft_s) / safe, np.nan)
        # A stream of single tokens whose end is not known has its gaps.
        by_gaps = np.where((later > 0) & (self.num_gaps == later), self.itl_s, np.nan)
        return np.where(np.isnan(timed), by_gaps, timed)

    def place(self, row: int) -> str:
        """One row as it is found in the file."""
        return f"{self.word} {self.numbers[row]}"

    def name(self, rows: Bool[np.ndarray, " rows"]) -> str:
        """The chosen rows in words: ``lines 3, 8 and 12``, ``requests 1 to 16``, ``request 4 and 96 more``."""
        numbers = self.numbers[rows].tolist()
        plural = "s" if len(numbers) > 1 else ""
        if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return f"{self.word}s {numbers[0]:,} to {numbers[-1]:,}"
        shown = [f"{number:,}" for number in numbers[:NAMED_ROWS]]
        if len(numbers) > NAMED_ROWS:
            return f"{self.word}{plural} {', '.join(shown)} and {len(numbers) - NAMED_ROWS:,} more"
        listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
        return f"{self.word}{plural} {listed}"


@dataclass(frozen=True, kw_only=True)
class BenchmarkRun:
    """One run of a benchmark, as its file has it.

    Attributes:
        file: its name.
        place: where in the file, such as "line 2"; "" where the file is the run.
        tool: what wrote it, in words.
        model: the model's name; None where it is not said.
        summary: the figures that the doctor's identities are about.
        mean_tpot_s: over requests of the mean time per token after the first; None where it is not known.
        mean_input_tokens, mean_output_tokens: over completed requests; None where they are not known.
        spread: half-width of the range of lengths over their mean, as `jaxsim.fit.RunTable` has it; None where it is
            not known.
        percentiles: those that were reported.
        requests: one row each; None where the file has none.
        in_flight: mean requests running and waiting at the ends of the run, where a server said so.
        engines: engines that served it, where the file says so.
        unsteady: why its figures are no steady state, whatever they are; "" where nothing says so.
        notes: what the reader decided, one sentence each.
    """

    file: str
    place: str = ""
    tool: str
    model: str | None = None
    summary: Benchmark
    mean_tpot_s: float | None = None
    mean_input_tokens: float | None = None
    mean_output_tokens: float | None = None
    spread: float | None = None
    percentiles: tuple[Percentile, ...] = ()
    requests: RequestTable | None = field(default=None, repr=False)
    in_flight: float | None = None
    engines: int | None = None
    unsteady: str = ""
    notes: tuple[str, ...] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        """The file, and where in it."""
        return f"{self.file}, {self.place}" if self.place else self.file

    def percentile(self, figure: str, q: float) -> Percentile | None:
        """A reported percentile; None where it is not there."""
        return next((each for each in self.percentiles if (each.figure, each.q) == (figure, q)), None)


def milliseconds(seconds: float) -> str:
    """Four digits, or a whole number of more: ``81.67``, ``307,700``."""
    value = MS_PER_S * seconds
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"


def spread_of(*tokens: Float[np.ndarray, " _"]) -> float | None:
    """Half-width over mean of uniform lengths that vary as much, the mean of the given columns.

    None of fewer than two lengths.
    """
    known = [column for column in tokens if len(column) > 1 and column.mean() > 0]
    if not known:
        return None
    found = [HALF_WIDTH_PER_DEVIATION * float(column.std() / column.mean()) for column in known]
    return min(float(np.mean(found)), MOST_SPREAD)
