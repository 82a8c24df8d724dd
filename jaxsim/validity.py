"""How far the `step` model's P99s can be trusted, pool by pool: its errors against the simulator, by region.

Errors are those of `benchmarks/accuracy.py` (docs/accuracy-latency.md), 240 fleets of six workloads and eight measured
profiles with 8 to 512 running requests at utilisations from 0.3 to 0.95; what it has not tried, such as a limit by KV
tokens that grow, has no figure here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxsim.evaluate import Metrics


@dataclass(frozen=True)
class Region:
    """Pools alike in what limits the model.

    Attributes:
        words: what they have in common.
        most_prefill: largest share of the work that is prefill.
        ttft_p99, tpot_p99: absolute relative errors of the P99s, median and 90th percentile.
    """

    words: str
    most_prefill: float
    ttft_p99: tuple[float, float]
    tpot_p99: tuple[float, float]


REGIONS = (
    Region("prefill is hardly any of the work", 0.02, (0.007, 0.06), (0.005, 0.02)),
    Region("prefill is part of the work", 1.0, (0.05, 0.20), (0.10, 0.38)),
)
STEEP = 1.6
"""Where the share of requests that wait is within this factor of 1 %, P99 TTFT is on the edge of the queue: there it
moves by itself with the load, and the error of the quantile says little."""


@dataclass(frozen=True)
class Validity:
    """What the model's P99s of one pool are worth.

    Attributes:
        region: what its errors are known for.
        steep: whether P99 TTFT is on the edge of the queue; see `STEEP`.
    """

    region: Region
    steep: bool


def validity(metrics: Metrics) -> tuple[Validity | None, ...]:
    """Of each pool of figures of the `step` model; None for an empty or overloaded one, which has no P99 to err."""
    pools = metrics.pools
    columns = (pools.rate, pools.overloaded, pools.prefill_work_share, pools.wait_probability)
    return tuple(
        None if rate == 0.0 or overloaded else _of(float(prefill), float(waits))
        for rate, overloaded, prefill, waits in zip(*(np.asarray(column) for column in columns), strict=True)
    )


def _of(prefill: float, waits: float) -> Validity:
    region = next(region for region in REGIONS if prefill <= region.most_prefill * (1.0 + 1e-9))
    return Validity(region, 0.01 / STEEP < waits < 0.01 * STEEP)
