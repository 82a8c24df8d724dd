"""`fleetgrad profiles`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optim.commands import _common as common
from optim.commands._common import Exit

if TYPE_CHECKING:
    from jaxsim.model_spec import ModelSpec

Build = Annotated[str | None, typer.Option(metavar="MODEL", help="Model to build a profile of: name or config.json.")]
Gpu = Annotated[str | None, typer.Option(metavar="GPU", help="GPU to build it on.")]
Tp = Annotated[int | None, typer.Option(help="GPUs of a tensor-parallel group; 1.")]
Pp = Annotated[int | None, typer.Option(help="Pipeline stages; 1.")]
WeightDtype = Annotated[str | None, typer.Option(help="Format of the weights; the model's own.")]
KvDtype = Annotated[str | None, typer.Option(help="Format of the KV cache; bf16.")]
Utilization = Annotated[float | None, typer.Option(help="Share of GPU memory the engine may use; 0.9.")]
MaxNumSeqs = Annotated[int | None, typer.Option(help="Running sequences an engine admits; 256.")]
ChunkTokens = Annotated[int | None, typer.Option(help="Prompt tokens a request prefills per step; 2048.")]
MaxContext = Annotated[int | None, typer.Option(help="Longest request that must fit, tokens; the model's own.")]
AlphaBw = Annotated[float | None, typer.Option(help="Share of peak bandwidth that is reached; 0.8.")]
CpuTimeMs = Annotated[float | None, typer.Option(help="What the engine adds to a step beside the GPU; 3 ms.")]
NoAllReduce = Annotated[bool, typer.Option("--no-all-reduce", help="Leave the all-reduces out.")]
Price = Annotated[float | None, typer.Option("--usd-per-gpu-hour", help="Your price; the middle of the range.")]
Source = Annotated[
    str | None, typer.Option("--from", metavar="SOURCE", help="aiconfigurator: a profile by its step times.")
]
Names = Annotated[list[str] | None, typer.Argument(metavar="[MODEL SYSTEM BACKEND]", help="With --from: of what.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the profile to this TOML file.")]


def profiles(
    names: Names = None,
    source: Source = None,
    build: Build = None,
    gpu: Gpu = None,
    tp: Tp = None,
    pp: Pp = None,
    weight_dtype: WeightDtype = None,
    kv_dtype: KvDtype = None,
    gpu_memory_utilization: Utilization = None,
    max_num_seqs: MaxNumSeqs = None,
    chunk_tokens: ChunkTokens = None,
    max_context: MaxContext = None,
    alpha_bw: AlphaBw = None,
    cpu_time_ms: CpuTimeMs = None,
    no_all_reduce: NoAllReduce = False,
    usd_per_gpu_hour: Price = None,
    as_json: common.AsJson = False,
    out: Out = None,
) -> None:
    """Presets, GPUs, models and workloads, each with its source; with --build, a profile of a model on a GPU.

    A built profile is a roofline from datasheets, not measured. With --from aiconfigurator MODEL SYSTEM BACKEND, such
    as llama-3.1-8b h200_sxm vllm, its law is fitted to step times that aiconfigurator adds up from measured kernels.
    Exit status of both: 0 it fits and is printed or written, 2 bad input, 3 (--build) --max-context does not fit.
    """
    asked = {
        "--build": build,
        "--gpu": gpu,
        "--tp": tp,
        "--pp": pp,
        "--weight-dtype": weight_dtype,
        "--kv-dtype": kv_dtype,
        "--gpu-memory-utilization": gpu_memory_utilization,
        "--max-num-seqs": max_num_seqs,
        "--chunk-tokens": chunk_tokens,
        "--max-context": max_context,
        "--alpha-bw": alpha_bw,
        "--cpu-time-ms": cpu_time_ms,
        "--no-all-reduce": no_all_reduce or None,
        "--usd-per-gpu-hour": usd_per_gpu_hour,
        "--out": out,
    }
    if source is not None or names:
        _check_source(source, names or [], asked)
        settings = {
            "tp": tp,
            "kv_dtype": kv_dtype,
            "cpu_time_s": None if cpu_time_ms is None else cpu_time_ms / 1e3,
            "max_num_seqs": max_num_seqs,
            "chunk_tokens": chunk_tokens,
            "gpu_memory_utilization": gpu_memory_utilization,
            "usd_per_gpu_hour": usd_per_gpu_hour,
        }
        _from_aiconfigurator(names or [], _given(settings), as_json, out)
        return
    if build is None:
        if used := [flag for flag, value in asked.items() if value is not None]:
            common.fail(f"{', '.join(used)} only with --build MODEL, such as --build llama-3.1-8b --gpu h100-sxm")
        _list(as_json)
        return
    if gpu is None:
        from jaxsim.catalogue import gpu_names

        common.fail(f"--build needs --gpu; known: {', '.join(sorted(gpu_names()))}")
    layout = {
        "tp": tp,
        "pp": pp,
        "weight_dtype": weight_dtype,
        "kv_dtype": kv_dtype,
        "gpu_memory_utilization": gpu_memory_utilization,
    }
    engine = {
        "max_num_seqs": max_num_seqs,
        "chunk_tokens": chunk_tokens,
        "alpha_bw": alpha_bw,
        "cpu_time_s": None if cpu_time_ms is None else cpu_time_ms / 1e3,
        "all_reduce": False if no_all_reduce else None,
        "usd_per_gpu_hour": usd_per_gpu_hour,
    }
    _build(build, gpu, _given(layout), _given(engine), max_context, as_json, out)


SOURCES = ("aiconfigurator",)
ONLY_BUILT = ("--build", "--gpu", "--pp", "--weight-dtype", "--max-context", "--alpha-bw", "--no-all-reduce")
"""Flags that a profile by measured steps has no use for."""


def _check_source(source: str | None, names: list[str], asked: dict[str, Any]) -> None:
    if source not in SOURCES:
        given = f"--from {source}" if source is not None else " ".join(names)
        common.fail(f"{given}: expected --from aiconfigurator MODEL SYSTEM BACKEND, or --build MODEL")
    if len(names) != 3:
        common.fail(
            f"--from aiconfigurator takes MODEL SYSTEM BACKEND, got {' '.join(names) or 'nothing'}; such as "
            "llama-3.1-8b h200_sxm vllm"
        )
    if used := [flag for flag in ONLY_BUILT if asked[flag] is not None]:
        common.fail(f"{', '.join(used)} not with --from aiconfigurator, which has a model's own format and kernels")


def _from_aiconfigurator(names: list[str], settings: dict[str, Any], as_json: bool, out: Path | None) -> None:
    from jaxsim.aiconfigurator import aiconfigurator_profile
    from optim.documents import document, profile_entry, to_json
    from optim.profile_file import profile_toml

    model, system, backend = names
    with common.clean_errors():
        built = aiconfigurator_profile(model, system, backend, **settings)
    if out is not None:
        _write(out, profile_toml(built))
    if as_json:
        common.show_json(to_json(document("profile", "ok", message=built.source) | {"profile": profile_entry(built)}))
    elif out is None:
        common.show_json(profile_toml(built).rstrip())
    else:
        common.show(f"{built.source}.", f"Written to {out}.")


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        common.fail(f"--out {out}: cannot be written ({error.strerror}); give the path of a file")


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Those that were given; the others keep the library's defaults."""
    return {name: value for name, value in arguments.items() if value is not None}


def _list(as_json: bool) -> None:
    from jaxsim.catalogue import gpu_names, gpu_spec, model_names, model_spec
    from jaxsim.embedded import workload, workload_names
    from jaxsim.measured import measured_laws
    from jaxsim.profiles import profile, profile_names
    from optim.catalogue_report import catalogue_report, gpu_entry, measured_entry, measured_report, model_entry
    from optim.documents import profiles_document, to_json
    from optim.tables import profiles_report

    presets = [profile(name) for name in profile_names()]
    gpus = [gpu_spec(name) for name in gpu_names()]
    models = [model_spec(name) for name in model_names()]
    laws = list(measured_laws().values())
    workloads = []
    for name in workload_names():
        one = workload(name)
        kind = "CDF of totals" if "CDF of total tokens" in one.notes else "trace"
        entry = {"name": name, "kind": kind, "rate_rps": one.rate, "source": one.source, "notes": list(one.notes)}
        workloads.append(entry)
    if as_json:
        listed = {"gpus": [gpu_entry(one) for one in gpus], "models": [model_entry(one) for one in models]}
        listed["measured"] = [measured_entry(one) for one in laws]
        common.show_json(to_json(profiles_document(presets, workloads) | listed))
    else:
        common.show(profiles_report(presets, workloads), "", measured_report(laws), "", catalogue_report(gpus, models))


def _build(
    model: str,
    gpu: str,
    layout: dict[str, Any],
    engine: dict[str, Any],
    max_context: int | None,
    as_json: bool,
    out: Path | None,
) -> None:
    from jaxsim.kv_fit import kv_capacity
    from jaxsim.roofline import roofline
    from optim.catalogue_report import capacity_entry, capacity_report
    from optim.documents import document, profile_entry, to_json
    from optim.profile_file import profile_toml

    with common.clean_errors():
        spec = _model(model)
        capacity = kv_capacity(spec, gpu, max_context=max_context, **layout)
        built = roofline(spec, gpu, **layout, **engine) if capacity.fits else None
    if built is not None and out is not None:
        _write(out, profile_toml(built))
    if as_json:
        doc = document("profile", "ok" if capacity.fits else "infeasible", message=capacity.reason)
        doc["profile"] = None if built is None else profile_entry(built)
        doc["capacity"] = capacity_entry(capacity)
        common.show_json(to_json(doc))
    elif built is None:
        common.show(capacity_report(capacity))
    elif out is None:
        common.show_json(f"# {capacity.reason}.\n{profile_toml(built)}".rstrip())
    else:
        common.show(capacity_report(capacity), f"{built.source}.", f"Written to {out}.")
    if built is None:
        raise typer.Exit(Exit.INFEASIBLE)


def _model(name: str) -> ModelSpec:
    """A catalogue name, or the path of a config.json or of the folder that holds it."""
    from jaxsim.catalogue import model_spec
    from jaxsim.hf_config import model_from_config

    path = Path(name)
    if path.exists() or path.suffix == ".json":
        return model_from_config(path)
    return model_spec(name)
