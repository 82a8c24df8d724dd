"""What a simulation found: latencies with intervals, per pool and for the fleet, and everything it counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from des.overload import OverloadTest
from des.routing import REASONS
from des.stats import Estimate, Sample

METRICS = ("wait_s", "ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, eq=False)
class Replication:
    """One independent run after its warm-up: requests by arrival, times from warm-up to the last arrival.

    Attributes:
        pool: pool of each accepted request, in order of arrival.
        wait_s, ttft_s, tpot_s, e2e_s: of each; TPOT is NaN where the output is one token.
        simulated: requests of the whole run, the warm-up and rejected ones included.
        offered: requests that arrived after the warm-up, rejected ones included.
        rejected: counts, one row per reason, one column per pool and a last one for "no pool".
        window_s: length of the measured time.
        active_s, block_s: integrals of running requests and of reserved KV blocks over it, per pool.
        queue_growth: requests that wait at its end minus those at its start, per pool.
        offered_steps: steps that a second of arrivals asks for, per pool.
        totals: see `des._engine.TOTAL`; pools x stretches of the window.
    """

    pool: Int[np.ndarray, " accepted"]
    wait_s: Float[np.ndarray, " accepted"]
    ttft_s: Float[np.ndarray, " accepted"]
    tpot_s: Float[np.ndarray, " accepted"]
    e2e_s: Float[np.ndarray, " accepted"]
    simulated: int
    offered: int
    rejected: Int[np.ndarray, "reasons columns"]
    window_s: float
    active_s: Float[np.ndarray, " pools"]
    block_s: Float[np.ndarray, " pools"]
    queue_growth: Float[np.ndarray, " pools"]
    offered_steps: Float[np.ndarray, " pools"]
    totals: np.ndarray


def _sample(replications: Sequence[Replication], metric: str, pool: int | None, *, unbounded: bool) -> Sample:
    groups = []
    for run in replications:
        values = getattr(run, metric)
        if pool is not None and len(run.active_s) > 1:
            values = values[run.pool == pool]
        groups.append(values[~np.isnan(values)] if metric == "tpot_s" else values)
    return Sample(tuple(groups), unbounded=unbounded and metric != "tpot_s")


class Latencies:
    """The four latencies of whatever `_sample` takes its requests from; seconds."""

    def _sample(self, metric: str) -> Sample:
        raise NotImplementedError

    @cached_property
    def ttft(self) -> Sample:
        """Arrival to the end of the step that finishes the prompt, seconds."""
        return self._sample("ttft_s")

    @cached_property
    def tpot(self) -> Sample:
        """(end - first token) / (output_tokens - 1), seconds; left out where the output is one token."""
        return self._sample("tpot_s")

    @cached_property
    def wait(self) -> Sample:
        """Arrival to admission, seconds."""
        return self._sample("wait_s")

    @cached_property
    def e2e(self) -> Sample:
        """Arrival to last token, seconds."""
        return self._sample("e2e_s")


@dataclass(frozen=True, eq=False)
class PoolResult(Latencies):
    """One pool: its latencies, load and counts after the warm-up, all replications together.

    Attributes:
        index: place in the design.
        replicas: engines.
        requests: requests routed to it, those it rejected included.
        rejected: of these, rejected.
        mean_active: requests running in the whole pool, averaged over time.
        utilization: mean share of the admission limit in use: of `max_num_seqs` (slots in the ``kimura``
            convention) or of the KV blocks, the larger. 0 to 1, by definition; see `load` for overload.
        step_time_s: mean duration of a step; NaN where none ran.
        load: offered load over capacity at full batch, measured while requests had to wait for room; NaN where none
            had to. Overload is a load above 1.
        queue_growth_per_s: requests a second by which the queues grew, from warm-up to the last arrival.
        overloaded: the pool cannot keep up; see `des.overload` for the rule.
    """

    index: int
    replicas: int
    requests: int
    rejected: int
    mean_active: float
    utilization: float
    step_time_s: float
    load: float
    queue_growth_per_s: float
    overloaded: bool
    replications: tuple[Replication, ...] = field(repr=False)

    def _sample(self, metric: str) -> Sample:
        return _sample(self.replications, metric, self.index, unbounded=self.overloaded)


@dataclass(frozen=True, eq=False)
class SimulationResult(Latencies):
    """A simulated fleet, after the warm-up and with all replications together.

    Attributes:
        pools: one result per pool.
        rate: offered requests per second.
        convention: ``"step"`` or ``"kimura"``.
        arrivals: ``"poisson"`` or ``"trace"``.
        seed: of the random numbers.
        num_requests: requests simulated in all, the warm-up included.
        warmup_fraction: share of the time that was left out of every figure.
        warnings: what to know before using the figures.
        replications: the runs.
    """

    pools: tuple[PoolResult, ...]
    rate: float
    convention: str
    arrivals: str
    seed: int
    num_requests: int
    warmup_fraction: float
    warnings: tuple[str, ...]
    replications: tuple[Replication, ...] = field(repr=False)

    def _sample(self, metric: str) -> Sample:
        return _sample(self.replications, metric, None, unbounded=self.overloaded)

    @property
    def requests(self) -> int:
        """Requests offered, rejected ones included."""
        return sum(run.offered for run in self.replications)

    @property
    def rejected(self) -> int:
        """Requests that no pool took."""
        return int(sum(run.rejected.sum() for run in self.replications))

    @property
    def rejected_by_reason(self) -> dict[str, int]:
        """Rejected requests by reason; all reasons of `des.routing.REASONS` are present."""
        counts = sum(run.rejected.sum(axis=1) for run in self.replications)
        return dict(zip(REASONS, np.asarray(counts).tolist(), strict=True))

    @property
    def unfinished(self) -> int:
        """Requests without a last token: 0, since every run is followed until its last request has left."""
        return int(sum(np.isnan(run.e2e_s).sum() for run in self.replications))

    @property
    def undefined_tpot(self) -> int:
        """Accepted requests with one output token, which have no TPOT and are left out of `tpot`."""
        return int(sum(np.isnan(run.tpot_s).sum() for run in self.replications))

    @property
    def overloaded(self) -> bool:
        """Whether any pool is."""
        return any(pool.overloaded for pool in self.pools)

    def attainment(self, *, ttft_s: float | None = None, tpot_s: float | None = None) -> float:
        """Share of ALL offered requests that met every limit given (seconds). A rejected request is a miss.

        A request without a TPOT (one output token) is judged on its TTFT alone.
        """
        met = sum(int(_meets(run, ttft_s, tpot_s).sum()) for run in self.replications)
        return met / self.requests if self.requests else np.nan

    def goodput(self, *, ttft_s: float | None = None, tpot_s: float | None = None) -> float:
        """Requests per second that met every limit given."""
        window = sum(run.window_s for run in self.replications)
        return self.attainment(ttft_s=ttft_s, tpot_s=tpot_s) * self.requests / window if window else np.nan

    def precision(self, q: float = 0.99) -> float:
        """Largest relative half-width of the fleet's TTFT and TPOT quantiles."""
        figures: list[Estimate] = [s.quantile(q) for s in (self.ttft, self.tpot) if s.n > 0]
        return max((figure.relative_half_width for figure in figures), default=np.inf)


def _meets(run: Replication, ttft_s: float | None, tpot_s: float | None) -> np.ndarray:
    good = np.ones(len(run.ttft_s), dtype=bool)
    if ttft_s is not None:
        good &= run.ttft_s <= ttft_s
    if tpot_s is not None:
        good &= ~(run.tpot_s > tpot_s)
    return good


def pool_results(
    replications: tuple[Replication, ...],
    *,
    replicas: Int[np.ndarray, " pools"],
    max_active: Int[np.ndarray, " pools"],
    kv_blocks: Int[np.ndarray, " pools"],
) -> tuple[PoolResult, ...]:
    """Each pool's figures from all replications."""
    window = sum(run.window_s for run in replications)
    results = []
    for p, count in enumerate(replicas.tolist()):
        rejected = int(sum(run.rejected[:, p].sum() for run in replications))
        accepted = int(sum((run.pool == p).sum() for run in replications))
        steps = sum(run.totals[p]["steps"].sum() for run in replications)
        active = sum(run.active_s[p] for run in replications) / window if window else np.nan
        blocks = sum(run.block_s[p] for run in replications) / window if window else np.nan
        test = OverloadTest.of(replications, p, count)
        results.append(
            PoolResult(
                index=p,
                replicas=count,
                requests=accepted + rejected,
                rejected=rejected,
                mean_active=float(active),
                utilization=float(max(active / count / max_active[p], blocks / count / kv_blocks[p]))
                if count > 0 and max_active[p] > 0
                else np.nan,
                step_time_s=float(sum(run.totals[p]["busy_s"].sum() for run in replications) / steps)
                if steps
                else np.nan,
                load=test.load,
                queue_growth_per_s=test.queue_growth_per_s,
                overloaded=test.overloaded,
                replications=replications,
            )
        )
    return tuple(results)
