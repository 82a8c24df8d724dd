"""Benchmark runs as a table for a fit: the concurrency of each, what is left out, and laws through files."""

import math
from dataclasses import replace

import benchmark_files as files
import numpy as np
import pytest
from fleets import make_profile

from jaxsim import examine, fit_runs, read_benchmark, read_scrapes, runs_of
from jaxsim.fit import COEFFICIENTS, RunTable
from jaxsim.fit.closed_loop import closed_loop
from jaxsim.physics import StepLaw

LAW = StepLaw(0.012, 3e-5, 6e-8, 5e-5, 2e-9, 0.0)
CHUNK = 2048.0
PROFILE = make_profile(**LAW._asdict(), chunk_tokens=CHUNK, max_num_seqs=200, kv_blocks=400_000)
LENGTHS = ((128, 64), (1024, 128), (4096, 64))
CLIENTS = (1, 8, 32)
SPREAD = 0.2


def coefficients(law):
    return np.array([getattr(law, name) for name in COEFFICIENTS])


def drawn(length, output, number=3000, seed=5):
    rng = np.random.default_rng(seed)
    return (np.round(mean * (1.0 + SPREAD * rng.uniform(-1.0, 1.0, number))) for mean in (length, output))


def modelled(clients, length, output, number, in_step):
    """A run whose means are those of the model, as files of a summary can hold them."""
    run = RunTable.of(clients, 1.0, 1.0, input_tokens=length, output_tokens=output, spread=SPREAD, in_step=in_step)
    ttft, tpot = (float(figure[0]) for figure in closed_loop(LAW, run.runs))
    rng = np.random.default_rng(0)
    lengths = [1.0 + SPREAD * sign for sign in (-1.0, 1.0)]
    # Two lengths in equal number have the deviation of a uniform law when their half-width is 1/sqrt(3) of its.
    factor = np.array([1.0 + (each - 1.0) / math.sqrt(3.0) for each in lengths])[rng.permutation(number) % 2]
    outputs = np.full(number, float(output))
    return files.Sent(
        start=np.arange(number) // clients * (ttft + tpot * (output - 1.0)),
        inputs=length * factor,
        outputs=outputs,
        ttft=np.full(number, ttft),
        e2e=ttft + tpot * (outputs - 1.0),
        queue=np.zeros(number),
    )


def summaries(tmp_path, writer):
    """Runs of every setting, written and read."""
    runs = []
    for length, output in LENGTHS:
        for clients in CLIENTS:
            number = 40 * clients
            sent = modelled(clients, length, output, number, in_step=clients / number)
            runs += writer(tmp_path, f"{length}_{clients}", sent, clients)
    return runs


def of_vllm(tmp_path, name, sent, clients):
    doc = files.vllm(sent, limit=clients, detailed=False)
    return read_benchmark(files.write(tmp_path / f"{name}.json", doc))


def of_sglang(tmp_path, name, sent, clients):
    ratio = (1.0 - SPREAD) / (1.0 + SPREAD)
    return read_benchmark(files.write(tmp_path / f"{name}.jsonl", [files.sglang(sent, limit=clients, ratio=ratio)]))


def of_guidellm(tmp_path, name, sent, clients):
    doc = files.guidellm([(sent, {"type_": "concurrent", "streams": clients})])
    return read_benchmark(files.write(tmp_path / f"{name}.json", doc))


def of_aiperf(tmp_path, name, sent, clients):
    return read_benchmark(files.write(tmp_path / f"{name}.json", files.aiperf(sent, concurrency=clients)))


def of_genai_perf(tmp_path, name, sent, clients):
    return read_benchmark(files.write(tmp_path / f"{name}.csv", files.genai_perf(sent)), concurrency=clients)


@pytest.mark.parametrize("writer", [of_sglang, of_vllm, of_guidellm, of_aiperf, of_genai_perf])
def test_a_law_goes_through_summaries(tmp_path, writer):
    """Exactly where the file says the spread of lengths; elsewhere it is taken as 0, which is said."""
    used = runs_of(summaries(tmp_path, writer), chunk_tokens=CHUNK)
    assert len(used.used) == 9 and not used.left_out
    assert used.table.concurrency.tolist() == [float(clients) for _ in LENGTHS for clients in CLIENTS]
    fit = fit_runs(used.table)
    if writer is of_sglang:
        assert used.table.spread == pytest.approx(SPREAD)
        assert coefficients(fit.law) == pytest.approx(coefficients(LAW), rel=1e-5)
    else:
        known = writer not in (of_vllm, of_genai_perf)
        assert (not any("spread of lengths not known" in note for note in used.notes)) is known
        told = [0, 2, 3] if known else [0, 3]
        assert coefficients(fit.law)[told] == pytest.approx(coefficients(LAW)[told], rel=0.03)
        assert fit.errors["all"].median < 0.005


@pytest.fixture(scope="module")
def closed():
    """Every setting in the simulator, from the first request on."""
    return {
        (length, clients): files.simulated(PROFILE, *drawn(length, output), number=max(200, 20 * clients),
                                           concurrency=clients)
        for length, output in LENGTHS
        for clients in CLIENTS
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["vLLM", "AIPerf records"])
def test_the_law_of_a_simulated_engine_is_recovered(tmp_path, closed, kind):
    """From files with requests, whose first wave is left out; AIPerf's records do not say the clients."""
    runs = []
    for (length, clients), sent in closed.items():
        if kind == "vLLM":
            path = files.write(tmp_path / f"{length}_{clients}.json", files.vllm(sent, limit=clients))
        else:
            path = files.write(tmp_path / f"{length}_{clients}.jsonl", files.aiperf_records(sent))
        runs += read_benchmark(path)
    used = runs_of(runs, chunk_tokens=CHUNK)
    assert len(used.used) == 9
    assert sorted(set(used.table.concurrency)) == list(CLIENTS)
    assert all("without its first wave" in " ".join(each.how) for each in used.used)
    assert set(used.table.in_step) == {0.0}
    fit = fit_runs(used.table)
    assert fit.law.base_s == pytest.approx(LAW.base_s, rel=0.01)
    assert fit.law.prefill_per_token_s == pytest.approx(LAW.prefill_per_token_s, rel=0.05)
    assert fit.errors["tpot"].median < 0.01 and fit.errors["ttft"].median < 0.02


RATES = {(128, 64): (0.2, 3.0, 8.0), (1024, 128): (0.2, 1.0, 6.0), (4096, 64): (0.2, 1.0, 2.0)}


@pytest.fixture(scope="module")
def open_runs():
    """Poisson arrivals in the simulator."""
    return {
        (length, rate): files.simulated(PROFILE, *drawn(length, output), number=2500, rate=rate)
        for (length, output), rates in RATES.items()
        for rate in rates
    }


def test_a_steady_rate_is_as_one_client_more_than_are_in_flight(tmp_path, open_runs):
    """Against the simulator: TPOT within 1 %, TTFT within 3 % where prompts do not wait for each other."""
    runs = []
    for (length, rate), sent in open_runs.items():
        runs += read_benchmark(files.write(tmp_path / f"{length}_{rate}.json", files.vllm(sent, rate=rate)))
    used = runs_of(runs, chunk_tokens=CHUNK)
    assert len(used.used) == 9
    ttft, tpot = closed_loop(LAW, used.table.runs)
    assert tpot == pytest.approx(used.table.tpot_s, rel=0.01)
    known = np.isfinite(used.table.ttft_s)
    assert 3 <= known.sum() < 9
    assert ttft[known] == pytest.approx(used.table.ttft_s[known], rel=0.03)
    for each in used.used:
        text = " ".join(each.how)
        assert "by Little's law, so as one of" in text
        assert ("its TTFT is not used" in text) is math.isnan(each.ttft_s)
    fit = fit_runs(used.table)
    assert fit.law.base_s == pytest.approx(LAW.base_s, rel=0.02)
    assert fit.law.prefill_per_token_s == pytest.approx(LAW.prefill_per_token_s, rel=0.05)


def test_a_steady_rate_through_two_scrapes(tmp_path, open_runs):
    """What a server counted is what its clients saw."""
    runs = []
    for (length, rate), sent in open_runs.items():
        scraped = [
            files.write(
                tmp_path / f"{length}_{rate}_{upto}.prom",
                files.scrape(sent, upto=upto, running=5, time_ms=int(1e12 + 1e3 * (sent.start + sent.e2e)[upto])),
            )
            for upto in (500, 2400)
        ]
        runs += read_scrapes(*scraped)
    used = runs_of(runs, chunk_tokens=CHUNK)
    assert len(used.used) == 9
    _, tpot = closed_loop(LAW, used.table.runs)
    assert tpot == pytest.approx(used.table.tpot_s, rel=0.03)


def made(tmp_path, name, sent, **load):
    (run,) = read_benchmark(files.write(tmp_path / f"{name}.json", files.vllm(sent, **load)))
    return run


@pytest.fixture
def sweep(tmp_path):
    return [
        made(tmp_path, f"{clients}", modelled(clients, 1024, 128, 40 * clients, 0.0), limit=clients)
        for clients in (1, 4, 16)
    ]


def test_runs_that_are_not_steady_are_left_out_and_named(tmp_path, sweep):
    sent = files.uniform(200, mean=(64, 16))
    overloaded = made(tmp_path, "over", sent, rate=40.0)
    at_once = made(tmp_path, "once", sent)
    silent = made(tmp_path, "silent", sent, rate=None)
    zero = made(tmp_path, "zero", sent.changed(ttft=0.0 * sent.ttft), rate=10.0)
    ramped = made(tmp_path, "ramped", sent, rate=10.0, ramp_up_strategy="linear")
    used = runs_of([*sweep, overloaded, at_once, silent, zero, ramped])
    assert [each.run.label for each in used.used] == ["1.json", "4.json", "16.json"]
    reasons = {examined.run.label: reason for examined, reason in used.left_out}
    assert "40 requests/s were offered" in reasons["over.json"]
    assert "all 200 requests were sent at once" in reasons["once.json"]
    assert "does not say what load" in reasons["silent.json"] and "--concurrency" in reasons["silent.json"]
    assert "TTFT of 0 was not measured" in reasons["zero.json"]
    assert "ramped up" in reasons["ramped.json"]


def test_too_few_runs_say_which_and_why(tmp_path, sweep):
    bad = made(tmp_path, "once", files.uniform(200, mean=(64, 16)))
    with pytest.raises(ValueError) as error:
        runs_of([sweep[0], bad, replace(bad, file="twice.json")])
    said = str(error.value)
    assert said.startswith("1 of 3 runs can be fitted (1.json); left out: once.json, twice.json: unstable")
    assert "a law needs 2 or more: sweep the concurrency" in said
    with pytest.raises(ValueError, match="0 of 0 runs can be fitted; a law needs 2 or more"):
        runs_of([])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mean_tpot_s": None}, "no mean TPOT in it"),
        ({"mean_input_tokens": None}, "no mean input tokens in it"),
        ({"mean_output_tokens": 1.5}, "fewer than 2 output tokens"),
    ],
)
def test_runs_without_a_figure_are_left_out(sweep, changes, reason):
    used = runs_of([*sweep[:2], replace(sweep[2], **changes, requests=None)])
    assert reason in used.left_out[0][1]


def test_an_examined_run_is_taken_as_it_is(sweep):
    examined = [examine(run) for run in sweep]
    assert np.array_equal(runs_of(examined).table.tpot_s, runs_of(sweep).table.tpot_s)


def test_replicas_and_engines_share_the_load(sweep):
    assert runs_of(sweep, replicas=2).table.concurrency.tolist() == [1.0, 2.0, 8.0]
    assert "over 2 engines" in runs_of(sweep, replicas=2).used[2].how[0]
    of_server = [replace(run, engines=4) for run in sweep]
    assert runs_of(of_server).table.concurrency.tolist() == [1.0, 1.0, 4.0]


def test_clients_with_equal_lengths_stay_in_step_where_their_prompts_fit_in_one(tmp_path):
    def sent(clients, length):
        return modelled(clients, length, 64, 40 * clients, 1.0).changed(inputs=np.full(40 * clients, float(length)))

    small = [made(tmp_path, f"s{clients}", sent(clients, 256), limit=clients) for clients in (2, 8)]
    large = [made(tmp_path, f"l{clients}", sent(clients, 1024), limit=clients) for clients in (4, 8)]
    assert runs_of(small).table.in_step.tolist() == [1.0, 1.0]
    assert runs_of(large).table.in_step.tolist() == [0.0, 0.0]
    assert runs_of(large, chunk_tokens=8192).table.in_step.tolist() == [1.0, 1.0]


def test_a_summary_has_its_first_wave_in_step(tmp_path):
    runs = [
        read_benchmark(
            files.write(tmp_path / f"{clients}.json",
                        files.vllm(modelled(clients, 1024, 64, 10 * clients, 0.1), limit=clients, detailed=False))
        )[0]
        for clients in (4, 8)
    ]  # fmt: skip
    used = runs_of(runs)
    assert used.table.in_step.tolist() == [0.1, 0.1]
    assert "taken as sent in step" in used.used[0].how[1]


def test_two_models_are_said(sweep):
    used = runs_of([sweep[0], replace(sweep[1], model="org/other")])
    assert any("of 2 models (org/model-8b, org/other)" in note for note in used.notes)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"chunk_tokens": 0.0}, "chunk_tokens must be > 0"),
        ({"slots": 0.5}, "slots must be >= 1"),
        ({"slots": math.nan}, "slots must be >= 1"),
        ({"replicas": 0}, "replicas must be >= 1"),
    ],
)
def test_bad_arguments(sweep, arguments, text):
    with pytest.raises(ValueError, match=text):
        runs_of(sweep, **arguments)
