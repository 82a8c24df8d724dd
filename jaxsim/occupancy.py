r"""Occupancy of continuously batching engines: how many requests run, and how long a step takes.

Counted in steps, an engine is an infinite-server queue whose arrivals come at a rate proportional to the length
of the step, which grows linearly with the work present: a linear Hawkes process. With a = rate x mean work
(< 1) its stationary mean step time is W/(1 - a), the fixed point of "the batch that the load produces", solved
in closed form and therefore with an exact gradient. For requests of equal work per step the number running is
negative binomial with $r + 1 = 1 + W E[K]/E[V]$ and success probability a, whatever the law of the number of
steps K (insensitivity of state-dependent processor sharing); the finite-N version of it is a generalised
Erlang C. Requests of unequal work enter through the variance of the work present.

Sources: Koops, Saxena, Boxma, Mandjes 2018 (infinite-server queues with Hawkes input); Daw, Pender 2018;
Cohen 1979, Brandt and Brandt (state-dependent processor sharing). The step law is `jaxsim.physics`.

This module is the seam between the loads of a pool and its latencies: `occupancy` is the only function that
`jaxsim.latency` needs, and a better law replaces it here.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsim.step_sharing.full import TINY, log_full_odds

Scalar = Float[Array, ""]

SAFE_UTILIZATION = 0.9999
"""An overloaded pool has no stationary law; its formulas are evaluated here and its tails replaced by 1."""

_LEAST_WORK_S = 1e-15
"""Work that every running request adds to a step at the least: without any, the formulas have 0/0 for a limit."""

_HERMITE_Z, _HERMITE_W = np.polynomial.hermite_e.hermegauss(9)
NODE_WEIGHT = _HERMITE_W / _HERMITE_W.sum()
"""Probabilities of the nodes of `Occupancy`."""


class PoolLoad(eqx.Module):
    """What the requests of one pool ask of its engines. Steps K, work V and squared work are per request.

    Attributes:
        arrival_rate: requests per second to the whole pool.
        replicas: engines, real > 0, behind a dispatcher to the fewest active + queued.
        base_s: W, seconds.
        limit: running requests that one engine admits, real > 0.
        steps, steps2: E[K], E[K^2].
        work_s, work2_s2: E[V], E[V^2], seconds.
        steps_work_s: E[K V].
        squares_s2: E of the sum over steps of squared work.
    """

    arrival_rate: Scalar
    replicas: Scalar
    base_s: Scalar
    limit: Scalar
    steps: Scalar
    steps2: Scalar
    work_s: Scalar
    work2_s2: Scalar
    steps_work_s: Scalar
    squares_s2: Scalar


class Occupancy(eqx.Module):
    """The stationary state that one engine of a pool is found in by an arrival (Poisson arrivals see averages).

    Attributes:
        utilization: offered load over capacity at full batch; >= 1 is overload.
        wait_probability: probability that all slots are taken.
        wait_scale_s: mean of the exponential queue wait of those who find them taken.
        mean_active: running requests of one engine, time average.
        mean_step_s: step time, time average.
        full_step_s: step time of a full batch.
        work_mean_s, work_shape: gamma law of the work present, given that a slot is free.
        work_nodes_s: that law at nodes of weight `NODE_WEIGHT`, not above the work of a full batch.
        busy: probability that an arrival meets a step in progress, at each node.
        correlation_steps: steps over which the work present stays alike.
    """

    utilization: Scalar
    wait_probability: Scalar
    wait_scale_s: Scalar
    mean_active: Scalar
    mean_step_s: Scalar
    full_step_s: Scalar
    work_mean_s: Scalar
    work_shape: Scalar
    work_nodes_s: Float[Array, " nodes"]
    busy: Float[Array, " nodes"]
    correlation_steps: Scalar

    def work_quantile_score(self, work_s: Float[Array, ...]) -> Float[Array, ...]:
        """Standard normal score z at which the work present equals `work_s` (Wilson-Hilferty)."""
        k = self.work_shape
        root = jnp.maximum(work_s / self.work_mean_s, TINY) ** (1.0 / 3.0)
        return (root - 1.0 + 1.0 / (9.0 * k)) * 3.0 * jnp.sqrt(k)


def _gamma_nodes(mean: Scalar, shape: Scalar) -> Float[Array, " nodes"]:
    """Values of a gamma law at the Gauss-Hermite scores (Wilson and Hilferty 1931)."""
    root = 1.0 - 1.0 / (9.0 * shape) + jnp.asarray(_HERMITE_Z) / (3.0 * jnp.sqrt(shape))
    return mean * jnp.maximum(root, 0.0) ** 3


def occupancy(load: PoolLoad) -> Occupancy:
    """The stationary law of one engine of a pool. Overload keeps its utilisation; see `SAFE_UTILIZATION`.

    Pooled: with a dispatcher to the least loaded, the engines of a pool fill alike, so their occupancy is that
    of one engine with all slots and each request's work divided by the number of engines.

    Gradients exist everywhere with arrival_rate >= 0, replicas > 0; at no load they are those of the limit.
    """
    load = _with_least_work(load)
    work = load.work_s
    engine_rate = load.arrival_rate / load.replicas
    utilization = engine_rate * (load.steps * load.base_s / load.limit + load.work_s)
    rho = jnp.clip(utilization, TINY, SAFE_UTILIZATION)
    rate = jnp.maximum(engine_rate * rho / jnp.maximum(utilization, TINY), TINY)

    branching = rate * work
    intensity = load.replicas * load.base_s * load.steps / work
    slots = load.replicas * load.limit
    log_odds = log_full_odds(slots, branching, intensity)
    wait_probability = jnp.exp(-jnp.logaddexp(jnp.log(rho), jnp.log1p(-rho) + log_odds))
    mean_active = _mean_active(slots, branching, intensity, log_odds, wait_probability) / load.replicas

    step = load.base_s / (1.0 - branching)
    active = rate * load.steps * step
    full_work = load.limit * load.work_s / load.steps
    counted, composed = _work_variance(load, active, step)
    mean = rate * load.work_s * step + counted / step
    shape = jnp.maximum(mean**2 / (counted + composed), TINY)
    nodes = jnp.minimum(_gamma_nodes(mean, shape), full_work)
    return Occupancy(
        utilization=utilization,
        wait_probability=wait_probability,
        wait_scale_s=_wait_scale(load) / (1.0 - rho),
        mean_active=mean_active,
        mean_step_s=load.base_s + (1.0 - wait_probability) * _mean(nodes) + wait_probability * full_work,
        full_step_s=load.base_s + full_work,
        work_mean_s=mean,
        work_shape=shape,
        work_nodes_s=nodes,
        busy=jnp.clip(nodes * load.steps / work, 0.0, 1.0),
        correlation_steps=load.work2_s2 / (2.0 * load.squares_s2 * (1.0 - branching)),
    )


def _with_least_work(load: PoolLoad) -> PoolLoad:
    """The moments with `_LEAST_WORK_S` added to the work of every step."""
    w = _LEAST_WORK_S
    moments = (
        load.work_s + w * load.steps,
        load.work2_s2 + 2.0 * w * load.steps_work_s + w**2 * load.steps2,
        load.steps_work_s + w * load.steps2,
        load.squares_s2 + 2.0 * w * load.work_s + w**2 * load.steps,
    )
    return eqx.tree_at(lambda p: (p.work_s, p.work2_s2, p.steps_work_s, p.squares_s2), load, moments)


def _mean(nodes: Float[Array, " nodes"]) -> Scalar:
    return (jnp.asarray(NODE_WEIGHT) * nodes).sum()


def _mean_active(
    slots: Scalar, branching: Scalar, intensity: Scalar, log_odds: Scalar, wait_probability: Scalar
) -> Scalar:
    """Running requests of the pool: negative binomial below all slots, and all slots with P(wait)."""
    fewer = jnp.maximum(slots - 1.0, TINY)
    blocked = jnp.exp(-log_odds)
    up_to_full = slots * jnp.exp(log_full_odds(fewer, branching, intensity + 1.0) - log_odds)
    below_full = jnp.maximum(up_to_full - slots * blocked, 0.0) / (1.0 - blocked)
    return (1.0 - wait_probability) * below_full + wait_probability * slots


def _work_variance(load: PoolLoad, active: Scalar, step_s: Scalar) -> tuple[Scalar, Scalar]:
    """Variance of the work present in one engine: from how many run (shared by the pool), and from which."""
    engines = jnp.maximum(load.replicas, 1.0)
    squares = load.squares_s2 / load.steps
    composition = jnp.maximum(squares - (load.work_s / load.steps) ** 2, 0.0)
    counted = active * squares * step_s / load.base_s / engines
    return counted, active * composition * (1.0 - 1.0 / engines)


def _wait_scale(load: PoolLoad) -> Scalar:
    r"""$\frac{1 + c_Y^2}{2} E[Y]$ with Y the GPU time of a request at full batch, K W/N + V, over the pool."""
    per_step = load.base_s / load.limit
    mean = per_step * load.steps + load.work_s
    second = per_step**2 * load.steps2 + 2.0 * per_step * load.steps_work_s + load.work2_s2
    return second / (2.0 * mean) / load.replicas
