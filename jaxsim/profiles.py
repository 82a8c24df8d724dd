"""Profile: a model on a hardware in a serving configuration, and the published presets."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from jaxsim._checks import require_non_negative, require_positive, unknown
from jaxsim.physics import StepLaw, step_base_s

Number = Float[np.ndarray | jax.Array, "*pools"]


def _float(value: Any) -> Any:
    """A float64 leaf; a plain Python float would retrace once per value and take no gradient."""
    return value if isinstance(value, jax.Array) else np.asarray(value, dtype=np.float64)


class Profile(eqx.Module):
    """Coefficients of the laws of `jaxsim.physics` and the limits and price of one replica.

    All numbers are float arrays of one shape: ``()`` for one profile, ``(pools,)`` where profiles are stacked.

    Attributes:
        base_s: W, seconds of a step whatever the batch.
        per_sequence_s: seconds that each running sequence adds to a step.
        per_token_s: seconds that each context token held adds to a step (H / calibration_context).
        prefill_per_token_s: seconds of compute per prompt token; 0 means prefill work is not modelled.
        prefill_per_token2_s: seconds per prompt token and context token (attention in prefill).
        chunk_tokens: prompt tokens a request prefills per step.
        max_num_seqs: running sequences an engine admits (`max_slots` of the reference model).
        kv_blocks: KV-cache blocks of one replica.
        block_tokens: tokens a block holds.
        calibration_context: context at which `max_num_seqs` was measured (reference model only), tokens.
        usd_per_gpu_hour: price of one GPU.
        gpus_per_replica: GPUs of one replica (tensor parallel x pipeline parallel).
        overhead_s: seconds that the engine adds to every step beside the GPU's work; 0 unless given.
        name, gpu: what it is; a tuple where profiles are stacked.
        source: where the numbers come from.
    """

    base_s: Number = eqx.field(converter=_float)
    per_sequence_s: Number = eqx.field(converter=_float)
    per_token_s: Number = eqx.field(converter=_float)
    prefill_per_token_s: Number = eqx.field(converter=_float)
    prefill_per_token2_s: Number = eqx.field(converter=_float)
    chunk_tokens: Number = eqx.field(converter=_float)
    max_num_seqs: Number = eqx.field(converter=_float)
    kv_blocks: Number = eqx.field(converter=_float)
    block_tokens: Number = eqx.field(converter=_float)
    calibration_context: Number = eqx.field(converter=_float)
    usd_per_gpu_hour: Number = eqx.field(converter=_float)
    gpus_per_replica: Number = eqx.field(converter=_float)
    name: str | tuple[str, ...] = eqx.field(static=True)
    gpu: str | tuple[str, ...] = eqx.field(static=True)
    source: str | tuple[str, ...] = eqx.field(static=True)
    overhead_s: Number = eqx.field(converter=_float, default=0.0)

    def __check_init__(self) -> None:
        for field in ("base_s", "chunk_tokens", "max_num_seqs", "kv_blocks", "block_tokens"):
            require_positive(f"profile {field}", getattr(self, field))
        for field in ("calibration_context", "gpus_per_replica"):
            require_positive(f"profile {field}", getattr(self, field))
        for field in ("per_sequence_s", "per_token_s", "prefill_per_token_s", "prefill_per_token2_s", "overhead_s"):
            require_non_negative(f"profile {field}", getattr(self, field))
        require_non_negative("profile usd_per_gpu_hour", self.usd_per_gpu_hour)

    @property
    def law(self) -> StepLaw:
        """The step-time coefficients."""
        return StepLaw(
            self.base_s,
            self.per_sequence_s,
            self.per_token_s,
            self.prefill_per_token_s,
            self.prefill_per_token2_s,
            self.overhead_s,
        )

    @property
    def step_base_s(self) -> Number:
        """Seconds of a step whatever the batch: `base_s` and `overhead_s`."""
        return _float(step_base_s(self.law))

    @property
    def kv_tokens(self) -> Number:
        """Tokens the KV cache of one replica holds."""
        return _float(self.kv_blocks * self.block_tokens)

    @property
    def usd_per_hour(self) -> Number:
        """Price of one replica: all its GPUs."""
        return _float(self.usd_per_gpu_hour * self.gpus_per_replica)

    @classmethod
    def stack(cls, profiles: tuple[Profile, ...] | list[Profile]) -> Profile:
        """Profiles along a new leading axis, one per pool."""
        if not profiles:
            raise ValueError("profiles must be at least one profile, got none")
        labels = ("name", "gpu", "source")
        numbers = [n for n in cls.__dataclass_fields__ if n not in labels]
        fields: dict[str, Any] = {n: np.stack([np.asarray(getattr(p, n)) for p in profiles]) for n in numbers}
        fields |= {n: tuple(getattr(p, n) for p in profiles) for n in labels}
        return cls(**fields)

    def unnamed(self) -> Profile:
        """The numbers alone. Names are static, so a jitted function would compile anew for each."""
        return replace(self, name="", gpu="", source="")

    def at(self, pool: int) -> Profile:
        """The profile of one pool of a stack."""
        fields = {n: getattr(self, n) for n in self.__dataclass_fields__}
        return Profile(**{n: v[pool] for n, v in fields.items()})


@cache
def _presets() -> dict[str, Profile]:
    text = resources.files("jaxsim").joinpath("data/presets.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    source = tables.pop("source")
    no_prefill_work: dict[str, Any] = {"per_sequence_s": 0.0, "prefill_per_token_s": 0.0, "prefill_per_token2_s": 0.0}
    presets = {}
    for name, table in tables.items():
        per_token = table.pop("per_sequence_at_calibration_s") / table["calibration_context"]
        presets[name] = Profile(**table, **no_prefill_work, per_token_s=per_token, name=name, source=source)
    return presets


def profile_names() -> tuple[str, ...]:
    """Names of the presets. `profile` also knows every MODEL@GPU of the catalogue (`jaxsim.catalogue`)."""
    return tuple(_presets())


def profile(name: str) -> Profile:
    """The profile of that name.

    Args:
        name: a preset, one of `profile_names()`, such as ``"h100-80gb"``; a model on a GPU of the catalogue, such as
            ``"llama-3.1-70b@h100-sxm:tp4:fp8"`` (`jaxsim.roofline` with its defaults); or the same with what it was
            measured on, ``"llama-3.1-70b@h100-sxm:tp4:fp8:vllm"`` (`jaxsim.measured_profile`).

    Raises:
        ValueError: unknown name, with the near ones; a name is never replaced by another. A model that does not
            fit, or a number that has no citable source.
    """
    presets = _presets()
    if name in presets:
        return presets[name]
    from jaxsim.measured import measured_profile  # they make Profiles, so they import this module
    from jaxsim.roofline import profile_from_name
    from jaxsim.roofline_names import catalogue_hint, parse_name

    if "@" in name:
        return measured_profile(name) if parse_name(name).basis else profile_from_name(name)
    raise unknown("profile", name, presets, catalogue_hint(name))
