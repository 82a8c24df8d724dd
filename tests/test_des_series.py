"""Gaps between tokens, and occupancy and queues over time, by invariants."""

import numpy as np
import pytest
from simulated import CHUNKED, fleet, overlap, run, stretches, window

from des import Serving
from jaxsim.workload import Workload

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


def test_active_share_is_the_time_at_each_number_running():
    """Against the requests' own times: who is admitted and not ended runs. Its mean is `mean_active`."""
    result = run(fleet(2), rate=30.0, num_requests=4_000)
    pool = result.pools[0]
    share = pool.active_share
    assert share.sum() == pytest.approx(1.0) and (share >= 0).all()
    assert 2 * (share @ np.arange(len(share))) == pytest.approx(pool.mean_active, rel=1e-9)
    table = result.requests_table()
    since, until = window(result)
    seconds = np.zeros(len(share))
    for replica in (0, 1):
        rows = table["replica"] == replica
        for replication in np.unique(table["replication"]):
            these = rows & (table["replication"] == replication)
            instants = np.concatenate([table["admit_s"][these], table["end_s"][these], [since, until]])
            change = np.repeat([1, -1, 0], [these.sum(), these.sum(), 2])
            order = np.argsort(instants, kind="stable")
            level, edges = np.cumsum(change[order]), np.clip(instants[order], since, until)
            np.add.at(seconds, level[:-1], np.diff(edges))
    np.testing.assert_allclose(share, seconds / seconds.sum(), atol=2e-3)
