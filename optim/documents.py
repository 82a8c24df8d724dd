"""Results as JSON documents: units in the keys, every input with its source, strict JSON whatever the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib.metadata import version
from typing import Any

import numpy as np

from des import Estimate, PoolResult, Sample
from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.trace_stats import TraceStatistics
from jaxsim.units import HOURS_PER_YEAR, MS_PER_S
from jaxsim.workload import Workload
from optim.build import PlanRequest
from optim.energy_entries import certificate_entry, plan_power_entry
from optim.inputs import Inputs
from optim.pareto import ParetoFront, ParetoPoint
from optim.plan import Plan, Round
from optim.profile_file import NUMBERS
from optim.sweep import Sweep
from optim.validity_document import validity_entry, validity_notes
from optim.verify import PoolVerdict, Verification
from optim.whatif import WhatIf

SCHEMA_VERSION = 1

Document = dict[str, Any]


def to_json(document: Any) -> str:
    """Strict JSON: non-finite numbers are the strings "inf", "-inf" and "nan"."""
    return json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Python numbers, strings, lists and dictionaries only."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Sequence):
        return [plain(inner) for inner in value]
    return plain(np.asarray(value).tolist())


def document(kind: str, status: Any, **parts: Any) -> Document:
    """A document of one kind of result: what every one of them begins with, and its parts."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "status": status,
        "version": version("fleetgrad"),
        **parts,
    }


def plan_document(plan: Plan, request: PlanRequest, inputs: Inputs) -> Document:
    """A plan, or why there is none."""
    problem = plan.problem
    doc = document("plan", plan.status, model=problem.model, seed=plan.seed, message=plan.status.value)
    doc["inputs"] = input_entries(inputs)
    if plan.design is not None and plan.analytic is not None and plan.usd_per_hour is not None:
        doc["design"] = design_entry(plan.design)
        for pool, bound in zip(doc["design"]["pools"], plan.binding, strict=True):
            pool["binding_constraint"], pool["binding_text"] = bound, bound.value
        doc["cost_usd_per_hour"] = plan.usd_per_hour
        doc["cost_usd_per_year"] = plan.usd_per_hour * HOURS_PER_YEAR
        doc["cost_usd_per_million_output_tokens"] = float(plan.analytic.usd_per_million_output_tokens)
        doc["analytic"] = analytic_entry(plan.analytic)
        doc["validity"] = validity_entry(plan.analytic) if problem.model == "step" else None
    doc["verification"] = None if plan.verification is None else verification_entry(plan.verification)
    if (proof := plan.certificate) is not None:
        doc["certificate"] = certificate_entry(proof)
    if plan.power is not None:
        doc["power"] = plan_power_entry(plan.power)
    doc["binding_constraint"] = binding_constraint(plan)
    doc["reasons"] = [{"kind": reason.kind, "text": reason.text} for reason in plan.reasons]
    if (slopes := plan.sensitivities) is not None:
        doc["sensitivities"] = dict(vars(slopes))
    doc["rounds"] = [_round(each) for each in plan.rounds]
    doc["workload"] = workload_entry(problem.workload, problem.rejected_share)
    doc["profiles"] = [profile_entry(profile) for profile in problem.profiles]
    doc["warnings"] = [*request.notes, *plan_warnings(plan)]
    return doc


def plan_warnings(plan: Plan) -> list[str]:
    """What a reader must know before using the plan."""
    problem = plan.problem
    notes = [*(profile_warnings(problem.profiles) if problem.model == "step" else [])]
    if problem.rejected_share > 0:
        notes.append(
            f"{problem.rejected_share:.3%} of the requests are longer than {problem.context:,.0f} tokens and rejected"
        )
    if problem.model == "step" and plan.analytic is not None:
        notes += validity_notes(plan.analytic)
    return notes + ([] if plan.verification is None else list(plan.verification.result.warnings))


def profile_warnings(profiles: Sequence[Profile]) -> list[str]:
    """One sentence about profiles whose numbers nobody measured or whose prefill costs nothing."""
    free = [str(p.name) for p in profiles if float(p.prefill_per_token_s) == 0.0]
    if not free:
        return []
    return [
        f"{', '.join(free)}: prefill work per token is 0, so a prompt costs only its steps: "
        "TTFT is optimistic, most of all for long prompts"
    ]


def binding_constraint(plan: Plan) -> Any:
    """The reason's kind of an infeasible plan; else what binds the pool that costs most."""
    if plan.reasons:
        return plan.reasons[0].kind
    if plan.analytic is None or not plan.binding:
        return None
    return plan.binding[int(np.argmax(np.asarray(plan.analytic.pools.usd_per_hour)))]


def input_entries(inputs: Inputs) -> Document:
    """Each input with its source."""
    return {key: {"value": entry.value, "source": entry.source} for key, entry in inputs.items()}


def design_entry(design: FleetDesign) -> Document:
    """The pools, shortest requests first."""
    columns = zip(design.profile.name, design.replicas, design.max_context, design.upper_tokens, strict=True)
    gpus = np.asarray(design.replicas * design.profile.gpus_per_replica)
    pools = [
        {
            "profile": name,
            "replicas": int(replicas),
            "gpus": int(number),
            "max_context": float(context),
            "upper_tokens": float(upper),
        }
        for (name, replicas, context, upper), number in zip(columns, gpus, strict=True)
    ]
    return {"pools": pools, "gpus": int(gpus.sum())}


_RENAMED = {"rate": "rate_rps", "usd_per_million_output_tokens": "cost_usd_per_million_output_tokens"}


def _figures(values: Mapping[str, Any]) -> Document:
    """Fields with seconds as milliseconds, under names that say so."""
    entry = {}
    for name, value in values.items():
        number = np.asarray(value).item()
        milliseconds = name.endswith("_s")
        key = f"{name[:-1]}ms" if milliseconds else _RENAMED.get(name, name)
        entry[key] = number * MS_PER_S if milliseconds else number
    return entry


def analytic_entry(metrics: Metrics) -> Document:
    """The model's figures of the fleet and of each pool."""
    fleet = {name: value for name, value in vars(metrics).items() if name != "pools"}
    pools = vars(metrics.pools)
    count = len(np.asarray(metrics.pools.share))
    return {
        **_figures(fleet),
        "pools": [_figures({name: np.asarray(value)[p] for name, value in pools.items()}) for p in range(count)],
    }


def estimate_entry(estimate: Estimate | None) -> Document | None:
    """A time in milliseconds with its interval and sample size."""
    if estimate is None:
        return None
    return {
        "value": estimate.value * MS_PER_S,
        "low": estimate.low * MS_PER_S,
        "high": estimate.high * MS_PER_S,
        "n": estimate.n,
        "confidence": estimate.confidence,
    }


def quantile_entry(sample: Sample, q: float = 0.99) -> Document | None:
    """A quantile in milliseconds; None of nothing."""
    return estimate_entry(sample.quantile(q)) if sample.n else None


def verification_entry(found: Verification) -> Document:
    """What the simulator found of a plan."""
    return {
        "ttft_p99_ms": estimate_entry(found.ttft_p99_s),
        "tpot_p99_ms": estimate_entry(found.tpot_p99_s),
        "slo_met": found.slo_met,
        "verdict": found.verdict,
        "requests": found.requests,
        "rejected": found.rejected,
        "overloaded": found.overloaded,
        "attainment": found.attainment,
        "undefined_tpot": found.result.undefined_tpot,
        "simulated_requests": found.result.num_requests,
        "warmup_fraction": found.result.warmup_fraction,
        "warnings": list(found.result.warnings),
        "pools": [
            {**_verdict(verdict), **pool_entry(pool)}
            for verdict, pool in zip(found.pools, found.result.pools, strict=True)
        ],
    }


def _verdict(verdict: PoolVerdict) -> Document:
    return {"ttft_p99_ms": estimate_entry(verdict.ttft_p99_s), "tpot_p99_ms": estimate_entry(verdict.tpot_p99_s)}


def pool_entry(pool: PoolResult) -> Document:
    """What the simulator counted in a pool."""
    return {
        "replicas": pool.replicas,
        "requests": pool.requests,
        "rejected": pool.rejected,
        "utilization": pool.utilization,
        "sequence_utilization": pool.sequence_utilization,
        "kv_utilization": pool.kv_utilization,
        "load": pool.load,
        "active_batch": pool.mean_active / pool.replicas if pool.replicas else 0.0,
        "mean_queued": pool.mean_queued,
        "preempted_requests": pool.preempted,
        "preemptions": pool.preemptions,
        "replica_hours": pool.replica_hours,
        "step_time_ms": pool.step_time_s * MS_PER_S,
        "queue_growth_rps": pool.queue_growth_per_s,
        "overloaded": pool.overloaded,
    }


def _round(each: Round) -> Document:
    found = each.verification
    return {
        "design": design_entry(each.proposal.design),
        "cost_usd_per_hour": each.proposal.usd_per_hour,
        "kilowatts": each.proposal.kilowatts,
        "simulated_kilowatts": each.kilowatts,
        "correction": {"ttft": each.correction.ttft, "tpot": each.correction.tpot, "power": each.correction.power},
        "verification": None
        if found is None
        else {
            "ttft_p99_ms": estimate_entry(found.ttft_p99_s),
            "tpot_p99_ms": estimate_entry(found.tpot_p99_s),
            "slo_met": found.slo_met,
            "verdict": found.verdict,
            "overloaded": found.overloaded,
        },
    }


def workload_entry(workload: Workload, rejected_share: float) -> Document:
    """Where the requests come from."""
    return {
        "name": workload.name,
        "source": workload.source,
        "notes": list(workload.notes),
        "rejected_share": rejected_share,
    }


def profile_entry(profile: Profile) -> Document:
    """Every constant of a profile and its source."""
    numbers = {name: np.asarray(getattr(profile, name)).item() for name in NUMBERS}
    return {"name": profile.name, "gpu": profile.gpu, "source": profile.source, **numbers}


def profiles_document(profiles: Sequence[Profile], workloads: Sequence[Document]) -> Document:
    """The presets, and the workloads that come with the package."""
    return document("profiles", "ok", profiles=[profile_entry(p) for p in profiles], workloads=list(workloads))


def pareto_document(front: ParetoFront, request: PlanRequest, inputs: Inputs) -> Document:
    """Every design of the sweep; `recommended` is the best non-dominated one within the SLO and the budget on power."""
    status = "infeasible" if front.recommended is None else "ok"
    doc = document("pareto", status, model=request.problem.model, inputs=input_entries(inputs), **front_entry(front))
    doc["workload"] = workload_entry(request.problem.workload, request.problem.rejected_share)
    doc["profiles"] = [profile_entry(profile) for profile in request.problem.profiles]
    doc["warnings"] = list(request.notes)
    return doc


def front_entry(front: ParetoFront) -> Document:
    """The designs of a sweep, and which of them to take."""
    points, at = [point_entry(point) for point in front.points], front.recommended
    chosen = None if at is None else points[at]
    return {"points": points, "axes": list(front.axes), "recommended": chosen, "recommended_index": at}


def point_entry(point: ParetoPoint) -> Document:
    """One design of a sweep."""
    power = {
        "kilowatts": point.kilowatts,
        "kwh_per_million_tokens": point.kwh_per_million_tokens,
        "within_budget": point.within_budget,
    }
    return {
        "design": design_entry(point.design),
        "cost_usd_per_hour": point.usd_per_hour,
        "ttft_p99_ms": float(point.analytic.ttft_p99_s) * MS_PER_S,
        "tpot_p99_ms": float(point.analytic.tpot_p99_s) * MS_PER_S,
        "utilization": float(point.analytic.utilization),
        **({} if point.kilowatts is None else power),
        "threshold_tokens": point.threshold,
        "slo_met": point.slo_met,
        "dominated": point.dominated,
    }


def whatif_document(grid: WhatIf, request: PlanRequest, inputs: Inputs) -> Document:
    """Every point of the grid, in the grid's order."""
    points = [whatif_entry(grid, at) for at in np.ndindex(np.asarray(grid.rate).shape)]
    feasible = any(point["feasible"] for point in points)
    return _whatifs(request, inputs, feasible=feasible, points=points)


def sweep_document(found: Sweep, request: PlanRequest, inputs: Inputs) -> Document:
    """A grid too large to list: what its parts have in all."""
    least, greatest = found.usd_per_hour if found.feasible else (None, None)
    parts = {
        "what_ifs": len(found.grid),
        "feasible": found.feasible,
        "least_cost_usd_per_hour": least,
        "greatest_cost_usd_per_hour": greatest,
        "files": len(found.names),
    }
    return _whatifs(request, inputs, feasible=found.feasible > 0, parts=parts)


def _whatifs(request: PlanRequest, inputs: Inputs, *, feasible: bool, **content: Any) -> Document:
    status, problem = "ok" if feasible else "infeasible", request.problem
    doc = document("whatif", status, model=problem.model, inputs=input_entries(inputs), **content)
    doc["workload"] = workload_entry(problem.workload, problem.rejected_share)
    doc["profiles"] = [profile_entry(profile) for profile in problem.profiles]
    doc["warnings"] = list(request.notes)
    return doc


def whatif_entry(grid: WhatIf, at: tuple[int, ...]) -> Document:
    """One point of a grid; pools without replicas are left out."""
    feasible = bool(grid.feasible[at])
    pools = [
        {"profile": str(name), "replicas": int(count), "upper_tokens": float(upper)}
        for name, count, upper in zip(grid.profile[at], grid.replicas[at], grid.upper_tokens[at], strict=True)
        if count > 0
    ]
    tpot = float(grid.tpot_p99_s[at])
    return {
        "rate_rps": float(grid.rate[at]),
        "slo_ttft_p99_ms": float(grid.ttft_p99_s[at]) * MS_PER_S,
        "slo_tpot_p99_ms": tpot * MS_PER_S if math.isfinite(tpot) else None,
        "feasible": feasible,
        "cost_usd_per_hour": float(grid.usd_per_hour[at]) if feasible else None,
        "relaxed_cost_usd_per_hour": float(grid.relaxed_usd_per_hour[at]) if feasible else None,
        "pools": pools if feasible else [],
    }


def trace_document(name: str, statistics: TraceStatistics, notes: Sequence[str], prefix: float | None) -> Document:
    """A trace in numbers and what its reader decided."""
    figures = vars(statistics)
    lengths = {key: dict(vars(figures[key])) for key in ("input_tokens", "output_tokens", "total_tokens")}
    return document(
        "trace",
        "ok",
        trace=name,
        num_requests=statistics.num_requests,
        duration_s=statistics.duration_s,
        mean_rate_rps=statistics.mean_rate,
        interarrival_cv2=statistics.interarrival_cv2,
        zero_gap_share=statistics.zero_gap_share,
        dispersion_by_window_s=statistics.dispersion,
        **lengths,
        correlation=statistics.correlation,
        input_share=statistics.input_share,
        share_above_tokens=statistics.share_above,
        prefix_hit_share=prefix,
        notes=list(notes),
    )
