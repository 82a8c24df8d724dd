"""FleetDesign: shapes, prices, and every way to say no."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import A100, H100, make_profile

from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile


def test_one_profile_serves_all_pools():
    design = FleetDesign.of(H100, [2, 3], [1000, 8192])
    assert design.num_pools == 2
    assert design.profile.name == ("h100-80gb", "h100-80gb")
    assert design.max_context.tolist() == design.upper_tokens.tolist() == [1000.0, 8192.0]
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(design))


def test_max_context_may_differ_from_the_thresholds():
    design = FleetDesign.of([A100, H100], [1, 1], [1000, 8192], max_context=[2000, 4096])
    assert design.max_context.tolist() == [2000.0, 4096.0]


def test_the_price_counts_every_gpu_of_every_replica():
    pair = make_profile(usd_per_gpu_hour=3.0, gpus_per_replica=2)
    design = FleetDesign.of([A100, pair], [4, 5], [1000, 8192])
    assert float(design.usd_per_hour) == pytest.approx(4 * 2.21 + 5 * 2 * 3.0, rel=1e-15)


BAD = [
    ({"replicas": [1, -1]}, "replicas must be >= 0, got -1.0"),
    ({"replicas": [1, np.nan]}, "replicas must be >= 0, got nan"),
    ({"upper_tokens": [2000, 1000]}, "upper_tokens must be positive and ascending, got [2000.0, 1000.0]"),
    ({"upper_tokens": [0, 1000]}, "upper_tokens must be positive and ascending"),
    ({"upper_tokens": [-5, 1000]}, "upper_tokens must be positive and ascending"),
    ({"upper_tokens": [np.nan, 1000]}, "upper_tokens must be positive and ascending"),
    ({"max_context": [100, 0]}, "max_context must be > 0 and finite, got 0.0"),
    ({"max_context": [100, np.inf]}, "max_context must be > 0 and finite, got inf"),
    ({"replicas": [1]}, "one entry per pool, got 2, 1, 2"),
    ({"profiles": [H100]}, "one entry per pool, got 1, 2, 2"),
]


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_bad_designs_are_refused(changes, text):
    values = {"profiles": [H100, H100], "replicas": [1, 1], "upper_tokens": [1000, 2000], "max_context": [1000, 2000]}
    values |= changes
    with pytest.raises(ValueError) as error:
        FleetDesign.of(
            values["profiles"], values["replicas"], values["upper_tokens"], max_context=values["max_context"]
        )
    assert text in str(error.value)


def test_equal_thresholds_leave_a_pool_empty_and_are_allowed():
    assert FleetDesign.of(H100, [0, 1], [4096, 4096]).num_pools == 2


def test_a_design_passes_through_jit_and_grad():
    """Traced values cannot be checked and are not; the price is linear in the replicas."""
    stacked = Profile.stack((A100, H100)).unnamed()

    @jax.jit
    def price(replicas):
        return FleetDesign(stacked, replicas, jnp.asarray([10.0, 20.0]), jnp.asarray([10.0, 20.0])).usd_per_hour

    slopes = jax.grad(price)(jnp.asarray([1.0, 2.0]))
    np.testing.assert_allclose(slopes, [2.21, 4.02], rtol=1e-15)
