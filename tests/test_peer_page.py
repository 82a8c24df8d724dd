"""The page with a peer's published plans beside ours: what it quotes, and that the committed page is of this code."""

import importlib
import sys
from pathlib import Path

import pytest

import jaxsim
from des import Estimate
from jaxsim.disagg import reference_decode, reference_prefill

ROOT = Path(__file__).parent.parent
FOLDER = str(ROOT / "benchmarks")


def module(name):
    sys.path.insert(0, FOLDER)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(FOLDER)


peer_page = module("peer_page")
FLEETS, SPLITS = peer_page.FLEETS, peer_page.SPLITS

PAGE = (ROOT / "docs" / "peer-comparison.md").read_text(encoding="utf-8")


def estimate(value, low, high):
    return Estimate(value, low, high, n=1000)


def test_the_page_has_the_texts_and_a_line_for_every_fleet():
    assert PAGE.startswith(
        peer_page.HEAD.format(requests=peer_page.REQUESTS, seed=peer_page.SEED, source=peer_page.SOURCE)
    )
    for title, text in peer_page.SECTIONS.values():
        assert f"## {title}\n\n{text}\n" in PAGE
    lines = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    for fleet in FLEETS:
        named = f"{fleet.pools}{'*' if fleet.sized else ''}"
        puzzle = [line for line in lines if line[0] == f"| {fleet.workload}, {fleet.rate:g}/s" and line[1] == named]
        assert puzzle, named
        assert any(line[2] == str(fleet.peer_gpus) for line in puzzle), named
    assert sum(len(line) == len(peer_page.FLEET_HEADINGS) for line in lines) == len(FLEETS) + 6


def test_the_kimura_column_is_what_the_model_says():
    """Two pools on A100, where one program serves all."""
    for fleet in [each for each in FLEETS if each.workload == "lmsys" and len(each.replicas) == 2][:3]:
        profiles = [jaxsim.profile(name) for name in fleet.profiles]
        design = jaxsim.FleetDesign.of(profiles, [float(n) for n in fleet.replicas], list(fleet.upper_tokens))
        found = jaxsim.evaluate(design, jaxsim.workload(fleet.workload), fleet.rate, model="kimura")
        said = " / ".join(peer_page._ms(1e3 * float(t)) for t in found.pools.ttft_p99_s)
        line = next(line for line in PAGE.splitlines() if f"| {fleet.pools} |" in line)
        assert line.split(" | ")[4] == said
        for ours, peer in zip(found.pools.ttft_p99_s, fleet.peer_ttft_ms, strict=True):
            assert 1e3 * float(ours) == pytest.approx(peer, rel=0.05)


def test_the_splits_reach_the_rate_and_cost_what_is_reported():
    for split in SPLITS:
        first = reference_prefill(jaxsim.profile(split.prefill), 1450.0, max_context=8192.0)
        then = reference_decode(jaxsim.profile(split.decode), 483.0, max_context=8192.0)
        assert 1e3 * float(first.latency_s) == pytest.approx(split.ttft_ms, abs=0.6)
        assert 1e3 * float(then.latency_s) == pytest.approx(split.tpot_ms, abs=0.6)
        assert split.prefill_replicas * float(first.rate) >= 100.0
        assert (split.decode_replicas - 1) * float(then.rate) < 100.0 <= split.decode_replicas * float(then.rate)
        prices = [float(jaxsim.profile(name).usd_per_hour) for name in (split.prefill, split.decode)]
        usd = split.prefill_replicas * prices[0] + split.decode_replicas * prices[1]
        assert 8.76 * usd == pytest.approx(split.kusd_per_year, rel=0.01)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([estimate(0.1, 0.09, 0.11)], "met"),
        ([estimate(0.1, 0.09, 0.11), estimate(0.5, 0.45, 0.55)], "open"),
        ([estimate(0.1, 0.09, 0.11), estimate(0.6, 0.51, 0.7)], "missed"),
        ([estimate(0.6, 0.4, float("inf"))], "missed"),
    ],
)
def test_what_an_interval_says_of_the_objective(found, said):
    assert peer_page._meets(found, 500.0) == said


def test_overload_is_a_word_not_a_number():
    assert peer_page._interval(estimate(3.0, 2.0, float("inf"))) == "overload"
    assert peer_page._ms(float("inf")) == "overload"
