"""Speed of the peer, vllm-sr-sim, printed as one JSON object; `speed.py` runs it in an environment that has the peer.

It calls the peer's own public functions on the peer's own data, on the jobs that `speed.py` times for fleetgrad.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import fleet_sim
from fleet_sim.core.fleet import Fleet, FleetConfig, PoolConfig
from fleet_sim.gpu_profiles.profiles import A100_80GB, H100_80GB
from fleet_sim.optimizer import FleetOptimizer, analytical
from fleet_sim.workload.synthetic import CdfWorkload, PoissonWorkload

CONTEXT = 8192
UTILIZATION = 0.75
REQUESTS = {1: 40_000, 10: 15_000, 100: 2_000, 1000: 500}


def runs_per_s(job, at_least_s=0.5):
    """Mean speed over whole runs of `job`, at least one."""
    start, runs = time.perf_counter(), 0
    while runs == 0 or time.perf_counter() - start < at_least_s:
        job()
        runs += 1
    return runs / (time.perf_counter() - start)


def designs_per_s(cdf, rate):
    """Two-pool designs sized, one per breakpoint; no gradients."""
    thresholds = [t for t, share in cdf if 0.01 <= share <= 0.999 and t < CONTEXT]

    def sweep():
        for threshold in thresholds:
            sizing = FleetOptimizer(
                gpu_short=A100_80GB, gpu_long=A100_80GB, B_short=threshold, t_slo_ms=500.0, long_max_ctx=CONTEXT
            )
            assert sizing.sweep_analytical(cdf, rate, gammas=[1.0])

    return len(thresholds) * runs_per_s(sweep)


def requests_per_s(cdf, replicas, num_requests):
    """Its fleet simulator on one pool."""
    capacity = analytical.calibrate(cdf, CONTEXT, H100_80GB)[0]
    rate = UTILIZATION * replicas * capacity
    arrivals = PoissonWorkload(rate, CdfWorkload(cdf), n_requests=num_requests).generate()
    fleet = Fleet(FleetConfig([PoolConfig("all", H100_80GB, replicas, CONTEXT)], router_kwargs={"threshold": CONTEXT}))
    return num_requests * runs_per_s(lambda: fleet.run(arrivals), at_least_s=0.0)


def main():
    """Measure and print."""
    cdf = [
        (int(t), float(s))
        for t, s in json.loads(Path(fleet_sim.__file__).with_name("data").joinpath("azure_cdf.json").read_text())
    ]
    servers = (100, 1_000, 10_000, 100_000)
    figures = {
        "version": version("vllm-sr-sim"),
        "designs_per_s": {rate: designs_per_s(cdf, float(rate)) for rate in (20, 200, 2000)},
        "erlang_c_per_s": {c: runs_per_s(lambda c=c: analytical.erlang_c(c, 0.9 * c), 0.2) for c in servers},
        "requests_per_s": {c: requests_per_s(cdf, c, n) for c, n in REQUESTS.items()},
    }
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
