"""KEDA: a ScaledObject for each pool's Deployment (keda.sh/v1alpha1, Prometheus trigger of KEDA 2.x)."""

from __future__ import annotations

from typing import Any

from optim.export_autoscaling import NOTES, PoolLevels
from optim.export_kubernetes import object_name
from optim.export_options import ExportOptions, placeholder
from optim.export_plan import ExportFleet, ExportPool
from optim.export_text import ExportFile, Head, Origin, header, yaml_file

LEAST_REPLICAS = 1
_MEAN_OVER = "1m"


def keda_file(
    fleet: ExportFleet, levels: tuple[PoolLevels, ...], options: ExportOptions, *, headroom: float, given: bool
) -> ExportFile:
    """One file with all ScaledObjects.

    Raises:
        ValueError: a pool whose SLO is met at no load, or at every one: there is no threshold.
    """
    head = Head("KEDA 2.x (keda.sh/v1alpha1 ScaledObject, prometheus trigger) and the metrics of vLLM")
    server = options.prometheus or placeholder("prometheus address")
    head.filled(
        server, "address of the Prometheus server that scrapes the engines, such as http://HOST:9090 (--prometheus)"
    )
    if options.prometheus is not None:
        head.add([Origin("serverAddress", server, "--prometheus")])
    objects = [_scaled(pool, found, options, server, head) for pool, found in zip(fleet.pools, levels, strict=True)]
    head.add(
        [Origin("headroom", headroom, "--headroom" if given else "default")],
        [
            f"assumed: the plan's rate is the peak, so its replicas are the most; the least is {LEAST_REPLICAS}",
            "the metrics are summed over the pods whose names begin with the Deployment's: scraping must set the label "
            "`pod`, as the Prometheus operator's monitors do",
            "running and waiting requests are counted: in a pool that is too small they wait",
            "the threshold is analytical: format `autoscaling` says how it was found and how far it was corrected",
            "KEDA sets ceil(query / threshold) replicas; scaling in waits for the autoscaler's five minutes",
            *NOTES[2:4],
        ],
    )
    return yaml_file("keda.yaml", header(fleet, head, options.command), objects)


def _scaled(pool: ExportPool, found: PoolLevels, options: ExportOptions, server: str, head: Head) -> dict[str, Any]:
    name, rule = object_name(pool, options), found.rule
    if rule is None:
        raise ValueError(
            f"{pool.label} must have a load at which its SLO is just met, got none: it cannot be scaled by"
        )
    threshold, offset = f"{rule.per_replica:.4g}", f"{rule.offset:.4g}"
    head.add(
        [
            Origin(f"{pool.label} maxReplicaCount", pool.replicas, f"{pool.place}.replicas"),
            Origin(
                f"{pool.label} threshold", threshold, "requests_per_replica of the scale rule (format `autoscaling`)"
            ),
            Origin(f"{pool.label} added to the query", offset, "requests_offset of the scale rule"),
        ]
    )
    pods = f'{{pod=~"{name}-.+"}}[{_MEAN_OVER}]'
    counts = [f"sum(avg_over_time(vllm:num_requests_{state}{pods}))" for state in ("running", "waiting")]
    query = " + ".join([*counts, offset])
    metadata = {"serverAddress": server, "query": query, "threshold": threshold}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicaCount": LEAST_REPLICAS,
            "maxReplicaCount": pool.replicas,
            "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}],
        },
    }
