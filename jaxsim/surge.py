r"""What bursts do to a fleet with a cap: a bound on its waits that no scaling, routing or scheduling can undercut.

The fleet is taken at its best: every replica serves at the rate of its full batch, no request is on the wrong one, and
whatever can be ordered is ordered at time 0 and there after the start-up. With :math:`A(t)` requests arrived and
capacity :math:`C(t)` up to t, no more than :math:`D(t) = C(t) + \min_{s \le t} (A(s) - C(s))` have left (the fluid
limit), and those beyond what has left and what runs at a time still wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxsim._checks import require, require_non_negative, require_positive

GRID = 20_000
"""Instants at which the bound is computed; it is exact to the spacing."""


@dataclass(frozen=True)
class Surge:
    """What a fleet with a cap must do to its requests.

    Attributes:
        peak_rate: requests per second.
        capped_rate: that `max_replicas` serve at full batch.
        replicas_for_peak: replicas whose capacity at full batch the peak stays within.
        least_wait_s: the longest wait is at least this, however the fleet is run.
        waiting: most requests that wait at a time, at the least.
        at_s: when the request arrives that waits longest.
        text: all of it as a sentence.
    """

    peak_rate: float
    capped_rate: float
    replicas_for_peak: int
    least_wait_s: float
    waiting: float
    at_s: float
    text: str

    def allows(self, ttft_s: float) -> bool:
        """Whether the bound leaves room for an objective on the TTFT of every request; it promises nothing."""
        return self.least_wait_s < ttft_s


def surge(
    start_s: Any,
    rate: Any,
    *,
    end_s: float,
    replica_rate: float,
    replica_sequences: float,
    max_replicas: int,
    initial_replicas: int | None = None,
    startup_s: float = 0.0,
) -> Surge:
    """Bound the longest wait of a fleet under a rate that is constant on pieces.

    Args:
        start_s: starts of the pieces, seconds, ascending, the first 0.
        rate: requests per second on each, >= 0.
        end_s: end of the last piece.
        replica_rate: requests per second that one replica serves at full batch.
        replica_sequences: requests that one replica runs at a time.
        max_replicas: cap.
        initial_replicas: up at time 0; left out, all.
        startup_s: from the order of a replica to its first request.
    """
    starts, rates = np.asarray(start_s, dtype=np.float64), np.asarray(rate, dtype=np.float64)
    first = max_replicas if initial_replicas is None else initial_replicas
    require(starts.size >= 1, "the number of start_s", starts.size, ">= 1")
    require(rates.size == starts.size, "the number of rate", rates.size, f"{starts.size}, one for each piece")
    require(starts[0] == 0, "start_s[0]", starts[0], "0")
    require(np.diff(np.append(starts, end_s)) > 0, "steps of start_s and end_s", np.append(starts, end_s), "ascending")
    require_non_negative("rate", rates)
    require_positive("replica_rate", replica_rate)
    require_positive("replica_sequences", replica_sequences)
    require(max_replicas >= 1, "max_replicas", max_replicas, ">= 1")
    require(0 <= first <= max_replicas, "initial_replicas", first, f"from 0 to max_replicas ({max_replicas})")
    require_non_negative("startup_s", startup_s)
    edges_s = np.append(starts, end_s)
    counts = np.append(0.0, np.cumsum(np.diff(edges_s) * rates))
    horizon_s = end_s + startup_s + counts[-1] / (max_replicas * replica_rate)
    times = np.union1d(np.linspace(0.0, horizon_s, GRID), np.append(edges_s, startup_s))
    replicas = np.where(times >= startup_s, float(max_replicas), float(first))
    served = replica_rate * np.append(0.0, np.cumsum(np.diff(times) * replicas[:-1]))
    arrived = np.interp(times, edges_s, counts)
    waits, waiting = _waits(arrived, served, replicas * replica_sequences, times)
    at = int(np.argmax(waits))
    peak, capped = float(rates.max()), max_replicas * replica_rate
    needed = int(np.ceil(peak / replica_rate))
    fleet = f"a cap of {max_replicas} replicas ({capped:.3g} requests/s at full batch)"
    if first < max_replicas:
        fleet += f", {first} of them up at the start and the others {startup_s:g} s later"
    if waits[at] > 0:
        says = (
            f"makes requests wait for {waits[at]:.3g} s at {peak:.3g} requests/s, however it is scaled and run: no "
            f"TTFT objective below that can be met; {needed} replicas carry the peak, if they are up before it"
        )
    else:
        says = (
            f"has room for bursts of up to {peak:.3g} requests/s of this length; {needed} replicas carry them however "
            "long they last"
        )
    return Surge(peak, capped, needed, float(waits[at]), float(waiting.max()), float(times[at]), f"{fleet} {says}")


def _waits(
    arrived: Float[np.ndarray, " times"],
    served: Float[np.ndarray, " times"],
    running: Float[np.ndarray, " times"],
    times: Float[np.ndarray, " times"],
) -> tuple[Float[np.ndarray, " times"], Float[np.ndarray, " times"]]:
    """Wait of a request that arrives at each time, and how many wait then.

    Args:
        arrived: requests until then.
        served: requests that a fleet which never idles would have served until then.
        running: requests that run at a time.
    """
    left = served + np.minimum.accumulate(arrived - served)
    admitted = left + running
    place = np.searchsorted(admitted, arrived - 1e-9 * arrived[-1])
    waits = np.maximum(times[np.minimum(place, len(times) - 1)] - times, 0.0)
    return waits, np.maximum(arrived - admitted, 0.0)
