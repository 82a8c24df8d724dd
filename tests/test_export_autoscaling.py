"""Loads to scale at: against the model's own P99s, the rule that follows from them, KEDA, and the command."""

import json
import math
from itertools import pairwise

import jsonschema
import numpy as np
import pytest
import yaml
from exported import document, document_of
from fleets import H100, small_workload
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from jaxsim.fleet import FleetDesign
from optim.cli import app
from optim.export import export_files
from optim.export_autoscaling import pool_levels, scale_rule
from optim.export_formats import FORMATS
from optim.export_options import PLACEHOLDER, ExportOptions
from optim.export_plan import fleet_of_document
from optim.figures import figures
from optim.problem import SLO

REQUESTS = "input_tokens,output_tokens\n" + "".join(
    f"{i:.0f},{o:.0f}\n" for i, o in zip(small_workload().input_tokens, small_workload().output_tokens, strict=True)
)


def simulated(doc, ttft, tpot):
    """As if the simulator had found each pool's P99s at these multiples of the model's."""
    pools = [
        {
            key: {"value": times * pool[key], "low": times * pool[key], "high": times * pool[key]}
            for key, times in (("ttft_p99_ms", ttft), ("tpot_p99_ms", tpot))
        }
        for pool in doc["analytic"]["pools"]
    ]
    return doc | {"status": "verified", "verification": {"pools": pools}}


@pytest.fixture(scope="module")
def two_pools():
    return pool_levels(fleet_of_document(document("two pools")), small_workload())


# --- the levels


TIGHT = SLO(0.4, 0.02)


@pytest.fixture(scope="module")
def one_pool():
    """By the step model, whose objective on TPOT binds."""
    doc = document_of([H100], [2.0], [8000.0], rate=60.0, slo=TIGHT)
    return doc, pool_levels(fleet_of_document(doc), small_workload())[0]


def test_at_its_level_a_pool_just_meets_its_slo(one_pool):
    """The step model, by its P99s alone: below the load both meet the SLO, a little above one does not."""
    _, found = one_pool
    lengths = small_workload().limited(8000.0, "reject")
    assert [level.replicas for level in found.levels] == [1, 2]
    for level in found.levels:
        design = FleetDesign.of([H100], [float(level.replicas)], [8000.0])

        def met(rate, design=design):
            at = figures(design, lengths, rate, model="step")
            return float(at.ttft_p99_s) <= TIGHT.ttft_p99_s and float(at.tpot_p99_s) <= TIGHT.tpot_p99_s

        assert met(0.995 * level.just_met.rate) and not met(1.02 * level.just_met.rate)
        assert level.scale_out.rate == pytest.approx(0.9 * level.just_met.rate)
        assert 0 < level.scale_out.running < level.just_met.running
        assert level.most_requests == pytest.approx(level.replicas * level.scale_out.running)
    assert found.planned.rate == pytest.approx(60.0)
    assert (found.ttft_factor, found.tpot_factor) == (1.0, 1.0)
    assert found.just_met_uncorrected == pytest.approx(found.levels[-1].just_met.rate, rel=1e-3)


def test_each_pool_has_its_share_of_the_load(two_pools):
    shares = [entry["share"] for entry in document("two pools")["analytic"]["pools"]]
    assert [found.planned.rate for found in two_pools] == pytest.approx([40.0 * share for share in shares])
    for found in two_pools:
        assert found.levels[0].just_met is None  # the reference sizing wants one replica more than the load
        loads = [(level.replicas, level.just_met) for level in found.levels[1:]]
        assert all(load.rate_per_replica == pytest.approx(load.rate / n) for n, load in loads)
        assert all(
            low.rate < high.rate and low.rate_per_replica <= high.rate_per_replica
            for (_, low), (_, high) in pairwise(loads)
        )


def test_what_the_simulator_found_moves_the_loads_its_way(one_pool):
    doc, found = one_pool
    (agreed,) = pool_levels(fleet_of_document(simulated(doc, 1.0, 1.0)), small_workload())
    (worse,) = pool_levels(fleet_of_document(simulated(doc, 1.3, 1.3)), small_workload())
    (better,) = pool_levels(fleet_of_document(simulated(doc, 0.9, 0.9)), small_workload())
    assert agreed == found
    assert worse.ttft_factor > 1.0 > better.ttft_factor and worse.tpot_factor > 1.0 > better.tpot_factor
    assert worse.just_met_uncorrected == better.just_met_uncorrected == found.just_met_uncorrected
    for low, middle, high in zip(worse.levels, found.levels, better.levels, strict=True):
        assert low.just_met.rate < middle.just_met.rate < high.just_met.rate


def test_headroom_is_kept_free(two_pools):
    fleet = fleet_of_document(document("two pools"))
    none = pool_levels(fleet, small_workload(), headroom=0.0)
    assert [level.scale_out for level in none[0].levels] == [level.just_met for level in none[0].levels]
    for share in (1.0, -0.1):
        with pytest.raises(ValueError, match=r"headroom must be in \[0, 1\).*10 % is 0\.1"):
            pool_levels(fleet, small_workload(), headroom=share)


# --- the rule


@given(st.lists(st.floats(0.5, 100.0), min_size=1, max_size=12))
def test_the_rule_asks_for_enough_and_for_little_more(steps):
    """Levels of any shape, requests of a pool with k replicas: more than T_k always gives more than k replicas."""
    most = dict(enumerate(np.cumsum(steps).tolist(), 1))
    rule = scale_rule(most)
    for k, requests in most.items():
        asked = (requests + rule.offset) / rule.per_replica
        assert asked >= k * (1 - 1e-9)
        assert asked - k <= rule.spare_replicas + 1e-9
    through_zero = min(requests / k for k, requests in most.items())
    assert rule.spare_replicas <= max(requests / through_zero - k for k, requests in most.items()) + 1e-9


def test_between_two_levels_the_lower_one_counts():
    """Levels of 1, 4 and 8 replicas: 2 and 3 may hold what 1 does, replica for replica."""
    rule = scale_rule({1: 10.0, 4: 60.0, 8: 160.0})
    for k, most in ((1, 10.0), (2, 20.0), (3, 30.0), (4, 60.0), (7, 105.0), (8, 160.0)):
        assert (most + rule.offset) / rule.per_replica >= k * (1 - 1e-12)


def test_levels_without_a_bound_make_no_rule():
    assert scale_rule({1: math.inf, 2: math.inf}) is None
    assert scale_rule({1: 0.0}) is None  # nothing may run with one replica: no line says when to add a second
    assert scale_rule({1: 0.0, 2: 30.0}).offset > 0


# --- files


def test_the_document_and_keda_say_the_same(two_pools):
    fleet, options = fleet_of_document(document("two pools"), file="plan.json"), ExportOptions(name="chat")
    (table,) = export_files(fleet, options, "autoscaling", workload=small_workload).files
    doc = json.loads(table.text, parse_constant=lambda token: pytest.fail(token))
    assert "not simulated" in doc["basis"] and doc["headroom"] == {"value": 0.1, "source": "default"}
    (file,) = export_files(fleet, options, "keda", workload=small_workload).files
    objects = list(yaml.safe_load_all(file.text))
    for scaled, pool in zip(objects, doc["pools"], strict=True):
        jsonschema.validate(scaled, SCALED_OBJECT)
        assert scaled["metadata"]["name"] == scaled["spec"]["scaleTargetRef"]["name"] == pool["service"]
        assert scaled["spec"]["maxReplicaCount"] == pool["replicas"] >= scaled["spec"]["minReplicaCount"]
        (trigger,) = scaled["spec"]["triggers"]
        assert float(trigger["metadata"]["threshold"]) == pytest.approx(
            pool["scale_rule"]["requests_per_replica"], rel=1e-3
        )
        offset = float(trigger["metadata"]["query"].rsplit(" + ", 1)[1])
        assert offset == pytest.approx(pool["scale_rule"]["requests_offset"], rel=1e-3, abs=1e-3)
        assert trigger["metadata"]["query"].count(f'pod=~"{pool["service"]}-.+"') == 2
        growth = pool["levels"][-1]["just_met"]["rate_rps"] / pool["planned"]["rate_rps"]
        assert pool["spare"] == pytest.approx(growth - 1.0)
    assert f"{PLACEHOLDER}PROMETHEUS_ADDRESS" in file.text.partition("Where values")[0]


SCALED_OBJECT = {
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "ScaledObject"},
        "spec": {
            "required": ["scaleTargetRef", "triggers"],
            "additionalProperties": False,
            "properties": {
                "scaleTargetRef": {"required": ["name"], "properties": {"kind": {"const": "Deployment"}}},
                "minReplicaCount": {"type": "integer", "minimum": 0},
                "maxReplicaCount": {"type": "integer", "minimum": 1},
                "triggers": {
                    "items": {
                        "required": ["type", "metadata"],
                        "properties": {
                            "type": {"const": "prometheus"},
                            "metricType": {"enum": ["AverageValue", "Value"]},
                            "metadata": {
                                "required": ["serverAddress", "query", "threshold"],
                                "additionalProperties": {"type": "string"},
                            },
                        },
                    }
                },
            },
        },
    },
}
"""Of KEDA 2.x, by its documentation of ScaledObject and the Prometheus scaler."""


def test_fleets_without_thresholds_are_refused():
    with pytest.raises(ValueError, match="serves whole requests, got prefill and decode pools"):
        pool_levels(fleet_of_document(document("disaggregated")), small_workload())
    doc = document("two pools")
    doc["inputs"]["ttft_p99_ms"]["value"] = None
    with pytest.raises(ValueError, match=r"must have slo\.ttft_p99_ms and a finite rate"):
        pool_levels(fleet_of_document(doc), small_workload())
    doc = document("two pools")
    doc["inputs"]["arrivals"] = {"value": "gamma", "source": "given"}
    with pytest.raises(ValueError, match=r"must be of a fleet with arrivals 'poisson'.*got 'gamma'"):
        pool_levels(fleet_of_document(doc), small_workload())


# --- the command


@pytest.fixture
def plan_json(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document("two pools")))
    (tmp_path / "requests.csv").write_text(REQUESTS)
    return path


def run(*words):
    return CliRunner().invoke(app, ["export", *map(str, words)])


def test_the_command_writes_every_format(plan_json, tmp_path):
    result = run(
        plan_json, "--format", "all", "--out", tmp_path / "out", "--trace", tmp_path / "requests.csv", "--name", "chat"
    )
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {str(tmp_path / "out" / name) for name in names} == set(result.stdout.split())
    assert {"vllm-pool-1.sh", "kubernetes.yaml", "llm-d-chat-pool-0.yaml", "dynamo.yaml"} <= names
    assert {"routes.json", "routes.schema.json", "autoscaling.json", "keda.yaml", "tensorrt-llm-pool-0.sh"} <= names
    assert (tmp_path / "out" / "vllm-pool-0.sh").stat().st_mode & 0o111
    head = (tmp_path / "out" / "keda.yaml").read_text().splitlines()[:2]
    assert "fleetgrad export plan.json --format all --name chat --trace requests.csv" in " ".join(head)


def test_the_command_prints_without_a_folder(plan_json):
    result = run(plan_json, "--format", "kubernetes")
    assert result.exit_code == 0
    assert [o["kind"] for o in yaml.safe_load_all(result.stdout)] == ["Deployment", "Service"] * 2
    assert json.loads(run(plan_json, "--format", "routes").stdout)["kind"] == "by-length"
    assert json.loads(run("--schema").stdout)["title"] == "Routes"
    assert run(plan_json, "--format", "vllm").stdout.count("# file: vllm-pool-") == 2


def test_the_commands_help_names_every_format():
    result = run("--help")
    assert result.exit_code == 0
    assert all(f"{name}:" in " ".join(result.stdout.split()) for name in FORMATS)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "PLAN.json is required"),
        (("{plan}",), "--format is required"),
        (("{plan}", "--format", "all"), "--format all writes many files: give --out DIR"),
        (("{missing}", "--format", "vllm"), "No such file"),
        (("{csv}", "--format", "vllm"), "requests.csv must be JSON that `fleetgrad plan --json` or --out wrote"),
        (("{plan}", "--format", "vllm", "--name", "A B"), "name must be a DNS-1123 label"),
        (("{plan}", "--format", "keda"), "workload 'small' must be given again"),
        (
            ("{plan}", "--format", "keda", "--workload", "azure-conversation"),
            "the workload must be the one that plan.json",
        ),
        (("{plan}", "--format", "keda", "--trace", "{csv}", "--headroom", "1"), "headroom must be in [0, 1)"),
        (("{plan}", "--format", "vllm", "--node-label", "h100"), "node label must be GPU=KEY=VALUE"),
    ],
)
def test_the_command_refuses_in_one_line(words, why, plan_json, tmp_path):
    places = {"plan": plan_json, "csv": tmp_path / "requests.csv", "missing": tmp_path / "none.json"}
    result = run(*(word.format(**places) for word in words))
    assert result.exit_code == 2
    assert why in result.output and result.output.startswith("error: ") and result.output.count("\n") == 1
