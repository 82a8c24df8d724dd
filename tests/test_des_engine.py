"""Invariants of the event engine: what must hold whatever the numbers are."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from playing import flat_work, kinds_of, one_pool, play_one, play_parts
from serving_strategies import make_profile

from des import _engine, _state, _time, lower
from des._jit import FINGERPRINT
from des.play import PrefixBlocks, Rules, Stream
from des.serving import Serving
from jaxsim.fleet import FleetDesign
from jaxsim.physics import RequestWork, total_steps

TESTS = Path(__file__).parent


def random_run(replicas=3, number=4000, rate=9.0, seed=5, max_active=6, kv_blocks=40, **options):
    """The kinds of requests of every shape, and what became of a stream of them."""
    rng = np.random.default_rng(seed)
    rows = 60
    work = RequestWork(
        rng.integers(0, 4, rows) * 1.0,
        rng.uniform(0.001, 0.01, rows),
        rng.uniform(0.0, 0.0005, rows),
        rng.uniform(0.001, 0.01, rows),
        rng.integers(0, 60, rows) * 1.0,
        rng.uniform(0.001, 0.003, rows),
        rng.uniform(0.0, 0.00005, rows),
    )
    kinds = kinds_of(work, rng.integers(1, 16, rows))
    arrival_s = np.cumsum(rng.exponential(1 / rate, number))
    fleet = one_pool(max_active=max_active, kv_blocks=kv_blocks, replicas=replicas)
    return kinds[0], play_one(fleet, kinds, arrival_s, rng.integers(0, rows, number), **options)


@pytest.mark.parametrize(("max_active", "kv_blocks"), [(6, 40), (3, 10**6), (50, 30), (1, 16)])
def test_no_room_is_left_idle_while_requests_wait(max_active, kv_blocks):
    """At every boundary with a queue, the head of the queue does not fit; and the queue is first come, first served."""
    kinds, (records, *_) = random_run(rate=20.0, max_active=max_active, kv_blocks=kv_blocks)
    blocks = kinds["blocks"][records["row"]]
    waited = 0
    for r in range(3):
        mine = np.flatnonzero(records["replica"] == r)
        admit, end, arrival = (records[name][mine] for name in ("admit_s", "end_s", "sent_s"))
        assert np.all(np.diff(admit) >= 0)
        for instant in np.union1d(admit, end):
            running = (admit <= instant) & (instant < end)
            queued = np.flatnonzero((arrival <= instant) & (instant < admit))
            used = blocks[mine][running].sum()
            assert running.sum() <= max_active
            assert used <= kv_blocks
            if len(queued) > 0:
                waited += 1
                assert running.sum() == max_active or used + blocks[mine][queued[0]] > kv_blocks
    assert waited > 100


def test_every_request_is_served_once_and_in_order():
    kinds, (records, *_) = random_run()
    assert np.all(records["admit_s"] >= records["sent_s"])
    assert np.all(records["first_s"] > records["admit_s"])
    decode = kinds["decode_steps"][records["row"]]
    assert np.all((records["end_s"] > records["first_s"]) == (decode > 0))
    assert np.all((records["replica"] >= 0) & (records["replica"] < 3))
    np.testing.assert_array_equal(records["number"], np.arange(4000))
    for untouched in ("preemptions", "retries", "prefill_steps"):
        assert not records[untouched].any()


def test_noting_every_event_changes_nothing():
    """A closed loop that never waits: the same figures, and what only eventful runs note."""
    plain = random_run()[1]
    noted = random_run(rules=Rules(concurrency=10**6))[1]
    for name in ("number", "row", "sent_s", "admit_s", "first_s", "end_s", "replica", "steps", "preemptions"):
        np.testing.assert_array_equal(noted.records[name], plain.records[name])
    np.testing.assert_array_equal(noted.totals, plain.totals)
    for name in ("due_s", "arrive_s"):
        np.testing.assert_array_equal(noted.records[name], plain.records["sent_s"])


def test_busy_time_is_the_time_with_requests():
    """The loop's totals against the union of the requests' intervals, and Little's law against both."""
    kinds, (records, totals, _) = random_run()
    busy, active_integral = 0.0, 0.0
    for r in range(3):
        mine = records["replica"] == r
        times = np.concatenate([records["admit_s"][mine], records["end_s"][mine]])
        change = np.concatenate([np.ones(mine.sum()), -np.ones(mine.sum())])
        order = np.argsort(times, kind="stable")
        active = np.cumsum(change[order])[:-1]
        gaps = np.diff(times[order])
        busy += gaps[active > 0].sum()
        active_integral += (active * gaps).sum()
    residence = records["end_s"] - records["admit_s"]
    assert totals[0]["busy_s"].sum() == pytest.approx(busy, rel=1e-9)
    assert active_integral == pytest.approx(residence.sum(), rel=1e-9)
    assert totals[0]["active_s"].sum() == pytest.approx(active_integral, rel=1e-9)
    held = kinds["blocks"][records["row"]] @ residence
    assert totals[0]["block_s"].sum() == pytest.approx(held, rel=1e-9)


def test_queued_time_is_the_time_of_waiting():
    """But for the rest of a step, which a request that fits is not queued for; and in the end nobody waits."""
    _, (records, totals, _) = random_run(rate=20.0, window_s=(0.0, 1e4))
    wait = (records["admit_s"] - records["sent_s"]).sum()
    queued = -totals[0]["queued_s"].sum()
    assert totals[0]["queued"].sum() == totals[0]["before"].sum() == 0.0
    assert 1000.0 < queued < wait < queued + 1.0


def test_steps_are_counted():
    """One request at a time: the engine runs exactly its steps."""
    kinds, (records, totals, _) = random_run(max_active=1)
    work = RequestWork(*(kinds[name][records["row"]] for name in RequestWork._fields))
    np.testing.assert_array_equal(records["steps"], total_steps(work))
    assert totals[0]["steps"].sum() == pytest.approx(total_steps(work).sum(), rel=1e-9)


def test_totals_are_shared_among_the_windows_of_the_measured_time():
    """A hundred steps of 0.01 s from 0, measured from 0.3 to 0.7: each of twenty windows has two of them."""
    totals = play_one(one_pool(), kinds_of(flat_work([1], [99], [0.0])), [0.0], window_s=(0.3, 0.7)).totals[0]
    assert len(totals) == 20
    np.testing.assert_allclose(totals["steps"], 2.0)
    np.testing.assert_allclose(totals["busy_s"], 0.02)


def test_full_time_is_counted_only_while_a_request_is_refused():
    fleet, kinds = one_pool(max_active=2), kinds_of(flat_work([1], [9], [0.0]))
    assert play_one(fleet, kinds, np.arange(5) * 10.0 + 0.005).totals["full_s"].sum() == 0.0
    totals = play_one(fleet, kinds, np.zeros(4)).totals
    assert totals["full_s"].sum() == pytest.approx(0.1)
    assert totals["full_steps"].sum() == 20.0


def test_equally_loaded_replicas_take_turns():
    """Far apart, every arrival finds all idle: the one idle for longest is next, and all are used alike."""
    records = play_one(one_pool(replicas=7), kinds_of(flat_work([1], [3], [0.0])), np.arange(70) * 1.0).records
    np.testing.assert_array_equal(records["replica"], np.arange(70) % 7)


def test_dispatch_goes_to_the_least_load_with_active_requests_counted():
    kinds = kinds_of(flat_work([1, 1], [10_000, 3], [0.0, 0.0]))
    row = [0, 0, 1, 1, 1, 1]
    records = play_one(one_pool(replicas=3, max_active=100), kinds, np.arange(6) * 1.0, row).records
    np.testing.assert_array_equal(records["replica"], [0, 1, 2, 2, 2, 2])


def test_a_departure_at_the_instant_of_an_arrival_comes_first():
    """Boundaries in quarters, exact in floats: the slot freed at 1.0 is taken by the request that arrives at 1.0."""
    fleet = one_pool(base_s=0.25, max_active=1, replicas=2)
    records = play_one(fleet, kinds_of(flat_work([1], [3], [0.0])), [0.0, 0.5, 1.0]).records
    np.testing.assert_array_equal(records["replica"], [0, 1, 0])
    np.testing.assert_array_equal(records["admit_s"], [0.0, 0.5, 1.0])


def test_step_ends_at_one_instant_go_by_replica_number():
    """Replicas 0 and 1 empty at the same instant; so 0 has been idle "for longer" and is next."""
    fleet = one_pool(base_s=0.25, max_active=2, replicas=2)
    kinds = kinds_of(flat_work([1, 1], [7, 3], [0.0, 0.0]))
    records = play_one(fleet, kinds, [0.0, 1.0, 3.0, 3.0], [0, 1, 1, 1]).records
    assert records["end_s"][0] == records["end_s"][1] == 2.0
    np.testing.assert_array_equal(records["replica"], [0, 1, 0, 1])


def test_sums_do_not_drift():
    """A hundred thousand requests on an engine that never empties: sums computed anew at every event or never."""
    number = 2_000 if numba.config.DISABLE_JIT else 100_000
    options = {"replicas": 1, "number": number, "rate": 60.0, "max_active": 30, "kv_blocks": 10**6}
    ends = [random_run(**options, refresh_steps=steps)[1].records["end_s"] for steps in (1, 10**12)]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-11)
    assert np.any(ends[0] != ends[1])


def test_the_boundary_of_an_arrival_is_found_to_the_last_bit():
    """An arrival at the very float of boundary k joins there, one at the next float a step later."""
    rng = np.random.default_rng(2)
    rep = np.zeros(1, dtype=_state.REPLICA)[0]
    for _ in range(300):
        rep["base_s"], rep["work_s"], rep["growth_s"] = rng.uniform(0, [0.1, 0.3, 0.001])
        rep["growth_s"] *= rng.integers(0, 2)
        rep["clock_s"] = rng.choice([0.0, 1e3, 1e7]) * rng.uniform()
        rep["ahead"] = 10**5
        k = int(rng.integers(1, 10) ** rng.integers(1, 5))
        boundary = rep["clock_s"] + _time.span(rep, k)
        assert _time.steps_until(rep, boundary) == k
        assert _time.steps_until(rep, np.nextafter(boundary, np.inf)) == k + 1


def test_a_request_with_enormous_prompt_and_output():
    """Sixteen million steps ahead is one event."""
    records = play_one(one_pool(base_s=1.0), kinds_of(flat_work([2**23], [2**23], [0.5])), [0.0, 2.0]).records
    assert records["first_s"][0] == 2 * 1.5 + (2**23 - 2) * 2.0
    assert records["end_s"][0] == records["first_s"][0] + 2**23 * 2.0
    np.testing.assert_array_equal(records["steps"], 2**24)


def test_overload_is_followed_to_its_end():
    """All at once: more requests in flight than there are slots at first, and more results than the loop hands over."""
    number = 3_000 if numba.config.DISABLE_JIT else 200_000
    records = play_one(one_pool(max_active=2), kinds_of(flat_work([1], [9], [0.0])), np.zeros(number)).records
    np.testing.assert_allclose(records["end_s"], 0.1 * (1 + np.arange(number) // 2))


def test_an_empty_stream_and_an_empty_fleet():
    kinds = kinds_of(flat_work([1], [3], [0.0]))
    for replicas in (0, 1, 3):
        records, totals, _ = play_one(one_pool(replicas=replicas), kinds, [])
        assert len(records) == 0
        assert not totals["steps"].any()


def test_a_stream_may_be_cut_anywhere():
    """In parts of any size, empty ones too."""
    fleet, kinds = one_pool(max_active=3, replicas=2), kinds_of(flat_work([1, 2], [9, 30], [0.0, 0.002]))
    rng = np.random.default_rng(4)
    arrival_s, row = np.cumsum(rng.exponential(0.05, 500)), rng.integers(0, 2, 500)
    whole = play_one(fleet, kinds, arrival_s, row)
    pieces = (np.split(column, [0, 1, 1, 70, 499]) for column in (arrival_s, row, np.zeros(500, dtype=int)))
    cut = play_parts(fleet, kinds, [Stream(*part) for part in zip(*pieces, strict=True)])
    np.testing.assert_array_equal(cut.records, whole.records)
    np.testing.assert_array_equal(cut.totals, whole.totals)


def frozen(array):
    """What other libraries hand out: an array that cannot be written."""
    array = np.asarray(array).copy()
    array.flags.writeable = False
    return array


EVERY_RULE = [
    Rules(),
    Rules(serving=Serving(scheduling="chunked", max_num_batched_tokens=8, kv="grow", preemption="swap")),
    Rules(serving=Serving(kv="overflow"), dispatch="random", seed=2**31, concurrency=2, spill_pressure=2),
    Rules(dispatch="prefix-affinity", serving=Serving(prefix_cache_blocks=3)),
    Rules(transfer=(0, 1), seed=2**70),
]


@pytest.mark.parametrize("given", [np.asarray, frozen])
def test_the_loop_is_compiled_once(given):
    """One signature serves conventions, pools, replicas, rules, and arrays that are not ours."""
    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled with NUMBA_DISABLE_JIT=1")
    design = FleetDesign.of(make_profile(), [1, 2], [20, 20])
    stream = Stream(given([0.0, 1.0]), given([0, 1]), given([0, 0]))
    blocks = PrefixBlocks(given(np.array([7, 8, 9], dtype=np.int32)), given([0, 1, 3]), 4)
    timeline = given(np.array([(0.5, 1, _state.DRAIN)], dtype=_state.TIMELINE))
    for convention in ("step", "kimura"):
        for rules in EVERY_RULE:
            if convention == "kimura" and (rules.serving.kv == "grow" or rules.transfer):
                continue
            disaggregated = rules.transfer is not None
            fleet = lower.lower_fleet(design, convention, rules.serving, disaggregated=disaggregated)
            lengths = given([3.0, 9.0]), given([2.0, 5.0])
            kinds = lower.lower_kinds(fleet, *lengths, given(np.ones((2, 2), dtype=bool)), rules.serving)
            changed = Rules(**{**vars(rules), "blocks": blocks, "timeline": timeline})
            play_parts(fleet, given(kinds), [stream], changed, gaps=disaggregated, window_s=(0, 1))
    random_run(number=10)
    assert len(_engine.run.signatures) == 1
    assert FINGERPRINT in _engine.run.py_func.__qualname__


def test_another_process_finds_the_compiled_loop():
    """Compiled here under the type-checking hook, loaded there without it."""
    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled with NUMBA_DISABLE_JIT=1")
    random_run(number=10)
    code = (
        "from playing import *; from des._engine import run\n"
        "play_one(one_pool(), kinds_of(flat_work([1], [3], [0.0])), [0.0, 0.0, 1.0])\n"
        "print(sum(run.stats.cache_hits.values()), sum(run.stats.cache_misses.values()))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["1", "0"], done.stderr


def test_plain_python_plays_the_same_game():
    """The engine's tests, and a few examples against the stepper, without the compiler in a process of their own."""
    if numba.config.DISABLE_JIT:
        pytest.skip("this is that process")
    files = [str(TESTS / f"test_des_{name}.py") for name in ("reference", "engine")]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:randomly", *files]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout[-4000:]
