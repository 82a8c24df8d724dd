"""Prefill and decode in pools of their own, over one link."""

import numpy as np
import pytest
from fleets import small_workload
from simulated import LINK, fleet, overlap, run, window

from des import KvTransfer

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
