"""What the accuracy scoreboard says: errors of each point, their summary beside the aims, and the tables of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from _accuracy_design import DISPATCH, GROUPS, Point
from _accuracy_model import Said
from _accuracy_sims import FIGURES, LEAST_WAITING, LEVELS, Simulated
from _report import Row

WIDEST = 0.10
"""Half of the interval, over the value, from which on a simulated figure is not known well enough to judge by."""

STEEP = 1.6
"""A quantile is steep where the share that waits is within this factor of the share beyond the quantile."""

WORST_POINTS = 10

Aims = dict[str, float]

LOG_TAIL_AIM = 0.1
P99_AIMS: dict[str, Aims] = {
    "constant": {"median": 0.02, "p90": 0.08},
    "growing": {"median": 0.03, "p90": 0.15},
    "prefill": {"median": 0.05, "p90": 0.20},
}
CONSTANT_AIMS: dict[str, Aims] = {
    "mean_active": {"median": 0.01, "worst": 0.03},
    "tpot_mean": {"median": 0.01},
    "wait_probability": {"median": 0.02},
}
DISPATCH_AIMS: dict[str, Aims] = {
    "least-loaded": {"median": 0.05},
    "round-robin": {"median": 0.06},
    "random": {"median": 0.06},
}


class Judged(NamedTuple):
    """One figure of one point.

    Attributes:
        log_tail: whether the quantile is steep, so that the error is that of ln P(TTFT > simulated quantile).
        simulated, said: the figure.
        error, kimura: relative, or of the logarithm; signed.
        noise: half of the simulated interval in the same terms.
        known: whether it is judged.
    """

    point: Point
    figure: str
    log_tail: bool
    simulated: float
    said: float
    error: float
    kimura: float
    noise: float
    known: bool


def judge(rows: Sequence[Simulated], step: Said, kimura: Said) -> list[Judged]:
    """Every figure of every point. A point whose P99 TTFT is not known is not judged at all."""
    found = []
    for i, row in enumerate(rows):
        each = {name: _judged(i, row, name, step, kimura) for name in FIGURES}
        settled = each["ttft_p99"].known
        found += [one._replace(known=one.known and settled) for one in each.values()]
    return found


def _judged(i: int, row: Simulated, name: str, step: Said, kimura: Said) -> Judged:
    simulated, said = row.figures[name], float(step.figures[name][i])
    level = LEVELS.get(name.removeprefix("ttft_")) if name.startswith("ttft_") else None
    waits = row.figures["wait_probability"].value, float(step.figures["wait_probability"][i])
    if level is not None and any(steep(share, level) for share in waits):
        short = name.removeprefix("ttft_")
        error, other = (float(model.log_tails[short][i]) - math.log1p(-level) for model in (step, kimura))
        noise = row.tails[short]
        return Judged(row.point, name, True, simulated.value, said, error, other, noise, noise < WIDEST)
    known = simulated.relative < WIDEST and not (name == "wait_probability" and simulated.value <= LEAST_WAITING)
    errors = (
        value / simulated.value - 1.0 if simulated.value > 0 else math.inf for value in _both(i, name, step, kimura)
    )
    return Judged(row.point, name, False, simulated.value, said, *errors, simulated.relative, known)


def _both(i: int, name: str, step: Said, kimura: Said) -> tuple[float, float]:
    return float(step.figures[name][i]), float(kimura.figures[name][i])


def steep(waiting: float, level: float) -> bool:
    """Whether the share that waits is so near 1 - level that the quantile jumps with it."""
    return (1.0 - level) / STEEP <= waiting <= (1.0 - level) * STEEP


def _largest(errors: np.ndarray) -> float:
    return float(np.max(errors))


def _p90(errors: np.ndarray) -> float:
    """Without interpolation: infinite errors have no half-way."""
    return float(np.quantile(errors, 0.9, method="higher"))


STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "median": lambda errors: float(np.median(errors)),
    "p90": _p90,
    "worst": _largest,
}


class Segment(NamedTuple):
    """Points that are summed up together, and the aims of their figures (those of a steep quantile apart)."""

    name: str
    belongs: Callable[[Point], bool]
    aims: dict[str, Aims]


class Line(NamedTuple):
    """A figure of a segment: absolute errors of the points judged.

    Attributes:
        segment, figure, log_tail: what.
        judged, left_out: points; left out are those whose simulated figure is not known well enough.
        errors, kimura: by name of the statistic; empty without points.
        noise: median half-width of what was simulated, in the same terms; None without points.
        aims: by name of the statistic.
    """

    segment: str
    figure: str
    log_tail: bool
    judged: int
    left_out: int
    errors: dict[str, float]
    kimura: dict[str, float]
    noise: float | None
    aims: Aims

    @property
    def holds(self) -> bool | None:
        """Whether every aim is met; None without aims or points."""
        if not self.aims or not self.judged:
            return None
        return all(self.errors[statistic] <= aim for statistic, aim in self.aims.items())


def segments() -> list[Segment]:
    """The groups, each of all points and of single engines; and fleets of several engines by dispatch."""
    found = []
    for group in GROUPS:
        aims = {"ttft_p99": P99_AIMS[group]} | (CONSTANT_AIMS if group == "constant" else {})
        found.append(Segment(group, lambda p, group=group: p.group == group, aims))
        found.append(Segment(f"{group}, one engine", lambda p, group=group: p.group == group and p.replicas == 1, aims))
    for dispatch in DISPATCH:
        found.append(Segment(dispatch, lambda p, d=dispatch: p.fleet == d, {"ttft_p99": DISPATCH_AIMS[dispatch]}))
    return found


FACTORS: dict[str, Callable[[Point], object]] = {
    "workload": lambda p: p.workload,
    "profile": lambda p: p.profile,
    "limit": lambda p: p.limit,
    "utilization": lambda p: p.utilization,
    "replicas": lambda p: p.replicas,
}


def factor_segments(points: Iterable[Point]) -> Iterator[Segment]:
    """One segment for each level of each factor."""
    points = list(points)
    for factor, level_of in FACTORS.items():
        for level in sorted({level_of(p) for p in points}, key=lambda v: (str(type(v)), v)):
            name = level if isinstance(level, str) else f"{factor} {level}"
            yield Segment(name, lambda p, f=level_of, level=level: f(p) == level, {})


def lines(found: Sequence[Judged], chosen: Iterable[Segment], figures: Sequence[str] = FIGURES) -> Iterator[Line]:
    """Each figure of each segment; quantiles once as such and once where they are steep."""
    for segment in chosen:
        inside = [one for one in found if segment.belongs(one.point)]
        for figure in figures:
            ways = (False, True) if figure.startswith("ttft_") else (False,)
            for log_tail in ways:
                these = [one for one in inside if one.figure == figure and one.log_tail == log_tail]
                if these:
                    yield _line(segment, figure, log_tail, these)


def _line(segment: Segment, figure: str, log_tail: bool, these: list[Judged]) -> Line:
    judged = [one for one in these if one.known]
    aims = segment.aims.get(figure, {})
    if log_tail:
        aims = {"worst": LOG_TAIL_AIM} if aims else {}
    step, kimura = (np.abs([getattr(one, name) for one in judged]) for name in ("error", "kimura"))
    return Line(
        segment=segment.name,
        figure=figure,
        log_tail=log_tail,
        judged=len(judged),
        left_out=len(these) - len(judged),
        errors={name: function(step) for name, function in STATISTICS.items()} if judged else {},
        kimura={name: function(kimura) for name, function in STATISTICS.items()} if judged else {},
        noise=float(np.median([one.noise for one in judged])) if judged else None,
        aims=aims,
    )


def worst(found: Sequence[Judged]) -> list[Judged]:
    """The points whose P99 TTFT is furthest off, measured by the aims of their groups."""

    def beyond(one: Judged) -> float:
        return abs(one.error) / (LOG_TAIL_AIM if one.log_tail else P99_AIMS[one.point.group]["p90"])

    judged = [one for one in found if one.figure == "ttft_p99" and one.known]
    return sorted(judged, key=beyond, reverse=True)[:WORST_POINTS]


def rows(summary: Iterable[Line], *, aimed: bool) -> Iterator[Row]:
    """The summary for programs; without aims where only some points were looked at."""
    for line in summary:
        name = f"{line.segment.replace(', ', '.').replace(' ', '_')}.{figure_name(line)}"
        scale, unit = (1.0, "ln") if line.log_tail else (100.0, "%")
        for statistic, value in line.errors.items():
            aim = line.aims.get(statistic) if aimed else None
            target, ok = (None, None) if aim is None else (scale * aim, value <= aim)
            yield Row(f"{name}.{statistic}", scale * value, unit, target, ok)
            yield Row(f"{name}.kimura.{statistic}", scale * line.kimura[statistic], unit)
        if line.noise is not None:
            yield Row(f"{name}.simulated.half_width", scale * line.noise, unit)
        yield Row(f"{name}.judged", float(line.judged), "points")
        yield Row(f"{name}.left_out", float(line.left_out), "points")


def figure_name(line: Line) -> str:
    """With what was judged of it."""
    return f"{line.figure}_log_tail" if line.log_tail else line.figure
