"""What a plan's report adds to its document: other loads, the knobs, the candidates."""

from __future__ import annotations

import numpy as np

from jaxsim.evaluate import Metrics
from jaxsim.units import MS_PER_S
from optim.documents import Document
from optim.plan_load import Load
from optim.sensitivity_report import headroom_entry


def load_entry(load: Load, rate: float) -> Document:
    """P99s over the rate, the knee and the headroom; `rate` is the plan's own."""
    return {
        "rate_rps": rate,
        "overload_rate_rps": load.overload_rate,
        "knee_rate_rps": load.knee_rate,
        "headroom": headroom_entry(load.headroom),
        "points": [_point(float(r), figures) for r, figures in zip(load.rates, load.figures, strict=True)],
    }


def _point(rate: float, figures: Metrics) -> Document:
    pools = figures.pools
    columns = (np.asarray(v).tolist() for v in (pools.utilization, pools.ttft_p99_s, pools.tpot_p99_s))
    return {
        "rate_rps": rate,
        "utilization": float(figures.utilization),
        "ttft_p99_ms": float(figures.ttft_p99_s) * MS_PER_S,
        "tpot_p99_ms": float(figures.tpot_p99_s) * MS_PER_S,
        "overloaded": bool(figures.overloaded),
        "pools": [
            {"utilization": load, "ttft_p99_ms": ttft * MS_PER_S, "tpot_p99_ms": tpot * MS_PER_S}
            for load, ttft, tpot in zip(*columns, strict=True)
        ],
    }
