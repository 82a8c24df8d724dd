"""Readers of benchmark files: every figure of a file whose requests are known, and what a reader decides."""

import gzip
import json
import math

import benchmark_files as files
import numpy as np
import pytest

from jaxsim import read_benchmark
from jaxsim.bench_files import Kind, recognise
from jaxsim.bench_files._rows import held_concurrency
from jaxsim.benchmark_doctor import Verdict, check

SENT = files.uniform(200, rate=10.0)


def only(path, **arguments):
    (run,) = read_benchmark(path, **arguments)
    return run


def in_every_format(tmp_path, sent=SENT):
    """The same run as each tool would have written it."""
    written = {
        "vLLM": (Kind.VLLM, "v.json", files.vllm(sent, rate=10.0, limit=64)),
        "vLLM summary": (Kind.VLLM, "s.json", files.vllm(sent, rate=10.0, limit=64, detailed=False)),
        "sglang": (Kind.SGLANG, "s.jsonl", [files.sglang(sent, rate=10.0, limit=64)]),
        "GuideLLM": (Kind.GUIDELLM, "g.json", files.guidellm([(sent, {"type_": "constant", "rate": 10.0})])),
        "AIPerf": (Kind.SUMMARY_JSON, "a.json", files.aiperf(sent, concurrency=64, rate=10.0)),
        "GenAI-Perf": (Kind.SUMMARY_CSV, "a.csv", files.genai_perf(sent)),
        "AIPerf records": (Kind.AIPERF_RECORDS, "a.jsonl", files.aiperf_records(sent)),
    }
    return {name: (kind, files.write(tmp_path / file, value)) for name, (kind, file, value) in written.items()}


@pytest.mark.parametrize(
    "name", ["vLLM", "vLLM summary", "sglang", "GuideLLM", "AIPerf", "GenAI-Perf", "AIPerf records"]
)
def test_a_run_has_the_same_figures_in_every_format(tmp_path, name):
    kind, path = in_every_format(tmp_path)[name]
    assert recognise(path) is kind
    run = only(path)
    summary = run.summary
    assert summary.completed == 200 and summary.failed == 0
    assert summary.duration_s == pytest.approx(SENT.duration, rel=1e-6)
    assert summary.mean_ttft_s == pytest.approx(0.1, rel=1e-6)
    assert summary.mean_e2e_s == pytest.approx(SENT.e2e.mean(), rel=1e-6)
    assert summary.mean_itl_s == pytest.approx(0.02, rel=1e-6)
    assert run.mean_tpot_s == pytest.approx(0.02, rel=1e-6)
    assert run.mean_input_tokens == pytest.approx(SENT.inputs.mean(), rel=1e-6)
    assert run.mean_output_tokens == pytest.approx(SENT.outputs.mean(), rel=1e-6)
    assert summary.total_output_tokens == SENT.outputs.sum()
    assert run.notes and run.tool
    if run.percentiles:
        p99 = run.percentile("e2e", 0.99)
        assert p99.exact and p99.low_s == pytest.approx(np.percentile(SENT.e2e, 99), rel=1e-6)
    if name in ("vLLM", "GuideLLM", "AIPerf", "AIPerf records"):
        assert run.spread == pytest.approx(0.2, abs=0.02)
    if name not in ("GenAI-Perf", "AIPerf records"):
        assert summary.offered_rate == 10.0
        assert check(summary).verdict is Verdict.STEADY
    else:
        assert summary.offered_rate is None
        assert check(summary).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("name", ["vLLM", "AIPerf records"])
def test_requests_are_read_row_by_row(tmp_path, name):
    run = only(in_every_format(tmp_path)[name][1])
    rows = run.requests
    assert len(rows) == 200 and rows.counted.all() and not rows.failed.any()
    assert rows.input_tokens.tolist() == SENT.inputs.tolist()
    assert rows.output_tokens.tolist() == SENT.outputs.tolist()
    assert rows.ttft_s == pytest.approx(SENT.ttft) and rows.e2e_s == pytest.approx(SENT.e2e)
    assert rows.tpot_s == pytest.approx(SENT.tpot)
    assert rows.start_s - rows.start_s[0] == pytest.approx(SENT.start, abs=1e-9)
    assert rows.num_gaps.tolist() == (SENT.outputs - 1).tolist()
    assert rows.place(4) == ("request 5" if name == "vLLM" else "line 5")


def test_failed_requests_are_counted_and_in_no_figure(tmp_path):
    run = only(files.write(tmp_path / "v.json", files.vllm(SENT, rate=10.0, failed=3)))
    assert run.summary.failed == 3 and run.summary.completed == 200
    assert run.requests.failed.sum() == 3
    assert run.requests.left_out[-1] == "failed: HTTP 503"
    assert np.isnan(run.requests.ttft_s[-3:]).all()


def test_older_vllm_files(tmp_path):
    """Without `failed`, `queue_times`, `latencies`, `start_times` and `errors`."""
    doc = files.vllm(SENT, rate=10.0, failed=2)
    for key in ("failed", "queue_times", "latencies", "start_times", "errors", "mean_e2el_ms"):
        doc.pop(key)
    run = only(files.write(tmp_path / "v.json", doc))
    assert run.summary.failed == 2
    assert run.requests.left_out[-1] == "failed: neither output nor TTFT"
    assert run.summary.mean_e2e_s == pytest.approx(SENT.e2e.mean())  # from TTFT and the gaps
    assert "that of the requests is used" in " ".join(run.notes)
    assert np.isnan(run.requests.queue_s).all() and np.isnan(run.requests.start_s).all()


def test_a_summary_counts_failures_by_its_prompts(tmp_path):
    doc = files.vllm(SENT, rate=10.0, failed=2, detailed=False)
    doc.pop("failed")
    assert only(files.write(tmp_path / "v.json", doc)).summary.failed == 2


def test_latencies_that_a_summary_keeps(tmp_path):
    doc = files.vllm(SENT, rate=10.0, failed=2, detailed=False) | {"latencies": [*SENT.e2e.tolist(), 0.0, 0.0]}
    doc.pop("mean_e2el_ms")
    run = only(files.write(tmp_path / "v.json", doc))
    assert run.requests is None and run.summary.mean_e2e_s == pytest.approx(SENT.e2e.mean())
    assert any("the list of latencies" in note for note in run.notes)


def test_queue_times_stay_apart_from_ttft(tmp_path):
    waiting = SENT.changed(queue=np.full(200, 0.5))
    run = only(files.write(tmp_path / "v.json", files.vllm(waiting, rate=10.0)))
    assert run.summary.mean_ttft_s == pytest.approx(0.1)
    assert run.requests.queue_s.tolist() == [0.5] * 200


@pytest.mark.parametrize("said", ["inf", "Infinity", math.inf])
def test_infinity_in_every_spelling(tmp_path, said):
    run = only(files.write(tmp_path / "v.json", files.vllm(SENT, rate=said, limit=64)))
    assert run.summary.offered_rate == math.inf
    assert check(run.summary).verdict is Verdict.CLOSED_LOOP


def test_a_run_without_requests_is_empty(tmp_path):
    doc = {"completed": 0, "duration": 1.0, "request_rate": "inf", "mean_ttft_ms": math.nan, "p99_ttft_ms": math.nan,
           "mean_tpot_ms": math.nan}  # fmt: skip
    run = only(files.write(tmp_path / "v.json", doc))
    assert check(run.summary).verdict is Verdict.EMPTY
    assert run.percentiles == () and run.mean_tpot_s is None


def test_several_runs_in_a_file_keep_their_lines(tmp_path):
    lines = [files.sglang(SENT, limit=8), files.sglang(SENT, rate=3.0, ratio=0.5)]
    runs = read_benchmark(files.write(tmp_path / "s.jsonl", lines))
    assert [run.label for run in runs] == ["s.jsonl, line 1", "s.jsonl, line 2"]
    assert runs[0].spread is None and runs[1].spread == pytest.approx(1 / 3)
    assert runs[0].summary.max_concurrency == 8 and runs[1].summary.offered_rate == 3.0
    appended = [files.vllm(SENT, limit=8, detailed=False), files.vllm(SENT, limit=16, detailed=False)]
    assert [run.tool for run in read_benchmark(files.write(tmp_path / "v.json", appended))] == ["vLLM bench serve"] * 2


def test_a_rate_that_is_ramped_is_of_no_steady_state(tmp_path):
    doc = files.vllm(SENT, ramp_up_strategy="linear", ramp_up_start_rps=1, ramp_up_end_rps=20)
    assert "ramped up from 1 to 20 requests/s" in only(files.write(tmp_path / "v.json", doc)).unsteady


def test_tokens_that_come_several_at_a_time(tmp_path):
    """The gaps are of chunks: their sum over the tokens is used."""
    doc = files.vllm(SENT, rate=10.0)
    doc["itls"] = [[2 * gaps[0]] * (len(gaps) // 2) + [gaps[0]] * (len(gaps) % 2) for gaps in doc["itls"]]
    doc["mean_itl_ms"] = 40.0
    run = only(files.write(tmp_path / "v.json", doc))
    assert run.summary.mean_itl_s == pytest.approx(0.02)
    assert any("several at a time" in note for note in run.notes)
    assert check(run.summary).verdict is Verdict.STEADY


def test_speculative_decoding_and_bursts_are_said(tmp_path):
    doc = files.vllm(SENT, spec_decode_acceptance_length=2.4) | {"burstiness": 0.5}
    notes = " ".join(only(files.write(tmp_path / "v.json", doc)).notes)
    assert "a step yields 2.4 tokens" in notes and "burstiness 0.5" in notes


@pytest.mark.parametrize(
    ("strategy", "rate", "limit"),
    [
        ({"type_": "synchronous"}, math.inf, 1),
        ({"type_": "concurrent", "streams": 7}, math.inf, 7),
        ({"type_": "throughput", "max_concurrency": 9}, math.inf, 9),
        ({"type_": "throughput", "max_concurrency": None}, math.inf, None),
        ({"type_": "poisson", "rate": 2.5, "max_concurrency": 512}, 2.5, 512),
        ({"kind": "constant", "rate": 2.5}, 2.5, None),
    ],
)
def test_strategies_of_guidellm(tmp_path, strategy, rate, limit):
    summary = only(files.write(tmp_path / "g.json", files.guidellm([(SENT, strategy)]))).summary
    assert (summary.offered_rate, summary.max_concurrency) == (rate, limit)


def test_older_guidellm_reports(tmp_path):
    """`args`, `run_stats`, no totals, and rows with their instants."""
    doc = files.guidellm([(SENT, {})])
    one = doc["benchmarks"][0]
    one["args"] = {"strategy": {"type_": "concurrent", "streams": 30}}
    one["run_stats"] = {"requests_made": {"successful": 200, "incomplete": 4, "errored": 1, "total": 205}}
    one["worker"] = {"backend_model": "org/model-8b"}
    del one["config"], one["metrics"]["request_totals"]
    rows = zip(SENT.start, SENT.inputs, SENT.outputs, SENT.ttft, SENT.e2e, strict=True)
    one["requests"] = {
        "successful": [
            {"start_time": a, "prompt_tokens": b, "output_tokens": c, "time_to_first_token_ms": 1e3 * d,
             "request_latency": e, "inter_token_latency_ms": 20.0}
            for a, b, c, d, e in rows
        ]
    }  # fmt: skip
    run = only(files.write(tmp_path / "g.json", doc))
    assert (run.summary.failed, run.summary.incomplete, run.model) == (1, 4, "org/model-8b")
    assert run.requests.ttft_s == pytest.approx(SENT.ttft) and run.requests.tpot_s == pytest.approx(SENT.tpot)
    one["requests"]["successful"] = one["requests"]["successful"][:50]
    sampled = only(files.write(tmp_path / "g.json", doc))
    assert sampled.requests is None and any("a sample of 50 of 200" in note for note in sampled.notes)


def test_guidellm_tpot_counts_the_first_token_and_is_not_used(tmp_path):
    doc = files.guidellm([(SENT, {"type_": "synchronous"})])
    doc["benchmarks"][0]["metrics"]["time_per_output_token_ms"]["successful"]["mean"] = 999.0
    assert only(files.write(tmp_path / "g.json", doc)).mean_tpot_s == pytest.approx(0.02)


def test_units_of_aiperf_decide(tmp_path):
    doc = files.aiperf(SENT, concurrency=64)
    for key, unit, scale in (("time_to_first_token", "s", 1e-3), ("request_latency", "us", 1e3)):
        block = doc[key]
        doc[key] = {name: value if name == "unit" else scale * value for name, value in block.items()} | {"unit": unit}
    run = only(files.write(tmp_path / "a.json", doc))
    assert run.summary.mean_ttft_s == pytest.approx(0.1)
    assert run.percentile("e2e", 0.5).low_s == pytest.approx(np.median(SENT.e2e))
    assert run.model == "org/model-8b"


def test_two_concurrencies_in_the_configuration_are_none(tmp_path):
    doc = files.aiperf(SENT, concurrency=64)
    doc["input_config"]["warmup"] = {"concurrency": 4}
    run = only(files.write(tmp_path / "a.json", doc))
    assert run.summary.max_concurrency is None
    assert any("more than one concurrency (4 and 64): none is used" in note for note in run.notes)


def test_records_that_do_not_count_are_named(tmp_path):
    lines = [json.loads(line) for line in files.aiperf_records(files.uniform(30)).splitlines()]
    lines[3]["metadata"]["was_cancelled"] = True
    lines[5]["error"] = {"code": 500, "type": "ServerError", "message": "x"}
    lines[5]["metrics"] = {}
    for at in (0, 1):
        lines[at]["metadata"]["benchmark_phase"] = "warmup"
        lines[at]["metrics"]["time_to_first_token"]["value"] = 41_000.0
    run = only(files.write(tmp_path / "a.jsonl", lines))
    assert (run.summary.completed, run.summary.failed) == (26, 2)
    assert run.summary.mean_ttft_s == pytest.approx(0.1)
    notes = " ".join(run.notes)
    for words in ("lines 1 and 2 (warm-up", "line 4 (cancelled)", "line 6 (failed: ServerError)"):
        assert words in notes


def test_instants_in_nanoseconds_are_exact(tmp_path):
    """A float of epoch nanoseconds would be off by up to 128 ns."""
    sent = files.uniform(3).changed(start=np.array([0.0, 1e-7, 2e-7]))
    run = only(files.write(tmp_path / "a.jsonl", files.aiperf_records(sent)))
    np.testing.assert_allclose(run.requests.start_s, sent.start, rtol=0, atol=1e-12)


def closed(clients, number=400, seed=0, gap=0.0):
    """Starts and ends of clients that send again when they are served."""
    rng = np.random.default_rng(seed)
    free = np.zeros(clients)
    start, end = [], []
    for _ in range(number):
        at = int(np.argmin(free))
        start.append(free[at])
        end.append(free[at] + rng.exponential())
        free[at] = end[-1] + gap
    return np.array(start), np.array(end)


@pytest.mark.parametrize("clients", [1, 2, 17, 64])
@pytest.mark.parametrize("gap", [0.0, 1e-3])
def test_clients_in_a_closed_loop_are_seen_in_the_records(clients, gap):
    assert held_concurrency(*closed(clients, gap=gap)) == clients


@pytest.mark.parametrize("seed", range(10))
def test_an_open_loop_is_none(seed):
    rng = np.random.default_rng(seed)
    start = np.cumsum(rng.exponential(0.1, 400))
    assert held_concurrency(start, start + rng.exponential(1.0, 400)) is None
    assert held_concurrency(start[:1], start[:1] + 1.0) is None


def test_gzip_and_byte_order_marks(tmp_path):
    text = json.dumps(files.vllm(SENT, rate=10.0))
    path = tmp_path / "v.json.gz"
    path.write_bytes(gzip.compress(text.encode("utf-8-sig")))
    assert recognise(path) is Kind.VLLM
    assert only(path).summary.completed == 200


def test_keys_are_mapped(tmp_path):
    doc = files.vllm(SENT, rate=10.0, detailed=False)
    doc["ttft_avg"], doc["ok"] = doc.pop("mean_ttft_ms"), doc.pop("completed")
    path = files.write(tmp_path / "v.json", doc)
    with pytest.raises(ValueError, match=r"no key 'completed' in the file; found keys: .*--map completed="):
        read_benchmark(path)
    run = only(path, columns={"mean_ttft_ms": "ttft_avg", "completed": "ok"})
    assert run.summary.mean_ttft_s == pytest.approx(0.1)
    csv = files.genai_perf(SENT).replace("Time To First Token (ms)", "TTFT (ms)")
    path = files.write(tmp_path / "a.csv", csv)
    with pytest.raises(ValueError, match=r"no key 'time_to_first_token'.*--streaming"):
        read_benchmark(path)
    assert only(path, columns={"time_to_first_token": "TTFT"}).summary.mean_ttft_s == pytest.approx(0.1)
    with pytest.raises(ValueError, match="unknown key to map 'mean_ttft'; did you mean 'mean_ttft_ms'"):
        read_benchmark(path, columns={"mean_ttft": "x"})


def test_a_load_that_is_not_said_can_be_given(tmp_path):
    path = files.write(tmp_path / "a.csv", files.genai_perf(SENT))
    run = only(path, concurrency=64)
    assert run.summary.max_concurrency == 64
    assert run.notes[-1] == "at most 64 in flight, as given"
    assert only(path, offered_rate=10.0).summary.offered_rate == 10.0
    assert only(path, offered_rate=math.inf).summary.offered_rate == math.inf
    known = files.write(tmp_path / "v.json", files.vllm(SENT, rate=10.0, limit=16))
    for arguments, text in (
        ({"concurrency": 8}, "v.json: the clients' limit is 16, not 8 as given"),
        ({"offered_rate": 3.0}, "v.json: the offered rate is 10, not 3 as given"),
        ({"concurrency": 0}, "concurrency must be >= 1, got 0"),
        ({"offered_rate": -1.0}, "offered_rate must be > 0"),
    ):
        with pytest.raises(ValueError, match=text):
            read_benchmark(known, **arguments)


def test_genai_perf_numbers_have_commas(tmp_path):
    slow = SENT.changed(ttft=SENT.ttft + 30.0, e2e=SENT.e2e + 30.0)
    text = files.genai_perf(slow)
    assert '"30,100.000000"' in text
    assert only(files.write(tmp_path / "a.csv", text)).summary.mean_ttft_s == pytest.approx(30.1)


def test_what_is_no_benchmark_is_not_recognised(tmp_path):
    for name, text in (("a.csv", "n,context,time_ms\n1,2,3\n"), ("b.json", "[[1, 0.5]]"), ("c.json", '{"a": 1}'),
                       ("d.json", '{"completed": '), ("e.txt", "hello"), ("f.json", "")):  # fmt: skip
        assert recognise(files.write(tmp_path / name, text)) is None
    assert recognise(tmp_path / "nowhere.json") is None and recognise(tmp_path) is None
    with pytest.raises(FileNotFoundError, match="benchmark file not found"):
        read_benchmark(tmp_path / "nowhere.json")
    with pytest.raises(ValueError, match="is a folder"):
        read_benchmark(tmp_path)
