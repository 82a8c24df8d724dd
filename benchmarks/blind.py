"""Blind prediction of real engine runs: mean TPOT and TTFT of some 2,500 benchmark runs that no law was fitted to.

Run ``python benchmarks/blind.py`` (three minutes; ``--json`` for one object a line, ``--markdown`` for tables of a
document, ``--quick`` for seconds on a few runs). Each run is predicted from datasheets: its roofline law (`jaxsim`)
goes through a closed loop of as many clients, by the formula of `jaxsim.fit.closed_loop` and in the simulator with the
engine's scheduling.

Three predictions. ``datasheet`` has the defaults of `jaxsim.roofline` and nothing fitted. The other two have a dozen
constants that are the same for all runs (`_engine_law.Constants`), fitted to other runs: ``other_systems`` to those on
other GPUs, ``other_models`` to those of other models. An error is predicted over measured, less one.

What is known of the runs, and which are left out, is in `_engine_runs`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from _blind_predict import ByKernels, Predicted, Predictions, by_kernels, predictions
from _engine_law import CLIENTS
from _engine_runs import ENGINES, Run, Runs, engine_runs
from _report import Row, console, print_json
from rich.table import Table

PERCENT = 100.0

TARGETS = {"tpot": 15.0, "ttft": 30.0}
"""Largest median absolute error of an engine, %."""

AICONFIGURATOR = {"tpot": 19.0, "ttft": 43.0}
"""Absolute errors, %, of aiconfigurator's own predictions of a sample of these runs, as given to us: of TPOT and TTFT,
not said whether in the median or in the mean."""

QUICK_RUNS = 45


class Figures(NamedTuple):
    """Of some runs, %: median and mean absolute error, and bias (median error)."""

    number: int
    median: float
    mean: float
    bias: float

    @classmethod
    def of(cls, errors: np.ndarray) -> Figures:
        """Of signed relative errors."""
        absolute = np.abs(errors)
        return cls(
            len(errors), *(PERCENT * float(f) for f in (np.median(absolute), absolute.mean(), np.median(errors)))
        )


def errors(runs: list[Run], found: Predicted) -> dict[str, np.ndarray]:
    """Signed relative errors by figure; those of the formula have its name."""
    tpot, ttft = (np.array([getattr(run, name) for run in runs]) for name in ("tpot_s", "ttft_s"))
    return {
        "tpot": found.tpot_s / tpot - 1.0,
        "ttft": found.ttft_s / ttft - 1.0,
        "formula_tpot": found.formula_tpot_s / tpot - 1.0,
        "formula_ttft": found.formula_ttft_s / ttft - 1.0,
    }


def _clients(run: Run) -> str:
    return next(f"clients <= {most}" for most in (8, 32, 128, 10**9) if run.clients <= most).replace(
        "<= 1000000000", "> 128"
    )


BREAKDOWNS = {
    "system": lambda run: run.system,
    "clients": _clients,
    "model": lambda run: run.model,
    "kind": lambda run: run.kind,
    "precision": lambda run: run.precision,
    "prompt": lambda run: f"prompts of {run.input_tokens}",
}
"""Where errors come from."""


def groups(runs: list[Run], by: str) -> Iterator[tuple[str, str, np.ndarray]]:
    """Engine, label and rows of each group."""
    engine = np.array([run.engine for run in runs])
    labels = np.array([BREAKDOWNS[by](run) for run in runs])
    for name in ENGINES:
        for label in sorted(set(labels[engine == name])):
            yield name, str(label), (engine == name) & (labels == label)


def json_rows(table: Predictions, found: Runs, *, targets: bool) -> Iterator[Row]:
    """Every figure; the targets are of an engine's medians on GPUs and on models that were not fitted."""
    engine = np.array([run.engine for run in table.runs])
    yield Row("blind.runs", float(len(table.runs)), "runs")
    yield Row("blind.speculative", float(len(found.speculative)), "runs")
    for reason, number in found.left_out.items():
        yield Row(f"blind.left_out.{reason.partition(':')[0].replace(' ', '_').lower()}", float(number), "runs")
    yield Row("blind.repeated.tpot.ratio", found.repeated, "ratio")
    for scheme, predicted in table.predicted.items():
        missed = errors(table.runs, predicted)
        for name in ENGINES:
            if not (engine == name).any():
                continue
            for figure, values in missed.items():
                target = TARGETS.get(figure) if targets and scheme != "datasheet" else None
                yield from _figures(f"blind.{scheme}.{name}.{figure}", values[engine == name], target)
        for by in BREAKDOWNS:
            for name, label, chosen in groups(table.runs, by):
                for figure in TARGETS:
                    key = f"{by}.{label}".replace(" ", "_").replace("<=", "to").replace(">", "above").lower()
                    yield from _figures(f"blind.{scheme}.{name}.{key}.{figure}", missed[figure][chosen], None)
    for scheme, fits in table.constants.items():
        for label, constants in fits.items():
            for name, value in constants._asdict().items():
                for k, one in enumerate(np.atleast_1d(value)):
                    suffix = f".{CLIENTS[k]}" if np.ndim(value) else ""
                    unit = "s" if name.endswith("_s") else "steps" if name == "lag_steps" else "share"
                    yield Row(f"blind.constants.{scheme}.without_{label}.{name}{suffix}", float(one), unit)


def kernel_rows(table: Predictions, kernels: ByKernels) -> Iterator[Row]:
    """Figures of the runs that kernel tables cover."""
    runs = [table.runs[k] for k in kernels.places]
    missed = errors(runs, kernels.predicted)
    for name, label, chosen in groups(runs, "model"):
        for figure in TARGETS:
            yield from _figures(f"blind.kernels.{name}.{label}.{figure}".lower(), missed[figure][chosen], None)


def _figures(name: str, values: np.ndarray, target: float | None) -> Iterator[Row]:
    figures = Figures.of(values)
    ok = None if target is None else figures.median <= target
    yield Row(f"{name}.median", figures.median, "%", target, ok)
    yield Row(f"{name}.mean", figures.mean, "%")
    yield Row(f"{name}.bias", figures.bias, "%")
    yield Row(f"{name}.number", float(figures.number), "runs")


def beside_kernels(table: Predictions, kernels: ByKernels) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: the same runs by both laws."""
    heading = ["engine", "model", "runs"]
    heading += [f"{figure} by {law}" for figure in ("TPOT", "TTFT") for law in ("kernels", "datasheets")]
    runs = [table.runs[k] for k in kernels.places]
    whole = Predicted(*(column[kernels.places] for column in table.predicted["other_models"]))
    missed = [errors(runs, found) for found in (kernels.predicted, whole)]
    lines = []
    for name, label, chosen in groups(runs, "model"):
        cells = [f"{Figures.of(one[figure][chosen]).median:.1f}" for figure in TARGETS for one in missed]
        lines.append([name, label, str(chosen.sum()), *cells])
    return heading, lines


def summary(table: Predictions) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: each engine by each prediction."""
    heading = ["prediction", "engine", "runs"]
    for figure in ("TPOT", "TTFT"):
        heading += [f"{figure} median", "mean", "bias", "by the formula"]
    engine = np.array([run.engine for run in table.runs])
    lines = []
    for scheme, predicted in table.predicted.items():
        missed = errors(table.runs, predicted)
        for name in (*ENGINES, "all"):
            chosen = np.ones(len(engine), bool) if name == "all" else engine == name
            if not chosen.any():
                continue
            line = [scheme.replace("_", " "), name, str(chosen.sum())]
            for figure in TARGETS:
                of = Figures.of(missed[figure][chosen])
                formula = Figures.of(missed[f"formula_{figure}"][chosen])
                line += [f"{of.median:.1f}", f"{of.mean:.1f}", f"{of.bias:+.1f}", f"{formula.median:.1f}"]
            lines.append(line)
    given = [f"{AICONFIGURATOR['tpot']:.0f}", "", "", "", f"{AICONFIGURATOR['ttft']:.0f}", "", "", ""]
    lines.append(["aiconfigurator, a sample", "", "", *given])
    return heading, lines


def breakdown(table: Predictions, scheme: str, by: str) -> tuple[list[str], list[list[str]]]:
    """Heading and lines of one way to split the runs."""
    missed = errors(table.runs, table.predicted[scheme])
    heading = ["engine", by, "runs", "TPOT median", "mean", "bias", "TTFT median", "mean", "bias"]
    lines = []
    for name, label, chosen in groups(table.runs, by):
        line = [name, label, str(chosen.sum())]
        for figure in TARGETS:
            of = Figures.of(missed[figure][chosen])
            line += [f"{of.median:.1f}", f"{of.mean:.1f}", f"{of.bias:+.1f}"]
        lines.append(line)
    return heading, lines


def show(title: str, heading: list[str], lines: Iterable[list[str]], *, markdown: bool) -> None:
    """For people, or for a document."""
    if markdown:
        numbers = ["---:" if k > 1 else "---" for k in range(len(heading))]
        print(f"\n{title}\n")
        for line in (heading, numbers, *lines):
            print("| " + " | ".join(line) + " |")
        return
    table = Table(title=title, title_justify="left")
    for k, name in enumerate(heading):
        table.add_column(name, justify="right" if k > 1 else "left")
    for line in lines:
        table.add_row(*line)
    console().print(table)


def spread_out(runs: list[Run], number: int) -> list[Run]:
    """A few runs of every kind."""
    return [runs[k] for k in np.linspace(0, len(runs) - 1, min(number, len(runs))).astype(int)]


def main() -> None:
    """Predict and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, value, unit, target, ok")
    parser.add_argument("--markdown", action="store_true", help="tables for a document")
    parser.add_argument("--quick", action="store_true", help="a few runs of all: a smoke test")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = engine_runs()
    if options.quick:
        found = found._replace(used=spread_out(found.used, QUICK_RUNS))
    table = predictions(found.used)
    kernels = None if options.quick else by_kernels(table)
    if options.json:
        print_json(json_rows(table, found, targets=not options.quick))
        if kernels is not None:
            print_json(kernel_rows(table, kernels))
        return
    show("Errors in %, beside aiconfigurator's own", *summary(table), markdown=options.markdown)
    if kernels is not None:
        show("Runs that kernel tables cover, constants of other models: median errors in %",
             *beside_kernels(table, kernels), markdown=options.markdown)  # fmt: skip
    for by in BREAKDOWNS:
        show(f"Constants of other systems: errors in % by {by}", *breakdown(table, "other_systems", by),
             markdown=options.markdown)  # fmt: skip
    lines = [[reason, str(number)] for reason, number in found.left_out.items()]
    lines.append(["DeepSeek-R1 with speculative decoding (inferred)", str(len(found.speculative))])
    show("Left out", ["why", "runs"], lines, markdown=options.markdown)


if __name__ == "__main__":
    main()
