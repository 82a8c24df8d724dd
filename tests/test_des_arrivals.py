"""Arrival processes: their laws against closed forms, their cuts, their common random numbers, and every refusal."""

import gzip
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.linalg import null_space
from scipy.special import gammainc

from des.arrivals import (
    Lengths,
    MarkovModulated,
    PiecewiseRate,
    Poisson,
    Renewal,
    Trace,
    as_process,
    generators,
    row_sampler,
)
from des.clock import BLOCK
from des.rate_table import read_rate_table
from des.renewal import CV_RANGE, gamma_law, log_gamma_quantile, weibull_law
from jaxsim.workload import Workload

NO_TRACE = Workload.from_lengths([10, 20], [5, 1], weight=[3, 1])
TIMES = np.array([0.0, 1.0, 1.0, 4.0, 10.0])
TRACED = Workload.from_lengths([5, 4, 3, 2, 1], [1, 1, 1, 1, 1], arrival_s=TIMES)
DAY = PiecewiseRate(start_s=(0.0, 10.0, 30.0, 35.0), rate=(2.0, 0.0, 7.0, 1.0), end_s=50.0, repeat=True)
ONCE = PiecewiseRate(start_s=(0.0, 1000.0, 3000.0), rate=(30.0, 0.0, 5.0), end_s=4000.0)

PROCESSES = [
    Poisson(),
    Renewal(cv=2.5),
    Renewal(law="weibull", cv=0.5),
    MarkovModulated(rates=(1.0, 9.0, 0.0), mean_stay_s=(3.0, 0.5, 0.01)),
    DAY,
    ONCE,
    Trace(),
]
ENDLESS = [process for process in PROCESSES if np.isinf(process.expected_requests(1.0, TRACED))]


def label(process):
    return process.name + ("" if getattr(process, "repeat", True) else "-once")


def instants(process, number, *, rate=None, seed=0, workload=TRACED):
    return process.sampler(rate, generators(seed, 0)[0], workload)(number)


# --- every process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", PROCESSES, ids=label)
def test_no_result_depends_on_how_the_calls_are_cut(process):
    whole = instants(process, 100_000)
    for cuts in ([1, 2, 3], [7_000], [BLOCK - 1, 1, BLOCK, BLOCK + 1], [0, 99_999]):
        sampler = process.sampler(None, generators(0, 0)[0], TRACED)
        parts = [sampler(n) for n in cuts]
        parts.append(sampler(100_000 - sum(cuts)))
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("process", PROCESSES, ids=label)
def test_instants_ascend_from_zero(process):
    times = instants(process, 60_000, rate=3.0)
    assert times[0] >= 0 and np.all(np.diff(times) >= 0) and np.all(np.isfinite(times))
    assert len(times) == 60_000 or np.isfinite(process.expected_requests(3.0, TRACED))


@pytest.mark.parametrize("process", ENDLESS, ids=label)
def test_the_mean_rate_is_the_one_asked_for(process):
    """Five standard errors: the processes here disperse counts up to 40 times as much as a Poisson process."""
    times = instants(process, 4_000_000, rate=250.0)
    assert len(times) / times[-1] == pytest.approx(250.0, rel=5 * np.sqrt(40 / 4_000_000))
    assert process.mean_rate(250.0, TRACED) == 250.0


@pytest.mark.parametrize("process", [Poisson(), Renewal(cv=2.0), Renewal(law="weibull", cv=0.3)], ids=label)
def test_rates_see_the_same_arrivals(process):
    slow, fast = instants(process, 1000, rate=1.0), instants(process, 1000, rate=8.0)
    np.testing.assert_allclose(fast * 8.0, slow, rtol=1e-15)
    gaps = np.diff(slow), np.diff(instants(Poisson(), 1000, rate=1.0))
    np.testing.assert_array_equal(*(np.argsort(g) for g in gaps))


CONSTANT = [
    Renewal(cv=1.0),
    Renewal(law="weibull", cv=1.0),
    MarkovModulated(rates=(3.0, 3.0), mean_stay_s=(0.7, 20.0)),
    PiecewiseRate(start_s=(0.0, 1.0, 5.0), rate=(2.0, 2.0, 2.0), end_s=5.5, repeat=True),
    PiecewiseRate(start_s=(0.0,), rate=(2.0,), end_s=1e6),
]


@pytest.mark.parametrize("process", CONSTANT, ids=label)
def test_a_process_without_its_feature_is_the_poisson_process_itself(process):
    """Arrival for arrival: all are made of the same unit-exponential gaps."""
    np.testing.assert_allclose(
        instants(process, 50_000, rate=5.0), instants(Poisson(), 50_000, rate=5.0), rtol=1e-11, atol=1e-9
    )


def test_poisson_is_the_sum_of_the_gaps_of_its_seed():
    """Bit for bit; and its rows are drawn from the generator of the lengths alone."""
    gaps, lengths = generators(3, 2)
    arrival_s = np.cumsum(gaps.standard_exponential(40_000)) / 7.0
    row = Lengths.of(NO_TRACE).draw(lengths, 40_000)
    gaps, lengths = generators(3, 2)
    np.testing.assert_array_equal(as_process("poisson").sampler(7.0, gaps, NO_TRACE)(40_000), arrival_s)
    np.testing.assert_array_equal(row_sampler(as_process("poisson"), NO_TRACE, lengths)(40_000), row)


@pytest.mark.parametrize("process", [Poisson(), Trace()], ids=label)
def test_rows_do_not_depend_on_cuts_either(process):
    whole = row_sampler(process, TRACED, generators(1, 0)[1])(5)
    sampler = row_sampler(process, TRACED, generators(1, 0)[1])
    np.testing.assert_array_equal(np.concatenate([sampler(2), sampler(0), sampler(3)]), whole)


@pytest.mark.parametrize("process", [p for p in PROCESSES if p not in (DAY, ONCE)], ids=label)
def test_the_rate_left_out_is_the_workloads_own(process):
    assert process.mean_rate(None, TRACED) == TRACED.rate == 0.5


# --- renewal ---------------------------------------------------------------------------------------------------


def scipy_law(law, cv):
    """SciPy's law of mean 1; the Weibull shape from a search that knows only its moments."""
    if law == "gamma":
        return stats.gamma(cv**-2, scale=cv**2)
    shapes = np.geomspace(0.2, 150.0, 200_001)
    mean, variance = stats.weibull_min.stats(shapes, moments="mv")
    shape = np.interp(-cv, -np.sqrt(variance) / mean, shapes)
    return stats.weibull_min(shape, scale=1.0 / stats.weibull_min.mean(shape))


@pytest.mark.parametrize("law", ["gamma", "weibull"])
@pytest.mark.parametrize("cv", [0.05, 0.5, 0.9, 1.3, 3.0])
def test_gaps_have_the_law_the_mean_and_the_cv(law, cv):
    """Each gap against SciPy's quantile; then mean and cv of a million within five standard errors."""
    exponential = generators(0, 0)[0].standard_exponential(1_000_000)
    gaps = np.diff(instants(Renewal(law=law, cv=cv), 1_000_000, rate=1.0), prepend=0.0)
    expected = scipy_law(law, cv)
    np.testing.assert_allclose(gaps[:10_000], expected.isf(np.exp(-exponential[:10_000])), rtol=1e-6, atol=1e-10)
    kurtosis = float(expected.stats("k")) + 3.0
    error = 5 / np.sqrt(len(gaps))
    assert gaps.mean() == pytest.approx(1.0, abs=error * cv)
    assert gaps.var() == pytest.approx(cv**2, rel=error * np.sqrt(kurtosis - 1.0))
    # As differences of instants, the smallest gaps are rounded: compare them before they are summed.
    drawn = {"gamma": gamma_law, "weibull": weibull_law}[law](cv)(exponential[:200_000])
    assert stats.kstest(drawn, expected.cdf).pvalue > 1e-3


@given(cv=st.floats(*CV_RANGE), seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_the_gamma_table_is_the_quantile_to_a_billionth(cv, seed):
    exponential = np.exp(np.random.default_rng(seed).uniform(-46.0, 3.9, 1000))
    exact = np.exp(log_gamma_quantile(cv**-2, exponential) + 2.0 * np.log(cv))
    np.testing.assert_allclose(gamma_law(cv)(exponential), exact, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("cv", [0.01, 0.3, 1.0, 4.0, 20.0])
def test_the_gamma_quantile_inverts_the_law(cv):
    exponential = np.geomspace(1e-12, 30.0, 200)
    quantile = np.exp(log_gamma_quantile(cv**-2, exponential))
    there = quantile > 1e-290
    np.testing.assert_allclose(gammainc(cv**-2, quantile)[there], -np.expm1(-exponential)[there], rtol=2e-11)


@pytest.mark.parametrize("law", [gamma_law, weibull_law])
@pytest.mark.parametrize("cv", [0.01, 20.0])
def test_gap_laws_ascend_and_are_finite_at_the_edges(law, cv):
    gaps = law(cv)(np.array([0.0, 1e-300, 1e-20, 1e-19, 1e-3, 1.0, 44.0, 54.0]))
    assert np.all(np.diff(gaps) >= 0) and np.all(gaps >= 0) and np.all(np.isfinite(gaps))


# --- Markov-modulated ------------------------------------------------------------------------------------------


def two_state_dispersion(rates, stays, window):
    """Variance over mean of the counts in a window (Fischer and Meier-Hellstern 1993, section 3)."""
    (l1, l2), (q1, q2) = rates, 1.0 / np.array(stays)
    q = q1 + q2
    decay = 1.0 - (1.0 - np.exp(-q * window)) / (q * window)
    return 1.0 + 2.0 * q1 * q2 * (l1 - l2) ** 2 / (q**2 * (l1 * q2 + l2 * q1)) * decay


@pytest.mark.parametrize("rates", [(10.0, 40.0), (0.0, 60.0)])
def test_two_state_counts_disperse_as_in_closed_form(rates):
    stays = (2.0, 1.0)
    times = instants(MarkovModulated(rates=rates, mean_stay_s=stays), 4_000_000, rate=20.0)
    for window in (0.05, 0.5, 5.0):
        counts = np.bincount((times / window).astype(int))[:-1]
        assert counts.mean() == pytest.approx(20.0 * window, rel=0.01)
        expected = two_state_dispersion(rates, stays, window)
        assert counts.var() / counts.mean() == pytest.approx(expected, rel=0.03)


def test_it_starts_in_its_steady_state():
    """The mean count of the first second is that of any: over 1,000 seeds, within five standard errors."""
    process = MarkovModulated(rates=(1.0, 0.0), mean_stay_s=(100.0, 300.0))
    first = [np.sum(instants(process, 200, rate=5.0, seed=seed) < 1.0) for seed in range(1000)]
    assert np.mean(first) == pytest.approx(5.0, abs=5 * np.std(first) / np.sqrt(1000))


def test_the_share_of_time_is_that_of_the_generator_matrix():
    switch = ((0.0, 0.9, 0.1), (0.5, 0.0, 0.5), (1.0, 0.0, 0.0))
    stays = np.array([1.0, 5.0, 0.2])
    process = MarkovModulated(rates=(1.0, 2.0, 3.0), mean_stay_s=tuple(stays), switch=switch)
    kernel = null_space(((np.array(switch) - np.eye(3)) / stays[:, None]).T)[:, 0]
    np.testing.assert_allclose(process.time_share(), kernel / kernel.sum(), rtol=1e-12)


def test_the_path_stays_and_switches_as_told():
    """600,000 stays: means and frequencies within five standard errors; the rate names the state."""
    switch = np.array([[0.0, 0.9, 0.1], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    stays = np.array([1.0, 5.0, 0.2])
    process = MarkovModulated(rates=(0, 1, 2), mean_stay_s=tuple(stays), switch=tuple(map(tuple, switch)))
    blocks = list(itertools.islice(process._path(np.arange(3.0), np.random.default_rng(0)), 150))
    assert all(one[0][-1] == next_[0][0] for one, next_ in itertools.pairwise(blocks))
    lengths = np.concatenate([np.diff(edges) for edges, _ in blocks])
    states = np.concatenate([rates for _, rates in blocks]).astype(int)
    for i in range(3):
        number = np.sum(states == i)
        assert lengths[states == i].mean() == pytest.approx(stays[i], rel=5 / np.sqrt(number))
        follower = np.bincount(states[1:][states[:-1] == i], minlength=3) / number
        np.testing.assert_allclose(follower, switch[i], atol=2.5 / np.sqrt(number))
        assert np.all(follower[switch[i] == 0] == 0)


def test_left_out_switch_means_any_other_state():
    given_ = ((0, 0.5, 0.5), (0.5, 0, 0.5), (0.5, 0.5, 0))
    arguments = {"rates": (1, 2, 3), "mean_stay_s": (1, 1, 2)}
    one, other = MarkovModulated(**arguments), MarkovModulated(**arguments, switch=given_)
    np.testing.assert_array_equal(instants(one, 5000, rate=1.0), instants(other, 5000, rate=1.0))
    assert one.rates == (1.0, 2.0, 3.0) and hash(one) != hash(other)


# --- piecewise -------------------------------------------------------------------------------------------------


def test_counts_in_each_piece_are_poisson():
    """Over 20,000 cycles: mean and variance are the intensity, within five standard errors; none at a rate of 0."""
    cycles = 20_000
    times = instants(DAY, int(cycles * 90 * 1.1))
    times = times[times < cycles * 50.0]
    piece = np.searchsorted(DAY.start_s, times % 50.0, side="right") - 1
    counts = np.stack([np.bincount((times // 50.0).astype(int)[piece == i], minlength=cycles) for i in range(4)])
    expected = np.array([20.0, 0.0, 35.0, 15.0])
    assert counts[1].sum() == 0
    np.testing.assert_array_less(np.abs(counts.mean(axis=1) - expected), 5 * np.sqrt(expected / cycles) + 1e-12)
    dispersion = counts.var(axis=1)[[0, 2, 3]] / expected[[0, 2, 3]]
    np.testing.assert_allclose(dispersion, 1.0, atol=5 * np.sqrt(2 / cycles))
    assert abs(np.corrcoef(counts[0], counts[2])[0, 1]) < 5 / np.sqrt(cycles)


def test_not_repeated_it_ends():
    assert ONCE.mean_rate(None, NO_TRACE) == pytest.approx((30 * 1000 + 5 * 1000) / 4000)
    assert ONCE.expected_requests(None, NO_TRACE) == pytest.approx(35_000)
    times = instants(ONCE, 10**6)
    assert len(times) == pytest.approx(35_000, abs=5 * np.sqrt(35_000))
    assert times[-1] < 4000.0 and not np.any((times > 1000.0) & (times < 3000.0))
    sampler = ONCE.sampler(None, generators(0, 0)[0], NO_TRACE)
    assert [len(sampler(n)) for n in (30_000, 10**6, 5, 0)] == [30_000, len(times) - 30_000, 0, 0]


def test_a_rate_asked_for_scales_all_pieces():
    assert ONCE.mean_rate(17.5, NO_TRACE) == 17.5
    doubled = PiecewiseRate(start_s=ONCE.start_s, rate=tuple(2 * r for r in ONCE.rate), end_s=ONCE.end_s)
    np.testing.assert_allclose(instants(ONCE, 10**6, rate=17.5), instants(doubled, 10**6), rtol=1e-12)


def test_the_intensity_at_the_instants_is_the_unit_process():
    """The time change inverted by hand."""
    units = np.cumsum(generators(0, 0)[0].standard_exponential(1000))
    edges = np.array([0.0, 10.0, 30.0, 35.0, 50.0])
    intensity = np.concatenate([[0.0], np.cumsum(np.diff(edges) * DAY.rate)])
    cycle, time = np.divmod(instants(DAY, 1000), 50.0)
    np.testing.assert_allclose(cycle * intensity[-1] + np.interp(time, edges, intensity), units, rtol=1e-11)


@given(
    pieces=st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(0, 1e3)), min_size=1, max_size=30),
    repeat=st.booleans(),
    rate=st.none() | st.floats(1e-2, 1e4),
)
@settings(max_examples=60, deadline=None)
def test_pieces_of_any_size_give_ascending_instants_inside(pieces, repeat, rate):
    lengths, rates = np.array(pieces).T
    edges = np.concatenate([[0.0], np.cumsum(lengths)])
    rates[0] = max(rates[0], 1e-3)
    process = PiecewiseRate(start_s=tuple(edges[:-1]), rate=tuple(rates), end_s=float(edges[-1]), repeat=repeat)
    times = instants(process, 3000, rate=rate)
    assert np.all(np.diff(times) >= 0) and np.all(times >= 0)
    if repeat:
        assert len(times) == 3000
    else:
        assert np.all(times <= edges[-1])
        assert np.all(rates[np.minimum(np.searchsorted(edges, times, side="right") - 1, len(rates) - 1)] > 0)


# --- tables of rates -------------------------------------------------------------------------------------------


def test_from_a_table():
    process = PiecewiseRate.from_table([600, 1200, 2400], [1.0, 2.0, 4.0], repeat=True)
    assert process == PiecewiseRate(start_s=(0.0, 600.0, 1800.0), rate=(1.0, 2.0, 4.0), end_s=3000.0, repeat=True)
    idle = PiecewiseRate.from_table(np.arange(4), np.array([1.0, 0.0, 0.0, 2.0]), zeros="idle")
    assert idle.rate == (1.0, 0.0, 0.0, 2.0) and idle.end_s == 4.0


def test_from_a_published_table(shared_data):
    path = shared_data / "data" / "traces" / "servegen_rate_10min.csv.gz"
    day = read_rate_table(path, only={"category": "deepseek-r1"})
    assert (len(day.rate), day.end_s, day.rate[1]) == (144, 86_400.0, 18.403333333333332)
    assert max(day.rate) / day.mean_rate(None, NO_TRACE) == pytest.approx(2.66, abs=0.005)
    text = r"84 of 2016 windows have a rate of 0, the first at \d+ s, which in many tables means no data"
    with pytest.raises(ValueError, match=text):
        read_rate_table(path, only={"category": "m-mid"})
    with pytest.raises(ValueError, match=r"steps of time_s must be > 0.*sort the windows; is it one table\?"):
        read_rate_table(path)
    assert len(read_rate_table(path, only={"category": "m-mid"}, zeros="idle").rate) == 2016


def test_a_table_with_names_of_its_own(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text("when,load,rate\n0,3,x\n60,4,y\n", encoding="utf-8")
    process = read_rate_table(path, columns={"time_s": "when", "rate": "load"})
    assert process.rate == (3.0, 4.0) and process.end_s == 120.0


BAD_FILES = {
    "when,rate\n0,1\n": "no column 'time_s' or 't_s' or 'start_s' or 'timestamp_s', the header is when, rate; pass",
    "t_s,rate,rps\n0,1,1\n": "more than one column 'rate' or",
    "t_s,rate\n": "rates.csv.gz: no rows",
    "t_s,rate\n0,1\n60,many\n": "rates.csv.gz, line 3, column 'rate': expected a number, got 'many'",
    "t_s,rate\n0,1\n60,\n120,1\n": "windows are missing: 1 of 3 windows has no rate, the first at 60 s",
    "t_s,rate\n0,1\n60,2\n": None,
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_rate_files(tmp_path, text):
    path = tmp_path / "rates.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    if BAD_FILES[text] is None:
        assert read_rate_table(path).rate == (1.0, 2.0)
        return
    with pytest.raises(ValueError, match=re.escape(BAD_FILES[text])):
        read_rate_table(path)


# --- traces ----------------------------------------------------------------------------------------------------


def test_a_trace_is_played_once_and_stretched():
    np.testing.assert_array_equal(instants(Trace(), 99), TIMES)
    np.testing.assert_array_equal(instants(Trace(), 3, rate=5.0), TIMES[:3] / 10.0)
    rows = row_sampler(Trace(), TRACED, generators(0, 0)[1])
    np.testing.assert_array_equal(TRACED.input_tokens[rows(99)], [5, 4, 3, 2, 1])
    assert rows(1).size == 0 and rows(1).dtype == np.int32
    assert Trace().expected_requests(None, TRACED) == 5
    np.testing.assert_array_equal(instants(as_process("trace"), 4, rate=5.0), TIMES[:4] / 10.0)
    at_once = Workload.from_lengths([1, 1], [1, 1], arrival_s=[7.0, 7.0])
    assert Trace().mean_rate(None, at_once) == np.inf


# --- names and refusals ----------------------------------------------------------------------------------------


def test_names():
    assert as_process("poisson") == Poisson() and as_process("trace") == Trace()
    assert all(as_process(process) is process for process in PROCESSES)
    names = {process.name for process in PROCESSES}
    assert names == {"poisson", "gamma", "weibull", "markov-modulated", "piecewise", "trace"}


def piecewise(**changes):
    return PiecewiseRate(**{"start_s": (0.0, 1.0), "rate": (1.0, 2.0), "end_s": 2.0, **changes})


def modulated(**changes):
    return MarkovModulated(**{"rates": (1.0, 2.0), "mean_stay_s": (1.0, 1.0), **changes})


NAN = float("nan")
TABLE = PiecewiseRate.from_table
REFUSED = [
    (lambda: as_process("poison"), "unknown arrivals 'poison'; did you mean 'poisson'"),
    (lambda: as_process("gamma"), "arrivals 'gamma' takes parameters; pass des.arrivals.Renewal(law=\"gamma\", cv="),
    (lambda: as_process("piecewise"), "takes parameters; pass des.arrivals.PiecewiseRate(start_s="),
    (lambda: Renewal(law="gama", cv=1.0), "unknown law 'gama'; did you mean 'gamma'"),
    (lambda: Renewal(cv=0.0), "cv must be from 0.01 to 20, got 0.0; a cv is not in percent"),
    (lambda: Renewal(cv=150.0), "cv must be from 0.01 to 20, got 150.0"),
    (lambda: Renewal(cv=NAN), "cv must be from 0.01 to 20, got nan"),
    (
        lambda: modulated(rates=(1.0,), mean_stay_s=(1.0,)),
        "the number of rates must be >= 2, got 1; one state is",
    ),
    (lambda: modulated(rates=(1.0, -2.0)), "rates must be >= 0 and finite, got -2.0"),
    (lambda: modulated(rates=(0.0, 0.0)), "the largest of rates must be > 0, got 0.0"),
    (lambda: modulated(mean_stay_s=(1.0,)), "the number of mean_stay_s must be 2, one for each state, got 1"),
    (lambda: modulated(mean_stay_s=(1.0, 0.0)), "mean_stay_s must be > 0 and finite, got 0.0"),
    (lambda: modulated(switch=((0.0, 1.0),)), "switch must be a 2 x 2 matrix"),
    (lambda: modulated(switch=((0.0, 1.0), (1.0,))), "switch must be a 2 x 2 matrix"),
    (lambda: modulated(switch=((0.0, 1.0), (2.0, -1.0))), "switch must be >= 0: probabilities, got -1.0"),
    (lambda: modulated(switch=((0.0, 1.0), (0.9, 0.0))), "each row's sum in switch must be 1, got 0.9"),
    (lambda: modulated(switch=((0.5, 0.5), (1.0, 0.0))), "the diagonal of switch must be 0, got 0.5; lengthen"),
    (
        lambda: modulated(rates=(1, 1, 1), mean_stay_s=(1, 1, 1), switch=((0, 1, 0), (1, 0, 0), (1, 0, 0))),
        "such that every state can be reached from every other",
    ),
    (lambda: piecewise(start_s=(), rate=()), "the number of start_s must be >= 1, got 0"),
    (lambda: piecewise(start_s=(5.0, 6.0)), "start_s[0] must be 0, got 5.0; shift the times"),
    (lambda: piecewise(start_s=(0.0, 0.0)), "steps of start_s must be > 0, got 0.0; sort the pieces"),
    (lambda: piecewise(end_s=1.0), "end_s must be above the last start (1), got 1.0"),
    (lambda: piecewise(end_s=float("inf")), "end_s must be above the last start (1), got inf"),
    (lambda: piecewise(rate=(1.0,)), "the number of rate must be 2, one for each piece, got 1"),
    (lambda: piecewise(rate=(1.0, NAN)), "rate must be >= 0 and finite, got nan"),
    (lambda: piecewise(rate=(0.0, 0.0)), "the largest rate must be > 0, got 0.0"),
    (lambda: TABLE([0.0], [1.0]), "the number of windows must be >= 2, got 1"),
    (lambda: TABLE([0.0, 1.0], [1.0]), "the number of rates must be 2, one for each window, got 1"),
    (lambda: TABLE([0.0, 2.0, 1.0], [1.0, 1.0, 1.0]), "steps of time_s must be > 0, got -1.0; sort the windows"),
    (lambda: TABLE([0, 1, 2], [1, -1, 1]), "rate must be >= 0 and finite, got -1.0"),
    (lambda: TABLE([0, 1, 2], [1, 0, 1]), "windows may be missing: 1 of 3 windows has a rate of 0, the first at 1 s"),
    (lambda: TABLE([0, 1, 2], [0, 0, 0]), "the largest rate must be > 0, got 0.0"),
    (lambda: TABLE([0, 1, 2], [1, NAN, NAN]), "windows are missing: 2 of 3 windows have no rate, the first at 1 s"),
    (lambda: TABLE([0, 1, 2, 5, 6], [1] * 5), "windows are missing: none starts between 2 s and 5 s, where others"),
    (lambda: TABLE([0, 1], [1, 1], zeros="keep"), "unknown meaning of zeros 'keep'"),
    (lambda: Poisson().mean_rate(0.0, TRACED), "rate must be > 0 and finite, got 0.0"),
    (lambda: Poisson().mean_rate(None, NO_TRACE), "rate must be given in requests per second"),
    (lambda: Renewal(cv=2.0).sampler(-1.0, generators(0, 0)[0], TRACED), "rate must be > 0 and finite, got -1.0"),
    (
        lambda: instants(modulated(), 1, rate=1e-4),
        "switches per request must be <= 1000, got 10000.0; arrivals then see",
    ),
    (lambda: ONCE.mean_rate(NAN, TRACED), "rate must be > 0 and finite, got nan"),
    (lambda: instants(Trace(), 1, workload=NO_TRACE), "arrivals='trace' needs a workload with arrival times"),
    (lambda: row_sampler(Trace(), NO_TRACE, generators(0, 0)[1]), "needs a workload with arrival times"),
    (lambda: instants(Trace(), 1, rate=0.0), "rate must be > 0 and finite, got 0.0"),
]


@pytest.mark.parametrize("call, text", REFUSED, ids=[text[:50] for _, text in REFUSED])
def test_bad_values_are_refused_with_words(call, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        call()


def test_a_missing_file_and_an_unknown_column_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="rate table not found"):
        read_rate_table(tmp_path / "none.csv")
    (tmp_path / "a.csv").write_text("t_s,rate\n0,1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="unknown name in columns 'rat'; did you mean 'rate'"):
        read_rate_table(tmp_path / "a.csv", columns={"rat": "rate"})
    with pytest.raises(ValueError, match="no column 'category', the header is t_s, rate; check only="):
        read_rate_table(tmp_path / "a.csv", only={"category": "x"})
