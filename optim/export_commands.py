"""Shell scripts that start one replica of a pool: `vllm serve`, SGLang's server, `trtllm-serve`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from optim.export_engine import (
    Argument,
    Engine,
    engine_of,
    sglang_arguments,
    tell,
    tensorrt_llm_arguments,
    vllm_arguments,
)
from optim.export_options import ExportOptions
from optim.export_plan import ExportFleet
from optim.export_text import ExportFile, Head, header


class _Program(NamedTuple):
    """An engine's command: the words before the model's name, its flags, what to know of it."""

    written_for: str
    start: tuple[str, ...]
    arguments: Callable[[Engine], list[Argument]]
    notes: tuple[str, ...]


_PROGRAMS = {
    "vllm": _Program(
        "`vllm serve` with the engine arguments of vLLM 0.9 and later",
        ("vllm", "serve"),
        vllm_arguments,
        (),
    ),
    "sglang": _Program(
        "`python -m sglang.launch_server` (docs.sglang.io, server arguments)",
        ("python3", "-m", "sglang.launch_server", "--model-path"),
        sglang_arguments,
        (
            "SGLang's --mem-fraction-static (weights and KV cache) is not vLLM's share of all memory, so it is not set",
            "the profile may be of another engine: its name says which runs it was fitted to",
        ),
    ),
    "tensorrt-llm": _Program(
        "`trtllm-serve serve` of TensorRT-LLM 0.18 and later",
        ("trtllm-serve", "serve"),
        tensorrt_llm_arguments,
        (
            "TensorRT-LLM's KV cache takes a share of the memory that is free after loading, which is not vLLM's share "
            "of all memory, so it is not set; formats of weights and cache come from the checkpoint and from --config",
            "the profile may be of another engine: its name says which runs it was fitted to",
        ),
    ),
}
_SPLIT = {
    "vllm": (
        "between machines set VLLM_NIXL_SIDE_CHANNEL_HOST to each engine's own address; requests need a proxy that "
        "sends them to a prefill, then to a decode engine (vLLM's NixlConnector usage guide)"
    ),
    "sglang": "requests need SGLang's router (--pd-disaggregation) before both pools; the transfer backend is its own",
}


def command_files(program: str, fleet: ExportFleet, options: ExportOptions) -> list[ExportFile]:
    """A script for each pool; it starts one replica, so it is run `replicas` times.

    Raises:
        ValueError: what the engine cannot do.
    """
    which, files = _PROGRAMS[program], []
    for pool in fleet.pools:
        engine, head = engine_of(pool, fleet, options), Head(which.written_for)
        arguments = which.arguments(engine)
        model = tell(head, engine, arguments)
        head.add(notes=[f"this starts one replica of {pool.label}; the plan has {pool.replicas}", *which.notes])
        if pool.role is not None:
            head.add(notes=[_SPLIT[program]])
        text = f"#!/bin/sh\n{header(fleet, head, options.command)}\n{_command(which.start, model, arguments)}"
        files.append(ExportFile(f"{program}-{pool.label}.sh", text))
    return files


def _command(start: Sequence[str], model: str, arguments: Sequence[Argument]) -> str:
    lines = [" ".join([*start, shlex.quote(model)])]
    lines += [f"  {one.flag} {shlex.quote(one.value)}" for one in arguments]
    return " \\\n".join(lines) + "\n"
