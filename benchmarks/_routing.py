"""Dispatch over N engines of 16 slots, against the figures of an independent simulator: P(W > 0) and P99 of the wait.

A step of an engine takes 1 + 1.3 n/16 for n running requests, so utilisation is that at full batch, and the unit of
waits is a mean request's service at full batch. A mean request takes 2,000 steps: the wait for the next boundary,
which the table does not know, is then below 0.05 % of the unit, and what is no longer than a step counts as none. A
single queue for all engines ("central") is a closed loop: clients keep the requests until fewer are outstanding than
the fleet has slots.

The table gives P99 with the half-width of a 95 % interval from 20 batches. Its other figures come without one: theirs
is taken from ours, since a run of theirs had 1.2 million requests.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from _queues import read
from scipy.special import ndtr, ndtri, stdtrit

import des
import jaxsim

SLOTS = 16
SHARE = 1.3
"""Step time that a full batch adds, over that of an empty one."""

MEAN_STEPS = 2000.0
NUM_LENGTHS = 8000
RAREST = 1e-9
NUM_BATCHES = 20
WARMUP_FRACTION = 1.0 / 6.0
THEIR_REQUESTS = 1_200_000
FIGURES = ("waited", "p99")
DISPATCH = {
    "central": "least-loaded",
    "JSQ": "least-loaded",
    "JSQ2": "power-of-two",
    "RR": "round-robin",
    "random": "random",
}


class Case(NamedTuple):
    """A row of the table; `half_width` is that of `p99`."""

    replicas: int
    load: float
    law: str
    route: str
    waited: float
    p99: float
    half_width: float

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.route} over {self.replicas}, {self.law} tokens, at {self.load:g}"


class Figure(NamedTuple):
    """Ours and theirs, each with its standard error, both from 20 batches."""

    ours: float
    our_error: float
    theirs: float
    their_error: float

    @property
    def deviation(self) -> float:
        """Ours less theirs in standard errors; NaN where neither varies."""
        error = math.hypot(self.our_error, self.their_error)
        return (self.ours - self.theirs) / error if error > 0.0 else np.nan

    def outside(self, tail: float) -> bool:
        """Whether the two differ by more than chance does with `tail` on either side (Welch's t)."""
        variances = np.array([self.our_error, self.their_error]) ** 2
        if not variances.any():
            return self.ours != self.theirs
        degrees = (NUM_BATCHES - 1) * variances.sum() ** 2 / (variances**2).sum()
        return bool(abs(self.ours - self.theirs) > stdtrit(degrees, 1.0 - tail) * math.sqrt(variances.sum()))


def cases() -> list[Case]:
    """The rows of the table."""
    return [
        Case(
            int(row["N"]),
            float(row["rhoK"]),
            row["tokens"],
            row["route"],
            *(float(row[name]) for name in ("PW", "p99", "hw")),
        )
        for row in read("routing_wait.csv")
    ]


def lengths(law: str) -> jaxsim.Workload:
    """Steps of a request: exponential ("M") or lognormal with cv2 = 2 ("LN2"), as the means of narrow classes."""
    above = np.geomspace(1.0, RAREST, NUM_LENGTHS + 1)
    mean_above = above * (1.0 - np.log(above)) if law == "M" else ndtr(math.sqrt(math.log(3.0)) + ndtri(above))
    steps = np.rint(np.diff(mean_above) / np.diff(above) * MEAN_STEPS)
    return jaxsim.Workload.from_lengths(np.ones(NUM_LENGTHS), np.maximum(steps, 1.0), weight=-np.diff(above))


def constant_steps(slots: int, *, growth: float) -> jaxsim.Profile:
    """An engine whose step takes a second, and `growth` more with all its slots in use; KV never runs out."""
    return jaxsim.Profile(
        base_s=1.0,
        per_sequence_s=growth / slots,
        per_token_s=0.0,
        prefill_per_token_s=0.0,
        prefill_per_token2_s=0.0,
        chunk_tokens=1,
        max_num_seqs=slots,
        kv_blocks=slots * 2**12,
        block_tokens=2**12,
        calibration_context=2**24,
        usd_per_gpu_hour=1.0,
        gpus_per_replica=1,
        name="slots",
        gpu="slots",
        source="made up",
    )


def compare(case: Case, number: int, seed: int) -> dict[str, Figure]:
    """Ours against theirs, `number` requests offered in one run."""
    workload = lengths(case.law)
    unit_s = (1.0 + SHARE) * float(workload.mean(workload.output_tokens))
    central = case.route == "central"
    result = des.simulate(
        jaxsim.FleetDesign.of(constant_steps(SLOTS, growth=SHARE), [float(case.replicas)], [2.0**24]),
        workload,
        rate=case.replicas * SLOTS * case.load / unit_s,
        num_requests=number,
        replications=1,
        warmup_fraction=WARMUP_FRACTION,
        router=des.LengthRouter(dispatch=DISPATCH[case.route]),
        concurrency=case.replicas * SLOTS if central else None,
        seed=seed,
    )
    run = result.replications[0]
    wait_s = run.latencies("wait_s") + (run.latencies("client_wait_s") if central else 0.0)
    wait = np.where(wait_s > 1.0 + SHARE, wait_s / unit_s, 0.0)
    batches = np.array_split(wait, NUM_BATCHES)
    waited, error = batch_mean((wait > 0.0).mean(), [(batch > 0.0).mean() for batch in batches])
    fewest = math.sqrt(case.waited / len(wait))  # of so rare an event, batches without one would claim certainty
    error = max(error, fewest)
    scale = math.sqrt(len(wait) / THEIR_REQUESTS)
    p99, p99_error = batch_mean(np.quantile(wait, 0.99), [np.quantile(batch, 0.99) for batch in batches])
    their_error = case.half_width / stdtrit(NUM_BATCHES - 1, 0.975)
    return {
        "waited": Figure(waited, error, case.waited, error * scale),
        "p99": Figure(p99, p99_error, case.p99, their_error),
    }


def batch_mean(value: float, batches: list[float]) -> tuple[float, float]:
    """A figure with the standard error that its batches show."""
    return float(value), float(np.std(batches, ddof=1) / math.sqrt(len(batches)))
