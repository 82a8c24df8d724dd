"""The front of a sweep as PNG: one panel for two axes, and one for each further axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxsim.units import MS_PER_S
from optim import words
from optim.pareto import AXES, ParetoFront, ParetoPoint
from optim.plots import BLUE, GREY, ORANGE, RED, left_title, log_axis, make_figure
from optim.problem import SLO

_WIDE = 8.0
"""Range of values, largest over least, from which on an axis other than a time is logarithmic."""


def plot_pareto(front: ParetoFront, path: Path, *, slo: SLO, title: str, max_kw: float = np.inf) -> None:
    """Every design of a sweep: what nothing beats in all axes in blue, what is dominated in grey.

    P99 TTFT, or the last axis where it is not one, is upwards in every panel; each has another axis across. The line is
    the front of the panel's own two axes; dashed are the objectives and the budget on power.
    """
    upwards = "ttft" if "ttft" in front.axes else front.axes[-1]
    across = [axis for axis in front.axes if axis != upwards]
    figure, panels = make_figure(len(across), across=len(across) > 1)
    limits = {"ttft": slo.ttft_p99_s * MS_PER_S, "energy": max_kw}
    limits["tpot"] = np.inf if slo.tpot_p99_s is None else slo.tpot_p99_s * MS_PER_S
    points = [p for p in front.points if np.all(np.isfinite([p.along(axis) for axis in front.axes]))]
    for axes, axis in zip(panels, across, strict=True):
        _panel(axes, points, axis, upwards, limits)
        if front.recommended is not None:
            best = front.points[front.recommended]
            label = f"recommended: {words.fleet(best.design)}" if axes is panels[0] else None
            axes.plot(best.along(axis), best.along(upwards), "*", color=ORANGE, markersize=18, zorder=5, label=label)
        axes.margins(x=0.08, y=0.12)
        axes.set_xlabel(AXES[axis])
    panels[0].set_ylabel(AXES[upwards])
    left_title(panels[0], title)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path)


def _panel(axes: Any, points: list[ParetoPoint], axis: str, upwards: str, limits: dict[str, float]) -> None:
    x, y = (np.array([p.along(name) for p in points]) for name in (axis, upwards))
    dominated = np.array([p.dominated for p in points], dtype=bool)
    axes.plot(x[dominated], y[dominated], "o", color=GREY, markersize=5, label="dominated")
    steps = _front(x, y)
    axes.plot(x[steps], y[steps], "-", color=BLUE, linewidth=1.2, drawstyle="steps-post")
    axes.plot(x[~dominated], y[~dominated], "o", color=BLUE, markersize=6, label="front")
    for name, values, draw, scale in (
        (axis, x, axes.axvline, axes.set_xscale),
        (upwards, y, axes.axhline, axes.set_yscale),
    ):
        limit = limits.get(name, np.inf)
        if np.isfinite(limit):
            label = f"SLO {words.given(round(limit, 9))} ms" if name == upwards and name != "energy" else None
            draw(limit, color=RED, linestyle="--", linewidth=1.2, label=label)
            values = np.append(values, limit)
        wide = values.size and values.min() > 0 and values.max() > _WIDE * values.min()
        if name in ("ttft", "tpot") or wide:
            scale("log")
            log_axis(axes.xaxis if name == axis else axes.yaxis, values)


def _front(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the points that nothing beats in these two, in order of the first."""
    order = np.lexsort((y, x))
    before = np.minimum.accumulate(np.append(np.inf, y[order])[:-1])
    return order[y[order] < before]
