"""What a run keeps: every request as a row, or statistics alone."""

import itertools

import numpy as np
import polars
import pytest
from fleets import make_profile, small_workload
from simulated import CHUNKED, fleet, run, same_figures, window

import des
import des.experiment
from des.arrivals import MarkovModulated, PiecewiseRate, Renewal
from des.requests_table import STATUS
from des.routing import REASONS
from jaxsim.fleet import FleetDesign


@pytest.fixture(scope="module")
def two_runs():
    """Two replications of two pools. Above 5,000 tokens all are rejected, and the second holds 4,000."""
    profiles = [make_profile(), make_profile(kv_blocks=250)]
    design = FleetDesign.of(profiles, [2.0, 2.0], [1500.0, 5000.0])
    return design, run(design, rate=25.0, replications=2)


def test_a_request_s_instants_come_in_order(two_runs):
    table = two_runs[1].requests_table()
    served = table["status"] == 0
    order = [table[name][served] for name in ("due_s", "sent_s", "queued_s", "admit_s", "first_s", "end_s")]
    assert served.sum() > 15_000 and (~served).sum() > 100
    for before, after in itertools.pairwise(order):
        assert (before <= after).all()
    assert (table["admit_s"] < table["first_s"])[served].all()
    single = table["output_tokens"][served] == 1
    assert single.any() and np.array_equal(table["first_s"][served] == table["end_s"][served], single)
    for name in ("admit_s", "first_s", "end_s", "queued_s"):
        assert np.isnan(table[name][~served]).all()
    for name in ("replica", "pool", "steps"):
        assert (table[name][~served] == -1).all()
    assert np.isnan(table["prefill_end_s"]).all() and (table["prefill_replica"] == -1).all()


def test_a_request_is_a_row_of_the_workload_and_takes_its_steps(two_runs):
    table, workload = two_runs[1].requests_table(), small_workload()
    rows = set(zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True))
    assert set(zip(table["input_tokens"].tolist(), table["output_tokens"].tolist(), strict=True)) == rows
    steps = np.ceil(table["input_tokens"] / 512) + table["output_tokens"] - 1
    served = table["status"] == 0
    np.testing.assert_array_equal(table["steps"][served], steps[served])
    total = table["input_tokens"] + table["output_tokens"]
    np.testing.assert_array_equal(table["pool"][served], (total > 1500)[served])
    np.testing.assert_array_equal(table["pool"][served], table["replica"][served] // 2)


def test_rejected_requests_are_there_with_their_reason(two_runs):
    _, result = two_runs
    table = result.requests_table()
    total = table["input_tokens"] + table["output_tokens"]
    reason = np.array(STATUS)[table["status"]]
    beyond = total > 5000
    full = (total > 250 * 16) & ~beyond
    assert (reason[beyond] == REASONS[0]).all() and (reason[full] == REASONS[2]).all() and full.any()
    assert (reason[~beyond & ~full] == "finished").all()
    for name, count in result.rejected_by_reason.items():
        assert count == int((table["measured"] & (reason == name)).sum())
    assert result.rejected == int((table["measured"] & (table["status"] > 0)).sum())


def test_the_figures_are_those_of_the_table_s_measured_requests(two_runs):
    design, result = two_runs
    table = result.requests_table()
    assert len(table["due_s"]) == result.num_requests == 20_000
    for i in (0, 1):
        these = table["replication"] == i
        np.testing.assert_array_equal(table["measured"][these], table["due_s"][these] >= window(result, i)[0])
    used = table["measured"] & (table["status"] == 0)
    assert result.requests == int(table["measured"].sum())
    np.testing.assert_array_equal(result.ttft.values, (table["first_s"] - table["sent_s"])[used])
    np.testing.assert_array_equal(result.wait.values, (table["admit_s"] - table["sent_s"])[used])
    several = used & (table["output_tokens"] > 1)
    tpot = (table["end_s"] - table["first_s"])[several] / (table["output_tokens"][several] - 1)
    np.testing.assert_allclose(result.tpot.values, tpot, rtol=1e-12)
    plain = run(design, rate=25.0, replications=2, keep="latencies")
    np.testing.assert_array_equal(plain.e2e.values, result.e2e.values)
    with pytest.raises(ValueError, match=r"requests were not kept; use simulate\(\.\.\., keep='requests'\)"):
        plain.requests_table()


def test_the_table_survives_a_parquet_file(two_runs, tmp_path):
    _, result = two_runs
    table = result.requests_table()
    result.write_requests(tmp_path / "requests.parquet")
    read = polars.read_parquet(tmp_path / "requests.parquet")
    assert read.columns == list(table) and len(read) == 20_000
    for name, values in table.items():
        expected = np.array(STATUS)[values] if name == "status" else values
        np.testing.assert_array_equal(read[name].to_numpy(), expected)


def test_designs_with_one_seed_see_the_same_requests():
    one, other = (
        run(fleet(n), rate=10.0, num_requests=3_000, **more) for n, more in ((1, {}), (3, {"serving": CHUNKED}))
    )
    ours, theirs = one.requests_table(), other.requests_table()
    for name in ("due_s", "input_tokens", "output_tokens"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert not np.array_equal(ours["end_s"], theirs["end_s"])
    slower = run(fleet(1), rate=5.0, num_requests=3_000).requests_table()
    np.testing.assert_allclose(slower["due_s"], 2.0 * ours["due_s"], rtol=1e-12)
    assert not np.array_equal(
        run(fleet(1), rate=10.0, num_requests=3_000, seed=2).requests_table()["due_s"], ours["due_s"]
    )


def test_statistics_are_within_half_a_bin_of_the_latencies(two_runs):
    design, result = two_runs
    counted = run(design, rate=25.0, replications=2, keep="statistics")
    same_figures(counted, result, 5.01e-4)
    ours, theirs = counted.ttft.quantile(0.99), result.ttft.quantile(0.99)
    assert ours.high - ours.low == pytest.approx(theirs.high - theirs.low, rel=0.05)
    with pytest.raises(ValueError, match="ttft_s of each request is not there with keep='statistics'"):
        counted.attainment(ttft_s=1.0)


def kept_bytes(result):
    """Size of the arrays of what a result keeps of requests."""
    bins = [h for each in result.replications[0].kept.latencies.values() for pool in each for h in pool]
    return sum(h.counts.nbytes for h in bins), len(bins)


def test_statistics_take_no_more_room_for_more_requests(monkeypatch):
    drawn = []
    draw = des.experiment.Experiment.draw

    def watched(self, number, replication, size):
        for part in draw(self, number, replication, size):
            drawn.append(len(part.arrival_s))
            yield part

    monkeypatch.setattr(des.experiment, "PART", 1_000)
    monkeypatch.setattr(des.experiment.Experiment, "draw", watched)
    short, long = (run(fleet(2), rate=20.0, num_requests=n, keep="statistics") for n in (2_000, 16_000))
    assert kept_bytes(short) == kept_bytes(long)
    assert long.replications[0].totals.shape == short.replications[0].totals.shape
    assert max(drawn) == 1_000 and long.ttft.n > 7 * short.ttft.n


PROCESSES = {
    "poisson": "poisson",
    "gamma": Renewal(law="gamma", cv=2.0),
    "bursts": MarkovModulated(rates=(10.0, 40.0), mean_stay_s=(20.0, 5.0)),
    "piecewise": PiecewiseRate(start_s=(0.0, 60.0, 120.0), rate=(10.0, 30.0, 15.0), end_s=300.0),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_a_stream_in_parts_is_the_same_stream(monkeypatch, name):
    """Lengths are drawn by weight and pools by chance, and neither may depend on where the stream is cut."""
    router = des.ModelRouter(pool_of_model=(0, 1), model_share=np.array([0.4, 0.6]))
    options = {
        "rate": None if name == "piecewise" else 20.0,
        "arrivals": PROCESSES[name],
        "router": router,
        "keep": "statistics",
        "num_requests": 4_000,
        "itl": True,
    }
    whole = run(fleet(1, 1), **options)
    monkeypatch.setattr(des.experiment, "PART", 333)
    parts = run(fleet(1, 1), **options)
    same_figures(whole, parts, 1e-12)
    assert whole.num_requests == parts.num_requests == 4_000
    assert parts.itl.mean() == whole.itl.mean()
    np.testing.assert_array_equal(whole.time_series().queued, parts.time_series().queued)


def test_gaps_must_be_asked_for(two_runs):
    with pytest.raises(ValueError, match="gaps between tokens were not counted"):
        two_runs[1].itl  # noqa: B018
