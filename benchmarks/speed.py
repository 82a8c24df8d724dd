"""Speed of the models and of the simulator, beside the nearest published tool on the same machine in the same run.

Run ``python benchmarks/speed.py`` (two to three minutes; ``--json`` for one object a line, ``--quick`` for seconds).
The peer, vllm-sr-sim, is installed into an environment of its own and timed there. Where it cannot be had, its
recorded figures stand in, and the first row says so.

Rates are work over the least wall time of several repetitions, on all cores that the library itself uses.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Row, at_least, fastest_s, print_json, print_table, progress

import des
import jaxsim
import optim
from jaxsim.evaluate import metrics, pool_laws
from jaxsim.latency import log_tail
from jaxsim.queueing import erlang_c
from optim.cases import Case, cases

REPOSITORY = Path(__file__).parent.parent
PEER_ENVIRONMENT = REPOSITORY / ".venv-peer"
PEER_PACKAGE = "vllm-sr-sim==0.1.0.dev20260713123629"
PEER_TIME_LIMIT_S = 90.0

RECORDED = {
    "designs_per_s": {"20": 53.0, "200": 38.0, "2000": 11.0},
    "erlang_c_per_s": {"100": 16_700.0, "1000": 1_590.0, "10000": 154.0, "100000": 10.6},
    "requests_per_s": {"10": 10_900.0, "100": 1_800.0, "1000": 190.0},
}
"""The peer on two shared cores, recorded when this benchmark was written."""

TARGETS = {
    ("evaluated", "kimura", True): 50_000.0,
    ("constrained", "kimura", False): 1_000_000.0,
    ("constrained", "kimura", True): 400_000.0,
    ("constrained", "step", False): 100_000.0,
    ("constrained", "step", True): 25_000.0,
}
"""Designs a second, by job, model and whether with gradients."""

OBJECTIVE_S = 0.5
ONE_REPLICA_TARGET = 3_000_000.0
FLEET_TARGET = 1_000_000.0
PREEMPTION_TARGET = 500_000.0
MEMORY_TARGET_MIB = 1024.0
FEW_BLOCKS = 6_000.0
"""KV blocks of a replica that preempts at `UTILIZATION`; the preset has 65,536."""

CONTEXT = 8192.0
RATES = (20.0, 200.0, 2000.0)
UTILIZATION = 0.75


class Effort(NamedTuple):
    """How much of everything to do."""

    models: tuple[str, ...]
    jobs: tuple[str, ...]
    gradients: tuple[bool, ...]
    rates: tuple[float, ...]
    batch: dict[str, int]
    servers: tuple[int, ...]
    erlang_batch: int
    requests: dict[int, int]
    many_requests: int
    repeats_s: float


FULL = Effort(
    models=("kimura", "step"),
    jobs=("evaluated", "sized", "constrained"),
    gradients=(False, True),
    rates=RATES,
    batch={"kimura": 2048, "step": 256},
    servers=(100, 1_000, 10_000, 100_000),
    erlang_batch=65_536,
    requests={1: 1_000_000, 10: 1_000_000, 100: 2_000_000, 1000: 2_000_000},
    many_requests=100_000_000,
    repeats_s=1.0,
)
QUICK = Effort(
    models=("kimura",),
    jobs=("evaluated",),
    gradients=(True,),
    rates=(200.0,),
    batch={"kimura": 256},
    servers=(100,),
    erlang_batch=256,
    requests={1: 20_000, 10: 20_000},
    many_requests=100_000,
    repeats_s=0.0,
)


def evaluated(point: jax.Array, case: Case, model: str) -> tuple[jax.Array, jax.Array]:
    """P99 TTFT, P99 TPOT and cost of a two-pool design; a point is (threshold, replicas, replicas)."""
    upper = jnp.stack([point[0], case.longest])
    m = metrics(pool_laws(case.design(point[1:], upper), case.tables, case.rate, model=model, relaxed=True))
    figures = jnp.stack([m.ttft_p99_s, m.tpot_p99_s, m.usd_per_hour])
    return jnp.log(figures).sum(), figures


def sized(point: jax.Array, case: Case, model: str) -> tuple[jax.Array, jax.Array]:
    """Replicas that the SLO needs at a threshold, and their cost: what the peer's figure includes."""
    size = case.sizes(jnp.stack([point[0], case.longest]), model=model, relaxed=True)
    return jnp.log(case.relaxed_usd_per_hour(size)), size.replicas


def constrained(point: jax.Array, case: Case, model: str) -> tuple[jax.Array, jax.Array]:
    """ln P(TTFT > `OBJECTIVE_S`) of each pool of a design, and its cost: what an optimizer asks of it."""
    upper = jnp.stack([point[0], case.longest])
    laws = pool_laws(case.design(point[1:], upper), case.tables, case.rate, model=model, relaxed=True)
    tails = log_tail(laws.ttft_tail(jnp.asarray(OBJECTIVE_S)))
    return tails.sum(), jnp.concatenate([tails, laws.usd_per_hour])


JOBS = {"evaluated": evaluated, "sized": sized, "constrained": constrained}


def batched(job: Any, *, gradient: bool) -> Any:
    """The job over many points in one compiled call, with or without its gradient in every point."""
    one = jax.value_and_grad(job, has_aux=True) if gradient else job
    return eqx.filter_jit(lambda points, case, model: jax.vmap(lambda p: one(p, case, model))(points))


def points(case: Case, model: str, number: int) -> jax.Array:
    """Thresholds over the range of lengths, with replicas that are 50 to 80 % used."""
    random = np.random.default_rng(0)
    cuts = jnp.asarray(random.uniform(256.0, 7168.0, number))

    def load(cut: jax.Array) -> jax.Array:
        one_each = case.design(jnp.ones(2), jnp.stack([cut, case.longest]))
        return pool_laws(one_each, case.tables, case.rate, model=model, relaxed=True).utilization

    loads = eqx.filter_jit(lambda cuts: jax.vmap(load)(cuts))(cuts)
    replicas = loads / jnp.asarray(random.uniform(0.5, 0.8, (number, 2)))
    return jnp.concatenate([cuts[:, None], replicas], axis=1)


def timed(job: Any, *, budget_s: float) -> float:
    """Seconds of one call of a compiled job."""
    result = jax.block_until_ready(job())
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(result)):
        raise RuntimeError("a timed job gave a figure or gradient that is not finite")
    return fastest_s(lambda: jax.block_until_ready(job()), budget_s=budget_s)


def designs(effort: Effort, peer: dict[str, Any]) -> Iterator[Row]:
    """Two-pool designs per second on the azure lengths and the peer's hardware."""
    workload, hardware = jaxsim.workload("azure"), jaxsim.profile("a100-80gb")
    for model in effort.models:
        problem = optim.PlanProblem(
            workload=workload,
            rate=RATES[0],
            profiles=(hardware,),
            slo=optim.SLO(ttft_p99_s=OBJECTIVE_S),
            max_context=CONTEXT,
            model=model,
        )
        ((_, case),) = cases(problem, num_pools=2)
        number = effort.batch[model]
        for name, gradient in itertools.product(effort.jobs, effort.gradients):
            progress(f"designs: {model}, {name}{' with gradients' if gradient else ''}")
            compiled = batched(JOBS[name], gradient=gradient)
            for rate in effort.rates:
                at_rate = eqx.tree_at(lambda c: c.rate, case, jnp.asarray(rate))
                batch = points(at_rate, model, number)
                seconds = timed(partial(compiled, batch, at_rate, model), budget_s=effort.repeats_s)
                figure = f"designs.{model}.{name}{'.with_gradient' if gradient else ''}.rate_{rate:g}"
                target = TARGETS.get((name, model, gradient))
                yield at_least(figure, number / seconds, "designs/s", target)
                yield Row(f"{figure}.over_peer", number / seconds / peer["designs_per_s"][f"{rate:g}"], "ratio")


def python_recursion(servers: int, load: float) -> float:
    """Erlang C by the textbook recursion, the plain way to compute it."""
    b = 1.0
    for k in range(1, servers + 1):
        b = load * b / (k + load * b)
    return b / (1.0 - load / servers * (1.0 - b))


def erlang(effort: Effort, peer: dict[str, Any]) -> Iterator[Row]:
    """Erlang C values per second, each with its gradient in servers and load."""
    job = jax.jit(jax.vmap(jax.value_and_grad(erlang_c, argnums=(0, 1))))
    random = np.random.default_rng(0)
    for servers in effort.servers:
        progress(f"Erlang C: {servers:,} servers")
        c = jnp.asarray(servers * random.uniform(0.9, 1.1, effort.erlang_batch))
        load = c * jnp.asarray(random.uniform(0.7, 0.99, effort.erlang_batch))
        speed = effort.erlang_batch / timed(partial(job, c, load), budget_s=effort.repeats_s)
        plain = 1.0 / fastest_s(partial(python_recursion, servers, 0.9 * servers), budget_s=0.1)
        name = f"erlang_c.with_gradient.servers_{servers}"
        yield Row(name, speed, "values/s")
        yield Row(f"{name}.over_python_recursion", speed / plain, "ratio")
        yield Row(f"{name}.over_peer", speed / peer["erlang_c_per_s"][str(servers)], "ratio")


def requests(effort: Effort, peer: dict[str, Any]) -> Iterator[Row]:
    """Requests per second of the simulator, arrivals drawn and every step of every engine included."""
    workload, hardware = jaxsim.workload("azure-conversation"), jaxsim.profile("h100-80gb")
    longest = float(np.max(workload.total_tokens))
    per_rate = float(jaxsim.evaluate(_fleet(hardware, 1, longest), workload, 1.0).utilization)
    des.simulate(_fleet(hardware, 2, longest), workload, rate=1.0, num_requests=1000)  # compiles
    for replicas, number in effort.requests.items():
        progress(f"simulator: {replicas:,} replicas")
        fleet, rate = _fleet(hardware, replicas, longest), UTILIZATION * replicas / per_rate
        run = partial(des.simulate, fleet, workload, rate=rate, num_requests=number, replications=os.cpu_count())
        speed = number / fastest_s(run, budget_s=4.0 * effort.repeats_s, runs=3)
        name = f"simulator.replicas_{replicas}"
        yield at_least(name, speed, "requests/s", {1: ONE_REPLICA_TARGET, 1000: FLEET_TARGET}.get(replicas))
        if str(replicas) in peer["requests_per_s"]:
            yield Row(f"{name}.over_peer", speed / peer["requests_per_s"][str(replicas)], "ratio")


def preemption(effort: Effort) -> Iterator[Row]:
    """Requests per second of one replica whose blocks grow token by token and do not suffice."""
    workload, hardware = jaxsim.workload("azure-conversation"), jaxsim.profile("h100-80gb")
    hardware = replace(hardware, kv_blocks=FEW_BLOCKS)
    fleet = _fleet(hardware, 1, float(np.max(workload.total_tokens)))
    number = effort.requests[1]
    for scheduling, budget in (("independent", None), ("chunked", 2048)):
        progress(f"simulator: {scheduling} with preemption")
        serving = des.Serving(scheduling=scheduling, max_num_batched_tokens=budget, kv="grow")
        run = partial(
            des.simulate, fleet, workload, rate=60.0, num_requests=number, replications=os.cpu_count(), serving=serving
        )
        speed = number / fastest_s(run, budget_s=2.0 * effort.repeats_s, runs=3)
        yield at_least(f"simulator.preemption.{scheduling}", speed, "requests/s", PREEMPTION_TARGET)
        yield Row(f"simulator.preemption.{scheduling}.preempted", run().preempted / number, "share")


def memory(effort: Effort) -> Iterator[Row]:
    """Peak memory of a process that keeps statistics only, for two lengths of the run.

    Linux hands `ru_maxrss` of the parent on to the program that a child executes, so the peak is read from /proc there.
    """
    script = (
        "import pathlib, re, resource, sys, jax, jaxsim, des, numpy as np\n"
        "jax.config.update('jax_enable_x64', True)\n"
        "workload, hardware = jaxsim.workload('azure-conversation'), jaxsim.profile('h100-80gb')\n"
        "fleet = jaxsim.FleetDesign.of(hardware, [1], [float(np.max(workload.total_tokens))])\n"
        "number = int(sys.argv[1])\n"
        "des.simulate(fleet, workload, rate=60.0, num_requests=number, replications=2, keep='statistics')\n"
        "status = pathlib.Path('/proc/self/status')\n"
        "own = re.search(r'VmHWM:\\s*(\\d+)', status.read_text()) if status.exists() else None\n"
        "print((int(own[1]) if own else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024)\n"
    )
    for number in (effort.many_requests // 100, effort.many_requests):
        progress(f"simulator: {number:,} requests, statistics only")
        command = [sys.executable, "-c", script, str(number)]
        peak = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=REPOSITORY).stdout)
        name = f"simulator.peak_memory.requests_{number}"
        yield Row(name, peak, "MiB", MEMORY_TARGET_MIB, peak <= MEMORY_TARGET_MIB)


def _fleet(hardware: jaxsim.Profile, replicas: int, longest: float) -> jaxsim.FleetDesign:
    return jaxsim.FleetDesign.of(hardware, [replicas], [longest])


def measured_peer() -> dict[str, Any] | None:
    """The peer's figures on this machine now, or None where it cannot be installed or run."""
    python = PEER_ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin") / "python"
    probe = Path(__file__).with_name("peer_probe.py")
    run = partial(subprocess.run, check=True, timeout=PEER_TIME_LIMIT_S, stdout=subprocess.PIPE)
    try:
        if not python.exists():
            progress(f"peer: installing {PEER_PACKAGE} into {PEER_ENVIRONMENT.name}")
            venv.create(PEER_ENVIRONMENT, with_pip=True, symlinks=os.name != "nt")
            (PEER_ENVIRONMENT / ".gitignore").write_text("*\n")
        quiet = ("--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15")
        run([python, "-m", "pip", "install", *quiet, PEER_PACKAGE])
        progress("peer: measuring")
        return json.loads(run([python, probe]).stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        progress(f"peer: not measured ({type(error).__name__})")
        return None


def peer_rows(peer: dict[str, Any], *, measured: bool) -> Iterator[Row]:
    """What the ratios are taken against."""
    yield Row("peer.measured_in_this_run", float(measured), "bool")
    units = {"designs_per_s": "designs/s", "erlang_c_per_s": "values/s", "requests_per_s": "requests/s"}
    keys = {"designs_per_s": "rate", "erlang_c_per_s": "servers", "requests_per_s": "replicas"}
    for job, unit in units.items():
        for size, speed in peer[job].items():
            yield Row(f"peer.{job.removesuffix('_per_s')}.{keys[job]}_{size}", speed, unit)


def rows(effort: Effort, *, measure_peer: bool) -> Iterator[Row]:
    """Every figure."""
    measured = measured_peer() if measure_peer else None
    peer = measured or RECORDED
    yield from peer_rows(peer, measured=measured is not None)
    yield from designs(effort, peer)
    yield from erlang(effort, peer)
    yield from requests(effort, peer)
    yield from preemption(effort)
    yield from memory(effort)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, value, unit, target, ok")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: a smoke test, not a measure")
    parser.add_argument("--no-peer", action="store_true", help="do not install and time the peer; use recorded figures")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    notes = [
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, JAX {jax.__version__}, "
        f"{jax.devices()[0].platform}",
        "evaluated: P99 TTFT, P99 TPOT and cost of a given two-pool design; sized: the replicas that the SLO needs "
        "at a threshold, and their cost (what the peer does); constrained: ln P(TTFT > objective) of each pool and the "
        "cost of a given design. Gradients in threshold and replicas.",
        "peer: vllm-sr-sim, no gradients; designs on A100-80GB, azure lengths; 0 above: recorded figures",
    ]
    effort = QUICK if options.quick else FULL
    found = rows(effort, measure_peer=not (options.quick or options.no_peer))
    if options.json:
        print_json(found)
    else:
        print_table(found, title="Speed", notes=notes)


if __name__ == "__main__":
    main()
