"""Plots as PNG: the TTFT distribution, model over simulation, and occupancy over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from des import SimulationResult
from optim import words
from optim.compare_routers import Comparison, Standing
from optim.tails import LEAST_TAIL, Tail

BLUE, ORANGE, GREEN, GREY, RED = "#1f6fb4", "#d9730d", "#2c8a4b", "#9a9a9a", "#c0392b"

POOLS = (BLUE, ORANGE, GREEN, RED, "#7b5ea7", GREY)


def make_figure(panels: int, height: float = 5.4, *, across: bool = False) -> tuple[Any, list[Any]]:
    """A figure of panels: one above the other with one x axis, or side by side with one y axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = 4.0 + 4.0 * panels if across else 8.0
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    rows, columns = (1, panels) if across else (panels, 1)
    made = figure.subplots(rows, columns, sharex=not across, sharey=across, squeeze=False).ravel().tolist()
    for axes in made:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, which="major", color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, made


def _axes() -> tuple[Any, Any]:
    figure, (axes,) = make_figure(1)
    return figure, axes


def left_title(axes: Any, text: str) -> None:
    """A title at the left, wrapped."""
    axes.set_title("\n".join(wrap(text, 84, break_on_hyphens=False)), loc="left", fontsize=11)


def log_axis(axis: Any, values: np.ndarray) -> None:
    """Label a log axis in plain numbers, and at enough of them where its range is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = values[values > 0]
    span = float(positive.max() / positive.min()) if positive.size else 1.0
    digits = (1.0,) if span > 1e3 else (1.0, 2.0, 5.0) if span > 5 else tuple(np.arange(1.0, 10.0))
    axis.set_major_locator(LogLocator(base=10, subs=digits))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words.given(value)))
    axis.set_minor_formatter(NullFormatter())


def plot_ttft(tail: Tail, path: Path, *, title: str) -> None:
    """P(TTFT > t) on a log axis: the simulator's over the model's (if it has any), with the P99s and the objective."""
    figure, axes = _axes()
    times, p99 = tail.times_s * 1e3, tail.simulated_p99_s
    axes.plot(times, tail.simulated, color=BLUE, linewidth=2.2, label="simulated")
    if tail.modelled is not None:
        axes.plot(times, tail.modelled, color=ORANGE, linewidth=1.6, linestyle="--", label=f"model ({tail.model})")
    axes.axhline(0.01, color="#555555", linewidth=0.8, linestyle=":")
    axes.annotate("1 % of requests", (times[0], 0.01), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.plot(
        [p99.value * 1e3],
        [0.01],
        "o",
        color=BLUE,
        fillstyle="none",
        markersize=10,
        markeredgewidth=2,
        zorder=5,
        label=f"P99 simulated {words.interval(p99)} ms",
    )
    if (crossing := tail.modelled_p99_s) is not None:
        axes.plot([crossing * 1e3], [0.01], "D", color=ORANGE, zorder=5, label=f"P99 model {words.ms(crossing)} ms")
    if (objective := tail.objective_s) is not None:
        label = f"SLO {words.given(round(objective * 1e3, 9))} ms"
        if objective <= tail.times_s[-1]:
            axes.axvline(objective * 1e3, color=RED, linestyle="--", linewidth=1.2, label=label)
        else:
            axes.plot([], [], color=RED, linestyle="--", label=f"{label} (beyond the axis)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(LEAST_TAIL, 1.3)
    log_axis(axes.xaxis, times)
    axes.set_xlabel("TTFT, ms")
    axes.set_ylabel("share of requests with a longer TTFT")
    left_title(axes, title)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path)


def plot_occupancy(result: SimulationResult, path: Path, *, pools: Sequence[str], title: str) -> None:
    """Running and waiting requests of each pool, by its name, over the measured time of the first replication."""
    series = result.time_series(0)
    edges = np.append(series.start_s, series.start_s[-1] + series.width_s)
    figure, panels = make_figure(2, 5.8)
    for axes, values, what in zip(panels, (series.active, series.queued), ("running", "waiting"), strict=True):
        for p, pool in enumerate(values):
            colour = POOLS[p % len(POOLS)]
            axes.stairs(
                pool,
                edges,
                color=colour,
                linewidth=1.8,
                baseline=None,
                label=f"pool {p}" if what == "running" else None,
            )
        axes.set_ylim(bottom=0, top=max(1.05 * float(values.max()), 1.0))
        axes.set_ylabel(f"{what} requests, whole pool")
    left_title(panels[0], title)
    panels[1].set_xlabel(f"seconds from the start of replication 0; means over {series.width_s:.3g} s")
    panels[1].set_xlim(edges[0], edges[-1])
    figure.legend(loc="outside lower center", ncols=len(POOLS), frameon=False, fontsize=9)
    figure.savefig(path)


def plot_routers(found: Comparison, path: Path, *, title: str) -> None:
    """P99 TTFT with its interval and the share that is late or rejected, a line for each router."""
    figure, (left, right) = make_figure(2, 1.6 + 0.42 * len(found.standings), across=True)
    names = [s.contender.name for s in found.standings]
    places = np.arange(len(names))[::-1]
    steady = [s.result.ttft.quantile(0.99).value * 1e3 for s in found.standings if _steady(s)]
    limits = np.array([*steady, *([] if found.slo is None else [found.slo.ttft_p99_s * 1e3])] or [1.0])
    low, high = 0.7 * limits.min(), 2.5 * limits.max()
    for place, standing in zip(places, found.standings, strict=True):
        if _steady(standing):
            p99 = standing.result.ttft.quantile(0.99)
            error = np.array([[p99.value - p99.low], [p99.high - p99.value]]) * 1e3
            finite = error if np.all(np.isfinite(error)) else None
            left.errorbar([p99.value * 1e3], [place], xerr=finite, fmt="o", color=BLUE, capsize=3)
        elif standing.result.overloaded:
            left.plot([high], [place], ">", color=RED, markersize=9, clip_on=False)
            left.annotate("overloaded", (high, place), xytext=(-9, -3), textcoords="offset points", ha="right")
    lost = np.array([s.rejected_share for s in found.standings]) * 100
    right.barh(places, lost, height=0.55, color=GREY, label="rejected")
    if found.slo is not None:
        late = np.array([100 * (1 - (s.attainment or 0.0)) for s in found.standings]) - lost
        right.barh(places, late, height=0.55, left=lost, color=ORANGE, label="late")
        left.axvline(found.slo.ttft_p99_s * 1e3, color=RED, linestyle="--", linewidth=1.2)
        right.axvline(1.0, color="#555555", linewidth=0.8, linestyle=":")
    left.set_yticks(places, names)
    left.set_xscale("log")
    left.set_xlim(low, high)
    log_axis(left.xaxis, np.array([low, high]))
    left.set_xlabel("P99 TTFT, ms" + ("" if found.slo is None else " (dashed: SLO)"))
    right.set_xlabel("% of requests" + ("" if found.slo is None else " (dotted: 1 %)"))
    right.set_xlim(left=0)
    figure.suptitle("\n".join(wrap(title, 84, break_on_hyphens=False)), x=0.01, ha="left", fontsize=11)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path)


def _steady(standing: Standing) -> bool:
    return standing.result.ttft.n > 0 and not standing.result.overloaded
