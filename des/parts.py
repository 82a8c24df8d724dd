"""Finished parts of a long run, each a parquet file, from which a run that was stopped goes on.

``manifest.json`` says of which request the parts are, before the first is written; when all are there it also lists
them with their digests. Every file is written beside its place, flushed to the disk and moved there, so what has its
name is whole however the run ended. The files are those of a run that was never stopped, byte for byte.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
TEMPORARY = ".tmp"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write a file that shall stand at `path` whole or not at all, also after a crash of the machine."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # elsewhere a folder cannot be flushed
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@dataclass(frozen=True)
class Parts:
    """Parts of one request in a folder; see `kept`."""

    folder: Path
    request: Mapping[str, Any]

    def path(self, name: str) -> Path:
        """Where a part is, or will be."""
        return self.folder / f"{name}.parquet"

    def has(self, name: str) -> bool:
        """Whether a part is finished."""
        return self.path(name).exists()

    def write(self, name: str, table: pl.DataFrame) -> None:
        """Keep a finished part."""
        with whole_file(self.path(name)) as beside:
            table.write_parquet(beside)

    def read(self, name: str, *, columns: list[str] | None = None) -> pl.DataFrame:
        """A finished part; some of its columns where these are named.

        Raises:
            ValueError: it cannot be read.
        """
        try:
            return pl.read_parquet(self.path(name), columns=columns, glob=False)
        except pl.exceptions.PolarsError as error:
            raise ValueError(
                f"{self.path(name)} must be a part that this run wrote, got a file that cannot be read ({error}); "
                "remove it, and it is computed again"
            ) from error

    def finish(self) -> None:
        """Say in the manifest that all parts are there, with the digest of each."""
        found = {}
        for path in sorted(self.folder.glob("*.parquet")):
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        self._say({"complete": True, "parts": found})

    def _say(self, state: Mapping[str, Any]) -> None:
        content = {"schema_version": SCHEMA_VERSION, **self.request, **state}
        with whole_file(self.folder / MANIFEST) as beside:
            beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def kept(folder: Path, request: Callable[[], Mapping[str, Any]]) -> Iterator[Parts]:
    """The finished parts of a request, for one process at a time.

    Args:
        folder: made when needed.
        request: names of what the parts depend on, with values that JSON can hold.

    Raises:
        ValueError: the folder has the parts of another request, or another process is writing there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        for left in folder.glob(f".*{TEMPORARY}"):
            left.unlink()
        parts = Parts(folder, request())
        _check(parts)
        parts._say({"complete": False})
        yield parts


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, where the system has such; it ends with the process, however that ends."""
    try:
        locks: Any = importlib.import_module("fcntl")
    except ImportError:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        locks.flock(held, locks.LOCK_EX | locks.LOCK_NB)
        yield
    except BlockingIOError:
        raise ValueError(
            f"parts in {folder} are being written by another run; wait for it, or name another folder"
        ) from None
    finally:
        os.close(held)


def _check(parts: Parts) -> None:
    """The manifest, if there is one, is of this request."""
    path = parts.folder / MANIFEST
    if not path.exists():
        if strange := sorted(parts.folder.glob("*.parquet")):
            raise ValueError(f"{parts.folder} must have a {MANIFEST} beside {strange[0].name}, got none; {_HINT}")
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be a manifest of parts, got {error}; {_HINT}") from error
    wanted = {"schema_version": SCHEMA_VERSION, **parts.request}
    known = found if isinstance(found, dict) else {}
    if other := [name for name, value in wanted.items() if known.get(name) != value]:
        said = ", ".join(f"{name} {_short(known.get(name))} instead of {_short(wanted[name])}" for name in other)
        raise ValueError(f"parts in {parts.folder} must be of the same request, got {said}; {_HINT}")


_HINT = "name another folder, or remove this one to begin anew"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."
