"""Constrained variables of the search, and their unconstrained coordinates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Scalar = Float[Array, ""]


def thresholds(coordinates: Float[Array, " cuts"], shortest: Scalar, longest: Scalar) -> Float[Array, " pools"]:
    """Ascending thresholds in (shortest, longest], the last fixed at `longest`; cuts in log tokens.

    The steps between cuts are a softmax of the coordinates (and a last 0), so every real vector is feasible.
    """
    steps = jax.nn.softmax(jnp.append(coordinates, 0.0))
    span = jnp.log(longest) - jnp.log(shortest)
    cuts = shortest * jnp.exp(span * jnp.cumsum(steps)[:-1])
    return jnp.append(cuts, longest)


def start_coordinates(num_starts: int, num_pools: int) -> Float[np.ndarray, "starts cuts"]:
    """Coordinates whose cuts spread evenly over the log-length range: a Halton sequence sorted in each row."""
    from scipy.stats import qmc

    if num_pools == 1:
        return np.zeros((1, 0))
    points = qmc.Halton(num_pools - 1, scramble=False).random(num_starts + 1)[1:]
    cuts = np.sort(0.02 + 0.96 * points, axis=1)
    steps = np.diff(np.concatenate([np.zeros((num_starts, 1)), cuts, np.ones((num_starts, 1))], axis=1), axis=1)
    steps = np.maximum(steps, 1e-3)
    return np.log(steps[:, :-1] / steps[:, -1:])
