"""The HTML report of a sweep over thresholds: what `pareto.json` says."""

from __future__ import annotations

from collections.abc import Sequence

from optim import html_common as common
from optim.documents import Document
from optim.html_charts import pareto_chart
from optim.html_page import Block, Page, Section, Table, Words
from optim.html_tables import design_words, latency
from optim.words import given, usd, whole


def pareto_page(document: Document, *, verdict: str, command: Sequence[str]) -> Page:
    """The page of a sweep.

    Args:
        document: as written to `pareto.json`, numbers plain.
        verdict: the answer in a sentence.
        command: that made it.
    """
    points, at = document["points"], document["recommended_index"]
    blocks: list[Block] = [Words(["No design of the sweep could serve the load."])]
    if points:
        slo_ms = document["inputs"]["ttft_p99_ms"]["value"]
        blocks = [pareto_chart(points, recommended=at, slo_ms=slo_ms), _table(points, at)]
    sections = [
        Section("designs", "Cost against P99 TTFT", blocks),
        common.inputs(document),
        common.validity(document, ["not simulated: every figure is the model's"]),
        common.reproduction(document, command, "pareto.json"),
    ]
    return Page(
        kind="fleetgrad pareto",
        title=f"{document['workload']['name']} at {given(document['inputs']['rate_rps']['value'])} requests per second",
        verdict=verdict,
        sections=sections,
        tone="bad" if at is None else "good",
    )


def _table(points: Sequence[Document], recommended: int | None) -> Table:
    rows = []
    for k, point in enumerate(points):
        cut = point["threshold_tokens"]
        rows.append(
            [
                design_words(point["design"]),
                "none" if cut is None else whole(cut),
                usd(point["cost_usd_per_hour"]),
                latency(point["ttft_p99_ms"]),
                latency(point["tpot_p99_ms"]),
                f"{float(point['utilization']):.3f}",
                "met" if point["slo_met"] else "no",
                "recommended" if k == recommended else "dominated" if point["dominated"] else "front",
            ]
        )
    columns = ("fleet", "threshold, tokens", "$/h", "P99 TTFT, ms", "P99 TPOT, ms", "utilisation", "SLO", "")
    strong = frozenset() if recommended is None else frozenset({recommended})
    return Table(columns, rows, left=frozenset({0, 6, 7}), strong=strong)
