r"""How many replicas a pool needs: the root of its tail constraints, with implicit gradients.

A constraint is a tail in log form, $\ln P(\text{TTFT} > \text{SLO}) - \ln 0.01 \le 0$: the same feasible set as
P99 <= SLO, smooth where the wait is zero. Each falls as replicas are added, so the largest of them has one root,
and `ceil` of the root is the exact number of replicas.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsim._roots import bracketed_root, implicit_tangent
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
_LEAST_LOG_SPARE, _MOST_LOG_SPARE = -math.log(_MOST_UTILIZATION), -math.log(_LEAST_UTILIZATION)
_EVALUATIONS = 36
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
    fixed = jax.lax.stop_gradient(load)
    log_spare, unlimited = _solved(relaxed, demand, targets, fixed)
    needed = jnp.maximum(fixed * jnp.exp(log_spare), load / _MOST_UTILIZATION)
    return Size(jnp.where(busy, needed, 0.0), jnp.where(busy, unlimited, -jnp.inf))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _solved(
    relaxed: bool, demand: PoolDemand, targets: Targets, load: Scalar
) -> tuple[Scalar, Float[Array, " constraints"]]:
    """ln of replicas over `load` at the root of the tightest constraint, and all constraints at the most replicas.

    Its derivatives are by reverse mode only: one pass gives those in the replicas and in everything else.
    """
    excesses = partial(_excesses, relaxed, demand, targets, load)
    least, most = jnp.asarray(_LEAST_LOG_SPARE), jnp.asarray(_MOST_LOG_SPARE)
    root = bracketed_root(lambda v: jnp.max(excesses(v)), least, most, evaluations=_EVALUATIONS)
    return root, excesses(most)


def _excesses(
    relaxed: bool, demand: PoolDemand, targets: Targets, load: Scalar, log_spare: Scalar
) -> Float[Array, " constraints"]:
    return excess(demand, load * jnp.exp(log_spare), targets, relaxed=relaxed)


def _solve(relaxed: bool, demand: PoolDemand, targets: Targets, load: Scalar) -> tuple[Any, Any]:
    solved = _solved(relaxed, demand, targets, load)
    return solved, (demand, targets, load, solved[0])


def _differentiate(
    relaxed: bool, kept: tuple[PoolDemand, Targets, Scalar, Scalar], cotangents: tuple[Scalar, Array]
) -> tuple[PoolDemand, Targets, Scalar]:
    """At the root the derivative is that of the implicit function, at the most replicas it is the excess's own."""
    demand, targets, load, root = kept
    at_root, unlimited = cotangents

    def slopes(log_spare: Scalar, tightest: Array) -> tuple[Scalar, Scalar, Any]:
        """Of the tightest constraint, or of all in the proportion asked for: value, and slopes in all arguments."""

        def chosen(at: Scalar, wanted: PoolDemand, goals: Targets) -> Scalar:
            values = _excesses(relaxed, wanted, goals, load, at)
            weight = jnp.where(tightest, jax.nn.one_hot(jnp.argmax(values), values.shape[0]), unlimited)
            return jnp.where(weight == 0.0, 0.0, values * weight).sum()

        value, (slope, *rest) = jax.value_and_grad(chosen, argnums=(0, 1, 2))(log_spare, demand, targets)
        return value, slope, rest

    least, most = jnp.asarray(_LEAST_LOG_SPARE), jnp.asarray(_MOST_LOG_SPARE)
    values, slope, rest = jax.vmap(slopes)(jnp.stack([root, most]), jnp.asarray([True, False]))
    moved = implicit_tangent(root, values[0], slope[0], at_root, least, most)
    of_demand, of_targets = jax.tree.map(lambda leaf: moved * leaf[0] + leaf[1], rest)
    return of_demand, of_targets, jnp.zeros_like(load)


_solved.defvjp(_solve, _differentiate)


def whole_replicas(replicas: np.ndarray) -> np.ndarray:
    """The exact integer: ceil, forgiving the rounding of the root."""
    return np.ceil(replicas * (1.0 - CEIL_TOLERANCE))
