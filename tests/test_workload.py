"""The one split: exact at every whole threshold, differentiable in between, losing nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsim
from jaxsim import Workload
from jaxsim.workload import MAX_TOKENS

lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60), st.floats(0.01, 10.0)), min_size=1, max_size=15)


def brute_force(inputs, outputs, weight, thresholds):
    """Share and mean lengths of each pool, request by request."""
    rows, lower = [], -np.inf
    for upper in thresholds:
        here = (inputs + outputs > lower) & (inputs + outputs <= upper)
        share = weight[here].sum()
        means = [np.sum(weight[here] * values[here]) / share if share else 0.0 for values in (inputs, outputs)]
        rows.append([share, *means])
        lower = max(lower, upper)
    return np.asarray(rows)


def as_rows(shares):
    return np.stack([shares.share, shares.mean_input_tokens, shares.mean_output_tokens], axis=1)


@given(requests=lengths, thresholds=st.lists(st.integers(0, 140), min_size=1, max_size=3))
@settings(max_examples=12, deadline=None)
def test_split_equals_brute_force_at_whole_thresholds(requests, thresholds):
    inputs, outputs, weight = np.asarray(requests, dtype=float).T
    workload = Workload.from_lengths(inputs, outputs, weight=weight)
    uppers = [*sorted(thresholds), 200]
    rows = as_rows(workload.split(jnp.asarray(uppers, dtype=float)))
    np.testing.assert_allclose(rows, brute_force(inputs, outputs, weight / weight.sum(), uppers), atol=1e-9)
    assert rows[:, 0].sum() == pytest.approx(1.0, abs=1e-12)
    assert np.sum(rows[:, 0] * rows[:, 1]) == pytest.approx(np.average(inputs, weights=weight))
    assert np.sum(rows[:, 0] * rows[:, 2]) == pytest.approx(np.average(outputs, weights=weight))


def test_every_whole_threshold():
    rng = np.random.default_rng(3)
    inputs, outputs = rng.integers(1, 40, 50), rng.integers(1, 30, 50)
    workload = Workload.from_lengths(inputs, outputs)
    share = jax.jit(jax.vmap(lambda t: workload.split(jnp.stack([t, jnp.asarray(100.0)])).share))
    got = np.asarray(share(jnp.arange(0.0, 100.0)))
    expected = [np.mean(inputs + outputs <= t) for t in range(100)]
    np.testing.assert_allclose(got[:, 0], expected, atol=1e-12)
    np.testing.assert_allclose(got.sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("threshold", [1, 64, 4096, 6143, 6144, 6145, 8191, 16384])
def test_azure_loses_nothing_at_any_threshold(threshold):
    workload = jaxsim.workload("azure")
    uppers = [threshold, 65536]
    rows = as_rows(workload.split(jnp.asarray(uppers, dtype=float)))
    parts = (np.asarray(part) for part in (workload.input_tokens, workload.output_tokens, workload.weight))
    np.testing.assert_allclose(rows, brute_force(*parts, uppers), rtol=1e-10, atol=1e-12)
    assert rows[:, 0].sum() == pytest.approx(1.0, abs=1e-12)
    mean_total = float(workload.mean(workload.total_tokens))
    assert np.sum(rows[:, 0] * (rows[:, 1] + rows[:, 2])) == pytest.approx(mean_total, rel=1e-12)


def test_azure_between_breakpoints():
    share = float(jaxsim.workload("azure").split(jnp.asarray([6143.0, 65536.0])).share[0])
    low, high = 0.8982082668085861, 0.9758027319496186
    assert share == pytest.approx(low + (high - low) * 2047 / 2048, abs=1e-12)


def first_share(workload):
    return lambda t: workload.split(jnp.stack([t, jnp.asarray(2.0**24)])).share[0]


@given(requests=lengths, cell=st.integers(0, 130), part=st.floats(0.05, 0.95))
@settings(max_examples=8, deadline=None)
def test_gradient_is_the_density_inside_a_token(requests, cell, part):
    inputs, outputs, weight = np.asarray(requests, dtype=float).T
    workload = Workload.from_lengths(inputs, outputs, weight=weight)
    share = first_share(workload)
    at = jnp.asarray(cell + part)
    density = np.sum(weight[inputs + outputs == cell + 1]) / weight.sum()
    assert float(jax.grad(share)(at)) == pytest.approx(density, abs=1e-10)
    difference = float(share(at + 0.01) - share(at - 0.01)) / 0.02
    assert difference == pytest.approx(density, abs=1e-9)


def test_gradient_at_a_whole_token_is_that_to_its_right():
    share = first_share(Workload.from_lengths([3, 5, 5, 9], [1, 1, 2, 4], weight=[1.0, 2.0, 3.0, 4.0]))
    slopes = [float(jax.grad(share)(jnp.asarray(float(t)))) for t in range(1, 13)]
    steps = [float(share(jnp.asarray(t + 0.5)) - share(jnp.asarray(float(t)))) / 0.5 for t in range(1, 13)]
    np.testing.assert_allclose(slopes, steps, atol=1e-12)
    assert max(slopes) > 0.0


def test_gradients_are_finite_everywhere():
    workload = Workload.from_lengths([3, 5, 5, 9], [1, 1, 2, 4])
    thresholds = jnp.concatenate([jnp.arange(-2.0, 20.0, 0.25), jnp.asarray([0.0, 1e9])])

    def everything(t):
        shares = workload.split(jnp.stack([t, t + 1.0, jnp.asarray(2.0**24)]))
        return jnp.stack([shares.share, shares.mean_input_tokens, shares.mean_output_tokens])

    values = jax.jit(jax.vmap(everything))(thresholds)
    gradients = jax.jit(jax.vmap(jax.jacrev(everything)))(thresholds)
    assert np.all(np.isfinite(values)) and np.all(np.isfinite(gradients))


def test_thresholds_out_of_order_leave_a_pool_empty():
    workload = Workload.from_lengths([3, 5, 9], [1, 1, 1])
    shares = workload.split(jnp.asarray([8.0, 5.0, 100.0]))
    np.testing.assert_allclose(shares.share, [2 / 3, 0.0, 1 / 3], atol=1e-12)
    assert shares.mean_input_tokens[1] == 0.0


def test_above_the_last_threshold_is_in_no_pool():
    workload = Workload.from_lengths([3, 5, 90], [1, 1, 10])
    shares = workload.split(jnp.asarray([4.0, 50.0]))
    assert float(shares.share.sum()) == pytest.approx(2 / 3)
    assert workload.share_above(50.0) == pytest.approx(1 / 3)
    assert workload.share_above(100.0) == 0.0


def test_coarse_table_is_exact_at_the_ends_and_close_between():
    workload = jaxsim.workload("azure-conversation")
    table = workload.tabulate(jnp.stack([jnp.ones_like(workload.weight), jnp.asarray(workload.input_tokens)], axis=1))
    coarse = table.coarsened(256)
    for tokens in (0.0, float(workload.total_tokens[-1]), 1e6):
        at = jnp.asarray(tokens)
        np.testing.assert_allclose(coarse.up_to(at), table.up_to(at), rtol=1e-12)
    at = jnp.asarray(2000.0)
    np.testing.assert_allclose(coarse.up_to(at), table.up_to(at), rtol=0.02)


def test_between_is_never_negative():
    table = jaxsim.workload("azure-code").tabulate(jnp.ones((7981, 1)))
    assert table.between(jnp.asarray(500.0), jnp.asarray(400.0))[0] == 0.0
    both = table.between(jnp.asarray(400.0), jnp.asarray(500.0))
    assert float(both[0]) == pytest.approx(
        float(table.up_to(jnp.asarray(500.0))[0] - table.up_to(jnp.asarray(400.0))[0])
    )


def test_equal_requests_become_one_row():
    workload = Workload.from_lengths([5, 3, 5, 5], [2, 4, 2, 4])
    assert workload.input_tokens.tolist() == [3, 5, 5]
    assert workload.output_tokens.tolist() == [4, 2, 4]
    np.testing.assert_allclose(workload.weight, [0.25, 0.5, 0.25])
    assert workload.total_tokens.tolist() == [7, 7, 9]


def test_arrivals_are_sorted_and_start_at_zero():
    workload = Workload.from_lengths([5, 3, 5], [2, 4, 2], arrival_s=[12.0, 10.0, 11.0])
    assert workload.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert workload.input_tokens[workload.arrival_row].tolist() == [3, 5, 5]
    assert workload.rate == 1.5


def test_reject_leaves_long_requests_in():
    workload = Workload.from_lengths([3, 50, 90], [1, 10, 10])
    assert workload.limited(60.0, "reject") is workload
    assert workload.share_above(60.0) == pytest.approx(1 / 3)


@pytest.mark.parametrize("arrivals", [None, [0.0, 2.0, 1.0, 3.0]])
def test_truncate_shortens_prompts_and_says_so(arrivals):
    workload = Workload.from_lengths([3, 50, 90, 5], [1, 10, 10, 200], arrival_s=arrivals)
    short = workload.limited(60.0, "truncate")
    pairs = set(zip(short.input_tokens.tolist(), short.output_tokens.tolist(), strict=True))
    assert pairs == {(3, 1), (50, 10), (1, 59)}
    assert short.share_above(60.0) == 0.0
    assert float(np.sum(short.weight)) == pytest.approx(1.0)
    assert any("50.0000% of requests truncated to 60 tokens" in note for note in short.notes)
    if arrivals is not None:
        assert short.arrival_s.tolist() == [0.0, 1.0, 2.0, 3.0]
        assert short.input_tokens[short.arrival_row].tolist() == [3, 50, 50, 1]


def test_unknown_policy():
    with pytest.raises(ValueError, match=r"unknown long_requests policy 'trunc'; did you mean 'truncate'"):
        Workload.from_lengths([1], [1]).limited(60.0, "trunc")


@pytest.mark.parametrize(
    "inputs, outputs, more, words",
    [
        ([], [], {}, "0 requests"),
        ([1, 2], [1], {}, "two columns of one length"),
        ([0], [1], {}, r"input_tokens\[0\] must be a whole number from 1"),
        ([1], [0], {}, r"output_tokens\[0\]"),
        ([1, 1.5], [1, 1], {}, r"input_tokens\[1\].*got 1.5"),
        ([1], [float("nan")], {}, "got nan"),
        ([MAX_TOKENS], [1], {}, "another unit"),
        ([1], [1], {"weight": [-1.0]}, "weight must be"),
        ([1], [1], {"weight": [0.0]}, "weight must be"),
        ([1, 1], [1, 1], {"weight": [1.0]}, "weight must be"),
        ([1], [1], {"arrival_s": [float("nan")]}, "arrival_s must be"),
        ([1, 2], [1, 1], {"arrival_s": [0.0]}, "arrival_s must be"),
    ],
)
def test_bad_lengths_are_refused(inputs, outputs, more, words):
    with pytest.raises(ValueError, match=words):
        Workload.from_lengths(inputs, outputs, **more)
