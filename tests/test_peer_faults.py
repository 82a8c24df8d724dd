"""Mistakes measured in a published fleet simulator, and what must happen instead: short, through the public API.

The fleets and figures are those of vllm-sr-sim 0.1.0.dev20260713123629. Numbers in the names are those of the list
of these faults; where a longer test of the same point exists, it stands beside the module that it tests.
"""

import itertools

import numpy as np
import pytest
from fleets import A100, H100, figures, make_profile, problem

import des
import jaxsim
import optim
from jaxsim import queueing
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload
from optim.problem import SLO

CAPACITY = 128 / (404 * (0.008 + 0.00065 * 2000 / 8192 * 128))
"""Requests of 1600 + 400 tokens that an A100 of 128 slots serves per second: 11.19."""


@pytest.mark.parametrize("rate", [20.0, 100.0, 1000.0])
def test_1_too_much_load_is_an_overload_and_says_how_much(rate):
    """There: P99 wait 0.00 ms and 100 % of the objective at 1.8, 9 and 89 times the capacity."""
    workload = Workload.from_lengths([1600], [400])
    design = FleetDesign.of(A100, [1.0], [8192.0])
    result = des.simulate(design, workload, rate=rate, num_requests=20_000, convention="kimura")
    assert result.overloaded
    assert result.pools[0].load == pytest.approx(rate / CAPACITY, rel=0.02)
    assert result.wait.quantile(0.99).value > 10.0
    assert result.attainment(ttft_s=0.5) < 0.05


def test_2_load_spreads_and_more_gpus_help():
    """There: all requests on GPU 0 of 40, and the same P99 from 1 + 1 as from 100 + 50 GPUs."""
    workload = jaxsim.workload("azure-conversation")
    p99 = []
    for replicas in ((2.0, 1.0), (20.0, 20.0)):
        design = FleetDesign.of(A100, replicas, [1500.0, 14_089.0])
        p99.append(des.simulate(design, workload, rate=30.0, num_requests=40_000).ttft.quantile(0.99))
    assert p99[1].high < p99[0].low
    design = FleetDesign.of(A100, [40.0], [14_089.0])
    spread = des.simulate(design, workload, rate=200.0, num_requests=80_000)  # a dozen times what one GPU serves
    assert not spread.overloaded


def test_3_a_request_above_the_kv_cache_is_rejected_and_counted():
    """There: preempted and restarted for ever."""
    workload = Workload.from_lengths([100, 900], [50, 200], weight=[0.9, 0.1])
    design = FleetDesign.of(make_profile(kv_blocks=64), [1.0], [4096.0])
    result = des.simulate(design, workload, rate=1.0, num_requests=8_000)
    assert result.rejected_by_reason["larger than the KV cache"] == result.rejected
    assert result.rejected / result.requests == pytest.approx(0.1, abs=0.02)
    assert result.unfinished == 0
    assert "exceeds the KV cache" in optim.plan(problem(profiles=(make_profile(kv_blocks=64),))).reasons[0].text


def test_4_p99_ttft_is_of_the_sum_at_the_steps_of_the_actual_batch():
    """There: 24.3 ms, mean prefill at batch 1 on top of the P99 wait; about 260 ms with the steps that are run."""
    workload = jaxsim.workload("azure")
    short = FleetDesign.of(A100, [18.0, 7.0], [6144.0, 8192.0])
    reference = des.simulate(short, workload, rate=200.0, num_requests=150_000, convention="kimura")
    assert 0.25 < reference.pools[0].ttft.quantile(0.99).value < 0.285
    simulated = des.simulate(short, workload, rate=200.0, num_requests=150_000)
    model = figures(short, 200.0, workload=workload)
    for index, pool in enumerate(simulated.pools):
        assert float(model.pools.ttft_p99_s[index]) == pytest.approx(pool.ttft.quantile(0.99).value, rel=0.07)
    assert float(model.pools.ttft_p99_s[0]) > 0.2


@pytest.mark.parametrize("threshold", [6143.0, 6144.0, 6145.0])
def test_5_no_threshold_loses_requests(threshold):
    """There: 7.9 % of the requests vanish at 6143, one token before a breakpoint."""
    workload = jaxsim.workload("azure")
    shares = workload.split(np.array([threshold, 16_384.0])).share
    assert float(shares.sum()) == pytest.approx(1.0, abs=1e-12)
    share = np.asarray(workload.weight)[np.asarray(workload.total_tokens) <= threshold].sum()
    assert float(shares[0]) == pytest.approx(share, abs=1e-12)


def test_7_p99_comes_with_an_interval_that_holds_run_after_run():
    """There: one fixed random stream; over eight of them the same fleet has a P99 of 173 to 1226 ms."""
    workload = jaxsim.workload("azure-conversation")
    design = FleetDesign.of(A100, [2.0], [14_089.0])
    found = [
        des.simulate(design, workload, rate=24.0, num_requests=40_000, seed=seed).ttft.quantile(0.99)
        for seed in range(8)
    ]
    assert len({figure.value for figure in found}) == 8
    truth = np.mean([figure.value for figure in found])
    assert sum(figure.low <= truth <= figure.high for figure in found) >= 6


def test_8_requests_above_the_context_follow_a_policy_and_are_counted():
    """There: shortened in sizing and not in simulation, 112 ms against 441,699 ms."""
    workload = jaxsim.workload("azure")
    design = FleetDesign.of(H100, [8.0], [4096.0])
    share = workload.share_above(4096.0)
    rejecting = des.simulate(design, workload, rate=50.0, num_requests=20_000)
    assert rejecting.rejected / rejecting.requests == pytest.approx(share, rel=0.1)
    shortened = workload.limited(4096.0, "truncate")
    assert any("truncated" in note for note in shortened.notes)
    assert des.simulate(design, shortened, rate=50.0, num_requests=20_000).rejected == 0


def test_9_one_replica_can_be_enough():
    """There: never fewer than two."""
    plan = optim.plan(problem(rate=2.0), simulate=False)
    assert plan.design.replicas.tolist() == [1.0]


def test_10_attainment_is_over_all_that_was_offered():
    """There: 0.954 reported, 0.168 true."""
    workload = Workload.from_lengths([100, 9000], [50, 50], weight=[0.2, 0.8])
    design = FleetDesign.of(H100, [4.0], [2000.0])
    result = des.simulate(design, workload, rate=10.0, num_requests=20_000)
    assert result.attainment(ttft_s=10.0, tpot_s=10.0) == pytest.approx(0.2, abs=0.02)


def test_11_utilisation_does_not_count_the_drain():
    """There: 600 s after the last arrival count too, so a short run looks idle."""
    workload = Workload.from_lengths([1600], [400])
    design = FleetDesign.of(A100, [1.0], [8192.0])
    used = [
        des.simulate(design, workload, rate=7.0, num_requests=n, replications=1, seed=1).pools[0].utilization
        for n in (1_500, 60_000)
    ]
    assert used[0] == pytest.approx(used[1], rel=0.1)


def test_12_no_dominated_point_is_recommended():
    """There: dominance in both figures at once, which stars points as dear and slower than another."""
    front = optim.pareto(problem(rate=900.0, slo=SLO(0.06, 0.05)))
    kept = [p for p in front.points if not p.dominated]
    for one, other in itertools.permutations(kept, 2):
        cheaper = other.usd_per_hour <= one.usd_per_hour
        faster = float(other.analytic.ttft_p99_s) <= float(one.analytic.ttft_p99_s)
        assert not (cheaper and faster)
    assert front.recommended == front.points.index(kept[0])


def test_14_eight_gpus_cost_eight_gpus():
    """There: a model on eight GPUs is priced as one."""
    eight = make_profile(gpus_per_replica=8, usd_per_gpu_hour=2.5)
    assert float(FleetDesign.of(eight, [3.0], [4096.0]).usd_per_hour) == 60.0


def test_16_iso_timestamps_are_read(tmp_path):
    """There: float() of an ISO timestamp, and silently no row."""
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
        encoding="utf-8",
    )
    workload = Workload.from_trace(path)
    assert len(workload.weight) == 2
    assert workload.arrival_s[1] == pytest.approx(4.314579, abs=1e-6)


TOY = Workload.from_lengths([10], [10])
ONE = FleetDesign.of(H100, [1.0], [100.0])
UNKNOWN = [
    (lambda: jaxsim.profile("h200"), "unknown profile 'h200'; did you mean 'h100-80gb'"),
    (lambda: jaxsim.workload("azure-conversaton"), "did you mean 'azure-conversation'"),
    (lambda: jaxsim.evaluate(ONE, TOY, 1.0, model="stp"), "unknown model 'stp'; did you mean 'step'"),
    (lambda: problem(model="kimra"), "unknown model 'kimra'; did you mean 'kimura'"),
    (lambda: problem(long_requests="trunc"), "did you mean 'truncate'"),
    (lambda: des.simulate(ONE, TOY, rate=1.0, convention="kimurra"), "did you mean 'kimura'"),
    (lambda: des.simulate(ONE, TOY, rate=1.0, arrivals="poison"), "did you mean 'poisson'"),
]


@pytest.mark.parametrize(("call", "text"), UNKNOWN)
def test_17_an_unknown_name_is_an_error_with_the_near_ones(call, text):
    """There: "h200" is an A100."""
    with pytest.raises(ValueError) as error:
        call()
    assert text in str(error.value)


BAD = [
    (lambda: Workload.from_cdf([], output_share=0.2), "got an empty list"),
    (lambda: Workload.from_cdf([(200, 0.5), (100, 1.0)], output_share=0.2), "ascending"),
    (lambda: Workload.from_cdf([(100, 0.7), (200, 0.5), (300, 1.0)], output_share=0.2), "0.5"),
    (lambda: Workload.from_cdf([(100, float("nan")), (200, 1.0)], output_share=0.2), "nan"),
    (lambda: Workload.from_cdf([(100, 0.5), (200, 0.9)], output_share=0.2), "0.9"),
    (lambda: problem(rate=0.0), "rate must be > 0"),
    (lambda: problem(rate=-3.0), "rate must be > 0"),
    (lambda: problem(rate=float("nan")), "rate must be > 0"),
    (lambda: SLO(-1.0), "ttft_p99_s must be > 0"),
    (lambda: des.simulate(ONE, TOY, rate=0.0), "rate must be > 0"),
    (lambda: jaxsim.evaluate(ONE, TOY, -1.0), "rate must be >= 0"),
    (lambda: FleetDesign.of(H100, [1.0], [0.0]), "must be > 0"),
    (lambda: optim.pareto(problem(), thresholds=[0]), "threshold must be whole tokens"),
    (lambda: optim.pareto(problem(), thresholds=[10**6]), "below max_context"),
    (lambda: queueing.erlang_c(-3.0, 1.0), "num_servers must be > 0"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_18_bad_input_is_refused_in_words(call, text):
    """There: exit status 0 with "SLO met", a raw traceback, or no return at all."""
    with pytest.raises(ValueError) as error:
        call()
    assert text in str(error.value)
