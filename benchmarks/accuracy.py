"""Error of the analytical models against the simulator, over workloads, hardware, fleets and utilisations.

Run ``python benchmarks/accuracy.py`` (two to three minutes; ``--json`` for one object a line, ``--quick`` for seconds).
Each model is compared with the simulator under its own convention: ``step`` with what a continuously batching
engine does, ``kimura`` with the slots and constant work of the reference fleet simulator. Both sides get one design,
one length law and Poisson arrivals at the rate that the model calls this utilisation.

A comparison whose simulated figure has a 95 % interval wider than 5 % on either side is counted and left out of
the summary: it would measure the simulator's noise. ``--csv`` writes every comparison, these included.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Row, console, print_json, progress
from rich.table import Table

import des
import jaxsim
from des.stats import Estimate, half_width
from jaxsim.evaluate import MODELS, Tables, metrics, pool_demands, pool_law, pool_laws, tabulate

FIGURES = ("ttft_p50", "ttft_p99", "tpot_p99", "mean_active")
WIDEST_INTERVAL = 0.05
NUM_THRESHOLDS = 400
REPLICATIONS = 8
WARMUP_FRACTION = 0.3
REFILLS = 10.0
"""Requests of a replication, in fillings of the running batch times 1 / (1 - utilisation): from an empty start an
engine near its capacity takes that long to forget it, and no interval shows the bias of a shorter run."""


class Grid(NamedTuple):
    """What is compared, and how long each simulation is."""

    models: tuple[str, ...] = MODELS
    workloads: tuple[str, ...] = ("azure-conversation", "azure-code", "mooncake-conversation", "sharegpt")
    profiles: tuple[str, ...] = ("h100-80gb", "a100-80gb")
    replicas: tuple[tuple[int, ...], ...] = ((1,), (6,), (4, 2))
    utilizations: tuple[float, ...] = (0.3, 0.5, 0.7, 0.85, 0.95)
    num_requests: int = 160_000
    max_requests: int = 1_500_000


QUICK = Grid(
    models=("step",),
    workloads=("azure-conversation",),
    profiles=("h100-80gb",),
    replicas=((1,),),
    utilizations=(0.5,),
    num_requests=40_000,
    max_requests=40_000,
)


@dataclass(frozen=True)
class Comparison:
    """One figure of one design. Times in seconds, `mean_active` in requests of the whole fleet."""

    model: str
    workload: str
    profile: str
    replicas: str
    utilization: float
    figure: str
    analytic: float
    simulated: float
    half_width: float

    @property
    def error(self) -> float:
        """Relative error of the model, signed."""
        return self.analytic / self.simulated - 1.0

    @property
    def resolved(self) -> bool:
        """Whether the simulator knows the figure well enough to judge the model by it."""
        return self.half_width <= WIDEST_INTERVAL


@eqx.filter_jit
def _tables(workload: jaxsim.Workload, profile: jaxsim.Profile, *, model: str) -> Tables:
    return tabulate(workload, profile, model=model)


@eqx.filter_jit
def _loads(design: jaxsim.FleetDesign, uppers: jax.Array, tables: Tables, *, model: str) -> jax.Array:
    """Utilisation of each pool at one request per second, for each row of thresholds."""

    def load(upper: jax.Array) -> jax.Array:
        moved = eqx.tree_at(lambda d: (d.upper_tokens, d.max_context), design, (upper, upper))
        return pool_laws(moved, tables, 1.0, model=model).utilization

    return jax.vmap(load)(uppers)


@eqx.filter_jit
def _demands(design: jaxsim.FleetDesign, tables: Tables, rates: jax.Array, *, model: str) -> Any:
    return jax.vmap(lambda rate: pool_demands(design, tables, rate, model=model))(rates)


@eqx.filter_jit
def _figures(demands: Any, replicas: jax.Array) -> dict[str, jax.Array]:
    """`FIGURES` at each rate. Apart from `_demands`, so that one compilation serves every workload."""

    def one(demand: Any) -> dict[str, jax.Array]:
        m = metrics(jax.vmap(pool_law)(demand, replicas))
        active = (m.pools.active_batch * replicas).sum()
        return dict(zip(FIGURES, (m.ttft_p50_s, m.ttft_p99_s, m.tpot_p99_s, active), strict=True))

    return jax.vmap(one)(demands)


def balanced(
    design: jaxsim.FleetDesign, workload: jaxsim.Workload, tables: Tables, model: str
) -> tuple[jaxsim.FleetDesign, float]:
    """The design with the threshold that loads its pools alike, and its utilisation at one request per second."""
    totals = np.asarray(workload.total_tokens)
    if design.num_pools == 1:
        uppers = np.full((1, 1), totals[-1])
    else:
        cuts = np.unique(np.quantile(totals, np.linspace(0.02, 0.99, NUM_THRESHOLDS)).round())
        uppers = np.stack([cuts, np.full_like(cuts, totals[-1])], axis=1)
    loads = np.asarray(_loads(design, jnp.asarray(uppers), tables, model=model))
    best = int(np.argmin(loads.max(axis=1)))
    chosen = eqx.tree_at(lambda d: (d.upper_tokens, d.max_context), design, (uppers[best], uppers[best]))
    return chosen, float(loads[best].max())


def simulated(result: des.SimulationResult, model: str) -> dict[str, Estimate]:
    """`FIGURES` of a simulation: of the fleet, or for `kimura`, which has no mixture of pools, of the worst pool."""
    parts = (result,) if model == "step" else result.pools

    def worst(figure: Callable[[Any], Estimate]) -> Estimate:
        return max((figure(part) for part in parts), key=lambda estimate: estimate.value)

    runs = np.array([run.totals["active_s"].sum() / run.window_s for run in result.replications])
    half = half_width(runs, 0.95)
    active = Estimate(float(runs.mean()), float(runs.mean()) - half, float(runs.mean()) + half, len(runs))
    return dict(
        zip(
            FIGURES,
            (
                worst(lambda part: part.ttft.quantile(0.5)),
                worst(lambda part: part.ttft.quantile(0.99)),
                worst(lambda part: part.tpot.quantile(0.99)),
                active,
            ),
            strict=True,
        )
    )


def comparisons(grid: Grid) -> Iterator[Comparison]:
    """Every figure of every design of the grid."""
    for model, name, gpu, replicas in itertools.product(grid.models, grid.workloads, grid.profiles, grid.replicas):
        label = "+".join(map(str, replicas))
        progress(f"{model}: {name} on {gpu}, {label} replicas")
        workload, profile = jaxsim.workload(name), jaxsim.profile(gpu)
        longest = float(np.max(workload.total_tokens))
        design = jaxsim.FleetDesign.of(profile, replicas, [longest] * len(replicas))
        design = eqx.tree_at(lambda d: d.profile, design, design.profile.unnamed())
        tables = _tables(workload, design.profile, model=model)
        design, per_rate = balanced(design, workload, tables, model)
        rates = np.asarray(grid.utilizations) / per_rate
        demands = _demands(design, tables, jnp.asarray(rates), model=model)
        analytic = _figures(demands, jnp.asarray(design.replicas))
        for i, (utilization, rate) in enumerate(zip(grid.utilizations, rates, strict=True)):
            shortest = REPLICATIONS * REFILLS * float(analytic["mean_active"][i]) / (1.0 - utilization)
            number = min(max(grid.num_requests, int(shortest)), grid.max_requests)
            result = des.simulate(
                design,
                workload,
                rate=float(rate),
                num_requests=number,
                replications=REPLICATIONS,
                warmup_fraction=WARMUP_FRACTION,
                precision=WIDEST_INTERVAL,
                max_requests=grid.max_requests,
                convention=model,
                seed=i,
            )
            for figure, estimate in simulated(result, model).items():
                value = float(analytic[figure][i])
                yield Comparison(
                    model, name, gpu, label, utilization, figure, value, estimate.value, estimate.relative_half_width
                )


class Group(NamedTuple):
    """Comparisons that are summed up together."""

    model: str
    name: str
    belongs: Callable[[Comparison], bool]


def groups(grid: Grid) -> Iterator[Group]:
    """By workload, by fleet and by utilisation."""
    for model in grid.models:
        yield Group(model, "all", lambda c: True)
        for name in grid.workloads:
            yield Group(model, name, lambda c, name=name: c.workload == name)
        for replicas in grid.replicas:
            label = "+".join(map(str, replicas))
            yield Group(model, f"replicas {label}", lambda c, label=label: c.replicas == label)
        for u in grid.utilizations:
            yield Group(model, f"utilization {u:g}", lambda c, u=u: c.utilization == u)


def absolute_errors(found: Iterable[Comparison], group: Group, figure: str) -> np.ndarray:
    """Of the resolved comparisons of a group."""
    return np.array(
        [
            abs(c.error)
            for c in found
            if c.model == group.model and c.figure == figure and c.resolved and group.belongs(c)
        ]
    )


STATISTICS = {"median": np.median, "p90": partial(np.quantile, q=0.9), "max": np.max}


def summary(found: list[Comparison], grid: Grid) -> Iterator[Row]:
    """Median, 90th percentile and largest absolute relative error of each group, and what was left out."""
    for group, figure in itertools.product(groups(grid), FIGURES):
        errors = absolute_errors(found, group, figure)
        for statistic, function in STATISTICS.items():
            if len(errors):
                name = f"{group.model}.{figure}.{group.name.replace(' ', '_')}.{statistic}_error"
                yield Row(name, 100.0 * float(function(errors)), "%")
    for model, figure in itertools.product(grid.models, FIGURES):
        these = [c for c in found if c.model == model and c.figure == figure]
        yield Row(f"{model}.{figure}.compared", float(sum(c.resolved for c in these)), "designs")
        yield Row(f"{model}.{figure}.interval_too_wide", float(sum(not c.resolved for c in these)), "designs")


def show(found: list[Comparison], grid: Grid, worst: int) -> None:
    """Tables for people."""
    out = console()
    for model in grid.models:
        table = Table(
            title=f"{model}: absolute relative error in %, median / 90th percentile / largest", title_justify="left"
        )
        table.add_column("designs")
        for figure in FIGURES:
            table.add_column(figure, justify="right")
        for group in groups(grid):
            if group.model == model:
                table.add_row(group.name, *(_triple(absolute_errors(found, group, figure)) for figure in FIGURES))
        wide = [sum(not c.resolved for c in found if c.model == model and c.figure == f) for f in FIGURES]
        table.add_row("left out: interval > 5 %", *map(str, wide), style="dim")
        out.print(table)
        out.print(_worst_table(found, model, worst))


def _triple(errors: np.ndarray) -> str:
    return " / ".join(f"{100 * float(f(errors)):.1f}" for f in STATISTICS.values()) if len(errors) else "-"


def _worst_table(found: list[Comparison], model: str, worst: int) -> Table:
    table = Table(title=f"{model}: where it is furthest off", title_justify="left")
    for heading in ("figure", "workload", "profile", "replicas", "utilization", "analytic", "simulated", "error"):
        table.add_column(heading, justify="left" if heading in ("figure", "workload", "profile") else "right")
    for figure in FIGURES:
        these = [c for c in found if c.model == model and c.figure == figure and c.resolved]
        for c in sorted(these, key=lambda c: -abs(c.error))[:worst]:
            figures = (f"{c.utilization:g}", f"{c.analytic:.4g}", f"{c.simulated:.4g}", f"{100 * c.error:+.1f} %")
            table.add_row(figure, c.workload, c.profile, c.replicas, *figures)
    return table


def write_csv(found: list[Comparison], path: Path) -> None:
    """Every comparison."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*(f.name for f in fields(Comparison)), "error", "resolved"])
        writer.writeheader()
        writer.writerows(asdict(c) | {"error": c.error, "resolved": c.resolved} for c in found)


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, value, unit, target, ok")
    parser.add_argument("--quick", action="store_true", help="one design in seconds: a smoke test")
    parser.add_argument("--csv", type=Path, help="write every comparison to this file")
    parser.add_argument("--worst", type=int, default=4, help="designs shown for each figure, furthest off first")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    grid = QUICK if options.quick else Grid()
    found = list(comparisons(grid))
    if options.csv:
        write_csv(found, options.csv)
    if options.json:
        print_json(summary(found, grid))
    else:
        show(found, grid, options.worst)


if __name__ == "__main__":
    main()
