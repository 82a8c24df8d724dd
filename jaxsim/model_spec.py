"""A language model by its shapes: parameters, bytes of weights and of KV cache, operations per token.

Counts are those of the transformer decoder that an engine loads: embedding, blocks, head. Layers for
multi-token prediction and vision towers are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from jaxsim._checks import invalid, unknown

UNQUANTISED_BITS = 16.0
"""Norms, routers and biases stay in 16 bits in every format."""


class WeightFormat(NamedTuple):
    """Bits per weight of the experts, of the other linear layers, and of the embedding and the head."""

    expert_bits: float
    linear_bits: float
    embedding_bits: float


WEIGHT_FORMATS = {
    "fp32": WeightFormat(32.0, 32.0, 32.0),
    "bf16": WeightFormat(16.0, 16.0, 16.0),
    "fp16": WeightFormat(16.0, 16.0, 16.0),
    "fp8": WeightFormat(8.0, 8.0, 8.0),
    "fp8_linear": WeightFormat(8.0, 8.0, 16.0),
    "int8": WeightFormat(8.0, 8.0, 8.0),
    "int4": WeightFormat(4.15625, 4.15625, 16.0),
    "nvfp4": WeightFormat(4.5, 4.5, 16.0),
    "mxfp4": WeightFormat(4.25, 16.0, 16.0),
    "nvfp4_experts": WeightFormat(4.5, 16.0, 16.0),
    "int4_experts": WeightFormat(4.5, 16.0, 16.0),
}
"""Formats by name. fp8_linear: embedding and head stay in 16 bits, as Qwen, MiniMax and NVIDIA publish theirs (the
lists of modules not converted in their config.json). int4: groups of 128 with a 16-bit scale and a 4-bit zero (AWQ,
GPTQ). nvfp4: blocks of 16 with an 8-bit scale. mxfp4: blocks of 32 with an 8-bit scale, experts only, as gpt-oss ships
(its model card). nvfp4_experts: experts only, as NVIDIA publishes mixture models (config.json of
nvidia/MiniMax-M2.5-NVFP4); int4_experts: groups of 32 with a 16-bit scale, experts only (config.json of
moonshotai/Kimi-K2.5)."""

EXPERT_FORMATS = ("mxfp4", "nvfp4_experts", "int4_experts")
"""Those that leave everything but experts in 16 bits."""

KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
"""Bytes of one element of the KV cache."""


class WeightCounts(NamedTuple):
    """Parameters of a whole model by what happens to them under tensor parallelism and in a step.

    `key_value` is split only as far as there are KV heads, `replicated` (low-rank inputs of latent attention,
    norms, routers) is on every GPU, `experts` are all routed experts; the rest is split evenly.
    """

    embedding: float
    head: float
    attention: float
    key_value: float
    replicated: float
    dense_mlp: float
    experts: float
    shared_experts: float

    @property
    def total(self) -> float:
        """All of them."""
        return float(sum(self))


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Shapes of a decoder-only transformer with gated MLPs (SwiGLU, GeGLU).

    Attributes:
        name, source: what it is and where its shapes come from.
        architecture: `model_type` of the Hugging Face config.
        num_layers, hidden_size, num_heads, num_kv_heads, head_dim: attention; `head_dim` of queries and keys.
        intermediate_size: width of the dense MLP.
        vocab_size, tied_embeddings: embedding and head; tied means that they share one matrix.
        max_context: longest context the model was made for, tokens.
        native_dtype: weight format it is published in, one of `WEIGHT_FORMATS`.
        num_experts, experts_per_token, expert_size, num_moe_layers: routed experts; 0 for a dense model.
        shared_expert_size: width of the experts that every token uses, 0 for none.
        q_lora_rank, kv_lora_rank, rope_head_dim, value_head_dim: latent attention (MLA); `kv_lora_rank` 0 for none.
        sliding_window, num_window_layers: context that windowed layers keep; 0 for none.
        extra_per_layer, extra_per_expert: biases, norms of queries and keys, sinks; parameters.
        norms_per_layer: norms of hidden size.
        has_router_bias: one bias per expert.
    """

    name: str
    source: str
    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_context: int
    tied_embeddings: bool = False
    native_dtype: str = "bf16"
    num_experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    num_moe_layers: int = 0
    shared_expert_size: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    value_head_dim: int = 0
    sliding_window: int = 0
    num_window_layers: int = 0
    extra_per_layer: int = 0
    extra_per_expert: int = 0
    norms_per_layer: int = 2
    has_router_bias: bool = False

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "max_context"):
            if getattr(self, name) < 1:
                raise invalid(f"model {name}", getattr(self, name), "at least 1")
        if self.num_heads % self.num_kv_heads:
            raise invalid("model num_kv_heads", self.num_kv_heads, f"a divisor of num_heads {self.num_heads}")
        if not 0 <= self.num_moe_layers <= self.num_layers:
            raise invalid("model num_moe_layers", self.num_moe_layers, f"0 to num_layers {self.num_layers}")
        if self.num_moe_layers and not 1 <= self.experts_per_token <= self.num_experts:
            raise invalid("model experts_per_token", self.experts_per_token, f"1 to num_experts {self.num_experts}")
        weight_format(self.native_dtype)

    @property
    def is_latent(self) -> bool:
        """Whether attention keeps one latent vector per token instead of keys and values (MLA)."""
        return self.kv_lora_rank > 0

    @property
    def is_grouped(self) -> bool:
        """Whether several query heads share a KV head (GQA, MQA)."""
        return self.num_kv_heads < self.num_heads and not self.is_latent

    @property
    def query_width(self) -> int:
        """Elements of the queries of one token."""
        return self.num_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Elements that attention hands to its output projection."""
        return self.num_heads * (self.value_head_dim or self.head_dim)

    @property
    def kv_elements(self) -> int:
        """Elements that one layer keeps of one token, all GPUs together."""
        if self.is_latent:
            return self.kv_lora_rank + self.rope_head_dim
        return self.num_kv_heads * (self.head_dim + (self.value_head_dim or self.head_dim))

    @property
    def active_mlp_size(self) -> float:
        """Width of the MLP that one token uses, mean over the layers."""
        dense = (self.num_layers - self.num_moe_layers) * self.intermediate_size
        routed = self.num_moe_layers * (self.experts_per_token * self.expert_size + self.shared_expert_size)
        return (dense + routed) / self.num_layers


def weight_format(name: str) -> WeightFormat:
    """The weight format of that name.

    Raises:
        ValueError: unknown name, with the near ones.
    """
    if name not in WEIGHT_FORMATS:
        raise unknown("weight dtype", name, WEIGHT_FORMATS)
    return WEIGHT_FORMATS[name]


def kv_bytes(name: str) -> float:
    """Bytes of one KV-cache element of that dtype.

    Raises:
        ValueError: unknown name, with the near ones.
    """
    if name not in KV_BYTES:
        raise unknown("KV-cache dtype", name, KV_BYTES)
    return KV_BYTES[name]


@lru_cache(maxsize=256)
def weight_counts(model: ModelSpec) -> WeightCounts:
    """Parameters by kind."""
    hidden, layers = model.hidden_size, model.num_layers
    if model.is_latent:
        nope = model.head_dim - model.rope_head_dim
        low_rank = hidden * (model.kv_lora_rank + model.rope_head_dim) + model.kv_lora_rank
        query = hidden * model.query_width
        if model.q_lora_rank:
            low_rank += hidden * model.q_lora_rank + model.q_lora_rank
            query = model.q_lora_rank * model.query_width
        up = model.kv_lora_rank * model.num_heads * (nope + model.value_head_dim)
        attention, key_value = query + up + model.value_width * hidden, 0
    else:
        low_rank = 0
        attention = hidden * model.query_width + model.value_width * hidden
        key_value = hidden * model.kv_elements
    router = model.num_experts * (hidden + int(model.has_router_bias))
    expert = 3 * hidden * model.expert_size + model.extra_per_expert
    norms = model.norms_per_layer * hidden + model.extra_per_layer
    table = float(model.vocab_size * hidden)
    return WeightCounts(
        embedding=table,
        head=0.0 if model.tied_embeddings else table,
        attention=float(layers * attention),
        key_value=float(layers * key_value),
        replicated=float(layers * (low_rank + norms) + hidden + model.num_moe_layers * router),
        dense_mlp=float((layers - model.num_moe_layers) * 3 * hidden * model.intermediate_size),
        experts=float(model.num_moe_layers * model.num_experts * expert),
        shared_experts=float(model.num_moe_layers * 3 * hidden * model.shared_expert_size),
    )


def parameters(model: ModelSpec) -> float:
    """All parameters."""
    return weight_counts(model).total


def active_parameters(model: ModelSpec, *, embedding: bool = True) -> float:
    """Parameters that one token uses: of the routed experts only those it is sent to."""
    counts = weight_counts(model)
    share = model.experts_per_token / model.num_experts if model.num_experts else 0.0
    used = counts.total - counts.experts * (1.0 - share)
    return used if embedding or model.tied_embeddings else used - counts.embedding


class WeightBytes(NamedTuple):
    """Bytes of weights on one GPU of a tensor-parallel group, the whole depth of the model.

    `embedding` is looked up, not streamed, unless it is tied to the head; `experts` are all routed experts;
    `layers` is everything else inside the blocks.
    """

    embedding: float
    head: float
    layers: float
    experts: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.embedding + self.head + self.layers + self.experts


def weight_bytes(model: ModelSpec, tp: int, bits: WeightFormat) -> WeightBytes:
    """Bytes on one of `tp` GPUs."""
    counts = weight_counts(model)
    kv_share = 1.0 / min(tp, model.num_kv_heads)
    linear = (counts.attention + counts.dense_mlp + counts.shared_experts) / tp + counts.key_value * kv_share
    return WeightBytes(
        embedding=counts.embedding / tp * bits.embedding_bits / 8.0,
        head=counts.head / tp * bits.embedding_bits / 8.0,
        layers=linear * bits.linear_bits / 8.0 + counts.replicated * UNQUANTISED_BITS / 8.0,
        experts=counts.experts / tp * bits.expert_bits / 8.0,
    )


def stage_weight_bytes(model: ModelSpec, tp: int, pp: int, bits: WeightFormat) -> float:
    """Bytes on one GPU of the fullest of `pp` stages: an even share of the layers and an end of the model."""
    held = weight_bytes(model, tp, bits)
    share = stage_layers(model, pp) / model.num_layers
    ends = held.embedding + held.head if pp == 1 else max(held.embedding, held.head)
    return (held.layers + held.experts) * share + ends


def stage_layers(model: ModelSpec, pp: int) -> int:
    """Layers of the fullest of `pp` stages."""
    return -(-model.num_layers // pp)


class KvBytes(NamedTuple):
    """Bytes of KV cache on one GPU: per token in the layers that keep all, and per token in windowed layers."""

    per_token: float
    per_window_token: float
    window: float

    def of_sequence(self, context: float) -> float:
        """Bytes that a sequence of `context` tokens holds."""
        return self.per_token * context + self.per_window_token * min(context, self.window)


def kv_bytes_per_gpu(model: ModelSpec, tp: int, layers: int, element_bytes: float) -> KvBytes:
    """Bytes on one of `tp` GPUs in `layers` of the layers, windowed ones in proportion.

    Latent attention keeps the whole latent on each GPU; with more GPUs than KV heads the heads are repeated.
    """
    split = 1 if model.is_latent else min(tp, model.num_kv_heads)
    each = model.kv_elements / split * element_bytes
    windowed = layers * model.num_window_layers / model.num_layers
    return KvBytes((layers - windowed) * each, windowed * each, float(model.sliding_window))
