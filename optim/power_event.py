"""A curtailment of given length, simulated and as a fluid: P99s of the requests that arrive in it, and its power."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

import des
from des import Estimate, Sample, SimulationResult
from jaxsim.fleet import FleetDesign
from jaxsim.power import PowerLaw, power_w
from jaxsim.workload import Workload

QUANTILE = 0.99
MOST_REPLICATIONS, LEAST_REPLICATIONS = 8, 2
MOST_REQUESTS = 800_000
"""Requests of all replications of one event above which there are fewer."""

_GRID = 20_001


@dataclass(frozen=True)
class Event:
    """When a curtailment is on: from `lead_s`, by which an empty fleet has filled, for `length_s`."""

    lead_s: float
    length_s: float

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.lead_s + self.length_s


@dataclass(frozen=True)
class Setting:
    """What a fleet is curtailed to.

    Attributes:
        caps: running requests that one engine of each pool may have; None leaves the profiles' limits.
        replicas: of each pool that stay on.
    """

    caps: tuple[float, ...] | None
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class EventResult:
    """What the simulator found of the requests that arrived in an event, all replications together.

    Attributes:
        ttft_p99_s, tpot_p99_s: with 95 % intervals; None where no request had a second token.
        watts: of all GPUs, averaged over the event.
        requests: that arrived in it.
        replications: runs, each with one event.
    """

    ttft_p99_s: Estimate
    tpot_p99_s: Estimate | None
    watts: float
    requests: int
    replications: int


def simulated_watts(result: SimulationResult, gpus_per_replica: Sequence[float], power: PowerLaw) -> float:
    """Time average of the power of a simulated fleet's GPUs; replicas that take no requests draw nothing.

    Args:
        result: of `des.simulate`.
        gpus_per_replica: of each pool.
        power: of one GPU of each pool (`jaxsim.energy.stack_power`).
    """
    window_s = sum(run.window_s for run in result.replications)
    total = 0.0
    for p, pool in enumerate(result.pools):
        law = jax.tree.map(lambda v, p=p: v[p], power)
        share = pool.active_share
        watts = float(share @ np.asarray(power_w(law, np.arange(len(share)))))
        total += pool.replica_hours * 3600.0 / window_s * gpus_per_replica[p] * watts
    return total


def play_event(
    design: FleetDesign,
    workload: Workload,
    rate: float,
    event: Event,
    power: PowerLaw,
    setting: Setting,
    *,
    startup_s: float = 0.0,
    seed: int = 0,
) -> EventResult:
    """Simulate a fleet that is curtailed while `event` is on.

    Arrivals are Poisson and stop when the event is over, so exactly those that came in it are measured; they are
    followed to their last token, under the limits of before. Replicas switched off finish what they have; they are back
    on `startup_s` after the end.
    """
    whole = np.asarray(design.replicas).astype(int).tolist()
    schedule = None
    if list(setting.replicas) != whole:
        pools = list(range(len(whole)))
        schedule = des.Schedule(
            time_s=[event.lead_s] * len(whole) + [event.end_s] * len(whole),
            pool=[*pools, *pools],
            replicas=[*setting.replicas, *whole],
            startup_s=startup_s,
        )
    expected = rate * event.end_s
    result = des.simulate(
        design,
        workload,
        rate=rate,
        arrivals=des.PiecewiseRate(start_s=(0.0,), rate=(rate,), end_s=event.end_s),
        caps=None if setting.caps is None else des.Caps.event(event.lead_s, event.end_s, setting.caps),
        schedule=schedule,
        warmup_fraction=event.lead_s / event.end_s,
        replications=int(np.clip(MOST_REQUESTS / expected, LEAST_REPLICATIONS, MOST_REPLICATIONS)),
        seed=seed,
    )
    runs = result.replications
    ttft, tpot = (Sample(tuple(_defined(run.latencies(name)) for run in runs)) for name in ("ttft_s", "tpot_s"))
    gpus = np.asarray(design.profile.gpus_per_replica).tolist()
    return EventResult(
        ttft_p99_s=ttft.quantile(QUANTILE),
        tpot_p99_s=tpot.quantile(QUANTILE) if tpot.n else None,
        watts=simulated_watts(result, gpus, power),
        requests=result.requests,
        replications=len(runs),
    )


def _defined(values: np.ndarray) -> np.ndarray:
    return values[~np.isnan(values)]


@dataclass(frozen=True)
class Flow:
    """One pool as a fluid: requests per second that arrive, that it admits while curtailed and afterwards, and the
    requests that are admitted at once when the curtailment ends."""

    rate: float
    curtailed_rate: float
    later_rate: float
    burst: float


def fluid_wait(flows: Sequence[Flow], length_s: float) -> float:
    r"""P99 of the wait of those that arrive in an event, first come first served, as a fluid.

    Admitted up to t: :math:`D(t) = \min(\lambda t, \mu_c t)` while the event is on, then a burst and :math:`\mu` a
    second; who arrives at s is admitted when :math:`D(t) = \lambda s`. 0 where the curtailed
    pools keep up; noise is left out.
    """
    arrived_s = np.linspace(0.0, length_s, _GRID)
    waits = np.concatenate([_waits(flow, arrived_s, length_s) for flow in flows])
    weights = np.repeat([flow.rate for flow in flows], _GRID)
    order = np.argsort(waits)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(waits[order][np.searchsorted(reached, QUANTILE)])


def _waits(flow: Flow, arrived_s: Float[np.ndarray, " grid"], length_s: float) -> Float[np.ndarray, " grid"]:
    if flow.curtailed_rate >= flow.rate:
        return np.zeros_like(arrived_s)
    before = arrived_s * (flow.rate / flow.curtailed_rate)
    behind = np.maximum(flow.rate * arrived_s - flow.curtailed_rate * length_s - flow.burst, 0.0)
    after = length_s + behind / flow.later_rate
    return np.where(before <= length_s, before, after) - arrived_s
