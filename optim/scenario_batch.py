"""A fleet in many scenarios at once: sizes, P99s and utilisation of each pool, one compiled program each.

A scenario changes the lengths of all requests, their shares, the step times and the rate, so each has its own sums of
lengths. They are exact: the requests are put in their new order and summed again inside the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsim.evaluate import Metrics, PoolLaws, metrics, pool_laws, pool_p99s, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.lengths import cut_tokens, scaled_tokens
from jaxsim.profiles import Profile
from jaxsim.workload import Workload
from optim._compile import program
from optim.cases import IDLE_RATE, Case
from optim.problem import PlanProblem
from optim.scenarios import Scenarios
from optim.sizing import Targets
from optim.uncertainty import LAW
from optim.verify import Correction, corrected_target

Scalar = Float[Array, ""]

Lengths = tuple[Array, Array, Array | None]
"""Input and output tokens of a workload's rows, and the hit rate of its prefix cache."""

_MOST = 16
_MOST_LENGTHS = 400_000
"""Scenarios of a batch, and rows of lengths in all of them: what memory allows."""
_LONG = 500_000
"""Rows of lengths in all scenarios from which a program that runs fast is worth its longer compilation."""
_FLEETS = 4
"""Fleets are looked at in multiples of so many, so that one program serves most numbers."""


class Future(eqx.Module):
    """One scenario as the programs take it, for the pools of one design; or several, with a leading axis.

    Attributes:
        rate: requests per second.
        law_factor: of each pool's step time.
        input_factor, output_factor: of the lengths.
        weight: share of each row of the workload.
    """

    rate: Array
    law_factor: Array
    input_factor: Array
    output_factor: Array
    weight: Array


@dataclass(frozen=True)
class ScenarioSizes:
    """Real replicas that each pool needs in each scenario by the model as corrected; inf where no number is enough."""

    replicas: Float[np.ndarray, "scenarios pools"]


@dataclass(frozen=True)
class ScenarioFigures:
    """Of several fleets in each scenario, by pool; P99s are infinite in overload.

    Attributes:
        ttft_p99_s, tpot_p99_s: by the model as corrected.
        utilization: 1 and above is overload.
        rejected_share: of all requests, by fleet.
    """

    ttft_p99_s: Float[np.ndarray, "scenarios fleets pools"]
    tpot_p99_s: Float[np.ndarray, "scenarios fleets pools"]
    utilization: Float[np.ndarray, "scenarios fleets pools"]
    rejected_share: Float[np.ndarray, "scenarios fleets"]


@dataclass(frozen=True)
class ScenarioBatch:
    """A hardware with its thresholds, and the scenarios it is looked at in.

    Attributes:
        problem: what is known; its workload before any limit on lengths.
        profiles: of each pool.
        case: of these, with the objectives of each pool.
        upper_tokens: thresholds.
        scenarios: what may come.
        correction: what the simulator taught of each pool: factors of the excess of a P99 over its floor. Each
            scenario has its own floors, those of its idle pools.
    """

    problem: PlanProblem
    profiles: tuple[Profile, ...]
    case: Case
    upper_tokens: Float[np.ndarray, " pools"]
    scenarios: Scenarios
    correction: Correction

    def future(self, rows: np.ndarray) -> Future:
        """Some scenarios."""
        named = [str(profile.name) for profile in self.problem.profiles]
        at = [named.index(str(profile.name)) for profile in self.profiles]
        found = self.scenarios
        columns = (
            found.rate[rows],
            found.law_factor[rows][:, at],
            found.input_factor[rows],
            found.output_factor[rows],
            found.weights(self.problem.workload, rows),
        )
        return Future(*(jnp.asarray(column) for column in columns))

    def sizes(self, *, model: str, told: Callable[[int], None] = lambda _: None) -> ScenarioSizes:
        """What each pool needs in each scenario."""
        run = _sizes[self._is_long]
        parts = [
            run(self.case, self._lengths, future, self._upper, self._limit, self._factors, model=model)
            for future in self._batches(told)
        ]
        return ScenarioSizes(np.concatenate(parts)[: len(self.scenarios)])

    def figures(
        self,
        fleets: Float[np.ndarray, "fleets pools"],
        *,
        model: str,
        told: Callable[[int], None] = lambda _: None,
    ) -> ScenarioFigures:
        """What each of some fleets does in each scenario."""
        engines = jnp.asarray(fleets, dtype=float)
        engines = jnp.concatenate([engines, jnp.repeat(engines[-1:], -len(fleets) % _FLEETS, axis=0)])
        run = _figures[self._is_long]
        parts = [
            run(self.case, self._lengths, future, self._upper, self._limit, self._factors, engines, model=model)
            for future in self._batches(told)
        ]
        columns = (np.concatenate(column)[: len(self.scenarios), : len(fleets)] for column in zip(*parts, strict=True))
        return ScenarioFigures(*columns)

    def metrics(self, row: int, replicas: np.ndarray, *, model: str, idle: bool = False) -> Metrics:
        """The model's figures of a fleet in one scenario, or of the same without load."""
        future = jax.tree.map(lambda leaf: leaf[0], self.future(np.array([row])))
        if idle:
            future = eqx.tree_at(lambda f: f.rate, future, jnp.asarray(IDLE_RATE))
        engines = jnp.asarray(replicas, dtype=float)
        return _metrics(self.case, self._lengths, future, self._upper, self._limit, engines, model=model)

    def played(self, row: int, replicas: np.ndarray) -> tuple[FleetDesign, PlanProblem]:
        """One scenario for the simulator: a fleet on its hardware, and the problem with its lengths and its rate."""
        future = jax.tree.map(lambda leaf: np.asarray(leaf[0]), self.future(np.array([row])))
        profiles = [scaled_profile(one, future.law_factor[p]) for p, one in enumerate(self.profiles)]
        design = FleetDesign.of(profiles, list(replicas), list(self.upper_tokens))
        return design, scaled_problem(self.problem, future, self.scenarios.words(row))

    @property
    def _lengths(self) -> Lengths:
        workload = self.problem.workload
        hits = workload.prefix_cache_hit_rate
        cached = None if hits is None else jnp.asarray(hits)
        return jnp.asarray(workload.input_tokens), jnp.asarray(workload.output_tokens), cached

    @property
    def _upper(self) -> Array:
        return jnp.asarray(self.upper_tokens)

    @property
    def _is_long(self) -> bool:
        return len(self.problem.workload.weight) * len(self.scenarios) > _LONG

    @property
    def _factors(self) -> Array | None:
        """Of TTFT and TPOT; None where nothing was corrected, which saves the floors."""
        factors = np.stack([self.correction.ttft, self.correction.tpot])
        return None if np.all(factors == 1.0) else jnp.asarray(factors)

    @property
    def _limit(self) -> Array:
        """Tokens above which prompts are cut; no limit where longer requests are rejected."""
        return jnp.asarray(self.problem.context if self.problem.long_requests == "truncate" else np.inf)

    def _batches(self, told: Callable[[int], None]) -> Iterator[Future]:
        size = max(min(_MOST, _MOST_LENGTHS // len(self.problem.workload.weight)), 1)
        for first in range(0, len(self.scenarios), size):
            told(first)
            rows = np.minimum(np.arange(first, first + size), len(self.scenarios) - 1)
            yield self.future(rows)


def scaled_profile(profile: Profile, law_factor: Float[Array | np.ndarray, " law"]) -> Profile:
    """A profile whose coefficients `LAW` are multiplied."""
    fields = [getattr(profile, name) * law_factor[k] for k, name in enumerate(LAW)]
    return eqx.tree_at(lambda p: [getattr(p, name) for name in LAW], profile, fields)


def scaled_problem(problem: PlanProblem, future: Future, name: str) -> PlanProblem:
    """The problem with the lengths, shares and rate of one scenario."""
    workload = problem.workload
    scaled = Workload.from_lengths(
        np.asarray(scaled_tokens(workload.input_tokens, future.input_factor)),
        np.asarray(scaled_tokens(workload.output_tokens, future.output_factor)),
        weight=np.asarray(future.weight),
        prefix_cache_hit_rate=workload.prefix_cache_hit_rate,
        name=workload.name,
        source=f"{workload.source}; {name}",
        notes=workload.notes,
    )
    return PlanProblem(
        workload=scaled,
        rate=float(future.rate),
        profiles=problem.profiles,
        slo=problem.slo,
        max_pools=problem.max_pools,
        max_context=problem.context,
        long_requests=problem.long_requests,
        model=problem.model,
        max_gpus=problem.max_gpus,
    )


def _case_of(case: Case, lengths: Lengths, future: Future, upper: Array, limit: Array, *, model: str) -> Case:
    """The case in one scenario; traceable."""
    factors = (future.input_factor, future.output_factor)
    inputs, outputs = (scaled_tokens(tokens, factor) for tokens, factor in zip(lengths[:2], factors, strict=True))
    workload = _ordered(*cut_tokens(inputs, outputs, limit), future.weight, lengths[2])
    profile = jax.vmap(scaled_profile)(jax.tree.map(jnp.asarray, case.profile), future.law_factor)
    tables = tabulate(workload, profile, model=model)
    return eqx.tree_at(lambda c: (c.profile, c.tables, c.rate), case, (profile, tables, future.rate))


def _ordered(inputs: Array, outputs: Array, weight: Array, hit_rate: Array | None) -> Workload:
    """A workload of rows in any order; knots as in `Workload.from_lengths`, equal ones and one beyond kept."""
    total = inputs + outputs
    order = jnp.argsort(total)
    total = total[order]
    knots = jnp.sort(jnp.concatenate([total - 1.0, total]))
    knots = jnp.concatenate([knots, knots[-1:] + 1.0])
    rows = jnp.searchsorted(total, knots, side="right")
    return Workload(inputs[order], outputs[order], weight[order], knots, rows, prefix_cache_hit_rate=hit_rate)


def _laws(case: Case, upper: Array, replicas: Array, rate: Array, *, model: str) -> PoolLaws:
    return pool_laws(case.design(replicas, upper), case.tables, rate, model=model)


def _floors(case: Case, upper: Array, *, model: str) -> tuple[Array, Array]:
    """P99 TTFT and TPOT of each pool without load, seconds."""
    return pool_p99s(_laws(case, upper, jnp.ones_like(upper), jnp.full_like(case.rate, IDLE_RATE), model=model))


def _sizes_of(
    case: Case,
    lengths: Lengths,
    futures: Future,
    upper: Array,
    limit: Array,
    factors: Array | None,
    *,
    model: str,
) -> Array:
    def one(future: Future) -> Array:
        here = _case_of(case, lengths, future, upper, limit, model=model)
        if factors is not None:
            objectives = (here.targets.ttft_s, here.targets.tpot_s)
            each = zip(objectives, _floors(here, upper, model=model), factors, strict=True)
            targets = Targets(*(corrected_target(slo, floor, factor) for slo, floor, factor in each))
            here = eqx.tree_at(lambda c: c.targets, here, targets)
        size = here.sizes(upper, model=model, relaxed=False)
        return jnp.where(size.feasible, size.replicas, jnp.inf)

    return jax.vmap(one)(futures)


def _figures_of(
    case: Case,
    lengths: Lengths,
    futures: Future,
    upper: Array,
    limit: Array,
    factors: Array | None,
    fleets: Array,
    *,
    model: str,
) -> tuple[Array, Array, Array, Array]:
    def one(future: Future) -> tuple[Array, Array, Array, Array]:
        here = _case_of(case, lengths, future, upper, limit, model=model)

        floors = None if factors is None else _floors(here, upper, model=model)

        def fleet(replicas: Array) -> tuple[Array, Array, Array, Array]:
            laws = _laws(here, upper, replicas, here.rate, model=model)
            ttft, tpot = pool_p99s(laws)
            if floors is not None and factors is not None:
                ttft, tpot = (f + c * (p - f) for p, f, c in zip((ttft, tpot), floors, factors, strict=True))
            return ttft, tpot, laws.utilization, jnp.maximum(1.0 - laws.share.sum(), 0.0)

        return jax.vmap(fleet)(fleets)

    return jax.vmap(one)(futures)


_sizes = (program(_sizes_of), program(_sizes_of, fast=False))
_figures = (program(_figures_of), program(_figures_of, fast=False))
"""Compiled fast, and to run fast."""


@program
def _metrics(
    case: Case, lengths: Lengths, future: Future, upper: Array, limit: Array, replicas: Array, *, model: str
) -> Metrics:
    here = _case_of(case, lengths, future, upper, limit, model=model)
    return metrics(_laws(here, upper, replicas, here.rate, model=model))
