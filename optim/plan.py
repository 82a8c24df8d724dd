"""plan: search -> verify, and again with a corrected model where the simulator disagrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import des
from des.execution import HERE, Execution
from jaxsim._checks import require_x64
from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from optim.binding import Binding, binding
from optim.cases import margins, sized_designs
from optim.diagnose import Infeasible, Reason, infeasible, over_budget
from optim.plan_power import PlanPower, plan_power, simulated_kilowatts
from optim.problem import PlanProblem
from optim.search import Certificate, Proposal, Search
from optim.sensitivity import Sensitivities, sensitivities
from optim.verify import Correction, Verification, verify

MAX_ROUNDS = 8
BISECTIONS = 6
PRECISION = 0.03
NEAR = 0.02
"""Gap to the bound, and gain of a next try over the best so far, that power is not known well enough to look beyond."""

Progress = Callable[[str], None]


class PlanStatus(Enum):
    """How planning ended. The values are the sentences."""

    VERIFIED = "plan found and verified by the simulator"
    UNVERIFIED = "plan found; the simulator was not asked"
    INFEASIBLE = "no plan meets the objectives"
    REFUSED = "the simulator said no to every candidate"


@dataclass(frozen=True)
class Round:
    """One try.

    Attributes:
        correction: of the model, used for the proposal.
        proposal: what was proposed.
        verification: what the simulator said; None where it was not asked.
        certificate: bound on what is to be least by the model as corrected after the verification.
        kilowatts: mean power at the meter that the simulator found; None where it was not asked, or not for power.
        met: whether the simulator said yes: to the SLO, and to a budget on power.
    """

    correction: Correction
    proposal: Proposal
    verification: Verification | None
    certificate: Certificate
    kilowatts: float | None = None
    met: bool = False


@dataclass(frozen=True)
class Plan:
    """The answer. Fields are None where `status` is INFEASIBLE.

    Attributes:
        design, analytic, usd_per_hour: the fleet and the model's figures of it.
        verification: the simulator's.
        certificate: lower bound and gap, under the (corrected) model.
        binding: what keeps each pool from having one replica less.
        reasons: why there is no plan.
        rounds: all tries, in order.
        power: of the fleet; None where the problem says nothing of power.
    """

    status: PlanStatus
    problem: PlanProblem
    seed: int
    design: FleetDesign | None = None
    analytic: Metrics | None = None
    usd_per_hour: float | None = None
    verification: Verification | None = None
    certificate: Certificate | None = None
    sensitivities: Sensitivities | None = None
    binding: tuple[Binding, ...] = ()
    reasons: tuple[Reason, ...] = ()
    rounds: tuple[Round, ...] = ()
    power: PlanPower | None = None


def plan(
    problem: PlanProblem,
    *,
    seed: int = 0,
    precision: float = PRECISION,
    simulate: bool = True,
    replications: int | None = None,
    execution: Execution = HERE,
    progress: Progress = lambda _: None,
) -> Plan:
    """The cheapest fleet that meets the SLO, or the least in what the problem's power terms say, checked by simulation.

    Args:
        problem: what to serve, and with what.
        seed: of the simulator; the search itself is deterministic.
        precision: relative half-width of the simulated P99s' 95 % intervals.
        simulate: False skips the check; the status then says so.
        replications: of each simulation, see `optim.verify.verify`.
        execution: who plays them, and where finished ones are kept: those of the first design tried in ``round-1``,
            and so on.
        progress: told what is being done, a few words at a time.

    Returns:
        Plan; infeasibility and the simulator's refusal are statuses, not exceptions.
    """
    require_x64()
    search = Search(problem)
    with ThreadPoolExecutor(2) as threads:  # what comes later compiles, or loads, meanwhile
        threads.submit(_warm_up, search)
        if simulate:
            threads.submit(des.prepare)
        check = partial(verify, seed=seed, precision=precision, replications=replications)
        rounds = tuple(_rounds(search, check if simulate else None, execution, progress))
    if not rounds:
        reasons = infeasible(problem, search.single) or _over_budget(problem) or (_no_split(),)
        return Plan(PlanStatus.INFEASIBLE, problem, seed, reasons=reasons)
    if (cap := _over_cap(problem, rounds[0].proposal)) is not None:
        return Plan(PlanStatus.INFEASIBLE, problem, seed, reasons=(cap,), rounds=rounds)
    return _conclude(problem, seed, rounds, simulate)


def _rounds(
    search: Search,
    check: Callable[..., Verification] | None,
    execution: Execution,
    progress: Progress,
) -> Iterator[Round]:
    """Propose, verify, correct; until nothing cheaper is possible, nothing new comes up or the rounds are used up."""
    problem = search.problem
    correction = Correction.none(problem.max_pools)
    tried: dict[tuple[object, ...], bool] = {}
    bracket = _Bracket(failed=None, met=None)
    near, best = (NEAR if problem.aim.kw > 0.0 else 0.0), np.inf
    for number in range(1, MAX_ROUNDS + 1):
        progress(f"round {number}: searching thresholds and sizes")
        if (fresh := _fresh(search, correction, bracket, tried)) is None:
            return
        used, proposal = fresh
        over_cap = _over_cap(problem, proposal) is not None
        if near > 0.0 and proposal.value > (1.0 - near) * best:
            return
        if over_cap and number > 1:
            return  # the last refusal stands: what might satisfy the simulator is above the cap
        if over_cap or check is None:
            yield Round(used, proposal, None, search.certificate(used, proposal.value))
            return
        progress(f"round {number}: simulating {_words(proposal.design)}")
        where = execution.within(f"round-{number}")
        verdict = check(proposal.design, problem, analytic=proposal.analytic, execution=where)
        kilowatts, most = _simulated_kilowatts(proposal, problem, verdict), problem.aim.max_kw
        met = verdict.slo_met and (kilowatts is None or bool(kilowatts <= most))
        tried[_key(proposal.design)] = met
        bracket = bracket._replace(met=used) if met else bracket._replace(failed=used)
        idle = search.idle(proposal).pools
        correction = used.updated(proposal.pools, verdict, proposal.analytic.pools, idle)
        if kilowatts is not None and proposal.kilowatts is not None and most < np.inf:
            correction = replace(correction, power=float(kilowatts / proposal.kilowatts))
        progress(f"round {number}: proving a bound")
        proof = search.certificate(correction, proposal.value)
        yield Round(used, proposal, verdict, proof, kilowatts, met)
        best = min(best, proposal.value) if met else best
        if met and proof.gap <= near:
            return


def _simulated_kilowatts(proposal: Proposal, problem: PlanProblem, verdict: Verification) -> float | None:
    return None if problem.power is None else simulated_kilowatts(proposal.design, problem.power, verdict.result)


def _warm_up(search: Search) -> None:
    """Build the programs that follow the search."""
    case, model = search.choice((0,) * search.problem.max_pools).case, search.problem.model
    upper, ones = np.full((1, case.num_pools), float(case.longest)), np.ones((1, case.num_pools))
    sized_designs(case, upper, model=model)
    margins(case, upper, ones, model=model)
    sensitivities(case, case.design(jnp.asarray(ones[0]), jnp.asarray(upper[0])), model=model)


class _Bracket(NamedTuple):
    """Corrections whose proposals the simulator last refused and accepted."""

    failed: Correction | None
    met: Correction | None


def _fresh(
    search: Search,
    learned: Correction,
    bracket: _Bracket,
    tried: dict[tuple[object, ...], bool],
) -> tuple[Correction, Proposal] | None:
    """A proposal not tried yet: with what was learned, else with a correction between the last no and the last yes."""
    proposal = search.propose(learned)
    if proposal is not None and _key(proposal.design) not in tried:
        return learned, proposal
    failed, met = bracket
    for _ in range(BISECTIONS):
        if failed is None or met is None:
            return None
        middle = failed.between(met)
        proposal = search.propose(middle)
        if proposal is None or tried.get(_key(proposal.design), False):
            met = middle
        elif _key(proposal.design) in tried:
            failed = middle
        else:
            return middle, proposal
    return None


def _conclude(problem: PlanProblem, seed: int, rounds: tuple[Round, ...], simulate: bool) -> Plan:
    """The best verified design; without one, the last that was tried."""
    met = [r for r in rounds if r.met]
    chosen = min(met, key=lambda r: r.proposal.value) if met else rounds[-1]
    proposal = chosen.proposal
    padded = proposal.padded
    replicas, upper = np.asarray(padded.replicas), np.asarray(padded.upper_tokens)
    bound = binding(proposal.case, replicas, upper, model=problem.model, powered=problem.aim.powered)
    slopes = sensitivities(proposal.case, padded, model=problem.model)
    return Plan(
        status=PlanStatus.VERIFIED if met else PlanStatus.REFUSED if simulate else PlanStatus.UNVERIFIED,
        problem=problem,
        seed=seed,
        design=proposal.design,
        analytic=proposal.analytic,
        usd_per_hour=proposal.usd_per_hour,
        verification=chosen.verification,
        certificate=chosen.certificate,
        sensitivities=slopes.of_pools(proposal.pools),
        binding=tuple(bound[p] for p in proposal.pools),
        rounds=rounds,
        power=plan_power(proposal, problem, None if chosen.verification is None else chosen.verification.result),
    )


def _over_budget(problem: PlanProblem) -> tuple[Reason, ...]:
    """What the fleet of least power draws, where a budget on power is all that is in the way."""
    if problem.power is None or not np.isfinite(problem.aim.max_kw):
        return ()
    free = replace(problem.power, minimize="energy", max_kw=None, max_kwh_per_million_tokens=None)
    search = Search(replace(problem, power=free))
    start = Correction.none(problem.max_pools)
    least = search.propose(start)
    return () if least is None else (over_budget(problem, least, search.certificate(start, least.value)),)


def _over_cap(problem: PlanProblem, proposal: Proposal) -> Reason | None:
    if problem.max_gpus is None or proposal.gpus <= problem.max_gpus:
        return None
    return Reason(
        Infeasible.GPU_CAP,
        f"the {'least-cost' if problem.aim.kw == 0.0 else 'best'} fleet needs {proposal.gpus:.0f} GPUs, above the cap "
        f"of {problem.max_gpus}; raise max_gpus, relax the SLO or lower the rate",
    )


def _no_split() -> Reason:
    return Reason(Infeasible.SPLIT, Infeasible.SPLIT.value)


def _key(design: FleetDesign) -> tuple[object, ...]:
    return (*design.replicas.tolist(), *design.upper_tokens.tolist(), *design.profile.name)


def _words(design: FleetDesign) -> str:
    parts = zip(design.replicas, design.profile.name, design.upper_tokens, strict=True)
    return " + ".join(f"{n:.0f} x {name} (to {upper:,.0f} tokens)" for n, name, upper in parts)
