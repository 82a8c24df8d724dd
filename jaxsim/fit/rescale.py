r"""Factors on a known law, where one operating point is all that was measured.

One steady load has one mean TPOT and one mean TTFT. They cannot tell five coefficients apart, but they can say by what
factor the whole law is off, or by what factors its decoding and its prompts are. Under a common factor $k$ every step
takes $k$ times as long at the same batch; at the same rate the batch grows with it, so a latency grows by more than
$k$, which is why the factor is sought through the model or the simulator and is not a ratio of latencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from jaxsim._checks import require_positive
from jaxsim.profiles import Profile

DECODE = ("base_s", "per_sequence_s", "per_token_s", "overhead_s")
PROMPT = ("prefill_per_token_s", "prefill_per_token2_s")

LEAST, MOST = 1.0 / 32.0, 32.0
"""Factors looked at: beyond them the law is another one."""

_TRIES = 40
_BEYOND = 1e3
_NUDGE = 0.05
_HALVINGS = 5
_SINGULAR = 1e-6


def scaled(profile: Profile, *, decode: float = 1.0, prompt: float = 1.0) -> Profile:
    """The profile with the coefficients of decoding (`DECODE`) and of prompts (`PROMPT`) multiplied.

    Raises:
        ValueError: a factor is not positive and finite.
    """
    require_positive("decode", decode)
    require_positive("prompt", prompt)
    factors = dict.fromkeys(DECODE, decode) | dict.fromkeys(PROMPT, prompt)
    return replace(profile, **{name: factor * getattr(profile, name) for name, factor in factors.items()})


def factor_for(figure: Callable[[float], float], target: float, *, precision: float = 1e-4) -> float | None:
    """The factor at which a figure that does not fall with it has the value `target`; None where none has.

    Args:
        figure: seconds at a factor; inf in overload. It is asked between `LEAST` and `MOST` alone.
        target: seconds, > 0.
        precision: relative, of the figure or of the factor, whichever is met first.

    Regula falsi in logarithms (the Illinois rule), with bisection while one end is an overload.
    """
    require_positive("target", target)
    require_positive("precision", precision)

    def error(log_factor: float) -> float:
        value = figure(math.exp(log_factor))
        return (
            math.log(min(max(value / target, 1.0 / _BEYOND), _BEYOND)) if not math.isnan(value) else math.log(_BEYOND)
        )

    bounds = math.log(LEAST), math.log(MOST)
    low = high = 0.0
    below = above = error(0.0)
    if abs(below) <= precision:
        return 1.0
    while above < 0.0:
        low, below = high, above
        if high >= bounds[1]:
            return None
        high = min(high + min(1.5 * -above, 1.0) + precision, bounds[1])
        above = error(high)
    while below > 0.0:
        high, above = low, below
        if low <= bounds[0]:
            return None
        low = max(low - min(1.5 * below, 1.0) - precision, bounds[0])
        below = error(low)
    kept = 0
    for _ in range(_TRIES):
        if high - low <= precision:
            break
        overload = above >= math.log(_BEYOND)
        middle = 0.5 * (low + high) if overload or above == below else low - below * (high - low) / (above - below)
        found = error(middle)
        if abs(found) <= precision:
            return math.exp(middle)
        if found < 0.0:
            low, below = middle, found
            above = 0.5 * above if kept == -1 and not overload else above
            kept = -1
        else:
            high, above = middle, found
            below = 0.5 * below if kept == 1 else below
            kept = 1
    return None if above >= math.log(_BEYOND) else math.exp(0.5 * (low + high))


def factors_for(
    figures: Callable[[float, float], tuple[float, float]],
    targets: tuple[float, float],
    *,
    start: tuple[float, float],
    precision: float = 1e-4,
) -> tuple[float, float] | None:
    """The factors on decoding and on prompts at which two figures have the values `targets`; None where none have.

    Args:
        figures: seconds at two factors; inf in overload. Asked between `LEAST` and `MOST` alone.
        targets: seconds, > 0.
        start: where the search begins.
        precision: relative, of the figures.

    Newton's method in logarithms, its slopes taken once by differences and then kept up by Broyden's rule (C. G.
    Broyden, Mathematics of Computation 19, 1965); a step that goes wrong is halved.
    """
    for target in targets:
        require_positive("target", target)

    def errors(at: np.ndarray) -> np.ndarray:
        values = np.array(figures(*(float(each) for each in np.exp(at))))
        return np.log(np.where(values > 0, values, np.nan) / np.array(targets))

    bound = np.log([LEAST, MOST])
    at = np.log(np.array(start))
    missed = errors(at)
    if not np.all(np.isfinite(missed)):
        return None
    slopes = np.stack([(errors(at + nudge) - missed) / _NUDGE for nudge in _NUDGE * np.eye(2)], axis=1)
    for _ in range(_TRIES // 2):
        if np.abs(missed).max() <= precision:
            return float(np.exp(at[0])), float(np.exp(at[1]))
        if not np.all(np.isfinite(slopes)) or abs(np.linalg.det(slopes)) < _SINGULAR:
            return None
        step = np.clip(-np.linalg.solve(slopes, missed), -1.0, 1.0)
        for _ in range(_HALVINGS):
            tried = np.clip(at + step, *bound)
            found = errors(tried)
            if np.all(np.isfinite(found)) and np.abs(found).max() < np.abs(missed).max():
                break
            step = 0.5 * step
        else:
            return None
        moved = tried - at
        if not moved.any():
            return None
        slopes = slopes + np.outer(found - missed - slopes @ moved, moved) / (moved @ moved)
        at, missed = tried, found
    return None


def factor_covariance(
    slopes: Float[np.ndarray, "figures factors"], errors: Float[np.ndarray, " figures"]
) -> Float[np.ndarray, "factors factors"]:
    r"""Covariance of the logarithms of factors that were fitted to as many figures: $J^{-1} \Sigma J^{-\top}$.

    Args:
        slopes: J, of each figure's logarithm in each factor's.
        errors: relative standard error of each figure.

    NaN where the figures do not tell the factors apart.
    """
    if abs(np.linalg.det(slopes)) < _SINGULAR:
        return np.full(slopes.shape, np.nan)
    inverse = np.linalg.inv(slopes)
    return inverse @ np.diag(np.square(errors)) @ inverse.T


def coefficient_covariance(
    profile: Profile, names: tuple[str, ...], factors: Float[np.ndarray, "factors factors"]
) -> Float[np.ndarray, "coefficients coefficients"]:
    """Covariance of coefficients that were multiplied by factors with that covariance of their logarithms.

    Args:
        profile: as multiplied.
        names: coefficients, in the order wanted.
        factors: of one factor for all of them, or of those of decoding and of prompts.
    """
    of = [0 if len(factors) == 1 or name in DECODE else 1 for name in names]
    values = np.array([float(getattr(profile, name)) for name in names])
    return factors[np.ix_(of, of)] * np.outer(values, values)
