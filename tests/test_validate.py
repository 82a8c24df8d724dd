"""A plan's profile against servers that were simulated: it holds, or it does not and the refit finds the truth."""

import dataclasses
import json
import math

import benchmark_files as files
import numpy as np
import pytest
from exported import fleet as exported_fleet
from fleets import make_profile, small_workload
from server_metrics import CONTEXT, OF_LENGTHS, Fleet, shorten, write_plan

from jaxsim.bench_files import read_benchmark, read_served
from jaxsim.fit.rescale import scaled
from jaxsim.observed import observed_run
from jaxsim.workload import Workload
from optim.export_plan import read_fleet_file
from optim.validate import ValidationStatus, validate
from optim.validate_compare import Part, Tolerances, compare, part_of
from optim.validate_load import lengths_like, load_of, pool_named
from optim.validate_predict import REPLICATIONS, simulated
from optim.validate_refit import refit

PROFILE = make_profile()
RATE, REPLICAS = 30.0, 3


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """The plan of three replicas, by the `step` model in name: nothing here evaluates it."""
    path = write_plan(
        tmp_path_factory.mktemp("plan") / "plan.json", PROFILE, replicas=REPLICAS, rate=RATE, model="kimura"
    )
    document = json.loads(path.read_text(encoding="utf-8")) | {"model": "step"}
    path.write_text(json.dumps(document), encoding="utf-8")
    return read_fleet_file(path)


@pytest.fixture(scope="module")
def reference_plan(tmp_path_factory):
    """The same by the reference model, which compiles fast."""
    folder = tmp_path_factory.mktemp("kimura")
    return read_fleet_file(write_plan(folder / "plan.json", PROFILE, replicas=REPLICAS, rate=RATE, model="kimura"))


def served(folder, profile, *, leave_out=(), seen_by=None, **load):
    """Two scrapes of a fleet with that profile, read back."""
    fleet = Fleet(profile, **({"replicas": REPLICAS, "rate": RATE, "number": 8_000} | load))
    pair, seconds = fleet.write(folder, leave_out=leave_out, replicas=seen_by)
    return read_served([pair], duration_s=seconds)


def held(plan, seen, *, workload=None, replicas=None):
    """Load, judge, prediction and rows, by simulation alone."""
    load = load_of(plan, plan.pools[0], seen, workload or small_workload(), replicas=replicas)

    def judge(profile):
        return simulated(load, profile, measured=seen.completed, seed=0)

    return load, judge, *compare(seen, PROFILE, judge, None, Tolerances())


def refitted(plan, seen):
    _, judge, _, rows = held(plan, seen)
    return refit(seen, PROFILE, judge, lambda _: None, rows, Tolerances())


def longer(outputs):
    base = small_workload()
    return Workload.from_lengths(base.input_tokens, np.asarray(base.output_tokens) * outputs, weight=base.weight)


@pytest.mark.parametrize(
    "load",
    [{}, {"rate": 55.0}, {"rate": 9.0}, {"workload": longer(2), "rate": 24.0}],
    ids=["same", "more", "less", "long"],
)
def test_another_load_is_not_blamed_on_the_profile(plan, tmp_path, load):
    seen = served(tmp_path, PROFILE, **load)
    found, _, predicted, rows = held(plan, seen)
    judged = [row for row in rows if row.part is not None]
    assert len(judged) == 6 and all(row.agrees for row in judged)
    main = next(row for row in rows if row.key == ("tpot", "mean"))
    assert main.ratio == pytest.approx(1.0, abs=0.02)
    assert main.low_s < main.simulated_s * 1.01 and main.high_s > main.simulated_s * 0.99
    assert predicted.running == pytest.approx(seen.running / REPLICAS, rel=0.5)  # two moments of it
    assert found.replica_rate == pytest.approx(load.get("rate", RATE) / REPLICAS, rel=0.05)
    means = [found.workload.mean(np.asarray(v)) for v in (found.workload.input_tokens, found.workload.output_tokens)]
    assert means == pytest.approx([seen.mean_input_tokens, seen.mean_output_tokens], rel=2e-3)


@pytest.mark.parametrize("factor", [1.3, pytest.param(0.8, marks=pytest.mark.slow)])
def test_a_common_factor_is_recovered(plan, tmp_path, factor):
    made = refitted(plan, served(tmp_path, scaled(PROFILE, decode=factor, prompt=factor)))
    assert made.prompt is None and made.agrees
    assert made.decode.low < factor < made.decode.high
    assert made.decode.high / made.decode.low < 1.05
    for name in ("base_s", "per_sequence_s", "per_token_s", "prefill_per_token_s", "prefill_per_token2_s"):
        assert float(getattr(made.profile, name)) == pytest.approx(factor * float(getattr(PROFILE, name)), rel=0.02)
    assert (made.profile.kv_blocks, made.profile.max_num_seqs) == (PROFILE.kv_blocks, PROFILE.max_num_seqs)
    assert "stay as they are" in made.text
    at = made.errors.coefficients.index("base_s")
    relative = math.sqrt(made.errors.covariance_s2[at, at]) / float(made.profile.base_s)
    assert 0.0 < relative < 0.02


def test_prompts_that_take_longer_are_told_from_steps_that_do(plan, tmp_path):
    made = refitted(plan, served(tmp_path, scaled(PROFILE, decode=1.2, prompt=2.5)))
    assert made.agrees and made.prompt is not None
    assert made.decode.low < 1.2 < made.decode.high
    assert made.prompt.low < 2.5 < made.prompt.high
    assert made.prompt.high / made.prompt.low < 1.2
    assert "whatever else is in the TTFT" in made.text


def test_gaps_alone_give_the_factor_too(plan, tmp_path):
    """Servers without the TPOT of requests: older vLLM, SGLang."""
    seen = served(tmp_path, scaled(PROFILE, decode=1.3, prompt=1.3), leave_out=("tpot",))
    _, judge, _, rows = held(plan, seen)
    assert {row.key: row.part for row in rows}["itl", "mean"] is Part.DECODE
    made = refit(seen, PROFILE, judge, lambda _: None, rows, Tolerances())
    assert made.decode.low < 1.3 < made.decode.high


def test_a_ttft_alone_is_judged_and_not_refitted(plan, tmp_path):
    slow = served(tmp_path, scaled(PROFILE, decode=1.8, prompt=1.8), leave_out=("tpot", "itl"))
    _, judge, _, rows = held(plan, slow)
    assert [row.part for row in rows if row.key == ("ttft", "mean")] == [Part.PROMPT]
    assert not all(row.agrees for row in rows if row.part is not None)
    assert "does not tell how long a step takes" in refit(slow, PROFILE, judge, lambda _: None, rows, Tolerances())


def test_one_replica_of_three_is_enough(plan, tmp_path):
    """Its rate stands for the others, which share the dispatcher with it."""
    seen = served(tmp_path, PROFILE, seen_by=[1], number=12_000)
    load, _, _, rows = held(plan, seen)
    assert (load.covered, load.replicas) == (1, 3)
    assert load.rate == pytest.approx(RATE, rel=0.06)
    assert all(row.agrees for row in rows if row.part is not None)


def test_prompts_in_a_prefix_cache_are_not_computed(plan, tmp_path):
    """A server that computes a fifth of its prompts' tokens has a fifth of the prefill, and says why."""
    seen = served(tmp_path, scaled(PROFILE, prompt=0.2))
    ratios = []
    for share in (None, 0.8):
        load, _, _, rows = held(plan, dataclasses.replace(seen, cached_share=share))
        ratios.append(next(row.ratio for row in rows if row.key == ("ttft", "mean")))
    assert ratios[0] < 0.9 and ratios[1] == pytest.approx(1.0, abs=0.03)
    assert load.computed_share == pytest.approx(0.2) and "in a prefix cache" in " ".join(load.notes)
    assert all(row.agrees for row in rows if row.part is not None)


def test_clients_in_a_closed_loop_are_simulated_as_such(plan, tmp_path):
    """Under a common factor all times of a closed loop have it, so the answer is exact."""
    base = small_workload()
    lengths = (np.asarray(base.input_tokens), np.asarray(base.output_tokens))
    sent = files.simulated(scaled(PROFILE, decode=1.3, prompt=1.3), *lengths, number=300, concurrency=24)
    path = files.write(tmp_path / "bench.json", files.vllm(sent, limit=24))
    (run,) = read_benchmark(path)
    seen = observed_run(run)
    assert seen.concurrency == 24 and not seen.unsteady
    assert seen.reading("ttft", "p99").low_s < np.quantile(sent.ttft, 0.99) < seen.reading("ttft", "p99").high_s
    load, judge, _, rows = held(plan, seen)
    assert (load.replicas, load.concurrency) == (1, 24)
    assert load.inputs["lengths"].source == "the requests in the metrics"
    made = refit(seen, PROFILE, judge, lambda _: None, rows, Tolerances())
    assert made.decode.low < 1.3 < made.decode.high


def test_bursts_are_not_blamed_on_steps(reference_plan, tmp_path):
    """Means within the tolerance and a P99 far above: nothing is refitted."""
    seen = served(tmp_path, PROFILE, model="kimura")
    late = [
        each._replace(value_s=9.0, low_s=8.0, high_s=10.0) if each.key == ("ttft", "p99") else each
        for each in seen.readings
    ]
    seen = dataclasses.replace(seen, readings=tuple(late), mean_input_tokens=None)  # the plan's lengths
    load = load_of(reference_plan, reference_plan.pools[0], seen, small_workload(), replicas=None)
    found = validate(reference_plan, load, seen)
    assert found.status is ValidationStatus.TAILS_OFF and not found.holds
    assert found.refit is None and "arrivals that come in bursts" in found.reason


def test_a_queue_that_grew_is_not_judged(reference_plan, tmp_path):
    seen = served(tmp_path, PROFILE, rate=150.0, model="kimura", leave_out=OF_LENGTHS)
    load = load_of(reference_plan, reference_plan.pools[0], seen, small_workload(), replicas=None)
    found = validate(reference_plan, load, seen)
    assert found.status is ValidationStatus.NOT_JUDGED and not found.rows and found.due is None
    assert "requests piled up" in found.reason and "it is overloaded" in found.reason


def test_a_profile_that_could_not_serve_the_load_does_not_hold(plan, tmp_path):
    """It was served all the same, so the steps are shorter than the plan's."""
    quick = scaled(PROFILE, decode=0.4, prompt=0.4)
    seen = served(tmp_path, quick, rate=130.0, number=12_000)
    _, judge, predicted, rows = held(plan, seen)
    assert predicted.overloaded and any(row.agrees is False for row in rows)
    made = refit(seen, PROFILE, judge, lambda _: None, rows, Tolerances())
    assert made.decode.low < 0.4 < made.decode.high


def test_the_scatter_of_a_window_is_that_of_windows(plan, tmp_path):
    """The interval of a measured mean covers the truth about as often as it says: 20 windows of other arrivals."""
    first = served(tmp_path, PROFILE)
    _, _, predicted, _ = held(plan, first)
    figure = predicted.figures["tpot", "mean"]
    values = []
    for seed in range(20):
        again = served(tmp_path, PROFILE, seed=100 + seed)
        values.append(again.reading("tpot", "mean").value_s)
    inside = np.abs(np.array(values) - figure.value_s) <= figure.window_half_s
    assert inside.sum() >= 16
    assert figure.window_half_s < 6.0 * np.std(values)  # and is not so wide that it says nothing
    assert predicted.requests >= REPLICATIONS * 1_500


@pytest.mark.parametrize(("inputs", "outputs"), [(1000.0, 150.0), (300.0, 700.0), (2500.0, 40.0), (7.5, 1.2)])
def test_lengths_have_the_measured_means(inputs, outputs):
    made = lengths_like(small_workload(), inputs, outputs, CONTEXT)
    means = [float(made.mean(np.asarray(each))) for each in (made.input_tokens, made.output_tokens)]
    assert means == pytest.approx([inputs, outputs], rel=0.03)
    assert float(made.total_tokens.max()) <= CONTEXT and float(made.input_tokens.min()) >= 1.0


def test_lengths_that_cannot_be_reached_are_named(plan, tmp_path):
    seen = dataclasses.replace(served(tmp_path, PROFILE), mean_input_tokens=7900.0, mean_output_tokens=2000.0)
    load = load_of(plan, plan.pools[0], seen, small_workload(), replicas=None)
    assert any("not the measured 7,900 and 2,000" in note for note in load.notes)


@pytest.mark.parametrize(
    ("key", "part"),
    [
        (("tpot", "mean"), Part.DECODE),
        (("tpot", "p99"), Part.TAIL),
        (("ttft", "mean"), Part.PROMPT),
        (("ttft", "p50"), Part.TAIL),
        (("itl", "mean"), None),
        (("e2e", "mean"), None),
    ],
)
def test_what_a_latency_tells_of(tmp_path, key, part):
    assert part_of(served(tmp_path, PROFILE, number=2_000), key) is part


def test_pools_are_named_and_disaggregated_ones_refused():
    two = exported_fleet("two pools")
    assert pool_named(two, "pool-1").replicas == 2
    with pytest.raises(ValueError, match=r"--pool must be one of pool-0, pool-1, got None; say which"):
        pool_named(two, None)
    with pytest.raises(ValueError, match=r"unknown pool 'pool-2'; did you mean"):
        pool_named(two, "pool-2")
    with pytest.raises(ValueError, match="prefill and decode pools show only a part"):
        pool_named(exported_fleet("disaggregated"), None)


def test_a_pool_has_its_own_requests_and_replicas(tmp_path):
    """Of two pools, the one for long requests; the plan's lengths and rate are those of this pool alone."""
    two = exported_fleet("two pools")
    pool = pool_named(two, "pool-1")
    base = small_workload()
    long = np.asarray(base.total_tokens) > 2000
    mine = Workload.from_lengths(base.input_tokens[long], base.output_tokens[long], weight=base.weight[long])
    profile = pool.profile
    seen = served(tmp_path, profile, workload=mine, replicas=2, rate=4.0, number=3_000, model="kimura")
    load = load_of(two, pool, seen, base, replicas=None)
    assert (load.covered, load.replicas, load.pool.label) == (2, 2, "pool-1")
    assert float(np.min(load.planned.total_tokens)) > 2000
    assert float(load.planned.mean(np.asarray(load.planned.input_tokens))) == pytest.approx(
        float(mine.mean(np.asarray(mine.input_tokens)))
    )
    judged = simulated(load, profile, measured=seen.completed, seed=0)
    assert judged.value(("tpot", "mean")) == pytest.approx(seen.reading("tpot", "mean").value_s, rel=0.03)
    with pytest.raises(ValueError, match=r"with requests of 2,001 to 8,000 tokens, those of pool-1"):
        load_of(two, pool, seen, Workload.from_lengths([10.0], [10.0]), replicas=None)
    assert load_of(two, pool, seen, base, replicas=4).replicas == 4


def test_rules_of_a_simulation_that_are_not_used_are_named(plan, tmp_path):
    document = json.loads(json.dumps(plan.document))
    document["inputs"]["scheduling"] = {"value": "chunked", "source": "given"}
    other = dataclasses.replace(plan, document=document)
    load = load_of(other, other.pools[0], served(tmp_path, PROFILE, number=2_000), small_workload(), replicas=None)
    assert any("scheduling 'chunked' of plan.json is not used" in note for note in load.notes)


def test_without_lengths_the_workload_is_asked_for(plan, tmp_path):
    seen = served(tmp_path, PROFILE, number=2_000)
    with pytest.raises(ValueError, match=r"workload must be given again.*--plan-file"):
        load_of(plan, plan.pools[0], seen, None, replicas=None)
    alone = load_of(
        plan, plan.pools[0], dataclasses.replace(seen, mean_input_tokens=None), small_workload(), replicas=None
    )
    assert any("a change of them is not seen" in note for note in alone.notes)
