"""Why a plan cannot be: the term that binds, in a sentence with its figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from jaxsim.evaluate import evaluate
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
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


def infeasible(problem: PlanProblem) -> tuple[Reason, ...]:
    """The reasons, best profile of each kind; empty where a single pool of some profile is feasible."""
    found = [reason for profile in problem.profiles if (reason := _floor(problem, profile)) is not None]
    return tuple(found) if len(found) == len(problem.profiles) else ()


def kv_misfit(problem: PlanProblem, profile: Profile) -> Reason | None:
    """A request that the fleet should take and the profile's KV cache cannot hold."""
    totals = np.asarray(problem.limited.total_tokens)
    longest = float(totals[totals <= problem.context].max())
    capacity = float(profile.kv_tokens)
    if longest <= capacity:
        return None
    share = problem.limited.share_above(capacity) - problem.rejected_share
    return Reason(
        Infeasible.KV_CACHE,
        f"a request of {longest:,.0f} tokens exceeds the KV cache of one {profile.name} replica "
        f"({capacity:,.0f} tokens; {share:.3%} of the requests do); lower max_context, or give a replica more GPUs",
    )


def _floor(problem: PlanProblem, profile: Profile) -> Reason | None:
    """What an idle replica cannot do; None where it meets everything."""
    if (reason := kv_misfit(problem, profile)) is not None:
        return reason
    design = FleetDesign.of(profile, [1.0], [problem.context])
    idle = evaluate(design, problem.limited, 1e-9, model=problem.model)
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
