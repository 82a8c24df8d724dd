"""Order-statistic intervals: against the binomial law and against what they promise."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from jaxsim.percentiles import beyond, interval, needed, ranks


@given(st.integers(1, 2000), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]), st.sampled_from([0.9, 0.95, 0.99]))
def test_ranks_are_the_nearest_that_keep_the_promise(number, q, confidence):
    tail = 0.5 * (1.0 - confidence)
    low, high = ranks(number, q, confidence=confidence)
    assert 0 <= low <= high <= number + 1
    assert low == 0 or binom.cdf(low - 1, number, q) <= tail
    assert low == number or binom.cdf(low, number, q) > tail
    if high <= number:
        assert binom.sf(high - 1, number, q) <= tail
    assert high == 1 or binom.sf(high - 2, number, q) > tail


def test_a_p99_of_few_has_no_upper_end():
    assert needed(0.99) == 368
    assert ranks(367, 0.99)[1] == 368 and ranks(368, 0.99)[1] == 368
    assert math.isinf(interval(np.arange(367.0), 0.99).high)
    assert interval(np.arange(368.0), 0.99).high == 367.0
    assert interval([5.0], 0.5) == (0.0, math.inf)
    assert (beyond(100, 0.99), beyond(1000, 0.99), beyond(30, 0.99)) == (1, 10, 0)


def test_intervals_cover():
    """Of the P90 of exponential times, in 2,000 samples of 200."""
    rng = np.random.default_rng(7)
    truth = -math.log(0.1)
    inside = 0
    for _ in range(2000):
        low, high = interval(rng.exponential(size=200), 0.9)
        inside += low <= truth <= high
    assert 0.94 <= inside / 2000 <= 0.985


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 0.5), "number must be >= 1"),
        ((10, 99.0), "P99 is 0.99, not 99"),
        ((10, 0.0), "q must be between 0 and 1"),
    ],
)
def test_bad_input(arguments, text):
    with pytest.raises(ValueError, match=text):
        ranks(*arguments)
