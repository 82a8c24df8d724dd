"""Dispatch over engines of 16 slots against an independent simulator's figures (all: `benchmarks/slots.py`).

A step takes 1 + 1.3 n/16 with n running requests; utilisation is that at full batch, and waits are in units of a mean
request's service there. A mean request takes 2,000 steps, so that the wait for a step's end, which the table does not
know, is small; what is no longer than a step counts as none. One queue for all engines is a closed loop of as many
requests as the fleet has slots: the others wait at their clients.
"""

import csv
import math

import numpy as np
import pytest
from fleets import make_profile
from scipy.special import ndtr, ndtri, stdtrit
from test_benchmarks import KEYS, lines

import des
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload

SLOTS, GROWTH, STEPS = 16, 1.3, 2000.0
NUMBER = 1_000_000
BATCHES = 20
THEIR_NUMBER = 1_200_000
"""Requests of a run of theirs after its warm-up."""

FAMILY = 0.001
"""Chance that any figure of any row lies outside its interval, if all is right."""

DISPATCH = {
    "central": "least-loaded",
    "JSQ": "least-loaded",
    "JSQ2": "power-of-two",
    "RR": "round-robin",
    "random": "random",
}
ROWS = [
    (2, 0.85, "M", "central"),
    (2, 0.85, "M", "JSQ"),
    (2, 0.85, "M", "RR"),
    (2, 0.85, "M", "random"),
    (2, 0.85, "LN2", "JSQ"),
    (2, 0.85, "LN2", "RR"),
    (8, 0.85, "M", "RR"),
    (8, 0.85, "LN2", "random"),
    (8, 0.95, "M", "central"),
    (8, 0.95, "M", "JSQ"),
    (32, 0.85, "M", "JSQ"),
    (32, 0.85, "M", "RR"),
    (32, 0.85, "M", "random"),
]
BETWEEN = [(2, 0.85, "M"), (8, 0.85, "M"), (8, 0.85, "LN2"), (32, 0.85, "M")]
TAIL = 0.5 * FAMILY / (2 * len(ROWS) + 4 * len(BETWEEN) + 4)


@pytest.fixture(scope="module")
def table(shared_data):
    """Rows by engines, utilisation, tokens and route."""
    with (shared_data / "theory" / "routing_wait.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {(int(r["N"]), float(r["rhoK"]), r["tokens"], r["route"]): r for r in rows}


def workload(tokens):
    """Exponential or lognormal (cv2 = 2) numbers of steps, as the means of 4,000 narrow classes."""
    above = np.geomspace(1.0, 1e-9, 4001)
    mean_above = above * (1.0 - np.log(above)) if tokens == "M" else ndtr(math.sqrt(math.log(3.0)) + ndtri(above))
    steps = np.maximum(np.rint(np.diff(mean_above) / np.diff(above) * STEPS), 1.0)
    return Workload.from_lengths(np.ones(len(steps)), steps, weight=-np.diff(above))


def simulate(replicas, load, tokens, route, *, seed=7):
    """Waits in order of arrival after a fifth of the time, in units of service; 0 up to a step."""
    flat = {"per_token_s": 0.0, "prefill_per_token_s": 0.0, "prefill_per_token2_s": 0.0}
    room = {"max_num_seqs": SLOTS, "kv_blocks": SLOTS * 2**12, "block_tokens": 2**12}
    profile = make_profile(base_s=1.0, per_sequence_s=GROWTH / SLOTS, **flat, **room)
    lengths = workload(tokens)
    unit = (1.0 + GROWTH) * float(lengths.mean(lengths.output_tokens))
    central = route == "central"
    result = des.simulate(
        FleetDesign.of(profile, [float(replicas)], [2.0**24]),
        lengths,
        rate=replicas * SLOTS * load / unit,
        num_requests=NUMBER,
        replications=1,
        router=des.LengthRouter(dispatch=DISPATCH[route]),
        concurrency=replicas * SLOTS if central else None,
        seed=seed,
    )
    run = result.replications[0]
    wait = run.latencies("wait_s") + (run.latencies("client_wait_s") if central else 0.0)
    return np.where(wait > 1.0 + GROWTH, wait / unit, 0.0)


FIGURES = {"PW": lambda wait: float((wait > 0.0).mean()), "p99": lambda wait: float(np.quantile(wait, 0.99))}


def ours(wait, name):
    """A figure and its standard error over batches."""
    batches = [FIGURES[name](batch) for batch in np.array_split(wait, BATCHES)]
    return FIGURES[name](wait), np.std(batches, ddof=1) / math.sqrt(BATCHES)


def theirs(row, name, our_error, number):
    """The table's figure and its standard error: half a 95 % interval of P99s, else ours scaled to their run."""
    if name == "p99":
        return float(row["p99"]), float(row["hw"]) / stdtrit(BATCHES - 1, 0.975)
    return float(row["PW"]), our_error * math.sqrt(number / THEIR_NUMBER)


def margin(*errors):
    """How far two figures may be apart (Welch's t); 0 where neither varies."""
    variances = np.square(errors)
    if not variances.any():
        return 0.0
    degrees = (BATCHES - 1) * variances.sum() ** 2 / np.square(variances).sum()
    return stdtrit(degrees, 1.0 - TAIL) * math.sqrt(variances.sum())


@pytest.mark.parametrize("key", ROWS, ids=lambda key: "-".join(map(str, key)))
def test_waits_equal_the_tables(table, key):
    wait = simulate(*key)
    for name in FIGURES:
        value, error = ours(wait, name)
        expected, their_error = theirs(table[key], name, error, len(wait))
        assert abs(value - expected) <= margin(error, their_error), name


@pytest.mark.parametrize("key", BETWEEN, ids=lambda key: "-".join(map(str, key)))
def test_two_choices_are_no_worse_than_the_tables_and_no_better_than_the_least_load(table, key):
    """The table draws both replicas from all, so that they may be one and the same; two different ones wait less."""
    wait = simulate(*key, "JSQ2")
    for name in FIGURES:
        value, error = ours(wait, name)
        most, most_error = theirs(table[*key, "JSQ2"], name, error, len(wait))
        least, least_error = theirs(table[*key, "JSQ"], name, error, len(wait))
        assert least - margin(error, least_error) <= value <= most + margin(error, most_error), name


@pytest.mark.parametrize(("replicas", "load"), [(2, 0.7), (8, 0.85)])
def test_random_dispatch_is_a_markov_chain_for_each_engine(table, replicas, load):
    """Exponential steps, rate n / (W + w n) with n running: who waits, and an exponential tail, in closed form."""
    n = np.arange(1, SLOTS + 1)
    arrivals = load * SLOTS / (1.0 + GROWTH)
    term = np.cumprod(np.concatenate([[1.0], arrivals * (1.0 + GROWTH * n / SLOTS) / n]))
    waits = term[-1] / (1.0 - load) / (term[:-1].sum() + term[-1] / (1.0 - load))
    p99 = math.log(waits / 0.01) / (SLOTS * (1.0 - load))
    row = table[replicas, load, "M", "random"]
    assert (float(row["split_PW"]), float(row["split_nb_p99"])) == pytest.approx((waits, p99), rel=1e-5)
    wait = simulate(replicas, load, "M", "random", seed=8)
    for name, exact in (("PW", waits), ("p99", p99)):
        value, error = ours(wait, name)
        assert abs(value - exact) <= margin(error, 0.0) + 0.003 * exact, name


def test_what_the_dispatcher_sees_orders_the_waits():
    """P99 at 8 engines and 0.85: one queue and the least load beat two choices, these turns, and turns chance."""
    p99 = {route: FIGURES["p99"](simulate(8, 0.85, "M", route)) for route in DISPATCH}
    assert p99["central"] <= p99["JSQ"] < 0.02
    assert p99["JSQ"] <= p99["JSQ2"] < 0.2 < 0.5 < p99["RR"] < 0.9 < 1.2 < p99["random"]


def test_the_benchmark_of_all_of_them_prints_json_lines(shared_data):
    rows = {row["name"]: row for row in lines("slots.py")}
    assert all(set(row) == KEYS and math.isfinite(row["value"]) for row in rows.values())
    for law in ("M", "D", "H2"):
        assert rows[f"queues.{law}.compared"]["value"] >= 1
        assert rows[f"queues.{law}.mean_wait.largest_error"]["ok"] and rows[f"queues.{law}.p99_wait.outside"]["ok"]
    assert rows["engine.M.servers_128.latest_start"]["ok"]
    for rule in ("central", "least-loaded", "round-robin", "random"):
        assert rows[f"dispatch.{rule}.p99.outside"]["ok"] and rows[f"dispatch.{rule}.waited.outside"]["ok"]
