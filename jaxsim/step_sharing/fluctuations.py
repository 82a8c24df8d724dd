r"""Fluctuations of an engine without a limit: how many run, and how much work is present.

Counted in steps, the arrivals during a step of length $\tau = W + S$ are Poisson of mean $\lambda\tau$ and the work
present S grows with them: a discrete, marked, linear Hawkes process with branching ratio $a = \lambda E[V]$. Means
are exact, $E n = \nu E[K]$ and $E S = \nu E[V]$ with $\nu = \lambda W/(1 - a)$ arrivals a step. The second moments
are $\frac{\text{value at } a = 0}{1 - a} I(a)$ with a rational function I that has the exact value and slope at
a = 0 and the exact limit at a = 1:

$$I(a) = 1 + s a + (L - 1 - s)\frac{\kappa a^2}{1 - (1 - \kappa) a}$$

(s slope, L limit). The bend $\kappa$ is the one part that was fitted, to exact sums over four traces: the variance of
the number running is within 5 %, of the work within 1 %.

Prefill is the fast part of it: chunks last a step or a few, and the steps they lengthen draw in more of them. Alone,
with one step each, they are an autoregression of first order, whose variance is $1/(1 - a_p^2)$ times that of
independent chunks, $a_p = \lambda E[V_p]$.

Sources: Koops, Saxena, Boxma, Mandjes 2018 (infinite-server queues with Hawkes input); Daw, Pender 2018.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsim.step_sharing.moments import Moments

Scalar = Float[Array, ""]

_BEND, _BEND_POWER, _MOST_BEND = 0.42, 0.45, 0.8
_LEAST_RATIO = 0.05


def _between_limits(moments: Moments, branching: Scalar, slope: Array, limit: Array) -> Array:
    """I(a) of the module's formula; `slope` is that of 1 + I."""
    a, s = branching, slope - 1.0
    bend = _BEND * (2.0 * moments.mean_age * moments.steps / moments.steps2) ** _BEND_POWER
    k = jnp.minimum(bend, _MOST_BEND)
    return 1.0 + s * a + (limit - 1.0 - s) * a**2 * k / (1.0 - (1.0 - k) * a)


def _burst_factor(moments: Moments, dispersion: Scalar, at_none: Array, branching: Scalar) -> Array:
    """What arrivals of that index of dispersion make of a variance: exact at both ends of a, linear in between.

    Without feedback their own variance counts by the share `at_none` of a request's stay that another spends with it;
    at a = 1 it adds to the variance of the work of a request.
    """
    at_full = moments.work_s**2 / moments.work2_s2
    return 1.0 + (dispersion - 1.0) * (at_none + (at_full - at_none) * branching)


def count_ratio(moments: Moments, branching: Scalar, dispersion: Scalar) -> Scalar:
    """Variance of the number running over that of a negative binomial law, which is exact for equal work."""
    m = moments
    ratio = _between_limits(m, branching, m.count_slope, m.count_limit)
    return jnp.maximum(ratio * _burst_factor(m, dispersion, m.overlap, branching), _LEAST_RATIO)


def held_ratio(moments: Moments, branching: Scalar) -> Scalar:
    """The same of the tokens reserved."""
    m = moments
    return jnp.maximum(_between_limits(m, branching, m.held_slope, m.held_limit), _LEAST_RATIO)


def held_cross_ratio(moments: Moments, branching: Scalar) -> Scalar:
    """Of the covariance of the tokens reserved with the work present, over its value for independent requests."""
    m = moments
    return jnp.maximum(_between_limits(m, branching, m.held_cross_slope, m.held_cross_limit), _LEAST_RATIO)


class Fluctuations(eqx.Module):
    """Moments of an engine without a limit, seen at its steps unless told otherwise.

    Attributes:
        branching: a, work that arrives in a second; < 1.
        running, work_s: means, E[n] and E[S].
        running_variance, covariance_s, work_variance_s2: of n, of n with S, of S.
        running_in_time: mean of n over time, where long steps count for more.
        count_ratio: `count_ratio` at a.
        correlation_steps: steps over which the work present stays alike.
        composition_steps: steps over which the mix of those decoding stays alike.
        prefill_branching: prefill work that arrives in a second.
        prefill_variance_ratio: variance of the prefill work in a step over that of as many independent chunks.
        prefill_correlation_steps: steps over which the prefill work stays alike.
    """

    branching: Scalar
    running: Scalar
    work_s: Scalar
    running_variance: Scalar
    covariance_s: Scalar
    work_variance_s2: Scalar
    running_in_time: Scalar
    count_ratio: Scalar
    correlation_steps: Scalar
    composition_steps: Scalar
    prefill_branching: Scalar
    prefill_variance_ratio: Scalar
    prefill_correlation_steps: Scalar


def fluctuations(moments: Moments, rate: Scalar, base_s: Scalar, *, dispersion: Scalar | float = 1.0) -> Fluctuations:
    """Moments of an engine without a limit.

    Args:
        moments: of its requests.
        rate: requests per second to the engine, > 0, with rate * E[V] < 1.
        base_s: W, seconds of a step whatever the batch.
        dispersion: index of dispersion of the arrivals; 1 for Poisson.
    """
    m, burst = moments, jnp.asarray(dispersion, dtype=float)
    a = rate * m.work_s
    rest = 1.0 - a
    arrivals = rate * base_s / rest
    slopes = jnp.stack([m.count_slope, m.cross_slope, m.work_slope])
    limits = jnp.stack([m.count_limit, m.count_limit, m.work_limit])
    at_none = jnp.stack([m.overlap, jnp.asarray(0.5), m.work_overlap])
    ratios = _between_limits(m, a, slopes, limits) * _burst_factor(m, burst, at_none, a)
    ratio, cross, squares = jnp.maximum(ratios, _LEAST_RATIO)
    running, work = arrivals * m.steps, arrivals * m.work_s
    covariance = work * cross / rest
    alone = m.work2_s2 / (2.0 * m.squares_s2)
    slow_squares = jnp.maximum(m.squares_s2 - m.prefill_squares_s2, 1e-3 * m.squares_s2)
    pa = rate * m.prefill_work_s
    ratio_limit = m.prefill_work2_s2 / (2.0 * m.prefill_age * m.prefill_squares_s2)
    prefill_ratio = 1.0 / ((1.0 + (1.0 / ratio_limit - 1.0) * pa) * (1.0 - pa))
    return Fluctuations(
        branching=a,
        running=running,
        work_s=work,
        running_variance=running * ratio / rest,
        covariance_s=covariance,
        work_variance_s2=arrivals * m.squares_s2 * squares / rest,
        running_in_time=running + covariance / (base_s + work),
        count_ratio=ratio,
        correlation_steps=alone / (squares * rest),
        composition_steps=jnp.maximum(m.work2_s2 - m.prefill_work2_s2, 0.1 * m.work2_s2) / (2.0 * slow_squares),
        prefill_branching=pa,
        prefill_variance_ratio=prefill_ratio,
        prefill_correlation_steps=m.prefill_work2_s2 / (2.0 * m.prefill_squares_s2 * prefill_ratio * (1.0 - pa) ** 2),
    )
