"""llm-d: values of its chart llm-d-modelservice, one release for each pool, or one for prefill and decode together.

Format: values.yaml, values.schema.json and templates of chart llm-d-modelservice v0.4.1 (llm-d-incubation). The chart
itself writes the model, the port, --tensor-parallel-size and the GPUs of a pod, from `modelArtifacts`, `routing` and
`parallelism`; so they are no arguments here. A fleet without disaggregation has decode pods alone, which serve whole
requests, and no sidecar.
"""

from __future__ import annotations

from typing import Any

from jaxsim._checks import invalid
from optim.export_engine import (
    PORT,
    Engine,
    engine_of,
    flat,
    gpu_resource,
    image,
    node_selector,
    tell,
    vllm_arguments,
)
from optim.export_options import ExportOptions
from optim.export_plan import ExportFleet, ExportPool
from optim.export_text import ExportFile, Head, Origin, header, yaml_file

Values = dict[str, Any]

CHART = "chart llm-d-modelservice v0.4.1"
_MAX_NAME = 55
_TYPES = {"nvidia.com/gpu": "nvidia", "amd.com/gpu": "amd"}
_SIDE_CHANNEL = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def llm_d_files(fleet: ExportFleet, options: ExportOptions) -> list[ExportFile]:
    """A values file for each release.

    Raises:
        ValueError: a name that is too long; pipeline parallelism, which the chart does not count GPUs for; two pools of
            a release that differ in model or make of GPU.
    """
    if fleet.disaggregated:
        return [_release(options.name, fleet.pools, fleet, options)]
    return [_release(f"{options.name}-{pool.label}", (pool,), fleet, options) for pool in fleet.pools]


def _release(name: str, pools: tuple[ExportPool, ...], fleet: ExportFleet, options: ExportOptions) -> ExportFile:
    if len(name) > _MAX_NAME:
        raise invalid(
            "llm-d release", name, f"at most {_MAX_NAME} characters", f"{CHART} cuts longer names: shorten --name"
        )
    head = Head(f"{CHART} (llm-d-incubation), vLLM 0.9 and later; helm release {name}")
    engines = [engine_of(pool, fleet, options) for pool in pools]
    for what, found in (
        ("model", {engine.model for engine in engines}),
        ("make of GPU", {gpu_resource(pool) for pool in pools}),
    ):
        if len(found) > 1:
            raise ValueError(f"llm-d must be given pools of one {what} in a release, got {', '.join(sorted(found))}")
    roles = {pool.role or "decode": _role(engine, options, head) for pool, engine in zip(pools, engines, strict=True)}
    model = engines[0].model
    artifacts: Values = {
        "name": model,
        "uri": f"hf://{model}",
        "size": "0",
        "labels": {"llm-d.ai/inferenceServing": "true", "llm-d.ai/model": name},
    }
    if options.hf_token_secret is not None:
        artifacts["authSecretName"] = options.hf_token_secret
        head.add([Origin("authSecretName", options.hf_token_secret, "--hf-token-secret")])
    else:
        head.add(notes=["no Hugging Face token is set: gated models need --hf-token-secret"])
    values: Values = {
        "fullnameOverride": name,
        "multinode": False,
        "modelArtifacts": artifacts,
        "accelerator": {"type": _TYPES[gpu_resource(pools[0])]},
        "routing": {"servicePort": PORT, "proxy": {"enabled": fleet.disaggregated}},
        "decode": roles["decode"],
        "prefill": roles.get("prefill", {"create": False}),
    }
    head.add(
        notes=[
            "modelArtifacts.size 0 sets no limit on the volume that the weights are loaded to",
            "CPU and memory requests are not set: the plan does not know them",
            "the gateway, the InferencePool and its scheduler are other charts; label llm-d.ai/model marks the pods",
        ]
    )
    if not fleet.disaggregated:
        head.add(notes=["decode pods serve whole requests here; the routing sidecar is off"])
        if len(fleet.pools) > 1:
            head.add(notes=["requests need a router that knows their length: format `routes` has its table"])
    return yaml_file(f"llm-d-{name}.yaml", header(fleet, head, options.command), [values])


def _role(engine: Engine, options: ExportOptions, head: Head) -> Values:
    pool = engine.pool
    if engine.pp > 1:
        raise ValueError(
            f"llm-d must be given replicas without pipeline parallelism, got pp {engine.pp} in {pool.label}; {CHART} "
            "counts tensor-parallel GPUs only"
        )
    arguments = vllm_arguments(engine, port=False, parallel=False)
    tell(head, engine, arguments)
    head.add([Origin(f"{pool.label} parallelism.tensor", engine.tp, engine.layout_source)])
    (key, value), *_ = node_selector(pool, options, head).items()
    container: Values = {
        "name": "vllm",
        "image": image(
            options, head, options.image, "--image", "an image with vLLM, such as ghcr.io/llm-d/llm-d-cuda:TAG"
        ),
        "modelCommand": "vllmServe",
        "args": flat(arguments),
        "mountModelVolume": True,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if pool.role is not None:
        container["env"] = [dict(_SIDE_CHANNEL)]
    return {
        "create": True,
        "replicas": pool.replicas,
        "parallelism": {"tensor": engine.tp, "data": 1, "dataLocal": 1, "workers": 1},
        "acceleratorTypes": {"labelKey": key, "labelValues": [value]},
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
