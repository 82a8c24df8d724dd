"""What every benchmark prints: rows of name, value, unit, target, ok; a table for people, JSON lines for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


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


def at_most(name: str, value: float, unit: str, target: float | None = None) -> Row:
    """A figure that should stay below its target, if it has one."""
    return Row(name, value, unit, target, None if target is None else bool(value <= target))


def progress(text: str) -> None:
    """What is being done now, on stderr."""
    Console(stderr=True).print(f"[dim]{text}[/]", highlight=False)


def report(rows: Iterable[Row], *, as_json: bool, title: str, notes: Iterable[str] = ()) -> None:
    """Print rows. JSON lines appear one by one, each as soon as it is known; the table at the end."""
    if as_json:
        for row in rows:
            print(json.dumps(row._asdict() | {"value": _strict(row.value)}), flush=True)
        return
    table = Table(title=title, title_justify="left", caption="\n".join(notes), caption_justify="left")
    for heading in ("figure", "value", "unit", "target", "ok"):
        table.add_column(heading, justify="right" if heading in ("value", "target") else "left")
    for row in rows:
        target = "" if row.target is None else _number(row.target)
        mark = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[row.ok]
        table.add_row(row.name, _number(row.value), row.unit, target, mark)
    Console().print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _strict(value: float) -> float | str:
    """Strict JSON has no infinity or NaN: they are strings."""
    return value if math.isfinite(value) else str(value)


def fastest_s(job: Callable[[], object], timer: Callable[[], float], *, budget_s: float, at_least: int = 3) -> float:
    """Least wall time of `job` over repetitions: on a shared machine the least disturbed one is the fair one."""
    start, best, runs = timer(), math.inf, 0
    while runs < at_least or timer() - start < budget_s:
        before = timer()
        job()
        best, runs = min(best, timer() - before), runs + 1
    return best
