"""The plain queue: c servers that each serve one request for its own time, first come, first served (M/G/c).

It shares nothing with the engine and is there to check queueing formulas. A request takes the server that is
free first; its wait is what is left of that server's work at its arrival.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from des._jit import entry
from des.arrivals import generators
from des.stats import Sample
from jaxsim._checks import require, require_positive


@entry
def serve(arrival_s, service_s, free_s, wait_s):
    """Write the waits; `free_s` is a heap of the instants at which servers become free."""
    num_servers = free_s.size
    for i in range(arrival_s.size):
        start = max(arrival_s[i], free_s[0])
        wait_s[i] = start - arrival_s[i]
        end = start + service_s[i]
        j = 0
        child = 1
        while child < num_servers:
            if child + 1 < num_servers and free_s[child + 1] < free_s[child]:
                child += 1
            if free_s[child] >= end:
                break
            free_s[j] = free_s[child]
            j = child
            child = 2 * j + 1
        free_s[j] = end


def simulate_slots(
    arrival_s: Float[np.ndarray, " requests"], service_s: Float[np.ndarray, " requests"], num_servers: int
) -> Float[np.ndarray, " requests"]:
    """Waits in seconds of requests in order of arrival.

    Args:
        arrival_s: instants, ascending.
        service_s: service time of each.
        num_servers: servers, >= 1.
    """
    require(num_servers >= 1, "num_servers", num_servers, ">= 1")
    wait_s = np.empty(len(arrival_s))
    serve(arrival_s, service_s, np.zeros(num_servers), wait_s)
    return wait_s


def simulate_slot_server(
    service_s: np.ndarray | Callable[[np.random.Generator, int], np.ndarray],
    rate: float,
    *,
    num_servers: int,
    num_requests: int = 400_000,
    seed: int = 0,
    warmup_fraction: float = 0.2,
    replications: int = 8,
) -> Sample:
    """Waits of an M/G/c queue, with intervals.

    Args:
        service_s: service times in seconds to draw from, equally likely; or a function of a generator and a
            number that draws so many.
        rate: Poisson arrivals per second.
        num_servers: c.
        num_requests: in all replications together.
        seed: of the random numbers; arrivals are those of `des.simulate` with the same seed.
        warmup_fraction: share of the time left out at the start.
        replications: independent runs.

    Returns:
        Waits in seconds, one group per replication.
    """
    require_positive("rate", rate)
    require(1 <= replications <= num_requests, "replications", replications, "from 1 to num_requests")
    groups = []
    for i in range(replications):
        gaps, lengths = generators(seed, i)
        arrival_s = np.cumsum(gaps.standard_exponential(num_requests // replications)) / rate
        number = len(arrival_s)
        drawn = service_s(lengths, number) if callable(service_s) else lengths.choice(service_s, number)
        wait_s = simulate_slots(arrival_s, np.asarray(drawn, dtype=np.float64), num_servers)
        groups.append(wait_s[np.searchsorted(arrival_s, warmup_fraction * arrival_s[-1]) :])
    return Sample(tuple(groups))
