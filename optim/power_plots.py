"""Plots of the power reports: P99 TTFT over the curtailment, tokens per joule over utilisation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from optim import words
from optim.plots import BLUE, GREEN, GREY, ORANGE, POOLS, RED, make_figure
from optim.power_flex import Flexibility
from optim.power_tokens import Ranking

MS = 1e3


def plot_flex(found: Sequence[Flexibility], path: Path, *, title: str) -> None:
    """P99 TTFT over what is delivered, a panel for each lever: sustained and in the event, model and simulation."""
    figure, panels = make_figure(len(found), 5.2, across=True)
    for axes, one in zip(panels, found, strict=True):
        reachable = [level for level in one.levels if level.reachable]
        share = 100.0 * np.array([level.delivered for level in reachable])
        sustained = MS * np.array([level.ttft_p99_s for level in reachable])
        stable = np.isfinite(sustained)
        axes.plot(share[stable], sustained[stable], "s", color=BLUE, label="sustained, model")
        if (~stable).any():
            start = share[~stable].min()
            axes.axvspan(start, max(share.max(), start + 1.0), color=GREY, alpha=0.2, linewidth=0)
            axes.plot([], [], "s", color=GREY, alpha=0.4, label="sustained: overload, no P99")
        during = MS * np.array([level.event_ttft_p99_s for level in reachable])
        axes.plot(share, during, "o", color=GREEN, fillstyle="none", markersize=10, label="event, model")
        if one.undisturbed is not None:
            base = one.undisturbed.watts
            events = [level.event for level in reachable if level.event is not None]
            p99 = MS * np.array([event.ttft_p99_s.value for event in events])
            low = MS * np.array([event.ttft_p99_s.low for event in events])
            high = MS * np.array([event.ttft_p99_s.high for event in events])
            at = 100.0 * (1.0 - np.array([event.watts for event in events]) / base)
            axes.errorbar(at, p99, (p99 - low, high - p99), fmt="o", color=ORANGE, capsize=3, label="event, simulated")
        if one.slo is not None:
            objective = one.slo.ttft_p99_s * MS
            axes.axhline(objective, color=RED, linestyle="--", linewidth=1.2, label=f"SLO {words.given(objective)} ms")
        what = "batch cap" if one.lever == "cap" else "replicas off"
        axes.set_title(f"{what}: at most {words.percent(one.most)}", loc="left", fontsize=10)
        axes.set_yscale("log")
        axes.set_xlabel("% less power than now, delivered")
        axes.margins(x=0.05)
    panels[0].set_ylabel("P99 TTFT, ms")
    _finish(figure, panels, title, path)


def plot_tokens(found: Ranking, path: Path, *, title: str) -> None:
    """Output tokens per joule of each fleet over utilisation; hollow where the SLO is missed."""
    figure, (axes,) = make_figure(1, 5.2)
    for k, one in enumerate(one for one in found.ranked if one.curve):
        colour = POOLS[k % len(POOLS)]
        load = np.array([point.utilization for point in one.curve])
        tokens = np.array([point.tokens_per_joule for point in one.curve])
        met = np.array([point.slo_met for point in one.curve])
        axes.plot(load, tokens, "-", color=colour, linewidth=1.8, label=str(one.profile.name))
        axes.plot(load[met], tokens[met], "o", color=colour)
        axes.plot(load[~met], tokens[~met], "o", color=colour, fillstyle="none")
    axes.plot([], [], "o", color=GREY, fillstyle="none", label="SLO missed")
    axes.set_xlabel("utilisation at full batch")
    axes.set_ylabel("output tokens per joule (tokens/s per W), GPUs")
    axes.set_ylim(bottom=0)
    _finish(figure, [axes], title, path)


def _finish(figure: Any, panels: Sequence[Any], title: str, path: Path) -> None:
    named: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.suptitle("\n".join(wrap(title, 100, break_on_hyphens=False)), x=0.01, ha="left", fontsize=11)
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path)
