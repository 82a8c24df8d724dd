"""The bound on waits under bursts: against closed forms, and against a queue that is the best there can be."""

import numpy as np
import pytest

from jaxsim.surge import surge

ONE = {"replica_rate": 2.0, "replica_sequences": 1.0}


def test_a_burst_above_the_cap_waits_for_its_backlog():
    """30 s at 10 a second against 2 x 2: 180 too many, less the 2 that run, at 4 a second."""
    found = surge([0, 30], [10.0, 1.0], end_s=200.0, max_replicas=2, **ONE)
    assert found.least_wait_s == pytest.approx(178.0 / 4.0, abs=0.05)
    assert found.waiting == pytest.approx(178.0, abs=0.1)
    assert found.at_s == pytest.approx(30.0, abs=0.05)
    assert (found.peak_rate, found.capped_rate, found.replicas_for_peak) == (10.0, 4.0, 5)
    assert not found.allows(5.0)
    assert "a cap of 2 replicas (4 requests/s at full batch) makes requests wait for 44.5 s" in found.text


def test_a_start_up_makes_the_first_requests_wait():
    """From nothing: whoever comes first waits for the start-up, and with room for all nobody waits longer."""
    found = surge([0], [3.0], end_s=500.0, max_replicas=4, initial_replicas=0, startup_s=60.0, **ONE)
    assert found.least_wait_s == pytest.approx(60.0, abs=0.1)
    assert found.at_s < 1.0
    assert "0 of them up at the start and the others 60 s later" in found.text


def test_a_fleet_large_enough_need_not_make_anyone_wait():
    found = surge([0, 50], [9.0, 1.0], end_s=100.0, max_replicas=5, **ONE)
    assert found.least_wait_s == 0.0
    assert found.allows(0.1)
    assert "has room" in found.text


def test_room_in_the_batch_takes_a_short_burst():
    """What runs at once does not wait, though it is above the rate of the fleet for as long as the burst lasts."""
    bursts = [
        surge([0, t], [6.0, 0.0], end_s=200.0, max_replicas=1, replica_rate=2.0, replica_sequences=100.0)
        for t in (20.0, 40.0)
    ]
    assert bursts[0].least_wait_s == 0.0
    assert bursts[1].least_wait_s == pytest.approx(60.0 / 2.0, abs=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_no_queue_undercuts_the_bound(seed):
    """Arrivals as even as the rates: c servers, each a request in exactly its time, first come, first served."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.5, 12.0, 5)
    edges = np.arange(6) * 40.0
    counts = np.append(0.0, np.cumsum(40.0 * rates))
    arrival = np.interp(np.arange(1, int(counts[-1])), counts, edges)
    free = np.zeros(3)
    longest = 0.0
    for instant in arrival:
        server = int(np.argmin(free))
        start = max(instant, free[server])
        longest = max(longest, start - instant)
        free[server] = start + 0.5
    found = surge(edges[:-1], rates, end_s=200.0, max_replicas=3, **ONE)
    assert found.least_wait_s <= longest + 0.1
    assert found.least_wait_s == pytest.approx(longest, abs=1.0)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"start_s": [1.0]}, "start_s\\[0\\] must be 0"),
        ({"start_s": [0.0, 5.0]}, "number of rate must be 2"),
        ({"rate": [-1.0]}, "rate must be >= 0"),
        ({"end_s": 0.0}, "must be ascending"),
        ({"replica_rate": 0.0}, "replica_rate must be > 0"),
        ({"replica_sequences": 0.0}, "replica_sequences must be > 0"),
        ({"max_replicas": 0}, "max_replicas must be >= 1"),
        ({"initial_replicas": 9}, "initial_replicas must be from 0 to"),
        ({"startup_s": -1.0}, "startup_s must be >= 0"),
    ],
)
def test_bad_input_is_refused(bad, text):
    good = {"start_s": [0.0], "rate": [1.0], "end_s": 10.0, "max_replicas": 2, **ONE}
    arguments = {**good, **bad}
    with pytest.raises(ValueError, match=text):
        surge(arguments.pop("start_s"), arguments.pop("rate"), **arguments)
