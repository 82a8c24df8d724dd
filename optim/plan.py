"""plan: search -> verify, and again with a corrected model where the simulator disagrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import des
from jaxsim._checks import require_x64
from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from optim.binding import Binding, binding
from optim.cases import margins, sized_designs
from optim.diagnose import Infeasible, Reason, infeasible
from optim.problem import PlanProblem
from optim.search import Certificate, Proposal, Search
from optim.sensitivity import Sensitivities, sensitivities
from optim.verify import Correction, Verification, verify

MAX_ROUNDS = 8
BISECTIONS = 6
PRECISION = 0.03

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
        certificate: bound on the cost by the model as corrected after the verification.
    """

    correction: Correction
    proposal: Proposal
    verification: Verification | None
    certificate: Certificate


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


def plan(
    problem: PlanProblem,
    *,
    seed: int = 0,
    precision: float = PRECISION,
    simulate: bool = True,
    progress: Progress = lambda _: None,
) -> Plan:
    """The cheapest fleet that meets the SLO, checked by the simulator.

    Args:
        problem: what to serve, and with what.
        seed: of the simulator; the search itself is deterministic.
        precision: relative half-width of the simulated P99s' 95 % intervals.
        simulate: False skips the check; the status then says so.
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
        rounds = tuple(_rounds(search, seed, precision, simulate, progress))
    if not rounds:
        reasons = infeasible(problem, search.single) or (_no_split(),)
        return Plan(PlanStatus.INFEASIBLE, problem, seed, reasons=reasons)
    if (cap := _over_cap(problem, rounds[0].proposal)) is not None:
        return Plan(PlanStatus.INFEASIBLE, problem, seed, reasons=(cap,), rounds=rounds)
    return _conclude(problem, seed, rounds, simulate)


def _rounds(
    search: Search,
    seed: int,
    precision: float,
    simulate: bool,
    progress: Progress,
) -> Iterator[Round]:
    """Propose, verify, correct; until nothing cheaper is possible, nothing new comes up or the rounds are used up."""
    problem = search.problem
    correction = Correction.none(problem.max_pools)
    tried: dict[tuple[object, ...], bool] = {}
    bracket = _Bracket(failed=None, met=None)
    for number in range(1, MAX_ROUNDS + 1):
        progress(f"round {number}: searching thresholds and sizes")
        if (fresh := _fresh(search, correction, bracket, tried)) is None:
            return
        used, proposal = fresh
        over_cap = _over_cap(problem, proposal) is not None
        if over_cap and number > 1:
            return  # the last refusal stands: what might satisfy the simulator is above the cap
        if over_cap or not simulate:
            yield Round(used, proposal, None, search.certificate(used, proposal.usd_per_hour))
            return
        progress(f"round {number}: simulating {_words(proposal.design)}")
        verdict = verify(proposal.design, problem, analytic=proposal.analytic, seed=seed, precision=precision)
        tried[_key(proposal.design)] = verdict.slo_met
        bracket = bracket._replace(met=used) if verdict.slo_met else bracket._replace(failed=used)
        idle = search.idle(proposal).pools
        correction = used.updated(proposal.pools, verdict, proposal.analytic.pools, idle)
        progress(f"round {number}: proving a bound")
        proof = search.certificate(correction, proposal.usd_per_hour)
        yield Round(used, proposal, verdict, proof)
        if verdict.slo_met and proof.gap <= 0.0:
            return


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
    """The cheapest verified design; without one, the last that was tried."""
    met = [r for r in rounds if r.verification is not None and r.verification.slo_met]
    chosen = min(met, key=lambda r: r.proposal.usd_per_hour) if met else rounds[-1]
    proposal = chosen.proposal
    padded = proposal.padded
    bound = binding(proposal.case, np.asarray(padded.replicas), np.asarray(padded.upper_tokens), model=problem.model)
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
    )


def _over_cap(problem: PlanProblem, proposal: Proposal) -> Reason | None:
    if problem.max_gpus is None or proposal.gpus <= problem.max_gpus:
        return None
    return Reason(
        Infeasible.GPU_CAP,
        f"the least-cost fleet needs {proposal.gpus:.0f} GPUs, above the cap of {problem.max_gpus}; raise max_gpus, "
        "relax the SLO or lower the rate",
    )


def _no_split() -> Reason:
    return Reason(Infeasible.SPLIT, Infeasible.SPLIT.value)


def _key(design: FleetDesign) -> tuple[object, ...]:
    return (*design.replicas.tolist(), *design.upper_tokens.tolist(), *design.profile.name)


def _words(design: FleetDesign) -> str:
    parts = zip(design.replicas, design.profile.name, design.upper_tokens, strict=True)
    return " + ".join(f"{n:.0f} x {name} (to {upper:,.0f} tokens)" for n, name, upper in parts)
