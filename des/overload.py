"""Whether a pool keeps up with what it is offered, decided from what its engines did.

The load of a pool is what it is offered over what it delivers when it is full. Both are counted in request-steps: one
request in one step. A second of arrivals asks for (arrival rate) x (mean steps of a request); a full engine delivers
its batch every step. Full means that a request waits because the admission rule refused it: only then does the loop
count (`des._state.TOTAL`). So load estimates utilisation at full batch, stable or not, and nothing in it is a
queueing formula. On engines with 64 to 256 slots it came out within 0.01 of the exact value for loads from 0.9 to 1.2
once a replica had been measured over 5,000 requests.

**Rule.** A pool is overloaded when all three hold:

1. the one-sided 99 % lower bound of its load is above 1, over replications, or over stretches of time where there is
   one run;
2. over the last quarter of the measured time its engines were full for more than half of it;
3. its queues were longer at the end of the measured time than at its start.

A stable pool at utilisation 0.95 fails the first; a short burst fails the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from des.stats import lower_bound

CONFIDENCE = 0.99
FULL_SHARE = 0.5
MOSTLY = 0.9


@dataclass(frozen=True)
class OverloadTest:
    """Load (NaN where the pool was never full), growth of its queues in requests a second, and the verdict."""

    load: float
    queue_growth_per_s: float
    overloaded: bool

    @classmethod
    def of(
        cls, replications: Sequence[Any], pool: int, replicas: int, *, closed: bool = False, budgeted: bool = False
    ) -> OverloadTest:
        """The test for one pool from its replications (`des.results.Replication`).

        A `closed` loop waits for its answers, so it is never overloaded. Where steps have a token budget (`budgeted`),
        a request may be refused for a step or two beside an engine that is far from full, so only stretches count in
        which somebody waited nearly all the time.
        """
        window = sum(run.window_s for run in replications)
        totals = np.stack([run.totals[pool] for run in replications])
        if not window or not totals["full_s"].sum():
            return cls(np.nan, 0.0, False)
        offered = np.mean([run.offered_steps[pool] for run in replications])
        growth = sum(run.queue_growth[pool] for run in replications) / window
        axis = 1 if len(totals) > 1 else 0
        if budgeted:
            width = window / totals.size
            totals = np.where(totals["full_s"] > MOSTLY * width * replicas, totals, np.zeros_like(totals))
        full_s, full_steps = totals["full_s"].sum(axis=axis), totals["full_steps"].sum(axis=axis)
        full = full_s > 0
        if not full.any():
            return cls(np.nan, float(growth), False)
        loads = offered * full_s[full] / (replicas * full_steps[full])
        load = offered * totals["full_s"].sum() / (replicas * totals["full_steps"].sum())
        last = totals["full_s"][:, -(totals.shape[1] // 4) :].sum() / (0.25 * window * replicas)
        growing = not closed and lower_bound(loads, CONFIDENCE) > 1.0 and growth > 0.0
        return cls(float(load), float(growth), bool(growing and last > FULL_SHARE))
