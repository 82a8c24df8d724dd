"""Numbers and results as words, for tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from des import Estimate
from jaxsim.fleet import FleetDesign
from jaxsim.units import ms_from_s


def number(value: Any, digits: int = 3) -> str:
    """About `digits` significant digits, with separators: 70.8, 14.0, 1,234."""
    figure = float(value)
    if not math.isfinite(figure):
        return str(figure)
    if figure == 0:
        return "0"
    decimals = max(digits - 1 - math.floor(math.log10(abs(figure))), 0)
    return f"{figure:,.{min(decimals, 9)}f}"


def whole(value: Any) -> str:
    """A whole number with separators."""
    figure = float(value)
    return f"{figure:,.0f}" if math.isfinite(figure) else str(figure)


def given(value: Any) -> str:
    """A number as someone gave it: 500, 0.25, 16,384."""
    figure = float(value)
    return f"{figure:,.0f}" if figure == np.floor(figure) else f"{figure:,.6g}"


def ms(seconds: Any) -> str:
    """Milliseconds, without the unit."""
    return number(ms_from_s(float(seconds)))


def interval(estimate: Estimate | None) -> str:
    """Milliseconds and their interval, without the unit: 70.8 [70.1, 71.5]."""
    if estimate is None:
        return "none"
    return f"{ms(estimate.value)} [{ms(estimate.low)}, {ms(estimate.high)}]"


def usd(value: Any) -> str:
    """Dollars: cents, or three digits of less."""
    figure = float(value)
    if figure != 0 and abs(figure) < 1:
        return f"-${number(-figure)}" if figure < 0 else f"${number(figure)}"
    return f"-${-figure:,.2f}" if figure < 0 else f"${figure:,.2f}"


def percent(share: Any) -> str:
    """A share as a percentage; 100 % is all of them, not nearly all."""
    figure = float(share) * 100
    if 99 < figure < 100:
        return f"{100 - float(f'{100 - figure:.2g}'):.10g} %"
    return "0 %" if figure == 0 else f"{figure:.3g} %"


def fleet(design: FleetDesign) -> str:
    """A fleet in a line: 3 x h100-80gb, one pool to 16,384 tokens."""
    names, counts = design.profile.name, np.asarray(design.replicas)
    uppers = np.asarray(design.upper_tokens)
    if design.num_pools == 1:
        return f"{counts[0]:.0f} x {names[0]}, one pool to {whole(uppers[0])} tokens"
    parts = [f"{n:.0f} x {name} to {whole(upper)} tokens" for n, name, upper in zip(counts, names, uppers, strict=True)]
    return " + ".join(parts)


def compact(names: Sequence[str], counts: Sequence[float]) -> str:
    """Replicas of each pool without their ranges: 1 + 2 x h100-80gb."""
    if len(set(names)) == 1:
        return f"{' + '.join(f'{n:.0f}' for n in counts)} x {names[0]}"
    return " + ".join(f"{n:.0f} x {name}" for n, name in zip(counts, names, strict=True))


def ranges(design: FleetDesign) -> list[str]:
    """The total tokens of each pool's requests: 1 to 4,096."""
    return token_ranges([float(u) for u in np.asarray(design.upper_tokens)])


def token_ranges(uppers: Sequence[float]) -> list[str]:
    """The same of ascending thresholds."""
    lows = [1.0, *(u + 1 for u in uppers[:-1])]
    return [f"{whole(low)} to {whole(upper)}" for low, upper in zip(lows, uppers, strict=True)]
