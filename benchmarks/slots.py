"""The simulator as a queue: against exact M/G/c figures, and dispatch against an independent simulator's.

Run ``python benchmarks/slots.py`` (five minutes on two cores; ``--json`` for one object a line, ``--quick`` for
seconds).

- **Queues.** `des.slots`, the plain slot server, against exact M/M/c, M/D/c and M/H2/c with up to 128 servers and
  utilisation up to 0.85. Each queue is run long enough that 1 % of its mean wait is 3.5 standard errors (`_queues`).
  Some queues would need more than `--longest` requests, most of them because they make almost nobody wait: they are
  counted and left out, as are those whose run turned out too short for 1 % to be 3 standard errors.
- **Engine.** The step-exact engine with constant steps is a slot server whose requests start at a step's end: with
  the same arrivals and services every wait must be that of `des.slots`, or longer by less than a step.
- **Dispatch.** P(W > 0) and P99 of the wait over 2 to 128 engines of 16 slots (`_routing`).

"Outside" counts figures beyond a 99.9 % interval for all comparisons of a kind together (Bonferroni).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import _queues
import _routing
import jax
import numpy as np
from _report import Row, print_json, print_table, progress

import des
import des.slots
import jaxsim

FAMILY = 0.001
"""Chance that any of the comparisons of a kind lies outside its interval, if all is right."""

SEED = 2024
TARGET = 1.0
"""Largest error of a mean wait, %."""

SECTION_4 = {
    ("central", 8): 0.0,
    ("JSQ", 8): 0.0,
    ("JSQ2", 8): 0.06,
    ("RR", 8): 0.70,
    ("random", 8): 1.48,
    ("central", 32): 0.0,
    ("JSQ", 32): 0.0,
    ("JSQ2", 32): 0.0,
    ("RR", 32): 0.6,
    ("random", 32): 1.5,
}
"""P99 waits in units of service that are quoted for exponential tokens at utilisation 0.85, by route and engines."""

STEPS = 20_000.0
"""Mean steps of a request where the engine is a slot server."""

ENGINE_QUEUES = (("M", 1.0, 8), ("D", 0.0, 1), ("D", 0.0, 32), ("H2", 4.0, 16), ("M", 1.0, 128))
ENGINE_LOAD = 0.85


class Effort(NamedTuple):
    """How long it all takes."""

    longest: float = 1.5e8
    engine_requests: int = 400_000
    routed_requests: int = 1_500_000
    replicas: tuple[int, ...] = (2, 8, 32, 128)
    loads: tuple[float, ...] = (0.7, 0.85, 0.95)


QUICK = Effort(longest=1.2e7, engine_requests=20_000, routed_requests=240_000, replicas=(2,), loads=(0.85,))

T = TypeVar("T")


def together(job: Callable[[T], Any], items: Sequence[T], title: str) -> Iterator[Any]:
    """Results in the order of `items`, computed on all CPUs."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, result in enumerate(pool.map(job, items), start=1):
            if done % 10 == 0 or done == len(items):
                progress(f"{title}: {done} of {len(items)}")
            yield result


def queues(effort: Effort) -> Iterator[Row]:
    """Errors of the slot server, by law."""
    known = _queues.queues()
    order = sorted(range(len(known)), key=lambda i: -known[i].requests())
    run = [i for i in order if known[i].requests() <= effort.longest]

    def job(i: int) -> _queues.Comparison:
        return _queues.compare(known[i], int(known[i].requests()), np.random.SeedSequence(SEED, spawn_key=(i,)))

    found = list(together(job, run, "queues"))
    tail = 0.5 * FAMILY / (2 * len(found))
    for law in _queues.LAWS:
        yield from of_law(law, [c for c in found if c.queue.law == law], sum(q.law == law for q in known), tail)


def of_law(law: str, found: list[_queues.Comparison], known: int, tail: float) -> Iterator[Row]:
    """Errors of one law's queues."""
    name = f"queues.{law}"
    resolved = [c for c in found if c.resolved]
    yield Row(f"{name}.compared", float(len(resolved)), "queues")
    yield Row(f"{name}.too_long_to_resolve", float(known - len(resolved)), "queues")
    outside = np.array([c.outside(tail) for c in found]).reshape(-1, 2).sum(axis=0)
    off = {"mean_wait": {c.queue.name: c.off for c in resolved}}
    off["p99_wait"] = {c.queue.name: c.p99_off for c in resolved if c.queue.p99 > 0.0}
    for (figure, errors), number in zip(off.items(), outside.tolist(), strict=True):
        if errors:
            worst = max(errors, key=lambda queue: abs(errors[queue]))
            progress(f"{figure} furthest off: {worst}, {100.0 * errors[worst]:+.2f} %")
            largest = 100.0 * abs(errors[worst])
            target, ok = (TARGET, largest <= TARGET) if figure == "mean_wait" else (None, None)
            yield Row(f"{name}.{figure}.largest_error", largest, "%", target, ok)
            median = 100.0 * float(np.median(np.abs(list(errors.values()))))
            yield Row(f"{name}.{figure}.median_error", median, "%")
        yield Row(f"{name}.{figure}.outside", float(number), "queues", 0.0, number == 0)


def engine(effort: Effort) -> Iterator[Row]:
    """How much later than in the slot server requests start in an engine of constant steps."""
    for law, cv2, servers in ENGINE_QUEUES:
        progress(f"engine: M/{law}/{servers}")
        queue = _queues.Queue(law, servers, ENGINE_LOAD, cv2, np.nan, np.nan, np.nan)
        early, late = lateness(queue, effort.engine_requests)
        yield Row(f"engine.{law}.servers_{servers}.latest_start", late, "steps", 1.0, late < 1.001 and early > -0.001)


def lateness(queue: _queues.Queue, number: int) -> tuple[float, float]:
    """Least and greatest difference of a request's wait in the engine and in the slot server, in steps."""
    random = np.random.default_rng(SEED)
    steps = np.ceil(_queues.draw(queue, random, number).seconds * STEPS)
    arrival_s = np.cumsum(random.standard_exponential(number)) * STEPS / (queue.load * queue.servers)
    profile = _routing.constant_steps(queue.servers, growth=0.0)
    result = des.simulate(
        jaxsim.FleetDesign.of(profile, [1.0], [2.0**24]),
        jaxsim.Workload.from_lengths(np.ones(number), steps, arrival_s=arrival_s),
        arrivals="trace",
        warmup_fraction=0.0,
    )
    later = result.replications[0].latencies("wait_s") - des.slots.simulate_slots(arrival_s, steps, queue.servers)
    return float(later.min()), float(later.max())


def dispatch(effort: Effort) -> Iterator[Row]:
    """Figures beyond their intervals, by route, and those that are quoted."""
    cases = [c for c in _routing.cases() if c.replicas in effort.replicas and c.load in effort.loads]
    _routing.compare(cases[0], 1_000, SEED)  # compiles

    def job(case: _routing.Case) -> dict[str, _routing.Figure]:
        return _routing.compare(case, effort.routed_requests, SEED)

    found = list(zip(cases, together(job, cases, "dispatch"), strict=True))
    tail = 0.5 * FAMILY / (len(_routing.FIGURES) * len(cases))
    for route, rule in _routing.DISPATCH.items():
        of_route = [(case, figures) for case, figures in found if case.route == route]
        label = "central" if route == "central" else rule
        for name in _routing.FIGURES:
            off = [case.name for case, figures in of_route if figures[name].outside(tail)]
            for one in off:
                progress(f"outside: {name} of {one}")
            yield Row(f"dispatch.{label}.{name}.outside", float(len(off)), "designs", 0.0, not off)
            mean = float(np.nanmean([figures[name].deviation for _, figures in of_route]))
            yield Row(f"dispatch.{label}.{name}.mean_deviation", mean, "standard errors")
        yield Row(f"dispatch.{label}.compared", float(len(of_route)), "designs")
    for case, figures in found:
        quoted = SECTION_4.get((case.route, case.replicas))
        if quoted is not None and case.load == ENGINE_LOAD and case.law == "M":
            label = "central" if case.route == "central" else _routing.DISPATCH[case.route]
            name = f"dispatch.replicas_{case.replicas}.{label}.p99_wait"
            yield Row(name, figures["p99"].ours, "services", quoted, not figures["p99"].outside(tail))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, value, unit, target, ok")
    parser.add_argument("--quick", action="store_true", help="the shortest queues and few fleets: a smoke test")
    parser.add_argument("--longest", type=float, help="most requests of a queue (default 1.5e8)")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    effort = QUICK if options.quick else Effort()
    if options.longest is not None:
        effort = effort._replace(longest=options.longest)
    rows = (row for section in (queues, engine, dispatch) for row in section(effort))
    if options.json:
        print_json(rows)
    else:
        print_table(rows, title="The simulator as a queue", notes=(__doc__.splitlines()[0],))


if __name__ == "__main__":
    main()
