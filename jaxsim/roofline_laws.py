r"""The roofline as free functions of scalars: bytes, operations, bandwidths and latencies in, seconds out.

A decode step of $n$ sequences that hold $K$ context tokens together takes

$$\tau(n, K) = T(n) + \kappa K, \qquad
T(n) = \mathrm{smoothmax}\!\left(\frac{B(n)}{\alpha\,\beta},\; \frac{F n}{\eta\,\varphi}\right)
 + L\,o + \text{all-reduces}(n)$$

with $B(n)$ the bytes that the step streams, $F$ the operations of a token, $\beta$ and $\varphi$ the GPU's peak
bandwidth and rate, $\alpha$ and $\eta$ the shares of them that are reached, and $o$ a fixed cost per layer. $T$ is
not linear in $n$: experts are shared between tokens, and compute overtakes bandwidth. The step law of
`jaxsim.physics` is the straight line nearest to it (`line_through`).

Every function takes floats or JAX scalars and differentiates in each. Sources: the vLLM Semantic Router fleet
simulator's model reference (roofline, terms it names as missing); S. Williams et al., "Roofline" (CACM 2009).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from jaxsim._ops import maximum, minimum
from jaxsim.physics import SMOOTHMAX_ORDER, StepLaw, smoothmax


class Machine(NamedTuple):
    """One GPU and its links, as the formulas see them (peak rates, shares reached, fixed costs in seconds).

    `alpha_bw`, `alpha_flops` and `attention_efficiency` are the shares of `bytes_per_s`, `flops_per_s` and
    `attention_flops_per_s` that kernels reach; `kv_factor` multiplies the time to read the KV cache.
    """

    bytes_per_s: Any
    flops_per_s: Any
    alpha_bw: Any
    alpha_flops: Any
    attention_flops_per_s: Any
    attention_efficiency: Any
    layer_overhead_s: Any
    all_reduce_latency_s: Any
    all_reduce_bytes_per_s: Any
    send_latency_s: Any
    send_bytes_per_s: Any
    kv_factor: Any


class Load(NamedTuple):
    """What a step moves and computes on one of `tp` GPUs, all layers of the model together.

    Attributes:
        tp, pp: GPUs of a tensor-parallel group, stages.
        layers: layers of the model.
        streamed_bytes: weights that every step reads, routed experts apart.
        expert_bytes: all routed experts.
        num_experts, experts_per_token: of one layer; 1 and 1 for a dense model.
        sequence_bytes: activations, logits and windowed KV cache of one sequence.
        token_flops, prompt_flops: operations of a decoded token and of a prompt token, attention apart; those that do
            not reach the machine's rate count more.
        prompt_bytes: activations of a prompt token.
        kv_bytes_per_token: KV cache that a step reads per context token.
        decode_flops_per_token: attention operations of a decoded token per context token.
        prompt_flops_per_pair: attention operations per prompt token and token it attends to.
        all_reduces, all_reduce_bytes: number a step, and bytes of one token in each.
        send_bytes: bytes of one token between stages.
    """

    tp: Any
    pp: Any
    layers: Any
    streamed_bytes: Any
    expert_bytes: Any
    num_experts: Any
    experts_per_token: Any
    sequence_bytes: Any
    token_flops: Any
    prompt_flops: Any
    prompt_bytes: Any
    kv_bytes_per_token: Any
    decode_flops_per_token: Any
    prompt_flops_per_pair: Any
    all_reduces: Any
    all_reduce_bytes: Any
    send_bytes: Any


def stream_s(num_bytes: Any, bytes_per_s: Any, alpha_bw: Any) -> Any:
    r"""Seconds to read `num_bytes` at a share of the peak bandwidth, $B / (\alpha \beta)$."""
    return num_bytes / (bytes_per_s * alpha_bw)


def compute_s(flops: Any, flops_per_s: Any, alpha_flops: Any) -> Any:
    r"""Seconds of `flops` operations at a share of the peak rate, $F / (\eta \varphi)$."""
    return flops / (flops_per_s * alpha_flops)


def ridge_point(flops_per_s: Any, bytes_per_s: Any) -> Any:
    """Operations per byte above which a kernel is compute bound."""
    return flops_per_s / bytes_per_s


def attention_intensity(chunk_tokens: Any, context_tokens: Any, num_heads: Any, num_kv_heads: Any) -> Any:
    r"""Operations per KV element of a prefill chunk, $\frac{4 c q H}{2 (c + q) H_{kv}}$.

    As the published reference writes it (section 3), counting elements read by the chunk and its context.
    """
    return 4.0 * chunk_tokens * context_tokens * num_heads / (2.0 * (chunk_tokens + context_tokens) * num_kv_heads)


def expected_experts(num_experts: Any, experts_per_token: Any, tokens: Any) -> Any:
    r"""Experts of a layer that at least one of `tokens` tokens is sent to, $E (1 - (1 - k/E)^n)$.

    Independent tokens, balanced routing. Real routing is skewed and hits fewer. Tokens > 0; experts = k gives k.
    """
    untouched = maximum(1.0 - experts_per_token / num_experts, 1e-300)  # a dense model's 0**n has no gradient in n < 1
    return num_experts * (1.0 - untouched**tokens)


def all_reduce_s(message_bytes: Any, tp: Any, latency_s: Any, bytes_per_s: Any) -> Any:
    r"""Seconds of one all-reduce, $\ell + 2 \frac{tp - 1}{tp} \frac{b}{\beta_{link}}$."""
    return latency_s + 2.0 * (tp - 1.0) / tp * message_bytes / bytes_per_s


def streamed_bytes(load: Load, tokens: Any) -> Any:
    """Bytes that a step of `tokens` decoded tokens reads on one GPU, context apart."""
    share = expected_experts(load.num_experts, load.experts_per_token, tokens) / load.num_experts
    return load.streamed_bytes + load.expert_bytes * share + load.sequence_bytes * tokens


def decode_step_s(machine: Machine, load: Load, sequences: Any) -> Any:
    """T(n): seconds of a decode step of `sequences` > 0 sequences without their context, before linearising.

    With `pp` stages it is the time through all of them of a micro-batch of `sequences`.
    """
    memory = stream_s(streamed_bytes(load, sequences), machine.bytes_per_s, machine.alpha_bw)
    compute = compute_s(load.token_flops * sequences, machine.flops_per_s, machine.alpha_flops)
    one = all_reduce_s(
        load.all_reduce_bytes * sequences, load.tp, machine.all_reduce_latency_s, machine.all_reduce_bytes_per_s
    )
    send = machine.send_latency_s + load.send_bytes * sequences / machine.send_bytes_per_s
    fixed = load.layers * machine.layer_overhead_s
    return smoothmax(memory, compute) + fixed + load.all_reduces * one + (load.pp - 1.0) * send


def context_token_s(machine: Machine, load: Load) -> Any:
    r"""$\kappa$: seconds that a context token adds to a step; `pp` micro-batches share the stages."""
    memory = stream_s(load.kv_bytes_per_token * machine.kv_factor, machine.bytes_per_s, machine.alpha_bw)
    compute = compute_s(load.decode_flops_per_token, machine.attention_flops_per_s, machine.attention_efficiency)
    return smoothmax(memory, compute) / load.pp


def prompt_token_s(machine: Machine, load: Load, base_s: Any, chunk_tokens: Any) -> Any:
    r"""Seconds of compute per prompt token, $p$ of the step law.

    Without experts it is operations over rate, plus the bytes of activations (kernels that only move them take turns
    with the products) and of the all-reduces. A chunk reads (nearly) all experts where a decode step of few sequences
    reads some; there $p$ is such that the law's $\mathrm{smoothmax}(base, p\,m)$ is right for a full chunk.
    """
    compute = compute_s(load.prompt_flops, machine.flops_per_s, machine.alpha_flops)
    dense = load.streamed_bytes + load.expert_bytes * (
        expected_experts(load.num_experts, load.experts_per_token, chunk_tokens) / load.num_experts
    )
    order = SMOOTHMAX_ORDER
    missing = maximum(stream_s(dense, machine.bytes_per_s, machine.alpha_bw) ** order - base_s**order, 0.0)
    experts = minimum(load.expert_bytes, 1.0) * missing / chunk_tokens**order  # none in a dense model
    sums = (compute**order + experts) ** (1.0 / order)
    per_token = all_reduce_s(load.all_reduce_bytes, load.tp, 0.0, machine.all_reduce_bytes_per_s)
    moved = stream_s(load.prompt_bytes, machine.bytes_per_s, machine.alpha_bw)
    return (sums + moved + load.all_reduces * per_token) / load.pp


def prompt_pair_s(machine: Machine, load: Load, chunks: Any) -> Any:
    r"""Seconds per prompt token and token of context, $c$ of the step law.

    Causal attention of a prompt of $P$ tokens computes $P^2/2$ pairs. The law counts $c\,m\,x$ for a chunk of $m$
    tokens that ends at context $x$, $c P^2 (K + 1)/(2K)$ over $K$ equal chunks, so one $c$ fits one $K$:
    exact for `chunks`; with the default of two, 33 % over for one chunk and 33 % under for very many.
    """
    pair = compute_s(load.prompt_flops_per_pair, machine.attention_flops_per_s, machine.attention_efficiency)
    return pair * chunks / (chunks + 1.0) / load.pp


@lru_cache(maxsize=64)
def batch_grid(smallest: float, largest: float, points: int = 24) -> np.ndarray:
    """Batches from `smallest` to `largest`, equally spaced in the logarithm: every doubling counts the same."""
    grid = np.geomspace(float(smallest), float(largest), points)
    grid.flags.writeable = False
    return grid


def line_through(batches: Any, times: Any) -> tuple[Any, Any]:
    r"""Intercept and slope of the line with the least squared relative error, $\min \sum (1 - (a + b n_i)/T_i)^2$.

    Args:
        batches: n, at least two different ones.
        times: T > 0 at them.
    """
    weights = 1.0 / times**2
    s0, s1, s2 = weights.sum(), (weights * batches).sum(), (weights * batches**2).sum()
    y0, y1 = (1.0 / times).sum(), (batches / times).sum()
    determinant = s0 * s2 - s1 * s1
    return (s2 * y0 - s1 * y1) / determinant, (s0 * y1 - s1 * y0) / determinant


def roofline_law(
    machine: Machine, load: Load, *, batches: Any, chunk_tokens: Any, chunks: Any = 2.0, overhead_s: Any = 0.0
) -> StepLaw:
    """The step law of `jaxsim.physics` that lies nearest to the roofline over `batches`.

    Args:
        machine, load: what is computed where.
        batches: running sequences of one engine over which the line is fitted, such as `batch_grid`.
        chunk_tokens: prompt tokens of a full chunk.
        chunks: chunks of a prompt for which the attention work is exact.
        overhead_s: what the engine adds to a step beside the GPU.
    """
    times = decode_step_s(machine, load, batches / load.pp)
    base, slope = line_through(batches, times)
    return StepLaw(
        base_s=base,
        per_sequence_s=slope,
        per_token_s=context_token_s(machine, load),
        prefill_per_token_s=prompt_token_s(machine, load, base, chunk_tokens),
        prefill_per_token2_s=prompt_pair_s(machine, load, chunks),
        overhead_s=overhead_s,
    )


def linear_error(machine: Machine, load: Load, law: StepLaw, batches: Any) -> Any:
    """Relative error of the line at each batch: how far the step law is from the roofline it stands for."""
    exact = decode_step_s(machine, load, batches / load.pp)
    return (law.base_s + law.per_sequence_s * batches) / exact - 1.0


def kv_budget_bytes(
    memory_bytes: Any, utilization: Any, weight_bytes: Any, buffer_bytes: Any, activation_bytes: Any
) -> Any:
    """Bytes of one GPU that are left for the KV cache; negative where the weights do not fit."""
    return utilization * memory_bytes - weight_bytes - buffer_bytes - activation_bytes


def kv_tokens(blocks: Any, block_tokens: Any) -> Any:
    """Context tokens that `blocks` KV blocks hold."""
    return blocks * block_tokens


def full_length_sequences(tokens: Any, max_context: Any) -> Any:
    """Sequences of `max_context` tokens that fit at once, as engines print it at start-up."""
    return tokens / max_context


def memory_floor_gpus(weight_bytes: Any, memory_bytes: Any, utilization: Any) -> Any:
    """GPUs that the weights alone need, as a real number; its ceiling is the memory floor."""
    return weight_bytes / (utilization * memory_bytes)
