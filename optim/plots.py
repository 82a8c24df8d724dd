"""Plots as PNG: cost against P99 TTFT, and the TTFT distribution, model over simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from des import SimulationResult
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload
from optim import words
from optim.figures import ttft_tail
from optim.pareto import ParetoFront
from optim.problem import SLO

BLUE, ORANGE, GREEN, GREY, RED = "#1f6fb4", "#d9730d", "#2c8a4b", "#9a9a9a", "#c0392b"
_LEAST_TAIL = 1e-4


def _axes(width: float = 8.0, height: float = 5.4) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, which="major", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def plot_pareto(front: ParetoFront, path: Path, *, slo: SLO, title: str) -> None:
    """Cost against P99 TTFT of every design: the front as a line, what is dominated in grey."""
    figure, axes = _axes()
    points = [p for p in front.points if np.isfinite(float(p.analytic.ttft_p99_s))]
    ttft = np.array([float(p.analytic.ttft_p99_s) * 1e3 for p in points])
    usd = np.array([p.usd_per_hour for p in points])
    dominated = np.array([p.dominated for p in points], dtype=bool)
    axes.plot(usd[dominated], ttft[dominated], "o", color=GREY, markersize=5, label="dominated")
    order = np.argsort(usd[~dominated])
    axes.plot(
        usd[~dominated][order],
        ttft[~dominated][order],
        "o-",
        color=BLUE,
        markersize=6,
        label="front",
        drawstyle="steps-post",
    )
    objective = slo.ttft_p99_s * 1e3
    axes.axhline(objective, color=RED, linestyle="--", linewidth=1.2, label=f"SLO {words.given(objective)} ms")
    if front.recommended is not None:
        best = front.points[front.recommended]
        at = (best.usd_per_hour, float(best.analytic.ttft_p99_s) * 1e3)
        axes.plot(*at, "*", color=ORANGE, markersize=18, zorder=5, label=f"recommended: {words.fleet(best.design)}")
    axes.set_yscale("log")
    _log(axes.yaxis, np.append(ttft, objective))
    if usd.size and usd.min() > 0 and usd.max() > 8 * usd.min():
        axes.set_xscale("log")
        _log(axes.xaxis, usd)
    axes.margins(x=0.08, y=0.12)
    axes.set_xlabel("cost, $ per hour")
    axes.set_ylabel("P99 TTFT by the model, ms")
    axes.set_title(title, loc="left", fontsize=11)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path)


def _log(axis: Any, values: np.ndarray) -> None:
    """Label a log axis in plain numbers, and at enough of them where its range is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = values[values > 0]
    span = float(positive.max() / positive.min()) if positive.size else 1.0
    digits = (1.0,) if span > 1e3 else (1.0, 2.0, 5.0) if span > 5 else tuple(np.arange(1.0, 10.0))
    axis.set_major_locator(LogLocator(base=10, subs=digits))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words.given(value)))
    axis.set_minor_formatter(NullFormatter())


def plot_ttft(
    result: SimulationResult,
    design: FleetDesign,
    workload: Workload,
    path: Path,
    *,
    rate: float,
    model: str,
    slo: SLO | None,
    title: str,
) -> None:
    """P(TTFT > t) on a log axis: the simulator's over the model's, with both P99s and the objective."""
    figure, axes = _axes()
    simulated = np.sort(result.ttft.values)
    last = float(np.quantile(simulated, 1.0 - _LEAST_TAIL))
    first = max(float(simulated[0]), last * 1e-4)
    objective = None if slo is None else slo.ttft_p99_s
    if objective is not None and objective < 30 * last:
        last = max(last, 1.15 * objective)
    times = np.geomspace(0.8 * first, last, 300)
    above = 1.0 - np.searchsorted(simulated, times, side="right") / len(simulated)
    axes.plot(times * 1e3, np.where(above > 0, above, np.nan), color=BLUE, linewidth=2.2, label="simulated")
    tails = ttft_tail(design, workload, rate, times, model=model)
    axes.plot(times * 1e3, tails, color=ORANGE, linewidth=1.6, linestyle="--", label=f"model ({model})")
    axes.axhline(0.01, color="#555555", linewidth=0.8, linestyle=":")
    axes.annotate("1 % of requests", (times[0] * 1e3, 0.01), xytext=(4, 4), textcoords="offset points", fontsize=8)
    p99 = result.ttft.quantile(0.99)
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
    crossing = _crossing(times, tails)
    if crossing is not None:
        axes.plot([crossing * 1e3], [0.01], "D", color=ORANGE, zorder=5, label=f"P99 model {words.ms(crossing)} ms")
    if objective is not None:
        label = f"SLO {words.given(round(objective * 1e3, 9))} ms"
        if objective <= times[-1]:
            axes.axvline(objective * 1e3, color=RED, linestyle="--", linewidth=1.2, label=label)
        else:
            axes.plot([], [], color=RED, linestyle="--", label=f"{label} (beyond the axis)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(_LEAST_TAIL, 1.3)
    _log(axes.xaxis, times * 1e3)
    axes.set_xlabel("TTFT, ms")
    axes.set_ylabel("share of requests with a longer TTFT")
    axes.set_title(title, loc="left", fontsize=11)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path)


def _crossing(times: np.ndarray, tails: np.ndarray) -> float | None:
    """Where the model's tail falls to 1 %."""
    below = np.flatnonzero(tails <= 0.01)
    if below.size == 0 or below[0] == 0:
        return None
    k = int(below[0])
    low, high = np.log(max(tails[k], 1e-12)), np.log(tails[k - 1])
    part = (high - np.log(0.01)) / (high - low) if high > low else 1.0
    return float(np.exp(np.log(times[k - 1]) + part * (np.log(times[k]) - np.log(times[k - 1]))))
