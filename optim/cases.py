"""Cases: one choice of hardware for every pool, with all that a search over thresholds needs."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsim.evaluate import Metrics, Tables, metrics, pool_demands, pool_laws, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.workload import Workload
from optim._compile import program
from optim.problem import PlanProblem
from optim.sizing import Size, Targets, required_replicas

Scalar = Float[Array, ""]


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
        """Replicas of each pool for these thresholds."""
        demands = pool_demands(self.design(jnp.ones_like(upper), upper), self.tables, self.rate, model=model)
        return jax.vmap(lambda d, t: required_replicas(d, t, relaxed=relaxed))(demands, self.targets)

    def with_targets(self, ttft_s: np.ndarray, tpot_s: np.ndarray) -> Case:
        """The case with other targets per pool, seconds."""
        return eqx.tree_at(lambda c: c.targets, self, Targets(jnp.asarray(ttft_s), jnp.asarray(tpot_s)))

    def idle(self) -> tuple[Case, Array, Array]:
        """Hardly any load on one replica in the last pool: the case, replicas and thresholds."""
        last = jnp.zeros(self.num_pools).at[-1].set(1.0)
        quiet = eqx.tree_at(lambda c: c.rate, self, jnp.asarray(1e-9))
        return quiet, last, jnp.where(last > 0, self.longest, 1.0)

    def relaxed_usd_per_hour(self, size: Size) -> Scalar:
        """Price of real-valued sizes: at least one replica where there are requests."""
        engines = jnp.where(size.replicas > 0, jnp.maximum(size.replicas, 1.0), 0.0)
        return (engines * jnp.asarray(self.profile.usd_per_hour)).sum()


class Choice(NamedTuple):
    """Hardware by name, and the case of it in numbers."""

    profiles: tuple[Profile, ...]
    case: Case


@program
def case_metrics(case: Case, replicas: Float[Array, " pools"], upper: Float[Array, " pools"], *, model: str) -> Metrics:
    """The model's figures of a design of this hardware."""
    return metrics(pool_laws(case.design(replicas, upper), case.tables, case.rate, model=model))


@program
def _tables(workload: Workload, profile: Profile, *, model: str) -> Tables:
    return tabulate(workload, profile, model=model)


def cases(problem: PlanProblem, *, num_pools: int) -> tuple[Choice, ...]:
    """Choices of hardware for the pools, leaving out profiles that cannot hold the longest request.

    Args:
        problem: what to serve; its SLO is every pool's target.
        num_pools: pools of each case; a design may leave some empty.
    """
    totals = np.asarray(problem.limited.total_tokens)
    fitting = [p for p in problem.profiles if problem.fits(p)]
    slo = problem.slo
    tpot = np.inf if slo.tpot_p99_s is None else slo.tpot_p99_s
    targets = Targets(ttft_s=jnp.full(num_pools, slo.ttft_p99_s), tpot_s=jnp.full(num_pools, tpot))
    choices = []
    for profiles in product(fitting, repeat=num_pools):
        stacked = Profile.stack(profiles).unnamed()
        case = Case(
            profile=stacked,
            tables=_tables(problem.limited, stacked, model=problem.model),
            rate=jnp.asarray(problem.rate, dtype=float),
            targets=targets,
            shortest=jnp.asarray(float(totals[0])),
            longest=jnp.asarray(problem.context),
        )
        choices.append(Choice(profiles, case))
    return tuple(choices)


def without_empty_pools(
    profiles: tuple[Profile, ...], replicas: np.ndarray, upper: np.ndarray, figures: Metrics
) -> tuple[FleetDesign, Metrics, tuple[int, ...]]:
    """The pools with requests of a whole design and of its figures, and their places."""
    kept = [int(p) for p in np.flatnonzero(replicas > 0)]
    design = FleetDesign.of([profiles[p] for p in kept], list(replicas[kept]), list(upper[kept]))
    pools = jax.tree.map(lambda v: np.asarray(v)[kept], figures.pools)
    return design, eqx.tree_at(lambda m: m.pools, figures, pools), tuple(kept)
