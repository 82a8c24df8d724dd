"""What people read of a fit: what was read, what the doctor says, the coefficients, the errors, the warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jaxsim.fit import COEFFICIENTS, StepFit
from jaxsim.request_doctor import Examination
from jaxsim.units import MS_PER_S
from optim.benchmark_report import by_text, examination_report, findings_by_run, runs_table
from optim.fit_document import UNITS, FitReport, coefficient_entry
from optim.report import bullets, table
from optim.words import number


def fit_report(report: FitReport) -> Group:
    """A fit as a page."""
    fit = report.fit
    parts: list[RenderableType] = [Text(_headline(fit), style="bold"), ""]
    parts += [*read_report(report.read_as, report.examined), ""]
    parts += [coefficients_table(fit), errors_table(fit)]
    if report.knee_text:
        parts += [Text(report.knee_text), ""]
    parts += bullets("Warnings", [*fit.warnings, *report.warnings])
    if report.runs is not None:
        used = [(each.run.label, "; ".join(each.how)) for each in report.runs.used]
        parts += bullets("Runs used", by_text(used))
        parts += bullets("Runs left out", [f"{each.run.label}: {reason}" for each, reason in report.runs.left_out])
        parts += bullets("Notes", report.runs.notes)
    return Group(*parts)


def read_report(read_as: Sequence[tuple[str, str]], examined: Sequence[Examination]) -> list[RenderableType]:
    """What each file was read as, and what the doctor says of the runs in them."""
    parts: list[RenderableType] = [*bullets("Read", by_kind(read_as))]
    if len(examined) == 1:
        parts += ["", examination_report(examined[0])]
    elif examined:
        parts += ["", runs_table(examined), *bullets("Findings", findings_by_run(examined))]
        notes = [(each.run.label, note) for each in examined for note in each.run.notes]
        parts += bullets("How they were read", by_text(notes))
    return parts


def by_kind(read_as: Sequence[tuple[str, str]]) -> list[str]:
    """What files were read as, each kind once."""
    found: dict[str, list[str]] = {}
    for file, kind in read_as:
        found.setdefault(kind, []).append(file)
    return [f"{', '.join(files)}: {kind}" for kind, files in found.items()]


def _headline(fit: StepFit) -> str:
    held = fit.held_out.get("all")
    text = f"Fitted to {fit.rows:,} rows of {fit.source}: median error {fit.errors['all'].median:.1%}"
    return f"{text}, {held.median:.1%} on rows held out." if held else f"{text}; nothing could be held out."


def coefficients_table(fit: StepFit) -> Table:
    """The law in milliseconds, with standard errors and 95 % intervals."""
    made = table("coefficient", "value", "standard\nerror", "95 % interval", "unit", left=("coefficient", "unit"))
    intervals = fit.interval()
    for name in COEFFICIENTS:
        _, _, title, unit = UNITS[name]
        entry = coefficient_entry(fit, name, intervals)
        if not entry["fitted"]:
            made.add_row(title, "0", "-", "not fitted", unit, style="dim")
            continue
        error = "-" if entry["standard_error"] is None else number(entry["standard_error"], 2)
        span = "at its bound" if entry["at_bound"] else _span(entry["low"], entry["high"])
        made.add_row(title, number(entry["value"], 4), error, span, unit)
    overhead = float(fit.law.overhead_s)
    if overhead:
        made.add_row("overhead", number(MS_PER_S * overhead, 4), "-", "given", "ms a step")
    return made


def _span(low: float | None, high: float | None) -> str:
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return "unknown"
    return f"{number(low, 4)} to {number(high, 4)}"


def errors_table(fit: StepFit) -> Table:
    """Relative errors by group, on the rows fitted to and on rows held out."""
    made = table("error of", "rows", "median", "90 % within", "worst", "bias", "held out:\nmedian", "90 % within",
                 "worst", left=("error of",))  # fmt: skip
    for label, found in fit.errors.items():
        held = fit.held_out.get(label)
        made.add_row(
            label,
            f"{found.rows:,}",
            *(f"{share:.1%}" for share in (found.median, found.p90, found.worst)),
            f"{found.bias:+.1%}",
            *(["-"] * 3 if held is None else [f"{share:.1%}" for share in (held.median, held.p90, held.worst)]),
        )
    return made
