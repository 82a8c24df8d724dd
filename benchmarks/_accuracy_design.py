"""The fixed design of the accuracy scoreboard: which fleets, under which load, and what each serves.

Some 240 points of an unscrambled Sobol sequence, so nothing is drawn: every level of a factor meets every level of
every other factor about equally often. Loads are set by the laws of `jaxsim.physics` alone, so that a simulated point
stays valid whatever becomes of the analytical model.

- ``constant``: every running request adds the same to each of its steps, what the profile says of the mean context
  held; no prefill work.
- ``growing``: the profile's decode, context growing token by token; no prefill work.
- ``prefill``: the profile as it is.

The KV cache never binds: each engine has blocks for its whole limit of longest requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

import jaxsim
from jaxsim import physics

GROUPS = ("constant", "growing", "prefill")
WORKLOADS = ("azure-code", "azure-conversation", "mooncake-conversation", "sharegpt", "agent", "lognormal")
PROFILES = (
    "llama-3.1-70b@h100-sxm:tp4:fp8:vllm",
    "llama-3.1-70b@h200:tp2:fp8:trtllm",
    "llama-3.1-70b@b200:tp2:nvfp4:vllm",
    "llama-3.1-70b@a100-80gb-sxm:tp4:kernels",
    "llama-3.1-8b@h100-sxm:tp1:trtllm",
    "llama-3.1-8b@l40s:tp1:kernels",
    "qwen3-32b@h100-sxm:tp4:vllm",
    "qwen3-32b@h200:tp2:kernels",
)
LIMITS = (8, 16, 32, 64, 128, 256, 512)
UTILIZATIONS = (0.3, 0.5, 0.65, 0.8, 0.9, 0.95)
DISPATCH = ("least-loaded", "round-robin", "random")
FEW = (2, 3, 4)
MANY_SLOTS = 2048
MANY = (24, 16, 8)
"""Engines of a large fleet: the most whose slots are at most `MANY_SLOTS`, or else the last."""

NUM_POINTS = 240
_SOBOL_LOG2 = 8

LOGNORMAL_ROWS_LOG2 = 13
LOGNORMAL_MEANS = (2000.0, 300.0)
LOGNORMAL_CV2 = (1.5, 4.0)
LOGNORMAL_CORRELATION = 0.3
LOGNORMAL_LONGEST = (65_536.0, 8_192.0)


@dataclass(frozen=True)
class Point:
    """One fleet under one load. `dispatch` is that of `des`; with one replica it does nothing."""

    number: int
    group: str
    workload: str
    profile: str
    limit: int
    utilization: float
    replicas: int
    dispatch: str

    @property
    def fleet(self) -> str:
        """``one engine``, or how several are dispatched to."""
        return "one engine" if self.replicas == 1 else self.dispatch

    @property
    def label(self) -> str:
        """In words."""
        engines = "one engine" if self.replicas == 1 else f"{self.replicas} engines, {self.dispatch}"
        return (
            f"{self.group}: {self.workload} on {self.profile}, limit {self.limit}, utilization {self.utilization:g}, "
            f"{engines}"
        )


def points() -> list[Point]:
    """The whole design."""
    sizes = (len(WORKLOADS), len(PROFILES), len(GROUPS), len(LIMITS), len(UTILIZATIONS), 3, len(DISPATCH), len(FEW))
    places = qmc.Sobol(len(sizes), scramble=False).random_base2(_SOBOL_LOG2)[:NUM_POINTS]
    levels = np.floor(places * np.asarray(sizes)).astype(int).tolist()
    return [_point(number, *row) for number, row in enumerate(levels)]


def quick_points() -> list[Point]:
    """Small points that run in a second each, of each group: for a smoke test."""
    small = [p for p in points() if p.replicas <= 4 and p.utilization <= 0.5 and p.workload != "agent"]
    return [next(p for p in small if p.group == group and p.limit <= 64) for group in GROUPS]


def _point(
    number: int, workload: int, profile: int, group: int, limit: int, load: int, size: int, dispatch: int, few: int
) -> Point:
    slots = LIMITS[limit]
    many = next((engines for engines in MANY if engines * slots <= MANY_SLOTS), MANY[-1])
    return Point(
        number=number,
        group=GROUPS[group],
        workload=WORKLOADS[workload],
        profile=PROFILES[profile],
        limit=slots,
        utilization=UTILIZATIONS[load],
        replicas=(1, FEW[few], many)[size],
        dispatch=DISPATCH[dispatch] if size else DISPATCH[0],
    )


class Case(NamedTuple):
    """A point with what it serves, the fleet that serves it, and the rate (requests per second) of its utilisation."""

    point: Point
    workload: jaxsim.Workload
    design: jaxsim.FleetDesign
    rate: float


def cases(chosen: list[Point]) -> Iterator[Case]:
    """The points made concrete."""
    for point in chosen:
        workload = served(point.workload)
        profile = adapted(point, workload)
        longest = float(np.max(workload.total_tokens))
        rate = point.utilization * point.replicas / full_engine_s(profile, workload)
        yield Case(point, workload, jaxsim.FleetDesign.of(profile, [point.replicas], [longest]), rate)


@cache
def served(name: str) -> jaxsim.Workload:
    """A workload of the design by name."""
    return lognormal() if name == "lognormal" else jaxsim.workload(name)


def lognormal() -> jaxsim.Workload:
    """Heavy-tailed prompts and outputs, correlated, at the points of a Sobol sequence."""
    places = qmc.Sobol(2, scramble=False).random_base2(LOGNORMAL_ROWS_LOG2)
    z = ndtri(places + 0.5 / len(places))
    z[:, 1] = LOGNORMAL_CORRELATION * z[:, 0] + np.sqrt(1.0 - LOGNORMAL_CORRELATION**2) * z[:, 1]
    spread = np.sqrt(np.log1p(LOGNORMAL_CV2))
    tokens = np.ceil(np.asarray(LOGNORMAL_MEANS) * np.exp(spread * z - spread**2 / 2.0))
    inputs, outputs = np.clip(tokens, 1.0, LOGNORMAL_LONGEST).T
    return jaxsim.Workload.from_lengths(inputs, outputs, name="lognormal", source="lognormal lengths")


def adapted(point: Point, workload: jaxsim.Workload) -> jaxsim.Profile:
    """The profile of a point: its limit, ample KV cache, and the work of its group."""
    profile = jaxsim.profile(point.profile)
    longest = np.ceil(np.max(workload.total_tokens) / profile.block_tokens)
    changes: dict[str, Any] = {"max_num_seqs": point.limit, "kv_blocks": point.limit * longest}
    if point.group != "prefill":
        changes |= {"prefill_per_token_s": 0.0, "prefill_per_token2_s": 0.0}
    if point.group == "constant":
        per_sequence = profile.per_sequence_s + profile.per_token_s * mean_context(profile, workload)
        changes |= {"per_sequence_s": per_sequence, "per_token_s": 0.0}
    return replace(profile, **{name: np.asarray(value, dtype=np.float64) for name, value in changes.items()})


def mean_context(profile: jaxsim.Profile, workload: jaxsim.Workload) -> float:
    """Tokens that a running request holds, averaged over its steps."""
    tokens = physics.StepLaw(1.0, 0.0, 1.0, 0.0, 0.0)
    steps, held = _steps_and_work(tokens, profile, workload)
    return held / steps


def full_engine_s(profile: jaxsim.Profile, workload: jaxsim.Workload) -> float:
    r"""Seconds of a full engine that one request takes, $E[K] W / N + E[V]$: the inverse of its capacity."""
    steps, work = _steps_and_work(profile.law, profile, workload)
    return float(steps * profile.step_base_s / profile.max_num_seqs + work)


def _steps_and_work(law: physics.StepLaw, profile: jaxsim.Profile, workload: jaxsim.Workload) -> tuple[float, float]:
    """Mean steps of a request, and its mean work under a law."""
    inputs, outputs, weight = (np.asarray(v) for v in (workload.input_tokens, workload.output_tokens, workload.weight))
    work = physics.step_work(law, float(profile.chunk_tokens), inputs, outputs)
    in_all = physics.prefill_work(work) + physics.decode_work(work)
    return float(weight @ physics.total_steps(work)), float(weight @ in_all)
