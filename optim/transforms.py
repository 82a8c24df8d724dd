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
    """Coordinates whose cuts spread evenly over the log-length range.

    The points are those of the R sequence (Roberts 2018): multiples of powers of the reciprocal of the root of
    x^(cuts + 1) = x + 1, modulo 1; sorted within each start.
    """
    cuts = num_pools - 1
    if cuts == 0:
        return np.zeros((1, 0))
    root = 2.0
    for _ in range(40):
        root = (1.0 + root) ** (1.0 / (cuts + 1.0))
    powers = root ** -np.arange(1.0, cuts + 1.0)
    points = np.sort(0.02 + 0.96 * ((0.5 + np.arange(1.0, num_starts + 1.0)[:, None] * powers[None]) % 1.0), axis=1)
    ends = np.zeros((num_starts, 1)), np.ones((num_starts, 1))
    steps = np.maximum(np.diff(np.concatenate([ends[0], points, ends[1]], axis=1), axis=1), 1e-3)
    return np.log(steps[:, :-1] / steps[:, -1:])
