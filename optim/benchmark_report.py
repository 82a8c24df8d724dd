"""Benchmark runs with what the doctor says of them, as pages and documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jaxsim.benchmark_doctor import Verdict
from jaxsim.benchmark_run import BenchmarkRun, Percentile, milliseconds
from jaxsim.request_doctor import Examination, Symptom
from jaxsim.units import MS_PER_S
from optim.report import bullets, table
from optim.words import number

Document = dict[str, Any]

SHOWN = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"))
QUANTILES = (0.5, 0.9, 0.99)
STYLES = {Verdict.STEADY: "bold green", Verdict.CLOSED_LOOP: "bold green", Verdict.UNKNOWN: "bold yellow"}


def examination_entry(examined: Examination) -> Document:
    """A run, its figures in milliseconds, and everything that is said of it."""
    run, summary, checkup = examined.run, examined.run.summary, examined.checkup
    return {
        "file": run.file,
        "place": run.place,
        "tool": run.tool,
        "model": run.model,
        "verdict": examined.verdict,
        "verdict_text": examined.verdict.value,
        "steady": examined.steady,
        "completed": summary.completed,
        "failed": summary.failed,
        "incomplete": summary.incomplete,
        "duration_s": summary.duration_s,
        "offered_rate_rps": summary.offered_rate,
        "achieved_rate_rps": checkup.achieved_rate,
        "offered_over_achieved": checkup.offered_over_achieved,
        "offered_over_sustained": checkup.offered_over_sustained,
        "max_concurrency": summary.max_concurrency,
        "little_concurrency": checkup.little_concurrency,
        "server_concurrency": run.in_flight,
        "mean_input_tokens": run.mean_input_tokens,
        "mean_output_tokens": run.mean_output_tokens,
        "spread_of_lengths": run.spread,
        **{f"mean_{figure}_ms": _in_ms(value) for figure, value in means(run).items()},
        "percentiles": [_percentile(each) for each in run.percentiles],
        "e2e_error": checkup.e2e_error,
        "requests": None if run.requests is None else len(run.requests),
        "findings": [
            *({"kind": "summary", "text": text, "rows": []} for text in _summary_findings(examined)),
            *({"kind": each.symptom, "text": each.text, "rows": list(each.rows)} for each in examined.found),
        ],
        "notes": list(run.notes),
    }


def _summary_findings(examined: Examination) -> tuple[str, ...]:
    return examined.findings[: len(examined.findings) - len(examined.found)]


def _in_ms(seconds: float | None) -> float | None:
    return None if seconds is None or math.isnan(seconds) else MS_PER_S * seconds


def _percentile(each: Percentile) -> Document:
    """Exact ones as a value; a bucket as its edges."""
    name = {"figure": each.figure, "quantile": each.q}
    if each.exact:
        return {**name, "value_ms": MS_PER_S * each.low_s}
    return {**name, "above_ms": MS_PER_S * each.low_s, "up_to_ms": MS_PER_S * each.high_s}


def means(run: BenchmarkRun) -> dict[str, float | None]:
    """The mean of each latency, seconds."""
    summary = run.summary
    return {
        "ttft": summary.mean_ttft_s if summary.completed else None,
        "tpot": run.mean_tpot_s,
        "itl": summary.mean_itl_s,
        "e2e": summary.e2e_s,
    }


def examination_report(examined: Examination) -> Group:
    """A run as a page: the verdict first, then the load, the figures, the findings and what the reader decided."""
    run = examined.run
    head = Text(f"{run.label}: {examined.verdict.value}.", style=STYLES.get(examined.verdict, "bold red"))
    parts: list[RenderableType] = [head, Text(f"Read as {run.tool}{_of(run)}. {_load(examined)}"), ""]
    if run.summary.completed:
        parts += [_figures(run)]
    parts += bullets("Findings", examined.findings) or [Text("Findings: none.")]
    return Group(*parts, *bullets("Notes", run.notes))


def _of(run: BenchmarkRun) -> str:
    return f", model {run.model}" if run.model else ""


def _load(examined: Examination) -> str:
    run, summary, checkup = examined.run, examined.run.summary, examined.checkup
    words = [f"{summary.completed:,} requests completed"]
    if summary.duration_s is not None:
        words[0] += f" in {number(summary.duration_s, 4)} s"
    if summary.offered_rate is not None:
        at_once = math.isinf(summary.offered_rate)
        words.append("sent as soon as allowed" if at_once else f"{number(summary.offered_rate)} requests/s offered")
    if checkup.achieved_rate is not None:
        words.append(f"{number(checkup.achieved_rate)}/s achieved")
    if summary.max_concurrency is not None:
        words.append(f"at most {summary.max_concurrency:,} in flight")
    if checkup.little_concurrency is not None:
        words.append(f"{number(checkup.little_concurrency)} by Little's law")
    if run.in_flight is not None:
        words.append(f"{number(run.in_flight)} by the server's gauges")
    if run.mean_input_tokens is not None and run.mean_output_tokens is not None:
        words.append(f"{_tokens(run)} tokens in and out on average")
    return ", ".join(words) + "."


def _tokens(run: BenchmarkRun) -> str:
    lengths = (run.mean_input_tokens, run.mean_output_tokens)
    return " + ".join("?" if value is None else f"{value:,.0f}" for value in lengths)


def _figures(run: BenchmarkRun) -> Table:
    levels = [q for q in QUANTILES if any(each.q == q for each in run.percentiles)]
    made = table("ms", "mean", *(f"P{100 * q:g}" for q in levels), left=("ms",))
    for title, figure in SHOWN:
        mean = means(run)[figure]
        found = [run.percentile(figure, q) for q in levels]
        if mean is not None or any(found):
            shown = "-" if mean is None else milliseconds(mean)
            made.add_row(title, shown, *("-" if each is None else each.text for each in found))
    return made


def runs_table(examined: Sequence[Examination]) -> Table:
    """Runs of a sweep, one line each."""
    columns = ("run", "load", "requests", "in flight", "tokens", "TTFT,\nms", "TPOT,\nms", "verdict")
    made = table(*columns, left=("run", "load", "verdict"))
    made.columns[0].no_wrap, made.columns[0].overflow = True, "fold"
    for each in examined:
        run, summary = each.run, each.run.summary
        flying = each.checkup.little_concurrency if each.checkup.little_concurrency is not None else run.in_flight
        found = means(run)
        made.add_row(
            run.label,
            _short_load(run),
            f"{summary.completed:,}" + (f" (+{summary.failed:,} failed)" if summary.failed else ""),
            "-" if flying is None else number(flying),
            _tokens(run),
            *("-" if found[name] is None else milliseconds(found[name] or 0.0) for name in ("ttft", "tpot")),
            each.verdict.value.split(":")[0],
            style="" if each.steady else "red",
        )
    return made


def _short_load(run: BenchmarkRun) -> str:
    summary = run.summary
    words = []
    if summary.offered_rate is not None and not math.isinf(summary.offered_rate):
        words.append(f"{summary.offered_rate:g}/s")
    if summary.max_concurrency is not None:
        words.append(f"{summary.max_concurrency:,} client{'' if summary.max_concurrency == 1 else 's'}")
    if not words:
        words.append("all at once" if summary.offered_rate == math.inf else "not said")
    return ", ".join(words)


def findings_by_run(examined: Sequence[Examination]) -> list[str]:
    """Every finding after the run that it is of; percentiles on few requests in one line, since means are fitted."""
    lines, few = [], []
    for each in examined:
        rests = [found.text for found in each.found if found.symptom is Symptom.FEW_BEYOND]
        lines += [f"{each.run.label}: {text}" for text in each.findings if text not in rests]
        few += [each.run.label] * bool(rests)
    if few:
        lines.append(
            f"percentiles rest on few requests in {_runs(few, len(examined))} (fleetgrad trace FILE says which)"
        )
    return lines


def by_text(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Sentences, each once, with the runs that they are of; `lines` are a run's label and a sentence."""
    labels = dict.fromkeys(label for label, _ in lines)
    found: dict[str, list[str]] = {}
    for label, text in lines:
        found.setdefault(text, []).append(label)
    return [f"{_runs(runs, len(labels))}: {text}" for text, runs in found.items()]


def _runs(labels: Sequence[str], of: int) -> str:
    return f"all {of} runs" if len(labels) == of > 1 else ", ".join(labels)
