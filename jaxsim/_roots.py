"""The one root finder: a bracketed search on a decreasing function, with the derivative of the implicit function.

Written here because it stands inside every quantile and every pool size: against `optimistix.root_find` with
`Bisection` and its implicit adjoint the same program traces and compiles two to three times faster, which is most
of what a first plan waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Scalar = Float[Array, ""]

QUANTILE_EVALUATIONS = 40
_SLACK = 1.0
_TRUNCATION = 0.2


def bracketed_root(function: Callable[[Scalar], Scalar], lower: Scalar, upper: Scalar, *, evaluations: int) -> Scalar:
    """The x in [lower, upper] where `function` falls through 0; no gradient.

    By the ITP method (Oliveira and Takahashi 2021): never farther from the root than bisection with one
    evaluation less (2**(1 - evaluations) of the bracket), and near machine precision where the function is smooth.
    Without a change of sign, the end of the bracket that is nearer to one.
    """
    width = upper - lower
    final = width * 2.0 ** -(evaluations - 1.0)

    def interpolate(
        number: Array, bracket: tuple[Scalar, Scalar, Scalar, Scalar]
    ) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        low, high, at_low, at_high = bracket
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        secant = low + (high - low) * at_low / (at_low - at_high)
        side = jnp.sign(middle - secant)
        nudge = _TRUNCATION * (high - low) ** 2 / width
        towards = jnp.where(nudge <= jnp.abs(middle - secant), secant + side * nudge, middle)
        reach = jnp.maximum(final * 2.0 ** (evaluations - 1.0 + _SLACK - number) / 2.0 - half, 0.0)
        x = jnp.clip(towards, middle - reach, middle + reach)
        value = function(x)
        above = value > 0
        return (
            jnp.where(above, x, low),
            jnp.where(above, high, x),
            jnp.where(above, value, at_low),
            jnp.where(above, at_high, value),
        )

    one = jnp.ones_like(width)
    low, high, at_low, at_high = jax.lax.fori_loop(0, evaluations, interpolate, (lower, upper, one, -one))
    return low + (high - low) * at_low / (at_low - at_high)


def newton_step(x: Scalar, value: Scalar, slope: Scalar) -> Scalar:
    """One Newton step from a converged `x`: polishes the value and carries the implicit derivative of `value`.

    `x` and `slope` are taken as constants. Where the function is flat the step and its derivative are 0.
    """
    falling = slope < 0
    step = value / jnp.where(falling, jax.lax.stop_gradient(slope), -1.0)
    return jax.lax.stop_gradient(x) - jnp.where(falling, step, 0.0)


def decreasing_root(function: Callable[[Scalar, Any], Scalar], args: Any, lower: Scalar, upper: Scalar) -> Scalar:
    """The x in [lower, upper] where ``function(x, args)`` falls through 0, differentiable in `args`.

    The derivative is that of the implicit function; none flows through the bracket. Without a change of sign the
    nearer end of the bracket is returned, with derivative 0 where the function is flat there.
    """
    frozen = jax.lax.stop_gradient(args)
    lower, upper = jax.lax.stop_gradient((lower, upper))
    x = bracketed_root(lambda t: function(t, frozen), lower, upper, evaluations=QUANTILE_EVALUATIONS)
    _, slope = jax.jvp(lambda t: function(t, frozen), (x,), (jnp.ones_like(x),))
    polished = newton_step(x, function(jax.lax.stop_gradient(x), args), slope)
    free = jax.lax.stop_gradient(polished)
    reach = (upper - lower) * 2.0 ** -(QUANTILE_EVALUATIONS - 2.0)
    kept = jnp.clip(free, x - reach, x + reach)  # beside a kink Newton's step leaves the bracket found
    return jnp.clip(kept + (polished - free), lower, upper)
