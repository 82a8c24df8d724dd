"""What the page can choose from, and a question with its names looked up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxsim.embedded import workload as embedded
from jaxsim.embedded import workload_names
from jaxsim.measured import measured_laws
from jaxsim.profiles import Profile, profile, profile_names
from jaxsim.workload import Workload
from optim.problem import SLO, PlanProblem
from optim.web.question import Question, WorkloadAsked
from optim.web.refusals import RefusalError, from_error
from optim.web.uploads import Uploads

EXAMPLE = {
    "workload": {"name": "azure-conversation"},
    "rate_rps": 50.0,
    "ttft_p99_ms": 1000.0,
    "tpot_p99_ms": 50.0,
    "max_context": 16384.0,
    "model": "step",
    "pools": [
        {"profile": "llama-3.1-70b@h100-sxm:tp4:fp8:vllm", "replicas": 6, "upper_tokens": 4096.0},
        {"profile": "llama-3.1-70b@h100-sxm:tp4:fp8:vllm", "replicas": 3},
    ],
}
"""What the page starts with."""


@dataclass(frozen=True)
class Resolved:
    """A question with its names looked up.

    Attributes:
        key: of the workload, for what is remembered of it.
        problem: load, objectives and the profiles of the pools, at the prices given.
        profiles: of each pool.
        upper_tokens, replicas: of each pool.
        rate_is_own: whether the rate is the workload's.
    """

    question: Question
    key: str
    problem: PlanProblem
    profiles: tuple[Profile, ...]
    upper_tokens: tuple[float, ...]
    replicas: tuple[int, ...]
    rate_is_own: bool

    @property
    def num_pools(self) -> int:
        """Pools, a static number."""
        return len(self.profiles)


def workload_asked(asked: WorkloadAsked, uploads: Uploads) -> tuple[str, Workload]:
    """The workload of a question, and a key of it.

    Raises:
        RefusalError: none or both are named, or there is no such one.
    """
    if (asked.name is None) == (asked.upload is None):
        found = "both" if asked.name is not None else "none"
        raise RefusalError("workload", found, allowed="exactly one of name and upload")
    if asked.upload is not None:
        return f"upload:{asked.upload}", uploads.workload(asked.upload)
    if asked.name not in workload_names():
        hint = "a trace of your own: upload it"
        raise RefusalError("workload.name", asked.name, allowed=f"one of {', '.join(workload_names())}", hint=hint)
    return f"name:{asked.name}", embedded(str(asked.name))


def profile_asked(name: str, *, usd_per_gpu_hour: float | None = None) -> Profile:
    """A profile by name, never by path, at a price.

    Raises:
        RefusalError: unknown, or one that cannot be built.
    """
    try:
        found = profile(name)
    except (ValueError, KeyError, OverflowError, ArithmeticError) as error:
        raise from_error(error, "profile") from error
    if usd_per_gpu_hour is None:
        return found
    return eqx.tree_at(lambda p: p.usd_per_gpu_hour, found, np.asarray(usd_per_gpu_hour, dtype=float))


def resolve(question: Question, uploads: Uploads) -> Resolved:
    """Look everything up and check what only the whole question can tell.

    Raises:
        RefusalError: an unknown name, or a value out of its domain.
    """
    key, workload = workload_asked(question.workload, uploads)
    rate = question.rate_rps if question.rate_rps is not None else workload.rate
    if rate is None:
        hint = f"workload {workload.name!r} has no rate of its own"
        raise RefusalError("rate_rps", None, allowed="requests per second, > 0", hint=hint)
    prices = question.usd_per_gpu_hour
    profiles = tuple(profile_asked(p.profile, usd_per_gpu_hour=prices.get(p.profile)) for p in question.pools)
    try:
        problem = PlanProblem(
            workload=workload,
            rate=rate,
            profiles=distinct(profiles),
            slo=slo_of(question),
            max_pools=len(profiles),
            max_context=question.max_context,
            model=question.model,
        )
    except ValueError as error:
        raise from_error(error) from error
    upper = _thresholds(question, problem.context)
    replicas = tuple(pool.replicas for pool in question.pools)
    return Resolved(question, key, problem, profiles, upper, replicas, question.rate_rps is None)


def slo_of(question: Question) -> SLO:
    """The objectives in seconds."""
    tpot = None if question.tpot_p99_ms is None else question.tpot_p99_ms / 1e3
    return SLO(ttft_p99_s=question.ttft_p99_ms / 1e3, tpot_p99_s=tpot)


def distinct(profiles: Iterable[Profile]) -> tuple[Profile, ...]:
    """Each profile once, by name."""
    return tuple({str(one.name): one for one in profiles}.values())


def _thresholds(question: Question, context: float) -> tuple[float, ...]:
    """upper_tokens of each pool, whole and ascending; that of the last is the longest request."""
    found: list[float] = []
    last = len(question.pools) - 1
    for at, pool in enumerate(question.pools):
        what, upper = f"pools.{at}.upper_tokens", pool.upper_tokens
        if at == last:
            if upper is not None and upper != context:
                hint = "the last pool takes all that is longer; set max_context"
                raise RefusalError(what, upper, allowed="left out for the last pool", hint=hint)
            upper = context
        if upper is None or upper != math.floor(upper):
            raise RefusalError(what, upper, allowed="a whole number of tokens for every pool but the last")
        least = found[-1] if found else 1.0
        if not least < upper <= context or (at < last and upper == context):
            allowed = f"more than {least:g} and less than the longest request, {context:g} tokens"
            raise RefusalError(what, upper, allowed=allowed, hint="pools are in order of length")
        found.append(upper)
    return tuple(found)


def profile_facts(one: Profile) -> dict[str, Any]:
    """What the page shows of a profile."""
    return {
        "name": one.name,
        "gpu": one.gpu,
        "source": one.source,
        "usd_per_gpu_hour": float(one.usd_per_gpu_hour),
        "gpus_per_replica": float(one.gpus_per_replica),
        "kv_tokens": float(one.kv_tokens),
        "max_num_seqs": float(one.max_num_seqs),
    }


def choices() -> dict[str, Any]:
    """Names to choose from: workloads, presets, and profiles fitted to measurements."""
    return {
        "workloads": list(workload_names()),
        "presets": list(profile_names()),
        "measured": [name for name in measured_laws() if not name.endswith(":kernels")],
        "kernels": [name for name in measured_laws() if name.endswith(":kernels")],
        "example": EXAMPLE,
    }


def uppers(resolved: Resolved) -> Any:
    """Thresholds as an array."""
    return jnp.asarray(np.asarray(resolved.upper_tokens, dtype=float))
