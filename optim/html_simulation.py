"""The HTML report of a simulated fleet: what `simulation.json` says, and its distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optim import html_common as common
from optim.documents import Document
from optim.html_charts import finite
from optim.html_page import Card, Page, Section, Table, Words
from optim.html_tables import estimate, pools_table
from optim.tails import Tails
from optim.words import given, number, percent, usd, whole

_TONES = {"met": "good", "coin_flip": "warn", "missed": "bad"}
_LATENCIES = {
    "client_wait": "wait of the client to send",
    "prefill_wait": "wait for prefill",
    "transfer": "wait for the link and transfer",
    "decode_wait": "wait for decode",
    "wait": "wait for admission",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL (gaps, not requests)",
    "e2e": "end to end",
}
"""In the order in which a request meets them."""


def simulation_page(
    document: Document,
    *,
    verdict: str,
    command: Sequence[str],
    tails: Tails | None,
    pools: Sequence[str],
    rules: Sequence[str],
) -> Page:
    """The page of a simulated fleet.

    Args:
        document: as written to `simulation.json`, numbers plain.
        verdict: the answer in a sentence.
        command: that made it.
        tails: both distributions; None where every request was rejected.
        pools: what each is called.
        rules: those in force, in sentences.
    """
    found = document["verification"]
    tone = "bad" if found["overloaded"] else _TONES.get(found["verdict"] or "", "")
    sections = [
        Section("design", "The fleet", [pools_table(document, pools), Words(rules, listed=True)]),
        Section("simulated", "What was simulated", [_latencies(document), _counts(document, pools)]),
        *common.distributions(tails),
        *common.over_time(document, pools),
        common.inputs(document),
        common.validity(document, common.simulated_words(document)),
        common.reproduction(document, command, "simulation.json"),
    ]
    return Page(
        kind="fleetgrad simulate",
        title=f"{document['workload']['name']} at {number(found['offered_rate_rps'])} requests per second",
        verdict=verdict,
        sections=sections,
        tone=tone,
        cards=_cards(document),
    )


def _cards(document: Document) -> list[Card]:
    found = document["verification"]
    per_year = f"${whole(document['cost_usd_per_year'])} a year"
    cards = [Card("cost", f"{usd(document['cost_usd_per_hour'])}/h", per_year)]
    for name in ("ttft", "tpot"):
        value = found[f"{name}_p99_ms"]
        limit = document["inputs"].get(f"{name}_p99_ms", {}).get("value")
        objective = "no objective" if limit is None else f"SLO {given(limit)} ms"
        if value is not None:
            bounds = estimate(value).partition(" ")[2]
            cards.append(Card(f"P99 {name.upper()}", f"{number(value['value'])} ms", f"{bounds} in 95 %; {objective}"))
    rejected = percent(found["rejected"] / max(found["requests"], 1))
    cards.append(Card("requests", f"{found['requests']:,}", f"{rejected} rejected"))
    if found["attainment"] is not None:
        cards.append(Card("within every objective", percent(found["attainment"]), "of all offered requests"))
    return cards


def _latencies(document: Document) -> Table:
    found = document["verification"]
    rows = []
    for name, words in _LATENCIES.items():
        if f"{name}_p99_ms" not in found or (name == "wait" and "decode_wait_p99_ms" in found):
            continue
        each = [found[f"{name}_p{q}_ms"] for q in (50, 95, 99)]
        count = "0" if each[2] is None else f"{each[2]['n']:,}"
        rows.append([words, *map(estimate, each), count])
    return Table(("latency, ms", "P50", "P95", "P99", "requests"), rows, caption="With 95 % intervals.")


def _counts(document: Document, pools: Sequence[str]) -> Table:
    found = document["verification"]["pools"]

    def row(title: str, key: str, show: Callable[[Any], str] = number) -> list[str]:
        return [title, *(show(pool[key]) if finite(pool[key]) else "unknown" for pool in found)]

    rows = [
        row("requests", "requests", whole),
        row("rejected", "rejected", whole),
        row("running requests, mean a replica", "active_batch"),
        row("waiting requests, mean of the pool", "mean_queued"),
        row("share of the sequences in use", "sequence_utilization", percent),
        row("share of the KV blocks in use", "kv_utilization", percent),
        row("offered load over capacity", "load"),
        row("step, mean, ms", "step_time_ms"),
        row("growth of the queue, req/s", "queue_growth_rps"),
        row("preemptions", "preemptions", whole),
        row("replica-hours up", "replica_hours"),
    ]
    return Table(["counted", *pools], rows)
