r"""Whether a measured benchmark means what it seems to mean: identities that its summary must satisfy.

A summary of means says nothing of a run that never settled. Three identities tell, without any model of the engine:

- requests arrive at the offered rate and leave at :math:`X = \text{completed} / \text{duration}`. A run that keeps up
  falls behind only by what its last requests take to end;
- Little's law: :math:`N = X \cdot \overline{E2E}` requests were in flight, never more than the clients' limit;
- :math:`\overline{E2E} = \overline{TTFT} + \overline{ITL} \cdot (\overline{\text{output}} - 1)`, where the mean of ITL
  is over all gaps between tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from jaxsim._checks import require, require_non_negative, require_positive

IDENTITY_TOLERANCE = 0.05
"""Relative error of an identity above which figures contradict each other; rounding and chunked tokens stay below."""

FEW_PERCENT = 0.02
"""Shortfall of the rate that is not worth a word, beside the scatter of the arrivals."""

LIMIT_REACHED = 0.85
"""Mean requests in flight over the clients' limit from which on the limit held requests back; the start and the end of
a run, when fewer are in flight, are in the mean."""


class Verdict(Enum):
    """What a run can be used for. The values are the sentences."""

    STEADY = "steady: the figures are those of the offered rate"
    CLOSED_LOOP = "closed loop: the figures are those of the clients' concurrency, and the rate is a result"
    UNSTABLE = "unstable: TTFT is a function of test length, not a steady-state value"
    INCONSISTENT = "inconsistent: the figures contradict each other"
    EMPTY = "empty: no request was completed"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A run's summary, of successful requests; seconds, tokens, requests per second.

    Attributes:
        completed: requests that ended well.
        duration_s: from the first request sent to the last one ended.
        mean_ttft_s: over requests.
        mean_e2e_s: over requests; None where it was not reported.
        mean_itl_s: over all gaps between tokens; None where it was not reported.
        total_output_tokens: of all completed requests; None where it was not reported.
        offered_rate: that the clients were told to send at; inf where each sent as soon as it might.
        max_concurrency: most requests in flight that the clients allow; None is no limit.
        failed: requests that did not end well.
    """

    completed: int
    duration_s: float
    mean_ttft_s: float
    mean_e2e_s: float | None = None
    mean_itl_s: float | None = None
    total_output_tokens: int | None = None
    offered_rate: float = math.inf
    max_concurrency: int | None = None
    failed: int = 0

    def __post_init__(self) -> None:
        require(self.completed >= 0, "completed", self.completed, ">= 0")
        require(self.failed >= 0, "failed", self.failed, ">= 0")
        require_positive("duration_s", self.duration_s)
        require(self.offered_rate > 0, "offered_rate", self.offered_rate, "> 0", "inf means as fast as may be")
        for name in ("mean_e2e_s", "mean_itl_s", "total_output_tokens"):
            if (value := getattr(self, name)) is not None and self.completed:
                require_non_negative(name, value)
        if self.completed:
            require_non_negative("mean_ttft_s", self.mean_ttft_s)
        if self.max_concurrency is not None:
            require(self.max_concurrency >= 1, "max_concurrency", self.max_concurrency, ">= 1")

    @property
    def achieved_rate(self) -> float:
        """Requests completed per second of the run."""
        return self.completed / self.duration_s

    @property
    def expected_e2e_s(self) -> float | None:
        """Mean E2E by the identity; None where a figure is missing."""
        if self.mean_itl_s is None or self.total_output_tokens is None or self.completed == 0:
            return None
        gaps = max(self.total_output_tokens / self.completed - 1.0, 0.0)
        return self.mean_ttft_s + self.mean_itl_s * gaps

    @property
    def e2e_s(self) -> float | None:
        """Mean E2E as reported, else by the identity."""
        return self.expected_e2e_s if self.mean_e2e_s is None else self.mean_e2e_s


@dataclass(frozen=True)
class Checkup:
    """What the identities say of a run; None where a figure is missing for one.

    Attributes:
        verdict: what the run can be used for.
        achieved_rate: requests completed per second.
        offered_over_achieved: as it stands, the end of the run included; None without an offered rate.
        offered_over_sustained: the same without the time that a request takes, in which a run ends: above 1 by more
            than the scatter of the arrivals, requests piled up.
        little_concurrency: mean requests in flight, by Little's law.
        e2e_error: reported mean E2E over that of the identity, less 1.
        findings: everything worth a sentence, with its figures.
    """

    verdict: Verdict
    achieved_rate: float
    offered_over_achieved: float | None
    offered_over_sustained: float | None
    little_concurrency: float | None
    e2e_error: float | None
    findings: tuple[str, ...]

    @property
    def steady(self) -> bool:
        """Whether latencies may be compared with those of another steady run, or fitted."""
        return self.verdict in (Verdict.STEADY, Verdict.CLOSED_LOOP)


def check(run: Benchmark) -> Checkup:
    """Hold a run's summary against the identities."""
    offered = None if math.isinf(run.offered_rate) or not run.completed else run.offered_rate
    ending_s = min(run.e2e_s or 0.0, 0.5 * run.duration_s)
    sent = run.completed + run.failed
    expected = run.expected_e2e_s
    checkup = Checkup(
        verdict=Verdict.STEADY,
        achieved_rate=run.achieved_rate,
        offered_over_achieved=None if offered is None else offered / run.achieved_rate,
        offered_over_sustained=None if offered is None else offered * (run.duration_s - ending_s) / sent,
        little_concurrency=None if run.e2e_s is None else run.achieved_rate * run.e2e_s,
        e2e_error=None if run.mean_e2e_s is None or not expected else run.mean_e2e_s / expected - 1.0,
        findings=(),
    )
    checkup = replace(checkup, verdict=_verdict(run, checkup))
    return replace(checkup, findings=tuple(_findings(run, checkup)))


def _verdict(run: Benchmark, checkup: Checkup) -> Verdict:
    if not run.completed:
        return Verdict.EMPTY
    if any(_contradictions(run, checkup)):
        return Verdict.INCONSISTENT
    if checkup.offered_over_sustained is None:
        return Verdict.CLOSED_LOOP if run.max_concurrency is not None else Verdict.UNSTABLE
    scatter = 2.0 / math.sqrt(run.completed + run.failed)  # of the time in which so many Poisson arrivals come
    return Verdict.UNSTABLE if checkup.offered_over_sustained > 1.0 + FEW_PERCENT + scatter else Verdict.STEADY


def _contradictions(run: Benchmark, checkup: Checkup) -> Iterator[str]:
    """What cannot be, whatever the engine."""
    if run.mean_ttft_s == 0:
        yield "a mean TTFT of 0 was not measured"
    if run.mean_e2e_s is not None and run.mean_e2e_s < run.mean_ttft_s:
        yield f"the mean E2E ({run.mean_e2e_s:.4g} s) is below the mean TTFT ({run.mean_ttft_s:.4g} s)"
    if checkup.e2e_error is not None and abs(checkup.e2e_error) > IDENTITY_TOLERANCE:
        yield (
            f"the mean E2E is {run.mean_e2e_s:.4g} s, but TTFT + ITL x (output tokens - 1) makes "
            f"{run.expected_e2e_s:.4g} s; tokens came several at a time, or the means are not of the same requests"
        )
    limit, flying = run.max_concurrency, checkup.little_concurrency
    if limit is not None and flying is not None and flying > (1.0 + IDENTITY_TOLERANCE) * limit:
        yield (
            f"by Little's law {flying:.4g} requests were in flight, above the clients' limit of {limit}; E2E counts "
            "the wait at the client, or the duration is not that of these requests"
        )


def _findings(run: Benchmark, checkup: Checkup) -> Iterator[str]:
    if run.failed:
        share = run.failed / (run.completed + run.failed)
        yield f"{run.failed:,} requests ({share:.2%}) failed: the latencies are those of the survivors"
    if checkup.verdict is Verdict.EMPTY:
        return
    yield from _contradictions(run, checkup)
    yield from _pace(run, checkup)
    limit, flying = run.max_concurrency, checkup.little_concurrency
    if limit is None or flying is None or math.isinf(run.offered_rate) or flying < LIMIT_REACHED * limit:
        return
    yield (
        f"by Little's law {flying:.4g} requests were in flight on average, of {limit} that the clients allow: these "
        "held requests back, and that wait is in no TTFT"
    )


def _pace(run: Benchmark, checkup: Checkup) -> Iterator[str]:
    """The rate, against the rate that was asked for."""
    ratio, sustained = checkup.offered_over_achieved, checkup.offered_over_sustained
    if checkup.verdict is Verdict.UNSTABLE:
        if ratio is None:
            yield f"all {run.completed + run.failed:,} requests were sent at once"
        else:
            yield (
                f"{run.offered_rate:.4g} requests/s were offered and {run.achieved_rate:.4g} achieved: {ratio:.3g} "
                f"times as many, and {sustained:.3g} times without the end of the run. Requests piled up"
            )
        yield (
            f"the mean TTFT of {run.mean_ttft_s:.4g} s depends on the number of requests that were sent: more would "
            "have made it longer. Do not compare it with that of another run; measure at a rate that is sustained"
        )
    elif ratio is not None and ratio > 1.0 + IDENTITY_TOLERANCE:
        yield (
            f"offered over achieved is {ratio:.3g}, but the end of the run explains it: a request takes "
            f"{run.e2e_s or 0.0:.3g} s of the {run.duration_s:.4g} s; send more requests"
        )
