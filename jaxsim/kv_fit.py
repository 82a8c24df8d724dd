"""Does it fit: KV-cache tokens and sequences of a model on a number of GPUs, and the reason when not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jaxsim._checks import invalid, require_non_negative, require_positive
from jaxsim.catalogue import GpuSpec, gpu_spec, model_spec
from jaxsim.model_spec import (
    EXPERT_FORMATS,
    KvBytes,
    ModelSpec,
    WeightFormat,
    kv_bytes,
    kv_bytes_per_gpu,
    stage_layers,
    stage_weight_bytes,
    weight_bytes,
    weight_format,
)
from jaxsim.roofline_laws import full_length_sequences, kv_budget_bytes, kv_tokens, memory_floor_gpus

COMM_BUFFER_BYTES = {1: 0.0, 2: 358612992.0, 4: 411041792.0, 8: 411041792.0}
"""Memory of the communication library on each GPU by size of its group (aiconfigurator 0.12 systems, Apache-2.0)."""

GPU_MEMORY_UTILIZATION = 0.9
"""Share of the memory that an engine may use, unless said otherwise."""

TP_CHOICES = (1, 2, 4, 8)
ADVICE = "reduce max_ctx or add GPUs or quantise"


@dataclass(frozen=True, kw_only=True)
class KvCapacity:
    """What is left for the KV cache, in tokens and in sequences of full length.

    Attributes:
        model, gpu, tp, pp, gpus: the layout; `gpus` = tp x pp.
        max_context: tokens of a full-length sequence.
        weight_bytes_per_gpu, kv_bytes_per_gpu: of the fullest GPU; the latter is the budget, 0 where the weights
            do not fit.
        kv_bytes_per_sequence: of a full-length sequence, on all GPUs together.
        block_tokens, kv_blocks, kv_tokens: the cache; for windowed attention, tokens of full-length sequences.
        sequences: full-length sequences that fit at once, not rounded (engines print it so at start-up).
        wanted_sequences: how many were asked for.
        fits: whether `sequences` reaches `wanted_sequences`.
        min_gpus: smallest tensor-parallel group of those tried that holds them, times pp; None where none does.
        memory_floor_gpus: GPUs that the weights alone need.
        reason: one sentence.
    """

    model: str
    gpu: str
    tp: int
    pp: int
    gpus: int
    max_context: int
    weight_bytes_per_gpu: float
    kv_bytes_per_gpu: float
    kv_bytes_per_sequence: float
    block_tokens: int
    kv_blocks: int
    kv_tokens: int
    sequences: float
    wanted_sequences: float
    fits: bool
    min_gpus: int | None
    memory_floor_gpus: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A model on GPUs: what both the fit and the roofline start from. Made by `layout`."""

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    pp: int
    weight_dtype: str
    bits: WeightFormat
    kv_dtype: str
    utilization: float
    comm_buffers: bool
    activation_bytes: float

    @property
    def stage_weight_bytes(self) -> float:
        """Weights of the fullest GPU."""
        return stage_weight_bytes(self.model, self.tp, self.pp, self.bits)

    @property
    def stage_kv_bytes(self) -> KvBytes:
        """KV cache of the fullest GPU."""
        return kv_bytes_per_gpu(self.model, self.tp, stage_layers(self.model, self.pp), kv_bytes(self.kv_dtype))

    @property
    def kv_budget_bytes(self) -> float:
        """Bytes of the fullest GPU that are left for the KV cache; negative where the weights do not fit."""
        group = min((k for k in COMM_BUFFER_BYTES if k >= self.tp * self.pp), default=max(COMM_BUFFER_BYTES))
        buffers = COMM_BUFFER_BYTES[group] if self.comm_buffers else 0.0
        held = self.stage_weight_bytes
        return float(kv_budget_bytes(self.gpu.memory_bytes, self.utilization, held, buffers, self.activation_bytes))

    def at(self, tp: int) -> Layout:
        """The same on a tensor-parallel group of another size."""
        return replace(self, tp=tp)


def layout(
    model: str | ModelSpec,
    gpu: str | GpuSpec,
    *,
    tp: int = 1,
    pp: int = 1,
    weight_dtype: str | None = None,
    weight_bits: float | None = None,
    kv_dtype: str = "bf16",
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    comm_buffers: bool = True,
    activation_bytes: float = 0.0,
) -> Layout:
    """A checked `Layout`; the arguments are those of `kv_capacity`.

    Raises:
        ValueError: an unknown name, or a layout that the model or the GPU does not allow, with what it allows.
    """
    spec = model_spec(model) if isinstance(model, str) else model
    card = gpu_spec(gpu) if isinstance(gpu, str) else gpu
    _check_tp(spec, card, tp)
    if isinstance(pp, bool) or not 1 <= pp <= spec.num_layers or pp != int(pp):
        raise invalid("pp", pp, f"a whole number from 1 to the {spec.num_layers} layers of {spec.name}")
    if not 0 < gpu_memory_utilization <= 1:
        raise invalid("gpu_memory_utilization", gpu_memory_utilization, "in (0, 1]")
    require_non_negative("activation_bytes", activation_bytes)
    if weight_dtype is not None and weight_bits is not None:
        raise invalid("weight_bits", weight_bits, "left out where weight_dtype is given")
    named = weight_dtype or spec.native_dtype
    bits = weight_format(named)
    if weight_bits is not None:
        require_positive("weight_bits", weight_bits)
        named, bits = f"{weight_bits:g}-bit", WeightFormat(weight_bits, weight_bits, weight_bits)
    if named in EXPERT_FORMATS and not spec.num_experts:
        raise invalid("weight_dtype", named, f"another one, as it packs experts and {spec.name} has none")
    kv_bytes(kv_dtype)
    return Layout(
        model=spec,
        gpu=card,
        tp=int(tp),
        pp=int(pp),
        weight_dtype=named,
        bits=bits,
        kv_dtype=kv_dtype,
        utilization=gpu_memory_utilization,
        comm_buffers=comm_buffers,
        activation_bytes=activation_bytes,
    )


def tp_allowed(model: ModelSpec, gpu: GpuSpec, tp: int) -> bool:
    """Whether heads, KV heads and the GPUs of a node can be divided so."""
    if not 1 <= tp <= gpu.nvlink_domain or model.num_heads % tp:
        return False
    return model.is_latent or model.num_kv_heads % tp == 0 or tp % model.num_kv_heads == 0


def _check_tp(model: ModelSpec, gpu: GpuSpec, tp: int) -> None:
    if isinstance(tp, bool) or tp != int(tp) or not tp_allowed(model, gpu, int(tp)):
        allowed = [k for k in range(1, gpu.nvlink_domain + 1) if tp_allowed(model, gpu, k)]
        what = f"one of {', '.join(map(str, allowed))}"
        why = f"{model.name} has {model.num_heads} heads and {model.num_kv_heads} KV heads"
        raise invalid("tp", tp, what, f"{why}, {gpu.name} nodes have {gpu.nvlink_domain} GPUs; pp crosses nodes")


def kv_capacity(
    model: str | ModelSpec,
    gpu: str | GpuSpec,
    tp: int = 1,
    *,
    pp: int = 1,
    max_context: int | None = None,
    sequences: float = 1.0,
    weight_dtype: str | None = None,
    weight_bits: float | None = None,
    kv_dtype: str = "bf16",
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    comm_buffers: bool = True,
    activation_bytes: float = 0.0,
    block_tokens: int = 16,
    tp_choices: tuple[int, ...] = TP_CHOICES,
) -> KvCapacity:
    """Whether a model fits, in KV tokens and sequences of full length, and on how many GPUs it would.

    The budget of a GPU is ``utilization * capacity - weights - communication buffers - activation_bytes``; a
    token takes ``2 * kv_heads * head_dim * bytes`` in each layer (one latent vector with MLA, at most the window
    in windowed layers), split by `tp` as far as there are KV heads, and by `pp`.

    Args:
        model, gpu: catalogue names, or specs.
        tp, pp: GPUs of a tensor-parallel group, pipeline stages.
        max_context: tokens of a full-length sequence; the model's own maximum where left out.
        sequences: full-length sequences that must fit at once.
        weight_dtype, weight_bits: format by name, or one number of bits for all weights; the model's own format
            where left out.
        kv_dtype: of the cache.
        gpu_memory_utilization: share of the memory that the engine may use.
        comm_buffers: whether to subtract the communication library's memory.
        activation_bytes: what the engine keeps for activations inside that share. Left at 0 the rest of the memory
            is taken to hold them; vLLM 0.19 kept 1.2 GB for an 8B model on an RTX 4090.
        block_tokens: tokens of a KV block.
        tp_choices: sizes to try for `min_gpus`.

    Raises:
        ValueError: an unknown name, or an argument out of its domain. Not fitting is a result, not an error.
    """
    shape = layout(
        model,
        gpu,
        tp=tp,
        pp=pp,
        weight_dtype=weight_dtype,
        weight_bits=weight_bits,
        kv_dtype=kv_dtype,
        gpu_memory_utilization=gpu_memory_utilization,
        comm_buffers=comm_buffers,
        activation_bytes=activation_bytes,
    )
    context = shape.model.max_context if max_context is None else max_context
    return capacity_of(
        shape, max_context=context, sequences=sequences, block_tokens=block_tokens, tp_choices=tp_choices
    )


def capacity_of(
    shape: Layout,
    *,
    max_context: float,
    sequences: float = 1.0,
    block_tokens: float = 16,
    tp_choices: tuple[int, ...] = TP_CHOICES,
) -> KvCapacity:
    """`kv_capacity` of a layout."""
    require_positive("max_context", max_context)
    require_positive("sequences", sequences)
    require_positive("block_tokens", block_tokens)
    tried = [k for k in sorted(tp_choices) if tp_allowed(shape.model, shape.gpu, k)]
    enough = [k for k in tried if _sequences(shape.at(k), max_context) >= sequences]
    held = _sequences(shape, max_context)
    blocks = int(held * max_context // block_tokens)
    weights = weight_bytes(shape.model, 1, shape.bits).total
    floor = math.ceil(memory_floor_gpus(weights, shape.gpu.memory_bytes, shape.utilization))
    least = enough[0] * shape.pp if enough else None
    answer = KvCapacity(
        model=shape.model.name,
        gpu=shape.gpu.name,
        tp=shape.tp,
        pp=shape.pp,
        gpus=shape.tp * shape.pp,
        max_context=int(max_context),
        weight_bytes_per_gpu=shape.stage_weight_bytes,
        kv_bytes_per_gpu=max(shape.kv_budget_bytes, 0.0),
        kv_bytes_per_sequence=shape.stage_kv_bytes.of_sequence(max_context) * shape.tp * shape.pp,
        block_tokens=int(block_tokens),
        kv_blocks=blocks,
        kv_tokens=int(kv_tokens(blocks, block_tokens)),
        sequences=held,
        wanted_sequences=sequences,
        fits=held >= sequences,
        min_gpus=least,
        memory_floor_gpus=floor,
        reason="",
    )
    return replace(answer, reason=_reason(answer, shape, tried))


def _sequences(shape: Layout, context: float) -> float:
    """Full-length sequences that fit, not rounded; 0 where the weights do not fit."""
    budget = max(shape.kv_budget_bytes, 0.0)
    return float(full_length_sequences(budget, shape.stage_kv_bytes.of_sequence(context)))


def _reason(answer: KvCapacity, shape: Layout, tried: list[int]) -> str:
    gpus = f"{answer.gpus} {answer.gpu}" + (f" (tp {answer.tp}" + (f", pp {answer.pp})" if answer.pp > 1 else ")"))
    what = f"{answer.model} ({shape.weight_dtype} weights, {shape.kv_dtype} KV) on {gpus}"
    usable = shape.gpu.memory_bytes * shape.utilization
    ratio = f"{answer.gpus / answer.memory_floor_gpus:.1f} times the memory floor of {answer.memory_floor_gpus}"
    if answer.min_gpus is None:
        sizes = ", ".join(map(str, tried))
        least = f"no tensor-parallel group of {sizes} holds {answer.wanted_sequences:g}"
    else:
        least = f"{answer.wanted_sequences:g} need at least {_count(answer.min_gpus)}"
    if answer.kv_blocks < 1:
        return (
            f"{what}: does not fit. The weights take {_gib(answer.weight_bytes_per_gpu)} of a GPU that gives "
            f"{_gib(usable)}: memory binds, no KV cache is left for a sequence of max_ctx {answer.max_context}; "
            f"{ADVICE} ({least}; the weights alone need {_count(answer.memory_floor_gpus)})"
        )
    held = (
        f"{answer.kv_tokens:,} KV tokens, {answer.sequences:.2f} sequences of max_ctx {answer.max_context} "
        f"({_gib(answer.kv_bytes_per_sequence)} each)"
    )
    if not answer.fits:
        return (
            f"{what}: does not fit. {held}, fewer than the {answer.wanted_sequences:g} asked for. KV capacity, not "
            f"compute, is what binds: {ADVICE} ({least})"
        )
    return f"{what}: fits. {held}; {least}; {_count(answer.gpus)} is {ratio}, which the weights alone need"


def _count(gpus: int) -> str:
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
