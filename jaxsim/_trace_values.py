"""From text to numbers: tokens, times, and the report of every value that is neither."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from jaxsim._trace_columns import INPUT, OUTPUT, TIME, refusal
from jaxsim._trace_files import TraceTable
from jaxsim._trace_times import Instants, instants_of, is_iso, time_columns
from jaxsim.workload import MAX_TOKENS

_ALLOWED = {
    INPUT: f"a whole number from 1 to {MAX_TOKENS}",
    OUTPUT: f"a whole number from 0 (a failed request) to {MAX_TOKENS}",
    TIME: "a finite number, or else YYYY-MM-DD HH:MM:SS[.fraction][offset], one kind in all rows",
}


@dataclass(frozen=True)
class Values:
    """The numbers of a trace in file order; `times` is None where there are none."""

    input_tokens: Int[np.ndarray, " rows"]
    output_tokens: Int[np.ndarray, " rows"]
    times: Instants | None
    notes: tuple[str, ...]


def read_values(table: TraceTable, chosen: dict[str, int]) -> Values:
    """The chosen columns as numbers.

    Raises:
        ValueError: naming file, line and column of the first wrong value of each column, and the number of
            rows that have one.
    """
    wanted = [
        (pl.all_horizontal(pl.all().is_null()) & table.blank_rows).alias("blank"),
        *(_number(chosen[ours]).alias(ours) for ours in (INPUT, OUTPUT)),
    ]
    iso = False
    try:
        if TIME in chosen:
            text = _text(chosen[TIME])
            first = table.frame.select(text.drop_nulls().head(1)).collect().to_series()
            iso = len(first) > 0 and is_iso(first[0])
            wanted += time_columns(text, iso, table.decimal_comma)
        frame = table.frame.select(wanted).collect(engine="streaming")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise refusal(table.file, table.explain(str(error).strip().split("\n")[0])) from error
    blank = frame["blank"].to_numpy()
    tokens = {ours: frame[ours].fill_null(np.nan).to_numpy() for ours in (INPUT, OUTPUT)}
    bad = {ours: ~blank & ~_is_tokens(tokens[ours], lowest) for ours, lowest in ((INPUT, 1), (OUTPUT, 0))}
    use_times, notes = TIME in chosen, []
    if TIME in chosen:
        missing = ~blank & frame["missing"].to_numpy()
        bad[TIME] = ~blank & frame["whole"].is_null().to_numpy()
        if table.times_optional:
            bad[TIME] &= ~missing
            if missing.any():
                use_times = False
                where = table.place(int(np.argmax(missing)))
                notes.append(
                    f"{int(missing.sum())} of {int(np.sum(~blank))} rows have no timestamp (first: {where}): "
                    "arrival times are left out, a rate must be given"
                )
    _refuse_bad(table, chosen, bad, int(np.sum(~blank)))
    _refuse_too_long(table, tokens[INPUT] + tokens[OUTPUT], blank)
    if blank.any():
        notes.append(f"{int(blank.sum())} blank lines passed over")
    times = None
    if use_times:
        times, time_notes = instants_of(frame.filter(~pl.col("blank")), iso, table.file)
        notes += time_notes
    inputs, outputs = (tokens[ours][~blank].astype(np.int64) for ours in (INPUT, OUTPUT))
    return Values(inputs, outputs, times, tuple(notes))


def _text(at: int) -> pl.Expr:
    text = pl.col(str(at)).str.strip_chars()
    return pl.when(text != "").then(text)


def _number(at: int) -> pl.Expr:
    return _text(at).cast(pl.Float64, strict=False)


def _is_tokens(values: Float[np.ndarray, " rows"], lowest: int) -> Bool[np.ndarray, " rows"]:
    return (values >= lowest) & (values <= MAX_TOKENS) & (values == np.floor(values))


def _refuse_bad(table: TraceTable, chosen: dict[str, int], bad: dict[str, np.ndarray], num_rows: int) -> None:
    any_bad = np.any(list(bad.values()), axis=0)
    if not any_bad.any():
        return
    firsts = sorted((int(np.argmax(rows)), ours) for ours, rows in bad.items() if rows.any())
    sentences = []
    for row, ours in firsts:
        found = table.frame.select(pl.col(str(chosen[ours]))).slice(row, 1).collect().to_series()[0]
        got = "no value" if found is None else repr(found)
        name = table.names[chosen[ours]]
        sentences.append(f"{table.place(row)}, column {name!r}: {ours} must be {_ALLOWED[ours]}, got {got}")
    counted = f"{int(any_bad.sum())} of {num_rows} rows have a value that cannot be read"
    raise refusal(table.file, *sentences, counted, "correct or remove them, or map other columns with --map")


def _refuse_too_long(table: TraceTable, total: Float[np.ndarray, " rows"], blank: Bool[np.ndarray, " rows"]) -> None:
    long = ~blank & (total > MAX_TOKENS)
    if long.any():
        row = int(np.argmax(long))
        what = f"input + output tokens must be <= {MAX_TOKENS}, got {total[row]:.0f}"
        raise refusal(table.file, f"{table.place(row)}: {what}", "is a column in another unit?")
