"""What the page asks: a workload, a load, objectives, prices and pools, checked before anything is computed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from optim.table_types import Count, Positive, Table, Text, Tokens

Price = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=120)]
Replicas = Annotated[int, Field(ge=1, le=100_000)]
UploadId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]

MAX_POOLS = 6


class WorkloadAsked(Table):
    """What is served: exactly one of the two."""

    name: Name | None = Field(None, description="one that comes with the package")
    upload: UploadId | None = Field(None, description="id of an uploaded trace")


class PoolAsked(Table):
    """A pool of the fleet that the sliders stand for."""

    profile: Name
    replicas: Replicas
    upper_tokens: Tokens | None = Field(None, description="threshold; the last pool has none")


class Question(Table):
    """The state of the page.

    Attributes:
        workload: what is served.
        rate_rps: requests per second; left out, the workload's own.
        ttft_p99_ms, tpot_p99_ms: objectives; TPOT may be left out.
        max_context: longest request, tokens; left out, the workload's longest.
        model: "step" or "kimura".
        pools: the fleet of the sliders, shortest requests first.
        profiles: hardware to plan with; left out, that of the pools.
        max_pools: to plan with.
        max_gpus: cap to plan with; left out, none.
        usd_per_gpu_hour: prices by profile; left out, the profiles' own.
        seed: of the simulator.
    """

    workload: WorkloadAsked
    rate_rps: Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)] | None = None
    ttft_p99_ms: Positive
    tpot_p99_ms: Positive | None = None
    max_context: Tokens | None = None
    model: Literal["step", "kimura"] = "step"
    pools: Annotated[list[PoolAsked], Field(min_length=1, max_length=MAX_POOLS)]
    profiles: Annotated[list[Name], Field(min_length=1, max_length=6)] | None = None
    max_pools: Annotated[int, Field(ge=1, le=3)] = 2
    max_gpus: Count | None = None
    usd_per_gpu_hour: Annotated[dict[Name, Price], Field(max_length=24)] = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


class JobAsked(Table):
    """A question, and what is to be done with it."""

    kind: Literal["plan", "verify"]
    question: Question
    label: Text | None = Field(None, max_length=80)
