"""What was added to the counters and histograms of a server between two scrapes.

Engines and processes of one model are added up. A quantile is known to a bucket only, and is given as its edges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxsim._trace_columns import refusal
from jaxsim.bench_files._exposition import Labels, Scrape
from jaxsim.percentiles import ranks

MODEL, ENGINE, EDGE = "model_name", "engine", "le"


class Histogram(NamedTuple):
    """Observations added: their number, their sum, and the cumulative number up to each edge."""

    number: float
    total: float | None
    edges: tuple[tuple[float, float], ...]

    @property
    def mean(self) -> float | None:
        """Of the observations; None without any or without their sum."""
        return None if self.total is None or self.number <= 0 else self.total / self.number

    def quantile(self, q: float) -> tuple[float, float] | None:
        """Edges of the bucket in which the quantile is; the upper one can be inf. None without buckets."""
        if self.number <= 0 or not self.edges:
            return None
        return self._bucket(q * self.number)[:2]

    def interpolated(self, q: float) -> float | None:
        """The quantile as if the observations of its bucket were spread evenly over it, as Prometheus takes it.

        The lower edge in the bucket without an upper one; None without buckets.
        """
        if self.number <= 0 or not self.edges:
            return None
        low, high, below, up_to = self._bucket(q * self.number)
        if math.isinf(high) or up_to <= below:
            return low
        return low + (high - low) * (q * self.number - below) / (up_to - below)

    def interval(self, q: float, *, confidence: float = 0.95) -> tuple[float, float] | None:
        """Edges between which the quantile of the law is that the observations were drawn from.

        Those of the buckets that hold the order statistics of `jaxsim.percentiles.ranks`; the upper one can be inf.
        """
        if self.number < 1 or not self.edges:
            return None
        first, last = ranks(int(self.number), q, confidence=confidence)
        low = self._bucket(float(first))[0] if first > 0 else 0.0
        return low, self._bucket(float(last))[1] if last <= self.number else math.inf

    def _bucket(self, rank: float) -> tuple[float, float, float, float]:
        """Of the bucket that a rank is in: its edges, and the observations up to each."""
        low, below = 0.0, 0.0
        for edge, up_to in self.edges:
            if up_to >= rank:
                return low, edge, below, up_to
            low, below = edge, up_to
        return low, math.inf, below, self.number


def added_up(histograms: Sequence[Histogram]) -> Histogram | None:
    """The observations of several servers; None of none, or where they have different edges."""
    edges = [tuple(edge for edge, _ in each.edges) for each in histograms]
    if not histograms or any(each != edges[0] for each in edges):
        return None
    counts = np.sum([[up_to for _, up_to in each.edges] for each in histograms], axis=0)
    totals = [each.total for each in histograms]
    known = [total for total in totals if total is not None]
    return Histogram(
        sum(each.number for each in histograms),
        sum(known) if len(known) == len(totals) else None,
        tuple(zip(edges[0], np.asarray(counts, dtype=float).tolist(), strict=True)),
    )


@dataclass(frozen=True)
class Difference:
    """Two scrapes of one server, of one model.

    Attributes:
        before, after: the scrapes.
        model: value of the label that names the model.
    """

    before: Scrape
    after: Scrape
    model: str

    def of_model(self, scrape: Scrape, name: str) -> dict[Labels, float]:
        """The model's samples under a name."""
        samples = scrape.values.get(name, {})
        return {labels: value for labels, value in samples.items() if dict(labels).get(MODEL, "") == self.model}

    def levels(self, scrape: Scrape, *names: str) -> tuple[float, ...]:
        """The engines' values of the first gauge that is there.

        Raises:
            ValueError: one is negative, or no number.
        """
        for name in names:
            found = self.of_model(scrape, name)
            for labels, value in found.items():
                if not (math.isfinite(value) and value >= 0):
                    line = scrape.lines[name, labels]
                    raise refusal(scrape.file, f"line {line}: {name} must be a finite number >= 0, got {value:g}")
            if found:
                return tuple(found.values())
        return ()

    def gauge(self, scrape: Scrape, *names: str) -> float | None:
        """Sum over the engines of the first gauge that is there; None without one."""
        found = self.levels(scrape, *names)
        return sum(found) if found else None

    def counter(self, *names: str) -> dict[Labels, float] | None:
        """What was added to each sample of the first name that is there; None without one.

        A sample that is new began at 0.

        Raises:
            ValueError: a sample went down or is gone, since the server was started again in between; or it is not a
                number.
        """
        for name in names:
            late = self.of_model(self.after, name)
            early = self.of_model(self.before, name)
            if not late and not early:
                continue
            for labels in {**early, **late}:
                was, now = early.get(labels, 0.0), late.get(labels)
                self._check(name, labels, was, now)
            return {labels: value - early.get(labels, 0.0) for labels, value in late.items()}
        return None

    def _check(self, name: str, labels: Labels, was: float, now: float | None) -> None:
        where = f"{name}{{{', '.join(f'{key}={value}' for key, value in labels)}}}"
        again = "the server was started again in between: take both scrapes from one run of it, the older one first"
        if now is None:
            line = self.before.lines[name, labels]
            raise refusal(self.after.file, f"{where} is gone, which {self.before.file} has on line {line}", again)
        line = self.after.lines[name, labels]
        if not (math.isfinite(now) and math.isfinite(was)):
            raise refusal(self.after.file, f"line {line}: {where} must be finite, got {now} after {was}")
        if now < was:
            raise refusal(self.after.file, f"line {line}: {where} went down from {was:g} to {now:g}", again)

    def total(self, *names: str) -> float | None:
        """What was added to a counter, over all samples; None without it."""
        found = self.counter(*names)
        return None if found is None else sum(found.values())

    def histogram(self, *names: str) -> Histogram | None:
        """Observations added to the first histogram that is there; None without one.

        Raises:
            ValueError: as `counter`; a number of observations that falls with the edge; an edge that is no number.
        """
        for name in names:
            buckets = self.counter(f"{name}_bucket")
            count = self.total(f"{name}_count")
            if buckets is None and count is None:
                continue
            edges = self._edges(f"{name}_bucket", buckets or {})
            if count is None:
                count = edges[-1][1] if edges and math.isinf(edges[-1][0]) else None
            if count is None:
                raise refusal(self.after.file, f"{name} has neither a _count nor a bucket up to +Inf")
            return Histogram(count, self.total(f"{name}_sum"), edges)
        return None

    def _edges(self, name: str, buckets: dict[Labels, float]) -> tuple[tuple[float, float], ...]:
        summed: dict[float, float] = {}
        for labels, value in buckets.items():
            text = dict(labels).get(EDGE, "")
            try:
                edge = float(text)
            except ValueError:
                edge = math.nan
            if math.isnan(edge):
                line = self.after.lines[name, labels]
                raise refusal(self.after.file, f"line {line}: {name} needs a number as its label le, got {text!r}")
            summed[edge] = summed.get(edge, 0.0) + value
        edges = tuple(sorted(summed.items()))
        for (low, below), (high, up_to) in itertools.pairwise(edges):
            if up_to < below:
                what = f"{name} has {up_to:g} observations up to {high:g} and {below:g} up to {low:g}"
                raise refusal(self.after.file, what, "a bucket holds those of the buckets below it")
        return edges
