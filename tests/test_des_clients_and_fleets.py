"""Clients that wait for answers, and replicas that come and go."""

import numpy as np
import pytest
from simulated import fleet, overlap, run, same_figures, window

from des import Failures, Schedule
from jaxsim.workload import Workload


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
