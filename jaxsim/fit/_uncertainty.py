r"""How well rows determine the coefficients: the covariance of a robust fit.

With $\psi = \rho'$ of the errors r and J the law's Jacobian over the time, Huber's estimate is

$$\mathrm{Cov} = K^2\, \frac{\sum \psi^2 / (N - p)}{(\overline{\psi'})^2}\, (J^T J)^{-1}, \qquad
K = 1 + \frac{p}{N} \frac{\mathrm{Var}\, \psi'}{(\overline{\psi'})^2}$$

(P. J. Huber, Robust Statistics, 1981, section 7.6), the inverse Gauss-Newton Hessian where no row is far off. J is
taken in the coefficients themselves, which is the delta method through the search's transform. What the first stage
leaves uncertain moves the second: $G = -(J_2^T J_2)^{-1} J_2^T J_{21}$ carries it over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def carried_covariance(
    before: Any, errors: Callable[[Any], Any], values: Any, *, weight: Any, free: Any, scale: Any
) -> Any:
    """Covariance of all coefficients once those that are `free` are fitted to more rows.

    Args:
        before: covariance of the coefficients so far, zero for those not fitted.
        errors: relative errors of the rows, a function of all coefficients.
        values: the coefficients, fitted.
        weight: of each row.
        free: which coefficients were fitted to these rows and are not at their bound.
        scale: c of the robust loss.

    NaN where the rows are no more than the coefficients.
    """
    residual = jnp.where(weight > 0, errors(values), 0.0)
    jacobian = jnp.where(weight[:, None] > 0, jnp.sqrt(weight)[:, None] * jax.jacfwd(errors)(values), 0.0)
    own = jnp.where(free[None, :], jacobian, 0.0)
    size = jnp.sqrt(jnp.sum(own**2, axis=0))
    safe = jnp.where(size > 0, size, 1.0)
    both = safe[:, None] * safe[None, :]
    inverse = jnp.linalg.inv(own.T @ own / both + jnp.diag(jnp.where(size > 0, 0.0, 1.0))) / both
    inverse = jnp.where(free[:, None] & free[None, :], inverse, 0.0)
    carried = -inverse @ own.T @ jnp.where(free[None, :], 0.0, jacobian)
    through = jnp.eye(len(values)) + carried
    spread = _variance(residual, weight, scale, jnp.sum(jnp.where(free, 1.0, 0.0)))
    own_part = jnp.where(free[:, None] & free[None, :], spread * inverse, 0.0)
    return through @ before @ through.T + own_part


def _variance(residual: Any, weight: Any, scale: Any, num_free: Any) -> Any:
    """Of one row's error, as the robust loss sees it."""
    bent = 1.0 / jnp.sqrt(1.0 + (residual / scale) ** 2)
    psi, slope = residual * bent, bent**3
    rows = jnp.maximum(jnp.sum(weight), 1.0)
    mean_slope = jnp.sum(weight * slope) / rows
    spread_slope = jnp.sum(weight * (slope - mean_slope) ** 2) / rows
    safe = jnp.where(mean_slope > 0, mean_slope, 1.0)
    correction = 1.0 + num_free / rows * spread_slope / safe**2
    left = rows - num_free
    return jnp.where(left > 0, correction**2 * jnp.sum(weight * psi**2) / left / safe**2, jnp.nan)
