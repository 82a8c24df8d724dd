"""The table of a workload against exact sums over the requests of a pool, at its ends, and in the thresholds."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import assert_finite, make_profile, slope, small_workload

import jaxsim
from jaxsim import physics
from jaxsim.step_sharing import Requests, between, exact_moments, grid, tabulate
from jaxsim.step_sharing.groups import NUM_DECODE, NUM_PREFILL, decode_bins, prefill_groups
from jaxsim.step_sharing.tables import NUM_KNOTS
from optim._compile import program

PROFILE = make_profile().unnamed()
tabulated, pool, exactly = program(tabulate), program(between), program(exact_moments)

SINGLE_ERROR = 1e-8
"""Of sums over single requests, which the table has exactly."""

PAIRS = ("count_slope", "cross_slope", "work_slope", "overlap", "work_overlap", "held_slope", "held_cross_slope")


def of_pool(workload, lower, upper):
    """Exact moments of the requests of a pool, by sorting them; rows outside have no weight."""
    total = np.asarray(workload.total_tokens)
    inside = (total > lower) & (total <= upper)
    work = physics.step_work(
        PROFILE.law, PROFILE.chunk_tokens, jnp.asarray(workload.input_tokens), jnp.asarray(workload.output_tokens)
    )
    held = np.ceil(total / 16.0) * 16.0
    weight = jnp.asarray(np.asarray(workload.weight) * inside)
    return exactly(Requests.of(work), weight, held_tokens=jnp.asarray(held)), inside


@pytest.mark.parametrize(
    ("name", "pairs", "laplace"),
    [("azure-conversation", 0.02, 2e-3), ("azure-code", 0.02, 2e-3), ("mooncake-conversation", 0.02, 2e-3)],
)
def test_pools_of_a_trace_against_exact_pair_sums(name, pairs, laplace):
    """Pools with a lower and an upper bound, from the whole trace down to one request in a hundred."""
    workload = jaxsim.workload(name)
    total, level = np.asarray(workload.total_tokens), np.cumsum(workload.weight)
    cuts = [0.0, *(total[np.searchsorted(level, q)] for q in (0.5, 0.9, 0.99)), total[-1]]
    table = tabulated(workload, PROFILE)
    assert table.shares.shape[0] <= NUM_KNOTS + 1
    for lower, upper in [(0, 4), (0, 1), (1, 2), (0, 2), (2, 4), (3, 4)]:
        low, high = cuts[lower], cuts[upper]
        mix = pool(table, jnp.asarray(low), jnp.asarray(high))
        exact, inside = of_pool(workload, low, high)
        share = np.asarray(workload.weight)[inside].sum()
        assert float(mix.share) == pytest.approx(share, rel=1e-9)
        for field in exact.__dataclass_fields__:
            if field in ("nodes", "shares"):
                continue
            allowed = pairs if field in PAIRS else SINGLE_ERROR
            found, expected = float(getattr(mix.moments, field)), float(getattr(exact, field))
            assert found == pytest.approx(expected, rel=allowed), f"{field} of {low:g}..{high:g}"
        for s in (0.01, 0.1, 1.0, 10.0):
            found, expected = (float(m.laplace(jnp.asarray(s))) for m in (mix.moments, exact))
            assert found == pytest.approx(expected, abs=laplace)


def test_groups_partition_the_pool():
    """Shares sum to one, and share-weighted works are those of the pool."""
    workload = small_workload()
    table = tabulated(workload, PROFILE)
    for low, high in ((0.0, 7900.0), (0.0, 700.0), (700.0, 3000.0), (3000.0, 7900.0)):
        mix = pool(table, jnp.asarray(low), jnp.asarray(high))
        g = mix.groups
        assert float(g.prefill_share.sum()) == pytest.approx(1.0, abs=1e-9)
        assert float(g.decode_share.sum()) == pytest.approx(1.0, abs=1e-9)
        own = float((g.prefill_share * g.prefill_work_s).sum())
        assert own == pytest.approx(float(mix.moments.prefill_work_s), rel=1e-6)
        steps = float((g.prefill_share * g.prefill_steps).sum())
        assert steps == pytest.approx(float(mix.moments.prefill_steps), rel=1e-6)
        assert np.all(np.asarray(g.decode_work_variance_s2) >= 0.0)


def test_every_prompt_is_in_one_group_of_its_length():
    chunks = np.sort(np.concatenate([np.linspace(0.01, 12.0, 500), np.geomspace(1.0, 130.0, 200)]))
    member = np.asarray(prefill_groups(jnp.asarray(chunks)))
    assert member.shape[1] == NUM_PREFILL
    assert np.all(member.sum(1) == 1.0)
    index = member.argmax(1)
    assert np.all(np.diff(index) >= 0) and index[-1] == NUM_PREFILL - 1
    for edge in (1.0, 2.0, 4.0):  # a group never holds prompts on both sides of it
        assert index[chunks <= edge].max() < index[chunks > edge].min()


def test_requests_without_decode_are_in_no_decode_bin():
    steps = jnp.asarray([0.0, 1.0, 3.0, 4.0, 70.0, 9000.0])
    member = np.asarray(decode_bins(steps, jnp.asarray(np.arange(6.0)), jnp.ones(6) / 6.0))
    assert member.shape == (6, NUM_DECODE)
    assert member.sum(1).tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_the_grid_keeps_four_moments_and_the_pair_kernels():
    nodes = grid.step_nodes(jnp.asarray(9000.0))
    steps = jnp.asarray([0.0, 1.0, 7.0, 13.5, 200.0, 8999.0])
    weights = grid.spread(nodes, steps)
    for power in range(4):
        found = np.asarray(weights @ nodes**power)
        np.testing.assert_allclose(found, np.asarray(steps) ** power, rtol=1e-9, atol=1e-9)
    mass_at, at = 200.0, np.array([1.0, 7.0, 900.0, 8999.0])
    exact = np.array([sum(min(mass_at, i) for i in range(int(k))) for k in at])
    spread_mass, spread_at = (grid.spread(nodes, jnp.asarray(v)) for v in (np.array([mass_at]), at))
    found = np.asarray(spread_at @ (grid.psi_kernel(nodes) @ spread_mass[0]))
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-6)


@program
def moments_and_slopes(table, lower, upper):
    def values(lower, upper):
        mix = between(table, lower, upper)
        m = mix.moments
        return jnp.stack([mix.share, m.work_s, m.count_slope, m.work_slope, m.laplace(jnp.asarray(0.5))])

    return values(lower, upper), jax.jacfwd(values, argnums=(0, 1))(lower, upper)


def test_gradients_in_the_thresholds_agree_with_differences():
    table = tabulated(small_workload(), PROFILE).coarsened(48)
    at = (611.3, 2718.4)
    _, slopes = moments_and_slopes(table, *(jnp.asarray(v) for v in at))
    for i in range(2):

        def moved(x, i=i):
            values, _ = moments_and_slopes(table, *(jnp.asarray(x if j == i else v) for j, v in enumerate(at)))
            return np.asarray(values)

        np.testing.assert_allclose(slopes[i], slope(moved, at[i], 0.02), rtol=1e-6, atol=1e-12)


def test_empty_pools_have_the_moments_of_the_whole():
    table = tabulated(small_workload(), PROFILE)
    whole = pool(table, jnp.asarray(0.0), jnp.asarray(7900.0))
    for low, high in ((0.0, 1.0), (7900.0, 9000.0), (500.0, 500.0)):
        values, slopes = moments_and_slopes(table, jnp.asarray(low), jnp.asarray(high))
        assert float(values[0]) == 0.0
        assert float(values[1]) == pytest.approx(float(whole.moments.work_s), rel=1e-9)
        assert_finite(slopes)


def test_the_table_is_differentiable_in_the_profile():
    """Work per context token: the slope of the mean work is exact."""

    def mean_work(per_token):
        profile = eqx.tree_at(lambda p: p.per_token_s, PROFILE, per_token)
        return between(tabulate(small_workload(), profile), jnp.asarray(0.0), jnp.asarray(7900.0)).moments.work_s

    both = program(jax.value_and_grad(mean_work))
    at = float(PROFILE.per_token_s)
    numeric = slope(lambda x: float(both(jnp.asarray(x))[0]), at, 1e-3 * at)
    assert float(both(jnp.asarray(at))[1]) == pytest.approx(numeric, rel=1e-6)
