"""disagg: the cheapest prefill and decode pools that meet the SLO, simulated, beside the best plain fleet.

TTFT rests on the prefill pool and the link, TPOT on the decode pool, so each pool is sized by itself: for every profile
the model says how many replicas its objective needs, the simulator says yes or no, and the answer corrects the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import des
from des import Estimate, SimulationResult
from des.simulate import default_requests
from jaxsim.disagg import DisaggMetrics, Factors, Phases, disagg_metrics, phases
from jaxsim.evaluate import PoolDemand
from jaxsim.fleet import FleetDesign
from jaxsim.kv_transfer import KvTransfer
from jaxsim.profiles import Profile
from optim.cases import IDLE_RATE
from optim.disagg_reference import ReferencePair, reference_pairs, rule_of_thumb, served_requests
from optim.plan import PRECISION, Plan, PlanStatus, plan
from optim.problem import PlanProblem
from optim.sizing import Targets, required_replicas, whole_replicas
from optim.verify import Correction, corrected_target, excess_factor

Progress = Callable[[str], None]

MAX_ROUNDS = 12
QUANTILE = 0.99


class DisaggStatus(Enum):
    """How it ended. The values are the sentences."""

    VERIFIED = "disaggregated fleet found and verified by the simulator"
    UNVERIFIED = "disaggregated fleet found; the simulator was not asked"
    INFEASIBLE = "no disaggregated fleet meets the objectives"
    REFUSED = "the simulator said no to every candidate"


class Advice(Enum):
    """Which of the two fleets costs less at equal SLO. The values are the sentences."""

    DISAGGREGATE = "disaggregate: the two pools cost less than the best fleet that serves whole requests"
    AGGREGATE = "do not disaggregate: a fleet that serves whole requests costs no more"
    ONLY_DISAGGREGATED = "disaggregate: no fleet that serves whole requests meets the objectives"
    NEITHER = "neither kind of fleet meets the objectives"


@dataclass(frozen=True)
class PhaseTry:
    """One size of one pool and whether the simulator held its objective met; None where it was not asked."""

    replicas: int
    met: bool | None


@dataclass(frozen=True)
class DisaggFleet:
    """A disaggregated fleet and what is known of it.

    Attributes:
        prefill, decode: hardware of the pools.
        prefill_replicas, decode_replicas: whole numbers.
        analytic: the model's figures.
        ttft_p99_s, tpot_p99_s: the simulator's; None where it was not asked (TPOT: where no request has a second
            token).
        result: the whole simulation.
    """

    prefill: Profile
    decode: Profile
    prefill_replicas: int
    decode_replicas: int
    analytic: DisaggMetrics
    ttft_p99_s: Estimate | None = None
    tpot_p99_s: Estimate | None = None
    result: SimulationResult | None = None

    @property
    def usd_per_hour(self) -> float:
        """Of both pools."""
        before, after = (
            self.prefill_replicas * self.prefill.usd_per_hour,
            self.decode_replicas * self.decode.usd_per_hour,
        )
        return float(before + after)

    @property
    def gpus(self) -> float:
        """Of both pools."""
        before = self.prefill_replicas * self.prefill.gpus_per_replica
        return float(before + self.decode_replicas * self.decode.gpus_per_replica)


@dataclass(frozen=True)
class DisaggPlan:
    """The answer.

    Attributes:
        fleet: None where infeasible; the last one tried where the simulator refused all.
        aggregated: the best fleet that serves whole requests, for the same problem.
        advice: which costs less; a fleet that was refused counts as none.
        rule_of_thumb: what the reference documents say of such a rate.
        reference: their own model's pairs, cheapest first.
        reasons: why there is no fleet.
        tries: sizes that the simulator was asked about, by pool.
    """

    status: DisaggStatus
    problem: PlanProblem
    link: KvTransfer
    aggregated: Plan
    advice: Advice
    rule_of_thumb: str
    reference: tuple[ReferencePair, ...]
    fleet: DisaggFleet | None = None
    reasons: tuple[str, ...] = ()
    tries: tuple[tuple[PhaseTry, PhaseTry], ...] = ()


@dataclass
class _Phase:
    """One pool being sized: the bracket of what the simulator said, and the correction of the model.

    Attributes:
        profile, demand: its hardware and requests.
        targets: the objective, in the uncorrected model.
        floor_s: its P99 without load, which no number of replicas lowers.
        objective_s: the objective.
        factor: simulated over modelled excess above the floor.
        most_failed, least_met: replicas.
    """

    profile: Profile
    demand: PoolDemand
    figure: str
    floor_s: float
    objective_s: float
    factor: float = 1.0
    most_failed: int = 0
    least_met: int | None = None

    def proposal(self) -> int | None:
        """Replicas that the corrected model asks for, strictly inside the bracket; None where no number is enough."""
        target = corrected_target(self.objective_s, self.floor_s, self.factor)
        size = _size(self.demand, **{self.figure: jnp.asarray(target)})
        if size is None and self.least_met is None:
            return None if self.factor == 1.0 else 2 * max(self.most_failed, 1)
        wanted = self.most_failed + 1 if size is None else max(size, self.most_failed + 1)
        return wanted if self.least_met is None else min(wanted, self.least_met)

    @property
    def settled(self) -> bool:
        """Whether one replica less was refused."""
        return self.least_met is not None and self.least_met == self.most_failed + 1

    def learn(self, replicas: int, met: bool, simulated: float, modelled: float) -> None:
        """What the simulator said of a number of replicas."""
        if met:
            self.least_met = replicas
        else:
            self.most_failed = max(self.most_failed, replicas)
        if np.isfinite(modelled) and np.isfinite(simulated):
            self.factor = excess_factor(simulated, modelled, self.floor_s)
        elif not met:
            self.factor = Correction.LIMITS[1]


def disagg(
    problem: PlanProblem,
    link: KvTransfer,
    *,
    factors: Factors = Factors(),
    seed: int = 0,
    precision: float = PRECISION,
    simulate: bool = True,
    progress: Progress = lambda _: None,
) -> DisaggPlan:
    """The cheapest disaggregated fleet that meets the SLO, and the best aggregated one beside it.

    Args:
        problem: what to serve; an objective on TPOT is required, without one nothing sizes the decode pool.
        link: from prefill to decode.
        factors: constants of the reference model.
        seed: of the simulator.
        precision: relative half-width of the simulated P99s' 95 % intervals.
        simulate: False skips the check; the status then says so.
        progress: told what is being done.

    Raises:
        ValueError: no objective on TPOT.
    """
    if problem.slo.tpot_p99_s is None:
        raise ValueError("slo.tpot_p99_ms is required for disaggregation: without it nothing sizes the decode pool")
    progress("the best fleet that serves whole requests")
    aggregated = plan(problem, seed=seed, precision=precision, simulate=simulate, progress=progress)
    progress("sizing prefill and decode pools")
    reasons: list[str] = []
    none = DisaggPlan(
        status=DisaggStatus.INFEASIBLE,
        problem=problem,
        link=link,
        aggregated=aggregated,
        advice=_advice(None, aggregated),
        rule_of_thumb=rule_of_thumb(problem.rate),
        reference=reference_pairs(problem, factors),
    )
    candidates = _candidates(problem, link, reasons)
    if candidates is None:
        return replace(none, reasons=tuple(reasons))
    found, whole, tries = _search(problem, link, *candidates, seed, precision, simulate, progress)
    met = found.result is None or whole
    status = DisaggStatus.UNVERIFIED if found.result is None else DisaggStatus.VERIFIED if met else DisaggStatus.REFUSED
    return replace(none, status=status, advice=_advice(found if met else None, aggregated), fleet=found, tries=tries)


def _candidates(problem: PlanProblem, link: KvTransfer, reasons: list[str]) -> tuple[_Phase, _Phase] | None:
    """The cheapest hardware of each pool by the model; None, with reasons, where an objective is out of reach."""
    slo, (served, rate) = problem.slo, served_requests(problem)
    best: dict[str, tuple[float, _Phase]] = {}
    for profile in problem.profiles:
        if not problem.fits(profile):
            reasons.append(f"{profile.name} cannot hold the longest request, {problem.longest_request:,.0f} tokens")
            continue
        found = phases(profile, profile, served, rate, link)
        if float(found.link_load) >= 1.0:
            reasons.append(f"the link would be busy {float(found.link_load):.3g} of the time: it needs more bandwidth")
            return None
        ttft = slo.ttft_p99_s - float(found.transfer_p99_s)
        idle = _metrics(_at_rate(found, IDLE_RATE), 1, 1)
        floors = float(idle.ttft_p99_s) - float(found.transfer_p99_s), float(idle.tpot_p99_s)
        for name, demand, figure, objective, floor in (
            ("prefill", found.prefill, "ttft_s", ttft, floors[0]),
            ("decode", found.decode, "tpot_s", float(slo.tpot_p99_s or np.inf), floors[1]),
        ):
            size = _size(demand, **{figure: jnp.asarray(objective)}) if objective > 0 else None
            if size is None:
                reasons.append(
                    f"{name} on {profile.name}: P99 {figure[:4].upper()} of {1e3 * max(objective, 0.0):,.4g} ms is out "
                    f"of reach, without load it is {1e3 * floor:,.4g} ms"
                )
                continue
            price = size * float(profile.usd_per_hour)
            if name not in best or price < best[name][0]:
                best[name] = price, _Phase(profile, demand, figure, floor, objective)
    if len(best) < 2:
        return None
    return best["prefill"][1], best["decode"][1]


def _search(
    problem: PlanProblem,
    link: KvTransfer,
    prefill: _Phase,
    decode: _Phase,
    seed: int,
    precision: float,
    simulate: bool,
    progress: Progress,
) -> tuple[DisaggFleet, bool, tuple[tuple[PhaseTry, PhaseTry], ...]]:
    """Ask the simulator about sizes until one replica less of either pool was refused, or the rounds are used up."""
    both = phases(prefill.profile, decode.profile, *served_requests(problem), link)
    tries: list[tuple[PhaseTry, PhaseTry]] = []
    best: DisaggFleet | None = None
    last: DisaggFleet | None = None
    for number in range(1, MAX_ROUNDS + 1):
        sizes = [phase.proposal() for phase in (prefill, decode)]
        if any(size is None for size in sizes):
            break
        before, after = (int(size or 0) for size in sizes)
        fleet = DisaggFleet(prefill.profile, decode.profile, before, after, _metrics(both, before, after))
        if not simulate:
            return fleet, True, ((PhaseTry(before, None), PhaseTry(after, None)),)
        progress(f"round {number}: simulating {before} prefill and {after} decode replicas")
        fleet = _simulated(fleet, problem, link, seed, precision)
        met = _met(fleet, problem)
        tries.append((PhaseTry(before, met[0]), PhaseTry(after, met[1])))
        last = fleet
        if all(met) and (best is None or fleet.usd_per_hour < best.usd_per_hour):
            best = fleet
        figures = (fleet.ttft_p99_s, fleet.tpot_p99_s)
        shift = float(both.transfer_p99_s)
        models = (float(fleet.analytic.ttft_p99_s) - shift, float(fleet.analytic.tpot_p99_s))
        for phase, size, yes, figure, model, off in zip(
            (prefill, decode), (before, after), met, figures, models, (shift, 0.0), strict=True
        ):
            phase.learn(size, yes, np.inf if figure is None else figure.value - off, model)
        if best is not None and prefill.settled and decode.settled:
            break
        if best is not None and (prefill.proposal(), decode.proposal()) == (before, after):
            break  # the corrected model asks for what was just verified
    found = best or last
    assert found is not None  # the candidates were feasible by the model, so something was tried
    return found, best is not None, tuple(tries)


def _simulated(fleet: DisaggFleet, problem: PlanProblem, link: KvTransfer, seed: int, precision: float) -> DisaggFleet:
    """The fleet with the simulator's figures."""
    replicas, context = [float(fleet.prefill_replicas), float(fleet.decode_replicas)], problem.context
    design = FleetDesign.of([fleet.prefill, fleet.decode], replicas, [context, context])
    result = des.simulate(
        design,
        problem.limited,
        rate=problem.rate,
        num_requests=default_requests(int(sum(replicas))),
        seed=seed,
        precision=precision,
        transfer=link,
        decided=lambda result: _clearly_missed(result, problem),
    )
    ttft, tpot = (sample.quantile(QUANTILE) if sample.n else None for sample in (result.ttft, result.tpot))
    return replace(fleet, ttft_p99_s=ttft, tpot_p99_s=tpot, result=result)


def _clearly_missed(result: SimulationResult, problem: PlanProblem) -> bool:
    """Both intervals lie wholly on one side of their objectives, one of them above."""
    slo, sides = problem.slo, []
    for sample, limit in ((result.ttft, slo.ttft_p99_s), (result.tpot, slo.tpot_p99_s)):
        if sample.n and limit is not None:
            p99 = sample.quantile(QUANTILE)
            sides.append(1 if p99.low > limit else -1 if p99.high <= limit else 0)
    return 1 in sides and 0 not in sides


def _met(fleet: DisaggFleet, problem: PlanProblem) -> tuple[bool, bool]:
    """Whether TTFT and TPOT lie below their objectives, intervals included, and the pools keep up."""
    result, slo = fleet.result, problem.slo
    assert result is not None
    ttft, tpot = fleet.ttft_p99_s, fleet.tpot_p99_s
    keeps_up = not result.pools[0].overloaded and result.link_load < 1.0
    before = ttft is not None and ttft.high <= slo.ttft_p99_s and keeps_up
    after = tpot is None or (tpot.high <= (slo.tpot_p99_s or np.inf) and not result.pools[1].overloaded)
    return before, after


def _metrics(found: Phases, before: int, after: int) -> DisaggMetrics:
    return disagg_metrics(found, jnp.asarray(float(before)), jnp.asarray(float(after)))


def _at_rate(found: Phases, rate: float) -> Phases:
    """The same requests at another rate."""
    return eqx.tree_at(lambda f: (f.prefill.rate, f.decode.rate), found, (jnp.asarray(rate), jnp.asarray(rate)))


@eqx.filter_jit
def _required(demand: PoolDemand, targets: Targets) -> tuple[Any, Any]:
    size = required_replicas(demand, targets, relaxed=False)
    return size.replicas, size.feasible


def _size(demand: PoolDemand, *, ttft_s: Any = None, tpot_s: Any = None) -> int | None:
    """Whole replicas for one objective; None where no number is enough."""
    none = jnp.asarray(np.inf)
    replicas, feasible = _required(
        demand, Targets(none if ttft_s is None else ttft_s, none if tpot_s is None else tpot_s)
    )
    return max(int(whole_replicas(np.atleast_1d(replicas))[0]), 1) if bool(feasible) else None


def _advice(fleet: DisaggFleet | None, aggregated: Plan) -> Advice:
    plain = aggregated.usd_per_hour if aggregated.status in (PlanStatus.VERIFIED, PlanStatus.UNVERIFIED) else None
    if fleet is None:
        return Advice.NEITHER if plain is None else Advice.AGGREGATE
    if plain is None:
        return Advice.ONLY_DISAGGREGATED
    return Advice.DISAGGREGATE if fleet.usd_per_hour < plain else Advice.AGGREGATE
