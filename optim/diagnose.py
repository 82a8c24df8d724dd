"""Why a plan cannot be: the term that binds, in a sentence with its figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from jaxsim.profiles import Profile
from jaxsim.units import SECONDS_PER_HOUR, TOKENS_PER_MILLION
from optim.cases import Case, Choice, case_metrics
from optim.power_terms import GPUS_ALONE
from optim.problem import PlanProblem
from optim.search import Certificate, Proposal


class Infeasible(Enum):
    """Why no plan exists; the values are the sentences' beginnings."""

    PREFILL = "a prefill alone exceeds the TTFT objective"
    STEP = "a single step exceeds the TPOT objective"
    KV_CACHE = "a request exceeds the KV cache of one replica"
    GPU_CAP = "the cap on GPUs is too low"
    POWER = "the budget on power is too low"
    SPLIT = "no split of the requests meets the objectives in every pool"


@dataclass(frozen=True)
class Reason:
    """One reason why no plan exists, with its figures."""

    kind: Infeasible
    text: str


def infeasible(problem: PlanProblem, choices: tuple[Choice, ...]) -> tuple[Reason, ...]:
    """What each profile cannot do even idle; empty where one of them can take all requests in a single pool."""
    found: list[Reason] = []
    for profile in problem.profiles:
        if not problem.fits(profile):
            found.append(_misfit(problem, profile))
            continue
        case = next(c.case for c in choices if all(p is profile for p in c.profiles))
        if (reason := _floor(problem, profile, case)) is None:
            return ()
        found.append(reason)
    return tuple(found)


def over_budget(problem: PlanProblem, least: Proposal, proof: Certificate) -> Reason:
    """What the fleet of least power draws, against the tighter of the budgets."""
    assert problem.power is not None and least.kilowatts is not None
    terms, hourly = problem.power, problem.output_tokens_per_s * SECONDS_PER_HOUR / TOKENS_PER_MILLION
    draws, budget = f"{least.kilowatts:.4g} kW", f"max_kw of {terms.max_kw or 0.0:g} kW"
    if terms.max_kw is None or terms.max_kw > terms.budget_kw(hourly * TOKENS_PER_MILLION):
        draws += f", {least.kilowatts / hourly:.4g} kWh per million output tokens"
        budget = f"max_kwh_per_million_tokens of {terms.max_kwh_per_million_tokens:g} kWh"
    where = "at the GPUs" if terms.prices.pue == GPUS_ALONE else f"with a PUE of {terms.prices.pue:g}"
    engines = " + ".join(
        f"{n:.0f} x {name}" for n, name in zip(least.design.replicas, least.design.profile.name, strict=True)
    )
    return Reason(
        Infeasible.POWER,
        f"the least power found is {draws} {where} ({engines}; by the model no fleet of these profiles draws less than "
        f"{proof.lower_bound:.4g} kW), above the budget {budget}; raise it, relax the SLO, lower the rate or offer "
        "GPUs that serve more tokens per joule",
    )


def _misfit(problem: PlanProblem, profile: Profile) -> Reason:
    capacity = float(profile.kv_tokens)
    share = problem.limited.share_above(capacity) - problem.rejected_share
    return Reason(
        Infeasible.KV_CACHE,
        f"a request of {problem.longest_request:,.0f} tokens exceeds the KV cache of one {profile.name} replica "
        f"({capacity:,.0f} tokens; {share:.3%} of the requests do); lower max_context, or give a replica more GPUs",
    )


def _floor(problem: PlanProblem, profile: Profile, case: Case) -> Reason | None:
    """What an idle replica cannot do; None where it meets everything."""
    idle = case_metrics(*case.idle(), model=problem.model)
    ttft, tpot = float(idle.ttft_p99_s) * 1e3, float(idle.tpot_p99_s) * 1e3
    slo_ttft = problem.slo.ttft_p99_s * 1e3
    if ttft > slo_ttft and problem.model == "step":
        return Reason(
            Infeasible.PREFILL,
            f"on an idle {profile.name} the P99 TTFT is {ttft:.0f} ms, above the objective of {slo_ttft:.0f} ms: "
            "replicas do not shorten a single prefill; raise tensor parallelism, shorten prompts or relax the SLO",
        )
    slo_tpot = np.inf if problem.slo.tpot_p99_s is None else problem.slo.tpot_p99_s * 1e3
    if tpot > slo_tpot:
        return Reason(
            Infeasible.STEP,
            f"on an idle {profile.name} a step takes {tpot:.1f} ms (P99 TPOT), above the objective of "
            f"{slo_tpot:.1f} ms: replicas do not shorten a step; take a faster GPU, more tensor parallelism or relax "
            "the SLO",
        )
    return None
