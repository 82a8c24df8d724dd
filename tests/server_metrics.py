"""What a fleet of servers would answer at /metrics, made of every request of a simulation."""

import json
import re

import numpy as np
from exported import inputs_of
from fleets import small_workload

import des
from jaxsim.fleet import FleetDesign
from optim import validate_predict
from optim.binding import Binding
from optim.build import PlanRequest
from optim.documents import plan_document, to_json
from optim.figures import figures
from optim.plan import Plan, PlanStatus
from optim.problem import SLO, PlanProblem

CONTEXT = 8000.0
OF_LENGTHS = ("inputs", "outputs", "prompt_total", "output_total")
"""Metrics that say how many tokens requests have."""
EDGES = {  # as vLLM has them
    "time_to_first_token_seconds": (
        0.001,
        0.005,
        0.01,
        0.02,
        0.04,
        0.06,
        0.08,
        0.1,
        0.25,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
        10.0,
    ),
    "inter_token_latency_seconds": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    "e2e_request_latency_seconds": (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0),
}
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
VLLM = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "inputs": "vllm:request_prompt_tokens",
    "outputs": "vllm:request_generation_tokens",
    "success": "vllm:request_success_total",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv": "vllm:kv_cache_usage_perc",
    "preempted": "vllm:num_preemptions_total",
    "prompt_total": "vllm:prompt_tokens_total",
    "output_total": "vllm:generation_tokens_total",
}


class Fleet:
    """Replicas that ran for a while, request by request."""

    def __init__(self, profile, *, replicas, rate, workload=None, number=12_000, model="step", seed=5, **changed):
        self.profile, self.replicas, self.rate, self.model = profile, replicas, rate, model
        design = FleetDesign.of([profile], [float(replicas)], [CONTEXT])
        result = des.simulate(
            design,
            small_workload() if workload is None else workload,
            rate=rate,
            num_requests=number,
            replications=1,
            warmup_fraction=0.0,
            keep="requests",
            convention=model,
            seed=seed,
            **changed,
        )
        table = result.requests_table()
        self.sent, self.admitted, self.first, self.end = (
            table[name] for name in ("sent_s", "admit_s", "first_s", "end_s")
        )
        self.inputs, self.outputs = table["input_tokens"], table["output_tokens"]
        self.replica = table["replica"]
        self.last_s = float(self.sent[-1])

    def at(self, share, *, replicas=None, names=VLLM, leave_out=(), label="engine", time_ms=None, start_s=None):
        """The answer after that share of the time; of some replicas, without some metrics."""
        now = share * self.last_s
        stamp = "" if time_ms is None else f" {time_ms + round(1000 * now)}"
        lines = (
            []
            if start_s is None
            else ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {start_s!r}"]
        )
        for replica in range(self.replicas) if replicas is None else replicas:
            lines += _answer(self, now, replica, {k: v for k, v in names.items() if k not in leave_out}, label, stamp)
        return "\n".join(lines) + "\n"

    def write(self, folder, shares=(0.2, 1.0), names=("before.prom", "after.prom"), **how):
        """Both scrapes as files, and the seconds between them."""
        paths = [folder / name for name in names]
        for path, share in zip(paths, shares, strict=True):
            path.write_text(self.at(share, **how), encoding="utf-8")
        return tuple(str(path) for path in paths), (shares[1] - shares[0]) * self.last_s


def _answer(fleet, now, replica, names, label, stamp):
    mine = fleet.replica == replica
    labels = f'{label}="{replica}",model_name="org/model"'
    lines = []

    def sample(name, value, more=""):
        lines.append(f"{name}{{{more}{labels}}} {float(value)!r}{stamp}")

    def histogram(key, values, weights=None):
        if key not in names:
            return
        name = names[key]
        kind = re.sub("^(vllm:|sglang:|trtllm_)", "", name)
        edges = next((e for n, e in EDGES.items() if kind == n), TOKENS if key in ("inputs", "outputs") else None)
        edges = EDGES["inter_token_latency_seconds"] if edges is None else edges
        weights = np.ones(len(values)) if weights is None else weights
        for edge in (*edges, np.inf):
            text = "+Inf" if np.isinf(edge) else repr(float(edge))
            sample(f"{name}_bucket", weights[values <= edge].sum(), f'le="{text}",')
        sample(f"{name}_sum", (values * weights).sum())
        sample(f"{name}_count", weights.sum())

    begun, done = mine & (fleet.first <= now), mine & (fleet.end <= now)
    later = done & (fleet.outputs > 1)
    tpot = (fleet.end - fleet.first)[later] / (fleet.outputs[later] - 1)
    histogram("ttft", (fleet.first - fleet.sent)[begun])
    histogram("itl", tpot, fleet.outputs[later] - 1.0)  # the gaps of a request at their mean
    histogram("tpot", tpot)
    histogram("e2e", (fleet.end - fleet.sent)[done])
    histogram("inputs", fleet.inputs[done].astype(float))
    histogram("outputs", fleet.outputs[done].astype(float))
    here = mine & (fleet.sent <= now)
    gauges = {
        "success": done.sum(),
        "running": (here & (fleet.admitted <= now) & (fleet.end > now)).sum(),
        "waiting": (here & (fleet.admitted > now)).sum(),
        "preempted": 0.0,
        "prompt_total": fleet.inputs[begun].sum(),
        "output_total": fleet.outputs[done].sum(),
    }
    for key, value in gauges.items():
        if key in names:
            sample(names[key], value, 'finished_reason="stop",' if key == "success" else "")
    if "kv" in names:
        held = here & (fleet.admitted <= now) & (fleet.end > now)
        share = np.clip((now - fleet.first) / np.maximum(fleet.end - fleet.first, 1e-9), 0.0, 1.0)
        tokens = (fleet.inputs + share * fleet.outputs)[held].sum()
        sample(names["kv"], tokens / float(fleet.profile.kv_tokens))
    return lines


def write_plan(path, profile, *, replicas, rate, model="step", slo=SLO(0.8, 0.06), upper=None, workload=None):
    """The plan of a fleet that nobody searched for and nobody simulated, one pool for each number of replicas."""
    lengths = small_workload() if workload is None else workload
    problem = PlanProblem(workload=lengths, rate=rate, profiles=(profile,), slo=slo, max_context=CONTEXT, model=model)
    counts = [float(n) for n in (replicas if isinstance(replicas, tuple) else (replicas,))]
    design = FleetDesign.of([profile] * len(counts), counts, [CONTEXT] if upper is None else list(upper))
    plan = Plan(
        PlanStatus.UNVERIFIED,
        problem,
        0,
        design=design,
        analytic=figures(design, problem.limited, rate, model=model),
        usd_per_hour=float(design.usd_per_hour),
        binding=(Binding.TTFT_P99,) * len(counts),
    )
    inputs = inputs_of(problem)
    text = to_json(plan_document(plan, PlanRequest(problem, inputs), inputs))
    assert json.loads(text)["status"] == "unverified"
    path.write_text(text, encoding="utf-8")
    return path


def write_trace(path, workload=None):
    """The lengths of a workload as a request trace, one request a row."""
    lengths = small_workload() if workload is None else workload
    rows = zip(np.asarray(lengths.input_tokens), np.asarray(lengths.output_tokens), strict=True)
    times = np.round(np.asarray(lengths.weight) * len(lengths.weight)).astype(int)
    lines = [f"{int(i)},{int(o)}" for (i, o), n in zip(rows, times, strict=True) for _ in range(n)]
    path.write_text("input_tokens,output_tokens\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def shorten(monkeypatch):
    """A quarter of the usual simulations: their scatter is told, so nothing that is tested hangs on it."""
    monkeypatch.setattr(validate_predict, "MOST_REQUESTS", 1_500)
    monkeypatch.setattr(validate_predict, "LEAST_REQUESTS", 1_500)
