"""A grid on the axis of steps, onto which any law of steps is spread without changing its first four moments.

A mass at k becomes masses at the four grid nodes around it, with the weights of cubic interpolation: every polynomial
of third degree keeps its sum, and a smooth function of k errs by the fourth power of the spacing. Sums over pairs of
requests become a bilinear form of two such vectors, which add up over requests: what `tables` tabulates.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Nodes = Float[Array, " nodes"]

NUM_NODES = 40
_WHOLE = 8
_LEAST_END = 16.0
_OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])


def step_nodes(longest: Float[Array, ""]) -> Nodes:
    """Nodes from 0 to `longest`: whole numbers up to 8, then a geometric sequence."""
    end = jnp.maximum(longest, _LEAST_END)
    ratio = jnp.arange(1.0, NUM_NODES - _WHOLE) / (NUM_NODES - _WHOLE - 1)
    return jnp.concatenate([jnp.arange(_WHOLE + 1.0), _WHOLE * (end / _WHOLE) ** ratio])


def spread(nodes: Nodes, steps: Float[Array, " rows"]) -> Float[Array, "rows nodes"]:
    """Weights of each row's steps at the nodes."""
    last = nodes.shape[0]
    first = jnp.clip(jnp.searchsorted(nodes, steps, side="right") - 2, 0, last - 4)
    around = first[:, None] + jnp.arange(4, dtype=first.dtype)[None]
    here, others = nodes[around], nodes[around[:, _OTHERS]]
    factors = (steps[:, None, None] - others) / (here[..., None] - others)
    weights = factors[..., 0] * factors[..., 1] * factors[..., 2]
    return (weights[..., None] * jax.nn.one_hot(around, last, dtype=steps.dtype)).sum(1)


def psi_kernel(nodes: Nodes) -> Float[Array, "nodes nodes"]:
    """Of a unit mass at K = nodes[j], psi at k = nodes[i] (`requests`)."""
    k, mass_at = nodes[:, None], nodes[None, :]
    together = jnp.minimum(k, mass_at)
    return 0.5 * together * (2.0 * k - together - 1.0)


def min_kernel(nodes: Nodes) -> Float[Array, "nodes nodes"]:
    """min of two nodes."""
    return jnp.minimum(nodes[:, None], nodes[None, :])
