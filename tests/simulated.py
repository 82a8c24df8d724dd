"""Small fleets and runs that the tests of `des.simulate` share, and what they read off a result."""

import numpy as np
import pytest
from fleets import make_profile, small_workload

import des
from des import KvTransfer, Serving
from jaxsim.fleet import FleetDesign

LONGEST = 8000.0
LINK = KvTransfer(kv_bytes_per_token=2.0, bytes_per_s=100_000.0, latency_s=0.004)
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
CHUNKED = Serving(scheduling="chunked", max_num_batched_tokens=512)


def fleet(*replicas, **changes):
    """Pools of one toy profile, each as long as the longest request."""
    profiles = [make_profile(**changes)] * len(replicas)
    return FleetDesign.of(profiles, [float(r) for r in replicas], [LONGEST] * len(replicas))


def run(design, workload=None, **options):
    """One replication with every request kept, unless told otherwise."""
    given = {"num_requests": 20_000, "replications": 1, "keep": "requests", "seed": 1} | options
    return des.simulate(design, workload or small_workload(), **given)


def window(result, replication=0):
    """Start and end of the measured time."""
    one = result.replications[replication]
    return one.start_s, one.start_s + one.window_s


def overlap(start, end, since, until):
    """Seconds that stretches have in common with [since, until], in all."""
    return float(np.clip(np.minimum(end, until) - np.maximum(start, since), 0.0, None).sum())


def same_figures(one, other, relative):
    """Counts are equal, and quantiles and means within `relative`."""
    for metric in ("ttft", "tpot", "wait", "e2e"):
        for ours, theirs in zip((one, *one.pools), (other, *other.pools), strict=True):
            mine, its = getattr(ours, metric), getattr(theirs, metric)
            assert mine.n == its.n
            assert mine.mean().value == pytest.approx(its.mean().value, rel=1e-9)
            for q in QUANTILES:
                assert mine.quantile(q).value == pytest.approx(its.quantile(q).value, rel=relative, abs=1e-12)
    for ours, theirs in zip(one.pools, other.pools, strict=True):
        for name in ("requests", "rejected", "mean_active", "mean_queued", "kv_utilization", "preemptions", "load"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-9, nan_ok=True)


def stretches(series):
    """Start and end of each stretch."""
    return [(start, start + series.width_s) for start in series.start_s.tolist()]
