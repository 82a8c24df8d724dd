"""From text to numbers: the values of a table of steps, and the report of each that is none."""

from __future__ import annotations

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from jaxsim._trace_columns import refusal
from jaxsim._trace_files import TraceTable
from jaxsim.fit.step_files import GROUP, NUM_ACTIVE, UNITS


def collected(table: TraceTable, chosen: dict[str, int]) -> pl.DataFrame:
    """The chosen columns as text, without blank lines; `at` is a row's number in the file."""
    texts = [pl.col(str(at)).str.strip_chars().alias(ours) for ours, at in chosen.items()]
    try:
        frame = table.frame.select(texts).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise refusal(table.file, table.explain(str(error).strip().split("\n")[0])) from error
    frame = frame.with_row_index("at")
    return frame.filter(~pl.all_horizontal(pl.col(list(chosen)).is_null())) if table.blank_rows else frame


def numbers_of(table: TraceTable, frame: pl.DataFrame, ours: str, at: int) -> Float[np.ndarray, " rows"]:
    """A column's numbers.

    Raises:
        ValueError: naming file, line and column of the first wrong value, and the number of rows that have one.
    """
    text = pl.col(ours).str.replace(r"^(\d+),(\d+)$", "$1.$2") if table.decimal_comma else pl.col(ours)
    values = frame.select(text.cast(pl.Float64, strict=False).fill_null(np.nan)).to_series().to_numpy()
    bad = ~_is_good(ours, values)
    if bad.any():
        row = int(np.argmax(bad))
        found = frame[ours][row]
        got = "no value" if found in (None, "") else repr(found)
        place = table.place(int(frame["at"][row]))
        what = f"{place}, column {table.names[at]!r}: {ours} must be {_allowed(ours)}, got {got}"
        counted = f"{int(bad.sum())} of {len(values)} rows have a value that cannot be read"
        raise refusal(table.file, what, counted, "correct or remove them, or map other columns with --map")
    return values


def _is_good(ours: str, values: Float[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    finite = np.isfinite(values)
    if ours in UNITS:
        return finite & (values > 0)
    return finite & (values >= (1 if ours == NUM_ACTIVE else 0))


def _allowed(ours: str) -> str:
    if ours in UNITS:
        return "a finite number > 0"
    return "a finite number >= 1" if ours == NUM_ACTIVE else "a finite number >= 0"


def groups_of(table: TraceTable, frame: pl.DataFrame) -> tuple[str, ...]:
    labels = frame[GROUP].to_list()
    for row, label in enumerate(labels):
        if not label:
            raise refusal(table.file, f"{table.place(int(frame['at'][row]))}: no group", "give every row one, or none")
    return tuple(labels)
