r"""Limits in KV tokens: how often they would overflow, and how many requests a cache admits.

Each request holds a fixed number of tokens T from admission to its end (its reservation). Their sum over those running
has, without a limit, the mean $\nu E[TK] + \lambda E[TV] I_C/(1 - a)$ over time and the variance
$\nu E[T^2 K] I_B/(1 - a)$, with the same rational functions I as the fluctuations of requests and work.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.scipy.special import gammaincc
from jaxtyping import Array, Float

from jaxsim.step_sharing.fluctuations import held_cross_ratio, held_ratio
from jaxsim.step_sharing.moments import Moments

Scalar = Float[Array, ""]


def held_moments(moments: Moments, rate: Scalar, base_s: Scalar) -> tuple[Scalar, Scalar]:
    """Mean over time and variance of the tokens reserved in an engine without a limit.

    Args:
        moments: of its requests.
        rate: requests per second, with rate * E[V] < 1.
        base_s: seconds of a step whatever the batch.
    """
    m = moments
    a = rate * m.work_s
    arrivals = rate * base_s / (1.0 - a)
    mean = arrivals * m.held_steps + rate * m.held_work * held_cross_ratio(m, a) / (1.0 - a)
    return mean, arrivals * m.held2_steps * held_ratio(m, a) / (1.0 - a)


def overflow_probability(moments: Moments, rate: Scalar, base_s: Scalar, tokens: Scalar) -> Scalar:
    """Share of time in which the requests of an engine without a limit would reserve more than `tokens`.

    A gamma law of `held_moments`. What first come, first served admission leaves idle in front of the next request
    (`admitted`) is for the caller to take off.
    """
    mean, variance = held_moments(moments, rate, base_s)
    return gammaincc(mean**2 / variance, jnp.maximum(tokens, 0.0) * mean / variance)


def admitted(moments: Moments, tokens: Scalar, most: Scalar) -> tuple[Scalar, Scalar]:
    """Running requests that a cache of `tokens` admits, at most `most`, and 1 where the cache is the limit; else 0.

    The cache less what first come, first served leaves idle in front of the next request (half a size-biased
    request), over the tokens that a running request holds on average in time. At least one.
    """
    m = moments
    by_tokens = (tokens - m.held2_tokens2 / (2.0 * m.held_tokens)) * m.steps / m.held_steps
    by_tokens = jnp.maximum(by_tokens, 1.0)
    return jnp.minimum(by_tokens, most), jnp.where(by_tokens < most, 1.0, 0.0)
