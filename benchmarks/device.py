"""Designs per second on the device that JAX has, beside the CPUs of the same machine.

Run ``python benchmarks/device.py`` on a machine with a GPU and JAX for it (a few minutes; ``--json`` for one object a
line, ``--quick`` for seconds). Both models, values and gradients, in float64 and float32, over batch sizes; each
figure's ratio is to the best that the CPUs do at any batch size, in the same precision. On a machine without an
accelerator the CPUs stand alone and there is no ratio.

Each precision runs in a process of its own, because JAX is in one or the other. The library refuses float32; here its
check is taken away to see what it would gain, and beside the speed stands how many designs then have finite figures and
gradients, and how far the P99s of those are off.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Row, fastest_s, print_json, print_table, progress

import jaxsim
import optim
from jaxsim.evaluate import metrics, pool_laws
from optim.cases import Case, cases

CONTEXT = 8192.0
RATE = 200.0
MODELS = ("kimura", "step")
PRECISIONS = ("float64", "float32")
KINDS = ("values", "gradients")
COMPARED = 256
"""Designs whose figures are compared between the precisions."""


class Effort(NamedTuple):
    """How much of everything to do: batch sizes on the device and on the CPUs, and seconds of repetitions."""

    batches: dict[str, tuple[int, ...]]
    cpu_batches: dict[str, tuple[int, ...]]
    repeats_s: float


FULL = Effort(
    batches={"kimura": (1_024, 16_384, 262_144), "step": (1_024, 8_192, 65_536)},
    cpu_batches={"kimura": (1_024, 16_384), "step": (256, 1_024)},
    repeats_s=1.0,
)
QUICK = Effort(batches={"kimura": (64,), "step": (16,)}, cpu_batches={"kimura": (64,), "step": (16,)}, repeats_s=0.0)


def evaluated(point: jax.Array, case: Case, model: str) -> tuple[jax.Array, jax.Array]:
    """P99 TTFT, P99 TPOT and cost of a two-pool design; a point is (threshold, replicas, replicas)."""
    upper = jnp.stack([point[0], case.longest])
    found = metrics(pool_laws(case.design(point[1:], upper), case.tables, case.rate, model=model, relaxed=True))
    figures = jnp.stack([found.ttft_p99_s, found.tpot_p99_s, found.usd_per_hour])
    return jnp.log(figures).sum(), figures


def batched(*, gradients: bool) -> Any:
    """Figures of many points in one compiled call, with or without the gradient in every point."""
    one = jax.value_and_grad(evaluated, has_aux=True) if gradients else evaluated
    return eqx.filter_jit(lambda points, case, model: jax.vmap(lambda p: one(p, case, model))(points))


def a_case(model: str) -> Case:
    """Two pools of one hardware on the Azure lengths."""
    problem = optim.PlanProblem(
        workload=jaxsim.workload("azure"),
        rate=RATE,
        profiles=(jaxsim.profile("a100-80gb"),),
        slo=optim.SLO(ttft_p99_s=0.5),
        max_context=CONTEXT,
        model=model,
    )
    return cases(problem, num_pools=2)[0].case


def points(case: Case, model: str, number: int) -> jax.Array:
    """Thresholds over the range of lengths, with replicas that are 50 to 80 % used."""
    random = np.random.default_rng(0)
    cuts = jnp.asarray(random.uniform(256.0, 7168.0, number))
    used = jnp.asarray(random.uniform(0.5, 0.8, (number, 2)))

    def load(cut: jax.Array) -> jax.Array:
        one_each = case.design(jnp.ones(2), jnp.stack([cut, case.longest]))
        return pool_laws(one_each, case.tables, case.rate, model=model, relaxed=True).utilization

    loads = eqx.filter_jit(lambda cuts: jax.vmap(load)(cuts))(cuts)
    return jnp.concatenate([cuts[:, None], loads / used], axis=1)


def measure(precision: str, effort: Effort) -> Iterator[dict[str, Any]]:
    """One precision, in this process: a speed for each device, model, kind and batch, and figures to compare."""
    jax.config.update("jax_enable_x64", precision == "float64")
    if precision == "float32":
        allow_float32()
    cpu, device = jax.devices("cpu")[0], jax.devices()[0]
    yield {"device": device.device_kind, "platform": device.platform, "count": jax.device_count()}
    for model in MODELS:
        with jax.default_device(cpu):
            case = a_case(model)
            widest = max(*effort.batches[model], *effort.cpu_batches[model], COMPARED)
            every = points(case, model, widest)
        for on in dict.fromkeys((cpu, device)):
            sizes = effort.cpu_batches[model] if on is cpu else effort.batches[model]
            here = jax.device_put(case, on)
            for kind, size in itertools.product(KINDS, sizes):
                progress(f"{precision}, {on.platform}: {model}, {kind}, batch {size:,}")
                job = partial(batched(gradients=kind == "gradients"), jax.device_put(every[:size], on), here, model)
                finite = finite_share(jax.block_until_ready(job()))
                if precision == "float64" and finite < 1.0:
                    raise RuntimeError(f"{model}, {kind}: a figure or gradient is not finite in float64")
                speed = size / fastest_s(partial(finished, job), budget_s=effort.repeats_s)
                entry = {"model": model, "kind": kind, "batch": size, "on": on.platform}
                yield entry | {"designs_per_s": speed, "finite": finite}
            figures = batched(gradients=False)(jax.device_put(every[:COMPARED], on), here, model)[1]
            yield {"model": model, "on": on.platform, "figures": np.asarray(figures, dtype=float).tolist()}


def allow_float32() -> None:
    """Take the library's check for float64 away, in every module that holds it; what asks for float64 gets float32."""
    warnings.filterwarnings("ignore", message="Explicitly requested dtype")
    for name, module in list(sys.modules.items()):
        if name.startswith("jaxsim") and "require_x64" in vars(module):
            vars(module)["require_x64"] = lambda: None


def finished(job: Any) -> Any:
    """The job's result, waited for."""
    return jax.block_until_ready(job())


def finite_share(result: Any) -> float:
    """Share of designs whose every figure and gradient is finite."""
    leaves = [np.isfinite(np.asarray(leaf)) for leaf in jax.tree.leaves(result)]
    good = [leaf.reshape(leaf.shape[0], -1).all(axis=1) for leaf in leaves]
    return float(np.logical_and.reduce(good).mean())


def in_a_process(precision: str, *, quick: bool) -> list[dict[str, Any]]:
    """`measure` in a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--precision", precision, *(["--quick"] if quick else [])]
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and "cpu" not in platforms.split(","):
        platforms = f"{platforms},cpu"  # the ratio is to the CPUs
    environment = os.environ | ({"JAX_PLATFORMS": platforms} if platforms else {})
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return [json.loads(line) for line in run.stdout.splitlines()]


def rows(found: dict[str, list[dict[str, Any]]]) -> Iterator[Row]:
    """Speeds, ratios to the CPUs, and how far float32 is off."""
    first = found["float64"][0]
    platform = first["platform"]
    yield Row(f"{platform}.devices", first["count"], f"{first['device']}; one is used")
    for precision, said in found.items():
        speeds = [entry for entry in said if "designs_per_s" in entry]
        for entry in speeds:
            name = f"{entry['on']}.{entry['model']}.{entry['kind']}.{precision}.batch_{entry['batch']}"
            yield Row(name, entry["designs_per_s"], "designs/s")
            if entry["on"] != "cpu":
                alike = [e for e in speeds if e["on"] == "cpu" and (e["model"], e["kind"]) == same(entry)]
                best = max(e["designs_per_s"] for e in alike)
                yield Row(f"{name}.over_cpu", entry["designs_per_s"] / best, "ratio")
    for model in MODELS:
        exact = figures(found["float64"], model, "cpu")
        pairs = [("float32", platform), *([("float64", platform)] if platform != "cpu" else [])]
        for precision, on in pairs:
            error = np.abs(figures(found[precision], model, on) / exact - 1.0)[:, :2]
            name = f"{on}.{model}.{precision}"
            finite = [e["finite"] for e in found[precision] if "finite" in e and (e["model"], e["on"]) == (model, on)]
            yield Row(f"{name}.finite_share", min(finite), "share of designs, worst batch")
            known = error[np.isfinite(error).all(axis=1)]
            if len(known):
                yield Row(f"{name}.p99s_worst_error", float(known.max()), "share of float64 on the CPU")


def same(entry: dict[str, Any]) -> tuple[str, str]:
    """What must agree for a ratio."""
    return entry["model"], entry["kind"]


def figures(said: list[dict[str, Any]], model: str, on: str) -> np.ndarray:
    """P99 TTFT, P99 TPOT and cost of the compared designs."""
    return np.array(next(e["figures"] for e in said if "figures" in e and (e["model"], e["on"]) == (model, on)))


def main() -> None:
    """Run, and print for people or for programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; not for quoting")
    parser.add_argument("--precision", choices=PRECISIONS, help="only this one, in this process, as raw lines")
    arguments = parser.parse_args()
    if arguments.precision is not None:
        for entry in measure(arguments.precision, QUICK if arguments.quick else FULL):
            print(json.dumps(entry), flush=True)
        return
    found = {precision: in_a_process(precision, quick=arguments.quick) for precision in PRECISIONS}
    if arguments.json:
        print_json(rows(found))
    else:
        print_table(rows(found), title="Designs per second, two pools each")


if __name__ == "__main__":
    main()
