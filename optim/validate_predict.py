"""What a profile predicts of a pool at the measured load: by simulation, and by the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import des
from des import Sample
from des.stats import half_width
from jaxsim.fit.rescale import scaled
from jaxsim.observed import MEAN, QUANTILES
from jaxsim.profiles import Profile
from optim.figures import figures
from optim.validate_load import Load

Key = tuple[str, str]

REPLICATIONS = 8
LEAST_REQUESTS, MOST_REQUESTS = 4_000, 20_000
"""Of one replication."""
WARMUP = 0.2
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Figure:
    """A predicted latency, seconds.

    Attributes:
        value_s: inf in overload.
        half_s: half its 95 % interval; 0 of the model.
        window_half_s: half the interval of the same figure in a window of as many requests as were measured; NaN where
            it is not known.
    """

    value_s: float
    half_s: float
    window_half_s: float


@dataclass(frozen=True)
class Predicted:
    """What the pool shows under a profile; NaN is not known.

    Attributes:
        figures: by figure and statistic, as `jaxsim.observed.Reading.key`.
        running, waiting: requests in one replica.
        kv_share: of the KV cache, the share filled so far by those that run; NaN of a simulation that counts slots.
        utilization: offered load over capacity at full batch.
        overloaded: whether the pool cannot keep up.
        requests: that were simulated; 0 of the model.
    """

    figures: dict[Key, Figure]
    running: float
    waiting: float
    kv_share: float
    utilization: float
    overloaded: bool
    requests: int

    @property
    def in_flight(self) -> float:
        """Requests in one replica, running or waiting."""
        return self.running + self.waiting

    def value(self, key: Key) -> float:
        """A figure, seconds: inf in overload, NaN where it is not predicted."""
        found = self.figures.get(key)
        if found is None:
            return math.nan
        return math.inf if self.overloaded else found.value_s


Judge = Callable[[Profile], Predicted]


def simulated(load: Load, profile: Profile, *, measured: int, seed: int) -> Predicted:
    """Simulate the pool alone, in the convention of the plan's model.

    Args:
        load: the pool and what it was sent.
        profile: to be tried; prompts in a prefix cache are taken off its prefill.
        measured: requests in the measurement, of which the scatter is wanted.
        seed: of the simulation; equal seeds see the same arrivals and lengths, so that figures are smooth in the
            profile.
    """
    tried = scaled(profile, prompt=load.computed_share)
    whole_pool = measured * load.replicas / load.covered
    each = int(np.clip(whole_pool, LEAST_REQUESTS, MOST_REQUESTS))
    result = des.simulate(
        load.design(tried),
        load.workload,
        rate=None if load.concurrency is not None else load.rate,
        concurrency=load.concurrency,
        num_requests=round(REPLICATIONS * each / (1.0 - WARMUP)),
        replications=REPLICATIONS,
        warmup_fraction=WARMUP,
        seed=seed,
        convention=load.model,
        itl=True,
    )
    pool = result.pools[0]
    stretch = math.sqrt(each / max(measured, 1))
    samples = {"ttft": result.ttft, "tpot": result.tpot, "itl": result.itl, "e2e": result.e2e}
    found = {
        (figure, statistic): _figure(sample, statistic, stretch)
        for figure, sample in samples.items()
        for statistic in (MEAN, *QUANTILES)
        if sample.n
    }
    return Predicted(
        figures=found,
        running=pool.mean_active / load.replicas,
        waiting=pool.mean_queued / load.replicas,
        kv_share=pool.kv_utilization * _filled(load) if load.model == "step" else math.nan,
        utilization=math.nan,
        overloaded=result.overloaded,
        requests=result.num_requests,
    )


def _figure(sample: Sample, statistic: str, stretch: float) -> Figure:
    said = sample.mean(CONFIDENCE) if statistic == MEAN else sample.quantile(QUANTILES[statistic], CONFIDENCE)
    apart = [Sample((group,)) for group in sample.groups]
    values = [each.mean() if statistic == MEAN else each.quantile(QUANTILES[statistic]) for each in apart if each.n]
    half = half_width(np.array([each.value for each in values]), CONFIDENCE)
    return Figure(said.value, half, half * math.sqrt(len(values)) * stretch)


def _filled(load: Load) -> float:
    """Of the KV cache that running requests reserve, the share that they have filled, averaged over their steps."""
    weight, inputs, outputs = (
        np.asarray(each, dtype=float)
        for each in (load.workload.weight, load.workload.input_tokens, load.workload.output_tokens)
    )
    return float((weight * outputs) @ (inputs + 0.5 * outputs) / ((weight * outputs) @ (inputs + outputs)))


def modelled(load: Load, profile: Profile) -> Predicted | None:
    """The model's figures of the pool; None in a closed loop, which it does not know.

    It has no mean of TTFT, no gaps between tokens and no E2E; the mean gap is taken as the mean TPOT.
    """
    if load.concurrency is not None:
        return None
    tried = scaled(profile, prompt=load.computed_share)
    found = figures(load.design(tried), load.workload, load.rate, model=load.model)
    pools = found.pools
    values = {
        ("ttft", "p50"): pools.ttft_p50_s,
        ("ttft", "p99"): pools.ttft_p99_s,
        ("tpot", MEAN): pools.tpot_mean_s,
        ("itl", MEAN): pools.tpot_mean_s,
        ("tpot", "p99"): pools.tpot_p99_s,
    }
    running = float(pools.active_batch[0])
    tokens = _mean_filled(load)
    return Predicted(
        figures={key: Figure(float(np.asarray(value)[0]), 0.0, math.nan) for key, value in values.items()},
        running=running,
        waiting=load.replica_rate * float(np.asarray(pools.wait_mean_s)[0]),
        kv_share=min(running * tokens / float(profile.kv_tokens), 1.0),
        utilization=float(np.asarray(pools.utilization)[0]),
        overloaded=bool(np.asarray(pools.overloaded)[0]),
        requests=0,
    )


def _mean_filled(load: Load) -> float:
    """Tokens that a running request holds, averaged over its steps."""
    weight, inputs, outputs = (
        np.asarray(each, dtype=float)
        for each in (load.workload.weight, load.workload.input_tokens, load.workload.output_tokens)
    )
    return float((weight * outputs) @ (inputs + 0.5 * outputs) / (weight @ outputs))
