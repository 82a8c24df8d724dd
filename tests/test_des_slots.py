"""The slot server, and the engine as one, against exact M/M/c, M/D/c and M/H2/c (more: `benchmarks/slots.py`)."""

import csv
import math

import numpy as np
import pytest
from fleets import make_profile

import des
from des.slots import simulate_slots
from des.stats import Sample
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload

FAMILY = 0.001
"""Chance that any figure of any row lies outside its interval, if all is right."""

FIGURES = ("PW", "EW", "p99")
REPLICATIONS = 20
SMALL = [(c, rho) for c in (1, 2, 8) for rho in (0.5, 0.7, 0.85)]
LARGE = [(32, 0.7), (32, 0.85), (128, 0.85)]
ROWS = [("M", 1.0, *row) for row in SMALL + LARGE]
ROWS += [("D", 0.0, *row) for row in SMALL + LARGE]
ROWS += [("H2", cv2, *row) for cv2 in (2.0, 4.0) for row in SMALL + LARGE]
ROWS += [("H2", 10.0, *row) for row in SMALL]
CONFIDENCE = 1.0 - FAMILY / (len(ROWS) * len(FIGURES))


def law(cv2):
    """Service times of mean 1: constant, exponential, or of two phases with balanced means."""
    if cv2 == 0.0:
        return lambda rng, n: np.ones(n)
    if cv2 == 1.0:
        return lambda rng, n: rng.standard_exponential(n)
    short = 0.5 * (1.0 + math.sqrt((cv2 - 1.0) / (cv2 + 1.0)))
    return lambda rng, n: (
        rng.standard_exponential(n) * np.where(rng.random(n) < short, 0.5 / short, 0.5 / (1.0 - short))
    )


def enough(delayed, cv2, rho, standard_error):
    """Requests for a relative standard error of the mean wait: a wait's squared variation times that of correlation."""
    return int((2.0 / delayed - 1.0) * 2.7 * (1.0 + cv2) / (1.0 - rho) ** 2 / standard_error**2)


@pytest.fixture(scope="module")
def exact(shared_data):
    """Rows of the exact table by law, squared variation, servers and utilisation."""
    with (shared_data / "theory" / "mgc_exact_table.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        (r["dist"], float(r["cv2"]), int(r["c"]), float(r["rho"])): {name: float(r[name]) for name in FIGURES}
        for r in rows
    }


@pytest.fixture(scope="module")
def simulated(exact):
    """Estimates of the three figures of each row, each row with random numbers of its own."""
    found = {}
    for seed, key in enumerate(ROWS):
        _, cv2, servers, rho = key
        number = enough(exact[key]["PW"], cv2, rho, 0.025)
        sizes = {"num_servers": servers, "num_requests": min(number, 6_000_000), "replications": REPLICATIONS}
        waits = des.simulate_slots(law(cv2), rho * servers, seed=seed, warmup_fraction=0.1, **sizes)
        delayed = Sample(tuple((group > 0.0) * 1.0 for group in waits.groups)).mean(CONFIDENCE)
        found[key] = dict(
            zip(FIGURES, (delayed, waits.mean(CONFIDENCE), waits.quantile(0.99, CONFIDENCE)), strict=True)
        )
    return found


@pytest.mark.parametrize("key", ROWS, ids=lambda key: f"{key[0]}{key[1]:g}-{key[2]}-{key[3]}")
def test_a_queue_is_within_its_intervals(exact, simulated, key):
    for name, estimate in simulated[key].items():
        assert estimate.low <= exact[key][name] <= estimate.high, f"{name}: {estimate} against {exact[key][name]}"


@pytest.mark.parametrize("name", FIGURES)
def test_errors_of_all_queues_together_have_mean_zero(exact, simulated, name):
    """Each row's interval is wide; an error that all rows share shows in the mean of what they deviate by."""
    row = [(e[name], exact[key][name]) for key, e in simulated.items() if exact[key][name] > 0.0]
    deviations = [(estimate.value - truth) / (estimate.high - estimate.value) for estimate, truth in row]
    unit = np.std(deviations, ddof=1) / math.sqrt(len(deviations))
    assert abs(np.mean(deviations)) < 4.0 * unit
    relative = np.median([abs(estimate.value / truth - 1.0) for estimate, truth in row])
    assert relative < 0.03


@pytest.mark.parametrize(
    ("cv2", "servers", "rho"), [(0.0, 1, 0.5), (0.0, 2, 0.7), (0.0, 4, 0.7), (1.0, 1, 0.5), (1.0, 2, 0.5)]
)
def test_a_long_run_has_the_mean_wait_to_one_percent(exact, cv2, servers, rho):
    truth = exact["M" if cv2 else "D", cv2, servers, rho]["EW"]
    sizes = {"num_servers": servers, "num_requests": 9_600_000, "replications": 32}
    estimate = des.simulate_slots(law(cv2), rho * servers, seed=1, **sizes).mean(0.99)
    assert estimate.value == pytest.approx(truth, rel=0.01)
    assert estimate.relative_half_width < 0.01


STEPS = 20_000.0


@pytest.mark.parametrize("servers", [1, 8, 128])
@pytest.mark.parametrize("cv2", [0.0, 1.0, 4.0])
def test_an_engine_of_constant_steps_is_a_slot_server(cv2, servers):
    """Request for request: it starts when it would there, or at the end of the step that runs then."""
    rng = np.random.default_rng(servers)
    steps = np.ceil(law(cv2)(rng, 20_000) * STEPS)
    arrival = np.cumsum(rng.standard_exponential(20_000)) * STEPS / (0.9 * servers)
    flat = {"per_sequence_s": 0.0, "per_token_s": 0.0, "prefill_per_token_s": 0.0, "prefill_per_token2_s": 0.0}
    room = {"max_num_seqs": servers, "kv_blocks": servers * 2**12, "block_tokens": 2**12}
    design = FleetDesign.of(make_profile(base_s=1.0, **flat, **room), [1.0], [2.0**24])
    workload = Workload.from_lengths(np.ones(len(steps)), steps, arrival_s=arrival)
    result = des.simulate(design, workload, arrivals="trace", warmup_fraction=0.0)
    late = result.replications[0].latencies("wait_s") - simulate_slots(arrival, steps, servers)
    assert late.min() > -1e-3 and late.max() < 1.0 + 1e-3
    assert result.wait.mean().value > 0.1 * STEPS / servers
