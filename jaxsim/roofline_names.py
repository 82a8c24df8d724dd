"""Names of a model's profiles on a GPU: MODEL@GPU, then, in any order, `:tpN`, `:ppN`, `:WEIGHT_DTYPE`, `:kv-DTYPE` and
the basis of a measured law, `:vllm`, `:sglang`, `:trtllm` or `:kernels`; without a basis it is a roofline."""

from __future__ import annotations

import re
from typing import NamedTuple

from jaxsim.catalogue import gpu_names, model_names
from jaxsim.kv_fit import Layout, layout
from jaxsim.model_spec import kv_bytes, kv_bytes_per_gpu

BASES = ("vllm", "sglang", "trtllm", "kernels")
"""What a measured law was fitted to: runs of an engine, or timings of single kernels."""

_PART = re.compile(rf"tp(?P<tp>\d+)|pp(?P<pp>\d+)|kv-(?P<kv>\w+)|(?P<basis>{'|'.join(BASES)})|(?P<weights>\w+)")
_FORM = f"MODEL@GPU[:tpN][:ppN][:WEIGHT_DTYPE][:kv-DTYPE][:{'|'.join(BASES)}], each part at most once"


class NameParts(NamedTuple):
    """What a name says; what it leaves out has the defaults of `jaxsim.roofline`. No `basis` is a roofline."""

    model: str
    gpu: str
    tp: int
    pp: int
    weight_dtype: str | None
    kv_dtype: str
    basis: str | None


def parse_name(name: str) -> NameParts:
    """The parts of a name such as ``"llama-3.1-70b@h100-sxm:tp4:fp8:kv-fp8"``.

    Raises:
        ValueError: a part that has no such form, or that comes twice.
    """
    names, *parts = name.split(":")
    model, _, gpu = names.partition("@")
    found: dict[str, str] = {}
    for part in parts:
        match = _PART.fullmatch(part)
        kind = match.lastgroup if match else None
        if match is None or kind is None or kind in found:
            raise ValueError(f"profile name {name!r}: part {part!r} must be of the form {_FORM}")
        found[kind] = match.group(kind)
    return NameParts(
        model=model,
        gpu=gpu,
        tp=int(found.get("tp", 1)),
        pp=int(found.get("pp", 1)),
        weight_dtype=found.get("weights"),
        kv_dtype=found.get("kv", "bf16"),
        basis=found.get("basis"),
    )


def layout_of(name: str) -> Layout:
    """The model on its GPUs that a name says.

    Raises:
        ValueError: a part that has no such form, an unknown name, or a layout that the model or the GPU does not allow.
    """
    parts = parse_name(name)
    return layout(
        parts.model, parts.gpu, tp=parts.tp, pp=parts.pp, weight_dtype=parts.weight_dtype, kv_dtype=parts.kv_dtype
    )


def kv_bytes_per_token(name: str) -> float:
    """KV cache of one token of a named profile's model, all layers and heads, bytes: what is handed over."""
    shape = layout_of(name)
    held = kv_bytes_per_gpu(shape.model, 1, shape.model.num_layers, kv_bytes(shape.kv_dtype))
    return held.per_token + held.per_window_token


def profile_name(shape: Layout, basis: str | None = None) -> str:
    """The name that `parse_name` reads back."""
    parts = [f"tp{shape.tp}"]
    parts += [f"pp{shape.pp}"] if shape.pp > 1 else []
    parts += [shape.weight_dtype] if shape.weight_dtype != shape.model.native_dtype else []
    parts += [f"kv-{shape.kv_dtype}"] if shape.kv_dtype != "bf16" else []
    parts += [basis] if basis else []
    return ":".join([f"{shape.model.name}@{shape.gpu.name}", *parts])


def catalogue_hint(name: str) -> str:
    """What to write instead of a name that is no profile by itself."""
    if name in gpu_names():
        return f"{name!r} is a GPU; a profile needs a model on it, such as 'llama-3.1-8b@{name}:tp1'"
    if name in model_names():
        return f"{name!r} is a model; a profile needs a GPU for it, such as '{name}@h100-sxm:tp1'"
    return "or MODEL@GPU:tpN of the catalogue, such as 'llama-3.1-70b@h100-sxm:tp4'"
