"""A validation as a JSON document and as rows of a CSV."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxsim.fit import COEFFICIENTS
from jaxsim.observed import Observed
from jaxsim.units import MS_PER_S
from optim.documents import Document, document, input_entries, profile_entry
from optim.inputs import Inputs
from optim.sensitivity_report import headroom_entry
from optim.validate import Objective, Validation
from optim.validate_compare import OTHER_REASON, STEP_REASON, Row
from optim.validate_predict import Predicted
from optim.validate_refit import Factor, Refit


def validation_document(found: Validation, inputs: Inputs) -> Document:
    """Everything that was found, with every input and where it came from."""
    load = found.load
    doc = document("validation", found.status, model=load.model, message=sentence(found), holds=found.holds)
    doc["inputs"] = input_entries(inputs)
    doc["pool"] = load.pool.label
    doc["measured"] = measured_entry(found.seen)
    doc["load"] = load_rows(found)
    doc["figures"] = [_figure_entry(row, planned(found, row)) for row in found.rows]
    doc["objectives"] = [_objective_entry(each) for each in found.objectives]
    doc["slo_met"] = slo_met(found)
    doc["headroom"] = None if found.due is None else _due_entry(found)
    doc["tolerances"] = {
        "step_time": {"value": found.tolerances.step, "reason": STEP_REASON},
        "ttft_and_percentiles": {"value": found.tolerances.other, "reason": OTHER_REASON},
    }
    doc["refit"] = None if found.refit is None else _refit_entry(found.refit)
    doc["no_refit"] = found.no_refit or None
    doc["profiles"] = [profile_entry(load.pool.profile)]
    doc["warnings"] = warnings(found)
    return doc


def sentence(found: Validation) -> str:
    """The answer."""
    return f"{found.status.value}: {found.reason}"


def slo_met(found: Validation) -> bool | None:
    """Whether every objective was measured and is met; None without any, or where one is open."""
    said = {each.verdict.name if each.verdict is not None else "NONE" for each in found.objectives}
    if "MISSED" in said:
        return False
    return True if said == {"MET"} else None


def warnings(found: Validation) -> list[str]:
    """What a reader must know."""
    notes = [*found.load.notes, *found.seen.notes]
    if found.seen.preemptions:
        notes.append(f"{found.seen.preemptions:,.0f} preemptions: the KV cache was full, which the plan does not allow")
    if found.simulated is not None and found.simulated.overloaded:
        notes.append("by simulation the plan's profile is overloaded at the measured load: its latencies have no end")
    return notes


def measured_entry(seen: Observed) -> Document:
    """The load and what was counted."""
    return {
        "source": seen.source,
        "read_as": seen.tool,
        "served_model": seen.model,
        "duration_s": seen.seconds,
        "rate_rps": seen.rate,
        "completed": seen.completed,
        "failed": seen.failed,
        "concurrency": seen.concurrency,
        "mean_input_tokens": seen.mean_input_tokens,
        "mean_output_tokens": seen.mean_output_tokens,
        "running": seen.running,
        "waiting": seen.waiting,
        "kv_usage": seen.kv_usage,
        "preemptions": seen.preemptions,
        "prefix_cache_share": seen.cached_share,
        "unsteady": seen.unsteady or None,
    }


def load_rows(found: Validation) -> list[Document]:
    """Rate, lengths and occupancy of a replica: planned, predicted at the measured load, and measured."""
    load, seen, pool = found.load, found.seen, found.load.pool
    said, simulated = _pool_of(found, "analytic"), _pool_of(found, "verification")
    e2e, lengths = seen.reading("e2e", "mean"), load.planned
    flying = None if e2e is None else seen.rate * e2e.value_s

    def row(name: str, unit: str, measured: float | None, plan: Any = None, plan_simulated: Any = None) -> Document:
        values = (plan, plan_simulated, _attribute(found.model, name), _attribute(found.simulated, name), measured)
        keys = ("planned", "planned_simulated", "model", "simulated", "measured")
        return {"name": name, "unit": unit, **dict(zip(keys, map(_known, values), strict=True))}

    def one(total: float | None) -> float | None:
        return None if total is None else total / load.covered

    each, running = "requests a replica", (said.get("active_batch"), simulated.get("active_batch"))
    rate = None if pool.rate is None else pool.rate / pool.replicas
    return [
        row("rate", "req/s a replica", one(seen.rate), rate),
        row("mean_input", "tokens", seen.mean_input_tokens, lengths.mean(np.asarray(lengths.input_tokens))),
        row("mean_output", "tokens", seen.mean_output_tokens, lengths.mean(np.asarray(lengths.output_tokens))),
        row("utilization", "of capacity", None, said.get("utilization")),
        row("running", each, one(seen.running), *running),
        row("waiting", each, one(seen.waiting)),
        row("in_flight", f"{each}; measured is the rate times the mean E2E (Little's law)", one(flying)),
        row("kv_share", "of the KV cache, filled so far", seen.kv_usage),
    ]


def _attribute(predicted: Predicted | None, name: str) -> float | None:
    """What a prediction says of a row; None where it says nothing."""
    return None if predicted is None or name not in _PREDICTED else float(getattr(predicted, name))


_PREDICTED = ("utilization", "running", "waiting", "in_flight", "kv_share")


def _known(value: Any) -> float | None:
    return None if value is None or math.isnan(float(value)) else float(value)


def _pool_of(found: Validation, part: str) -> Document:
    """The plan's own figures of the pool; {} where the document has none."""
    at = [pool.label for pool in found.fleet.pools].index(found.load.pool.label)
    pools = (found.fleet.document.get(part) or {}).get("pools")
    return {} if not pools else dict(pools[at])


def planned(found: Validation, row: Row) -> tuple[float | None, float | None]:
    """What the plan says of a latency at its own load, by the model and by simulation, milliseconds."""
    figure, statistic = row.key
    name = f"{figure}_{'mean' if statistic == 'mean' else statistic}_ms"
    said = _pool_of(found, "analytic").get(name)
    simulated = (_pool_of(found, "verification").get(name) or {}).get("value")
    return tuple(None if value is None else float(value) for value in (said, simulated))  # type: ignore[return-value]


def _figure_entry(row: Row, plan: tuple[float | None, float | None]) -> Document:
    def ms(seconds: float) -> float | None:
        return None if math.isnan(seconds) else seconds * MS_PER_S

    return {
        "figure": row.key[0],
        "statistic": row.key[1],
        "planned_ms": plan[0],
        "planned_simulated_ms": plan[1],
        "model_ms": ms(row.model_s),
        "simulated_ms": ms(row.simulated_s),
        "measured_ms": {
            "value": ms(row.reading.value_s),
            "low": ms(row.low_s),
            "high": ms(row.high_s),
            "bucket": row.reading.bucket,
        },
        "allowed_ms": None if row.part is None else {"low": ms(row.least_s), "high": ms(row.most_s)},
        "measured_over_predicted": None if math.isnan(row.ratio) else row.ratio,
        "tells_of": None if row.part is None else row.part.value,
        "agrees": row.agrees,
    }


def figure_rows(found: Validation) -> list[dict[str, Any]]:
    """The latencies as rows of a CSV."""
    rows = []
    for row in found.rows:
        entry = _figure_entry(row, planned(found, row))
        for key in ("measured_ms", "allowed_ms"):
            inside = entry.pop(key) or {"low": None, "high": None}
            entry |= {f"{key[:-3]}_{name}{'' if name == 'bucket' else '_ms'}": value for name, value in inside.items()}
        rows.append(entry)
    return rows


def _objective_entry(each: Objective) -> Document:
    open_ = each.verdict is None
    return {
        "figure": f"{each.figure}_p99_ms",
        "limit_ms": each.limit_s * MS_PER_S,
        "low_ms": None if open_ else each.low_s * MS_PER_S,
        "high_ms": None if open_ else each.high_s * MS_PER_S,
        "verdict": each.verdict,
    }


def _due_entry(found: Validation) -> Document:
    assert found.due is not None  # the caller's condition
    return {
        **(headroom_entry(found.due) or {}),
        "due_rate_rps_per_replica": found.due.fleet_due_rate / found.load.replicas,
        "replicas": found.load.replicas,
        "profile": "refitted" if found.refit is not None else "the plan's",
    }


def _refit_entry(made: Refit) -> Document:
    return {
        "text": made.text,
        "step_time_factor" if made.prompt is None else "decode_factor": _factor_entry(made.decode),
        **({} if made.prompt is None else {"prompt_factor": _factor_entry(made.prompt)}),
        "scaled": [name for name in (*COEFFICIENTS, "overhead_s") if float(getattr(made.profile, name)) > 0],
        "agrees": made.agrees,
        "figures": [_figure_entry(row, (None, None)) for row in made.rows],
        "profile": profile_entry(made.profile),
    }


def _factor_entry(factor: Factor) -> Document:
    known = not math.isnan(factor.low)
    return {"value": factor.value, "low": factor.low if known else None, "high": factor.high if known else None}
