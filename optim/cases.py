"""Cases: one choice of hardware for every pool, with all that a search over thresholds needs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsim.evaluate import (
    Metrics,
    PoolDemand,
    Tables,
    metrics,
    pool_demand,
    pool_demands,
    pool_law,
    pool_laws,
    tabulate,
)
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.workload import LengthTable, Workload
from optim._compile import program
from optim.problem import PlanProblem
from optim.sizing import Size, Targets, excess, required_replicas

Scalar = Float[Array, ""]

IDLE_RATE = 1e-9
"""Requests per second that find every engine idle."""

FEW_POOLS = 2
"""Up to so many pools a search asks for few sizes, and waits for the compiler rather than for them."""


class Case(eqx.Module):
    """One choice of hardware for each pool, in numbers alone: equal shapes share compiled programs.

    Attributes:
        profile: stacked along the pool axis, unnamed.
        tables: the workload tabulated for it, exact.
        rate: requests per second.
        targets: per pool.
        shortest, longest: range of the thresholds, tokens.
    """

    profile: Profile
    tables: Tables
    rate: Scalar
    targets: Targets
    shortest: Scalar
    longest: Scalar

    @property
    def num_pools(self) -> int:
        """Pools, a static number."""
        return int(self.profile.base_s.shape[0])

    def design(self, replicas: Float[Array, " pools"], upper: Float[Array, " pools"]) -> FleetDesign:
        """A design of this hardware; each pool's max_context is its threshold."""
        return FleetDesign(self.profile, replicas, upper, upper)

    def sizes(self, upper: Float[Array, " pools"], *, model: str, relaxed: bool) -> Size:
        """Replicas of each pool for these thresholds; infeasible where a request exceeds the KV cache of a replica."""
        demands = pool_demands(self.design(jnp.ones_like(upper), upper), self.tables, self.rate, model=model)
        size = jax.vmap(lambda d, t: required_replicas(d, t, relaxed=relaxed))(demands, self.targets)
        over = jnp.where(self.beyond_cache(upper)[:, None], jnp.inf, size.excess)
        return Size(size.replicas, over)

    def beyond_cache(self, upper: Float[Array, " pools"]) -> Bool[Array, " pools"]:
        """Whether a pool is sent requests that exceed the KV cache of one replica."""
        lower = jnp.concatenate([jnp.zeros_like(upper[:1]), upper[:-1]])
        return jax.vmap(beyond_cache)(self.tables.lengths, self.profile, lower, upper)

    def with_targets(self, ttft_s: np.ndarray, tpot_s: np.ndarray) -> Case:
        """The case with other targets per pool, seconds."""
        return eqx.tree_at(lambda c: c.targets, self, Targets(jnp.asarray(ttft_s), jnp.asarray(tpot_s)))

    def idle(self) -> tuple[Case, Array, Array]:
        """Hardly any load on one replica in the last pool: the case, replicas and thresholds."""
        last = np.append(np.zeros(self.num_pools - 1), 1.0)
        quiet = eqx.tree_at(lambda c: c.rate, self, jnp.asarray(IDLE_RATE))
        return quiet, jnp.asarray(last), jnp.asarray(np.where(last > 0, float(self.longest), 1.0))

    def relaxed_usd_per_hour(self, size: Size) -> Scalar:
        """Price of real-valued sizes: at least one replica where there are requests."""
        engines = jnp.where(size.replicas > 0, jnp.maximum(size.replicas, 1.0), 0.0)
        return (engines * jnp.asarray(self.profile.usd_per_hour)).sum()


def beyond_cache(lengths: LengthTable, profile: Profile, lower: Scalar, upper: Scalar) -> Bool[Array, ""]:
    """Whether a request of lower < total <= upper exceeds the KV cache of one replica."""
    least = jnp.maximum(lower, jnp.minimum(jnp.asarray(profile.kv_tokens), upper))
    return lengths.between(least, upper)[0] > _EMPTY_SHARE


_EMPTY_SHARE = 1e-9
"""Share of the requests below which it is rounding noise."""


class Choice(NamedTuple):
    """Hardware by name, and the case of it in numbers."""

    profiles: tuple[Profile, ...]
    case: Case


@program
def case_metrics(case: Case, replicas: Float[Array, " pools"], upper: Float[Array, " pools"], *, model: str) -> Metrics:
    """The model's figures of a design of this hardware."""
    return metrics(pool_laws(case.design(replicas, upper), case.tables, case.rate, model=model))


class SizedDesigns(NamedTuple):
    """Sizes of a batch of thresholds: real replicas of each pool, and feasibility of each design."""

    replicas: np.ndarray
    feasible: np.ndarray


class Margins(NamedTuple):
    """Of a batch of whole designs: each pool's excess of each constraint (`optim.sizing.excess`) and utilisation.

    An empty pool has an excess of -inf; requests without a replica have one of inf.
    """

    excess: np.ndarray
    utilization: np.ndarray


def sized_designs(case: Case, upper: np.ndarray, *, model: str) -> SizedDesigns:
    """Exact sizes of thresholds, one design a row."""
    replicas, feasible = np.zeros(upper.shape), np.ones(len(upper), dtype=bool)
    for pool, (low, high) in enumerate(_intervals(upper)):
        size, enough = pool_sizes(case, pool, low, high, model=model)
        replicas[:, pool], feasible = size, feasible & enough
    return SizedDesigns(replicas, feasible)


def margins(case: Case, upper: np.ndarray, replicas: np.ndarray, *, model: str) -> Margins:
    """How far whole designs, one a row, are from what each constraint allows."""
    found = [
        pool_margins(case, pool, low, high, replicas[:, pool], model=model)
        for pool, (low, high) in enumerate(_intervals(upper))
    ]
    return Margins(*(np.stack(column, axis=1) for column in zip(*found, strict=True)))


def _intervals(upper: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Lower and upper thresholds of each pool."""
    return list(zip([np.zeros(len(upper)), *upper.T[:-1]], upper.T, strict=True))


def pool_sizes(
    case: Case, pool: int, lower: np.ndarray, upper: np.ndarray, *, model: str, many: bool | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Real replicas of one pool of a case for lower < total <= upper, and whether any number is enough, row by row.

    `many` says whether the search is among more than `FEW_POOLS`; left out, by the case's own.
    """
    run = _pool_sizes[case.num_pools > FEW_POOLS if many is None else many]
    size, feasible = _of_pool(run, case, pool, lower, upper, model=model)
    return size, feasible


def pool_margins(
    case: Case, pool: int, lower: np.ndarray, upper: np.ndarray, replicas: np.ndarray, *, model: str
) -> Margins:
    """What `margins` says of one pool with that many replicas, row by row."""
    run = _pool_margins[case.num_pools > FEW_POOLS]
    return Margins(*_of_pool(run, case, pool, lower, upper, replicas, model=model))


def _of_pool(run: Callable[..., Any], case: Case, pool: int, *columns: np.ndarray, model: str) -> list[np.ndarray]:
    """A program of one pool over columns of numbers; equal rows are computed once."""
    profile, tables, targets = jax.tree.map(lambda leaf: leaf[pool], (case.profile, case.tables, case.targets))
    held = Pool(profile, tables, targets, case.rate)
    rows, back = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    found = in_batches(lambda parts: run(held, *parts, model=model), *rows.T)
    return [column[back.ravel()] for column in found]


def in_batches(
    function: Callable[[list[Array]], tuple[Array, ...]], *columns: np.ndarray, size: int = 64
) -> list[np.ndarray]:
    """Apply a function of `size` rows to any number of them: one compiled program serves all."""
    number = len(columns[0])
    padded = [np.concatenate([c, np.repeat(c[-1:], -number % size, axis=0)]) for c in columns]
    starts = range(0, len(padded[0]), size)
    parts = [function([jnp.asarray(c[first : first + size]) for c in padded]) for first in starts]
    return [np.concatenate([np.asarray(v) for v in column])[:number] for column in zip(*parts, strict=True)]


class Pool(NamedTuple):
    """One pool of a case."""

    profile: Profile
    tables: Tables
    targets: Targets
    rate: Scalar

    def demand(self, lower: Scalar, upper: Scalar, model: str) -> PoolDemand:
        """Of lower < total <= upper."""
        accepted = jnp.minimum(upper, jnp.asarray(self.profile.kv_tokens)) if model == "step" else upper
        return pool_demand(self.tables.table, self.profile, lower, accepted, upper, rate=self.rate)


def _sizes(pool: Pool, lower: Array, upper: Array, *, model: str) -> tuple[Array, Array]:
    def one(low: Array, high: Array) -> tuple[Array, Array]:
        size = required_replicas(pool.demand(low, high, model), pool.targets, relaxed=False)
        return size.replicas, size.feasible & ~beyond_cache(pool.tables.lengths, pool.profile, low, high)

    return jax.vmap(one)(lower, upper)


def _margins(pool: Pool, lower: Array, upper: Array, replicas: Array, *, model: str) -> tuple[Array, Array]:
    def one(low: Array, high: Array, number: Array) -> tuple[Array, Array]:
        demand = pool.demand(low, high, model)
        over = excess(demand, jnp.where(number > 0, number, 1.0), pool.targets, relaxed=False)
        over = jnp.where(demand.rate > 0, jnp.where(number > 0, over, jnp.inf), -jnp.inf)
        over = jnp.where(beyond_cache(pool.tables.lengths, pool.profile, low, high), jnp.inf, over)
        return over, pool_law(demand, number).utilization

    return jax.vmap(one)(lower, upper, replicas)


_pool_sizes, _pool_margins = ((program(f), program(f, fast=False)) for f in (_sizes, _margins))
"""Compiled fast, and to run fast."""


@program
def _tables(workload: Workload, profile: Profile, *, model: str) -> Tables:
    return tabulate(workload, profile, model=model)


def cases(problem: PlanProblem, *, num_pools: int) -> tuple[Choice, ...]:
    """Every choice of hardware for the pools; a pool that cannot hold its longest request is infeasible (`Case.sizes`).

    Args:
        problem: what to serve; its SLO is every pool's target.
        num_pools: pools of each case; a design may leave some empty.
    """
    return tuple(choice_of(problem, profiles) for profiles in product(problem.profiles, repeat=num_pools))


def choice_of(problem: PlanProblem, profiles: tuple[Profile, ...]) -> Choice:
    """One choice of hardware, a profile for each pool."""
    slo, num_pools = problem.slo, len(profiles)
    tpot = np.inf if slo.tpot_p99_s is None else slo.tpot_p99_s
    targets = Targets(*(jnp.asarray(np.full(num_pools, value)) for value in (slo.ttft_p99_s, tpot)))
    stacked = Profile.stack(profiles).unnamed()
    case = Case(
        profile=stacked,
        tables=_tables(problem.limited, stacked, model=problem.model),
        rate=jnp.asarray(problem.rate, dtype=float),
        targets=targets,
        shortest=jnp.asarray(float(np.asarray(problem.limited.total_tokens)[0])),
        longest=jnp.asarray(problem.context),
    )
    return Choice(profiles, case)


def without_empty_pools(
    profiles: tuple[Profile, ...], replicas: np.ndarray, upper: np.ndarray, figures: Metrics
) -> tuple[FleetDesign, Metrics, tuple[int, ...]]:
    """The pools with requests of a whole design and of its figures, and their places."""
    kept = [int(p) for p in np.flatnonzero(replicas > 0)]
    design = FleetDesign.of([profiles[p] for p in kept], list(replicas[kept]), list(upper[kept]))
    pools = jax.tree.map(lambda v: np.asarray(v)[kept], figures.pools)
    return design, eqx.tree_at(lambda m: m.pools, figures, pools), tuple(kept)
