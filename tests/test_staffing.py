"""Who is there when: lead times, holds and bridges against brute force, and reservations against every choice."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optim.schedule_cost import GpuPrices, day_cost, fleet_hours, usd_by_interval
from optim.staffing import always, reserve, staffing

HOUR = 3600.0


@st.composite
def days(draw):
    """A need over intervals of whole lengths, a cold start, a hold, and whether the day repeats."""
    pools = draw(st.integers(1, 2))
    needed = draw(st.lists(st.lists(st.integers(0, 3), min_size=pools, max_size=pools), min_size=2, max_size=7))
    lengths = draw(st.lists(st.integers(1, 4), min_size=len(needed), max_size=len(needed)))
    halves = [0.5 * draw(st.integers(0, most)) for most in (12, 8)]
    return np.array(needed), np.append(0.0, np.cumsum(lengths)), *halves, draw(st.booleans())


def at(needed, edges, time):
    return needed[np.clip(np.searchsorted(edges, time, side="right") - 1, 0, len(needed) - 1)]


@settings(max_examples=150, deadline=None)
@given(days())
def test_what_is_needed_is_there_at_every_instant(day):
    """And after it for the hold, and every replica was ordered a cold start before its first request."""
    needed, edges, cold, hold, repeat = day
    made = staffing(needed, edges, cold_start_s=cold, hold_s=hold, repeat=repeat)
    time = np.linspace(0.0, edges[-1], 1201)[:-1] + 1e-6
    running = made.running(time)
    assert (running >= at(needed, edges, time)).all()
    before = time - hold * (1.0 - 1e-9)
    held = at(needed, edges, np.mod(before, edges[-1]) if repeat else np.maximum(before, 0.0))
    assert (running >= held).all()
    for levels in made.pools:
        for run in (run for runs in levels for run in runs):
            assert run.ready_s - run.order_s in (0.0, cold) and run.release_s > run.ready_s
        kept = [sum(run.billed_s for run in runs) for runs in levels]
        assert kept == sorted(kept, reverse=True) and max(kept, default=0.0) <= made.paid_s + 1e-9


@settings(max_examples=100, deadline=None)
@given(days())
def test_the_stretches_add_up_to_the_bill(day):
    needed, edges, cold, hold, repeat = day
    made = staffing(needed, edges, cold_start_s=cold, hold_s=hold, repeat=repeat)
    cut = made.stretches(edges.tolist())
    pools = needed.shape[1]
    there = ((cut.running + cut.starting) * cut.lengths_s[:, None]).sum(axis=0)
    assert there == pytest.approx([made.billed_s(p).sum() for p in range(pools)])
    prices, gpus = [3.0, 5.0][:pools], [1.0, 4.0][:pools]
    each = usd_by_interval(made, edges, gpus, prices)
    assert each.sum() == pytest.approx(fleet_hours(made, gpus, prices).usd)


@pytest.mark.parametrize("repeat", [True, False])
@pytest.mark.parametrize("cold", [0, 1, 2, 3])
def test_nothing_cheaper_has_what_is_needed(cold, repeat):
    """Every way to be there or not in each hour, a start costing the cold start's hours, tried one by one."""
    rng = np.random.default_rng(7)
    for _ in range(12):
        need = rng.integers(0, 2, 8).astype(bool)
        if not need.any():
            continue
        made = staffing(need[:, None].astype(int), np.arange(9.0), cold_start_s=float(cold), repeat=repeat)
        least = np.inf
        for there in product([False, True], repeat=8):
            on = np.array(there)
            if (on | ~need).all():
                starts = int((on & ~np.append(on[-1] if repeat else False, on[:-1])).sum())
                least = min(least, on.sum() + cold * starts)
        assert made.billed_s(0)[0] == least, (need, cold, repeat)


def test_the_lead_time_by_hand():
    """2, 2, 3, 1 replicas over four hours, cold start of half an hour, once."""
    made = staffing(np.array([[2], [2], [3], [1]]), HOUR * np.arange(5), cold_start_s=1800.0, repeat=False)
    first, second, third = (runs for runs in made.pools[0])
    assert first == ((-1800.0, 0.0, 4 * HOUR),)
    assert second == ((-1800.0, 0.0, 3 * HOUR),)
    assert third == ((1.5 * HOUR, 2 * HOUR, 3 * HOUR),)
    hours = fleet_hours(made, [8.0], [2.5])
    assert hours.gpu_hours == (8 * (4.5 + 3.5 + 1.5),)
    assert hours.starting_gpu_hours == (8 * 1.5,) and hours.starts == (3,)
    assert hours.usd == pytest.approx(2.5 * 8 * 9.5)


def test_a_day_that_repeats_orders_the_evening_before():
    made = staffing(np.array([[1], [0], [0], [1]]), HOUR * np.arange(5), cold_start_s=600.0, repeat=True)
    assert made.pools[0] == (((3 * HOUR - 600.0, 3 * HOUR, 5 * HOUR),),)
    assert made.running(np.array([0.0, 0.9 * HOUR, 1.1 * HOUR, 2.99 * HOUR, 3.0 * HOUR])).ravel().tolist() == [
        1,
        1,
        0,
        0,
        1,
    ]
    assert made.billed_s(0) == pytest.approx([2 * HOUR + 600.0])


def test_a_short_gap_is_bridged_and_a_hold_counts():
    needed, edges = np.array([[1], [0], [1], [0]]), HOUR * np.arange(5)
    apart = staffing(needed, edges, cold_start_s=0.4 * HOUR, hold_s=0.5 * HOUR, repeat=False)
    assert len(apart.pools[0][0]) == 2 and apart.pools[0][0][0].release_s == 1.5 * HOUR
    bridged = staffing(needed, edges, cold_start_s=0.5 * HOUR, hold_s=0.5 * HOUR, repeat=False)
    assert bridged.pools[0][0] == ((-0.5 * HOUR, 0.0, 3.5 * HOUR),)
    assert always([2, 0], 4 * HOUR, cold_start_s=600.0, repeat=True).most == (2, 0)


def test_reservations_against_every_set_of_replicas():
    rng = np.random.default_rng(5)
    for _ in range(40):
        billed = np.sort(rng.uniform(0.0, 24.0, rng.integers(0, 7)))[::-1]
        reserved, demanded = rng.uniform(0.2, 3.0, 2)
        found = reserve(billed, 24.0, reserved_usd_per_s=reserved, on_demand_usd_per_s=demanded)
        least = min(
            sum(reserved * 24.0 if kept else demanded * hours for kept, hours in zip(chosen, billed, strict=True))
            for chosen in product([False, True], repeat=len(billed))
        )
        assert found.usd[found.replicas] == pytest.approx(least)
        assert found.replicas == int((demanded * billed > reserved * 24.0 + 1e-12).sum())


def test_the_cost_of_both_fleets_by_hand():
    """One pool of two-GPU replicas: 1 replica for 18 h, 3 for 6 h; $3 on demand, $2 reserved, no cold start."""
    needed, edges = np.array([[1], [3]]), HOUR * np.array([0.0, 18.0, 24.0])
    moving = staffing(needed, edges, cold_start_s=0.0, repeat=True)
    cost = day_cost(always([3], 24 * HOUR, cold_start_s=0.0, repeat=True), moving, [2.0], GpuPrices((3.0,), (2.0,)))
    assert cost.static.usd == 3 * 24 * 2 * 3.0 and cost.static_reserved_usd == 3 * 24 * 2 * 2.0
    assert cost.scheduled.usd == (24 + 2 * 6) * 2 * 3.0
    assert cost.reserved[0].replicas == 1 and cost.breakeven == (pytest.approx(2 / 3),)
    assert cost.split_usd == 24 * 2 * 2.0 + 2 * 6 * 2 * 3.0
    assert cost.cheapest == ("schedule with reservations", cost.split_usd)
    alone = day_cost(always([3], 24 * HOUR, cold_start_s=0.0, repeat=True), moving, [2.0], GpuPrices((3.0,)))
    assert (alone.split_usd, alone.reserved, alone.breakeven) == (None, None, None)
    assert alone.cheapest == ("schedule on demand", cost.scheduled.usd)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cold_start_s": -1.0}, "cold_start_s must be >= 0"),
        ({"hold_s": np.inf}, "hold_s must be >= 0 and finite"),
        ({"needed": np.array([[1], [-1]])}, "needed must be >= 0"),
        ({"edges_s": np.array([0.0, 1.0])}, "the number of edges_s must be 3, got 2"),
    ],
)
def test_bad_staffings_are_refused(changes, says):
    given = {"needed": np.array([[1], [2]]), "edges_s": np.array([0.0, 1.0, 2.0]), "cold_start_s": 0.1, "hold_s": 0.0}
    with pytest.raises(ValueError, match=says):
        values = given | changes
        staffing(values.pop("needed"), values.pop("edges_s"), repeat=True, **values)


def test_bad_prices_are_refused():
    with pytest.raises(ValueError, match="on_demand must be > 0"):
        GpuPrices((0.0,))
    with pytest.raises(ValueError, match="the number of reserved must be 2, one a pool, got 1"):
        GpuPrices((1.0, 2.0), (1.0,))
