"""A day's schedule as a JSON document and as rows of a CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxsim.units import SECONDS_PER_HOUR
from optim.documents import (
    Document,
    design_entry,
    document,
    estimate_entry,
    input_entries,
    plan_warnings,
    profile_entry,
    profile_warnings,
    workload_entry,
)
from optim.inputs import Inputs
from optim.plan import Plan
from optim.schedule import DaySchedule, Shift
from optim.schedule_cost import DayCost, FleetHours, usd_by_interval
from optim.schedule_day import Outcome
from optim.schedule_play import IntervalFigures, Played, PoolFigures, Verdict
from optim.schedule_power import DayEnergy
from optim.words import given

ASSUMED = (
    "rates are constant within an interval; arrivals are Poisson",
    "a replica is paid for from its order to its release, cold start included, and not while it finishes what it has",
    "every interval's replicas are there when it begins; they are ordered a cold start before",
)
"""What the figures take for granted, in sentences."""


def assumed(found: DaySchedule) -> list[str]:
    """What the figures of this day take for granted."""
    said = [*ASSUMED]
    if found.outcome is not None and found.outcome.scheduled_energy is not None:
        said.append("a replica that is starting draws idle power, one that is released none; power is by the model")
    if found.outcome is not None and found.outcome.cost.reserved is not None:
        said.append("a reservation is paid for all day; a reserved replica runs when the schedule says so")
    if found.shift is not None and found.shift.taken:
        said.append("what waits is released evenly over the interval that serves it; its TTFT counts from there")
    return said


def schedule_document(
    found: DaySchedule | None, planned: Plan | None, notes: Sequence[str], inputs: Inputs
) -> Document:
    """A day, or why there is none; `found` is None where the plan at the highest rate came to nothing."""
    if found is None:
        assert planned is not None  # a fleet that is spelled out always has a day
        doc = document("schedule", planned.status, message=planned.status.value, inputs=input_entries(inputs))
        doc["reasons"] = [{"kind": reason.kind, "text": reason.text} for reason in planned.reasons]
        doc["warnings"] = [*notes, *plan_warnings(planned)]
        return doc
    problem = found.problem
    doc = document("schedule", found.status, model=problem.model, seed=found.seed, message=found.status.value)
    doc["inputs"] = input_entries(inputs)
    doc["reasons"] = list(found.reasons)
    doc["day_hours"] = found.demand.end_s / SECONDS_PER_HOUR
    doc["repeats"] = found.demand.repeat
    if found.outcome is not None:
        doc["static_design"] = design_entry(found.design)
        doc["cost"] = _cost_entry(found.outcome.cost)
        doc["electricity"] = _energies(found.outcome)
    doc["deferred"] = None if found.shift is None else _shift_entry(found.shift)
    doc["intervals"] = interval_rows(found)
    doc["verification"] = _verification(found)
    doc["assumed"] = assumed(found)
    doc["workload"] = workload_entry(problem.workload, problem.rejected_share)
    doc["profiles"] = [profile_entry(profile) for profile in problem.profiles]
    doc["warnings"] = warnings_of(found, planned, notes)
    return doc


def warnings_of(found: DaySchedule, planned: Plan | None, notes: Sequence[str]) -> list[str]:
    """What a reader must know before using the schedule."""
    said = [*notes]
    said += plan_warnings(planned) if planned is not None else profile_warnings(found.problem.profiles)
    if planned is not None and planned.verification is not None:
        said.append("sizes stand corrected by what the simulator said of the plan at the highest rate")
    if found.window is not None and not found.window.whole_day(found.asked):
        said.append(f"only part of the day was played, {stretch_words(found)}; the other intervals rest on the model")
    return said


def stretch_words(found: DaySchedule) -> str:
    """What was played, in words."""
    window, demand = found.window, found.demand
    assert window is not None  # checked by the caller
    hours = (window.last_s - window.first_s) / SECONDS_PER_HOUR
    if window.whole_day(demand):
        return f"the whole day, {given(round(hours, 6))} h"
    return f"{given(round(hours, 3))} h from {demand.clock(window.intervals[0])} on, around the peak"


def _hours_entry(hours: FleetHours) -> Document:
    return {
        "gpu_hours": sum(hours.gpu_hours),
        "starting_gpu_hours": sum(hours.starting_gpu_hours),
        "cold_starts": sum(hours.starts),
        "on_demand_usd": hours.usd,
        "pools": [
            {"gpu_hours": each, "starting_gpu_hours": starting, "cold_starts": starts}
            for each, starting, starts in zip(hours.gpu_hours, hours.starting_gpu_hours, hours.starts, strict=True)
        ],
    }


def _cost_entry(cost: DayCost) -> Document:
    name, usd = cost.cheapest
    entry: Document = {
        "static": _hours_entry(cost.static),
        "schedule": _hours_entry(cost.scheduled),
        "saved_usd": cost.saved_usd,
        "saved_share": cost.saved_usd / cost.static.usd,
        "static_reserved_usd": cost.static_reserved_usd,
        "schedule_with_reservations_usd": cost.split_usd,
        "cheapest": name,
        "cheapest_usd": usd,
        "pools": None,
    }
    if cost.reserved is not None and cost.breakeven is not None:
        entry["pools"] = [
            {"reserved_replicas": one.replicas, "usd_by_reserved_replicas": one.usd.tolist(), "breakeven_share": share}
            for one, share in zip(cost.reserved, cost.breakeven, strict=True)
        ]
    return entry


def _energy_entry(used: DayEnergy | None) -> Document | None:
    if used is None:
        return None
    return {"kwh": used.total_kwh, "usd": used.total_usd, "kg_co2": used.total_kg_co2}


def _energies(found: Outcome) -> Document | None:
    if found.static_energy is None:
        return None
    return {"static": _energy_entry(found.static_energy), "schedule": _energy_entry(found.scheduled_energy)}


def _shift_entry(shift: Shift) -> Document:
    def exact(found: Outcome) -> Document:
        return {"cost": _cost_entry(found.cost), "electricity": _energies(found)}

    return {
        "minimize": shift.deferrable.minimize,
        "taken": shift.taken,
        "objective_before": shift.objective[0],
        "objective_after": shift.objective[1],
        "unit": "usd" if shift.deferrable.minimize == "usd" else "kg_co2",
        "moved_share": shift.moved.moved_share,
        "mean_wait_hours": shift.moved.mean_wait_s / SECONDS_PER_HOUR,
        "before": exact(shift.before),
        "after": exact(shift.after),
    }


def _verification(found: DaySchedule) -> Document | None:
    played, window = found.played, found.window
    if played is None or window is None or found.static is None:
        return None
    return {
        "whole_day": window.whole_day(found.demand),
        "first_hour": window.first_s / SECONDS_PER_HOUR,
        "hours": (window.last_s - window.first_s) / SECONDS_PER_HOUR,
        "lead_s": window.lead_s,
        "intervals": len(window.intervals),
        "rounds": [
            {"added_replicas": int(each.added.sum()), "missed": list(each.played.of(Verdict.MISSED))}
            for each in found.rounds
        ],
        "schedule": _played_entry(played),
        "static": _played_entry(found.static),
    }


def _played_entry(played: Played) -> Document:
    return {
        "replications": played.replications,
        "requests": played.requests,
        "rejected_share": played.rejected_share,
        **{verdict.name.lower(): list(played.of(verdict)) for verdict in Verdict},
    }


def interval_rows(found: DaySchedule) -> list[Document]:
    """One row an interval: what it needs, costs and draws, and what the simulator says of it."""
    demand, outcome = found.demand, found.outcome
    played = {} if found.played is None else {one.interval: one for one in found.played.intervals}
    fixed = {} if found.static is None else {one.interval: one for one in found.static.intervals}
    gpus, prices = np.asarray(found.design.profile.gpus_per_replica).tolist(), found.prices.on_demand
    usd = (
        []
        if outcome is None
        else [usd_by_interval(one, demand.edges_s, gpus, prices) for one in (outcome.scheduled, outcome.static)]
    )
    rows = []
    for k in range(demand.num_intervals):
        row: Document = {
            "interval": k,
            "from": demand.clock(k),
            "hours": float(demand.lengths_s[k]) / SECONDS_PER_HOUR,
            "rate_rps": demand.rate[k],
            "asked_rate_rps": found.asked.rate[k],
            "modelled_replicas": [int(n) for n in found.modelled.replicas[k]],
            "feasible": bool(found.modelled.feasible[k].all()),
        }
        if outcome is not None:
            row["replicas"] = outcome.needed[k].tolist()
            row["schedule_on_demand_usd"], row["static_on_demand_usd"] = float(usd[0][k]), float(usd[1][k])
            for name, used in (("schedule", outcome.scheduled_energy), ("static", outcome.static_energy)):
                row |= _energy_row(name, used, k)
            row["schedule"], row["static"] = _interval_entry(played.get(k)), _interval_entry(fixed.get(k))
        rows.append(row)
    return rows


def _energy_row(name: str, used: DayEnergy | None, k: int) -> Document:
    if used is None:
        return {}
    values = {"kwh": used.kwh, "electricity_usd": used.usd, "kg_co2": used.kg_co2}
    return {f"{name}_{key}": None if value is None else float(value[k]) for key, value in values.items()}


def _interval_entry(figures: IntervalFigures | None) -> Document | None:
    if figures is None:
        return None
    return {
        "verdict": figures.verdict,
        "requests": figures.requests,
        **_p99s(figures.fleet),
        "pools": [_p99s(pool) for pool in figures.pools],
    }


def _p99s(figures: PoolFigures) -> Document:
    return {"ttft_p99_ms": estimate_entry(figures.ttft_p99_s), "tpot_p99_ms": estimate_entry(figures.tpot_p99_s)}


def flat_rows(found: DaySchedule) -> list[dict[str, Any]]:
    """The same rows for CSV, without anything inside anything."""
    made = []
    for row in interval_rows(found):
        flat = {key: value for key, value in row.items() if not isinstance(value, list | dict)}
        flat |= {key: "+".join(map(str, row[key])) for key in ("modelled_replicas", "replicas") if key in row}
        for name in ("schedule", "static"):
            entry = row.get(name)
            flat.pop(name, None)
            flat[f"{name}_verdict"] = None if entry is None else entry["verdict"].name.lower()
            for figure in ("ttft_p99_ms", "tpot_p99_ms"):
                value = None if entry is None else entry[figure]
                for part in ("value", "low", "high"):
                    flat[f"{name}_{figure}_{part}"] = None if value is None else value[part]
        made.append(flat)
    return made
