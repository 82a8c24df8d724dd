"""Caps in the simulator, events, and what a fleet can give to the grid."""

import dataclasses
import functools

import numpy as np
import pytest
from fleets import H100, make_profile, small_workload
from simulated import CHUNKED, fleet, run, same_figures

import des
import jaxsim
from des import Caps, Serving
from jaxsim.energy import design_power
from jaxsim.fleet import FleetDesign
from optim.power_event import Event, Flow, Setting, fluid_wait, play_event, simulated_watts
from optim.power_flex import flexibility
from optim.problem import SLO

# --- caps


RULES = {
    "independent": Serving(),
    "chunked": CHUNKED,
    "prefill-first": Serving(scheduling="prefill-first", max_num_batched_tokens=8192),
    "grow": Serving(scheduling="chunked", max_num_batched_tokens=512, kv="grow"),
    "overflow": Serving(kv="overflow"),
}


def cap_from_start(cap, pools=1):
    """On from time 0 for good."""
    return Caps(time_s=[0.0] * pools, pool=range(pools), max_active=[cap] * pools)


@pytest.mark.parametrize("rules", RULES)
def test_a_cap_from_the_start_is_a_profile_with_fewer_sequences(rules):
    """Event for event: the same latencies."""
    options = {"rate": 30.0, "num_requests": 6_000, "serving": RULES[rules]}
    held = run(fleet(2), caps=cap_from_start(9), **options)
    small = run(fleet(2, max_num_seqs=9), **options)
    assert max(held.pools[0].active_share.nonzero()[0]) == 9
    for metric in ("ttft", "tpot", "e2e"):
        np.testing.assert_array_equal(getattr(held, metric).values, getattr(small, metric).values)


def test_a_cap_at_the_limit_changes_nothing():
    options = {"rate": 40.0, "num_requests": 6_000}
    for cap in (64, np.inf):
        same_figures(run(fleet(2), caps=Caps.event(10.0, 50.0, [cap]), **options), run(fleet(2), **options), 0.0)


@pytest.fixture(scope="module")
def event():
    """A cap of 5 from 30 s to 60 s, on engines that run more, beside the same run without."""
    options = {"rate": 70.0, "num_requests": 7_000, "warmup_fraction": 0.0}
    return tuple(run(fleet(3), caps=caps, **options) for caps in (Caps.event(30.0, 60.0, [5]), None))


def test_nothing_before_an_event_knows_of_it(event):
    held, free = (one.requests_table() for one in event)
    before = free["end_s"] < 30.0
    assert before.sum() > 500
    for column in ("admit_s", "first_s", "end_s", "replica"):
        np.testing.assert_array_equal(held[column][before], free[column][before])


def test_an_event_holds_every_replica_to_its_cap(event):
    """Of those queued in it, whoever is admitted makes the fifth at most; and some replica ran more before."""
    held, free = (one.requests_table() for one in event)

    def running(table, at):
        mates = table["replica"] == table["replica"][at]
        now = table["admit_s"][at]
        return int((mates & (table["admit_s"] <= now) & (table["end_s"] > now)).sum())

    inside = np.flatnonzero((held["queued_s"] >= 30.0) & (held["admit_s"] < 60.0))
    assert len(inside) > 200
    counts = [running(held, at) for at in inside]
    assert max(counts) == 5
    usual = np.flatnonzero((free["admit_s"] > 30.0) & (free["admit_s"] < 60.0))
    assert np.mean([running(free, at) for at in usual[:300]]) > 6.0


def test_who_waits_at_the_end_of_an_event_joins_at_once(event):
    held, _ = (one.requests_table() for one in event)
    waiting = (held["queued_s"] < 60.0) & (held["admit_s"] >= 60.0)
    for replica in range(3):  # at the end of the step in progress 59 more, and then each as another leaves
        admitted = np.sort(held["admit_s"][waiting & (held["replica"] == replica)])
        assert np.ptp(admitted[:59]) == 0.0
        assert admitted[0] < 60.03 < admitted[-1]
    assert not np.isnan(held["end_s"]).any()


def test_every_request_is_served_once_under_caps_that_come_and_go():
    times = np.arange(1.0, 60.0, 0.7).tolist()
    caps = Caps(time_s=times, pool=[0] * len(times), max_active=[[3, np.inf, 17, 1][k % 4] for k in range(len(times))])
    for serving in RULES.values():
        result = run(fleet(2), rate=30.0, num_requests=2_000, caps=caps, serving=serving)
        assert result.unfinished == 0
        assert result.pools[0].active_share.sum() == pytest.approx(1.0)


def test_pools_are_capped_apart():
    design = FleetDesign.of([make_profile()] * 2, [1.0, 1.0], [1500.0, 8000.0])
    result = run(design, rate=60.0, num_requests=8_000, caps=Caps(time_s=[0.0], pool=[1], max_active=[4]))
    most = [int(np.flatnonzero(pool.active_share).max()) for pool in result.pools]
    assert most[1] == 4 < most[0]


BAD_CAPS = [
    ({"time_s": [0.0, 1.0], "pool": [0], "max_active": [3]}, "one entry per row"),
    ({"time_s": [-1.0], "pool": [0], "max_active": [3]}, "caps time_s must be >= 0"),
    ({"time_s": [2.0, 1.0], "pool": [0, 0], "max_active": [3, 3]}, "caps time_s must be ascending"),
    ({"time_s": [0.0], "pool": [0], "max_active": [0]}, "caps max_active must be whole numbers >= 1, or inf"),
    ({"time_s": [0.0], "pool": [0], "max_active": [2.5]}, "caps max_active must be whole numbers >= 1, or inf"),
    ({"time_s": [0.0], "pool": [1], "max_active": [3]}, "caps pool must be from 0 to 0"),
    ({"time_s": [0.0], "pool": [0], "max_active": [65]}, "caps max_active must be <= 64, the limit of pool 0"),
]


@pytest.mark.parametrize(("arguments", "text"), BAD_CAPS)
def test_caps_that_make_no_sense_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        run(fleet(1), rate=1.0, num_requests=10, caps=Caps(**arguments))


def test_an_event_ends_after_it_starts():
    with pytest.raises(ValueError, match=r"end_s of a caps event must be > start_s \(5\), got 5"):
        Caps.event(5.0, 5.0, [3])


# --- events


def one_pool(replicas, profile=H100):
    """A pool of the small workload."""
    return FleetDesign.of(profile, [float(replicas)], [8000.0])


def test_power_of_a_simulated_fleet_by_hand():
    """An engine that is always full draws the power of its cap, and one without load idles."""
    design = one_pool(1)
    power = design_power(design.profile)
    full = des.simulate(design, small_workload(), rate=500.0, num_requests=20_000, caps=cap_from_start(10))
    assert simulated_watts(full, [1.0], power) == pytest.approx(
        300 + 300 / (1 + np.exp(-(np.log2(10) - 4.2))), rel=2e-3
    )
    idle = des.simulate(design, small_workload(), rate=0.01, num_requests=1_000)
    assert simulated_watts(idle, [8.0], power) == pytest.approx(8 * 300.0, rel=1e-3)


def test_replicas_that_are_off_draw_nothing():
    design, event = one_pool(8), Event(20.0, 60.0)
    power = design_power(design.profile)
    on, half = (play_event(design, small_workload(), 4.0, event, power, Setting(None, (n,)), seed=2) for n in (8, 4))
    assert half.watts == pytest.approx(0.5 * on.watts, rel=0.01)
    assert half.watts >= 4 * 300.0 - 1e-6


def test_the_fluid_by_hand():
    """Twice what is admitted for 100 s: who comes at s waits s, or until the end at 100 s if that is sooner."""
    open_gate = Flow(rate=10.0, curtailed_rate=5.0, later_rate=20.0, burst=1e9)
    assert fluid_wait([open_gate], 100.0) == pytest.approx(0.99 * 50.0, abs=0.02)
    stuck = Flow(rate=10.0, curtailed_rate=5.0, later_rate=5.0, burst=0.0)
    assert fluid_wait([stuck], 100.0) == pytest.approx(99.0, abs=0.02)
    slow = Flow(rate=10.0, curtailed_rate=5.0, later_rate=20.0, burst=0.0)
    assert 0.99 * 50.0 < fluid_wait([slow], 100.0) < 99.0
    assert fluid_wait([Flow(10.0, 11.0, 20.0, 0.0)], 100.0) == 0.0
    assert fluid_wait([stuck, Flow(990.0, 2_000.0, 2_000.0, 0.0)], 100.0) == pytest.approx(0.0, abs=0.1)


# --- flexibility


@functools.cache
def flex(lever):
    """Ten H100s under a light load."""
    design = one_pool(10)
    return flexibility(
        design,
        small_workload(),
        100.0,
        design_power(design.profile),
        shares=[0.0, 0.03, 0.08, 0.4],
        event_s=120.0,
        slo=SLO(ttft_p99_s=0.5, tpot_p99_s=0.05),
        lever=lever,
        seed=1,
    )


def test_the_simulator_is_delivered_what_the_model_says():
    """(b) by simulation: power falls by the share that the whole setting is to deliver, and that is what was asked."""
    for lever in ("cap", "off"):
        found = flex(lever)
        assert float(found.now.watts) == pytest.approx(found.undisturbed.watts, rel=0.01)
        for level in found.levels:
            simulated = 1.0 - level.event.watts / found.undisturbed.watts
            assert simulated == pytest.approx(level.delivered, abs=0.01)
            assert level.delivered >= level.share - 1e-9 or not level.reachable
            assert level.reachable == (level.share <= found.most)


def test_a_cap_backs_up_and_the_fluid_says_how_far():
    """(c) sustained there is no P99; the event has one, and both ways to it agree."""
    found = flex("cap")
    free, *held, beyond = found.levels
    assert free.setting.caps is None
    assert not beyond.reachable
    assert beyond.setting.caps == (1.0,)
    for level in held:
        assert level.utilization > 1.0
        assert level.ttft_p99_s == np.inf
        assert level.setting.caps[0] <= level.real_caps[0] < level.setting.caps[0] + 1.0
        assert level.event.ttft_p99_s.value == pytest.approx(level.event_ttft_p99_s, rel=0.1)
    assert free.event.ttft_p99_s.value == pytest.approx(free.ttft_p99_s, rel=0.1)


def test_switching_off_keeps_the_slo_where_a_cap_cannot():
    off, cap = flex("off"), flex("cap")
    assert cap.event_safe.safe < 0.01
    assert off.event_safe.safe > 0.3
    assert off.sustained_safe.safe > 0.3


@pytest.mark.parametrize("lever", ["cap", "off"])
def test_the_safe_level_is_safe_and_the_next_is_not(lever):
    found = flex(lever)
    level = found.event_safe
    assert level.safe < level.unsafe <= 1.0
    power = design_power(found.design.profile)

    def p99(setting):
        return play_event(found.design, found.workload, found.rate, found.event, power, setting, seed=1).ttft_p99_s

    assert p99(level.setting).high <= found.slo.ttft_p99_s
    if lever == "off":
        (on,) = level.setting.replicas
        less = dataclasses.replace(level.setting, replicas=(on - 1,))
        judged = play_event(found.design, found.workload, found.rate, found.event, power, less, seed=1)
        assert judged.ttft_p99_s.high > found.slo.ttft_p99_s or judged.tpot_p99_s.high > found.slo.tpot_p99_s


def test_pools_give_the_same_share():
    profile = jaxsim.profile("a100-80gb")
    design = FleetDesign.of([H100, profile], [3.0, 4.0], [1500.0, 8000.0])
    power = design_power(design.profile)
    found = flexibility(design, small_workload(), 60.0, power, shares=[0.1], event_s=60.0, simulate=False, lever="cap")
    (level,) = found.levels
    assert level.event is None
    assert found.event_safe is None
    assert len(level.real_caps) == 2
    assert level.delivered >= 0.1


def test_a_start_up_after_the_event_is_waited_for():
    design, event = one_pool(4), Event(10.0, 60.0)
    power = design_power(design.profile)
    soon, late = (
        play_event(design, small_workload(), 60.0, event, power, Setting(None, (1,)), startup_s=s, seed=1)
        for s in (0.0, 300.0)
    )
    assert soon.watts == pytest.approx(late.watts, rel=1e-9)


BAD = [
    ({"shares": [1.0]}, r"shares must be in \[0, 1\)"),
    ({"event_s": 0.0}, "event_s must be > 0"),
    ({"lever": "dim"}, "unknown lever 'dim'"),
    ({"rate": 1e5}, "overloaded as it is"),
]


@pytest.mark.parametrize(("change", "text"), BAD)
def test_bad_arguments_are_refused(change, text):
    given = {"rate": 50.0, "shares": [0.1], "event_s": 60.0, "simulate": False} | change
    design = one_pool(4)
    with pytest.raises(ValueError, match=text):
        flexibility(design, small_workload(), given.pop("rate"), design_power(design.profile), **given)
