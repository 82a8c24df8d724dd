"""Benchmark results in the files that tools write: what each holds is decided by its contents, never by its name.

Read are ``vllm bench serve`` JSON, sglang's ``bench_serving`` JSON lines, GuideLLM reports, GenAI-Perf CSV, GenAI-Perf
and AIPerf JSON summaries, AIPerf's request records, and Prometheus scrapes, two of a server (`read_served`: of several
servers at once, SGLang's and TensorRT-LLM's too). A figure that is missing, of a wrong type or out of its domain is a
refusal with its place; what a reader decides is in the run's notes.
"""

from jaxsim.bench_files._read import (
    FORMATS,
    MAPPABLE,
    Kind,
    broken_document,
    read_benchmark,
    read_scrapes,
    read_served,
    recognise,
    with_load,
)

__all__ = [
    "FORMATS",
    "MAPPABLE",
    "Kind",
    "broken_document",
    "read_benchmark",
    "read_scrapes",
    "read_served",
    "recognise",
    "with_load",
]
