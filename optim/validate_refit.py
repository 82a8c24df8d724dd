"""A profile refitted to one operating point: a common factor on its steps, or one on decoding and one on prompts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from jaxsim.fit.rescale import (
    DECODE,
    PROMPT,
    coefficient_covariance,
    factor_covariance,
    factor_for,
    factors_for,
    scaled,
)
from jaxsim.observed import Observed
from jaxsim.profiles import Profile
from optim.fit_errors import FitErrors
from optim.validate_compare import Part, Row, Tolerances, compare, decisive, of_part, with_scatter
from optim.validate_predict import CONFIDENCE, REPLICATIONS, Judge, Predicted
from optim.words import number

DEGREES = REPLICATIONS - 1
PRECISION = 2e-3
_NUDGE = 1.05


@dataclass(frozen=True)
class Factor:
    """What coefficients were multiplied by, with a 95 % interval; NaN where that is not known."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Refit:
    """The profile that shows what was measured.

    Attributes:
        profile: the plan's with its coefficients multiplied.
        decode: factor on `jaxsim.fit.rescale.DECODE`; where `prompt` is None, on every coefficient of the step.
        prompt: factor on `jaxsim.fit.rescale.PROMPT`; None where one factor explains everything.
        errors: of the coefficients; None where they are not known.
        predicted: with it, at the measured load.
        rows: the measured latencies beside that.
        text: what was scaled and what was not, in a sentence.
    """

    profile: Profile
    decode: Factor
    prompt: Factor | None
    errors: FitErrors | None
    predicted: Predicted
    rows: tuple[Row, ...]
    text: str

    @property
    def agrees(self) -> bool:
        """Whether nothing that was measured disagrees with it."""
        return all(row.agrees is not False for row in self.rows)


def refit(
    seen: Observed,
    profile: Profile,
    judge: Judge,
    model: Callable[[Profile], Predicted | None],
    rows: tuple[Row, ...],
    tolerances: Tolerances,
) -> Refit | str:
    """Find the factors; why there are none, where there are none.

    One factor is tried first. Only where the mean TTFT then still disagrees are prompts given one of their own, since
    what is in a TTFT besides steps would be taken for prompts.
    """
    step = decisive(rows, Part.DECODE)
    if step is None:
        return "no TPOT and no gap between tokens was measured, and a TTFT alone does not tell how long a step takes"
    common = factor_for(
        lambda k: judge(scaled(profile, decode=k, prompt=k)).value(step.key), step.reading.value_s, precision=PRECISION
    )
    if common is None:
        return (
            f"no factor on its steps gives the measured {step.key[0].upper()} at this rate: the pool would be "
            "overloaded first, so what was served is not this load"
        )
    found = _made(seen, profile, judge, model, (common, common), (step,), tolerances)
    prompt = decisive(found.rows, Part.PROMPT)
    if prompt is None or prompt.agrees or not _has_prefill(profile):
        return found
    both = _both(profile, judge, step, prompt, common)
    if both is None:
        left = f"the mean TTFT is {number(prompt.ratio)} times what that predicts, and no factor on prefill explains it"
        return replace(found, text=f"{found.text}; {left}")
    return _made(seen, profile, judge, model, both, (step, prompt), tolerances)


def _has_prefill(profile: Profile) -> bool:
    return any(float(getattr(profile, name)) > 0 for name in PROMPT)


def _both(profile: Profile, judge: Judge, step: Row, prompt: Row, start: float) -> tuple[float, float] | None:
    """Factors on decoding and on prompts."""

    def values(decode: float, prefill: float) -> tuple[float, float]:
        predicted = judge(scaled(profile, decode=decode, prompt=prefill))
        return predicted.value(step.key), predicted.value(prompt.key)

    targets = (step.reading.value_s, prompt.reading.value_s)
    return factors_for(values, targets, start=(start, start), precision=PRECISION)


def _made(
    seen: Observed,
    profile: Profile,
    judge: Judge,
    model: Callable[[Profile], Predicted | None],
    factors: tuple[float, float],
    fitted: tuple[Row, ...],
    tolerances: Tolerances,
) -> Refit:
    one = len(fitted) == 1
    made = scaled(profile, decode=factors[0], prompt=factors[1])
    predicted, rows = compare(seen, made, judge, model(made), tolerances)
    spread = _spread(made, judge, predicted, fitted, one=one)
    known = tuple(
        Factor(value, *_ends(value, float(spread[i, i]))) for i, value in enumerate(factors[: 1 if one else 2])
    )
    names = tuple(name for name in _FITTED if float(getattr(made, name)) > 0)
    errors = None
    if np.all(np.isfinite(spread)) and np.all(np.diag(spread) > 0):
        errors = FitErrors(names, coefficient_covariance(made, names, spread), DEGREES, None)
    words = _words(known, profile)
    source = f"{profile.source}; held against {seen.source} ({seen.tool}), {words}"
    named = replace(made, name=f"{profile.name}-validated", source=source)
    return Refit(named, known[0], None if one else known[1], errors, predicted, rows, words)


_FITTED = (*(name for name in DECODE if name != "overhead_s"), *PROMPT)
"""Coefficients that a profile's table [fit] can name."""


def _spread(made: Profile, judge: Judge, predicted: Predicted, fitted: tuple[Row, ...], *, one: bool) -> np.ndarray:
    """Covariance of the factors' logarithms: of the measured figures' scatter and of the simulation's own."""
    moves = ((_NUDGE, _NUDGE),) if one else ((_NUDGE, 1.0), (1.0, _NUDGE))
    nudged = [judge(scaled(made, decode=decode, prompt=prompt)) for decode, prompt in moves]
    slopes = np.array(
        [
            [math.log(other.value(row.key) / predicted.value(row.key)) / math.log(_NUDGE) for other in nudged]
            for row in fitted
        ]
    )
    if not np.all(np.isfinite(slopes)):
        return np.full((len(moves), len(moves)), math.nan)
    quantile = float(stdtrit(DEGREES, 0.5 + 0.5 * CONFIDENCE))
    relative = []
    for row in fitted:
        low, high = with_scatter(row.reading, predicted)
        own = 0.5 * (high - low) / row.reading.value_s
        simulated = predicted.figures[row.key].half_s / predicted.value(row.key)
        relative.append(math.hypot(own, simulated) / quantile if own > 0 else math.nan)
    return factor_covariance(slopes, np.array(relative))


def _ends(value: float, variance: float) -> tuple[float, float]:
    half = float(stdtrit(DEGREES, 0.5 + 0.5 * CONFIDENCE)) * math.sqrt(variance) if variance >= 0 else math.nan
    return value * math.exp(-half), value * math.exp(half)


def _words(known: tuple[Factor, ...], profile: Profile) -> str:
    said = [
        f"{each.value:.3g} times" + ("" if math.isnan(each.low) else f" [{each.low:.3g}, {each.high:.3g}]")
        for each in known
    ]
    stay = "KV blocks, limits, power and price stay as they are"
    if len(known) == 1:
        return f"every coefficient of {profile.name}'s step is {said[0]} what it was; {stay}"
    return (
        f"{profile.name}'s coefficients of decoding are {said[0]} and those of prompts {said[1]} what they were, the "
        f"latter with whatever else is in the TTFT; {stay}"
    )


def all_off(rows: tuple[Row, ...]) -> list[Row]:
    """Rows that disagree, whatever they tell of."""
    return [row for part in Part for row in of_part(rows, part, off=True)]
