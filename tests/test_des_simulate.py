"""`des.simulate`: what it counts, what it refuses, what it warns of, and that its intervals hold."""

import os
from typing import NamedTuple

import numba
import numpy as np
import pytest
from playing import play_parts
from serving_strategies import make_profile

import des
import jaxsim.profiles
from des._write import write
from des.arrivals import Lengths, Trace
from des.experiment import Experiment, Setting
from des.play import Stream
from des.routing import REASONS
from des.simulate import default_replications, default_requests
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload

A100 = jaxsim.profiles.profile("a100-80gb")
H100 = jaxsim.profiles.profile("h100-80gb")


def chat(number=400, seed=0):
    """Made-up conversation lengths."""
    rng = np.random.default_rng(seed)
    inputs = np.ceil(rng.lognormal(6.5, 0.9, number)).clip(1, 8000)
    return Workload.from_lengths(inputs, np.ceil(rng.lognormal(5.0, 0.8, number)).clip(1, 2000))


def fleet(replicas=1, context=16384, profile=A100):
    return FleetDesign.of(profile, [replicas], [context])


# --- overload, and how far -------------------------------------------------------------------------------------

CAPACITY = 11.1907
"""Of one A100 at a context of 8192 for 1600 + 400 tokens: 128 / (404 x (W + H 2000/8192 128))."""


@pytest.mark.parametrize("rate", [20.0, 100.0, 1000.0])
def test_overload_is_found_and_measured(rate):
    workload = Workload.from_lengths([1600], [400])
    result = des.simulate(fleet(context=8192), workload, rate=rate, convention="kimura", num_requests=20_000)
    pool = result.pools[0]
    assert result.overloaded and pool.overloaded
    assert pool.load == pytest.approx(rate / CAPACITY, rel=0.01)
    assert pool.queue_growth_per_s == pytest.approx(rate - CAPACITY, rel=0.05)
    assert pool.utilization > 0.98
    assert result.wait.quantile(0.99).value > 50.0
    assert result.ttft.quantile(0.99).high == np.inf
    assert np.isfinite(result.tpot.quantile(0.99).high)
    assert result.attainment(ttft_s=0.5) < 0.2
    assert any("overloaded: offered" in w for w in result.warnings)
    assert result.unfinished == 0


def test_overload_diverges_with_the_length_of_the_run():
    workload = Workload.from_lengths([1600], [400])
    run = lambda n: des.simulate(fleet(context=8192), workload, rate=20.0, num_requests=n)  # noqa: E731
    short, long = run(10_000), run(100_000)
    assert long.ttft.quantile(0.99).value > 3 * short.ttft.quantile(0.99).value


@pytest.mark.parametrize("convention", ["step", "kimura"])
@pytest.mark.parametrize("replications", [1, 8])
def test_a_stable_fleet_is_not_called_overloaded(convention, replications):
    """At 0.95 of the capacity that overload itself reveals, over ten seeds; nor at 1.03 called stable."""
    workload = chat()
    probe = des.simulate(fleet(context=8192), workload, rate=200.0, convention=convention, num_requests=80_000)
    capacity = 200.0 / probe.pools[0].load
    for seed in range(10):
        for load in (0.95, 1.03):
            result = des.simulate(
                fleet(context=8192),
                workload,
                rate=load * capacity,
                convention=convention,
                num_requests=60_000,
                seed=seed,
                replications=replications,
            )
            assert result.overloaded == (load > 1)
            assert result.pools[0].load == pytest.approx(load, abs=0.02)


def test_overload_by_kv_blocks():
    """Blocks run out long before sequences: load and utilisation follow the blocks."""
    design = fleet(profile=make_profile(base_s=0.01, max_num_seqs=100, kv_blocks=10), context=40)
    workload = Workload.from_lengths([16], [4])
    probe = des.simulate(design, workload, rate=1000.0, num_requests=20_000)
    assert probe.overloaded
    assert probe.pools[0].utilization == pytest.approx(1.0, abs=0.01)
    assert probe.pools[0].mean_active == pytest.approx(2.0, abs=0.02)


# --- dispatch and size -----------------------------------------------------------------------------------------


def test_requests_spread_evenly_over_forty_gpus():
    experiment = Experiment.of(fleet(40), chat(), Setting(rate=60.0, seed=1))
    stream = Stream(*whole_stream(experiment, 9_772)[:3])
    records = play_parts(experiment.fleet, experiment.kinds, [stream]).records
    counts = np.bincount(records["replica"], minlength=40)
    assert counts.sum() == 9_772
    assert counts.min() > 0.8 * 9_772 / 40
    assert counts.max() < 1.2 * 9_772 / 40


def test_larger_fleets_are_faster():
    """Each replica more lowers mean and P99 TTFT and mean TPOT; 100 + 50 is far from 1 + 1."""
    figures = []
    for replicas in (3, 4, 6, 9, 20):
        result = des.simulate(fleet(replicas), chat(), rate=55.0, num_requests=60_000)
        figures.append([result.ttft.mean().value, result.ttft.quantile(0.99).value, result.tpot.mean().value])
    assert np.all(np.diff(figures, axis=0) < 0)
    two_pools = lambda a, b: FleetDesign.of(A100, [a, b], [1500, 16384])  # noqa: E731
    small = des.simulate(two_pools(1, 1), chat(), rate=12.0, num_requests=60_000)
    large = des.simulate(two_pools(100, 50), chat(), rate=12.0, num_requests=60_000)
    assert large.ttft.quantile(0.99).high < small.ttft.quantile(0.99).low
    assert large.tpot.quantile(0.99).high < small.tpot.quantile(0.99).low


# --- rejection, and attainment over all offered ----------------------------------------------------------------


def test_every_reason_for_rejection_is_counted():
    """Weights in tenths: 1 too long for the fleet, 2 above max_context, 3 above KV, 1 into an empty pool, 3 fine."""
    totals = np.array([50, 30, 9, 20, 5])
    workload = Workload.from_lengths(totals - 2, np.full(5, 2), weight=[1, 2, 3, 1, 3])
    profile = [make_profile(kv_blocks=2), make_profile(kv_blocks=100), make_profile(kv_blocks=100)]
    design = FleetDesign.of(profile, [2, 0, 1], [10, 25, 40], max_context=[10, 25, 28])
    result = des.simulate(design, workload, rate=0.02, num_requests=40_000)
    assert result.requests == pytest.approx(32_000, rel=0.05)
    shares = {reason: count / result.requests for reason, count in result.rejected_by_reason.items()}
    assert list(shares) == list(REASONS)
    np.testing.assert_allclose(list(shares.values()), [0.1, 0.2, 0.3, 0.1], atol=0.01)
    assert result.rejected == sum(result.rejected_by_reason.values())
    assert result.ttft.n == result.requests - result.rejected
    assert [p.rejected for p in result.pools] == [
        result.rejected_by_reason[REASONS[2]],
        result.rejected_by_reason[REASONS[3]],
        result.rejected_by_reason[REASONS[1]],
    ]
    assert sum(p.requests for p in result.pools) == result.requests - result.rejected_by_reason[REASONS[0]]
    for reason in REASONS:
        assert any(reason in w for w in result.warnings)


def test_attainment_and_goodput_are_over_all_offered():
    """Seven tenths are rejected: nothing can attain more than three."""
    workload = Workload.from_lengths([3, 48], [2, 2], weight=[3, 7])
    result = des.simulate(fleet(profile=make_profile(), context=10), workload, rate=0.01, num_requests=20_000)
    share = 1 - result.rejected / result.requests
    assert share == pytest.approx(0.3, abs=0.02)
    assert result.attainment(ttft_s=1e9, tpot_s=1e9) == pytest.approx(share)
    assert result.attainment() == pytest.approx(share)
    assert result.attainment(ttft_s=0.0) == 0.0
    assert result.goodput(ttft_s=1e9) == pytest.approx(0.003, rel=0.1)


def test_one_token_outputs_have_no_tpot_and_are_judged_by_ttft():
    workload = Workload.from_lengths([10, 10], [1, 3])
    for convention in ("step", "kimura"):
        result = des.simulate(fleet(), workload, rate=1.0, num_requests=20_000, convention=convention, seed=2)
        assert result.undefined_tpot == pytest.approx(result.requests / 2, rel=0.05)
        assert result.tpot.n + result.undefined_tpot == result.requests
        assert result.attainment(tpot_s=0.0) == pytest.approx(result.undefined_tpot / result.requests)
        assert result.pools[0].tpot.n == result.tpot.n


def test_a_request_alone_takes_what_the_law_says():
    """1600 + 400 tokens at long intervals: TTFT, TPOT and E2E in closed form under both conventions."""
    base, h = 0.008, 0.00065 / 8192
    workload = Workload.from_lengths([1600], [400])
    kimura = des.simulate(fleet(), workload, rate=1e-4, num_requests=100, convention="kimura")
    step_time = base + h * 2000
    assert kimura.ttft.mean().value == pytest.approx(4 * step_time)
    assert kimura.e2e.mean().value == pytest.approx(404 * step_time)
    assert kimura.tpot.mean().value == pytest.approx(400 * step_time / 399)
    assert kimura.pools[0].step_time_s == pytest.approx(step_time)
    step = des.simulate(fleet(), workload, rate=1e-4, num_requests=100)
    assert step.ttft.mean().value == pytest.approx(4 * base + h * (512 + 1024 + 1536 + 1600))
    assert step.tpot.mean().value == pytest.approx(base + h * (1601 + 1999) / 2)
    assert step.wait.mean().value == 0.0


def test_lengths_that_starve_a_cache_are_served_one_by_one():
    """Agent-like lengths near the whole KV cache: no livelock, the head of the line waits for room."""
    workload = Workload.from_lengths([900, 100], [100, 20], weight=[1, 1])
    profile = make_profile(
        base_s=0.01, per_sequence_s=0.0, per_token_s=1e-6, kv_blocks=64, block_tokens=16, max_num_seqs=64
    )
    result = des.simulate(fleet(profile=profile, context=2000), workload, rate=0.3, num_requests=20_000)
    assert result.unfinished == result.rejected == 0
    assert not result.overloaded
    assert result.pools[0].mean_active < 2.0


# --- time: warm-up, drain, Little's law --------------------------------------------------------------------------


def test_utilisation_leaves_out_the_drain():
    """One huge request at the end would halve it: load is measured up to the last arrival."""
    inputs, outputs = np.full(400, 100), np.append(np.full(399, 90), 100_000)
    design = fleet(profile=make_profile(base_s=0.01, max_num_seqs=1, kv_blocks=10**6), context=10**6)
    workload = Workload.from_lengths(inputs, outputs, arrival_s=np.arange(400) * 10.0)
    result = des.simulate(design, workload, arrivals="trace")
    assert result.e2e.values.max() > 100 * 4000 * 0.8
    without = Workload.from_lengths(inputs[:-1], outputs[:-1], arrival_s=np.arange(399) * 10.0)
    expected = des.simulate(design, without, arrivals="trace").pools[0].utilization
    assert result.pools[0].utilization == pytest.approx(expected, rel=0.02)


def test_warm_up_is_a_share_of_time_not_of_requests():
    """Nine tenths of the requests come in the last tenth of the time and all of them count."""
    arrivals = np.concatenate([np.linspace(0, 90, 101), np.linspace(90.01, 100, 900)])
    workload = Workload.from_lengths(np.full(1001, 10), np.full(1001, 5), arrival_s=arrivals)
    result = des.simulate(fleet(), workload, arrivals="trace", warmup_fraction=0.5)
    assert result.requests == np.sum(arrivals >= 50.0)
    assert des.simulate(fleet(), workload, arrivals="trace", warmup_fraction=0.0).requests == 1001


@pytest.mark.parametrize("convention", ["step", "kimura"])
def test_littles_law_in_each_pool(convention):
    design = FleetDesign.of([A100, H100], [2, 1], [1000, 16384])
    result = des.simulate(design, chat(), rate=20.0, num_requests=200_000, convention=convention)
    window = sum(run.window_s for run in result.replications)
    for pool in result.pools:
        residence = (pool.e2e.mean().value - pool.wait.mean().value) * pool.requests / window
        assert pool.mean_active == pytest.approx(residence, rel=0.01)
        limit = {"step": (128, 256), "kimura": (128 * 8192 // 1000, 64)}[convention][pool.index]
        assert pool.mean_active / (pool.replicas * limit) <= pool.utilization * (1 + 1e-9) < 1


# --- intervals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("replications", "least"), [(1, 0.75), (8, 0.875)])
def test_the_interval_covers_the_truth(replications, least):
    """P99 TTFT of a loaded engine from 40 seeds against a run a hundred times as long: 95 % intervals hold;
    those from batches of one run are known to be somewhat short."""
    design = fleet(profile=make_profile(base_s=0.01, per_sequence_s=0.001, per_token_s=1e-5, kv_blocks=30), context=60)
    workload = Workload.from_lengths([8, 12, 20, 40], [10, 3, 30, 12], weight=[4, 3, 2, 1])
    options = {"rate": 8.0, "convention": "step"}
    truth = des.simulate(design, workload, num_requests=8_000_000, seed=99, replications=16, **options)
    exact = truth.ttft.quantile(0.99)
    assert 0.6 < truth.pools[0].load < 0.9
    assert exact.relative_half_width < 0.01
    covered = []
    for seed in range(40):
        run = des.simulate(design, workload, num_requests=60_000, seed=seed, replications=replications, **options)
        estimate = run.ttft.quantile(0.99)
        assert estimate.low < estimate.value < estimate.high < np.inf
        covered.append(estimate.low <= exact.value <= estimate.high)
    assert np.mean(covered) >= least


def test_a_run_too_short_for_an_interval_says_so():
    result = des.simulate(fleet(), chat(), rate=5.0, num_requests=2, replications=1, warmup_fraction=0.0)
    assert result.ttft.n == 2
    result = des.simulate(fleet(), chat(), rate=5.0, num_requests=2_000)
    assert any("below 15,000" in w for w in result.warnings)
    assert any("rest on 16 requests" in w or "rest on 1" in w for w in result.warnings)
    quiet = des.simulate(fleet(), chat(), rate=5.0, num_requests=200_000)
    assert quiet.warnings == ()


def test_a_near_saturated_run_says_it_is_short():
    workload = Workload.from_lengths([1600], [400])
    result = des.simulate(fleet(context=8192), workload, rate=11.15, convention="kimura", num_requests=40_000)
    assert not result.overloaded
    assert any("of its capacity" in w for w in result.warnings)


def test_runs_go_on_until_they_are_precise():
    design, workload = fleet(2), chat()
    result = des.simulate(design, workload, rate=40.0, num_requests=20_000, precision=0.02)
    assert result.precision() <= 0.02
    assert result.num_requests > 20_000
    stopped = des.simulate(design, workload, rate=45.0, num_requests=20_000, precision=1e-4, max_requests=60_000)
    assert stopped.num_requests <= 60_000
    assert any("was not reached" in w for w in stopped.warnings)
    assert des.simulate(design, workload, rate=400.0, num_requests=20_000, precision=0.01).num_requests == 20_000


# --- streams -----------------------------------------------------------------------------------------------------


class Whole(NamedTuple):
    """Of each request of a stream: instant, row, pool, and the reason for which it is rejected."""

    arrival_s: np.ndarray
    row: np.ndarray
    pool: np.ndarray
    reason: np.ndarray


def whole_stream(experiment, number, replication=0, *, size=None):
    """All parts of a stream together."""
    parts = list(experiment.draw(number, replication, size or number))
    assert all(len(part.arrival_s) <= (size or number) for part in parts)
    columns = [np.concatenate([getattr(p.routed, name) for p in parts]) for name in ("row", "pool", "reason")]
    return Whole(np.concatenate([part.arrival_s for part in parts]), *columns)


def test_a_seed_determines_everything_whatever_the_threads(monkeypatch):
    def run(cpus):
        monkeypatch.setattr(os, "cpu_count", lambda: cpus)
        return des.simulate(fleet(2), chat(), rate=30.0, num_requests=40_000, seed=7)

    one, many = run(1), run(6)
    for metric in ("ttft", "tpot", "wait", "e2e"):
        np.testing.assert_array_equal(getattr(one, metric).values, getattr(many, metric).values)
    other = des.simulate(fleet(2), chat(), rate=30.0, num_requests=40_000, seed=8)
    assert not np.array_equal(one.ttft.values[:100], other.ttft.values[:100])


def test_designs_and_rates_share_their_random_numbers():
    def stream(number, rate, replicas=1, *, replication=2, seed=3):
        experiment = Experiment.of(fleet(replicas), chat(), Setting(rate=rate, seed=seed))
        return whole_stream(experiment, number, replication)

    slow, fast = stream(1000, 5.0), stream(2000, 50.0, replicas=9)
    np.testing.assert_allclose(slow.arrival_s, 10.0 * fast.arrival_s[:1000])
    np.testing.assert_array_equal(slow.row, fast.row[:1000])
    for other in (stream(1000, 5.0, replication=3), stream(1000, 5.0, seed=4)):
        assert not np.array_equal(slow.arrival_s, other.arrival_s)
        assert not np.array_equal(slow.row, other.row)


@pytest.mark.parametrize("size", [1, 999, 1000, 4096])
def test_a_stream_is_the_same_in_parts_of_any_size(size):
    """Instants, rows and the chances of a router that predicts lengths."""
    router = des.LengthRouter(knows=des.Predicted(error=0.5))
    design = FleetDesign.of(A100, [1, 1], [1500, 16384])
    experiment = Experiment.of(design, chat(), Setting(rate=5.0, router=router))
    whole, cut = whole_stream(experiment, 1000), whole_stream(experiment, 1000, size=size)
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(np.unique(whole.pool)) > 1


def test_a_stream_that_ends_is_drawn_to_its_end():
    workload = Workload.from_lengths([5, 4, 3], [1, 1, 1], arrival_s=[1.0, 2.0, 4.0])
    for number, size in ((2, 99), (99, 2), (3, 3)):
        drawn = whole_stream(Experiment.of(fleet(), workload, Setting(arrivals=Trace())), number, size=size)
        np.testing.assert_array_equal(drawn.arrival_s, workload.arrival_s[:number])
        np.testing.assert_array_equal(drawn.row, workload.arrival_row[:number])


def test_a_closed_loop_without_a_rate_is_always_due():
    experiment = Experiment.of(fleet(), chat(), Setting(concurrency=4))
    np.testing.assert_array_equal(whole_stream(experiment, 50).arrival_s, 0.0)
    paced = Experiment.of(fleet(), chat(), Setting(concurrency=4, rate=5.0))
    assert whole_stream(paced, 50).arrival_s[-1] == pytest.approx(10.0, rel=0.5)


@pytest.mark.parametrize("rate", [None, 50.0])
def test_a_closed_loop_plays_a_trace_to_its_end(rate):
    """Also where clients send as fast as they can, and the trace's instants say nothing."""
    workload = Workload.from_lengths(np.arange(1, 101), np.full(100, 5), arrival_s=np.arange(100) * 0.01)
    result = des.simulate(fleet(), workload, arrivals="trace", concurrency=4, rate=rate, keep="requests")
    table = result.requests_table()
    np.testing.assert_array_equal(table["input_tokens"], workload.input_tokens[workload.arrival_row])
    assert (result.num_requests, result.unfinished) == (100, 0)
    assert result.requests == table["measured"].sum() == result.ttft.n


def test_rows_are_drawn_by_their_weight():
    workload = Workload.from_lengths([1, 2, 3, 4, 5], [1] * 5, weight=[0.0, 0.5, 0.0, 0.3, 0.2])
    stream = whole_stream(Experiment.of(fleet(), workload, Setting(rate=2.0)), 200_000)
    shares = np.bincount(stream.row, minlength=5) / 200_000
    assert shares[0] == shares[2] == 0.0
    np.testing.assert_allclose(shares[[1, 3, 4]], [0.5, 0.3, 0.2], atol=0.005)
    assert stream.arrival_s[-1] == pytest.approx(100_000, rel=0.01)
    lengths = Lengths.of(chat())
    uniform = np.random.default_rng(0).random(1000)
    expected = np.searchsorted(lengths.cumulative, uniform, side="right")
    np.testing.assert_array_equal(lengths.draw(np.random.default_rng(0), 1000), expected)


def test_a_trace_is_played_as_it_is_and_stretched_by_a_rate():
    arrivals = np.cumsum(np.random.default_rng(0).exponential(0.5, 20_000))
    lengths = np.random.default_rng(1).integers(1, 900, (2, 20_000))
    workload = Workload.from_lengths(*lengths, arrival_s=arrivals)
    result = des.simulate(fleet(), workload, arrivals="trace", warmup_fraction=0.0)
    assert result.requests == result.num_requests == 20_000
    assert result.rate == pytest.approx(2.0, rel=0.03)
    estimate = result.ttft.quantile(0.99)
    assert estimate.low < estimate.value < estimate.high
    faster = des.simulate(fleet(), workload, rate=3 * result.rate, arrivals="trace", warmup_fraction=0.0)
    assert faster.rate == pytest.approx(3 * result.rate)
    assert faster.tpot.mean().value > result.tpot.mean().value
    assert des.simulate(fleet(), workload, arrivals="trace", num_requests=500).num_requests == 500
    assert des.simulate(fleet(), workload, num_requests=20_000).rate == pytest.approx(workload.rate)


def test_results_are_written_by_one_compiled_function():
    """Whatever is kept."""
    for keep in ("latencies", "requests", "statistics"):
        result = des.simulate(fleet(2), chat(), rate=5.0, num_requests=2000, keep=keep)
        assert result.ttft.n == result.requests
    if not numba.config.DISABLE_JIT:
        assert len(write.signatures) == 1


def test_default_sizes_follow_the_fleet():
    assert default_requests(1) == 400_000
    assert default_requests(1000) == 5_000_000
    assert [default_replications(n, r) for n, r in ((400_000, 10), (400_000, 80), (3000, 1), (10, 0))] == [8, 5, 1, 1]


# --- refusals ----------------------------------------------------------------------------------------------------

TRACELESS = Workload.from_lengths([10], [5])
TRACED = Workload.from_lengths([10], [5], arrival_s=[1.0])
ONCE = des.PiecewiseRate(start_s=(0.0,), rate=(1.0,), end_s=100.0)
AWAY = {
    "failures": des.Failures(mean_up_s=1.0, mean_repair_s=1.0),
    "schedule": des.Schedule(time_s=[], pool=[], replicas=[]),
}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rate": None}, "rate must be given in requests per second"),
        ({"rate": 0.0}, "rate must be > 0 and finite, got 0.0"),
        ({"rate": float("nan")}, "rate must be > 0 and finite, got nan"),
        ({"convention": "kimra"}, "unknown convention 'kimra'; did you mean 'kimura'"),
        ({"arrivals": "poison"}, "unknown arrivals 'poison'; did you mean 'poisson'"),
        ({"arrivals": "trace"}, "arrivals='trace' needs a workload with arrival times"),
        ({"arrivals": "trace", "workload": TRACED, "precision": 0.1}, "plays the trace once"),
        ({"arrivals": "trace", "workload": TRACED, "replications": 2}, "plays the trace once"),
        ({"arrivals": ONCE, "precision": 0.1}, "precision is for arrivals without end, got 'piecewise', which ends"),
        ({"warmup_fraction": 1.0}, r"warmup_fraction must be in \[0, 1\), got 1.0"),
        ({"replications": 0}, "replications must be >= 1, got 0"),
        ({"num_requests": 3, "replications": 8}, r"num_requests must be >= replications \(8\), got 3"),
        ({"precision": 0.0}, "precision must be > 0 and finite, got 0.0"),
        ({"keep": "latency"}, "unknown keep 'latency'; did you mean 'latencies'"),
        ({"windows": 3}, "windows must be >= 4, got 3"),
        ({"concurrency": 0}, "concurrency must be >= 1, got 0"),
        (AWAY, "failures and schedule cannot be given together"),
        ({"design": FleetDesign.of(A100, [1.5], [4096])}, "replicas must be whole numbers >= 0, got 1.5; round"),
    ],
)
def test_bad_arguments_are_refused(changes, text):
    arguments = {"design": fleet(), "workload": TRACELESS, "rate": 1.0, "num_requests": 100, **changes}
    design, workload = arguments.pop("design"), arguments.pop("workload")
    with pytest.raises(ValueError, match=text):
        des.simulate(design, workload, **arguments)


def test_a_fleet_that_takes_nothing_has_no_figures_and_says_why():
    result = des.simulate(fleet(context=10), chat(), rate=1.0, num_requests=20_000)
    assert result.rejected == result.requests
    assert np.isnan(result.ttft.quantile(0.99).value) and result.ttft.quantile(0.99).n == 0
    assert result.attainment(ttft_s=1.0) == 0.0
    assert result.pools[0].utilization == 0.0
    assert any("100.00%" in w for w in result.warnings)
