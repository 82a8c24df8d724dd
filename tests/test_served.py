"""Scrapes of several servers as one load: sums, buckets, names of three servers, restarts and what is missing."""

import math
import re

import numpy as np
import pytest
from fleets import make_profile
from server_metrics import VLLM, Fleet

from jaxsim.bench_files import read_served

SGLANG = {
    "ttft": "sglang:time_to_first_token_seconds",
    "itl": "sglang:inter_token_latency_seconds",
    "e2e": "sglang:e2e_request_latency_seconds",
    "success": "sglang:num_requests_total",
    "running": "sglang:num_running_reqs",
    "waiting": "sglang:num_queue_reqs",
    "kv": "sglang:token_usage",
    "prompt_total": "sglang:prompt_tokens_total",
    "output_total": "sglang:generation_tokens_total",
}
TENSORRT_LLM = {
    "ttft": "trtllm_time_to_first_token_seconds",
    "tpot": "trtllm_time_per_output_token_seconds",
    "e2e": "trtllm_e2e_request_latency_seconds",
    "success": "trtllm_request_success_total",
    "running": "trtllm_num_requests_running",
    "waiting": "trtllm_num_requests_waiting",
    "kv": "trtllm_kv_cache_utilization",
    "prompt_total": "trtllm_prompt_tokens_total",
    "output_total": "trtllm_generation_tokens_total",
}


@pytest.fixture(scope="module")
def fleet():
    return Fleet(make_profile(), replicas=2, rate=20.0, number=4_000)


def window(fleet, values, at, shares=(0.2, 1.0)):
    """The values of the requests whose instant `at` lies between the scrapes."""
    low, high = (share * fleet.last_s for share in shares)
    return values[(at > low) & (at <= high)]


def test_figures_are_those_of_the_requests_in_between(fleet, tmp_path):
    files, seconds = fleet.write(tmp_path)
    seen = read_served([files], duration_s=seconds)
    ended = window(fleet, fleet.inputs, fleet.end)
    assert (seen.completed, seen.failed, seen.replicas, seen.model) == (len(ended), 0, 2, "org/model")
    came = len(window(fleet, fleet.sent, fleet.sent))
    assert seen.rate == pytest.approx(came / seconds)  # ended, and by the gauges what came and did not end
    assert seen.mean_input_tokens == pytest.approx(ended.mean())
    assert seen.mean_output_tokens == pytest.approx(window(fleet, fleet.outputs, fleet.end).mean())
    ttft = window(fleet, fleet.first - fleet.sent, fleet.first)
    assert seen.reading("ttft", "mean").value_s == pytest.approx(ttft.mean())
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        found = seen.reading("ttft", name)
        assert found.bucket and found.low_s <= np.quantile(ttft, q, method="inverted_cdf") <= found.high_s
        assert found.low_s <= found.value_s <= found.high_s
    assert seen.preemptions == 0 and seen.cached_share is None and not seen.unsteady


def test_replicas_in_labels_and_in_files_are_added_up_alike(fleet, tmp_path):
    together, seconds = fleet.write(tmp_path)
    pairs = []
    for replica in (0, 1):
        folder = tmp_path / str(replica)
        folder.mkdir()
        pairs.append(fleet.write(folder, replicas=[replica], label="pod")[0])
    one, both = read_served([together], duration_s=seconds), read_served(pairs, duration_s=seconds)
    assert both.replicas == one.replicas == 2
    assert (both.completed, both.mean_input_tokens) == (one.completed, pytest.approx(one.mean_input_tokens))
    assert both.rate == pytest.approx(one.rate, rel=1e-3)
    for reading in one.readings:
        other = both.reading(*reading.key)
        assert tuple(other[2:5]) == pytest.approx(tuple(reading[2:5]))
    assert both.running == one.running and both.kv_usage == pytest.approx(one.kv_usage)


@pytest.mark.parametrize("names", [SGLANG, TENSORRT_LLM], ids=["sglang", "trtllm"])
def test_other_servers_say_the_same(fleet, tmp_path, names):
    files, seconds = fleet.write(tmp_path, names=("a.prom", "b.prom"))
    other = [tmp_path / "c.prom", tmp_path / "d.prom"]
    for path, share in zip(other, (0.2, 1.0), strict=True):
        path.write_text(fleet.at(share, names=names), encoding="utf-8")
    ours, theirs = read_served([files], duration_s=seconds), read_served([tuple(other)], duration_s=seconds)
    assert (theirs.completed, theirs.rate, theirs.running) == (ours.completed, ours.rate, ours.running)
    for key in (("ttft", "mean"), ("ttft", "p99"), ("e2e", "mean")):
        assert theirs.reading(*key) == ours.reading(*key)
    figure = "itl" if names is SGLANG else "tpot"
    assert theirs.reading(figure, "mean") == ours.reading(figure, "mean")
    assert theirs.mean_output_tokens == pytest.approx(ours.mean_output_tokens, rel=0.01)
    assert theirs.mean_input_tokens == pytest.approx(ours.mean_input_tokens, rel=0.02)  # of those begun
    assert any("_tokens_total" in note for note in theirs.notes)


def test_times_beside_the_samples_make_the_duration(fleet, tmp_path):
    files, seconds = fleet.write(tmp_path, time_ms=1_700_000_000_000)
    assert read_served([files]).seconds == pytest.approx(seconds, abs=2e-3)
    files, _ = fleet.write(tmp_path)
    with pytest.raises(ValueError, match=r"before.prom: no time is written beside its samples.*--seconds"):
        read_served([files])


def test_a_restart_is_refused_by_name(fleet, tmp_path):
    files, seconds = fleet.write(tmp_path)
    with pytest.raises(ValueError, match=r"before.prom.*vllm:.*went down from.*started again in between"):
        read_served([files[::-1]], duration_s=seconds)
    early, late = (tmp_path / f"start{k}.prom" for k in (1, 2))
    early.write_text(fleet.at(0.2, start_s=1000.0), encoding="utf-8")
    late.write_text(fleet.at(1.0, start_s=1500.0), encoding="utf-8")  # counters that grew past where they had been
    with pytest.raises(ValueError, match=r"start2.prom: process_start_time_seconds is 1500, and 1000 in start1.prom"):
        read_served([(early, late)], duration_s=seconds)


@pytest.mark.parametrize("missing", ["ttft", "tpot", "itl", "e2e"])
def test_a_missing_histogram_is_named_and_the_rest_stays(fleet, tmp_path, missing):
    files, seconds = fleet.write(tmp_path, leave_out=(missing,))
    seen = read_served([files], duration_s=seconds)
    assert seen.reading(missing, "mean") is None
    assert {each.figure for each in seen.readings} == {"ttft", "tpot", "itl", "e2e"} - {missing}
    assert any("not among the metrics" in note for note in seen.notes)


def test_without_gauges_piling_up_is_not_known(fleet, tmp_path):
    files, seconds = fleet.write(tmp_path, leave_out=("running", "waiting", "kv", "preempted"))
    seen = read_served([files], duration_s=seconds)
    assert seen.running is seen.waiting is seen.kv_usage is seen.preemptions is None
    assert seen.rate == pytest.approx(seen.completed / seconds)
    assert any("whether requests piled up is not known" in note for note in seen.notes)


def test_a_queue_that_grew_is_no_steady_load(tmp_path):
    fleet = Fleet(make_profile(), replicas=1, rate=60.0, number=3_000)
    files, seconds = fleet.write(tmp_path)
    seen = read_served([files], duration_s=seconds)
    assert "requests piled up in the servers" in seen.unsteady
    assert seen.rate == pytest.approx(60.0, rel=0.06)  # what came, not what was served


def test_prefix_cache_hits_are_a_share(fleet, tmp_path):
    files, seconds = fleet.write(tmp_path)
    for path, (hits, asked) in zip(files, ((1e4, 1e5), (7e4, 3e5)), strict=True):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f'vllm:prefix_cache_hits_total{{model_name="org/model",engine="0"}} {hits}\n')
            file.write(f'vllm:prefix_cache_queries_total{{model_name="org/model",engine="0"}} {asked}\n')
    assert read_served([files], duration_s=seconds).cached_share == pytest.approx(0.3)


def test_the_public_file_is_read(shared_data, tmp_path):
    after = shared_data / "formats" / "vllm_metrics.prom"
    text = after.read_text(encoding="utf-8")
    before = tmp_path / "before.prom"
    before.write_text(re.sub(r" [\d.]+$", " 0.0", text, flags=re.MULTILINE), encoding="utf-8")
    with pytest.raises(ValueError, match="2 models are served"):
        read_served([(before, _two_models(tmp_path, text))], duration_s=60.0)
    seen = read_served([(before, after)], duration_s=60.0)
    assert seen.completed == 100 and seen.reading("ttft", "mean").value_s == pytest.approx(0.31)
    half = seen.reading("ttft", "p50")  # the 50th of 40 up to 0.1 s and 90 up to 0.25 s
    assert half.value_s == pytest.approx(0.1 + 0.15 * 10 / 50) and half.high_s == 0.25
    tail = seen.reading("ttft", "p99")
    assert tail.value_s == pytest.approx(7.5) and math.isinf(tail.high_s)
    assert seen.mean_input_tokens is None and seen.preemptions == 2
    assert (seen.running, seen.waiting) == (6.0, 1.5)


def _two_models(folder, text):
    path = folder / "two.prom"
    path.write_text(text + text.replace("org/model-8b", "org/other"), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda text: "# TYPE go_goroutines gauge\ngo_goroutines 7\n",
            "no metric of a server that is known here: vLLM",
        ),
        (lambda text: "{}", "not a Prometheus scrape"),
        (lambda text: text.replace("_bucket{le", "_bucket{lo"), "needs a number as its label le"),
    ],
)
def test_what_is_no_scrape_is_refused(fleet, tmp_path, change, said):
    files, seconds = fleet.write(tmp_path)
    for path in (tmp_path / "before.prom", tmp_path / "after.prom"):
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        read_served([files], duration_s=seconds)


def test_nothing_served_and_wrong_names_are_refused(fleet, tmp_path):
    files, seconds = fleet.write(tmp_path)
    with pytest.raises(ValueError, match="no request ended between the scrapes"):
        read_served([(files[0], files[0])], duration_s=seconds)
    with pytest.raises(ValueError, match=r"unknown served model 'org/modle'; did you mean 'org/model'"):
        read_served([files], duration_s=seconds, model="org/modle")
    with pytest.raises(ValueError, match="pairs must be one pair of scrapes or more"):
        read_served([])
    other = tmp_path / "sglang.prom"
    other.write_text(fleet.at(1.0, names=SGLANG), encoding="utf-8")
    with pytest.raises(ValueError, match="scrapes must be of one kind of server"):
        read_served([(files[0], other)], duration_s=seconds)
    assert set(VLLM) > set(SGLANG)
