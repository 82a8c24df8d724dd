"""JSON objects of a benchmark file: every figure is taken out by name, checked, and refused with its place."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxsim._trace_columns import refusal

MOST_KEYS = 12
"""Keys of an object that a refusal lists."""

LARGEST_COUNT = 1e15
"""Counts up to which a float holds them exactly, and more tokens than any run has."""


@dataclass(frozen=True)
class Entry:
    """An object of a JSON file, and where it stands.

    Attributes:
        file: the file's name.
        values: the object.
        line_of: the line on which a key of the file's top level stands; None where that is not known.
        path: keys that lead to it, as in ``benchmarks[0].metrics``; "" at the top.
    """

    file: str
    values: Mapping[str, Any]
    line_of: Callable[[str], int | None] = field(repr=False)
    path: str = ""

    def has(self, key: str) -> bool:
        """Whether there is a value under that key; null is none."""
        return self.values.get(key) is not None

    def place(self, key: str) -> str:
        """A key in words: its line where that is known, and the keys that lead to it."""
        path = f"{self.path}.{key}" if self.path else key
        line = self.line_of(re.split(r"[.\[]", path)[0]) or self.line_of(re.split(r"[.\[]", key)[0])
        return f"line {line}, key {path!r}" if line else f"key {path!r}"

    def wrong(self, key: str, allowed: str, hint: str = "") -> ValueError:
        """The refusal of a value."""
        return self.refusal(key, self.values.get(key), allowed, hint)

    def refusal(self, key: str, value: Any, allowed: str, hint: str = "") -> ValueError:
        """The refusal of a value under that key, or inside it."""
        sentences = [f"{self.place(key)}: must be {allowed}, got {shown(value)}"]
        return refusal(self.file, *sentences, hint or "correct the file, or save the run again")

    def missing(self, *keys: str, hint: str = "") -> ValueError:
        """The refusal of an object that lacks a key."""
        where = self.path or "the file"
        wanted = " or ".join(map(repr, keys))
        near = difflib.get_close_matches(keys[0], list(self.values), n=3, cutoff=0.6)
        map_to = near[0] if near else "THEIR_KEY"
        how = f"map another name with --map {keys[0]}={map_to}" if not self.path else "save the run again"
        return refusal(self.file, f"no key {wanted} in {where}", f"found keys: {listed(self.values)}", hint or how)

    def number(self, key: str, *, least: float = 0.0, positive: bool = False) -> float:
        """A finite number; refused where it is missing."""
        if not self.has(key):
            raise self.missing(key)
        value = self.values[key]
        if not (is_finite(value) and (value > 0 if positive else value >= least)):
            raise self.wrong(key, "a finite number > 0" if positive else f"a finite number >= {least:g}")
        return float(value)

    def known(self, key: str, *, positive: bool = False) -> float | None:
        """A finite number; None where there is none."""
        return self.number(key, positive=positive) if self.has(key) else None

    def count(self, key: str) -> int:
        """A whole number >= 0; refused where it is missing."""
        value = self.number(key)
        if value != math.floor(value) or value > LARGEST_COUNT:
            raise self.wrong(key, "a whole number >= 0")
        return int(value)

    def known_count(self, key: str) -> int | None:
        """A whole number >= 0; None where there is none."""
        return self.count(key) if self.has(key) else None

    def rate(self, key: str) -> float | None:
        """Requests per second, > 0; inf where it says so in any spelling, None where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, str) and value.strip().lower() in ("inf", "infinity"):
            return math.inf
        if is_number(value) and value == math.inf:
            return math.inf
        if not (is_finite(value) and value > 0):
            raise self.wrong(key, "a number > 0, or 'inf' where all were sent at once")
        return float(value)

    def words(self, key: str) -> str | None:
        """Text; None where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(key, "text in quotes")
        return value

    def inner(self, key: str) -> Entry:
        """The object under a key; refused where it is missing."""
        if not self.has(key):
            raise self.missing(key)
        if not isinstance(self.values[key], dict):
            raise self.wrong(key, "an object {...}")
        return Entry(self.file, self.values[key], self.line_of, f"{self.path}.{key}" if self.path else key)

    def known_inner(self, key: str) -> Entry | None:
        """The object under a key; None where there is none."""
        return self.inner(key) if self.has(key) else None

    def items(self, key: str) -> list[Any]:
        """The list under a key; refused where it is missing."""
        if not self.has(key):
            raise self.missing(key)
        if not isinstance(self.values[key], list):
            raise self.wrong(key, "a list [...]")
        return self.values[key]

    def entries(self, key: str) -> list[Entry]:
        """The list of objects under a key."""
        found = []
        for at, value in enumerate(self.items(key)):
            if not isinstance(value, dict):
                raise self.refusal(f"{key}[{at}]", value, "an object {...}")
            path = f"{self.path}.{key}[{at}]" if self.path else f"{key}[{at}]"
            found.append(Entry(self.file, value, self.line_of, path))
        return found

    def column(self, key: str, rows: int | None = None, *, whole: bool = False) -> Float[np.ndarray, " rows"]:
        """The list of finite numbers >= 0 under a key, of `rows` where that is given; nulls are NaN."""
        values = self.items(key)
        if rows is not None and len(values) != rows:
            raise self.refusal(key, f"{len(values)} entries", f"a list of {rows}, one for each request")
        return self.numbers(key, values, whole=whole)

    def numbers(self, key: str, values: list[Any], *, whole: bool = False) -> Float[np.ndarray, " values"]:
        """A list found under a key as finite numbers >= 0; nulls are NaN."""
        if set(map(type, values)) <= {int, float}:
            found = np.array([float(value) if is_finite(value) else np.nan for value in values], dtype=np.float64)
            good = found >= 0
            if np.all(good & ((found == np.floor(found)) & (found <= LARGEST_COUNT) if whole else good)):
                return found
        for at, value in enumerate(values):
            if value is None:
                continue
            if not (is_finite(value) and value >= 0):
                raise self.refusal(f"{key}[{at}]", value, "a finite number >= 0")
            if whole and (value != math.floor(value) or value > LARGEST_COUNT):
                raise self.refusal(f"{key}[{at}]", value, "a whole number >= 0")
        return np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)


def is_number(value: Any) -> bool:
    """A JSON number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """A JSON number that a float can hold."""
    if not is_number(value):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def shown(value: Any) -> str:
    """A value in a refusal, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def listed(keys: Mapping[str, Any]) -> str:
    """The keys of an object, the first of many."""
    names = [repr(str(key)) for key in keys]
    if not names:
        return "none"
    more = f" and {len(names) - MOST_KEYS} more" if len(names) > MOST_KEYS else ""
    return ", ".join(names[:MOST_KEYS]) + more


def parsed(text: str) -> Any:
    """A JSON value, NaN and Infinity allowed as the tools write them.

    Raises:
        ValueError: not JSON; the text says what and where.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{where}: not JSON ({error.msg})") from error
    except RecursionError as error:
        raise ValueError("not JSON that can be read (nested too deep)") from error


def lines_in(text: str) -> Callable[[str], int | None]:
    """Finds the line of a key in a JSON text, where the key stands there once."""

    def line_of(key: str) -> int | None:
        found = list(re.finditer(rf'"{re.escape(key)}"\s*:', text))
        return text.count("\n", 0, found[0].start()) + 1 if len(found) == 1 else None

    return line_of


def on_line(line: int) -> Callable[[str], int | None]:
    """For an object that is one line of a file."""
    return lambda _: line
