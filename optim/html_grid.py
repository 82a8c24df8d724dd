"""The HTML report of a grid of what-ifs: what `whatif.json` says, its cost as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from optim import html_common as common
from optim.documents import Document
from optim.html_charts import BLUE, as_json, figure, gaps, label
from optim.html_page import Chart, Page, Section, Table
from optim.tables import whatif_words
from optim.words import compact, given, usd, whole

AXES = {
    "rate_rps": "requests per second",
    "slo_ttft_p99_ms": "P99 TTFT objective, ms",
    "slo_tpot_p99_ms": "P99 TPOT objective, ms",
}
_HEIGHT = 26
"""Pixels of a row of a heat map."""


def whatif_page(document: Document, *, command: Sequence[str]) -> Page:
    """The page of a grid.

    Args:
        document: as written to `whatif.json`, numbers plain.
        command: that made it.
    """
    sections = [
        Section("cost", "Cost over the grid", [*_charts(document["points"]), _table(document["points"])]),
        common.inputs(document),
        common.validity(document, ["not simulated: every figure is the model's"]),
        common.reproduction(document, command, "whatif.json"),
    ]
    return Page(
        kind="fleetgrad whatif",
        title=f"What if: {document['workload']['name']}",
        verdict=whatif_words(document),
        sections=sections,
        tone="bad" if document["status"] == "infeasible" else "",
    )


def _charts(points: Sequence[Document]) -> list[Chart]:
    """A heat map over the two longest axes for each value of the third; a line where one axis alone has values."""
    values = {key: list(dict.fromkeys(point[key] for point in points)) for key in AXES}
    long = sorted((key for key in AXES if len(values[key]) > 1), key=lambda key: -len(values[key]))
    if not long:
        return []
    if len(long) == 1:
        return [_line(points, long[0])]
    x, y = (key for key in AXES if key in long[:2])
    third = next(key for key in AXES if key not in (x, y))
    return [
        _heat([p for p in points if p[third] == value], x, y, values, k, _said(third, value, len(long) > 2))
        for k, value in enumerate(values[third])
    ]


def _said(key: str, value: Any, shown: bool) -> str:
    return f"{AXES[key]}: {_given(value)}. " if shown else ""


def _given(value: Any) -> str:
    return "none" if value is None else given(round(float(value), 6))


def _heat(points: Sequence[Document], x: str, y: str, values: dict[str, list[Any]], number: int, said: str) -> Chart:
    at = {(point[x], point[y]): point for point in points}
    rows = [[at[(a, b)] for a in values[x]] for b in values[y]]
    trace = go.Heatmap(
        x=[_given(v) for v in values[x]],
        y=[_given(v) for v in values[y]],
        z=[gaps(point["cost_usd_per_hour"] for point in row) for row in rows],
        customdata=[[label(_fleet(point)) for point in row] for row in rows],
        colorscale="Viridis",
        colorbar={"title": {"text": "$/h"}},
        hoverongaps=True,
        xgap=1,
        ygap=1,
        hovertemplate="%{x} by %{y}: $%{z:,.2f}/h<br>%{customdata}<extra></extra>",
    )
    made = figure([trace], x=AXES[x], y=AXES[y])
    made.update_xaxes(type="category", showgrid=False)
    made.update_yaxes(type="category", showgrid=False)
    without = sum(not point["feasible"] for point in points)
    gap = f" {without} infeasible, left blank." if without else ""
    caption = f"{said}Dollars per hour of the cheapest fleet.{gap}"
    height = 200 + _HEIGHT * max(len(values[y]), 4)
    return Chart(f"grid-{number}", "Cost over the grid", as_json(made), caption, height=height)


def _line(points: Sequence[Document], key: str) -> Chart:
    trace = go.Scatter(
        x=gaps(point[key] for point in points),
        y=gaps(point["cost_usd_per_hour"] for point in points),
        customdata=[label(_fleet(point)) for point in points],
        mode="lines+markers",
        line={"color": BLUE, "width": 2},
        hovertemplate="%{x:,.4~g}: $%{y:,.2f}/h<br>%{customdata}<extra></extra>",
    )
    made = figure([trace], x=AXES[key], y="$ per hour")
    made.update_yaxes(rangemode="tozero")
    without = sum(not point["feasible"] for point in points)
    gap = f" {without} infeasible, left out." if without else ""
    return Chart("grid-0", "Cost over the grid", as_json(made), f"Dollars per hour of the cheapest fleet.{gap}")


def _fleet(point: Document) -> str:
    pools = point["pools"]
    if not pools:
        return "infeasible"
    engines = compact([p["profile"] for p in pools], [p["replicas"] for p in pools])
    return f"{engines} to {' / '.join(whole(p['upper_tokens']) for p in pools)} tokens"


def _table(points: Sequence[Document]) -> Table:
    rows = [
        [
            *(_given(point[key]) for key in AXES),
            usd(point["cost_usd_per_hour"]) if point["feasible"] else "-",
            usd(point["relaxed_cost_usd_per_hour"]) if point["feasible"] else "-",
            _fleet(point),
        ]
        for point in points
    ]
    return Table((*AXES.values(), "$/h", "relaxed $/h", "fleet"), rows, left=frozenset({5}), titled=False)
