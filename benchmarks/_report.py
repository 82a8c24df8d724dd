"""What every benchmark prints: rows of name, value, unit, target, ok; a table for people, JSON lines for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

MIN_WIDTH = 132
"""Columns of a table, also when it is written to a file or a pipe."""


class Row(NamedTuple):
    """One figure. `ok` is None without a target."""

    name: str
    value: float
    unit: str
    target: float | None = None
    ok: bool | None = None


def at_least(name: str, value: float, unit: str, target: float | None = None) -> Row:
    """A figure that should reach its target, if it has one."""
    return Row(name, value, unit, target, None if target is None else bool(value >= target))


def console() -> Console:
    """Where tables for people go."""
    return Console(width=max(Console().width, MIN_WIDTH))


def progress(text: str) -> None:
    """What is being done now, on stderr."""
    Console(stderr=True).print(f"[dim]{text}[/]", highlight=False)


def print_json(rows: Iterable[Row]) -> None:
    """One object a line, each as soon as it is known."""
    for row in rows:
        print(json.dumps(row._asdict() | {"value": _strict(row.value)}), flush=True)


def print_table(rows: Iterable[Row], *, title: str, notes: Iterable[str] = ()) -> None:
    """The same for people; a row ``X.over_Y`` becomes a column of row X."""
    found = list(rows)
    names = {row.name for row in found}
    ratios = {row.name: row.value for row in found if row.name.rpartition(".over_")[0] in names}
    others = list(dict.fromkeys(name.rpartition(".over_")[2] for name in ratios))
    table = Table(title=title, title_justify="left", caption="\n".join(notes), caption_justify="left")
    for heading in (
        "figure",
        "value",
        "unit",
        "target",
        "ok",
        *(f"over {other.replace('_', ' ')}" for other in others),
    ):
        table.add_column(heading, justify="left" if heading in ("figure", "unit", "ok") else "right")
    for row in (row for row in found if row.name not in ratios):
        target = "" if row.target is None else _number(row.target)
        mark = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[row.ok]
        beside = (ratios.get(f"{row.name}.over_{other}") for other in others)
        cells = ("" if ratio is None else f"{_number(ratio)}x" for ratio in beside)
        table.add_row(row.name, _number(row.value), row.unit, target, mark, *cells)
    console().print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _strict(value: float) -> float | str:
    """Strict JSON has no infinity or NaN: they are strings."""
    return value if math.isfinite(value) else str(value)


def fastest_s(job: Callable[[], object], *, budget_s: float, runs: int = 3) -> float:
    """Least wall time of `job` over `runs` or more repetitions: on a shared machine, the least disturbed one."""
    start, best, done = perf_counter(), math.inf, 0
    while done < runs or perf_counter() - start < budget_s:
        before = perf_counter()
        job()
        best, done = min(best, perf_counter() - before), done + 1
    return best
