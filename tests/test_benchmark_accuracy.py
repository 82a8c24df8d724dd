"""The accuracy scoreboard: its design, what it takes from the simulator and the models, and its arithmetic."""

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import numpy as np
import pytest
from fleets import make_profile, small_workload

import des
import jaxsim

FOLDER = str(Path(__file__).parent.parent / "benchmarks")


def module(name):
    sys.path.insert(0, FOLDER)
    try:
        return importlib.import_module(f"_accuracy_{name}")
    finally:
        sys.path.remove(FOLDER)


design, sims, table, view = (module(name) for name in ("design", "sims", "table", "view"))


def small_case(*, replicas=1, dispatch="least-loaded", limit=16, utilization=0.8, number=0):
    point = design.Point(number, "prefill", "small", "toy", limit, utilization, replicas, dispatch)
    workload, profile = small_workload(), make_profile(max_num_seqs=limit)
    fleet = jaxsim.FleetDesign.of(profile, [replicas], [float(np.max(workload.total_tokens))])
    return design.Case(point, workload, fleet, utilization * replicas / design.full_engine_s(profile, workload))


def test_every_level_meets_every_level_of_the_other_factors():
    points = design.points()
    assert len(points) == len(set(points)) == design.NUM_POINTS
    factors = {
        "group": design.GROUPS,
        "workload": design.WORKLOADS,
        "profile": design.PROFILES,
        "limit": design.LIMITS,
        "utilization": design.UTILIZATIONS,
        "fleet": ("one engine", *design.DISPATCH),
    }
    for one, levels in factors.items():
        assert {getattr(p, one) for p in points} == set(levels)
        for other, others in factors.items():
            if one != other:
                pairs = {(getattr(p, one), getattr(p, other)) for p in points}
                assert len(pairs) == len(levels) * len(others)
    assert {p.replicas for p in points} == {1, *design.FEW, *design.MANY}


def test_points_accept_every_request_at_every_slot():
    for case in design.cases(design.points()[::6]):
        profile, longest = case.design.profile, float(np.max(case.workload.total_tokens))
        assert case.design.upper_tokens[0] >= longest
        assert profile.kv_tokens[0] >= case.point.limit * longest
        assert profile.max_num_seqs[0] == case.point.limit


def test_groups_keep_what_they_say():
    points = design.points()
    for group in design.GROUPS:
        point = next(p for p in points if p.group == group)
        workload, profile = design.served(point.workload), jaxsim.profile(point.profile)
        law = design.adapted(point, workload).law
        assert law.base_s == profile.base_s and law.overhead_s == profile.overhead_s
        if group == "prefill":
            assert law == profile.law
        else:
            assert law.prefill_per_token_s == law.prefill_per_token2_s == 0.0
        if group == "constant":
            work = jaxsim.physics.step_work(law, profile.chunk_tokens, workload.input_tokens, workload.output_tokens)
            assert np.ptp(work.decode_first_s) == np.ptp(work.decode_slope_s) == 0.0
            held = design.mean_context(profile, workload)
            assert law.per_sequence_s == profile.per_sequence_s + profile.per_token_s * held
            assert np.min(workload.input_tokens) < held < np.max(workload.total_tokens)


def test_lognormal_lengths_have_their_moments():
    workload = design.lognormal()
    for tokens, mean, cv2 in zip(
        (workload.input_tokens, workload.output_tokens), design.LOGNORMAL_MEANS, design.LOGNORMAL_CV2, strict=True
    ):
        average = workload.weight @ tokens
        assert average == pytest.approx(mean, rel=0.02)
        assert workload.weight @ tokens**2 / average**2 - 1.0 == pytest.approx(cv2, rel=0.2)


@pytest.mark.parametrize(("replicas", "dispatch"), [(1, "least-loaded"), (3, "round-robin")])
def test_share_waiting_counts_those_that_find_all_slots_taken(replicas, dispatch):
    case = small_case(replicas=replicas, dispatch=dispatch, limit=4, utilization=0.9)
    result = des.simulate(
        case.design,
        case.workload,
        rate=case.rate,
        num_requests=3000,
        replications=1,
        router=des.LengthRouter(dispatch=dispatch),
        keep="requests",
    )
    t = result.requests_table()
    found = []
    for replica, sent, measured in zip(t["replica"], t["sent_s"], t["measured"], strict=True):
        if measured:
            present = (t["replica"] == replica) & (t["admit_s"] < sent) & (t["end_s"] > sent)
            found.append(present.sum() == case.point.limit)
    share = sims.share_waiting(result, case.point.limit)
    assert 0.1 < share < 1.0
    assert share == pytest.approx(np.mean(found), abs=1e-12)


def test_simulated_points_do_not_depend_on_cpus_and_survive_a_file(tmp_path, monkeypatch):
    effort = sims.Effort(precision=0.5, shortest=3000, rounds=1, most=0)
    first = sims.simulate(small_case(), effort)
    monkeypatch.setattr(sims.os, "cpu_count", lambda: 1)
    second = sims.simulate(small_case(number=1), effort)
    assert sims.simulate(small_case(), effort) == first
    path = tmp_path / "sims.jsonl"
    for row in (second, first):
        sims.write(row, path)
    assert sims.read(path) == [first, second]
    assert set(first.figures) == set(sims.FIGURES) and set(first.tails) == set(sims.LEVELS)
    assert first.replications == sims.ROUND and first.requests == sims.ROUND * 3000
    assert 0 < first.figures["mean_active"].value < 16
    with pytest.raises(ValueError, match=r"point 0 was simulated at .* simulate it again"):
        list(sims.checked([first], [small_case(utilization=0.7)]))


def test_simulation_goes_on_until_the_point_is_known():
    short, long = (
        sims.simulate(small_case(utilization=0.3), sims.Effort(precision=p, shortest=2000, rounds=1, most=400_000))
        for p in (1.0, 0.005)
    )
    assert short.replications == sims.ROUND < long.replications
    assert long.figures["ttft_p99"].relative <= 0.005 < short.figures["ttft_p99"].relative
    spent = sims.simulate(
        small_case(utilization=0.3), sims.Effort(precision=1e-6, shortest=2000, rounds=1, most=24_000)
    )
    assert spent.requests == 24_000


def test_a_rejected_request_is_an_error():
    case = small_case()
    shorter = eqx.tree_at(lambda d: d.max_context, case.design, np.asarray([100.0]))
    with pytest.raises(RuntimeError, match=r"requests rejected: prefill: small on toy, limit 16"):
        sims.simulate(case._replace(design=shorter), sims.Effort(precision=1.0, shortest=500, rounds=1, most=0))


@pytest.fixture(scope="module")
def models():
    return module("model")


def test_the_model_is_that_of_evaluate_where_dispatch_is_its_own(models):
    pairs = [
        small_case(replicas=2),
        small_case(replicas=2, dispatch="random"),
        small_case(replicas=2, dispatch="round-robin"),
    ]
    row = sims.simulate(pairs[0], sims.Effort(precision=1.0, shortest=500, rounds=1, most=0))
    found = models.said("step", [row] * 3, pairs)
    one = small_case()
    for i, (case, rate) in enumerate(((pairs[0], pairs[0].rate), (one, one.rate))):
        m = jaxsim.evaluate(case.design, case.workload, rate)
        assert m.utilization == pytest.approx(case.point.utilization, rel=1e-9)
        expected = {
            "mean_active": m.pools.active_batch[0],
            "tpot_mean": m.tpot_mean_s,
            "tpot_p99": m.tpot_p99_s,
            "ttft_p50": m.ttft_p50_s,
            "ttft_p95": m.ttft_p95_s,
            "ttft_p99": m.ttft_p99_s,
        }
        for name, value in expected.items():
            assert found.figures[name][i] == pytest.approx(float(value), rel=1e-9), name
    balanced, random, turns = found.figures["wait_probability"]
    assert 0 < balanced < turns < random < 1
    tails = np.stack([found.log_tails[name] for name in sims.LEVELS])
    assert np.all(np.diff(tails, axis=0) < 0) and np.all(tails <= 0)


def test_padding_a_workload_changes_no_sum(models):
    workload = small_workload()
    padded = models.padded(workload)
    assert len(padded.weight) == 256 and padded.weight.sum() == pytest.approx(1.0)
    assert np.all(np.diff(padded.knots) > 0)
    thresholds = np.array([300.0, 2000.0, float(np.max(workload.total_tokens))])
    for one, other in zip(*(w.split(thresholds).__dict__.values() for w in (workload, padded)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def made_up(number, *, group="constant", waiting=0.5, p99=(1.0, 0.02), tail=0.01, replicas=1, dispatch="least-loaded"):
    point = design.Point(number, group, "sharegpt", "toy", 8, 0.5, replicas, dispatch)
    figures = {name: sims.Figure(1.0, 0.01) for name in sims.FIGURES}
    figures |= {"wait_probability": sims.Figure(waiting, 0.01 * waiting), "ttft_p99": sims.Figure(*p99)}
    return sims.Simulated(point, 1.0, figures, dict.fromkeys(sims.LEVELS, tail), 1000, 4, 0)


def said(*rows, log_tail=0.0):
    """What a model says: by point, changed figures; 1 and a wait of 0.5 where nothing is said."""
    figures = {name: np.array([row.get(name, 1.0) for row in rows]) for name in sims.FIGURES}
    figures["wait_probability"] = np.array([row.get("wait_probability", 0.5) for row in rows])
    beyond = {name: math.log1p(-level) + log_tail for name, level in sims.LEVELS.items()}
    return importlib.import_module("_accuracy_model").Said(
        figures, {name: np.full(len(rows), value) for name, value in beyond.items()}
    )


def p99s(found):
    return [one for one in found if one.figure == "ttft_p99"]


@pytest.mark.parametrize(
    ("waiting", "level", "expected"),
    [(0.01, 0.99, True), (0.0063, 0.99, True), (0.0159, 0.99, True), (0.0061, 0.99, False), (0.0165, 0.99, False),
     (0.05, 0.95, True), (0.01, 0.95, False), (0.0, 0.5, False)],
)  # fmt: skip
def test_a_quantile_is_steep_where_the_share_that_waits_is_near(waiting, level, expected):
    assert table.steep(waiting, level) is expected


def test_errors_are_relative_and_of_the_log_tail_where_the_quantile_is_steep(models):
    rows = [made_up(0), made_up(1, waiting=0.012), made_up(2)]
    step = said(
        {"ttft_p99": 1.25}, {"wait_probability": 0.1}, {"ttft_p99": 0.5, "wait_probability": 0.008}, log_tail=0.3
    )
    kimura = said({"ttft_p99": math.inf}, {}, {}, log_tail=-2.0)
    plain, by_simulator, by_model = p99s(table.judge(rows, step, kimura))
    assert (plain.log_tail, plain.error, plain.kimura, plain.noise) == (False, 0.25, math.inf, 0.02)
    for one in (by_simulator, by_model):
        assert one.log_tail and one.noise == 0.01
        assert one.error == pytest.approx(0.3) and one.kimura == pytest.approx(-2.0)


def test_what_the_simulator_does_not_know_is_left_out_and_counted(models):
    wide = made_up(0, p99=(1.0, 0.2))
    unsteady = made_up(1, waiting=0.01, p99=(1.0, 0.5), tail=0.05)  # its quantile is wide, its tail is not
    rare = made_up(2, waiting=0.002)
    never = made_up(3, waiting=0.0)
    rows = [wide, unsteady, rare, never]
    found = table.judge(rows, said(*[{}] * 4), said(*[{}] * 4))
    known = {(one.point.number, one.figure): one.known for one in found}
    assert not any(known[0, name] for name in sims.FIGURES)
    assert all(known[1, name] for name in sims.FIGURES)
    for number in (2, 3):
        assert {name for name in sims.FIGURES if not known[number, name]} == {"wait_probability"}
    every = table.Segment("all", lambda p: True, {})
    counted = {(line.figure, line.log_tail): (line.judged, line.left_out) for line in table.lines(found, [every])}
    assert counted["mean_active", False] == (3, 1)
    assert counted["wait_probability", False] == (1, 3)
    assert counted["ttft_p99", False] == (2, 1) and counted["ttft_p99", True] == (1, 0)


def test_the_summary_is_of_absolute_errors_beside_their_aims(models):
    errors = [0.01, -0.02, 0.03, -0.04, 0.05, 0.06, 0.07, 0.08, 0.09, -0.5]
    rows = [made_up(i) for i in range(len(errors))]
    step = said(*({"ttft_p99": 1.0 + error} for error in errors))
    found = table.judge(rows, step, said(*[{"ttft_p99": math.inf}] * len(errors)))
    segment = table.Segment("mine", lambda p: True, {"ttft_p99": {"median": 0.06, "p90": 0.4}})
    (line,) = table.lines(found, [segment], ["ttft_p99"])
    assert line.errors == pytest.approx({"median": 0.055, "p90": 0.5, "worst": 0.5})
    assert line.kimura == {"median": math.inf, "p90": math.inf, "worst": math.inf}
    assert line.holds is False
    assert line._replace(aims={"median": 0.06}).holds is True
    assert line._replace(aims={}).holds is None and line._replace(judged=0).holds is None
    by_name = {row.name: row for row in table.rows([line], aimed=True)}
    assert (by_name["mine.ttft_p99.median"].target, by_name["mine.ttft_p99.median"].ok) == (6.0, True)
    assert (by_name["mine.ttft_p99.p90"].target, by_name["mine.ttft_p99.p90"].ok) == (40.0, False)
    assert by_name["mine.ttft_p99.worst"].target is None and by_name["mine.ttft_p99.worst"].value == pytest.approx(50.0)
    assert by_name["mine.ttft_p99.kimura.median"].value == math.inf
    assert all(row.target is row.ok is None for row in table.rows([line], aimed=False))


def test_segments_part_groups_engines_and_dispatch(models):
    rows = [
        made_up(0),
        made_up(1, replicas=4),
        made_up(2, group="growing", replicas=4, dispatch="random"),
        made_up(3, group="prefill", replicas=2, dispatch="round-robin"),
    ]
    inside = {s.name: [r.point.number for r in rows if s.belongs(r.point)] for s in table.segments()}
    assert inside["constant"] == [0, 1] and inside["constant, one engine"] == [0]
    assert inside["growing"] == [2] and inside["growing, one engine"] == []
    assert (inside["least-loaded"], inside["random"], inside["round-robin"]) == ([1], [2], [3])
    aims = {s.name: s.aims for s in table.segments()}
    assert set(aims["constant"]) == {"mean_active", "tpot_mean", "wait_probability", "ttft_p99"}
    assert set(aims["prefill"]) == {"ttft_p99"}


def test_the_worst_points_come_first_by_the_aims_of_their_groups(models):
    rows = [made_up(0), made_up(1, group="prefill"), made_up(2, waiting=0.01), made_up(3, p99=(1.0, 0.5))]
    step = said({"ttft_p99": 1.12}, {"ttft_p99": 0.75}, {}, {"ttft_p99": 9.0}, log_tail=0.2)
    found = table.judge(rows, step, step)
    assert [one.point.number for one in table.worst(found)] == [2, 0, 1]  # 2.0, 1.5 and 1.25 aims; the last unknown


def test_sheets_and_document_show_the_aims_and_every_number(models, capsys):
    rows = [made_up(0), made_up(1, group="prefill", waiting=0.01), replace(made_up(2), overloaded=1)]
    step = said({"ttft_p99": 1.12}, {}, {}, log_tail=0.2)
    found = table.judge(rows, step, said({"ttft_p99": math.inf}, {}, {}))
    document = view.markdown(found, rows)
    assert "| constant | ttft p99 | 2 | 0 | 6.00 > 2 | 12.0 > 8 | 12.0 | no | 2.00 |" in document
    assert "| prefill | ttft p99 log tail | 1 | 0 | 0.200 | 0.200 | 0.200 > 0.1 | no | 0.010 |" in document
    assert "some replications of points 2 overloaded" in document
    assert "inf" in document and "nan" not in document
    assert document.count("\n## ") == 3
    view.show(found)
    assert "ttft p99" in capsys.readouterr().out
