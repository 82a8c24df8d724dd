"""One design, workload and convention, lowered once; plays streams of requests and measures what happened."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from des import lower
from des.lower import Fleet, History, Stream
from des.results import Replication
from des.routing import REASONS, Routing, route_by_length
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload


class Experiment(NamedTuple):
    """What all replications share: the lowered fleet, the kinds of requests, and where each goes."""

    convention: str
    warmup_fraction: float
    fleet: Fleet
    kinds: np.ndarray
    routing: Routing
    weight: np.ndarray
    output_tokens: np.ndarray

    @classmethod
    def of(cls, design: FleetDesign, workload: Workload, *, convention: str, warmup_fraction: float) -> Experiment:
        """Lower a design and a workload."""
        fleet = lower.lower_fleet(design, convention)
        routing = route_by_length(design, workload, max_active=fleet.max_active, free_blocks=fleet.kv_blocks)
        return cls(
            convention,
            warmup_fraction,
            fleet,
            lower.lower_kinds(design, workload, routing, convention),
            routing,
            np.asarray(workload.weight),
            np.asarray(workload.output_tokens),
        )

    def run(self, stream: Stream, rate: float | None) -> Replication:
        """Play one stream to the end and measure it between the warm-up and the last arrival.

        Args:
            rate: that the stream was drawn with, requests per second; None for a trace.
        """
        end = float(stream.arrival_s[-1])
        start = self.warmup_fraction * end
        measured = stream.kind[np.searchsorted(stream.arrival_s, start) :]
        if rate is not None:
            steps = self._offered_steps(np.arange(len(self.kinds)), rate * self.weight)
        else:
            steps = self._offered_steps(measured, np.full(len(measured), 1.0 / (end - start or np.inf)))
        accepted = _accepted(self.routing, stream)
        history = lower.play(self.fleet, self.kinds, accepted, window_s=(start, end))
        return Replication(
            **self._latencies(accepted, history, start),
            **self._occupancy(accepted, history, start, end),
            simulated=len(stream.kind),
            offered=len(measured),
            rejected=self._rejected(measured),
            window_s=end - start,
            offered_steps=steps,
            totals=history.totals,
        )

    def _latencies(self, stream: Stream, history: History, start: float) -> dict[str, np.ndarray]:
        """Each request that arrived after the warm-up."""
        after = slice(int(np.searchsorted(stream.arrival_s, start)), None)
        arrival, kind = stream.arrival_s[after], stream.kind[after]
        first, end = history.first_s[after], history.end_s[after]
        gaps = self.output_tokens[kind] - 1.0
        undefined = np.full(len(gaps), np.nan)
        return {
            "pool": self.routing.pool[kind],
            "wait_s": history.admit_s[after] - arrival,
            "ttft_s": first - arrival,
            "tpot_s": np.divide(end - first, gaps, out=undefined, where=gaps > 0),
            "e2e_s": end - arrival,
        }

    def _occupancy(self, stream: Stream, history: History, start: float, end: float) -> dict[str, np.ndarray]:
        """Integrals over the measured time and growth of the queues, per pool; exact, from each request."""
        pool = self.routing.pool[stream.kind].astype(np.intp)
        running = np.minimum(history.end_s, end) - np.maximum(history.admit_s, start)
        np.maximum(running, 0.0, out=running)
        waits_at_start = (stream.arrival_s <= start) & (history.admit_s > start)
        queued = np.subtract(history.admit_s > end, waits_at_start, dtype=np.float64)
        return {
            "active_s": self._per_pool(pool, running),
            "block_s": self._per_pool(pool, running * self.kinds["blocks"][stream.kind]),
            "queue_growth": self._per_pool(pool, queued),
        }

    def _per_pool(self, pool: np.ndarray, values: np.ndarray) -> np.ndarray:
        sums = np.bincount(pool, values, minlength=len(self.fleet.replicas))
        return sums.astype(np.float64, copy=False)  # bincount of nothing is of integers

    def _offered_steps(self, kind: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Steps per second that accepted requests ask of each pool; `weight` in requests per second."""
        kept = self.routing.pool[kind] >= 0
        kind, weight = kind[kept], weight[kept]
        steps = self.kinds["full_steps"][kind] + 1.0 + self.kinds["decode_steps"][kind]
        return self._per_pool(self.routing.pool[kind], weight * steps)

    def _rejected(self, kind: np.ndarray) -> np.ndarray:
        """Counts by reason and by the pool that was meant, the last column for none."""
        counts = np.zeros((len(REASONS), len(self.fleet.replicas) + 1), dtype=np.int64)
        reason = self.routing.reason[kind]
        rejected = reason >= 0
        np.add.at(counts, (reason[rejected], self.routing.meant[kind][rejected]), 1)
        return counts


def _accepted(routing: Routing, stream: Stream) -> Stream:
    kept = routing.pool[stream.kind] >= 0
    return stream if kept.all() else Stream(stream.arrival_s[kept], stream.kind[kept])
