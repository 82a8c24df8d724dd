"""A disaggregated fleet beside the best plain one, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from jaxsim.units import MS_PER_S
from optim.disagg import Advice, DisaggFleet, DisaggPlan, DisaggStatus
from optim.disagg_reference import ReferencePair
from optim.documents import (
    Document,
    document,
    estimate_entry,
    input_entries,
    plan_warnings,
    profile_entry,
    profile_warnings,
    workload_entry,
)
from optim.inputs import Inputs
from optim.plan import Plan, PlanStatus
from optim.report import bullets, inputs_table, sources, table
from optim.words import fleet, given, interval, ms, number, percent, usd

MOST_PAIRS = 6


def disagg_document(found: DisaggPlan, notes: Sequence[str], inputs: Inputs, seed: int) -> Document:
    """Both fleets, the advice, and the reference model's pairs."""
    plain = found.aggregated
    doc = document("disagg", found.status, seed=seed, message=found.status.value)
    doc["inputs"] = input_entries(inputs)
    doc["advice"], doc["advice_text"] = found.advice, found.advice.value
    doc["saving"] = _saving(found)
    doc["rule_of_thumb"] = found.rule_of_thumb
    doc["disaggregated"] = None if found.fleet is None else _fleet_entry(found.fleet)
    doc["aggregated"] = _plain_entry(plain)
    doc["reasons"] = list(found.reasons)
    doc["tries"] = [
        {
            "prefill_replicas": before.replicas,
            "ttft_met": before.met,
            "decode_replicas": after.replicas,
            "tpot_met": after.met,
        }
        for before, after in found.tries
    ]
    doc["reference_model"] = [_pair_entry(pair) for pair in found.reference]
    doc["workload"] = workload_entry(found.problem.workload, found.problem.rejected_share)
    doc["profiles"] = [profile_entry(profile) for profile in found.problem.profiles]
    doc["warnings"] = _notes(found, notes)
    return doc


def _fleet_entry(one: DisaggFleet) -> Document:
    figures = one.analytic
    return {
        "prefill": {
            "profile": one.prefill.name,
            "replicas": one.prefill_replicas,
            "utilization": float(figures.prefill_utilization),
        },
        "decode": {
            "profile": one.decode.name,
            "replicas": one.decode_replicas,
            "utilization": float(figures.decode_utilization),
        },
        "gpus": one.gpus,
        "cost_usd_per_hour": one.usd_per_hour,
        "link_load": float(figures.link_load),
        "transfer_mean_ms": float(figures.transfer_mean_s) * MS_PER_S,
        "analytic": {
            "ttft_p99_ms": float(figures.ttft_p99_s) * MS_PER_S,
            "tpot_p99_ms": float(figures.tpot_p99_s) * MS_PER_S,
        },
        "simulated": None
        if one.result is None
        else {
            "ttft_p99_ms": None if one.ttft_p99_s is None else estimate_entry(one.ttft_p99_s),
            "tpot_p99_ms": None if one.tpot_p99_s is None else estimate_entry(one.tpot_p99_s),
            "link_load": one.result.link_load,
            "requests": one.result.requests,
            "rejected": one.result.rejected,
        },
    }


def _plain_entry(plain: Plan) -> Document:
    found = plain.verification
    return {
        "status": plain.status,
        "fleet": None if plain.design is None else fleet(plain.design),
        "cost_usd_per_hour": plain.usd_per_hour,
        "ttft_p99_ms": None if found is None else estimate_entry(found.ttft_p99_s),
        "tpot_p99_ms": None if found is None or found.tpot_p99_s is None else estimate_entry(found.tpot_p99_s),
        "reasons": [reason.text for reason in plain.reasons],
    }


def _pair_entry(pair: ReferencePair) -> Document:
    return {
        "prefill": pair.prefill.name,
        "prefill_replicas": pair.prefill_replicas,
        "decode": pair.decode.name,
        "decode_replicas": pair.decode_replicas,
        "rate_rps": pair.rate,
        "ttft_ms": pair.ttft_s * MS_PER_S,
        "tpot_ms": pair.tpot_s * MS_PER_S,
        "cost_usd_per_hour": pair.usd_per_hour,
    }


def _saving(found: DisaggPlan) -> float | None:
    """Share of the plain fleet's price that disaggregation saves; None where one of them is not to be had."""
    if found.advice not in (Advice.DISAGGREGATE, Advice.AGGREGATE) or found.fleet is None:
        return None
    plain = found.aggregated.usd_per_hour
    return None if plain is None else 1.0 - found.fleet.usd_per_hour / plain


def disagg_report(found: DisaggPlan, notes: Sequence[str], inputs: Inputs) -> Group:
    """Both fleets as a page."""
    parts: list[RenderableType] = [
        _verdict(found),
        Text(f"{found.rule_of_thumb[0].upper()}{found.rule_of_thumb[1:]}."),
        "",
    ]
    parts += [*_fleets(found), "", *_reference(found.reference), "", inputs_table(inputs), ""]
    parts += [*sources(found.problem.profiles), *bullets("Notes", _notes(found, notes))]
    return Group(*parts)


def _verdict(found: DisaggPlan) -> Text:
    saving = _saving(found)
    words = found.advice.value[0].upper() + found.advice.value[1:]
    if saving is not None and saving > 0:
        words += f" ({percent(saving)} less)"
    elif saving is not None and saving < 0:
        words += f" (the two pools cost {percent(-saving)} more)"
    if found.status is DisaggStatus.INFEASIBLE:
        words += f". INFEASIBLE as two pools: {'; '.join(found.reasons)}"
    elif found.status is not DisaggStatus.VERIFIED:
        words += f". {found.status.value[0].upper()}{found.status.value[1:]}"
    return Text(f"{words}.", style="bold green" if found.status is DisaggStatus.VERIFIED else "bold yellow")


def _fleets(found: DisaggPlan) -> list[RenderableType]:
    made = table("", "prefill + decode", "whole requests", left=("",))
    for column in made.columns[1:]:
        column.overflow = "fold"
    one, plain, slo = found.fleet, found.aggregated, found.problem.slo
    checked = plain.verification
    nothing = "none meets the SLO"

    def row(title: str, apart: str | None, together: str | None) -> None:
        made.add_row(
            title, nothing if one is None else apart or "", nothing if plain.design is None else together or ""
        )

    def of(what: str) -> str | None:
        return None if one is None else what

    first = None if one is None else f"{one.prefill_replicas} x {one.prefill.name}"
    second = None if one is None else f"{one.decode_replicas} x {one.decode.name}"
    row("fleet", f"{first}\n+ {second}", None if plain.design is None else fleet(plain.design))
    row("GPUs", None if one is None else f"{one.gpus:.0f}", _gpus(plain))
    row("price, $/h", None if one is None else usd(one.usd_per_hour), _price(plain))
    if one is not None:
        figures = one.analytic
        use = f"{float(figures.prefill_utilization):.3f} / {float(figures.decode_utilization):.3f}"
        row("utilisation, prefill / decode", use, _utilization(plain))
        row(
            "load of the link, mean transfer",
            of(f"{float(figures.link_load):.3f}, {ms(figures.transfer_mean_s)} ms"),
            "",
        )
        row("TTFT P99, model, ms", ms(figures.ttft_p99_s), _model(plain, "ttft_p99_s"))
        row(
            f"TTFT P99, simulated, ms (SLO {given(slo.ttft_p99_s * MS_PER_S)})",
            interval(one.ttft_p99_s),
            interval(checked.ttft_p99_s if checked else None),
        )
        row("TPOT P99, model, ms", ms(figures.tpot_p99_s), _model(plain, "tpot_p99_s"))
        row(
            f"TPOT P99, simulated, ms (SLO {given((slo.tpot_p99_s or 0.0) * MS_PER_S)})",
            interval(one.tpot_p99_s),
            interval(checked.tpot_p99_s if checked else None),
        )
    return [made]


def _gpus(plain: Plan) -> str | None:
    if plain.design is None:
        return None
    return f"{float((plain.design.replicas * plain.design.profile.gpus_per_replica).sum()):.0f}"


def _price(plain: Plan) -> str | None:
    if plain.usd_per_hour is None:
        return None
    refused = " (refused by the simulator)" if plain.status is PlanStatus.REFUSED else ""
    return f"{usd(plain.usd_per_hour)}{refused}"


def _utilization(plain: Plan) -> str | None:
    return None if plain.analytic is None else f"{float(plain.analytic.utilization):.3f}"


def _model(plain: Plan, figure: str) -> str | None:
    return None if plain.analytic is None else ms(getattr(plain.analytic, figure))


def _reference(pairs: Sequence[ReferencePair]) -> list[RenderableType]:
    """The reference model's own answer: rates and nothing else, so no objective is in it."""
    title = "Reference model (rates at mean lengths, no queue; the objectives are not in it)"
    made = table("prefill + decode", "req/s", "TTFT, ms", "TPOT, ms", "$/h", title=title, left=("prefill + decode",))
    for pair in pairs[:MOST_PAIRS]:
        made.add_row(
            f"{pair.prefill_replicas} x {pair.prefill.name} + {pair.decode_replicas} x {pair.decode.name}",
            number(pair.rate),
            ms(pair.ttft_s),
            ms(pair.tpot_s),
            f"{pair.usd_per_hour:,.2f}",
        )
    more = len(pairs) - MOST_PAIRS
    return [made, *([Text(f"{more} dearer pairs not shown; --json has all.")] if more > 0 else [])]


def _notes(found: DisaggPlan, notes: Sequence[str]) -> list[str]:
    said = [*notes, *profile_warnings(found.problem.profiles)]
    said.append("the decode pool is taken to read the KV cache as the prefill pool left it, whatever their layouts")
    said += [note for note in plan_warnings(found.aggregated) if note not in said]
    if found.fleet is not None and found.fleet.result is not None:
        said += [note for note in found.fleet.result.warnings if note not in said]
    return said
