"""The HTML report of a plan: what `plan.json` says, and the curves that it does not hold."""

from __future__ import annotations

from collections.abc import Sequence

from optim import html_common as common
from optim.documents import Document
from optim.headroom import Headroom
from optim.html_charts import finite, load_chart, pareto_chart
from optim.html_page import Block, Card, Page, Section, Words
from optim.html_tables import (
    estimate,
    knobs_table,
    latency,
    pools_table,
    prices_words,
    proof_words,
    rounds_table,
)
from optim.report import DERIVATIVES
from optim.sensitivity_report import headroom_words
from optim.tails import Tails
from optim.words import given, number, percent, usd, whole

_TONES = {"verified": "good", "unverified": "warn", "infeasible": "bad", "refused": "bad"}


def plan_page(
    document: Document,
    *,
    verdict: str,
    command: Sequence[str],
    tails: Tails | None = None,
    front: Document | None = None,
) -> Page:
    """The page of a plan, or of why there is none.

    Args:
        document: of the plan, as written to `plan.json` (numbers plain, "inf" a string).
        verdict: the answer in a sentence.
        command: that made it.
        tails: distributions of the verified fleet.
        front: `points` and `recommended_index` of the sweep over thresholds.
    """
    workload, rate = document["workload"]["name"], document["inputs"]["rate_rps"]["value"]
    tone = _TONES[document["status"]]
    sections: list[Section] = []
    if "design" in document:
        sections += [
            Section("design", "The design", [pools_table(document), proof_words(document)]),
            _cost(document, front),
            *_load(document),
            *common.distributions(tails),
            _knobs(document),
            *common.over_time(document),
        ]
    else:
        sections.append(_reasons(document))
    sections += [
        common.inputs(document),
        common.validity(document, _simulated(document)),
        common.reproduction(document, command, "plan.json"),
    ]
    return Page(
        kind="fleetgrad plan",
        title=f"{workload} at {given(rate)} requests per second",
        verdict=verdict,
        sections=sections,
        tone="warn" if tone == "good" and _flips(document) else tone,
        cards=_cards(document),
    )


def _flips(document: Document) -> bool:
    """Whether some pool's own interval crosses its objective, though the fleet's do not."""
    limits = _objectives(document)
    for pool in document["verification"]["pools"]:
        for name, limit in limits.items():
            found = pool[f"{name}_p99_ms"]
            if limit is not None and found is not None and float(found["high"]) > limit:
                return True
    return False


def _objectives(document: Document) -> dict[str, float | None]:
    return {name: document["inputs"][f"{name}_p99_ms"]["value"] for name in ("ttft", "tpot")}


def _cards(document: Document) -> list[Card]:
    if "design" not in document:
        return []
    found, analytic = document["verification"], document["analytic"]
    cards = [
        Card("cost", f"{usd(document['cost_usd_per_hour'])}/h", f"${whole(document['cost_usd_per_year'])} a year"),
        Card("fleet", f"{whole(document['design']['gpus'])} GPUs", f"utilisation {number(analytic['utilization'])}"),
    ]
    for name, limit in _objectives(document).items():
        objective = "no objective" if limit is None else f"SLO {given(limit)} ms"
        model = f"model {latency(analytic[f'{name}_p99_ms'])} ms"
        simulated = None if found is None else found[f"{name}_p99_ms"]
        if simulated is None:
            cards.append(Card(f"P99 {name.upper()}, model", f"{latency(analytic[f'{name}_p99_ms'])} ms", objective))
        else:
            bounds = f"{estimate(simulated).partition(' ')[2]} in 95 %"
            value = f"{number(simulated['value'])} ms"
            cards.append(Card(f"P99 {name.upper()}, simulated", value, f"{bounds}; {objective}; {model}"))
    room = document.get("load", {}).get("headroom")
    if room is not None and finite(room["spare"]) and float(room["spare"]) >= 0:
        due = f"next replica due at {number(room['due_rate_rps'], 4)} req/s"
        cards.append(Card("headroom", f"+{percent(room['spare'])} of load", due))
    return cards


def _reasons(document: Document) -> Section:
    lines = [reason["text"] for reason in document["reasons"]]
    blocks: list[Block] = [Words(lines, listed=True)]
    if document["rounds"]:
        blocks.append(rounds_table(document))
    return Section("reasons", "Why there is no plan", blocks)


def _cost(document: Document, front: Document | None) -> Section:
    blocks: list[Block] = []
    if front is not None and front["points"]:
        slo_ms, analytic = _objectives(document)["ttft"], document["analytic"]
        mine = {
            "design": document["design"],
            "cost_usd_per_hour": document["cost_usd_per_hour"],
            **{key: analytic[key] for key in ("ttft_p99_ms", "tpot_p99_ms", "utilization")},
            "slo_met": (document["verification"] or {}).get("slo_met", True),
        }
        blocks.append(pareto_chart(front["points"], recommended=front["recommended_index"], slo_ms=slo_ms, chosen=mine))
    about = "What the plan considered, in order; after a no of the simulator the model is corrected and searched again:"
    return Section("cost", "Cost, and what else was considered", [*blocks, Words([about]), rounds_table(document)])


def _load(document: Document) -> list[Section]:
    load = document.get("load")
    if load is None:
        return []
    room, found = load["headroom"], document["verification"]
    sized = None
    if room is not None:
        pools = room["pools"]
        sized = Headroom(
            rate=float(room["rate_rps"]),
            due_rate=tuple(float(p["due_rate_rps"]) for p in pools),
            required=tuple(p["required_replicas"] for p in pools),
            usd_per_hour=tuple(float(p["replica_usd_per_hour"]) for p in pools),
        )
    lines = [headroom_words(sized, [p["replicas"] for p in document["design"]["pools"]])]
    if found is not None:
        lines.append(
            "Headroom is by the model as the simulator had corrected it when this fleet was proposed; the curves are "
            "the model's own, so they may cross an objective elsewhere."
        )
    if finite(load["knee_rate_rps"]):
        lines.append(
            f"The knee is at {number(load['knee_rate_rps'], 4)} req/s, where 1 % of the requests wait for a slot: "
            "beyond it the queue is in P99 TTFT, which then grows much faster than the load."
        )
    charts = [
        load_chart(load, name, slo_ms=limit, simulated=None if found is None else found[f"{name}_p99_ms"])
        for name, limit in _objectives(document).items()
    ]
    return [Section("load", "P99 against load: knee and headroom", [Words(lines), *charts])]


def _knobs(document: Document) -> Section:
    blocks: list[Block] = []
    if document.get("sensitivities"):
        blocks += [Words([f"Prices, as {DERIVATIVES}:"]), prices_words(document)]
    if document.get("knobs"):
        blocks.append(knobs_table(document))
    further = "fleetgrad sensitivity, of the same file, has further knobs and the derivatives in every input."
    return Section("knobs", "Which knob to turn next", [*blocks, Words([further])])


def _simulated(document: Document) -> list[str]:
    found = document["verification"]
    if found is None:
        return ["not simulated: every figure is the model's"] if "design" in document else []
    met = f"{percent(found['attainment'])} of all offered requests met every objective"
    return [*common.simulated_words(document), met]
