"""`simulate`: a fleet design under a workload, step by step, with intervals on what it finds."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from des.arrivals import ARRIVALS, Lengths, poisson_stream, trace_stream
from des.experiment import Experiment
from des.lower import Stream
from des.remarks import remarks
from des.results import Replication, SimulationResult, pool_results
from des.stats import next_length
from jaxsim._checks import require, require_positive, unknown
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import profile
from jaxsim.workload import Workload

MAX_REQUESTS = 20_000_000


def default_requests(num_replicas: int) -> int:
    """Requests simulated unless told: 400,000, and on a large fleet 5,000 a replica."""
    return max(400_000, 5_000 * num_replicas)


def default_replications(num_requests: int, num_replicas: int) -> int:
    """8, or as many as leave each 1,000 requests a replica, or 1 where that would be fewer than 4.

    Each run starts empty, so many short ones would mostly measure how a fleet fills.
    """
    long_enough = num_requests // (1_000 * max(num_replicas, 1))
    return min(8, long_enough) if long_enough >= 4 else 1


def simulate(
    design: FleetDesign,
    workload: Workload,
    *,
    rate: float | None = None,
    num_requests: int | None = None,
    seed: int = 0,
    convention: str = "step",
    warmup_fraction: float = 0.2,
    replications: int | None = None,
    precision: float | None = None,
    max_requests: int = MAX_REQUESTS,
    decided: Callable[[SimulationResult], bool] | None = None,
    arrivals: str = "poisson",
) -> SimulationResult:
    """Simulate a fleet: every step of every engine, every request from arrival to last token.

    Requests that have not left when arrivals stop are followed until they have; load and occupancy are measured up
    to the last arrival only. Equal arguments give equal results, whatever the number of CPUs; designs with one seed
    see the same arrivals and lengths.

    Args:
        design: pools with whole numbers of replicas.
        workload: lengths, and arrival times for ``arrivals="trace"``.
        rate: offered requests per second; left out, the workload's own.
        num_requests: requests offered in all replications together, warm-up included. Left out, see
            `default_requests`; of a trace, all.
        seed: of the random numbers.
        convention: ``"step"`` (continuous batching: context grows, KV blocks are reserved) or ``"kimura"`` (the
            reference fleet model: slots of `max_context`, constant work).
        warmup_fraction: share of the time, from 0, whose arrivals are left out of the figures; in [0, 1).
        replications: independent runs that share `num_requests`; left out, see `default_replications`. A trace is
            played once.
        precision: wanted relative half-width of the 95 % intervals of the fleet's P99 TTFT and TPOT. Runs are
            repeated longer until it is met, a pool turns out to be overloaded, or `max_requests` is reached.
        max_requests: longest try when `precision` is given.
        decided: with `precision`, also stops where this says that a closer look would change nothing.
        arrivals: ``"poisson"``, or ``"trace"`` to play the workload's own arrivals (`rate` stretches time).

    Raises:
        ValueError: an argument outside its domain, no rate, a relaxed design, or a trace without arrival times.
    """
    if arrivals not in ARRIVALS:
        raise unknown("arrivals", arrivals, ARRIVALS)
    require((warmup_fraction >= 0) & (warmup_fraction < 1), "warmup_fraction", warmup_fraction, "in [0, 1)")
    if rate is not None:
        require_positive("rate", rate)
    if precision is not None:
        require_positive("precision", precision)
    experiment = Experiment.of(design, workload, convention=convention, warmup_fraction=warmup_fraction)
    if arrivals == "trace":
        if precision is not None or replications not in (None, 1):
            raise ValueError("arrivals='trace' plays the trace once: it takes no precision and one replication")
        return _play_trace(experiment, trace_stream(workload, rate, num_requests), seed)
    offered = rate if rate is not None else workload.rate
    if offered is None:
        raise ValueError("rate must be given in requests per second: the workload has none of its own")
    num_replicas = int(experiment.fleet.replicas.sum())
    number = default_requests(num_replicas) if num_requests is None else num_requests
    count = default_replications(number, num_replicas) if replications is None else replications
    require(count >= 1, "replications", count, ">= 1")
    require(number >= count, "num_requests", number, f">= replications ({count})")
    lengths = Lengths.of(workload)

    def attempt(number: int) -> SimulationResult:
        return _play_poisson(experiment, lengths, offered, number=number, count=count, seed=seed)

    return attempt(number) if precision is None else _until_precise(attempt, number, precision, max_requests, decided)


def prepare() -> None:
    """Compile the event loop, or load it compiled, as a first simulation would; safe in another thread."""
    design = FleetDesign.of(profile("a10g"), [1.0], [16.0])
    simulate(design, Workload.from_lengths([1.0], [1.0]), rate=1.0, num_requests=8, replications=1)


def _play_trace(experiment: Experiment, stream: Stream, seed: int) -> SimulationResult:
    last = float(stream.arrival_s[-1])
    rate = len(stream.arrival_s) / last if last > 0 else np.inf
    return _result(experiment, (experiment.run(stream, None),), rate=rate, arrivals="trace", seed=seed)


def _play_poisson(
    experiment: Experiment, lengths: Lengths, rate: float, *, number: int, count: int, seed: int
) -> SimulationResult:
    """`count` replications of ``number // count`` requests, on as many threads as there are CPUs."""

    def one(replication: int) -> Replication:
        stream = poisson_stream(lengths, rate, number // count, seed=seed, replication=replication)
        return experiment.run(stream, rate)

    workers = min(os.cpu_count() or 1, count)
    if workers == 1:
        runs = tuple(one(i) for i in range(count))
    else:
        with ThreadPoolExecutor(workers) as threads:
            runs = tuple(threads.map(one, range(count)))
    return _result(experiment, runs, rate=rate, arrivals="poisson", seed=seed)


def _until_precise(
    attempt: Callable[..., SimulationResult],
    number: int,
    precision: float,
    max_requests: int,
    decided: Callable[[SimulationResult], bool] | None,
) -> SimulationResult:
    """Longer and longer runs until the P99s are known to `precision`; a longer run also has less start-up bias."""
    while True:
        result = attempt(number)
        reached = result.precision()
        if reached <= precision or result.overloaded or (decided is not None and decided(result)):
            return result
        if number >= max_requests:
            note = f"precision {precision:g} was not reached: {reached:.3g} after {number:,} requests"
            return replace(result, warnings=(*result.warnings, note))
        number = next_length(number, reached, precision, max_requests)


def _result(
    experiment: Experiment, runs: tuple[Replication, ...], *, rate: float, arrivals: str, seed: int
) -> SimulationResult:
    fleet = experiment.fleet
    pools = pool_results(runs, replicas=fleet.replicas, max_active=fleet.max_active, kv_blocks=fleet.kv_blocks)
    result = SimulationResult(
        pools=pools,
        rate=rate,
        convention=experiment.convention,
        arrivals=arrivals,
        seed=seed,
        num_requests=sum(run.simulated for run in runs),
        warmup_fraction=experiment.warmup_fraction,
        warnings=(),
        replications=runs,
    )
    return replace(result, warnings=tuple(remarks(result)))
