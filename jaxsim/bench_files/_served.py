"""What the replicas of a pool served between two scrapes of each: counters and histograms differenced and added up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxsim._checks import require_positive, unknown
from jaxsim._trace_columns import refusal
from jaxsim.bench_files._exposition import Scrape
from jaxsim.bench_files._histograms import EDGE, MODEL, Difference, Histogram, added_up
from jaxsim.bench_files._scrapes import FAILED_REASONS
from jaxsim.bench_files._served_names import SERVERS, Names, ServerNames
from jaxsim.benchmark_doctor import FEW_PERCENT
from jaxsim.observed import MEAN, QUANTILES, Observed, Reading

START = "process_start_time_seconds"
REASON = "finished_reason"
_NO_REPLICA = {MODEL, EDGE, REASON, "cache_source"}
"""Labels that do not tell replicas apart."""

REQUESTS_PER_FAILURE = 0.01
"""Share of failed requests from which on they are worth a word."""


@dataclass(frozen=True)
class _Pair:
    """One server's difference and the seconds between its scrapes."""

    added: Difference
    seconds: float


@dataclass(frozen=True)
class _Ended:
    completed: float
    failed: float


class _Servers:
    """The differences of several servers, added up."""

    def __init__(self, pairs: Sequence[_Pair], names: ServerNames) -> None:
        self.pairs, self.names = pairs, names
        self.missed: list[str] = []

    def total(self, names: Names) -> float | None:
        """What was added to a counter; None where a server lacks it."""
        found = [pair.added.total(*names) for pair in self.pairs]
        known = [value for value in found if value is not None]
        return sum(known) if len(known) == len(found) else None

    def histogram(self, title: str, names: Names) -> Histogram | None:
        """Observations of all servers; None where one lacks them, or they have different buckets."""
        found = [pair.added.histogram(*names) for pair in self.pairs]
        known = [each for each in found if each is not None and each.number > 0]
        if not known or len(known) < len(found):
            self.missed.append(title + ("" if not known else f" (in {len(known)} of {len(found)} servers)"))
            return None
        whole = added_up(known)
        if whole is None:
            self.missed.append(f"{title} (the servers' buckets differ)")
        return whole

    def gauge(self, names: Names) -> float | None:
        """Sum over the replicas, the mean of both scrapes; None where a server lacks it."""
        both = [
            self.pairs_gauge(names, "before"),
            self.pairs_gauge(names, "after"),
        ]
        known = [value for value in both if value is not None]
        return sum(known) / 2.0 if len(known) == 2 else None

    def pairs_gauge(self, names: Names, when: str) -> float | None:
        """The same at one of the scrapes."""
        found = [pair.added.gauge(getattr(pair.added, when), *names) for pair in self.pairs]
        known = [value for value in found if value is not None]
        return sum(known) if len(known) == len(found) else None

    def levels(self, names: Names) -> list[float]:
        """The replicas' values of a gauge at both scrapes."""
        return [
            level
            for pair in self.pairs
            for scrape in (pair.added.before, pair.added.after)
            for level in pair.added.levels(scrape, *names)
        ]

    @property
    def replicas(self) -> int:
        """Engines, told apart by their labels and files."""
        return sum(_replicas(pair.added, self.names) for pair in self.pairs)


def served_between(
    pairs: Sequence[tuple[Scrape, Scrape]], *, duration_s: float | None = None, model: str | None = None
) -> Observed:
    """What several servers of one model showed, each with an earlier and a later scrape.

    Raises:
        ValueError: as `jaxsim.bench_files.read_served`.
    """
    if duration_s is not None:
        require_positive("duration_s", duration_s)
    names = _server_of(pairs)
    chosen = _model_of(pairs, names, model)
    servers = _Servers([_pair(before, after, chosen, duration_s) for before, after in pairs], names)
    return _observed(servers, chosen, "as given" if duration_s is not None else "by the times in them")


def _server_of(pairs: Sequence[tuple[Scrape, Scrape]]) -> ServerNames:
    kinds = {}
    for scrapes in pairs:
        for scrape in scrapes:
            found = [names for names in SERVERS if any(name.startswith(names.prefix) for name in scrape.values)]
            if not found:
                known = ", ".join(f"{names.tool} ({names.prefix}...)" for names in SERVERS)
                what = f"no metric of a server that is known here: {known}"
                raise refusal(scrape.file, what, "scrape the server that generates, at /metrics")
            kinds[found[0].tool] = (found[0], scrape.file)
    if len(kinds) > 1:
        each = " and ".join(f"{file} is of {tool}" for tool, (_, file) in kinds.items())
        raise ValueError(f"scrapes must be of one kind of server, got {each}; validate each kind by itself")
    return next(iter(kinds.values()))[0]


def _model_of(pairs: Sequence[tuple[Scrape, Scrape]], names: ServerNames, wanted: str | None) -> str:
    models = sorted(
        {
            dict(labels).get(MODEL, "")
            for _, after in pairs
            for name, of in after.values.items()
            if name.startswith(names.prefix) and (name.endswith("_count") or name in names.success)
            for labels in of
        }
    )
    if not models:
        what = f"no counter and no histogram of {names.tool}"
        raise refusal(pairs[0][1].file, what, "save the whole answer of /metrics")
    if wanted is not None and wanted not in models:
        raise unknown("served model", wanted, models)
    if wanted is None and len(models) > 1:
        raise refusal(
            pairs[0][1].file, f"{len(models)} models are served: {', '.join(models)}", "say which is the plan's"
        )
    return models[0] if wanted is None else wanted


def _pair(before: Scrape, after: Scrape, model: str, given: float | None) -> _Pair:
    seconds = given
    if seconds is None:
        if before.time_s is None or after.time_s is None:
            silent = before.file if before.time_s is None else after.file
            what = f"no time is written beside its samples, so the seconds since {before.file} are not known"
            raise refusal(silent, what, "give the seconds between the two scrapes (--seconds)")
        seconds = after.time_s - before.time_s
        if seconds <= 0:
            raise refusal(after.file, f"taken {-seconds:g} s before {before.file}", "give the older scrape first")
    starts = [sorted(scrape.values.get(START, {}).values()) for scrape in (before, after)]
    if (
        all(starts)
        and len(starts[0]) == len(starts[1])
        and any(abs(one - other) > 1.0 for one, other in zip(*starts, strict=True))
    ):
        what = f"{START} is {starts[1][-1]:g}, and {starts[0][-1]:g} in {before.file}"
        again = "the server was started again in between: take both scrapes from one run of it, the older one first"
        raise refusal(after.file, what, again)
    return _Pair(Difference(before, after, model), seconds)


def _observed(servers: _Servers, model: str, how: str) -> Observed:
    names = servers.names
    histograms = {
        "ttft": servers.histogram("TTFT", names.ttft),
        "tpot": servers.histogram("TPOT of requests", names.tpot),
        "itl": servers.histogram("gaps between tokens", names.itl),
        "e2e": servers.histogram("E2E", names.e2e),
    }
    ended = _ended(servers, histograms)
    label = _label(servers)
    if ended is None or ended.completed <= 0:
        raise refusal(label, "no request ended between the scrapes", "two scrapes with load between them are needed")
    seconds = [pair.seconds for pair in servers.pairs]
    early, late = (_flying(servers, when) for when in ("before", "after"))
    number = ended.completed + ended.failed
    came = number if early is None or late is None else max(number + late - early, 0.0)
    notes = [*_notes(servers, ended, early, late, how)]
    pieced = zip(servers.pairs, _shares(servers), strict=True)
    rate = sum(share * came / pair.seconds for pair, share in pieced)
    return Observed(
        source=label,
        tool=f"Prometheus scrapes of {names.tool}",
        model=model or None,
        seconds=sum(seconds) / len(seconds),
        rate=rate,
        completed=round(ended.completed),
        failed=round(ended.failed),
        replicas=servers.replicas,
        window=True,
        mean_input_tokens=_tokens(servers, names.inputs, names.prompt_total, number, notes),
        mean_output_tokens=_tokens(servers, names.outputs, names.generation_total, number, notes),
        readings=tuple(_readings(histograms)),
        running=servers.gauge(names.running),
        waiting=servers.gauge(names.waiting),
        kv_usage=_kv_usage(servers),
        preemptions=servers.total(names.preemptions) if names.preemptions else None,
        cached_share=_cached_share(servers),
        unsteady=_unsteady(number, came, early is not None and late is not None),
        notes=tuple(notes),
    )


def _ended(servers: _Servers, histograms: dict[str, Histogram | None]) -> _Ended | None:
    """Requests that ended well, and that did not; without a counter, those whose E2E or TTFT was observed."""
    found = [pair.added.counter(*servers.names.success) for pair in servers.pairs]
    counted = [added for added in found if added is not None]
    if len(counted) == len(found):
        bad = sum(
            value for added in counted for labels, value in added.items() if dict(labels).get(REASON) in FAILED_REASONS
        )
        return _Ended(sum(sum(added.values()) for added in counted) - bad, bad)
    known = next((histograms[figure] for figure in ("e2e", "ttft") if histograms[figure] is not None), None)
    return None if known is None else _Ended(known.number, 0.0)


def _shares(servers: _Servers) -> list[float]:
    """Of each server, its share of the requests that ended."""
    names = servers.names
    ended = [
        pair.added.total(*names.success)
        or next((h.number for h in (pair.added.histogram(*n) for n in (names.e2e, names.ttft)) if h is not None), 0.0)
        for pair in servers.pairs
    ]
    whole = sum(ended)
    return [each / whole for each in ended] if whole > 0 else [1.0 / len(ended)] * len(ended)


def _tokens(servers: _Servers, names: Names, totals: Names, ended: float, notes: list[str]) -> float | None:
    """Mean tokens of a request; from the counter of all tokens where requests' own are not among the metrics."""
    found = [pair.added.histogram(*names) for pair in servers.pairs] if names else []
    known = [each for each in found if each is not None and each.number > 0]
    if known and len(known) == len(servers.pairs):
        sums = [each.total for each in known if each.total is not None]
        if len(sums) == len(known):
            return sum(sums) / sum(each.number for each in known)
    total = servers.total(totals)
    if total is None or ended <= 0:
        return None
    notes.append(f"tokens of a request are those of {totals[0]} over the requests that ended")
    return total / ended


def _flying(servers: _Servers, when: str) -> float | None:
    """Requests running and waiting at the earlier or the later scrape."""
    running, waiting = (servers.pairs_gauge(names, when) for names in (servers.names.running, servers.names.waiting))
    return None if running is None or waiting is None else running + waiting


def _readings(histograms: dict[str, Histogram | None]) -> Iterator[Reading]:
    for figure, histogram in histograms.items():
        if histogram is None:
            continue
        if histogram.mean is not None:
            yield Reading(figure, MEAN, histogram.mean, histogram.mean, histogram.mean, bucket=False)
        for name, q in QUANTILES.items():
            value, ends = histogram.interpolated(q), histogram.interval(q)
            if value is not None and ends is not None:
                yield Reading(figure, name, value, *ends, bucket=True)


def _kv_usage(servers: _Servers) -> float | None:
    levels = servers.levels(servers.names.kv_usage)
    return sum(levels) / len(levels) if levels else None


def _cached_share(servers: _Servers) -> float | None:
    names = servers.names
    cached = servers.total(names.cached) if names.cached and names.looked_up else None
    looked_up = servers.total(names.looked_up) if names.looked_up else None
    return None if cached is None or not looked_up else min(cached / looked_up, 1.0)


def _unsteady(ended: float, came: float, known: bool) -> str:
    """Why the window is no steady state; the bound is that of `jaxsim.benchmark_doctor`."""
    if not known or came <= (1.0 + FEW_PERCENT + 2.0 / math.sqrt(ended)) * ended:
        return ""
    return f"{came:,.0f} requests came between the scrapes and {ended:,.0f} ended: requests piled up in the servers"


def _notes(servers: _Servers, ended: _Ended, early: float | None, late: float | None, how: str) -> Iterator[str]:
    names = servers.names
    spans = sorted({pair.seconds for pair in servers.pairs})
    yield f"{' and '.join(f'{span:g}' for span in spans[:3])} s between the scrapes, {how}"
    if early is None or late is None:
        yield "no gauges of requests running and waiting: whether requests piled up is not known"
    else:
        yield f"{early:g} requests in the servers at the earlier scrapes, {late:g} at the later ones"
    if names.tpot and "TPOT of requests" in servers.missed and "gaps between tokens" not in servers.missed:
        yield "TPOT of requests is not among the metrics: gaps between tokens are compared with simulated gaps"
    if missed := [each for each in servers.missed if names.tpot or each != "TPOT of requests"]:
        yield f"not among the metrics, so not compared: {', '.join(missed)}"
    if ended.failed > REQUESTS_PER_FAILURE * (ended.completed + ended.failed):
        share = ended.failed / (ended.completed + ended.failed)
        yield f"{share:.1%} of the requests were aborted or failed: the latencies are those of the others"


def _replicas(added: Difference, names: ServerNames) -> int:
    """Engines that the labels of a server's samples tell apart; 1 where none do."""
    for name in (*names.running, *(f"{each}_count" for each in (*names.ttft, *names.e2e))):
        found = added.of_model(added.after, name)
        if found:
            return len({tuple(pair for pair in labels if pair[0] not in _NO_REPLICA) for labels in found})
    return 1


def _label(servers: _Servers) -> str:
    files = [f"{pair.added.before.file} to {pair.added.after.file}" for pair in servers.pairs]
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
