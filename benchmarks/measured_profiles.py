"""Fit the measured profiles that come with the package, and write ``jaxsim/data/measured.toml``.

Run ``python benchmarks/measured_profiles.py`` (a minute) to see them, with ``--write`` to write the file.

- **Runs of engines** (`_measured.engine_groups`): sweeps of vLLM, SGLang and TensorRT-LLM over concurrency and prompt
  length, means of TTFT and TPOT, fitted by `jaxsim.fit_runs`. A sweep is taken where the law that has not seen a run
  gives its TPOT within `LARGEST_TPOT_ERROR` on average, and no step time is at its bound.
- **Kernels**: decode and prefill tables composed of kernel timings, fitted by `jaxsim.fit_steps`. They lack what an
  engine does beside its kernels in each step, so `vllm_time_per_step` adds it: how much longer a step without load is
  in the sweeps of vLLM than in the tables of the same model, GPU and tensor-parallel degree.

Data in the folder that FLEETGRAD_DATA names: aiconfigurator (NVIDIA, Apache-2.0).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from _measured import Group, decode_groups, engine_groups, prefill_groups
from _report import progress
from physics import CATALOGUE

import jaxsim
from jaxsim import RunTable, StepTable
from jaxsim.fit import COEFFICIENTS, StepFit
from jaxsim.kv_fit import layout
from jaxsim.measured import MeasuredLaw
from jaxsim.roofline_names import profile_name

FILE = Path(__file__).parent.parent / "jaxsim" / "data" / "measured.toml"

LARGEST_TPOT_ERROR = 0.10
LARGEST_KERNEL_ERROR = 0.10
"""Largest mean error, held out, of a law that is taken."""

MODELS = {
    "Llama-3.1-70B": "llama-3.1-70b",
    "Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen3-32B": "qwen3-32b",
    "llama3.1-8b": "llama-3.1-8b",
    "llama3.1-70b": "llama-3.1-70b",
    "qwen3-32b": "qwen3-32b",
}
"""Catalogue names of the models whose laws are taken: dense ones, whose step time is a line in the batch."""

WEIGHTS = {"bf16": "bf16", "fp8": "fp8", "fp4": "nvfp4"}
KERNEL_PROMPTS = 8192.0
"""Longest prompt of one step that kernels are fitted to."""


def engine_name(group: Group) -> str | None:
    """The profile's name; None for a model, or a layout, that has none."""
    model, precision, stages, experts = group.model.rsplit(".", 3)
    known, weights = MODELS.get(model), WEIGHTS.get(precision)
    if known is None or weights is None or (stages, experts) != ("pp1", "ep1"):
        return None
    shape = layout(known, CATALOGUE.get(group.gpu, group.gpu), tp=group.tp, weight_dtype=weights)
    return profile_name(shape, group.origin.split("-")[0])


def engine_laws() -> Iterator[MeasuredLaw]:
    """Of every sweep that is taken."""
    for group in engine_groups():
        name = engine_name(group)
        if name is None:
            continue
        table = group.table
        assert isinstance(table, RunTable)
        fit = jaxsim.fit_runs(table)
        held_out = fit.held_out.get("tpot")
        taken = held_out is not None and held_out.mean <= LARGEST_TPOT_ERROR and "base_s" not in fit.at_bound
        progress(f"{name}: TPOT {100 * fit.errors['tpot'].mean:.1f} %{'' if taken else ', not taken'}")
        if taken:
            engine, _, version = group.origin.partition("-")
            about = f"runs of {engine} {version.replace('unknown', '(version not recorded)')}"
            lengths = f"{table.input_tokens.min():,.0f} to {table.input_tokens.max():,.0f} prompt tokens"
            yield MeasuredLaw(
                name=name,
                law=fit.law,
                standard_errors=standard_errors(fit),
                errors=errors(fit, ("tpot", "ttft")),
                rows=len(table),
                max_batch=int(table.concurrency.max()),
                contexts=(int(table.input_tokens.min()), int((table.input_tokens + table.output_tokens).max())),
                chunk_tokens=int(table.chunk_tokens.max()),
                source=f"{about}, {lengths}, from aiconfigurator 0.12 (Apache-2.0)",
            )


def kernel_groups() -> Iterator[tuple[str, StepTable]]:
    """Decode steps and prompts of one GPU, model and tensor-parallel degree, with the profile's name."""
    prompts = {(group.gpu, group.model, group.tp): group.table for group in prefill_groups()}
    for group in decode_groups():
        prompt = prompts.get((group.gpu, group.model, group.tp))
        if prompt is None:
            continue
        assert isinstance(group.table, StepTable) and isinstance(prompt, StepTable)
        short = prompt.only(prompt.prompt_tokens <= KERNEL_PROMPTS)
        columns = (np.concatenate(pair) for pair in zip(group.table.rows[:-1], short.rows[:-1], strict=True))
        shape = layout(MODELS[group.model], CATALOGUE.get(group.gpu, group.gpu), tp=group.tp)
        if shape.kv_budget_bytes > 0:
            yield profile_name(shape, "kernels"), StepTable(*columns, source=group.table.source)


def kernel_laws() -> Iterator[MeasuredLaw]:
    """Of every pair of tables that is taken, without the engine's time."""
    for name, table in kernel_groups():
        fit = jaxsim.fit_steps(table)
        worst = max(fit.held_out[kind].mean for kind in ("decode", "prompt"))
        taken = worst <= LARGEST_KERNEL_ERROR
        progress(f"{name}: {100 * worst:.1f} %{'' if taken else ', not taken'}")
        if taken:
            yield MeasuredLaw(
                name=name,
                law=fit.law,
                standard_errors=standard_errors(fit),
                errors=errors(fit, ("decode", "prompt")),
                rows=len(table),
                max_batch=int(table.num_active.max()),
                contexts=(int(table.mean_context.min()), int(table.mean_context.max())),
                chunk_tokens=int(KERNEL_PROMPTS),
                source="kernel timings of aiconfigurator 0.12 (Apache-2.0) added up",
            )


def vllm_time_per_step(engines: list[MeasuredLaw], kernels: list[MeasuredLaw]) -> np.ndarray:
    """Seconds that a step of vLLM without load takes beyond its kernels, wherever both are known."""
    tables = {law.name.removesuffix("kernels"): law.law for law in kernels}
    pairs = [(law.law, tables.get(law.name.removesuffix("vllm"))) for law in engines if law.name.endswith(":vllm")]
    return np.array([run.base_s - table.base_s for run, table in pairs if table is not None])


def standard_errors(fit: StepFit) -> dict[str, float]:
    """Of the coefficients that have one."""
    found = {name: float(getattr(fit.standard_errors, name)) for name in COEFFICIENTS}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def errors(fit: StepFit, figures: tuple[str, str]) -> dict[str, float]:
    """Mean absolute errors, fitted and held out."""
    kinds = (("", fit.errors), (" held out", fit.held_out))
    return {f"{figure}{suffix}": found[figure].mean for figure in figures for suffix, found in kinds}


def laws() -> list[MeasuredLaw]:
    """Every law, in the order of names."""
    engines, kernels = list(engine_laws()), list(kernel_laws())
    beyond = vllm_time_per_step(engines, kernels)
    progress(f"vLLM beyond its kernels: {', '.join(f'{1e3 * value:.2f}' for value in beyond)} ms a step")
    overhead_s = float(np.median(beyond))
    kernels = [replace(one, law=one.law._replace(overhead_s=overhead_s)) for one in kernels]
    return sorted([*engines, *kernels], key=lambda one: one.name)


def toml(found: list[MeasuredLaw]) -> str:
    """The file's text; six digits are more than any of them is known to."""
    lines = ["# Step laws fitted to measurements; written by benchmarks/measured_profiles.py. Seconds, tokens."]
    for one in found:
        lines += ["", f"[{json.dumps(one.name)}]"]
        lines += [f"{name} = {value:.6g}" for name, value in one.law._asdict().items()]
        lines += [f"{name} = {table(getattr(one, name))}" for name in ("standard_errors", "errors")]
        lines += [f"{name} = {getattr(one, name)}" for name in ("rows", "max_batch", "chunk_tokens")]
        lines += [f"contexts = {list(one.contexts)}", f"source = {json.dumps(one.source)}"]
    return "\n".join(lines) + "\n"


def table(values: dict[str, float]) -> str:
    """An inline table."""
    return "{ " + ", ".join(f"{json.dumps(name)} = {value:.3g}" for name, value in values.items()) + " }"


def main() -> None:
    """Fit and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write jaxsim/data/measured.toml")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    text = toml(laws())
    if options.write:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
