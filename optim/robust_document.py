"""A robust plan for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxsim.units import MS_PER_S
from optim.assessment import CONFIDENCE, Assessment, PoolSpread, Spread
from optim.documents import (
    Document,
    analytic_entry,
    design_entry,
    document,
    input_entries,
    plan_warnings,
    profile_entry,
    verification_entry,
    workload_entry,
)
from optim.inputs import Inputs
from optim.robust import Check, Level, Robust
from optim.scenarios import Scenarios
from optim.uncertainty import LAW


def robust_document(found: Robust, notes: Sequence[str], inputs: Inputs, *, seed: int) -> Document:
    """The nominal plan's worth, a fleet for every probability, what each source costs, and the simulator's word."""
    doc = document("robust", found.status, model=found.problem.model, seed=seed, message=found.status.value)
    doc["inputs"] = input_entries(inputs)
    plan = found.plan
    doc["plan"] = {"status": plan.status, "reasons": [{"kind": r.kind, "text": r.text} for r in plan.reasons]}
    if plan.design is not None:
        doc["plan"] |= {"design": design_entry(plan.design), "cost_usd_per_hour": plan.usd_per_hour}
        doc["plan"]["assessment"] = None if found.nominal is None else assessment_entry(found.nominal)
    if found.levels:
        doc["probability"] = found.level.probability
        doc["design"] = None if found.design is None else design_entry(found.design)
        doc["cost_usd_per_hour"] = found.level.usd_per_hour
        doc["premium_usd_per_hour"] = found.level.premium_usd_per_hour
        doc["levels"] = [level_entry(level) for level in found.levels]
        doc["sources"] = [dict(vars(source)) for source in found.sources]
        doc["rounds"] = found.rounds
        doc["checks"] = [_check(found, check) for check in found.checks]
    if found.scenarios is not None:
        doc["scenarios"] = _scenarios(found.scenarios)
    doc["workload"] = workload_entry(found.problem.workload, found.problem.rejected_share)
    doc["profiles"] = [profile_entry(profile) for profile in found.problem.profiles]
    doc["warnings"] = robust_warnings(found, notes)
    return doc


def robust_warnings(found: Robust, notes: Sequence[str]) -> list[str]:
    """What a reader must know before using a robust plan."""
    said = [*notes, *plan_warnings(found.plan)]
    if found.scenarios is None:
        return said
    if found.uncertainty.unbounded:
        names = ", ".join(found.uncertainty.unbounded)
        said.append(
            f"{names}: without a highest value, so the worst case is the worst of what was drawn, and worse is possible"
        )
    if found.scenarios.clipped:
        said.append(
            f"{found.scenarios.clipped:,} coefficients were drawn below 1 % of their value and stayed there: the fit "
            "hardly knows them"
        )
    shares = [level.assessment.rejected_share for level in found.levels if level.assessment is not None]
    if shares and max(shares) > found.problem.rejected_share + 1e-9:
        said.append(
            f"up to {max(shares):.3%} of the requests are longer than {found.problem.context:,.0f} tokens in some "
            "scenario and rejected; raise max_context"
        )
    said.append(
        "hardware and thresholds are the nominal plan's; sizes and shares are by the model, as the simulator corrected "
        "it; sources are independent of each other"
    )
    return said


def level_entry(level: Level) -> Document:
    """The cheapest fleet for one probability."""
    return {
        "probability": level.probability,
        "worst_case": level.probability is None,
        "feasible": level.replicas is not None,
        "replicas": None if level.replicas is None else [int(n) for n in level.replicas],
        "gpus": None if level.replicas is None else int(level.gpus),
        "cost_usd_per_hour": None if level.replicas is None else level.usd_per_hour,
        "premium_usd_per_hour": None if level.replicas is None else level.premium_usd_per_hour,
        "assessment": None if level.assessment is None else assessment_entry(level.assessment),
    }


def assessment_entry(found: Assessment) -> Document:
    """A fleet in all scenarios."""
    return {
        "share_met": found.share_met,
        "share_met_low": found.low,
        "share_met_high": found.high,
        "confidence": CONFIDENCE,
        "met_everywhere": found.met_everywhere,
        "verdict": found.verdict,
        "rejected_share": found.rejected_share,
        "pools": [_pool(pool) for pool in found.pools],
    }


def _pool(pool: PoolSpread) -> Document:
    return {
        "ttft_p99_ms": _spread(pool.ttft_p99_s, MS_PER_S),
        "tpot_p99_ms": _spread(pool.tpot_p99_s, MS_PER_S),
        "utilization": _spread(pool.utilization, 1.0),
    }


def _spread(spread: Spread, unit: float) -> Document:
    return {key: value * unit for key, value in vars(spread).items()}


def _check(found: Robust, check: Check) -> Document:
    assert found.scenarios is not None  # there are no checks without
    return {
        "scenario": check.row,
        "scenario_text": found.scenarios.words(check.row),
        "pools": list(check.pools),
        "model": analytic_entry(check.model),
        "robust": verification_entry(check.robust),
        "nominal": verification_entry(check.nominal),
    }


def _scenarios(drawn: Scenarios) -> Document:
    return {
        "number": len(drawn),
        "draws": int(drawn.drawn.sum()),
        "corners": int((~drawn.drawn).sum()),
        "exact": drawn.exact,
    }


def scenario_rows(found: Robust) -> list[dict[str, Any]]:
    """Every scenario as a row of a CSV, with the replicas that it asks for."""
    if found.scenarios is None or found.required is None or found.plan.design is None:
        return []
    drawn, nominal = found.scenarios, np.asarray(found.plan.design.replicas)
    rows = []
    for k in range(len(drawn)):
        law = {
            f"{profile.name}_{name}_factor": float(drawn.law_factor[k, p, c])
            for p, profile in enumerate(found.problem.profiles)
            for c, name in enumerate(LAW)
        }
        need = found.required[k]
        rows.append(
            {
                "scenario": k,
                "demand": drawn.names[k],
                "corner": not drawn.drawn[k],
                "probability": float(drawn.probability[k]),
                "rate_rps": float(drawn.rate[k]),
                "input_tokens_factor": float(drawn.input_factor[k]),
                "output_tokens_factor": float(drawn.output_factor[k]),
                **law,
                **{f"pool{p}_replicas": int(n) if math.isfinite(n) else "" for p, n in enumerate(need)},
                "nominal_met": bool(np.all(need <= nominal)),
            }
        )
    return rows
