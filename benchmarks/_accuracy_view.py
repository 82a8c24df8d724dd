"""The accuracy scoreboard for people: the same sheets on a terminal and in a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill
from typing import NamedTuple

from _accuracy_design import FEW, LIMITS, LOGNORMAL_CV2, MANY, PROFILES, UTILIZATIONS, WORKLOADS
from _accuracy_sims import LEAST_WAITING, Effort, Simulated
from _accuracy_table import (
    LOG_TAIL_AIM,
    STEEP,
    WIDEST,
    Judged,
    Line,
    factor_segments,
    figure_name,
    lines,
    segments,
    worst,
)
from _report import console
from rich.table import Table


class Sheet(NamedTuple):
    """A table in words; the first `left` columns are text."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    left: int


STATISTICS = ("median", "p90", "worst")
SUMMARY = ("points", "figure", "judged", "left", *STATISTICS, "holds", "sim +-", "kimura")
BY_FACTOR = tuple(heading for heading in SUMMARY if heading != "holds")
FURTHEST = ("group", "workload", "profile", "limit", "load", "engines", "simulated, s", "said, s", "error", "kimura")


def sheets(found: Sequence[Judged]) -> Iterator[Sheet]:
    """The summary, how far the P99 TTFT is off by each factor, and the points furthest off."""
    yield Sheet("Summary", SUMMARY, [_summary(line) for line in lines(found, segments())], 2)
    by_factor = lines(found, factor_segments(one.point for one in found), ("ttft_p99",))
    rows = [
        tuple(cell for cell, heading in zip(_summary(line), SUMMARY, strict=True) if heading in BY_FACTOR)
        for line in by_factor
    ]
    yield Sheet("P99 TTFT by factor", BY_FACTOR, rows, 2)
    yield Sheet("P99 TTFT furthest off, by the aims of their groups", FURTHEST, [_furthest(o) for o in worst(found)], 3)


def _summary(line: Line) -> tuple[str, ...]:
    errors = [_beside_aim(line, name) for name in STATISTICS]
    holds = {None: "", True: "yes", False: "no"}[line.holds]
    counts = (str(line.judged), str(line.left_out))
    others = (_error(line.noise, line.log_tail), _error(line.kimura.get("median"), line.log_tail))
    return (line.segment, figure_name(line).replace("_", " "), *counts, *errors, holds, *others)


def _beside_aim(line: Line, statistic: str) -> str:
    """An error, and whether it is within its aim if it has one."""
    value, aim = line.errors.get(statistic), line.aims.get(statistic)
    if aim is None:
        return _error(value, line.log_tail)
    sign = "?" if value is None else "<=" if value <= aim else ">"
    return f"{_error(value, line.log_tail)} {sign} {aim if line.log_tail else 100.0 * aim:g}"


def _furthest(one: Judged) -> tuple[str, ...]:
    p = one.point
    load = (str(p.limit), f"{p.utilization:g}", "1" if p.replicas == 1 else f"{p.replicas} {p.dispatch}")
    signed = (f"{value:+.2f} ln" if one.log_tail else f"{100.0 * value:+.1f}" for value in (one.error, one.kimura))
    return (p.group, p.workload, p.profile, *load, f"{one.simulated:.4g}", f"{one.said:.4g}", *signed)


def _error(value: float | None, log_tail: bool) -> str:
    """In %, or as it is where it is of a logarithm; "-" where there is none."""
    if value is None:
        return "-"
    return f"{value:.3f}" if log_tail else f"{100.0 * value:.2f}" if value < 0.1 else f"{100.0 * value:.1f}"


def show(found: Sequence[Judged]) -> None:
    """On the terminal."""
    out = console()
    for sheet in sheets(found):
        table = Table(title=f"{sheet.title} (errors in %, log tails in ln)", title_justify="left")
        for i, heading in enumerate(sheet.headings):
            table.add_column(heading, justify="left" if i < sheet.left else "right")
        for row in sheet.rows:
            table.add_row(*row)
        out.print(table)


def markdown(found: Sequence[Judged], simulated: Sequence[Simulated]) -> str:
    """The document."""
    return "\n\n".join([_introduction(simulated), *map(_markdown_sheet, sheets(found))]) + "\n"


def _markdown_sheet(sheet: Sheet) -> str:
    marks = ["---"] * sheet.left + ["---:"] * (len(sheet.headings) - sheet.left)
    table = [sheet.headings, marks, *sheet.rows]
    return f"## {sheet.title}\nErrors in %, those of log tails in ln.\n\n" + "\n".join(
        "| " + " | ".join(row) + " |" for row in table
    )


def _introduction(simulated: Sequence[Simulated]) -> str:
    requests = sum(row.requests for row in simulated)
    called = [str(row.point.number) for row in simulated if row.overloaded]
    overloaded = "The simulator calls none of them overloaded."
    if called:
        overloaded = (
            f"The simulator calls some replications of points {_listed(called)} overloaded; their load is below 1."
        )
    return "\n\n".join(
        [
            "# How accurate the latency model is",
            _filled(
                f"The default model (`step`) against the simulator, on {len(simulated)} points that are fixed in "
                "`benchmarks/_accuracy_design.py`; the published reference model (`kimura`) beside it. Made by"
            ),
            "    python benchmarks/accuracy.py --markdown",
            _filled(f"with {requests / 1e6:,.0f} million simulated requests. {overloaded}"),
            "Every level of a factor meets every level of the others about equally often:",
            "\n".join(_filled(line, bullet=True) for line in _factors()),
            _filled(
                "The KV cache never binds. Arrivals are Poisson. The model takes random dispatch as single engines at "
                "their share of the rate, and round robin as single engines whose arrivals have an index of dispersion "
                "of 1 / engines. `kimura` is given the limit as its slots, and has one shared queue whatever the "
                "dispatch."
            ),
            "How to read it:",
            "\n".join(_filled(line, bullet=True) for line in _how_to_read()),
        ]
    )


def _factors() -> tuple[str, ...]:
    return (
        "groups: `constant` (every running request adds the same to each of its steps, no prefill work), `growing` "
        "(context grows token by token, no prefill work) and `prefill` (the default: prompts are work in their steps);",
        f"workloads: {_listed(WORKLOADS)} (the last with heavy tails: squared coefficients of variation "
        f"{_listed(f'{cv2:g}' for cv2 in LOGNORMAL_CV2)} of prompts and outputs);",
        f"measured profiles: {_listed(PROFILES)};",
        f"concurrency limits {_listed(map(str, LIMITS))}, at utilisations (load over capacity at the full limit) "
        f"{_listed(f'{u:g}' for u in UTILIZATIONS)};",
        f"one engine, {min(FEW)} to {max(FEW)}, and {min(MANY)} to {max(MANY)}; several are dispatched to by the "
        "fewest active + queued (the model's own assumption), in turn, or at random.",
    )


def _how_to_read() -> tuple[str, ...]:
    widest, effort = f"{100.0 * WIDEST:g} %", Effort()
    return (
        "An error is |said / simulated - 1|. Where the share that waits (simulated, or said) is within a factor of "
        f"{STEEP:g} of 1-p, the p-quantile jumps with it; there the error is |ln P(TTFT > t) - ln(1-p)| at the "
        f'simulated quantile t ("log tail", in ln), and the aim is {LOG_TAIL_AIM:g} for the worst point.',
        "An aim stands beside its error. Those of a group are the same for all its points and for its single engines, "
        "where dispatch adds nothing. Fleets of several engines are summed up by dispatch over all groups.",
        f"A point is judged where the 95 % interval of its simulated P99 TTFT is within {widest} on either side (that "
        'of P(TTFT > t) where it is steep), and a figure where its own is too; the others are "left". "sim +-" is '
        "the median of that half-width: no error below it means anything. Simulation goes on until the P99 TTFT is "
        f"known to {100.0 * effort.precision:g} %, or {effort.most / 1e6:g} million requests are spent.",
        '"wait probability" is the share of requests that find all slots of their engine taken, judged above '
        f'{LEAST_WAITING:g} ("left" counts the points below too); "mean active" is of one engine; '
        '"tpot mean" is over requests.',
        'p90 is the 90th percentile over the points; "kimura" is its median error on the same points.',
    )


def _filled(text: str, *, bullet: bool = False) -> str:
    first, rest = ("- ", "  ") if bullet else ("", "")
    return fill(text, 120, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
