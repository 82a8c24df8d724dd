"""Every example file of the formats that users have: read with the figures that it has by hand, or refused in words.

One row a file. As a trace, as a benchmark and as a table of steps: what is not one of these says so with the file, the
place, what was expected and how to map it.
"""

import math

import numpy as np
import pytest

from jaxsim import examine, read_benchmark, read_scrapes, read_steps, read_trace
from jaxsim.bench_files import Kind, recognise
from jaxsim.benchmark_doctor import Verdict
from jaxsim.cdf import cdf_lengths

# file: requests, mean rate in 1/s or None, sum of input tokens, sum of output tokens
TRACES = {
    "azure_2023.csv": (5, 5 / 11.3765434, 10787, 488),
    "azure_2023.csv.gz": (5, 5 / 11.3765434, 10787, 488),
    "azure_2024_tz.csv": (5, 5 / 0.987656, 17547, 584),
    "azure_2025_multimodal.csv.gz": (5, 5 / 2.1, 10352, 445),
    "bom.csv": (2, 2 / 0.9, 30, 11),
    "burstgpt.csv": (4, 4 / 126.0, 2040, 1036),
    "epoch_ms.csv": (3, 3 / 0.827, 9150, 725),
    "mooncake.jsonl": (5, 5 / 9.0, 123830, 925),
    "openai_responses.jsonl": (3, 3 / 9.0, 397, 2130),
    "otel_spans.jsonl": (2, 2 / 3.0, 462, 160),
    "semicolon_decimal_comma.csv": (2, 2 / 0.75, 3000, 50),
    "splitwise.csv": (5, 5 / 2.21, 10787, 488),
    "vidur_lengths.csv": (5, 5 / 2.7, 14497, 1155),
    "aiperf_profile_export.jsonl": (1, None, 550, 9),
    "vllm_bench_serve.json": (3, 3 / 1.2, 1536, 24),
}

# file: words of the refusal as a trace
NO_TRACE = {
    "bad_values.csv": ["line 3, column 'input_tokens'", "whole number from 1", "5 of 6 rows", "--map"],
    "empty.csv": ["empty (0 bytes)", "0 requests", "header and rows"],
    "header_only.csv": ["0 requests", "header and rows"],
    "truncated.jsonl": ["line 2", "column 40", "1 of 2 lines", "truncated"],
    "unknown_columns.csv": ["line 1", "'prompt_tok'", "expected input_tokens", "--map input_tokens=prompt_tok"],
    "mooncake_text_no_timestamp.jsonl": ["line 1, column 'input_length'", "3 of 5 rows", "--map"],
    "openai_usage_page.json": ["line 1", "one object a line"],
    "cdf_fleet_sim.json": ["line 1", "got a list", "one object a line"],
    "vllm_bench_serve_inf.json": ["no trace", "vLLM bench serve", "--save-detailed"],
    "sglang_bench.jsonl": ["no trace", "sglang", "--output-details"],
    "guidellm_benchmarks.json": ["no trace", "GuideLLM"],
    "genai_perf.csv": ["no trace", "GenAI-Perf", "profile_export.jsonl"],
    "profile_export_aiperf.json": ["no trace", "AIPerf", "profile_export.jsonl"],
    "vllm_metrics.prom": ["no trace", "Prometheus"],
}

NOTES = {"README.md"}
"""What describes the others."""


@pytest.fixture(scope="module")
def formats(shared_data):
    return shared_data / "formats"


def test_every_file_is_a_test(formats):
    assert {path.name for path in formats.iterdir()} == {*TRACES, *NO_TRACE, *NOTES}


@pytest.mark.parametrize("name", TRACES)
def test_traces(formats, name):
    number, rate, inputs, outputs = TRACES[name]
    trace = read_trace(formats / name)
    assert (len(trace.input_tokens), trace.input_tokens.sum(), trace.output_tokens.sum()) == (number, inputs, outputs)
    if rate is not None:
        assert number / trace.arrival_s[-1] == pytest.approx(rate, rel=1e-9)
    assert trace.notes


@pytest.mark.parametrize("name", NO_TRACE)
def test_what_is_no_trace_is_refused(formats, name):
    with pytest.raises(ValueError) as error:
        read_trace(formats / name)
    for words in (name, *NO_TRACE[name]):
        assert words in str(error.value)


# file: kind, and of each run: completed, failed, duration, TTFT, TPOT, E2E (s), tokens in and out, rate, limit, verdict
BENCHMARKS = {
    "vllm_bench_serve.json": (
        Kind.VLLM,
        [(3, 1, 3.1, 0.08167, 0.01067, 0.469 / 3, 512, 8, 2.0, 2, Verdict.TOO_FEW)],
    ),
    "vllm_bench_serve_inf.json": (
        Kind.VLLM,
        [(0, 0, 1.0, math.nan, None, None, None, None, math.inf, None, Verdict.EMPTY)],
    ),
    "sglang_bench.jsonl": (
        Kind.SGLANG,
        [
            (100, 0, 25.4, 0.18, 0.0107, 2.9, 1024, 256, 4.0, 32, Verdict.STEADY),
            (300, 0, 91.8, 0.0, 0.00476, 4.7602, 250_000, 1000, math.inf, 16, Verdict.INCONSISTENT),
        ],
    ),
    "guidellm_benchmarks.json": (
        Kind.GUIDELLM,
        [(3, 0, 3 / 1.9, 0.085, 0.0159, 2.1, 256, 128, 2.0, None, Verdict.TOO_FEW)],
    ),
    "genai_perf.csv": (
        Kind.SUMMARY_CSV,
        [(100, 0, 100 / 1.56, 1.0462, 0.03035, 6.4062, 3000.05, 174.45, None, None, Verdict.UNKNOWN)],
    ),
    "profile_export_aiperf.json": (
        Kind.SUMMARY_JSON,
        # By Little's law 1.56/s x 2.25 s makes 3.5 in flight, of 10 clients.
        [(100, 0, 100 / 1.56, 0.1463, 0.0121, 0.1463 + 0.0121 * 173.5, 3000, 174.5, None, 10, Verdict.INCONSISTENT)],
    ),
    "aiperf_profile_export.jsonl": (
        Kind.AIPERF_RECORDS,
        [(1, 1, 0.467724545, 0.1178, 0.1881 / 8, 0.3059, 550, 9, None, None, Verdict.TOO_FEW)],
    ),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks(formats, name):
    kind, rows = BENCHMARKS[name]
    assert recognise(formats / name) is kind
    runs = read_benchmark(formats / name)
    assert len(runs) == len(rows)
    for run, row in zip(runs, rows, strict=True):
        completed, failed, duration, ttft, tpot, e2e, inputs, outputs, rate, limit, verdict = row
        summary = run.summary
        assert (summary.completed, summary.failed) == (completed, failed)
        assert summary.duration_s == pytest.approx(duration, rel=1e-9)
        assert summary.mean_ttft_s == pytest.approx(ttft, nan_ok=True)
        assert (run.mean_tpot_s, summary.e2e_s) == (pytest.approx(tpot), pytest.approx(e2e))
        assert (run.mean_input_tokens, run.mean_output_tokens) == (pytest.approx(inputs), pytest.approx(outputs))
        assert (summary.offered_rate, summary.max_concurrency) == (rate, limit)
        assert examine(run).verdict is verdict


@pytest.mark.parametrize("name", [name for name in (*TRACES, *NO_TRACE) if name not in BENCHMARKS])
def test_what_is_no_benchmark_is_refused(formats, name):
    assert recognise(formats / name) in (None, Kind.SCRAPE)
    with pytest.raises(ValueError) as error:
        read_benchmark(formats / name)
    wanted = {
        "empty.csv": ["the file is empty", "expected one of"],
        "truncated.jsonl": ["line 2, column 40: not JSON", "truncated"],
        "vllm_metrics.prom": ["two are needed", "read_scrapes(before, after)"],
    }.get(name, ["expected one of: vLLM bench serve results", "--map mean_ttft_ms=THEIR_KEY"])
    for words in (name, *wanted):
        assert words in str(error.value)


def test_the_detailed_vllm_result_row_by_row(formats):
    (run,) = read_benchmark(formats / "vllm_bench_serve.json")
    rows = run.requests
    assert rows.left_out == ("", "", "", "failed: HTTP 503")
    np.testing.assert_allclose(rows.ttft_s, [0.061, 0.064, 0.12, np.nan])
    np.testing.assert_allclose(rows.tpot_s[:3], [0.01, 0.01, 0.012])
    assert rows.queue_s.tolist() == [0.0, 0.0, 0.05, 0.0]
    assert run.percentile("ttft", 0.99).low_s == pytest.approx(0.1189)
    findings = " ".join(examine(run).findings)
    assert "request 4: failed: HTTP 503" in findings
    assert "request 3 waited at the client" in findings and "mean TTFT is 98.33 ms" in findings
    assert "rests on 0 of 3 requests" in findings


def test_the_summary_agrees_with_the_model_of_a_closed_loop(formats):
    """GenAI-Perf's hundred requests: 9.99 in flight by Little's law, which were ten clients."""
    (run,) = read_benchmark(formats / "genai_perf.csv", concurrency=10)
    examined = examine(run)
    assert examined.verdict is Verdict.CLOSED_LOOP
    assert examined.checkup.little_concurrency == pytest.approx(1.56 * 6.4062)


def test_a_disaggregated_run_without_ttft_is_not_for_a_fit(formats):
    examined = examine(read_benchmark(formats / "sglang_bench.jsonl")[1])
    assert not examined.steady and examined.reason == "a mean TTFT of 0 was not measured"


def test_one_scrape_twice_served_nothing(formats):
    path = formats / "vllm_metrics.prom"
    with pytest.raises(ValueError, match="no request of org/model-8b or org/model-8b-old-server got its first token"):
        read_scrapes(path, path)


def test_two_scrapes(formats, tmp_path):
    """The example, and the same server 100 requests later: the difference is exactly the example."""
    before = formats / "vllm_metrics.prom"
    text = before.read_text(encoding="utf-8")
    doubled = []
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        counter = any(part in name for part in ("_bucket{", "_sum{", "_count{", "_total{"))
        doubled.append(f"{name} {2 * float(value)}" if counter and not line.startswith("#") else line)
    after = tmp_path / "later.prom"
    after.write_text("\n".join(doubled), encoding="utf-8")
    (run,) = read_scrapes(before, after, duration_s=50.0)
    assert (run.model, run.summary.completed, run.summary.arrived) == ("org/model-8b", 100, 100)
    assert run.summary.mean_ttft_s == pytest.approx(0.31)
    assert run.summary.achieved_rate == pytest.approx(2.0)
    assert run.in_flight == 15.0
    p99, p50 = run.percentile("ttft", 0.99), run.percentile("ttft", 0.5)
    assert (p50.low_s, p50.high_s, p99.low_s, p99.high_s) == (0.1, 0.25, 0.25, 7.5)
    assert not p99.exact and p99.text == "250 to 7,500"
    assert "2 preemptions" in " ".join(run.notes) and "org/model-8b-old-server" in " ".join(run.notes)
    assert run.mean_tpot_s is None and run.mean_input_tokens is None


NOT_STEPS = sorted({*TRACES, *NO_TRACE} - {"truncated.jsonl", "vllm_metrics.prom"})


@pytest.mark.parametrize("name", NOT_STEPS)
def test_none_of_them_is_a_table_of_steps(formats, name):
    with pytest.raises(ValueError) as error:
        read_steps(formats / name)
    assert str(error.value).startswith(name)
    said = str(error.value)
    assert any(words in said for words in ("no column for num_active", "a request trace", "0 steps", "line 1"))


def test_the_cdf_is_one(formats):
    inputs, outputs, weight = cdf_lengths(formats / "cdf_fleet_sim.json", output_share=0.2)
    assert weight[inputs + outputs <= 2048].sum() == pytest.approx(0.7)
