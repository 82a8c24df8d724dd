"""What one more of anything costs: derivatives of the relaxed cost and of the P99s at a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.evaluate import pool_laws, pool_p99s
from jaxsim.fleet import FleetDesign
from optim._compile import program
from optim.cases import Case


@dataclass(frozen=True)
class Sensitivities:
    """Derivatives at a plan, with its thresholds fixed (at a relaxed optimum theirs are zero).

    Attributes:
        usd_per_hour_per_rps: of the relaxed cost in the rate.
        usd_per_hour_per_ttft_ms, usd_per_hour_per_tpot_ms: in the objectives; 0 where one does not bind.
        ttft_p99_ms_per_replica, tpot_p99_ms_per_replica: of each pool's P99 in its own replicas.
    """

    usd_per_hour_per_rps: float
    usd_per_hour_per_ttft_ms: float
    usd_per_hour_per_tpot_ms: float
    ttft_p99_ms_per_replica: tuple[float, ...]
    tpot_p99_ms_per_replica: tuple[float, ...]

    def of_pools(self, pools: tuple[int, ...]) -> Sensitivities:
        """Only those pools, in that order."""
        return replace(
            self,
            ttft_p99_ms_per_replica=tuple(self.ttft_p99_ms_per_replica[p] for p in pools),
            tpot_p99_ms_per_replica=tuple(self.tpot_p99_ms_per_replica[p] for p in pools),
        )


@program
def _cost_slopes(case: Case, upper: jax.Array, *, model: str) -> jax.Array:
    """Forward mode: three directions, one program."""

    def cost(rate: jax.Array, ttft: jax.Array, tpot: jax.Array) -> jax.Array:
        targets = eqx.tree_at(
            lambda t: (t.ttft_s, t.tpot_s),
            case.targets,
            (case.targets.ttft_s + ttft, case.targets.tpot_s + tpot),
        )
        moved = eqx.tree_at(lambda c: (c.rate, c.targets), case, (case.rate + rate, targets))
        size = moved.sizes(upper, model=model, relaxed=True)
        return (size.replicas * jnp.asarray(case.profile.usd_per_hour)).sum()

    def along(direction: jax.Array) -> jax.Array:
        zero = jnp.zeros(())
        return jax.jvp(cost, (zero, zero, zero), tuple(direction))[1]

    return jax.vmap(along)(jnp.eye(3))


@program
def _latency_slopes(case: Case, design: FleetDesign, *, model: str) -> tuple[jax.Array, jax.Array]:
    """d P99 / d replicas of each pool: a pool's P99 depends on its own replicas only."""

    def p99(replicas: jax.Array) -> tuple[jax.Array, jax.Array]:
        moved = eqx.tree_at(lambda d: d.replicas, design, replicas)
        return pool_p99s(pool_laws(moved, case.tables, case.rate, model=model))

    replicas = jnp.asarray(design.replicas)
    return jax.jvp(p99, (replicas,), (jnp.ones_like(replicas),))[1]


def sensitivities(case: Case, design: FleetDesign, *, model: str) -> Sensitivities:
    """Derivatives at `design`, whose pools are those of `case`."""
    rate, ttft, tpot = (float(v) for v in _cost_slopes(case, jnp.asarray(design.upper_tokens), model=model))
    ttft_slopes, tpot_slopes = (np.asarray(v) for v in _latency_slopes(case, design, model=model))
    return Sensitivities(
        usd_per_hour_per_rps=rate,
        usd_per_hour_per_ttft_ms=ttft / 1e3,
        usd_per_hour_per_tpot_ms=0.0 if not np.isfinite(tpot) else tpot / 1e3,
        ttft_p99_ms_per_replica=tuple(float(v) * 1e3 for v in ttft_slopes),
        tpot_p99_ms_per_replica=tuple(float(v) * 1e3 for v in tpot_slopes),
    )
