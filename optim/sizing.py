r"""How many replicas a pool needs: the root of its tail constraints, with implicit gradients.

A constraint is a tail in log form, $\ln P(\text{TTFT} > \text{SLO}) - \ln 0.01 \le 0$: the same feasible set as
P99 <= SLO, smooth where the wait is zero. Each falls as replicas are added, so the largest of them has one root,
and `ceil` of the root is the exact number of replicas.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsim._roots import bracketed_root, newton_step
from jaxsim.evaluate import PoolDemand, pool_law
from jaxsim.latency import StepLatency, log_tail
from jaxsim.reference import MAX_UTILIZATION

Scalar = Float[Array, ""]

QUANTILE = 0.99
CONSTRAINTS = {
    "step": ("ttft_p99", "tpot_p99"),
    "kimura": ("ttft_p99", "tpot_p99", "utilization_cap", "reference_minimum"),
}
"""Constraints of each model, in the order of `excess`."""

_LEAST_UTILIZATION = 1e-4
_LEAST_LOAD = 1e-3
"""Replicas' worth of load from which the search of sizes starts at the least; it ends 10,000 times higher."""
_MOST_UTILIZATION = 0.9995
CEIL_TOLERANCE = 1e-9


class Targets(eqx.Module):
    """SLOs of a pool (or stacked ones) in seconds; inf is no objective. A correction tightens or loosens them."""

    ttft_s: Float[Array, "*pools"]
    tpot_s: Float[Array, "*pools"]


class Size(eqx.Module):
    """Replicas of a pool.

    Attributes:
        replicas: real number needed; 0 for an empty pool; where infeasible, that of the largest search size.
        excess: log-tail excess of each constraint at unlimited replicas; > 0 is out of reach of any number.
    """

    replicas: Float[Array, "*pools"]
    excess: Float[Array, "*pools constraints"]

    @property
    def feasible(self) -> Bool[Array, "*pools"]:
        """Whether some number of replicas meets every constraint."""
        return jnp.max(self.excess, axis=-1) <= 0.0


def excess(demand: PoolDemand, replicas: Scalar, targets: Targets, *, relaxed: bool) -> Float[Array, " constraints"]:
    """How far each of the model's `CONSTRAINTS` is from being met, as a logarithm; <= 0 where it is.

    `kimura` adds the reference sizing's rules: utilisation at most 0.85, and one replica more than the load.
    """
    pool = pool_law(demand, replicas, relaxed=relaxed)
    law = pool.latency
    allowed = math.log(1.0 - QUANTILE)
    if isinstance(law, StepLatency):
        ttft = jnp.where(jnp.isfinite(targets.ttft_s), log_tail(law.ttft_tail(targets.ttft_s)), -jnp.inf)
        slo = jnp.where(jnp.isfinite(targets.tpot_s), targets.tpot_s, 1.0)
        tpot = jnp.where(jnp.isfinite(targets.tpot_s), log_tail(law.tpot_tail(slo)), -jnp.inf)
        return jnp.stack([ttft, tpot]) - allowed
    wait = law.log_wait_tail(targets.ttft_s) - allowed
    tpot = jnp.where(jnp.isfinite(targets.tpot_s), law.step_s / targets.tpot_s - 1.0, -jnp.inf)
    cap = jnp.log(jnp.maximum(pool.utilization, _LEAST_UTILIZATION) / MAX_UTILIZATION)
    minimum = jnp.log(pool.utilization + 1.0 / replicas)
    return jnp.stack([wait, tpot, cap, minimum])


def required_replicas(demand: PoolDemand, targets: Targets, *, relaxed: bool) -> Size:
    """The real number of replicas at which the tightest constraint is just met.

    Differentiable in everything by the implicit function theorem.
    """
    load = pool_law(demand, jnp.ones(()), relaxed=relaxed).utilization
    busy = demand.rate > 0
    load = jnp.where(busy, jnp.maximum(load, _LEAST_LOAD), 1.0)
    fixed = jax.lax.stop_gradient((demand, load, targets))

    def worst(log_utilization: Scalar) -> Scalar:
        inner, inner_load, inner_targets = fixed
        return jnp.max(excess(inner, inner_load * jnp.exp(-log_utilization), inner_targets, relaxed=relaxed))

    least, most = jnp.log(jnp.asarray(_LEAST_UTILIZATION)), jnp.log(jnp.asarray(_MOST_UTILIZATION))
    root = -bracketed_root(lambda u: worst(-u), -most, -least, evaluations=24)
    # One evaluation serves both: at the root its derivative is implicit, at the least utilisation it is the floor.
    sizes = jax.lax.stop_gradient(load) * jnp.exp(-jnp.stack([root, least]))
    values = jax.vmap(lambda size: excess(demand, size, targets, relaxed=relaxed))(sizes)
    _, slope = jax.jvp(worst, (root,), (jnp.ones(()),))
    size = newton_step(sizes[0], jnp.max(values[0]), -slope / sizes[0])
    needed = jnp.maximum(size, load / _MOST_UTILIZATION)
    return Size(jnp.where(busy, needed, 0.0), jnp.where(busy, values[1], -jnp.inf))


def whole_replicas(replicas: np.ndarray) -> np.ndarray:
    """The exact integer: ceil, forgiving the rounding of the root."""
    return np.ceil(replicas * (1.0 - CEIL_TOLERANCE))
