"""evaluate: a fleet design under a workload, as a differentiable function."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsim import engine, reference
from jaxsim._checks import is_concrete, require, require_non_negative, require_positive, require_x64, unknown
from jaxsim._roots import decreasing_root
from jaxsim.cost import usd_per_million
from jaxsim.fleet import FleetDesign
from jaxsim.latency import StepLatency
from jaxsim.latency import quantile as latency_quantile
from jaxsim.profiles import Profile
from jaxsim.reference import ReferenceLatency
from jaxsim.step_sharing.tables import Mix, SharingTable, between
from jaxsim.step_sharing.tables import tabulate as tabulate_sharing
from jaxsim.workload import LengthTable, Workload

MODELS = ("step", "kimura")

PerPool = Float[Array, " pools"]
PerPoolOrOne = Float[Array, "*pools"]
Scalar = Float[Array, ""]
Latency = StepLatency | ReferenceLatency

_LEVELS = (0.5, 0.95, 0.99)
"""Quantiles of TTFT that are solved."""

_EMPTY_SHARE = 1e-9
"""A pool with a smaller share of the requests is empty: its sums are rounding noise."""


class PoolMetrics(eqx.Module):
    """Figures of each pool. Rates per second, times in seconds, dollars per hour.

    An empty pool has rate 0, utilisation 0 and the latencies of a lone request; an overloaded one infinite ones.

    Attributes:
        wait_probability: that an arrival finds all slots taken; 1 in overload.
        prefill_work_share: share of prefill in the work of a request; 0 in `kimura`, which gives it no work of its own.
    """

    share: PerPool
    rate: PerPool
    replicas: PerPool
    utilization: PerPool
    concurrency_limit: PerPool
    active_batch: PerPool
    wait_probability: PerPool
    prefill_work_share: PerPool
    wait_mean_s: PerPool
    wait_p99_s: PerPool
    ttft_p50_s: PerPool
    ttft_p95_s: PerPool
    ttft_p99_s: PerPool
    tpot_mean_s: PerPool
    tpot_p99_s: PerPool
    usd_per_hour: PerPool
    usd_per_million_output_tokens: PerPool
    overloaded: Bool[Array, " pools"]


class Metrics(eqx.Module):
    """Figures of a fleet; `pools` has those of each pool.

    Attributes:
        rejected_share: share of requests that no pool accepts.
        utilization: of the most utilised pool.
        ttft_p50_s .. tpot_p99_s: quantiles over the accepted requests of all pools (`kimura`: of the worst pool;
            the reference model has no mixture).
        usd_per_million_output_tokens: of the load given, idle time included.
    """

    pools: PoolMetrics
    rate: Scalar
    rejected_share: Scalar
    utilization: Scalar
    ttft_p50_s: Scalar
    ttft_p95_s: Scalar
    ttft_p99_s: Scalar
    tpot_mean_s: Scalar
    tpot_p99_s: Scalar
    usd_per_hour: Scalar
    usd_per_million_output_tokens: Scalar
    overloaded: Bool[Array, ""]


class PoolDemand(eqx.Module):
    """The requests of a pool, before it is decided how many engines serve them.

    Attributes:
        share, rate: of all requests, and requests per second.
        output_tokens: mean.
        requests: what latencies depend on: a `Mix` (`step`), or per-request means of the table's columns (`kimura`).
        profile, max_context: of the pool.
    """

    share: PerPoolOrOne
    rate: PerPoolOrOne
    output_tokens: PerPoolOrOne
    requests: Mix | Float[Array, "*pools statistics"]
    profile: Profile
    max_context: PerPoolOrOne


class PoolLaws(eqx.Module):
    """Each pool's requests and latency law, before any quantile is solved: what an optimizer constrains.

    Every array has a leading pool axis, also inside `latency`; those of one pool (`pool_law`) have none.
    """

    latency: Latency
    share: PerPoolOrOne
    rate: PerPoolOrOne
    replicas: PerPoolOrOne
    utilization: PerPoolOrOne
    concurrency_limit: PerPoolOrOne
    output_tokens: PerPoolOrOne
    usd_per_hour: PerPoolOrOne

    @property
    def empty(self) -> Bool[Array, " pools"]:
        """Pools without requests."""
        return self.share <= _EMPTY_SHARE

    def ttft_tail(self, t: Scalar) -> PerPool:
        """P(TTFT > t) of each pool."""
        return jax.vmap(lambda law: law.ttft_tail(t))(self.latency)

    def tpot_tail(self, t: Scalar) -> PerPool:
        """P(TPOT > t) of each pool."""
        return jax.vmap(lambda law: law.tpot_tail(t))(self.latency)


class Tables(eqx.Module):
    """A workload tabulated for each pool's profile; what depends on the lengths and not on the design."""

    table: LengthTable | SharingTable

    @property
    def lengths(self) -> LengthTable:
        """The sums by total length, exact at whole tokens."""
        return self.table.table if isinstance(self.table, SharingTable) else self.table

    def coarsened(self, num_knots: int) -> Tables:
        """Smoother in the thresholds; see `LengthTable.coarsened`."""
        return Tables(jax.vmap(lambda table: table.coarsened(num_knots))(self.table))


def tabulate(workload: Workload, profile: Profile, *, model: str = "step") -> Tables:
    """Tabulate a workload for profiles stacked along the pool axis."""
    _check_model(model)
    cached = workload.prefix_cache_hit_rate is not None
    require(model == "step" or not cached, "prefix_cache_hit_rate", "given", "left out", 'it is for model="step"')
    make = tabulate_sharing if model == "step" else reference.tabulate
    return Tables(jax.vmap(lambda one: make(workload, one))(profile))


def pool_demands(design: FleetDesign, tables: Tables, rate: Any, *, model: str = "step") -> PoolDemand:
    """The requests that each pool of a design serves, every array with a leading pool axis.

    `tables` must come from the design's stacked profile (`tabulate`).
    """
    upper = jnp.asarray(design.upper_tokens)
    lower = jnp.concatenate([jnp.zeros_like(upper[:1]), upper[:-1]])
    context = jnp.asarray(design.max_context)
    accepted = jnp.minimum(upper, context)
    if model == "step":
        accepted = jnp.minimum(accepted, jnp.asarray(design.profile.kv_tokens))
    one = partial(pool_demand, rate=jnp.asarray(rate, dtype=float))
    profile = jax.tree.map(jnp.asarray, design.profile)
    return jax.vmap(one)(tables.table, profile, lower, accepted, context)


def pool_demand(
    table: LengthTable | SharingTable,
    profile: Profile,
    lower: Scalar,
    upper: Scalar,
    max_context: Scalar,
    *,
    rate: Scalar,
) -> PoolDemand:
    """The requests of one pool: lower < total <= upper."""
    if isinstance(table, SharingTable):
        mix = between(table, lower, upper, empty_share=_EMPTY_SHARE)
        return PoolDemand(mix.share, rate * mix.share, mix.output_tokens, mix, profile, max_context)
    sums, whole = table.between(lower, upper), jnp.asarray(table.sums)[-1]
    filled = sums[0] > _EMPTY_SHARE
    share = jnp.where(filled, sums[0], 0.0)
    means = jnp.where(filled, sums, whole) / jnp.where(filled, sums[0], whole[0])
    return PoolDemand(share, rate * share, means[1], means, profile, max_context)


def pool_law(
    demand: PoolDemand,
    replicas: Scalar,
    *,
    relaxed: bool = False,
    dispatch: str = "least-loaded",
    dispersion: Scalar | float = 1.0,
) -> PoolLaws:
    """The latency law of one pool with that many engines (real > 0; 0 is overload if there are requests).

    Args:
        demand: of one pool.
        replicas: engines.
        relaxed: real-valued slots in the `kimura` model, for gradients in `max_context`.
        dispatch: for the `step` model, how requests are spread over the engines; see `jaxsim.engine.latency`.
        dispersion: for the `step` model, index of dispersion of all arrivals, of which the pool gets its share.
    """
    served = replicas > 0.0
    engines = jnp.where(served, replicas, 1.0)
    law: Latency
    if isinstance(demand.requests, Mix):
        law, limit = engine.latency(
            demand.requests,
            demand.profile,
            arrival_rate=demand.rate,
            replicas=engines,
            dispatch=dispatch,
            dispersion=1.0 + (jnp.asarray(dispersion) - 1.0) * demand.share,
        )
    else:
        law, limit = reference.latency(
            demand.requests,
            demand.profile,
            arrival_rate=demand.rate,
            replicas=engines,
            max_context=demand.max_context,
            relaxed=relaxed,
        )
    unserved = jnp.where(demand.rate > 0, jnp.inf, 0.0)
    return PoolLaws(
        latency=law,
        share=demand.share,
        rate=demand.rate,
        replicas=replicas,
        utilization=jnp.where(served, law.utilization, unserved),
        concurrency_limit=limit,
        output_tokens=demand.output_tokens,
        usd_per_hour=replicas * demand.profile.usd_per_hour,
    )


def pool_laws(
    design: FleetDesign,
    tables: Tables,
    rate: Any,
    *,
    model: str = "step",
    relaxed: bool = False,
    dispatch: str = "least-loaded",
    dispersion: Scalar | float = 1.0,
) -> PoolLaws:
    """The latency law of each pool of a design; see `pool_demands` and `pool_law`."""
    demands = pool_demands(design, tables, rate, model=model)
    law = partial(pool_law, relaxed=relaxed, dispatch=dispatch, dispersion=dispersion)
    return jax.vmap(law)(demands, jnp.asarray(design.replicas))


def metrics(laws: PoolLaws) -> Metrics:
    """Solve the quantiles and sum up the fleet."""
    pools = _pool_metrics(laws)
    share = laws.share / jnp.maximum(laws.share.sum(), _EMPTY_SHARE)
    if isinstance(laws.latency, StepLatency):
        ttft = list(_step_mixture(laws, share, jnp.asarray(_LEVELS), "ttft"))
        tpot_p99 = _step_mixture(laws, share, jnp.asarray([0.99]), "tpot")[0]
    else:
        figures = (pools.ttft_p50_s, pools.ttft_p95_s, pools.ttft_p99_s, pools.tpot_p99_s)
        *ttft, tpot_p99 = (jnp.where(share > 0, values, 0.0).max() for values in figures)
    rate = laws.rate.sum()
    tokens_per_s = (laws.rate * laws.output_tokens).sum()
    usd = laws.usd_per_hour.sum()
    return Metrics(
        pools=pools,
        rate=rate,
        rejected_share=jnp.maximum(1.0 - laws.share.sum(), 0.0),
        utilization=laws.utilization.max(),
        ttft_p50_s=ttft[0],
        ttft_p95_s=ttft[1],
        ttft_p99_s=ttft[2],
        tpot_mean_s=_mean_over_pools(share, pools.tpot_mean_s, pools.overloaded),
        tpot_p99_s=tpot_p99,
        usd_per_hour=usd,
        usd_per_million_output_tokens=usd_per_million(usd, tokens_per_s),
        overloaded=jnp.any(pools.overloaded),
    )


def pool_p99s(laws: PoolLaws) -> tuple[PerPool, PerPool]:
    """P99 TTFT and P99 TPOT of each pool, seconds; inf in overload. What `metrics` solves, and no more."""

    def both(law: Latency) -> tuple[Scalar, Scalar]:
        if isinstance(law, StepLatency):
            solved = (latency_quantile(law, tail, 0.99) for tail in (StepLatency.ttft_tail, StepLatency.tpot_tail))
            ttft, tpot = solved
            return ttft, tpot
        return law.ttft_quantile(0.99), law.tpot_quantile(0.99)

    ttft, tpot = jax.vmap(both)(laws.latency)
    overloaded = laws.utilization >= 1.0
    return jnp.where(overloaded, jnp.inf, ttft), jnp.where(overloaded, jnp.inf, tpot)


@eqx.filter_jit
def _evaluate(
    design: FleetDesign, workload: Workload, rate: Any, dispersion: Scalar, model: str, dispatch: str
) -> Metrics:
    tables = tabulate(workload, design.profile, model=model)
    return metrics(pool_laws(design, tables, rate, model=model, dispatch=dispatch, dispersion=dispersion))


def evaluate(
    design: FleetDesign,
    workload: Workload,
    rate: Any,
    *,
    model: str = "step",
    dispatch: str = "least-loaded",
    dispersion: Any = 1.0,
) -> Metrics:
    """Figures of a fleet design under a workload: pure, works under jit, vmap and grad.

    Args:
        design: pools; real replicas are allowed.
        workload: joint lengths. For many designs on one workload, `tabulate` once and call
            ``metrics(pool_laws(design, tables, rate))``, which costs the same for any trace size.
        rate: requests per second, >= 0.
        model: "step" (what a continuously batching engine does) or "kimura" (the published reference model).
        dispatch: how a pool's requests are spread over its replicas: "least-loaded" (the only one that "kimura" knows),
            "random", "round-robin" or "power-of-two" (the less loaded of two engines drawn at random).
        dispersion: index of dispersion of the arrivals, > 0: 1 for Poisson (the only one that "kimura" knows), for a
            renewal process the squared coefficient of variation of its gaps.

    Returns:
        Metrics; overload is data (`overloaded`, utilisation >= 1, infinite latencies), not an exception.

    Raises:
        ValueError: unknown model or dispatch, negative or NaN rate, dispersion not positive, or a dispatch or
            dispersion that "kimura" does not know. RuntimeError: JAX is in float32 mode.
    """
    require_x64()
    _check_model(model)
    require_non_negative("rate", rate)
    require_positive("dispersion", dispersion)
    if dispatch not in engine.DISPATCHES:
        raise unknown("dispatch", dispatch, engine.DISPATCHES)
    if model == "kimura":
        require(dispatch == "least-loaded", "dispatch", dispatch, "least-loaded", 'for others, model="step"')
        poisson = np.all(np.asarray(dispersion) == 1.0) if is_concrete(dispersion) else True
        require(poisson, "dispersion", dispersion, "1, Poisson arrivals", 'for others, model="step"')
    anonymous = eqx.tree_at(lambda d: d.profile, design, design.profile.unnamed())
    burst = jnp.asarray(dispersion, dtype=float)
    return _evaluate(anonymous, workload, jnp.asarray(rate, dtype=float), burst, model, dispatch)


def _check_model(model: str) -> None:
    if model not in MODELS:
        raise unknown("model", model, MODELS)


def _pool_metrics(laws: PoolLaws) -> PoolMetrics:
    overloaded = laws.utilization >= 1.0

    def or_inf(values: Array) -> Array:
        return jnp.where(overloaded, jnp.inf, values)

    def each(figure: Any) -> Array:
        return or_inf(jax.vmap(figure)(laws.latency))

    if isinstance(laws.latency, StepLatency):
        active, waits, prefill = jax.vmap(_occupancy)(laws.latency)
        wait_p99 = each(lambda law: latency_quantile(law, StepLatency.wait_tail, 0.99))
        solve = jax.vmap(lambda q, law: latency_quantile(law, StepLatency.ttft_tail, q), in_axes=(0, None))
        ttft = list(or_inf(jax.vmap(partial(solve, jnp.asarray(_LEVELS)), out_axes=1)(laws.latency)))
        tpot = each(lambda law: latency_quantile(law, StepLatency.tpot_tail, 0.99))
    else:
        engines = jnp.where(laws.replicas > 0, laws.replicas, 1.0)
        active = laws.rate * laws.latency.service_s / engines
        waits = jax.vmap(lambda law: jnp.exp(jnp.minimum(law.log_wait_tail(0.0), 0.0)))(laws.latency)
        prefill = jnp.zeros_like(active)
        wait_p99 = each(lambda law: law.wait_quantile(0.99))
        ttft = [each(lambda law, q=q: law.ttft_quantile(q)) for q in _LEVELS]
        tpot = each(lambda law: law.tpot_quantile(0.99))
    return PoolMetrics(
        share=laws.share,
        rate=laws.rate,
        replicas=laws.replicas,
        utilization=laws.utilization,
        concurrency_limit=laws.concurrency_limit,
        active_batch=jnp.where(overloaded, laws.concurrency_limit, active),
        wait_probability=jnp.where(overloaded, 1.0, waits),
        prefill_work_share=prefill,
        wait_mean_s=each(lambda law: law.mean_wait()),
        wait_p99_s=wait_p99,
        ttft_p50_s=ttft[0],
        ttft_p95_s=ttft[1],
        ttft_p99_s=ttft[2],
        tpot_mean_s=each(lambda law: law.mean_tpot()),
        tpot_p99_s=tpot,
        usd_per_hour=laws.usd_per_hour,
        usd_per_million_output_tokens=usd_per_million(laws.usd_per_hour, laws.rate * laws.output_tokens),
        overloaded=overloaded,
    )


def _occupancy(law: StepLatency) -> tuple[Scalar, Scalar, Scalar]:
    """Running requests, P(wait) and share of prefill in the work."""
    state = law.state
    return state.running, state.wait_probability, state.fluctuations.prefill_branching / state.fluctuations.branching


def _step_mixture(
    laws: PoolLaws, share: PerPool, levels: Float[Array, " levels"], figure: str
) -> Float[Array, " levels"]:
    """Quantiles over the requests of all pools; inf where one is overloaded."""

    def excess(t: Scalar, inputs: tuple[PoolLaws, PerPool, Scalar]) -> Scalar:
        inner, weight, q = inputs
        tails = inner.ttft_tail(t) if figure == "ttft" else inner.tpot_tail(t)
        return (weight * tails).sum() - (1.0 - q)

    def solve(q: Scalar) -> Scalar:
        upper = jnp.where(share > 0, jax.vmap(lambda law: law.longest_s(q))(laws.latency), 0.0).max()
        return decreasing_root(excess, (laws, share, q), jnp.zeros(()), jnp.maximum(upper, 1e-9))

    return jnp.where(jnp.any(laws.utilization >= 1.0), jnp.inf, jax.vmap(solve)(levels))


def _mean_over_pools(share: PerPool, values: PerPool, overloaded: Bool[Array, " pools"]) -> Scalar:
    """The mean over the requests of all pools; inf, with gradient 0, where one is overloaded."""
    mean = (share * jnp.where(overloaded, 0.0, values)).sum()
    return jnp.where(jnp.any(overloaded), jnp.inf, mean)
