"""A simulated fleet as a JSON document: every latency, count and rule, and how occupancy went over time."""

from __future__ import annotations

import numpy as np

from des import PiecewiseRate, SimulationResult
from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.units import HOURS_PER_YEAR, SECONDS_PER_HOUR
from optim.build import FleetRequest
from optim.documents import (
    Document,
    analytic_entry,
    design_entry,
    document,
    estimate_entry,
    input_entries,
    pool_entry,
    profile_entry,
    profile_warnings,
    quantile_entry,
    workload_entry,
)
from optim.inputs import Inputs
from optim.rules import Rules, beyond_model
from optim.verdict import Verdict

ROLES = ("prefill", "decode")
PHASES = {"prefill_wait": "prefill_wait_s", "transfer": "transfer_s"}
"""Further waits of a disaggregated fleet; the wait for admission is then that for the decode pool."""
PARTING = 0.98
"""Share of what its clients would send above which a closed loop keeps up."""
FEW_FAILURES = 30.0
"""Expected failures in all runs below which a P99 hardly shows them."""


def simulation_document(
    request: FleetRequest, result: SimulationResult, inputs: Inputs, analytic: Metrics | None, verdict: Verdict | None
) -> Document:
    """A simulated fleet, beside the model's figures of it where the model has any."""
    slo, design, rules = request.slo, request.design, request.rules
    doc = document("simulation", "overloaded" if result.overloaded else "ok", model=request.model, seed=result.seed)
    doc["inputs"] = input_entries(inputs)
    doc["design"] = design_entry(design)
    if rules.transfer is not None:
        for pool, role in zip(doc["design"]["pools"], ROLES, strict=True):
            pool["role"] = role
    doc["serving"], doc["router"], doc["arrivals"] = result.serving, result.router, rules.arrivals_text
    doc["cost_usd_per_hour"] = float(design.usd_per_hour)
    doc["cost_usd_per_year"] = doc["cost_usd_per_hour"] * HOURS_PER_YEAR
    if analytic is not None:
        doc["cost_usd_per_million_output_tokens"] = float(analytic.usd_per_million_output_tokens)
    doc["analytic"] = None if analytic is None else analytic_entry(analytic)
    limits = {"ttft_s": None if slo is None else slo.ttft_p99_s, "tpot_s": None if slo is None else slo.tpot_p99_s}
    doc["verification"] = {
        **latency_entries(result, rules),
        "slo_met": None if verdict is None else verdict is Verdict.MET,
        "verdict": verdict,
        "overloaded": result.overloaded,
        "attainment": None if slo is None else result.attainment(**limits),
        "goodput_rps": None if slo is None else result.goodput(**limits),
        **count_entries(result),
        "undefined_tpot": result.undefined_tpot,
        "simulated_requests": result.num_requests,
        "warmup_fraction": result.warmup_fraction,
        "arrivals": result.arrivals,
        "offered_rate_rps": result.rate,
        "pools": [
            {"ttft_p99_ms": quantile_entry(p.ttft), "tpot_p99_ms": quantile_entry(p.tpot), **pool_entry(p)}
            for p in result.pools
        ],
    }
    if rules.transfer is not None:  # requests end in the decode pool, and all pass through the other
        doc["verification"]["pools"][0]["requests"] = result.requests
    doc["time_series"] = series_entry(result)
    doc["workload"] = workload_entry(request.workload, result.rejected / result.requests if result.requests else 0.0)
    doc["profiles"] = [profile_entry(p) for p in distinct_profiles(design)]
    doc["warnings"] = simulation_notes(request, result, modelled=analytic is not None)
    return doc


def latency_entries(result: SimulationResult, rules: Rules) -> Document:
    """P50, P95 and P99 of every latency, with intervals; None of what no request had."""
    samples = {"ttft": result.ttft, "tpot": result.tpot, "wait": result.wait, "e2e": result.e2e}
    if rules.transfer is not None:
        samples |= {name: result.phase(metric) for name, metric in PHASES.items()} | {"decode_wait": result.wait}
    if rules.concurrency is not None:
        samples["client_wait"] = result.phase("client_wait_s")
    if result.replications[0].gaps is not None:
        samples["itl"] = result.itl
    entries = {
        f"{name}_p{q}_ms": quantile_entry(sample, q / 100) for name, sample in samples.items() for q in (50, 95, 99)
    }
    return entries | {"tpot_mean_ms": estimate_entry(result.tpot.mean()) if result.tpot.n else None}


def count_entries(result: SimulationResult) -> Document:
    """Requests and what became of them."""
    short, long = result.misrouted
    return {
        "requests": result.requests,
        "rejected": result.rejected,
        "rejected_by_reason": result.rejected_by_reason,
        "preempted_requests": result.preempted,
        "preemptions": result.preemptions,
        "misrouted": {"to_too_short_pools": short, "to_too_long_pools": long},
        "compressed": result.compressed,
    }


def series_entry(result: SimulationResult) -> Document:
    """Occupancy and queues of the first replication over its measured time."""
    series = result.time_series(0)
    columns = zip(series.active, series.queued, series.blocks, series.steps_per_s, strict=True)
    return {
        "replication": 0,
        "start_s": series.start_s,
        "width_s": series.width_s,
        "pools": [
            {"mean_active": active, "mean_queued": queued, "mean_kv_blocks": blocks, "steps_per_s": steps}
            for active, queued, blocks, steps in columns
        ],
    }


def distinct_profiles(design: FleetDesign) -> list[Profile]:
    """The profiles of the pools, each once."""
    found = {design.profile.name[p]: design.profile.at(p) for p in range(design.num_pools)}
    return list(found.values())


def simulation_notes(request: FleetRequest, result: SimulationResult, *, modelled: bool) -> list[str]:
    """What a reader must know before using the figures."""
    notes = list(request.notes)
    if request.model == "step":
        notes += profile_warnings(distinct_profiles(request.design))
    unknown = beyond_model(request.rules, request.design.num_pools, model=request.model)
    if not modelled:
        notes.append("the model has no figures of a fleet under these rules; simulated only")
    elif unknown:
        notes.append(
            f"the model's figures do not know {_listed(unknown)}: they are for Poisson arrivals at the mean rate, "
            "routing by true total length, the model's own admission, and every replica up"
        )
    return [*notes, *_time_notes(request, result), *result.warnings]


def _listed(phrases: list[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def _time_notes(request: FleetRequest, result: SimulationResult) -> list[str]:
    """Whether the runs were long enough to show what the rules say happens."""
    rules, notes = request.rules, []
    ends = [run.start_s + run.window_s for run in result.replications]
    if rules.schedule is not None:
        late = [time for time in rules.schedule.time_s if time > min(ends)]
        if late:
            notes.append(
                f"{len(late)} of {len(rules.schedule.time_s)} rows of the schedule come after the last arrival of a "
                f"run ({min(ends):,.0f} s): they did nothing; simulate more requests"
            )
    if rules.failures is not None:
        expected = float(np.sum(request.design.replicas)) * sum(ends) / rules.failures.mean_up_s
        if expected < FEW_FAILURES:
            notes.append(
                f"about {expected:.2g} failures are expected in the {sum(ends) / SECONDS_PER_HOUR:.3g} hours "
                "simulated: too few for a P99; simulate more requests"
            )
    ending = rules.arrivals.name == "trace" or (isinstance(rules.arrivals, PiecewiseRate) and not rules.arrivals.repeat)
    if ending and result.warmup_fraction > 0:
        left_out = result.warmup_fraction * min(ends) / SECONDS_PER_HOUR
        notes.append(
            f"the arrivals end, and their first {result.warmup_fraction:.0%} ({left_out:.3g} h) are taken as warm-up: "
            "not measured; --warmup 0 measures all"
        )
    if rules.concurrency is not None and request.rate is not None:
        sent = result.requests / sum(run.window_s for run in result.replications)
        if sent < PARTING * request.rate:
            notes.append(
                f"the clients could send only {sent:.3g} of {request.rate:.3g} req/s with {rules.concurrency:,} "
                "requests outstanding: their waits grow with the length of the run"
            )
    return notes
