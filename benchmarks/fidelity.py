"""How well the simulator reproduces two measured runs of vLLM 0.19 (Llama-3.1-8B, 300 requests each, overloaded).

Run ``python benchmarks/fidelity.py`` (seconds; ``--json`` for one object a line). The step law is fitted to kernel
timings of the GPU alone. The run on the RTX 4090 is predicted with it as it is; on the RTX PRO 6000 one overhead per
step is fitted, to the run's mean TPOT and nothing else, so that there the other four figures are predictions.
A figure's error is the simulated over the measured value, less one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import _vllm_runs as runs
import jax
import numpy as np
from _report import Row, console, print_json, progress
from rich.table import Table
from scipy.optimize import brentq

import des
import jaxsim

TARGET = 5.0
"""Largest error of a figure, %."""

FITTED_OVERHEAD = ("RTXPRO6000",)
FITTED_FIGURE = "tpot_mean"
LONGEST_OVERHEAD_S = 0.01
OVERHEAD_STEP_S = 1e-4
UNITS = {"ttft_p50": "s", "ttft_p99": "s", "tpot_mean": "ms", "e2e_p99": "s", "makespan": "s"}


class Simulated(NamedTuple):
    """Requests of a simulation in order of arrival; times in seconds from the first arrival."""

    sent_s: np.ndarray
    first_s: np.ndarray
    end_s: np.ndarray
    preemptions: np.ndarray


class Outcome(NamedTuple):
    """A run beside its simulation: figures in the units of `UNITS`."""

    run: runs.Run
    fit: runs.Fit
    measured: dict[str, float]
    without_overhead: dict[str, float]
    simulated: dict[str, float]
    overhead_s: float
    preemptions: int
    tolerated_s: tuple[float, float] | None

    def error(self, figure: str, of: dict[str, float] | None = None) -> float:
        """Error of the simulation, or of other figures `of` the run, %."""
        return 100.0 * ((of or self.simulated)[figure] / self.measured[figure] - 1.0)

    @property
    def fitted(self) -> bool:
        """Whether an overhead was fitted to this run."""
        return self.run.gpu in FITTED_OVERHEAD


def simulated(profile: jaxsim.Profile, workload: jaxsim.Workload, engine: runs.Engine, *, preemption: str) -> Simulated:
    """The workload's own arrivals on one replica, served as vLLM v1 does. The only call of the simulator."""
    design = jaxsim.FleetDesign.of(profile, [1], [engine.max_context])
    serving = des.Serving(
        scheduling="chunked",
        max_num_batched_tokens=engine.max_num_batched_tokens,
        kv="grow",
        preemption=preemption,
    )
    result = des.simulate(design, workload, serving=serving, arrivals="trace", warmup_fraction=0.0, keep="requests")
    table = result.requests_table()
    return Simulated(table["sent_s"], table["first_s"], table["end_s"], table["preemptions"])


def figures(sent: np.ndarray, first: np.ndarray, end: np.ndarray, output_tokens: np.ndarray) -> dict[str, float]:
    """The five figures that are compared, in the units of `UNITS`."""
    ttft, more = first - sent, output_tokens > 1
    tpot = (end - first)[more] / (output_tokens[more] - 1.0)
    return {
        "ttft_p50": float(np.quantile(ttft, 0.5)),
        "ttft_p99": float(np.quantile(ttft, 0.99)),
        "tpot_mean": 1e3 * float(tpot.mean()),
        "e2e_p99": float(np.quantile(end - sent, 0.99)),
        "makespan": float(end.max() - sent.min()),
    }


def measured_figures(run: runs.Run) -> dict[str, float]:
    """Of the measured run."""
    sent = run.arrival_s
    return figures(sent, sent + run.ttft_s, sent + run.e2e_s, run.output_tokens)


class Replay(NamedTuple):
    """A run that can be simulated with any overhead."""

    run: runs.Run
    fit: runs.Fit
    preemption: str

    def requests(self, overhead_s: float) -> Simulated:
        """What the simulator says of the run's requests."""
        profile = runs.profile(self.fit.law, self.run.engine, self.run.gpu, overhead_s=overhead_s)
        return simulated(profile, self.run.workload, self.run.engine, preemption=self.preemption)

    def figures(self, overhead_s: float) -> dict[str, float]:
        """The five figures with that overhead."""
        found = self.requests(overhead_s)
        return figures(found.sent_s, found.first_s, found.end_s, self.run.output_tokens)


def fitted_overhead(replay: Replay, measured: dict[str, float]) -> float:
    """Seconds a step that bring `FITTED_FIGURE` to its measured value; 0 where it is there without."""

    def gap(overhead_s: float) -> float:
        return replay.figures(overhead_s)[FITTED_FIGURE] / measured[FITTED_FIGURE] - 1.0

    return 0.0 if gap(0.0) >= 0.0 else float(brentq(gap, 0.0, LONGEST_OVERHEAD_S, xtol=1e-5))


def tolerated(replay: Replay, measured: dict[str, float]) -> tuple[float, float] | None:
    """Least and largest overhead, seconds, at which every figure is within `TARGET`: how fine the fit has to be."""
    inside = [
        overhead_s
        for overhead_s in np.arange(0.0, LONGEST_OVERHEAD_S, OVERHEAD_STEP_S)
        if all(abs(v / measured[n] - 1.0) <= TARGET / 100.0 for n, v in replay.figures(overhead_s).items())
    ]
    return (float(inside[0]), float(inside[-1])) if inside else None


def outcome(gpu: str, preemption: str, *, quick: bool) -> Outcome:
    """Fit, simulate and compare one run."""
    progress(f"vLLM 0.19 on {gpu}")
    folder = runs.data_folder()
    run = runs.run(folder, gpu)
    replay = Replay(run, runs.fit(runs.possible(runs.steps(folder, gpu), run.engine)), preemption)
    measured = measured_figures(run)
    fitted = gpu in FITTED_OVERHEAD
    overhead_s = fitted_overhead(replay, measured) if fitted else 0.0
    return Outcome(
        run=run,
        fit=replay.fit,
        measured=measured,
        without_overhead=replay.figures(0.0),
        simulated=replay.figures(overhead_s),
        overhead_s=overhead_s,
        preemptions=int(replay.requests(overhead_s).preemptions.sum()),
        tolerated_s=tolerated(replay, measured) if fitted and not quick else None,
    )


def rows(found: Outcome) -> Iterator[Row]:
    """Figures of one run for programs. A figure that the overhead was fitted to is no test, and has no target."""
    gpu = found.run.gpu.lower()
    for kind, chosen in found.fit.steps.kinds().items():
        errors = 100.0 * np.abs(found.fit.errors[chosen])
        yield Row(f"{gpu}.law.{kind}.median_error", float(np.median(errors)), "%")
        yield Row(f"{gpu}.law.{kind}.p90_error", float(np.quantile(errors, 0.9)), "%")
    for figure in UNITS:
        error = found.error(figure)
        if found.fitted and figure == FITTED_FIGURE:
            yield Row(f"{gpu}.{figure}.fitted_error", error, "%")
        else:
            yield Row(f"{gpu}.{figure}.error", error, "%", TARGET, abs(error) <= TARGET)
    if found.fitted:
        for figure in UNITS:
            yield Row(f"{gpu}.{figure}.error_without_overhead", found.error(figure, found.without_overhead), "%")
        yield Row(f"{gpu}.overhead", 1e3 * found.overhead_s, "ms/step")
    if found.tolerated_s:
        for name, seconds in zip(("least", "largest"), found.tolerated_s, strict=True):
            yield Row(f"{gpu}.overhead.{name}_within_target", 1e3 * seconds, "ms/step")
    yield Row(f"{gpu}.preemptions", float(found.preemptions), "preemptions")


def show(found: Outcome) -> None:
    """A table for people."""
    caption = "\n".join(_notes(found))
    table = Table(title=_title(found), title_justify="left", caption=caption, caption_justify="left")
    table.add_column("figure")
    for heading in ("measured", "simulated", "error", *(("without overhead",) if found.fitted else ())):
        table.add_column(heading, justify="right")
    table.add_column(f"within {TARGET:g} %")
    for figure, unit in UNITS.items():
        table.add_row(*_cells(found, figure, unit))
    console().print(table)


def _title(found: Outcome) -> str:
    overhead = f", {1e3 * found.overhead_s:.2f} ms a step fitted" if found.fitted else ", nothing fitted to the run"
    return f"{runs.MODEL} on {found.run.gpu}, {len(found.run.arrival_s)} requests: law from kernel timings{overhead}"


def _cells(found: Outcome, figure: str, unit: str) -> Iterator[str]:
    yield figure
    yield f"{found.measured[figure]:.4g} {unit}"
    yield f"{found.simulated[figure]:.4g} {unit}"
    yield f"{found.error(figure):+.2f} %"
    if found.fitted:
        yield f"{found.error(figure, found.without_overhead):+.2f} %"
    within = "[green]yes[/]" if abs(found.error(figure)) <= TARGET else "[red]no[/]"
    yield "fitted" if found.fitted and figure == FITTED_FIGURE else within


def _notes(found: Outcome) -> Iterator[str]:
    law = found.fit.law
    yield (
        f"law: base {1e3 * law.base_s:.2f} ms, {1e6 * law.per_sequence_s:.1f} us/sequence, "
        f"{1e9 * law.per_token_s:.1f} ns/token; prefill {1e6 * law.prefill_per_token_s:.1f} us/token, "
        f"{1e9 * law.prefill_per_token2_s:.2f} ns/token^2"
    )
    errors = {kind: 100.0 * np.abs(found.fit.errors[chosen]) for kind, chosen in found.fit.steps.kinds().items()}
    yield "its error on the kernel timings, median / 90th percentile: " + ", ".join(
        f"{kind} {np.median(e):.1f} / {np.quantile(e, 0.9):.1f} %" for kind, e in errors.items()
    )
    if found.tolerated_s:
        least, largest = (1e3 * seconds for seconds in found.tolerated_s)
        yield f"every figure is within {TARGET:g} % from {least:.1f} to {largest:.1f} ms a step"
    yield f"{found.preemptions} preemptions"


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, value, unit, target, ok")
    parser.add_argument("--quick", action="store_true", help="leave out how fine the overhead has to be fitted")
    parser.add_argument(
        "--preemption",
        choices=("cached", "recompute"),
        default="cached",
        help="what a preempted request costs; the runs had prefix caching on, which is 'cached'",
    )
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for gpu in runs.GPUS:
        found = outcome(gpu, options.preemption, quick=options.quick)
        if options.json:
            print_json(rows(found))
        else:
            show(found)


if __name__ == "__main__":
    main()
