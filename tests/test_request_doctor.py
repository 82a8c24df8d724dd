"""What the rows of a run say of it: every symptom where it is, and nowhere else."""

import math

import benchmark_files as files
import numpy as np
import polars as pl
import pytest

from jaxsim import examine, read_benchmark
from jaxsim.benchmark_doctor import Benchmark, Verdict, check
from jaxsim.percentiles import interval
from jaxsim.request_doctor import Symptom, examine_trace, first_wave
from jaxsim.traces import RawTrace

NUMBER = 2_000


@pytest.fixture
def read(tmp_path):
    """The run of requests as `vllm bench serve` writes it, examined."""

    def make(sent, **load):
        (run,) = read_benchmark(files.write(tmp_path / "v.json", files.vllm(sent, **load)))
        return examine(run)

    return make


def healthy(number=NUMBER, seed=0):
    """Poisson arrivals at 10 a second, TTFT of 80 to 120 ms."""
    rng = np.random.default_rng(seed)
    sent = files.uniform(number, mean=(64, 16), rate=10.0, seed=seed)
    start = np.cumsum(rng.exponential(0.1, number))
    ttft = rng.uniform(0.08, 0.12, number)
    return sent.changed(start=start, ttft=ttft, e2e=ttft + 0.02 * (sent.outputs - 1))


def symptoms(examined):
    return {each.symptom for each in examined.found}


def finding(examined, symptom):
    (found,) = [each for each in examined.found if each.symptom is symptom]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_has_no_finding(read, seed):
    examined = read(healthy(seed=seed), rate=10.0)
    assert examined.found == () and examined.findings == ()
    assert examined.verdict is Verdict.STEADY and examined.reason == ""


def test_failed_requests_are_named(read):
    examined = read(healthy(), rate=10.0, failed=2)
    found = finding(examined, Symptom.FAILED)
    assert found.rows == (2001, 2002)
    assert found.text == "requests 2,001 and 2,002: failed: HTTP 503, in no figure"


def test_requests_without_a_second_token(read):
    sent = healthy()
    outputs, e2e = sent.outputs.copy(), sent.e2e.copy()
    outputs[[3, 7]], outputs[9] = 1, 0
    e2e[[3, 7, 9]] = sent.ttft[[3, 7, 9]]
    examined = read(sent.changed(outputs=outputs, e2e=e2e), rate=10.0)
    assert finding(examined, Symptom.ONE_TOKEN).rows == (4, 8)
    assert finding(examined, Symptom.ONE_TOKEN).text.startswith("requests 4 and 8: one output token, so no TPOT")
    assert finding(examined, Symptom.ZERO_TOKENS).rows == (10,)
    assert examined.steady


def test_a_cold_first_wave(read):
    """Sixteen clients; their first requests took 3 s each."""
    sent = closed_loop(16)
    ttft = sent.ttft.copy()
    ttft[:16] += 3.0
    examined = read(sent.changed(ttft=ttft, e2e=sent.e2e + ttft - sent.ttft), limit=16)
    found = finding(examined, Symptom.COLD_WAVE)
    assert found.rows == tuple(range(1, 17))
    assert "the first wave, requests 1 to 16, has a median TTFT of 3,1" in found.text
    later = 1e3 * sent.ttft[16:].mean()
    assert f"the mean TTFT is {later:,.4g} ms without it" in found.text
    assert Symptom.COLD_WAVE not in symptoms(read(sent, limit=16))


def closed_loop(clients, number=800, seed=0):
    """Clients that send again when they are served."""
    rng = np.random.default_rng(seed)
    sent = healthy(number, seed)
    free = np.zeros(clients)
    start = np.empty(number)
    for row in range(number):
        at = int(np.argmin(free))
        start[row] = free[at]
        free[at] += sent.e2e[row]
    return sent.changed(start=start, ttft=rng.uniform(0.08, 0.12, number))


def test_the_first_wave_goes_by_start(read):
    """Rows in another order than that of their start."""
    sent = closed_loop(4)
    order = np.random.default_rng(1).permutation(len(sent.start))
    mixed = sent.changed(**{name: getattr(sent, name)[order] for name in ("start", "ttft", "e2e", "inputs", "outputs")})
    examined = read(mixed, limit=4, duration=sent.duration)
    first = first_wave(examined.run)
    assert mixed.start[first].max() == 0.0 and first.sum() == 4


def test_waits_at_the_client(read):
    sent = healthy()
    queue = np.zeros(NUMBER)
    queue[[10, 20]] = 2.0
    found = finding(read(sent.changed(queue=queue), rate=10.0), Symptom.CLIENT_QUEUE)
    assert found.rows == (11, 21)
    mean = 1e3 * (sent.ttft.mean() + queue.mean())
    assert "requests 11 and 21 waited at the client" in found.text and f"mean TTFT is {mean:,.4g} ms" in found.text
    assert Symptom.CLIENT_QUEUE not in symptoms(read(closed_loop(4).changed(queue=np.full(800, 9.0)), limit=4))


def test_starts_that_slip_behind_the_rate(read):
    sent = healthy().changed(queue=np.zeros(NUMBER))
    late = sent.changed(start=1.3 * sent.start)
    examined = read(late, rate=10.0)
    found = finding(examined, Symptom.LATE_STARTS)
    assert found.rows == (NUMBER,) and "the client held them back" in found.text
    assert examined.verdict is Verdict.UNSTABLE


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_pile_up(read, seed):
    """TTFT grows as a queue that is 10 % above capacity: too little to see in the rate of a short run."""
    sent = healthy(300, seed).changed(start=np.arange(300) / 10.0)
    wait = 0.1 * sent.start
    examined = read(sent.changed(ttft=sent.ttft + wait, e2e=sent.e2e + wait), rate=10.0)
    assert Symptom.PILING_UP in symptoms(examined)
    assert examined.verdict is Verdict.UNSTABLE and examined.checkup.verdict is Verdict.STEADY
    assert "TTFT grew through the run" in examined.reason
    assert finding(examined, Symptom.PILING_UP).rows == tuple(range(201, 301))


def test_rows_that_contradict_themselves(read):
    sent = healthy()
    doc = files.vllm(sent, rate=10.0)
    doc["itls"][5] = [3.0 * gap for gap in doc["itls"][5]]
    examined = read(sent, rate=10.0, itls=doc["itls"])
    found = finding(examined, Symptom.IDENTITY)
    assert found.rows == (6,) and "request 6: E2E is not TTFT + ITL x (tokens - 1)" in found.text
    assert examined.steady  # one row of 2,000
    doc["itls"] = [[3.0 * gap for gap in gaps] for gaps in doc["itls"]]
    examined = read(sent, rate=10.0, itls=doc["itls"])
    assert examined.verdict is Verdict.INCONSISTENT and "E2E is not TTFT" in examined.reason
    below = read(sent, rate=10.0, latencies=[0.01] * NUMBER, itls=None)
    assert "E2E is below TTFT" in finding(below, Symptom.IDENTITY).text


def test_a_ttft_of_zero_was_not_measured(read):
    sent = healthy()
    ttft = sent.ttft.copy()
    ttft[3] = 0.0
    examined = read(sent.changed(ttft=ttft, e2e=sent.e2e - sent.ttft + ttft), rate=10.0)
    assert finding(examined, Symptom.NOT_MEASURED).rows == (4,)
    assert examined.verdict is Verdict.INCONSISTENT


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"mean_ttft_ms": 50.0}, "the mean TTFT is said to be 50 ms, and that of the rows is"),
        ({"mean_e2el_ms": 9_000.0, "mean_itl_ms": 593.0}, "the mean E2E is said to be 9,000 ms"),
        ({"completed": 1_990}, "1,990 requests are said to have completed, and 2,000 of the rows did"),
    ],
)
def test_a_summary_that_is_not_of_its_rows(read, more, text):
    """As where failed requests, whose TTFT is 0, were averaged in."""
    examined = read(healthy(), rate=10.0, **more)
    assert text in finding(examined, Symptom.REPORTED).text
    assert examined.verdict is Verdict.INCONSISTENT


def test_a_percentile_on_few_requests_has_its_interval(read):
    few = healthy(200)
    found = finding(read(few, rate=10.0), Symptom.FEW_BEYOND)
    low = 1e3 * interval(few.ttft, 0.99).low
    assert f"TTFT ({low:.4g} ms to no upper end)" in found.text
    assert "rests on 2 of 200 requests beyond it" in found.text and "368 requests are needed" in found.text
    more = healthy(600)
    low, high = (1e3 * edge for edge in interval(more.e2e, 0.99))
    found = finding(read(more, rate=10.0), Symptom.FEW_BEYOND)
    assert f"E2E ({low:,.4g} ms to {high:,.4g} ms)" in found.text and "rests on 6 of 600" in found.text


def test_clients_that_pause_are_no_closed_loop():
    run = Benchmark(completed=300, duration_s=100.0, mean_ttft_s=0.1, mean_e2e_s=1.0, max_concurrency=10)
    found = check(run)
    assert found.verdict is Verdict.INCONSISTENT
    assert "3 requests were in flight on average, of 10 clients" in found.reasons[0]


def test_a_rate_at_the_clients_limit_is_a_closed_loop():
    """Ten requests a second were asked for; sixteen clients send four."""
    run = Benchmark(completed=400, duration_s=100.0, mean_ttft_s=0.1, mean_e2e_s=3.95, offered_rate=10.0,
                    max_concurrency=16)  # fmt: skip
    found = check(run)
    assert found.verdict is Verdict.CLOSED_LOOP
    assert "these held requests back" in found.findings[-1]


def test_what_no_one_said_is_unknown():
    figures = {"completed": 300, "mean_ttft_s": 0.1, "mean_e2e_s": 1.0, "offered_rate": None}
    assert check(Benchmark(**figures, duration_s=100.0)).verdict is Verdict.UNKNOWN
    without = check(Benchmark(**figures, duration_s=None))
    assert without.achieved_rate is None and without.little_concurrency is None
    assert check(Benchmark(**figures, duration_s=None, arrived=301)).verdict is Verdict.STEADY
    piled = check(Benchmark(**figures, duration_s=None, arrived=400))
    assert piled.verdict is Verdict.UNSTABLE
    assert "400 requests came between the scrapes and 300 ended" in piled.reasons[0]


def test_few_requests_say_nothing():
    figures = {"duration_s": 10.0, "mean_ttft_s": 0.1, "mean_e2e_s": 2.5}
    assert check(Benchmark(**figures, completed=19, offered_rate=2.0)).verdict is Verdict.TOO_FEW
    assert check(Benchmark(**figures, completed=20, offered_rate=2.0)).verdict is Verdict.STEADY
    assert check(Benchmark(**figures, completed=32, max_concurrency=10)).verdict is Verdict.CLOSED_LOOP
    all_at_once = check(Benchmark(**figures | {"mean_e2e_s": 9.0}, completed=32, max_concurrency=32))
    assert all_at_once.verdict is Verdict.TOO_FEW


def test_requests_cut_at_the_end_explain_the_rate():
    run = Benchmark(completed=95, duration_s=10.0, mean_ttft_s=0.1, mean_e2e_s=1.0, offered_rate=10.5, incomplete=10)
    found = check(run)
    assert found.verdict is Verdict.STEADY and found.offered_over_sustained == pytest.approx(1.0)
    assert "10 requests still in flight when the measuring stopped" in found.findings[0]


@pytest.mark.parametrize("gpu", ["RTX4090", "RTXPRO6000"])
def test_two_measured_overloads_are_called_so(read, shared_data, gpu):
    """Real runs of vLLM 0.19, 300 requests each, sent at about ten a second to an engine that serves fewer."""
    table = pl.read_csv(shared_data / "data" / "measured" / "vllm019_requests.csv.gz").filter(gpu=gpu).sort("arrival_s")
    arrival, inputs, outputs, ttft, e2e = (
        table[name].to_numpy().astype(float) for name in ("arrival_s", "input_toks", "output_toks", "ttft_s", "e2e_s")
    )
    sent = files.Sent(arrival, inputs, outputs, ttft, e2e, np.zeros(len(arrival)))
    rate = (len(arrival) - 1) / float(np.ptp(arrival))
    examined = read(sent, rate=rate)
    assert examined.verdict is Verdict.UNSTABLE
    assert Symptom.PILING_UP in symptoms(examined)
    assert examined.checkup.offered_over_sustained > 1.2


def test_rows_of_a_trace():
    rng = np.random.default_rng(0)
    inputs = rng.integers(10, 1000, 2_000)
    outputs = rng.integers(2, 100, 2_000)
    assert examine_trace(RawTrace(inputs, outputs, None)) == ()
    outputs[:3] = 1
    (one,) = examine_trace(RawTrace(inputs, outputs, None))
    assert one.symptom is Symptom.ONE_TOKEN and one.text.startswith("3 of 2,000 requests have one output token")
    few = examine_trace(RawTrace(inputs[:300], outputs[10:310], None))
    assert few[0].symptom is Symptom.FEW_BEYOND and "no upper end" in few[0].text
    assert math.isinf(interval((inputs[:300] + outputs[10:310]).astype(float), 0.99).high)
