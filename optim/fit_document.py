"""A fit as a JSON document, and the profile that it makes of another one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxsim.fit import COEFFICIENTS, Errors, Knee, RunsForFit, StepFit, StepTable
from jaxsim.profiles import Profile
from jaxsim.request_doctor import Examination
from jaxsim.units import MS_PER_S
from optim.benchmark_report import examination_entry
from optim.documents import document, profile_entry

Document = dict[str, Any]

UNITS: dict[str, tuple[str, float, str, str]] = {
    "base_s": ("base_ms", MS_PER_S, "base", "ms a step"),
    "per_sequence_s": ("per_sequence_ms", MS_PER_S, "per sequence", "ms a running sequence"),
    "per_token_s": ("per_1000_context_tokens_ms", MS_PER_S * 1e3, "per context", "ms per 1,000 tokens held"),
    "prefill_per_token_s": ("prefill_per_1000_tokens_ms", MS_PER_S * 1e3, "prefill", "ms per 1,000 prompt tokens"),
    "prefill_per_token2_s": (
        "prefill_per_1000_by_1000_tokens_ms",
        MS_PER_S * 1e6,
        "prefill attention",
        "ms per 1,000 prompt x 1,000 context tokens",
    ),
}
"""Of each coefficient: its key, the factor from seconds, its title and its unit."""


@dataclass(frozen=True)
class FitReport:
    """Everything that is said of a fit.

    Attributes:
        fit: the law.
        examined: benchmark runs that were read; empty for step tables.
        runs: those that were used and those that were not; None for step tables.
        steps: the step table; None for runs.
        read_as: each file and what it was read as.
        knee: where the linear law ends; None where steps do not tell.
        knee_text: that in a sentence, or why not.
        profile: the base with this law; None without a base.
        warnings: what is to be doubted, beyond the fit's own.
    """

    fit: StepFit
    examined: tuple[Examination, ...]
    runs: RunsForFit | None
    steps: StepTable | None
    read_as: tuple[tuple[str, str], ...]
    knee: Knee | None
    knee_text: str
    profile: Profile | None
    warnings: tuple[str, ...]


def fit_document(report: FitReport) -> Document:
    """A fit with its coefficients in milliseconds, its errors, and every run that was read."""
    fit = report.fit
    doc = document("fit", "ok", source=fit.source, rows=fit.rows, files=read_entries(report.read_as))
    intervals = fit.interval()
    doc["coefficients"] = {UNITS[name][0]: coefficient_entry(fit, name, intervals) for name in COEFFICIENTS}
    doc["overhead_ms"] = MS_PER_S * float(fit.law.overhead_s)
    doc["law_s"] = {name: float(getattr(fit.law, name)) for name in (*COEFFICIENTS, "overhead_s")}
    doc["errors"] = {label: error_entry(each) for label, each in fit.errors.items()}
    doc["held_out"] = {label: error_entry(each) for label, each in fit.held_out.items()}
    doc["warnings"] = [*({"kind": each.kind, "text": each.text} for each in fit.warned),
                       *({"kind": "use", "text": text} for text in report.warnings)]  # fmt: skip
    doc["knee"] = None if report.knee is None else _knee_entry(report.knee)
    doc["knee_text"] = report.knee_text
    doc["runs"] = [examination_entry(each) for each in report.examined]
    doc["used"] = [] if report.runs is None else _used(report.runs)
    doc["left_out"] = [] if report.runs is None else left_out_entries(report.runs.left_out)
    doc["notes"] = [] if report.runs is None else list(report.runs.notes)
    doc["profile"] = None if report.profile is None else profile_entry(report.profile)
    return doc


def read_entries(read_as: Sequence[tuple[str, str]]) -> list[Document]:
    """Each file and what it was read as."""
    return [{"file": file, "read_as": kind} for file, kind in read_as]


def coefficient_entry(fit: StepFit, name: str, intervals: dict[str, tuple[float, float]]) -> Document:
    """A coefficient in its unit; null where it has no standard error."""
    scale = UNITS[name][1]
    error = getattr(fit.standard_errors, name)
    low, high = intervals.get(name, (math.nan, math.nan))
    return {
        "value": scale * float(getattr(fit.law, name)),
        "standard_error": None if math.isnan(error) else scale * error,
        "low": None if math.isnan(low) else scale * low,
        "high": None if math.isnan(high) else scale * high,
        "fitted": name in fit.fitted,
        "at_bound": name in fit.at_bound,
        "unit": UNITS[name][3],
    }


def error_entry(errors: Errors) -> Document:
    """Relative errors as fractions."""
    return errors._asdict()


def _knee_entry(knee: Knee) -> Document:
    found = {key: value for key, value in knee._asdict().items() if key != "excess_s"}
    return found | {"excess_ms": MS_PER_S * knee.excess_s}


def _used(runs: RunsForFit) -> list[Document]:
    return [
        {
            "run": each.run.label,
            "concurrency": each.concurrency,
            "ttft_ms": None if math.isnan(each.ttft_s) else MS_PER_S * each.ttft_s,
            "tpot_ms": MS_PER_S * each.tpot_s,
            "in_step": each.in_step,
            "how": list(each.how),
        }
        for each in runs.used
    ]


def left_out_entries(left_out: Sequence[tuple[Examination, str]]) -> list[Document]:
    """Runs that were not used, and why."""
    return [{"run": each.run.label, "reason": reason} for each, reason in left_out]


def refused_document(message: str, read_as: Sequence[tuple[str, str]], examined: Sequence[Examination]) -> Document:
    """What was read, where too little of it can be fitted."""
    doc = document("fit", "too_few_runs", message=message, files=read_entries(read_as))
    doc["runs"] = [examination_entry(each) for each in examined]
    return doc


def fitted_profile(fit: StepFit, base: Profile, chunk_tokens: float | None) -> Profile:
    """The base with the fitted law; its source says what is fitted and what is the base's."""
    held = fit.held_out.get("all")
    error = "" if held is None else f", {held.median:.1%} on rows held out"
    rest = f"KV blocks, limits, power and price are those of {base.name} ({base.source})"
    fitted = fit.applied_to(base, name=f"{base.name}-fitted")
    chunk = base.chunk_tokens if chunk_tokens is None else np.asarray(float(chunk_tokens))
    return replace(fitted, source=f"{fit.description}{error}; {rest}", chunk_tokens=chunk)


def use_warnings(
    fit: StepFit, steps: StepTable | None, runs: RunsForFit | None, base: Profile | None
) -> tuple[str, ...]:
    """What is to be doubted in using the law, beyond what the fit says of itself."""
    if base is None:
        return ()
    batches = steps.num_active if steps is not None else runs.table.concurrency if runs is not None else np.ones(1)
    most, limit = float(batches.max()), float(base.max_num_seqs)
    if limit <= most:
        return ()
    return (
        f"{base.name} admits {limit:,.0f} sequences and the largest batch that was measured is {most:,.0f}: beyond it "
        "the law is extrapolated; measure up to the limit, or lower max_num_seqs in the profile",
    )
