"""Interactive charts of the HTML reports, from plain numbers: what is not finite is a gap."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from optim.documents import Document, plain
from optim.html_page import Chart, Table
from optim.tails import LEAST_TAIL, Tail
from optim.words import given, interval, ms, number, whole

BLUE, ORANGE, GREEN, GREY, RED, VIOLET = "#3987cf", "#e07f28", "#33a061", "#8b949e", "#d64f45", "#9877cc"
POOLS = (BLUE, ORANGE, GREEN, VIOLET, "#c4628f", GREY)
"""Legible on white and on black."""
MS = 1e3


def label(text: object) -> str:
    """Text for plotly, which reads some HTML in labels."""
    return html.escape(str(text), quote=False)


def gaps(values: Iterable[float | str | None]) -> list[float | None]:
    """Numbers with None for what is not finite, which is drawn as a gap; documents write "inf"."""
    found = [None if value is None else float(value) for value in values]
    return [value if value is not None and math.isfinite(value) else None for value in found]


def figure(traces: Sequence[Any], *, x: str, y: str) -> go.Figure:
    """The look that all charts share; colours of text and grid come from the page."""
    made = go.Figure(list(traces))
    made.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        margin={"l": 70, "r": 20, "t": 20, "b": 55},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
        hovermode="closest",
    )
    made.update_xaxes(title_text=x, title_standoff=8, zeroline=False, automargin=True)
    made.update_yaxes(title_text=y, title_standoff=8, zeroline=False, automargin=True)
    return made


def as_json(made: go.Figure) -> dict[str, Any]:
    """Python numbers and text only."""
    found: dict[str, Any] = plain(made.to_plotly_json())
    return found


def log_axis(made: go.Figure, axis: str, values: Iterable[float | None]) -> None:
    """A log axis in plain numbers, labelled at enough of them where its range is short."""
    known = [value for value in values if value is not None and value > 0]
    span = max(known) / min(known) if known else 1.0
    step: Any = 1 if span > 1e3 else "D1" if span < 8 else "D2"
    each = {"type": "log", "dtick": step, "tickformat": ",~g", "exponentformat": "none"}
    getattr(made, f"update_{axis}axes")(**each)


def line_at(
    made: go.Figure,
    words: str,
    *,
    colour: str,
    x: float | None = None,
    y: float | None = None,
    dash: str = "dash",
    side: str = "left",
) -> None:
    """A line across the plot with its name beside it; call it when the axes have their types."""
    axis, at = ("yaxis", y) if x is None else ("xaxis", x)
    assert at is not None  # one of the two
    shape = {"line": {"color": colour, "width": 1.3, "dash": dash}, "layer": "below"}
    note = {"text": label(words), "showarrow": False, "font": {"color": colour, "size": 12}}
    where = math.log10(at) if made.layout[axis].type == "log" else at  # annotations want the exponent, shapes do not
    if x is None:
        made.add_shape(type="line", xref="paper", x0=0, x1=1, yref="y", y0=at, y1=at, **shape)
        end, anchor = (0, "left") if side == "left" else (1, "right")
        made.add_annotation(xref="paper", x=end, yref="y", y=where, xanchor=anchor, yanchor="bottom", **note)
    else:
        made.add_shape(type="line", yref="paper", y0=0, y1=1, xref="x", x0=at, x1=at, **shape)
        corner = {"yref": "paper", "y": 1, "yanchor": "top", "xref": "x", "x": where, "textangle": -90}
        made.add_annotation(**corner, xanchor="right" if side == "left" else "left", **note)


def load_chart(load: Document, name: str, *, slo_ms: float | None, simulated: Document | None) -> Chart:
    """P99 over the rate: the model's of fleet and pools, the simulator's with its interval, objective and marks.

    Args:
        load: `optim.plan_document.load_entry`.
        name: ttft or tpot.
        slo_ms: objective on it.
        simulated: estimate at the plan's own rate, as documents have it.
    """
    points, key, short = load["points"], f"{name}_p99_ms", name.upper()
    rates = [point["rate_rps"] for point in points]
    values = gaps(point[key] for point in points)
    hover = [f"utilisation {point['utilization']:.3f}" for point in points]
    traces = [
        go.Scatter(
            x=rates,
            y=values,
            customdata=hover,
            name="model, fleet",
            mode="lines+markers",
            marker={"size": 4},
            line={"color": BLUE, "width": 2.4},
            hovertemplate="%{x:,.4~g} req/s: %{y:,.4~g} ms<br>%{customdata}<extra></extra>",
        )
    ]
    for p in range(len(points[0]["pools"]) if len(points[0]["pools"]) > 1 else 0):
        of_pool = gaps(point["pools"][p][key] for point in points)
        traces.append(
            go.Scatter(
                x=rates,
                y=of_pool,
                name=f"model, pool {p}",
                mode="lines",
                line={"color": POOLS[(p + 1) % len(POOLS)], "width": 1.4, "dash": "dot"},
                hovertemplate=f"pool {p}, " + "%{x:,.4~g} req/s: %{y:,.4~g} ms<extra></extra>",
            )
        )
    if simulated is not None:
        traces.append(_estimate_trace(load["rate_rps"], simulated))
    made = figure(traces, x="requests per second, whole fleet", y=f"P99 {short}, ms")
    if name == "ttft":
        log_axis(made, "y", [*values, slo_ms])
    else:
        made.update_yaxes(rangemode="tozero", tickformat=",~g")
    _load_marks(made, load, knee=name == "ttft")
    if slo_ms is not None:
        line_at(made, f"SLO {given(slo_ms)} ms", y=slo_ms, colour=RED)
    end = load["overload_rate_rps"]
    said = ["replicas and thresholds as they are"]
    if finite(end):
        said.append(f"from {number(end, 4)} req/s on some pool is overloaded: there is no P99, so the line ends")
    said.append(
        "the circle is the simulator's P99 with its 95 % interval" if simulated is not None else "not simulated"
    )
    return Chart(
        name=f"load-{name}",
        title=f"P99 {short} against load",
        figure=as_json(made),
        caption=f"P99 {short} by the model at other rates, {'; '.join(said)}.",
        table=_load_table(load, key, short),
    )


def _estimate_trace(rate: float, simulated: Document) -> Any:
    value, low, high = (simulated[key] for key in ("value", "low", "high"))
    known = all(finite(bound) for bound in (value, low, high))
    bars = {"type": "data", "symmetric": False, "array": [high - value], "arrayminus": [value - low]} if known else None
    return go.Scatter(
        x=[rate],
        y=gaps([value]),
        error_y=bars,
        name="simulated",
        mode="markers",
        marker={"color": ORANGE, "size": 10, "symbol": "circle-open", "line": {"width": 2.5}},
        hovertemplate=f"simulated: {estimate_words(simulated)} ms<extra></extra>",
    )


def _load_marks(made: go.Figure, load: Document, *, knee: bool) -> None:
    line_at(made, "this plan", x=load["rate_rps"], colour=GREY, dash="dot")
    room, end = load["headroom"], load["overload_rate_rps"]
    if room is not None and finite(room["due_rate_rps"]) and room["due_rate_rps"] > 0:
        line_at(made, "next replica due", x=room["due_rate_rps"], colour=GREEN)
    if knee and finite(load["knee_rate_rps"]):
        line_at(made, "knee", x=load["knee_rate_rps"], colour=VIOLET, dash="dashdot")
    if finite(end):
        last = max(point["rate_rps"] for point in load["points"])
        made.add_vrect(x0=end, x1=last, fillcolor=RED, opacity=0.12, line_width=0)
        made.update_xaxes(range=[0, last])


def finite(value: Any) -> bool:
    """A number that is one; documents write "inf"."""
    return value is not None and math.isfinite(float(value))


def estimate_words(estimate: Document) -> str:
    """As `optim.words.interval`, of a document's estimate."""
    value, low, high = (float(estimate[key]) for key in ("value", "low", "high"))
    return f"{number(value)} [{number(low)}, {number(high)}]"


def _load_table(load: Document, key: str, short: str) -> Table:
    rows = [
        [
            number(point["rate_rps"], 4),
            f"{point['utilization']:.3f}",
            number(point[key]) if finite(point[key]) else "overloaded",
        ]
        for point in load["points"]
    ]
    own = [k for k, point in enumerate(load["points"]) if point["rate_rps"] == load["rate_rps"]]
    columns = ("req/s", "utilisation at full batch", f"P99 {short}, model, ms")
    return Table(columns, rows, left=frozenset(), strong=frozenset(own), titled=False)


def tail_chart(tail: Tail, name: str) -> Chart:
    """P(T > t): the simulator's distribution and the model's, with the P99s."""
    short, times = name.upper(), [float(t) * MS for t in tail.times_s]
    shared = {
        "mode": "lines",
        "hovertemplate": "%{y:.3~%} take longer than %{x:,.4~g} ms<extra>%{fullData.name}</extra>",
    }
    simulated = gaps(tail.simulated.tolist())
    traces = [go.Scatter(x=times, y=simulated, name="simulated", line={"color": ORANGE, "width": 2.6}, **shared)]
    said = [f"P99 simulated {interval(tail.simulated_p99_s)} ms"]
    if tail.modelled is not None:
        drawn = [v if v is not None and v >= LEAST_TAIL else None for v in gaps(tail.modelled.tolist())]
        dashed = {"color": BLUE, "width": 2, "dash": "dash"}
        traces.append(go.Scatter(x=times, y=drawn, name=f"model ({label(tail.model)})", line=dashed, **shared))
        crossing = tail.modelled_p99_s
        said.append("by the model not on this axis" if crossing is None else f"by the model {ms(crossing)} ms")
    made = figure(traces, x=f"{short}, ms", y=f"share of requests with a longer {short}")
    log_axis(made, "x", times)
    made.update_yaxes(type="log", range=[math.log10(LEAST_TAIL), 0.1], tickformat=".3~%", dtick=1)
    line_at(made, "1 % of requests", y=0.01, colour=GREY, dash="dot")
    if tail.objective_s is not None:
        objective = tail.objective_s * MS
        beyond = objective > times[-1]
        said.append(f"SLO {given(round(objective, 9))} ms{', beyond the axis' if beyond else ''}")
        if not beyond:
            line_at(made, f"SLO {given(round(objective, 9))} ms", x=objective, colour=RED)
    what = "" if tail.modelled is not None else " The model has no figures of this fleet."
    return Chart(f"tail-{name}", f"Distribution of {short}", as_json(made), f"{'; '.join(said)}.{what}")


def series_chart(series: Document, pools: Sequence[str]) -> tuple[Chart, Chart]:
    """Running and waiting requests over time."""
    made = []
    for key, what, colour in (("mean_active", "running", POOLS), ("mean_queued", "waiting", POOLS)):
        traces = [
            go.Scatter(
                x=[float(start) + 0.5 * series["width_s"] for start in series["start_s"]],
                y=gaps(pool[key]),
                name=label(name),
                line={"color": colour[p % len(colour)], "width": 2, "shape": "hvh"},
                hovertemplate=f"{label(name)}, " + "%{x:,.4~g} s: %{y:,.4~g} " + what + "<extra></extra>",
                showlegend=True,
            )
            for p, (name, pool) in enumerate(zip(pools, series["pools"], strict=True))
        ]
        drawn = figure(traces, x="seconds from the start of the run", y=f"{what} requests, whole pool")
        drawn.update_yaxes(rangemode="tozero")
        means = ", ".join(
            f"{number(sum(map(float, pool[key])) / max(len(pool[key]), 1))} in {name}"
            for name, pool in zip(pools, series["pools"], strict=True)
        )
        caption = (
            f"{what.capitalize()} requests in replication {series['replication']} of the simulation, means over "
            f"{number(series['width_s'])} s; mean over the time drawn {means}."
        )
        made.append(Chart(f"series-{what}", f"Requests {what} over time", as_json(drawn), caption, height=300))
    return made[0], made[1]


def pareto_chart(
    points: Sequence[Document], *, recommended: int | None, slo_ms: float | None, chosen: Document | None = None
) -> Chart:
    """Cost against P99 TTFT of every design, with what it is on hover; `chosen` is a design beside the sweep."""
    groups = {"dominated": (GREY, "markers", 6), "front": (BLUE, "lines+markers", 8)}
    traces = []
    for group, (colour, mode, size) in groups.items():
        mine = [p for p in points if p["dominated"] is (group == "dominated")]
        mine.sort(key=lambda point: float(point["cost_usd_per_hour"]))
        traces.append(_points(mine, group, colour=colour, mode=mode, size=size))
    marked = {} if recommended is None else {"cheapest that meets the SLO by the model": (points[recommended], "star")}
    if chosen is not None:
        marked["this plan, by the model"] = (chosen, "diamond-open")
    for (words, (point, symbol)), colour in zip(marked.items(), (ORANGE, GREEN), strict=False):
        traces.append(_points([point], words, colour=colour, mode="markers", size=15, symbol=symbol))
    made = figure(traces, x="cost, $ per hour", y="P99 TTFT by the model, ms")
    ttft, prices = ([float(p[key]) for p in points] for key in ("ttft_p99_ms", "cost_usd_per_hour"))
    log_axis(made, "y", [*gaps(ttft), slo_ms])
    if prices and min(prices) > 0 and max(prices) > 8 * min(prices):
        log_axis(made, "x", prices)
    if slo_ms is not None:
        line_at(made, f"SLO {given(slo_ms)} ms", y=slo_ms, colour=RED, side="right")
    left_out = sum(value is None for value in gaps(ttft))
    caption = f"{len(points)} designs: one pool, and two at each threshold, sized by the model and not simulated."
    if left_out:
        caption += f" {left_out} overloaded, with no P99, are not drawn."
    return Chart("front", "Cost against P99 TTFT", as_json(made), caption)


def _points(points: Sequence[Document], name: str, *, colour: str, mode: str, size: int, **marker: Any) -> Any:
    return go.Scatter(
        x=gaps(p["cost_usd_per_hour"] for p in points),
        y=gaps(p["ttft_p99_ms"] for p in points),
        customdata=[label(point_words(p)) for p in points],
        name=name,
        mode=mode,
        line={"color": colour, "shape": "hv", "width": 1.8},
        marker={"color": colour, "size": size, **marker},
        hovertemplate="%{customdata}<br>$%{x:,.2f}/h, P99 TTFT %{y:,.4~g} ms<extra></extra>",
    )


def point_words(point: Document) -> str:
    """A design of a sweep in a line, with its other figures."""
    pools = point["design"]["pools"]
    parts = [f"{p['replicas']} x {p['profile']} to {whole(p['upper_tokens'])} tokens" for p in pools]
    met = "meets the SLO" if point["slo_met"] else "misses the SLO"
    figures = f"P99 TPOT {number(point['tpot_p99_ms'])} ms, utilisation {float(point['utilization']):.3f}, {met}"
    return f"{' + '.join(parts)}: {figures}"
