"""What the engine of a pool is started with, and where each value came from: vLLM, SGLang, TensorRT-LLM.

Flags and their meanings: documentation of `vllm serve` (engine arguments, 0.9 and later; NixlConnector usage guide),
of SGLang's server arguments (docs.sglang.io) and of `trtllm-serve serve` (TensorRT-LLM 0.18 and later).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxsim.catalogue import huggingface_name, model_spec
from jaxsim.kv_fit import GPU_MEMORY_UTILIZATION
from jaxsim.profiles import profile as named_profile
from jaxsim.roofline_names import NameParts, parse_name
from optim.export_options import ExportOptions, placeholder
from optim.export_plan import ExportFleet, ExportPool
from optim.export_text import Head, Origin

PORT = 8000
AMD = "mi"
"""GPUs whose names begin so are AMD's."""

_VLLM_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


class Argument(NamedTuple):
    """A flag, its value as typed, and where it came from."""

    flag: str
    value: str
    source: str


@dataclass(frozen=True)
class Engine:
    """One replica of a pool.

    Attributes:
        model: what is loaded, or a placeholder; `model_source` is where its name came from.
        tp, pp: GPUs of a tensor-parallel group, and stages.
        weight_dtype, kv_dtype: that the profile is for; None where its name does not say.
        memory, memory_source: share of the GPUs' memory, None where nobody said.
        notes: what to know of all engines alike.
    """

    pool: ExportPool
    model: str
    model_source: str
    quantization: str | None
    tp: int
    pp: int
    layout_source: str
    kv_dtype: str | None
    memory: float | None
    memory_source: str
    notes: tuple[str, ...]

    @property
    def step_tokens(self) -> int:
        """Token budget of a step: the chunk of the profile, but at least a token for each request that runs."""
        return max(int(self.pool.profile.chunk_tokens), self.pool.max_num_seqs)


def engine_of(pool: ExportPool, fleet: ExportFleet, options: ExportOptions) -> Engine:
    """What the plan and whoever exports say of a pool's engines.

    Raises:
        ValueError: GPUs of a replica that are not tensor parallel x pipeline parallel of the profile's name.
    """
    parts, place = _parts(pool), f"profile {pool.profile.name!r}"
    if parts is None:
        tp, pp, layout = pool.gpus, 1, f"gpus_per_replica of {place}, all taken as one tensor-parallel group"
    else:
        tp, pp, layout = parts.tp, parts.pp, f"name of {place}"
        if tp * pp != pool.gpus:
            raise ValueError(
                f"{fleet.file}: {place} must have gpus_per_replica {tp} x {pp} as its name says, got {pool.gpus}"
            )
    notes = [*_cache_notes(pool), *_chunk_notes(pool, fleet)]
    weights = None if parts is None else parts.weight_dtype
    quantization = None
    if options.model is not None:
        model, source = options.model, "--model"
        if weights is not None:
            notes.append(f"{place} is for {weights} weights: --model {model} must be a checkpoint of that format")
    elif parts is not None:
        model, source = huggingface_name(parts.model), f"catalogue's Hugging Face name of {parts.model!r} in {place}"
        if weights == "fp8" and model_spec(parts.model).native_dtype in ("bf16", "fp16"):
            quantization = "fp8"
        elif weights is not None and weights != model_spec(parts.model).native_dtype:
            model, source = placeholder("model in " + weights), f"{place} is for {weights} weights: give --model"
    else:
        model, source = placeholder("model"), f"{place} does not name a model: give --model"
    memory, memory_source = _memory(pool, options, parts is not None)
    return Engine(
        pool=pool,
        model=model,
        model_source=source,
        quantization=quantization,
        tp=tp,
        pp=pp,
        layout_source=layout,
        kv_dtype=None if parts is None else parts.kv_dtype,
        memory=memory,
        memory_source=memory_source,
        notes=tuple(notes),
    )


def _parts(pool: ExportPool) -> NameParts | None:
    """What a MODEL@GPU name says; None of a preset or a profile of one's own."""
    name = str(pool.profile.name)
    if "@" not in name:
        return None
    try:
        parts = parse_name(name)
        huggingface_name(parts.model)
    except ValueError:
        return None
    return parts


def _memory(pool: ExportPool, options: ExportOptions, catalogued: bool) -> tuple[float | None, str]:
    if options.gpu_memory_utilization is not None:
        return options.gpu_memory_utilization, "--gpu-memory-utilization"
    if catalogued and float(named_profile(str(pool.profile.name)).kv_blocks) == float(pool.profile.kv_blocks):
        return GPU_MEMORY_UTILIZATION, f"the share from which kv_blocks of profile {pool.profile.name!r} was computed"
    return None, "unknown to the plan: the engine's default; --gpu-memory-utilization sets it"


def _cache_notes(pool: ExportPool) -> list[str]:
    tokens = int(np.asarray(pool.profile.kv_tokens))
    return [
        f"{pool.label}: the plan counts on a KV cache of {tokens:,} tokens a replica (kv_blocks x block_tokens of "
        f"profile {pool.profile.name!r}); the engine prints its own when it starts, and less is not the plan's fleet"
    ]


def _chunk_notes(pool: ExportPool, fleet: ExportFleet) -> list[str]:
    found = [
        "an engine shares the token budget of a step among all its requests; the plan's model lets each prompt compute "
        "a chunk of that size in every step (`fleetgrad simulate` with serving.scheduling plays the shared budget)"
    ]
    chunk = int(pool.profile.chunk_tokens)
    if chunk < pool.max_num_seqs:
        found.append(
            f"{pool.label}: the profile's chunk of {chunk} tokens is below the {pool.max_num_seqs} requests that may "
            "run; the budget was raised to one token each, as engines demand"
        )
    serving = {key: fleet.input(key) for key in ("scheduling", "kv")}
    said = [f"{key} {value}" for key, value in serving.items() if value not in (None, "independent", "reserve")]
    if said:
        found.append(f"simulated with {', '.join(said)}; no flag here sets it")
    return found


def vllm_arguments(
    engine: Engine, *, port: bool = True, parallel: bool = True, kv_role: str | None = None
) -> list[Argument]:
    """Flags of `vllm serve` beside the model.

    Args:
        engine: of one pool.
        port: whether the port is among them.
        parallel: whether the parallel layout is; llm-d's chart writes it itself.
        kv_role: in place of the pool's own role in --kv-transfer-config (NixlConnector takes any: its peers decide).
    """
    pool = engine.pool
    found = []
    if parallel:
        found += [Argument("--tensor-parallel-size", str(engine.tp), engine.layout_source)]
        if engine.pp > 1:
            found += [Argument("--pipeline-parallel-size", str(engine.pp), engine.layout_source)]
    found += [
        Argument("--max-model-len", str(pool.max_context), f"{pool.place}.max_context"),
        Argument("--max-num-seqs", str(pool.max_num_seqs), _seqs_source(engine)),
        Argument("--max-num-batched-tokens", str(engine.step_tokens), _chunk_source(engine)),
    ]
    if engine.memory is not None:
        found += [Argument("--gpu-memory-utilization", f"{engine.memory:g}", engine.memory_source)]
    if engine.quantization:
        found += [Argument("--quantization", engine.quantization, engine.layout_source)]
    if engine.kv_dtype == "fp8":
        found += [Argument("--kv-cache-dtype", "fp8", engine.layout_source)]
    if pool.role is not None:
        transfer = {"kv_connector": "NixlConnector", "kv_role": kv_role or _VLLM_ROLES[pool.role]}
        source = f"role of {pool.place}; NixlConnector is vLLM's own connector between pools"
        found += [Argument("--kv-transfer-config", json.dumps(transfer, separators=(",", ":")), source)]
    if port:
        found += [Argument("--port", str(PORT), "vLLM's default")]
    return found


def sglang_arguments(engine: Engine) -> list[Argument]:
    """Flags of `python -m sglang.launch_server` beside --model-path."""
    pool = engine.pool
    found = [Argument("--tp-size", str(engine.tp), engine.layout_source)]
    if engine.pp > 1:
        found += [Argument("--pp-size", str(engine.pp), engine.layout_source)]
    found += [
        Argument("--context-length", str(pool.max_context), f"{pool.place}.max_context"),
        Argument("--max-running-requests", str(pool.max_num_seqs), _seqs_source(engine)),
        Argument("--chunked-prefill-size", str(int(pool.profile.chunk_tokens)), _chunk_source(engine)),
    ]
    if engine.quantization:
        found += [Argument("--quantization", engine.quantization, engine.layout_source)]
    if engine.kv_dtype == "fp8":
        found += [Argument("--kv-cache-dtype", "fp8_e4m3", engine.layout_source)]
    if pool.role is not None:
        found += [Argument("--disaggregation-mode", pool.role, f"role of {pool.place}")]
    return [*found, Argument("--port", str(PORT), "the same as vLLM's")]


def tensorrt_llm_arguments(engine: Engine) -> list[Argument]:
    """Options of `trtllm-serve serve` beside the model.

    Raises:
        ValueError: a disaggregated fleet, which TensorRT-LLM describes in a file of its own.
    """
    pool = engine.pool
    if pool.role is not None:
        raise ValueError(
            f"tensorrt-llm must be asked for pools that serve whole requests, got a {pool.role} pool; TensorRT-LLM "
            "describes disaggregated serving in a configuration of its own, which is not written here"
        )
    found = [Argument("--tp_size", str(engine.tp), engine.layout_source)]
    if engine.pp > 1:
        found += [Argument("--pp_size", str(engine.pp), engine.layout_source)]
    return [
        *found,
        Argument("--max_seq_len", str(pool.max_context), f"{pool.place}.max_context"),
        Argument("--max_batch_size", str(pool.max_num_seqs), _seqs_source(engine)),
        Argument("--max_num_tokens", str(engine.step_tokens), _chunk_source(engine)),
        Argument("--port", str(PORT), "trtllm-serve's default"),
    ]


def _seqs_source(engine: Engine) -> str:
    where = f"profile {engine.pool.profile.name!r}"
    if engine.pool.max_num_seqs == int(engine.pool.profile.max_num_seqs):
        return f"max_num_seqs of {where}"
    return f"slots of the reference model for max_context, from {where}"


def _chunk_source(engine: Engine) -> str:
    return f"chunk_tokens of profile {engine.pool.profile.name!r}"


def flat(arguments: Iterable[Argument]) -> list[str]:
    """Flags and values in one list, as a container takes them."""
    return [word for argument in arguments for word in (argument.flag, argument.value)]


def tell(head: Head, engine: Engine, arguments: Sequence[Argument]) -> str:
    """List an engine's values in a file's head; the model as it stands in the file."""
    pool = engine.pool
    if engine.quantization is not None:
        what = f"{pool.label}: the plan is for {engine.quantization} weights, {engine.model} has others"
        if any(one.flag == "--quantization" for one in arguments):
            how = (
                "--quantization has the engine convert them as it loads; a --model that is in that format needs no flag"
            )
        else:
            how = "give --model a checkpoint of that format"
        head.add(notes=[f"{what}: {how}"])
    head.add([Origin(f"{pool.label} replicas", pool.replicas, f"{pool.place}.replicas")])
    head.add([Origin(f"{pool.label} model", engine.model, engine.model_source)])
    head.add(Origin(f"{pool.label} {one.flag}", one.value, one.source) for one in arguments)
    if engine.memory is None:
        head.add(notes=[f"{pool.label}: share of GPU memory {engine.memory_source}"])
    head.add(notes=engine.notes)
    return head.filled(engine.model, "name or path of the model to serve (--model)")


def gpu_resource(pool: ExportPool) -> str:
    """Name of the device plugin's resource."""
    return "amd.com/gpu" if str(pool.profile.gpu).lower().startswith(AMD) else "nvidia.com/gpu"


def node_selector(pool: ExportPool, options: ExportOptions, head: Head) -> dict[str, str]:
    """The label of nodes that have a pool's GPU; a listed placeholder where it was not given."""
    gpu = str(pool.profile.gpu)
    if gpu in options.node_labels:
        key, value = options.node_labels[gpu]
        head.add([Origin(f"{pool.label} node label", f"{key}={value}", f"--node-label for {gpu}")])
        return {key: value}
    key, value = placeholder("node label"), placeholder("value for " + gpu)
    head.filled(key, "key of the label that tells nodes by their GPU (--node-label GPU=KEY=VALUE)")
    head.filled(value, f"its value for GPU {gpu!r}, the plan's name")
    return {key: value}


def image(options: ExportOptions, head: Head, given: str | None, flag: str, hint: str) -> str:
    """The container image, or a listed placeholder."""
    if given is not None:
        head.add([Origin("image", given, flag)])
        return given
    return head.filled(placeholder("image"), f"{hint} ({flag})")


def token_env(options: ExportOptions, head: Head) -> list[dict[str, Any]]:
    """HF_TOKEN from a Secret, where one was named."""
    if options.hf_token_secret is None:
        head.add(notes=["no Hugging Face token is set: gated models need --hf-token-secret"])
        return []
    head.add([Origin("HF_TOKEN", f"key HF_TOKEN of Secret {options.hf_token_secret}", "--hf-token-secret")])
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": options.hf_token_secret, "key": "HF_TOKEN"}}}]
