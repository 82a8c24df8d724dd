"""Kubernetes: a Deployment and a Service for each pool (apps/v1 and v1 of Kubernetes 1.25 and later)."""

from __future__ import annotations

from typing import Any

from optim.export_engine import (
    PORT,
    engine_of,
    flat,
    gpu_resource,
    image,
    node_selector,
    tell,
    token_env,
    vllm_arguments,
)
from optim.export_options import ExportOptions
from optim.export_plan import ExportFleet, ExportPool
from optim.export_text import ExportFile, Head, Origin, header, yaml_file

Object = dict[str, Any]

LOADING_S = 3600
"""Seconds that a replica may take to load its weights before it is started anew."""
_PROBE_S = 10
_NODE_GPUS = 8


def object_name(pool: ExportPool, options: ExportOptions) -> str:
    """Of a pool's Deployment and Service."""
    return f"{options.name}-{pool.label}"


def kubernetes_files(fleet: ExportFleet, options: ExportOptions) -> list[ExportFile]:
    """One file with all objects."""
    head, objects = Head("Kubernetes 1.25 and later (apps/v1 Deployment, v1 Service) and vLLM 0.9 and later"), []
    for pool in fleet.pools:
        objects += [_deployment(pool, fleet, options, head), _service(pool, options)]
    head.add(
        notes=[
            f"a replica may take {LOADING_S} s to load before it is started anew; rollouts need no spare GPU: one "
            "replica goes before its successor comes",
            "CPU and memory requests are not set: the plan does not know them",
            "a Service spreads connections evenly; the plan was made for the replica with the fewest requests",
            "no autoscaler is in this file: formats `autoscaling` and `keda` have the loads to scale at",
        ]
    )
    if fleet.disaggregated:
        head.add(
            notes=["requests need a proxy that sends them to a prefill, then to a decode engine: not in this file"]
        )
    elif len(fleet.pools) > 1:
        head.add(notes=["requests need a router that knows their length: format `routes` has its table"])
    return [yaml_file("kubernetes.yaml", header(fleet, head, options.command), objects)]


def _labels(pool: ExportPool, options: ExportOptions) -> dict[str, str]:
    return {"app.kubernetes.io/name": options.name, "app.kubernetes.io/component": pool.label}


def _deployment(pool: ExportPool, fleet: ExportFleet, options: ExportOptions, head: Head) -> Object:
    engine = engine_of(pool, fleet, options)
    arguments = vllm_arguments(engine)
    model = tell(head, engine, arguments)
    resource, labels = gpu_resource(pool), _labels(pool, options)
    head.add([Origin(f"{pool.label} {resource}", pool.gpus, f"gpus_per_replica of profile {pool.profile.name!r}")])
    if pool.gpus > _NODE_GPUS:
        head.add(notes=[f"{pool.label}: a pod gets all its {pool.gpus} GPUs from one node, which few nodes have"])
    env = token_env(options, head)
    if pool.role is not None:
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        env = [*env, {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address}]
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": _PROBE_S}
    container: Object = {
        "name": "vllm",
        "image": image(options, head, options.image, "--image", "an image with vLLM, such as vllm/vllm-openai:TAG"),
        "command": ["vllm", "serve"],
        "args": [model, *flat(arguments)],
        **({"env": env} if env else {}),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"limits": {resource: str(pool.gpus)}},
        "startupProbe": {**probe, "failureThreshold": LOADING_S // _PROBE_S},
        "readinessProbe": dict(probe),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": object_name(pool, options), "labels": dict(labels)},
        "spec": {
            "replicas": pool.replicas,
            "selector": {"matchLabels": dict(labels)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": {
                    "nodeSelector": node_selector(pool, options, head),
                    "containers": [container],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                },
            },
        },
    }


def _service(pool: ExportPool, options: ExportOptions) -> Object:
    labels = _labels(pool, options)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": object_name(pool, options), "labels": dict(labels)},
        "spec": {"selector": dict(labels), "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    }
