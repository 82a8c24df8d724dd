"""Estimates: Student t over groups, and what is said where no interval can be."""

import numpy as np
import pytest
from scipy import stats

from des.stats import NUM_BATCHES, Estimate, Sample, half_width, lower_bound, next_length


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
