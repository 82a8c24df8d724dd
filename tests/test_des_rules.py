"""Preemption, warm-up, and options that are refused."""

import re

import numpy as np
import pytest
from fleets import make_profile
from simulated import CHUNKED, LINK, fleet, run

import des
import des.experiment
import jaxsim
from des import Failures, KvTransfer, Schedule, Serving
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload


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
