"""`simulate`: a fleet design under a workload, step by step, with intervals on what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from des.arrivals import ArrivalProcess, as_process
from des.availability import Caps, Failures, Schedule
from des.execution import HERE, Execution
from des.experiment import Experiment, Setting
from des.ledger import KEEP
from des.play import NUM_WINDOWS, PrefixBlocks
from des.remarks import remarks
from des.replays import replications as play_all
from des.results import SimulationResult, pool_results
from des.router import Router
from des.routers import LengthRouter
from des.serving import Serving
from des.stats import NUM_BATCHES, next_length
from jaxsim._checks import require, require_positive, unknown
from jaxsim.fleet import FleetDesign
from jaxsim.kv_transfer import KvTransfer
from jaxsim.profiles import profile
from jaxsim.workload import Workload

MAX_REQUESTS = 20_000_000

MAX_WHOLE_PLAYS = 4_000_000
"""Requests up to which arrivals that end are played more than once unless told."""


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
    serving: Serving | None = None,
    router: Router | None = None,
    arrivals: str | ArrivalProcess = "poisson",
    concurrency: int | None = None,
    transfer: KvTransfer | None = None,
    failures: Failures | None = None,
    schedule: Schedule | None = None,
    caps: Caps | None = None,
    prefix_blocks: PrefixBlocks | None = None,
    warmup_fraction: float = 0.2,
    replications: int | None = None,
    precision: float | None = None,
    max_requests: int = MAX_REQUESTS,
    decided: Callable[[SimulationResult], bool] | None = None,
    keep: str = "latencies",
    itl: bool = False,
    windows: int = NUM_WINDOWS,
    execution: Execution = HERE,
) -> SimulationResult:
    """Simulate a fleet: every step of every engine, every request from arrival to last token.

    Requests that have not left when arrivals stop are followed until they have; load and occupancy are measured up
    to the last arrival only. Equal arguments give equal results, whatever carries the replications out; designs with
    one seed see the same arrivals and lengths.

    Args:
        design: pools with whole numbers of replicas.
        workload: lengths, arrival times for ``arrivals="trace"``, and what a prefix cache is assumed to hold of prompts
            (`Workload.with_prefix_cache`).
        rate: offered requests per second; left out, the process's or the workload's own. In a closed loop: at which
            clients would send if they never waited; left out, as fast as they can.
        num_requests: requests offered in all replications together, warm-up included. Left out, see
            `default_requests`; of an arrival process that ends, all of it in each replication.
        seed: of the random numbers.
        convention: ``"step"`` (continuous batching: context grows, KV blocks are reserved) or ``"kimura"`` (the
            reference fleet model: slots of `max_context`, constant work).
        serving: scheduling, KV blocks and preemption; left out, `Serving()`.
        router: which pool and replica a request goes to; left out, by its total length, to the least loaded.
        arrivals: ``"poisson"``, ``"trace"`` to play the workload's own arrivals once, or a process of `des.arrivals`.
        concurrency: requests that the clients have outstanding at most (closed loop); left out, no limit.
        transfer: the link from pool 0, which computes prompts, to pool 1, which generates; left out, pools serve whole
            requests.
        failures: replicas that fail and are repaired.
        schedule: replicas that come and go by plan.
        caps: running requests that replicas may have, over time.
        prefix_blocks: of each workload row, for a prefix cache; left out, the workload's own.
        warmup_fraction: share of the time, from 0, whose arrivals are left out of the figures; in [0, 1).
        replications: independent runs that share `num_requests`; left out, see `default_replications`, and of a
            process that ends as many whole plays as `MAX_WHOLE_PLAYS` allows, 8 at most. A trace is played once.
        precision: wanted relative half-width of the 95 % intervals of the fleet's P99 TTFT and TPOT. Runs are
            repeated longer until it is met, a pool turns out to be overloaded, or `max_requests` is reached.
        max_requests: longest try when `precision` is given.
        decided: with `precision`, also stops where this says that a closer look would change nothing.
        keep: ``"latencies"`` of each request, ``"requests"`` with everything of each
            (`SimulationResult.requests_table`), or ``"statistics"``, whose memory does not grow with the run (quantiles
            then within 0.05 %).
        itl: whether to count the gaps between tokens (`SimulationResult.itl`).
        windows: stretches of the measured time for `SimulationResult.time_series`; >= 4.
        execution: who plays the replications, and where finished ones are kept; left out, this process on a thread for
            each CPU, and nowhere.

    Raises:
        ValueError: an argument outside its domain, no rate, a relaxed design, a trace without arrival times, or a
            folder with the replications of another request.
    """
    process = as_process(arrivals)
    _check(warmup_fraction=warmup_fraction, rate=rate, precision=precision, keep=keep, windows=windows)
    require(concurrency is None or concurrency >= 1, "concurrency", concurrency, ">= 1")
    if failures is not None and schedule is not None:
        raise ValueError(
            "failures and schedule cannot be given together: a repair would bring back what was taken away"
        )
    if failures is not None and concurrency is not None:
        raise ValueError(
            "failures and concurrency cannot be given together: for how long replicas must fail is not known before "
            "the clients have sent their last request; simulate an open loop with failures"
        )
    setting = Setting(
        convention=convention,
        serving=Serving() if serving is None else serving,
        router=LengthRouter() if router is None else router,
        arrivals=process,
        rate=rate,
        concurrency=concurrency or 0,
        transfer=transfer,
        failures=failures,
        schedule=schedule,
        caps=caps,
        blocks=_blocks(
            serving,
            router,
            workload.prefix_blocks if prefix_blocks is None else prefix_blocks,
            workload.prefix_cache_hit_rate,
        ),
        warmup_fraction=warmup_fraction,
        windows=windows,
        gaps=itl,
        keep=keep,
        seed=seed,
    )
    experiment = Experiment.of(design, workload, setting)
    expected = process.expected_requests(rate, workload)
    ends = np.isfinite(expected)
    if ends and process.name == "trace":
        if precision is not None or replications not in (None, 1):
            raise ValueError("arrivals='trace' plays the trace once: it takes no precision and one replication")
        whole = MAX_REQUESTS if num_requests is None else num_requests
        return _play(experiment, number=whole, count=1, execution=execution)
    if concurrency is None or rate is not None:
        process.mean_rate(rate, workload)
    if ends:
        if precision is not None:
            raise ValueError(f"precision is for arrivals without end, got {process.name!r}, which ends; repeat it")
        number, count = _whole_plays(expected, num_requests, replications)
    else:
        num_replicas = int(experiment.fleet.replicas.sum())
        number = default_requests(num_replicas) if num_requests is None else num_requests
        count = default_replications(number, num_replicas) if replications is None else replications
    require(count >= 1, "replications", count, ">= 1")
    require(number >= count, "num_requests", number, f">= replications ({count})")
    if precision is None:
        return _play(experiment, number=number, count=count, execution=execution)
    return _until_precise(
        lambda number: _play(experiment, number=number, count=count, execution=execution),
        number,
        precision,
        max_requests,
        decided,
    )


def prepare() -> None:
    """Compile the event loop, or load it compiled, as a first simulation would; safe in another thread."""
    design = FleetDesign.of(profile("a10g"), [1.0], [16.0])
    simulate(design, Workload.from_lengths([1.0], [1.0]), rate=1.0, num_requests=8, replications=1)


def _check(*, warmup_fraction: float, rate: float | None, precision: float | None, keep: str, windows: int) -> None:
    require((warmup_fraction >= 0) & (warmup_fraction < 1), "warmup_fraction", warmup_fraction, "in [0, 1)")
    if rate is not None:
        require_positive("rate", rate)
    if precision is not None:
        require_positive("precision", precision)
    if keep not in KEEP:
        raise unknown("keep", keep, KEEP)
    require(windows >= 4, "windows", windows, ">= 4")


def _blocks(
    serving: Serving | None, router: Router | None, blocks: PrefixBlocks | None, hit_rate: Any
) -> PrefixBlocks | None:
    """Prompt blocks where there is a cache for them."""
    cached = serving is not None and serving.prefix_cache_blocks > 0
    if cached and hit_rate is not None:
        raise ValueError(
            "prefix_cache_hit_rate and prefix_cache_blocks cannot be given together: the cache finds out its own hits"
        )
    if cached and blocks is None:
        raise ValueError(
            "prefix_cache_blocks needs a workload with block hashes, or prefix_blocks of its rows, got neither; "
            "read a trace with hash_ids, such as Mooncake's"
        )
    if router is not None and router.dispatch == "prefix-affinity" and not cached:
        raise ValueError("dispatch='prefix-affinity' needs Serving(prefix_cache_blocks=...), got no prefix cache")
    return blocks if cached else None


def _whole_plays(expected: float, num_requests: int | None, replications: int | None) -> tuple[int, int]:
    """Requests in all and replications of a process that ends; left out, each replication plays it whole."""
    whole = int(expected + 10.0 * np.sqrt(expected)) + 1
    most = MAX_WHOLE_PLAYS if num_requests is None else num_requests
    count = min(max(most // whole, 1), 8) if replications is None else replications
    return count * whole if num_requests is None else num_requests, count


def _play(experiment: Experiment, *, number: int, count: int, execution: Execution) -> SimulationResult:
    """`count` replications of ``number // count`` requests."""
    batches = max(NUM_BATCHES // count, 1)
    played = play_all(experiment, number=number // count, count=count, batches=batches, execution=execution)
    runs = tuple(played)
    setting, fleet, served = experiment.setting, experiment.fleet, experiment.table.served
    pools = pool_results(
        runs,
        replicas=fleet.replicas,
        max_active=fleet.max_active,
        kv_blocks=fleet.kv_blocks,
        closed=setting.concurrency > 0,
        budgeted=setting.serving.budgeted,
    )
    window = sum(run.window_s for run in runs)
    closed = setting.concurrency > 0 and setting.rate is None
    offered = sum(run.offered for run in runs) / window if window else np.inf
    result = SimulationResult(
        pools=pools,
        rate=offered if closed else setting.arrivals.mean_rate(setting.rate, experiment.workload),
        convention=setting.convention,
        arrivals=f"closed loop of {setting.concurrency}" if setting.concurrency else setting.arrivals.name,
        serving=setting.serving.describe(),
        router=setting.router.describe(),
        seed=setting.seed,
        num_requests=sum(run.simulated for run in runs),
        warmup_fraction=setting.warmup_fraction,
        warnings=(),
        replications=runs,
        lengths=(served.input_tokens, served.output_tokens),
        pool_of_replica=experiment.pool_of_replica,
        link_load=experiment.link_load,
    )
    return replace(result, warnings=(*setting.router.warnings, *remarks(result)))


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
