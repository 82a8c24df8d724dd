"""The step law's coefficients from measured steps: a pure function for `jit`, `vmap` and `grad`.

Steps that only decode determine `base_s`, `per_sequence_s` and `per_token_s`; those with a prompt then determine
`prefill_per_token_s` and `prefill_per_token2_s`. In one joint fit the many mixed steps of a typical table would move
the decode law: attention over decoding sequences is slower beside a prompt than alone, which the law does not know.
Without steps that only decode, base and prefill are fitted together.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from jaxsim.fit._solve import LEAST_START, Optimum, robust_least_squares
from jaxsim.fit._uncertainty import carried_covariance
from jaxsim.fit.table import Rows, step_seconds
from jaxsim.physics import StepLaw

COEFFICIENTS = ("base_s", "per_sequence_s", "per_token_s", "prefill_per_token_s", "prefill_per_token2_s")
PREFILL = ("prefill_per_token_s", "prefill_per_token2_s")

LEAST_BASE = 1e-6
"""Lower bound of `base_s`, as a share of the median time: a step takes some time."""


class Stages(NamedTuple):
    """Coefficients fitted on steps that only decode, and on those with a prompt; the others are 0."""

    decode: tuple[str, ...]
    prompt: tuple[str, ...]

    @property
    def fitted(self) -> tuple[str, ...]:
        """All of them, in the order of `COEFFICIENTS`."""
        return tuple(name for name in COEFFICIENTS if name in (*self.decode, *self.prompt))

    @property
    def masks(self) -> Bool[np.ndarray, "2 coefficients"]:
        """Which coefficients each stage fits, in the order of `COEFFICIENTS`."""
        return np.array([[name in names for name in COEFFICIENTS] for names in self])


class LawFit(NamedTuple):
    """A fitted law.

    Attributes:
        law: coefficients; those not fitted are 0.
        covariance: of the coefficients, in the order of `COEFFICIENTS`; 0 for those not fitted or at their bound.
        at_bound: which coefficients are at their lower bound.
        scales: c of the robust loss, relative, on steps that only decode and on those with a prompt; NaN where
            nothing is fitted to them.
        converged: whether both searches ended at a minimum.
    """

    law: StepLaw
    covariance: Any
    at_bound: Any
    scales: Any
    converged: Any


def law_of(values: Any, overhead_s: Any) -> StepLaw:
    """The law with its coefficients in the order of `COEFFICIENTS`."""
    return StepLaw(*(values[i] for i in range(len(COEFFICIENTS))), overhead_s=overhead_s)


def fit_law(rows: Rows, masks: Any, *, scale: Any = math.nan, overhead_s: Any = 0.0) -> LawFit:
    """Least squares in relative error, robust as `jaxsim.fit._solve` says.

    Args:
        rows: measured steps, rank 1. Derivatives go through the times, settings and weights.
        masks: what is fitted on which steps, `Stages.masks`; `jaxsim.fit.identify.stages_for` finds the stages.
        scale: relative error above which a row counts linearly; NaN finds it from the errors' median. It is taken
            as given in derivatives.
        overhead_s: seconds of the engine in every step, known; `base_s` is what remains.
    """
    has_prompt = rows.prompt_tokens > 0
    of_stage = jnp.stack([jnp.where(has_prompt, 0.0, rows.weight), jnp.where(has_prompt, rows.weight, 0.0)])
    number = len(COEFFICIENTS)
    overhead = 0.0 * rows.time_s[0] + overhead_s

    def stage(carry: tuple[Any, Any], given: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
        values, spread = carry
        free, weight = given
        these = rows._replace(weight=weight)
        found = _fitted(values, these, free, scale, overhead)
        values = jnp.where(free, found.value, values)
        moving = free & ~found.at_bound
        errors = partial(_errors, rows=these, overhead_s=overhead)
        spread = carried_covariance(spread, errors, values, weight=weight, free=moving, scale=found.scale)
        return (values, spread), (found.at_bound, jnp.where(free.any(), found.scale, jnp.nan), found.converged)

    start = jnp.zeros(number).at[0].set(1.0)  # any base, until a stage fits it
    (values, spread), (at_bound, scales, converged) = jax.lax.scan(
        stage, (start, jnp.zeros((number, number))), (jnp.asarray(masks), of_stage)
    )
    return LawFit(law_of(values, overhead), spread, at_bound.any(axis=0), scales, converged.all())


def _errors(values: Any, rows: Rows, overhead_s: Any) -> Any:
    """Relative, of each row."""
    return step_seconds(law_of(values, overhead_s), rows) / rows.time_s - 1.0


def _fitted(values: Any, rows: Rows, free: Any, scale: Any, overhead_s: Any) -> Optimum:
    """The coefficients that are free, fitted to the rows; the others have their values."""

    def residuals(sought: Any, known: tuple[Any, Rows]) -> Any:
        values, rows = known
        return _errors(jnp.where(free, sought, values), rows, overhead_s)

    total = jnp.maximum(jnp.sum(rows.weight), 1.0)
    columns = jnp.stack([columns_of(rows)[name] for name in COEFFICIENTS], axis=1)
    share = jnp.sum(rows.weight[:, None] * columns / rows.time_s[:, None], axis=0) / total
    unit = 1.0 / jnp.where(share > 0, share, 1.0)
    lower = jnp.where(jnp.arange(len(COEFFICIENTS)) == 0, LEAST_BASE * unit, 0.0)
    start = lower + jnp.maximum(_linear(values, rows, columns, free, overhead_s), LEAST_START * unit)
    return robust_least_squares(
        residuals, start, (values, rows), rows.weight, free=free, lower=lower, unit=unit, scale=scale
    )


def columns_of(rows: Rows) -> dict[str, Any]:
    """What each coefficient is multiplied by; of prefill, where it is bound by compute."""
    return {
        "base_s": 0.0 * rows.time_s + 1.0,
        "per_sequence_s": rows.num_active,
        "per_token_s": rows.num_active * rows.mean_context,
        "prefill_per_token_s": rows.prompt_tokens,
        "prefill_per_token2_s": rows.token_contexts,
    }


def _linear(values: Any, rows: Rows, columns: Any, free: Any, overhead_s: Any) -> Any:
    """Linear least squares in relative error: where the search starts.

    With the base known, only steps that are well above it say something linear of the prefill.
    """
    known = jnp.where(free, 0.0, values)
    beyond = rows.time_s - overhead_s - columns @ known
    weight = jnp.where(free[0] | (beyond > known[0]), rows.weight, 0.0)
    relative = jnp.where(free[None, :], columns, 0.0) * (jnp.sqrt(weight) / rows.time_s)[:, None]
    size = jnp.sqrt(jnp.sum(relative**2, axis=0))
    safe = jnp.where(size > 0, size, 1.0)
    target = (beyond + known[0]) * jnp.sqrt(weight) / rows.time_s
    return jnp.linalg.lstsq(relative / safe[None, :], target)[0] / safe
