"""The HTML reports of power: what `flex.json` and `tokens.json` say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from optim import html_common as common
from optim.documents import Document
from optim.html_charts import (
    BLUE,
    GREEN,
    ORANGE,
    POOLS,
    RED,
    as_json,
    figure,
    finite,
    gaps,
    label,
    line_at,
    log_axis,
)
from optim.html_page import Chart, Page, Section, Table, Words
from optim.html_tables import design_words, estimate, latency
from optim.words import given, number, usd


def flex_page(document: Document, *, verdict: str, command: Sequence[str]) -> Page:
    """The page of a fleet's flexibility.

    Args:
        document: as written to `flex.json`, numbers plain.
        verdict: the answer in a sentence.
        command: that made it.
    """
    slo_ms = document["inputs"].get("ttft_p99_ms", {}).get("value")
    sections = [
        Section("levels", "Curtailment against P99", [_flex_chart(document, slo_ms), _levels(document)]),
        Section("now", "As it is", [_now(document)]),
        common.inputs(document),
        common.validity(document),
        common.reproduction(document, command, "flex.json"),
    ]
    safe = [entry["safe_percent"] for entry in (document["sustained_safe"], document["event_safe"]) if entry]
    tone = "good" if safe and max(map(float, safe)) > 0 else "warn"
    title = f"{document['workload']['name']}: power and what can be given back"
    return Page(kind="fleetgrad power", title=title, verdict=verdict, sections=sections, tone=tone)


def _flex_chart(document: Document, slo_ms: float | None) -> Chart:
    levels = [level for level in document["levels"] if level["reachable"]]
    share = gaps(level["delivered_percent"] for level in levels)
    sustained = gaps(level["sustained"]["ttft_p99_ms"] for level in levels)
    during = gaps(level["event_model"]["ttft_p99_ms"] for level in levels)
    hover = "%{x:.3~g} % less: %{y:,.4~g} ms<extra>%{fullData.name}</extra>"
    traces = [
        go.Scatter(x=share, y=sustained, name="sustained, model", line={"color": BLUE}, hovertemplate=hover),
        go.Scatter(x=share, y=during, name="event, model", line={"color": GREEN, "dash": "dot"}, hovertemplate=hover),
    ]
    events = [level["event"] for level in levels if level["event"] is not None]
    if events:
        found = [event["ttft_p99_ms"] for event in events]
        known = [all(finite(e[key]) for key in ("value", "low", "high")) for e in found]
        up = [e["high"] - e["value"] if k else 0.0 for e, k in zip(found, known, strict=True)]
        down = [e["value"] - e["low"] if k else 0.0 for e, k in zip(found, known, strict=True)]
        traces.append(
            go.Scatter(
                x=gaps(event["delivered_percent"] for event in events),
                y=gaps(e["value"] for e in found),
                error_y={"type": "data", "symmetric": False, "array": up, "arrayminus": down},
                name="event, simulated",
                mode="markers",
                marker={"color": ORANGE, "size": 10, "symbol": "circle-open", "line": {"width": 2.5}},
                hovertemplate=hover,
            )
        )
    made = figure(traces, x="% less power than now, delivered", y="P99 TTFT, ms")
    log_axis(made, "y", [*sustained, *during, slo_ms])
    if slo_ms is not None:
        line_at(made, f"SLO {given(slo_ms)} ms", y=slo_ms, colour=RED)
    lost = sum(value is None for value in sustained)
    gap = f" {lost} levels are overload when sustained, with no P99: a gap." if lost else ""
    return Chart("flex", "P99 TTFT over curtailment", as_json(made), f"Levels that can be reached.{gap}")


def _levels(document: Document) -> Table:
    rows = []
    for level in document["levels"]:
        event = level["event"]
        rows.append(
            [
                _percent(level["asked_percent"]),
                "none" if level["caps"] is None else " + ".join(f"{cap:g}" for cap in level["caps"]),
                " + ".join(map(str, level["replicas"])),
                _percent(level["delivered_percent"]) if level["reachable"] else "out of reach",
                latency(level["sustained"]["ttft_p99_ms"]),
                latency(level["event_model"]["ttft_p99_ms"]),
                "not simulated" if event is None else estimate(event["ttft_p99_ms"]),
            ]
        )
    columns = ("asked", "batch cap", "replicas on", "delivered, model", *(f"P99 TTFT {how}, ms" for how in _HOW))
    return Table(columns, rows)


_HOW = ("sustained, model", "in the event, model", "in the event, simulated")


def _percent(value: Any) -> str:
    return f"{given(round(float(value), 2))}\u00a0%"


_BILL = {
    "kilowatts": "kW at the meter",
    "kwh_per_million_tokens": "kWh/million output tokens",
    "usd_per_hour": "electricity, $/h",
    "usd_per_million_tokens": "electricity, $/million output tokens",
    "kg_co2_per_hour": "kg CO2/h",
    "kg_co2_per_million_tokens": "kg CO2/million output tokens",
}


def _now(document: Document) -> Table:
    now, rows = document["now"], []
    for key, words in {
        "watts": "W of all GPUs",
        "output_tokens_per_s": "output tokens/s",
        "output_tokens_per_joule": "output tokens/J",
        "utilization": "utilisation at full batch",
        "ttft_p99_ms": "TTFT P99, model, ms",
        "tpot_p99_ms": "TPOT P99, model, ms",
    }.items():
        if key in now:
            rows.append([words, latency(now[key])])
    for key, words in _BILL.items():
        value = now["electricity"][key]
        rows.append([words, "not given" if value is None else number(value)])
    return Table(("as it is", "value"), rows)


def tokens_page(document: Document, *, verdict: str, command: Sequence[str]) -> Page:
    """The page of tokens per joule, profile by profile.

    Args:
        document: as written to `tokens.json`, numbers plain.
        verdict: the answer in a sentence.
        command: that made it.
    """
    sections = [
        Section("ranking", "Tokens per joule", [*_curves(document), _ranking(document)]),
        common.inputs(document),
        common.validity(document, [document["same_model_text"]]),
        common.reproduction(document, command, "tokens.json"),
    ]
    tone = "bad" if document["status"] == "infeasible" else ""
    title = f"{document['workload']['name']}: output tokens per joule"
    return Page(kind="fleetgrad power", title=title, verdict=verdict, sections=sections, tone=tone)


def _curves(document: Document) -> list[Chart | Words]:
    drawn = [one for one in document["ranking"] if one.get("curve")]
    if not drawn:
        return [Words(["No profile has a fleet whose power could be drawn."])]
    traces = []
    for k, one in enumerate(drawn):
        curve = one["curve"]
        symbols = ["circle" if point["slo_met"] else "circle-open" for point in curve]
        traces.append(
            go.Scatter(
                x=gaps(point["utilization"] for point in curve),
                y=gaps(point["output_tokens_per_joule"] for point in curve),
                name=label(one["profile"]),
                mode="lines+markers",
                line={"color": POOLS[k % len(POOLS)]},
                marker={"symbol": symbols, "size": 8},
                hovertemplate="utilisation %{x:.3~g}: %{y:.4~g} tokens/J<extra>%{fullData.name}</extra>",
            )
        )
    made = figure(traces, x="utilisation at full batch", y="output tokens per joule, GPUs")
    made.update_yaxes(rangemode="tozero")
    return [Chart("tokens", "Tokens per joule over utilisation", as_json(made), "Hollow where the SLO is missed.")]


def _ranking(document: Document) -> Table:
    rows = []
    for one in document["ranking"]:
        if "design" not in one:
            rows.append([one["profile"], one["message"], *["-"] * 6])
            continue
        rows.append(
            [
                one["profile"],
                design_words(one["design"]),
                number(one["energy"]["output_tokens_per_joule"]),
                number(one["energy"]["watts"], 4),
                f"{float(one['utilization']):.3f}",
                usd(one["cost_usd_per_hour"]),
                latency(one["ttft_p99_ms"]),
                estimate(one["simulated_ttft_p99_ms"]),
            ]
        )
    columns = ("profile", "fleet", "tokens/J", "W", "utilisation", "$/h", "P99 TTFT, model, ms", "simulated, ms")
    return Table(columns, rows, left=frozenset({0, 1}))
