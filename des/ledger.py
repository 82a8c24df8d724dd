"""Where the records of served requests go: arrays in order of arrival, or counts in bins, however long the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from des import _state
from des._write import write
from des.histogram import Histogram, LogHistogram

KEEP = ("latencies", "requests", "statistics")
METRICS = ("wait_s", "ttft_s", "tpot_s", "e2e_s")
PHASES = ("prefill_wait_s", "transfer_s")
"""Further latencies of a disaggregated fleet."""


class Columns(NamedTuple):
    """Figures of requests: the pool that each ended in, when it was sent, its latencies (seconds) and its steps."""

    pool: np.ndarray
    sent_s: np.ndarray
    wait_s: np.ndarray
    ttft_s: np.ndarray
    tpot_s: np.ndarray
    e2e_s: np.ndarray
    steps: np.ndarray
    prefill_steps: np.ndarray

    @classmethod
    def of(cls, number: int) -> Columns:
        """Room for so many."""
        dtypes = (np.int16, *[np.float64] * 5, np.int32, np.int32)
        return cls(*(np.empty(number, dtype) for dtype in dtypes))

    def after(self, start: float) -> Columns:
        """The requests sent from `start` on, of requests in order."""
        first = int(np.searchsorted(self.sent_s, start))
        return Columns(*(column[first:] for column in self))

    def sum_steps(self, num_pools: int) -> np.ndarray:
        """Steps taken of each pool; those of prompts that are computed for another pool belong to the first."""
        sums = np.bincount(self.pool, self.steps - self.prefill_steps, minlength=num_pools).astype(np.float64)
        sums[0] += self.prefill_steps.sum()
        return sums


def further(finished: np.ndarray, name: str) -> np.ndarray:
    """A latency that only some runs have, seconds; NaN where it is undefined."""
    if name == "client_wait_s":
        return finished["sent_s"] - finished["due_s"]
    if name == "prefill_wait_s":
        return finished["admit_s"] - finished["sent_s"]
    return np.where(finished["decode_admit_s"] < 0, np.nan, finished["arrive_s"] - finished["prefill_end_s"])


class Ledger:
    """Figures of every request, by number.

    Attributes:
        columns: those of all runs.
        latencies: all latencies by name, seconds.
        preemptions: of each; None where nothing is ever preempted.
        records: everything of each; None unless asked for.
    """

    def __init__(
        self,
        number: int,
        names: tuple[str, ...],
        pool_of_replica: np.ndarray,
        output_tokens: np.ndarray,
        *,
        preempts: bool,
        records: bool,
    ) -> None:
        self._pool_of_replica, self._output = pool_of_replica, output_tokens
        self.columns = Columns.of(number)
        self._further = {name: np.empty(number) for name in names}
        self.preemptions = np.empty(number, dtype=np.int32) if preempts else None
        self.records = np.empty(number, dtype=_state.FINISHED) if records else None

    def __call__(self, finished: np.ndarray) -> None:
        """Write down records."""
        at = np.ascontiguousarray(finished["number"])
        write(finished, at, self._pool_of_replica, self._output, *self.columns)
        for name, values in self._further.items():
            values[at] = further(finished, name)
        if self.preemptions is not None:
            self.preemptions[at] = finished["preemptions"]
        if self.records is not None:
            self.records[at] = finished

    @property
    def pool(self) -> np.ndarray:
        """The pool that each request ended in."""
        return self.columns.pool

    @property
    def latencies(self) -> dict[str, np.ndarray]:
        """All latencies by name, seconds."""
        return {name: self.columns._asdict()[name] for name in METRICS} | self._further

    def measured_steps(self, start: float, num_pools: int) -> np.ndarray:
        """Steps that the requests sent from `start` on took of each pool."""
        return self.columns.after(start).sum_steps(num_pools)

    def after(self, start: float) -> Ledger:
        """The requests sent from `start` on; records are kept of all."""
        first = int(np.searchsorted(self.columns.sent_s, start))
        self.columns = self.columns.after(start)
        self._further = {name: values[first:] for name, values in self._further.items()}
        if self.preemptions is not None:
            self.preemptions = self.preemptions[first:]
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        """All that it holds, by name."""
        others = {"preemptions": self.preemptions, "records": self.records}
        held = {name: values for name, values in others.items() if values is not None}
        return self.columns._asdict() | self._further | held

    def fill(self, arrays: Mapping[str, np.ndarray]) -> Ledger:
        """Hold what `arrays` of one like this said."""
        self.columns = Columns(*(arrays[name] for name in Columns._fields))
        self._further = {name: arrays[name] for name in self._further}
        self.preemptions = arrays.get("preemptions")
        self.records = arrays["records"].astype(_state.FINISHED) if "records" in arrays else None
        return self


class Bins:
    """Histograms of the latencies of requests sent within [start, end], per pool and batch of that time; flat memory.

    Attributes:
        latencies: by name, histograms [pool][batch].
        sent, preempted, preemptions: counts per pool.
        steps: sums per pool.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        pool_of_replica: np.ndarray,
        output_tokens: np.ndarray,
        *,
        num_pools: int,
        window_s: tuple[float, float],
        batches: int,
    ) -> None:
        self._pool_of_replica, self._output, self._window = pool_of_replica, output_tokens, window_s
        self._batches = batches
        self.latencies = {name: [[LogHistogram() for _ in range(batches)] for _ in range(num_pools)] for name in names}
        self.sent = np.zeros(num_pools, dtype=np.int64)
        self.preempted = np.zeros(num_pools, dtype=np.int64)
        self.preemptions = np.zeros(num_pools, dtype=np.int64)
        self.steps = np.zeros(num_pools)

    def __call__(self, finished: np.ndarray) -> None:
        """Count records."""
        start, end = self._window
        finished = finished[(finished["sent_s"] >= start) & (finished["sent_s"] <= end)]
        columns = Columns.of(len(finished))
        write(finished, np.arange(len(finished)), self._pool_of_replica, self._output, *columns)
        num_pools = len(self.sent)
        self.sent += np.bincount(columns.pool, minlength=num_pools)
        self.preempted += np.bincount(columns.pool[finished["preemptions"] > 0], minlength=num_pools)
        self.preemptions += np.bincount(columns.pool, finished["preemptions"], minlength=num_pools).astype(np.int64)
        self.steps += columns.sum_steps(num_pools)
        share = (columns.sent_s - start) / ((end - start) or 1.0)
        batch = np.minimum((share * self._batches).astype(np.intp), self._batches - 1)
        cell = columns.pool * self._batches + batch
        for name, bins in self.latencies.items():
            values = columns._asdict()[name] if name in METRICS else further(finished, name)
            for one in np.unique(cell).tolist():
                here = values[cell == one]
                bins[one // self._batches][one % self._batches].add(here[~np.isnan(here)])

    def measured_steps(self, start: float, num_pools: int) -> np.ndarray:
        """Steps that the requests took of each pool."""
        return self.steps

    def after(self, start: float) -> Bins:
        """Only what was sent within the window is counted in the first place."""
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        """All that it holds, by name."""
        held = {name: getattr(self, name) for name in self._SUMS}
        for name, bins in self.latencies.items():
            held[f"{name}.counts"] = np.array([[one.counts for one in per_pool] for per_pool in bins])
            sums = [[(one.total, one.least, one.greatest) for one in per_pool] for per_pool in bins]
            held[f"{name}.sums"] = np.array(sums, dtype=np.float64)
        return held

    def fill(self, arrays: Mapping[str, np.ndarray]) -> Bins:
        """Hold what `arrays` of one like this said."""
        self.sent, self.preempted, self.preemptions, self.steps = (arrays[name] for name in self._SUMS)
        for name, bins in self.latencies.items():
            for p, per_pool in enumerate(bins):
                for b, one in enumerate(per_pool):
                    one.counts = arrays[f"{name}.counts"][p, b]
                    one.total, one.least, one.greatest = arrays[f"{name}.sums"][p, b].tolist()
        return self

    _SUMS = ("sent", "preempted", "preemptions", "steps")

    def histograms(self, name: str, pool: int | None) -> tuple[Histogram, ...]:
        """One for each batch, of one pool or of all."""
        bins = self.latencies[name]
        if pool is not None:
            return tuple(one.histogram() for one in bins[pool])
        merged = []
        for b in range(self._batches):
            together = LogHistogram()
            for per_pool in bins:
                together.merge(per_pool[b])
            merged.append(together.histogram())
        return tuple(merged)
