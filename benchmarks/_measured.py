"""Measured tables of step times: one `Group` for each GPU, model and tensor-parallel degree.

Data in the folder that FLEETGRAD_DATA names. The composed tables add up measured kernels (GEMM, attention,
all-reduce) over the layers of a model: no norms, sampler, scheduler or launch time, so a real engine's base is
8 % (H100) to 32 % (B200, A100) larger. Sources: aiconfigurator (NVIDIA, Apache-2.0), LLMServingSim (casys-kaist,
MIT), splitwise-sim (MIT), DistServe (Apache-2.0).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl
from _vllm_runs import Steps, data_folder

from jaxsim import RunTable, StepTable
from jaxsim.units import MS_PER_S

DECODE_FILES = ("iter_decode_composed_aic", "iter_decode_composed_llmservingsim")
PREFILL_FILE = "prefill_composed_aic"
COPIED = "h100-80gb-pcap"
"""Hardware whose decode times are those of another in the source's table."""

LEAST_RUNS = 12

WRONG_PROMPT_BATCH = 64
"""Batch at which one prompt time of the source is wrong."""


class Group(NamedTuple):
    """Steps, or runs, of one GPU, model and tensor-parallel degree; `origin` is the table they are from."""

    origin: str
    gpu: str
    model: str
    tp: int
    table: StepTable | RunTable

    @property
    def name(self) -> str:
        """For rows of figures."""
        return f"{self.origin}.{self.gpu}.{self.model}.tp{self.tp}".lower()


def decode_groups() -> Iterator[Group]:
    """Steps that only decode, over batch and context: 40 groups of one source and 5 of the other."""
    for file in DECODE_FILES:
        frame = pl.read_parquet(data_folder() / f"{file}.parquet")
        for (gpu, model, tp), rows in frame.group_by(["gpu", "model", "tp"], maintain_order=True):
            table = StepTable.of(
                rows["n"].to_numpy(),
                rows["t_ms"].to_numpy() / MS_PER_S,
                mean_context=rows["ctx"].to_numpy(),
                source=f"{file}.parquet, {model} on {gpu}, TP {tp}",
            )
            yield Group(file.removeprefix("iter_decode_composed_"), gpu, model, tp, table)


def prefill_groups() -> Iterator[Group]:
    """Steps of one whole prompt alone."""
    frame = pl.read_parquet(data_folder() / f"{PREFILL_FILE}.parquet")
    for (gpu, model, tp), rows in frame.group_by(["gpu", "model", "tp"], maintain_order=True):
        tokens = rows["tokens"].to_numpy()
        table = StepTable.of(
            1.0,
            rows["t_ms"].to_numpy() / MS_PER_S,
            mean_context=tokens,
            prompt_tokens=tokens,
            source=f"{PREFILL_FILE}.parquet, {model} on {gpu}, TP {tp}",
        )
        yield Group("aic", gpu, model, tp, table)


def splitwise_groups() -> Iterator[Group]:
    """Of real runs of 2023: the batch swept at prompts of 512 tokens, the prompt swept at batch 1.

    Decode steps at the mean context of a run, and prefill steps of whole prompts; no cross of both sweeps.
    """
    frame = pl.read_csv(data_folder() / "splitwise_perf_model.csv.gz").filter(pl.col("hardware") != COPIED)
    for (gpu, model, tp), rows in frame.group_by(["hardware", "model", "tensor_parallel"], maintain_order=True):
        prompts = rows.filter(pl.col("batch_size") < WRONG_PROMPT_BATCH)
        batch, prompt, output = (rows[n].to_numpy().astype(float) for n in ("batch_size", "prompt_size", "token_size"))
        prefilled, length = (prompts[n].to_numpy().astype(float) for n in ("batch_size", "prompt_size"))
        milliseconds = np.concatenate([rows["token_time_ms"].to_numpy(), prompts["prompt_time_ms"].to_numpy()])
        table = StepTable.of(
            np.concatenate([batch, prefilled]),
            milliseconds / MS_PER_S,
            mean_context=np.concatenate([prompt + 0.5 * output, length]),
            prompt_tokens=np.concatenate([0.0 * batch, prefilled * length]),
            token_contexts=np.concatenate([0.0 * batch, prefilled * length**2]),
            source=f"splitwise_perf_model.csv.gz, {model} on {gpu}, TP {tp}",
        )
        yield Group("2023", gpu, model, tp, table)


def engine_groups() -> Iterator[Group]:
    """Closed-loop sweeps of real engines, of several prompt lengths each: means of TTFT and TPOT by concurrency.

    Guessed: chunks of 8,192 tokens, lengths within 10 % of those named, and ten requests a client, of which the first
    start together; the source tells none of it.
    """
    frame = pl.read_parquet(data_folder() / "aic_silicon_e2e.parquet").filter(
        (pl.col("mode") == "agg")
        & ~pl.col("dup_of_other_row")
        & (pl.col("attention_dp_size").fill_null(1) == 1)
        & (pl.min_horizontal("silicon_ttft_ms", "silicon_tpot_ms", "concurrency") > 0)
    )
    keys = ["backend", "backend_version", "model_path", "system", "precision", "tp_size", "pp_size", "moe_ep_size"]
    for key, rows in frame.group_by(keys, maintain_order=True):
        if len(rows) < LEAST_RUNS or rows["isl"].n_unique() < 2:
            continue
        engine, version, model, gpu, precision, tp, pp, ep = key
        table = RunTable.of(
            rows["concurrency"].to_numpy(),
            rows["silicon_ttft_ms"].to_numpy() / MS_PER_S,
            rows["silicon_tpot_ms"].to_numpy() / MS_PER_S,
            input_tokens=rows["isl"].to_numpy(),
            output_tokens=rows["osl"].to_numpy(),
            spread=0.1,
            in_step=0.1,
            chunk_tokens=8192.0,
            source=f"aic_silicon_e2e.parquet, {model} on {gpu}",
        )
        origin = f"{engine}-{version or 'unknown'}"
        name = f"{model.split('/')[-1]}.{precision or 'bf16'}.pp{pp:g}.ep{ep or 1:g}"
        yield Group(origin, gpu, name, int(tp), table)


def mixed_table(found: Steps, gpu: str) -> StepTable:
    """Steps with at most one piece of a prompt beside sequences that decode; groups are the kinds of step."""
    prompt = found.prompt_tokens > 0
    kinds = found.kinds()
    return StepTable.of(
        found.decoding + prompt,
        found.seconds,
        context_tokens=found.decoding * found.decode_context + found.prompt_context,
        prompt_tokens=found.prompt_tokens,
        prompt_context=found.prompt_context,
        groups=np.select(list(kinds.values()), list(kinds), ""),
        source=f"vllm019_kernels, {gpu}",
    )


def batch_switches() -> dict[str, float]:
    """DistServe's own fits: per-sequence time above its batch of 95 or so over that below, by model and TP."""
    found = {}
    for engine in ("distserve", "vllm"):
        text = (data_folder() / f"distserve_fit_a100_{engine}.json").read_text(encoding="utf-8")
        for model, by_tp in json.loads(text).items():
            for tp, fit in by_tp.items():
                small, large = fit["decoding_smallbs"][2], fit["decoding_largebs"][2]
                if small > 0:
                    found[f"{engine}.{model}.tp{tp}"] = large / small
    return found
