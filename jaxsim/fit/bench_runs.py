r"""Benchmark runs as a table for `fit_runs`: those that the doctor holds steady, each at the concurrency it had.

The model of `closed_loop` is one of a fixed number of clients. Of a closed loop that is the clients' limit. At a steady
rate $\lambda$, requests that come while one decodes, or during the step before, add their work to its steps: as much as

$$\lambda S \left(\text{TPOT} + \frac{\text{TTFT}}{S_\text{prefill} (\text{output} - 1)}\right)$$

others do that are in any of their S steps alike (Little's law, for a prompt of one step, where this is
$\lambda\,\overline{E2E}$). So it is as one of one client more. And it comes in the middle of a step, the rest of which,
half a TPOT on average where a step is running at all, is in its TTFT and in no closed loop's. Against the simulator
(``tests/test_fit_bench_runs.py``) TPOT is then within 1 %, and TTFT within 3 % where prompts are few; where they wait
for each other, TTFT is modelled too low, and only TPOT is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from jaxsim._checks import invalid, require_positive
from jaxsim.benchmark_doctor import Verdict
from jaxsim.benchmark_run import BenchmarkRun
from jaxsim.fit.run_table import RunTable
from jaxsim.request_doctor import Examination, examine, first_wave

PROMPTS_AT_A_TIME = 0.1
"""Mean number of requests in prefill, rate times TTFT, above which the TTFT of an open loop is not used."""

LEAST_RUNS = 2

SAME_LENGTHS = 0.1
"""Relative difference of mean lengths up to which runs are of one group."""

WAVES = 3
"""A run's first wave is left out where so many waves' worth of requests are there."""


@dataclass(frozen=True)
class UsedRun:
    """A run in the table.

    Attributes:
        run: the run.
        concurrency: clients on one replica that it is taken for.
        ttft_s, tpot_s: the figures that count; NaN where a TTFT is not used.
        in_step: share of its requests that clients sent in step.
        how: what was decided, one sentence each.
    """

    run: BenchmarkRun
    concurrency: float
    ttft_s: float
    tpot_s: float
    in_step: float
    how: tuple[str, ...]


@dataclass(frozen=True)
class RunsForFit:
    """What `fit_runs` is given, and what it is not.

    Attributes:
        table: the runs that are used.
        used: the same, with what was decided of each.
        left_out: the others, with the reason.
        notes: what was decided of all of them.
    """

    table: RunTable
    used: tuple[UsedRun, ...]
    left_out: tuple[tuple[Examination, str], ...]
    notes: tuple[str, ...]


def runs_of(
    runs: Iterable[BenchmarkRun | Examination],
    *,
    chunk_tokens: float = 2048.0,
    slots: float = math.inf,
    replicas: int = 1,
) -> RunsForFit:
    """The table of the runs that are steady; the others are named with the reason.

    Args:
        runs: from `jaxsim.bench_files`, all of one engine.
        chunk_tokens: prompt tokens of a request that a step computes at most (vLLM: max_num_batched_tokens).
        slots: requests that run at once at most (max_num_seqs).
        replicas: engines that shared the load of each run; the concurrency is divided by them.

    Raises:
        ValueError: fewer than two runs are left, with the reasons of the others.
    """
    require_positive("chunk_tokens", chunk_tokens)
    if replicas < 1:
        raise invalid("replicas", replicas, ">= 1")
    if not slots >= 1:
        raise invalid("slots", slots, ">= 1")
    examined = [each if isinstance(each, Examination) else examine(each) for each in runs]
    used, left_out = [], []
    for each in examined:
        reason = _why_not(each)
        if reason:
            left_out.append((each, reason))
        else:
            used.append(_used(each, chunk_tokens, replicas))
    if len(used) < LEAST_RUNS:
        raise ValueError(_too_few(len(examined), [each.run.label for each in used], left_out))
    limit = "" if math.isinf(slots) else f", at most {slots:,.0f} sequences at once"
    notes = [f"prompts are taken to be computed in chunks of {chunk_tokens:,.0f} tokens{limit}"]
    if all(np.isnan(each.ttft_s) for each in used):
        at, used = _least_loaded(used)
        notes.append(
            f"no run's TTFT is free of prompts that wait for each other: that of {at.run.label} is used, being the "
            "least loaded; prefill coefficients are too large by what they waited"
        )
    models = sorted({each.run.model for each in used if each.run.model})
    if len(models) > 1:
        notes.append(f"the runs are of {len(models)} models ({', '.join(models)}): one law is fitted to all of them")
    unknown = [each.run.label for each in used if each.run.spread is None]
    if unknown:
        notes.append(f"spread of lengths not known, taken as 0: {', '.join(unknown)}")
    return RunsForFit(_table(used, chunk_tokens, slots), tuple(used), tuple(left_out), tuple(notes))


def _why_not(examined: Examination) -> str:
    """Why a run is not used; "" where it is."""
    run = examined.run
    if not examined.steady:
        hint = examined.reason
        if examined.verdict is Verdict.UNKNOWN:
            of_server = "it has no gauges of requests running and waiting"
            hint = of_server if run.engines else "give it with --concurrency (Python: concurrency=)"
        return examined.verdict.value + (f" ({hint})" if hint else "")
    for what, value in (
        ("mean TPOT", run.mean_tpot_s),
        ("mean input tokens", run.mean_input_tokens),
        ("mean output tokens", run.mean_output_tokens),
    ):
        if not value:
            return f"no {what} in it"
    if run.mean_output_tokens is not None and run.mean_output_tokens < 2:
        return "fewer than 2 output tokens a request on average: there is no TPOT"
    if examined.verdict is Verdict.STEADY and _rate(run) is None:
        return "its rate is not known: no duration, and no E2E with the requests in flight"
    return ""


def _used(examined: Examination, chunk_tokens: float, replicas: int) -> UsedRun:
    run = examined.run
    assert run.mean_tpot_s is not None
    engines = max(run.engines or 1, replicas)
    shared = f", over {engines} engines" if engines > 1 else ""
    if examined.verdict is Verdict.CLOSED_LOOP:
        assert run.summary.max_concurrency is not None
        limit = float(run.summary.max_concurrency)
        how = f"a closed loop, at its number of clients{shared}"
        return _without_first_wave(run, UsedRun(run, max(limit / engines, 1.0), run.summary.mean_ttft_s,
                                                run.mean_tpot_s, 0.0, (how,)), chunk_tokens)  # fmt: skip
    rate, by = _rate(run) or (0.0, "")
    rate /= engines
    others = rate * _shared_s(run, chunk_tokens)
    clients = f"as one of {1.0 + others:.3g} clients"
    how = f"at {rate:.3g} requests/s {by}{shared}: {others:.3g} others beside each by Little's law, so {clients}"
    ttft, why = _closed_ttft(run, rate, others)
    return UsedRun(run, 1.0 + others, ttft, run.mean_tpot_s, 0.0, (how, why))


def _rate(run: BenchmarkRun) -> tuple[float, str] | None:
    """Requests per second while they were being sent, and by what; of a server's scrapes, that came."""
    summary = run.summary
    if summary.sending_s is not None:
        return summary.sent / summary.sending_s, "sent"
    if run.in_flight is not None and summary.e2e_s:
        return run.in_flight / summary.e2e_s, "by the server's gauges at both scrapes, two moments only, over E2E"
    return None


def _shared_s(run: BenchmarkRun, chunk_tokens: float) -> float:
    """Seconds in which those that come share a request's steps with it, as if all its steps were alike."""
    assert run.mean_tpot_s is not None and run.mean_input_tokens is not None and run.mean_output_tokens is not None
    prefill, later = math.ceil(run.mean_input_tokens / chunk_tokens), run.mean_output_tokens - 1.0
    return (prefill + later) * (run.mean_tpot_s + run.summary.mean_ttft_s / (prefill * later))


def _closed_ttft(run: BenchmarkRun, rate: float, others: float) -> tuple[float, str]:
    """The TTFT without the rest of the step that a request comes in; NaN where prompts wait for each other."""
    assert run.mean_tpot_s is not None
    rest = 0.5 * run.mean_tpot_s * -math.expm1(-others)
    ttft = run.summary.mean_ttft_s - rest
    prompts = rate * run.summary.mean_ttft_s
    if prompts > PROMPTS_AT_A_TIME or ttft <= 0:
        why = f"{prompts:.2g} requests are in prefill on average" if ttft > 0 else "it is less than half a step"
        return math.nan, f"its TTFT is not used: {why}, and the model has none that wait for each other"
    return ttft, f"its TTFT counts without {1e3 * rest:.3g} ms, the rest of the step that a request comes in"


def _without_first_wave(run: BenchmarkRun, used: UsedRun, chunk_tokens: float) -> UsedRun:
    """The figures of a closed loop without the wave that clients send in step, where rows allow it; else its share."""
    table, first = run.requests, first_wave(run)
    alike = run.spread == 0 and run.mean_input_tokens is not None
    if alike and used.concurrency * (run.mean_input_tokens or 0.0) <= chunk_tokens:
        how = "lengths all alike and prompts that fit in one step: clients stay in step"
        return replace(used, in_step=1.0, how=(*used.how, how))
    if table is not None and first is not None and table.counted.sum() >= WAVES * first.sum():
        later = table.counted & ~first
        ttft, tpot = table.ttft_s[later], table.tpot_s[later & (table.output_tokens > 1)]
        if len(tpot) and not np.isnan(ttft).any() and not np.isnan(tpot).any() and ttft.mean() > 0:
            how = "without its first wave, as many requests as clients, which they send in step"
            return replace(used, ttft_s=float(ttft.mean()), tpot_s=float(tpot.mean()), how=(*used.how, how))
    share = min(used.concurrency / run.summary.completed, 1.0)
    how = "its first wave, as many requests as clients, is taken as sent in step"
    return replace(used, in_step=share, how=(*used.how, how))


def _least_loaded(used: list[UsedRun]) -> tuple[UsedRun, list[UsedRun]]:
    at = min(used, key=lambda each: each.concurrency)
    taken = replace(at, ttft_s=at.run.summary.mean_ttft_s)
    return taken, [taken if each is at else each for each in used]


def _table(used: list[UsedRun], chunk_tokens: float, slots: float) -> RunTable:
    files = list(dict.fromkeys(each.run.file for each in used))
    source = ", ".join(files) if len(files) <= 3 else f"{files[0]}, {files[1]} and {len(files) - 2} more files"
    return RunTable.of(
        [each.concurrency for each in used],
        [each.ttft_s for each in used],
        [each.tpot_s for each in used],
        input_tokens=[each.run.mean_input_tokens for each in used],
        output_tokens=[each.run.mean_output_tokens for each in used],
        spread=[each.run.spread or 0.0 for each in used],
        in_step=[each.in_step for each in used],
        chunk_tokens=chunk_tokens,
        slots=slots,
        groups=_groups([each.run for each in used]),
        source=source,
    )


def _groups(runs: list[BenchmarkRun]) -> list[str]:
    """A label by lengths: runs whose mean lengths are within a tenth of each other's are of one group."""
    seen: dict[str, tuple[float, float]] = {}
    found = []
    for run in runs:
        lengths = run.mean_input_tokens or 0.0, run.mean_output_tokens or 0.0
        label = f"prompts of {lengths[0]:,.0f}, outputs of {lengths[1]:,.0f}"
        near = (name for name, others in seen.items() if _near(lengths, others))
        found.append(next(near, label))
        seen.setdefault(found[-1], lengths)
    return found


def _near(lengths: tuple[float, float], others: tuple[float, float]) -> bool:
    return all(abs(one - other) <= SAME_LENGTHS * other for one, other in zip(lengths, others, strict=True))


def _too_few(number: int, used: list[str], left_out: list[tuple[Examination, str]]) -> str:
    kept = f"{len(used)} of {number} runs can be fitted" + (f" ({', '.join(used)})" if used else "")
    by_reason: dict[str, list[str]] = {}
    for each, reason in left_out:
        by_reason.setdefault(reason, []).append(each.run.label)
    reasons = "; ".join(f"left out: {', '.join(labels)}: {reason}" for reason, labels in by_reason.items())
    needed = f"a law needs {LEAST_RUNS} or more: sweep the concurrency, best at two prompt lengths"
    return "; ".join(part for part in (kept, reasons, needed) if part)
