"""Readers of request traces: every format, every refusal with its words, golden statistics, CDFs."""

import csv
import gzip
import json
import re
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim import Workload
from jaxsim.cdf import cdf_lengths
from jaxsim.trace_stats import trace_statistics
from jaxsim.traces import RawTrace, read_trace
from jaxsim.workload import MAX_TOKENS

AZURE = ([374, 2048, 17, 7437, 911], [44, 12, 301, 3, 128])
AZURE_TIMES = [0.0, 2.5000001, 2.5000001, 7.8765433, 11.3765434]

# file, input tokens, output tokens, arrivals, words of its notes
GOOD = [
    ("azure_2023.csv", *AZURE, AZURE_TIMES, ["dates and times", "no UTC offset", "'ContextTokens'"]),
    ("azure_2023.csv.gz", *AZURE, AZURE_TIMES, ["dates and times"]),
    (
        "azure_2024_tz.csv",
        [2162, 980, 300, 55, 14050],
        [5, 410, 90, 77, 2],
        [0.0, 0.25, 0.887655, 0.987655, 0.987656],
        ["1 of 5 rows are earlier", "mean rate 5.062 requests/s"],
    ),
    (
        "azure_2025_multimodal.csv.gz",
        [512, 1650, 5200, 90, 2900],
        [64, 120, 33, 210, 18],
        [0.0, 0.3, 0.9, 1.4, 2.1],
        ["not used: 'NumImages'"],
    ),
    (
        "burstgpt.csv",
        [472, 1087, 417, 64],
        [18, 230, 276, 512],
        [0.0, 40.0, 113.5, 126.0],
        ["1 of 5 requests have 0 output tokens", 'failed="drop"', "'Model'"],
    ),
    ("bom.csv", [10, 20], [5, 6], [0.0, 0.9], ["'TIMESTAMP'"]),
    (
        "epoch_ms.csv",
        [100, 50, 9000],
        [20, 700, 5],
        [0.0, 0.377, 0.827],
        ["in ms (an epoch time", "mean rate 3.628 requests/s", "1 of 3 rows are earlier"],
    ),
    (
        "mooncake.jsonl",
        [1200, 1290, 300, 121000, 40],
        [60, 44, 800, 20, 1],
        [0.0, 0.35, 3.0, 3.0, 9.0],
        [
            "in ms (as in the Mooncake format",
            "mean rate 0.5556",
            "20.0% were seen before",
            "in 2 of 5 rows the number of hash_ids is not ceil(input tokens / 512); first: line 4",
        ],
    ),
    ("semicolon_decimal_comma.csv", [1000, 2000], [20, 30], [0.0, 0.75], ["';'", "decimal comma"]),
    ("splitwise.csv", *AZURE, [0.0, 0.71, 0.95, 2.2, 2.21], ["'prompt_size'", "'batch_size'"]),
    (
        "vidur_lengths.csv",
        [3772, 2015, 10, 600, 8100],
        [54, 156, 5, 900, 40],
        [0.0, 0.4, 1.1, 1.1, 2.7],
        ["'num_prefill_tokens'"],
    ),
    (
        "openai_responses.jsonl",
        [310, 12, 75],
        [44, 900, 1186],
        [0.0, 0.0, 9.0],
        ["OpenAI response", "no usage, so no token counts (first: line 4)", "error body (first: line 5)"],
    ),
    (
        "aiperf_profile_export.jsonl",
        [550],
        [9],
        [0.0],
        ["AIPerf", "cancelled (first: line 2)", "warm-up of the benchmark (first: line 3)"],
    ),
    (
        "vllm_bench_serve.json",
        [512, 512, 512],
        [8, 8, 8],
        [0.0, 0.5, 1.2],
        ["requests of vLLM bench serve", "not those of its users: in a closed loop of at most 2", "1 of 4 requests"],
    ),
    (
        "otel_spans.jsonl",
        [450, 12],
        [120, 40],
        [0.0, 3.0],
        ["error.type is set (first: line 2)", "not a generation", "1 of 3 requests have 0 output tokens"],
    ),
]


@pytest.mark.parametrize("file, inputs, outputs, arrivals, words", GOOD, ids=[row[0] for row in GOOD])
def test_example_is_read(shared_data, file, inputs, outputs, arrivals, words):
    trace = read_trace(shared_data / "formats" / file)
    assert trace.input_tokens.tolist() == inputs
    assert trace.output_tokens.tolist() == outputs
    np.testing.assert_allclose(trace.arrival_s, arrivals, rtol=0, atol=1e-9)
    for word in words:
        assert any(word in note for note in trace.notes), (word, trace.notes)


BROKEN = [
    ("empty.csv", ["empty.csv", "empty (0 bytes)", "0 requests"]),
    ("header_only.csv", ["header_only.csv", "0 requests"]),
    ("truncated.jsonl", ["truncated.jsonl", "line 2", "1 of 2 lines", "truncated"]),
    (
        "unknown_columns.csv",
        [
            "unknown_columns.csv, line 1",
            "found columns: 'ts', 'prompt_tok', 'gen_tok'",
            "input_tokens, ContextTokens",
            "--map input_tokens=prompt_tok --map output_tokens=gen_tok",
        ],
    ),
    (
        "bad_values.csv",
        [
            "line 3, column 'input_tokens': input_tokens must be a whole number from 1",
            "got no value",
            "line 7, column 'timestamp'",
            "got 'nan'",
            "5 of 6 rows",
        ],
    ),
    (
        "mooncake_text_no_timestamp.jsonl",
        ["line 1, column 'input_length'", "line 4, column 'output_length'", "3 of 5 rows", "got no value"],
    ),
    ("vllm_bench_serve_inf.json", ["summary of a benchmark is no trace", "--save-detailed"]),
    ("guidellm_benchmarks.json", ["summary of a benchmark is no trace", "all of its requests"]),
    ("profile_export_aiperf.json", ["summary of a benchmark is no trace", "profile_export.jsonl"]),
    ("vllm_metrics.prom", ["summary of a benchmark is no trace", "no requests"]),
    ("openai_usage_page.json", ["line 1", "one object a line"]),
    ("cdf_fleet_sim.json", ["line 1", "got a list"]),
    ("sglang_bench.jsonl", ["summary of a benchmark is no trace", "--output-details"]),
    ("genai_perf.csv", ["summary of a benchmark is no trace", "profile_export.jsonl"]),
]


@pytest.mark.parametrize("file, words", BROKEN, ids=[row[0] for row in BROKEN])
def test_broken_example_is_refused(shared_data, file, words):
    with pytest.raises(ValueError) as error:
        read_trace(shared_data / "formats" / file)
    for word in words:
        assert word in str(error.value)


HEAD = "timestamp,input_tokens,output_tokens\n"

# name, content, arguments of read_trace, words of the refusal
REFUSED = [
    ("a.csv", HEAD + "0,1.5,2\n", {}, ["a.csv: line 2, column 'input_tokens'", "got '1.5'", "1 of 1 rows"]),
    ("a.csv", HEAD + "0,0,2\n", {}, ["must be a whole number from 1 to 16777216, got '0'"]),
    ("a.csv", HEAD + "0,5,-2\n", {}, ["column 'output_tokens'", "got '-2'"]),
    ("a.csv", HEAD + "0,5,1e12\n", {}, ["got '1e12'"]),
    ("a.csv", HEAD + "0,inf,2\n1,nan,3\n", {}, ["line 2", "got 'inf'", "2 of 2 rows"]),
    ("a.csv", HEAD + "0,16777216,1\n", {}, ["line 2", "input + output tokens must be <= 16777216"]),
    ("a.csv", HEAD + '0,"1,046",2\n', {}, ["got '1,046'"]),
    ("a.csv", HEAD + "0,5,2\n\n,5,2\n", {}, ["line 4, column 'timestamp'", "got no value", "1 of 2 rows"]),
    ("a.csv", HEAD + "0,5,2\n1,5\n", {}, ["line 3, column 'output_tokens'", "got no value"]),
    ("a.csv", HEAD + "0,5,2\n1,5,2,9\n", {}, ["line 3: 4 fields, expected the 3 of the header"]),
    ("a.csv", HEAD + "2024-05-12 00:00:00,5,2\n7,5,2\n", {}, ["line 3, column 'timestamp'", "got '7'"]),
    ("a.csv", HEAD + "0,5\n1,5\n", {}, ["line 2: 2 fields, expected the 3 of the header"]),
    ("a.csv", HEAD + '0,"5,6\n1,2,3\n', {}, ["2 fields, expected the 3 of the header"]),
    ("a.csv", "t,isl,isl,osl\n0,1,2,3\n", {}, ["could be input_tokens: 'isl' and 'isl'", "rename one"]),
    ("a.csv", HEAD + "2024-02-30 00:00:00,5,2\n", {}, ["line 2, column 'timestamp'", "2024-02-30"]),
    (
        "a.csv",
        HEAD + "2024-05-12T00:00:00Z,5,2\n2024-05-12T00:00:01,5,2\n",
        {},
        ["1 of 2 times carry a UTC offset"],
    ),
    (
        "a.csv",
        HEAD + "2024-05-12T00:00:00Z,5,2\n",
        {"time_unit": "ms"},
        ["dates and times", "time_unit 'ms' does not apply"],
    ),
    ("a.csv", "0.0,100,20\n0.5,200,30\n", {}, ["looks like data", "must be a header"]),
    ("a.csv", "t,prompt_tokens,isl,osl\n0,1,1,1\n", {}, ["more than one column could be input_tokens"]),
    ("a.csv", "t,prompt_tokens\n0,1\n", {}, ["no column for output_tokens", "found columns: 't', 'prompt_"]),
    (
        "a.csv",
        "ts,prompt_tok,gen_tok\n0,1,2\n",
        {"columns": {"input_tokens": "prompt_tk", "output_tokens": "gen_tok"}},
        [
            "no column 'prompt_tk'",
            "found columns: 'ts', 'prompt_tok', 'gen_tok'",
            "did you mean 'prompt_tok'",
        ],
    ),
    (
        "a.csv",
        HEAD,
        {"columns": {"input_token": "x"}},
        ["unknown column to map 'input_token'", "input_tokens"],
    ),
    (
        "a.csv",
        HEAD,
        {"columns": {"input_tokens": "x", "output_tokens": "x"}},
        ["must map each of our names to another column"],
    ),
    (
        "a.csv",
        HEAD + "0,5,2\n",
        {"columns": {"output_tokens": "input_tokens"}},
        ["one column was taken for two"],
    ),
    ("a.csv", HEAD + "0,5,2\n", {"failed": "ignore"}, ["unknown failed policy 'ignore'", "drop, keep"]),
    ("a.csv", HEAD + "0,5,2\n", {"time_unit": "min"}, ["unknown time_unit 'min'"]),
    (
        "a.csv",
        "isl,osl\n5,2\n",
        {"time_unit": "ms"},
        ["time_unit 'ms' was given but the trace has no arrival"],
    ),
    ("a.csv", HEAD + "0,5,0\n", {}, ["0 requests are left", "1 of 1 requests have 0 output tokens"]),
    ("a.csv", " \n\n", {}, ["0 requests"]),
    ("a.csv", HEAD.encode("utf-16"), {}, ["not UTF-8"]),
    ("a.csv.gz", HEAD, {}, ["damaged gzip"]),
    ("a.parquet", HEAD, {}, ["cannot be read as parquet"]),
    ("a.txt", HEAD, {}, ["unknown ending '.txt'", ".csv.gz"]),
    ("a.jsonl", "\n\n", {}, ["0 requests"]),
    ("a.jsonl", '{"isl": 5, "osl": true}\n', {}, ["line 1, column 'osl'", "got 'True'"]),
    ("a.jsonl", '{"isl": [5], "osl": 2}\n', {}, ["column 'isl'", "got 'a list'"]),
    ("a.jsonl", '{"isl": 5, "osl": 2}\n{}\n', {}, ["line 2, column 'isl'", "got no value"]),
    ("a.jsonl", '{"isl": 5, "osl": 2, "t": NaN}\n', {}, ["line 1, column 't'", "got 'nan'"]),
    ("a.jsonl", '{"isl": 5, "osl": 2}\n[1]\n{"isl"\n', {}, ["line 2: a JSON object", "2 of 3 lines"]),
    (
        "a.jsonl",
        '{"isl": 5, "osl": 2}\n{"usage": null}\n',
        {},
        ["line 1 is a flat record and line 2 is OpenAI"],
    ),
    ("a.jsonl", '{"usage": null}\n', {}, ["0 requests are left", "1 of 1 rows left out"]),
    ("a.jsonl", '{"usage": {"prompt_tokens": 5}}\n', {}, ["line 1, column 'output_tokens'", "got no value"]),
]


@pytest.mark.parametrize("name, content, arguments, words", REFUSED)
def test_refusals(tmp_path, name, content, arguments, words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as error:
        read_trace(path, **arguments)
    for word in words:
        assert word in str(error.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"trace file not found: .*nowhere\.csv"):
        read_trace(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="is a folder"):
        read_trace(tmp_path)


def written(tmp_path, content, name="trace.csv"):
    path = tmp_path / name
    path.write_text(content)
    return path


def test_mapping(shared_data):
    mapping = {"input_tokens": "prompt_tok", "output_tokens": "gen_tok"}
    trace = read_trace(shared_data / "formats" / "unknown_columns.csv", columns=mapping)
    assert trace.input_tokens.tolist() == [100, 200]
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.5])


def test_mapping_of_nested_keys(tmp_path):
    line = json.dumps({"at": {"ms": 1500}, "usage": {"mine": 7, "yours": 3}})
    mapping = {"timestamp": "at.ms", "input_tokens": "usage.mine", "output_tokens": "usage.yours"}
    trace = read_trace(written(tmp_path, line + "\n", "a.jsonl"), columns=mapping)
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([7], [3])
    assert any("in ms (from its name)" in note for note in trace.notes)


def test_failed_requests_are_kept_only_when_asked(shared_data):
    trace = read_trace(shared_data / "formats" / "burstgpt.csv", failed="keep")
    assert trace.input_tokens.tolist() == [472, 1087, 417, 3021, 64]
    assert trace.output_tokens.tolist() == [18, 230, 276, 1, 512]
    assert any("kept as load with ONE output token" in note for note in trace.notes)


@pytest.mark.parametrize(
    "times, arguments, arrivals, word",
    [
        (["0", "1500"], {}, [0.0, 1500.0], "in s (assumed"),
        (["0", "1500"], {"time_unit": "ms"}, [0.0, 1.5], "in ms (given)"),
        (["1730419200", "1730419201"], {}, [0.0, 1.0], "in s (an epoch time"),
        (["1730419200.1234567", "1730419200.1234568"], {}, [0.0, 1e-7], "in s (an epoch time"),
        (["1730419200123456", "1730419200123457"], {}, [0.0, 1e-6], "in us (an epoch time"),
        (["1759813207532900363", "1759813207532900463"], {}, [0.0, 1e-7], "in ns (an epoch time"),
        (["-1.5", "2.5e0"], {}, [0.0, 4.0], "in s (assumed"),
        (["600000000", "0"], {"time_unit": "ms"}, [0.0, 600000.0], "in ms (given)"),
        (["2024-05-12T00:00:00+02:00", "2024-05-11T22:00:00.5Z"], {}, [0.0, 0.5], "dates and times"),
        (["2024-05-12 00:00:00,25 UTC", "2024-05-11 20:00:00-0400"], {}, [0.0, 0.25], "dates and times"),
    ],
)
def test_times(tmp_path, times, arguments, arrivals, word):
    rows = "".join(f'"{time}",5,6\n' for time in times)
    trace = read_trace(written(tmp_path, HEAD + rows), **arguments)
    np.testing.assert_allclose(trace.arrival_s, arrivals, rtol=1e-6, atol=1e-12)
    assert any(word in note for note in trace.notes)


def test_relative_milliseconds_over_days_are_no_epoch(tmp_path):
    trace = read_trace(written(tmp_path, "timestamp_ms,isl,osl\n0,5,6\n604800000,5,6\n"))
    np.testing.assert_allclose(trace.arrival_s, [0.0, 604800.0])
    trace = read_trace(written(tmp_path, "timestamp,isl,osl\n0,5,6\n604800000,5,6\n"))
    assert any("in s (assumed" in note and "mean rate" in note for note in trace.notes)


def test_seven_decimals_survive(shared_data):
    trace = read_trace(shared_data / "formats" / "azure_2023.csv")
    assert abs(trace.arrival_s[1] - 2.5000001) < 1e-9
    assert any("no UTC offset" in note for note in trace.notes)


def test_names_ignore_case_and_separators_but_not_position(tmp_path):
    path = written(tmp_path, "Output-Length,INPUT_LENGTH\n7,9\n")
    trace = read_trace(path)
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([9], [7])
    assert trace.arrival_s is None
    assert any("no arrival times" in note for note in trace.notes)


def test_lines_are_counted_through_blank_lines_and_quotes(tmp_path):
    path = written(tmp_path, '\nt,isl,osl,text\n0,5,6,"two\nlines"\n\n1,x,6,a\n')
    with pytest.raises(ValueError, match=r"line 6, column 'isl'.*got 'x'; 1 of 2 rows"):
        read_trace(path)
    trace = read_trace(written(tmp_path, '\nt,isl,osl,text\n0,5,6,"two\nlines"\n\n1,7,6,a\n'))
    assert trace.input_tokens.tolist() == [5, 7]
    assert any("1 blank lines" in note for note in trace.notes)


def test_some_missing_timestamps_leave_no_arrivals(tmp_path):
    lines = '{"isl": 5, "osl": 6}\n{"isl": 7, "osl": 8, "timestamp": 12.5}\n'
    trace = read_trace(written(tmp_path, lines, "a.jsonl"))
    assert trace.arrival_s is None
    assert any("1 of 2 rows have no timestamp (first: line 1)" in note for note in trace.notes)


def test_alibaba_blocks_of_16_tokens(tmp_path):
    line = json.dumps({"input_length": 33, "output_length": 6, "hash_ids": [1, 2, 3]})
    trace = read_trace(written(tmp_path, f"{line}\n{line}\n", "a.jsonl"))
    assert trace.prefix_hit_share == 0.5
    assert not any("warning" in note for note in trace.notes)


def test_block_count_that_cannot_be(tmp_path):
    line = json.dumps({"timestamp": 200, "input_length": 20, "output_length": 8, "hash_ids": [0, 1, 2]})
    trace = read_trace(written(tmp_path, line, "a.jsonl"))
    assert any(re.search(r"warning: in 1 of 1 rows.*line 1, 3 hash ids for 20 tokens", n) for n in trace.notes)


def test_coarse_clock_is_noted(shared_data):
    trace = read_trace(shared_data / "data" / "traces" / "mooncake_conv.parquet")
    assert any("90.2% of the gaps" in note and "ticks of about 3 s" in note for note in trace.notes)
    assert trace.prefix_hit_share == pytest.approx(0.366, abs=5e-4)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_parquet_with_dates(tmp_path, unit):
    times = pl.Series([1_500_000_000, 1_750_000_000]).cast(pl.Datetime("ns", "Europe/Berlin"))
    frame = pl.DataFrame({"timestamp": times.dt.cast_time_unit(unit), "isl": [3, 4], "osl": [5.0, 6.0]})
    frame.write_parquet(tmp_path / "a.parquet")
    trace = read_trace(tmp_path / "a.parquet")
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.25], atol=1e-12)
    assert trace.output_tokens.tolist() == [5, 6]


def test_parquet_names_the_row(tmp_path):
    pl.DataFrame({"isl": [3, None], "osl": [5.5, 6.0]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"row 1, column 'osl'.*got '5.5'; row 2, column 'isl'.*no value; 2 of 2"):
        read_trace(tmp_path / "a.parquet")


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**12), st.integers(1, 10**6), st.integers(1, 10**4)),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=25, deadline=None)
def test_csv_and_json_lines_agree(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("agree")
    (folder / "a.csv").write_text(
        "arrival_us,isl,osl\n".replace("arrival_us", "timestamp_us")
        + "".join(f"{time},{inputs},{outputs}\n" for time, inputs, outputs in rows)
    )
    with gzip.open(folder / "a.jsonl.gz", "wt") as file:
        for time, inputs, outputs in rows:
            file.write(json.dumps({"timestamp_us": time, "isl": inputs, "osl": outputs}) + "\n")
    first, second = read_trace(folder / "a.csv"), read_trace(folder / "a.jsonl.gz")
    expected = sorted(rows, key=lambda row: row[0])
    for trace in (first, second):
        assert trace.input_tokens.tolist() == [row[1] for row in expected]
        assert trace.output_tokens.tolist() == [row[2] for row in expected]
        origin = expected[0][0]
        assert trace.arrival_s.tolist() == [(row[0] - origin) / 1_000_000 for row in expected]


def golden(shared_data, trace):
    with open(shared_data / "data" / "expected" / "trace_stats.csv", newline="") as file:
        return next(row for row in csv.DictReader(file) if row["trace"] == trace)


def check_lengths(statistics, row):
    for prefix, summary in (
        ("in", statistics.input_tokens),
        ("out", statistics.output_tokens),
        ("tot", statistics.total_tokens),
    ):
        for name in ("mean", "p50", "p90", "p99", "max", "cv2"):
            assert getattr(summary, name) == pytest.approx(float(row[f"{prefix}_{name}"]), rel=1e-10), name
    assert statistics.correlation == pytest.approx(float(row["pearson"]), rel=1e-8)
    assert statistics.input_share == pytest.approx(float(row["input_share_agg"]), rel=1e-12)
    for tail, share in statistics.share_above.items():
        assert share == pytest.approx(float(row[f"frac_tot>{tail}"]), rel=1e-12)


@pytest.mark.parametrize("name", ["azure23_code", "azure23_conv", "mooncake_conv", "mooncake_synth"])
@pytest.mark.parametrize("as_workload", [False, True])
def test_statistics_of_traces(shared_data, name, as_workload):
    path = shared_data / "data" / "traces" / f"{name}.parquet"
    statistics = trace_statistics(Workload.from_trace(path) if as_workload else read_trace(path))
    row = golden(shared_data, name)
    assert statistics.num_requests == int(row["n"])
    assert statistics.duration_s == pytest.approx(float(row["dur_s"]), rel=1e-12)
    assert statistics.mean_rate == pytest.approx(float(row["rate"]), rel=1e-12)
    assert statistics.interarrival_cv2 == pytest.approx(float(row["cv2_iat"]), rel=1e-9)
    assert statistics.zero_gap_share == pytest.approx(float(row["frac_zero_iat"]), rel=1e-12)
    for window in (1, 10, 60):
        assert statistics.dispersion[window] == pytest.approx(float(row[f"idc{window}"]), rel=1e-12)
    check_lengths(statistics, row)


def test_statistics_of_lengths_only(shared_data):
    frame = pl.read_parquet(shared_data / "data" / "traces" / "lengths_only.parquet")
    frame = frame.filter(pl.col("source") == "sharegpt10k")
    trace = RawTrace(frame["input_tokens"].to_numpy(), frame["output_tokens"].to_numpy(), None)
    statistics = trace_statistics(trace)
    check_lengths(statistics, golden(shared_data, "sharegpt10k(len only)"))
    assert statistics.duration_s is None and statistics.dispersion == {1: None, 10: None, 60: None}


def test_statistics_of_a_law():
    workload = Workload.from_lengths([10, 20, 30], [1, 1, 1], weight=[0.5, 0.4, 0.1])
    statistics = trace_statistics(workload)
    assert statistics.num_requests is None and statistics.mean_rate is None and statistics.correlation is None
    summary = statistics.input_tokens
    assert (summary.p50, summary.p90, summary.p99, summary.max) == (10, 20, 30, 30)
    assert summary.mean == pytest.approx(16.0)


def test_workload_from_trace_keeps_arrivals_and_notes(shared_data):
    workload = Workload.from_trace(shared_data / "formats" / "azure_2023.csv")
    assert workload.arrival_s[1] == pytest.approx(2.5000001, abs=1e-9)
    assert workload.input_tokens[workload.arrival_row].tolist() == AZURE[0]
    assert workload.rate == pytest.approx(5 / 11.3765434)
    assert any("dates and times" in note for note in workload.notes)


# points, words of the refusal
BAD_CDFS = [
    ([], ["empty list"]),
    ([[8, 0.5], [4, 1.0]], ["point [1] tokens must be > 8", "got 4", "ascending"]),
    ([[8, 0.5], [8, 1.0]], ["point [1] tokens must be > 8"]),
    ([[8.5, 1.0]], ["whole number from 1", "got 8.5"]),
    ([[0, 0.0], [8, 1.0]], ["whole number from 1", "got 0"]),
    ([[-4, 1.0]], ["got -4"]),
    ([[float("nan"), 1.0]], ["got nan"]),
    ([[MAX_TOKENS + 1, 1.0]], ["to 16777216"]),
    ([[10**400, 1.0]], ["to 16777216"]),
    ([[4, 0.6], [8, 0.5], [9, 1.0]], ["point [1] cumulative share must be >= 0.6, got 0.5"]),
    ([[4, -0.1], [8, 1.0]], ["in [0, 1], got -0.1"]),
    ([[4, float("nan")], [8, 1.0]], ["in [0, 1], got nan"]),
    ([[4, 35.0], [8, 100.0]], ["got 35.0", "fractions, not percent"]),
    ([[4, 0.5], [8, 0.999]], ["last cumulative share must be 1, got 0.999"]),
    ([[4, 0.5, 1], [8, 1.0]], ["point [0] must be a pair"]),
    ([4, 1.0], ["point [0] must be a pair", "got 4"]),
    ([["4", 1.0]], ["point [0] must be a pair"]),
    ([[True, 1.0]], ["point [0] must be a pair"]),
    ({"azure": [[4, 1.0]]}, ["got an object", "'azure'"]),
    (3, ["list of pairs", "got 3"]),
]


@pytest.mark.parametrize("points, words", BAD_CDFS)
@pytest.mark.parametrize("as_file", [False, True])
def test_bad_cdfs_are_refused(tmp_path, points, words, as_file):
    given_points = points
    if as_file or not isinstance(points, list):
        given_points = tmp_path / "cdf.json"
        given_points.write_text(json.dumps(points))
        words = ["cdf.json", *words]
    with pytest.raises(ValueError) as error:
        cdf_lengths(given_points, output_share=0.2)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, 1.5, float("nan"), float("inf")])
def test_output_share_outside_the_unit_interval(share):
    with pytest.raises(ValueError, match=r"output_share must be in \(0, 1\)"):
        cdf_lengths([[8, 1.0]], output_share=share)


def test_cdf_files(tmp_path, shared_data):
    with pytest.raises(FileNotFoundError, match="CDF file not found"):
        cdf_lengths(tmp_path / "nowhere.json", output_share=0.2)
    with pytest.raises(ValueError, match=r"junk\.json: not JSON"):
        cdf_lengths(written(tmp_path, "[[512, 0.3", "junk.json"), output_share=0.2)
    inputs, outputs, weight = cdf_lengths(shared_data / "formats" / "cdf_fleet_sim.json", output_share=0.2)
    total = inputs + outputs
    for tokens, share in ((512, 0.35), (2048, 0.70), (4096, 0.86), (8192, 0.95), (65536, 1.0)):
        assert weight[total <= tokens].sum() == pytest.approx(share, abs=1e-12)


def test_cdf_split_of_a_total_is_exact():
    inputs, outputs, weight = cdf_lengths([[100_000, 1.0]], output_share=0.2)
    total = np.arange(1, 100_001)
    assert inputs.tolist() == np.maximum(4 * total // 5, 1).tolist()
    assert outputs.tolist() == np.maximum(total - inputs, 1).tolist()
    assert (inputs[0], outputs[0]) == (1, 1)
    np.testing.assert_allclose(weight, 1e-5)


@given(share=st.floats(1e-9, 1 - 1e-9), length=st.integers(1, 3000))
@settings(max_examples=100, deadline=None)
def test_cdf_split_keeps_the_total(share, length):
    inputs, outputs, weight = cdf_lengths([[length, 1.0]], output_share=share)
    assert inputs.min() >= 1 and outputs.min() >= 1
    assert (inputs + outputs).tolist() == [2, *range(2, length + 1)]
    ideal = np.arange(1, length + 1) * share
    assert np.all(np.abs(outputs - ideal)[1:] <= 1 + 1e-6 * length)
    assert weight.sum() == pytest.approx(1.0)


def test_cdf_bins_without_mass_are_left_out():
    inputs, outputs, weight = cdf_lengths([[10, 0.0], [20, 0.5], [1000, 0.5], [1001, 1.0]], output_share=0.5)
    assert (inputs + outputs).tolist() == [*range(11, 21), 1001]
    np.testing.assert_allclose(weight, [0.05] * 10 + [0.5])


def test_polars_is_loaded_only_to_read():
    code = (
        "import sys, jaxsim, jaxsim.traces, jaxsim.trace_stats; jaxsim.workload('agent'); "
        "print('polars' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
