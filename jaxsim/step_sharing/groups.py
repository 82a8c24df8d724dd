"""Groups of requests whose prefill, or whose decode, takes alike: what a mixture of latencies runs over."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

PerRow = Float[Array, " rows"]

_EXACT_EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
"""Upper edges of the first prefill groups, in chunks of prompt: finer where a prompt is a chunk or two."""

_COARSE = 9
NUM_PREFILL = len(_EXACT_EDGES) + _COARSE

_DECODE_EDGES = (8.0, 64.0, 512.0)
_WORK_LEVELS = (0.5, 0.8, 0.95)
NUM_DECODE = (len(_DECODE_EDGES) + 1) * (len(_WORK_LEVELS) + 1)
"""Decode bins: by steps, and each by quantiles of the context held, finer in the tail that makes a P99."""


def prefill_groups(
    chunks: PerRow,
) -> tuple[Float[Array, "rows groups"], Float[Array, " groups"], Float[Array, " groups"]]:
    """Membership of each row, and the range of prefill steps of each group.

    Args:
        chunks: prompt tokens over tokens of a chunk, > 0; prefill takes the next whole number of steps.
    """
    exact = jnp.asarray(_EXACT_EDGES)
    start = exact[-1]
    longest = jnp.maximum(jnp.ceil(chunks.max()), start + _COARSE)
    coarse = start * (longest / start) ** (jnp.arange(1.0, _COARSE + 1.0) / _COARSE)
    upper = jnp.concatenate([exact, jnp.floor(coarse[:-1]), longest[None]])
    lower = jnp.concatenate([jnp.zeros(1), upper[:-1]])
    index = jnp.searchsorted(upper, chunks, side="left")
    member = jax.nn.one_hot(jnp.clip(index, 0, NUM_PREFILL - 1), NUM_PREFILL, dtype=chunks.dtype)
    high = jnp.ceil(upper)
    return member, jnp.minimum(jnp.floor(lower) + 1.0, high), high


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
