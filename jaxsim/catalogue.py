"""The catalogue: GPUs and models, every number with where it comes from.

`data/gpus.toml` and `data/models.toml` hold the numbers. What has no citable source is not there: it reads as
None, and a builder that needs it says so instead of guessing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from jaxsim._checks import unknown
from jaxsim.hf_config import model_from_table
from jaxsim.model_spec import ModelSpec

_DATA = files("jaxsim") / "data"


class PriceRange(NamedTuple):
    """Dollars per GPU and hour, lowest and highest found, and as of when."""

    low: float
    high: float
    as_of: str

    @property
    def middle(self) -> float:
        """The mean of both ends: what a profile uses when no price is given."""
        return 0.5 * (self.low + self.high)


class AllReduce(NamedTuple):
    """Time of an all-reduce of b bytes among tp GPUs: `latency_s` + 2 (tp - 1)/tp b / `bytes_per_s`, by tp."""

    latency_s: Mapping[int, float]
    bytes_per_s: Mapping[int, float]
    measured_on: str
    source: str

    def at(self, tp: int) -> tuple[float, float]:
        """Latency and bandwidth of the smallest measured group of at least `tp` GPUs, else of the largest."""
        key = min((k for k in self.latency_s if k >= tp), default=max(self.latency_s))
        return self.latency_s[key], self.bytes_per_s[key]


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """A GPU by its datasheet.

    Attributes:
        name, vendor: what it is.
        memory_bytes_per_s, memory_bytes: peak bandwidth and capacity.
        flops_per_s: dense peak by number format; a format without hardware support is not in it.
        tdp_w: board power.
        intra_node_bytes_per_s, inter_node_bytes_per_s: peak of its links, one direction; None where unknown.
        gpus_per_node: of the usual server.
        nvlink_domain: GPUs that reach each other at the speed of `all_reduce`.
        all_reduce: times of the collective of tensor parallelism; None where nobody measured it.
        matmul_efficiency: share of the peak that a large matrix product reaches, by format; measured.
        price: range of what it costs; None where nothing citable was found.
        sources: text by the name of the number.
    """

    name: str
    vendor: str
    memory_bytes_per_s: float
    memory_bytes: float
    flops_per_s: Mapping[str, float]
    tdp_w: float
    gpus_per_node: int
    nvlink_domain: int
    intra_node_bytes_per_s: float | None
    inter_node_bytes_per_s: float | None
    all_reduce: AllReduce | None
    matmul_efficiency: Mapping[str, float]
    price: PriceRange | None
    sources: Mapping[str, str]

    def source_of(self, number: str) -> str:
        """Where a number comes from, such as ``source_of("tdp_w")`` or ``source_of("flops_per_s.fp8")``."""
        for key in (number, number.split(".")[0]):
            if key in self.sources:
                return self.sources[key]
        return self.sources["*"]

    def missing(self, what: str, argument: str) -> ValueError:
        """The error for a number that has no citable source."""
        return ValueError(f"gpu {self.name!r} has no {what} with a citable source; give {argument}")


@cache
def _gpu_tables() -> dict[str, Any]:
    return tomllib.loads((_DATA / "gpus.toml").read_text(encoding="utf-8"))


@cache
def _model_tables() -> dict[str, Any]:
    return tomllib.loads((_DATA / "models.toml").read_text(encoding="utf-8"))


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs in the catalogue."""
    return tuple(_gpu_tables()["gpus"])


def model_names() -> tuple[str, ...]:
    """Names of the models in the catalogue."""
    return tuple(_model_tables())


def _canonical(kind: str, name: str, tables: Mapping[str, Any], hint: str) -> str:
    """The name under which a table stands; aliases are listed in the data, nothing is guessed."""
    if name in tables:
        return name
    aliases = {alias: key for key, table in tables.items() for alias in _aliases(table)}
    if name in aliases:
        return aliases[name]
    raise unknown(kind, name, tables, hint)


def _aliases(table: Mapping[str, Any]) -> list[str]:
    return [*table.get("aliases", ()), *([table["huggingface"]] if "huggingface" in table else [])]


def gpu_spec(name: str) -> GpuSpec:
    """The GPU of that name.

    Raises:
        ValueError: unknown name, with the near ones.
    """
    return _gpu(_canonical("gpu", name, _gpu_tables()["gpus"], "another GPU: build jaxsim.GpuSpec from its datasheet"))


@cache
def _gpu(name: str) -> GpuSpec:
    tables = _gpu_tables()
    table = tables["gpus"][name]
    texts = tables["sources"]
    sources = {"*": texts[table["source"]], **{k: texts[v] for k, v in table.get("sources", {}).items()}}
    collective = None
    if "all_reduce" in table:
        measured = tables["all_reduce"][table["all_reduce"]]
        sources["all_reduce"] = f"{texts[measured['source']]}, on {measured['measured_on']}"
        collective = AllReduce(
            {int(k): v for k, v in measured["latency_s"].items()},
            {int(k): v for k, v in measured["bytes_per_s"].items()},
            measured["measured_on"],
            sources["all_reduce"],
        )
    price = None
    if "usd_per_gpu_hour" in table:
        low, high = table["usd_per_gpu_hour"]
        price = PriceRange(low, high, table["price_as_of"])
    return GpuSpec(
        name=name,
        vendor=table["vendor"],
        memory_bytes_per_s=float(table["memory_bytes_per_s"]),
        memory_bytes=float(table["memory_bytes"]),
        flops_per_s={k: float(v) for k, v in table["flops_per_s"].items()},
        tdp_w=float(table["tdp_w"]),
        gpus_per_node=table["gpus_per_node"],
        nvlink_domain=table.get("nvlink_domain", table["gpus_per_node"]),
        intra_node_bytes_per_s=table.get("intra_node_bytes_per_s"),
        inter_node_bytes_per_s=table.get("inter_node_bytes_per_s"),
        all_reduce=collective,
        matmul_efficiency=table.get("matmul_efficiency", {}),
        price=price,
        sources=sources,
    )


def model_spec(name: str) -> ModelSpec:
    """The model of that name, such as ``"llama-3.1-70b"``, or by its Hugging Face repository.

    Raises:
        ValueError: unknown name, with the near ones.
    """
    return _model(
        _canonical("model", name, _model_tables(), "another model: jaxsim.model_from_config(its config.json)")
    )


@cache
def _model(name: str) -> ModelSpec:
    table = _model_tables()[name]
    source = f"config.json of {table['huggingface']} on Hugging Face"
    return model_from_table(table["config"], name=name, source=source, origin=f"models.toml: {name}")


def huggingface_name(name: str) -> str:
    """The Hugging Face repository of a model."""
    return str(_model_tables()[_canonical("model", name, _model_tables(), "")]["huggingface"])


def published_parameters(name: str) -> tuple[float, float | None, str]:
    """Parameters, active parameters (None for a dense model) and their source, as the publisher states them."""
    table = _model_tables()[_canonical("model", name, _model_tables(), "")]
    return table["published_parameters"], table.get("published_active_parameters"), table["published_source"]
