"""pareto: weak dominance, the recommendation, and its thresholds."""

import numpy as np
import pytest
from fleets import A100, H100, problem, small_workload
from hypothesis import given, settings
from hypothesis import strategies as st

import optim
from jaxsim.workload import Workload
from optim.pareto import _dominated, _thresholds
from optim.problem import SLO

COSTS = [  # (dollars, P99), dominated?
    ((1.0, 9.0), False),
    ((2.0, 5.0), False),
    ((2.0, 5.0), True),  # equal to the one before: the first is kept
    ((2.0, 6.0), True),  # as dear, slower
    ((3.0, 5.0), True),  # dearer, as slow: dominated, though not in both
    ((3.0, 4.0), False),
    ((4.0, 4.5), True),
    ((9.0, 4.0), True),
]


def test_weak_dominance_with_ties():
    found = _dominated(np.array([cost for cost, _ in COSTS]))
    assert found.tolist() == [dominated for _, dominated in COSTS]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=25))
@settings(max_examples=100, deadline=None)
def test_what_is_left_is_a_front(costs):
    """No two points left are comparable, and every point that is not left has one left that is no worse."""
    points = np.array(costs, dtype=float)
    dominated = _dominated(points)
    left = points[~dominated]
    assert len(left) >= 1
    order = left[np.argsort(left[:, 0])]
    assert np.all(np.diff(order[:, 0]) > 0)
    assert np.all(np.diff(order[:, 1]) < 0)
    for point in points[dominated]:
        assert np.any(np.all(left <= point, axis=1))


@pytest.fixture(scope="module")
def front():
    return optim.pareto(problem(rate=900.0, slo=SLO(0.06, 0.05)))


def test_points_come_by_cost_and_meet_the_objectives_they_were_sized_for(front):
    costs = [point.usd_per_hour for point in front.points]
    assert costs == sorted(costs)
    assert sum(point.threshold is None for point in front.points) == 1
    for point in front.points:
        assert point.usd_per_hour == pytest.approx(float(point.design.usd_per_hour))
        assert point.design.num_pools == (1 if point.threshold is None else 2)
        assert point.slo_met
        assert np.all(np.asarray(point.analytic.pools.ttft_p99_s) <= 0.06 * (1 + 1e-6))


def test_the_recommended_point_is_the_cheapest_that_meets_and_is_not_dominated(front):
    good = [p for p in front.points if p.slo_met and not p.dominated]
    recommended = front.points[front.recommended]
    assert recommended is good[0]
    assert recommended.usd_per_hour == min(p.usd_per_hour for p in front.points if p.slo_met)


def test_a_point_that_misses_is_not_recommended():
    """The reference model sizes on the wait and adds the prefill afterwards: its sizes can miss the objective."""
    front = optim.pareto(problem(rate=50.0, slo=SLO(0.012), model="kimura"))
    missed = [p for p in front.points if not p.slo_met]
    assert missed
    assert front.recommended is None or front.points[front.recommended].slo_met
    for point in missed:
        assert np.max(point.analytic.pools.ttft_p99_s) > 0.012


def test_infeasible_objectives_leave_no_point():
    front = optim.pareto(problem(slo=SLO(0.001)))
    assert front.points == ()
    assert front.recommended is None


def test_two_kinds_of_hardware_are_mixed():
    asked = problem(rate=200.0, profiles=(A100, H100), model="kimura")
    front = optim.pareto(asked, thresholds=[1000.0, 3000.0])
    names = {point.design.profile.name for point in front.points}
    assert ("a100-80gb", "h100-80gb") in names
    assert ("h100-80gb", "a100-80gb") in names
    assert ("a100-80gb",) in names


def test_thresholds_of_a_cdf_are_its_breakpoints_and_of_a_sample_quantiles():
    steps = Workload.from_cdf([(10, 0.2), (50, 0.6), (200, 1.0)], output_share=0.2)
    assert _thresholds(problem(workload=steps), None).tolist() == [10.0, 50.0]
    cuts = _thresholds(problem(), None)
    total, weight = np.asarray(small_workload().total_tokens), np.asarray(small_workload().weight)
    assert np.all(np.isin(cuts, total))
    assert 15 <= len(cuts) <= 24
    assert weight[total <= cuts[0]].sum() == pytest.approx(0.02, abs=0.01)


@pytest.mark.parametrize("cut", [0.0, -5.0, 10.5, float("nan"), float("inf"), 7901.0, 1e9])
def test_bad_thresholds_are_refused(cut):
    context = problem().context
    with pytest.raises(ValueError, match=f"threshold must be whole tokens from 1 to below max_context {context:g}"):
        optim.pareto(problem(), thresholds=[1000.0, cut])
