"""Two measured runs of vLLM 0.19 on Llama-3.1-8B, and step laws fitted to the kernel timings of the same GPUs.

Nothing here reads a run's results to fit anything: a law comes from the kernel tables alone. Data: LLMServingSim
(casys-kaist, MIT licence), in the folder that FLEETGRAD_DATA names.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy.optimize import least_squares, nnls

import jaxsim
from jaxsim.physics import StepLaw, chunk_work, held_work

REPOSITORY = Path(__file__).parent.parent
MODEL = "Llama-3.1-8B"
GPUS = ("RTX4090", "RTXPRO6000")

LAYERS = 32
ONCE = ("embedding", "final_layernorm")
PER_LAYER = ("qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj", "layernorm", "layernorm")
PER_SEQUENCE = ("lm_head", "sampler")

WEIGHT_BYTES = 2.0 * 8_030_261_248
KV_BYTES_PER_TOKEN = 2.0 * 2 * LAYERS * 8 * 128
MODEL_CONTEXT = 131_072.0
"""Of Llama-3.1-8B in bfloat16: 8 KV heads of 128, keys and values."""

MEMORY_UTILIZATION = 0.9
BLOCK_TOKENS = 16.0
MEMORY_BYTES = {"RTXPRO6000": 102_641_958_912.0}
"""The data sheet's, where the run did not record its KV cache: without activations, so an upper bound."""


def data_folder() -> Path:
    """The folder of reference data, named by FLEETGRAD_DATA."""
    folder = Path(os.environ.get("FLEETGRAD_DATA", REPOSITORY.parent / "shared")).resolve() / "data" / "measured"
    if not folder.is_dir():
        raise SystemExit(f"reference data not found at {folder}; set FLEETGRAD_DATA to the folder that holds data/")
    return folder


class Engine(NamedTuple):
    """What the engine of a run was started with."""

    max_num_seqs: float
    max_num_batched_tokens: int
    max_context: float
    kv_blocks: float

    @property
    def kv_tokens(self) -> float:
        """Tokens that its KV cache holds."""
        return self.kv_blocks * BLOCK_TOKENS


class Run(NamedTuple):
    """One measured run, in order of arrival. Times in seconds; TTFT and E2E from arrival."""

    gpu: str
    engine: Engine
    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    ttft_s: np.ndarray
    e2e_s: np.ndarray

    @property
    def workload(self) -> jaxsim.Workload:
        """The run's requests at their own arrival times."""
        return jaxsim.Workload.from_lengths(
            self.input_tokens, self.output_tokens, arrival_s=self.arrival_s, name=f"vLLM 0.19 on {self.gpu}"
        )


class Steps(NamedTuple):
    """Times of steps with at most one piece of a prompt: one entry per point of the kernel tables.

    A piece of `prompt_tokens` tokens ends at `prompt_context`; both are 0 without one. `decoding` sequences hold
    `decode_context` tokens each.
    """

    prompt_tokens: np.ndarray
    prompt_context: np.ndarray
    decoding: np.ndarray
    decode_context: np.ndarray
    seconds: np.ndarray

    def only(self, chosen: np.ndarray) -> Steps:
        """The steps where `chosen` is true."""
        return Steps(*(column[chosen] for column in self))

    def kinds(self) -> dict[str, np.ndarray]:
        """Which steps only decode, only prefill, or do both."""
        prompt, decoding = self.prompt_tokens > 0, self.decoding > 0
        return {"decode": ~prompt, "prefill": prompt & ~decoding, "mixed": prompt & decoding}


@dataclass(frozen=True)
class Fit:
    """A law and how far it is from the steps that it was fitted to."""

    law: StepLaw
    steps: Steps

    @property
    def errors(self) -> np.ndarray:
        """Relative error of each step's time, signed."""
        return law_seconds(self.law, self.steps) / self.steps.seconds - 1.0


def engine(folder: Path, gpu: str) -> Engine:
    """The engine's own configuration; a KV cache that was not recorded is what the card's memory leaves."""
    meta = json.loads((folder / "vllm019_meta.json").read_text(encoding="utf-8"))[f"{gpu}/{MODEL}"]
    arguments, cache = meta["engine_kwargs"], meta["kv_cache"]
    if cache is None:
        left = MEMORY_UTILIZATION * MEMORY_BYTES[gpu] - WEIGHT_BYTES
        blocks = left // (KV_BYTES_PER_TOKEN * BLOCK_TOKENS)
    else:
        blocks = cache["num_gpu_blocks"]
    return Engine(
        max_num_seqs=arguments["max_num_seqs"],
        max_num_batched_tokens=arguments["max_num_batched_tokens"],
        max_context=arguments["max_model_len"] or MODEL_CONTEXT,
        kv_blocks=float(blocks),
    )


def run(folder: Path, gpu: str) -> Run:
    """The measured run on that GPU."""
    table = pl.read_csv(folder / "vllm019_requests.csv.gz").filter(gpu=gpu, model=MODEL)
    table = table.sort("arrival_s", maintain_order=True)
    columns = ("arrival_s", "input_toks", "output_toks", "ttft_s", "e2e_s")
    return Run(gpu, engine(folder, gpu), *(table[name].to_numpy().astype(np.float64) for name in columns))


def _layers(folder: Path, name: str, gpu: str, index: str) -> pl.DataFrame:
    """A kernel table with one column of microseconds per layer."""
    table = pl.read_parquet(folder / f"vllm019_kernels_{name}.parquet").filter(gpu=gpu, model=MODEL, tp=1)
    return table.pivot("layer", index=index, values="time_us").sort(index)


def steps(folder: Path, gpu: str) -> Steps:
    """Whole-model step times at every point of the attention table, from its layers and those around them."""
    attention = pl.read_parquet(folder / "vllm019_kernels_attention.parquet").filter(gpu=gpu, model=MODEL, tp=1)
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    prompt, before, decoding, context, attention_us = (attention[n].to_numpy().astype(np.float64) for n in names)
    dense, heads = _layers(folder, "dense", gpu, "tokens"), _layers(folder, "per_sequence", gpu, "sequences")
    dense_us = sum(dense[n].to_numpy() for n in ONCE) + LAYERS * sum(dense[n].to_numpy() for n in PER_LAYER)
    heads_us = sum(heads[n].to_numpy() for n in PER_SEQUENCE)
    around_us = np.interp(prompt + decoding, dense["tokens"].to_numpy(), dense_us)
    around_us += np.interp(decoding + (prompt > 0), heads["sequences"].to_numpy(), heads_us)
    return Steps(prompt, before + prompt, decoding, context, 1e-6 * (LAYERS * attention_us + around_us))


def possible(found: Steps, limits: Engine) -> Steps:
    """The steps that the engine's limits allow: sequences, token budget and KV cache."""
    tokens = found.prompt_tokens + found.decoding
    held = found.prompt_context + found.decoding * found.decode_context
    return found.only(
        (found.decoding <= limits.max_num_seqs) & (tokens <= limits.max_num_batched_tokens) & (held <= limits.kv_tokens)
    )


def law_seconds(law: StepLaw, at: Steps) -> np.ndarray:
    """Step times by the law."""
    piece = held_work(law, at.prompt_context) + chunk_work(law, at.prompt_tokens, at.prompt_context)
    decode = at.decoding * held_work(law, at.decode_context)
    return law.base_s + decode + np.where(at.prompt_tokens > 0, piece, 0.0)


def fit(at: Steps) -> Fit:
    """Least squares in relative error, in two stages.

    The steps that only decode fix the three coefficients of decoding (`_decode_law`), those with a prompt the two of
    prefill. In one joint fit the thousands of mixed steps would move the decode law by 20 % and more: attention over
    decoding sequences is slower beside a prompt than alone, which the law does not know.
    """
    decode = _decode_law(at.only(at.prompt_tokens == 0))
    prompts = at.only(at.prompt_tokens > 0)
    scale = np.array([decode.base_s / 256.0, decode.per_token_s / 64.0])

    def law(log_ratio: np.ndarray) -> StepLaw:
        per_token, per_token2 = scale * np.exp(log_ratio)
        return decode._replace(prefill_per_token_s=per_token, prefill_per_token2_s=per_token2)

    best = least_squares(lambda z: law_seconds(law(z), prompts) / prompts.seconds - 1.0, np.zeros(2))
    return Fit(law(best.x), at)


def _decode_law(at: Steps) -> StepLaw:
    terms = np.stack([np.ones_like(at.seconds), at.decoding, at.decoding * at.decode_context], axis=1)
    base, per_sequence, per_token = nnls(terms / at.seconds[:, None], np.ones_like(at.seconds))[0]
    return StepLaw(base, per_sequence, per_token, 0.0, 0.0)


def profile(law: StepLaw, limits: Engine, gpu: str, *, overhead_s: float = 0.0) -> jaxsim.Profile:
    """The law on that engine. What the runs do not involve (price, calibration context) is filler."""
    return jaxsim.Profile(
        base_s=law.base_s,
        per_sequence_s=law.per_sequence_s,
        per_token_s=law.per_token_s,
        prefill_per_token_s=law.prefill_per_token_s,
        prefill_per_token2_s=law.prefill_per_token2_s,
        overhead_s=overhead_s,
        chunk_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        kv_blocks=limits.kv_blocks,
        block_tokens=BLOCK_TOKENS,
        calibration_context=limits.max_context,
        usd_per_gpu_hour=0.0,
        gpus_per_replica=1.0,
        name=f"{MODEL} on {gpu}",
        gpu=gpu,
        source="fitted to kernel timings",
    )
