"""JSON lines: flat records as they are, request logs through `_trace_logs`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from jaxsim._text_files import text_of
from jaxsim._trace_blocks import BlockHashes
from jaxsim._trace_columns import INPUT, OUTPUT, TIME, TRACE, refusal
from jaxsim._trace_files import TraceTable
from jaxsim._trace_logs import LOGS, Log

_ONE_OBJECT = (
    "a trace in JSON has one object a line, one for each request; an array becomes that with jq -c '.[]'; "
    "the summary of a benchmark is no trace"
)


def open_json_lines(path: Path, columns: Mapping[str, str] | None) -> TraceTable:
    """The table of a JSON lines file; where lengths are mapped, records are taken as they are.

    Raises:
        ValueError: a line that is no JSON object, or records of more than one kind.
    """
    mapped = bool({INPUT, OUTPUT} & set(columns or {}))
    lines: list[int] = []
    rows: list[dict[str, str | None]] = []
    counts: list[int] = []
    hashes: list[str] = []
    dropped: dict[str, list[int]] = {}
    log, log_line, num_records = None, 0, 0
    for line, record in _records(path):
        kind = None if mapped else _kind(record)
        if num_records and kind is not log:
            what = f"line {log_line} is {_title(log)} and line {line} is {_title(kind)}"
            raise refusal(path.name, what, "split the file by kind, or map the columns with --map")
        log, log_line, num_records = kind, log_line or line, num_records + 1
        if log is not None:
            reason, found = log.read(record)
            if reason:
                dropped.setdefault(reason, []).append(line)
                continue
            record = dict(zip((INPUT, OUTPUT, TIME), found, strict=True))
        ids = record.pop("hash_ids", None)
        counts.append(len(ids) if isinstance(ids, list) else 0)
        hashes.extend(map(str, ids if isinstance(ids, list) else ()))
        lines.append(line)
        rows.append({name: _as_text(value) for name, value in _flat(record)})
    notes = _notes(log, dropped, num_records)
    if num_records and not rows:
        raise refusal(path.name, "0 requests are left", *notes)
    names = tuple({name: None for row in rows for name in row})
    texts = [pl.Series(str(k), [row.get(name) for row in rows], pl.String) for k, name in enumerate(names)]
    if not names:
        raise refusal(path.name, "no record in the file: 0 requests", _ONE_OBJECT)
    return TraceTable(
        path.name,
        path.name,
        names,
        pl.LazyFrame(texts),
        place=lambda row: f"line {lines[row]}",
        explain=lambda error: f"cannot be read ({error})",
        notes=notes,
        times_optional=True,
        time_name=None if log is None else log.time_name,
        blocks=BlockHashes.of(counts, hashes) if hashes else None,
    )


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each line that is not blank; broken ones are counted, then refused."""
    broken: list[tuple[int, str]] = []
    num_good = 0
    with text_of(path) as text:
        for line, content in enumerate(text, start=1):
            if not content.strip():
                continue
            try:
                record = json.loads(content)
            except json.JSONDecodeError as error:
                broken.append((line, f"not JSON ({error.msg} at column {error.colno})"))
                continue
            if not isinstance(record, dict):
                broken.append((line, f"a JSON object was expected, got a {type(record).__name__}"))
                continue
            num_good += 1
            if not broken:
                yield line, record
    if broken:
        line, what = broken[0]
        hint = "is the file truncated or still being written?" if num_good and line > 1 else _ONE_OBJECT
        counted = f"{len(broken)} of {num_good + len(broken)} lines cannot be read"
        raise refusal(path.name, f"line {line}: {what}", counted, hint)


def _kind(record: dict[str, Any]) -> Log | None:
    """The log a record is from; None for a flat record."""
    if any(TRACE.knows(INPUT, name) for name in record) and any(TRACE.knows(OUTPUT, name) for name in record):
        return None
    return next((log for log in LOGS if log.matches(record)), None)


def _title(log: Log | None) -> str:
    return "a flat record" if log is None else log.title


def _notes(log: Log | None, dropped: dict[str, list[int]], num_records: int) -> tuple[str, ...]:
    if log is None:
        return ()
    notes = [f"read as {log.title}s"]
    for reason, lines in dropped.items():
        notes.append(f"{len(lines)} of {num_records} rows left out: {reason} (first: line {lines[0]})")
    return tuple(notes)


def _flat(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Items with nested keys joined by dots."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return f"a {type(value).__name__}" if isinstance(value, list) else repr(value)
