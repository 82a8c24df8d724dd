"""What a reader must know before using a result's figures, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from des.overload import FULL_SHARE
from des.results import PoolResult, SimulationResult

FEW_REQUESTS = 15_000
"""Requests below which the reference fleet simulator's documentation calls a P99 unstable."""

FEW_IN_TAIL = 100
"""Observations beyond the P99 below which it is called rough."""

NEAR_SATURATION = 10.0
"""Requests a replica in one run, times (1 - load) squared, below which the run is short for its load: the time in
which a queue forgets its start grows with the inverse square of what is left of its capacity."""

SHORT_RUN = 10.0
"""Mean times in the system below which the measured time of one run is called short."""


def remarks(result: SimulationResult) -> Iterator[str]:
    """Sentences about overload, rejected requests, and runs too short for their figures."""
    for pool in result.pools:
        if pool.overloaded:
            yield (
                f"pool {pool.index} is overloaded: offered {pool.load:.3g} times its capacity, its queues grow by "
                f"{pool.queue_growth_per_s:.3g} requests a second and its waits with the length of the run"
            )
        else:
            yield from _full_stretches(result, pool)
    if result.link_load >= 1.0:
        yield (
            f"the link between the pools is overloaded: offered {result.link_load:.3g} times its capacity, "
            "and transfers wait with the length of the run"
        )
    for reason, count in result.rejected_by_reason.items():
        if count > 0:
            share = count / result.requests
            yield f"{count:,} of {result.requests:,} requests ({share:.2%}) were rejected: {reason}"
    yield from _price_of_rules(result)
    if result.num_requests < FEW_REQUESTS:
        yield f"{result.num_requests:,} requests were simulated; below {FEW_REQUESTS:,} a P99 is not stable"
    for pool in result.pools[1:] if result.disaggregated else result.pools:  # the first has no request of its own
        yield from _short_runs(result, pool)


def _full_stretches(result: SimulationResult, pool: PoolResult) -> Iterator[str]:
    """Where the load changes over time, a pool may be beyond its capacity for a while and not in the long run."""
    full = total = 0
    peak = 0.0
    for index, run in enumerate(result.replications):
        width = run.window_s / run.totals.shape[1]
        full += int((run.totals[pool.index]["full_s"] > FULL_SHARE * width * pool.replicas).sum())
        total += run.totals.shape[1]
        peak = max(peak, float(result.time_series(index).queued[pool.index].max()))
    if full > 0:
        yield (
            f"pool {pool.index} was full for more than half of the time in {full} of {total} stretches of the measured "
            f"time; its queue reached a mean of {peak:,.0f} requests in the longest"
        )


def _price_of_rules(result: SimulationResult) -> Iterator[str]:
    accepted = max(result.requests - result.rejected, 1)
    if result.preempted:
        yield (
            f"{result.preempted:,} of {accepted:,} requests ({result.preempted / accepted:.2%}) were preempted, "
            f"{result.preemptions:,} times in all"
        )
    short, long = result.misrouted
    if short or long:
        yield (
            f"the router did not know the length of {short + long:,} of {result.requests:,} requests well enough: "
            f"{short:,} went to a pool of too short and {long:,} to one of too long requests"
        )
    if result.compressed:
        share = result.compressed / result.requests
        yield f"{result.compressed:,} of {result.requests:,} requests ({share:.2%}) were compressed"


def _short_runs(result: SimulationResult, pool: PoolResult) -> Iterator[str]:
    accepted = pool.requests - pool.rejected
    if accepted == 0:
        return
    if accepted < 100 * FEW_IN_TAIL:
        yield f"the P99s of pool {pool.index} rest on {accepted // 100} requests beyond them"
    window = min(run.window_s for run in result.replications)
    mean = pool.e2e.mean().value
    if window < SHORT_RUN * mean and not pool.overloaded:
        yield (
            f"pool {pool.index} was measured for {window:.3g} s at a time, only {window / mean:.1f} times the mean "
            f"time in the system; it may not be in its steady state"
        )
    measured = min(int(run.served[pool.index]) for run in result.replications) / pool.replicas
    if not pool.overloaded and measured * (1.0 - pool.load) ** 2 < NEAR_SATURATION:
        yield (
            f"pool {pool.index} is offered {pool.load:.3f} of its capacity: so near to it, runs of {measured:.0f} "
            f"requests a replica are short and tend to show too little wait"
        )
