"""What a simulation found: latencies with intervals, per pool and for the fleet, and everything it counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from des import _gaps
from des.histogram import Histogram
from des.ledger import Bins, Ledger
from des.overload import OverloadTest
from des.requests_table import requests_table, write_parquet
from des.routing import REASONS
from des.series import TimeSeries, time_series
from des.stats import Estimate, Sample, mser5


@dataclass(frozen=True, eq=False)
class Replication:
    """One independent run after its warm-up: requests by arrival, times from warm-up to the last one sent.

    Attributes:
        kept: latencies of the requests sent after the warm-up, each (`Ledger`) or counted (`Bins`).
        simulated: requests of the whole run, the warm-up and rejected ones included.
        offered: requests that arrived after the warm-up, rejected ones included.
        rejected: counts, one row per reason, one column per pool and a last one for "no pool".
        astray: counts of compressed requests, and of those sent to a pool of too short or too long requests.
        start_s, window_s: start and length of the measured time.
        offered_steps: steps that a second of arrivals asks for, per pool.
        replica_s: replica-seconds of it in which a pool's replicas took requests.
        totals: see `des._state.TOTAL`; pools x stretches of the window.
        levels: seconds of steps with 0, 1, 2, ... running requests, pools x numbers.
        gaps: counts of the gaps between tokens, pools x bins; None unless asked for.
        drawn: the whole stream, where requests are kept.
    """

    kept: Ledger | Bins
    simulated: int
    offered: int
    rejected: Int[np.ndarray, "reasons columns"]
    astray: Int[np.ndarray, 3]
    start_s: float
    window_s: float
    offered_steps: Float[np.ndarray, " pools"]
    replica_s: Float[np.ndarray, " pools"]
    totals: np.ndarray
    levels: Float[np.ndarray, "pools numbers"]
    gaps: Float[np.ndarray, "pools bins"] | None
    drawn: tuple | None

    @property
    def served(self) -> Int[np.ndarray, " pools"]:
        """Accepted requests after the warm-up by the pool that they ended in."""
        if isinstance(self.kept, Bins):
            return self.kept.sent
        return np.bincount(self.kept.pool, minlength=len(self.totals))

    @property
    def preempted(self) -> Int[np.ndarray, "2 pools"]:
        """Requests preempted at least once, and preemptions, by pool."""
        kept, pools = self.kept, len(self.totals)
        if isinstance(kept, Bins):
            return np.stack([kept.preempted, kept.preemptions])
        if kept.preemptions is None:
            return np.zeros((2, pools), dtype=np.int64)
        once = np.bincount(kept.pool[kept.preemptions > 0], minlength=pools)
        return np.stack([once, np.bincount(kept.pool, kept.preemptions, minlength=pools).astype(np.int64)])

    @property
    def queue_growth(self) -> Float[np.ndarray, " pools"]:
        """Requests that wait at the end of the measured time minus those at its start."""
        return self.totals["queued"].sum(axis=1)

    def latencies(self, metric: str) -> Float[np.ndarray, " requests"]:
        """Of each request, seconds; NaN where it is undefined.

        Raises:
            ValueError: only statistics were kept.
        """
        if isinstance(self.kept, Bins):
            raise ValueError(f"{metric} of each request is not there with keep='statistics'; use keep='latencies'")
        return self.kept.latencies[metric]


def _sample(replications: Sequence[Replication], metric: str, pool: int | None, *, unbounded: bool) -> Sample:
    groups: list[Float[np.ndarray, " _"] | Histogram] = []
    for run in replications:
        if isinstance(run.kept, Bins):
            groups += run.kept.histograms(metric, pool)
            continue
        values = run.kept.latencies[metric]
        if pool is not None and len(run.totals) > 1:
            values = values[run.kept.pool == pool]
        groups.append(values[~np.isnan(values)] if metric in ("tpot_s", "transfer_s") else values)
    return Sample(tuple(groups), unbounded=unbounded and metric != "tpot_s")


class Latencies:
    """The four latencies of whatever `_sample` takes its requests from; seconds."""

    def _sample(self, metric: str) -> Sample:
        raise NotImplementedError

    def _gaps(self) -> list[Float[np.ndarray, " bins"]]:
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

    @cached_property
    def itl(self) -> Sample:
        """Gaps between consecutive tokens of a request, all requests together, seconds; in bins of 0.4 to 0.8 %.

        A request that was swapped out or handed over counts the time until it was back as a gap of its own. Tokens of
        a life that was lost (overflow, failures) have been seen, so their gaps count too.

        Raises:
            ValueError: they were not counted (``simulate(..., itl=True)``).
        """
        counts = self._gaps()
        if not counts:
            raise ValueError("gaps between tokens were not counted; use simulate(..., itl=True)")
        edges = _gaps.bin_edges()
        middle = np.sqrt(edges[:-1] * edges[1:])
        return Sample(tuple(_histogram(middle, each) for each in counts))


def _histogram(values: np.ndarray, counts: np.ndarray) -> Histogram:
    whole = np.rint(counts).astype(np.int64)
    there = whole > 0
    return Histogram(values[there], whole[there])


@dataclass(frozen=True, eq=False)
class PoolResult(Latencies):
    """One pool: its latencies, load and counts after the warm-up, all replications together.

    Attributes:
        index: place in the design.
        replicas: engines.
        requests: requests routed to it, those it rejected included.
        rejected: of these, rejected.
        mean_active: requests running in the whole pool, averaged over time.
        sequence_utilization, kv_utilization: mean share in use of the sequences (`max_num_seqs`; slots in the
            ``kimura`` convention) and of the KV blocks, of all replicas of the design, up or not. 0 to 1, by
            definition; see `load` for overload.
        mean_queued: requests waiting in the whole pool, averaged over time.
        preempted, preemptions: requests preempted at least once, and how often any was.
        replica_hours: hours that its replicas took requests in the measured time, all replications together.
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
    mean_queued: float
    sequence_utilization: float
    kv_utilization: float
    preempted: int
    preemptions: int
    replica_hours: float
    step_time_s: float
    load: float
    queue_growth_per_s: float
    overloaded: bool
    replications: tuple[Replication, ...] = field(repr=False)

    def _sample(self, metric: str) -> Sample:
        return _sample(self.replications, metric, self.index, unbounded=self.overloaded)

    @property
    def active_share(self) -> Float[np.ndarray, " numbers"]:
        """Share of the time of one replica, while it takes requests, in which 0, 1, 2, ... of them run; sums to 1.

        A replica that is taken out of service and still ends its requests counts for that time too.
        """
        running = np.sum([run.levels[self.index] for run in self.replications], axis=0)
        up = sum(float(run.replica_s[self.index]) for run in self.replications)
        running[0] += max(up - running.sum(), 0.0)
        whole = running.sum()
        return running / whole if whole > 0 else np.full_like(running, np.nan)

    def _gaps(self) -> list[Float[np.ndarray, " bins"]]:
        return [run.gaps[self.index] for run in self.replications if run.gaps is not None]

    @property
    def utilization(self) -> float:
        """The larger of `sequence_utilization` and `kv_utilization`: of whichever limit is nearer."""
        return max(self.sequence_utilization, self.kv_utilization)


@dataclass(frozen=True, eq=False)
class SimulationResult(Latencies):
    """A simulated fleet, after the warm-up and with all replications together.

    Attributes:
        pools: one result per pool.
        rate: offered requests per second.
        convention: ``"step"`` or ``"kimura"``.
        arrivals: name of the arrival process.
        serving, router: the rules, in words.
        seed: of the random numbers.
        num_requests: requests simulated in all, the warm-up included.
        warmup_fraction: share of the time that was left out of every figure.
        warnings: what to know before using the figures.
        replications: the runs.
        link_load: of the link between a prefill and a decode pool, seconds of transfers offered a second; NaN without
            one, and in a closed loop. Overload is a load of 1 or more.
    """

    pools: tuple[PoolResult, ...]
    rate: float
    convention: str
    arrivals: str
    serving: str
    router: str
    seed: int
    num_requests: int
    warmup_fraction: float
    warnings: tuple[str, ...]
    replications: tuple[Replication, ...] = field(repr=False)
    lengths: tuple[np.ndarray, np.ndarray] = field(repr=False)
    pool_of_replica: np.ndarray = field(repr=False)
    link_load: float = np.nan

    def _sample(self, metric: str) -> Sample:
        return _sample(self.replications, metric, None, unbounded=self.overloaded)

    def _gaps(self) -> list[Float[np.ndarray, " bins"]]:
        return [run.gaps.sum(axis=0) for run in self.replications if run.gaps is not None]

    def phase(self, name: str) -> Sample:
        """A further latency, seconds.

        ``"client_wait_s"`` of a closed loop; ``"prefill_wait_s"`` and ``"transfer_s"`` (with the wait for the link) of
        a disaggregated fleet, whose `wait` is that for the decode pool.
        """
        return self._sample(name)

    def requests_table(self) -> dict[str, np.ndarray]:
        """Every request of every replication, the warm-up and rejected ones included, by number: columns by name.

        Raises:
            ValueError: requests were not kept (``simulate(..., keep="requests")``).
        """
        return requests_table(self.replications, self.lengths, self.pool_of_replica)

    def write_requests(self, path: Path) -> None:
        """`requests_table` as a parquet file."""
        write_parquet(self.requests_table(), path)

    def time_series(self, replication: int = 0) -> TimeSeries:
        """Occupancy and queues over the measured time of one replication."""
        run = self.replications[replication]
        return time_series(run.totals, run.start_s, run.window_s)

    @property
    def preempted(self) -> int:
        """Requests that were preempted at least once."""
        return sum(pool.preempted for pool in self.pools)

    @property
    def preemptions(self) -> int:
        """How often a running request was preempted."""
        return sum(pool.preemptions for pool in self.pools)

    @property
    def disaggregated(self) -> bool:
        """Whether one pool computes prompts for another."""
        return any("transfer_s" in run.kept.latencies for run in self.replications)

    @property
    def compressed(self) -> int:
        """Requests that were compressed."""
        return int(sum(run.astray[0] for run in self.replications))

    @property
    def misrouted(self) -> tuple[int, int]:
        """Requests sent to a pool of too short, and of too long requests: the router did not know their length."""
        return int(sum(run.astray[1] for run in self.replications)), int(
            sum(run.astray[2] for run in self.replications)
        )

    def mser5_fraction(self) -> float:
        """Share of the measured requests that MSER-5 would leave out as a further warm-up, by TTFT; the largest of the
        replications. Near 0 when the warm-up was long enough."""
        return max(mser5(run.latencies("ttft_s")) / max(len(run.latencies("ttft_s")), 1) for run in self.replications)

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
        return self.requests - self.rejected - int(sum(run.served.sum() for run in self.replications))

    @property
    def undefined_tpot(self) -> int:
        """Accepted requests with one output token, which have no TPOT and are left out of `tpot`."""
        return self.requests - self.rejected - self.unfinished - self.tpot.n

    @property
    def overloaded(self) -> bool:
        """Whether any pool is, or the link between two."""
        return any(pool.overloaded for pool in self.pools) or self.link_load >= 1.0

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
    good = np.ones(len(run.latencies("ttft_s")), dtype=bool)
    if ttft_s is not None:
        good &= run.latencies("ttft_s") <= ttft_s
    if tpot_s is not None:
        good &= ~(run.latencies("tpot_s") > tpot_s)
    return good


def pool_results(
    replications: tuple[Replication, ...],
    *,
    replicas: Int[np.ndarray, " pools"],
    max_active: Int[np.ndarray, " pools"],
    kv_blocks: Int[np.ndarray, " pools"],
    closed: bool = False,
    budgeted: bool = False,
) -> tuple[PoolResult, ...]:
    """Each pool's figures from all replications; `closed` and `budgeted`: see `OverloadTest.of`."""
    window = sum(run.window_s for run in replications)
    totals = sum_totals(replications)
    served = np.sum([run.served for run in replications], axis=0)
    preempted = np.sum([run.preempted for run in replications], axis=0)
    hours = np.sum([run.replica_s for run in replications], axis=0) / 3600.0
    results = []
    for p, count in enumerate(replicas.tolist()):
        rejected = int(sum(run.rejected[:, p].sum() for run in replications))
        active, blocks, queued = (
            totals[name][p] / window if window else np.nan for name in ("active_s", "block_s", "waiting_s")
        )
        room = count * max_active[p]
        test = OverloadTest.of(replications, p, count, closed=closed, budgeted=budgeted)
        results.append(
            PoolResult(
                index=p,
                replicas=count,
                requests=int(served[p]) + rejected,
                rejected=rejected,
                mean_active=float(active),
                mean_queued=float(queued),
                sequence_utilization=float(active / room) if room > 0 else np.nan,
                kv_utilization=float(blocks / (count * kv_blocks[p])) if room > 0 else np.nan,
                preempted=int(preempted[0, p]),
                preemptions=int(preempted[1, p]),
                replica_hours=float(hours[p]),
                step_time_s=float(totals["busy_s"][p] / totals["steps"][p]) if totals["steps"][p] else np.nan,
                load=test.load,
                queue_growth_per_s=test.queue_growth_per_s,
                overloaded=test.overloaded,
                replications=replications,
            )
        )
    return tuple(results)


def sum_totals(replications: Sequence[Replication]) -> dict[str, Float[np.ndarray, " pools"]]:
    """The loop's totals over all windows and replications, and ``waiting_s``, the integral of the queue's length."""
    names = ("steps", "busy_s", "active_s", "block_s")
    sums = {name: np.sum([run.totals[name].sum(axis=1) for run in replications], axis=0) for name in names}
    series = [time_series(run.totals, run.start_s, run.window_s) for run in replications]
    sums["waiting_s"] = np.sum([one.queued.sum(axis=1) * one.width_s for one in series], axis=0)
    return sums
