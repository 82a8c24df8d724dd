"""Reads a model's shapes from its Hugging Face `config.json`.

Each known `model_type` has its own short reader, because the same key means different things in different
architectures (`intermediate_size` is the experts' width in Mixtral and unused in Qwen3-30B-A3B). A type that
is not known is refused: parameters guessed from another architecture's formula would be wrong and look right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxsim._checks import unknown
from jaxsim.model_spec import ModelSpec

NATIVE_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
QUANTISATIONS = {"fp8": "fp8", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4"}
SHAPE_KEYS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


class _Config:
    """A config with its origin, so that an error says file, key, what was found and what was expected."""

    def __init__(self, table: Mapping[str, Any], origin: str) -> None:
        self.table, self.origin = table, origin

    def error(self, key: str, expected: str) -> ValueError:
        found = f"found {self.table[key]!r}" if key in self.table else "missing"
        return ValueError(f"{self.origin}: {key}: {found}, expected {expected}")

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number > 0; `null` and a missing key are the default where there is one."""
        value = self.table.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, "a whole number > 0")
        return value

    def optional(self, key: str) -> int:
        """A whole number >= 0; 0 where the key is missing or `null`."""
        value = self.table.get(key)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(key, "a whole number >= 0 or null")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.table.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value


def _common(config: _Config) -> dict[str, Any]:
    heads = config.count("num_attention_heads")
    hidden = config.count("hidden_size")
    if "head_dim" not in config.table and hidden % heads:
        raise config.error("head_dim", f"a whole number > 0, as hidden_size {hidden} is no multiple of {heads} heads")
    return {
        "num_layers": config.count("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": config.count("num_key_value_heads", heads),
        "head_dim": config.count("head_dim", hidden // heads),
        "intermediate_size": config.count("intermediate_size"),
        "vocab_size": config.count("vocab_size"),
        "max_context": config.count("max_position_embeddings"),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _query_key_value_size(shapes: Mapping[str, Any]) -> int:
    return int((shapes["num_heads"] + 2 * shapes["num_kv_heads"]) * shapes["head_dim"])


def _llama(config: _Config) -> dict[str, Any]:
    shapes = _common(config)
    extra = 0
    if config.flag("attention_bias", False):
        extra += _query_key_value_size(shapes) + shapes["hidden_size"]
    if config.flag("mlp_bias", False):
        extra += 2 * shapes["intermediate_size"] + shapes["hidden_size"]
    return shapes | {"extra_per_layer": extra}


def _mistral(config: _Config) -> dict[str, Any]:
    shapes = _common(config)
    window = config.optional("sliding_window")
    return shapes | {"sliding_window": window, "num_window_layers": shapes["num_layers"] if window else 0}


def _qwen2(config: _Config) -> dict[str, Any]:
    shapes = _common(config)
    windows: dict[str, Any] = {}
    if config.flag("use_sliding_window", False):
        kept = min(config.count("max_window_layers"), shapes["num_layers"])
        windows = {
            "sliding_window": config.count("sliding_window"),
            "num_window_layers": shapes["num_layers"] - kept,
        }
    return shapes | windows | {"extra_per_layer": _query_key_value_size(shapes)}


def _qwen3(config: _Config) -> dict[str, Any]:
    shapes = _llama(config)
    return shapes | {"extra_per_layer": shapes["extra_per_layer"] + 2 * shapes["head_dim"]}


def _qwen3_moe(config: _Config) -> dict[str, Any]:
    shapes = _qwen3(config)
    if config.optional("decoder_sparse_step") > 1 or config.table.get("mlp_only_layers"):
        raise config.error("decoder_sparse_step", "1, with empty mlp_only_layers: experts in every layer")
    return shapes | {
        "num_experts": config.count("num_experts"),
        "experts_per_token": config.count("num_experts_per_tok"),
        "expert_size": config.count("moe_intermediate_size"),
        "num_moe_layers": shapes["num_layers"],
    }


def _mixtral(config: _Config) -> dict[str, Any]:
    shapes = _mistral(config)
    return shapes | {
        "num_experts": config.count("num_local_experts"),
        "experts_per_token": config.count("num_experts_per_tok"),
        "expert_size": shapes["intermediate_size"],
        "num_moe_layers": shapes["num_layers"],
    }


def _gemma2(config: _Config) -> dict[str, Any]:
    shapes = _common(config)
    return shapes | {
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "norms_per_layer": 4,
        "sliding_window": config.count("sliding_window"),
        "num_window_layers": (shapes["num_layers"] + 1) // 2,
    }


def _deepseek(config: _Config) -> dict[str, Any]:
    shapes = _common(config)
    rope = config.count("qk_rope_head_dim")
    experts = config.optional("n_routed_experts")
    dense = config.optional("first_k_dense_replace")
    if config.count("moe_layer_freq", 1) > 1:
        raise config.error("moe_layer_freq", "1: experts in every layer after the first dense ones")
    size = config.count("moe_intermediate_size") if experts else 0
    return shapes | {
        "head_dim": config.count("qk_nope_head_dim") + rope,
        "rope_head_dim": rope,
        "value_head_dim": config.count("v_head_dim"),
        "q_lora_rank": config.optional("q_lora_rank"),
        "kv_lora_rank": config.count("kv_lora_rank"),
        "num_experts": experts,
        "experts_per_token": config.count("num_experts_per_tok") if experts else 0,
        "expert_size": size,
        "num_moe_layers": max(shapes["num_layers"] - dense, 0) if experts else 0,
        "shared_expert_size": config.optional("n_shared_experts") * size,
        "has_router_bias": config.table.get("model_type") != "deepseek_v2" and experts > 0,
    }


def _gpt_oss(config: _Config) -> dict[str, Any]:
    shapes = _llama(config)
    size = shapes["intermediate_size"]
    kinds = config.table.get("layer_types")
    alternate = (shapes["num_layers"] + 1) // 2
    windowed = alternate if kinds is None else sum(kind == "sliding_attention" for kind in kinds)
    return shapes | {
        "extra_per_layer": shapes["extra_per_layer"] + shapes["num_heads"],
        "num_experts": config.count("num_local_experts"),
        "experts_per_token": config.count("num_experts_per_tok"),
        "expert_size": size,
        "extra_per_expert": 2 * size + shapes["hidden_size"],
        "num_moe_layers": shapes["num_layers"],
        "has_router_bias": True,
        "sliding_window": config.count("sliding_window"),
        "num_window_layers": windowed,
    }


def _minimax_m2(config: _Config) -> dict[str, Any]:
    shapes = _llama(config)
    if config.optional("shared_intermediate_size"):
        raise config.error("shared_intermediate_size", "0: no experts that every token uses")
    norms = _query_key_value_size(shapes) - shapes["num_kv_heads"] * shapes["head_dim"]  # of queries and of keys
    return shapes | {
        "extra_per_layer": shapes["extra_per_layer"] + (norms if config.flag("use_qk_norm", False) else 0),
        "num_experts": config.count("num_local_experts"),
        "experts_per_token": config.count("num_experts_per_tok"),
        "expert_size": shapes["intermediate_size"],
        "num_moe_layers": shapes["num_layers"],
        "has_router_bias": config.flag("use_routing_bias", False),
    }


ARCHITECTURES: dict[str, Callable[[_Config], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _mistral,
    "gemma2": _gemma2,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "minimax_m2": _minimax_m2,
    "gpt_oss": _gpt_oss,
}
"""Readers by `model_type`."""


def _native_dtype(config: _Config) -> str:
    quantisation = config.table.get("quantization_config")
    if quantisation is not None:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
        bits = quantisation.get("bits", 4) if isinstance(quantisation, dict) else 4
        if method not in QUANTISATIONS or (QUANTISATIONS[method] == "int4" and bits != 4):
            known = ", ".join(sorted(QUANTISATIONS))
            raise config.error(
                "quantization_config", f"a quant_method among {known} (awq, gptq: 4 bits); or give weight_dtype"
            )
        return QUANTISATIONS[method]
    key = "torch_dtype" if config.table.get("torch_dtype") is not None else "dtype"
    value = config.table.get(key)
    if value is None:
        return "bf16"
    if value not in NATIVE_DTYPES:
        raise config.error(key, f"one of {', '.join(NATIVE_DTYPES)}; or give weight_dtype")
    return NATIVE_DTYPES[value]


def model_from_table(
    table: Mapping[str, Any], *, name: str, source: str, origin: str, weight_dtype: str | None = None
) -> ModelSpec:
    """The model that the keys of a Hugging Face config describe.

    Args:
        table: the config.
        name, source: for the result.
        origin: what an error calls the config, such as its path.
        weight_dtype: format of the weights where the config's own is not meant or not known.

    Raises:
        ValueError: a key that is missing or out of its domain, or an architecture that is not known.
    """
    config = _Config(table, origin)
    if "model_type" not in table and "text_config" in table:
        raise config.error("model_type", "a decoder-only language model, not the parts of a multimodal one")
    kind = table.get("model_type")
    if not isinstance(kind, str):
        raise config.error("model_type", f"one of {', '.join(sorted(ARCHITECTURES))}")
    if kind not in ARCHITECTURES:
        hint = (
            f"{origin}: model_type. Any other decoder-only model with gated MLPs: build jaxsim.ModelSpec from its "
            f"shapes ({', '.join(SHAPE_KEYS)}, head_dim; for experts their number, number per token and width; for "
            "latent attention its ranks)"
        )
        raise unknown("architecture", kind, ARCHITECTURES, hint)
    shapes = ARCHITECTURES[kind](config)
    native = weight_dtype if weight_dtype is not None else _native_dtype(config)
    try:
        return ModelSpec(name=name, source=source, architecture=kind, native_dtype=native, **shapes)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from error


def model_from_config(path: str | Path, *, name: str | None = None, weight_dtype: str | None = None) -> ModelSpec:
    """The model of a Hugging Face `config.json` on this machine.

    Args:
        path: the file, or the folder that holds it.
        name: for the result; the folder's name where left out.
        weight_dtype: format of the weights where the config's own is not meant or not known.

    Raises:
        ValueError: no such file, not JSON, a key that is missing or out of its domain, or an architecture
            that is not known; the text says file, key, what was found and what was expected.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); expected a Hugging Face config.json") from error
    except ValueError as error:
        raise ValueError(f"{file}: not JSON ({error}); expected a Hugging Face config.json") from error
    if not isinstance(table, dict):
        raise ValueError(f"{file}: found {type(table).__name__}, expected an object of keys and values")
    named = name or file.resolve().parent.name
    return model_from_table(
        table, name=named, source=f"{file.name} of {named}", origin=str(file), weight_dtype=weight_dtype
    )
