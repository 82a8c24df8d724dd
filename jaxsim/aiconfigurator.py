"""Profiles from aiconfigurator's measured kernels: its step times are sampled and our law is fitted to them.

aiconfigurator (NVIDIA, Apache-2.0; PyPI ``aiconfigurator-core``, Linux x86-64) adds up the times of kernels that it
measured on a GPU under vLLM, SGLang and TensorRT-LLM. It is an optional extra: nothing here imports it before
`aiconfigurator_profile` is called. KV capacity and price are those of our catalogue.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jaxsim._checks import unknown
from jaxsim.catalogue import gpu_spec, huggingface_name, model_names, model_spec
from jaxsim.fit.report import StepFit
from jaxsim.fit.steps import fit_steps
from jaxsim.fit.table import StepTable
from jaxsim.hf_config import model_from_table
from jaxsim.kv_fit import GPU_MEMORY_UTILIZATION
from jaxsim.model_spec import ModelSpec
from jaxsim.profiles import Profile
from jaxsim.roofline import roofline
from jaxsim.units import MS_PER_S

PACKAGE = "aiconfigurator_core"
INSTALL = "pip install 'fleetgrad[aiconfigurator]' (Linux x86-64)"
BACKENDS = ("vllm", "sglang", "trtllm")

OTHER_NAMES = {
    "meta-llama/Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-405B": "meta-llama/Meta-Llama-3.1-405B",
    "meta-llama/Llama-3.3-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
}
"""Repositories of the catalogue under the names, or with the shapes, that aiconfigurator has."""

KV_MODES = {"bf16": "bfloat16", "fp8": "fp8"}

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
PROMPTS = (16, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


@runtime_checkable
class StepTimes(Protocol):
    """The two questions that are asked of aiconfigurator's compiled engine; answers in milliseconds."""

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
        """Of a step of `gen_tokens` sequences with prompts of `isl` tokens, in the middle of `osl` outputs."""
        ...

    def predict_prefill_latency(self, bs: int, isl: int) -> float:
        """Of a step that computes `bs` whole prompts of `isl` tokens."""
        ...


def sample_steps(
    engine: StepTimes, *, kv_tokens: float, max_num_seqs: float, max_context: float, source: str
) -> StepTable:
    """Steps over batch and context as far as the KV cache holds them, and steps of one whole prompt.

    Args:
        engine: where the times come from.
        kv_tokens: tokens that the KV cache holds; every batch counts at its shortest context.
        max_num_seqs: largest batch.
        max_context: longest context and prompt.
        source: of the table.
    """
    batches = [n for n in BATCHES if n <= max_num_seqs] or [1]
    contexts = [c for c in CONTEXTS if c <= max_context] or [int(max_context)]
    steps = [(n, c) for n in batches for c in contexts if n * c <= kv_tokens or c == contexts[0]]
    prompts = [m for m in PROMPTS if m <= min(max_context, kv_tokens)] or [int(max_context)]
    decoded = [engine.decode_step_latency(n, c - 1, 2) for n, c in steps]  # one token before: contexts are c
    prefilled = [engine.predict_prefill_latency(1, m) for m in prompts]
    active, context = (np.array([*column, *other], float) for column, other in
                       zip(zip(*steps, strict=True), ([1] * len(prompts), prompts), strict=True))  # fmt: skip
    return StepTable.of(
        active,
        np.array([*decoded, *prefilled]) / MS_PER_S,
        mean_context=context,
        prompt_tokens=np.array([0] * len(steps) + prompts, float),
        source=source,
    )


def aiconfigurator_profile(
    model: str,
    system: str,
    backend: str,
    *,
    tp: int = 1,
    kv_dtype: str = "bf16",
    cpu_time_s: float = 3e-3,
    max_num_seqs: float = 256,
    chunk_tokens: float = 2048,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    usd_per_gpu_hour: float | None = None,
    name: str | None = None,
) -> Profile:
    """The profile of a model on a GPU by aiconfigurator's step times.

    Args:
        model: a name of the catalogue, or a Hugging Face repository that aiconfigurator knows.
        system, backend: a GPU and an engine, as aiconfigurator calls them, such as ``"h200_sxm"`` and ``"vllm"``.
        tp: GPUs of a tensor-parallel group.
        kv_dtype: of the cache, ``"bf16"`` or ``"fp8"``.
        cpu_time_s: what scheduler and sampler add to a step; kernel times do not hold it.
        max_num_seqs, chunk_tokens, gpu_memory_utilization, usd_per_gpu_hour: as in `jaxsim.roofline`.
        name: of the profile.

    The law's errors on the sampled steps are in the profile's source.

    Raises:
        ValueError: the extra is not installed or does not run here, an unknown name (with those that are known), a
            model of an architecture that we have no shapes for, or one that does not fit.
    """
    if kv_dtype not in KV_MODES:
        raise unknown("KV-cache dtype", kv_dtype, KV_MODES)
    if backend not in BACKENDS:
        raise unknown("aiconfigurator backend", backend, BACKENDS)
    with _quiet():
        databases = {key: dict(value) for key, value in _module("sdk.perf_database").get_supported_databases().items()}
        if system not in databases:
            raise unknown("aiconfigurator system", system, sorted(databases))
        if backend not in databases[system]:
            raise unknown(f"aiconfigurator backend on {system}", backend, sorted(databases[system]))
        repository, spec = _model(model)
        limits = roofline(
            spec,
            gpu_spec(system),
            tp=tp,
            kv_dtype=kv_dtype,
            cpu_time_s=cpu_time_s,
            max_num_seqs=max_num_seqs,
            chunk_tokens=chunk_tokens,
            gpu_memory_utilization=gpu_memory_utilization,
            usd_per_gpu_hour=usd_per_gpu_hour,
            name=name or f"{spec.name}@{system}:tp{tp}:{backend}",
        )
        version = import_module("importlib.metadata").version("aiconfigurator-core")
        told = f"aiconfigurator {version} ({repository} on {system} with {backend}, tp {tp}, {kv_dtype} KV)"
        try:
            table = sample_steps(
                _engine(repository, system, backend, tp, spec, kv_dtype),
                kv_tokens=float(limits.kv_tokens),
                max_num_seqs=max_num_seqs,
                max_context=spec.max_context,
                source=told,
            )
        except Exception as error:  # the package raises of every kind where it lacks a table
            text = " ".join(str(error).split())[:300]
            hint = "; another kv_dtype or backend may be measured" if "kv_quant" in text else ""
            raise ValueError(f"{told} has no step times: {text}{hint}") from error
    return fitted_profile(limits, table, shapes=spec.source)


def fitted_profile(limits: Profile, table: StepTable, *, shapes: str) -> Profile:
    """The limits, the price and the CPU time of a roofline profile with the law of a table.

    Its source has the law's errors, and `shapes`: where the shapes that the KV capacity rests on are from.
    """
    fit = fit_steps(table)
    found = fit.applied_to(limits)
    return replace(found, overhead_s=limits.overhead_s, source=_source(fit, limits, shapes))


def _source(fit: StepFit, limits: Profile, shapes: str) -> str:
    errors = ", ".join(
        f"{what} {fit.errors[key].mean:.1%} (held out {fit.held_out[key].mean:.1%})"
        if key in fit.held_out
        else f"{what} {fit.errors[key].mean:.1%}"
        for key, what in (("decode", "decode"), ("prompt", "prompts"))
        if key in fit.errors
    )
    doubts = f"; doubts: {'; '.join(fit.warnings)}" if fit.warnings else ""
    return (
        f"step times of {fit.source}, kernels measured and added up there; law fitted to {fit.rows} of them, mean "
        f"absolute error: {errors}{doubts}; CPU time {float(limits.overhead_s) * 1e3:g} ms a step added; KV capacity "
        f"by {shapes}; {str(limits.source).rpartition('; ')[2]}"
    )


def _module(path: str) -> Any:
    """A module of the package, which is first imported here."""
    try:
        return import_module(f"{PACKAGE}.{path}")
    except ModuleNotFoundError as error:
        raise ValueError(f"aiconfigurator needs the package {error.name}, which is not installed: {INSTALL}") from error
    except ImportError as error:
        machine = f"{platform.system()} {platform.machine()}"
        raise ValueError(f"aiconfigurator does not run on {machine}: {error}; it is for {INSTALL}") from error


def _configs() -> dict[str, Any]:
    """Configs that the package holds, by repository; others it would download, which we never do."""
    _module("sdk.common")
    ending = "_config.json"
    found = {}
    for file in files(PACKAGE).joinpath("model_configs").iterdir():
        if file.name.endswith(ending) and not file.name.endswith(f"_hf_quant{ending}"):
            found[file.name.removesuffix(ending).replace("--", "/")] = file
    return found


def _model(name: str) -> tuple[str, ModelSpec]:
    """The repository that aiconfigurator knows it by, and its shapes."""
    configs = _configs()
    try:
        spec = model_spec(name)
    except ValueError:
        if name not in configs:
            ours = [one for one in model_names() if _known_name(one, configs) is not None]
            raise unknown("aiconfigurator model", name, [*ours, *sorted(configs)]) from None
        table = json.loads(configs[name].read_text(encoding="utf-8"))
        source = f"config.json of {name} on Hugging Face, as aiconfigurator ships it"
        return name, model_from_table(table, name=name.rpartition("/")[2].lower(), source=source, origin=name)
    repository = _known_name(spec.name, configs)
    if repository is None:
        raise unknown("aiconfigurator model", f"{name} ({huggingface_name(spec.name)})", sorted(configs))
    return repository, spec


def _known_name(name: str, configs: dict[str, Any]) -> str | None:
    repository = huggingface_name(name)
    return next((one for one in (repository, OTHER_NAMES.get(repository)) if one in configs), None)


def _engine(repository: str, system: str, backend: str, tp: int, spec: ModelSpec, kv_dtype: str) -> StepTimes:
    engine: StepTimes = _module("sdk.engine").EngineHandle.compile(
        repository,
        system,
        backend,
        tp_size=tp,
        moe_tp_size=tp if spec.num_experts else None,
        moe_ep_size=1 if spec.num_experts else None,
        kvcache_quant_mode=KV_MODES[kv_dtype],
    )
    return engine


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the package's log of which tables it falls back on."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)
