"""What a reader must know before using a result's figures, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

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
    for reason, count in result.rejected_by_reason.items():
        if count > 0:
            share = count / result.requests
            yield f"{count:,} of {result.requests:,} requests ({share:.2%}) were rejected: {reason}"
    if result.num_requests < FEW_REQUESTS:
        yield f"{result.num_requests:,} requests were simulated; below {FEW_REQUESTS:,} a P99 is not stable"
    for pool in result.pools:
        yield from _short_runs(result, pool)


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
    measured = min(int((run.pool == pool.index).sum()) for run in result.replications) / pool.replicas
    if not pool.overloaded and measured * (1.0 - pool.load) ** 2 < NEAR_SATURATION:
        yield (
            f"pool {pool.index} is offered {pool.load:.3f} of its capacity: so near to it, runs of {measured:.0f} "
            f"requests a replica are short and tend to show too little wait"
        )
