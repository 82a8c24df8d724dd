"""Scenarios: what is drawn has the laws it should have, corners are corners, and a seed is a sample."""

import numpy as np
import pytest
from fleets import A100, H100, problem

from optim.fit_errors import FitErrors
from optim.scenarios import fit_factors, lognormal, scenarios
from optim.uncertainty import LAW, DemandScenario, Interval, Uncertainty

EVERYTHING = Uncertainty(
    scenarios=(DemandScenario("low", 0.25, rate=80.0), DemandScenario("high", 0.75, output_tokens_factor=1.5)),
    rate_cv=0.2,
    step_time_factor=Interval(0.9, 1.2),
    coefficients={"h100-80gb": {"base_s": 0.1}},
    input_tokens_factor=Interval(0.8, 1.25),
    output_tokens_factor=Interval(1.0, 2.0),
    length_sample=300,
)


def drawn(uncertainty, draws=64, seed=0, **more):
    return scenarios(uncertainty, problem(rate=100.0, profiles=(H100, A100)), draws=draws, seed=seed, **more)


def test_nothing_uncertain_is_one_scenario():
    found = drawn(Uncertainty())
    assert len(found) == 1 and found.exact and found.probability.tolist() == [1.0]
    assert (found.rate[0], found.input_factor[0], found.output_factor[0]) == (100.0, 1.0, 1.0)
    assert np.all(found.law_factor == 1.0) and not found.resampled.any()


def test_futures_alone_are_exact():
    found = drawn(EVERYTHING, only=("scenarios",))
    assert found.exact and found.probability.tolist() == [0.25, 0.75]
    assert found.rate.tolist() == [80.0, 100.0] and found.output_factor.tolist() == [1.0, 1.5]
    assert found.words(0) == "low: 80.00 req/s" and "output tokens x 1.50" in found.words(1)


def test_every_source_is_drawn_within_its_bounds_and_probabilities_sum_to_one():
    found = drawn(EVERYTHING)
    assert found.probability.sum() == pytest.approx(1.0)
    assert found.probability[np.array(found.names) == "high"].sum() == pytest.approx(0.75)
    assert np.all((found.input_factor >= 0.8) & (found.input_factor <= 1.25))
    assert np.all((found.output_factor >= 1.0) & (found.output_factor <= 3.0))
    base, other = found.law_factor[:, 0, LAW.index("base_s")], found.law_factor[:, 0, LAW.index("per_token_s")]
    assert np.all((other >= 0.9) & (other <= 1.2))
    assert np.all((base >= 0.81) & (base <= 1.32)) and np.ptp(base / other) > 0.1
    assert np.array_equal(found.law_factor[:, 1, 0], other)  # the A100 has no half-widths of its own


def test_corners_have_every_bounded_source_at_an_end_and_no_probability():
    found = drawn(EVERYTHING)
    corners = ~found.drawn
    assert corners.sum() == 2 * 2**5  # two futures; rate, step time, inputs, outputs, coefficients
    high = corners & (np.array(found.names) == "high")
    assert set(np.round(found.output_factor[high], 9)) == {1.5, 3.0}
    assert set(found.input_factor[corners]) == {0.8, 1.25}
    assert found.rate[corners].max() == pytest.approx(100.0 * float(lognormal(np.array([0.999]), 0.2)[0]))
    assert not found.resampled[corners].any() and found.resampled[found.drawn].all()


def test_a_low_discrepancy_sample_covers_each_interval_evenly():
    found = drawn(Uncertainty(rate=Interval(50.0, 150.0), input_tokens_factor=Interval(0.5, 1.5)), draws=128)
    rates = np.sort(found.rate[found.drawn])
    assert np.max(np.abs(rates - (50.0 + 100.0 * (np.arange(128) + 0.5) / 128))) < 100.0 / 128
    assert abs(np.corrcoef(found.rate[found.drawn], found.input_factor[found.drawn])[0, 1]) < 0.05


def test_a_lognormal_rate_keeps_its_mean_and_variation():
    found = drawn(Uncertainty(rate_cv=0.3), draws=4096)
    rates = found.rate[found.drawn]
    assert rates.mean() == pytest.approx(100.0, rel=2e-3)
    assert rates.std() / rates.mean() == pytest.approx(0.3, rel=0.02)


def test_a_fit_is_drawn_with_its_covariance():
    errors = FitErrors(("base_s", "per_token_s"), np.array([[1e-6, -8e-11], [-8e-11, 1e-14]]), 10_000, None)
    known = np.array([0.01, 0.0, 1e-6, 0.0, 0.0, 0.0])
    rng = np.random.default_rng(0)
    values = known * fit_factors(errors, known, rng.random((60_000, len(LAW))))
    found = np.cov(values[:, [0, 2]].T)
    assert found == pytest.approx(errors.covariance_s2, rel=0.05)
    assert np.all(values[:, 1] == 0.0)


def test_few_degrees_of_freedom_have_heavier_tails():
    known, shares = np.full(len(LAW), 0.01), np.full((1, len(LAW)), 0.999)
    one = FitErrors(("base_s",), np.array([[1e-6]]), 3, None)
    many = FitErrors(("base_s",), np.array([[1e-6]]), 10_000, None)
    assert abs(fit_factors(one, known, shares)[0, 0] - 1.0) > 2.0 * abs(fit_factors(many, known, shares)[0, 0] - 1.0)


def test_a_coefficient_that_would_be_negative_is_clipped_and_counted():
    wild = FitErrors(("base_s",), np.array([[1.0]]), 3, None)
    found = drawn(Uncertainty(fits={"h100-80gb": wild}))
    assert found.clipped > 0 and found.law_factor.min() == pytest.approx(0.01)


def test_lengths_drawn_anew_are_a_bootstrap():
    found = drawn(Uncertainty(length_sample=300))
    workload = problem().workload
    weights = found.weights(workload, np.arange(64))
    assert weights.sum(axis=1) == pytest.approx(np.ones(64))
    assert np.all(np.round(weights * 300) == pytest.approx(weights * 300))
    share = np.asarray(workload.weight)
    assert np.mean((weights - share) ** 2) == pytest.approx(np.mean(share * (1 - share)) / 300, rel=0.1)
    again = found.weights(workload, np.array([5, 7]))
    assert np.array_equal(again, weights[[5, 7]])  # whatever the batch


def test_equal_seeds_are_equal_samples_and_sources_keep_their_points():
    assert np.array_equal(drawn(EVERYTHING).rate, drawn(EVERYTHING).rate)
    assert not np.array_equal(drawn(EVERYTHING).rate, drawn(EVERYTHING, seed=1).rate)
    alone = drawn(EVERYTHING, only=("input_tokens_factor",))
    both = drawn(EVERYTHING, only=("input_tokens_factor", "step_time_factor"))
    assert np.array_equal(alone.input_factor[alone.drawn], both.input_factor[both.drawn])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Interval(2.0, 1.0), "low <= high"),
        (lambda: Interval(0.0, 1.0), "low must be > 0"),
        (lambda: DemandScenario("a", 0.0), "probability of scenario 'a'"),
        (lambda: Uncertainty(scenarios=(DemandScenario("a", 0.5),)), "sum to 1, got 0.5"),
        (lambda: Uncertainty(scenarios=(DemandScenario("a", 0.5), DemandScenario("a", 0.5))), "different names"),
        (lambda: Uncertainty(rate=Interval(1, 2), rate_cv=0.1), "rate and rate_cv"),
        (lambda: Uncertainty(rate=Interval(1, 2), scenarios=(DemandScenario("a", 1.0),)), "rate and scenarios"),
        (lambda: Uncertainty(rate_cv=-1.0), "rate_cv must be > 0"),
        (lambda: Uncertainty(length_sample=0), "length_sample must be >= 1"),
        (lambda: Uncertainty(coefficients={"x": {"base": 0.1}}), "did you mean 'base_s'"),
        (lambda: Uncertainty(coefficients={"x": {"base_s": 1.0}}), "relative half-width"),
        (lambda: drawn(Uncertainty(coefficients={"h100": {"base_s": 0.1}})), "did you mean 'h100-80gb'"),
        (lambda: drawn(EVERYTHING, draws=100), "power of two"),
    ],
)
def test_bad_values_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()
