"""How well the laws of a step fit measured tables: decode, prefill, both at once, and beyond the batches fitted to.

Run ``python benchmarks/physics.py`` (two minutes; ``--json`` for one object a line, ``--quick`` for seconds). A group
is a GPU, a model and a tensor-parallel degree; its error is the mean absolute relative error over its rows, and a
figure is the median or the largest of its groups, unless it says otherwise. `jaxsim.fit_steps` fits each group by
itself; held-out errors are those of rows that the law was not fitted to, extrapolation those of batches of 64 and more
by the law fitted to batches of 32 and less.

Sweeps of real engines are means of TTFT and TPOT, fitted by `jaxsim.fit_runs` through a closed loop.

The roofline is fitted to nothing. Its terms are switched off, or on, one at a time; as it stands it is without the
engine's CPU time, which the tables leave out too, and without the surcharge on grouped-query attention, whose kernels
the tables measure.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import _vllm_runs as runs
import jax
import numpy as np
from _measured import (
    Group,
    batch_switches,
    decode_groups,
    engine_groups,
    mixed_table,
    prefill_groups,
    splitwise_groups,
)
from _report import Row, console, print_json, progress
from rich.table import Table

import jaxsim
from jaxsim.fit import COEFFICIENTS, Errors, knee
from jaxsim.fit.table import step_seconds
from jaxsim.kv_fit import layout
from jaxsim.roofline import load_of, machine_of
from jaxsim.roofline_laws import batch_grid, roofline_law

KIMURA = ("base_s", "per_token_s")
"""W + H n context / calibration context: no term that does not grow with the context."""

PREFILL = ("base_s", "prefill_per_token_s", "prefill_per_token2_s")
LARGEST_FITTED, LEAST_EXTRAPOLATED = 32, 64
PERCENT = 100.0

DECODE_TARGET = 2.7
"""Largest median error of the three-term law over the groups, %."""

DECODE_WORST_TARGET = 9.0
PREFILL_TARGET = 4.5
ROOFLINE_TARGET = 15.0

CATALOGUE = {
    "a100_sxm": "a100-80gb-sxm",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "RTX4090": "rtx-4090",
    "RTXPRO6000": "rtx-pro-6000",
}
"""Names of the tables' GPUs in the catalogue, where they differ."""

LARGEST_BATCH = 256.0
CHUNK_TOKENS = 2048.0
CPU_TIME_S = 3e-3
GQA_OVERHEAD = 0.10


class Fitted(NamedTuple):
    """A group and its figures, %."""

    group: Group
    figures: dict[str, float]


def decode_figures(group: Group) -> dict[str, float]:
    """Of the three-term law, the ``kimura`` form, both beyond the batches fitted to, and the knee."""
    table = group.table
    short = table.only(table.num_active <= LARGEST_FITTED)
    long = table.only(table.num_active >= LEAST_EXTRAPOLATED)
    found = {}
    for name, fitted in (("step", COEFFICIENTS[:3]), ("kimura", KIMURA)):
        fit = jaxsim.fit_steps(table, fitted=fitted)
        found |= {
            name: fit.errors["all"].mean,
            f"{name}.p90": fit.errors["all"].p90,
            f"{name}.held_out": fit.held_out["all"].mean,
            f"{name}.extrapolated": jaxsim.fit_steps(short, fitted=fitted).error(long).mean,
        }
    kink = knee(table)
    found |= {"step.with_knee": kink.mean_error_with_knee}
    return {name: PERCENT * value for name, value in found.items()}


def prefill_figures(group: Group) -> dict[str, float]:
    """Of smoothmax(base, p m) + c m^2."""
    fit = jaxsim.fit_steps(group.table, fitted=PREFILL)
    return {"smoothmax": PERCENT * fit.errors["all"].mean, "smoothmax.held_out": PERCENT * fit.held_out["all"].mean}


def splitwise_figures(group: Group) -> dict[str, float]:
    """Form only: the sweeps do not cross, so the coefficients are not those of a law."""
    fit = jaxsim.fit_steps(group.table)
    return {"decode": PERCENT * fit.errors["decode"].mean, "prefill": PERCENT * fit.errors["prompt"].mean}


def engine_figures(group: Group) -> dict[str, float]:
    """Of a law fitted to both means of every run of a real engine."""
    fit = jaxsim.fit_runs(group.table)
    return {
        "tpot": PERCENT * fit.errors["tpot"].mean,
        "ttft": PERCENT * fit.errors["ttft"].mean,
        "tpot.held_out": PERCENT * fit.held_out["tpot"].mean,
    }


class Switches(NamedTuple):
    """Terms of the roofline."""

    all_reduce: bool = True
    activations: bool = True
    layer_overhead_s: float = 3e-6
    gqa_overhead: float = 0.0
    cpu_time_s: float = 0.0


SWITCHED = {
    "": Switches(),
    ".without_all_reduce": Switches(all_reduce=False),
    ".without_activations": Switches(activations=False),
    ".without_layer_overhead": Switches(layer_overhead_s=0.0),
    ".with_gqa_overhead": Switches(gqa_overhead=GQA_OVERHEAD),
    ".with_cpu_time": Switches(cpu_time_s=CPU_TIME_S),
}


def roofline_error(group: Group, switches: Switches) -> Errors:
    """Of the law that datasheets give, whether the model would fit that GPU or not."""
    shape = layout(group.model, CATALOGUE.get(group.gpu, group.gpu), tp=group.tp)
    machine = machine_of(
        shape,
        all_reduce=switches.all_reduce,
        layer_overhead_s=switches.layer_overhead_s,
        gqa_overhead=switches.gqa_overhead,
    )
    load = load_of(shape, all_reduce=switches.all_reduce, activations=switches.activations)
    law = roofline_law(
        machine,
        load,
        batches=batch_grid(1.0, LARGEST_BATCH),
        chunk_tokens=CHUNK_TOKENS,
        chunks=1.0,
        overhead_s=switches.cpu_time_s,
    )
    return Errors.of(step_seconds(law, group.table.rows) / group.table.time_s - 1.0)


def roofline_figures(group: Group) -> dict[str, float]:
    """Of decode: the error with all terms, its sign, and the error with each term switched."""
    errors = {name: roofline_error(group, switches) for name, switches in SWITCHED.items()}
    found = {f"error{name}": PERCENT * each.mean for name, each in errors.items()}
    return found | {"bias": PERCENT * errors[""].bias}


def roofline_prefill_figures(group: Group) -> dict[str, float]:
    """Of whole prompts in one step: the error with all terms, its sign, and without activations."""
    errors, without = (roofline_error(group, Switches(activations=on)) for on in (True, False))
    found = {"error": PERCENT * errors.mean, "error.without_activations": PERCENT * without.mean}
    return found | {"bias": PERCENT * errors.bias}


class Section(NamedTuple):
    """Tables of one kind, and what is said of each of their groups."""

    name: str
    groups: Callable[[], Iterator[Group]]
    figures: Callable[[Group], dict[str, float]]
    targets: dict[str, float]
    quick: bool = True


SECTIONS = (
    Section(
        "decode",
        decode_groups,
        decode_figures,
        {"step.median": DECODE_TARGET, "step.worst": DECODE_WORST_TARGET},
    ),
    Section("prefill", prefill_groups, prefill_figures, {"smoothmax.median": PREFILL_TARGET}),
    Section("splitwise", splitwise_groups, splitwise_figures, {}, quick=False),
    Section("engines", engine_groups, engine_figures, {}, quick=False),
    Section("roofline", decode_groups, roofline_figures, {"error.median": ROOFLINE_TARGET}),
    Section("roofline_prefill", prefill_groups, roofline_prefill_figures, {}),
)
QUICK_GROUPS = 2
FEW_ORIGINS = 3


def fitted_groups(section: Section, *, quick: bool) -> list[Fitted]:
    """Every group of a section, or the first few."""
    progress(f"{section.name}: each group")
    groups = itertools.islice(section.groups(), QUICK_GROUPS if quick else None)
    return [Fitted(group, section.figures(group)) for group in groups]


STATISTICS = {"median": np.median, "worst": lambda values: max(values, key=abs)}


def rows(section: Section, found: list[Fitted]) -> Iterator[Row]:
    """Figures over all groups, over those of each origin where there are several, and of each group."""
    names = list(found[0].figures)
    origins = list(dict.fromkeys(each.group.origin for each in found))
    for origin in ("", *(origins if 1 < len(origins) <= FEW_ORIGINS else ())):
        these = [each for each in found if not origin or each.group.origin == origin]
        prefix = f"{section.name}.{origin}." if origin else f"{section.name}."
        for name, (statistic, function) in itertools.product(names, STATISTICS.items()):
            value = float(function([each.figures[name] for each in these]))
            target = section.targets.get(f"{name}.{statistic}")
            yield Row(f"{prefix}{name}.{statistic}", value, "%", target, None if target is None else value <= target)
        yield Row(f"{prefix}groups", float(len(these)), "groups")
    for each in found:
        for name in names:
            yield Row(f"{section.name}.{each.group.name}.{name}", each.figures[name], "%")


def mixed_rows() -> Iterator[Row]:
    """Mixed steps of two GPUs (vLLM 0.19 kernels): the law of `jaxsim.fit_steps` by kind of step, over rows."""
    for gpu in runs.GPUS:
        progress(f"mixed steps: {gpu}")
        folder = runs.data_folder()
        table = mixed_table(runs.possible(runs.steps(folder, gpu), runs.engine(folder, gpu)), gpu)
        fit = jaxsim.fit_steps(table)
        for kind in dict.fromkeys(table.groups):
            yield Row(f"mixed.{gpu.lower()}.{kind}.median_error", PERCENT * fit.errors[kind].median, "%")
            yield Row(f"mixed.{gpu.lower()}.{kind}.held_out.median_error", PERCENT * fit.held_out[kind].median, "%")


def switch_rows() -> Iterator[Row]:
    """What DistServe's own fits say of a knee: they switch coefficients at a batch of about 95."""
    ratios = list(batch_switches().values())
    yield Row("distserve.per_sequence.large_over_small_batch.median", float(np.median(ratios)), "ratio")
    yield Row("distserve.fits", float(len(ratios)), "fits")


def show(section: Section, found: list[Fitted]) -> None:
    """A table for people."""
    table = Table(title=f"{section.name}: mean absolute relative error of each group, %", title_justify="left")
    table.add_column("group", no_wrap=True)
    for name in found[0].figures:
        table.add_column(name.replace(".", "\n").replace("_", " "), justify="right")
    for each in found:
        table.add_row(each.group.name, *(f"{value:.2f}" for value in each.figures.values()))
    table.add_section()
    for statistic, function in STATISTICS.items():
        cells = []
        for name in found[0].figures:
            value = float(function([each.figures[name] for each in found]))
            target = section.targets.get(f"{name}.{statistic}")
            mark = (
                "" if target is None else f" [green]<= {target:g}[/]" if value <= target else f" [red]> {target:g}[/]"
            )
            cells.append(f"{value:.2f}{mark}")
        table.add_row(statistic, *cells)
    console().print(table)


IN_DOCUMENT = ("decode", "prefill", "roofline", "roofline_prefill")
"""Sections whose groups a document lists."""


def markdown(section: Section, found: list[Fitted]) -> None:
    """The same for a document."""
    names = list(found[0].figures)
    print(f"\n{section.name}: mean absolute relative error of each group, %\n")
    print("| group | " + " | ".join(name.replace(".", " ").replace("_", " ") for name in names) + " |")
    print("| --- |" + " ---: |" * len(names))
    lines = [(each.group.name, [each.figures[name] for name in names]) for each in found]
    for statistic, function in STATISTICS.items():
        lines.append((f"**{statistic}**", [float(function([each.figures[n] for each in found])) for n in names]))
    for name, values in lines:
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values) + " |")


def show_rows(title: str, found: list[Row]) -> None:
    """A short table for people."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for row in found:
        table.add_row(row.name, f"{row.value:.3g} {row.unit}")
    console().print(table)


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, value, unit, target, ok")
    parser.add_argument("--markdown", action="store_true", help="tables of decode, prefill and roofline for a document")
    parser.add_argument("--quick", action="store_true", help="two groups of each table: a smoke test")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for section in SECTIONS:
        if (options.quick and not section.quick) or (options.markdown and section.name not in IN_DOCUMENT):
            continue
        found = fitted_groups(section, quick=options.quick)
        if options.quick:
            section = section._replace(targets={})  # they are of all groups
        if options.json:
            print_json(rows(section, found))
        else:
            (markdown if options.markdown else show)(section, found)
    if options.markdown:
        return
    others = {"batch switches": list(switch_rows())}
    if not options.quick:
        others = {"mixed steps": list(mixed_rows()), **others}
    for title, some in others.items():
        if options.json:
            print_json(some)
        else:
            show_rows(title, some)


if __name__ == "__main__":
    main()
