"""What every exported file says of itself, and which documents, options and formats are refused."""

import re

import pytest
from exported import CONTEXT, document, fleet, unwritten
from fleets import H100, small_workload
from reading_exports import GIVEN, KINDS, WITHOUT_LOADS, comments, written

from optim.export import export_files
from optim.export_formats import ALL
from optim.export_options import PLACEHOLDER, ExportOptions, node_label
from optim.export_plan import fleet_of_document

# --- what every file says of itself


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in KINDS
        for name in WITHOUT_LOADS
        if name != "routes" and (kind, name) != ("disaggregated", "tensorrt-llm")
    ],
)
def test_every_placeholder_is_listed_and_every_value_has_its_source(kind, name):
    for text in written(kind, name).values():
        head = comments(text)
        body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        listed = re.findall(rf"({PLACEHOLDER}\w+): ", head.partition("To fill in")[2].partition("Where values")[0])
        assert set(listed) == set(re.findall(rf"{PLACEHOLDER}\w+", body))
        assert "from plan.json" in head and f"kind {fleet(kind).kind}, status unverified" in head
        assert "schema_version 1" in head and "the plan was not simulated" in head
        for pool in fleet(kind).pools:
            if f"{pool.label} model" in head:
                assert f"{pool.label} replicas = {pool.replicas}: {pool.place}.replicas" in head
                assert f"{pool.place}.max_context" in head
    for text in written(kind, name, GIVEN).values():
        assert PLACEHOLDER not in text


def test_all_leaves_out_what_cannot_be_written_and_says_why():
    found = export_files(fleet("disaggregated"), GIVEN, ALL, workload=small_workload)
    assert set(found.left_out) == {"tensorrt-llm", "autoscaling", "keda"}
    assert all(found.left_out.values())
    names = {file.name for file in found.files}
    assert {"vllm-prefill.sh", "kubernetes.yaml", "dynamo.yaml", "llm-d-chat.yaml", "routes.json"} <= names


# --- which documents


def test_a_plan_is_exported_before_it_is_written():
    """From the plan's object, through its document, without a file."""
    doc = unwritten([H100, H100], [3.0, 2.0], [2000.0, CONTEXT], model="kimura")
    assert written(fleet_of_document(doc, file="plan.json"), "kubernetes") == written("two pools", "kubernetes")


def test_a_simulated_fleet_is_exported_with_what_the_simulator_said_of_it():
    doc = document("two pools") | {"kind": "simulation", "status": "ok", "verification": {"slo_met": False}}
    assert "does not meet an SLO" in fleet_of_document(doc).warnings[0]
    doc["verification"]["slo_met"] = True
    assert not any("SLO" in warning for warning in fleet_of_document(doc).warnings)
    for pool, role in zip(doc["design"]["pools"], ("prefill", "decode"), strict=True):
        pool["role"] = role
    found = fleet_of_document(doc)
    assert found.disaggregated and [pool.label for pool in found.pools] == ["prefill", "decode"]
    with pytest.raises(ValueError, match="got 'overloaded'; the fleet cannot keep up"):
        fleet_of_document(doc | {"status": "overloaded"})


# --- refusals


def changed(path, value):
    doc = document("one pool")
    inner = doc
    *way, last = path
    for key in way:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return doc


@pytest.mark.parametrize(
    ("doc", "why"),
    [
        ([1, 2], r"plan\.json must be a JSON object, got 'list'"),
        (
            changed(["kind"], "sensitivity"),
            r"kind must be one of plan, disagg, simulation, got 'sensitivity'; export takes",
        ),
        (changed(["kind"], None), r"kind must be one of plan, disagg, simulation, got None"),
        (changed(["schema_version"], 2), r"schema_version must be 1, got 2; this version of fleetgrad"),
        (
            changed(["status"], "infeasible"),
            r"status must be one of verified, unverified, got 'infeasible'; it has no fleet",
        ),
        (changed(["status"], "refused"), r"got 'refused'; the simulator said no"),
        (
            changed(["design", "pools", 0, "replicas"], 0),
            r"design\.pools\[0\]\.replicas must be a whole number >= 1, got 0",
        ),
        (changed(["design", "pools", 0, "replicas"], 2.5), r"replicas must be a whole number >= 1, got 2\.5"),
        (changed(["design"], None), r"must be a whole plan document, got one where this is missing.*'design'"),
        (changed(["design", "pools", 0, "profile"], "other"), r"must be a whole plan document.*'other'"),
        (changed(["profiles", 0, "gpus_per_replica"], 3.0), r"gpus_per_replica 4 x 1 as its name says, got 3"),
    ],
)
def test_other_documents_are_refused(doc, why):
    with pytest.raises(ValueError, match=why):
        written(fleet_of_document(doc, file="plan.json"), "vllm")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"name": "Chat"}, "name must be a DNS-1123 label that begins with a letter.*got 'Chat'; lower-case"),
        ({"name": "9chat"}, "DNS-1123"),
        ({"name": "chat-"}, "DNS-1123"),
        ({"name": "a" * 57}, "at most 56 characters"),
        ({"image": "two words"}, "image must be a word without blanks"),
        ({"gpu_memory_utilization": 90.0}, r"in \(0, 1\], got 90\.0; 90 % is 0\.9"),
    ],
)
def test_other_options_are_refused(given, why):
    with pytest.raises(ValueError, match=why):
        ExportOptions(**given)


@pytest.mark.parametrize("text", ["h100", "h100=key", "=key=value", "h100=key=two words"])
def test_other_node_labels_are_refused(text):
    with pytest.raises(ValueError, match=r"node label must be GPU=KEY=VALUE.*such as h100-sxm="):
        node_label(text)


def test_an_unknown_format_lists_the_near_ones():
    with pytest.raises(ValueError, match=r"unknown format 'kubernets'; did you mean 'kubernetes'"):
        written("one pool", "kubernets")
