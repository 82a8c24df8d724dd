"""Trace files as tables of text: CSV, parquet and JSON lines behind one type.

Every value stays text until `_trace_values` reads it, so that no parser guesses a type and a wrong value is
quoted as it stands in the file.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from jaxsim._text_files import text_of
from jaxsim._trace_blocks import BlockHashes
from jaxsim._trace_columns import refusal

SUFFIXES = ".csv, .csv.gz, .tsv, .tsv.gz, .parquet, .jsonl, .jsonl.gz, .ndjson, .json"


@dataclass(frozen=True)
class TraceTable:
    """A trace file before its values are read.

    Attributes:
        file: its name, for messages.
        names: column names as found.
        header: where the names stand, for messages ("trace.csv, line 1").
        frame: one text column per name, called "0", "1", ...
        place: the place of a data row in words ("line 7").
        explain: what is wrong with the file, given the parser's error.
        notes: what was left out while opening it.
        blank_rows: a row without any value is a blank line, not a request.
        times_optional: rows may lack a timestamp; then the trace has no arrival times.
        decimal_comma: a comma inside a time is its decimal point.
        time_name: the time's name where it differs from its column's; its suffix may tell the unit.
        blocks: the block hashes of each row, where the file lists them.
    """

    file: str
    header: str
    names: tuple[str, ...]
    frame: pl.LazyFrame
    place: Callable[[int], str]
    explain: Callable[[str], str]
    notes: tuple[str, ...] = ()
    blank_rows: bool = False
    times_optional: bool = False
    decimal_comma: bool = False
    time_name: str | None = None
    blocks: BlockHashes | None = None


def open_table(path: Path, columns: Mapping[str, str] | None, rows: str = "requests") -> TraceTable:
    """The table of a file, by the ending of its name; `rows` is what its rows are called.

    Raises:
        ValueError: unknown ending, empty file, or a file that is not what its name says.
    """
    from jaxsim._trace_json import open_json_lines

    if path.is_dir():
        raise refusal(path.name, "is a folder", "give one file")
    if path.stat().st_size == 0:
        raise refusal(path.name, f"the file is empty (0 bytes): 0 {rows}", "a table needs a header and rows")
    ending = "".join(path.suffixes[-2:]) if path.suffix.lower() == ".gz" else path.suffix
    kind = ending.lower().removesuffix(".gz")
    if kind in (".csv", ".tsv"):
        return _open_csv(path, rows)
    if kind in (".jsonl", ".ndjson", ".json"):
        return open_json_lines(path, columns)
    if ending.lower() == ".parquet":
        return _open_parquet(path)
    raise refusal(path.name, f"unknown ending {ending!r}", f"expected one of {SUFFIXES}")


def _open_csv(path: Path, what: str) -> TraceTable:
    with text_of(path) as text:
        skipped, header = 0, ""
        for skipped, header in enumerate(text):  # noqa: B007
            if header.strip():
                break
        if not any(line.strip() for line in text):
            raise refusal(path.name, f"no data rows: 0 {what}", "a table needs a header and rows")
    separator = max(",;\t", key=header.count)
    names = tuple(name.strip() for name in next(csv.reader([header], delimiter=separator)))
    frame = pl.scan_csv(
        path,
        has_header=False,
        skip_lines=skipped + 1,
        separator=separator,
        schema={str(k): pl.String for k in range(len(names))},
        raise_if_empty=False,
    )

    def rows() -> Iterator[tuple[int, list[str]]]:
        """Line and fields of each row, blank ones too, as the table counts them."""
        with text_of(path) as text:
            reader = csv.reader(text, delimiter=separator)
            for fields in reader:
                if reader.line_num > skipped + 1:
                    yield reader.line_num, fields

    def place(row: int) -> str:
        return next((f"line {line}" for k, (line, _) in enumerate(rows()) if k == row), f"data row {row + 1}")

    def explain(error: str) -> str:
        for line, fields in rows():
            if len(fields) not in (0, len(names)):
                return f"line {line}: {len(fields)} fields, expected the {len(names)} of the header"
        return f"cannot be read as CSV ({error})"

    return TraceTable(
        path.name,
        f"{path.name}, line {skipped + 1}",
        names,
        frame,
        place,
        explain,
        notes=() if separator == "," else (f"columns are separated by {separator!r}",),
        blank_rows=True,
        decimal_comma=separator != ",",
    )


def _open_parquet(path: Path) -> TraceTable:
    try:
        frame = pl.scan_parquet(path)
        schema = frame.collect_schema()
        blocks = None
        if isinstance(schema.get("hash_ids"), pl.List):
            ids = frame.select("hash_ids").collect()["hash_ids"].list.drop_nulls()
            blocks = BlockHashes.of(ids.list.len().fill_null(0).to_numpy(), ids.explode().drop_nulls().to_numpy())
    except pl.exceptions.PolarsError as error:
        raise refusal(path.name, f"cannot be read as parquet ({_first_line(error)})") from error
    names = tuple(name for name in schema.names() if blocks is None or name != "hash_ids")
    texts = [_as_text(name, schema[name]).alias(str(k)) for k, name in enumerate(names)]
    return TraceTable(
        path.name,
        path.name,
        names,
        frame.select(texts),
        place=lambda row: f"row {row + 1}",
        explain=lambda error: f"cannot be read as parquet ({error})",
        blocks=blocks,
    )


def _as_text(name: str, dtype: Any) -> pl.Expr:
    column = pl.col(name)
    if isinstance(dtype, pl.Datetime):
        if dtype.time_zone is not None:
            column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return column.dt.strftime("%Y-%m-%d %H:%M:%S%.9f")
    if dtype.is_nested() or dtype == pl.Binary:
        return pl.when(column.is_not_null()).then(pl.lit(f"a {dtype.base_type().__name__}"))
    return column.cast(pl.String)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
