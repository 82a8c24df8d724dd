"""The identities of a benchmark's summary, on runs whose truth is known; and percentiles over repeated runs."""

import math

import numpy as np
import pytest
from scipy import stats

from jaxsim.benchmark_doctor import Benchmark, Verdict, check
from jaxsim.repeats import repeats


def run_of_queue(offered, capacity, *, number=2_000, service_s=4.0, seed=0):
    """Measure Poisson arrivals at a server that starts one request every 1/capacity s and holds it `service_s`."""
    arrival = np.cumsum(np.random.default_rng(seed).exponential(1.0 / offered, number))
    start = np.maximum.accumulate(arrival - np.arange(number) / capacity) + np.arange(number) / capacity
    end = start + service_s
    return Benchmark(
        completed=number,
        duration_s=float(end.max() - arrival[0]),
        mean_ttft_s=float(np.mean(start - arrival)) + 0.1,
        mean_e2e_s=float(np.mean(end - arrival)),
        offered_rate=offered,
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("load", "verdict"), [(0.5, Verdict.STEADY), (0.9, Verdict.STEADY), (1.2, Verdict.UNSTABLE)])
def test_a_run_that_keeps_up_is_told_from_one_that_does_not(load, verdict, seed):
    assert check(run_of_queue(10.0 * load, 10.0, seed=seed)).verdict is verdict


def test_an_overloaded_run_must_not_be_compared():
    """Its TTFT doubles with its length; the same words for both."""
    short, long = (run_of_queue(20.0, 10.0, number=n) for n in (1_000, 2_000))
    assert long.mean_ttft_s == pytest.approx(2.0 * short.mean_ttft_s, rel=0.1)
    for run in (short, long):
        found = check(run)
        assert not found.steady
        assert found.offered_over_achieved == pytest.approx(2.0, rel=0.1)
        assert any("Do not compare" in line for line in found.findings)


def test_the_end_of_a_short_run_is_not_an_overload():
    """100 requests at 10 a second, each 10 s long, take 20 s."""
    found = check(Benchmark(completed=100, duration_s=20.0, mean_ttft_s=0.2, mean_e2e_s=10.0, offered_rate=10.0))
    assert found.offered_over_achieved == pytest.approx(2.0)
    assert found.verdict is Verdict.STEADY
    assert "send more requests" in found.findings[0]


def test_clients_in_a_closed_loop_measure_their_concurrency():
    found = check(Benchmark(completed=300, duration_s=91.8, mean_ttft_s=0.1, mean_e2e_s=4.76, max_concurrency=16))
    assert found.verdict is Verdict.CLOSED_LOOP
    assert found.steady
    assert found.little_concurrency == pytest.approx(15.56, abs=0.01)
    assert found.offered_over_achieved is None


def test_all_at_once_is_a_test_of_its_length():
    found = check(Benchmark(completed=300, duration_s=60.0, mean_ttft_s=20.0, mean_e2e_s=30.0))
    assert found.verdict is Verdict.UNSTABLE
    assert found.findings[0] == "all 300 requests were sent at once"


STEADY = {"completed": 10_000, "duration_s": 1_000.0, "mean_ttft_s": 0.2, "offered_rate": 10.0}
CONTRADICTIONS = [
    ({"mean_ttft_s": 0.0}, "a mean TTFT of 0 was not measured"),
    ({"mean_e2e_s": 0.1}, "below the mean TTFT"),
    ({"mean_e2e_s": 9.0, "mean_itl_s": 0.02, "total_output_tokens": 2_010_000}, "several at a time"),
    ({"mean_e2e_s": 4.0, "max_concurrency": 20}, "above the clients' limit of 20"),
]


@pytest.mark.parametrize(("figures", "text"), CONTRADICTIONS)
def test_figures_that_cannot_be_are_refused_in_words(figures, text):
    found = check(Benchmark(**{**STEADY, **figures}))
    assert found.verdict is Verdict.INCONSISTENT
    assert any(text in line for line in found.findings)


def test_the_e2e_identity_holds_and_fills_in():
    reported = check(
        Benchmark(**STEADY, mean_e2e_s=4.2, mean_itl_s=0.02, total_output_tokens=2_010_000, max_concurrency=100)
    )
    assert reported.verdict is Verdict.STEADY
    assert reported.e2e_error == pytest.approx(0.0, abs=1e-12)
    assert not reported.findings
    derived = check(Benchmark(**STEADY, mean_itl_s=0.02, total_output_tokens=2_010_000))
    assert derived.little_concurrency == reported.little_concurrency == pytest.approx(42.0)
    assert derived.e2e_error is None


def test_failures_and_nothing_at_all_are_said():
    found = check(Benchmark(**STEADY, mean_e2e_s=4.2, failed=500))
    assert found.findings[0] == "500 requests (4.76%) failed: the latencies are those of the survivors"
    empty = check(Benchmark(completed=0, duration_s=1.0, mean_ttft_s=math.nan))
    assert empty.verdict is Verdict.EMPTY
    assert empty.offered_over_achieved is None


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"completed": -1}, "completed must be >= 0"),
        ({"duration_s": 0.0}, "duration_s must be > 0"),
        ({"offered_rate": 0.0}, "offered_rate must be > 0"),
        ({"mean_ttft_s": math.nan}, "mean_ttft_s must be >= 0"),
        ({"mean_e2e_s": -1.0}, "mean_e2e_s must be >= 0"),
        ({"max_concurrency": 0}, "max_concurrency must be >= 1"),
        ({"failed": -1}, "failed must be >= 0"),
    ],
)
def test_bad_figures_are_refused(bad, text):
    with pytest.raises(ValueError, match=text):
        Benchmark(**{**STEADY, **bad})


def test_repeats_have_the_t_interval():
    values = [1.0, 2.0, 4.0, 5.0]
    found = repeats(values, quantile=0.99, num_requests=500)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(max(low, 0.0)), pytest.approx(high))
    assert found.cv == pytest.approx(np.std(values, ddof=1) / 3.0)
    assert found.beyond == 5
    assert "4 runs of 500 requests" in str(found)


def test_one_run_says_nothing_of_its_scatter():
    found = repeats([3.0], quantile=0.9, num_requests=100)
    assert (found.low, found.high) == (0.0, math.inf)
    assert math.isnan(found.cv)
    assert "inf" in str(found)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], 0.99, 10), "number of values must be >= 1"),
        (([-1.0], 0.99, 10), "values must be >= 0"),
        (([1.0], 99.0, 10), "P99 is 0.99, not 99"),
        (([1.0], 0.99, 0), "num_requests must be >= 1"),
    ],
)
def test_bad_repeats_are_refused(arguments, text):
    values, quantile, number = arguments
    with pytest.raises(ValueError, match=text):
        repeats(values, quantile=quantile, num_requests=number)
