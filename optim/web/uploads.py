"""Uploaded traces: refused while they arrive where they are too large, kept under names that the server makes.

The name that a client gives is a label to show and the source of an ending from a list; nothing is opened by it.
"""

from __future__ import annotations

import gzip
import uuid
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from jaxsim.trace_stats import trace_statistics
from jaxsim.traces import FAILED_POLICIES, TIME_UNITS
from jaxsim.workload import Workload
from optim.web.refusals import RefusalError, from_error
from optim.web.settings import MEGABYTE, ServerSettings
from optim.web.store import Row, Store, now

ENDINGS = (
    ".csv",
    ".csv.gz",
    ".tsv",
    ".tsv.gz",
    ".parquet",
    ".jsonl",
    ".jsonl.gz",
    ".ndjson",
    ".ndjson.gz",
    ".json",
    ".json.gz",
)
"""Of the traces that `jaxsim.traces` reads."""

COLUMNS = ("input_tokens", "output_tokens", "timestamp")
"""Our names, which may be given the file's."""

_CHUNK = 1 << 20


def ending_of(label: str) -> str:
    """The ending of a file by its name, one of `ENDINGS`.

    Raises:
        RefusalError: none of them.
    """
    lower = label.lower()
    found = [ending for ending in ENDINGS if lower.endswith(ending) and len(lower) > len(ending)]
    if not found:
        raise RefusalError("name", label, allowed=f"a file name that ends in {', '.join(ENDINGS)}")
    return max(found, key=len)


def options_of(asked: dict[str, str]) -> Row:
    """What the reader is told beside the file: `time_unit`, `failed`, and columns by `COLUMNS`.

    Raises:
        RefusalError: an unknown key or choice.
    """
    known = ("time_unit", "failed", *COLUMNS)
    for key, value in asked.items():
        if key not in known:
            raise RefusalError(f"{key}: unknown key", key, allowed=", ".join(known))
        if len(value) > 200:
            raise RefusalError(key, value, allowed="at most 200 characters")
    given = {key: value for key, value in asked.items() if value}
    for key, choices in (("time_unit", TIME_UNITS), ("failed", FAILED_POLICIES)):
        if key in given and given[key] not in choices:
            raise RefusalError(key, given[key], allowed=f"one of {', '.join(choices)}")
    columns = {key: given[key] for key in COLUMNS if key in given}
    return {"time_unit": given.get("time_unit"), "failed": given.get("failed"), "map": columns or None}


class Uploads:
    """The uploads of one data folder."""

    def __init__(self, store: Store, settings: ServerSettings) -> None:
        self._store, self._settings = store, settings
        settings.uploads.mkdir(parents=True, exist_ok=True)
        known = {f"{row['id']}{row['ending']}" for row in store.all("uploads")}
        for path in settings.uploads.iterdir():  # what was arriving when a server ended
            if path.name not in known:
                path.unlink()
        self._workload = lru_cache(maxsize=4)(self._read)

    async def receive(self, label: str, declared: str | None, body: AsyncIterator[bytes]) -> Path:
        """Write a body to a new file, and no more than the limit of it.

        Args:
            label: the name that the client gives.
            declared: its Content-Length.
            body: as it arrives.

        Raises:
            RefusalError: too many, too large, or a name whose ending is not known.
        """
        limits = self._settings.limits
        ending = ending_of(label)
        if len(self._store.all("uploads")) >= limits.uploads:
            hint = "remove one that is not needed"
            raise RefusalError("uploads", limits.uploads, allowed=f"fewer than {limits.uploads}", hint=hint, status=409)
        if declared is not None and declared.isdigit() and int(declared) > limits.upload_bytes:
            raise self._too_large(int(declared))
        path = self._settings.uploads / f"{uuid.uuid4().hex}{ending}"
        size = 0
        try:
            with path.open("xb") as file:
                async for chunk in body:
                    size += len(chunk)
                    if size > limits.upload_bytes:
                        raise self._too_large(size)
                    file.write(chunk)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def keep(self, path: Path, label: str, options: Row) -> Row:
        """Read a received file and remember it; a file that is no sound trace is removed.

        Raises:
            RefusalError: with the reader's words, the file under the client's name.
        """
        key, ending = path.name[:32], path.name[32:]
        shown = label.replace("\\", "/").rpartition("/")[2][:80] or f"trace{ending}"
        try:
            self._check_unpacked(path)
            workload = _workload(path, shown, options)
            facts = facts_of(workload)
        except (ValueError, OSError, zlib.error, EOFError, MemoryError, pl.exceptions.PolarsError) as error:
            path.unlink(missing_ok=True)
            words = str(error).replace(path.name, shown).replace(str(path.parent), "")
            raise error if isinstance(error, RefusalError) else from_error(ValueError(words)) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        row = {"id": key, "label": shown, "ending": ending, "bytes": path.stat().st_size}
        row |= {"options": options, "facts": facts, "created": now()}
        self._store.insert("uploads", row)
        return row

    def all(self) -> list[Row]:
        """Those that are kept."""
        return self._store.all("uploads")

    def get(self, key: str) -> Row:
        """One of them.

        Raises:
            RefusalError: there is none.
        """
        row = self._store.get("uploads", key)
        if row is None:
            raise RefusalError("upload", key, allowed="the id of an uploaded trace", hint="upload it anew", status=404)
        return row

    def path(self, row: Row) -> Path:
        """Where its file lies."""
        return self._settings.uploads / f"{row['id']}{row['ending']}"

    def workload(self, key: str) -> Workload:
        """The workload of an upload; the last few are kept in memory."""
        self.get(key)
        return self._workload(key)

    def remove(self, key: str) -> None:
        """Forget it. Jobs that were made of it have their own copy."""
        row = self.get(key)
        self._store.delete("uploads", key)
        self.path(row).unlink(missing_ok=True)
        self._workload.cache_clear()

    def _read(self, key: str) -> Workload:
        row = self.get(key)
        return _workload(self.path(row), row["label"], row["options"])

    def _check_unpacked(self, path: Path) -> None:
        """Before a reader takes it whole into memory: what it unpacks to."""
        limits = self._settings.limits
        if path.suffix == ".gz":
            size = 0
            with gzip.open(path) as file:
                while chunk := file.read(_CHUNK):
                    size += len(chunk)
                    if size > limits.unpacked_bytes:
                        allowed = f"at most {limits.unpacked_bytes / MEGABYTE:g} MB once unpacked"
                        raise RefusalError("upload", f"{size / MEGABYTE:.0f} MB", allowed=allowed, status=413)
        if path.suffix == ".parquet":
            rows = int(pl.scan_parquet(path).select(pl.len()).collect().item())
            if rows > limits.trace_requests:
                allowed = f"at most {limits.trace_requests:,} requests"
                raise RefusalError("upload", f"{rows:,} requests", allowed=allowed, status=413)

    def _too_large(self, size: int) -> RefusalError:
        allowed = f"at most {self._settings.limits.upload_bytes / MEGABYTE:g} MB"
        hint = "a part of the trace says as much of its lengths; or start the server with --max-upload-mb"
        return RefusalError("upload", f"{size / MEGABYTE:.1f} MB", allowed=allowed, hint=hint, status=413)


def _workload(path: Path, label: str, options: Row) -> Workload:
    read = Workload.from_trace(
        path, columns=options["map"], time_unit=options["time_unit"], failed=options["failed"] or "drop"
    )
    return named(read, label)


def named(workload: Workload, label: str) -> Workload:
    """A workload under the name that its user knows."""
    return replace(workload, name=label, source=f"uploaded trace {label}")


def facts_of(workload: Workload) -> dict[str, Any]:
    """What the page shows of a workload, and where its sliders end."""
    found = trace_statistics(workload)
    totals = found.total_tokens
    return {
        "name": workload.name,
        "source": workload.source,
        "notes": list(workload.notes),
        "rate_rps": workload.rate,
        "mean_input_tokens": found.input_tokens.mean,
        "mean_output_tokens": found.output_tokens.mean,
        "total_tokens": {
            "p50": totals.p50,
            "p90": totals.p90,
            "p99": totals.p99,
            "shortest": float(np.min(workload.total_tokens)),
            "longest": totals.max,
        },
    }
