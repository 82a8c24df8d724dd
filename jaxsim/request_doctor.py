"""What the requests of a run say of it, row by row; and a run examined whole, its summary and its rows.

A finding names its rows as the file does. None of them drops a row: what a reader left out of the figures says so here,
and the rest is for whoever reads the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from jaxtyping import Bool, Float

from jaxsim.benchmark_doctor import Checkup, Verdict, check
from jaxsim.benchmark_run import BenchmarkRun, RequestTable, milliseconds
from jaxsim.percentiles import FEW_BEYOND, Interval, beyond, interval, needed, ranks
from jaxsim.traces import RawTrace

Rows = Bool[np.ndarray, " rows"]

IDENTITY_TOLERANCE = 0.05
"""Relative error of E2E = TTFT + gaps above which a row contradicts itself."""

IDENTITY_SHARE = 0.1
"""Share of such rows from which on the run does."""

COLD = 2.0
"""Median TTFT of the first wave over that of the later requests from which on the wave is worth a word."""

COLD_QUANTILE = 0.95
"""Quantile of the later TTFTs that the first wave's median must be above too."""

LEAST_LATER = 8
"""Later requests, at least, that a first wave is held against."""

SHORT_WAIT_S, SHORT_WAIT_SHARE = 1e-3, 0.01
"""A wait at the client below both, the latter of the request's E2E, is not worth a word."""

GROWTH_CORRELATION, GROWTH = 0.7, 2.0
"""Rank correlation of TTFT with the start, and mean TTFT of the last third over the first, from which on requests
piled up."""

LEAST_FOR_GROWTH = 30

TAIL = 0.99
"""Reported percentiles from here on are looked at for what they rest on."""


class Symptom(Enum):
    """What a finding is about; the values say it in short."""

    FAILED = "requests failed"
    LEFT_OUT = "requests left out"
    ZERO_TOKENS = "requests without output"
    ONE_TOKEN = "requests of one token"
    NOT_MEASURED = "a TTFT of 0"
    IDENTITY = "E2E is not TTFT and the gaps after it"
    BUNDLED = "several tokens came at a time"
    REPORTED = "the summary is not that of its rows"
    COLD_WAVE = "the first wave is slower"
    CLIENT_QUEUE = "requests waited at the client"
    LATE_STARTS = "requests were sent later than the offered rate says"
    PILING_UP = "TTFT grew through the run"
    FEW_BEYOND = "a percentile rests on few requests"


@dataclass(frozen=True)
class Finding:
    """One finding: what it is about, its sentence with the rows in it, and the rows as the file numbers them."""

    symptom: Symptom
    text: str
    rows: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Examination:
    """A run with everything that the doctor says of it.

    Attributes:
        run: the run.
        checkup: what the identities say of its summary.
        found: what its rows say, and its percentiles.
        verdict: what it can be used for, the rows considered.
    """

    run: BenchmarkRun
    checkup: Checkup
    found: tuple[Finding, ...]
    verdict: Verdict

    @property
    def steady(self) -> bool:
        """Whether latencies may be compared with those of another steady run, or fitted."""
        return self.verdict in (Verdict.STEADY, Verdict.CLOSED_LOOP)

    @property
    def findings(self) -> tuple[str, ...]:
        """Every sentence, of the summary first."""
        unsteady = (self.run.unsteady,) if self.run.unsteady else ()
        return (*unsteady, *self.checkup.findings, *(each.text for each in self.found))

    @property
    def reason(self) -> str:
        """Why it is not steady, in one sentence; "" where it is, or where the verdict says it all."""
        decisive = (*CONTRADICTING, Symptom.IDENTITY, Symptom.PILING_UP)
        rows = (each.text for each in self.found if each.symptom in decisive)
        said = (self.run.unsteady, *self.checkup.reasons, *rows)
        return "" if self.steady else next((text for text in said if text), "")


CONTRADICTING = (Symptom.NOT_MEASURED, Symptom.REPORTED)


def examine(run: BenchmarkRun) -> Examination:
    """Hold a run against the identities, and its rows against each other."""
    checkup = check(run.summary)
    found = (*(() if run.requests is None else _row_findings(run, run.requests)), *_few_beyond(run))
    verdict = checkup.verdict
    symptoms = {each.symptom for each in found}
    if verdict is not Verdict.EMPTY:
        if symptoms & {*CONTRADICTING} or _contradicts_itself(run, found):
            verdict = Verdict.INCONSISTENT
        elif verdict is not Verdict.INCONSISTENT and (run.unsteady or Symptom.PILING_UP in symptoms):
            verdict = Verdict.UNSTABLE
    return Examination(run, checkup, found, verdict)


def _contradicts_itself(run: BenchmarkRun, found: tuple[Finding, ...]) -> bool:
    rows = sum(len(each.rows) for each in found if each.symptom is Symptom.IDENTITY)
    return run.requests is not None and rows > IDENTITY_SHARE * int(run.requests.counted.sum())


def _row_findings(run: BenchmarkRun, table: RequestTable) -> Iterator[Finding]:
    yield from _left_out(table)
    yield from _without_tokens(table)
    yield from _identity(table)
    yield from _bundled(table)
    yield from _reported(run, table)
    yield from _cold_wave(run, table)
    yield from _client_queue(run, table)
    yield from _late_starts(run, table)
    yield from _growth(run, table)


def _found(symptom: Symptom, table: RequestTable, rows: Rows, text: str) -> Finding:
    return Finding(symptom, text, tuple(table.numbers[rows].tolist()))


def _count(rows: Rows) -> str:
    number = int(rows.sum())
    return f"{number:,} request{'' if number == 1 else 's'}"


def _left_out(table: RequestTable) -> Iterator[Finding]:
    for reason in dict.fromkeys(reason for reason in table.left_out if reason):
        rows = np.array([each == reason for each in table.left_out])
        symptom = Symptom.FAILED if table.failed[rows].any() else Symptom.LEFT_OUT
        yield _found(symptom, table, rows, f"{table.name(rows)}: {reason}, in no figure")


def _without_tokens(table: RequestTable) -> Iterator[Finding]:
    none, one = (table.counted & (table.output_tokens == number) for number in (0, 1))
    if none.any():
        text = f"{table.name(none)}: ended well without an output token ({_count(none)}, whose times say nothing)"
        yield _found(Symptom.ZERO_TOKENS, table, none, text)
    if one.any():
        text = f"{table.name(one)}: one output token, so no TPOT ({_count(one)}, which its figures leave out)"
        yield _found(Symptom.ONE_TOKEN, table, one, text)
    zero = table.counted & (table.ttft_s == 0) & (table.output_tokens != 0)
    if zero.any():
        text = f"{table.name(zero)}: a TTFT of 0, which was not measured ({_count(zero)})"
        yield _found(Symptom.NOT_MEASURED, table, zero, text)


def _identity(table: RequestTable) -> Iterator[Finding]:
    gaps = np.where(table.num_gaps == 0, 0.0, table.itl_s * table.num_gaps)
    expected = table.ttft_s + gaps
    known = table.counted & ~np.isnan(expected) & ~np.isnan(table.e2e_s)
    off = known & (np.abs(table.e2e_s - expected) > IDENTITY_TOLERANCE * table.e2e_s + SHORT_WAIT_S)
    before = table.counted & (table.e2e_s < table.ttft_s) & ~off
    for rows, what in ((off, "E2E is not TTFT + ITL x (tokens - 1)"), (before, "E2E is below TTFT")):
        if rows.any():
            at = int(np.argmax(rows))
            figures = f"E2E {_ms(table.e2e_s[at])}, TTFT {_ms(table.ttft_s[at])}"
            figures += f", gaps {_ms(gaps[at])} in all" if rows is off else ""
            text = f"{table.name(rows)}: {what} ({_count(rows)}; {table.place(at)}: {figures})"
            yield _found(Symptom.IDENTITY, table, rows, text)


def _bundled(table: RequestTable) -> Iterator[Finding]:
    rows = table.counted & (table.num_gaps < table.output_tokens - 1.0)
    if rows.any():
        at = int(np.argmax(rows))
        text = (
            f"{table.name(rows)}: fewer gaps than tokens ({table.place(at)}: {table.num_gaps[at]:.0f} gaps, "
            f"{table.output_tokens[at]:.0f} tokens): several came at a time, so ITL is of chunks; TPOT is per token"
        )
        yield _found(Symptom.BUNDLED, table, rows, text)


def _reported(run: BenchmarkRun, table: RequestTable) -> Iterator[Finding]:
    """The summary's means and counts against those of the rows."""
    counted = table.counted
    number = int(counted.sum())
    if number != run.summary.completed:
        text = f"{run.summary.completed:,} requests are said to have completed, and {number:,} of the rows did"
        yield Finding(Symptom.REPORTED, text)
    for name, said, column in (
        ("TTFT", run.summary.mean_ttft_s, table.ttft_s),
        ("E2E", run.summary.mean_e2e_s, table.e2e_s),
    ):
        values = column[counted]
        if said is None or not len(values) or np.isnan(values).any():
            continue
        mean = float(values.mean())
        if abs(said - mean) > IDENTITY_TOLERANCE * mean:
            text = f"the mean {name} is said to be {_ms(said)}, and that of the rows is {_ms(mean)}"
            yield Finding(Symptom.REPORTED, text)


def first_wave(run: BenchmarkRun) -> Rows | None:
    """The requests that clients sent before the first of them could end: as many as the limit, by start.

    Without a limit, as many as were in flight on average. None where the file has no rows, or neither is known.
    """
    table = run.requests
    size: float | None = run.summary.max_concurrency
    if size is None:
        size = check(run.summary).little_concurrency
    if table is None or size is None:
        return None
    counted = np.flatnonzero(table.counted)
    starts = table.start_s[counted]
    order = counted if np.isnan(starts).any() else counted[np.argsort(starts, kind="stable")]
    chosen = np.zeros(len(table), dtype=bool)
    chosen[order[: max(math.ceil(size), 1)]] = True
    return chosen


def _cold_wave(run: BenchmarkRun, table: RequestTable) -> Iterator[Finding]:
    first = first_wave(run)
    if first is None:
        return
    later = table.counted & ~first
    wave, rest = table.ttft_s[first], table.ttft_s[later]
    if len(rest) < LEAST_LATER or np.isnan(wave).any() or np.isnan(rest).any():
        return
    median, usual = float(np.median(wave)), float(np.median(rest))
    if median < COLD * usual or median < float(np.quantile(rest, COLD_QUANTILE)):
        return
    text = (
        f"the first wave, {table.name(first)}, has a median TTFT of {_ms(median)} and the later ones {_ms(usual)}: a "
        f"cold start, or all prompts at once; the mean TTFT is {_ms(float(rest.mean()))} without it and "
        f"{_ms(float(table.ttft_s[table.counted].mean()))} with it"
    )
    yield _found(Symptom.COLD_WAVE, table, first, text)


def _client_queue(run: BenchmarkRun, table: RequestTable) -> Iterator[Finding]:
    """Waits at a client that was to send at a rate; one that was to send all at once makes all of them wait."""
    if run.summary.offered_rate == math.inf:
        return
    rows = table.counted & (table.queue_s > SHORT_WAIT_S)
    rows &= ~(table.queue_s < SHORT_WAIT_SHARE * table.e2e_s)
    if not rows.any():
        return
    counted = table.counted
    mean, largest = float(np.nanmean(table.queue_s[counted])), float(np.nanmax(table.queue_s[counted]))
    seen = float(np.mean(table.ttft_s[counted] + table.queue_s[counted]))
    text = (
        f"{table.name(rows)} waited at the client before being sent ({_count(rows)}; {_ms(largest)} at most, "
        f"{_ms(mean)} on average), and that is in no TTFT: with it the mean TTFT is {_ms(seen)}"
    )
    yield _found(Symptom.CLIENT_QUEUE, table, rows, text)


def _late_starts(run: BenchmarkRun, table: RequestTable) -> Iterator[Finding]:
    """Starts that slip behind the offered rate, where no wait at the client was recorded."""
    rate = run.summary.offered_rate
    starts = table.start_s[~np.isnan(table.start_s)]
    if rate is None or math.isinf(rate) or run.unsteady or len(starts) < LEAST_LATER:
        return
    due, took = (len(starts) - 1) / rate, float(np.ptp(starts))
    if took <= due * (1.0 + 0.02 + 2.0 / math.sqrt(len(starts))):
        return
    last = table.start_s == np.nanmax(table.start_s)
    text = (
        f"{len(starts):,} requests were sent in {took:.4g} s, at {rate:g} requests/s they were due in {due:.4g} s: "
        f"the client held them back (the last, {table.name(last)}, by {took - due:.4g} s), and that is in no TTFT"
    )
    yield _found(Symptom.LATE_STARTS, table, last, text)


def _growth(run: BenchmarkRun, table: RequestTable) -> Iterator[Finding]:
    """TTFT against the start: what a queue that never settles does."""
    first = first_wave(run)
    chosen = table.counted if first is None or run.summary.max_concurrency is None else table.counted & ~first
    starts, ttft = table.start_s[chosen], table.ttft_s[chosen]
    if len(ttft) < LEAST_FOR_GROWTH or np.isnan(starts).any() or np.isnan(ttft).any() or np.ptp(starts) == 0:
        return
    order = np.argsort(starts, kind="stable")
    ttft = ttft[order]
    third = len(ttft) // 3
    early, late = float(ttft[:third].mean()), float(ttft[-third:].mean())
    if late < GROWTH * early or _rank_correlation(ttft) < GROWTH_CORRELATION:
        return
    rows = np.zeros(len(table), dtype=bool)
    rows[np.flatnonzero(chosen)[order[-third:]]] = True
    text = (
        f"TTFT grew through the run: {_ms(early)} on average in its first third and {_ms(late)} in its last "
        f"({table.name(rows)}): requests piled up, and a longer run would have made it longer"
    )
    yield _found(Symptom.PILING_UP, table, rows, text)


def _rank_correlation(values: Float[np.ndarray, " _"]) -> float:
    """Spearman's, of values with their positions; ties keep their order."""
    position = np.arange(len(values), dtype=np.float64)
    rank = np.empty(len(values))
    rank[np.argsort(values, kind="stable")] = position
    return float(np.corrcoef(position, rank)[0, 1])


def _few_beyond(run: BenchmarkRun) -> Iterator[Finding]:
    """Reported percentiles of requests that rest on few of them; where rows have the figure, with the interval."""
    number = run.summary.completed
    by_q: dict[float, list[str]] = {}
    for each in run.percentiles:
        if number and each.q >= TAIL and each.figure in ("ttft", "tpot", "e2e") and beyond(number, each.q) < FEW_BEYOND:
            values = None if run.requests is None else _column(run.requests, each.figure)
            by_q.setdefault(each.q, []).append(f"{each.figure.upper()}{_between(values, each.q)}")
    for q, figures in by_q.items():
        yield Finding(Symptom.FEW_BEYOND, _rests_on(number, q, ", ".join(figures)))


def _column(table: RequestTable, figure: str) -> Float[np.ndarray, " _"] | None:
    values = getattr(table, f"{figure}_s")[table.counted]
    values = values[~np.isnan(values)]
    return values if len(values) else None


def _between(values: Float[np.ndarray, " _"] | None, q: float) -> str:
    if values is None:
        return ""
    found: Interval = interval(values, q)
    high = "no upper end" if math.isinf(found.high) else _ms(found.high)
    return f" ({_ms(found.low)} to {high})"


def _rests_on(number: int, q: float, figures: str) -> str:
    name = f"P{100 * q:g}"
    above = beyond(number, q)
    text = f"{name} of {figures} rests on {above:,} of {number:,} requests beyond it"
    if ranks(number, q)[1] > number:
        return f"{text}: at 95 % it has no upper end; {needed(q):,} requests are needed for one"
    return f"{text}: a few more or less would move it"


def _ms(seconds: float) -> str:
    return f"{milliseconds(seconds)} ms"


def examine_trace(trace: RawTrace) -> tuple[Finding, ...]:
    """What is to be known of a trace's rows beside what its reader left out: `RawTrace.notes` has that."""
    found = []
    number = len(trace.output_tokens)
    one = int((trace.output_tokens == 1).sum())
    if one:
        share = f"{one:,} of {number:,} requests have one output token"
        found.append(Finding(Symptom.ONE_TOKEN, f"{share}: TPOT is undefined for them"))
    if beyond(number, 0.99) < FEW_BEYOND:
        total = (trace.input_tokens + trace.output_tokens).astype(np.float64)
        low, high = interval(total, 0.99)
        upper = "no upper end" if math.isinf(high) else f"{high:,.0f}"
        text = _rests_on(number, 0.99, f"total tokens ({low:,.0f} to {upper})")
        found.append(Finding(Symptom.FEW_BEYOND, text))
    return tuple(found)
