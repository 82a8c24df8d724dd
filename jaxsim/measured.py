"""Profiles from measurements that come with the package: laws fitted to runs of real engines, and to kernel timings.

``data/measured.toml`` is written by ``benchmarks/measured_profiles.py`` from public data; each law states its source,
its errors on runs that it was fitted to and on runs held out, and the range that was measured.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from jaxsim._checks import unknown
from jaxsim.physics import StepLaw
from jaxsim.profiles import Profile
from jaxsim.roofline import placed
from jaxsim.roofline_names import BASES, layout_of, parse_name, profile_name

COEFFICIENTS = StepLaw._fields


@dataclass(frozen=True, kw_only=True)
class MeasuredLaw:
    """A step law fitted to measurements.

    Attributes:
        name: ``MODEL@GPU:tpN[:WEIGHT_DTYPE]:BASIS``; the basis is an engine, ``vllm``, ``sglang`` or ``trtllm``, whose
            runs were fitted, or ``kernels``, timings of single kernels added up, with an engine's time per step added
            as `law.overhead_s`.
        law: seconds, as in `Profile`.
        standard_errors: of its coefficients; those that are at 0 or were not fitted have none.
        errors: mean absolute relative error by figure: "decode" and "prompt" steps, or mean "tpot" and "ttft" of
            runs, fitted and "... held out".
        rows: steps, or runs, fitted to.
        max_batch: most sequences that ran at once in them; `measured_profile` admits no more.
        contexts: fewest and most tokens that a sequence held.
        chunk_tokens: prompt tokens a request prefilled per step.
        source: where the measurements are from.
    """

    name: str
    law: StepLaw
    standard_errors: dict[str, float]
    errors: dict[str, float]
    rows: int
    max_batch: int
    contexts: tuple[int, int]
    chunk_tokens: int
    source: str

    @property
    def summary(self) -> str:
        """Source, errors and range in a sentence."""
        errors = ", ".join(f"{figure} {100.0 * value:.1f} %" for figure, value in self.errors.items())
        what = "steps" if self.name.endswith(":kernels") else "runs"
        overhead = f", {1e3 * self.law.overhead_s:.2g} ms of engine a step added" if self.law.overhead_s else ""
        return (
            f"fitted to {self.rows} {what}: {self.source}{overhead}; mean error: {errors}; measured up to batch "
            f"{self.max_batch} and {self.contexts[1]:,} tokens of context"
        )


@cache
def measured_laws() -> dict[str, MeasuredLaw]:
    """Every law by its name."""
    text = resources.files("jaxsim").joinpath("data/measured.toml").read_text(encoding="utf-8")
    found = {}
    for name, table in tomllib.loads(text).items():
        law = StepLaw(*(table.pop(coefficient) for coefficient in COEFFICIENTS))
        table["contexts"] = tuple(table["contexts"])
        found[name] = MeasuredLaw(name=name, law=law, **table)
    return found


def measured_law(name: str) -> MeasuredLaw:
    """The law of that name; the order of its parts and the format of the KV cache do not matter.

    Raises:
        ValueError: unknown name, with those of the same model and GPU.
    """
    shape, basis = layout_of(name), parse_name(name).basis
    key = profile_name(replace(shape, kv_dtype="bf16"), basis)
    laws = measured_laws()
    if key not in laws:
        place = f"{shape.model.name}@{shape.gpu.name}:"
        beside = [other for other in laws if other.startswith(place)]
        hint = f"without ':{basis}' it is a profile from datasheets" if basis else f"the basis is one of {BASES}"
        raise unknown("measured profile", key, beside or laws, hint)
    return laws[key]


def measured_profile(name: str, *, usd_per_gpu_hour: float | None = None, **limits: float) -> Profile:
    """The profile of a measured law, on the GPUs that it was measured on.

    Args:
        name: one of `measured_laws`, such as ``"llama-3.1-70b@h100-sxm:tp4:fp8:vllm"``.
        usd_per_gpu_hour: your price; the middle of the catalogue's range where left out.
        limits: `max_num_seqs` and `chunk_tokens` (as measured where left out: beyond, the law is extrapolated).

    Raises:
        ValueError: unknown name, with the near ones; a limit out of its domain; a model that does not fit.
    """
    found = measured_law(name)
    shape = layout_of(name)
    given = {"max_num_seqs": float(found.max_batch), "chunk_tokens": float(found.chunk_tokens)} | limits
    return placed(found.law, shape, name=name, source=found.summary, usd_per_gpu_hour=usd_per_gpu_hour, **given)
