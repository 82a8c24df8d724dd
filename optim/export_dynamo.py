"""NVIDIA Dynamo: a DynamoGraphDeployment for each pool, or one with prefill and decode workers.

Format: nvidia.com/v1beta1, as the examples of Dynamo 1.3 write it (examples/backends/vllm/deploy/v1beta1): components
with a type (frontend, worker, prefill, decode) and a pod template whose container is called main.
"""

from __future__ import annotations

from typing import Any

from optim.export_engine import engine_of, flat, gpu_resource, image, node_selector, tell, token_env, vllm_arguments
from optim.export_options import ExportOptions
from optim.export_plan import ExportFleet, ExportPool
from optim.export_text import ExportFile, Head, Origin, header, yaml_file

Object = dict[str, Any]

API = "nvidia.com/v1beta1"
_FRONTENDS = 1


def dynamo_files(fleet: ExportFleet, options: ExportOptions) -> list[ExportFile]:
    """One file with all graphs."""
    head = Head(f"DynamoGraphDeployment {API}, as in Dynamo 1.3")
    if fleet.disaggregated:
        graphs = [_graph(options.name, fleet.pools, fleet, options, head)]
    else:
        graphs = [_graph(f"{options.name}-{pool.label}", (pool,), fleet, options, head) for pool in fleet.pools]
        if len(fleet.pools) > 1:
            head.add(notes=["each pool is a graph with a frontend of its own; format `routes` has the table by length"])
    head.add(
        [Origin("frontend replicas", _FRONTENDS, "not in the plan: one")],
        notes=[
            "CPU and memory requests are not set: the plan does not know them",
            "Dynamo's planner is not among the components: the replicas are the plan's",
        ],
    )
    return [yaml_file("dynamo.yaml", header(fleet, head, options.command), graphs)]


def _graph(name: str, pools: tuple[ExportPool, ...], fleet: ExportFleet, options: ExportOptions, head: Head) -> Object:
    main = _main(options, head)
    frontend = {
        "name": "frontend",
        "type": "frontend",
        "replicas": _FRONTENDS,
        "podTemplate": {"spec": {"containers": [main]}},
    }
    workers = [_worker(pool, fleet, options, head) for pool in pools]
    return {
        "apiVersion": API,
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"components": [frontend, *workers]},
    }


def _main(options: ExportOptions, head: Head) -> Object:
    hint = "Dynamo's vLLM runtime, such as nvcr.io/nvidia/ai-dynamo/vllm-runtime:TAG"
    env = token_env(options, head)
    main: Object = {"name": "main", "image": image(options, head, options.dynamo_image, "--dynamo-image", hint)}
    return main | ({"env": env} if env else {})


def _worker(pool: ExportPool, fleet: ExportFleet, options: ExportOptions, head: Head) -> Object:
    engine = engine_of(pool, fleet, options)
    arguments = vllm_arguments(engine, port=False, kv_role="kv_both")
    model = tell(head, engine, arguments)
    resource = gpu_resource(pool)
    head.add([Origin(f"{pool.label} {resource}", pool.gpus, f"gpus_per_replica of profile {pool.profile.name!r}")])
    role = [] if pool.role is None else ["--disaggregation-mode", pool.role]
    main = {
        **_main(options, head),
        "command": ["python3", "-m", "dynamo.vllm"],
        "args": ["--model", model, *role, *flat(arguments)],
        "resources": {"limits": {resource: str(pool.gpus)}},
    }
    kind = pool.role or "worker"
    spec = {"nodeSelector": node_selector(pool, options, head), "containers": [main]}
    return {"name": kind, "type": kind, "replicas": pool.replicas, "podTemplate": {"spec": spec}}
