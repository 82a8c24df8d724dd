"""Reading tables of request rates over time."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path

from des.piecewise import PiecewiseRate
from jaxsim._checks import unknown

COLUMNS = {
    "time_s": ("time_s", "t_s", "start_s", "timestamp_s"),
    "rate": ("rate", "rate_rps", "requests_per_s", "rps", "qps"),
}
"""Names that a file may use for ours."""


def read_rate_table(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    only: Mapping[str, str] | None = None,
    repeat: bool = False,
    zeros: str = "missing",
) -> PiecewiseRate:
    """A `PiecewiseRate` from a CSV file (`.csv` or `.csv.gz`) with a header, one window a row.

    Args:
        path: the file.
        columns: our names (`time_s`, `rate`: seconds and requests per second) to the file's, for names unknown here.
        only: keeps the rows with these values, by column: ``{"category": "m-large"}``.
        repeat, zeros: see `PiecewiseRate.from_table`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no such column or row, not a number, or a table that `PiecewiseRate.from_table` refuses; with
            file, line and column.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"rate table not found: {path}; check the path")
    for name in columns or {}:
        if name not in COLUMNS:
            raise unknown("name in columns", name, COLUMNS)
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        rows = csv.DictReader(file)
        header = list(rows.fieldnames or ())
        chosen = {ours: _column(path.name, header, ours, (columns or {}).get(ours)) for ours in COLUMNS}
        for name in only or {}:
            _column(path.name, header, name, name)
        kept = [(line, row) for line, row in enumerate(rows, start=2) if _matches(row, only or {})]
    if not kept:
        raise ValueError(f"{path.name}: no rows" + (f" with {dict(only)}" if only else ""))
    time_s, rate = (list(_numbers(path.name, kept, chosen[ours])) for ours in COLUMNS)
    try:
        return PiecewiseRate.from_table(time_s, rate, repeat=repeat, zeros=zeros)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _column(file: str, header: list[str], ours: str, given: str | None) -> str:
    names = (given,) if given is not None else COLUMNS[ours]
    found = [name for name in names if name in header]
    if len(found) == 1:
        return found[0]
    problem = "no column" if not found else "more than one column"
    hint = f"pass columns={{{ours!r}: ...}}" if ours in COLUMNS else "check only="
    raise ValueError(f"{file}: {problem} {' or '.join(map(repr, names))}, the header is {', '.join(header)}; {hint}")


def _matches(row: Mapping[str, str], only: Mapping[str, str]) -> bool:
    return all(row[name] == value for name, value in only.items())


def _numbers(file: str, rows: list[tuple[int, dict[str, str]]], column: str) -> Iterator[float]:
    """The column's numbers; an empty field is NaN, for the table to refuse."""
    for line, row in rows:
        text = (row[column] or "").strip()
        try:
            yield float(text) if text else float("nan")
        except ValueError:
            raise ValueError(f"{file}, line {line}, column {column!r}: expected a number, got {text!r}") from None
