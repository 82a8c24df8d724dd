"""Tails and quantiles of TTFT, wait and TPOT: laws of probability, hand-made cases, implicit gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import MODELS, assert_finite, make_profile, slope, small_workload
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim._roots import bracketed_root, decreasing_root
from jaxsim.evaluate import pool_laws, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.latency import StepLatency, log_tail, quantile
from jaxsim.profiles import Profile
from optim._compile import program

TIMES = np.concatenate([[0.0, 1e-6], np.geomspace(1e-4, 1e3, 120)])
PROFILE = Profile.stack((make_profile(), make_profile(prefill_per_token_s=0.0, prefill_per_token2_s=0.0))).unnamed()


@program
def laws(rate, replicas, upper, model):
    design = FleetDesign(PROFILE, replicas, upper, upper)
    return pool_laws(design, tabulate(small_workload(), PROFILE, model=model), rate, model=model).latency


@program
def tails(law):
    times = jnp.asarray(TIMES)
    wait = law.wait_tail if isinstance(law, StepLatency) else lambda t: jnp.exp(law.log_wait_tail(t))
    return [jax.vmap(tail)(times) for tail in (wait, law.ttft_tail, law.tpot_tail)]


def pool(laws_, index):
    return jax.tree.map(lambda v: v[index], laws_)


def law_at(rate=40.0, replicas=(1.0, 1.5), upper=(1500.0, 7900.0), model="step"):
    return laws(jnp.asarray(rate), jnp.asarray(replicas), jnp.asarray(upper), model)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rate", [0.0, 1e-3, 10.0, 30.0])
def test_tails_fall_from_one_to_zero(model, rate):
    for index in range(2):
        wait, ttft, tpot = (np.asarray(v) for v in tails(pool(law_at(rate, model=model), index)))
        for tail in (wait, ttft, tpot):
            assert np.all(np.diff(tail) <= 1e-12)
            assert np.all((tail >= 0.0) & (tail <= 1.0 + 1e-12))
            assert tail[-1] < 1e-9
        assert ttft[0] == pytest.approx(1.0, abs=1e-12)
        assert tpot[0] == pytest.approx(1.0, abs=1e-12)
        assert np.all(ttft >= wait - 1e-12)  # a first token comes after admission


BOUND = 8e-6
"""Accuracy of the root search, as a share of its bracket."""


@program
def quantiles(law):
    """0.5, 0.95 and 0.99 of each law, and the tail a little before and after each."""
    found = []
    for tail in (StepLatency.wait_tail, StepLatency.ttft_tail, StepLatency.tpot_tail):
        at = [quantile(law, tail, q) for q in (0.5, 0.95, 0.99)]
        reach = BOUND * law.longest_s(0.99)
        before = jnp.stack([tail(law, jnp.maximum(t - reach, 0.0)) for t in at])
        found.append((jnp.stack(at), before, jnp.stack([tail(law, t + reach) for t in at])))
    return found


@given(rate=st.floats(0.1, 70.0), first=st.floats(0.5, 4.0), last=st.floats(1.0, 4.0), cut=st.floats(300.0, 6000.0))
@settings(max_examples=60, deadline=None)
def test_quantiles_invert_their_tails(rate, first, last, cut):
    law = law_at(rate, (first, last), (cut, 7900.0))
    for index in range(2):
        one = pool(law, index)
        for values, before, after in quantiles(one):
            if float(one.utilization) >= 1.0:
                assert np.all(np.isinf(values))
                continue
            allowed = np.array([0.5, 0.05, 0.01])
            assert np.all((np.asarray(before) >= allowed * (1 - 1e-9)) | (np.asarray(values) <= 1e-4))
            assert np.all(np.asarray(after) <= allowed * (1 + 1e-9))


def test_overload_has_tails_of_one_infinite_quantiles_and_zero_gradients():
    law = law_at(1e4)
    for index in range(2):
        one = pool(law, index)
        assert bool(one.overloaded)
        assert all(np.all(np.asarray(tail) == 1.0) for tail in tails(one)[:2])
        assert all(np.all(np.isinf(values)) for values, _, _ in quantiles(one))


def test_an_idle_engine_by_hand():
    """Hardly any load: TTFT is the prompt's own chunks, TPOT the mean of the request's own decode steps."""
    p = make_profile()
    law = pool(law_at(1e-6, (1.0, 1.0), (7900.0, 7900.0)), 0)
    work = small_workload()
    chunks = np.ceil(work.input_tokens / 512.0)
    ttft = []
    for tokens, number in zip(work.input_tokens, chunks, strict=True):
        seconds, prompt = 0.0, 0.0
        for _ in range(int(number)):
            part = min(512.0, tokens - prompt)
            prompt += part
            compute = (p.base_s**4 + (p.prefill_per_token_s * part) ** 4) ** 0.25
            seconds += float(compute + p.per_sequence_s + (p.per_token_s + p.prefill_per_token2_s * part) * prompt)
        ttft.append(seconds)
    order = np.argsort(ttft)
    levels = np.cumsum(np.asarray(work.weight)[order])
    exact = [np.asarray(ttft)[order][np.searchsorted(levels, q)] for q in (0.5, 0.95, 0.99)]
    found = np.asarray(quantiles(law)[1][0])
    # prompts of one number of chunks share their mean work: a quantile lies within a chunk of the exact one
    np.testing.assert_allclose(found, exact, rtol=0.25)
    assert found[2] == pytest.approx(exact[2], rel=0.05)
    more = work.output_tokens > 1
    own = p.base_s + p.per_sequence_s + p.per_token_s * (work.input_tokens + work.output_tokens / 2.0)
    mean = np.average(np.asarray(own)[more], weights=np.asarray(work.weight)[more])
    assert float(law.mean_tpot()) == pytest.approx(mean, rel=0.01)
    assert float(law.mean_wait()) < 0.1 * p.base_s


@program
def p99s(rate, replicas, upper):
    law = laws.__wrapped__(rate, replicas, upper, "step")
    return jax.vmap(
        lambda one: jnp.stack([quantile(one, tail, 0.99) for tail in (StepLatency.ttft_tail, StepLatency.tpot_tail)])
    )(law)


@program
def p99_slopes(rate, replicas, upper):
    return jax.jacfwd(p99s.__wrapped__, argnums=(0, 1, 2))(rate, replicas, upper)


AT = (36.0, (1.15, 1.6), (1456.4, 7900.0))
"""Rate, replicas and thresholds with some queueing in the first pool; the threshold stands inside a token."""


def test_gradients_of_quantiles_agree_with_differences():
    """Of both P99s in the rate, in the replicas and in the threshold: implicit derivatives through a root."""
    rate, replicas, upper = (jnp.asarray(v) for v in AT)
    by_rate, by_replicas, by_upper = (np.asarray(v) for v in p99_slopes(rate, replicas, upper))

    def moved(change):
        def function(x):
            arguments = change(x)
            return np.asarray(p99s(*(jnp.asarray(v) for v in arguments)))

        return function

    numeric = slope(moved(lambda x: (x, replicas, upper)), 36.0, 2e-3)
    np.testing.assert_allclose(by_rate, numeric, rtol=1e-3, atol=1e-10)
    for index in range(2):
        numeric = slope(moved(lambda x, i=index: (rate, replicas.at[i].set(x), upper)), AT[1][index], 1e-4)
        np.testing.assert_allclose(by_replicas[:, :, index], numeric, rtol=1e-3, atol=1e-9)
        assert np.all(by_replicas[index, :, index] < 0.0)
        assert np.all(by_replicas[1 - index, :, index] == 0.0)
    numeric = slope(moved(lambda x: (rate, replicas, upper.at[0].set(x))), AT[2][0], 2e-2)
    np.testing.assert_allclose(by_upper[:, :, 0], numeric, rtol=1e-3, atol=1e-12)


def test_gradients_are_finite_at_the_edges():
    """No load, exactly full, overload, a sliver of an engine, empty pools at both ends."""
    full = 36.0 / float(pool(law_at(36.0), 1).utilization)
    for rate in (0.0, 1e-9, full, full * (1 - 1e-12), 1e5):
        for replicas in ((1.0, 1.5), (1e-3, 900.0)):
            for upper in ((1500.0, 7900.0), (1.0, 7900.0), (7900.0, 7900.0)):
                arguments = (jnp.asarray(v, dtype=float) for v in (rate, replicas, upper))
                assert_finite(p99_slopes(*arguments))


def test_the_log_of_a_vanished_tail_is_finite():
    value, gradient = jax.value_and_grad(log_tail)(jnp.asarray(0.0))
    assert float(value) == pytest.approx(math.log(1e-30))
    assert np.isfinite(float(gradient))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a: a - x,
        lambda x, a: a**3 - x**3,
        lambda x, a: jnp.exp(-50.0 * x) - jnp.exp(-50.0 * a),
        lambda x, a: jnp.where(x < a, 1.0, -1.0),
        lambda x, a: 1e300 * (a - x),
    ],
    ids=["line", "cubic", "exponential", "jump", "huge"],
)
@pytest.mark.parametrize("root", [0.0003, 0.4, 1.9999])
@pytest.mark.parametrize("evaluations", [12, 30])
def test_the_root_finder_keeps_its_bound(function, root, evaluations):
    """Any decreasing function, a jump included, to the bracket over 2 to the number of evaluations less one."""
    bracket = jnp.asarray(0.0), jnp.asarray(2.0)
    found = bracketed_root(lambda x: function(x, root), *bracket, evaluations=evaluations)
    assert float(found) == pytest.approx(root, abs=2.0 * 2.0 ** (1 - evaluations) * (1 + 1e-9))


def test_a_root_has_the_derivative_of_the_implicit_function():
    def root(a):
        return decreasing_root(lambda x, b: jnp.exp(-x) - b, a, jnp.asarray(0.0), jnp.asarray(20.0))

    value, gradient = jax.value_and_grad(root)(jnp.asarray(0.03))
    assert float(value) == pytest.approx(-math.log(0.03), rel=1e-9)
    assert float(gradient) == pytest.approx(-1.0 / 0.03, rel=1e-9)


@pytest.mark.parametrize(("shift", "end"), [(5.0, 2.0), (-5.0, 0.0)])
def test_without_a_change_of_sign_the_root_is_the_nearer_end(shift, end):
    def root(a):
        return decreasing_root(lambda x, b: jnp.tanh(b) - 0.0 * x, a, jnp.asarray(0.0), jnp.asarray(2.0))

    value, gradient = jax.value_and_grad(root)(jnp.asarray(shift))
    assert float(value) == pytest.approx(end, abs=1e-4)
    assert float(gradient) == 0.0
