"""Estimates: Student t over groups, counted observations, the warm-up rule, and what is said where no interval is."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import lfilter

from des.histogram import HIGHEST_S, LOG_WIDTH, LOWEST_S
from des.stats import (
    NUM_BATCHES,
    Estimate,
    Histogram,
    LogHistogram,
    Sample,
    half_width,
    lower_bound,
    mser5,
    next_length,
)


def test_the_interval_is_student_t_over_the_groups():
    groups = np.random.default_rng(0).exponential(1.0, (8, 5000))
    sample = Sample(tuple(groups))
    for q in (0.5, 0.99):
        estimate = sample.quantile(q, confidence=0.9)
        quantiles = np.quantile(groups, q, axis=1)
        half = stats.t.ppf(0.95, 7) * quantiles.std(ddof=1) / np.sqrt(8)
        assert estimate.value == np.quantile(groups, q)
        assert (estimate.low, estimate.high) == pytest.approx((estimate.value - half, estimate.value + half))
        assert estimate.relative_half_width == pytest.approx(half / estimate.value)
        assert (estimate.n, estimate.confidence) == (40_000, 0.9)
    assert sample.mean().value == pytest.approx(groups.mean())


def test_one_run_is_cut_into_batches_in_time():
    values = np.random.default_rng(1).exponential(1.0, 10_000)
    estimate = Sample((values,)).mean()
    means = values.reshape(NUM_BATCHES, -1).mean(axis=1)
    assert estimate.high - estimate.value == pytest.approx(half_width(means, 0.95))


def test_where_no_interval_can_be_it_is_everything():
    """A quantile without an interval does not exist: one observation is between 0 and inf, none is NaN."""
    assert Sample((np.array([3.0]),)).quantile(0.99) == Estimate(3.0, 0.0, np.inf, 1)
    nothing = Sample((np.zeros(0), np.zeros(0))).quantile(0.99)
    assert np.isnan([nothing.value, nothing.low, nothing.high]).all() and nothing.n == 0
    assert Sample((np.ones(9), np.ones(9)), unbounded=True).mean() == Estimate(1.0, 1.0, np.inf, 18)
    assert Sample((np.zeros(9), np.zeros(9))).mean().relative_half_width == np.inf


def test_the_one_sided_bound():
    values = np.array([1.0, 1.2, 1.1, 0.9])
    expected = values.mean() - stats.t.ppf(0.99, 3) * values.std(ddof=1) / 2
    assert lower_bound(values, 0.99) == pytest.approx(expected)
    assert lower_bound(values[:1], 0.99) == -np.inf


@pytest.mark.parametrize("q", [0.0, 1.0, 99.0, float("nan")])
def test_a_quantile_is_between_0_and_1(q):
    with pytest.raises(ValueError, match=r"q must be between 0 and 1, got .*; a quantile is 0.99, not 99"):
        Sample((np.ones(5),)).quantile(q)


@pytest.mark.parametrize(
    ("reached", "expected"), [(0.06, 4800), (0.03, 1500), (1.0, 8000), (np.inf, 8000), (0.09, 8000)]
)
def test_the_next_length_follows_the_root_law(reached, expected):
    assert next_length(1000, reached, 0.03, 10**9) == pytest.approx(expected, abs=1)
    assert next_length(1000, reached, 0.03, 1200) == 1200


# --- counted observations --------------------------------------------------------------------------------------


def counted(values):
    """The same observations as values and counts."""
    unique, counts = np.unique(values, return_counts=True)
    return Histogram(unique, counts)


@given(values=st.lists(st.floats(0, 1e3), min_size=1, max_size=60), q=st.floats(0.001, 0.999))
def test_a_histogram_has_the_quantiles_and_mean_of_its_observations(values, q):
    values = np.round(np.array(values), 1)
    histogram = counted(values)
    assert len(histogram) == len(values)
    assert histogram.quantile(q) == pytest.approx(np.quantile(values, q), rel=1e-12, abs=1e-12)
    assert histogram.mean() == pytest.approx(values.mean(), rel=1e-12)


@pytest.mark.parametrize("kinds", ["hh", "ah", "aahh"])
def test_a_sample_of_counted_groups_is_that_of_the_observations(kinds):
    rng = np.random.default_rng(2)
    arrays = [np.round(rng.exponential(1.0, 500 + 100 * i), 2) for i in range(len(kinds))]
    groups = [counted(a) if kind == "h" else a for a, kind in zip(arrays, kinds, strict=True)]
    kept, sample = Sample(tuple(arrays)), Sample(tuple(groups))
    for one, other in [(sample.quantile(0.99), kept.quantile(0.99)), (sample.mean(), kept.mean())]:
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), rel=1e-12)
        assert one.n == other.n
    with pytest.raises(ValueError, match=r"counted, not kept: use Sample.pooled\(\)"):
        _ = sample.values
    pooled = sample.pooled()
    np.testing.assert_array_equal(np.repeat(pooled.values, pooled.counts), np.sort(kept.values))
    assert pooled.mean() == pytest.approx(kept.values.mean(), rel=1e-14)


def test_counted_groups_at_the_edges():
    """One histogram has no order, so no interval; an empty one counts for nothing."""
    nothing = Histogram(np.zeros(0), np.zeros(0, dtype=int))
    one = counted(np.array([1.0, 2.0, 3.0]))
    assert Sample((one,)).quantile(0.5) == Estimate(2.0, 0.0, np.inf, 3)
    assert Sample((nothing, one)).mean() == Estimate(2.0, 0.0, np.inf, 3)
    assert Sample((nothing, nothing)).mean().n == 0
    assert np.isnan([nothing.mean(), nothing.quantile(0.5)]).all()
    assert Sample((one, one), unbounded=True).mean().high == np.inf


BAD_HISTOGRAMS = {
    "steps of values must be >= 0, got -1.0": lambda: Histogram(np.array([2.0, 1.0]), np.array([1, 1])),
    "counts must be >= 0, got -1": lambda: Histogram(np.array([1.0, 2.0]), np.array([1, -1])),
    "durations to count must be >= 0 and finite, got -0.1": lambda: LogHistogram().add(np.array([0.0, -0.1])),
    "got nan; leave undefined ones out first": lambda: LogHistogram().add(np.array([1.0, np.nan])),
    "durations to count must be >= 0 and finite, got inf": lambda: LogHistogram().add(np.array([1.0, np.inf])),
}


@pytest.mark.parametrize("text", BAD_HISTOGRAMS)
def test_bad_counts_are_refused(text):
    with pytest.raises(ValueError, match=re.escape(text)):
        BAD_HISTOGRAMS[text]()


LATENCIES = {
    "exponential": lambda rng: rng.exponential(0.3, 200_000),
    "lognormal": lambda rng: rng.lognormal(-2.0, 2.5, 200_000),
    "half zero": lambda rng: rng.exponential(2.0, 200_000) * (rng.random(200_000) < 0.5),
    "constant": lambda rng: np.full(1000, 0.0123),
    "whole range": lambda rng: np.exp(rng.uniform(np.log(LOWEST_S), np.log(HIGHEST_S), 200_000)),
}


@pytest.mark.parametrize("law", LATENCIES)
def test_a_log_histogram_knows_quantiles_to_half_a_bin_and_means_exactly(law):
    values = LATENCIES[law](np.random.default_rng(3))
    logs = LogHistogram()
    for part in np.array_split(values, 7):
        logs.add(part)
    histogram = logs.histogram()
    for q in (0.001, 0.3, 0.5, 0.9, 0.99, 0.999, 0.99999):
        assert histogram.quantile(q) == pytest.approx(np.quantile(values, q), rel=0.0005)
    assert (len(logs), logs.below, logs.above) == (len(values), 0, 0)
    assert (logs.least, logs.greatest) == (values.min(), values.max())
    assert histogram.mean() == pytest.approx(values.mean(), rel=1e-13)
    assert histogram.quantile(0.0) >= values.min() and histogram.quantile(1.0) <= values.max()


def test_bins_are_a_tenth_of_a_percent_wide():
    assert np.expm1(LOG_WIDTH) <= 0.001


@given(st.floats(LOWEST_S, 0.9999 * HIGHEST_S))
def test_every_value_is_found_again(value):
    logs = LogHistogram()
    logs.add(np.array([value, 0.0, 2 * HIGHEST_S]))  # the others, so that the extremes do not help
    assert logs.histogram().values[1] == pytest.approx(value, rel=0.0005)
    assert (logs.below, logs.above) == (0, 1)


def test_what_lies_outside_is_counted_and_said():
    logs = LogHistogram()
    logs.add(np.array([0.0, 0.0, 1e-9, 5e-8, 1.0, 2e7, 5e9]))
    assert (logs.below, logs.above, len(logs)) == (2, 2, 7)
    histogram = logs.histogram()
    np.testing.assert_allclose(histogram.values, [0.0, 1e-7, 1.0, 5e9], rtol=0.0005)
    np.testing.assert_array_equal(histogram.counts, [2, 2, 1, 2])
    assert histogram.mean() == pytest.approx((6e-8 - 9e-9 + 1.0 + 2e7 + 5e9) / 7, rel=1e-12)


def test_log_histograms_merge():
    one, two, both = LogHistogram(), LogHistogram(), LogHistogram()
    rng = np.random.default_rng(4)
    for logs, values in [(one, rng.exponential(1.0, 1000)), (two, rng.exponential(9.0, 10)), (two, np.zeros(0))]:
        logs.add(values)
        both.add(values)
    one.merge(two)
    np.testing.assert_array_equal(one.counts, both.counts)
    assert (one.total, one.least, one.greatest) == pytest.approx((both.total, both.least, both.greatest))
    empty = LogHistogram()
    assert len(empty.histogram()) == 0
    empty.merge(one)
    assert (len(empty), empty.least) == (1010, one.least)


# --- the warm-up -----------------------------------------------------------------------------------------------


def plain_mser5(values):
    """The rule as it is written."""
    means = np.array([np.mean(values[i : i + 5]) for i in range(0, len(values) - 4, 5)])
    number = len(means)
    error = [np.var(means[d:]) / (number - d) for d in range(number // 2 + 1)]
    return 5 * int(np.argmin(error))


@pytest.mark.parametrize("number", [0, 4, 9, 10, 11, 500, 20_003])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e9])
def test_nothing_is_cut_from_a_constant(number, value):
    assert mser5(np.full(number, value)) == 0


@pytest.mark.parametrize("length", [100, 500, 2000])
@pytest.mark.parametrize("height", [10.0, 1e6])
def test_a_transient_is_cut_off(length, height):
    """A start `height` standard deviations high, on autocorrelated noise."""
    rng = np.random.default_rng(5)
    noise = lfilter([1.0], [1.0, -0.5], rng.standard_normal(10_000))
    values = noise + height * (np.arange(10_000) < length)
    assert length <= mser5(values) <= length + 150
    assert mser5(values) % 5 == 0


def test_a_decaying_start_is_cut_where_it_is_lost_in_the_noise():
    rng = np.random.default_rng(6)
    values = rng.standard_normal(20_000) + 20.0 * np.exp(-np.arange(20_000) / 300.0)
    assert 600 <= mser5(values) <= 2500


@given(seed=st.integers(0, 2**32), number=st.integers(10, 300))
@settings(deadline=None)
def test_mser5_is_the_rule_as_written(seed, number):
    rng = np.random.default_rng(seed)
    values = rng.exponential(1.0, number) + np.linspace(rng.uniform(0, 5), 0, number)
    assert mser5(values) == plain_mser5(values)


def test_never_more_than_half():
    values = np.concatenate([np.random.default_rng(7).standard_normal(900), np.zeros(100)])
    assert mser5(values) <= 500
    with pytest.raises(ValueError, match="values must be finite, got nan"):
        mser5(np.array([1.0] * 20 + [np.nan]))
