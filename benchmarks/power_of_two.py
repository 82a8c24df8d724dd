"""Error of the step model's P99 TTFT under power-of-two-choices dispatch, against the simulator.

Run ``python benchmarks/power_of_two.py`` (about ten minutes on two CPUs; ``--json`` for one object a line, ``--quick``
for seconds). ``--save FILE`` keeps each simulated point as a line of JSON and takes up again what a stopped run left.

48 points of an unscrambled Sobol sequence over workloads, profiles, requests that an engine admits, utilisations and 2
to 32 engines, made, simulated and summed up as `benchmarks/accuracy.py` does for the other dispatchers (`_accuracy_*`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from _accuracy_design import Point, cases
from _accuracy_sims import QUICK, Effort, Simulated, checked, read, simulate, write
from _report import Row, print_json, print_table, progress
from scipy.stats import qmc

import jaxsim

DISPATCH = "power-of-two"
WORKLOADS = ("azure-conversation", "azure-code", "mooncake-conversation", "sharegpt")
PROFILES = ("llama-3.1-70b@h100-sxm:tp4:fp8:vllm", "llama-3.1-8b@l40s:tp1:kernels")
GROUPS = ("growing", "prefill")
LIMITS = (8, 16, 64, 256)
UTILIZATIONS = (0.5, 0.7, 0.8, 0.9, 0.95)
REPLICAS = (2, 4, 8, 32)
NUM_POINTS = 48
MEDIAN_AIM = 6.0
"""%, of the P99 TTFT, as for random and round robin."""

EFFORT = Effort(precision=0.03, shortest=40_000, rounds=1, most=3_000_000)


def points() -> list[Point]:
    """The design; numbers (seeds) apart from those of the scoreboard."""
    sizes = (len(WORKLOADS), len(PROFILES), len(GROUPS), len(LIMITS), len(UTILIZATIONS), len(REPLICAS))
    places = qmc.Sobol(len(sizes), scramble=False).random_base2(6)[:NUM_POINTS]
    levels = np.floor(places * np.asarray(sizes)).astype(int).tolist()
    return [_point(1000 + number, *row) for number, row in enumerate(levels)]


def _point(number: int, workload: int, profile: int, group: int, limit: int, load: int, size: int) -> Point:
    return Point(
        number=number,
        group=GROUPS[group],
        workload=WORKLOADS[workload],
        profile=PROFILES[profile],
        limit=LIMITS[limit],
        utilization=UTILIZATIONS[load],
        replicas=REPLICAS[size],
        dispatch=DISPATCH,
    )


def simulated(chosen: list[Point], effort: Effort, save: Path | None) -> Iterator[Simulated]:
    """Every point, those that are saved already as they are."""
    saved = {row.point: row for row in read(save)} if save is not None and save.exists() else {}
    for case in cases(chosen):
        if case.point in saved:
            yield saved[case.point]
            continue
        row = simulate(case, effort)
        if save is not None:
            write(row, save)
        progress(case.point.label)
        yield row


def errors(found: list[Simulated]) -> Iterator[tuple[Simulated, dict[str, float]]]:
    """Relative errors in % of the model's P99 TTFT, of its P99 TPOT and of its mean of running requests."""
    for row, case in checked(found, cases([row.point for row in found])):
        said = jaxsim.evaluate(case.design, case.workload, case.rate, dispatch=DISPATCH)
        values = {
            "ttft_p99": said.ttft_p99_s,
            "wait_probability": said.pools.wait_probability[0],
            "tpot_p99": said.tpot_p99_s,
            "mean_active": said.pools.active_batch[0],
        }
        yield row, {name: 100.0 * _relative(float(value), row.figures[name].value) for name, value in values.items()}


def _relative(value: float, simulated: float) -> float:
    """Infinite where nothing was seen of what the model says to be; `rows` leaves it out."""
    return value / simulated - 1.0 if simulated > 0.0 else np.inf


def rows(found: list[Simulated], *, widest: float = 0.1, least_waiting: float = 0.003) -> Iterator[Row]:
    """Median and 90th percentile of the absolute errors, where the simulation knows the figure well enough."""
    judged = list(errors(found))
    for name in judged[0][1]:
        known = [(row, off[name]) for row, off in judged if row.figures[name].relative <= widest]
        if name == "wait_probability":
            known = [(row, off) for row, off in known if row.figures[name].value >= least_waiting]
        size = np.abs([off for _, off in known])
        yield Row(f"{name}.points", float(len(known)), "points")
        if len(size):
            aim = MEDIAN_AIM if name == "ttft_p99" and len(found) == NUM_POINTS else None
            median = float(np.median(size))
            yield Row(f"{name}.median_error", median, "%", aim, None if aim is None else median <= aim)
            yield Row(f"{name}.p90_error", float(np.quantile(size, 0.9)), "%")
            worst, off = max(known, key=lambda one: abs(one[1]))
            progress(f"{name} furthest off: {worst.point.label}, {off:+.1f} %")
            yield Row(f"{name}.largest_error", abs(off), "%")


def main() -> None:
    """Simulate, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, value, unit, target, ok")
    parser.add_argument("--quick", action="store_true", help="two small points in seconds: a smoke test")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep simulated points, and use those kept before")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    chosen, effort = points(), EFFORT
    if options.quick:
        small = [p for p in chosen if p.replicas * p.limit <= 256 and p.utilization <= 0.8]
        chosen, effort = small[:2], QUICK
    found = list(simulated(chosen, effort, options.save))
    if options.json:
        print_json(rows(found))
    else:
        print_table(rows(found), title="The model under power-of-two dispatch", notes=(__doc__.splitlines()[0],))


if __name__ == "__main__":
    main()
