"""A day as a picture: rates and replicas, and the P99 TTFT of each interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxsim.units import MS_PER_S, SECONDS_PER_HOUR
from optim import words
from optim.plots import BLUE, GREY, ORANGE, POOLS, RED, left_title, log_axis, make_figure
from optim.schedule import DaySchedule
from optim.schedule_play import Played

MANY = 100
"""Intervals from which on markers are small."""


def plot_schedule(found: DaySchedule, path: Path, *, title: str) -> None:
    """Rate, replicas of each pool beside the static fleet, and, where it was played, P99 TTFT with its interval."""
    outcome = found.outcome
    assert outcome is not None  # there is nothing to draw of a day that cannot be served
    played = found.played is not None and found.static is not None
    figure, panels = make_figure(3 if played else 2, 8.4 if played else 6.0)
    hours = (found.demand.edges_s + found.demand.origin_s % 86_400.0) / SECONDS_PER_HOUR
    _rates(panels[0], found, hours)
    _replicas(panels[1], found, hours[0])
    if found.played is not None and found.static is not None:
        _latencies(panels[2], found, found.played, found.static, hours)
    left_title(panels[0], title)
    panels[-1].set_xlabel("hour of the day")
    panels[-1].set_xlim(hours[0], hours[-1])
    span = hours[-1] - hours[0]
    step = next((s for s in (0.25, 0.5, 1.0, 3.0, 6.0, 24.0) if span / s <= 12), 48.0)
    panels[-1].set_xticks(np.arange(np.ceil(hours[0] / step) * step, hours[-1] + 1e-9, step))
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path)


def _rates(axes: Any, found: DaySchedule, hours: np.ndarray) -> None:
    moved = found.shift is not None and found.shift.taken
    if moved:
        axes.stairs(
            found.asked.rate, hours, color=GREY, linestyle=":", linewidth=1.6, baseline=None, label="as it arrives"
        )
    label = "rate, after moving" if moved else "rate"
    axes.stairs(found.demand.rate, hours, color=ORANGE, linewidth=1.8, baseline=None, label=label)
    axes.set_ylim(bottom=0, top=1.1 * max(*found.asked.rate, *found.demand.rate))
    axes.set_ylabel("requests/s")


def _replicas(axes: Any, found: DaySchedule, first_hour: float) -> None:
    outcome = found.outcome
    assert outcome is not None  # checked by the caller
    cut = outcome.scheduled.stretches()
    hours = first_hour + cut.edges_s / SECONDS_PER_HOUR
    many = len(outcome.static.most) > 1
    for p, most in enumerate(outcome.static.most):
        colour = POOLS[p % len(POOLS)] if many else BLUE
        name = f"pool {p}" if many else "schedule"
        axes.stairs(
            cut.running[:, p], hours, color=colour, linewidth=1.8, baseline=None, label=f"{name}, takes requests"
        )
        paid = cut.running[:, p] + cut.starting[:, p]
        axes.stairs(paid, hours, color=colour, alpha=0.25, fill=True, label=f"{name}, paid for")
        axes.axhline(
            most,
            zorder=3,
            color=colour if many else GREY,
            linestyle="--",
            linewidth=1.2,
            label=f"static{f' {p}' if many else ''}",
        )
    axes.set_ylim(bottom=0, top=1.12 * max(*outcome.static.most, 1))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("replicas")


def _latencies(axes: Any, found: DaySchedule, played: Played, static: Played, hours: np.ndarray) -> None:
    middles = 0.5 * (hours[1:] + hours[:-1])
    size = 4.0 if len(middles) <= MANY else 2.0
    seen = [0.0]
    for run, colour, marker, label in (
        (static, GREY, "s", "static, simulated"),
        (played, BLUE, "o", "schedule, simulated"),
    ):
        there = [(one.interval, one.fleet.ttft_p99_s) for one in run.intervals if one.fleet.ttft_p99_s is not None]
        value = MS_PER_S * np.array([p99.value for _, p99 in there])
        low = MS_PER_S * np.array([p99.low for _, p99 in there])
        high = MS_PER_S * np.array([min(p99.high, 2.0 * p99.value) for _, p99 in there])
        at = middles[[k for k, _ in there]]
        axes.errorbar(
            at, value, (value - low, high - value), fmt=marker, color=colour, markersize=size, capsize=2, label=label
        )
        seen += value.tolist()
    objective = found.problem.slo.ttft_p99_s * MS_PER_S
    axes.axhline(
        objective, color=RED, linestyle="--", linewidth=1.2, label=f"SLO {words.given(round(objective, 9))} ms"
    )
    axes.set_yscale("log")
    log_axis(axes.yaxis, np.array([*seen, objective]))
    axes.set_ylabel("P99 TTFT, ms")
