"""The noise of a step around the mean that goes with its number running: gamma laws at a few nodes."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsim.step_sharing import full

_LEAST_SHAPE = 0.3


class _Nodes(NamedTuple):
    """Gauss-Hermite nodes: standard normal scores and their weights, a row."""

    score: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, number: int) -> _Nodes:
        score, weight = np.polynomial.hermite_e.hermegauss(number)
        return cls(score[None], weight[None] / weight.sum())


_WITHOUT, _BESIDE = _Nodes.of(2), _Nodes.of(6)
"""Of the noise of a step without prefill, and with it: skewed and wide."""


class Noise(NamedTuple):
    """Nodes of the noise of a step around the mean that goes with its number running, along the last axis.

    Attributes:
        mix: from which requests run, seconds.
        chunk: from how many chunks of prompt are in the step, seconds.
        weight: probabilities in the law of the steps.
    """

    mix: Float[Array, "situations mixes"]
    chunk: Float[Array, "situations mixes"]
    weight: Float[Array, "situations mixes"]

    @classmethod
    def of(cls, work: Array, none: Array, chunk_work: Array, chunk_variance: Array, mix_variance: Array) -> Noise:
        """A step without prefill, whose mix varies, and one with, whose mix and prefill do: gamma laws at a few nodes.

        Args:
            work: mean work of the step, seconds.
            none: probability that it has no chunk of prompt.
            chunk_work, chunk_variance: mean and variance of the work of its chunks.
            mix_variance: variance from the mix.
        """
        some = jnp.clip(1.0 - none, 1e-9, 1.0 - 1e-9)
        mean = chunk_work / some
        among = jnp.maximum((chunk_variance + chunk_work**2) / some - mean**2, 0.0)
        rest = jnp.maximum(work - chunk_work, full.TINY)
        without = _around(rest, mix_variance, _WITHOUT)
        beside = _around(rest + mean, among + mix_variance, _BESIDE)
        of_chunks = (among / jnp.maximum(among + mix_variance, 1e-30))[:, None]
        shares = [(1.0 - some)[:, None] * _WITHOUT.weight, some[:, None] * _BESIDE.weight]
        return cls(
            mix=jnp.concatenate([without, beside * (1.0 - of_chunks)], axis=1),
            chunk=jnp.concatenate([jnp.zeros_like(without), mean[:, None] + beside * of_chunks], axis=1)
            - chunk_work[:, None],
            weight=jnp.concatenate(shares, axis=1),
        )


def _around(mean: Array, variance: Array, nodes: _Nodes) -> Array:
    """A gamma law less its mean, at its nodes on one more axis (Wilson and Hilferty 1931); the mean is kept."""
    shape = jnp.maximum(jnp.maximum(mean, full.TINY) ** 2 / jnp.maximum(variance, 1e-30), _LEAST_SHAPE)[:, None]
    root = jnp.maximum(1.0 - 1.0 / (9.0 * shape) + nodes.score / (3.0 * jnp.sqrt(shape)), 0.05) ** 3
    return mean[:, None] * (root / (nodes.weight * root).sum(1, keepdims=True) - 1.0)
