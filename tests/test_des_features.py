"""What `des.simulate` tells of requests, gaps, queues, clients, failures, transfers, preemption: by invariants."""

import itertools
import re

import numpy as np
import polars
import pytest
from fleets import make_profile, small_workload

import des
import des.experiment
import jaxsim
from des import Failures, KvTransfer, Schedule, Serving
from des.arrivals import MarkovModulated, PiecewiseRate, Renewal
from des.requests_table import STATUS
from des.routing import REASONS
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload

LONGEST = 8000.0
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
CHUNKED = Serving(scheduling="chunked", max_num_batched_tokens=512)


def fleet(*replicas, **changes):
    """Pools of one toy profile, each as long as the longest request."""
    profiles = [make_profile(**changes)] * len(replicas)
    return FleetDesign.of(profiles, [float(r) for r in replicas], [LONGEST] * len(replicas))


def run(design, workload=None, **options):
    """One replication with every request kept, unless told otherwise."""
    given = {"num_requests": 20_000, "replications": 1, "keep": "requests", "seed": 1} | options
    return des.simulate(design, workload or small_workload(), **given)


def window(result, replication=0):
    """Start and end of the measured time."""
    one = result.replications[replication]
    return one.start_s, one.start_s + one.window_s


def overlap(start, end, since, until):
    """Seconds that stretches have in common with [since, until], in all."""
    return float(np.clip(np.minimum(end, until) - np.maximum(start, since), 0.0, None).sum())


# --- every request ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_runs():
    """Two replications of two pools. Above 5,000 tokens all are rejected, and the second holds 4,000."""
    profiles = [make_profile(), make_profile(kv_blocks=250)]
    design = FleetDesign.of(profiles, [2.0, 2.0], [1500.0, 5000.0])
    return design, run(design, rate=25.0, replications=2)


def test_a_request_s_instants_come_in_order(two_runs):
    table = two_runs[1].requests_table()
    served = table["status"] == 0
    order = [table[name][served] for name in ("due_s", "sent_s", "queued_s", "admit_s", "first_s", "end_s")]
    assert served.sum() > 15_000 and (~served).sum() > 100
    for before, after in itertools.pairwise(order):
        assert (before <= after).all()
    assert (table["admit_s"] < table["first_s"])[served].all()
    single = table["output_tokens"][served] == 1
    assert single.any() and np.array_equal(table["first_s"][served] == table["end_s"][served], single)
    for name in ("admit_s", "first_s", "end_s", "queued_s"):
        assert np.isnan(table[name][~served]).all()
    for name in ("replica", "pool", "steps"):
        assert (table[name][~served] == -1).all()
    assert np.isnan(table["prefill_end_s"]).all() and (table["prefill_replica"] == -1).all()


def test_a_request_is_a_row_of_the_workload_and_takes_its_steps(two_runs):
    table, workload = two_runs[1].requests_table(), small_workload()
    rows = set(zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True))
    assert set(zip(table["input_tokens"].tolist(), table["output_tokens"].tolist(), strict=True)) == rows
    steps = np.ceil(table["input_tokens"] / 512) + table["output_tokens"] - 1
    served = table["status"] == 0
    np.testing.assert_array_equal(table["steps"][served], steps[served])
    total = table["input_tokens"] + table["output_tokens"]
    np.testing.assert_array_equal(table["pool"][served], (total > 1500)[served])
    np.testing.assert_array_equal(table["pool"][served], table["replica"][served] // 2)


def test_rejected_requests_are_there_with_their_reason(two_runs):
    _, result = two_runs
    table = result.requests_table()
    total = table["input_tokens"] + table["output_tokens"]
    reason = np.array(STATUS)[table["status"]]
    beyond = total > 5000
    full = (total > 250 * 16) & ~beyond
    assert (reason[beyond] == REASONS[0]).all() and (reason[full] == REASONS[2]).all() and full.any()
    assert (reason[~beyond & ~full] == "finished").all()
    for name, count in result.rejected_by_reason.items():
        assert count == int((table["measured"] & (reason == name)).sum())
    assert result.rejected == int((table["measured"] & (table["status"] > 0)).sum())


def test_the_figures_are_those_of_the_table_s_measured_requests(two_runs):
    design, result = two_runs
    table = result.requests_table()
    assert len(table["due_s"]) == result.num_requests == 20_000
    for i in (0, 1):
        these = table["replication"] == i
        np.testing.assert_array_equal(table["measured"][these], table["due_s"][these] >= window(result, i)[0])
    used = table["measured"] & (table["status"] == 0)
    assert result.requests == int(table["measured"].sum())
    np.testing.assert_array_equal(result.ttft.values, (table["first_s"] - table["sent_s"])[used])
    np.testing.assert_array_equal(result.wait.values, (table["admit_s"] - table["sent_s"])[used])
    several = used & (table["output_tokens"] > 1)
    tpot = (table["end_s"] - table["first_s"])[several] / (table["output_tokens"][several] - 1)
    np.testing.assert_allclose(result.tpot.values, tpot, rtol=1e-12)
    plain = run(design, rate=25.0, replications=2, keep="latencies")
    np.testing.assert_array_equal(plain.e2e.values, result.e2e.values)
    with pytest.raises(ValueError, match=r"requests were not kept; use simulate\(\.\.\., keep='requests'\)"):
        plain.requests_table()


def test_the_table_survives_a_parquet_file(two_runs, tmp_path):
    _, result = two_runs
    table = result.requests_table()
    result.write_requests(tmp_path / "requests.parquet")
    read = polars.read_parquet(tmp_path / "requests.parquet")
    assert read.columns == list(table) and len(read) == 20_000
    for name, values in table.items():
        expected = np.array(STATUS)[values] if name == "status" else values
        np.testing.assert_array_equal(read[name].to_numpy(), expected)


def test_designs_with_one_seed_see_the_same_requests():
    one, other = (
        run(fleet(n), rate=10.0, num_requests=3_000, **more) for n, more in ((1, {}), (3, {"serving": CHUNKED}))
    )
    ours, theirs = one.requests_table(), other.requests_table()
    for name in ("due_s", "input_tokens", "output_tokens"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert not np.array_equal(ours["end_s"], theirs["end_s"])
    slower = run(fleet(1), rate=5.0, num_requests=3_000).requests_table()
    np.testing.assert_allclose(slower["due_s"], 2.0 * ours["due_s"], rtol=1e-12)
    assert not np.array_equal(
        run(fleet(1), rate=10.0, num_requests=3_000, seed=2).requests_table()["due_s"], ours["due_s"]
    )


# --- statistics alone -------------------------------------------------------------------------------------------


def same_figures(one, other, relative):
    """Counts are equal, and quantiles and means within `relative`."""
    for metric in ("ttft", "tpot", "wait", "e2e"):
        for ours, theirs in zip((one, *one.pools), (other, *other.pools), strict=True):
            mine, its = getattr(ours, metric), getattr(theirs, metric)
            assert mine.n == its.n
            assert mine.mean().value == pytest.approx(its.mean().value, rel=1e-9)
            for q in QUANTILES:
                assert mine.quantile(q).value == pytest.approx(its.quantile(q).value, rel=relative, abs=1e-12)
    for ours, theirs in zip(one.pools, other.pools, strict=True):
        for name in ("requests", "rejected", "mean_active", "mean_queued", "kv_utilization", "preemptions", "load"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-9, nan_ok=True)


def test_statistics_are_within_half_a_bin_of_the_latencies(two_runs):
    design, result = two_runs
    counted = run(design, rate=25.0, replications=2, keep="statistics")
    same_figures(counted, result, 5.01e-4)
    ours, theirs = counted.ttft.quantile(0.99), result.ttft.quantile(0.99)
    assert ours.high - ours.low == pytest.approx(theirs.high - theirs.low, rel=0.05)
    with pytest.raises(ValueError, match="ttft_s of each request is not there with keep='statistics'"):
        counted.attainment(ttft_s=1.0)


def kept_bytes(result):
    """Size of the arrays of what a result keeps of requests."""
    bins = [h for each in result.replications[0].kept.latencies.values() for pool in each for h in pool]
    return sum(h.counts.nbytes for h in bins), len(bins)


def test_statistics_take_no_more_room_for_more_requests(monkeypatch):
    drawn = []
    draw = des.experiment.Experiment.draw

    def watched(self, number, replication, size):
        for part in draw(self, number, replication, size):
            drawn.append(len(part.arrival_s))
            yield part

    monkeypatch.setattr(des.experiment, "PART", 1_000)
    monkeypatch.setattr(des.experiment.Experiment, "draw", watched)
    short, long = (run(fleet(2), rate=20.0, num_requests=n, keep="statistics") for n in (2_000, 16_000))
    assert kept_bytes(short) == kept_bytes(long)
    assert long.replications[0].totals.shape == short.replications[0].totals.shape
    assert max(drawn) == 1_000 and long.ttft.n > 7 * short.ttft.n


PROCESSES = {
    "poisson": "poisson",
    "gamma": Renewal(law="gamma", cv=2.0),
    "bursts": MarkovModulated(rates=(10.0, 40.0), mean_stay_s=(20.0, 5.0)),
    "piecewise": PiecewiseRate(start_s=(0.0, 60.0, 120.0), rate=(10.0, 30.0, 15.0), end_s=300.0),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_a_stream_in_parts_is_the_same_stream(monkeypatch, name):
    """Lengths are drawn by weight and pools by chance, and neither may depend on where the stream is cut."""
    router = des.ModelRouter(pool_of_model=(0, 1), model_share=np.array([0.4, 0.6]))
    options = {
        "rate": None if name == "piecewise" else 20.0,
        "arrivals": PROCESSES[name],
        "router": router,
        "keep": "statistics",
        "num_requests": 4_000,
        "itl": True,
    }
    whole = run(fleet(1, 1), **options)
    monkeypatch.setattr(des.experiment, "PART", 333)
    parts = run(fleet(1, 1), **options)
    same_figures(whole, parts, 1e-12)
    assert whole.num_requests == parts.num_requests == 4_000
    assert parts.itl.mean() == whole.itl.mean()
    np.testing.assert_array_equal(whole.time_series().queued, parts.time_series().queued)


# --- gaps between tokens ----------------------------------------------------------------------------------------

RULES = {
    "independent": Serving(),
    "chunked": CHUNKED,
    "decode-first": Serving(scheduling="decode-first", max_num_batched_tokens=8192),
    "prefill-first": Serving(scheduling="prefill-first", max_num_batched_tokens=8192),
    "swap": Serving(kv="grow", preemption="swap", swap_s_per_token=1e-5),
    "recompute": Serving(kv="grow"),
}


@pytest.fixture(scope="module")
def scheduled():
    """One replica under each rule at a load that all of them carry; for the last two with few KV blocks."""
    few = {"swap": 1200, "recompute": 1200}
    return {
        name: run(fleet(1, kv_blocks=few.get(name, 16384)), rate=12.0, itl=True, serving=serving)
        for name, serving in RULES.items()
    }


@pytest.mark.parametrize("name", RULES)
def test_gaps_add_up_to_the_time_from_first_to_last_token(scheduled, name):
    """Each token but the first ends one gap, so those within the window sum to what requests spent there generating."""
    result = scheduled[name]
    table = result.requests_table()
    since, until = window(result)
    spent = overlap(table["first_s"], table["end_s"], since, until)
    assert result.itl.mean().value * result.itl.n == pytest.approx(spent, rel=1e-3)
    inside = (table["first_s"] >= since) & (table["end_s"] <= until)
    assert (table["output_tokens"][inside] - 1).sum() == pytest.approx(result.itl.n, rel=5e-3)


def test_a_gap_is_at_least_a_step(scheduled):
    for result in scheduled.values():
        edges = 1.008
        assert result.itl.quantile(1e-5).value * edges >= 0.01
        assert result.itl.quantile(0.99).value * edges >= result.pools[0].step_time_s
    plain = scheduled["independent"]
    assert plain.itl.mean().value == pytest.approx(plain.tpot.mean().value, rel=0.1)


def test_who_goes_first_trades_ttft_for_gaps(scheduled):
    """Prompts first start sooner, and who generates stands still for them; whole prompts beside decodes lie between."""
    ttft = {name: result.ttft.quantile(0.5).value for name, result in scheduled.items()}
    tail = {name: result.itl.quantile(0.999).value for name, result in scheduled.items()}
    assert ttft["prefill-first"] < ttft["chunked"]
    assert tail["chunked"] < tail["decode-first"] < tail["prefill-first"]
    tpot = {name: result.tpot.quantile(0.99).value for name, result in scheduled.items()}
    assert tpot["chunked"] < tpot["decode-first"] < tpot["prefill-first"]


def test_decodes_first_keep_tpot_steady_while_ttft_suffers_under_pressure():
    """A budget of one prompt and 30 tokens: with 30 running, a whole prompt must wait until one has left."""
    workload = Workload.from_lengths([1000], [200])
    design = fleet(1, max_num_seqs=48)
    found = {}
    for name in ("decode-first", "prefill-first"):
        serving = Serving(scheduling=name, max_num_batched_tokens=1030)
        found[name] = run(design, workload, rate=9.0, serving=serving, itl=True, keep="latencies")
    ttft, itl = ({name: getattr(r, m).quantile(0.99).value for name, r in found.items()} for m in ("ttft", "itl"))
    spread = {name: r.tpot.quantile(0.99).value / r.tpot.quantile(0.01).value for name, r in found.items()}
    assert ttft["decode-first"] > 5.0 * ttft["prefill-first"]
    assert itl["prefill-first"] > 2.0 * itl["decode-first"]
    assert spread["prefill-first"] > 1.15 * spread["decode-first"]
    assert not any(result.overloaded for result in found.values())


def test_gaps_must_be_asked_for(two_runs):
    with pytest.raises(ValueError, match="gaps between tokens were not counted"):
        two_runs[1].itl  # noqa: B018


# --- occupancy and queues over time -----------------------------------------------------------------------------


def stretches(series):
    """Start and end of each stretch."""
    return [(start, start + series.width_s) for start in series.start_s.tolist()]


@pytest.mark.parametrize("name", RULES)
def test_running_requests_over_time_are_those_of_the_table(scheduled, name):
    result = scheduled[name]
    table, series = result.requests_table(), result.time_series()
    assert series.start_s[0] == window(result)[0]
    running = [overlap(table["admit_s"], table["end_s"], *stretch) for stretch in stretches(series)]
    if result.preemptions == 0:
        np.testing.assert_allclose(series.active[0] * series.width_s, running, rtol=1e-9)
    else:
        assert (series.active[0] * series.width_s <= np.array(running) * (1 + 1e-9)).all()
    assert result.pools[0].mean_active == pytest.approx(series.active.mean(), rel=1e-9)


@pytest.mark.parametrize("name", ["chunked", "decode-first", "prefill-first"])
def test_queues_over_time_are_those_of_the_table(scheduled, name):
    """Where a step's budget decides, every request that meets a step under way queues until it ends."""
    result = scheduled[name]
    table, series = result.requests_table(), result.time_series()
    waiting = [overlap(table["queued_s"], table["admit_s"], *stretch) for stretch in stretches(series)]
    np.testing.assert_allclose(series.queued[0] * series.width_s, waiting, rtol=1e-6, atol=1e-6)
    assert result.pools[0].mean_queued == pytest.approx(sum(waiting) / (20 * series.width_s), rel=1e-6)


@pytest.mark.parametrize("name", sorted(set(RULES) - {"independent"}))
def test_who_has_come_and_not_gone_is_queued_or_running(scheduled, name):
    """Victims too, from which the table knows the first admission only."""
    result = scheduled[name]
    assert (result.preemptions > 100) == (name in ("swap", "recompute"))
    table, series = result.requests_table(), result.time_series()
    there = [overlap(table["sent_s"], table["end_s"], *stretch) for stretch in stretches(series)]
    np.testing.assert_allclose((series.active + series.queued)[0] * series.width_s, there, rtol=1e-6)


@pytest.mark.parametrize("serving", [Serving(), CHUNKED])
def test_littles_law_holds_for_queue_and_batch(serving):
    """L = lambda W of the queue and of the batch, over a measured time that is long against a request's."""
    result = run(fleet(2, max_num_seqs=24), rate=22.0, num_requests=60_000, serving=serving)
    table, pool = result.requests_table(), result.pools[0]
    used, (since, until) = table["measured"], window(result)
    rate = used.sum() / (until - since)
    wait = (table["admit_s"] - table["sent_s"])[used]
    step = 0.05 if serving == Serving() else 0.0
    queued = wait[wait > step]
    assert len(queued) > 500 and pool.mean_queued > 0.1
    assert pool.mean_queued == pytest.approx(rate * queued.sum() / len(wait), rel=0.03)
    residence = (table["end_s"] - table["admit_s"])[used].mean()
    assert pool.mean_active == pytest.approx(rate * residence, rel=0.01)
    assert pool.sequence_utilization == pytest.approx(pool.mean_active / 48.0, rel=1e-12)


def test_reserved_blocks_over_time_are_those_of_the_table():
    result = run(fleet(1), rate=12.0, num_requests=4_000)
    table, series = result.requests_table(), result.time_series()
    blocks = np.ceil((table["input_tokens"] + table["output_tokens"]) / 16)
    for i, (since, until) in enumerate(stretches(series)):
        held = np.clip(np.minimum(table["end_s"], until) - np.maximum(table["admit_s"], since), 0.0, None) @ blocks
        assert series.blocks[0, i] * series.width_s == pytest.approx(held, rel=1e-9)
    assert result.pools[0].kv_utilization == pytest.approx(series.blocks.mean() / 16384, rel=1e-9)


# --- clients that wait for answers ------------------------------------------------------------------------------


def most_outstanding(table):
    """Most requests that were sent and not ended; at one instant one ends before the next is sent."""
    change = np.concatenate([np.full(len(table["sent_s"]), 1), np.full(len(table["end_s"]), -1)])
    at = np.concatenate([table["sent_s"], table["end_s"]])
    return int(np.cumsum(change[np.lexsort((change, at))]).max())


@pytest.mark.parametrize("concurrency", [1, 7, 200])
@pytest.mark.parametrize("rate", [None, 40.0])
def test_no_more_than_k_requests_are_outstanding(concurrency, rate):
    result = run(fleet(2), concurrency=concurrency, rate=rate, num_requests=4_000)
    table = result.requests_table()
    reached = most_outstanding(table)
    assert reached == concurrency if rate is None or concurrency < 100 else reached <= concurrency
    assert result.unfinished == 0 and (table["sent_s"] >= table["due_s"]).all()
    assert (np.diff(table["sent_s"]) >= 0.0).all()
    later = table["sent_s"] > table["due_s"]
    assert np.isin(table["sent_s"][later], table["end_s"]).all()


def test_a_saturated_closed_loop_turns_at_k_over_e2e():
    """K = X E2E, for few clients and for more than the engine has sequences; X grows with K until the batch is full."""
    rates = []
    for concurrency in (1, 8, 32, 64, 128):
        result = run(fleet(1), concurrency=concurrency, num_requests=10_000)
        since, until = window(result)
        rate = result.requests / (until - since)
        assert rate * result.e2e.mean().value == pytest.approx(concurrency, rel=0.01)
        rates.append(rate)
        assert not result.overloaded and result.pools[0].mean_active <= min(concurrency, 64)
        assert result.rate == pytest.approx(rate, rel=1e-9)
    assert rates[0] < 0.3 * rates[1] and rates[1] < rates[2] < rates[3]
    assert rates[4] == pytest.approx(rates[3], rel=0.02)
    assert result.pools[0].mean_queued == pytest.approx(64.0, rel=0.02)


def test_a_client_s_wait_is_apart_from_the_server_s():
    """Of 40 a second offered, 16 at a time see far less of the server: clients wait, and TTFT does not show it."""
    result = run(fleet(1), concurrency=16, rate=40.0, num_requests=6_000)
    table = result.requests_table()
    used = table["measured"]
    wait = (table["sent_s"] - table["due_s"])[used]
    np.testing.assert_array_equal(result.phase("client_wait_s").values, wait)
    assert wait.mean() > 50.0 and np.all(np.diff(wait[:: len(wait) // 10]) > 0.0)
    assert result.ttft.quantile(0.99).value < 1.0
    np.testing.assert_array_equal(result.ttft.values, (table["first_s"] - table["sent_s"])[used])


@pytest.mark.parametrize("rate", [None, 10.0])
def test_a_closed_loop_counts_rejected_requests_where_their_turn_came(rate):
    result = run(fleet(1, kv_blocks=100), concurrency=10, rate=rate, num_requests=4_000)
    table = result.requests_table()
    measured, rejected = table["measured"], table["status"] > 0
    assert result.requests == measured.sum() and result.rejected == (measured & rejected).sum() > 500
    assert (np.diff(measured.astype(int)) >= 0).all() and 2_500 < measured.sum() < 3_500
    assert result.unfinished == 0 and result.ttft.n == (measured & ~rejected).sum()
    counted = run(fleet(1, kv_blocks=100), concurrency=10, rate=rate, num_requests=4_000, keep="statistics")
    assert (counted.requests, counted.rejected) == (result.requests, result.rejected)
    same_figures(counted, result, 5.01e-4)


def test_a_closed_loop_that_is_never_full_is_an_open_one():
    open_loop, closed = (run(fleet(2), rate=5.0, num_requests=3_000, concurrency=k) for k in (None, 500))
    ours, theirs = closed.requests_table(), open_loop.requests_table()
    for name in ("due_s", "sent_s", "admit_s", "first_s", "end_s", "replica"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert closed.phase("client_wait_s").quantile(0.99).value == 0.0


# --- replicas that come and go ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failing():
    """Four replicas that are up 40 s and down 10 s in the mean, at 40 % of the load that all four carry."""
    failures = Failures(mean_up_s=40.0, mean_repair_s=10.0)
    result = run(fleet(4), rate=25.0, num_requests=60_000, failures=failures, seed=3)
    _, until = window(result)
    own = np.random.default_rng(np.random.SeedSequence(3, spawn_key=(0, 3)))
    return failures, result, failures.timeline(4, until, own)


def down_times(timeline, replica):
    """Instants at which a replica goes down, and comes up again."""
    rows = timeline[timeline["replica"] == replica]["time_s"]
    return rows[0::2], rows[1::2]


def test_replicas_are_available_for_their_share_of_the_time(failing):
    failures, result, timeline = failing
    since, until = window(result)
    lost = sum(overlap(*down_times(timeline, r), since, until) for r in range(4))
    hours = (4.0 * (until - since) - lost) / 3600.0
    assert result.pools[0].replica_hours == pytest.approx(hours, rel=1e-9)
    share = hours * 3600.0 / (4.0 * (until - since))
    assert failures.availability == 0.8 and share == pytest.approx(0.8, abs=0.05)


def test_every_request_ends_on_a_replica_that_stayed_up(failing):
    _, result, timeline = failing
    table = result.requests_table()
    assert result.unfinished == 0 and not np.isnan(table["end_s"]).any()
    for replica in range(4):
        here = table["replica"] == replica
        queued, end = table["queued_s"][here], table["end_s"][here]
        down, up = down_times(timeline, replica)
        assert (np.searchsorted(down, queued, side="right") == np.searchsorted(down, end, side="left")).all()
        last = np.searchsorted(down, queued, side="right") - 1
        assert (queued >= np.concatenate([[0.0], up])[last + 1]).all()


def test_retries_are_counted_and_cost_latency(failing):
    _, result, timeline = failing
    table = result.requests_table()
    retried = table["retries"] > 0
    assert 0.005 < retried.mean() < 0.2 and table["retries"].max() >= 2
    assert (table["queued_s"] > table["sent_s"])[retried].all()
    assert (table["queued_s"] == table["sent_s"])[~retried].mean() > 0.99
    assert np.isin(table["queued_s"][retried], timeline["time_s"]).all()
    well = run(fleet(4), rate=25.0, num_requests=60_000, seed=3)
    assert result.ttft.quantile(0.99).value > 2.0 * well.ttft.quantile(0.99).value
    assert result.e2e.mean().value > well.e2e.mean().value
    np.testing.assert_array_equal(table["due_s"], well.requests_table()["due_s"])


def test_repairs_may_take_a_fixed_time():
    failures = Failures(mean_up_s=40.0, mean_repair_s=10.0, repair="fixed")
    timeline = failures.timeline(3, 2_000.0, np.random.default_rng(0))
    for replica in range(3):
        down, up = down_times(timeline, replica)
        np.testing.assert_allclose(up - down, 10.0)
        assert (np.diff(down) > 10.0).all()


SLOW = Workload.from_lengths([512], [100])
"""A replica of the toy profile serves some 45 of them a second at full batch."""


def test_new_replicas_serve_after_their_start_up_and_end_the_overload():
    """One replica, and two more from 100 s on, which take requests 30 s later: one for 130 s, then three."""
    schedule = Schedule(time_s=(0.0, 100.0), pool=(0, 0), replicas=(1, 3), startup_s=30.0)
    options = {"rate": 70.0, "num_requests": 21_000, "warmup_fraction": 0.0}
    result = run(fleet(3), SLOW, schedule=schedule, **options)
    table, (_, until) = result.requests_table(), window(result)
    assert result.pools[0].replica_hours * 3600.0 == pytest.approx(130.0 + 3.0 * (until - 130.0), rel=1e-9)
    added = table["replica"] > 0
    assert table["queued_s"][added].min() == pytest.approx(130.0, abs=0.1) and table["queued_s"][added].min() >= 130.0
    wait, due = table["first_s"] - table["due_s"], table["due_s"]
    assert np.median(wait[(due > 90.0) & (due < 130.0)]) > 10.0
    assert np.quantile(wait[due > 240.0], 0.99) < 0.5
    queued = result.time_series().queued[0]
    assert queued[7] > queued[3] > 50.0 and queued[-4:].max() < 1.0
    assert run(fleet(1), SLOW, **options).overloaded and not result.overloaded
    assert not run(fleet(3), SLOW, **options).overloaded


def test_a_replica_that_is_taken_away_finishes_what_it_has():
    schedule = Schedule(time_s=(0.0, 50.0), pool=(0, 0), replicas=(2, 1))
    result = run(fleet(2), SLOW, rate=30.0, num_requests=3_000, schedule=schedule, warmup_fraction=0.0)
    table, (_, until) = result.requests_table(), window(result)
    gone = table["replica"] == 1
    assert table["queued_s"][gone].max() < 50.0 < table["end_s"][gone].max()
    assert (table["retries"] == 0).all() and result.unfinished == 0
    assert result.pools[0].replica_hours * 3600.0 == pytest.approx(50.0 + until, rel=1e-9)


def test_requests_wait_where_no_replica_is_up():
    schedule = Schedule(time_s=(0.0, 40.0), pool=(0, 0), replicas=(0, 2), startup_s=5.0)
    table = run(fleet(2), SLOW, rate=10.0, num_requests=2_000, schedule=schedule).requests_table()
    early = table["due_s"] < 45.0
    assert early.sum() > 300
    np.testing.assert_array_equal(table["queued_s"], np.where(early, 45.0, table["due_s"]))


# --- prefill and decode apart -----------------------------------------------------------------------------------

LINK = KvTransfer(kv_bytes_per_token=2.0, bytes_per_s=100_000.0, latency_s=0.004)
"""20 microseconds a token: 24 ms for the mean prompt."""

LINK_SECONDS = [
    0.004 + 2e-5 * prompt if output > 1 else 0.0
    for prompt, output in zip(small_workload().input_tokens, small_workload().output_tokens, strict=True)
]


@pytest.fixture(scope="module")
def apart():
    """Two prefill and two decode replicas with a link that is half busy."""
    return run(fleet(2, 2), rate=20.0, transfer=LINK, num_requests=12_000)


def transfers(result):
    """Rows that went over the link, and the seconds that each took there, in order of their end."""
    table = result.requests_table()
    sent = ~np.isnan(table["decode_admit_s"])
    rows = {name: values[sent] for name, values in table.items()}
    order = np.argsort(rows["first_s"])
    rows = {name: values[order] for name, values in rows.items()}
    return rows, LINK.latency_s + rows["input_tokens"] * LINK.s_per_token


def test_ttft_includes_the_transfer(apart):
    rows, seconds = transfers(apart)
    waited = rows["first_s"] - rows["prefill_end_s"] - seconds
    assert waited.min() > -1e-9 and (waited < 1e-9).mean() > 0.3 and waited.max() > 0.1
    assert (rows["first_s"] <= rows["decode_admit_s"]).all() and (rows["queued_s"] == rows["first_s"]).all()
    assert np.isin(rows["prefill_replica"], (0, 1)).all() and np.isin(rows["replica"], (2, 3)).all()
    table = apart.requests_table()
    single = table["output_tokens"] == 1
    assert single.any() and np.array_equal(single, np.isnan(table["decode_admit_s"]))
    assert (table["first_s"] == table["end_s"])[single].all() and (table["replica"] < 2)[single].all()


def test_the_link_moves_one_request_at_a_time_and_never_rests_with_work(apart):
    rows, seconds = transfers(apart)
    start = np.maximum(rows["prefill_end_s"], np.concatenate([[0.0], rows["first_s"][:-1]]))
    np.testing.assert_allclose(rows["first_s"], start + seconds, rtol=0, atol=1e-8)
    since, until = window(apart)
    busy = overlap(start, rows["first_s"], since, until) / (until - since)
    used = rows["measured"]
    assert busy == pytest.approx(used.sum() / (until - since) * seconds[used].mean(), rel=0.01)
    assert apart.link_load == pytest.approx(busy, rel=0.05) and not apart.overloaded
    assert 0.4 < busy < 0.7


def test_phases_are_those_of_the_table_and_add_up(apart):
    table = apart.requests_table()
    used = table["measured"]
    sent = used & ~np.isnan(table["decode_admit_s"])
    np.testing.assert_array_equal(apart.phase("prefill_wait_s").values, (table["admit_s"] - table["sent_s"])[used])
    moved = (table["first_s"] - table["prefill_end_s"])[sent]
    np.testing.assert_array_equal(apart.phase("transfer_s").values, moved)
    decode_wait = (table["decode_admit_s"] - table["first_s"])[sent]
    assert np.median(apart.pools[1].wait.values - decode_wait) == 0.0
    np.testing.assert_array_equal(apart.pools[1].wait.values, decode_wait)
    prefill = (table["prefill_end_s"] - table["admit_s"])[sent]
    whole = (table["admit_s"] - table["sent_s"])[sent] + prefill + moved
    np.testing.assert_allclose((table["first_s"] - table["sent_s"])[sent], whole, rtol=1e-9)


def test_a_saturated_link_makes_transfers_wait():
    """45 a second ask 1.08 seconds of the link each second: the wait grows with the run, while no pool has a queue."""
    short, long = (run(fleet(3, 3), rate=45.0, transfer=LINK, num_requests=n) for n in (4_000, 16_000))
    waits = [result.phase("transfer_s").quantile(0.5).value for result in (short, long)]
    assert waits[0] > 1.0 and waits[1] > 2.5 * waits[0]
    assert long.pools[0].mean_queued < 1.0 and long.pools[1].mean_queued < 1.0
    assert long.link_load == pytest.approx(45.0 * np.mean(LINK_SECONDS), rel=1e-9) and long.overloaded
    assert long.ttft.quantile(0.99).high == np.inf and not any(pool.overloaded for pool in long.pools)
    assert any("the link between the pools is overloaded: offered 1.0" in warning for warning in long.warnings)
    assert long.pools[1].ttft.quantile(0.5).value > waits[1] and long.tpot.quantile(0.99).value < 0.05


def test_with_a_free_link_a_decode_pool_holds_what_little_says():
    """No transfer time: the first token is out as the prompt ends, and both pools hold rate x residence."""
    free = KvTransfer(kv_bytes_per_token=0.0, bytes_per_s=1.0)
    result = run(fleet(1, 1), rate=10.0, transfer=free, num_requests=12_000)
    table = result.requests_table()
    sent = ~np.isnan(table["decode_admit_s"])
    np.testing.assert_array_equal(table["first_s"][sent], table["prefill_end_s"][sent])
    assert result.phase("transfer_s").quantile(0.99).value == 0.0
    since, until = window(result)
    decoding = overlap(table["decode_admit_s"][sent], table["end_s"][sent], since, until)
    assert result.pools[1].mean_active * (until - since) == pytest.approx(decoding, rel=1e-9)
    ended = np.where(sent, table["prefill_end_s"], table["end_s"])
    prefilling = overlap(table["admit_s"], ended, since, until)
    assert result.pools[0].mean_active * (until - since) == pytest.approx(prefilling, rel=1e-9)
    used = sent & table["measured"]
    residence = (table["end_s"] - table["decode_admit_s"])[used].mean()
    assert result.pools[1].mean_active == pytest.approx(used.sum() / (until - since) * residence, rel=0.01)


def test_steps_are_those_of_both_pools(apart):
    table = apart.requests_table()
    expected = np.ceil(table["input_tokens"] / 512) + table["output_tokens"] - 1
    np.testing.assert_array_equal(table["steps"], expected)


# --- preemption -------------------------------------------------------------------------------------------------


def pressed(blocks, **serving):
    """One replica with few KV blocks, which grow."""
    given = {"kv": "grow"} | serving
    return run(fleet(1, kv_blocks=blocks), rate=10.0, num_requests=8_000, serving=Serving(**given))


@pytest.mark.parametrize("scheduling", ["independent", "chunked"])
def test_preemptions_are_counted_and_fewer_with_more_blocks(scheduling):
    budget = 512 if scheduling == "chunked" else None
    counts = []
    for blocks in (1500, 1800, 2400, 16384):
        result = pressed(blocks, scheduling=scheduling, max_num_batched_tokens=budget)
        table, pool = result.requests_table(), result.pools[0]
        used = table["measured"] & (table["status"] == 0)
        assert pool.preemptions == result.preemptions == table["preemptions"][used].sum()
        assert pool.preempted == (table["preemptions"][used] > 0).sum()
        assert result.unfinished == 0
        counts.append(pool.preemptions)
    assert counts[0] > counts[1] > counts[2] > counts[3] == 0


def test_what_a_victim_keeps_saves_steps():
    """Steps beyond a request's own: few where cached blocks are hit; of swapped victims only those in their prompt."""
    results = {name: pressed(1000, preemption=name) for name in ("recompute", "cached", "swap")}
    tables = {name: result.requests_table() for name, result in results.items()}
    needed = np.ceil(tables["swap"]["input_tokens"] / 512) + tables["swap"]["output_tokens"] - 1
    waste = {name: (table["steps"] - needed).sum() for name, table in tables.items()}
    assert all(result.preemptions > 200 for result in results.values())
    assert waste["recompute"] > 2 * waste["swap"] and waste["recompute"] > 2 * waste["cached"] > 0
    for table in tables.values():
        assert (table["steps"] >= needed).all()
        untouched = table["preemptions"] == 0
        np.testing.assert_array_equal(table["steps"][untouched], needed[untouched])


def test_a_swap_costs_its_time():
    free, dear = (pressed(1000, preemption="swap", swap_s_per_token=seconds) for seconds in (0.0, 1e-4))
    assert dear.pools[0].step_time_s > free.pools[0].step_time_s
    assert dear.e2e.mean().value > free.e2e.mean().value


def test_the_overflow_rule_ends_with_an_agent_s_lengths():
    """Long prompts in a cache of a few of them: who was preempted waits for room, so nothing goes round in circles."""
    workload = jaxsim.workload("agent")
    longest = float(np.max(workload.total_tokens))
    design = FleetDesign.of(make_profile(kv_blocks=5_000), [2.0], [longest])
    result = run(design, workload, rate=2.0, num_requests=4_000, serving=Serving(kv="overflow"), warmup_fraction=0.0)
    table = result.requests_table()
    total = table["input_tokens"] + table["output_tokens"]
    assert result.unfinished == 0 and not np.isnan(table["end_s"][total <= longest]).any()
    assert result.preemptions == table["preemptions"].sum() > 1_000
    assert any("were preempted" in warning for warning in result.warnings)


def test_a_request_that_can_never_fit_is_rejected_counted_and_reported():
    """1,600 tokens of cache: what is longer in all is turned away, under each rule, and the others are served."""
    for kv in ("reserve", "overflow", "grow"):
        result = run(fleet(2, kv_blocks=100), rate=2.0, num_requests=2_000, serving=Serving(kv=kv))
        table = result.requests_table()
        beyond = table["input_tokens"] + table["output_tokens"] > 1600
        np.testing.assert_array_equal(table["status"] > 0, beyond)
        assert result.rejected_by_reason["larger than the KV cache"] == (beyond & table["measured"]).sum() > 100
        assert any("were rejected: larger than the KV cache" in warning for warning in result.warnings)
        assert result.attainment(ttft_s=1e9) == pytest.approx(1.0 - result.rejected / result.requests)
        assert result.unfinished == 0


# --- warm-up and bad arguments ----------------------------------------------------------------------------------


def test_mser_5_sees_whether_the_warm_up_was_long_enough():
    """Requests of half a minute fill a fleet slowly; TTFT grows with the batch until it is full."""
    workload = Workload.from_lengths(np.full(4, 4000), [1900, 2000, 2100, 2000])
    design = fleet(1, kv_blocks=10**5)
    cold, warm = (
        run(design, workload, rate=0.9, num_requests=700, warmup_fraction=share, keep="latencies")
        for share in (0.0, 0.2)
    )
    assert cold.mser5_fraction() > 0.02
    assert warm.mser5_fraction() < 0.01
    stable = run(fleet(2), rate=20.0, keep="latencies")
    assert stable.mser5_fraction() < 0.01


KIMURA = {"convention": "kimura"}
BAD = [
    ({"concurrency": 0}, "concurrency must be >= 1, got 0"),
    ({"keep": "all"}, "unknown keep 'all'"),
    ({"windows": 3}, "windows must be >= 4, got 3"),
    (
        {"transfer": LINK},
        "transfer is for a design of two pools, prefill and decode, in convention='step', got 1 in 'step'",
    ),
    (
        {
            "failures": Failures(mean_up_s=9.0, mean_repair_s=1.0),
            "schedule": Schedule(time_s=(0,), pool=(0,), replicas=(1,)),
        },
        "failures and schedule cannot be given together",
    ),
    (
        {"failures": Failures(mean_up_s=9.0, mean_repair_s=1.0), "concurrency": 4},
        "failures and concurrency cannot be given together",
    ),
    ({"schedule": Schedule(time_s=(0.0,), pool=(0,), replicas=(3,))}, "schedule replicas must be from 0 to 2"),
    ({"schedule": Schedule(time_s=(0.0,), pool=(1,), replicas=(1,))}, "schedule pool must be from 0 to 0, got 1"),
    (KIMURA | {"serving": CHUNKED}, "convention='kimura' has constant work"),
    (KIMURA | {"serving": Serving(kv="grow")}, "convention='kimura' has constant work"),
    (
        {"serving": Serving(scheduling="chunked", max_num_batched_tokens=63)},
        r"max_num_batched_tokens must be >= max_num_seqs \(64\), got 63",
    ),
    ({"serving": Serving(prefix_cache_blocks=9)}, "prefix_cache_blocks needs a workload with block hashes"),
    (
        {"router": des.LengthRouter(dispatch="prefix-affinity", affinity_slack=2)},
        r"dispatch='prefix-affinity' needs Serving\(prefix_cache_blocks=...\), got no prefix cache",
    ),
    ({"convention": "mean"}, "unknown convention 'mean'"),
    ({"rate": None}, "rate"),
]


@pytest.mark.parametrize(("options", "text"), BAD, ids=[text[:40] for _, text in BAD])
def test_bad_options_say_what_is_wrong(options, text):
    with pytest.raises(ValueError, match=text):
        run(fleet(2), **({"rate": 5.0, "num_requests": 100} | options))


MADE = [
    (lambda: Serving(scheduling="fifo"), "unknown scheduling 'fifo'"),
    (lambda: Serving(kv="paged"), "unknown kv 'paged'"),
    (lambda: Serving(preemption="drop"), "unknown preemption 'drop'"),
    (
        lambda: Serving(scheduling="chunked"),
        "max_num_batched_tokens must be given for scheduling other than 'independent'",
    ),
    (lambda: Serving(max_num_batched_tokens=64), "and only then, got 64 with 'independent'"),
    (lambda: Serving(scheduling="chunked", max_num_batched_tokens=0), "max_num_batched_tokens must be >= 1, got 0"),
    (lambda: Serving(preemption="swap"), "preemption='swap' is for kv='grow', got kv='reserve'"),
    (lambda: Serving(kv="grow", preemption="swap", swap_s_per_token=-1.0), "swap_s_per_token must be >= 0"),
    (lambda: Serving(prefix_cache_blocks=-1), "prefix_cache_blocks must be >= 0, got -1"),
    (lambda: KvTransfer(kv_bytes_per_token=-1.0, bytes_per_s=1.0), "kv_bytes_per_token must be >= 0"),
    (lambda: KvTransfer(kv_bytes_per_token=1.0, bytes_per_s=0.0), "bytes_per_s must be > 0"),
    (lambda: KvTransfer(kv_bytes_per_token=1.0, bytes_per_s=1.0, latency_s=-1.0), "latency_s must be >= 0"),
    (lambda: Failures(mean_up_s=0.0, mean_repair_s=1.0), "mean_up_s must be > 0"),
    (lambda: Failures(mean_up_s=1.0, mean_repair_s=-1.0), "mean_repair_s must be >= 0"),
    (lambda: Failures(mean_up_s=1.0, mean_repair_s=1.0, repair="never"), "unknown repair 'never'"),
    (lambda: Schedule(time_s=(0.0, 1.0), pool=(0,), replicas=(1, 1)), "one entry per row, got 2, 1, 2"),
    (lambda: Schedule(time_s=(2.0, 1.0), pool=(0, 0), replicas=(1, 1)), "schedule time_s must be ascending"),
    (lambda: Schedule(time_s=(-1.0,), pool=(0,), replicas=(1,)), "schedule time_s must be >= 0"),
    (lambda: Schedule(time_s=(0.0,), pool=(0,), replicas=(1,), startup_s=-1.0), "startup_s must be >= 0"),
]


@pytest.mark.parametrize(("make", "text"), MADE, ids=[text[:40] for _, text in MADE])
def test_bad_rules_are_refused_where_they_are_made(make, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()
