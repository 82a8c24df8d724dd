"""Documents of plans to export, made by the product's own writers from fleets that nobody searched for."""

import functools
import json

import jax.numpy as jnp
from fleets import H100, small_workload

import jaxsim
from jaxsim.disagg import DisaggMetrics
from jaxsim.fleet import FleetDesign
from jaxsim.kv_transfer import KvTransfer
from optim.binding import Binding
from optim.build import PlanRequest
from optim.disagg import Advice, DisaggFleet, DisaggPlan, DisaggStatus
from optim.disagg_report import disagg_document
from optim.documents import plan_document, to_json
from optim.export_plan import fleet_of_document
from optim.figures import figures
from optim.inputs import Input
from optim.plan import Plan, PlanStatus
from optim.problem import SLO, PlanProblem

FP8 = jaxsim.profile("llama-3.1-70b@h100-sxm:tp4:fp8:vllm")
LINK = KvTransfer(kv_bytes_per_token=131_072, bytes_per_s=50e9, latency_s=5e-4)
CONTEXT = 8000.0


def inputs_of(problem, workload="small"):
    """As `optim.build.plan_request` writes them."""
    values = {
        "workload": workload,
        "rate_rps": problem.rate,
        "ttft_p99_ms": problem.slo.ttft_p99_s * 1e3,
        "tpot_p99_ms": problem.slo.tpot_p99_s * 1e3,
        "max_context_tokens": problem.context,
        "long_requests": problem.long_requests,
        "model": problem.model,
    }
    return {key: Input(value, "given in a test") for key, value in values.items()}


def problem_of(profiles, *, rate=40.0, model="step", slo=SLO(0.5, 0.05)):
    return PlanProblem(
        workload=small_workload(),
        rate=rate,
        profiles=tuple({str(p.name): p for p in profiles}.values()),
        slo=slo,
        max_context=CONTEXT,
        model=model,
    )


def document_of(profiles, replicas, upper, **given):
    """A plan that was not simulated, as JSON would bring it back."""
    return json.loads(to_json(unwritten(profiles, replicas, upper, **given)))


def unwritten(profiles, replicas, upper, **given):
    """The same as the product has it before it is written."""
    problem = problem_of(profiles, **given)
    design = FleetDesign.of(list(profiles), replicas, upper)
    plan = Plan(
        PlanStatus.UNVERIFIED,
        problem,
        0,
        design=design,
        analytic=figures(design, problem.limited, problem.rate, model=problem.model),
        usd_per_hour=float(design.usd_per_hour),
        binding=(Binding.TTFT_P99,) * len(replicas),
    )
    inputs = inputs_of(problem)
    return plan_document(plan, PlanRequest(problem, inputs), inputs)


@functools.cache
def one_pool_text():
    return json.dumps(document_of([FP8], [3.0], [CONTEXT], rate=2.0, model="kimura"))


@functools.cache
def two_pools_text():
    return json.dumps(document_of([H100, H100], [3.0, 2.0], [2000.0, CONTEXT], model="kimura"))


@functools.cache
def disaggregated_text():
    problem = problem_of([FP8], rate=2.0)
    said = DisaggMetrics(
        *(jnp.asarray(value) for value in (0.2, 0.02, 0.3, 0.4, 0.1, 0.01, 20.0)), overloaded=jnp.asarray(False)
    )
    fleet = DisaggFleet(FP8, FP8, 2, 5, said)
    plan = DisaggPlan(
        status=DisaggStatus.UNVERIFIED,
        problem=problem,
        link=LINK,
        aggregated=Plan(PlanStatus.INFEASIBLE, problem, 0),
        advice=Advice.ONLY_DISAGGREGATED,
        rule_of_thumb="none",
        reference=(),
        fleet=fleet,
    )
    return to_json(disagg_document(plan, (), inputs_of(problem), 0))


TEXTS = {"one pool": one_pool_text, "two pools": two_pools_text, "disaggregated": disaggregated_text}


def document(kind):
    """A fresh copy."""
    return json.loads(TEXTS[kind]())


def fleet(kind):
    return fleet_of_document(document(kind), file="plan.json")


def deployed(kind):
    """Label to replicas, GPUs of a replica and max_context, read from the document without the product's reader."""
    doc = document(kind)
    gpus = {entry["name"]: int(entry["gpus_per_replica"]) for entry in doc["profiles"]}
    if kind == "disaggregated":
        rows = {role: doc["disaggregated"][role] for role in ("prefill", "decode")}
        return {role: (row["replicas"], gpus[row["profile"]], int(CONTEXT)) for role, row in rows.items()}
    return {
        f"pool-{p}": (row["replicas"], gpus[row["profile"]], int(row["max_context"]))
        for p, row in enumerate(doc["design"]["pools"])
    }
