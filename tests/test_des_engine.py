"""Invariants of the event engine: what must hold whatever the numbers are."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from test_des_reference import make_profile

from des import _engine, lower
from des._jit import FINGERPRINT
from des.lower import Fleet, Stream, kinds_table, play
from des.routing import route_by_length
from jaxsim.fleet import FleetDesign
from jaxsim.physics import RequestWork, total_steps
from jaxsim.workload import Workload


def flat_work(prefill, decode, work_s):
    """Requests that add the same work in all their steps."""
    prefill, decode, work_s = np.broadcast_arrays(*(np.asarray(v, float) for v in (prefill, decode, work_s)))
    zero = np.zeros_like(work_s)
    return RequestWork(prefill - 1.0, work_s, zero, work_s, decode, work_s, zero)


def one_pool(base_s=0.01, max_active=4, kv_blocks=10**6, replicas=1):
    return Fleet(np.array([base_s]), np.array([max_active]), np.array([kv_blocks]), np.array([replicas]))


def random_run(replicas=3, number=4000, rate=9.0, seed=5, max_active=6, kv_blocks=40, **options):
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
    kinds = kinds_table(work, rng.integers(1, 16, rows) * 1.0, np.zeros(rows, dtype=int))
    stream = Stream(np.cumsum(rng.exponential(1 / rate, number)), rng.integers(0, rows, number))
    fleet = one_pool(max_active=max_active, kv_blocks=kv_blocks, replicas=replicas)
    return fleet, kinds, stream, play(fleet, kinds, stream, **options)


@pytest.mark.parametrize(("max_active", "kv_blocks"), [(6, 40), (3, 10**6), (50, 30), (1, 16)])
def test_no_room_is_left_idle_while_requests_wait(max_active, kv_blocks):
    """At every boundary with a queue, the head of the queue does not fit; and the queue is first come, first served."""
    _fleet, kinds, stream, history = random_run(rate=20.0, max_active=max_active, kv_blocks=kv_blocks)
    blocks = kinds["blocks"][stream.kind]
    waited = 0
    for r in range(3):
        mine = np.flatnonzero(history.replica == r)
        admit, end, arrival = history.admit_s[mine], history.end_s[mine], stream.arrival_s[mine]
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
    _, kinds, stream, history = random_run()
    assert np.all(history.admit_s >= stream.arrival_s)
    assert np.all(history.first_s > history.admit_s)
    decode = kinds["decode_steps"][stream.kind]
    assert np.all((history.end_s > history.first_s) == (decode > 0))
    assert np.all((history.replica >= 0) & (history.replica < 3))


def test_busy_time_is_the_time_with_requests():
    """The loop's totals against the union of the requests' intervals, and Little's law against both."""
    _, _kinds, _stream, history = random_run()
    busy, active_integral = 0.0, 0.0
    for r in range(3):
        mine = history.replica == r
        times = np.concatenate([history.admit_s[mine], history.end_s[mine]])
        change = np.concatenate([np.ones(mine.sum()), -np.ones(mine.sum())])
        order = np.argsort(times, kind="stable")
        active = np.cumsum(change[order])[:-1]
        gaps = np.diff(times[order])
        busy += gaps[active > 0].sum()
        active_integral += (active * gaps).sum()
    totals = history.totals[0]
    assert totals["busy_s"].sum() == pytest.approx(busy, rel=1e-9)
    assert active_integral == pytest.approx((history.end_s - history.admit_s).sum(), rel=1e-9)


def test_steps_are_counted():
    """One request at a time: the engine runs exactly its steps."""
    _, kinds, stream, history = random_run(max_active=1)
    work = RequestWork(*(kinds[name][stream.kind] for name in RequestWork._fields))
    assert history.totals[0]["steps"].sum() == pytest.approx(total_steps(work).sum(), rel=1e-9)


def test_totals_are_shared_among_the_windows_of_the_measured_time():
    """A hundred steps of 0.01 s from 0, measured from 0.3 to 0.7: each of twenty windows has two of them."""
    kinds = kinds_table(flat_work([1], [99], [0.0]), np.zeros(1), np.zeros(1, dtype=int))
    totals = play(one_pool(), kinds, Stream(np.zeros(1), np.zeros(1, int)), window_s=(0.3, 0.7)).totals[0]
    np.testing.assert_allclose(totals["steps"], 2.0)
    np.testing.assert_allclose(totals["busy_s"], 0.02)


def test_full_time_is_counted_only_while_a_request_is_refused():
    fleet, kinds = (
        one_pool(max_active=2),
        kinds_table(flat_work([1], [9], [0.0]), np.zeros(1), np.zeros(1, int)),
    )
    apart = Stream(np.arange(5) * 10.0 + 0.005, np.zeros(5, int))
    assert play(fleet, kinds, apart).totals["full_s"].sum() == 0.0
    together = Stream(np.zeros(4), np.zeros(4, int))
    totals = play(fleet, kinds, together).totals
    assert totals["full_s"].sum() == pytest.approx(0.1)
    assert totals["full_steps"].sum() == 20.0


def test_equally_loaded_replicas_take_turns():
    """Far apart, every arrival finds all idle: the one idle for longest is next, and all are used alike."""
    fleet = one_pool(replicas=7)
    kinds = kinds_table(flat_work([1], [3], [0.0]), np.zeros(1), np.zeros(1, dtype=int))
    history = play(fleet, kinds, Stream(np.arange(70) * 1.0, np.zeros(70, dtype=int)))
    np.testing.assert_array_equal(history.replica, np.arange(70) % 7)


def test_dispatch_goes_to_the_least_load_with_active_requests_counted():
    fleet = one_pool(replicas=3, max_active=100)
    kinds = kinds_table(flat_work([1, 1], [10_000, 3], [0.0, 0.0]), np.zeros(2), np.zeros(2, dtype=int))
    kind = np.array([0, 0, 1, 1, 1, 1])
    history = play(fleet, kinds, Stream(np.arange(6) * 1.0, kind))
    np.testing.assert_array_equal(history.replica, [0, 1, 2, 2, 2, 2])


def test_a_departure_at_the_instant_of_an_arrival_comes_first():
    """Boundaries in quarters, exact in floats: the slot freed at 1.0 is taken by the request that arrives at 1.0."""
    fleet = one_pool(base_s=0.25, max_active=1, replicas=2)
    kinds = kinds_table(flat_work([1], [3], [0.0]), np.zeros(1), np.zeros(1, dtype=int))
    history = play(fleet, kinds, Stream(np.array([0.0, 0.5, 1.0]), np.zeros(3, dtype=int)))
    np.testing.assert_array_equal(history.replica, [0, 1, 0])
    np.testing.assert_array_equal(history.admit_s, [0.0, 0.5, 1.0])


def test_step_ends_at_one_instant_go_by_replica_number():
    """Replicas 0 and 1 empty at the same instant; so 0 has been idle "for longer" and is next."""
    fleet = one_pool(base_s=0.25, max_active=2, replicas=2)
    kinds = kinds_table(flat_work([1, 1], [7, 3], [0.0, 0.0]), np.zeros(2), np.zeros(2, dtype=int))
    stream = Stream(np.array([0.0, 1.0, 3.0, 3.0]), np.array([0, 1, 1, 1]))
    history = play(fleet, kinds, stream)
    assert history.end_s[0] == history.end_s[1] == 2.0
    np.testing.assert_array_equal(history.replica, [0, 1, 0, 1])


def test_sums_do_not_drift():
    """A hundred thousand requests on an engine that never empties: sums computed anew at every event or never."""
    number = 2_000 if numba.config.DISABLE_JIT else 100_000
    options = {"replicas": 1, "number": number, "rate": 60.0, "max_active": 30, "kv_blocks": 10**6}
    ends = [random_run(**options, refresh_steps=steps)[3].end_s for steps in (1, 10**12)]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-11)
    assert np.any(ends[0] != ends[1])


def test_the_boundary_of_an_arrival_is_found_to_the_last_bit():
    """An arrival at the very float of boundary k joins there, one at the next float a step later."""
    rng = np.random.default_rng(2)
    rep = np.zeros(1, dtype=_engine.REPLICA)[0]
    steps_until, span_s = (getattr(f, "py_func", f) for f in (_engine.steps_until, _engine.span_s))
    for _ in range(300):
        rep["base_s"], rep["work_s"], rep["growth_s"] = rng.uniform(0, [0.1, 0.3, 0.001])
        rep["growth_s"] *= rng.integers(0, 2)
        rep["clock_s"] = rng.choice([0.0, 1e3, 1e7]) * rng.uniform()
        rep["next_step"] = 10**5
        k = int(rng.integers(1, 10) ** rng.integers(1, 5))
        boundary = rep["clock_s"] + span_s(rep["base_s"], rep["work_s"], rep["growth_s"], float(k))
        assert steps_until(rep, boundary) == k
        assert steps_until(rep, np.nextafter(boundary, np.inf)) == k + 1


def test_a_request_with_enormous_prompt_and_output():
    """Sixteen million steps ahead is one event."""
    fleet = one_pool(base_s=1.0)
    kinds = kinds_table(flat_work([2**23], [2**23], [0.5]), np.zeros(1), np.zeros(1, dtype=int))
    history = play(fleet, kinds, Stream(np.array([0.0, 2.0]), np.zeros(2, dtype=int)))
    assert history.first_s[0] == 2 * 1.5 + (2**23 - 2) * 2.0
    assert history.end_s[0] == history.first_s[0] + 2**23 * 2.0


def test_overload_is_followed_to_its_end():
    fleet = one_pool(base_s=0.01, max_active=2)
    kinds = kinds_table(flat_work([1], [9], [0.0]), np.zeros(1), np.zeros(1, dtype=int))
    number = 500 if numba.config.DISABLE_JIT else 200_000
    history = play(fleet, kinds, Stream(np.zeros(number), np.zeros(number, dtype=int)))
    assert history.end_s[-1] == pytest.approx(0.1 * number / 2)


def test_an_empty_stream_and_an_empty_fleet():
    kinds = kinds_table(flat_work([1], [3], [0.0]), np.zeros(1), np.zeros(1, dtype=int))
    none = Stream(np.zeros(0), np.zeros(0, dtype=int))
    for replicas in (0, 1, 3):
        assert len(play(one_pool(replicas=replicas), kinds, none).end_s) == 0


def test_the_loop_is_compiled_once():
    """One signature serves conventions, pools and replicas; and its name holds the sources' fingerprint."""
    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled with NUMBA_DISABLE_JIT=1")
    workload = Workload.from_lengths([3, 9], [2, 5], arrival_s=[0.0, 1.0])
    for convention in ("step", "kimura"):
        design = FleetDesign.of(make_profile(), [1, 2], [6, 20])
        fleet = lower.lower_fleet(design, convention)
        routing = route_by_length(design, workload, max_active=fleet.max_active, free_blocks=fleet.kv_blocks)
        kinds = lower.lower_kinds(design, workload, routing, convention)
        play(fleet, kinds, Stream(workload.arrival_s, workload.arrival_row))
    random_run(number=10)
    assert len(_engine.run.signatures) == 1
    assert FINGERPRINT in _engine.run.py_func.__qualname__


def test_another_process_finds_the_compiled_loop():
    """Compiled here under the type-checking hook, loaded there without it."""
    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled with NUMBA_DISABLE_JIT=1")
    random_run(number=10)
    code = (
        "import numpy as np; from des import _engine; from des.lower import *\n"
        "kinds = np.zeros(1, dtype=_engine.KIND); kinds['decode_steps'] = 1\n"
        "fleet = Fleet(np.ones(1), np.array([4]), np.array([9]), np.array([1]))\n"
        "play(fleet, kinds, Stream(np.zeros(3), np.zeros(3, dtype=int)))\n"
        "print(sum(_engine.run.stats.cache_hits.values()), sum(_engine.run.stats.cache_misses.values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]


def test_plain_python_plays_the_same_game():
    """The engine's tests without the compiler, in a process of their own."""
    if numba.config.DISABLE_JIT:
        pytest.skip("this is that process")
    files = [str(Path(__file__).parent / f"test_des_{name}.py") for name in ("reference", "engine")]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:randomly", *files]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stdout[-4000:]
