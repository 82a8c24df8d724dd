"""Factors on a known law: found where a figure has a value, and what their uncertainty makes of coefficients."""

import math

import numpy as np
import pytest
from fleets import make_profile

from jaxsim.fit.rescale import (
    DECODE,
    LEAST,
    MOST,
    PROMPT,
    coefficient_covariance,
    factor_covariance,
    factor_for,
    factors_for,
    scaled,
)


def queue(factor):
    """Time in an M/M/1 system at a third of its capacity: 1 / (1/k - 1/3), infinite from k = 3 on."""
    return 1.0 / (1.0 / factor - 1.0 / 3.0) if factor < 3.0 else math.inf


@pytest.mark.parametrize(
    ("figure", "target", "answer"),
    [
        (lambda k: k, 1.3, 1.3),
        (lambda k: 0.01 * k**2, 0.04, 2.0),
        (lambda k: 5.0 + k, 5.25, 0.25),
        (lambda k: k**0.25, 2.0, 16.0),
        (queue, 3.0, 1.5),
        (queue, 100.0, 1.0 / (1.0 / 3.0 + 0.01)),
        (queue, 0.1, 1.0 / (10.0 + 1.0 / 3.0)),
    ],
)
def test_the_factor_gives_the_value(figure, target, answer):
    found = factor_for(figure, target)
    assert found == pytest.approx(answer, rel=1e-3)
    assert figure(found) == pytest.approx(target, rel=1e-2)


@pytest.mark.parametrize(
    ("figure", "target"),
    [
        (lambda k: k, 2.0 * MOST),
        (lambda k: k, 0.5 * LEAST),
        (lambda k: 7.0, 8.0),
        (lambda k: 1.0 if k < 2.0 else math.inf, 1.5),  # overloaded before it is ever so long
    ],
)
def test_no_factor_is_none(figure, target):
    assert factor_for(figure, target) is None


def test_no_factor_beyond_the_bounds_is_asked_for():
    asked = []
    factor_for(lambda k: asked.append(k) or k, 1000.0)
    assert min(asked) >= LEAST * (1 - 1e-9) and max(asked) <= MOST * (1 + 1e-9)


@pytest.mark.parametrize("truth", [(1.0, 3.0), (1.2, 2.5), (0.7, 0.4), (1.0, 1.0)])
def test_two_factors_give_two_values(truth):
    asked = []

    def figures(decode, prompt):
        """A TPOT and a TTFT of a queue whose steps hold both kinds of work."""
        asked.append((decode, prompt))
        load = 0.2 * decode + 0.1 * prompt
        wait = load / (1.0 - load) if load < 1.0 else math.inf
        return 0.02 * (decode + 0.1 * prompt) * (1.0 + 0.2 * wait), 0.05 * prompt + 0.01 * decode + 0.1 * wait

    found = factors_for(figures, figures(*truth), start=(1.5, 1.5))
    assert found == pytest.approx(truth, rel=1e-3)
    assert len(asked) < 20


def test_two_figures_that_are_one_give_no_factors():
    assert factors_for(lambda d, p: (d * p, d * p), (2.0, 3.0), start=(1.0, 1.0)) is None
    assert factors_for(lambda d, p: (math.inf, 1.0), (2.0, 3.0), start=(1.0, 1.0)) is None
    assert factors_for(lambda d, p: (d, p), (2.0, 2.0 * MOST), start=(1.0, 1.0)) is None


def test_scaling_touches_the_named_coefficients_alone():
    base = make_profile(overhead_s=0.002)
    made = scaled(base, decode=2.0, prompt=3.0)
    for name in type(base).__dataclass_fields__:
        factor = 2.0 if name in DECODE else 3.0 if name in PROMPT else None
        before, after = getattr(base, name), getattr(made, name)
        assert after == before if factor is None else float(after) == pytest.approx(factor * float(before))


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_a_factor_is_positive(factor):
    with pytest.raises(ValueError, match="decode must be > 0 and finite"):
        scaled(make_profile(), decode=factor)


def test_the_covariance_is_that_of_samples():
    """Two factors through two figures with slopes: propagated by hand with random errors."""
    slopes, errors = np.array([[1.2, 0.3], [0.1, 2.0]]), np.array([0.01, 0.03])
    found = factor_covariance(slopes, errors)
    noise = np.random.default_rng(2).normal(size=(200_000, 2)) * errors
    sampled = np.cov(np.linalg.solve(slopes, noise.T))
    assert found == pytest.approx(sampled, rel=0.02)
    profile = make_profile()
    names = ("base_s", "prefill_per_token_s")
    covariance = coefficient_covariance(profile, names, found)
    assert math.sqrt(covariance[0, 0]) / float(profile.base_s) == pytest.approx(math.sqrt(found[0, 0]))
    correlation = found[0, 1] / math.sqrt(found[0, 0] * found[1, 1])
    assert covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1]) == pytest.approx(correlation)


def test_figures_that_move_together_tell_no_two_factors_apart():
    assert np.isnan(factor_covariance(np.ones((2, 2)), np.array([0.01, 0.01]))).all()
