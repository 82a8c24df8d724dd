"""The catalogue and a fit as pages and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from jaxsim.catalogue import GpuSpec, PriceRange
from jaxsim.kv_fit import KvCapacity
from jaxsim.measured import MeasuredLaw
from jaxsim.model_spec import ModelSpec, active_parameters, parameters
from optim.report import bullets, table
from optim.words import number

Document = dict[str, Any]


def gpu_entry(gpu: GpuSpec) -> Document:
    """Every number of a GPU and where it comes from; null where nothing citable was found."""
    price = gpu.price
    return {
        "name": gpu.name,
        "vendor": gpu.vendor,
        "memory_bytes_per_s": gpu.memory_bytes_per_s,
        "memory_bytes": gpu.memory_bytes,
        "flops_per_s": dict(gpu.flops_per_s),
        "tdp_w": gpu.tdp_w,
        "intra_node_bytes_per_s": gpu.intra_node_bytes_per_s,
        "inter_node_bytes_per_s": gpu.inter_node_bytes_per_s,
        "gpus_per_node": gpu.gpus_per_node,
        "matmul_efficiency": dict(gpu.matmul_efficiency),
        "usd_per_gpu_hour": None if price is None else {"low": price.low, "high": price.high, "as_of": price.as_of},
        "source": gpu.source_of("*"),
        "sources": {key: text for key, text in gpu.sources.items() if key != "*"},
    }


def model_entry(model: ModelSpec) -> Document:
    """Every shape of a model, its parameters, and its source."""
    return asdict(model) | {"parameters": parameters(model), "active_parameters": active_parameters(model)}


def capacity_entry(capacity: KvCapacity) -> Document:
    """A fit, with the sentence that explains it."""
    return asdict(capacity)


def measured_entry(one: MeasuredLaw) -> Document:
    """A measured law, with its errors and its source."""
    return asdict(one) | {"law": one.law._asdict()}


def measured_report(laws: Sequence[MeasuredLaw]) -> Group:
    """Measured profiles as a table: what a step takes, how far off the law is, and how far it was measured."""
    columns = ("a step,\nms", "+1 seq.\nof 1k,\nus", "+1k\nprompt\ntokens,\nms", "error,\n%", "prompt\nerror,\n%")
    made = table("profile", *columns, "largest\nbatch", title="Measured profiles", left=("profile",))
    made.columns[0].no_wrap = True
    for one in laws:
        law = one.law
        made.add_row(
            one.name,
            f"{1e3 * (law.base_s + law.overhead_s):.2f}",
            f"{1e6 * (law.per_sequence_s + 1e3 * law.per_token_s):.0f}",
            f"{1e6 * law.prefill_per_token_s:.1f}",
            *(f"{100.0 * error:.1f}" for figure, error in one.errors.items() if figure.endswith("held out")),
            str(one.max_batch),
        )
    told = "Errors are mean ones of what was held out: of steps and prompts (kernels), of mean TPOT and TTFT (engines)."
    return Group(made, "", told, *bullets("Sources of the measured profiles", sorted({one.source for one in laws})))


def catalogue_report(gpus: list[GpuSpec], models: list[ModelSpec]) -> Group:
    """GPUs and models as tables, then the sources by number."""
    columns = ("GPU", "memory,\nGiB", "bandwidth,\nGB/s", "bf16,\nTFLOP/s", "fp8,\nTFLOP/s", "TDP,\nW", "GPUs a\nnode")
    cards = table(*columns, "USD/h\na GPU", "as of", title="GPUs", left=("GPU",))
    for gpu in gpus:
        price = gpu.price
        cards.add_row(
            gpu.name,
            f"{gpu.memory_bytes / 2**30:.0f}",
            f"{gpu.memory_bytes_per_s / 1e9:,.0f}",
            _tera(gpu.flops_per_s.get("bf16")),
            _tera(gpu.flops_per_s.get("fp8")),
            f"{gpu.tdp_w:,.0f}",
            str(gpu.gpus_per_node),
            _price(price),
            "" if price is None else price.as_of,
        )
    sizes = ("parameters,\n1e9", "active,\n1e9", "layers", "heads /\nKV", "experts")
    named = table("model", *sizes, "weights", "max\ncontext", title="Models", left=("model", "weights"))
    for model in models:
        experts = f"{model.num_experts}, {model.experts_per_token} used" if model.num_experts else ""
        named.add_row(
            model.name,
            number(parameters(model) / 1e9, 4),
            number(active_parameters(model) / 1e9, 3) if model.num_experts else "",
            str(model.num_layers),
            f"{model.num_heads} / {'latent' if model.is_latent else model.num_kv_heads}",
            experts,
            model.native_dtype,
            f"{model.max_context:,}",
        )
    parts: list[RenderableType] = [cards, *bullets("Sources of the GPUs", _gpu_sources(gpus)), "", named]
    parts += bullets("Sources of the models", [f"{model.name}: {model.source}" for model in models])
    parts += ["", "A profile of both: fleetgrad profiles --build MODEL --gpu GPU --tp N --out profile.toml"]
    return Group(*parts)


def _price(price: PriceRange | None) -> str:
    if price is None:
        return "none"
    return f"{price.low:.2f}" + (f"-{price.high:.2f}" if price.high > price.low else "")


def _tera(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e12:,.0f}"


def _gpu_sources(gpus: list[GpuSpec]) -> list[str]:
    """Each source once, with the numbers that come from it."""
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        for key, text in gpu.sources.items():
            found.setdefault(text, []).append(gpu.name if key == "*" else f"{gpu.name} {key}")
    return [f"{text}: {', '.join(numbers)}" for text, numbers in found.items()]


def capacity_report(capacity: KvCapacity) -> Text:
    """The sentence, red where it does not fit."""
    return Text(f"{capacity.reason}.", style="bold green" if capacity.fits else "bold red")
