"""What the reference documents say of disaggregation: their model's pairs of pools, and their rule of thumb."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxsim.disagg import RULE_OF_THUMB_RPS, Factors, reference_decode, reference_prefill
from jaxsim.profiles import Profile
from jaxsim.workload import Workload
from optim.problem import PlanProblem


@dataclass(frozen=True)
class ReferencePair:
    """What the reference model says of a pair of profiles: least whole workers at the rate, and its figures."""

    prefill: Profile
    decode: Profile
    prefill_replicas: int
    decode_replicas: int
    rate: float
    ttft_s: float
    tpot_s: float
    usd_per_hour: float


def served_requests(problem: PlanProblem) -> tuple[Workload, float]:
    """The requests that are not rejected, and their rate."""
    workload = problem.limited
    kept = np.asarray(workload.total_tokens) <= problem.context
    weight = np.asarray(workload.weight)[kept]
    lengths = (np.asarray(workload.input_tokens)[kept], np.asarray(workload.output_tokens)[kept])
    served = Workload.from_lengths(
        *lengths,
        weight=weight,
        prefix_cache_hit_rate=workload.prefix_cache_hit_rate,
        name=workload.name,
        source=workload.source,
    )
    return served, problem.rate * float(weight.sum())


def rule_of_thumb(rate: float) -> str:
    """What the reference documents say of a rate."""
    seldom, often = RULE_OF_THUMB_RPS
    if rate < seldom:
        return f"rule of thumb: below {seldom:g} req/s seldom worth operating two pools"
    if rate < often:
        return f"rule of thumb: between {seldom:g} and {often:g} req/s it depends"
    return f"rule of thumb: from about {often:g} req/s on it can pay, at a longer TTFT"


def reference_pairs(problem: PlanProblem, factors: Factors = Factors()) -> tuple[ReferencePair, ...]:
    """Every pair of profiles by the reference model, at the workload's mean lengths; cheapest first."""
    served, rate = served_requests(problem)
    weight = np.asarray(served.weight)
    mean_input = float(weight @ np.asarray(served.input_tokens))
    mean_output = float(weight @ np.asarray(served.output_tokens))
    pairs = []
    for before in problem.profiles:
        for after in problem.profiles:
            first = reference_prefill(before, mean_input, max_context=problem.context, factors=factors)
            then = reference_decode(after, mean_output, max_context=problem.context, factors=factors)
            if float(first.rate) <= 0 or float(then.rate) <= 0:
                continue  # no slot for a request of the longest length
            workers = [int(np.ceil(rate / float(each.rate))) for each in (first, then)]
            pairs.append(
                ReferencePair(
                    prefill=before,
                    decode=after,
                    prefill_replicas=workers[0],
                    decode_replicas=workers[1],
                    rate=min(workers[0] * float(first.rate), workers[1] * float(then.rate)),
                    ttft_s=float(first.latency_s),
                    tpot_s=float(then.latency_s),
                    usd_per_hour=workers[0] * float(before.usd_per_hour) + workers[1] * float(after.usd_per_hour),
                )
            )
    return tuple(sorted(pairs, key=lambda pair: pair.usd_per_hour))
