r"""Whether a measured benchmark means what it seems to mean: identities that its summary must satisfy.

A summary of means says nothing of a run that never settled. Three identities tell, without any model of the engine:

- requests arrive at the offered rate and leave at :math:`X = \text{completed} / \text{duration}`. A run that keeps up
  falls behind only by what its last requests take to end;
- Little's law: :math:`N = X \cdot \overline{E2E}` requests were in flight, never more than the clients' limit;
- :math:`\overline{E2E} = \overline{TTFT} + \overline{ITL} \cdot (\overline{\text{output}} - 1)`, where the mean of ITL
  is over all gaps between tokens.

`jaxsim.request_doctor` looks at the rows of a run, where its file has them.
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

LIMIT_ALL_ALONG = 0.95
"""The same from which on the clients' limit, and not the rate, set the load from the first request to the last."""

LEAST_REQUESTS = 20
"""Requests below which a run says nothing of a steady state: the arrivals of fewer scatter by half their time. Clients
that send all at once need more requests than clients, too."""

IDLE_CLIENTS = 0.5
"""The same below which clients that should each have had a request in flight did not: their number is not the load."""


class Verdict(Enum):
    """What a run can be used for. The values are the sentences."""

    STEADY = "steady: the figures are those of the offered rate"
    CLOSED_LOOP = "closed loop: the figures are those of the clients' concurrency, and the rate is a result"
    UNSTABLE = "unstable: TTFT is a function of test length, not a steady-state value"
    UNKNOWN = "unknown: the file does not say what load the clients offered"
    TOO_FEW = "too few requests: they say nothing of a steady state"
    INCONSISTENT = "inconsistent: the figures contradict each other"
    EMPTY = "empty: no request was completed"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A run's summary, of successful requests; seconds, tokens, requests per second.

    Attributes:
        completed: requests that ended well.
        duration_s: from the first request sent to the last one ended, or of the window between two scrapes; None where
            it is not known.
        mean_ttft_s: over requests.
        mean_e2e_s: over requests; None where it was not reported.
        mean_itl_s: over all gaps between tokens; None where it was not reported.
        total_output_tokens: of all completed requests; None where it was not reported.
        offered_rate: that the clients were told to send at; inf where each sent as soon as it might; None where it is
            not known.
        max_concurrency: most requests in flight that the clients allow; None is no limit, or not known.
        failed: requests that did not end well.
        incomplete: requests in flight when the measuring stopped; where there are any, the run was cut, not ended.
        arrived: requests that came in a window of a running server; None for a run of its own.
    """

    completed: int
    duration_s: float | None
    mean_ttft_s: float
    mean_e2e_s: float | None = None
    mean_itl_s: float | None = None
    total_output_tokens: int | None = None
    offered_rate: float | None = math.inf
    max_concurrency: int | None = None
    failed: int = 0
    incomplete: int = 0
    arrived: int | None = None

    def __post_init__(self) -> None:
        for name in ("completed", "failed", "incomplete"):
            require(getattr(self, name) >= 0, name, getattr(self, name), ">= 0")
        if self.arrived is not None:
            require(self.arrived >= 0, "arrived", self.arrived, ">= 0")
        if self.duration_s is not None:
            require_positive("duration_s", self.duration_s)
        if self.offered_rate is not None:
            require(self.offered_rate > 0, "offered_rate", self.offered_rate, "> 0", "inf means as fast as may be")
        for name in ("mean_e2e_s", "mean_itl_s", "total_output_tokens"):
            if (value := getattr(self, name)) is not None and self.completed:
                require_non_negative(name, value)
        if self.completed:
            require_non_negative("mean_ttft_s", self.mean_ttft_s)
        if self.max_concurrency is not None:
            require(self.max_concurrency >= 1, "max_concurrency", self.max_concurrency, ">= 1")

    @property
    def sent(self) -> int:
        """Requests of the run, however they ended."""
        return self.completed + self.failed + self.incomplete

    @property
    def achieved_rate(self) -> float | None:
        """Requests completed per second of the run; None where its duration is not known."""
        return None if self.duration_s is None else self.completed / self.duration_s

    @property
    def sending_s(self) -> float | None:
        """The duration without the end of the run, in which nothing is sent: the time that a request takes."""
        if self.duration_s is None or self.incomplete or self.arrived is not None:
            return self.duration_s
        return self.duration_s - min(self.e2e_s or 0.0, 0.5 * self.duration_s)

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
        achieved_rate: requests completed per second; None without a duration.
        offered_over_achieved: as it stands, the end of the run included; None without an offered rate.
        offered_over_sustained: the same without the time that a request takes, in which a run ends: above 1 by more
            than the scatter of the arrivals, requests piled up.
        little_concurrency: mean requests in flight, by Little's law.
        e2e_error: reported mean E2E over that of the identity, less 1.
        findings: everything worth a sentence, with its figures.
        reasons: those of them that decide the verdict, where it is not one of a steady run.
    """

    verdict: Verdict
    achieved_rate: float | None
    offered_over_achieved: float | None
    offered_over_sustained: float | None
    little_concurrency: float | None
    e2e_error: float | None
    findings: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def steady(self) -> bool:
        """Whether latencies may be compared with those of another steady run, or fitted."""
        return self.verdict in (Verdict.STEADY, Verdict.CLOSED_LOOP)


def check(run: Benchmark) -> Checkup:
    """Hold a run's summary against the identities."""
    rate = run.achieved_rate
    expected = run.expected_e2e_s
    checkup = Checkup(
        verdict=Verdict.STEADY,
        achieved_rate=rate,
        offered_over_achieved=_over_achieved(run),
        offered_over_sustained=_over_sustained(run),
        little_concurrency=None if run.e2e_s is None or rate is None else rate * run.e2e_s,
        e2e_error=None if run.mean_e2e_s is None or not expected else run.mean_e2e_s / expected - 1.0,
    )
    checkup = replace(checkup, verdict=_verdict(run, checkup))
    return replace(checkup, findings=tuple(_findings(run, checkup)), reasons=tuple(_reasons(run, checkup)))


def _offered(run: Benchmark) -> float | None:
    """The rate that was asked for, where it is one."""
    if run.offered_rate is None or math.isinf(run.offered_rate) or not run.completed or run.duration_s is None:
        return None
    return run.offered_rate


def _over_achieved(run: Benchmark) -> float | None:
    offered, rate = _offered(run), run.achieved_rate
    return None if offered is None or rate is None else offered / rate


def _over_sustained(run: Benchmark) -> float | None:
    if run.arrived is not None:
        ended = run.completed + run.failed
        return run.arrived / ended if ended else None
    offered, sending_s = _offered(run), run.sending_s
    return None if offered is None or sending_s is None else offered * sending_s / run.sent


def _verdict(run: Benchmark, checkup: Checkup) -> Verdict:
    if not run.completed:
        return Verdict.EMPTY
    if any(_contradictions(run, checkup)):
        return Verdict.INCONSISTENT
    if run.sent < max(LEAST_REQUESTS, (run.max_concurrency or 0) + 1 if _offered(run) is None else 0):
        return Verdict.TOO_FEW
    if run.max_concurrency is not None and _in_flight_share(run, checkup) >= LIMIT_ALL_ALONG:
        return Verdict.CLOSED_LOOP
    if checkup.offered_over_sustained is None:
        if run.max_concurrency is not None:
            return Verdict.CLOSED_LOOP
        return Verdict.UNSTABLE if run.offered_rate == math.inf else Verdict.UNKNOWN
    return Verdict.UNSTABLE if checkup.offered_over_sustained > _most_sustained(run) else Verdict.STEADY


def _most_sustained(run: Benchmark) -> float:
    """Offered over sustained that a run which keeps up can show: its arrivals scatter as Poisson ones."""
    return 1.0 + FEW_PERCENT + 2.0 / math.sqrt(run.sent)


def _in_flight_share(run: Benchmark, checkup: Checkup) -> float:
    """Mean requests in flight over the clients' limit; 0 where one of them is not known."""
    if run.max_concurrency is None or checkup.little_concurrency is None:
        return 0.0
    return checkup.little_concurrency / run.max_concurrency


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
    if limit is None or flying is None:
        return
    if flying > (1.0 + IDENTITY_TOLERANCE) * limit:
        yield (
            f"by Little's law {flying:.4g} requests were in flight, above the clients' limit of {limit}; E2E counts "
            "the wait at the client, or the duration is not that of these requests"
        )
    if checkup.offered_over_sustained is None and flying < IDLE_CLIENTS * limit:
        yield (
            f"by Little's law {flying:.3g} requests were in flight on average, of {limit} clients that should each "
            "have had one: fewer clients sent, they paused, or E2E leaves time out"
        )


def _reasons(run: Benchmark, checkup: Checkup) -> Iterator[str]:
    if checkup.verdict is Verdict.INCONSISTENT:
        yield from _contradictions(run, checkup)
    elif checkup.verdict is Verdict.UNSTABLE:
        yield from _pace(run, checkup)


def _requests(number: int) -> str:
    return f"{number:,} request{'' if number == 1 else 's'}"


def _findings(run: Benchmark, checkup: Checkup) -> Iterator[str]:
    if run.failed:
        share = run.failed / run.sent
        yield f"{_requests(run.failed)} ({share:.2%}) failed: the latencies are those of the survivors"
    if run.incomplete:
        yield f"{_requests(run.incomplete)} still in flight when the measuring stopped: in no figure"
    if checkup.verdict is Verdict.EMPTY:
        return
    yield from _contradictions(run, checkup)
    yield from _pace(run, checkup)
    share = _in_flight_share(run, checkup)
    if share < LIMIT_REACHED or _offered(run) is None:
        return
    yield (
        f"by Little's law {checkup.little_concurrency:.4g} requests were in flight on average, of "
        f"{run.max_concurrency} that the clients allow: these held requests back, and that wait is in no TTFT"
    )


def _pace(run: Benchmark, checkup: Checkup) -> Iterator[str]:
    """The rate, against the rate that was asked for."""
    ratio, sustained = checkup.offered_over_achieved, checkup.offered_over_sustained
    if checkup.verdict is Verdict.UNSTABLE:
        if run.arrived is not None:
            yield (
                f"{run.arrived:,} requests came between the scrapes and {run.completed + run.failed:,} ended: "
                "requests piled up in the server"
            )
        elif ratio is None:
            yield f"all {run.sent:,} requests were sent at once"
        else:
            yield (
                f"{run.offered_rate:.4g} requests/s were offered and {run.achieved_rate:.4g} achieved: {ratio:.3g} "
                f"times as many, and {sustained:.3g} times without the end of the run. Requests piled up"
            )
        yield (
            f"the mean TTFT of {run.mean_ttft_s:.4g} s depends on the number of requests that were sent: more would "
            "have made it longer. Do not compare it with that of another run; measure at a rate that is sustained"
        )
    elif checkup.verdict in (Verdict.STEADY, Verdict.TOO_FEW) and (ratio or 0.0) > 1.0 + IDENTITY_TOLERANCE:
        yield f"offered over achieved is {ratio:.3g}, {_why_behind(run, sustained or 0.0)}; send more requests"


def _why_behind(run: Benchmark, sustained: float) -> str:
    if run.incomplete:
        return f"but {_requests(run.incomplete)} still in flight at its end explains it"
    if sustained <= 1.0 + IDENTITY_TOLERANCE:
        takes = f"a request takes {run.e2e_s or 0.0:.3g} s of the {run.duration_s:.4g} s"
        return f"but the end of the run explains it: {takes}"
    return (
        f"of which the end of the run leaves {sustained:.3g}: {run.sent:,} arrivals scatter by that much, so it says "
        "nothing"
    )
