"""Kubernetes objects, Dynamo graphs and llm-d values: valid, and the plan."""

import json

import jsonschema
import pytest
import yaml
from exported import deployed
from reading_exports import DYNAMO, GIVEN, KINDS, VLLM, check_vllm, fleet_with, parsed, written

import jaxsim
from optim.export_options import ExportOptions

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
QUANTITY = r"[1-9][0-9]*"
NAME = {"type": "string", "pattern": f"^{LABEL}$"}
LABELS = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {"type": "string", "pattern": r"^[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?$"},
    "propertyNames": {"pattern": r"^([-a-z0-9.]+/)?[A-Za-z0-9][-\w.]{0,62}$"},
}
GPUS = {
    "type": "object",
    "additionalProperties": {"type": "string", "pattern": f"^{QUANTITY}$"},
    "propertyNames": {"enum": ["nvidia.com/gpu", "amd.com/gpu"]},
}
CONTAINER = {
    "type": "object",
    "required": ["name", "image"],
    "additionalProperties": False,
    "properties": {
        "name": NAME,
        "image": {"type": "string", "minLength": 1},
        "command": {"type": "array", "items": {"type": "string"}},
        "args": {"type": "array", "items": {"type": "string"}},
        "env": {"type": "array", "items": {"type": "object", "required": ["name", "valueFrom"]}},
        "ports": {
            "type": "array",
            "items": {
                "properties": {"name": NAME, "containerPort": {"type": "integer", "minimum": 1, "maximum": 65535}}
            },
        },
        "resources": {"properties": {"limits": GPUS}, "additionalProperties": False},
        "startupProbe": {"required": ["httpGet", "periodSeconds", "failureThreshold"]},
        "readinessProbe": {"required": ["httpGet"]},
        "volumeMounts": {"items": {"required": ["name", "mountPath"]}},
    },
}
POD = {
    "type": "object",
    "required": ["containers"],
    "additionalProperties": False,
    "properties": {
        "nodeSelector": LABELS,
        "containers": {"type": "array", "minItems": 1, "items": CONTAINER},
        "volumes": {"items": {"required": ["name", "emptyDir"]}},
    },
}
METADATA = {"type": "object", "required": ["name"], "properties": {"name": NAME, "labels": LABELS}}
OBJECTS = {
    "Deployment": {
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": "apps/v1"},
            "kind": {},
            "metadata": METADATA,
            "spec": {
                "required": ["replicas", "selector", "template"],
                "additionalProperties": False,
                "properties": {
                    "replicas": {"type": "integer", "minimum": 1},
                    "selector": {"required": ["matchLabels"], "properties": {"matchLabels": LABELS}},
                    "strategy": {"properties": {"type": {"const": "RollingUpdate"}}},
                    "template": {"required": ["metadata", "spec"], "properties": {"spec": POD}},
                },
            },
        },
    },
    "Service": {
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": "v1"},
            "metadata": METADATA,
            "spec": {
                "required": ["selector", "ports"],
                "properties": {
                    "selector": LABELS,
                    "ports": {"items": {"required": ["port"], "properties": {"port": {"type": "integer"}}}},
                },
            },
        },
    },
    "DynamoGraphDeployment": {
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": "nvidia.com/v1beta1"},
            "kind": {},
            "metadata": METADATA,
            "spec": {
                "required": ["components"],
                "additionalProperties": False,
                "properties": {
                    "components": {
                        "items": {
                            "required": ["name", "type", "replicas", "podTemplate"],
                            "additionalProperties": False,
                            "properties": {
                                "name": NAME,
                                "type": {"enum": ["frontend", "worker", "prefill", "decode", "planner", "epp"]},
                                "replicas": {"type": "integer", "minimum": 1},
                                "podTemplate": {"required": ["spec"], "properties": {"spec": POD}},
                            },
                        }
                    }
                },
            },
        },
    },
}
"""What these kinds demand, by the API references of Kubernetes and the v1beta1 examples of Dynamo 1.3."""


def objects_of(text):
    found = list(yaml.safe_load_all(text))
    for each in found:
        jsonschema.validate(each, OBJECTS[each["kind"]])
    return found


@pytest.mark.parametrize("options", [GIVEN, ExportOptions()], ids=["given", "placeholders"])
@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_objects_are_the_plan(kind, options):
    (text,) = written(kind, "kubernetes", options).values()
    assert "&id" not in text
    found = objects_of(text)
    deployments = {o["metadata"]["name"]: o for o in found if o["kind"] == "Deployment"}
    services = {o["metadata"]["name"]: o for o in found if o["kind"] == "Service"}
    names = {label: f"{options.name}-{label}" for label in deployed(kind)}
    assert set(deployments) == set(services) == set(names.values())
    selectors = []
    for label, (replicas, gpus, _) in deployed(kind).items():
        spec, service = deployments[names[label]]["spec"], services[names[label]]["spec"]
        assert spec["replicas"] == replicas
        pod = spec["template"]
        assert spec["selector"]["matchLabels"] == pod["metadata"]["labels"] == service["selector"]
        selectors.append(service["selector"])
        (container,) = pod["spec"]["containers"]
        assert container["resources"] == {"limits": {"nvidia.com/gpu": str(gpus)}}
        assert service["ports"][0]["targetPort"] == container["ports"][0]["name"]
        found_flags = parsed(VLLM, container["args"])
        assert container["command"] == ["vllm", "serve"] and container["ports"][0]["containerPort"] == found_flags.port
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
        environment = {e["name"] for e in container.get("env", [])}
        assert ("VLLM_NIXL_SIDE_CHANNEL_HOST" in environment) == (kind == "disaggregated")
        assert ("HF_TOKEN" in environment) == (options is GIVEN)
        if options is GIVEN:
            check_vllm(found_flags, label, kind)
            assert container["image"] == GIVEN.image
            assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "SOME-GPU"}
    assert len({json.dumps(s) for s in selectors}) == len(selectors)


def test_gpus_of_amd_are_another_resource():
    (text,) = written(fleet_with(jaxsim.profile("llama-3.1-8b@mi300x:tp1")), "kubernetes").values()
    deployment, _ = objects_of(text)
    assert deployment["spec"]["template"]["spec"]["containers"][0]["resources"] == {"limits": {"amd.com/gpu": "1"}}


# --- Dynamo and llm-d


@pytest.mark.parametrize("kind", KINDS)
def test_dynamo_graphs_are_the_plan(kind):
    (text,) = written(kind, "dynamo", GIVEN).values()
    graphs = objects_of(text)
    pools = deployed(kind)
    assert [g["metadata"]["name"] for g in graphs] == (
        ["chat"] if kind == "disaggregated" else [f"chat-{label}" for label in pools]
    )
    workers = [c for graph in graphs for c in graph["spec"]["components"] if c["type"] != "frontend"]
    assert [c["type"] for g in graphs for c in g["spec"]["components"]].count("frontend") == len(graphs)
    for worker, (label, (replicas, gpus, _)) in zip(workers, pools.items(), strict=True):
        assert worker["replicas"] == replicas
        assert worker["type"] == (label if kind == "disaggregated" else "worker")
        (main,) = worker["podTemplate"]["spec"]["containers"]
        assert main["name"] == "main" and main["resources"]["limits"] == {"nvidia.com/gpu": str(gpus)}
        found = parsed(DYNAMO, main["args"])
        transfer, role = check_vllm(found, label, kind)
        assert found.disaggregation_mode == (label if role else None)
        assert transfer is None or transfer["kv_role"] == "kv_both"


LLM_D = {
    "additionalProperties": False,
    "properties": {
        "fullnameOverride": {"type": "string"},
        "multinode": {"type": "boolean"},
        "modelArtifacts": {
            "additionalProperties": False,
            "properties": {
                "name": {},
                "uri": {},
                "size": {"type": "string"},
                "authSecretName": {"type": "string"},
                "mountPath": {"type": "string"},
                "labels": {
                    "additionalProperties": False,
                    "properties": {
                        "llm-d.ai/inferenceServing": {"type": "string"},
                        "llm-d.ai/model": {"type": "string"},
                    },
                },
            },
        },
        "accelerator": {"additionalProperties": False, "properties": {"type": {"type": "string"}}},
        "routing": {
            "additionalProperties": False,
            "properties": {"servicePort": {}, "proxy": {"properties": {"enabled": {"type": "boolean"}}}},
        },
        **{
            role: {
                "properties": {
                    "create": {"type": "boolean"},
                    "replicas": {"type": "integer"},
                    "acceleratorTypes": {
                        "additionalProperties": False,
                        "properties": {
                            "labelKey": {"type": "string"},
                            "labelValues": {"type": "array", "items": {"type": "string"}},
                        },
                    },
                    "containers": {"type": "array", "items": {"type": "object"}},
                    "volumes": {"type": "array", "items": {"type": "object"}},
                }
            }
            for role in ("prefill", "decode")
        },
    },
}
"""The part of values.schema.json of chart llm-d-modelservice v0.4 that is used: names and types."""


def chart_command(values, role):
    """What the chart's template writes for modelCommand vllmServe: model, port, layout, served name, then the args."""
    section, artifacts, routing = values[role], values["modelArtifacts"], values["routing"]
    sidecar = role == "decode" and routing["proxy"]["enabled"]
    words = [artifacts["uri"].removeprefix("hf://"), "--port", str(8200 if sidecar else routing["servicePort"])]
    tensor = section["parallelism"]["tensor"]
    words += ["--tensor-parallel-size", str(tensor)] if tensor > 1 else []
    words += ["--served-model-name", artifacts["name"]]
    (container,) = section["containers"]
    assert container["modelCommand"] == "vllmServe"
    return [*words, *container["args"]], tensor * section["parallelism"]["dataLocal"]


@pytest.mark.parametrize("kind", KINDS)
def test_llm_d_values_are_the_plan(kind):
    files, pools = written(kind, "llm-d", GIVEN), deployed(kind)
    releases = ["chat"] if kind == "disaggregated" else [f"chat-{label}" for label in pools]
    assert list(files) == [f"llm-d-{name}.yaml" for name in releases]
    for name in releases:
        values = yaml.safe_load(files[f"llm-d-{name}.yaml"])
        jsonschema.validate(values, LLM_D)
        assert values["fullnameOverride"] == name and len(name) <= 55  # the chart cuts longer names
        labels = [label for label in pools if name in ("chat", f"chat-{label}")]
        assert values["prefill"]["create"] == values["routing"]["proxy"]["enabled"] == (kind == "disaggregated")
        for label in labels:
            role = "prefill" if label == "prefill" else "decode"
            replicas, gpus, _ = pools[label]
            assert values[role]["replicas"] == replicas
            words, counted = chart_command(values, role)
            assert counted == gpus
            check_vllm(parsed(VLLM, words), label, kind)


def test_llm_d_refuses_what_its_chart_does_not_count():
    with pytest.raises(ValueError, match=r"must be given replicas without pipeline parallelism, got pp 2 in pool-0"):
        written(fleet_with(jaxsim.profile("llama-3.1-8b@h100-sxm:tp2:pp2")), "llm-d")
