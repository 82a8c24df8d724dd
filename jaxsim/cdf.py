"""Requests from a CDF of total tokens: what is left to do when only the total length is published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxsim._checks import invalid
from jaxsim.workload import MAX_TOKENS

_SHAPE = "pairs [total tokens, cumulative share] in order of tokens, the last share 1"
_END_TOLERANCE = 1e-9
_MAX_DENOMINATOR = 1_000_000  # times MAX_TOKENS still an exact int64; an output share needs no more digits


def cdf_lengths(
    points: str | Path | Sequence[Any], *, output_share: float
) -> tuple[Int[np.ndarray, " lengths"], Int[np.ndarray, " lengths"], Float[np.ndarray, " lengths"]]:
    r"""Input tokens, output tokens and weight of every total length that a CDF gives mass to.

    Lengths are integers, uniform within each bin: from the breakpoint before it, plus 1, to its own. Of a
    total $t$ with output share $s$, $\lfloor t (1 - s) \rfloor$ tokens are input and the rest is output, at
    least one each, so a total of 1 becomes 1 + 1. The floor is taken in integers: 0.2 means one fifth.

    Args:
        points: pairs (total tokens, cumulative share), or the path of a JSON file with a list of them.
        output_share: share of the total that is output, in (0, 1).

    Raises:
        FileNotFoundError: no such file.
        ValueError: anything that is not the CDF of a whole number of tokens from 1 to `MAX_TOKENS`.
    """
    if not _is_number(output_share) or not 0 < output_share < 1:
        raise invalid("output_share", output_share, "in (0, 1)", "a CDF of totals does not know it")
    tokens, cumulative = _read(points)
    width, mass = np.diff(tokens, prepend=0), np.diff(cumulative, prepend=0.0)
    used = mass > 0
    bins = zip(tokens[used], width[used], strict=True)
    total = np.concatenate([np.arange(last - size + 1, last + 1) for last, size in bins])
    weight = np.repeat(mass[used] / width[used], width[used])
    kept = 1 - Fraction(str(float(output_share))).limit_denominator(_MAX_DENOMINATOR)
    inputs = np.clip(total * kept.numerator // kept.denominator, 1, np.maximum(total - 1, 1))
    return inputs, np.maximum(total - inputs, 1), weight / weight.sum()


def cdf_breakpoints(points: str | Path | Sequence[Any]) -> tuple[float, ...]:
    """The total tokens at which a CDF is given; arguments and errors as in `cdf_lengths`."""
    return tuple(float(t) for t in _read(points)[0])


def _read(points: str | Path | Sequence[Any]) -> tuple[Int[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    if isinstance(points, str | Path):
        return _checked(f"{Path(points).name}: CDF", _load(Path(points)))
    return _checked("CDF", points)


def _load(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"CDF file not found: {path}; check the path")
    if path.is_dir():
        raise ValueError(f"{path.name}: is a folder; a CDF is one JSON file, {_SHAPE}")
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name}: not JSON ({error}); a CDF is a list of {_SHAPE}") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def _checked(what: str, points: Any) -> tuple[Int[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """Breakpoints and cumulative shares, or the first thing that is wrong with them."""
    if isinstance(points, dict):
        keys = ", ".join(map(repr, points))
        raise ValueError(f"{what} must be a list of {_SHAPE}, got an object; take the list out of it: {keys}")
    if not isinstance(points, list | tuple | np.ndarray):
        raise invalid(what, points, f"a list of {_SHAPE}")
    if len(points) == 0:
        raise ValueError(f"{what} must be a list of {_SHAPE}, got an empty list; give at least one pair")
    before, share_before = 0, 0.0
    for k, point in enumerate(points):
        pair = list(point) if isinstance(point, list | tuple | np.ndarray) else point
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_number, pair)):
            raise invalid(f"{what} point [{k}]", pair, "a pair [tokens, cumulative share] of two numbers")
        tokens, share = pair
        if not (1 <= tokens <= MAX_TOKENS and tokens == int(tokens)):
            raise invalid(f"{what} point [{k}] tokens", pair[0], f"a whole number from 1 to {MAX_TOKENS}")
        if not tokens > before:
            hint = "list each length once, ascending"
            raise invalid(f"{what} point [{k}] tokens", pair[0], f"> {before}, the point before", hint)
        if not 0 <= share <= 1 + _END_TOLERANCE:
            hint = "shares are fractions, not percent" if share > 1 else "shares cannot be negative or NaN"
            raise invalid(f"{what} point [{k}] cumulative share", pair[1], "in [0, 1]", hint)
        if share < share_before:
            hint = "cumulative shares never fall; are these shares of each bin?"
            raise invalid(f"{what} point [{k}] cumulative share", pair[1], f">= {share_before!r}", hint)
        before, share_before = int(tokens), float(share)
    if abs(share_before - 1) > _END_TOLERANCE:
        hint = "add the last breakpoint, the longest total"
        raise invalid(f"{what} last cumulative share", share_before, "1", hint)
    return (
        np.asarray([int(point[0]) for point in points], dtype=np.int64),
        np.asarray([float(point[1]) for point in points]),
    )
