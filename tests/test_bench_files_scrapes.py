"""Two scrapes of a vLLM server: differences, buckets, models, engines, times, and names old and new."""

import math

import benchmark_files as files
import numpy as np
import pytest

from jaxsim import examine, read_scrapes
from jaxsim.bench_files._exposition import is_exposition, parse
from jaxsim.benchmark_doctor import Verdict

rng = np.random.default_rng(4)
TTFT = rng.uniform(0.05, 0.5, 600)
SENT = files.uniform(600, mean=(512, 32), rate=10.0)
SENT = SENT.changed(ttft=TTFT, e2e=TTFT + 0.02 * (SENT.outputs - 1.0))
BETWEEN = slice(100, 500)


@pytest.fixture
def pair(tmp_path):
    """Writes two scrapes of 100 and 500 requests and returns their paths."""

    def make(early=None, late=None, **both):
        before = files.scrape(SENT, upto=100, **{"running": 4, **both, **(early or {})})
        after = files.scrape(SENT, upto=500, **{"running": 5, **both, **(late or {})})
        return files.write(tmp_path / "before.prom", before), files.write(tmp_path / "after.prom", after)

    return make


@pytest.mark.parametrize("old", [False, True])
def test_figures_are_those_of_the_requests_in_between(pair, old):
    (run,) = read_scrapes(*pair(old=old), duration_s=40.0)
    summary = run.summary
    assert (summary.completed, summary.failed, summary.arrived) == (400, 0, 401)
    assert summary.mean_ttft_s == pytest.approx(SENT.ttft[BETWEEN].mean())
    assert summary.mean_e2e_s == pytest.approx(SENT.e2e[BETWEEN].mean())
    assert summary.mean_itl_s == pytest.approx(0.02) and run.mean_tpot_s == pytest.approx(0.02)
    assert run.mean_input_tokens == pytest.approx(SENT.inputs[BETWEEN].mean())
    assert run.mean_output_tokens == pytest.approx(SENT.outputs[BETWEEN].mean())
    assert summary.achieved_rate == 10.0 and run.in_flight == 4.5
    assert (run.model, run.engines) == ("org/model-8b", 1)
    assert any("stands for it" in note for note in run.notes) is old
    assert any("41%" in note for note in run.notes)
    examined = examine(run)
    assert examined.verdict is Verdict.STEADY
    assert examined.checkup.little_concurrency == pytest.approx(10.0 * SENT.e2e[BETWEEN].mean())


def test_a_percentile_is_the_bucket_that_it_is_in(pair):
    (run,) = read_scrapes(*pair(), duration_s=40.0)
    for figure, values in (("ttft", SENT.ttft[BETWEEN]), ("e2e", SENT.e2e[BETWEEN])):
        for q in (0.5, 0.99):
            found = run.percentile(figure, q)
            assert not found.exact
            assert found.low_s <= np.quantile(values, q, method="inverted_cdf") <= found.high_s
            assert {found.low_s, found.high_s} <= {0.0, *files.EDGES}
    assert run.percentile("ttft", 0.99).text == "320 to 640"


def test_beyond_the_last_edge_there_is_only_a_bound(tmp_path):
    slow = SENT.changed(e2e=SENT.e2e + 100.0, ttft=SENT.ttft + 100.0)
    paths = [files.write(tmp_path / f"{upto}.prom", files.scrape(slow, upto=upto)) for upto in (100, 500)]
    (run,) = read_scrapes(*paths, duration_s=40.0)
    found = run.percentile("ttft", 0.99)
    assert found.low_s == 30.0 and math.isinf(found.high_s) and found.text == "> 30,000"


def test_times_beside_the_samples_make_the_duration(pair):
    (run,) = read_scrapes(*pair({"time_ms": 1_700_000_000_000}, {"time_ms": 1_700_000_040_000}))
    assert run.summary.duration_s == 40.0
    assert any("by the times in them" in note for note in run.notes)


def test_without_a_duration_there_is_no_rate(pair):
    (run,) = read_scrapes(*pair())
    assert run.summary.duration_s is None and run.summary.achieved_rate is None
    assert any("say how many seconds" in note for note in run.notes)
    assert examine(run).verdict is Verdict.STEADY  # as many came as left
    with pytest.raises(ValueError, match="duration_s must be > 0"):
        read_scrapes(*pair(), duration_s=0.0)


def test_a_queue_that_grew_is_an_overload(pair):
    (run,) = read_scrapes(*pair(late={"running": 20, "waiting": 120}), duration_s=40.0)
    assert run.summary.arrived == 536
    examined = examine(run)
    assert examined.verdict is Verdict.UNSTABLE and "536 requests came between the scrapes" in examined.reason


def test_engines_are_added_up_and_models_are_not(tmp_path):
    def scrape(first, second, other):
        return "".join(
            files.scrape(SENT, upto=upto, engine=engine, model=model, running=2)
            for upto, engine, model in ((first, "0", "a"), (second, "1", "a"), (other, "0", "b"))
        )

    before = files.write(tmp_path / "before.prom", scrape(100, 50, 10))
    after = files.write(tmp_path / "after.prom", scrape(300, 150, 40))
    one, two = read_scrapes(before, after, duration_s=10.0)
    assert (one.model, one.engines, one.summary.completed, one.in_flight) == ("a", 2, 300, 4.0)
    assert (two.model, two.engines, two.summary.completed, two.in_flight) == ("b", 1, 30, 2.0)
    both = np.concatenate([SENT.ttft[100:300], SENT.ttft[50:150]])
    assert one.summary.mean_ttft_s == pytest.approx(both.mean())
    assert "2 engines, added up" in one.notes
    assert one.label == "after.prom, since before.prom, model a"


def test_a_model_that_served_nothing_is_passed_over(tmp_path):
    def scrape(upto):
        return files.scrape(SENT, upto=upto) + files.scrape(SENT, upto=5, model="idle")

    before, after = (files.write(tmp_path / f"{upto}.prom", scrape(upto)) for upto in (100, 500))
    (run,) = read_scrapes(before, after, duration_s=40.0)
    assert run.model == "org/model-8b"
    assert "passed over, since it served nothing in between: idle" in run.notes


def test_an_engine_that_came_up_in_between_began_at_nothing(tmp_path):
    before = files.write(tmp_path / "before.prom", files.scrape(SENT, upto=100))
    after = files.scrape(SENT, upto=300) + files.scrape(SENT, upto=50, engine="1")
    (run,) = read_scrapes(before, files.write(tmp_path / "after.prom", after), duration_s=40.0)
    assert (run.summary.completed, run.engines) == (250, 2)


def test_requests_that_ended_badly_are_failed(pair, tmp_path):
    before, after = pair()
    text = after.read_text(encoding="utf-8")
    labels = 'engine="0",model_name="org/model-8b"'
    text += f'vllm:request_success_total{{finished_reason="abort",{labels}}} 7.0\n'
    (run,) = read_scrapes(before, files.write(after, text), duration_s=40.0)
    assert (run.summary.completed, run.summary.failed) == (400, 7)


def test_tokens_come_from_the_counters_where_requests_have_none(pair):
    before, after = pair()
    labels = 'engine="0",model_name="org/model-8b"'
    for path, tokens in ((before, 1000.0), (after, 1000.0 + 400 * 512.0)):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "request_prompt_tokens" not in line]
        files.write(path, "\n".join([*lines, f"vllm:prompt_tokens_total{{{labels}}} {tokens}"]))
    (run,) = read_scrapes(before, after, duration_s=40.0)
    assert run.mean_input_tokens == 512.0
    assert any("vllm:prompt_tokens_total over the requests" in note for note in run.notes)


def test_the_text_format():
    text = (
        "# HELP x y\n# TYPE x counter\n"
        'x{a="b\\"c\\\\d\\ne",e="f,g"} 1.5 1700000000000\n'
        "y 2\n\n"
        'z_bucket{le="+Inf"} 3 # {trace_id="1"} 0.5\n'
        "vllm_num_requests_running +Inf\n# EOF\n"
    )
    scrape = parse("s.prom", text)
    assert is_exposition(text) and not is_exposition("n,context\n1,2\n")
    assert scrape.values["x"] == {(("a", 'b"c\\d\ne'), ("e", "f,g")): 1.5}
    assert scrape.values["y"] == {(): 2.0} and scrape.values["z_bucket"] == {(("le", "+Inf"),): 3.0}
    assert scrape.values["vllm:num_requests_running"] == {(): math.inf}
    assert scrape.time_s == 1_700_000_000.0
    assert scrape.lines["y", ()] == 4
    assert parse("s.prom", "x 1 1700000000.5\n").time_s == 1_700_000_000.5
