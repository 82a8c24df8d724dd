"""A profile from datasheets: `roofline(model, gpu, tp=...)`. Nothing is fitted; nothing is measured.

The formulas are in `jaxsim.roofline_laws`; here they get their numbers from the catalogue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsim._checks import invalid, require_non_negative, require_positive
from jaxsim.catalogue import GpuSpec
from jaxsim.kv_fit import GPU_MEMORY_UTILIZATION, Layout, capacity_of, layout
from jaxsim.model_spec import ModelSpec
from jaxsim.physics import StepLaw
from jaxsim.profiles import Profile
from jaxsim.roofline_laws import Load, Machine, batch_grid, linear_error, roofline_law
from jaxsim.roofline_load import (
    ATTENTION_EFFICIENCY,
    EXPERT_EFFICIENCY,
    Experts,
    load_of,
    machine_of,
)
from jaxsim.roofline_names import parse_name, profile_name


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
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
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
    expert_efficiency: float = EXPERT_EFFICIENCY,
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
    counts and 3 us a layer is too little. Prompts up to 8,192 tokens: median 10 %, worst group 27 %. Time per token of
    some 150 runs of dense models on real engines, up to 8 requests at once, with the defaults: median 9 %. Of 2,541
    runs of all kinds, without `expert_efficiency`, which is from them: time per token 16 % in the median; TTFT 55 %,
    nearly always too low, as prompts wait for engines and clients (``benchmarks/blind.py``,
    ``docs/accuracy-physics.md``).

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
        activations: whether to count activations and logits, by bytes and sequence, and activations of prompt tokens.
        experts: those a step reads: "expected" by the batch (balanced routing), "active" those of one token, "all".
        expert_efficiency: share of `alpha_flops` that the products of experts reach.
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
    load = load_of(
        shape,
        all_reduce=all_reduce,
        activations=activations,
        experts=experts,
        compute_dtype=compute_dtype,
        expert_efficiency=expert_efficiency,
    )
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
        switches.append(f"experts {experts}, their products at {expert_efficiency:g} of the rate of dense ones")
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
