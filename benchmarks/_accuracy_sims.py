"""The simulated side of the accuracy scoreboard: each point with intervals, kept as JSON lines.

A point is simulated in rounds of independent replications, each from an empty start and long enough to forget it,
until its P99 TTFT and the share of requests that find all slots taken are known closely, or `Effort.most` requests are
spent. The number of CPUs changes how long that takes, and nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _accuracy_design import Case, Point

import des
from des.stats import Estimate, half_width

LEVELS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
FIGURES = ("mean_active", "tpot_mean", "wait_probability", *(f"ttft_{name}" for name in LEVELS), "tpot_p99")

WARMUP_FRACTION = 0.3
REFILLS = 12.0
"""Least requests of a replication, in fillings of all slots times 1 / (1 - utilisation): from an empty start a fleet
near its capacity takes that long to forget it, and no interval shows the bias of a shorter run."""

ROUND = 4
"""Replications of a round."""

LEAST_WAITING = 0.003
"""Shares of waiting requests below this are not judged, so not waited for either."""


class Effort(NamedTuple):
    """How long each point is simulated.

    Attributes:
        precision: wanted relative half-width of the P99 TTFT, and half of that of the share that waits.
        shortest: least requests of a replication.
        rounds: least rounds.
        most: requests in all, beyond the least rounds.
    """

    precision: float = 0.01
    shortest: int = 150_000
    rounds: int = 2
    most: int = 12_000_000


QUICK = Effort(precision=1.0, shortest=8_000, rounds=1, most=0)


class Figure(NamedTuple):
    """A simulated figure with half of its 95 % interval; seconds, requests of one engine, or a share."""

    value: float
    half_width: float

    @property
    def relative(self) -> float:
        """Half the interval over the value; inf where the value is 0."""
        return self.half_width / self.value if self.value > 0 else np.inf

    @classmethod
    def of(cls, estimate: Estimate) -> Figure:
        """Without the clipping at 0 of its lower end."""
        return cls(estimate.value, estimate.high - estimate.value)


@dataclass(frozen=True)
class Simulated:
    """A point and what the simulator found.

    Attributes:
        rate: requests per second.
        figures: by name, `FIGURES`.
        tails: by name of the level, half of the relative interval of P(TTFT > t) at the simulated quantile t.
        requests, replications: simulated in all.
        overloaded: replications that the simulator calls so.
    """

    point: Point
    rate: float
    figures: dict[str, Figure]
    tails: dict[str, float]
    requests: int
    replications: int
    overloaded: int


class Replication(NamedTuple):
    """One run after its warm-up; `waiting` is the share that finds all slots of its engine taken."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    ttft_p99_s: float
    active: float
    waiting: float
    overloaded: bool


def simulate(case: Case, effort: Effort) -> Simulated:
    """Rounds of replications until the point is known closely enough.

    Raises:
        RuntimeError: a request was rejected; every point of the design accepts all.
    """
    point = case.point
    filling = REFILLS * point.limit * point.replicas * point.utilization / (1.0 - point.utilization)
    length = max(effort.shortest, int(filling) if effort.rounds > 1 else 0)
    runs: list[Replication] = []
    with ThreadPoolExecutor(min(ROUND, os.cpu_count() or 1)) as threads:
        while len(runs) < ROUND * effort.rounds or not (
            _known(runs, effort.precision) or (len(runs) + ROUND) * length > effort.most
        ):
            numbers = range(len(runs), len(runs) + ROUND)
            runs += threads.map(lambda number: _replication(case, length, number), numbers)
    figures = _figures(runs)
    return Simulated(
        point=point,
        rate=case.rate,
        figures=figures,
        tails=_tails(runs, figures),
        requests=len(runs) * length,
        replications=len(runs),
        overloaded=sum(run.overloaded for run in runs),
    )


def _known(runs: list[Replication], precision: float) -> bool:
    p99, waiting = (np.array([getattr(run, name) for run in runs]) for name in ("ttft_p99_s", "waiting"))
    close = half_width(p99, 0.95) <= precision * p99.mean()
    mean, half = waiting.mean(), half_width(waiting, 0.95)
    return bool(close and (half <= 2.0 * precision * mean or mean + half < LEAST_WAITING))


def _replication(case: Case, number: int, replication: int) -> Replication:
    result = des.simulate(
        case.design,
        case.workload,
        rate=case.rate,
        num_requests=number,
        replications=1,
        warmup_fraction=WARMUP_FRACTION,
        router=des.LengthRouter(dispatch=case.point.dispatch),
        keep="requests",
        seed=1000 * case.point.number + replication,
    )
    if result.rejected:
        raise RuntimeError(f"{result.rejected} requests rejected: {case.point.label}")
    (ttft,), (tpot,) = result.ttft.groups, result.tpot.groups
    assert isinstance(ttft, np.ndarray) and isinstance(tpot, np.ndarray)
    return Replication(
        ttft_s=ttft,
        tpot_s=tpot,
        ttft_p99_s=float(np.quantile(ttft, 0.99)),
        active=result.pools[0].mean_active / case.point.replicas,
        waiting=share_waiting(result, case.point.limit),
        overloaded=result.overloaded,
    )


def share_waiting(result: des.SimulationResult, limit: int) -> float:
    """Share of the measured requests of one replication that find all slots of their engine taken.

    A request is in its slot from the step that admits it to the end of its last step.
    """
    table = result.requests_table()
    found = 0
    for replica in range(len(result.pool_of_replica)):
        here = table["replica"] == replica
        admitted, ended = np.sort(table["admit_s"][here]), np.sort(table["end_s"][here])
        arrived = table["sent_s"][here & table["measured"]]
        running = np.searchsorted(admitted, arrived, side="left") - np.searchsorted(ended, arrived, side="right")
        found += int((running >= limit).sum())
    return found / int(table["measured"].sum())


def _figures(runs: list[Replication]) -> dict[str, Figure]:
    ttft, tpot = (des.Sample(tuple(getattr(run, name) for run in runs)) for name in ("ttft_s", "tpot_s"))
    over_runs = {name: np.array([getattr(run, name) for run in runs]) for name in ("active", "waiting")}
    active, waiting = (Figure(float(v.mean()), half_width(v, 0.95)) for v in over_runs.values())
    quantiles = {f"ttft_{name}": Figure.of(ttft.quantile(level)) for name, level in LEVELS.items()}
    found = {"mean_active": active, "tpot_mean": Figure.of(tpot.mean()), "wait_probability": waiting}
    return found | quantiles | {"tpot_p99": Figure.of(tpot.quantile(0.99))}


def _tails(runs: list[Replication], figures: dict[str, Figure]) -> dict[str, float]:
    found = {}
    for name, level in LEVELS.items():
        beyond = np.array([np.mean(run.ttft_s > figures[f"ttft_{name}"].value) for run in runs])
        found[name] = half_width(beyond, 0.95) / (1.0 - level)
    return found


def write(found: Simulated, path: Path) -> None:
    """Append one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(found), allow_nan=False) + "\n")


def read(path: Path) -> list[Simulated]:
    """All lines of a file, by number of their points."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted((_of(row) for row in rows), key=lambda found: found.point.number)


def _of(row: dict) -> Simulated:
    figures = {name: Figure(*values) for name, values in row["figures"].items()}
    return Simulated(**row | {"point": Point(**row["point"]), "figures": figures})


def checked(rows: Iterable[Simulated], made: Iterable[Case]) -> Iterator[tuple[Simulated, Case]]:
    """Each row with its case.

    Raises:
        ValueError: a row was simulated under another rate than its point asks for now.
    """
    for row, case in zip(rows, made, strict=True):
        if abs(row.rate / case.rate - 1.0) > 1e-9:
            raise ValueError(
                f"point {row.point.number} was simulated at {row.rate!r} requests/s and is now {case.rate!r}: its "
                f"profile or workload has changed; simulate it again ({row.point.label})"
            )
        yield row, case
