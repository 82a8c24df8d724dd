"""The simulators against exact queueing results and against an independent step-exact simulator's figures."""

import csv

import numpy as np
import pytest
from playing import flat_work, kinds_of, one_pool, play_one

import des
from des.arrivals import generators
from des.slots import simulate_slots
from des.stats import Sample

EXPONENTIAL = "exponential"
LAWS = {
    "M": lambda rng, n: rng.standard_exponential(n),
    "D": lambda rng, n: np.ones(n),
    "E2": lambda rng, n: rng.standard_gamma(2.0, n) / 2.0,
}


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_slot_server_by_hand():
    wait = simulate_slots(np.array([0.0, 1.0, 2.0, 2.0, 9.0]), np.array([4.0, 4.0, 4.0, 1.0, 1.0]), 2)
    np.testing.assert_array_equal(wait, [0.0, 0.0, 2.0, 3.0, 0.0])


def test_the_slot_server_equals_a_plain_search():
    rng = np.random.default_rng(0)
    arrival, service = np.cumsum(rng.exponential(1.0, 500)), rng.exponential(6.0, 500)
    free, expected = np.zeros(7), []
    for a, s in zip(arrival, service, strict=True):
        j = int(np.argmin(free))
        start = max(a, free[j])
        expected.append(start - a)
        free[j] = start + s
    np.testing.assert_allclose(simulate_slots(arrival, service, 7), expected, rtol=1e-12)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_one_server_is_pollaczek_khinchine(law, rho):
    waits = des.simulate_slots(LAWS[law], rho, num_servers=1, num_requests=1_600_000, seed=3)
    variance = {"M": 1.0, "D": 0.0, "E2": 0.5}[law]
    exact = rho / (1 - rho) * (1 + variance) / 2
    estimate = waits.mean(confidence=0.999)
    assert estimate.low <= exact <= estimate.high
    assert estimate.relative_half_width < 0.05


@pytest.mark.parametrize("servers", [2, 8, 64])
@pytest.mark.parametrize("law", ["M", "D"])
@pytest.mark.parametrize("rho", [0.7, 0.9])
def test_many_servers_equal_the_exact_tables(shared_data, servers, law, rho):
    """M/M/c in closed form and M/D/c by Wiener-Hopf: mean, P95, P99 of the wait and the chance of one."""
    table = read(shared_data / "theory" / "mgc_exact_table.csv")
    row = next(r for r in table if int(r["c"]) == servers and float(r["rho"]) == rho and r["dist"] == law)
    waits = des.simulate_slots(LAWS[law], rho * servers, num_servers=servers, num_requests=1_600_000, seed=11)
    chance = Sample(tuple((g > 0) * 1.0 for g in waits.groups)).mean(confidence=0.999)
    assert chance.low <= float(row["PW"]) <= chance.high
    mean = waits.mean(confidence=0.999)
    assert mean.low <= float(row["EW"]) <= mean.high
    for q, name in ((0.95, "p95"), (0.99, "p99")):
        estimate = waits.quantile(q, confidence=0.999)
        if float(row[name]) > 0:
            assert estimate.low <= float(row[name]) <= estimate.high


def engine_runs(work, *, base_s, max_active, rate, seed, number=50_000, replications=8):
    """Records (of all, and of those after a fifth of the time) of replications of one engine with requests of equally
    likely kinds."""
    fleet, kinds = one_pool(base_s=base_s, max_active=max_active), kinds_of(work)
    runs = []
    for i in range(replications):
        gaps, lengths = generators(seed, i)
        arrival = np.cumsum(gaps.standard_exponential(number)) / rate
        records = play_one(fleet, kinds, arrival, lengths.integers(0, len(work.last_s), number)).records
        np.testing.assert_array_equal(records["sent_s"], arrival)
        runs.append((records, records[np.searchsorted(arrival, 0.2 * arrival[-1]) :]))
    return runs


def test_an_engine_of_one_slot_is_m_g_1():
    """Its requests run alone, one after the other: Pollaczek-Khinchine, and P99 of the same slot server."""
    decode = np.array([4.0, 19.0, 49.0, 199.0])
    service = (1 + decode) * 0.01
    rate = 0.75 / service.mean()
    runs = engine_runs(flat_work(1, decode, 0.002), base_s=0.008, max_active=1, rate=rate, seed=1)
    waits = Sample(tuple(r["admit_s"] - r["sent_s"] for _, r in runs))
    exact = rate * (service**2).mean() / 2 / (1 - 0.75)
    estimate = waits.mean(confidence=0.999)
    assert estimate.low <= exact <= estimate.high
    assert estimate.relative_half_width < 0.1
    whole, _ = runs[0]
    expected = simulate_slots(whole["sent_s"], service[whole["row"]], 1)
    np.testing.assert_allclose(whole["admit_s"] - whole["sent_s"], expected, rtol=1e-6, atol=1e-9)


TOY = {"prefill": [1, 2, 8], "decode": [100, 200, 400], "held": [500, 1500, 8000], "weight": [5, 3, 2]}


def check_figures(row, runs, weight_of_steps):
    """Ours against theirs, each with its interval: quantiles of wait, TTFT and TPOT, mean E2E."""
    after = [measured for _, measured in runs]
    samples = {
        "wait": Sample(tuple(r["admit_s"] - r["sent_s"] for r in after)),
        "ttft": Sample(tuple(r["first_s"] - r["sent_s"] for r in after)),
        "tpot": Sample(tuple((r["end_s"] - r["first_s"]) / weight_of_steps[r["row"]] for r in after)),
        "e2e": Sample(tuple(r["end_s"] - r["sent_s"] for r in after)),
    }
    names = [f"{m}{q}" for m in ("wait", "ttft", "tpot") for q in (50, 95, 99)] + ["wait_mean", "e2e_mean"]
    for name in names:
        metric = name.rstrip("0123456789").removesuffix("_mean")
        ours = samples[metric].mean() if name.endswith("mean") else samples[metric].quantile(int(name[-2:]) / 100)
        theirs, half = float(row[f"sim_{name}"]), float(row[f"ci_{name}"])
        allowed = 1.8 * (half + 0.5 * (ours.high - ours.low)) + 1e-4 * theirs
        assert abs(ours.value - theirs) <= allowed, f"{name}: {ours} against {theirs} +- {half}"


@pytest.mark.parametrize("index", range(15))
def test_toy_engines_equal_the_reference_values(shared_data, index):
    """Three kinds of constant work, 8 to 128 slots, utilisation 0.3 to 0.95."""
    rows = [r for r in read(shared_data / "theory" / "stepq_reference_values.csv") if r["marks"] == "toy"]
    row = rows[index]
    order = np.repeat(np.arange(3), TOY["weight"])
    prefill, decode, held = (np.array(TOY[k], dtype=float)[order] for k in ("prefill", "decode", "held"))
    number = 400_000 if float(row["rho"]) >= 0.9 else 50_000
    runs = engine_runs(
        flat_work(prefill, decode, 2e-5 + 4e-8 * held),
        base_s=float(row["W"]),
        max_active=int(row["N"]),
        rate=float(row["lam"]),
        seed=17,
        number=number,
    )
    check_figures(row, runs, decode)


@pytest.mark.parametrize(("trace", "slots", "rho"), [("azure23_conv", 64, 0.6), ("azure23_code", 16, 0.8)])
def test_traces_equal_the_reference_values(shared_data, trace, slots, rho):
    """The same figures with the joint lengths of a published trace."""
    polars = pytest.importorskip("polars")
    rows = read(shared_data / "theory" / "stepq_reference_values.csv")
    row = next(
        r for r in rows if r["marks"] == f"{trace}/H100" and int(r["N"]) == slots and abs(float(r["rho"]) - rho) < 0.06
    )
    lengths = polars.read_parquet(shared_data / "data" / "traces" / f"{trace}.parquet")
    inputs, outputs = (np.maximum(lengths[c].to_numpy(), 1.0) for c in ("input_tokens", "output_tokens"))
    runs = engine_runs(
        flat_work(np.ceil(inputs / 1024), outputs, 2e-5 + 4e-8 * (inputs + 0.5 * outputs)),
        base_s=float(row["W"]),
        max_active=slots,
        rate=float(row["lam"]),
        seed=5,
        number=100_000,
    )
    check_figures(row, runs, outputs)
