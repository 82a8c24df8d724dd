"""`fleetgrad fit` and `fleetgrad trace` of benchmark files: what is read, said, refused and written."""

import json
import tomllib
from pathlib import Path

import benchmark_files as files
import numpy as np
import pytest
from fleets import make_profile
from typer.testing import CliRunner

from jaxsim.fit.table import StepTable, step_seconds
from jaxsim.physics import StepLaw
from optim.cli import app
from optim.profile_file import profile_toml, read_profile

LAW = StepLaw(0.012, 3e-5, 6e-8, 5e-5, 2e-9, 0.0)
REPOSITORY = Path(__file__).parent.parent
EXAMPLE = str(REPOSITORY / "tests" / "data" / "azure_conversation.toml")


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def strict(text):
    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


def words_of(result):
    return " ".join(result.stdout.split())


def steps_csv(batches=(1, 4, 16, 64, 256), contexts=(128, 1024, 4096)):
    """Steps that only decode and whole prompts, by the law."""
    batch, context = (grid.ravel().astype(float) for grid in np.meshgrid(batches, contexts))
    prompt = 2.0 ** np.arange(6, 14)
    table = StepTable.of(
        np.concatenate([batch, np.ones(8)]),
        np.ones(len(batch) + 8),
        mean_context=np.concatenate([context, prompt]),
        prompt_tokens=np.concatenate([0 * batch, prompt]),
    )
    seconds = step_seconds(LAW, table.rows)
    rows = zip(table.num_active, table.mean_context, table.prompt_tokens, 1e3 * seconds, strict=True)
    return "n,context,prompt_tokens,time_ms\n" + "".join(f"{a!r},{b!r},{c!r},{d!r}\n" for a, b, c, d in
                                                         (map(float, row) for row in rows))  # fmt: skip


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Files of a simulated sweep of clients and prompt lengths, and one run above capacity."""
    folder = tmp_path_factory.mktemp("sweep")
    profile = make_profile(**LAW._asdict(), chunk_tokens=2048.0, max_num_seqs=200, kv_blocks=400_000)
    rng = np.random.default_rng(5)
    paths = []
    for length, output in ((128, 64), (2048, 64)):
        inputs, outputs = (np.round(mean * rng.uniform(0.8, 1.2, 2000)) for mean in (length, output))
        for clients in (1, 8, 32):
            sent = files.simulated(profile, inputs, outputs, number=max(200, 20 * clients), concurrency=clients)
            paths.append(files.write(folder / f"v{length}_{clients}.json", files.vllm(sent, limit=clients)))
    over = files.simulated(profile, inputs, outputs, number=1500, rate=20.0)
    files.write(folder / "over.json", files.vllm(over, rate=20.0))
    return paths


@pytest.fixture
def steps(tmp_path):
    return files.write(tmp_path / "steps.csv", steps_csv())


@pytest.fixture
def base(tmp_path):
    """A profile of one's own, whose law is another."""
    made = make_profile(chunk_tokens=2048.0, max_num_seqs=256, kv_blocks=60_000, usd_per_gpu_hour=2.0)
    return files.write(tmp_path / "base.toml", profile_toml(made))


def test_a_step_table_becomes_a_profile_that_plans(steps, base, tmp_path):
    out = tmp_path / "fitted.toml"
    result = run("fit", steps, "--profile", base, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    assert (doc["kind"], doc["status"], doc["schema_version"], doc["rows"]) == ("fit", "ok", 1, 23)
    assert doc["files"] == [{"file": "steps.csv", "read_as": "a table of 23 steps"}]
    found = doc["coefficients"]
    assert found["base_ms"]["value"] == pytest.approx(12.0, rel=1e-6)
    assert found["per_sequence_ms"]["value"] == pytest.approx(0.03, rel=1e-6)
    assert found["per_1000_context_tokens_ms"]["value"] == pytest.approx(0.06, rel=1e-6)
    assert found["prefill_per_1000_tokens_ms"]["value"] == pytest.approx(50.0, rel=1e-6)
    assert found["prefill_per_1000_by_1000_tokens_ms"]["value"] == pytest.approx(2.0, rel=1e-6)
    assert found["base_ms"]["low"] <= 12.0 + 1e-6 and found["base_ms"]["fitted"]
    assert set(doc["errors"]) == {"all", "decode", "prompt"} == set(doc["held_out"])
    assert doc["knee"]["num_active"] == "inf" and doc["knee_text"].startswith("Knee: none")
    assert doc["runs"] == doc["used"] == doc["left_out"] == []
    written = read_profile(out)
    assert np.array(written.law) == pytest.approx(np.array(LAW), rel=1e-6)
    assert (float(written.kv_blocks), float(written.usd_per_gpu_hour)) == (60_000, 2.0)
    for words in ("fitted to 23 rows of steps.csv", "median error", "on rows held out", "those of"):
        assert words in written.source
    slow = ("--ttft-p99-ms", "2000", "--tpot-p99-ms", "200", "--rate", "5")
    plan = run("plan", EXAMPLE, "--profile", out, "--max-pools", "1", "--no-simulate", "--json", *slow)
    assert plan.exit_code == 0, plan.output
    assert strict(plan.stdout)["profiles"][0]["source"] == written.source


def test_the_page_of_a_step_table(steps, base):
    result = run("fit", steps)
    assert result.exit_code == 0, result.output
    page = words_of(result)
    for words in ("Fitted to 23 rows of steps.csv", "steps.csv: a table of 23 steps", "base 12.00", "ms a step",
                  "ms per 1,000 tokens held", "95 % interval", "held out", "Knee: none", "--profile BASE"):  # fmt: skip
        assert words in page
    assert max(map(len, result.stdout.splitlines())) <= 100
    shown = run("fit", steps, "--profile", base).stdout
    assert tomllib.loads(shown[shown.index("name = ") :])["kv_blocks"] == 60_000


def test_a_kink_is_said(tmp_path):
    lines = steps_csv(batches=(1, 2, 4, 8, 16, 32, 64, 128)).splitlines()
    bent = [lines[0]]
    for line in lines[1:]:
        n, context, prompt, time = map(float, line.split(","))
        bent.append(f"{n},{context},{prompt},{time + 0.3 * max(n - 32.0, 0.0)}")
    page = words_of(run("fit", files.write(tmp_path / "s.csv", "\n".join(bent))))
    assert "Knee: steps take 0.3" in page and "above 32" in page


def test_few_steps_are_no_place_to_look_for_a_kink(tmp_path):
    page = words_of(run("fit", files.write(tmp_path / "s.csv", "n,context,time_ms\n1,10,5\n2,10,6\n4,20,8\n")))
    assert "Knee: not looked for" in page and "few" in page


def test_a_sweep_is_examined_and_fitted(sweep, base, tmp_path):
    out = tmp_path / "fitted.toml"
    result = run("fit", *sweep, sweep[0].parent / "over.json", "--profile", base, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    assert doc["rows"] == 6 and len(doc["runs"]) == 7 and len(doc["used"]) == 6
    (left,) = doc["left_out"]
    assert left["run"] == "over.json" and "20 requests/s were offered" in left["reason"]
    verdicts = {each["file"]: each["verdict"] for each in doc["runs"]}
    assert verdicts.pop("over.json") == "unstable" and set(verdicts.values()) == {"closed_loop"}
    assert [each["concurrency"] for each in doc["used"]] == [1, 8, 32, 1, 8, 32]
    kinds = {finding["kind"] for each in doc["runs"] for finding in each["findings"]}
    assert {"cold_wave", "few_beyond", "piling_up", "summary"} <= kinds
    assert doc["coefficients"]["base_ms"]["value"] == pytest.approx(12.0, rel=0.01)
    assert doc["coefficients"]["prefill_per_1000_tokens_ms"]["value"] == pytest.approx(50.0, rel=0.1)
    (warning,) = [each["text"] for each in doc["warnings"] if "extrapolated" in each["text"]]
    assert "admits 256 sequences and the largest batch that was measured is 32" in warning
    assert read_profile(out).source.startswith("fitted to 6 rows of v128_1.json, v128_8.json and 4 more files")
    assert doc["out"] == str(out)


def test_the_page_of_a_sweep(sweep):
    result = run("fit", *sweep, sweep[0].parent / "over.json", "--chunk-tokens", "2048")
    page = words_of(result)
    for words in ("vLLM bench serve results", "closed loop", "unstable", "the first wave, requests 1 to 32",
                  "Runs used", "a closed loop, at its number of clients", "Runs left out: - over.json",
                  "chunks of 2,048 tokens", "prompts of 1", "outputs of 6"):  # fmt: skip
        assert words in page
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "assumed: --chunk-tokens" in words_of(run("fit", *sweep))


def test_files_of_one_name_are_told_apart(tmp_path):
    """AIPerf writes every run of a sweep to a file of the same name."""
    paths = []
    for clients, tpot in ((4, 0.02), (12, 0.03)):
        folder = tmp_path / f"c{clients}"
        folder.mkdir()
        sent = files.uniform(300, mean=(64, 16), tpot=tpot, rate=10.0 * clients / 5.0)
        paths.append(files.write(folder / "profile_export_aiperf.json", files.aiperf(sent, rate=sent.start.size / 30)))
    doc = strict(run("fit", *paths, "--json").stdout)
    assert [each["file"] for each in doc["runs"]] == [str(path) for path in paths]
    files.write(
        paths[1], '{"time_to_first_token": {"unit": "ms", "avg": -1}, "request_count": {"unit": "n", "avg": 1}}'
    )
    refused = run("fit", *paths)
    assert refused.exit_code == 2 and refused.stderr.startswith(f"error: {paths[1]}: line 1, key")


def test_groups_can_be_held_out(sweep):
    doc = strict(run("fit", *sweep, "--hold-out", "groups", "--json").stdout)
    assert doc["status"] == "ok"


def test_a_known_overhead_is_kept_apart(steps, base, tmp_path):
    doc = strict(run("fit", steps, "--overhead-ms", "2", "--profile", base, "--json").stdout)
    assert doc["overhead_ms"] == 2.0 and doc["profile"]["overhead_s"] == 0.002
    assert doc["coefficients"]["base_ms"]["value"] == pytest.approx(10.0, rel=1e-6)


def test_clients_that_the_files_do_not_say_are_given(tmp_path):
    sent = [files.uniform(300, mean=(64, 16), tpot=tpot, rate=rate) for tpot, rate in ((0.02, 10.0), (0.03, 20.0))]
    paths = [files.write(tmp_path / f"{k}.csv", files.genai_perf(each)) for k, each in enumerate(sent)]
    silent = run("fit", *paths)
    assert silent.exit_code == 2 and "give it with --concurrency" in silent.stderr
    doc = strict(run("fit", *paths, "--concurrency", "4,12", "--json").stdout)
    assert [each["concurrency"] for each in doc["used"]] == [4, 12]
    assert any("at most 4 in flight, as given" in note for note in doc["runs"][0]["notes"])


def test_scrapes_in_pairs(tmp_path):
    sent = files.uniform(600, mean=(512, 32), rate=2.0, ttft=0.04)
    faster = files.uniform(600, mean=(512, 32), rate=1.0, ttft=0.035, tpot=0.018)
    paths = [
        files.write(tmp_path / f"{name}{upto}.prom", files.scrape(each, upto=upto, running=2))
        for name, each in (("a", sent), ("b", faster))
        for upto in (100, 500)
    ]
    doc = strict(run("fit", *paths, "--seconds", "200,400", "--json").stdout)
    assert doc["status"] == "ok" and len(doc["used"]) == 2
    assert [each["duration_s"] for each in doc["runs"]] == [200.0, 400.0]
    assert doc["files"][0] == {"file": "a100.prom, a500.prom", "read_as": "two Prometheus scrapes, 1 run"}


def test_too_few_runs_are_shown_before_they_are_refused(shared_data):
    path = shared_data / "formats" / "vllm_bench_serve.json"
    result = run("fit", path)
    assert result.exit_code == 2
    assert "request 4: failed: HTTP 503" in words_of(result)
    assert result.stderr.startswith(
        "error: 0 of 1 runs can be fitted; left out: vllm_bench_serve.json: too few requests"
    )
    doc = strict(run("fit", path, "--json").stdout)
    assert doc["status"] == "too_few_runs" and "a law needs 2 or more" in doc["message"]
    assert doc["runs"][0]["failed"] == 1


BAD = [
    (["fit"], ["Missing argument"]),
    (["fit", "nope.csv"], ["file not found: nope.csv"]),
    (["fit", "steps.csv", "--out", "x.toml"], ["--out needs --profile BASE"]),
    (["fit", "steps.csv", "--profile", "h999"], ["--profile: unknown profile 'h999'"]),
    (["fit", "steps.csv", "--profile", "a100-80gb", "--out", "no/x.toml"], ["--out no/x.toml: cannot be written"]),
    (["fit", "steps.csv", "run.json"], ["steps.csv", "run.json", "fit each kind by itself"]),
    (["fit", "steps.csv", "--map", "x"], ["--map must be OURS=THEIRS"]),
    (["fit", "steps.csv", "--map", "time=n"], ["unknown column to map 'time'"]),
    (["fit", "run.json", "--map", "mean_ttft=x"], ["unknown key to map 'mean_ttft'", "did you mean 'mean_ttft_ms'"]),
    (["fit", "steps.csv", "--chunk-tokens", "512"], ["--chunk-tokens and --replicas are for benchmark runs"]),
    (["fit", "run.json", "--chunk-tokens", "0"], ["--chunk-tokens", "1"]),
    (["fit", "steps.csv", "--concurrency", "1"], ["--concurrency and --seconds are for benchmark runs"]),
    (["fit", "run.json", "--concurrency", "x"], ["--concurrency must be numbers such as 1,8,32"]),
    (["fit", "run.json", "--concurrency", "3"], ["1 numbers for 0 runs that do not say theirs"]),
    (["fit", "run.csv", "--concurrency", "2.5"], ["--concurrency must be whole numbers, got 2.5"]),
    (["fit", "run.json", "--seconds", "3"], ["--seconds gives 1 numbers for 0 pairs of scrapes"]),
    (["fit", "one.prom"], ["scrapes come in pairs, 1 given (one.prom)"]),
    (["fit", "one.prom", "one.prom", "--seconds", "-1"], ["--seconds must be > 0"]),
    (["fit", "one.prom", "one.prom"], ["no request of org/model-8b got its first token"]),
    (["fit", "steps.csv", "--overhead-ms", "-1"], ["overhead_s must be >= 0"]),
    (["fit", "steps.csv", "--hold-out", "files"], ["unknown hold_out 'files'"]),
    (["fit", "steps.csv", "--hold-out", "groups"], ["'settings' for a table without groups"]),
    (["fit", "trace.csv"], ["a request trace", "no times of steps"]),
    (["fit", "time.csv"], ["'time' is a time without a unit", "--map time_ms=time"]),
    (["fit", "empty.csv"], ["empty.csv: the file is empty"]),
    (["fit", "cut.json"], ["cut.json: line 1, column 18: not JSON", "truncated or still being written"]),
    (["trace", "cut.json"], ["cut.json: line 1, column 18: not JSON", "truncated or still being written"]),
    (["trace", "run.json", "--failed", "keep"], ["--time-unit and --failed are for traces; run.json has no requests"]),
    (["trace", "one.prom"], ["two are needed"]),
]


@pytest.mark.parametrize(("arguments", "found"), BAD, ids=lambda value: " ".join(value))
def test_bad_input_exits_2_with_one_clean_message(arguments, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sent = files.uniform(30, mean=(64, 6))
    for name, value in (
        ("steps.csv", steps_csv()), ("run.json", files.vllm(sent, rate=10.0, detailed=False)),
        ("run.csv", files.genai_perf(sent)), ("one.prom", files.scrape(sent, upto=30)), ("empty.csv", ""),
        ("trace.csv", "timestamp,input_tokens,output_tokens\n0,1,2\n"), ("time.csv", "n,context,time\n1,2,3\n"),
        ("cut.json", '{"completed": 3, "dur'),
    ):  # fmt: skip
        files.write(Path(name), value)
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    for words in found:
        assert words in " ".join(result.stderr.split())
    assert sum(line.lower().startswith("error: ") for line in result.stderr.splitlines()) == 1


def test_trace_shows_a_benchmark_and_its_requests(shared_data):
    path = shared_data / "formats" / "vllm_bench_serve.json"
    page = words_of(run("trace", path))
    for words in ("holds vLLM bench serve results", "too few requests", "TTFT 81.67 64 118.9",
                  "request 3 waited at the client", "as a trace: 3 requests", "not those of its users"):  # fmt: skip
        assert words in page
    doc = strict(run("trace", path, "--json").stdout)
    assert (doc["kind"], doc["read_as"]) == ("benchmark", "vLLM bench serve results")
    (one,) = doc["runs"]
    assert one["mean_ttft_ms"] == pytest.approx(81.67) and one["verdict"] == "too_few"
    assert {"kind": "failed", "text": "request 4: failed: HTTP 503, in no figure", "rows": [4]} in one["findings"]
    assert doc["trace"]["num_requests"] == 3
    kept = strict(run("trace", path, "--failed", "keep", "--json").stdout)
    assert kept["trace"]["num_requests"] == 4


def test_trace_shows_every_run_of_a_file(shared_data):
    doc = strict(run("trace", shared_data / "formats" / "sglang_bench.jsonl", "--json").stdout)
    assert [each["verdict"] for each in doc["runs"]] == ["steady", "inconsistent"]
    assert doc["runs"][1]["offered_rate_rps"] == "inf" and doc["trace"] is None
    page = words_of(run("trace", shared_data / "formats" / "sglang_bench.jsonl"))
    assert "a mean TTFT of 0 was not measured" in page and "it is no trace to plan with" in page


@pytest.mark.parametrize(
    "name", ["aiperf_profile_export.jsonl", "genai_perf.csv", "guidellm_benchmarks.json", "profile_export_aiperf.json",
             "vllm_bench_serve_inf.json"]
)  # fmt: skip
def test_trace_shows_every_benchmark_format(shared_data, name):
    result = run("trace", shared_data / "formats" / name)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 100
    strict(run("trace", shared_data / "formats" / name, "--json").stdout)


def test_trace_says_what_its_rows_rest_on(tmp_path):
    path = files.write(tmp_path / "t.csv", "timestamp,input_tokens,output_tokens\n0,10,5\n1,20,1\n2,30,7\n")
    doc = strict(run("trace", path, "--json").stdout)
    assert [each["kind"] for each in doc["findings"]] == ["one_token", "few_beyond"]
    assert "1 of 3 requests have one output token" in words_of(run("trace", path))
