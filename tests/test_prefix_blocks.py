"""Prompt blocks of a trace: from the file's hashes to the rows of a workload, and to the simulator's prefix cache."""

import json

import jax
import numpy as np
import polars as pl
import pytest
from fleets import make_profile

import des
import jaxsim
from jaxsim.fleet import FleetDesign
from jaxsim.traces import read_trace
from jaxsim.workload import PrefixBlocks, Workload

SAME, OTHER = [7, 8, 9], [7, 8, 1]
ROWS = [
    {"timestamp": 3000, "input_length": 1400, "output_length": 10, "hash_ids": OTHER},
    {"timestamp": 0, "input_length": 1400, "output_length": 10, "hash_ids": SAME},
    {"timestamp": 1000, "input_length": 500, "output_length": 0, "hash_ids": [5]},
    {"timestamp": 2000, "input_length": 600, "output_length": 4, "hash_ids": [7, 3]},
]


@pytest.fixture(params=["t.jsonl", "t.parquet"])
def trace_file(request, tmp_path):
    """Four requests out of order, one of them failed, two of equal lengths."""
    path = tmp_path / request.param
    if request.param.endswith("jsonl"):
        path.write_text("\n".join(json.dumps(row) for row in ROWS))
    else:
        pl.DataFrame(ROWS).write_parquet(path)
    return path


def blocks_of(blocks, row):
    """Block numbers of a row."""
    return blocks.ids[blocks.first[row] : blocks.first[row + 1]].tolist()


def test_blocks_follow_their_requests_through_failures_and_sorting(trace_file):
    blocks = read_trace(trace_file).prefix_blocks
    assert (blocks.num_rows, blocks.tokens) == (3, 512)
    first, second, third = (blocks_of(blocks, row) for row in range(3))
    assert (len(first), len(second), len(third)) == (3, 2, 3)
    assert first[0] == second[0] == third[0]
    assert first[:2] == third[:2] and first[2] != third[2]


def test_requests_with_blocks_are_rows_of_their_own(trace_file):
    workload = Workload.from_trace(trace_file)
    assert len(workload.weight) == 3  # two of them of equal lengths
    assert np.asarray(workload.total_tokens).tolist() == [604.0, 1410.0, 1410.0]
    rows = [blocks_of(workload.prefix_blocks, row) for row in range(3)]
    by_arrival = [rows[row] for row in workload.arrival_row]
    assert by_arrival == [blocks_of(read_trace(trace_file).prefix_blocks, row) for row in range(3)]
    without = Workload.from_lengths([1400, 1400], [10, 10])
    assert len(without.weight) == 1 and without.prefix_blocks is None


def test_a_shortened_prompt_keeps_its_whole_blocks(trace_file):
    cut = Workload.from_trace(trace_file).truncated(1300)
    totals = np.asarray(cut.total_tokens).tolist()
    assert totals == [604.0, 1300.0, 1300.0]
    assert [len(blocks_of(cut.prefix_blocks, row)) for row in range(3)] == [2, 2, 2]


def test_the_model_does_not_mind_blocks(trace_file):
    workload = Workload.from_trace(trace_file)
    design = FleetDesign.of(make_profile(), [1.0], [4096.0])
    figures = jax.jit(lambda w: jaxsim.evaluate(design, w, 1.0).ttft_p99_s)(workload)
    assert np.isfinite(float(figures))


def test_a_cached_prefix_is_not_computed_again(trace_file):
    """The third request finds two of its three blocks: one chunk of 512 instead of three, so two steps fewer."""
    workload = Workload.from_trace(trace_file)
    design = FleetDesign.of(make_profile(), [1.0], [4096.0])

    def steps(blocks):
        result = des.simulate(
            design,
            workload,
            arrivals="trace",
            warmup_fraction=0.0,
            keep="requests",
            serving=des.Serving(prefix_cache_blocks=blocks),
        )
        return result.requests_table()["steps"].tolist()

    assert (steps(0), steps(100)) == ([12, 5, 12], [12, 4, 10])


def test_a_cache_needs_blocks_and_affinity_a_cache():
    design, workload = FleetDesign.of(make_profile(), [1.0], [4096.0]), Workload.from_lengths([10.0], [5.0])
    with pytest.raises(ValueError, match="prefix_cache_blocks needs a workload with block hashes"):
        des.simulate(design, workload, rate=1.0, serving=des.Serving(prefix_cache_blocks=4))
    router = des.AnyRouter(dispatch="prefix-affinity", affinity_slack=1)
    with pytest.raises(ValueError, match="'prefix-affinity' needs Serving"):
        des.simulate(design, workload, rate=1.0, router=router)
    blocks = PrefixBlocks(np.array([0, 1]), np.array([0, 1, 2]), 16)
    with pytest.raises(ValueError, match=r"one entry per workload row \(1\), got 2"):
        des.simulate(design, workload, rate=1.0, serving=des.Serving(prefix_cache_blocks=4), prefix_blocks=blocks)


def test_compressed_prompts_keep_their_whole_blocks():
    """Compression makes rows that the workload does not have; their blocks are the leading ones of the given row."""
    blocks = PrefixBlocks(np.arange(10), np.array([0, 4, 10]), 100)
    workload = Workload.from_lengths([400, 600], [10, 10], prefix_blocks=blocks)
    design = FleetDesign.of(make_profile(), [1.0, 1.0], [500.0, 1000.0])
    result = des.simulate(
        design,
        workload,
        rate=1.0,
        num_requests=400,
        router=des.CompressRouter(gamma=1.5, success=0.5),
        serving=des.Serving(prefix_cache_blocks=8),
        keep="requests",
    )
    assert result.compressed > 0
    assert set(result.requests_table()["input_tokens"].tolist()) == {400, 490, 600}


@pytest.mark.parametrize(
    ("ids", "first", "tokens", "found"),
    [
        ([0, 1], [0, 1], 16, "first must ascend from 0 to the number of ids"),
        ([0, 1], [0, 2, 1], 16, "first must ascend"),
        ([0, -1], [0, 2], 16, "ids must be >= 0"),
        ([0], [0, 1], 0, "tokens of a block must be >= 1"),
    ],
)
def test_bad_blocks_are_refused(ids, first, tokens, found):
    with pytest.raises(ValueError, match=found):
        PrefixBlocks(np.array(ids), np.array(first), tokens)
    with pytest.raises(ValueError, match=r"one entry per request \(2\), got 1"):
        Workload.from_lengths([1, 2], [1, 1], prefix_blocks=PrefixBlocks(np.array([0]), np.array([0, 1]), 1))


def test_mooncake_keeps_all_its_blocks(shared_data):
    workload = Workload.from_trace(shared_data / "data" / "traces" / "mooncake_conv.parquet")
    assert len(workload.weight) == 12_031
    assert workload.prefix_blocks.seen_before == pytest.approx(0.366, abs=5e-4)
