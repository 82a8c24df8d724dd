"""The simulator's verdict on a design, and the correction it implies for the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import des
from des import Estimate, SimulationResult
from des.execution import HERE, Execution
from des.simulate import default_requests
from jaxsim._ops import maximum
from jaxsim.evaluate import Metrics, PoolMetrics
from jaxsim.fleet import FleetDesign
from optim.problem import SLO, PlanProblem
from optim.verdict import Verdict, verdict_of, worst

QUANTILE = 0.99
FILLINGS = 10.0
"""Requests of one replication, in requests that run at a time over the spare share of the capacity."""
USUAL_REPLICATIONS = 8
MOST_FIRST_REQUESTS = 3_000_000
_STEP = 1.5
_LEAST_EXCESS = 0.02
"""Share of a P99 below which its excess over the floor is noise."""


@dataclass(frozen=True)
class PoolVerdict:
    """P99s that the simulator found in one pool; None where the pool had no such request."""

    ttft_p99_s: Estimate | None
    tpot_p99_s: Estimate | None
    overloaded: bool

    def verdict(self, slo: SLO) -> Verdict:
        """What the intervals of the pool's own P99s say of the objectives."""
        return _verdict((self.ttft_p99_s, self.tpot_p99_s), slo, self.overloaded)


@dataclass(frozen=True)
class Verification:
    """What the simulator found at the design.

    Attributes:
        ttft_p99_s, tpot_p99_s: of all served requests, with 95 % intervals.
        pools: the same of each pool.
        slo_met: the fleet's intervals lie below the SLO and every pool's P99 does.
        verdict: met where `slo_met`; else a coin flip where some interval crosses its objective and none is above it.
        attainment: share of all offered requests, rejected ones included, that met every objective.
        requests, rejected: offered after warm-up, and of these rejected.
        overloaded: some pool cannot keep up with its load.
        result: everything else.
    """

    ttft_p99_s: Estimate
    tpot_p99_s: Estimate | None
    pools: tuple[PoolVerdict, ...]
    slo_met: bool
    verdict: Verdict
    attainment: float
    requests: int
    rejected: int
    overloaded: bool
    result: SimulationResult


def verify(
    design: FleetDesign,
    problem: PlanProblem,
    *,
    analytic: Metrics,
    seed: int,
    precision: float,
    replications: int | None = None,
    execution: Execution = HERE,
) -> Verification:
    """Simulate a whole design and hold it against the SLO.

    Args:
        design: whole numbers of replicas, no empty pool.
        problem: workload, rate, SLO and model; the simulator runs in the convention of the same name.
        analytic: the model's figures of the design, from which the shortest sensible run is judged.
        seed: of the simulation.
        precision: relative half-width of the 95 % intervals of the P99s.
        replications: independent runs, each as long as one of 8 would be; left out, 8 or fewer.
        execution: who plays them, and where finished ones are kept.
    """
    result = des.simulate(
        design,
        problem.limited,
        rate=problem.rate,
        num_requests=_first_length(design, analytic, replications),
        seed=seed,
        precision=precision,
        replications=replications,
        execution=execution,
        decided=lambda result: _clearly_missed(judge(result, problem.slo), problem.slo),
        convention=problem.model,
    )
    return judge(result, problem.slo)


def judge(result: SimulationResult, slo: SLO) -> Verification:
    """Hold a simulation against the SLO."""
    pools = tuple(PoolVerdict(_p99(pool.ttft), _p99(pool.tpot), pool.overloaded) for pool in result.pools)
    ttft = result.ttft.quantile(QUANTILE)
    tpot = _p99(result.tpot)
    met = not result.overloaded and _below(ttft, tpot, slo) and all(_pool_below(p, slo) for p in pools)
    whole = _verdict((ttft, tpot), slo, result.overloaded)
    said = Verdict.MET if met else worst([Verdict.COIN_FLIP, whole, *(pool.verdict(slo) for pool in pools)])
    return Verification(
        ttft_p99_s=ttft,
        tpot_p99_s=tpot,
        pools=pools,
        slo_met=met,
        verdict=said,
        attainment=result.attainment(ttft_s=slo.ttft_p99_s, tpot_s=slo.tpot_p99_s),
        requests=result.requests,
        rejected=result.rejected,
        overloaded=result.overloaded,
        result=result,
    )


def _clearly_missed(found: Verification, slo: SLO) -> bool:
    """Some interval lies wholly above its objective, so no greater precision can turn the no into a yes."""
    whole = _verdict((found.ttft_p99_s, found.tpot_p99_s), slo, overloaded=False)
    pools = (_verdict((pool.ttft_p99_s, pool.tpot_p99_s), slo, overloaded=False) for pool in found.pools)
    return worst([whole, *pools]) is Verdict.MISSED


def _verdict(p99s_s: tuple[Estimate | None, Estimate | None], slo: SLO, overloaded: bool) -> Verdict:
    """Of P99 TTFT and P99 TPOT, None where there is none; missed where all requests were rejected."""
    if overloaded or (p99s_s[0] is not None and p99s_s[0].n == 0):
        return Verdict.MISSED
    limits = (slo.ttft_p99_s, slo.tpot_p99_s)
    known = [(e, limit) for e, limit in zip(p99s_s, limits, strict=True) if e is not None and limit is not None]
    return worst(verdict_of(e.low, e.high, limit) for e, limit in known)


def _first_length(design: FleetDesign, analytic: Metrics, replications: int | None) -> int:
    """Requests of the first try: each replication long against the time the fleet takes to fill and to forget."""
    pools = analytic.pools
    active = float(np.sum(np.asarray(pools.active_batch) * np.asarray(pools.replicas)))
    slack = max(1.0 - float(analytic.utilization), 0.02)
    enough = min(USUAL_REPLICATIONS * FILLINGS * active / slack, MOST_FIRST_REQUESTS)
    number = max(default_requests(int(np.sum(design.replicas))), int(enough))
    return number if replications is None else number * replications // USUAL_REPLICATIONS + 1


def _p99(sample: des.Sample) -> Estimate | None:
    return sample.quantile(QUANTILE) if sample.n > 0 else None


def _below(ttft: Estimate, tpot: Estimate | None, slo: SLO) -> bool:
    meets_tpot = slo.tpot_p99_s is None or tpot is None or tpot.high <= slo.tpot_p99_s
    return ttft.high <= slo.ttft_p99_s and meets_tpot


def _pool_below(pool: PoolVerdict, slo: SLO) -> bool:
    meets_ttft = pool.ttft_p99_s is None or pool.ttft_p99_s.value <= slo.ttft_p99_s
    meets_tpot = slo.tpot_p99_s is None or pool.tpot_p99_s is None or pool.tpot_p99_s.value <= slo.tpot_p99_s
    return meets_ttft and meets_tpot


@dataclass(frozen=True)
class Correction:
    """What the simulator taught about the model, per pool of the search.

    A P99 is a floor that no number of replicas lowers (the P99 of an idle pool) and an excess that load adds. The
    simulator corrects the excess; the search then works with targets whose excess is divided by the factor, which
    stay above the floor however large it is.

    Attributes:
        ttft, tpot: simulated over modelled excess; 1 where nothing is known.
        ttft_floor_s, tpot_floor_s: the floors, seconds; 0 where nothing is known.
        power: simulated over modelled mean power of the fleet; 1 where nothing is known or no budget is at stake.
    """

    ttft: np.ndarray
    tpot: np.ndarray
    ttft_floor_s: np.ndarray
    tpot_floor_s: np.ndarray
    power: float = 1.0

    LIMITS = (0.25, 5.0)

    @classmethod
    def none(cls, num_pools: int) -> Correction:
        """The model as it is."""
        return cls(np.ones(num_pools), np.ones(num_pools), np.zeros(num_pools), np.zeros(num_pools))

    def updated(
        self, pools: tuple[int, ...], verdict: Verification, model: PoolMetrics, idle: PoolMetrics
    ) -> Correction:
        """The correction that makes the model agree with the simulator at the design just tried.

        A pool that it left empty takes over what the worst of the others taught; after a no, the factors of the
        TTFT grow by at least a half, so that the search moves on.

        Args:
            pools: place of each simulated pool among the search's pools.
            verdict: of the simulator.
            model, idle: the model's figures of those pools, under the load and without any.
        """
        learned = {
            at: (
                self._factor(pool.ttft_p99_s, float(model.ttft_p99_s[i]), float(idle.ttft_p99_s[i]), pool.overloaded),
                self._factor(pool.tpot_p99_s, float(model.tpot_p99_s[i]), float(idle.tpot_p99_s[i]), pool.overloaded),
                float(idle.ttft_p99_s[i]),
                float(idle.tpot_p99_s[i]),
            )
            for i, (at, pool) in enumerate(zip(pools, verdict.pools, strict=True))
        }
        worst = max(learned.values())
        rows = np.array([learned.get(at, worst) for at in range(len(self.ttft))])
        if not verdict.slo_met:  # a proposal that failed must not come back
            rows[:, 0] = np.maximum(rows[:, 0], _STEP * self.ttft)
            rows[:, 1] = np.maximum(rows[:, 1], self.tpot)
        return Correction(*rows.T, power=self.power)

    def between(self, other: Correction) -> Correction:
        """Half way, factors by their geometric means; a floor unknown to one is that of the other."""
        return Correction(
            np.sqrt(self.ttft * other.ttft),
            np.sqrt(self.tpot * other.tpot),
            np.maximum(self.ttft_floor_s, other.ttft_floor_s),
            np.maximum(self.tpot_floor_s, other.tpot_floor_s),
            float(np.sqrt(self.power * other.power)),
        )

    def targets(self, slo: SLO) -> tuple[np.ndarray, np.ndarray]:
        """TTFT and TPOT targets of each pool, seconds, that stand for the SLO in the uncorrected model."""
        tpot = np.inf if slo.tpot_p99_s is None else slo.tpot_p99_s
        return (
            corrected_target(slo.ttft_p99_s, self.ttft_floor_s, self.ttft),
            corrected_target(tpot, self.tpot_floor_s, self.tpot),
        )

    @classmethod
    def _factor(cls, simulated: Estimate | None, modelled: float, floor: float, overloaded: bool) -> float:
        if overloaded:
            return cls.LIMITS[1]
        if simulated is None or not np.isfinite(modelled):
            return 1.0
        return excess_factor(simulated.value, modelled, floor)


def excess_factor(simulated: float, modelled: float, floor: float) -> float:
    """Simulated over modelled excess of a P99 above its floor, within `Correction.LIMITS`."""
    excess = max(simulated - floor, _LEAST_EXCESS * simulated)
    return float(np.clip(excess / max(modelled - floor, _LEAST_EXCESS * modelled), *Correction.LIMITS))


def corrected_target(slo: Any, floor: Any, factor: Any) -> Any:
    """What stands for an objective in the uncorrected model: its excess over the floor divided by the factor.

    An objective below the floor stays as it is. NumPy or JAX arrays.
    """
    return floor + maximum(slo - floor, 0.0) / factor - maximum(floor - slo, 0.0)
