"""One design, workload and set of rules, lowered once; plays streams of requests and measures what happened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from des import lower
from des.arrivals import ArrivalProcess, Poisson, generators, row_sampler
from des.availability import Caps, Failures, Schedule, accepting_s, in_order
from des.ledger import METRICS, PHASES, Bins, Ledger
from des.lower import Fleet
from des.play import NUM_WINDOWS, PrefixBlocks, Rules, Stream, play
from des.results import Replication
from des.router import Router
from des.routers import LengthRouter
from des.routing import NO_POOL, NOWHERE, REASONS, Routed, RouteTable, Served, capability
from des.serving import Serving
from jaxsim.fleet import FleetDesign
from jaxsim.kv_transfer import KvTransfer
from jaxsim.workload import Workload

PART = 1 << 18
"""Requests of a stream that are drawn at a time where memory is to stay flat."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that shapes a run beside design and workload; see `des.simulate`."""

    convention: str = "step"
    serving: Serving = field(default_factory=Serving)
    router: Router = field(default_factory=LengthRouter)
    arrivals: ArrivalProcess = field(default_factory=Poisson)
    rate: float | None = None
    concurrency: int = 0
    transfer: KvTransfer | None = None
    failures: Failures | None = None
    schedule: Schedule | None = None
    caps: Caps | None = None
    blocks: PrefixBlocks | None = None
    warmup_fraction: float = 0.2
    windows: int = NUM_WINDOWS
    gaps: bool = False
    keep: str = "latencies"
    seed: int = 0

    @property
    def predictable(self) -> bool:
        """Whether the steps that arrivals ask of each pool follow from their lengths alone."""
        plain = self.transfer is None and self.failures is None and self.schedule is None and not self.concurrency
        return plain and self.serving == Serving() and self.router.spill_pressure == np.inf


class Drawn(NamedTuple):
    """A part of a stream: instants of all requests, ascending, and where each is routed to."""

    arrival_s: np.ndarray
    routed: Routed


class Offered:
    """What arrived from `start` on and is not before request number `first` of the stream, rejected ones included."""

    def __init__(self, table: RouteTable, start: float, first: int = 0) -> None:
        self._table, self._start, self._first = table, start, first
        self.simulated = 0
        self.measured = 0
        self.rejected = np.zeros((len(REASONS), len(table.holds) + 1), dtype=np.int64)
        self.astray = np.zeros(3, dtype=np.int64)

    def accepted(self, parts: Iterable[Drawn]) -> Iterator[Stream]:
        """Count the parts as they pass, and hand on what is accepted."""
        for arrival_s, routed in parts:
            skipped = max(int(np.searchsorted(arrival_s, self._start)), self._first - self.simulated)
            self.simulated += len(arrival_s)
            after = Routed(*(column[skipped:] for column in routed))
            self.measured += len(after.row)
            lost = after.reason != NOWHERE
            np.add.at(self.rejected, (after.reason[lost], after.meant[lost]), 1)
            self.astray += self._table.tally(after)
            kept = routed.pool != NO_POOL
            if kept.all():
                yield Stream(arrival_s, routed.row, routed.pool)
            else:
                yield Stream(arrival_s[kept], routed.row[kept], routed.pool[kept])


@dataclass(frozen=True)
class Experiment:
    """What all replications share: the lowered fleet, the kinds of requests, and where each goes."""

    setting: Setting
    fleet: Fleet
    workload: Workload
    table: RouteTable
    kinds: np.ndarray

    @classmethod
    def of(cls, design: FleetDesign, workload: Workload, setting: Setting) -> Experiment:
        """Lower a design and a workload."""
        disaggregated = setting.transfer is not None
        if disaggregated and (design.num_pools != 2 or setting.convention != "step"):
            raise ValueError(
                f"transfer is for a design of two pools, prefill and decode, in convention='step', got "
                f"{design.num_pools} in {setting.convention!r}"
            )
        if workload.prefix_cache_hit_rate is not None and setting.convention != "step":
            raise ValueError(
                f"prefix_cache_hit_rate must be left out in convention={setting.convention!r}; it is for 'step'"
            )
        fleet = lower.lower_fleet(design, setting.convention, setting.serving, disaggregated=disaggregated)
        served = setting.router.served(workload, design)
        reasons = capability(design, served, max_active=fleet.max_active, free_blocks=fleet.kv_blocks)
        if disaggregated:
            served = served._replace(meant=np.where(served.meant == NO_POOL, served.meant, 0))
            reasons = np.maximum(reasons, reasons[::-1])  # both pools must hold a request
        table = setting.router.table(served, reasons)
        inputs, outputs = served.input_tokens, served.output_tokens
        cached = np.broadcast_to(np.asarray(workload.cached_tokens(inputs)), inputs.shape)
        setting = replace(setting, blocks=_served_blocks(setting.blocks, served))
        return cls(
            setting,
            fleet,
            workload,
            table,
            lower.lower_kinds(fleet, inputs, outputs, table.holds, setting.serving, cached),
        )

    @property
    def pool_of_replica(self) -> np.ndarray:
        """Pool of each replica, numbered through."""
        return np.repeat(np.arange(len(self.fleet.replicas)), self.fleet.replicas)

    def run(self, number: int, replication: int, *, batches: int = 1) -> Replication:
        """Play one stream of at most `number` requests to the end, and measure it from the warm-up to the last sent.

        Args:
            batches: stretches of that time whose statistics are kept apart where nothing else is.
        """
        flat = self.setting.keep == "statistics"
        parts = None if flat else list(self.draw(number, replication, number))
        window, first = self._window(self.draw(number, replication, PART) if parts is None else parts, replication)
        further = self._further
        offered = Offered(self.table, 0.0 if self.setting.concurrency else window[0], first)
        sink = self._bins(METRICS + further, window, batches) if parts is None else self._ledger(parts, further)
        timeline = self._timeline(replication, window[1])
        stream = offered.accepted(self.draw(number, replication, PART) if parts is None else parts)
        totals = play(
            self.fleet,
            self.kinds,
            stream,
            sink,
            self._rules(timeline),
            window_s=window,
            windows=self.setting.windows,
            gaps=self.setting.gaps,
        )
        if self.setting.predictable and self.setting.arrivals.name != "trace" and not self._any_pool:
            steps = self._expected_steps()
        else:
            steps = sink.measured_steps(window[0], len(self.fleet.replicas)) / ((window[1] - window[0]) or np.inf)
        kept, measured = sink.after(window[0]), offered.measured
        if self.setting.concurrency:  # when a client sends is known only now
            sent = int(kept.sent.sum()) if isinstance(kept, Bins) else len(kept.pool)
            measured = sent + int(offered.rejected.sum())
        return Replication(
            kept=kept,
            simulated=offered.simulated,
            offered=measured,
            rejected=offered.rejected,
            astray=offered.astray,
            start_s=window[0],
            window_s=window[1] - window[0],
            offered_steps=steps,
            replica_s=accepting_s(timeline, self.pool_of_replica, len(self.fleet.replicas), *window),
            totals=totals.windows,
            levels=totals.levels,
            gaps=totals.gaps if self.setting.gaps else None,
            drawn=parts[0] if parts and self.setting.keep == "requests" else None,
        )

    @property
    def _further(self) -> tuple[str, ...]:
        """Latencies beside `METRICS`."""
        waits: tuple[str, ...] = ("client_wait_s",) if self.setting.concurrency else ()
        return waits + (PHASES if self.setting.transfer else ())

    def empty(self, window: tuple[float, float], batches: int) -> Ledger | Bins:
        """What a replication's latencies are kept in, still empty."""
        if self.setting.keep == "statistics":
            return self._bins(METRICS + self._further, window, batches)
        return self._ledger([], self._further)

    def draw(self, number: int, replication: int, size: int) -> Iterator[Drawn]:
        """The stream of a replication, in parts of at most `size` requests; every design sees the same."""
        setting = self.setting
        gaps, lengths = generators(setting.seed, replication)
        routes = np.random.default_rng(np.random.SeedSequence(setting.seed, spawn_key=(replication, 2)))
        rows = row_sampler(setting.arrivals, self.workload, lengths)
        instants = None
        if setting.rate is not None or not setting.concurrency:
            instants = setting.arrivals.sampler(setting.rate, gaps, self.workload)
        left = number
        while left > 0:
            arrival_s = np.zeros(min(size, left)) if instants is None else instants(min(size, left))
            row = rows(len(arrival_s))
            if len(row) == 0:
                return
            yield Drawn(arrival_s[: len(row)], self.table.route(row, routes))
            left -= len(row)

    def _window(self, parts: Iterable[Drawn], replication: int) -> tuple[tuple[float, float], int]:
        """From the warm-up to the last request, and the number of the first one that is measured; where clients wait
        for answers, a first play finds out when each is sent."""
        end = 0.0
        if self.setting.concurrency:
            parts = list(parts)
            ledger = self._ledger(parts, ())
            play(
                self.fleet,
                self.kinds,
                Offered(self.table, 0.0).accepted(parts),
                ledger,
                self._rules(self._timeline(replication, end)),
            )
            sent_s = ledger.columns.sent_s
            end = float(sent_s.max(initial=0.0))
            start = self.setting.warmup_fraction * end
            accepted = np.flatnonzero(np.concatenate([routed.pool != NO_POOL for _, routed in parts]))
            return (start, end), int(accepted[np.searchsorted(sent_s, start)]) if len(accepted) else 0
        for part in parts:
            end = float(part.arrival_s[-1])
        return (self.setting.warmup_fraction * end, end), 0

    def _ledger(self, parts: list[Drawn], names: tuple[str, ...]) -> Ledger:
        return Ledger(
            sum(int((routed.pool != NO_POOL).sum()) for _, routed in parts),
            names,
            self.pool_of_replica,
            self.table.served.output_tokens,
            preempts=self.setting.serving.kv != "reserve",
            records=self.setting.keep == "requests",
        )

    def _bins(self, names: tuple[str, ...], window: tuple[float, float], batches: int) -> Bins:
        return Bins(
            names,
            self.pool_of_replica,
            self.table.served.output_tokens,
            num_pools=len(self.fleet.replicas),
            window_s=window,
            batches=batches,
        )

    def _rules(self, timeline: np.ndarray) -> Rules:
        setting = self.setting
        link = setting.transfer
        return Rules(
            serving=setting.serving,
            dispatch=setting.router.dispatch,
            affinity_slack=setting.router.affinity_slack or 0,
            spill_pressure=setting.router.spill_pressure,
            concurrency=setting.concurrency,
            transfer=None if link is None else (link.latency_s, link.s_per_token),
            timeline=timeline,
            blocks=setting.blocks,
            seed=setting.seed,
        )

    def _timeline(self, replication: int, end: float) -> np.ndarray:
        """Changes of the fleet: scheduled ones, caps, and failures up to `end`."""
        setting = self.setting
        rows: list[tuple[float, int, int]] = []
        if setting.schedule is not None:
            rows += setting.schedule.timeline(self.fleet.replicas).tolist()
        if setting.caps is not None:
            rows += setting.caps.timeline(self.fleet.replicas, self.fleet.max_active).tolist()
        if setting.failures is not None:
            own = np.random.default_rng(np.random.SeedSequence(setting.seed, spawn_key=(replication, 3)))
            rows += setting.failures.timeline(int(self.fleet.replicas.sum()), end, own).tolist()
        return in_order(rows)

    @property
    def _any_pool(self) -> bool:
        return bool((self.table.pool == -1).any())

    @property
    def link_load(self) -> float:
        """Seconds of transfers that a second of arrivals asks for; NaN without a link, and in a closed loop."""
        link, served = self.setting.transfer, self.table.served
        if link is None or self.setting.concurrency:
            return np.nan
        seconds = np.where(served.output_tokens > 1, link.latency_s + served.input_tokens * link.s_per_token, 0.0)
        rate = self.setting.arrivals.mean_rate(self.setting.rate, self.workload)
        return float(rate * (self.table.expected().weight[:-1] * seconds).sum())

    def _expected_steps(self) -> np.ndarray:
        """Steps per second that accepted requests ask of each pool, from the lengths' weights."""
        steps = self.kinds["full_steps"] + 1.0 + self.kinds["decode_steps"]
        rate = self.setting.arrivals.mean_rate(self.setting.rate, self.workload)
        return rate * (self.table.expected().weight[:-1] * steps).sum(axis=1)


def _served_blocks(blocks: PrefixBlocks | None, served: Served) -> PrefixBlocks | None:
    """Prompt blocks of the served rows; of a prompt that is compressed only those that stay whole."""
    if blocks is None:
        return None
    if blocks.num_rows != served.num_given:
        raise ValueError(
            f"prefix_blocks must have one entry per workload row ({served.num_given}), got {blocks.num_rows}"
        )
    if len(served.source) == served.num_given:
        return blocks
    whole = np.floor(served.input_tokens / blocks.tokens)
    whole[: served.num_given] = np.iinfo(np.int32).max
    return blocks.of_rows(served.source, whole)
