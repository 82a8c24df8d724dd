"""Names of the formats that a plan is exported in; this imports nothing, so that `--help` needs no JAX."""

from __future__ import annotations

FORMATS = {
    "vllm": "a script for each pool that starts a replica with `vllm serve`",
    "sglang": "the same with SGLang's server",
    "tensorrt-llm": "the same with `trtllm-serve`",
    "kubernetes": "a Deployment and a Service for each pool",
    "llm-d": "values of chart llm-d-modelservice",
    "dynamo": "NVIDIA Dynamo's DynamoGraphDeployment",
    "routes": "the routing table as JSON, with its schema",
    "autoscaling": "loads at which the SLO is just met, as JSON",
    "keda": "the same as ScaledObjects of KEDA",
}
ALL = "all"
