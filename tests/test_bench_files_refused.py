"""Benchmark files that are wrong in some place: every one is refused in words with its place, none by a traceback."""

import copy
import json
import math

import benchmark_files as files
import pytest

from jaxsim import examine, read_benchmark, read_scrapes, read_trace, runs_of
from optim.benchmark_report import examination_entry, examination_report
from optim.documents import to_json

SENT = files.uniform(30, mean=(64, 6))
ONE = files.uniform(3, mean=(64, 6))

GONE = object()
WRONG = [GONE, None, "abc", -1, 0, 1.5, True, [], [[1]], {}, {"a": 1}, math.nan, math.inf, 10**400]

DOCUMENTS = {
    "vllm.json": files.vllm(SENT, rate=10.0, failed=1),
    "vllm_summary.json": files.vllm(SENT, detailed=False, limit=4),
    "sglang.jsonl": files.sglang(SENT, ratio=0.5, rate=10.0),
    "guidellm.json": files.guidellm([(SENT, {"type_": "constant", "rate": 10.0})]),
    "aiperf.json": files.aiperf(SENT, concurrency=2),
}
RECORDS = [json.loads(line) for line in files.aiperf_records(ONE).splitlines()]


def paths(value, prefix=()):
    """Every place in a document; of lists the first two entries."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else list(enumerate(value))[:2]
        for key, inner in items:
            yield (*prefix, key)
            yield from paths(inner, (*prefix, key))


def changed(document, path, value):
    document = copy.deepcopy(document)
    at = document
    for key in path[:-1]:
        at = at[key]
    if value is GONE:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


def survives(path, read=read_benchmark):
    """Reading it gives runs that all that follows can use, or a refusal that names the file."""
    try:
        found = read(path)
    except ValueError as error:
        assert str(error).startswith(path.name), error
        return
    for run in found if read is read_benchmark else ():
        examined = examine(run)
        json.loads(to_json(examination_entry(examined)))
        examination_report(examined)
        try:
            runs_of([examined, examined])
        except ValueError as error:
            assert "can be fitted" in str(error), error


@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_value_in_any_place(tmp_path, name):
    document = DOCUMENTS[name]
    for path in paths(document):
        for value in WRONG if "errored" not in path else ():
            survives(files.write(tmp_path / name, changed(document, path, value)))


def test_any_value_in_any_place_of_a_record(tmp_path):
    for path in paths(RECORDS[0]):
        for value in WRONG:
            survives(files.write(tmp_path / "a.jsonl", [changed(RECORDS[0], path, value), *RECORDS[1:]]))


@pytest.mark.parametrize("key", ["input_lens", "output_lens", "start_times", "errors", "completed", "max_concurrency"])
def test_any_value_in_a_result_that_is_read_as_a_trace(tmp_path, key):
    document = DOCUMENTS["vllm.json"]
    for path in ((key,), (key, 0)) if isinstance(document[key], list) else ((key,),):
        for value in WRONG:
            survives(files.write(tmp_path / "v.json", changed(document, path, value)), read_trace)


@pytest.mark.parametrize("name", [*DOCUMENTS, "a.csv", "a.jsonl"])
def test_cut_anywhere(tmp_path, name):
    text = {"a.csv": files.genai_perf(SENT), "a.jsonl": files.aiperf_records(ONE)}.get(name)
    text = json.dumps(DOCUMENTS[name], indent=1) if text is None else text
    for end in range(1, len(text), max(len(text) // 60, 1)):
        survives(files.write(tmp_path / name, text[:end]))


# name, what is changed, words of the refusal
REFUSED = [
    ("vllm.json", {"completed": GONE}, ["no key 'completed' in the file", "found keys: 'date'", "--map completed="]),
    ("vllm.json", {"completed": "30"}, ["line 10, key 'completed'", "finite number >= 0", "got '30'"]),
    ("vllm.json", {"completed": 2.5}, ["key 'completed'", "whole number >= 0", "got 2.5"]),
    ("vllm.json", {"duration": 0}, ["key 'duration'", "finite number > 0", "got 0"]),
    ("vllm.json", {"duration": math.nan}, ["key 'duration'", "got nan"]),
    ("vllm.json", {"mean_ttft_ms": -1}, ["key 'mean_ttft_ms'", "got -1"]),
    ("vllm.json", {"mean_ttft_ms": math.nan}, ["key 'mean_ttft_ms'", "got nan"]),
    ("vllm.json", {"p99_ttft_ms": math.nan}, ["key 'p99_ttft_ms'", "got nan"]),
    ("vllm.json", {"request_rate": "fast"}, ["key 'request_rate'", "'inf' where all were sent at once", "got 'fast'"]),
    ("vllm.json", {"request_rate": 0}, ["key 'request_rate'", "got 0"]),
    ("vllm.json", {"max_concurrency": 0}, ["key 'max_concurrency'", ">= 1, or null for no limit"]),
    ("vllm.json", {"ttfts": [0.1]}, ["key 'ttfts'", "a list of 31, one for each request", "got '1 entries'"]),
    ("vllm.json", {"ttfts": ["x"] * 31}, ["key 'ttfts[0]'", "finite number >= 0", "got 'x'"]),
    ("vllm.json", {"output_lens": [1.5] * 31}, ["key 'output_lens[0]'", "whole number"]),
    ("vllm.json", {"itls": [0.1] * 31}, ["key 'itls[0]'", "list of the request's gaps in seconds", "got 0.1"]),
    ("vllm.json", {"itls": [[0.1], [-1.0]] + [[]] * 29}, ["key 'itls[1][0]'", "got -1.0"]),
    ("vllm.json", {"errors": [3] * 31}, ["key 'errors[0]'", "empty where the request ended well"]),
    ("vllm.json", {"model_id": 3}, ["key 'model_id'", "text in quotes"]),
    ("vllm_summary.json", {"mean_ttft_ms": GONE}, ["no key 'mean_ttft_ms'", "measure a stream"]),
    ("vllm.json", {"total_input_sequences": 3}, ["embeddings", "generates no tokens"]),
    ("sglang.jsonl", {"random_range_ratio": 3}, ["line 6, key 'random_range_ratio'", "from 0 to 1"]),
    ("guidellm.json", {"benchmarks": []}, ["key 'benchmarks'", "the list is empty: 0 benchmarks"]),
    ("guidellm.json", {"benchmarks": [3]}, ["key 'benchmarks[0]'", "an object", "got 3"]),
    ("guidellm.json", {("benchmarks", 0, "metrics"): GONE}, ["no key 'metrics' in benchmarks[0]"]),
    (
        "guidellm.json",
        {("benchmarks", 0, "metrics", "time_to_first_token_ms", "successful", "mean"): "85"},
        ["key 'benchmarks[0].metrics.time_to_first_token_ms.successful.mean'", "got '85'"],
    ),
    (
        "guidellm.json",
        {("benchmarks", 0, "config", "strategy"): {"type_": "constnat", "rate": 1}},
        ["benchmarks[0].config.strategy.type_", "unknown strategy 'constnat'", "did you mean 'constant'"],
    ),
    ("guidellm.json", {("benchmarks", 0, "end_time"): 0.0}, ["benchmarks[0].end_time", "after start_time"]),
    ("aiperf.json", {("time_to_first_token", "unit"): "hours"}, ["time_to_first_token.unit", "s, ms, us or ns"]),
    ("aiperf.json", {("request_throughput", "unit"): "requests/min"}, ["request_throughput.unit", "requests/sec"]),
    ("aiperf.json", {("input_sequence_length", "unit"): "words"}, ["input_sequence_length.unit", "tokens"]),
    ("aiperf.json", {"time_to_first_token": GONE}, ["no key 'time_to_first_token'", "--streaming"]),
    ("aiperf.json", {("request_count", "avg"): GONE}, ["no key 'avg' in request_count"]),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_refusals_say_what_and_where(tmp_path, name, changes, words):
    document = DOCUMENTS[name]
    for path, value in changes.items():
        path = (path,) if isinstance(path, str) else path
        document = changed(document, path, value) if path[-1] in str(document) else {**document, path[0]: value}
    with pytest.raises(ValueError) as error:
        read_benchmark(files.write(tmp_path / name, document))
    for word in (name, *words):
        assert word in str(error.value)


CSV = files.genai_perf(SENT)

# content of a file, words of the refusal
TEXTS = [
    ("a.csv", CSV.replace("Metric,avg", "Metrics,avg", 1), ["line 1", "not a benchmark", "expected one of"]),
    ("a.csv", CSV.replace("Metric,Value", "Figure,Value"), ["line 8", "a block's header", "got 'Figure'"]),
    (
        "a.csv",
        CSV.replace('"100.000000"', '"1,00"', 1),
        ["line 2, column 'avg'", "1,046.20 was expected", "got '1,00'"],
    ),
    ("a.csv", CSV.replace('"100.000000"', "fast", 1), ["line 2, column 'avg'", "got 'fast'"]),
    ("a.csv", CSV.replace("(ms)", "(parsecs)", 1), ["line 2, key 'time_to_first_token.unit'", "unit of time"]),
    ("a.csv", CSV.replace("(ms)", "", 1), ["line 2", "a unit of time"]),
    ("a.csv", CSV.replace("Request Count (count)", "Count"), ["no key 'request_count'", "found keys"]),
    ("a.csv", "Metric,avg\nx,1,2\n", ["line 2: 3 fields, expected the 2 of the header"]),
    ("a.jsonl", '{"metadata": {}, "metrics": {}}\n{"completed": 1}\n', ["line 1 is AIPerf", "line 2 is vLLM", "split"]),
    ("a.jsonl", '{"completed": 1, "x": 2}\n[1]\n', ["line 2: a JSON object was expected, got a list"]),
    ("a.jsonl", files.aiperf_records(ONE) + "{", ["line 4, column 2: not JSON", "3 lines before it can be read"]),
    ("a.json", '{\n "completed": 3,\n "duration" 1}', ["line 3, column 13: not JSON"]),
    ("a.json", "[1, 2]", ["a JSON object was expected, got a list"]),
    ("a.json", '{"hello": 1}', ["found keys: 'hello'", "expected one of", "--map"]),
    ("a.json", "{" * 5000, ["a.json"]),
    ("a.json", '{"a": ' * 50_000 + "1" + "}" * 50_000, ["a.json"]),
    ("a.html", "<html></html>", ["looks like HTML", "save the tool's JSON"]),
    ("a.yaml", "benchmarks:\n- metrics: {}\n", ["line 1", "not a benchmark that is known here"]),
    ("a.json", "", ["the file is empty: 0 runs"]),
    ("a.json", b"\xff\xfe\x00", ["not UTF-8"]),
]


@pytest.mark.parametrize(("name", "text", "words"), TEXTS)
def test_texts_are_refused(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError) as error:
        read_benchmark(path)
    for word in (name, *words):
        assert word in str(error.value)


RECORD_REFUSALS = [
    (("metadata", "request_start_ns"), 1.5, ["line 1", "metadata.request_start_ns", "nanoseconds", "got 1.5"]),
    (("metadata", "request_start_ns"), GONE, ["no key 'request_start_ns' in metadata"]),
    (("metrics", "input_sequence_length"), GONE, ["no key 'input_sequence_length' in metrics"]),
    (("metrics", "time_to_first_token"), GONE, ["time_to_first_token", "--streaming"]),
    (("metrics", "time_to_first_token", "unit"), "h", ["metrics.time_to_first_token.unit", "s, ms, us or ns"]),
    (("metrics", "output_sequence_length", "value"), 2.5, ["output_sequence_length.value", "whole number"]),
    (("error",), "boom", ["key 'error'", "an object"]),
]


@pytest.mark.parametrize(("path", "value", "words"), RECORD_REFUSALS)
def test_records_are_refused_with_their_line(tmp_path, path, value, words):
    lines = [RECORDS[0], changed(RECORDS[1], path, value)]
    with pytest.raises(ValueError) as error:
        read_benchmark(files.write(tmp_path / "a.jsonl", lines))
    for word in ("a.jsonl", *(word.replace("line 1", "line 2") for word in words)):
        assert word in str(error.value)


def test_records_of_a_warm_up_only(tmp_path):
    lines = [changed(each, ("metadata", "benchmark_phase"), "warmup") for each in RECORDS]
    with pytest.raises(ValueError, match="all 3 requests are warm-up; 0 requests are left"):
        read_benchmark(files.write(tmp_path / "a.jsonl", lines))


def scrapes(tmp_path, *, later=lambda text: text, earlier=lambda text: text):
    before = files.write(tmp_path / "before.prom", earlier(files.scrape(SENT, upto=10)))
    after = files.write(tmp_path / "after.prom", later(files.scrape(SENT, upto=30)))
    return before, after


def replaced(old, new):
    def change(text):
        assert old in text
        return text.replace(old, new, 1)

    return change


LABELS = 'engine="0",model_name="org/model-8b"'

# what happens to the later scrape, words of the refusal
SCRAPES = [
    (lambda text: text.replace("30.0", "5.0"), ["after.prom: line", "went down from 10 to 5", "started again"]),
    (lambda text: text.replace("vllm:request_success_total", "vllm:other_total"), ["is gone", "started again"]),
    (lambda text: text.replace("vllm:", "tgi:"), ["no metric of vLLM", "/metrics"]),
    (lambda text: text + "hello\n", ["line ", "not a sample of a Prometheus scrape", "'hello'"]),
    (lambda text: text + f"vllm:num_requests_running{{{LABELS}}} 3\n", ["stands on line", "already"]),
    (lambda text: text + f'vllm:time_to_first_token_seconds_bucket{{le="x",{LABELS}}} 1',
     ["needs a number as its label le, got 'x'"]),
    (lambda text: text.replace("30.0", "NaN"), ["must be finite, got nan"]),
    (lambda text: text.replace("num_requests_running{" + LABELS + "} 0.0", "num_requests_running{" + LABELS + "} -1"),
     ["num_requests_running must be a finite number >= 0, got -1"]),
    (lambda text: "completed", ["not a Prometheus scrape"]),
    (lambda text: "# HELP nothing\n", ["no sample in the file"]),
]  # fmt: skip


@pytest.mark.parametrize(("later", "words"), SCRAPES)
def test_scrapes_are_refused(tmp_path, later, words):
    before, after = scrapes(tmp_path, later=later)
    with pytest.raises(ValueError) as error:
        read_scrapes(before, after, duration_s=10.0)
    for word in ("after.prom", *words):
        assert word in str(error.value)


def test_scrapes_the_wrong_way_round(tmp_path):
    before, after = scrapes(tmp_path)
    with pytest.raises(ValueError, match="went down from 30 to 10; the server was started again in between"):
        read_scrapes(after, before, duration_s=10.0)
    timed = [files.write(tmp_path / f"{at}.prom", files.scrape(SENT, upto=upto, time_ms=time))
             for at, upto, time in ((0, 10, 1_700_000_060_000), (1, 30, 1_700_000_000_000))]  # fmt: skip
    with pytest.raises(ValueError, match=r"1\.prom: taken 60 s before 0\.prom; give the older scrape first"):
        read_scrapes(*timed)


def test_every_line_of_a_scrape_can_be_lost(tmp_path):
    """Any line that is missing, in either scrape: a run or a refusal."""
    text = files.scrape(SENT, upto=30)
    for at in range(len(text.splitlines())):
        lines = text.splitlines()
        del lines[at]
        for arguments in ({"later": lambda _, lines=lines: "\n".join(lines)},
                          {"earlier": lambda _, lines=lines: "\n".join(lines).replace("30.0", "1.0")}):  # fmt: skip
            before, after = scrapes(tmp_path, **arguments)
            try:
                for run in read_scrapes(before, after, duration_s=10.0):
                    to_json(examination_entry(examine(run)))
            except ValueError as error:
                assert str(error).startswith(("after.prom", "before.prom")), error
