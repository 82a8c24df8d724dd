"""The cheapest fleet for a share of the scenarios: against every fleet there is, and what must hold for any."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optim.chance import cheapest_cover, covered


def brute_force(required, probability, price, share):
    """Every fleet up to the most that any scenario needs."""
    finite = np.where(np.isfinite(required), required, 0.0)
    best = np.inf
    for fleet in product(*(range(int(most) + 1) for most in finite.max(axis=0))):
        mass = probability[np.all(required <= np.array(fleet), axis=1)].sum()
        if mass >= share - 1e-9:
            best = min(best, float(price @ np.array(fleet)))
    return best


@st.composite
def problems(draw):
    pools = draw(st.integers(1, 3))
    rows = draw(st.integers(1, 9))
    size = st.sampled_from([*range(1, 7), np.inf]) if draw(st.booleans()) else st.integers(0, 6)
    required = np.array(draw(st.lists(st.lists(size, min_size=pools, max_size=pools), min_size=rows, max_size=rows)))
    weight = np.array(draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows)), dtype=float)
    weight[0] += 1.0
    price = np.array(draw(st.lists(st.sampled_from([0.0, 1.0, 2.5, 4.02]), min_size=pools, max_size=pools)))
    return required.astype(float), weight / weight.sum(), price


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from([0.2, 0.5, 0.75, 0.9, 1.0]))
def test_no_fleet_is_cheaper(problem, share):
    required, probability, price = problem
    fleet = cheapest_cover(required, probability, price, share)
    best = brute_force(required, probability, price, share)
    if fleet is None:
        assert best == np.inf
        return
    assert probability[covered(required, fleet)].sum() >= share - 1e-9
    assert float(price @ fleet) == pytest.approx(best, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_more_probability_never_costs_less(problem):
    required, probability, price = problem
    fleets = [cheapest_cover(required, probability, price, share) for share in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)]
    costs = [np.inf if fleet is None else float(price @ fleet) for fleet in fleets]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(costs))


def test_one_pool_is_a_quantile():
    required = np.arange(1.0, 101.0)[:, None]
    even = np.full(100, 0.01)
    assert cheapest_cover(required, even, np.ones(1), 0.9).tolist() == [90.0]
    assert cheapest_cover(required, even, np.ones(1), 1.0).tolist() == [100.0]


def test_which_scenarios_are_left_out_is_chosen_together():
    """Each pool by itself could leave its own dearest scenario; only one of the two may be left."""
    required = np.array([[1.0, 1.0], [1.0, 1.0], [9.0, 1.0], [1.0, 8.0]])
    quarter = np.full(4, 0.25)
    assert cheapest_cover(required, quarter, np.ones(2), 0.75).tolist() == [1.0, 8.0]
    assert cheapest_cover(required, quarter, np.array([1.0, 2.0]), 0.75).tolist() == [9.0, 1.0]
    assert cheapest_cover(required, quarter, np.ones(2), 0.5).tolist() == [1.0, 1.0]


def test_many_pools_and_scenarios_stay_quick_and_exact():
    """400 scenarios of four pools: too many fleets to try, but no branch that could be cheaper is cut."""
    rng = np.random.default_rng(1)
    required = np.ceil(rng.lognormal(2.0, 0.4, (400, 1)) * rng.lognormal(0.0, 0.1, (400, 4)))
    fleet = cheapest_cover(required, np.full(400, 1 / 400), np.array([1.0, 2.0, 3.0, 4.0]), 0.95)
    assert covered(required, fleet).mean() >= 0.95
    for pool in range(4):  # no replica can go
        fewer = fleet - np.eye(4)[pool]
        assert covered(required, fewer).mean() < 0.95
