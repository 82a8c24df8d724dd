"""How far the model's P99s can be trusted, in words and as numbers."""

from __future__ import annotations

from typing import Any

from jaxsim.evaluate import Metrics
from jaxsim.validity import REGIONS, validity

OF_THE_MODEL = "model, pool"
"""How notes begin that `validity_entry` has as numbers."""


def validity_notes(metrics: Metrics) -> list[str]:
    """What the model's P99s are worth, a note for the pools of each region."""
    found, notes = validity(metrics), []
    for region in REGIONS:
        pools = [str(p) for p, pool in enumerate(found) if pool is not None and pool.region is region]
        if pools:
            (ttft, ttft_most), (tpot, tpot_most) = region.ttft_p99, region.tpot_p99
            notes.append(
                f"{OF_THE_MODEL} {', '.join(pools)}: {region.words}; of fleets like that its P99 TTFT was within "
                f"{ttft:.1%} of the simulator's in half and within {ttft_most:.0%} in nine of ten, P99 TPOT within "
                f"{tpot:.1%} and {tpot_most:.0%} (docs/accuracy-latency.md)"
            )
    steep = [str(p) for p, pool in enumerate(found) if pool is not None and pool.steep]
    if steep:
        notes.append(
            f"{OF_THE_MODEL} {', '.join(steep)}: about 1 % of the requests wait for a slot, so P99 TTFT is on the edge "
            "of the queue and moves much with the load: lean on the simulated figure and its interval"
        )
    return notes


def validity_entry(metrics: Metrics) -> list[dict[str, Any] | None]:
    """The same of each pool, as shares; None for one without a P99."""
    return [
        None
        if pool is None
        else {
            "region": pool.region.words,
            "ttft_p99_error": dict(zip(("median", "p90"), pool.region.ttft_p99, strict=True)),
            "tpot_p99_error": dict(zip(("median", "p90"), pool.region.tpot_p99, strict=True)),
            "ttft_p99_is_steep": pool.steep,
        }
        for pool in validity(metrics)
    ]
