r"""Robust least squares in relative error, with lower bounds that can be reached.

$$\min_{\theta \ge \ell} \sum_i w_i\, c^2 \left(\sqrt{1 + (r_i/c)^2} - 1\right), \qquad
r_i = \frac{\text{law}_i(\theta)}{\text{time}_i} - 1$$

The loss is soft-L1: square for errors well below the scale c, linear above it, so a row that is far off pulls no
harder than one at c. It has one minimum where the law is linear in its coefficients (Tukey's has many).

Levenberg-Marquardt (optimistix) searches in z, $\theta = \ell + u z^2$: a bound is the ordinary point z = 0. Newton's
steps in $\theta$ end it. The last one starts at the optimum held fixed: it changes no digit of the value, but its
derivative is $-H^{-1}\, \partial g / \partial \text{data}$, that of the implicit function theorem, so coefficients
can be differentiated in the data, forward and in reverse. A coefficient at its bound has derivative zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Vector = Float[Array, " coefficients"]
Residuals = Callable[[Any, Any], Any]
"""Relative errors from the coefficients and what is known."""

FIRST_SCALE = 0.05
"""Scale of the first pass, relative: what a law of this kind is off by."""

SCALES_PER_SIGMA = 1.5
"""c over the standard deviation of the errors: 96 % as precise as plain least squares on Gaussian errors."""

SIGMAS_PER_MEDIAN = 1.4826
"""Standard deviation over the median absolute value of Gaussian errors."""

LEAST_SCALE = 1e-3
"""c where rows agree with the law to all digits."""

PASSES = 4
"""Fits, each with the scale of the errors that the one before left."""

NEAR_BOUND = 1e-3
"""Share of the time below which the sign of the loss's slope says whether a coefficient is at its bound."""

LEAST_START = 0.05
"""Share of the time that each coefficient starts with at least: z = 0 would be a place to stay."""

NEWTON_STEPS = 6
NEAR = 0.1
"""Largest move of a Newton step, of each share: farther off, the search had not ended."""

STATIONARY = 1e-6
TOLERANCE = 1e-8
MAX_STEPS = 256


class Optimum(NamedTuple):
    """Where the search ended.

    Attributes:
        value: the coefficients.
        at_bound: which of them are at their lower bound.
        scale: c, relative.
        converged: whether the gradient vanishes there.
    """

    value: Vector
    at_bound: Bool[Array, " coefficients"]
    scale: Float[Array, ""]
    converged: Bool[Array, ""]


def soft_l1(residual: Any, scale: Any) -> Any:
    r"""$\mathrm{sign}(r) \sqrt{2 \rho(r)}$, whose half square is the loss; r itself near zero. Smooth everywhere."""
    return residual * jnp.sqrt(2.0 / (jnp.sqrt(1.0 + (residual / scale) ** 2) + 1.0))


def weighted_median(values: Any, weight: Any) -> Any:
    """The least value that half of the weight does not exceed."""
    order = jnp.argsort(values)
    below = jnp.cumsum(weight[order])
    return values[order][jnp.searchsorted(below, 0.5 * below[-1])]


def scale_of(residual: Any, weight: Any) -> Any:
    """c for errors such as these."""
    sigma = SIGMAS_PER_MEDIAN * weighted_median(jnp.abs(residual), weight)
    return jnp.maximum(SCALES_PER_SIGMA * sigma, LEAST_SCALE)


def robust_least_squares(
    residuals: Residuals,
    start: Any,
    known: Any,
    weight: Any,
    *,
    free: Any,
    lower: Any,
    unit: Any,
    scale: Any = math.nan,
) -> Optimum:
    """The coefficients of least loss.

    Args:
        residuals: relative errors; a function of the coefficients and `known`.
        start: coefficients to start from.
        known: everything else that the errors depend on; derivatives go through it.
        weight: of each row.
        free: which coefficients are sought; the errors must not depend on the others.
        lower: bound of each coefficient.
        unit: of each coefficient, what would make up the whole time by itself.
        scale: c; NaN finds it from the errors' median, and takes it as given in derivatives.
    """
    fixed = jax.lax.stop_gradient((known, weight, lower, unit))
    z = jnp.sqrt(jnp.maximum(jax.lax.stop_gradient(start - lower) / fixed[3], LEAST_START))

    given = jax.lax.stop_gradient(jnp.asarray(scale, dtype=z.dtype))
    automatic = jnp.isnan(given)

    def one_pass(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Any]:
        z, now = carry
        found = _search(residuals, jnp.maximum(jnp.abs(z), LEAST_START), fixed, now)
        errors = residuals(fixed[2] + fixed[3] * found**2, fixed[0])
        return (found, jnp.where(automatic, scale_of(errors, fixed[1]), given)), now

    first = jnp.where(automatic, FIRST_SCALE, given)
    (z, _), scales = jax.lax.scan(one_pass, (z, first), None, length=PASSES)
    return _polished(residuals, z, known, weight, fixed, free, scales[-1])


def _search(residuals: Residuals, z: Any, fixed: Any, scale: Any) -> Any:
    def transformed(z: Any, args: Any) -> Any:
        (known, weight, lower, unit), scale = args
        return jnp.sqrt(weight) * soft_l1(residuals(lower + unit * z**2, known), scale)

    import optimistix as optx  # here, since it takes half as long to import as JAX, and only fits need it

    solver: Any = optx.LevenbergMarquardt(rtol=TOLERANCE, atol=TOLERANCE)
    solution: Any = optx.least_squares(transformed, solver, z, args=(fixed, scale), max_steps=MAX_STEPS, throw=False)
    return jax.lax.stop_gradient(solution.value)


def _polished(residuals: Residuals, z: Any, known: Any, weight: Any, fixed: Any, free: Any, scale: Any) -> Optimum:
    """Newton's steps in shares of the time; coefficients near their bound that the loss holds there are put on it."""
    fixed_known, fixed_weight, lower, unit = fixed

    def slope(share: Any, known: Any, weight: Any) -> Any:
        def loss(share: Any) -> Any:
            errors = residuals(lower + unit * share, known)
            return scale * jnp.sum(weight * jnp.sqrt(scale**2 + errors**2))

        return jnp.where(free, jax.grad(loss)(share), 0.0)

    def newton(carry: tuple[Any, Any, Any], _: None) -> tuple[tuple[Any, Any, Any], None]:
        share, _, _ = carry
        low = free & (share < NEAR_BOUND)
        at_bound = low & (slope(jnp.where(low, 0.0, share), fixed_known, fixed_weight) > 0.0)
        share = jnp.where(at_bound, 0.0, share)
        moving = free & ~at_bound
        curvature = jax.jacfwd(slope)(share, fixed_known, fixed_weight)
        inverse = jnp.linalg.inv(jnp.where(moving[:, None] & moving[None, :], curvature, jnp.eye(len(share))))
        inverse = jnp.where(moving[:, None] & moving[None, :], inverse, 0.0)
        moved = jnp.maximum(share - inverse @ slope(share, fixed_known, fixed_weight), 0.0)
        near = jnp.all(jnp.abs(moved - share) < NEAR * share + NEAR_BOUND)
        return (jnp.where(near, moved, share), inverse, at_bound), None

    nothing = jnp.zeros((len(z), len(z)), dtype=z.dtype)
    found, _ = jax.lax.scan(newton, (z**2, nothing, jnp.zeros_like(free)), None, length=NEWTON_STEPS)
    share, inverse, at_bound = jax.lax.stop_gradient(found)
    left = slope(share, known, weight)
    limit = STATIONARY * scale * jnp.sum(fixed_weight)
    converged = jnp.all(jnp.where(at_bound, left >= -limit, jnp.abs(left) <= limit))
    moved = share - inverse @ left
    safe = jnp.where(jnp.isfinite(moved) & converged, moved, share)
    return Optimum(lower + unit * safe, at_bound, scale, converged)
