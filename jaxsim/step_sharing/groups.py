"""Groups of requests whose prefill, or whose decode, takes alike: what a mixture of latencies runs over."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

PerRow = Float[Array, " rows"]

_FINE_EDGES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Upper edges of the first prefill groups, in chunks of prompt."""

_COARSE = 5
NUM_PREFILL = len(_FINE_EDGES) + _COARSE

_DECODE_EDGES = (8.0, 64.0, 512.0)
_WORK_LEVELS = (0.5, 0.8, 0.95)
NUM_DECODE = (len(_DECODE_EDGES) + 1) * (len(_WORK_LEVELS) + 1)
"""Decode bins: by steps, and each by quantiles of the context held, finer in the tail that makes a P99."""


def prefill_groups(chunks: PerRow) -> Float[Array, "rows groups"]:
    """Membership of each row.

    Args:
        chunks: prompt tokens to compute over tokens of a chunk, > 0; prefill takes the next whole number of steps.
    """
    start = _FINE_EDGES[-1]
    longest = jnp.maximum(jnp.ceil(chunks.max()), start + _COARSE)
    coarse = jnp.floor(start * (longest / start) ** (jnp.arange(1.0, _COARSE) / _COARSE))
    index = jnp.searchsorted(jnp.concatenate([jnp.asarray(_FINE_EDGES), coarse]), chunks, side="left")
    return jax.nn.one_hot(index, NUM_PREFILL, dtype=chunks.dtype)


def decode_bins(steps: PerRow, context: PerRow, weight: PerRow) -> Float[Array, "rows bins"]:
    """Membership of each row; none for requests without a decode step.

    Args:
        steps: of decode.
        context: anything that the own work per step grows with, such as the tokens held half-way; not the work itself,
            so that who is in which bin does not depend on a profile's coefficients.
        weight: of each row.
    """
    has = (steps >= 1.0).astype(steps.dtype)
    order = jnp.argsort(context)
    level = jnp.cumsum((weight * has)[order])
    at = jnp.searchsorted(level, jnp.asarray(_WORK_LEVELS) * level[-1])
    edges = context[order][jnp.clip(at, 0, steps.shape[0] - 1)]
    by_work = jnp.searchsorted(edges, context, side="left")
    by_steps = jnp.searchsorted(jnp.asarray(_DECODE_EDGES), steps, side="right")
    index = by_steps * (len(_WORK_LEVELS) + 1) + by_work
    return jax.nn.one_hot(index, NUM_DECODE, dtype=steps.dtype) * has[:, None]
