"""Power of a GPU: the published curve by hand, the inverse, the fit."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.power import PowerLaw, batch_of_power, fit_power, power_law, power_names, power_w

PUBLISHED = {"h100": (300, 600, 1.0, 4.2), "a100": (175, 385, 1.0, 2.5), "a10g": (75, 120, 0.7, 3.0)}


@pytest.mark.parametrize("gpu", PUBLISHED)
@pytest.mark.parametrize("batch", [1, 8, 64, 128])
def test_published_curve_by_hand(gpu, batch):
    idle, nominal, k, x0 = PUBLISHED[gpu]
    by_hand = idle + (nominal - idle) / (1 + math.exp(-k * (math.log2(batch) - x0)))
    assert float(power_w(power_law(gpu), batch)) == pytest.approx(by_hand, rel=1e-12)


def test_published_figures_of_the_h100():
    law = power_law("H100-80GB")
    assert [round(float(power_w(law, n))) for n in (1, 128)] == [304, 583]


def test_an_idle_gpu_draws_its_idle_power_with_a_gradient():
    law = power_law("a10g")
    value, slope = jax.value_and_grad(lambda n: power_w(law, n))(0.0)
    assert (float(value), float(slope)) == (75.0, 0.0)
    slopes = jax.grad(lambda law: power_w(law, 0.0))(PowerLaw(75.0, 45.0, 0.7, 3.0))
    assert tuple(map(float, slopes)) == (1.0, 0.0, 0.0, 0.0)


@settings(deadline=None)
@given(
    gpu=st.sampled_from(sorted(PUBLISHED)),
    batch=st.floats(0.05, 4096.0),
)
def test_the_inverse_is_exact(gpu, batch):
    law = power_law(gpu)
    assert float(batch_of_power(law, power_w(law, batch))) == pytest.approx(batch, rel=1e-9)


@settings(deadline=None)
@given(share=st.floats(1e-6, 1.0 - 1e-6))
def test_the_inverse_the_other_way(share):
    law = power_law("h100")
    watts = 300.0 + 300.0 * share
    assert float(power_w(law, batch_of_power(law, watts))) == pytest.approx(watts, rel=1e-12)


def test_the_inverse_outside_the_range():
    law = power_law("h100")
    assert [float(batch_of_power(law, w)) for w in (0.0, 300.0, 600.0, 900.0)] == [0.0, 0.0, np.inf, np.inf]
    assert float(jax.grad(lambda w: batch_of_power(law, w))(700.0)) == 0.0


def test_gradients_agree_with_central_differences():
    law = PowerLaw(300.0, 300.0, 1.0, 4.2)
    slopes = jax.grad(lambda law: power_w(law, 20.0))(law)
    for name, slope in zip(law._fields, slopes, strict=True):
        step = 1e-5 * getattr(law, name)
        up, down = (law._replace(**{name: getattr(law, name) + sign * step}) for sign in (1, -1))
        central = (float(power_w(up, 20.0)) - float(power_w(down, 20.0))) / (2 * step)
        assert float(slope) == pytest.approx(central, rel=1e-6)


def test_a_gpu_without_published_constants_is_refused():
    with pytest.raises(ValueError, match=r"unknown power law of GPU 'h200'.*fit_power"):
        power_law("h200")
    assert "h100-sxm" in power_names()


def test_a_batch_below_zero_is_refused():
    with pytest.raises(ValueError, match="num_active must be >= 0"):
        power_w(power_law("h100"), -1.0)


# --- the fit


BATCHES = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512], dtype=float)


@pytest.mark.parametrize("gpu", PUBLISHED)
def test_a_fit_to_exact_points_recovers_the_constants(gpu):
    law = power_law(gpu)
    found = fit_power(BATCHES, power_w(law, BATCHES))
    np.testing.assert_allclose(found.law, law, rtol=1e-6)
    assert found.errors.worst < 1e-9


def test_standard_errors_cover():
    """Of 60 fits to points with 1 % noise, the true constants lie within 1.96 standard errors in 95 % or nearly."""
    law, random = power_law("h100"), np.random.default_rng(0)
    batches, covered = np.repeat(BATCHES, 3), []
    for _ in range(60):
        watts = np.asarray(power_w(law, batches)) * (1.0 + 0.01 * random.standard_normal(len(batches)))
        found = fit_power(batches, watts)
        covered.append(np.abs(np.array(found.law) - np.array(law)) < 2.05 * np.array(found.standard_errors))
    share = np.mean(covered, axis=0)
    assert (share > 0.85).all() and share.mean() > 0.9


def test_a_point_far_off_hardly_moves_the_fit():
    law = power_law("a100")
    watts = np.array(power_w(law, BATCHES))
    watts[4] *= 2.0
    np.testing.assert_allclose(fit_power(BATCHES, watts).law[:2], law[:2], rtol=0.02)


def test_points_on_one_side_are_doubted():
    law = power_law("h100")
    batches = np.array([64.0, 96.0, 128.0, 192.0, 256.0])
    found = fit_power(batches, power_w(law, batches))
    assert any("rests on the form of the law" in text for text in found.warnings)


def test_too_few_batches_are_refused():
    with pytest.raises(ValueError, match="4 different ones or more"):
        fit_power([1.0, 1.0, 2.0, 4.0], [300.0, 301.0, 310.0, 320.0])
    with pytest.raises(ValueError, match="watts must be > 0"):
        fit_power(BATCHES, 0.0 * BATCHES)


def test_power_of_many_batches_at_once():
    assert power_w(power_law("h100"), jnp.arange(5.0)).shape == (5,)
