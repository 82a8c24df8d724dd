"""A profile from datasheets: `roofline(model, gpu, tp=...)`. Nothing is fitted; nothing is measured.

The formulas are in `jaxsim.roofline_laws`; here they get their numbers from the catalogue.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from jaxsim._checks import invalid, require_non_negative, require_positive, unknown
from jaxsim.catalogue import GpuSpec
from jaxsim.kv_fit import Layout, capacity_of, layout
from jaxsim.model_spec import ModelSpec, kv_bytes, kv_bytes_per_gpu, weight_bytes, weight_counts
from jaxsim.physics import StepLaw
from jaxsim.profiles import Profile
from jaxsim.roofline_laws import Load, Machine, batch_grid, linear_error, roofline_law
from jaxsim.roofline_names import parse_name, profile_name

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


def _compute_dtype(shape: Layout) -> str:
    """The format that matrix products run in; weights without hardware support are widened to 16 bits."""
    native = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4"}.get(shape.weight_dtype, "bf16")
    return native if native in shape.gpu.flops_per_s else "bf16"


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


def load_of(shape: Layout, *, all_reduce: bool = True, activations: bool = True, experts: Experts = "expected") -> Load:
    """What a step moves and computes on one GPU; arguments as in `roofline`."""
    model, tp = shape.model, shape.tp
    counts = weight_counts(model)
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
    blocks = counts.attention + counts.key_value + counts.replicated + counts.dense_mlp
    blocks += counts.shared_experts + counts.experts * share
    head = counts.embedding if model.tied_embeddings else counts.head
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
        token_flops=2.0 * (blocks + head) / tp,
        prompt_flops=2.0 * blocks / tp + pairs * windowed * model.sliding_window,
        kv_bytes_per_token=kv.per_token,
        decode_flops_per_token=decoded * model.num_layers * (1.0 - windowed) / tp,
        prompt_flops_per_pair=pairs * (1.0 - windowed),
        all_reduces=2.0 * model.num_layers + 1.0 if tp > 1 and all_reduce else 0.0,
        all_reduce_bytes=ACTIVATION_BYTES * model.hidden_size,
        send_bytes=ACTIVATION_BYTES * model.hidden_size,
    )


def _attention_flops(model: ModelSpec) -> tuple[float, float]:
    """Operations of a layer per token and token it attends to: decoded (latent: absorbed form), in a prompt."""
    prompted = 2.0 * (model.query_width + model.value_width)
    if model.is_latent:
        return 2.0 * model.num_heads * (2.0 * model.kv_lora_rank + model.rope_head_dim), prompted
    return prompted, prompted


def _activation_bytes(model: ModelSpec, tp: int) -> float:
    """Bytes that a token moves beside weights and KV cache: in and out of every product, norm and activation.

    Of a layer: 12 hidden (four products' ends and two norms with residuals), queries, keys and values twice, the
    MLP's width six times; then the logits, which every GPU of the group samples from.
    """
    split = 2.0 * (model.query_width + model.kv_elements) + 6.0 * model.active_mlp_size
    layer = 12.0 * model.hidden_size + split / tp
    return ACTIVATION_BYTES * layer * model.num_layers + LOGIT_BYTES * model.vocab_size


def roofline(
    model: str | ModelSpec,
    gpu: str | GpuSpec,
    *,
    tp: int = 1,
    pp: int = 1,
    weight_dtype: str | None = None,
    weight_bits: float | None = None,
    kv_dtype: str = "bf16",
    compute_dtype: str | None = None,
    gpu_memory_utilization: float = 0.9,
    alpha_bw: float = 0.8,
    alpha_flops: float | None = None,
    attention_efficiency: float = ATTENTION_EFFICIENCY,
    layer_overhead_s: float = 3e-6,
    all_reduce: bool = True,
    all_reduce_latency_s: float | None = None,
    all_reduce_bytes_per_s: float | None = None,
    cpu_time_s: float = 3e-3,
    gqa_overhead: float = 0.10,
    activations: bool = True,
    experts: Experts = "expected",
    prefill_chunks: float = 2.0,
    comm_buffers: bool = True,
    activation_bytes: float = 0.0,
    max_num_seqs: float = 256,
    batch_range: tuple[float, float] | None = None,
    chunk_tokens: float = 2048,
    block_tokens: float = 16,
    calibration_context: float = 8192,
    usd_per_gpu_hour: float | None = None,
    name: str | None = None,
) -> Profile:
    r"""The profile of a model on a GPU, from their datasheets.

    The law is that of `jaxsim.roofline_laws`: weights at $\alpha$ of the bandwidth and $L o$ a step; the KV cache
    at $\alpha$ of the bandwidth per context token; compute at $\eta$ of the rate. Each term that the bare roofline
    lacks can be switched off.

    Accuracy (measured in `tests/test_roofline.py`; no constant was fitted to these tables, though the all-reduce times
    of the catalogue come from the kernels that they are composed of). Decode step over 45 groups of GPU, model and tp
    composed of measured kernels, without norms and CPU time, so with ``cpu_time_s=0, gqa_overhead=0``: median error
    11 %, worst group 27 %, nearly always too fast; worst for small models on many fast GPUs, where kernel latency
    counts and 3 us a layer is too little. Prompts up to 8,192 tokens: median 10 %, worst group 30 %. Time per token of
    some 150 runs of dense models on real engines, up to 8 requests at once, with the defaults: median 9 %.

    Args:
        model, gpu: catalogue names, or specs (`model_from_config` reads a model's own config.json).
        tp, pp: GPUs of a tensor-parallel group; stages. With `pp` stages as many micro-batches are taken to be in
            flight: the time of a step is that through all stages, each holds its share of the batch. The first token
            of a lone prompt then comes up to `pp` times later than the law says.
        weight_dtype, weight_bits: format by name or in bits; the model's own where left out.
        kv_dtype: of the cache.
        compute_dtype: of the matrix products; the weights' where the GPU has a rate for it, else bf16.
        gpu_memory_utilization, comm_buffers, activation_bytes: as in `kv_capacity`.
        alpha_bw, alpha_flops: shares of peak bandwidth and rate reached; `alpha_flops` from the catalogue, else 0.80.
        attention_efficiency: share of the 16-bit rate that attention reaches in prefill.
        layer_overhead_s: fixed cost of a layer, each step.
        all_reduce: whether to count the two all-reduces of a layer (tp > 1): latency in the base, bytes per sequence.
        all_reduce_latency_s, all_reduce_bytes_per_s: of this machine instead of the catalogue's.
        cpu_time_s: what scheduler and sampler add to a step: the middle of the published 1 to 5 ms. It is kept
            apart as the profile's `overhead_s`.
        gqa_overhead: share added to the time per context token where query heads share a KV head (Vidur's figure).
        activations: whether to count activations and logits, by bytes and sequence.
        experts: those a step reads: "expected" by the batch (balanced routing), "active" those of one token, "all".
        prefill_chunks: number of chunks of a prompt at which the attention work is exact.
        max_num_seqs: running sequences an engine admits.
        batch_range: batches over which the law is the line nearest to the roofline (least squared relative error,
            every doubling alike). Left out, it is 1 to `max_num_seqs` for a dense model. With experts read by the
            batch it is the last three doublings up to `max_num_seqs`: reads saturate, no line fits all batches, and
            a line through the top of a concave curve is too slow below it, never too fast. The source says by how
            much; give a lower range for small batches.
        chunk_tokens, block_tokens, calibration_context: as in `Profile`.
        usd_per_gpu_hour: your price; the middle of the catalogue's range where left out.
        name: of the profile.

    Raises:
        ValueError: an unknown name, an argument out of its domain, a number that has no citable source, or a model
            that does not fit, with what would.
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
    for what, count in (("max_num_seqs", max_num_seqs), ("chunk_tokens", chunk_tokens)):
        require_positive(what, count)
    require_non_negative("cpu_time_s", cpu_time_s)
    require_positive("prefill_chunks", prefill_chunks)
    _kv_blocks(shape, max_num_seqs, block_tokens)  # refuses a model that does not fit before anything is computed
    machine = machine_of(
        shape,
        compute_dtype=compute_dtype,
        alpha_bw=alpha_bw,
        alpha_flops=alpha_flops,
        attention_efficiency=attention_efficiency,
        layer_overhead_s=layer_overhead_s,
        all_reduce=all_reduce,
        all_reduce_latency_s=all_reduce_latency_s,
        all_reduce_bytes_per_s=all_reduce_bytes_per_s,
        gqa_overhead=gqa_overhead,
    )
    load = load_of(shape, all_reduce=all_reduce, activations=activations, experts=experts)
    batches = batch_grid(*_batch_range(batch_range, max_num_seqs, load))
    law: StepLaw = roofline_law(
        machine, load, batches=batches, chunk_tokens=chunk_tokens, chunks=prefill_chunks, overhead_s=cpu_time_s
    )
    switches = [
        f"alpha_bw {alpha_bw:g}",
        f"alpha_flops {machine.alpha_flops:g}",
        f"layer overhead {layer_overhead_s * 1e6:g} us",
        _switch("all-reduce", load.all_reduces > 0, "" if shape.tp > 1 else " (tp 1)"),
        f"CPU time {cpu_time_s * 1e3:g} ms",
        f"GQA {100 * (machine.kv_factor - 1):+.0f} %",
        _switch("activations", activations),
    ]
    if shape.model.num_experts:
        switches.append(f"experts {experts}")
    source = (
        f"roofline, not measured: {shape.model.source}; {shape.gpu.name} by {shape.gpu.source_of('*')}; "
        f"{shape.weight_dtype} weights, {kv_dtype} KV; {', '.join(switches)}; "
        f"{_line_text(machine, load, law, batches)}"
    )
    return placed(
        law,
        shape,
        max_num_seqs=max_num_seqs,
        chunk_tokens=chunk_tokens,
        block_tokens=block_tokens,
        calibration_context=calibration_context,
        usd_per_gpu_hour=usd_per_gpu_hour,
        name=name or profile_name(shape),
        source=source,
    )


def placed(
    law: StepLaw,
    shape: Layout,
    *,
    max_num_seqs: float,
    chunk_tokens: float,
    name: str,
    source: str,
    block_tokens: float = 16,
    calibration_context: float = 8192,
    usd_per_gpu_hour: float | None = None,
) -> Profile:
    """The profile of a law on the GPUs of a layout: their KV cache and price; the price's source is added."""
    for what, count in (("max_num_seqs", max_num_seqs), ("chunk_tokens", chunk_tokens), ("block_tokens", block_tokens)):
        require_positive(what, count)
    blocks = _kv_blocks(shape, max_num_seqs, block_tokens)
    price, price_text = _price(shape.gpu, usd_per_gpu_hour)
    numbers: dict[str, Any] = {
        **law._asdict(),
        "chunk_tokens": chunk_tokens,
        "max_num_seqs": max_num_seqs,
        "kv_blocks": blocks,
        "block_tokens": block_tokens,
        "calibration_context": calibration_context,
        "usd_per_gpu_hour": price,
        "gpus_per_replica": shape.tp * shape.pp,
    }
    return Profile(**numbers, name=name, gpu=shape.gpu.name, source=f"{source}; {price_text}")


def _batch_range(given: tuple[float, float] | None, max_num_seqs: float, load: Load) -> tuple[float, float]:
    largest = max(float(max_num_seqs), 2.0)
    low, high = given or (largest / 8.0 if load.expert_bytes > 0 else 1.0, largest)
    if not 0 < low < high:
        raise invalid("batch_range", given, "two batches 0 < smallest < largest")
    return low, high


def _line_text(machine: Machine, load: Load, law: StepLaw, batches: np.ndarray) -> str:
    """How far the line is from the roofline, inside its range and for a single sequence."""
    errors = np.abs(linear_error(machine, load, law, batches))
    alone = float(linear_error(machine, load, law, 1.0))
    text = (
        f"line through batches {batches[0]:g} to {batches[-1]:g} within {100 * np.median(errors):.1f} % (median), "
        f"{100 * errors.max():.1f} % (worst)"
    )
    return text if batches[0] <= 1.0 else f"{text}, {1 + alone:.1f} times the roofline for a single sequence"


def _switch(what: str, on: bool, why: str = "") -> str:
    return f"{what} {'on' if on else 'off'}{why}"


def _price(gpu: GpuSpec, given: float | None) -> tuple[float, str]:
    if given is not None:
        require_non_negative("usd_per_gpu_hour", given)
        return given, "price given"
    if gpu.price is None:
        raise gpu.missing("price", "usd_per_gpu_hour")
    low, high, as_of = gpu.price
    source = gpu.source_of("usd_per_gpu_hour")
    return gpu.price.middle, f"price is the middle of {low:.2f} to {high:.2f} USD/h as of {as_of} ({source})"


def _kv_blocks(shape: Layout, max_num_seqs: float, block_tokens: float) -> int:
    """KV blocks of a replica. Windows of all sequences are set aside where that leaves more than ignoring them."""
    held, budget = shape.stage_kv_bytes, shape.kv_budget_bytes
    tokens = budget / (held.per_token + held.per_window_token)
    if held.per_token > 0:
        tokens = max(tokens, (budget - max_num_seqs * held.per_window_token * held.window) / held.per_token)
    blocks = int(tokens // block_tokens)
    if blocks < 1:
        raise ValueError(capacity_of(shape, max_context=shape.model.max_context).reason)
    return blocks


def profile_from_name(name: str) -> Profile:
    """The roofline profile of a catalogue name, with the defaults of `roofline`; see `jaxsim.roofline_names`.

    Raises:
        ValueError: an unknown part, with the near ones, or what `roofline` raises.
    """
    parts = parse_name(name)
    return roofline(
        parts.model,
        parts.gpu,
        tp=parts.tp,
        pp=parts.pp,
        weight_dtype=parts.weight_dtype,
        kv_dtype=parts.kv_dtype,
        name=name,
    )
