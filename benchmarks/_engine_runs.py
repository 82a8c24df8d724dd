"""Benchmark runs of real engines, each with what is known of how it was started: nothing here reads a result.

The table (aiconfigurator, NVIDIA, Apache-2.0) gives model, GPUs, precision, lengths and concurrency. How engines and
clients were started is in the public scripts of InferenceX (SemiAnalysis, Apache-2.0; earlier InferenceMAX), from which
nearly three quarters of the rows come: lengths drawn evenly from 80 to 100 % of those named, ten requests a client, no
prefix cache, and by engine the budget of tokens, the KV format and how long a new prompt is held back. The other rows
(``aic-gap-analysis``) name their lengths exactly and say nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import polars as pl
from _vllm_runs import data_folder

from jaxsim.catalogue import model_spec
from jaxsim.hf_config import model_from_table
from jaxsim.kv_fit import Layout, layout
from jaxsim.model_spec import ModelSpec, weight_format
from jaxsim.units import MS_PER_S

ENGINES = ("vllm", "sglang", "trtllm")
GPUS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300", "gb200": "gb200"}
PLAIN = "aic-gap-analysis"
"""Kind of source without a script."""

LARGEST_ENGINE = 8
"""GPUs; rows of more say "aggregated" of whole racks, which no engine of one tensor-parallel group is."""

CATALOGUE = {
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
}

CONFIGS: dict[str, dict[str, Any]] = {
    "MiniMaxAI/MiniMax-M2.5": {
        "model_type": "minimax_m2",
        "num_hidden_layers": 62,
        "hidden_size": 3072,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 1536,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "shared_intermediate_size": 0,
        "use_qk_norm": True,
        "use_routing_bias": True,
        "vocab_size": 200064,
        "max_position_embeddings": 196608,
    },
    "moonshotai/Kimi-K2.5": {
        "model_type": "kimi_k2",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 384,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "vocab_size": 163840,
        "max_position_embeddings": 262144,
    },
}
"""Of models that are not in the catalogue, the keys of their config.json on Hugging Face that the shapes need."""

NOT_MODELLED = {
    "Qwen/Qwen3.5-397B-A17B": "three of four layers are linear attention, which the roofline does not know",
    "zhipuai/GLM-5": "sparse attention, which the roofline does not know",
}

SPECULATIVE = {
    ("trtllm", "1.1.0rc2.post2", "2026-01-14"),
    ("trtllm", "1.2.0rc6.post3", "2026-02-05"),
    ("trtllm", "1.2.0rc6.post3", "2026-02-06"),
}
"""Engine, version and date of DeepSeek-R1 runs that are taken to be those with multi-token prediction: InferenceX has
``dsr1_*_mtp.sh`` scripts for them, the table does not say, and with the same engine on the same GPUs they generate a
token in 50 to 70 % of the time of the others. No law here knows how many drafted tokens are accepted."""


class Run(NamedTuple):
    """One run: its setting, then its means.

    `shape` holds all GPUs of the engine as one group; `attention_dp` of them share no attention. `clients` are those of
    one engine. `budget` is the tokens of a step; `held_steps` how many steps a new prompt is held back.
    """

    engine: str
    system: str
    model: str
    precision: str
    kind: str
    shape: Layout
    attention_dp: int
    clients: int
    input_tokens: int
    output_tokens: int
    spread: float
    scheduling: str
    budget: int
    held_steps: float
    ttft_s: float
    tpot_s: float

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Of prompts and of outputs: the largest are those named."""
        return self.input_tokens / (1.0 + self.spread), self.output_tokens / (1.0 + self.spread)


class Runs(NamedTuple):
    """Those that can be predicted, those with speculative decoding, and how many others were left out, by reason."""

    used: list[Run]
    speculative: list[Run]
    left_out: Counter[str]
    repeated: float
    """Median of the largest over the smallest TPOT of settings that were measured more than once."""


@cache
def _model(path: str) -> ModelSpec:
    if path in CATALOGUE:
        return model_spec(CATALOGUE[path])
    source = f"config.json of {path} on Hugging Face"
    return model_from_table(CONFIGS[path], name=path.rpartition("/")[2].lower(), source=source, origin=path)


def rows() -> pl.DataFrame:
    """Aggregated rows that are no copies."""
    frame = pl.read_parquet(data_folder() / "aic_silicon_e2e.parquet")
    return frame.filter((pl.col("mode") == "agg") & ~pl.col("dup_of_other_row"))


def engine_runs() -> Runs:
    """Every row of the table, as a run or counted with the reason why not."""
    used: list[Run] = []
    speculative: list[Run] = []
    left_out: Counter[str] = Counter()
    frame = rows()
    for row in frame.iter_rows(named=True):
        gpus, attention_dp = _gpus(row)
        if row["model_path"] in NOT_MODELLED:
            left_out[f"{row['model_path']}: {NOT_MODELLED[row['model_path']]}"] += 1
        elif gpus > LARGEST_ENGINE:
            left_out[f"more than {LARGEST_ENGINE} GPUs in what is called one engine"] += 1
        elif not row["concurrency"]:
            left_out["no concurrency"] += 1
        elif min(row["silicon_ttft_ms"], row["silicon_tpot_ms"]) <= 0:
            left_out["no TTFT or no TPOT"] += 1
        else:
            (speculative if _is_speculative(row) else used).append(_run(row, gpus, attention_dp))
    return Runs(used, speculative, left_out, _repeated(frame))


def _gpus(row: Mapping[str, Any]) -> tuple[int, int]:
    """GPUs of the engine, and how many ways attention is data-parallel.

    Some sources put products in the columns: TP 64 with 8 x 8 experts is TP 8 and EP 8, as their ids say.
    """
    columns = ("tp_size", "moe_tp_size", "moe_ep_size", "attention_dp_size")
    tp, expert_tp, expert_ep, data = (max(int(row[name] or 1), 1) for name in columns)
    if row["source_kind"] == PLAIN:
        gpus = max(tp, expert_tp * expert_ep)
        return gpus, gpus // tp
    if data > 1:
        gpus = tp if tp == data else data if expert_tp * expert_ep == data and expert_tp != expert_ep else expert_tp
        return gpus, gpus
    return (expert_tp, 1) if expert_tp > 1 and expert_ep > 1 and expert_tp * expert_ep == tp else (tp, 1)


def _is_speculative(row: Mapping[str, Any]) -> bool:
    if row["model_path"] != "deepseek-ai/DeepSeek-R1":
        return False
    if row["backend"] == "sglang":  # beside runs of the same version and date without
        later = row["source_kind"].startswith("source_file=2026-04-06")
        return later and row["backend_version"] == "0.5.9" and row["precision"] == "fp8" and row["system"] == "b200_sxm"
    return (row["backend"], row["backend_version"], row["measured_date"]) in SPECULATIVE


def _run(row: Mapping[str, Any], gpus: int, attention_dp: int) -> Run:
    model, plain = _model(row["model_path"]), row["source_kind"] == PLAIN
    dtype = _weight_dtype(row, model)
    shape = layout(model, GPUS[row["system"]], tp=gpus, weight_dtype=dtype)
    shape = replace(shape, kv_dtype=_kv_dtype(row, model, dtype))
    engines = row["concurrency"] / (row["batch_size"] or row["concurrency"]) / attention_dp
    engines = round(engines) if plain and engines > 1.5 and abs(engines - round(engines)) < 1e-6 else 1
    scheduling, budget = _scheduling(row, model, dtype)
    return Run(
        engine=row["backend"],
        system=row["system"],
        model=row["model_path"].rpartition("/")[2],
        precision=dtype,
        kind="mixture" if model.num_experts else "dense",
        shape=shape,
        attention_dp=attention_dp,
        clients=max(int(row["concurrency"] / engines), 1),
        input_tokens=row["isl"],
        output_tokens=row["osl"],
        spread=0.0 if plain else 1.0 / 9.0,
        scheduling=scheduling,
        budget=budget,
        held_steps=0.0 if plain else _held_steps(row, model, dtype, gpus, attention_dp),
        ttft_s=row["silicon_ttft_ms"] / MS_PER_S,
        tpot_s=row["silicon_tpot_ms"] / MS_PER_S,
    )


def _weight_dtype(row: Mapping[str, Any], model: ModelSpec) -> str:
    """As the checkpoints of that precision are published; see `jaxsim.model_spec.WEIGHT_FORMATS`."""
    if model.native_dtype == "mxfp4":
        return "mxfp4"
    found = {
        "fp8": "fp8_linear",
        "bf16": "bf16",
        "int4": "int4_experts",
        "fp4": "nvfp4_experts" if model.num_experts else "nvfp4",
        None: "fp8_linear" if "FP8" in row["model_path"] else "bf16",
    }[row["precision"]]
    weight_format(found)
    return found


def _kv_dtype(row: Mapping[str, Any], model: ModelSpec, dtype: str) -> str:
    """8 bits where the scripts say so, or where NVIDIA's checkpoints do."""
    blackwell = row["system"].startswith(("b", "gb"))
    if dtype.startswith("nvfp4"):
        return "fp8"
    if row["source_kind"] == PLAIN:
        return "fp8" if row["backend"] == "trtllm" and dtype.startswith("fp8") else "bf16"
    if row["backend"] == "trtllm" or (row["backend"] == "sglang" and blackwell):
        return "fp8"
    of_vllm = model.name.startswith("llama") or (model.name.startswith("gpt-oss") and blackwell)
    return "fp8" if row["backend"] == "vllm" and of_vllm else "bf16"


def _scheduling(row: Mapping[str, Any], model: ModelSpec, dtype: str) -> tuple[str, int]:
    """Rule and token budget of a step: 8,192 is vLLM's and SGLang's default on these GPUs, TensorRT-LLM's too."""
    plain = row["source_kind"] == PLAIN
    if row["backend"] == "sglang":
        return "prefill-first", 8192 if plain else 16384 if dtype.startswith("nvfp4") else 32768
    if row["backend"] == "trtllm" and not plain:
        if model.name.startswith("gpt-oss"):
            return "chunked", 20000
        if model.is_latent:
            return "chunked", max(8192, int(row["concurrency"]) + row["isl"] + 128)
        return "chunked", 16384
    return "chunked", 8192


def _held_steps(row: Mapping[str, Any], model: ModelSpec, dtype: str, gpus: int, attention_dp: int) -> float:
    """Steps that an engine holds a new prompt back by the scripts that start it.

    TensorRT-LLM: ``batch_wait_timeout_iters`` 20 for Llama at 1,024/1,024 on fewer than 8 GPUs, 40 for DeepSeek FP8 on
    B200 at 1,024/1,024 from 64 clients on; ``attention_dp_config.timeout_iters`` 60. SGLang for DeepSeek on Blackwell:
    ``--scheduler-recv-interval`` 10, from 16 clients on 30, of which a request waits half in the mean.
    """
    clients, short = row["concurrency"], row["isl"] == row["osl"] == 1024
    blackwell = row["system"].startswith(("b", "gb"))
    if row["backend"] == "trtllm":
        if model.name.startswith("llama") and short and gpus < LARGEST_ENGINE:
            return 20.0
        if model.is_latent and attention_dp > 1:
            return 60.0
        if model.is_latent and blackwell and dtype.startswith("fp8") and short and 64 <= clients < 256:
            return 40.0
    if row["backend"] == "sglang" and model.is_latent and blackwell:
        return 15.0 if clients >= 16 else 5.0
    return 0.0


def _repeated(frame: pl.DataFrame) -> float:
    setting = ["backend", "backend_version", "system", "model_path", "precision", "isl", "osl", "concurrency"]
    setting += ["tp_size", "moe_tp_size", "moe_ep_size", "attention_dp_size"]
    tpot = pl.col("silicon_tpot_ms")
    seen = frame.group_by(setting).agg(pl.len().alias("n"), (tpot.max() / tpot.min()).alias("ratio"))
    return float(seen.filter(pl.col("n") > 1)["ratio"].median())
