"""The workloads in the package: equal to their sources, small, quick to load, honest about what they are."""

import csv
import time
import tomllib
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import jaxsim

DATA = Path(jaxsim.__file__).parent / "data"
TRACES = {
    "azure-code": ("azure23_code.parquet", "azure23_code"),
    "azure-conversation": ("azure23_conv.parquet", "azure23_conv"),
    "mooncake-conversation": ("mooncake_conv.parquet", "mooncake_conv"),
    "sharegpt": ("lengths_only.parquet", "sharegpt10k(len only)"),
}
CDFS = {"azure": "SR_azure", "lmsys": "SR_lmsys", "agent": "SR_agent_heavy"}


def golden_rows(shared_data, name):
    with open(shared_data / "data" / "expected" / name, newline="") as file:
        return list(csv.DictReader(file))


def test_names():
    assert set(jaxsim.workload_names()) == {*TRACES, *CDFS}


@pytest.mark.parametrize("name", TRACES)
def test_table_equals_the_trace_as_a_multiset(shared_data, name):
    trace = pl.read_parquet(shared_data / "data" / "traces" / TRACES[name][0])
    if "source" in trace.columns:
        trace = trace.filter(pl.col("source") == "sharegpt10k")
    expected = Counter(trace.select("input_tokens", "output_tokens").iter_rows())
    workload = jaxsim.workload(name)
    counts = workload.weight * len(trace)
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)
    rows = zip(workload.input_tokens, workload.output_tokens, np.round(counts), strict=True)
    assert {(int(i), int(o)): int(c) for i, o, c in rows} == expected


@pytest.mark.parametrize("name", TRACES)
def test_rates_and_means(shared_data, name):
    row = next(r for r in golden_rows(shared_data, "trace_stats.csv") if r["trace"] == TRACES[name][1])
    workload = jaxsim.workload(name)
    assert workload.rate == (pytest.approx(float(row["rate"]), rel=1e-12) if row["rate"] else None)
    assert float(workload.mean(workload.input_tokens)) == pytest.approx(float(row["in_mean"]), rel=1e-12)
    assert float(workload.mean(workload.output_tokens)) == pytest.approx(float(row["out_mean"]), rel=1e-12)
    assert any(f"{row['n']} requests" in note for note in workload.notes)


# A fixed output share of 0.2 against the true outputs: 0.2 mean total / mean output.
@pytest.mark.parametrize(
    "name, factor",
    [("azure-code", 14.9), ("azure-conversation", 1.29), ("mooncake-conversation", 7.2), ("sharegpt", 0.35)],
)
def test_outputs_are_the_true_ones_not_a_fixed_share(shared_data, name, factor):
    workload = jaxsim.workload(name)
    mean_total, mean_output = workload.mean(workload.total_tokens), workload.mean(workload.output_tokens)
    ratio = 0.2 * float(mean_total) / float(mean_output)
    assert ratio == pytest.approx(factor, rel=0.01)
    row = next(r for r in golden_rows(shared_data, "trace_stats.csv") if r["trace"] == TRACES[name][1])
    assert ratio == pytest.approx(float(row["8020_out_ratio"]), rel=1e-12)


@pytest.mark.parametrize("name", [*TRACES, *CDFS])
def test_cumulative_shares(shared_data, name):
    column = CDFS.get(name) or TRACES[name][1]
    workload = jaxsim.workload(name)
    rows = golden_rows(shared_data, "total_length_cdfs.csv")
    tokens = [float(row["total_tokens_le"]) for row in rows]
    expected = [float(row[column]) for row in rows]
    shares = workload.split(jnp.asarray(tokens)).share
    np.testing.assert_allclose(np.cumsum(shares), expected, atol=1e-12)
    above = [workload.share_above(t) for t in tokens]
    np.testing.assert_allclose(above, 1 - np.asarray(expected), atol=1e-12)


def test_azure_cdf_is_that_of_the_pooled_traces():
    code, conversation = jaxsim.workload("azure-code"), jaxsim.workload("azure-conversation")
    pooled = jaxsim.workload("azure")
    for tokens in (64.0, 512.0, 1536.0, 6144.0, 16384.0):
        above = (8819 * code.share_above(tokens) + 19366 * conversation.share_above(tokens)) / (8819 + 19366)
        assert pooled.share_above(tokens) == pytest.approx(above, abs=1e-12)


@pytest.mark.parametrize("name", CDFS)
def test_cdfs_say_that_their_outputs_are_a_convention(name):
    workload = jaxsim.workload(name)
    assert "output share 0.2 is the published convention of this CDF, not measured" in workload.notes
    total = np.asarray(workload.total_tokens).astype(int)
    assert np.asarray(workload.input_tokens).astype(int).tolist() == np.maximum(4 * total // 5, 1).tolist()
    assert workload.rate is None


def test_another_output_share():
    workload = jaxsim.workload("lmsys", output_share=0.5)
    assert float(workload.mean(workload.output_tokens) / workload.mean(workload.total_tokens)) > 0.49
    assert any("output share 0.5 was given" in note for note in workload.notes)
    with pytest.raises(ValueError, match=r"output_share must be left out for workload 'sharegpt', got 0.3"):
        jaxsim.workload("sharegpt", output_share=0.3)
    with pytest.raises(ValueError, match=r"output_share must be in \(0, 1\), got 1.5"):
        jaxsim.workload("lmsys", output_share=1.5)


def test_agent_is_called_synthetic():
    assert any("synthetic" in note for note in jaxsim.workload("agent").notes)


def test_lmsys_is_not_twice_the_same():
    assert jaxsim.workload("lmsys").weight.shape != jaxsim.workload("agent").weight.shape


@pytest.mark.parametrize("name, near", [("azure-conv", "azure-conversation"), ("share-gpt", "sharegpt")])
def test_unknown_names_are_errors_with_the_near_ones(name, near):
    with pytest.raises(ValueError, match=f"unknown workload '{name}'; did you mean .*'{near}'"):
        jaxsim.workload(name)


def test_sources_and_licences():
    catalogue = tomllib.loads((DATA / "workloads.toml").read_text())
    for name in jaxsim.workload_names():
        assert catalogue[name]["licence"] in jaxsim.workload(name).source
        assert catalogue[name]["citation"]
    assert "CC-BY-4.0" in jaxsim.workload("azure").source


def test_tables_are_small():
    sizes = [path.stat().st_size for path in DATA.iterdir() if path.suffix in (".npz", ".json")]
    assert len(sizes) == 5
    assert sum(sizes) < 100_000


def test_loading_is_cached_and_quick():
    assert jaxsim.workload("agent") is jaxsim.workload("agent")
    jaxsim.embedded._cdf.cache_clear()
    start = time.perf_counter()
    jaxsim.workload("agent")
    assert time.perf_counter() - start < 0.5
