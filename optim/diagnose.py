"""Why a plan cannot be: the term that binds, in a sentence with its figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from jaxsim.profiles import Profile
from optim.cases import Case, Choice, case_metrics
from optim.problem import PlanProblem


class Infeasible(Enum):
    """Why no plan exists; the values are the sentences' beginnings."""

    PREFILL = "a prefill alone exceeds the TTFT objective"
    STEP = "a single step exceeds the TPOT objective"
    KV_CACHE = "a request exceeds the KV cache of one replica"
    GPU_CAP = "the cap on GPUs is too low"
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
