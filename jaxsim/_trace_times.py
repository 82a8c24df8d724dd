"""Arrival times: numbers in some unit or ISO 8601 text, kept exact as whole units plus a fraction.

A float64 of epoch seconds resolves 2.4e-7 s and one of epoch nanoseconds 256 ns, so the first arrival is
subtracted from the whole part, in integers, before anything is divided.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from jaxsim._trace_columns import refusal
from jaxsim.traces import TIME_UNITS

_ISO = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?\s*(?:Z|z|UTC|[+-]\d\d:?\d\d)?$"
_CLOCK_CHARACTERS = len("2023-11-16 18:20:01")
_EPOCH_S = (3e8, 2e10)  # 1979 to 2603, so that units a thousand apart cannot be confused
_NAME_UNIT = {"s": "s", "sec": "s", "seconds": "s", "ms": "ms", "us": "us", "ns": "ns", "nano": "ns"}


@dataclass(frozen=True)
class Instants:
    """Times as ``whole + fraction`` units; `unit` is None where the text did not fix it."""

    whole: Int[np.ndarray, " rows"]
    fraction: Float[np.ndarray, " rows"]
    unit: str | None

    def seconds(self, file: str, name: str, given: str | None, default: str) -> tuple[Float[np.ndarray, " rows"], str]:
        """Seconds since the earliest time, in file order, and the note on the unit."""
        if self.unit is not None and given is not None:
            raise refusal(file, f"column {name!r} holds dates and times: time_unit {given!r} does not apply")
        if self.unit is not None:
            unit, why = self.unit, "as dates and times"
        else:
            unit, why = _unit_of(name, given, self.whole, default)
        first = self.whole.min()
        first_fraction = self.fraction[self.whole == first].min()
        seconds = ((self.whole - first) + (self.fraction - first_fraction)) / TIME_UNITS[unit]
        return seconds, f"column {name!r} read {why}"


def _unit_of(name: str, given: str | None, whole: Int[np.ndarray, " rows"], default: str) -> tuple[str, str]:
    if given is not None:
        return given, f"in {given} (given)"
    suffix = re.split(r"[_\s.-]", name.lower())[-1]
    if suffix in _NAME_UNIT and suffix != name.lower():
        return _NAME_UNIT[suffix], f"in {_NAME_UNIT[suffix]} (from its name)"
    for unit, ticks in TIME_UNITS.items():
        if _EPOCH_S[0] <= whole.min() / ticks and whole.max() / ticks < _EPOCH_S[1]:
            return unit, f"in {unit} (an epoch time, from its magnitude; time_unit overrides)"
    if default == "ms":
        return "ms", "in ms (as in the Mooncake format; time_unit overrides)"
    return "s", "in s (assumed; time_unit overrides)"


def is_iso(text: str) -> bool:
    """True for a date, which decides how the whole column is read."""
    return re.match(r"\d{4}-\d\d-\d\d", text) is not None


def time_columns(text: pl.Expr, iso: bool, decimal_comma: bool) -> list[pl.Expr]:
    """Columns `missing`, `whole` (null where unreadable), `fraction`, `zoned`, `comma` of times."""
    comma = text.str.contains(",", literal=True).fill_null(False) & decimal_comma
    if decimal_comma:
        text = text.str.replace(r"^(\d+),(\d+)$", "$1.$2")
    whole, fraction, zoned = _from_iso(text) if iso else _from_number(text)
    return [
        text.is_null().alias("missing"),
        whole.alias("whole"),
        fraction.alias("fraction"),
        zoned.alias("zoned"),
        comma.alias("comma"),
    ]


def _from_number(text: pl.Expr) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    exact = text.str.extract(r"^(\d+)(?:\.\d*)?$").cast(pl.Int64, strict=False)
    part = text.str.extract(r"^\d+(\.\d+)$").cast(pl.Float64, strict=False).fill_null(0.0)
    number = text.cast(pl.Float64, strict=False)  # signs and exponents
    floor = number.floor().cast(pl.Int64, strict=False)
    whole = pl.coalesce(exact, floor)
    fraction = pl.when(exact.is_not_null()).then(part).otherwise(number - number.floor())
    return whole, fraction, pl.lit(False)


def _from_iso(text: pl.Expr) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    clock = text.str.slice(0, _CLOCK_CHARACTERS).str.replace("T", " ", literal=True)
    local = clock.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False).dt.epoch("s")
    tail = text.str.slice(_CLOCK_CHARACTERS)
    digits = pl.concat_str(pl.lit("0."), tail.str.extract(r"^[.,](\d+)"))
    zone = tail.str.extract(r"(Z|z|UTC|[+-]\d\d:?\d\d)$")
    number = zone.str.replace(":", "", literal=True)
    hours, minutes = (number.str.slice(k, 2).cast(pl.Int64, strict=False).fill_null(0) for k in (1, 3))
    sign = pl.when(number.str.starts_with("-")).then(-1).otherwise(1)
    whole = pl.when(text.str.contains(_ISO)).then(local - sign * (hours * 3600 + minutes * 60))
    return whole, digits.cast(pl.Float64, strict=False).fill_null(0.0), zone.is_not_null()


def instants_of(frame: pl.DataFrame, iso: bool, file: str) -> tuple[Instants, list[str]]:
    """The instants of read columns, all readable, and notes on zone and decimal comma.

    Raises:
        ValueError: some rows carry a UTC offset and some do not.
    """
    zoned = frame["zoned"]
    if iso and zoned.any() and not zoned.all():
        count = f"{int(zoned.sum())} of {len(zoned)} times carry a UTC offset, the others none"
        raise refusal(file, count, "their order is unknown: give an offset to all or to none")
    notes = ["times have a decimal comma, read as a point"] if not iso and frame["comma"].any() else []
    if iso and not zoned.any():
        notes.append("times carry no UTC offset: taken to be of one zone without clock changes")
    whole = frame["whole"].to_numpy().astype(np.int64)
    return Instants(whole, frame["fraction"].to_numpy(), "s" if iso else None), notes
