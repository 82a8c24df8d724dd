"""Reading tables of a day: rates, electricity prices and carbon intensities by the hour, as CSV."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

import des
from des.rate_table import COLUMNS as RATE_COLUMNS
from jaxsim._checks import unknown
from jaxsim.units import SECONDS_PER_HOUR
from optim.demand import RateProfile

G_PER_KG = 1e3

TIMES = {"time_s": 1.0, "hour": SECONDS_PER_HOUR}
"""Our names of time columns, and the seconds of one unit; an hour may also be a clock time such as 08:30."""

NAMES = {
    "time_s": RATE_COLUMNS["time_s"],
    "hour": ("hour", "hours", "start_hour", "time_h", "time"),
    "rate": RATE_COLUMNS["rate"],
    "usd_per_kwh": ("usd_per_kwh",),
    "usd_per_mwh": ("usd_per_mwh",),
    "kg_co2_per_kwh": ("kg_co2_per_kwh",),
    "g_co2_per_kwh": ("g_co2_per_kwh", "gco2_per_kwh", "carbon_intensity"),
}
"""Names that a file may use for ours."""

GRID = {
    "usd_per_kwh": {"usd_per_kwh": 1.0, "usd_per_mwh": 1e-3},
    "kg_co2_per_kwh": {"kg_co2_per_kwh": 1.0, "g_co2_per_kwh": 1.0 / G_PER_KG},
}
"""What a kWh comes with, by the columns that say it and the factor of each."""

_CLOCK = re.compile(r"^(\d{1,2}):(\d\d)$")


@dataclass(frozen=True)
class DayTable:
    """A table with one row an interval.

    Attributes:
        file: its name.
        edges_s: starts and the end of the intervals, seconds; the last is as long as the one before.
        columns: by our names: `rate` (requests per second), `usd_per_kwh`, `kg_co2_per_kwh`; those that are there.
        origin_s: the time of the first row, seconds; `edges_s` count from it.
        notes: what the reader decided.
    """

    file: str
    origin_s: float
    edges_s: Float[np.ndarray, " edges"]
    columns: dict[str, Float[np.ndarray, " intervals"]]
    notes: tuple[str, ...] = ()


def read_day_table(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    only: Mapping[str, str] | None = None,
    zeros: str = "missing",
) -> DayTable:
    """Read a CSV file (`.csv` or `.csv.gz`) with a header: a time column, and at least one of `NAMES` beside it.

    Args:
        path: the file.
        columns: our names to the file's, for names unknown here.
        only: keeps the rows with these values, by column.
        zeros: what a rate of 0 means, see `des.PiecewiseRate.from_table`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no such column or row, not a number, times that do not ascend, missing windows; with file, line and
            column.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"table not found: {path}; check the path")
    for name in columns or {}:
        if name not in NAMES:
            raise unknown("name in columns", name, NAMES)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        header = list(rows.fieldnames or ())
        for name in [*(only or {}), *(columns or {}).values()]:
            if name not in header:
                raise ValueError(f"{path.name}: no column {name!r}, the header is {', '.join(header)}")
        kept = [(n, row) for n, row in enumerate(rows, 2) if all(row[k] == v for k, v in (only or {}).items())]
    if not kept:
        raise ValueError(f"{path.name}: no rows" + (f" with {dict(only)}" if only else ""))
    chosen = _chosen(path.name, header, columns or {})
    time = next(name for name in TIMES if name in chosen)
    given = {ours: _numbers(path.name, kept, theirs, clock=ours == "hour") for ours, theirs in chosen.items()}
    time_s = given[time] * TIMES[time]
    values = {"rate": given["rate"]} if "rate" in given else {}
    for quantity, sources in GRID.items():
        for source, factor in sources.items():
            if source in given:
                values[quantity] = given[source] * factor
    edges_s = None
    for name, column in values.items():
        checked = column if name == "rate" else np.where(np.isnan(column), np.nan, 1.0)  # a price may be negative
        try:  # finds what is missing
            made = des.PiecewiseRate.from_table(time_s, checked, zeros=zeros)
        except ValueError as error:
            raise ValueError(f"{path.name}, column {chosen.get(name, name)!r}: {error}") from error
        edges_s = np.array([*made.start_s, made.end_s])
    if edges_s is None:
        known = ", ".join(name for name in NAMES if name not in TIMES)
        raise ValueError(f"{path.name}: no column with a value ({known}), the header is {', '.join(header)}")
    unused = [name for name in header if name not in {*chosen.values(), *(only or {})}]
    notes = (f"{path.name}: columns not used: {', '.join(unused)}",) if unused else ()
    return DayTable(path.name, float(time_s[0]), edges_s, values, notes)


def read_demand(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    only: Mapping[str, str] | None = None,
    zeros: str = "missing",
    repeat: bool = True,
) -> tuple[RateProfile, DayTable]:
    """A day of rates from a table, and the table, which may have prices too; see `read_day_table`."""
    table = read_day_table(path, columns=columns, only=only, zeros=zeros)
    if "rate" not in table.columns:
        names = " or ".join(map(repr, NAMES["rate"]))
        raise ValueError(f"{table.file}: no column {names} with requests per second")
    starts, rates = table.edges_s[:-1].tolist(), table.columns["rate"].tolist()
    end_s = float(table.edges_s[-1])
    source = f"table {table.file}"
    return RateProfile(tuple(starts), tuple(rates), end_s, repeat, source, table.notes, table.origin_s), table


def _chosen(file: str, header: list[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Our names to the file's, of the columns that are there; one time column, one a quantity."""
    lower = {name.lower(): name for name in header}
    found: dict[str, str] = {}
    for ours, theirs in NAMES.items():
        there = [columns[ours]] if ours in columns else [lower[name] for name in theirs if name in lower]
        if len(there) > 1:
            several = " or ".join(map(repr, there))
            raise ValueError(f"{file}: more than one column {several}; pass columns={{{ours!r}: ...}}")
        if there and there[0] not in found.values():
            found[ours] = there[0]
    for clash in ([name for name in sources if name in found] for sources in GRID.values()):
        if len(clash) > 1:
            raise ValueError(f"{file}: columns {' and '.join(found[name] for name in clash)} say the same; keep one")
    times = [ours for ours in TIMES if ours in found]
    for second in times[1:]:
        del found[second]
    if not times:
        names = ", ".join(name for ours in TIMES for name in NAMES[ours])
        raise ValueError(f"{file}: no time column ({names}), the header is {', '.join(header)}")
    return found


def _numbers(
    file: str, rows: list[tuple[int, dict[str, str]]], column: str, *, clock: bool
) -> Float[np.ndarray, " rows"]:
    """The column's numbers; an empty field is NaN, for the table to refuse."""
    found = []
    for line, row in rows:
        text = (row[column] or "").strip()
        hours = _CLOCK.match(text) if clock else None
        try:
            if hours:
                found.append(int(hours[1]) + int(hours[2]) / 60.0)
            else:
                found.append(float(text) if text else float("nan"))
        except ValueError:
            expected = "hours or a clock time such as 08:30" if clock else "a number"
            raise ValueError(f"{file}, line {line}, column {column!r}: expected {expected}, got {text!r}") from None
    return np.array(found)
