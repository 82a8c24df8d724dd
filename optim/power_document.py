"""The power reports as JSON documents and CSV rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from des import Estimate
from jaxsim.units import MS_PER_S
from optim.documents import (
    Document,
    design_entry,
    document,
    estimate_entry,
    input_entries,
    profile_entry,
    workload_entry,
)
from optim.energy_entries import bill_entry, bill_of, energy_entry
from optim.inputs import Inputs
from optim.plan import PlanStatus
from optim.power_event import EventResult
from optim.power_flex import Flexibility, Level, SafeLevel
from optim.power_terms import Prices
from optim.power_tokens import CurvePoint, Ranked, Ranking


def _percent(share: float) -> float:
    return 100.0 * share


def flex_document(found: Flexibility, prices: Prices, inputs: Inputs, seed: int, warnings: Sequence[str]) -> Document:
    """Levels, what each is held to and costs, and the deepest safe ones."""
    doc = document("power-flex", "ok", model="step", seed=seed, inputs=input_entries(inputs))
    doc["lever"] = found.lever
    doc["design"] = design_entry(found.design)
    doc["now"] = {
        **energy_entry(found.now),
        "electricity": bill_entry(bill_of(found.now, prices)),
        "ttft_p99_ms": float(found.figures.ttft_p99_s) * MS_PER_S,
        "tpot_p99_ms": float(found.figures.tpot_p99_s) * MS_PER_S,
        "utilization": float(found.figures.utilization),
    }
    doc["most_percent"] = _percent(found.most)
    doc["event"] = {
        "lead_s": found.event.lead_s,
        "length_s": found.event.length_s,
        "startup_s": found.startup_s,
        "undisturbed": _event_entry(found.undisturbed, None),
    }
    base = None if found.undisturbed is None else found.undisturbed.watts
    doc["levels"] = [_level_entry(level, base) for level in found.levels]
    doc["sustained_safe"], doc["event_safe"] = _safe(found.sustained_safe), _safe(found.event_safe)
    doc["workload"] = workload_entry(found.workload, found.workload.share_above(float(found.design.upper_tokens[-1])))
    doc["profiles"] = [profile_entry(found.design.profile.at(p)) for p in range(found.design.num_pools)]
    doc["warnings"] = list(warnings)
    return doc


def _event_entry(found: EventResult | None, base_w: float | None) -> Document | None:
    if found is None:
        return None
    return {
        "ttft_p99_ms": estimate_entry(found.ttft_p99_s),
        "tpot_p99_ms": estimate_entry(found.tpot_p99_s),
        "watts": found.watts,
        "delivered_percent": None if base_w is None else _percent(1.0 - found.watts / base_w),
        "requests": found.requests,
        "replications": found.replications,
    }


def _level_entry(level: Level, base_w: float | None) -> Document:
    return {
        "asked_percent": _percent(level.share),
        "reachable": level.reachable,
        "caps_exact": None if level.real_caps is None else list(level.real_caps),
        "caps": None if level.setting.caps is None else list(level.setting.caps),
        "replicas": list(level.setting.replicas),
        "watts": level.watts,
        "delivered_percent": _percent(level.delivered),
        "utilization": level.utilization,
        "sustained": {"ttft_p99_ms": level.ttft_p99_s * MS_PER_S, "tpot_p99_ms": level.tpot_p99_s * MS_PER_S},
        "event_model": {"ttft_p99_ms": level.event_ttft_p99_s * MS_PER_S},
        "event": _event_entry(level.event, base_w),
    }


def _safe(level: SafeLevel | None) -> Document | None:
    if level is None:
        return None
    setting = level.setting
    return {
        "safe_percent": _percent(level.safe),
        "unsafe_percent": _percent(level.unsafe),
        "any": setting is not None,
        "caps": None if setting is None or setting.caps is None else list(setting.caps),
        "replicas": None if setting is None else list(setting.replicas),
    }


def flex_rows(found: Flexibility) -> list[Document]:
    """One row a level, for CSV."""
    base = None if found.undisturbed is None else found.undisturbed.watts

    def times(prefix: str, estimate: Estimate | None) -> Document:
        parts = {"": "value", "_low": "low", "_high": "high"}
        return {
            f"{prefix}{suffix}": None if estimate is None else getattr(estimate, part) * MS_PER_S
            for suffix, part in parts.items()
        }

    rows = []
    for level in found.levels:
        event = level.event
        row: dict[str, Any] = {
            "asked_percent": _percent(level.share),
            "reachable": level.reachable,
            "caps": "" if level.setting.caps is None else "+".join(f"{cap:g}" for cap in level.setting.caps),
            "replicas": "+".join(map(str, level.setting.replicas)),
            "watts": level.watts,
            "delivered_percent": _percent(level.delivered),
            "utilization": level.utilization,
            "sustained_ttft_p99_ms": level.ttft_p99_s * MS_PER_S,
            "sustained_tpot_p99_ms": level.tpot_p99_s * MS_PER_S,
            "event_model_ttft_p99_ms": level.event_ttft_p99_s * MS_PER_S,
        }
        row |= times("event_ttft_p99_ms", None if event is None else event.ttft_p99_s)
        row |= times("event_tpot_p99_ms", None if event is None else event.tpot_p99_s)
        simulated = None if event is None or base is None else _percent(1.0 - event.watts / base)
        rows.append(row | {"event_delivered_percent": simulated})
    return rows


def tokens_document(found: Ranking, inputs: Inputs, seed: int, warnings: Sequence[str]) -> Document:
    """Each GPU's fleet, energy and curve, best first."""
    status = "ok" if any(one.energy is not None for one in found.ranked) else "infeasible"
    doc = document("power-tokens", status, model="step", seed=seed, inputs=input_entries(inputs))
    doc["same_model"], doc["same_model_text"] = found.same_model, found.model_text
    doc["ranking"] = [_ranked_entry(one, found.problem.rate) for one in found.ranked]
    doc["workload"] = workload_entry(found.problem.workload, found.problem.rejected_share)
    doc["profiles"] = [profile_entry(profile) for profile in found.problem.profiles]
    doc["warnings"] = list(warnings)
    return doc


def _ranked_entry(one: Ranked, rate: float) -> Document:
    made, checked = one.plan, one.plan.verification
    entry: Document = {
        "profile": one.profile.name,
        "status": made.status,
        "message": made.status.value,
        "reasons": [reason.text for reason in made.reasons],
    }
    if one.energy is None or one.bill is None or made.design is None or made.analytic is None:
        return entry
    return {
        **entry,
        "verified": made.status is PlanStatus.VERIFIED,
        "design": design_entry(made.design),
        "rate_rps": rate,
        "cost_usd_per_hour": made.usd_per_hour,
        "cost_usd_per_million_output_tokens": float(made.analytic.usd_per_million_output_tokens),
        "utilization": float(made.analytic.utilization),
        "ttft_p99_ms": float(made.analytic.ttft_p99_s) * MS_PER_S,
        "tpot_p99_ms": float(made.analytic.tpot_p99_s) * MS_PER_S,
        "simulated_ttft_p99_ms": None if checked is None else estimate_entry(checked.ttft_p99_s),
        "simulated_tpot_p99_ms": None if checked is None else estimate_entry(checked.tpot_p99_s),
        "energy": energy_entry(one.energy),
        "electricity": bill_entry(one.bill),
        "curve": [_curve_entry(point) for point in one.curve],
    }


def _curve_entry(point: CurvePoint) -> Document:
    return {
        "utilization": point.utilization,
        "rate_rps": point.rate,
        "active_batch": point.active,
        "watts_per_gpu": point.watts_per_gpu,
        "output_tokens_per_joule": point.tokens_per_joule,
        "ttft_p99_ms": point.ttft_p99_s * MS_PER_S,
        "tpot_p99_ms": point.tpot_p99_s * MS_PER_S,
        "slo_met": point.slo_met,
    }


def tokens_rows(found: Ranking) -> list[Document]:
    """One row a profile and utilisation, for CSV."""
    return [{"profile": one.profile.name, **_curve_entry(point)} for one in found.ranked for point in one.curve]
