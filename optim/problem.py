"""PlanProblem: what a plan must serve, under which objectives, with which hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from jaxsim._checks import invalid, unknown
from jaxsim.evaluate import MODELS
from jaxsim.profiles import Profile
from jaxsim.units import SECONDS_PER_HOUR
from jaxsim.workload import LONG_REQUESTS, Workload
from optim.power_terms import Aim, PowerTerms


@dataclass(frozen=True)
class SLO:
    """Service-level objectives on the 99th percentile; every pool must meet them, hence the fleet does.

    Attributes:
        ttft_p99_s: seconds, > 0 and finite.
        tpot_p99_s: seconds, > 0; None sets no objective on TPOT.
    """

    ttft_p99_s: float
    tpot_p99_s: float | None = None

    def __post_init__(self) -> None:
        _positive("ttft_p99_s", self.ttft_p99_s, "seconds; 500 ms is 0.5")
        if self.tpot_p99_s is not None:
            _positive("tpot_p99_s", self.tpot_p99_s, "seconds; 50 ms is 0.05; None sets no objective")


@dataclass(frozen=True)
class PlanProblem:
    """Least cost per hour, or what `power` says, such that every pool meets the SLO.

    Attributes:
        workload: joint lengths.
        rate: requests per second, > 0.
        profiles: hardware to choose from, one or more.
        slo: objectives.
        max_pools: pools allowed, >= 1.
        max_context: longest request (tokens in all) the fleet takes; None means the workload's longest.
        long_requests: what happens above `max_context`: "reject" or "truncate", counted either way.
        model: "step" or "kimura".
        max_gpus: cap on the GPUs of the whole fleet; None is no cap.
        power: laws and prices of power, what is to be least and budgets; None leaves power out.
    """

    workload: Workload
    rate: float
    profiles: tuple[Profile, ...]
    slo: SLO
    max_pools: int = 2
    max_context: float | None = None
    long_requests: str = "reject"
    model: str = "step"
    max_gpus: int | None = None
    power: PowerTerms | None = None
    limited: Workload = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _positive("rate", self.rate, "requests per second")
        if not isinstance(self.profiles, tuple) or not self.profiles:
            raise invalid(
                "profiles", self.profiles, "a tuple of one or more profiles", "(jaxsim.profile('h100-80gb'),)"
            )
        if not isinstance(self.max_pools, int) or not 1 <= self.max_pools <= 6:
            raise invalid("max_pools", self.max_pools, "a whole number from 1 to 6")
        if self.model not in MODELS:
            raise unknown("model", self.model, MODELS)
        if self.long_requests not in LONG_REQUESTS:
            raise unknown("long_requests policy", self.long_requests, LONG_REQUESTS)
        if self.max_context is not None and not (self.max_context >= 2 and math.isfinite(self.max_context)):
            raise invalid("max_context", self.max_context, "at least 2 tokens and finite")
        if self.max_gpus is not None and self.max_gpus < 1:
            raise invalid("max_gpus", self.max_gpus, ">= 1")
        if self.power is not None:
            self.power.check(self.profiles, self.model)
        object.__setattr__(self, "limited", self.workload.limited(self.context, self.long_requests))
        if float(np.min(self.limited.total_tokens)) > self.context:
            shortest = float(np.min(self.limited.total_tokens))
            raise invalid(
                "max_context",
                self.max_context,
                f">= the shortest request, {shortest:g} tokens",
                "every request would be rejected",
            )

    @property
    def context(self) -> float:
        """Longest request accepted, tokens."""
        longest = float(np.max(self.workload.total_tokens))
        return longest if self.max_context is None else float(self.max_context)

    @property
    def longest_request(self) -> float:
        """Longest request that occurs and is accepted, tokens."""
        totals = np.asarray(self.limited.total_tokens)
        return float(totals[totals <= self.context].max())

    def fits(self, profile: Profile) -> bool:
        """Whether the KV cache of one replica holds every accepted request."""
        return self.longest_request <= float(profile.kv_tokens)

    @property
    def rejected_share(self) -> float:
        """Share of requests above `context` that the policy rejects."""
        return self.limited.share_above(self.context)

    @property
    def output_tokens_per_s(self) -> float:
        """Of the accepted requests: the same for every fleet."""
        lengths = self.limited
        weight = np.asarray(lengths.weight) * (np.asarray(lengths.total_tokens) <= self.context)
        return self.rate * float(weight @ np.asarray(lengths.output_tokens))

    @property
    def aim(self) -> Aim:
        """What a fleet is the least of, and its budgets."""
        most = np.inf if self.max_gpus is None else float(self.max_gpus)
        if self.power is None:
            return Aim(max_gpus=most)
        return self.power.aim(self.output_tokens_per_s * SECONDS_PER_HOUR, most)

    def with_rate(self, rate: float) -> PlanProblem:
        """The same problem at another rate."""
        return replace(self, rate=rate)


def _positive(name: str, value: float, hint: str) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not (value > 0 and math.isfinite(value)):
        raise invalid(name, value, "> 0 and finite", hint)
