r"""The slot server: M/G/c queues by simulation, against exact mean and P99 of the wait, in units of mean service.

**Length.** Waits are dependent. A relative standard error e of their mean takes about

$$e^{-2} (2/P(W>0) - 1) \cdot 2.7 (1 + cv^2) / (1 - \rho)^2$$

requests: the squared variation of a wait that is 0 or about exponential, times what correlation multiplies it by.

**Controls.** Some means of a run are known exactly and vary with its mean wait: of the gaps, of the services and of
their squares; and, of the same requests in a system without a limit on servers, which is Poisson, how often and how
far its occupancy is above c. Of a mean over replications, what the regression on their deviations explains is taken
out (Asmussen and Glynn 2007, "Stochastic Simulation", V.2). It replaces runs that would be 2 to 15 times longer.
"""

from __future__ import annotations

import csv
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit
from scipy.stats import poisson

import des.slots

REPOSITORY = Path(__file__).parent.parent
LAWS = ("M", "D", "H2")
MOST_SERVERS, HIGHEST_LOAD = 128, 0.85
REPLICATIONS = 64
WARMUP_FRACTION = 0.05
STANDARD_ERROR = 0.01 / 3.5
"""Relative, that run lengths aim at: 1 % is then 3.5 standard errors."""

RESOLVED = 0.01 / 3.0
"""Relative standard error up to which a comparison is counted."""

MANY_SERVERS = 8
"""From which on the Poisson occupancy pays for its cost as a control."""


def theory_folder() -> Path:
    """The folder of reference tables, in the one named by FLEETGRAD_DATA."""
    folder = Path(os.environ.get("FLEETGRAD_DATA", REPOSITORY.parent / "shared")).resolve() / "theory"
    if not folder.is_dir():
        raise SystemExit(f"reference tables not found at {folder}; set FLEETGRAD_DATA to the folder that holds theory/")
    return folder


def read(name: str) -> list[dict[str, str]]:
    """Rows of a reference table."""
    with (theory_folder() / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Queue(NamedTuple):
    """A row of the exact table; waits in units of mean service."""

    law: str
    servers: int
    load: float
    cv2: float
    delayed: float
    mean: float
    p99: float

    @property
    def name(self) -> str:
        """In words."""
        law = f"H2 (cv2 {self.cv2:g})" if self.law == "H2" else self.law
        return f"M/{law}/{self.servers} at {self.load:g}"

    def requests(self, standard_error: float = STANDARD_ERROR) -> float:
        """Requests that a relative standard error of the mean takes; controls count for a factor that is typical."""
        independent = (2.0 / self.delayed - 1.0) / standard_error**2
        saved = max(2.0, math.sqrt(self.servers)) * (0.8 if self.law == "H2" else 1.0)
        return independent * 2.7 * (1.0 + self.cv2) / (1.0 - self.load) ** 2 / saved


def queues() -> list[Queue]:
    """The exact rows that are compared."""
    columns = ("c", "rho", "cv2", "PW", "EW", "p99")
    table = ((row["dist"], *(float(row[name]) for name in columns)) for row in read("mgc_exact_table.csv"))
    rows = [Queue(law, int(servers), *rest) for law, servers, *rest in table if law in LAWS]
    return [q for q in rows if q.servers <= MOST_SERVERS and q.load <= HIGHEST_LOAD]


class Services(NamedTuple):
    """Service times of mean 1, and which belong to the law's long phase (none but for H2)."""

    seconds: np.ndarray
    long: np.ndarray


def long_phase(cv2: float) -> tuple[float, float, float]:
    """Of the two-phase law with balanced means: mean of the short phase, and share and mean of the long one."""
    share = 0.5 * (1.0 - math.sqrt((cv2 - 1.0) / (cv2 + 1.0)))
    return 0.5 / (1.0 - share), share, 0.5 / share


def draw(queue: Queue, random: np.random.Generator, number: int) -> Services:
    """Service times of a queue's law."""
    none = np.zeros(number, dtype=bool)
    if queue.law == "D":
        return Services(np.ones(number), none)
    seconds = random.standard_exponential(number)
    if queue.law == "M":
        return Services(seconds, none)
    short_mean, share, long_mean = long_phase(queue.cv2)
    long = random.random(number) < share
    return Services(seconds * np.where(long, long_mean, short_mean), long)


def occupancy(arrival_s: np.ndarray, end_s: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """Requests in a system without a limit on servers just before each of the instants `at_s`."""
    return np.searchsorted(arrival_s, at_s) - np.searchsorted(np.sort(end_s), at_s)


def excess(occupied: np.ndarray, mean: float, level: int) -> float:
    """Mean number of requests above a level, less that of the Poisson law."""
    expected = mean * poisson.sf(level - 1, mean) - level * poisson.sf(level, mean)
    return float(np.maximum(occupied - level, 0).mean() - expected)


def controls(queue: Queue, gaps: np.ndarray, services: Services, arrival_s: np.ndarray, first: int) -> list[float]:
    """Deviations of a run's known means from their expectations."""
    seconds = services.seconds
    found = [gaps.mean() - 1.0, seconds.mean() - 1.0, (seconds * seconds).mean() - 1.0 - queue.cv2]
    if queue.servers < MANY_SERVERS:
        return found
    mean, at_s = queue.load * queue.servers, arrival_s[first:]
    occupied = occupancy(arrival_s, arrival_s + seconds, at_s)
    for level in (queue.servers, int(queue.servers - 2.0 * math.sqrt(mean))):
        found += [float((occupied > level).mean() - poisson.sf(level, mean)), excess(occupied, mean, level)]
    if queue.law == "H2":
        begun = arrival_s[services.long]
        occupied = occupancy(begun, begun + seconds[services.long], at_s)
        spread = math.sqrt(0.5 * mean)
        found += [excess(occupied, 0.5 * mean, int(0.5 * mean + k * spread)) for k in range(-1, 4)]
    return found


@dataclass(frozen=True)
class Comparison:
    """A queue simulated, beside the exact figures; `degrees` are those of the mean's Student t law."""

    queue: Queue
    requests: int
    mean: float
    mean_error: float
    degrees: int
    p99: float
    p99_error: float

    @property
    def off(self) -> float:
        """Relative error of the mean, signed."""
        return self.mean / self.queue.mean - 1.0

    @property
    def p99_off(self) -> float:
        """Relative error of the P99, signed; NaN where it is 0."""
        return self.p99 / self.queue.p99 - 1.0 if self.queue.p99 else np.nan

    @property
    def resolved(self) -> bool:
        """Whether the run was long enough to tell 1 %."""
        return self.mean_error <= RESOLVED * self.queue.mean

    def outside(self, tail: float) -> tuple[bool, bool]:
        """Whether the exact mean, and P99, lie outside the interval with `tail` on either side."""
        mean = abs(self.mean - self.queue.mean) > stdtrit(self.degrees, 1.0 - tail) * self.mean_error
        p99 = abs(self.p99 - self.queue.p99) > stdtrit(REPLICATIONS - 1, 1.0 - tail) * self.p99_error
        return bool(mean), bool(p99)


def intercept(values: np.ndarray, deviations: np.ndarray) -> tuple[float, float, int]:
    """Value where no control deviates, its standard error and degrees of freedom, by least squares."""
    used = np.ptp(deviations, axis=0) > 0
    scaled = deviations[:, used] / deviations[:, used].std(axis=0)
    matrix = np.column_stack([np.ones(len(values)), scaled])
    inverse = np.linalg.pinv(matrix)
    rank = int(np.linalg.matrix_rank(matrix))
    fitted = inverse @ values
    residual = values - matrix @ fitted
    degrees = len(values) - rank
    return float(fitted[0]), math.sqrt(residual @ residual / degrees * (inverse[0] @ inverse[0])), degrees


def compare(queue: Queue, number: int, seed: np.random.SeedSequence) -> Comparison:
    """Simulate a queue with `number` requests in independent replications."""
    means, p99s, deviations = [], [], []
    for own in seed.spawn(REPLICATIONS):
        random = np.random.default_rng(own)
        gaps = random.standard_exponential(number // REPLICATIONS)
        services = draw(queue, random, len(gaps))
        arrival_s = np.cumsum(gaps) / (queue.load * queue.servers)
        first = int(WARMUP_FRACTION * len(gaps))
        wait_s = des.slots.simulate_slots(arrival_s, services.seconds, queue.servers)[first:]
        means.append(wait_s.mean())
        p99s.append(np.quantile(wait_s, 0.99))
        deviations.append(controls(queue, gaps, services, arrival_s, first))
    mean, error, degrees = intercept(np.array(means), np.array(deviations))
    p99 = np.array(p99s)
    return Comparison(queue, number, mean, error, degrees, p99.mean(), p99.std(ddof=1) / math.sqrt(REPLICATIONS))
