"""Scenarios in one program: equal to the same scenario built by hand as a workload, a profile and a rate of its own."""

import jax.numpy as jnp
import numpy as np
import pytest
from fleets import A100, H100, problem, small_workload

from jaxsim.lengths import cut_tokens, scaled_tokens
from optim.cases import case_metrics, choice_of, margins
from optim.problem import SLO
from optim.scenario_batch import ScenarioBatch
from optim.scenarios import scenarios
from optim.sizing import CEIL_TOLERANCE, whole_replicas
from optim.uncertainty import Interval, Uncertainty
from optim.verify import Correction

UPPER = np.array([1500.0, 20_000.0])
WIDE = Uncertainty(
    rate=Interval(60.0, 180.0),
    step_time_factor=Interval(0.8, 1.3),
    input_tokens_factor=Interval(0.5, 2.0),
    output_tokens_factor=Interval(0.6, 1.7),
    length_sample=150,
)
ROWS = [3, -1]
FLEETS = np.array([[2.0, 3.0], [4.0, 1.0], [4.0, 4.0]])
"""As many wherever figures are asked for: one program."""


def batch(asked, uncertainty=WIDE, *, profiles=(H100, A100), correction=None, draws=32):
    drawn = scenarios(uncertainty, asked, draws=draws, seed=4)
    correction = Correction.none(2) if correction is None else correction
    return ScenarioBatch(asked, profiles, choice_of(asked, profiles).case, UPPER, drawn, correction)


@pytest.fixture(scope="module")
def asked():
    return problem(profiles=(H100, A100), max_context=20_000.0)


@pytest.fixture(scope="module")
def wide(asked):
    return batch(asked)


@pytest.fixture(scope="module")
def sizes(wide):
    return wide.sizes(model="step").replicas


def by_hand(wide, row, replicas):
    """The case of one scenario, from the host's own workload, profiles and rate."""
    row = row % len(wide.scenarios)
    design, played = wide.played(row, replicas)
    profiles = tuple(design.profile.at(p) for p in range(2))
    return choice_of(played, profiles).case


@pytest.mark.parametrize("row", ROWS)
def test_a_size_is_the_least_that_meets_the_objectives_of_the_scenario(wide, sizes, row):
    whole = np.maximum(whole_replicas(sizes[row]), 1.0)
    case = by_hand(wide, row, whole)
    enough = margins(case, UPPER[None], whole[None], model="step")
    assert np.all(enough.excess[0].max(axis=1) <= 1e-6)
    for pool in np.flatnonzero(whole > 1):
        fewer = margins(case, UPPER[None], (whole - np.eye(2)[pool])[None], model="step")
        assert fewer.excess[0, pool].max() > 0 or fewer.utilization[0, pool] >= 1.0


def test_figures_are_those_of_the_scenario_built_by_hand(wide):
    found = wide.figures(FLEETS, model="step")
    row = ROWS[0]
    case = by_hand(wide, row, FLEETS[0])
    for f, fleet in enumerate(FLEETS):
        same = case_metrics(case, jnp.asarray(fleet), jnp.asarray(UPPER), model="step")
        assert found.utilization[row, f] == pytest.approx(np.asarray(same.pools.utilization), rel=1e-9)
        assert found.ttft_p99_s[row, f] == pytest.approx(np.asarray(same.pools.ttft_p99_s), rel=1e-6)
        assert found.tpot_p99_s[row, f] == pytest.approx(np.asarray(same.pools.tpot_p99_s), rel=1e-6)
        assert found.rejected_share[row, f] == pytest.approx(float(same.rejected_share), abs=1e-9)
    over = found.utilization >= 1.0
    assert np.all(np.isinf(found.ttft_p99_s[over])) and np.all(np.isfinite(found.ttft_p99_s[~over]))


def test_enough_replicas_are_those_whose_p99s_meet_the_slo(wide, sizes, asked):
    """The sizes and the P99s are solved apart; on either side of a size they must agree."""
    most = whole_replicas(sizes).max(axis=0)
    fleets = np.stack([np.maximum(most - k, 1.0) for k in range(3)])
    found = wide.figures(fleets, model="step")
    for f, fleet in enumerate(fleets):
        by_size = whole_replicas(sizes) <= fleet
        by_p99 = found.ttft_p99_s[:, f] <= asked.slo.ttft_p99_s * (1 + 1e-9)
        by_p99 &= found.tpot_p99_s[:, f] <= asked.slo.tpot_p99_s * (1 + 1e-9)
        near = np.abs(sizes - fleet) < 1e-6
        assert np.all((by_size == by_p99) | near)


def test_a_correction_raises_the_excess_over_each_scenarios_own_floor(asked, wide):
    harder = batch(asked, correction=Correction(np.full(2, 2.0), np.ones(2), np.zeros(2), np.zeros(2)))
    plain, corrected = (one.figures(FLEETS, model="step").ttft_p99_s for one in (wide, harder))
    finite = np.isfinite(plain).all(axis=1)
    floor = np.where(np.isfinite(plain), 2.0 * plain - np.where(np.isfinite(corrected), corrected, 0.0), np.nan)
    known = floor[finite.all(axis=1)]
    assert len(known) > 5
    assert known == pytest.approx(np.broadcast_to(known[:, :1], known.shape))  # whatever the replicas
    assert np.all(known > 0) and np.all(known <= plain[finite.all(axis=1)] * (1 + 1e-9))
    assert np.ptp(known[:, 0, 0]) > 0.1 * known[:, 0, 0].min()  # longer prompts have higher floors


def test_a_pool_that_no_number_of_replicas_helps_is_infinite():
    """Prompts three times as long do not meet a TTFT objective near the floor of the known ones."""
    tight = problem(profiles=(H100, A100), slo=SLO(ttft_p99_s=0.15, tpot_p99_s=0.05), max_context=20_000.0)
    found = batch(tight, Uncertainty(input_tokens_factor=Interval(1.0, 3.0))).sizes(model="step").replicas
    assert np.isinf(found[-1]).any()
    assert np.isfinite(found[-2]).all()


def test_truncated_prompts_are_cut_after_they_grew(asked):
    cut = problem(profiles=(H100, A100), max_context=3000.0, long_requests="truncate")
    upper = np.array([1500.0, 3000.0])
    drawn = scenarios(Uncertainty(input_tokens_factor=Interval(1.0, 2.0)), cut, draws=2, seed=0)
    grown = ScenarioBatch(cut, (H100, A100), choice_of(cut, (H100, A100)).case, upper, drawn, Correction.none(2))
    fleet = FLEETS[2]
    found = grown.figures(FLEETS, model="step")
    assert np.all(found.rejected_share == pytest.approx(np.zeros_like(found.rejected_share), abs=1e-9))
    design, played = grown.played(len(drawn) - 1, fleet)
    assert float(np.max(played.limited.total_tokens)) <= 3000.0
    case = choice_of(played, tuple(design.profile.at(p) for p in range(2))).case
    load = margins(case, upper[None], fleet[None], model="step").utilization[0]
    assert found.utilization[-1, 2] == pytest.approx(load, rel=1e-9)


def test_the_reference_model_has_scenarios_too():
    asked = problem(profiles=(H100, A100), model="kimura", max_context=20_000.0)
    wide = batch(asked, Uncertainty(rate=Interval(60.0, 180.0), input_tokens_factor=Interval(0.5, 2.0)), draws=8)
    sizes = wide.sizes(model="kimura").replicas
    assert np.all(sizes > 0)
    corner = sizes[~wide.scenarios.drawn]
    assert np.all(corner[-1] >= corner[0] * (1 - CEIL_TOLERANCE))  # everything high against everything low


def test_lengths_scale_to_whole_tokens_and_cut_keeps_a_prompt():
    tokens = np.asarray(small_workload().input_tokens)
    for factor in (0.001, 0.5, 1.0, 1.37):
        found = scaled_tokens(tokens, factor)
        assert np.all(found == np.floor(found)) and found.min() >= 1.0
        assert np.all(np.abs(found - tokens * factor) <= 0.5 + 0.5 * (tokens * factor < 1.0))
        assert np.array_equal(np.asarray(scaled_tokens(jnp.asarray(tokens), jnp.asarray(factor))), found)
    inputs, outputs = cut_tokens(np.array([10.0, 50.0, 5.0]), np.array([5.0, 80.0, 300.0]), 100.0)
    assert inputs.tolist() == [10.0, 20.0, 1.0] and outputs.tolist() == [5.0, 80.0, 99.0]
