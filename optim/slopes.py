r"""Derivatives of a fleet's relaxed cost and of its P99s in every input, through the implicit solves.

The relaxed cost is that of the search: real replicas $n_p(x)$ that just meet each pool's objectives, at least one,
times their price. $n_p$ is the root of the tightest tail constraint $g_p(n, x) = 0$, so

$$\frac{dn_p}{dx} = -\frac{\partial g_p/\partial x}{\partial g_p/\partial n}$$

which `required_replicas` carries; reverse mode then gives every input at the price of one. The P99s are those of the
replicas that there are, roots of the tails themselves.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsim.evaluate import PoolDemand, Tables, pool_demands, pool_laws, pool_p99s, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.workload import Workload
from optim._compile import program
from optim.problem import PlanProblem
from optim.relax import KNOTS
from optim.sizing import Size, Targets, excess, required_replicas

Scalar = Float[Array, ""]
PerPool = Float[np.ndarray | jax.Array, " pools"]

COEFFICIENTS = (
    "base_s",
    "per_sequence_s",
    "per_token_s",
    "prefill_per_token_s",
    "prefill_per_token2_s",
    "overhead_s",
    "kv_blocks",
    "max_num_seqs",
)
"""Numbers of a profile whose derivatives are taken, beside the price."""

_NEAR_ONE = 0.02
_NEAR_TAIL = 0.1
"""How near to a kink (replicas, log tail) an optimum found by descent counts as on it."""
_CAPACITY = 1e-6
"""Log-tail excess below which no constraint but the capacity holds a size."""


class Point(eqx.Module):
    """A fleet with everything that its cost and its P99s depend on; every leaf is an input.

    Attributes:
        profile: stacked along the pool axis, unnamed.
        replicas: of each pool, of the P99s; the relaxed cost finds its own.
        upper_tokens: thresholds; the last is the longest request accepted.
        spare_context: tokens by which each pool's `max_context` is above its threshold.
        rate: requests per second.
        ttft_s, tpot_s: objectives of each pool, seconds; inf is none.
    """

    profile: Profile
    replicas: PerPool
    upper_tokens: PerPool
    spare_context: PerPool
    rate: Float[np.ndarray | jax.Array, ""]
    ttft_s: PerPool
    tpot_s: PerPool

    @classmethod
    def of(cls, design: FleetDesign, problem: PlanProblem, targets: Targets) -> Point:
        """A design under the problem's load, each pool with its own targets."""
        upper = jnp.asarray(design.upper_tokens)
        return cls(
            profile=jax.tree.map(jnp.asarray, design.profile.unnamed()),
            replicas=jnp.asarray(design.replicas),
            upper_tokens=upper,
            spare_context=jnp.asarray(design.max_context) - upper,
            rate=jnp.asarray(problem.rate, dtype=float),
            ttft_s=targets.ttft_s,
            tpot_s=targets.tpot_s,
        )

    @property
    def targets(self) -> Targets:
        """The objectives as the sizing takes them."""
        return Targets(jnp.asarray(self.ttft_s), jnp.asarray(self.tpot_s))

    @property
    def design(self) -> FleetDesign:
        """The fleet alone."""
        upper = jnp.asarray(self.upper_tokens)
        return FleetDesign(self.profile, self.replicas, upper, upper + jnp.asarray(self.spare_context))

    def tables(self, workload: Workload, *, model: str, coarse: bool) -> Tables:
        """The workload tabulated for the profiles, so that their coefficients have derivatives.

        Args:
            workload: joint lengths.
            model: "step" or "kimura".
            coarse: as in the relaxation: the length law averaged over 5 % of length, smooth in the thresholds.
        """
        tables = tabulate(workload, self.profile, model=model)
        return tables.coarsened(KNOTS) if coarse else tables


class Slopes(eqx.Module):
    """Of a point, values and derivatives.

    Attributes:
        usd_per_hour: relaxed cost.
        cost: its derivative in every leaf of the point, as a point.
        p99_s: P99 TTFT and TPOT of each pool, seconds.
        p99: their derivatives, as a point whose leaves have two more leading axes (figure, pool).
        size: real replicas that each pool needs; 0 where it is empty.
        feasible: whether some number of replicas meets each pool's objectives.
        active: place in the model's `CONSTRAINTS` of what sets the size; -1 where it is the capacity.
        lone: log-tail distance from it to the next constraint; near 0 two set the size at once, and derivatives are
            those of one side of a kink.
    """

    usd_per_hour: Scalar
    cost: Point
    p99_s: Float[Array, "figures pools"]
    p99: Point
    size: Float[Array, " pools"]
    feasible: Bool[Array, " pools"]
    active: Float[Array, " pools"]
    lone: Float[Array, " pools"]

    @property
    def kinked(self) -> bool:
        """Whether a pool's size is (nearly) set by two constraints, or is one replica, the least there is."""
        size, lone = np.asarray(self.size), np.asarray(self.lone)
        return bool(np.any((size > 0) & ((np.abs(size - 1.0) < _NEAR_ONE) | ((size > 1.0) & (lone < _NEAR_TAIL)))))


def sizes(point: Point, tables: Tables, *, model: str, relaxed: bool) -> tuple[PoolDemand, Size]:
    """The requests of each pool and the real replicas they need; traceable."""
    demands = pool_demands(point.design, tables, point.rate, model=model)
    size = jax.vmap(lambda demand, targets: required_replicas(demand, targets, relaxed=relaxed))(demands, point.targets)
    return demands, size


def relaxed_cost(point: Point, workload: Workload, *, model: str, coarse: bool) -> Scalar:
    """Dollars per hour of real-valued sizes, at least one replica where there are requests; traceable."""
    return _cost(point, sizes(point, point.tables(workload, model=model, coarse=coarse), model=model, relaxed=True)[1])


def _cost(point: Point, size: Size) -> Scalar:
    engines = jnp.where(size.replicas > 0, jnp.maximum(size.replicas, 1.0), 0.0)
    return (engines * jnp.asarray(point.profile.usd_per_hour)).sum()


def p99s(point: Point, workload: Workload, *, model: str, coarse: bool) -> Float[Array, "figures pools"]:
    """P99 TTFT and TPOT of each pool, seconds, with real-valued slots; traceable."""
    tables = point.tables(workload, model=model, coarse=coarse)
    return jnp.stack(pool_p99s(pool_laws(point.design, tables, point.rate, model=model, relaxed=True)))


@program
def slopes(point: Point, workload: Workload, *, model: str, coarse: bool) -> Slopes:
    """Everything at a point, in one program."""

    def cost(at: Point) -> tuple[Scalar, tuple[PoolDemand, Size]]:
        tables = at.tables(workload, model=model, coarse=coarse)
        demands, size = sizes(at, tables, model=model, relaxed=True)
        return _cost(at, size), (demands, size)

    def latency(at: Point) -> tuple[Array, Array]:
        figures = p99s(at, workload, model=model, coarse=coarse)
        return figures, figures

    (usd, (demands, size)), cost_slopes = jax.value_and_grad(cost, has_aux=True)(point)
    p99_slopes, figures = jax.jacrev(latency, has_aux=True)(point)
    at_size = jax.vmap(lambda d, n, t: excess(d, jnp.where(n > 0, n, 1.0), t, relaxed=True))(
        demands, size.replicas, point.targets
    )
    ordered = jnp.sort(at_size, axis=1)
    tightest = ordered[:, -1]
    active = jnp.where(tightest < -_CAPACITY, -1, at_size.argmax(axis=1))
    return Slopes(
        usd_per_hour=usd,
        cost=cost_slopes,
        p99_s=figures,
        p99=p99_slopes,
        size=size.replicas,
        feasible=size.feasible,
        active=active.astype(usd.dtype),
        lone=tightest - ordered[:, -2],
    )


def elasticity(slope: float, value: float, of: float) -> float:
    """Per cent of `of` that one per cent of the input moves.

    0 where the input or its slope is 0, or the input has no bound; infinite where `of` is 0.
    """
    if slope == 0.0 or value == 0.0 or not math.isfinite(value):
        return 0.0
    return slope * value / of if of else math.copysign(math.inf, slope * value)
