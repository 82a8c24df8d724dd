"""What one more of anything costs: derivatives of the relaxed cost and of the P99s at a plan.

`sensitivities` is the short answer that comes with every plan; `study` takes every input, prices the constraints, ranks
the knobs and finds the headroom.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.evaluate import pool_laws, pool_p99s
from jaxsim.fleet import FleetDesign
from jaxsim.units import MS_PER_S
from jaxsim.workload import Workload
from optim._compile import program
from optim.binding import Binding
from optim.cases import Case, choice_of
from optim.figures import lengths_alone
from optim.headroom import Headroom, headroom
from optim.knobs import Knob, knobs
from optim.problem import PlanProblem
from optim.relax import relax
from optim.sizing import CONSTRAINTS, Targets
from optim.slopes import COEFFICIENTS, Point, Slopes, elasticity, slopes
from optim.verify import Correction


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
    """In the rate, the P99 TTFT and the P99 TPOT objective."""

    def cost(moves: jax.Array) -> jax.Array:
        rate, ttft, tpot = moves
        targets = eqx.tree_at(
            lambda t: (t.ttft_s, t.tpot_s),
            case.targets,
            (case.targets.ttft_s + ttft, case.targets.tpot_s + tpot),
        )
        moved = eqx.tree_at(lambda c: (c.rate, c.targets), case, (case.rate + rate, targets))
        size = moved.sizes(upper, model=model, relaxed=True)
        return (size.replicas * jnp.asarray(case.profile.usd_per_hour)).sum()

    return jax.grad(cost)(jnp.zeros(3))


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


@dataclass(frozen=True)
class Slope:
    """Derivatives in one input, everything else as it is; sizes follow, thresholds stay.

    Attributes:
        name: of the input, with its unit: `rate_rps`, `ttft_p99_ms`, `usd_per_gpu_hour`, `upper_tokens`, or a
            coefficient of a profile.
        of: what it belongs to: the fleet, a pool ("pool 0") or a profile's name.
        value: of the input.
        usd_per_hour: of the relaxed cost, in dollars per hour for a unit of the input.
        elasticity: the same in per cent for one per cent of the input.
        ttft_p99_ms, tpot_p99_ms: of each pool's P99 with the replicas that there are, milliseconds for a unit.
        ttft_p99_elasticity, tpot_p99_elasticity: the same in per cent for one per cent.
        reoptimized_usd_per_hour: of the optimum of the relaxation, whose thresholds follow too (envelope theorem);
            None where it is not taken, and where that optimum is on a kink: a pool of one replica, or set by two
            constraints at once.
    """

    name: str
    of: str
    value: float
    usd_per_hour: float
    elasticity: float
    ttft_p99_ms: tuple[float, ...]
    tpot_p99_ms: tuple[float, ...]
    ttft_p99_elasticity: tuple[float, ...]
    tpot_p99_elasticity: tuple[float, ...]
    reoptimized_usd_per_hour: float | None = None


@dataclass(frozen=True)
class PoolSize:
    """What sets the size of a pool.

    Attributes:
        replicas: there are.
        required: whole replicas that the model asks for.
        relaxed: the real number, with real-valued slots.
        binding: what one replica less than required would break.
        feasible: whether any number of replicas meets the objectives.
        ttft_p99_s, tpot_p99_s: with the replicas that there are, by the model.
    """

    replicas: float
    required: int
    relaxed: float
    binding: Binding
    feasible: bool
    ttft_p99_s: float
    tpot_p99_s: float


@dataclass(frozen=True)
class Study:
    """Prices of everything at a fleet.

    Attributes:
        design: the fleet.
        targets: of each pool in the model, seconds: the SLO, or what stands for it after the simulator's correction.
        usd_per_hour, relaxed_usd_per_hour: of the fleet, and of real-valued sizes at its thresholds.
        pools: of each pool.
        slopes: of every input.
        headroom: None where some pool cannot meet its objectives with any number of replicas.
        knobs: the best first.
    """

    problem: PlanProblem
    design: FleetDesign
    targets: Targets
    usd_per_hour: float
    relaxed_usd_per_hour: float
    pools: tuple[PoolSize, ...]
    slopes: tuple[Slope, ...]
    headroom: Headroom | None
    knobs: tuple[Knob, ...]

    @property
    def feasible(self) -> bool:
        """Whether some number of replicas in each pool meets the objectives."""
        return all(pool.feasible for pool in self.pools)


def study(
    problem: PlanProblem,
    design: FleetDesign,
    *,
    correction: Correction | None = None,
    by: str = "ttft",
) -> Study:
    """Derivatives, prices, knobs and headroom of a fleet.

    Args:
        problem: load, objectives and model.
        design: pools with requests, whole replicas.
        correction: of the model, one entry per pool of the design; left out, none.
        by: "ttft" or "tpot", whose P99 ranks the knobs.
    """
    correction = Correction.none(design.num_pools) if correction is None else correction
    targets = Targets(*(jnp.asarray(v) for v in correction.targets(problem.slo)))
    workload, point = lengths_alone(problem.limited), Point.of(design, problem, targets)
    exact = slopes(point, workload, model=problem.model, coarse=False)
    coarse = slopes(point, workload, model=problem.model, coarse=True)
    room = headroom(point, workload, model=problem.model)
    sized = zip(*(np.asarray(v) for v in (exact.size, exact.active, exact.feasible)), strict=True)
    pools = tuple(
        PoolSize(
            replicas=float(point.replicas[p]),
            required=room.required[p],
            relaxed=float(size),
            binding=_binding(float(size), int(active), problem.model),
            feasible=bool(feasible),
            ttft_p99_s=float(exact.p99_s[0, p]),
            tpot_p99_s=float(exact.p99_s[1, p]),
        )
        for p, (size, active, feasible) in enumerate(sized)
    )
    reoptimized = _reoptimized(problem, design, point, workload, correction)
    names = tuple(str(name) for name in design.profile.name)
    return Study(
        problem=problem,
        design=design,
        targets=targets,
        usd_per_hour=float(design.usd_per_hour),
        relaxed_usd_per_hour=float(exact.usd_per_hour),
        pools=pools,
        slopes=tuple(_rows(point, exact, coarse, names, correction, problem, reoptimized)),
        headroom=room if all(pool.feasible for pool in pools) else None,
        knobs=knobs(design, workload, problem.rate, targets, model=problem.model, by=by),
    )


def _binding(size: float, active: int, model: str) -> Binding:
    if size <= 1.0:
        return Binding.ONE_REPLICA
    return Binding.THROUGHPUT if active < 0 else Binding[CONSTRAINTS[model][active].upper()]


def _reoptimized(
    problem: PlanProblem, design: FleetDesign, point: Point, workload: Workload, correction: Correction
) -> Slopes:
    """Slopes at the relaxation's own optimum on this hardware."""
    case = choice_of(problem, tuple(design.profile.at(p) for p in range(design.num_pools))).case
    _, upper = relax(case.with_targets(*correction.targets(problem.slo)), model=problem.model)
    best = jnp.asarray(upper[0])
    moved = eqx.tree_at(lambda p: (p.upper_tokens, p.spare_context), point, (best, jnp.zeros_like(best)))
    return slopes(moved, workload, model=problem.model, coarse=True)


def _rows(
    point: Point,
    exact: Slopes,
    coarse: Slopes,
    names: tuple[str, ...],
    correction: Correction,
    problem: PlanProblem,
    reoptimized: Slopes,
) -> list[Slope]:
    """Every input: rate, objectives, prices and coefficients of each profile, thresholds."""
    pools, cost = range(len(names)), float(exact.usd_per_hour)
    p99 = np.asarray(exact.p99_s)
    optimum = reoptimized.cost

    def row(
        name: str, of: str, value: float, usd: float, moves: np.ndarray, unit: float, again: float | None = None
    ) -> Slope:
        """`usd` and `moves` (figure, pool) are for the input in its own unit, of which `unit` is what is shown."""
        shown, per = value / unit, moves * MS_PER_S * unit
        relative = [
            [elasticity(float(m), value, float(q)) for m, q in zip(*both, strict=True)]
            for both in zip(moves, p99, strict=True)
        ]
        return Slope(
            name=name,
            of=of,
            value=shown,
            usd_per_hour=usd * unit,
            elasticity=elasticity(usd, value, cost),
            ttft_p99_ms=tuple(per[0].tolist()),
            tpot_p99_ms=tuple(per[1].tolist()),
            ttft_p99_elasticity=tuple(relative[0]),
            tpot_p99_elasticity=tuple(relative[1]),
            reoptimized_usd_per_hour=None if again is None or reoptimized.kinked else again * unit,
        )

    still = np.zeros((2, len(names)))
    made = [
        row(
            "rate_rps",
            "fleet",
            float(point.rate),
            float(exact.cost.rate),
            np.asarray(exact.p99.rate),
            1.0,
            float(optimum.rate),
        )
    ]
    for figure, slo in (("ttft", problem.slo.ttft_p99_s), ("tpot", problem.slo.tpot_p99_s)):
        if slo is None:
            continue
        field, loosened = f"{figure}_s", _loosened(correction, figure, slo)
        each, best = (np.asarray(getattr(of, field)) * loosened for of in (exact.cost, optimum))
        name = f"{figure}_p99_ms"
        made.append(row(name, "fleet", slo, float(each.sum()), still, 1.0 / MS_PER_S, float(best.sum())))
        if len(names) > 1:
            made += [row(name, f"pool {p}", slo, float(each[p]), still, 1.0 / MS_PER_S) for p in pools]
    for name in dict.fromkeys(names):
        mine = np.array([n == name for n in names])
        for field in ("usd_per_gpu_hour", *COEFFICIENTS):
            value = float(np.asarray(getattr(point.profile, field))[mine][0])
            usd = float(np.asarray(getattr(exact.cost.profile, field))[mine].sum())
            moves = np.asarray(getattr(exact.p99.profile, field))[:, :, mine].sum(axis=2)
            made.append(row(field, name, value, usd, moves, 1.0))
    for p in pools[:-1]:
        moves = np.asarray(coarse.p99.upper_tokens)[:, :, p]
        usd = float(coarse.cost.upper_tokens[p])
        made.append(row("upper_tokens", f"pool {p}", float(point.upper_tokens[p]), usd, moves, 1.0))
    return made


def _loosened(correction: Correction, figure: str, slo: float) -> np.ndarray:
    """d target / d objective of each pool under a correction."""
    factor, floor = (
        (correction.ttft, correction.ttft_floor_s) if figure == "ttft" else (correction.tpot, correction.tpot_floor_s)
    )
    return np.where(floor < slo, 1.0 / factor, 1.0)
