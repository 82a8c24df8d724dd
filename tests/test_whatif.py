"""whatif: broadcasting, the planner's own costs, infeasible elements, one program for any grid."""

import sys

import equinox as eqx
import numpy as np
import pytest
from fleets import problem

import optim
from optim._compile import program
from optim.problem import SLO
from optim.search import Search
from optim.verify import Correction

whatif_module = sys.modules["optim.whatif"]  # the package exports a function of that name

RATES = np.array([0.5, 40.0, 900.0])
OBJECTIVES = np.array([0.001, 0.06, 0.5])


@pytest.fixture(scope="module", autouse=True)
def one_program():
    """The program of `whatif`, traced once at most and compiled fast, in small batches."""
    patch = pytest.MonkeyPatch()
    traced_once = eqx.debug.assert_max_traces(max_traces=2)(whatif_module._solve.__wrapped__)
    patch.setattr(whatif_module, "_solve", program(traced_once))
    patch.setattr(whatif_module, "CHUNK", 5)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def grid(one_program):
    return optim.whatif(problem(), rate=RATES[:, None], ttft_p99_s=OBJECTIVES)


def test_inputs_broadcast(grid):
    for name in ("rate", "ttft_p99_s", "tpot_p99_s", "usd_per_hour", "relaxed_usd_per_hour", "feasible"):
        assert getattr(grid, name).shape == (3, 3), name
    for name in ("replicas", "upper_tokens", "profile"):
        assert getattr(grid, name).shape == (3, 3, 2), name
    assert np.array_equal(grid.rate[:, 0], RATES)
    assert np.array_equal(grid.ttft_p99_s[0], OBJECTIVES)
    assert np.all(grid.tpot_p99_s == 0.05)


def test_infeasible_elements_are_inf_and_the_others_are_whole(grid):
    """1 ms is less than one step of an H100."""
    assert np.array_equal(grid.feasible, np.tile([False, True, True], (3, 1)))
    assert np.array_equal(np.isinf(grid.usd_per_hour), ~grid.feasible)
    assert np.array_equal(np.isinf(grid.relaxed_usd_per_hour), ~grid.feasible)
    assert np.all(np.isnan(grid.replicas[~grid.feasible]))
    assert np.all(grid.profile[~grid.feasible] == "")
    whole = grid.replicas[grid.feasible]
    assert np.array_equal(whole, np.round(whole))
    np.testing.assert_allclose(whole.sum(axis=1) * 4.02, grid.usd_per_hour[grid.feasible])
    assert np.all(grid.relaxed_usd_per_hour[grid.feasible] <= grid.usd_per_hour[grid.feasible] * (1 + 1e-9))
    assert np.all(grid.profile[grid.feasible] == "h100-80gb")


def test_more_load_and_less_time_never_cost_less(grid):
    """By one replica at most: each element finds its own thresholds."""
    assert np.all(np.diff(grid.usd_per_hour[:, 1:], axis=0) >= 0.0)
    assert np.all(np.diff(grid.usd_per_hour[:, 1:], axis=1) <= 4.02 + 1e-9)


def test_costs_are_those_that_the_planner_proposes(grid):
    """The planner also fits thresholds to whole sizes: it saves at most the rounding up of each of two pools."""
    for i, j in ((0, 1), (1, 2), (2, 1), (2, 2)):
        asked = problem(rate=float(RATES[i]), slo=SLO(float(OBJECTIVES[j]), 0.05))
        proposal = Search(asked).propose(Correction.none(2))
        assert proposal.usd_per_hour <= grid.usd_per_hour[i, j] <= proposal.usd_per_hour + 2 * 4.02 + 1e-9


def test_one_program_serves_every_grid(grid):
    """Other shapes, more than a batch of them and no TPOT objective; the fixture bounds the traces."""
    many = optim.whatif(problem(), rate=np.linspace(1.0, 900.0, 6), tpot_p99_s=np.inf)
    assert many.usd_per_hour.shape == (6,)
    assert np.all(many.feasible)
    one = optim.whatif(problem(), rate=40.0, ttft_p99_s=0.06)
    assert one.usd_per_hour.shape == ()
    assert float(one.usd_per_hour) == grid.usd_per_hour[1, 1]
    assert optim.whatif(problem(rate=40.0, slo=SLO(0.06, 0.05))).usd_per_hour == one.usd_per_hour


REFUSED = [
    ({"rate": [1.0, 0.0]}, "rate must be > 0 and finite, got 0.0"),
    ({"rate": -1.0}, "rate must be > 0 and finite, got -1.0"),
    ({"rate": [np.nan]}, "rate must be > 0 and finite, got nan"),
    ({"ttft_p99_s": 0.0}, "ttft_p99_s must be > 0 and finite"),
    ({"ttft_p99_s": np.inf}, "ttft_p99_s must be > 0 and finite"),
    ({"tpot_p99_s": -0.01}, "tpot_p99_s must be > 0 and finite, got -0.01"),
    ({"rate": [1.0, 2.0], "ttft_p99_s": [0.1, 0.2, 0.3]}, "broadcast"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED)
def test_bad_inputs_are_refused(changes, text):
    with pytest.raises(ValueError) as error:
        optim.whatif(problem(), **changes)
    assert text in str(error.value)
