"""The law from benchmark runs: the closed loop against the simulator, and what a fit through it recovers."""

import numpy as np
import pytest
from fleets import make_profile

import des
from jaxsim.fit import COEFFICIENTS, Doubt, RunTable, fit_runs
from jaxsim.fit.closed_loop import closed_loop
from jaxsim.fleet import FleetDesign
from jaxsim.physics import StepLaw
from jaxsim.workload import Workload

LAW = StepLaw(0.012, 3e-5, 6e-8, 5e-5, 2e-9, 0.0)
LENGTHS = ((128, 128), (1024, 256), (4096, 128), (8192, 1024))
CLIENTS = (1, 4, 16, 64, 128)
SPREAD, CHUNK, SLOTS = 0.2, 2048.0, 100
PROFILE = make_profile(**LAW._asdict(), chunk_tokens=CHUNK, max_num_seqs=SLOTS, kv_blocks=100_000)


def coefficients(law):
    return np.array([getattr(law, name) for name in COEFFICIENTS])


def simulated(inputs, outputs, clients, *, warmup_fraction=0.3):
    """Mean TTFT and TPOT of one engine with so many clients."""
    result = des.simulate(
        FleetDesign.of(PROFILE, [1.0], [16384.0]),
        Workload.from_lengths(inputs, outputs),
        concurrency=clients,
        num_requests=max(2000, 40 * clients),
        replications=1,
        warmup_fraction=warmup_fraction,
    )
    return np.mean(result.ttft.groups[0]), np.mean(result.tpot.groups[0])


def settings(**changes):
    """Every pair of lengths at every number of clients, without times."""
    lengths = np.repeat(LENGTHS, len(CLIENTS), axis=0).astype(float)
    given = {
        "input_tokens": lengths[:, 0],
        "output_tokens": lengths[:, 1],
        "spread": SPREAD,
        "chunk_tokens": CHUNK,
        "slots": SLOTS,
        "groups": [f"prompts of {length:g}" for length in lengths[:, 0]],
        "source": "runs.json",
    }
    clients = np.tile(CLIENTS, len(LENGTHS))
    return clients, given | changes


def modelled(law=LAW, **changes):
    """Runs with the times that the model says."""
    clients, given = settings(**changes)
    ttft, tpot = closed_loop(law, RunTable.of(clients, 1.0, 1.0, **given).runs)
    return RunTable.of(clients, ttft, tpot, **given)


@pytest.fixture(scope="module")
def measured():
    """The same runs in the simulator, with lengths drawn evenly from their range."""
    rng = np.random.default_rng(5)
    times = []
    for length, output in LENGTHS:
        inputs, outputs = (np.round(mean * (1.0 + SPREAD * rng.uniform(-1.0, 1.0, 4000))) for mean in (length, output))
        times += [simulated(inputs, outputs, clients) for clients in CLIENTS]
    clients, given = settings()
    return RunTable.of(clients, *np.transpose(times), **given)


def test_the_closed_loop_is_that_of_the_simulator(measured):
    ttft, tpot = closed_loop(LAW, measured.runs)
    assert tpot == pytest.approx(measured.tpot_s, rel=0.02)
    assert ttft == pytest.approx(measured.ttft_s, rel=0.05)


@pytest.mark.parametrize("clients", [1, 8, 64])
def test_clients_with_requests_of_one_length_stay_in_step(clients):
    """In the simulator exactly, from the first request to the last."""
    run = RunTable.of(clients, 1.0, 1.0, input_tokens=3000, output_tokens=200, in_step=1.0)
    found = simulated([3000.0], [200.0], clients, warmup_fraction=0.0)
    assert [float(figure[0]) for figure in closed_loop(LAW, run.runs)] == pytest.approx(found, rel=1e-6)


def test_one_client_has_the_engine_to_itself():
    """In step or not is then the same."""
    clients, given = settings()
    alone = [RunTable.of(1.0, 1.0, 1.0, **given | {"in_step": share}).runs for share in (0.0, 1.0)]
    assert len(alone[0].weight) == len(clients)
    first, second = (np.stack(closed_loop(LAW, runs)) for runs in alone)
    assert first == pytest.approx(second, rel=1e-12)


def test_a_law_is_recovered():
    fit = fit_runs(modelled(in_step=0.1))
    assert coefficients(fit.law) == pytest.approx(coefficients(LAW), rel=1e-6)
    assert fit.warned == () and fit.fitted == COEFFICIENTS
    assert set(fit.errors) == {"all", "ttft", "tpot", *(f"prompts of {length}" for length, _ in LENGTHS)}
    assert fit.held_out["all"].worst < 1e-6
    assert fit.description == "fitted to 20 rows of runs.json, median error 0.0%"
    law = LAW._replace(overhead_s=0.002)
    other = fit_runs(modelled(law), overhead_s=0.002, fitted=COEFFICIENTS)
    assert coefficients(other.law) == pytest.approx(coefficients(law), rel=1e-6)


def test_the_law_of_a_simulated_engine_is_recovered(measured):
    fit = fit_runs(measured)
    assert coefficients(fit.law) == pytest.approx(coefficients(LAW), rel=0.05)
    assert fit.law.base_s == pytest.approx(LAW.base_s, rel=0.005)
    assert fit.held_out["tpot"].median < 0.005 and fit.held_out["ttft"].median < 0.02


def test_runs_without_a_ttft_count_by_their_tpot():
    """One TTFT is enough for the prompts; others may be anything."""
    exact = modelled()
    clients, given = settings()
    ttft = np.where(clients == 1, exact.ttft_s, np.nan)
    fit = fit_runs(RunTable.of(clients, ttft, exact.tpot_s, **given))
    assert coefficients(fit.law) == pytest.approx(coefficients(LAW), rel=1e-6)
    assert (fit.errors["ttft"].rows, fit.errors["tpot"].rows) == (len(LENGTHS), len(clients))


def test_runs_of_one_length_do_not_tell_everything():
    """The law is right at that length, and says what it leaves out."""
    whole = modelled()
    one = whole.input_tokens == 1024.0
    columns = {name: getattr(whole, name)[one] for name in ("input_tokens", "output_tokens")}
    fit = fit_runs(RunTable.of(whole.concurrency[one], whole.ttft_s[one], whole.tpot_s[one], spread=SPREAD,
                               slots=SLOTS, **columns))  # fmt: skip
    assert fit.fitted == ("base_s", "per_token_s", "prefill_per_token_s")
    assert Doubt.COLLINEAR in {each.kind for each in fit.warned}
    assert "per_sequence_s and prefill_per_token2_s" in fit.warnings[0]
    assert fit.errors["all"].worst < 0.02


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"concurrency": 0.5}, "concurrency must be >= 1 in every run, got 0.5"),
        ({"ttft_s": -1.0}, "ttft_s must be > 0 and finite, got -1.0"),
        ({"ttft_s": np.nan}, "ttft_s must be known in one run or more, got 'NaN in every run'; without it"),
        ({"tpot_s": np.nan}, "tpot_s must be > 0 and finite, got nan"),
        ({"input_tokens": 0.0}, "input_tokens must be > 0 and finite, got 0.0"),
        ({"output_tokens": 1.0}, "output_tokens must be >= 2 in every run, got 1.0"),
        ({"slots": 0.0}, "slots must be >= 1 in every run, got 0.0"),
        ({"spread": 1.0}, r"spread must be in \[0, 1\), got 1.0"),
        ({"in_step": 2.0}, r"in_step must be in \[0, 1\], got 2.0"),
        ({"groups": ["a", "b"]}, r"groups must be as many as runs \(1\), got 2"),
        ({"input_tokens": [1.0, 2.0], "output_tokens": [2.0, 3.0, 4.0]}, "shape mismatch"),
    ],
)
def test_bad_input(changes, text):
    given = {"concurrency": 4.0, "ttft_s": 0.1, "tpot_s": 0.01, "input_tokens": 100.0, "output_tokens": 50.0}
    with pytest.raises(ValueError, match=text):
        RunTable.of(**given | changes)
