"""The search for thresholds and sizes against exhaustive ones, written apart where the model allows it."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import assert_finite
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaincc, gammaln

import jaxsim
from optim.cases import cases, sized_designs
from optim.lattice import lattice
from optim.problem import SLO, PlanProblem
from optim.relax import relax
from optim.rounding import round_plan
from optim.sizing import Targets, whole_replicas
from optim.transforms import start_coordinates, thresholds

KNOTS = 65_800
WORKLOADS = {"azure": 8192, "lmsys": 65_536, "agent": 65_536}
RATES = (20.0, 100.0, 500.0)
PROFILES = ("a100-80gb", "h100-80gb")


def padded(table):
    """The same sums with more knots, inside the last token: every workload then runs the same programs."""
    knots, sums = np.asarray(table.knots), np.asarray(table.sums)
    extra = KNOTS - knots.shape[1]
    part = np.arange(1, extra + 1) / (extra + 1)
    between = knots[:, -2:-1] + part * (knots[:, -1:] - knots[:, -2:-1])
    filled = sums[:, -2:-1] + part[None, :, None] * (sums[:, -1:] - sums[:, -2:-1])
    knots = np.concatenate([knots[:, :-1], between, knots[:, -1:]], axis=1)
    sums = np.concatenate([sums[:, :-1], filled, sums[:, -1:]], axis=1)
    return eqx.tree_at(lambda t: (t.knots, t.sums), table, (jnp.asarray(knots), jnp.asarray(sums)))


@pytest.fixture(scope="module")
def choices():
    """The case of a workload on a profile, tabulated once; rate and SLO vary."""
    found = {}

    def case(workload, profile, model, rate):
        key = workload, profile, model
        asked = PlanProblem(
            workload=jaxsim.workload(workload),
            rate=rate,
            profiles=(jaxsim.profile(profile),),
            slo=SLO(0.5),
            max_context=WORKLOADS[workload],
            model=model,
        )
        if key not in found:
            ((_, case_),) = cases(asked, num_pools=2)
            where = (lambda c: c.tables.table.table) if model == "step" else (lambda c: c.tables.table)
            found[key] = eqx.tree_at(where, case_, padded(where(case_)))
        return eqx.tree_at(lambda c: c.rate, found[key], jnp.asarray(rate)), asked

    return case


def log_erlang_c(servers, load):
    log_blocked = servers * np.log(load) - load - gammaln(servers + 1.0) - np.log(gammaincc(servers + 1.0, load))
    rho = load / servers
    return log_blocked - np.log(1.0 - rho + rho * np.exp(log_blocked))


def kimura_replicas(sums, slots, rate, profile, slo_s):
    """Whole replicas by the published rules of many pools, from sums of 1, T, K, K T, K^2, K^2 T, K^2 T^2."""
    share, _, k, kt, k2, k2t, k2t2 = sums
    w, growth = float(profile.base_s), float(profile.per_token_s) * slots
    filled = share > 1e-12
    safe = np.where(filled, share, 1.0)
    mean = (w * k + growth * kt) / safe
    mean = np.where(filled, mean, 1.0)
    second = (w**2 * k2 + 2 * w * growth * k2t + growth**2 * k2t2) / safe
    cv2 = np.maximum(second / mean**2 - 1.0, 0.01)
    load = rate * share * mean / slots
    replicas = np.ceil(load) + 1.0
    for _ in range(1000):
        servers = replicas * slots
        slack = servers / mean - rate * share
        busy = np.where(filled, rate * share * mean, 0.5)
        tail = log_erlang_c(servers, busy) - 2.0 * slack * slo_s / (1.0 + cv2)
        short = filled & (tail > math.log(0.01))
        if not short.any():
            break
        replicas = replicas + short
    return np.where(filled, np.maximum(replicas, np.ceil(load / 0.85)), 0.0)


def kimura_optimum(asked, profile):
    """Fewest replicas over EVERY whole threshold, empty pools included."""
    work, context = asked.limited, asked.context
    total, outputs = np.asarray(work.total_tokens), np.asarray(work.output_tokens)
    weight = np.asarray(work.weight) * (total <= context)
    steps = np.ceil(np.asarray(work.input_tokens) / float(profile.chunk_tokens)) + outputs
    columns = [np.ones_like(total), total, steps, steps * total, steps**2, steps**2 * total, (steps * total) ** 2]
    cuts = np.arange(total.min(), context)
    upto = np.searchsorted(total, cuts, side="right")
    padded_ = [np.concatenate([[0.0], np.cumsum(weight * c)]) for c in columns]
    short = [c[upto] for c in padded_]
    long = [c[-1] - c[upto] for c in padded_]

    def slots(context):
        by_blocks = float(profile.kv_blocks) // np.ceil(context / 16.0)
        return np.minimum(by_blocks, float(profile.max_num_seqs) * 8192.0 // context)

    both = kimura_replicas(short, slots(cuts), asked.rate, profile, asked.slo.ttft_p99_s)
    both += kimura_replicas(long, slots(context) * np.ones_like(cuts), asked.rate, profile, asked.slo.ttft_p99_s)
    alone = kimura_replicas([c[-1:] for c in padded_], slots(context) * np.ones(1), asked.rate, profile, 0.5)
    return min(both.min(), alone[0])


def two_pools(case, model):
    """The lattice of two pools of the case's hardware."""
    single = jax.tree.map(lambda leaf: leaf[:1] if jnp.ndim(leaf) else leaf, case)
    targets = [Targets(case.targets.ttft_s[k], case.targets.tpot_s[k]) for k in (0, 1)]
    return lattice([single], targets, model=model)


def found_by_search(case, paths, model):
    """As `optim.search`: rounded from the best of the lattice and from the relaxed optima."""
    _, upper = relax(case, model=model)
    first = np.maximum(paths.paths[0].upper_tokens, 1.0)
    return round_plan(case, np.concatenate([first[None], np.asarray(upper)]), model=model)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("rate", RATES)
def test_kimura_search_is_as_cheap_as_every_threshold(choices, workload, profile, rate):
    case, asked = choices(workload, profile, "kimura", rate)
    paths = two_pools(case, "kimura")
    found = found_by_search(case, paths, "kimura")
    optimum = kimura_optimum(asked, asked.profiles[0])
    assert found.replicas.sum() == optimum
    assert 0.0 < paths.bound <= optimum * float(case.profile.usd_per_hour[0]) * (1 + 1e-12)
    assert found.worst_excess <= 1e-9


def step_optimum(case, asked):
    """Fewest replicas over a dense grid of thresholds and a denser one around its best."""
    first, last = float(case.shortest), asked.context
    cheapest, cuts = np.inf, np.geomspace(first, last, 256)
    for _ in range(2):
        rows = np.stack([np.floor(cuts), np.full(len(cuts), last)], axis=1)
        sized = sized_designs(case, rows, model="step")
        cost = np.where(sized.feasible, whole_replicas(sized.replicas).sum(axis=1), np.inf)
        cheapest, best = min(cheapest, cost.min()), rows[cost.argmin(), 0]
        cuts = np.linspace(max(0.97 * best, first), min(1.03 * best, last), 128)
    return cheapest


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("rate", [*(pytest.param(rate, marks=pytest.mark.slow) for rate in RATES[:-1]), RATES[-1]])
def test_step_search_is_as_cheap_as_a_dense_grid(choices, workload, profile, rate):
    case, asked = choices(workload, profile, "step", rate)
    paths = two_pools(case, "step")
    found = found_by_search(case, paths, "step")
    optimum = step_optimum(case, asked)
    assert np.isfinite(optimum)
    assert found.replicas.sum() <= optimum
    assert found.worst_excess <= 1e-9
    assert 0.0 < paths.bound <= optimum * float(case.profile.usd_per_hour[0]) * (1 + 1e-12)


@given(
    coordinates=st.lists(st.floats(-30.0, 30.0), min_size=1, max_size=4),
    shortest=st.integers(2, 500),
    length=st.floats(1.01, 1000.0),
)
@settings(max_examples=60, deadline=None)
def test_any_coordinates_are_ascending_thresholds_in_range(coordinates, shortest, length):
    longest = float(np.ceil(shortest * length)) + 1.0
    upper = np.asarray(thresholds(*(jnp.asarray(v, dtype=float) for v in (coordinates, shortest, longest))))
    assert len(upper) == len(coordinates) + 1
    assert np.all(np.diff(upper) >= 0.0)
    assert upper[0] >= shortest * (1 - 1e-12)
    assert upper[-1] == longest


@pytest.mark.parametrize("num_pools", [1, 2, 3, 6])
def test_starts_cover_the_range_of_lengths(num_pools):
    """The same every time; for two pools no gap above a fifth of the log range is left."""
    starts = start_coordinates(12, num_pools)
    assert starts.shape[1] == num_pools - 1
    np.testing.assert_array_equal(starts, start_coordinates(12, num_pools))
    if num_pools == 2:
        cuts = [float(thresholds(jnp.asarray(s), jnp.asarray(1.0), jnp.asarray(np.e))[0]) for s in starts]
        at = np.sort(np.log(cuts))
        assert np.diff(np.concatenate([[0.0], at, [1.0]])).max() < 0.2


def test_the_slope_of_a_threshold_is_finite_at_both_ends():
    slopes = jax.jacfwd(thresholds)(jnp.asarray([-300.0, 300.0]), jnp.asarray(10.0), jnp.asarray(1e5))
    assert_finite(slopes)
