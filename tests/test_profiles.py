"""Profiles: the published constants, every way to say no, and stacking."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import A100, H100, make_profile

import jaxsim
from jaxsim.profiles import Profile

# name, GPU, W, H, prompt chunk, max slots, KV blocks, dollars per hour
PUBLISHED = [
    ("a100-80gb", "A100-80GB", 0.008, 0.00065, 512, 128, 65_536, 2.21),
    ("h100-80gb", "H100-80GB", 0.004, 0.00032, 1024, 256, 65_536, 4.02),
    ("a10g", "A10G-24GB", 0.012, 0.00090, 256, 64, 32_768, 1.01),
]


@pytest.mark.parametrize(("name", "gpu", "w", "h", "chunk", "seqs", "blocks", "usd"), PUBLISHED)
def test_presets_are_the_published_constants(name, gpu, w, h, chunk, seqs, blocks, usd):
    profile = jaxsim.profile(name)
    assert (profile.name, profile.gpu) == (name, gpu)
    assert float(profile.base_s) == w
    assert float(profile.per_token_s * profile.calibration_context) == pytest.approx(h, rel=1e-15)
    assert (profile.chunk_tokens, profile.max_num_seqs, profile.kv_blocks) == (chunk, seqs, blocks)
    assert (profile.block_tokens, profile.calibration_context, profile.gpus_per_replica) == (16, 8192, 1)
    assert (profile.per_sequence_s, profile.prefill_per_token_s, profile.prefill_per_token2_s) == (0, 0, 0)
    assert float(profile.usd_per_hour) == usd
    assert float(profile.kv_tokens) == blocks * 16
    assert "published, not measured" in profile.source


def test_names():
    assert set(jaxsim.profile_names()) >= {row[0] for row in PUBLISHED}
    for name in jaxsim.profile_names():
        assert jaxsim.profile(name).name == name


@pytest.mark.parametrize(
    ("name", "near"), [("h200", "h100-80gb"), ("a100", "a100-80gb"), ("H100-80GB", "h100-80gb"), ("a10", "a10g")]
)
def test_unknown_names_are_errors_that_list_the_near_ones(name, near):
    with pytest.raises(ValueError, match=f"unknown profile '{name}'.*{near}"):
        jaxsim.profile(name)


POSITIVE = [
    "base_s",
    "chunk_tokens",
    "max_num_seqs",
    "kv_blocks",
    "block_tokens",
    "calibration_context",
    "gpus_per_replica",
]
NON_NEGATIVE = [
    "per_sequence_s",
    "per_token_s",
    "prefill_per_token_s",
    "prefill_per_token2_s",
    "overhead_s",
    "usd_per_gpu_hour",
]
NUMBERS = [f.name for f in dataclasses.fields(Profile) if f.name not in ("name", "gpu", "source")]


def test_the_tables_below_name_every_number():
    assert sorted(POSITIVE + NON_NEGATIVE) == sorted(NUMBERS)


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, -np.inf])
def test_bad_values_are_refused_by_name(field, value):
    allowed = "> 0 and finite" if field in POSITIVE else ">= 0 and finite"
    with pytest.raises(ValueError) as error:
        make_profile(**{field: value})
    assert str(error.value) == f"profile {field} must be {allowed}, got {value!r}"


@pytest.mark.parametrize("field", NUMBERS)
def test_zero_is_refused_where_it_means_nothing(field):
    if field in POSITIVE:
        with pytest.raises(ValueError, match=f"profile {field} must be > 0 and finite, got 0.0"):
            make_profile(**{field: 0})
    else:
        assert float(getattr(make_profile(**{field: 0}), field)) == 0.0


def test_a_bad_entry_of_a_stack_is_found():
    with pytest.raises(ValueError, match=r"profile base_s must be > 0 and finite, got -2\.0"):
        make_profile(base_s=np.array([1.0, -2.0]))


def test_the_price_of_a_replica_is_that_of_all_its_gpus():
    assert float(make_profile(usd_per_gpu_hour=2.5, gpus_per_replica=8).usd_per_hour) == 20.0


def test_stacking_and_taking_apart():
    stacked = Profile.stack((A100, H100))
    assert stacked.name == ("a100-80gb", "h100-80gb")
    assert stacked.base_s.tolist() == [0.008, 0.004]
    for pool, expected in enumerate((A100, H100)):
        one = stacked.at(pool)
        for field in dataclasses.fields(Profile):
            assert np.array_equal(getattr(one, field.name), getattr(expected, field.name)), field.name
    assert jax.tree.structure(stacked.unnamed()) == jax.tree.structure(Profile.stack((H100, A100)).unnamed())
    with pytest.raises(ValueError, match="at least one profile, got none"):
        Profile.stack(())


def test_numbers_are_float64_whatever_they_were():
    """A Python number as a leaf would retrace for every value and take no gradient."""
    profile = make_profile(base_s=1, kv_blocks=np.int32(7))
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(profile))
    assert len(jax.tree.leaves(profile)) == len(NUMBERS)


def test_the_step_time_has_a_gradient_in_the_profile():
    def step(profile):
        return profile.base_s + 10.0 * profile.law.per_token_s * 100.0

    slopes = jax.grad(step)(jax.tree.map(jnp.asarray, H100))
    assert float(slopes.base_s) == 1.0
    assert float(slopes.per_token_s) == 1000.0
    assert float(slopes.kv_blocks) == 0.0
