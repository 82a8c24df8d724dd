"""Prices, knobs and headroom of a fleet, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from jaxsim.units import MS_PER_S
from optim.binding import Binding
from optim.documents import (
    Document,
    design_entry,
    document,
    input_entries,
    plan_warnings,
    profile_entry,
    profile_warnings,
    workload_entry,
)
from optim.headroom import Headroom
from optim.inputs import Inputs
from optim.knobs import Knob
from optim.plan import Plan
from optim.report import bullets, inputs_table, sources, table, verdict
from optim.sensitivity import PoolSize, Slope, Study
from optim.words import fleet, given, ms, number, percent, usd

MOST_KNOBS = 12
_SHOWN_MS = 5e-4


def sensitivity_document(
    found: Study | None, planned: Plan | None, notes: Sequence[str], inputs: Inputs, *, by: str
) -> Document:
    """Every derivative, price and knob; of a plan that could not be, its reasons."""
    if found is None:
        assert planned is not None  # a fleet that is spelled out always has a study
        doc = document("sensitivity", planned.status, message=planned.status.value)
        doc["inputs"] = input_entries(inputs)
        doc["reasons"] = [{"kind": reason.kind, "text": reason.text} for reason in planned.reasons]
        doc["warnings"] = [*notes, *plan_warnings(planned)]
        return doc
    status = planned.status if planned is not None else "ok" if found.feasible else "infeasible"
    doc = document("sensitivity", status, model=found.problem.model, inputs=input_entries(inputs))
    doc["design"] = design_entry(found.design)
    doc["cost_usd_per_hour"] = found.usd_per_hour
    doc["relaxed_cost_usd_per_hour"] = found.relaxed_usd_per_hour
    doc["pools"] = [
        {
            "pool": p,
            "replicas": int(pool.replicas),
            "required_replicas": pool.required,
            "relaxed_replicas": pool.relaxed,
            "feasible": pool.feasible,
            "binding_constraint": pool.binding,
            "binding_text": pool.binding.value,
            "ttft_p99_ms": pool.ttft_p99_s * MS_PER_S,
            "tpot_p99_ms": pool.tpot_p99_s * MS_PER_S,
            "target_ttft_p99_ms": float(found.targets.ttft_s[p]) * MS_PER_S,
            "target_tpot_p99_ms": float(found.targets.tpot_s[p]) * MS_PER_S,
        }
        for p, pool in enumerate(found.pools)
    ]
    doc["constraint_prices"] = constraint_prices(found)
    doc["sensitivities"] = [_slope_entry(slope) for slope in found.slopes]
    doc["headroom"] = headroom_entry(found.headroom)
    doc["knobs_ranked_by"] = f"{by}_p99_ms_per_usd"
    doc["knobs"] = [knob_entry(knob, place) for place, knob in enumerate(found.knobs, start=1)]
    doc["workload"] = workload_entry(found.problem.workload, found.problem.rejected_share)
    doc["profiles"] = [profile_entry(profile) for profile in found.problem.profiles]
    doc["warnings"] = _notes(found, planned, notes)
    return doc


def _slope_entry(slope: Slope) -> Document:
    return {
        "input": slope.name,
        "of": slope.of,
        "value": slope.value,
        "cost_usd_per_hour_per_unit": slope.usd_per_hour,
        "cost_elasticity": slope.elasticity,
        "reoptimized_cost_usd_per_hour_per_unit": slope.reoptimized_usd_per_hour,
        "pools": [
            {
                "ttft_p99_ms_per_unit": ttft,
                "ttft_p99_elasticity": ttft_share,
                "tpot_p99_ms_per_unit": tpot,
                "tpot_p99_elasticity": tpot_share,
            }
            for ttft, ttft_share, tpot, tpot_share in zip(
                slope.ttft_p99_ms,
                slope.ttft_p99_elasticity,
                slope.tpot_p99_ms,
                slope.tpot_p99_elasticity,
                strict=True,
            )
        ],
    }


def headroom_entry(room: Headroom | None) -> Document | None:
    """When the next replica is due."""
    if room is None:
        return None
    return {
        "rate_rps": room.rate,
        "due_rate_rps": room.fleet_due_rate,
        "due_pool": room.pool,
        "spare": room.spare,
        "pools": [
            {"due_rate_rps": due, "required_replicas": required, "replica_usd_per_hour": price}
            for due, required, price in zip(room.due_rate, room.required, room.usd_per_hour, strict=True)
        ],
    }


def knob_entry(knob: Knob, place: int) -> Document:
    """One turn and what it does."""
    return {
        "rank": place,
        "kind": knob.kind,
        "pool": knob.pool,
        "turn": knob.words,
        "for_sale": knob.for_sale,
        "cost_usd_per_hour": knob.usd_per_hour,
        "ttft_p99_ms": knob.ttft_p99_ms,
        "tpot_p99_ms": knob.tpot_p99_ms,
        "ttft_p99_ms_per_usd": knob.ttft_p99_ms_per_usd,
        "tpot_p99_ms_per_usd": knob.tpot_p99_ms_per_usd,
        "slo_met": knob.slo_met,
        "overloaded": knob.overloaded,
        "pool_ttft_p99_ms": list(knob.pool_ttft_p99_ms),
        "pool_tpot_p99_ms": list(knob.pool_tpot_p99_ms),
    }


def slope_rows(found: Study) -> list[dict[str, Any]]:
    """The derivatives as rows of a CSV."""
    rows = []
    for slope in found.slopes:
        entry = _slope_entry(slope)
        pools = entry.pop("pools")
        for p, pool in enumerate(pools):
            entry |= {f"pool{p}_{key}": value for key, value in pool.items()}
        rows.append(entry)
    return rows


def knob_rows(found: Study) -> list[dict[str, Any]]:
    """The knobs as rows of a CSV."""
    rows = []
    for place, knob in enumerate(found.knobs, start=1):
        entry = knob_entry(knob, place)
        entry["kind"] = knob.kind.name.lower()
        for figure in ("ttft", "tpot"):
            for p, value in enumerate(entry.pop(f"pool_{figure}_p99_ms")):
                entry[f"pool{p}_{figure}_p99_ms"] = value
        rows.append(entry)
    return rows


def constraint_prices(found: Study) -> list[str]:
    """The multiplier of each constraint, in words."""
    said = []
    for slope in found.slopes:
        if slope.name not in ("ttft_p99_ms", "tpot_p99_ms"):
            continue
        if slope.of == "fleet" and len(found.pools) > 1:
            where = "in every pool"
        else:
            where = f"in {slope.of}" if slope.of != "fleet" else ""
        figure = f"P99 {slope.name[:4].upper()}{f' {where}' if where else ''}"
        if slope.usd_per_hour < 0:
            said.append(f"1 ms of {figure} costs {usd(-slope.usd_per_hour)} per hour")
        else:
            said.append(f"{figure} does not bind: relaxing it saves nothing")
    return said


def sensitivity_report(
    found: Study | None, planned: Plan | None, notes: Sequence[str], inputs: Inputs, *, by: str
) -> Group:
    """Prices, knobs and headroom as a page."""
    if found is None:
        assert planned is not None  # a fleet that is spelled out always has a study
        return Group(verdict(planned), "", inputs_table(inputs), "", *bullets("Notes", list(notes)))
    parts: list[RenderableType] = []
    if planned is not None:
        parts.append(verdict(planned))
    else:
        parts.append(Text(f"{fleet(found.design)}: {usd(found.usd_per_hour)}/h, as given.", style="bold"))
    if not found.feasible:
        short = ", ".join(f"pool {p}" for p, pool in enumerate(found.pools) if not pool.feasible)
        parts.append(
            Text(
                f"INFEASIBLE: no number of replicas meets the objectives in {short}; prices mean nothing there.", "red"
            )
        )
    parts += [_room(found), ""]
    parts += [*_held(found), *bullets("Prices of the constraints (relaxed cost)", constraint_prices(found)), ""]
    parts += [_cost_slopes(found), _p99_slopes(found), _knobs(found, by), *_information(found, by), ""]
    parts += [inputs_table(inputs), "", *sources(found.problem.profiles)]
    parts += bullets("Notes", _notes(found, planned, notes))
    return Group(*parts)


def headroom_words(room: Headroom | None, replicas: Sequence[float]) -> str:
    """When the next replica is due, in a sentence; `replicas` are those there are."""
    if room is None:
        return "Headroom: none to speak of, some pool is infeasible."
    what = f"pool {room.pool} ({usd(room.usd_per_hour[room.pool])}/h more)"
    if room.spare < 0:
        needs = ", ".join(
            f"pool {p} needs {required} replicas and has {there:.0f}"
            for p, (required, there) in enumerate(zip(room.required, replicas, strict=True))
            if required > there
        )
        return (
            f"Headroom: short. At {given(room.rate)} req/s, by the model, {needs}; the fleet does up to "
            f"{number(room.fleet_due_rate, 4)} req/s."
        )
    if math.isinf(room.spare):
        return "Headroom: no further replica comes due at any rate looked at."
    each = ""
    if len(room.due_rate) > 1:
        each = "; " + ", ".join(f"pool {p} at {number(due, 4)}" for p, due in enumerate(room.due_rate))
    return (
        f"Headroom: the next replica is due at {number(room.fleet_due_rate, 4)} req/s (+{percent(room.spare)}), in "
        f"{what}{each}."
    )


def _room(found: Study) -> Text:
    room = found.headroom
    short = room is not None and room.spare < 0
    return Text(headroom_words(room, [pool.replicas for pool in found.pools]), style="bold yellow" if short else "")


def _held(found: Study) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for p, pool in enumerate(found.pools):
        where = f" in pool {p}" if len(found.pools) > 1 else ""
        why = (
            pool.binding.value
            if pool.binding is Binding.ONE_REPLICA
            else f"below {number(pool.relaxed, 4)} replicas {pool.binding.value}"
        )
        lines.append(
            Text(f"Binding{where}: {why} ({pool.binding.name.lower()}); {pool.replicas:.0f} there, {_figures(pool)}.")
        )
    return lines


def _figures(pool: PoolSize) -> str:
    if _overloaded(pool):
        return "overloaded"
    return f"P99 TTFT {ms(pool.ttft_p99_s)} ms, P99 TPOT {ms(pool.tpot_p99_s)} ms by the model"


def _overloaded(pool: PoolSize) -> bool:
    return math.isinf(pool.ttft_p99_s)


def _cost_slopes(found: Study) -> RenderableType:
    title = "What the relaxed cost owes to each input (thresholds stay)"
    made = table("input", "of", "value", "$/h for 1 more", "% for 1 %", title=title, left=("input", "of"))
    for slope in found.slopes:
        if slope.usd_per_hour:
            relative = f"{slope.elasticity:+.3f}" if slope.elasticity else "0"
            made.add_row(slope.name, slope.of, _plain(slope.value), _plain(slope.usd_per_hour), relative)
    return made


def _p99_slopes(found: Study) -> RenderableType:
    many = len(found.pools) > 1
    names = [f"{figure} {p}" if many else figure for figure in ("TTFT", "TPOT") for p in range(len(found.pools))]
    title = f"What 1 % more of each input does to P99s, %{', by pool' if many else ''} (replicas stay)"
    made = table("input", "of", *names, title=title, left=("input", "of"))
    for slope in found.slopes:
        shares = (*slope.ttft_p99_elasticity, *slope.tpot_p99_elasticity)
        if any(shares):
            shown = zip(shares, (*found.pools, *found.pools), strict=True)
            made.add_row(
                slope.name,
                slope.of,
                *("-" if _overloaded(pool) else f"{share:+.3f}" if share else "0" for share, pool in shown),
            )
    return made


def _plain(value: float) -> str:
    return f"{value:.4g}" if 0 < abs(value) < 1e-3 or abs(value) >= 1e6 else number(value, 4)


def _knobs(found: Study, by: str) -> RenderableType:
    made = table(
        "",
        "knob",
        "pool",
        "$/h",
        "TTFT, ms",
        "TPOT, ms",
        f"ms of {by.upper()} for $1/h",
        "SLO",
        title=f"Knobs, by P99 {by.upper()} of the fleet bought for a dollar (model; each by itself)",
        left=("knob", "SLO"),
    )
    sold = [knob for knob in found.knobs if knob.for_sale]
    for place, knob in enumerate(sold[:MOST_KNOBS], start=1):
        worth = knob.ttft_p99_ms_per_usd if by == "ttft" else knob.tpot_p99_ms_per_usd
        made.add_row(
            str(place),
            knob.words,
            str(knob.pool),
            usd(knob.usd_per_hour) if knob.usd_per_hour else "free",
            change_words(knob.ttft_p99_ms),
            change_words(knob.tpot_p99_ms),
            worth_words(worth),
            "overload" if knob.overloaded else "met" if knob.slo_met else "missed",
        )
    return made


def change_words(change: float) -> str:
    """Change of a P99, milliseconds."""
    if abs(change) < _SHOWN_MS:
        return "0"
    return f"{'+' if change > 0 else ''}{number(change)}"


def worth_words(worth: float) -> str:
    """Milliseconds for a dollar per hour."""
    if worth == math.inf:
        return "free"
    return "worse" if worth < 0 else number(worth)


def _information(found: Study, by: str) -> list[RenderableType]:
    """The coefficient that would help most in each pool."""
    lines = []
    for p in range(len(found.pools)):
        of_pool = [knob for knob in found.knobs if not knob.for_sale and knob.pool == p]
        if not of_pool:
            continue
        best = of_pool[0]
        lines.append(
            f"pool {p}: {best.words} would change P99 TTFT by {change_words(best.ttft_p99_ms)} ms and P99 TPOT by "
            f"{change_words(best.tpot_p99_ms)} ms"
        )
    return bullets(f"Faster engines, for information (the coefficient that helps P99 {by.upper()} most)", lines)


def _notes(found: Study, planned: Plan | None, notes: Sequence[str]) -> list[str]:
    said = [*notes]
    said += plan_warnings(planned) if planned is not None else profile_warnings(found.problem.profiles)
    if crowded := [f"pool {p}" for p, pool in enumerate(found.pools) if _overloaded(pool)]:
        said.append(
            f"{', '.join(crowded)}: overloaded, so its P99s and the fleet's are infinite: they have no derivatives and "
            "no knob is ranked above another unless it ends that"
        )
    sold = sum(knob.for_sale for knob in found.knobs)
    if sold > MOST_KNOBS:
        said.append(f"{sold - MOST_KNOBS} knobs that do less are not shown; --json and --out have all")
    said.append(
        "sizes follow each input as real numbers and thresholds stay; derivatives in the thresholds average the length "
        f"law over 5 % of length. Thresholds free, {_again(found)}"
    )
    if planned is not None and planned.verification is not None:
        said.append("objectives stand corrected by what the simulator said of the plan; P99s and knobs are the model's")
    return said


def _again(found: Study) -> str:
    words = {"rate_rps": "req/s", "ttft_p99_ms": "ms of P99 TTFT", "tpot_p99_ms": "ms of P99 TPOT"}
    moves = [
        f"{usd(slope.reoptimized_usd_per_hour)}/h for 1 {words[slope.name]}"
        for slope in found.slopes
        if slope.reoptimized_usd_per_hour is not None
    ]
    if not moves:
        return "the relaxation's optimum is on a kink (one replica, or two constraints at once): it has no one slope"
    return f"the relaxation's optimum moves by {', '.join(moves)}"
