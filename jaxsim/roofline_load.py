"""What `jaxsim.roofline_laws` computes with: a GPU and its links, and what a step moves and computes on it."""

from __future__ import annotations

from typing import Literal

from jaxsim._checks import invalid, require_non_negative, require_positive, unknown
from jaxsim.catalogue import GpuSpec
from jaxsim.kv_fit import Layout
from jaxsim.model_spec import UNQUANTISED_BITS, ModelSpec, kv_bytes, kv_bytes_per_gpu, weight_bytes, weight_counts
from jaxsim.roofline_laws import Load, Machine

Experts = Literal["expected", "active", "all"]
EXPERTS = ("expected", "active", "all")

ACTIVATION_BYTES = 2.0
LOGIT_BYTES = 28.0
"""A logit is written in 16 bits, widened to 32 (2 + 4), scaled and soft-maxed (2 x 8), and sampled (4), with one more
16-bit read."""

DEFAULT_ALPHA_FLOPS = 0.80
"""Where no one measured the GPU: as for bandwidth; large matrix products reach 0.80 on an H100 (S. Bekman)."""

ATTENTION_EFFICIENCY = 0.60
"""Middle of the 50 to 73 % of peak that FlashAttention-2 reports on A100 (T. Dao, arXiv 2307.08691)."""

EXPERT_EFFICIENCY = 0.2
"""Share of what dense products reach that the small, uneven products of experts do: fitted to benchmark runs of real
engines by `benchmarks/blind.py`, which finds 0.21 on all, and 0.12 to 0.45 without one model or GPU of them."""

SEND_LATENCY_S = 10e-6
"""Point to point between stages (aiconfigurator 0.12 systems, p2p_latency, Apache-2.0)."""


def machine_of(
    shape: Layout,
    *,
    compute_dtype: str | None = None,
    alpha_bw: float = 0.8,
    alpha_flops: float | None = None,
    attention_efficiency: float = ATTENTION_EFFICIENCY,
    layer_overhead_s: float = 3e-6,
    all_reduce: bool = True,
    all_reduce_latency_s: float | None = None,
    all_reduce_bytes_per_s: float | None = None,
    gqa_overhead: float = 0.10,
) -> Machine:
    """The numbers of a GPU and its links that the formulas take; arguments as in `roofline`."""
    gpu, tp = shape.gpu, shape.tp
    for name, share in (("alpha_bw", alpha_bw), ("attention_efficiency", attention_efficiency)):
        if not 0 < share <= 1:
            raise invalid(name, share, "in (0, 1]")
    require_non_negative("layer_overhead_s", layer_overhead_s)
    require_non_negative("gqa_overhead", gqa_overhead)
    dtype = compute_dtype or _compute_dtype(shape)
    if dtype not in gpu.flops_per_s:
        raise invalid("compute_dtype", dtype, f"one that {gpu.name} has a rate for: {', '.join(gpu.flops_per_s)}")
    measured = gpu.matmul_efficiency.get(dtype, gpu.matmul_efficiency.get("bf16", DEFAULT_ALPHA_FLOPS))
    reached = measured if alpha_flops is None else alpha_flops
    if not 0 < reached <= 1:
        raise invalid("alpha_flops", reached, "in (0, 1]")
    latency, bandwidth = 0.0, 1.0
    if tp > 1 and all_reduce:
        latency, bandwidth = _all_reduce(gpu, tp, all_reduce_latency_s, all_reduce_bytes_per_s)
    send = gpu.inter_node_bytes_per_s if shape.tp * shape.pp > gpu.nvlink_domain else gpu.intra_node_bytes_per_s
    if shape.pp > 1 and send is None:
        raise gpu.missing("bandwidth between stages", "pp=1")
    return Machine(
        bytes_per_s=gpu.memory_bytes_per_s,
        flops_per_s=gpu.flops_per_s[dtype],
        alpha_bw=alpha_bw,
        alpha_flops=reached,
        attention_flops_per_s=gpu.flops_per_s["bf16"],
        attention_efficiency=attention_efficiency,
        layer_overhead_s=layer_overhead_s,
        all_reduce_latency_s=latency,
        all_reduce_bytes_per_s=bandwidth,
        send_latency_s=SEND_LATENCY_S,
        send_bytes_per_s=send or 1.0,
        kv_factor=1.0 + (gqa_overhead if shape.model.is_grouped else 0.0),
    )


NATIVE_RATES = {"fp8": "fp8", "fp8_linear": "fp8", "int8": "int8", "nvfp4": "fp4", "nvfp4_experts": "fp4"}
"""Number format that products of quantised weights run in where the GPU has it."""


def _compute_dtype(shape: Layout) -> str:
    """The format that matrix products run in; weights without hardware support are widened to 16 bits.

    mxfp4 weights meet 8-bit activations on GPUs that have 4-bit products (vLLM's and TensorRT-LLM's gpt-oss recipes),
    and are widened elsewhere.
    """
    rates = shape.gpu.flops_per_s
    if shape.weight_dtype == "mxfp4" and "fp4" in rates:
        return "fp8"
    native = NATIVE_RATES.get(shape.weight_dtype, "bf16")
    return native if native in rates else "bf16"


def _all_reduce(gpu: GpuSpec, tp: int, latency: float | None, bandwidth: float | None) -> tuple[float, float]:
    if latency is None or bandwidth is None:
        if gpu.all_reduce is None:
            arguments = "all_reduce_latency_s and all_reduce_bytes_per_s, or all_reduce=False to leave it out"
            raise gpu.missing("all-reduce time", arguments)
        measured = gpu.all_reduce.at(tp)
        latency = measured[0] if latency is None else latency
        bandwidth = measured[1] if bandwidth is None else bandwidth
    require_non_negative("all_reduce_latency_s", latency)
    require_positive("all_reduce_bytes_per_s", bandwidth)
    return latency, bandwidth


def load_of(
    shape: Layout,
    *,
    all_reduce: bool = True,
    activations: bool = True,
    experts: Experts = "expected",
    compute_dtype: str | None = None,
    expert_efficiency: float = EXPERT_EFFICIENCY,
) -> Load:
    """What a step moves and computes on one GPU; arguments as in `roofline`."""
    model, tp = shape.model, shape.tp
    if not 0 < expert_efficiency <= 1:
        raise invalid("expert_efficiency", expert_efficiency, "in (0, 1]")
    held = weight_bytes(model, tp, shape.bits)
    streamed = held.layers + (held.embedding if model.tied_embeddings else held.head)
    share = model.experts_per_token / model.num_experts if model.num_experts else 0.0
    num, each, routed = 1.0, 1.0, 0.0
    if experts not in EXPERTS:
        raise unknown("experts", experts, EXPERTS)
    if experts == "expected" and model.num_experts:
        num, each, routed = float(model.num_experts), float(model.experts_per_token), held.experts
    else:
        streamed += held.experts * (share if experts == "active" else 1.0)
    blocks, head = _operations(shape, compute_dtype, expert_efficiency)
    kv = kv_bytes_per_gpu(model, tp, model.num_layers, kv_bytes(shape.kv_dtype))
    windowed = model.num_window_layers / model.num_layers
    if windowed == 1.0:  # the law has no cap on what a sequence reads: all layers count as if they kept everything
        kv, windowed = kv._replace(per_token=kv.per_token + kv.per_window_token, per_window_token=0.0), 0.0
    decoded, prompted = _attention_flops(model)
    pairs = prompted * model.num_layers / tp
    return Load(
        tp=float(tp),
        pp=float(shape.pp),
        layers=float(model.num_layers),
        streamed_bytes=streamed,
        expert_bytes=routed,
        num_experts=num,
        experts_per_token=each,
        sequence_bytes=kv.per_window_token * kv.window + (_activation_bytes(model, tp) if activations else 0.0),
        token_flops=(blocks + head) / tp,
        prompt_flops=blocks / tp + pairs * windowed * model.sliding_window,
        prompt_bytes=_activation_bytes(model, tp, logits=False) if activations else 0.0,
        kv_bytes_per_token=kv.per_token,
        decode_flops_per_token=decoded * model.num_layers * (1.0 - windowed) / tp,
        prompt_flops_per_pair=pairs * (1.0 - windowed),
        all_reduces=2.0 * model.num_layers + 1.0 if tp > 1 and all_reduce else 0.0,
        all_reduce_bytes=ACTIVATION_BYTES * model.hidden_size,
        send_bytes=ACTIVATION_BYTES * model.hidden_size,
    )


def _operations(shape: Layout, compute_dtype: str | None, expert_efficiency: float) -> tuple[float, float]:
    """Operations of a token in the blocks and in the head, whole model, at the rate of the main format.

    Products of weights in another format run at that format's rate; `compute_dtype` makes all run at one.
    """
    model, gpu, counts = shape.model, shape.gpu, weight_counts(shape.model)
    main = gpu.flops_per_s[compute_dtype or _compute_dtype(shape)]

    def slower(bits: float) -> float:
        return 1.0 if compute_dtype else main / gpu.flops_per_s[_rate_of(shape, bits)]

    share = model.experts_per_token / model.num_experts if model.num_experts else 0.0
    linear = counts.attention + counts.key_value + counts.dense_mlp + counts.shared_experts
    blocks = linear * slower(shape.bits.linear_bits) + counts.replicated * slower(UNQUANTISED_BITS)
    blocks += counts.experts * share * slower(shape.bits.expert_bits) / expert_efficiency
    head = (counts.embedding if model.tied_embeddings else counts.head) * slower(shape.bits.embedding_bits)
    return 2.0 * blocks, 2.0 * head


def _rate_of(shape: Layout, bits: float) -> str:
    """The format that products of weights of so many bits run in: 16 bits where the GPU or the format has none."""
    return _compute_dtype(shape) if bits < UNQUANTISED_BITS else "bf16"


def _attention_flops(model: ModelSpec) -> tuple[float, float]:
    """Operations of a layer per token and token it attends to: decoded (latent: absorbed form), in a prompt."""
    prompted = 2.0 * (model.query_width + model.value_width)
    if model.is_latent:
        return 2.0 * model.num_heads * (2.0 * model.kv_lora_rank + model.rope_head_dim), prompted
    return prompted, prompted


def _activation_bytes(model: ModelSpec, tp: int, *, logits: bool = True) -> float:
    """Bytes that a token moves beside weights and KV cache: in and out of every product, norm and activation.

    Of a layer: 12 hidden (four products' ends and two norms with residuals), queries, keys and values twice, the
    MLP's width six times; then the logits, which every GPU of the group samples from.
    """
    split = 2.0 * (model.query_width + model.kv_elements) + 6.0 * model.active_mlp_size
    layer = 12.0 * model.hidden_size + split / tp
    return ACTIVATION_BYTES * layer * model.num_layers + (LOGIT_BYTES * model.vocab_size if logits else 0.0)
