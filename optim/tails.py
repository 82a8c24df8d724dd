"""The distributions of TTFT and TPOT, the simulator's beside the model's: the curves that plots draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from des import Estimate, Sample, SimulationResult
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload
from optim.figures import latency_tails
from optim.problem import SLO
from optim.rules import Rules

LEAST_TAIL = 1e-4
"""Share of the requests below which a tail is not drawn."""
_POINTS = 160
_FAR = 30.0
"""Times the longest time drawn above which an objective is left off the axis."""


@dataclass(frozen=True)
class Tail:
    """P(T > t) of one latency over the requests of all pools.

    Attributes:
        times_s: where it is taken, ascending.
        simulated: share of the simulated requests; NaN where none was longer.
        modelled: the model's; None where it has no figures.
        model: its name.
        simulated_p99_s: with its interval.
        modelled_p99_s: where `modelled` falls to 1 %; None where it does not within the times.
        objective_s: on the P99; None without one.
    """

    times_s: Float[np.ndarray, " times"]
    simulated: Float[np.ndarray, " times"]
    modelled: Float[np.ndarray, " times"] | None
    model: str | None
    simulated_p99_s: Estimate
    modelled_p99_s: float | None
    objective_s: float | None


@dataclass(frozen=True)
class Tails:
    """Of both latencies; TPOT is None where no request had one."""

    ttft: Tail
    tpot: Tail | None


def tails(
    result: SimulationResult,
    design: FleetDesign,
    workload: Workload,
    *,
    rate: float,
    model: str | None,
    slo: SLO | None,
    rules: Rules | None = None,
) -> Tails:
    """Take both distributions of a simulated fleet.

    Args:
        result: of the simulator, with a TTFT of at least one request.
        design, workload, rate, rules: what was simulated.
        model: whose tails stand beside; None where it has no figures of the fleet.
        slo: objectives, which the times reach unless they are far beyond.
    """
    limits = (None, None) if slo is None else (slo.ttft_p99_s, slo.tpot_p99_s)
    samples = (result.ttft, result.tpot if result.tpot.n else None)
    times = [None if s is None else _times(s, limit) for s, limit in zip(samples, limits, strict=True)]
    modelled: tuple[np.ndarray | None, ...] = (None, None)
    if model is not None:
        asked = [t if t is not None else np.ones(_POINTS) for t in times]
        modelled = latency_tails(design, workload, rate, asked[0], asked[1], model=model, rules=rules)
    made = [
        None if s is None or t is None else _tail(s, t, law, model, limit)
        for s, t, law, limit in zip(samples, times, modelled, limits, strict=True)
    ]
    assert made[0] is not None
    return Tails(made[0], made[1])


def _times(sample: Sample, objective: float | None) -> np.ndarray:
    """From the shortest to what all but `LEAST_TAIL` of the requests stay below, and to the objective."""
    simulated = sample.values
    last = float(np.quantile(simulated, 1.0 - LEAST_TAIL))
    first = max(float(simulated.min()), last * 1e-4)
    if objective is not None and objective < _FAR * last:
        last = max(last, 1.15 * objective)
    return np.geomspace(0.8 * first, last, _POINTS)


def _tail(
    sample: Sample, times: np.ndarray, modelled: np.ndarray | None, model: str | None, objective: float | None
) -> Tail:
    simulated = np.sort(sample.values)
    above = 1.0 - np.searchsorted(simulated, times, side="right") / len(simulated)
    return Tail(
        times_s=times,
        simulated=np.where(above > 0, above, np.nan),
        modelled=modelled,
        model=model,
        simulated_p99_s=sample.quantile(0.99),
        modelled_p99_s=None if modelled is None else _crossing(times, modelled),
        objective_s=objective,
    )


def _crossing(times: np.ndarray, tail: np.ndarray) -> float | None:
    """Where a tail falls to 1 %."""
    below = np.flatnonzero(tail <= 0.01)
    if below.size == 0 or below[0] == 0:
        return None
    k = int(below[0])
    low, high = np.log(max(tail[k], 1e-12)), np.log(tail[k - 1])
    part = (high - np.log(0.01)) / (high - low) if high > low else 1.0
    return float(np.exp(np.log(times[k - 1]) + part * (np.log(times[k]) - np.log(times[k - 1]))))
