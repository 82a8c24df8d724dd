"""The simulator's verdict on a design, and the correction it implies for the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import des
from des import Estimate, SimulationResult
from des.simulate import default_requests
from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from optim.problem import SLO, PlanProblem

QUANTILE = 0.99
FILLINGS = 10.0
"""Requests of one replication, in requests that run at a time over the spare share of the capacity."""
MOST_FIRST_REQUESTS = 3_000_000


@dataclass(frozen=True)
class PoolVerdict:
    """P99s that the simulator found in one pool; None where the pool had no such request."""

    ttft_p99_s: Estimate | None
    tpot_p99_s: Estimate | None
    overloaded: bool


@dataclass(frozen=True)
class Verification:
    """What the simulator found at the design.

    Attributes:
        ttft_p99_s, tpot_p99_s: of all served requests, with 95 % intervals.
        pools: the same of each pool.
        slo_met: the fleet's intervals lie below the SLO and every pool's P99 does.
        attainment: share of all offered requests, rejected ones included, that met every objective.
        requests, rejected: offered after warm-up, and of these rejected.
        overloaded: some pool cannot keep up with its load.
        result: everything else.
    """

    ttft_p99_s: Estimate
    tpot_p99_s: Estimate | None
    pools: tuple[PoolVerdict, ...]
    slo_met: bool
    attainment: float
    requests: int
    rejected: int
    overloaded: bool
    result: SimulationResult


def verify(
    design: FleetDesign, problem: PlanProblem, analytic: Metrics, *, seed: int, precision: float
) -> Verification:
    """Simulate a whole design and hold it against the SLO.

    Args:
        design: whole numbers of replicas, no empty pool.
        analytic: the model's figures of it, from which the shortest sensible run is judged.
        problem: workload, rate, SLO and model; the simulator runs in the convention of the same name.
        seed: of the simulation.
        precision: relative half-width of the 95 % intervals of the P99s.
    """
    result = des.simulate(
        design,
        problem.limited,
        rate=problem.rate,
        num_requests=_first_length(design, analytic),
        seed=seed,
        precision=precision,
        convention=problem.model,
    )
    return judge(result, problem.slo)


def judge(result: SimulationResult, slo: SLO) -> Verification:
    """Hold a simulation against the SLO."""
    pools = tuple(PoolVerdict(_p99(pool.ttft), _p99(pool.tpot), pool.overloaded) for pool in result.pools)
    ttft = result.ttft.quantile(QUANTILE)
    tpot = _p99(result.tpot)
    return Verification(
        ttft_p99_s=ttft,
        tpot_p99_s=tpot,
        pools=pools,
        slo_met=not result.overloaded and _below(ttft, tpot, slo) and all(_pool_below(p, slo) for p in pools),
        attainment=result.attainment(ttft_s=slo.ttft_p99_s, tpot_s=slo.tpot_p99_s),
        requests=result.requests,
        rejected=result.rejected,
        overloaded=result.overloaded,
        result=result,
    )


def _first_length(design: FleetDesign, analytic: Metrics) -> int:
    """Requests of the first try: each replication long against the time the fleet takes to fill and to forget."""
    pools = analytic.pools
    active = float(np.sum(np.asarray(pools.active_batch) * np.asarray(pools.replicas)))
    slack = max(1.0 - float(analytic.utilization), 0.02)
    enough = min(8.0 * FILLINGS * active / slack, MOST_FIRST_REQUESTS)
    return max(default_requests(int(np.sum(design.replicas))), int(enough))


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
    """Factors per pool by which the simulator's P99s exceed the model's; the search divides the SLO by them."""

    ttft: np.ndarray
    tpot: np.ndarray

    LIMITS = (0.5, 4.0)

    @classmethod
    def none(cls, num_pools: int) -> Correction:
        """The model as it is."""
        return cls(np.ones(num_pools), np.ones(num_pools))

    def updated(
        self, pools: tuple[int, ...], verdict: Verification, model_ttft: np.ndarray, model_tpot: np.ndarray
    ) -> Correction:
        """The correction that makes the model agree with the simulator at the design just tried.

        Args:
            pools: place of each simulated pool among the search's pools.
            verdict: of the simulator.
            model_ttft, model_tpot: uncorrected P99s of the model at that design, per simulated pool.
        """
        ttft, tpot = self.ttft.copy(), self.tpot.copy()
        for at, pool, modelled_ttft, modelled_tpot in zip(pools, verdict.pools, model_ttft, model_tpot, strict=True):
            ttft[at] = _factor(pool.ttft_p99_s, modelled_ttft, pool.overloaded, self.LIMITS)
            tpot[at] = _factor(pool.tpot_p99_s, modelled_tpot, pool.overloaded, self.LIMITS)
        return Correction(ttft, tpot)


def _factor(simulated: Estimate | None, modelled: float, overloaded: bool, limits: tuple[float, float]) -> float:
    if overloaded:
        return limits[1]
    if simulated is None or not modelled > 0:
        return 1.0
    return float(np.clip(simulated.value / modelled, *limits))
