"""The lattice of thresholds: its cheapest fleets against enumeration, and its bound against everything else."""

from itertools import combinations, pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from fleets import A100, H100, small_workload

import jaxsim
import optim
from optim.cases import cases, sized_designs
from optim.lattice import _bound, _sizes, interval_sizes, lattice, nodes_of
from optim.sizing import Targets, whole_replicas

CELLS = 10
MODELS = ("step", "kimura")


def problem(model="step", profiles=(H100, A100), pools=2, rate=200.0):
    slo = optim.SLO(ttft_p99_s=0.4, tpot_p99_s=0.06 if model == "step" else None)
    return optim.PlanProblem(small_workload(), rate, profiles, slo, max_pools=pools, model=model)


def single_cases(asked):
    return [choice.case for choice in cases(asked, num_pools=1)]


def targets_of(asked, pools):
    tpot = np.inf if asked.slo.tpot_p99_s is None else asked.slo.tpot_p99_s
    return [Targets(jnp.asarray(asked.slo.ttft_p99_s), jnp.asarray(tpot))] * pools


def enumerated(asked, nodes, pools):
    """The cheapest of every combination of nodes and hardware, sized as whole designs."""
    best = np.inf
    upper = np.array([[*cut, nodes[-1]] for cut in combinations(nodes, pools - 1)])
    for choice in cases(asked, num_pools=pools):
        sized = sized_designs(choice.case, upper, model=asked.model)
        price = whole_replicas(sized.replicas) @ np.asarray(choice.case.profile.usd_per_hour)
        best = min(best, price[sized.feasible].min(initial=np.inf))
    return best


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pools", [1, 2, 3])
def test_the_shortest_path_is_the_cheapest_of_all_designs_on_the_nodes(model, pools):
    asked = problem(model, pools=pools)
    found = lattice(single_cases(asked), targets_of(asked, pools), model=model, cells=CELLS)
    nodes = nodes_of(single_cases(asked)[0], CELLS)
    assert found.paths[0].usd_per_hour == pytest.approx(enumerated(asked, nodes, pools), abs=1e-9)
    assert [p.usd_per_hour for p in found.paths] == sorted(p.usd_per_hour for p in found.paths)
    assert found.bound <= found.paths[0].usd_per_hour


@pytest.mark.parametrize("model", [pytest.param("step", marks=pytest.mark.slow), "kimura"])
def test_the_bound_holds_for_thresholds_between_the_nodes(model):
    """Every second whole token as a threshold, on every pair of hardware: nothing is cheaper than the bound."""
    asked = problem(model)
    found = lattice(single_cases(asked), targets_of(asked, 2), model=model, cells=24)
    longest = float(asked.context)
    upper = np.array([[cut, longest] for cut in np.arange(float(asked.limited.total_tokens[0]), longest, 2.0)])
    least = np.inf
    for choice in cases(asked, num_pools=2):
        sized = sized_designs(choice.case, upper, model=model)
        price = whole_replicas(sized.replicas) @ np.asarray(choice.case.profile.usd_per_hour)
        least = min(least, price[sized.feasible].min(initial=np.inf))
    assert found.bound <= least + 1e-9
    assert found.bound >= 0.8 * least


def test_finer_cells_give_a_tighter_bound():
    asked = problem()
    bounds = [
        lattice(single_cases(asked), targets_of(asked, 2), model="step", cells=cells).bound for cells in (8, 32, 128)
    ]
    assert bounds[0] <= bounds[1] <= bounds[2]


def test_nodes_are_whole_ascend_and_hold_equal_parts():
    asked = problem()
    nodes = nodes_of(single_cases(asked)[0], 16)
    totals, weight = np.asarray(asked.limited.total_tokens), np.asarray(asked.limited.weight)
    assert (np.diff(nodes) > 0).all() and (nodes == np.floor(nodes)).all()
    assert nodes[0] < totals[0] and nodes[-1] == asked.context
    parts = [
        0.5 * weight[(totals > low) & (totals <= high)].sum()
        + 0.5 * (weight * totals)[(totals > low) & (totals <= high)].sum() / (weight @ totals)
        for low, high in pairwise(nodes)
    ]
    assert sum(parts) == pytest.approx(1.0)
    assert max(parts) < 2.0 / 16


def test_an_empty_interval_needs_nothing_and_an_impossible_one_is_inf():
    asked = problem()
    (case,) = single_cases(problem(profiles=(H100,)))
    nodes = np.array([0.0, 1.0, asked.context])
    pairs = np.array([[0, 1], [0, 2]])
    reachable = Targets(jnp.asarray(0.4), jnp.asarray(0.06))
    none, some = interval_sizes(case, nodes, pairs, reachable, model="step")
    assert none == 0.0 and some > 0.0
    out_of_reach = Targets(jnp.asarray(1e-3), jnp.asarray(0.06))
    assert interval_sizes(case, nodes, pairs, out_of_reach, model="step").tolist() == [0.0, np.inf]


def test_hardware_that_cannot_hold_long_requests_serves_short_ones():
    """A profile with room for 2,000 tokens is used where it is cheaper, and never for a longer request."""
    from dataclasses import replace

    small = replace(H100, kv_blocks=2000 / 16, usd_per_gpu_hour=0.5, name="small")
    (case,) = single_cases(problem(profiles=(H100,)))
    import equinox as eqx

    tight = eqx.tree_at(lambda c: c.profile, case, jaxsim.Profile.stack([small]).unnamed())
    nodes = np.array([0.0, 1000.0, 2000.0, 2500.0, float(case.longest)])
    pairs = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [2, 4]])
    sizes = interval_sizes(tight, nodes, pairs, targets_of(problem(), 1)[0], model="step")
    assert np.isfinite(sizes[:2]).all() and np.isinf(sizes[2:]).all()


def test_different_targets_of_pools_count():
    asked = problem()
    strict = Targets(jnp.asarray(0.1), jnp.asarray(0.06))
    plain = targets_of(asked, 2)
    hardware = single_cases(asked)
    easy, hard = (lattice(hardware, t, model="step", cells=CELLS).bound for t in (plain, [plain[0], strict]))
    assert hard >= easy


def test_bound_of_random_costs_is_below_every_refinement():
    """Random monotone costs on a fine lattice: the bound of a coarse one is below the fine one's shortest path."""
    random = np.random.default_rng(0)
    for _ in range(20):
        fine = np.sort(random.uniform(0, 1, 33))
        fine[0], fine[-1] = 0.0, 1.0
        need = np.ceil(random.uniform(1, 6) * np.maximum(fine[None, :] - fine[:, None], 0.0) + random.uniform(0, 1, 1))
        need[np.tril_indices(33)] = np.inf
        np.fill_diagonal(need, 0.0)
        cost = np.stack([need, need])[:, None]
        cost[0][:, 1:, :] = np.inf
        cost[1][:, :, :-1] = np.inf
        for pool in cost:
            pool[:, np.arange(33), np.arange(33)] = 0.0
        least = (cost[0, 0, 0] + cost[1, 0, :, -1]).min()
        coarse = cost[:, :, ::4, ::4]
        assert _bound(coarse) <= least + 1e-12


def test_costs_share_sizes_between_pools_of_equal_targets(monkeypatch):
    """Three pools of one target: the intervals are asked for once."""
    import optim.lattice as module

    asked = problem(pools=3, profiles=(H100,))
    nodes = nodes_of(single_cases(asked)[0], 6)
    counted = []
    original = module.interval_sizes

    def counting(case, nodes, pairs, *args, **settings):
        counted.append(len(pairs))
        return original(case, nodes, pairs, *args, **settings)

    monkeypatch.setattr(module, "interval_sizes", counting)
    costs = _sizes(single_cases(asked), targets_of(asked, 3), nodes, model="step")
    count = len(nodes)
    assert sum(counted) == count * (count - 1) // 2
    assert np.isinf(costs[0, 0, 1, 2]) and np.isfinite(costs[1, 0, 1, 2])
