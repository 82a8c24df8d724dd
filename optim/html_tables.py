"""Tables of the HTML reports, read from the documents that the commands write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optim.documents import Document
from optim.html_charts import estimate_words, finite
from optim.html_page import Table, Words
from optim.plan_power_report import certificate_sentence
from optim.report import binding_lines, price_lines, shown
from optim.sensitivity_report import change_words, worth_words
from optim.words import given, number, percent, token_ranges, usd, whole

Pool = Document


def pools_table(document: Document, names: Sequence[str] | None = None) -> Table:
    """Figures down, pools across: the design, the model's figures and the simulator's; `names` are the pools'."""
    pools, analytic = document["design"]["pools"], document.get("analytic")
    found = document.get("verification")
    rows: list[list[str]] = []

    def row(title: str, of: Sequence[Pool], figure: Callable[[Pool], str], fleet: str = "") -> None:
        rows.append([title, *map(figure, of), fleet])

    row("profile", pools, lambda p: p["profile"])
    row("replicas", pools, lambda p: whole(p["replicas"]), whole(sum(p["replicas"] for p in pools)))
    row("GPUs", pools, lambda p: whole(p["gpus"]), whole(document["design"]["gpus"]))
    uppers = [float(p["upper_tokens"]) for p in pools]
    served = token_ranges(uppers[-1:]) * len(pools) if "role" in pools[0] else token_ranges(uppers)
    rows.append(["total tokens of a request", *served, ""])
    if analytic is not None:
        each = analytic["pools"]
        row("share of requests", each, lambda p: percent(p["share"]), percent(1.0 - float(analytic["rejected_share"])))
        row("rate, req/s", each, lambda p: number(p["rate_rps"]), number(analytic["rate_rps"]))
        load = f"{float(analytic['utilization']):.3f}"
        row("utilisation at full batch", each, lambda p: f"{float(p['utilization']):.3f}", load)
        row("running requests a replica", each, lambda p: number(p["active_batch"]))
        row("most that may run", each, lambda p: whole(p["concurrency_limit"]))
        row("requests that wait for a slot", each, lambda p: _waiting(float(p["wait_probability"])))
        for name in ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_mean", "tpot_p99"):
            _figure_row(row, each, analytic, name, found)
        row("price, $/h", each, lambda p: usd(p["usd_per_hour"]), usd(document["cost_usd_per_hour"]))
        key = "cost_usd_per_million_output_tokens"
        row("$/million output tokens", each, lambda p: usd(p[key]), usd(document[key]))
    elif found is not None:
        for name in ("ttft_p99", "tpot_p99"):
            row(
                _titled(name, "simulated"),
                found["pools"],
                lambda p, n=name: estimate(p[f"{n}_ms"]),
                estimate(found[f"{name}_ms"]),
            )
    columns = ["", *(names or [f"pool {p}" for p in range(len(pools))]), "fleet"]
    return Table(columns, rows)


def _waiting(share: float) -> str:
    return "under 0.001 %" if 0 < share < 1e-5 else percent(share)


def _titled(name: str, who: str) -> str:
    figure, which = name.split("_")
    return f"{figure.upper()} {which if which == 'mean' else which.upper()}, {who}, ms"


def _figure_row(row: Any, each: Sequence[Pool], analytic: Document, name: str, found: Document | None) -> None:
    """The model's latency and, where it is a P99, the simulator's beneath it."""
    key = f"{name}_ms"
    row(_titled(name, "model"), each, lambda p: latency(p[key]), latency(analytic[key]))
    if found is not None and name.endswith("p99"):
        row(_titled(name, "simulated"), found["pools"], lambda p: estimate(p[key]), estimate(found[key]))


def latency(value: Any) -> str:
    """Milliseconds of the model; overload has none."""
    return number(value) if finite(value) else "overloaded"


def estimate(value: Document | None) -> str:
    """Milliseconds of the simulator with their interval."""
    return "none" if value is None else estimate_words(value)


def inputs_table(document: Document) -> Table:
    """Every input and where it came from."""
    rows = [[key, shown(entry["value"]), entry["source"]] for key, entry in document["inputs"].items()]
    return Table(("input", "value", "from"), rows, left=frozenset({0, 1, 2}))


def rounds_table(document: Document) -> Table:
    """What was tried, in order."""
    rows, strong = [], set()
    for k, each in enumerate(document["rounds"]):
        found = each["verification"]
        said = "not asked" if found is None else "overloaded" if found["overloaded"] else _lower(found["verdict"])
        ttft, tpot = (None, None) if found is None else (found["ttft_p99_ms"], found["tpot_p99_ms"])
        if each["design"]["pools"] == _bare(document):
            strong.add(k)
        price = f"{each['cost_usd_per_hour']:,.2f}"
        rows.append([str(k + 1), design_words(each["design"]), price, estimate(ttft), estimate(tpot), said])
    columns = ("", "fleet", "$/h", "P99 TTFT simulated, ms", "P99 TPOT simulated, ms", "simulator")
    return Table(columns, rows, left=frozenset({0, 1, 5}), strong=frozenset(strong))


def _bare(document: Document) -> list[Document]:
    further = ("binding_constraint", "binding_text")
    return [{k: v for k, v in p.items() if k not in further} for p in document.get("design", {}).get("pools", [])]


def _lower(name: str) -> str:
    return name.replace("_", " ")


def design_words(design: Document) -> str:
    """A fleet in a line."""
    return " + ".join(f"{p['replicas']} x {p['profile']} to {whole(p['upper_tokens'])} tokens" for p in design["pools"])


def knobs_table(document: Document) -> Table:
    """Every turn, its price and what it does to the P99s, the best first."""
    rows = []
    for knob in document["knobs"]:
        cost, sold = float(knob["cost_usd_per_hour"]), knob["for_sale"]
        rows.append(
            [
                knob["turn"],
                str(knob["pool"]),
                ("free" if cost == 0 else usd(cost)) if sold else "not for sale",
                _change(knob["ttft_p99_ms"]),
                _change(knob["tpot_p99_ms"]),
                worth_words(float(knob["ttft_p99_ms_per_usd"])) if sold else "",
                "overload" if knob["overloaded"] else "met" if knob["slo_met"] else "missed",
            ]
        )
    columns = ("knob", "pool", "$/h", "P99 TTFT, ms", "P99 TPOT, ms", "ms of P99 TTFT for $1/h", "objectives then")
    return Table(columns, rows, caption="Each by itself, by the model, the best first; below 0 ms is better.")


def _change(value: Any) -> str:
    return change_words(float(value)) if finite(value) else "into overload" if float(value) > 0 else "out of overload"


def proof_words(document: Document) -> Words:
    """What is proved of the cost, and what binds."""
    proof, lines = document.get("certificate"), []
    if proof is not None:
        lines.append(certificate_sentence(proof, document.get("power")))
    pools = document["design"]["pools"]
    return Words([*lines, *binding_lines([(p["binding_constraint"], p["binding_text"]) for p in pools])])


def prices_words(document: Document) -> Words:
    """Prices of the rate and of each objective, from the derivatives."""
    tpot = document["inputs"]["tpot_p99_ms"]["value"] is not None
    return Words(price_lines(document["sensitivities"], tpot=tpot), listed=True)


def validity_table(document: Document) -> Table | None:
    """What the model's P99s are worth, pool by pool; None where nothing is known."""
    pools = document.get("validity")
    if not pools or all(pool is None for pool in pools):
        return None
    rows = []
    for p, pool in enumerate(pools):
        if pool is None:
            rows.append([f"pool {p}", "no P99: overloaded", "", "", ""])
            continue
        errors = [
            f"{percent(pool[f'{name}_p99_error']['median'])} / {percent(pool[f'{name}_p99_error']['p90'])}"
            for name in ("ttft", "tpot")
        ]
        steep = "yes: lean on the simulation" if pool["ttft_p99_is_steep"] else "no"
        rows.append([f"pool {p}", pool["region"], *errors, steep])
    columns = ("", "region", "error of P99 TTFT, half / nine in ten", "of P99 TPOT", "P99 TTFT on the queue's edge")
    return Table(columns, rows, left=frozenset({0, 1, 4}))


def profile_words(document: Document) -> Words:
    """Where the constants of each profile come from."""
    return Words([f"Profile {p['name']}: {p['source']}." for p in document["profiles"]], listed=True)


def profiles_table(document: Document) -> Table:
    """Every constant of each profile."""
    profiles = document["profiles"]
    names = [key for key in profiles[0] if key not in ("name", "source")]
    rows = [[key, *(p[key] if isinstance(p[key], str) else given_or_small(p[key]) for p in profiles)] for key in names]
    return Table(["constant", *(p["name"] for p in profiles)], rows)


def given_or_small(value: float) -> str:
    """A constant: small ones in scientific notation."""
    return f"{value:.6g}" if 0 < abs(value) < 1e-3 else given(value)
