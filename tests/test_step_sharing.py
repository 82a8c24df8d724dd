"""The step-sharing theory against its reference table, exact pair sums, limits with known answers, and differences."""

import csv
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import assert_finite, assert_no_nan
from hypothesis import given, settings
from hypothesis import strategies as st
from step_sharing_marks import TOY, TRACES, figures, mix

from jaxsim import physics, queueing
from jaxsim.step_sharing import Load, Requests, exact_moments, fluctuations, state
from jaxsim.step_sharing.response import averaging, mean_tpot_s, tpot_tail, ttft_tail, wait_tail
from jaxsim.step_sharing.tokens import admitted, held_moments, overflow_probability
from jaxsim.step_sharing.waiting import QueueWait, WaitScale, dispersion_over
from optim._compile import program

TOY_MIX = mix("toy")


def arrays(*values):
    """Numbers as arrays: each Python float would compile anew."""
    return [jnp.asarray(float(v)) for v in values]


solved, exact_of = program(state), program(exact_moments)

TOY_ROWS = Path(__file__).parent / "data" / "step_sharing_toy.csv"

CLOSED = ("a", "z", "n_step", "var_n_step", "cov_nS", "var_S", "n_time_unlimited", "Tc", "P_wait")
"""Columns that are formulas; the others go through sums over states, of which ours has other nodes."""

NEAR = {"n_active": 2e-3, "e2e_mean": 2e-3, "ttft99": 0.04, "wait99": 0.05}


def rows_of(path, wanted):
    with path.open() as file:
        return [row for row in csv.DictReader(file) if wanted(row["marks"])]


def compared(rows, folder=None):
    """Ours, the reference's and the simulated figures of each row."""
    for row in rows:
        moments, groups = mix(row["marks"], folder)
        found, _ = figures(moments, groups, float(row["lam"]), float(row["W"]), float(row["N"]))
        yield row, {name: float(value) for name, value in found.items()}


def check_by_value(rows, folder=None):
    for row, found in compared(rows, folder):
        label = f"{row['marks']} N={row['N']} rho={row['rho']}"
        for name in CLOSED:
            assert found[name] == pytest.approx(float(row[name]), rel=2e-7), f"{name} of {label}"
        for name, allowed in NEAR.items():
            assert found[name] == pytest.approx(float(row[name]), rel=allowed), f"{name} of {label}"


def errors_against_simulation(rows, folder, name):
    """Absolute relative errors of ours and of the reference where the simulation is known to 10 %."""
    ours, theirs = [], []
    for row, found in compared(rows, folder):
        simulated = float(row[f"sim_{name}"])
        if float(row[f"ci_{name}"]) < 0.1 * simulated:
            ours.append(abs(found[name] / simulated - 1.0))
            theirs.append(abs(float(row[name]) / simulated - 1.0))
    return np.array(ours), np.array(theirs)


def test_the_toy_rows_of_the_reference_by_value():
    check_by_value(rows_of(TOY_ROWS, lambda name: True))


def test_unit_values_of_the_toy_mix():
    """Moments of three kinds of requests, as the write-up states them to ten digits."""
    moments, _ = mix("toy")
    stated = {
        "steps": 192.7, "steps2": 50634.5, "work_s": 0.034612, "work2_s2": 0.00393515216, "squares_s2": 9.9016e-6,
        "mean_age": 181.1146423206, "count_slope": 2 * 0.6215793605, "cross_slope": 1.5574388173,
        "work_slope": 1.0865288982, "count_limit": 1.7474561889, "work_limit": 1.0971666388, "overlap": 0.6979242345,
    }  # fmt: skip
    for name, value in stated.items():
        assert float(getattr(moments, name)) == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("traced", [False, True], ids=["seeded laws", "traces"])
def test_the_rows_of_the_reference_by_value(shared_data, traced):
    path = shared_data / "theory" / "stepq_reference_values.csv"
    rows = rows_of(path, lambda name: name != "toy" and (name.split("/")[0] in TRACES) == traced)
    assert len(rows) == (96 if traced else 64)
    check_by_value(rows, shared_data)


@pytest.mark.parametrize(
    ("name", "median", "ninety"), [("ttft99", 0.02, 0.085), ("tpot99", 0.012, 0.04), ("e2e_mean", 0.01, 0.05)]
)
def test_errors_against_the_simulations_of_the_reference(shared_data, name, median, ninety):
    """All 175 designs, constant work: as good as the reference, and better where it names a weakness (P99 TPOT)."""
    rows = rows_of(shared_data / "theory" / "stepq_reference_values.csv", lambda name: True)
    assert len(rows) == 175
    ours, theirs = errors_against_simulation(rows, shared_data, name)
    assert len(ours) > 130
    assert np.median(ours) < median
    assert np.quantile(ours, 0.9) < ninety
    assert np.quantile(ours, 0.9) < np.quantile(theirs, 0.9) * 1.1


DET_WORK = {
    "H100": (2e-5 + 4e-8 * 1300, 0.008),
    "seedH100": (0.00032 / 8192 * 1400, 0.004),
    "seedA100": (0.00065 / 8192 * 1400, 0.008),
}
"""Work per step of a request of 1200 + 200 tokens, and the base, on each hardware of the table, seconds."""


def test_closed_moments_against_exact_sums(shared_data):
    """Variances and covariance of the Hawkes process of equal requests, by Fourier sums; a from 0.1 to 0.98."""
    with (shared_data / "theory" / "stepq_moments_check.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = (("vn", 1e-5), ("cnS", 1e-4), ("vS", 1e-4))
    det = [row for row in rows if row["kind"] == "det"]
    assert det
    for row in det:
        work, base = DET_WORK[row["hw"]]
        requests = Requests.constant(*(jnp.asarray([v]) for v in (2.0, 200.0, work)))
        moments = exact_of(requests, jnp.ones(1))
        f = fluctuations(moments, jnp.asarray(float(row["a"])) / moments.work_s, jnp.asarray(base))
        found = {"vn": f.running_variance, "cnS": f.covariance_s, "vS": f.work_variance_s2}
        for name, allowed in columns:
            assert float(found[name]) == pytest.approx(float(row[f"{name}_exact"]), rel=allowed)


def test_sums_over_a_request_by_hand():
    """Work step by step: chunks whose context grows, a shorter last one, and decode steps."""
    law = physics.StepLaw(0.01, 2e-5, 5e-8, 2e-5, 1e-9)
    inputs, outputs = np.array([100.0, 512.0, 1300.0]), np.array([1.0, 7.0, 30.0])
    requests = Requests.of(physics.step_work(law, 512.0, jnp.asarray(inputs), jnp.asarray(outputs)))
    for i, (tokens, answer) in enumerate(zip(inputs, outputs, strict=True)):
        steps = []
        for done in range(0, int(tokens), 512):
            part, context = min(512.0, tokens - done), min(done + 512.0, tokens)
            compute = (0.01**4 + (2e-5 * part) ** 4) ** 0.25 - 0.01
            steps.append(compute + 1e-9 * part * context + 2e-5 + 5e-8 * context)
        prefill = np.array(steps)
        steps += [2e-5 + 5e-8 * (tokens + j) for j in range(1, int(answer))]
        work = np.array(steps)
        assert float(requests.steps[i]) == len(work)
        assert float(requests.work_s[i]) == pytest.approx(work.sum(), rel=1e-9)
        assert float(requests.squares_s2[i]) == pytest.approx((work**2).sum(), rel=1e-9)
        assert float(requests.prefill_squares_s2[i]) == pytest.approx((prefill**2).sum(), rel=1e-9)
        assert float(requests.ages_s[i]) == pytest.approx((work * np.arange(1, len(work) + 1)).sum(), rel=1e-9)


def test_pair_sums_by_hand():
    """psi and min over all pairs of twelve requests of two phases, step by step."""
    random = np.random.default_rng(5)
    p, o = random.integers(1, 6, 12).astype(float), random.integers(0, 40, 12).astype(float)
    wp, wo, weight = random.uniform(1, 9, 12), random.uniform(1, 3, 12), random.uniform(0.1, 1, 12)
    weight /= weight.sum()
    k = p + o
    zero = jnp.zeros(12)
    rest = (zero + 1.0, zero, zero + 1.0, zero + 1.0)
    requests = Requests(*(jnp.asarray(v) for v in (p, o, wp, wo, wp * p + wo * o)), *rest)
    moments = exact_of(requests, jnp.asarray(weight))
    age = np.arange(60)
    survives = (k[:, None] > age).astype(float)
    works = np.where(age < p[:, None], wp[:, None], np.where(age < k[:, None], wo[:, None], 0.0))
    v, n = (weight * (wp * p + wo * o)).sum(), (weight * k).sum()
    running, working = weight @ survives, weight @ works
    # a request's work in step j is felt by what arrives j + 1 to u steps into its stay
    pushed = sum(
        weight[i] * works[i, j] * sum(running[u - j - 1] for u in range(j + 1, int(k[i])))
        for i in range(12)
        for j in range(int(k[i]))
    )
    assert float(moments.count_slope) == pytest.approx(2.0 * pushed / (v * n), rel=1e-9)
    assert float(moments.overlap) == pytest.approx((running**2).sum() / n, rel=1e-9)
    assert float(moments.work_overlap) == pytest.approx((working**2).sum(), rel=1e-6)


@pytest.mark.parametrize(("slots", "rho"), [(1, 0.5), (8, 0.8), (64, 0.8), (256, 0.95)])
def test_without_work_and_with_exponential_steps_it_is_erlang_c(slots, rho):
    """Steps of constant length are independent servers; cv2 = 1 leaves the Erlang C uncorrected."""
    k = jnp.asarray(np.round(-400.0 * np.log1p(-(np.arange(4000) + 0.5) / 4000)) + 1.0)
    moments = exact_of(Requests.constant(jnp.ones_like(k), k - 1.0, jnp.zeros_like(k)), jnp.ones_like(k))
    rate = rho * slots / (0.01 * moments.steps)
    found = solved(moments, Load.of(rate, 0.01, float(slots)))
    assert float(found.utilization) == pytest.approx(rho, rel=1e-9)
    expected = float(queueing.erlang_c(float(slots), rho * slots))
    assert float(found.wait_probability) == pytest.approx(expected, rel=0.01)
    assert float(found.running) == pytest.approx(rho * slots, rel=0.01)


def test_equal_work_is_the_state_dependent_birth_death_chain():
    """Whatever the steps: departure rate n / (K tau(n)), a geometric queue beyond all slots."""
    base, work, slots, mean = 0.008, 3e-5, 48, 200.0
    requests = Requests.constant(*(jnp.asarray(v) for v in ([1.0, 1.0], [99.0, 299.0], [work, work])))
    moments = exact_of(requests, jnp.ones(2))
    rate = 0.85 * slots / (mean * (base + work * slots))
    n = np.arange(1, slots + 1)
    log_weight = np.concatenate([[0.0], np.cumsum(np.log(rate * mean * (base + work * n) / n))])
    weight = np.exp(log_weight - log_weight.max())
    weight[-1] /= 1.0 - 0.85
    weight /= weight.sum()
    found = solved(moments, Load.of(rate, base, float(slots)))
    factor = float(found.wait_probability) / weight[-1]
    assert 0.9 < factor < 1.01  # less variable than exponential: a few per cent fewer wait
    assert float(found.running) == pytest.approx((weight * np.arange(slots + 1)).sum(), rel=5e-3)


def test_one_slot_waits_as_the_pollaczek_khinchine_formula_says():
    """N = 1: an M/G/1 queue of service K (W + w), behind the rest of the step in progress."""
    k, w = jnp.asarray([10.0, 60.0, 300.0]), jnp.asarray([1e-4, 2e-4, 4e-4])
    weight = jnp.asarray([0.5, 0.3, 0.2])
    moments = exact_of(Requests.constant(jnp.ones(3), k - 1.0, w), weight)
    service = np.asarray(k * (0.01 + w))
    mean, second = (np.asarray(weight) * service).sum(), (np.asarray(weight) * service**2).sum()
    rate = 0.8 / mean
    found = solved(moments, Load.of(rate, 0.01, 1.0))
    assert float(found.wait_probability) == pytest.approx(0.8, rel=0.01)
    waits = float(found.wait_probability * found.queue.mean_s)
    assert waits == pytest.approx(rate * second / (2.0 * (1.0 - 0.8)), rel=0.1)


def test_an_idle_engine():
    """No wait, a lone request's own steps, nothing running."""
    moments, groups = mix("toy")
    found = solved(moments, Load.of(1e-9, 0.008, 32.0))
    assert float(wait_tail(found, jnp.asarray(1e-3))) < 2e-6
    assert float(found.running) < 2e-6
    own = (np.asarray(groups.decode_share) * np.asarray(groups.decode_work_s)).sum()
    assert float(mean_tpot_s(found, groups)) == pytest.approx(0.008 + own, rel=1e-6)
    slowest = TOY[2, 0] * (0.008 + 2e-5 + 4e-8 * 8000)
    assert float(ttft_tail(found, groups, jnp.asarray(slowest * 1.03))) < 1e-6
    assert float(ttft_tail(found, groups, jnp.asarray(slowest * 0.99))) == pytest.approx(0.2, rel=1e-3)


def test_the_index_of_dispersion_between_its_limits():
    moments, _ = mix("toy")
    values = [float(dispersion_over(moments, jnp.asarray(s))) for s in (1e-9, 0.1, 1.0, 10.0, 1e6)]
    assert values[0] == pytest.approx(float(moments.steps_cv2), rel=2e-3)
    assert values[-1] == pytest.approx(1.0, rel=1e-5)
    assert np.all(np.diff(values) > 0.0)


def scale_of(engines, slack=0.1):
    moments, _ = mix("toy")
    ones = [jnp.asarray(v) for v in (16.0 * engines, engines, slack, 0.05, 0.9, 1.0)]
    return WaitScale(moments, *ones)


def test_level_queues_keep_the_mean_wait_and_lengthen_its_tail():
    """Many engines: no shorter than an engine's own departures, and the mean of the shared queue."""
    unit = jnp.ones(())
    one = scale_of(1.0)
    assert float(one.apart(one.pooled_s(unit))) == pytest.approx(float(one.pooled_s(unit)), rel=1e-9)
    assert float(QueueWait.of(one).share) == pytest.approx(1.0, rel=1e-9)
    for engines in (2.0, 8.0, 1000.0):
        many = scale_of(engines)
        scale = float(many.apart(many.pooled_s(unit)))
        assert scale >= 0.05 * (1.0 - 1e-9)
        assert scale * float(QueueWait.of(many).share) == pytest.approx(float(many.pooled_s(unit)), rel=1e-9)


def test_the_queue_tail_is_a_law_of_probability():
    queue = QueueWait.of(scale_of(1.0))
    times = jnp.linspace(0.0, 20.0 * float(queue.scales_s[-1]), 2000)
    tail = np.asarray(queue.tail(times))
    assert tail[0] == 1.0
    assert np.all(np.diff(tail) < 0.0)
    assert tail[-1] < 1e-6


def test_averaging_of_a_window():
    """One step keeps its own spread; over many it shrinks as the mean of a process of correlation time 1."""
    y = np.array([1e-2, 1.0, 30.0, 1e4])
    np.testing.assert_allclose(averaging(jnp.asarray(y)), np.sqrt(2.0 * (y - 1.0 + np.exp(-y))) / y, rtol=1e-9)
    assert float(averaging(jnp.asarray(0.0))) == 1.0
    slopes = jax.vmap(jax.grad(averaging))(jnp.asarray([0.0, 1e-9, 1e-3, 0.1, 1e6]))
    assert np.all(np.isfinite(slopes))
    assert np.all(np.asarray(slopes) < 0.0)


def test_tokens_that_a_cache_holds():
    """Requests that hold one token each fluctuate as requests do; a cache admits by what they hold in time."""
    moments, _ = mix("toy")
    rate = 0.7 / float(moments.work_s)
    f = fluctuations(moments, jnp.asarray(rate), jnp.asarray(0.008))
    mean, variance = held_moments(moments, jnp.asarray(rate), jnp.asarray(0.008))
    assert float(mean) == pytest.approx(float(f.running + f.covariance_s / (0.008 + f.work_s)), rel=1e-6)
    assert float(variance) == pytest.approx(float(f.running_variance), rel=1e-6)
    at = jnp.asarray(rate), jnp.asarray(0.008)
    levels = [overflow_probability(moments, *at, jnp.asarray(t)) for t in (0.0, float(mean), 1e6)]
    assert float(levels[0]) == pytest.approx(1.0)
    assert 0.3 < float(levels[1]) < 0.6
    assert float(levels[2]) < 1e-12
    limit, by_tokens = admitted(moments, jnp.asarray(20.5), jnp.asarray(64.0))
    assert float(limit) == pytest.approx(20.0)
    assert float(by_tokens) == 1.0
    assert [float(v) for v in admitted(moments, jnp.asarray(1e6), jnp.asarray(64.0))] == [64.0, 0.0]


def test_a_limit_in_tokens_fills_more_often_than_one_in_as_many_requests():
    """Requests that hold unlike numbers of tokens: the same mean fluctuates more."""
    prefill, decode, tokens, weight = (jnp.asarray(v) for v in TOY.T)
    requests = Requests.constant(prefill, decode, 2e-5 + 4e-8 * tokens)
    moments = exact_of(requests, weight, held_tokens=tokens)
    rate = 0.7 / (192.7 * 0.008 / 32.0 + 0.034612)
    alike, tokened = (solved(moments, Load.of(rate, 0.008, 32.0, by_tokens=v)) for v in (0.0, 1.0))
    assert float(tokened.wait_probability) > 1.2 * float(alike.wait_probability)


@given(dispersion=st.floats(1.0, 20.0), rate=st.floats(0.5, 20.0))
@settings(max_examples=40, deadline=None)
def test_bursts_wait_more(dispersion, rate):
    calm = toy_tails(*arrays(rate, 1.0, 32.0, 1.0))
    bursty = toy_tails(*arrays(rate, 1.0, 32.0, dispersion))
    assert float(bursty[0]) >= float(calm[0]) * (1.0 - 1e-9)
    assert float(bursty[1]) >= float(calm[1]) * (1.0 - 1e-6)


@program
def toy_tails(rate, replicas, limit, dispersion):
    """P(wait), the P(TTFT > 0.4 s) and the P(TPOT > 12 ms) of the toy mix."""
    moments, groups = TOY_MIX
    found = state(moments, Load.of(rate, 0.008, limit, replicas=replicas, dispersion=dispersion))
    tails = (ttft_tail(found, groups, jnp.asarray(0.4)), tpot_tail(found, groups, jnp.asarray(0.012)))
    return jnp.stack([found.wait_probability, *tails])


rates = st.floats(0.1, 60.0)


@given(rate=rates, replicas=st.floats(0.5, 40.0), limit=st.floats(1.0, 300.0), growth=st.floats(1.0, 3.0))
@settings(max_examples=80, deadline=None)
def test_more_engines_and_less_load_never_wait_more(rate, replicas, limit, growth):
    here = toy_tails(*arrays(rate, replicas, limit, 1.0))
    more = toy_tails(*arrays(rate, replicas * growth, limit, 1.0))
    less = toy_tails(*arrays(rate / growth, replicas, limit, 1.0))
    for better in (more, less):
        assert float(better[0]) <= float(here[0]) * (1.0 + 1e-6) + 1e-12


@given(rate=st.floats(0.0, 60.0), replicas=st.floats(0.5, 40.0), limit=st.floats(0.3, 300.0))
@settings(max_examples=80, deadline=None)
def test_bounds_hold_everywhere(rate, replicas, limit):
    found = toy_state(*arrays(rate, replicas, limit))
    assert_no_nan(found)
    assert 0.0 <= float(found.wait_probability) <= 1.0
    assert 0.0 <= float(found.running) <= max(limit, 1.0) * (1.0 + 1e-9)
    assert float(found.weight.sum()) == pytest.approx(1.0, abs=1e-9)
    assert np.all(np.asarray(found.steps_s)[1:] >= 0.008 * (1.0 - 1e-9))


@program
def toy_state(rate, replicas, limit):
    return state(TOY_MIX[0], Load.of(rate, 0.008, limit, replicas=replicas))


@program
def value_and_slopes(rate, replicas, limit, base, weight):
    """Tails of the toy mix and their slopes in the rate, replicas, limit, step base and a request's weight."""
    prefill, decode, tokens, share = (jnp.asarray(v) for v in TOY.T)
    groups = TOY_MIX[1]

    def values(rate, replicas, limit, base, weight):
        requests = Requests.constant(prefill, decode, 2e-5 + 4e-8 * tokens)
        moments = exact_moments(requests, share.at[0].set(weight))
        found = state(moments, Load.of(rate, base, limit, replicas=replicas))
        tails = (wait_tail(found, jnp.asarray(0.02)), ttft_tail(found, groups, jnp.asarray(0.11)))
        return jnp.stack([found.wait_probability, found.running, *tails])

    arguments = (rate, replicas, limit, base, weight)
    return values(*arguments), jax.jacfwd(values, argnums=(0, 1, 2, 3, 4))(*arguments)


def test_gradients_agree_with_differences():
    """Draws over the domain, in every argument. The rest stand on a kink: a tail bends where a step ends."""
    random = np.random.default_rng(2)
    differences = []
    for _ in range(60):
        limit, replicas = float(random.uniform(4.0, 200.0)), float(random.uniform(1.2, 8.0))
        per_second = replicas / (192.7 * 0.008 / limit + 0.034612)
        at = np.array([random.uniform(0.4, 0.95) * per_second, replicas, limit, 0.008, random.uniform(0.3, 0.7)])
        values, slopes = value_and_slopes(*(jnp.asarray(v) for v in at))
        for i in range(5):
            near, far = (
                [np.asarray(value_and_slopes(*(jnp.asarray(v) for v in at + k * move))[0]) for k in (1.0, -1.0)]
                for move in (1e-4 * at[i] * np.eye(5)[i], 2e-4 * at[i] * np.eye(5)[i])
            )
            numeric = (8.0 * (near[0] - near[1]) - (far[0] - far[1])) / (12.0 * 1e-4 * at[i])
            scale = np.maximum(np.abs(numeric), 1e-4 * np.asarray(values) / at[i])
            differences.append(np.abs(np.asarray(slopes[i]) - numeric) / np.maximum(scale, 1e-12))
    differences = np.array(differences)
    assert np.quantile(differences, 0.95) < 1e-6
    assert differences[:, :2].max() < 1e-3


@pytest.mark.parametrize("replicas", [1e-3, 1.0, 2.5, 500.0])
def test_values_and_slopes_are_finite_at_the_edges(replicas):
    """No load, utilisation 1, overload; one slot and less; a sliver of an engine."""
    for limit in (0.3, 1.0, 64.0, 4096.0):
        full = replicas / (192.7 * 0.008 / limit + 0.034612)
        for rate in (0.0, 1e-9, 0.5 * full, full * (1 - 1e-12), full, 3.0 * full, 1e6):
            _, slopes = value_and_slopes(*(jnp.asarray(float(v)) for v in (rate, replicas, limit, 0.008, 0.5)))
            assert_finite(slopes)


def test_overload_keeps_its_utilization():
    found = toy_state(*arrays(1000.0, 2.0, 64.0))
    expected = 500.0 * (192.7 * 0.008 / 64.0 + 0.034612)
    assert float(found.utilization) == pytest.approx(expected, rel=1e-9)
    assert math.isfinite(float(found.queue.mean_s))
