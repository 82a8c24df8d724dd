"""What servers call their metrics: vLLM, SGLang and TensorRT-LLM; of each, the newer name first.

Sources: vLLM, ``vllm/v1/metrics/loggers.py``; SGLang, ``sglang/srt/metrics/collector.py``; TensorRT-LLM,
``tensorrt_llm/metrics/collector.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxsim.bench_files import _scrapes as vllm

Names = tuple[str, ...]


class ServerNames(NamedTuple):
    """Metrics of one server's /metrics; () where it has none of the kind.

    Counters but for `running`, `waiting` and `kv_usage`, which are gauges; `ttft`, `tpot`, `itl`, `e2e`, `inputs` and
    `outputs` are histograms. `tpot` is over requests, `itl` over all gaps between tokens; `success` counts requests
    that ended; `cached` and `looked_up` are prompt tokens that a prefix cache had, and was asked for.
    """

    tool: str
    prefix: str
    ttft: Names
    tpot: Names
    itl: Names
    e2e: Names
    inputs: Names
    outputs: Names
    prompt_total: Names
    generation_total: Names
    success: Names
    preemptions: Names
    running: Names
    waiting: Names
    kv_usage: Names
    cached: Names
    looked_up: Names


VLLM = ServerNames(
    tool="vLLM",
    prefix="vllm:",
    ttft=vllm.TTFT,
    tpot=vllm.TPOT,
    itl=vllm.ITL,
    e2e=vllm.E2E,
    inputs=vllm.INPUT,
    outputs=vllm.OUTPUT,
    prompt_total=vllm.PROMPT_TOTAL,
    generation_total=vllm.GENERATION_TOTAL,
    success=vllm.SUCCESS,
    preemptions=vllm.PREEMPTIONS,
    running=vllm.RUNNING,
    waiting=vllm.WAITING,
    kv_usage=vllm.KV_USAGE,
    cached=("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total"),
    looked_up=("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries_total"),
)

SGLANG = ServerNames(
    tool="SGLang",
    prefix="sglang:",
    ttft=("sglang:time_to_first_token_seconds",),
    tpot=(),
    itl=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    e2e=("sglang:e2e_request_latency_seconds",),
    inputs=("sglang:prompt_tokens_histogram",),
    outputs=("sglang:generation_tokens_histogram",),
    prompt_total=("sglang:prompt_tokens_total",),
    generation_total=("sglang:generation_tokens_total",),
    success=("sglang:num_requests_total",),
    preemptions=(),
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    kv_usage=("sglang:token_usage",),
    cached=("sglang:cached_tokens_total",),
    looked_up=("sglang:prompt_tokens_total",),
)

TENSORRT_LLM = ServerNames(
    tool="TensorRT-LLM",
    prefix="trtllm_",
    ttft=("trtllm_time_to_first_token_seconds",),
    tpot=("trtllm_time_per_output_token_seconds",),
    itl=(),
    e2e=("trtllm_e2e_request_latency_seconds",),
    inputs=(),
    outputs=(),
    prompt_total=("trtllm_prompt_tokens_total",),
    generation_total=("trtllm_generation_tokens_total",),
    success=("trtllm_request_success_total",),
    preemptions=(),
    running=("trtllm_num_requests_running",),
    waiting=("trtllm_num_requests_waiting",),
    kv_usage=("trtllm_kv_cache_utilization",),
    cached=(),
    looked_up=(),
)

SERVERS = (VLLM, SGLANG, TENSORRT_LLM)
