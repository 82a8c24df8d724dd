"""How near to the cheapest the planner's fleets are, and what its printed gap says of it: random problems, brute force.

Run ``python benchmarks/certificates.py`` (an hour on two cores; ``--problems 4`` for less, ``--json`` for objects).

Each problem is drawn from a seed: workload, rate, objectives, 2 to 4 pools, 1 to 4 GPU types, model. Brute force sizes,
for two pools, every interval that begins or ends a fleet at the totals that occur (of more than 8,000 every k-th), on
every GPU: so every fleet of two pools there is. For more pools it takes the shortest path over a lattice several times
as fine as the planner's, which is every fleet with thresholds on it. Both are of the model; nothing is simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _report import Row, print_json, print_table, progress

import jaxsim
import optim
from optim.cases import Case, pool_sizes
from optim.lattice import lattice
from optim.search import Search
from optim.sizing import Targets, whole_replicas
from optim.verify import Correction

PROBLEMS = 30
FINE = {3: 192, 4: 128}
"""Cells of the fine lattice by the number of pools."""
MOST_THRESHOLDS = 4000
WORKLOADS = ("azure-code", "azure-conversation", "mooncake-conversation", "sharegpt")
GPUS = (
    "llama-3.1-70b@h100-sxm:tp4:fp8:vllm",
    "llama-3.1-70b@h200:tp2:fp8:vllm",
    "llama-3.1-70b@b200:tp1:fp8:vllm",
    "llama-3.1-70b@b200:tp2:fp8:vllm",
)
PRESETS = ("h100-80gb", "a100-80gb", "a10g")


class Found(NamedTuple):
    """Of one problem; shares of the brute force's dollars per hour."""

    pools: int
    model: str
    gap: float
    above: float
    below_bound: float
    first_s: float
    warm_s: float


def drawn(seed: int) -> optim.PlanProblem:
    """A problem of a seed."""
    rng = np.random.default_rng(seed)
    model = ("step", "kimura")[int(rng.random() < 0.6)]
    known = PRESETS if model == "kimura" or rng.random() < 0.3 else GPUS
    types = rng.choice(known, size=int(rng.integers(1, len(known) + 1)), replace=False)
    slo = optim.SLO(ttft_p99_s=float(rng.choice([0.5, 1.0, 2.0, 4.0])), tpot_p99_s=None if model == "kimura" else 0.06)
    return optim.PlanProblem(
        jaxsim.workload(str(rng.choice(WORKLOADS))),
        float(np.exp(rng.uniform(np.log(5.0), np.log(500.0)))),
        tuple(jaxsim.profile(name) if "@" not in name else jaxsim.measured_profile(name) for name in types),
        slo,
        max_pools=int(rng.integers(2, 5)),
        max_context=float(rng.choice([8192, 16384, 32768])),
        model=model,
    )


def brute(problem: optim.PlanProblem, single: list[Case]) -> float:
    """Dollars per hour of the cheapest fleet that brute force finds; inf where it finds none."""
    pools = problem.max_pools
    if pools > 2:
        tpot = np.inf if problem.slo.tpot_p99_s is None else problem.slo.tpot_p99_s
        targets = [Targets(jnp.asarray(problem.slo.ttft_p99_s), jnp.asarray(tpot))] * pools
        found = lattice(single, targets, model=problem.model, cells=FINE[pools])
        return found.paths[0].usd_per_hour if found.paths else np.inf
    totals = np.unique(np.asarray(problem.limited.total_tokens))
    totals = totals[totals <= problem.context]
    ends = totals[:: max(1, len(totals) // MOST_THRESHOLDS)]
    ends = np.append(ends, totals[-1])
    whole, none = np.full_like(ends, float(problem.context)), np.zeros_like(ends)
    short, long = (np.full(len(ends), np.inf) for _ in range(2))
    for case in single:
        price = float(np.asarray(case.profile.usd_per_hour)[0])
        for cost, low, high in ((short, none, ends), (long, ends, whole)):
            size, enough = pool_sizes(case, 0, low, high, model=problem.model)
            np.minimum(cost, np.where(enough, price * whole_replicas(size), np.inf), out=cost)
    return float((short + long).min())


def judged(problem: optim.PlanProblem) -> Found | None:
    """The planner's answer beside brute force's; None where neither finds a fleet."""
    none = Correction.none(problem.max_pools)
    times = []
    for _ in range(2):
        start = perf_counter()
        search = Search(problem)
        proposal = search.propose(none)
        certificate = None if proposal is None else search.certificate(none, proposal.value)
        times.append(perf_counter() - start)
    least = brute(problem, [choice.case for choice in search.single])
    if proposal is None or certificate is None:
        if np.isfinite(least):
            raise RuntimeError(f"the planner found no fleet where brute force has one of {least:.2f} USD/h")
        return None
    value = proposal.usd_per_hour
    below = certificate.lower_bound / min(least, value) - 1.0
    return Found(problem.max_pools, problem.model, certificate.gap, value / least - 1.0, below, *times)


def rows(found: list[Found], asked: int) -> Iterator[Row]:
    """The figures."""
    gaps, above = (np.array([getattr(one, name) for one in found]) for name in ("gap", "above"))
    two = np.array([one.pools == 2 for one in found])
    warm = np.array([one.warm_s for one in found])

    def most(name: str, value: float, unit: str, target: float) -> Row:
        return Row(name, value, unit, target, bool(value <= target))

    yield Row("problems with a fleet", float(len(found)), f"of {asked}")
    yield most("printed gap, median", float(np.median(gaps)) * 100, "%", 2.0)
    yield most("printed gap, largest", float(gaps.max()) * 100, "%", 5.0)
    yield Row("dearer than brute force, median", float(np.median(above)) * 100, "%")
    yield most("dearer than brute force less the printed gap, largest", float((above - gaps).max()) * 100, "%", 1e-6)
    if two.any():
        yield most("two pools: dearer than every fleet, largest", float(above[two].max()) * 100, "%", 1e-6)
    yield most("bound above the cheapest known, largest", max(one.below_bound for one in found) * 100, "%", 1e-6)
    yield most("warm search with its bound, median", float(np.median(warm)), "s", 2.0)
    yield most("warm search with its bound, longest", float(warm.max()), "s", 2.0)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--json", action="store_true", help="one object a line")
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = []
    for seed in range(asked.first, asked.first + asked.problems):
        problem = drawn(seed)
        one = judged(problem)
        told = f"{problem.workload.name} at {problem.rate:.1f} req/s on {len(problem.profiles)} types"
        progress(f"problem {seed}: {told}: {one}")
        found += [] if one is None else [one]
    made = list(rows(found, asked.problems))
    if asked.json:
        print_json(made)
    else:
        print_table(made, title="Certificates against brute force")


if __name__ == "__main__":
    main()
