"""The routing table as JSON, with the schema that it is written to."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from optim.export_kubernetes import object_name
from optim.export_options import ExportOptions
from optim.export_plan import ExportFleet
from optim.export_text import ExportFile, provenance

Tokens = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]
DnsLabel = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RoutedPool(_Table):
    """Where requests of some lengths go."""

    pool: Name = Field(description="pool-0, pool-1, ... by length, or prefill and decode")
    role: Literal["whole", "prefill", "decode"] = Field(description="what of a request the pool serves")
    service: DnsLabel = Field(description="name of its Service in the Kubernetes export of the same name")
    lower_tokens: Tokens = Field(description="shortest total that is sent here, included")
    upper_tokens: Tokens = Field(description="longest total that is sent here, included")
    max_context: Tokens = Field(description="tokens above which the pool's engines accept nothing")
    profile: Name
    gpu: Name = Field(description="type of GPU, as the profile names it")
    gpus_per_replica: Count
    replicas: Count
    share: Annotated[float, Field(ge=0, le=1)] | None = Field(description="of all requests, by the plan's workload")


class Routes(_Table):
    """A fleet's routing table."""

    routes_version: Literal[1] = Field(description="of this format")
    written_by: Name
    fleetgrad_version: Name
    kind: Literal["by-length", "disaggregated"] = Field(
        description="by-length: one pool serves a request; disaggregated: prefill, then decode serve every request"
    )
    compared: Name = Field(description="what of a request is compared with the thresholds")
    rule: Name = Field(description="how a pool is chosen from it")
    rejected_above_tokens: Tokens = Field(description="longer requests are rejected")
    within_pool: Name = Field(description="how a replica is chosen")
    pools: Annotated[list[RoutedPool], Field(min_length=1)]
    sources: dict[str, str] = Field(description="where each field came from in the plan")
    notes: list[str]

    @model_validator(mode="after")
    def _covers(self) -> Routes:
        if self.kind == "by-length":
            ends = [0, *(pool.upper_tokens for pool in self.pools)]
            for before, pool in zip(ends, self.pools, strict=False):
                if pool.lower_tokens != before + 1 or pool.upper_tokens < pool.lower_tokens:
                    raise ValueError(f"{pool.pool} must begin at {before + 1} tokens and not end before it")
        if self.rejected_above_tokens != max(pool.upper_tokens for pool in self.pools):
            raise ValueError("rejected_above_tokens must be the last pool's upper_tokens")
        return self


def routes_of(fleet: ExportFleet, options: ExportOptions) -> Routes:
    """The table of a fleet.

    Raises:
        ValueError: a simulated fleet with another router than by length.
    """
    split, router = fleet.disaggregated, fleet.input("router")
    if router not in (None, "length"):
        raise ValueError(
            f"{fleet.file} must be of a fleet that is routed by length, got router {router!r}: a table of lengths "
            "does not say what it does"
        )
    place = "disaggregated" if fleet.kind == "disagg" else "design.pools"
    knows, dispatch = fleet.input("knows"), fleet.input("dispatch")
    notes = list(fleet.warnings)
    if not split and len(fleet.pools) > 1 and knows in (None, "total"):
        notes.insert(
            0,
            "the plan compares a request's total, which no router knows when it arrives: compare input tokens + "
            "max_tokens, or a prediction, and see what it costs with `fleetgrad compare-routers`",
        )
    return Routes(
        routes_version=1,
        written_by=provenance(fleet, options.command),
        fleetgrad_version=version("fleetgrad"),
        kind="disaggregated" if split else "by-length",
        compared="total tokens: input_tokens + output_tokens",
        rule="all requests go to prefill, then to decode"
        if split
        else "the first pool whose upper_tokens is at least what is compared",
        rejected_above_tokens=max(pool.upper_tokens for pool in fleet.pools),
        within_pool=str(dispatch or "least-loaded: the replica with the fewest active + queued requests"),
        pools=[
            RoutedPool(
                pool=pool.label,
                role="whole" if pool.role is None else pool.role,  # type: ignore[arg-type]
                service=object_name(pool, options),
                lower_tokens=pool.lower_tokens,
                upper_tokens=pool.upper_tokens,
                max_context=pool.max_context,
                profile=str(pool.profile.name),
                gpu=str(pool.profile.gpu),
                gpus_per_replica=pool.gpus,
                replicas=pool.replicas,
                share=pool.share,
            )
            for pool in fleet.pools
        ],
        sources={
            "replicas, profile": place,
            "upper_tokens": "inputs.max_context_tokens, rounded down"
            if fleet.kind == "disagg"
            else "design.pools[].upper_tokens, at most max_context, rounded down: totals are whole",
            "lower_tokens": "all requests pass through both pools" if split else "one token more than the pool before",
            "max_context": "inputs.max_context_tokens" if fleet.kind == "disagg" else "design.pools[].max_context",
            "gpu, gpus_per_replica": "profiles[]",
            "share": "analytic.pools[].share; null where the document has none",
            "service": "--name and the pool",
            "within_pool": "inputs.dispatch" if dispatch else "the plan's model: least-loaded",
        },
        notes=notes,
    )


def routes_schema() -> dict[str, Any]:
    """The JSON schema of the table."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Routes.model_json_schema()}


def routes_files(fleet: ExportFleet, options: ExportOptions) -> list[ExportFile]:
    """The table, and its schema beside it."""
    table = json.dumps(routes_of(fleet, options).model_dump(), indent=2, ensure_ascii=False, allow_nan=False)
    schema = json.dumps(routes_schema(), indent=2)
    return [ExportFile("routes.json", f"{table}\n"), ExportFile("routes.schema.json", f"{schema}\n")]
