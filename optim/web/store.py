"""The database of a server: uploads and jobs, in one SQLite file in the data folder."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_TABLES = """
create table if not exists uploads (
    id text primary key, label text not null, ending text not null, bytes integer not null,
    options text not null, facts text not null, created text not null
);
create table if not exists jobs (
    id text primary key, kind text not null, label text not null, state text not null, progress text not null,
    question text not null, error text, summary text, created text not null, started text, ended text
);
"""

STATES = ("queued", "running", "done", "failed", "cancelled", "interrupted")
"""Of a job. `interrupted`: it ran when the server ended; it is not run again unasked."""

ENDED = STATES[2:]

_JSON = {"options", "facts", "question", "error", "summary"}

Row = dict[str, Any]


class BusyError(RuntimeError):
    """Another server has the data folder."""


class Store:
    """Reads and writes rows; safe from several threads. Only one process at a time has a data folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._owner = _own(folder / "owner.sqlite")
        self._rows = sqlite3.connect(folder / "serve.sqlite", check_same_thread=False, isolation_level=None)
        self._rows.row_factory = sqlite3.Row
        self._rows.executescript(_TABLES)

    def close(self) -> None:
        """Give the folder back."""
        with self._lock:
            self._rows.close()
            self._owner.close()

    def insert(self, table: str, row: Row) -> None:
        """A new row."""
        names = ", ".join(row)
        marks = ", ".join("?" for _ in row)
        self._do(f"insert into {table} ({names}) values ({marks})", [_stored(n, v) for n, v in row.items()])

    def update(self, table: str, key: str, row: Row, *, only: Iterable[str] = ()) -> bool:
        """Change columns of a row; with `only`, only where its state is one of these. Whether it was changed."""
        states = list(only)
        where = f" and state in ({', '.join('?' for _ in states)})" if states else ""
        names = ", ".join(f"{name} = ?" for name in row)
        values = [_stored(n, v) for n, v in row.items()]
        return self._do(f"update {table} set {names} where id = ?{where}", [*values, key, *states]) > 0

    def delete(self, table: str, key: str) -> bool:
        """Whether there was such a row."""
        return self._do(f"delete from {table} where id = ?", [key]) > 0

    def get(self, table: str, key: str) -> Row | None:
        """One row."""
        found = self.all(table, "id = ?", key)
        return found[0] if found else None

    def all(self, table: str, where: str = "1", *values: str) -> list[Row]:
        """Rows in the order in which they were made."""
        with self._lock:
            rows = self._rows.execute(f"select * from {table} where {where} order by rowid", values).fetchall()
        return [{name: _read(name, row[name]) for name in row.keys()} for row in rows]  # noqa: SIM118

    def _do(self, statement: str, values: list[Any]) -> int:
        with self._lock:
            return self._rows.execute(statement, values).rowcount


def now() -> str:
    """The time of a row."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _own(path: Path) -> sqlite3.Connection:
    """A lock that ends with the process, on every system."""
    owner = sqlite3.connect(path, timeout=0, check_same_thread=False, isolation_level=None)
    try:
        owner.execute("begin exclusive")
    except sqlite3.OperationalError as error:
        owner.close()
        raise BusyError(
            f"data folder {path.parent} is in use by another server; stop it or give another folder (--data-dir)"
        ) from error
    return owner


def _stored(name: str, value: Any) -> Any:
    return json.dumps(value) if name in _JSON and value is not None else value


def _read(name: str, value: Any) -> Any:
    return json.loads(value) if name in _JSON and value is not None else value
