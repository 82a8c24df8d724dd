"""Benchmark files as the tools write them, made from requests whose times are known."""

import json
from dataclasses import dataclass, replace

import numpy as np

MS = 1e3
EPOCH_NS = 1_759_813_207_000_000_000


@dataclass(frozen=True)
class Sent:
    """Requests of a run, in order of their start; seconds."""

    start: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    ttft: np.ndarray
    e2e: np.ndarray
    queue: np.ndarray

    @property
    def duration(self):
        return float(np.max(self.start + self.e2e) - self.start[0] + self.queue[0])

    @property
    def tpot(self):
        return (self.e2e - self.ttft) / np.maximum(self.outputs - 1.0, 1.0)

    @property
    def second(self):
        """Which have a second token."""
        return self.outputs > 1

    @property
    def mean_itl(self):
        return float((self.e2e - self.ttft).sum() / (self.outputs - 1).sum())

    def changed(self, **columns):
        return replace(self, **columns)


def uniform(number, *, mean=(1024, 256), ttft=0.1, tpot=0.02, rate=10.0, seed=0):
    """Requests at a steady rate whose times are the same for all."""
    rng = np.random.default_rng(seed)
    inputs, outputs = (np.round(m * rng.uniform(0.8, 1.2, number)) for m in mean)
    times = np.full(number, ttft)
    return Sent(
        start=np.arange(number) / rate,
        inputs=inputs,
        outputs=outputs,
        ttft=times,
        e2e=times + tpot * (outputs - 1.0),
        queue=np.zeros(number),
    )


def simulated(profile, inputs, outputs, *, number, **load):
    """The requests of one simulated engine, from the first on."""
    import des
    from jaxsim.fleet import FleetDesign
    from jaxsim.workload import Workload

    design, workload = FleetDesign.of(profile, [1.0], [32768.0]), Workload.from_lengths(inputs, outputs)
    result = des.simulate(
        design, workload, num_requests=number, replications=1, warmup_fraction=0.0, keep="requests", **load
    )
    table = result.requests_table()
    order = np.argsort(table["sent_s"], kind="stable")
    sent, due = table["sent_s"][order], table["due_s"][order]
    return Sent(
        start=sent,
        inputs=table["input_tokens"][order].astype(float),
        outputs=table["output_tokens"][order].astype(float),
        ttft=table["first_s"][order] - sent,
        e2e=table["end_s"][order] - sent,
        queue=sent - due,
    )


def _latencies(sent):
    return {"ttft": sent.ttft, "tpot": sent.tpot[sent.second], "e2e": sent.e2e}


def vllm(sent, *, rate="inf", limit=None, detailed=True, model="org/model-8b", failed=0, **more):
    """`vllm bench serve --save-result`; failed requests come last, with zeros in the lists."""
    number = len(sent.start)
    doc = {
        "date": "20260102-101500",
        "backend": "openai",
        "model_id": model,
        "num_prompts": number + failed,
        "request_rate": rate,
        "burstiness": 1.0,
        "max_concurrency": limit,
        "duration": sent.duration,
        "completed": number,
        "failed": failed,
        "total_input_tokens": int(sent.inputs.sum()),
        "total_output_tokens": int(sent.outputs.sum()),
        "request_throughput": number / sent.duration,
        "mean_itl_ms": MS * sent.mean_itl,
    }
    for name, values in _latencies(sent).items():
        key = {"e2e": "e2el"}.get(name, name)
        doc |= {f"mean_{key}_ms": MS * values.mean(), f"median_{key}_ms": MS * np.median(values)}
        doc[f"p99_{key}_ms"] = MS * np.percentile(values, 99)
    if detailed:
        gaps = [[float(gap)] * int(n - 1) for gap, n in zip(sent.tpot, sent.outputs, strict=True)]
        nothing = [0.0] * failed
        doc |= {
            "input_lens": sent.inputs.astype(int).tolist() + [1] * failed,
            "output_lens": sent.outputs.astype(int).tolist() + [0] * failed,
            "ttfts": sent.ttft.tolist() + nothing,
            "itls": gaps + [[] for _ in range(failed)],
            "latencies": sent.e2e.tolist() + nothing,
            "start_times": (1000.0 + sent.start).tolist() + [1000.0 + sent.start[-1]] * failed,
            "queue_times": sent.queue.tolist() + nothing,
            "errors": [""] * number + ["HTTP 503"] * failed,
        }
    return doc | more


def sglang(sent, *, rate=float("inf"), limit=None, ratio=None, **more):
    """One line of `sglang.bench_serving --output-file`; infinity is a bare token."""
    number = len(sent.start)
    doc = {
        "backend": "sglang",
        "dataset_name": "random" if ratio is not None else "sharegpt",
        "request_rate": rate,
        "max_concurrency": limit,
        "random_range_ratio": ratio or 0.0,
        "duration": sent.duration,
        "completed": number,
        "total_input_tokens": int(sent.inputs.sum()),
        "total_output_tokens": int(sent.outputs.sum()),
        "input_throughput": sent.inputs.sum() / sent.duration,
        "mean_itl_ms": MS * sent.mean_itl,
        "concurrency": sent.e2e.sum() / sent.duration,
        "accept_length": None,
    }
    for name, values in _latencies(sent).items():
        key = {"e2e": "e2e_latency"}.get(name, name)
        doc |= {f"mean_{key}_ms": MS * values.mean(), f"p99_{key}_ms": MS * np.percentile(values, 99)}
    return doc | more


def _spread(values, scale=1.0):
    levels = {"p50": 50, "p90": 90, "p99": 99, "p999": 99.9}
    return {
        "mean": scale * float(values.mean()),
        "std_dev": scale * float(values.std()),
        "count": len(values),
        "percentiles": {name: scale * float(np.percentile(values, q)) for name, q in levels.items()},
    }


def guidellm(runs):
    """A report of `(sent, strategy)` pairs."""
    benchmarks = []
    for sent, strategy in runs:
        nothing = {"mean": 0.0, "std_dev": 0.0, "count": 0, "percentiles": {}}
        metrics = {
            "request_latency": _spread(sent.e2e),
            "time_to_first_token_ms": _spread(sent.ttft, MS),
            "inter_token_latency_ms": _spread(sent.tpot, MS) | {"mean": MS * sent.mean_itl},
            "time_per_output_token_ms": _spread(sent.e2e / sent.outputs, MS),
            "prompt_token_count": _spread(sent.inputs),
            "output_token_count": _spread(sent.outputs),
        }
        totals = {"successful": len(sent.start), "incomplete": 0, "errored": 0, "total": len(sent.start)}
        blocks = {name: {"successful": block, "errored": nothing} for name, block in metrics.items()}
        benchmarks.append(
            {
                "type_": "generative_benchmark",
                "config": {"strategy": strategy},
                "start_time": 0.0,
                "end_time": sent.duration,
                "metrics": {"request_totals": totals, **blocks},
            }
        )
    return {"metadata": {"version": 1}, "benchmarks": benchmarks}


def aiperf(sent, *, concurrency=None, rate=None):
    """`profile_export_aiperf.json`."""

    def block(values, unit, scale=1.0):
        levels = {f"p{q}": scale * float(np.percentile(values, q)) for q in (50, 90, 99)}
        return {"unit": unit, "avg": scale * float(values.mean()), "std": scale * float(values.std()), **levels}

    load = {key: value for key, value in (("concurrency", concurrency), ("request_rate", rate)) if value is not None}
    return {
        "schema_version": "1.0",
        "request_throughput": {"unit": "requests/sec", "avg": len(sent.start) / sent.duration},
        "request_count": {"unit": "requests", "avg": float(len(sent.start))},
        "time_to_first_token": block(sent.ttft, "ms", MS),
        "inter_token_latency": block(sent.tpot[sent.second], "ms", MS),
        "request_latency": block(sent.e2e, "ms", MS),
        "input_sequence_length": block(sent.inputs, "tokens"),
        "output_sequence_length": block(sent.outputs, "tokens"),
        "input_config": {"loadgen": load, "endpoint": {"model_names": ["org/model-8b"]}},
    }


def genai_perf(sent):
    """`profile_export_genai_perf.csv`, with thousands commas in quotes."""
    rows = {
        "Time To First Token (ms)": MS * sent.ttft,
        "Request Latency (ms)": MS * sent.e2e,
        "Inter Token Latency (ms)": MS * sent.tpot[sent.second],
        "Output Sequence Length (tokens)": sent.outputs,
        "Input Sequence Length (tokens)": sent.inputs,
    }
    lines = ["Metric,avg,min,max,p99,p50"]
    for name, values in rows.items():
        figures = (values.mean(), values.min(), values.max(), *np.percentile(values, (99, 50)))
        lines.append(f"{name}," + ",".join(f'"{value:,.6f}"' for value in figures))
    lines += ["", "Metric,Value", f"Request Throughput (per sec),{len(sent.start) / sent.duration:.9f}"]
    return "\n".join([*lines, f"Request Count (count),{len(sent.start)}.00", ""])


def aiperf_records(sent):
    """`profile_export.jsonl`: one line a request."""
    lines = []
    for row in range(len(sent.start)):
        start = EPOCH_NS + round(1e9 * float(sent.start[row]))
        figures = {
            "input_sequence_length": (int(sent.inputs[row]), "tokens"),
            "output_sequence_length": (int(sent.outputs[row]), "tokens"),
            "time_to_first_token": (MS * sent.ttft[row], "ms"),
            "request_latency": (MS * sent.e2e[row], "ms"),
            "inter_token_latency": (MS * sent.tpot[row], "ms"),
        }
        record = {
            "metadata": {
                "request_start_ns": start,
                "request_end_ns": start + round(1e9 * float(sent.e2e[row])),
                "benchmark_phase": "profiling",
                "was_cancelled": False,
            },
            "metrics": {name: {"value": value, "unit": unit} for name, (value, unit) in figures.items()},
            "error": None,
        }
        lines.append(json.dumps(record))
    return "\n".join(lines) + "\n"


EDGES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 7.5, 30.0)


def scrape(sent, *, upto, since=0, engine="0", model="org/model-8b", running=0, waiting=0, time_ms=None, old=False):
    """What a vLLM server that served the first `upto` requests answers at /metrics; `old` with the older names."""
    labels = f'engine="{engine}",model_name="{model}"'
    stamp = "" if time_ms is None else f" {time_ms}"
    lines = []

    def sample(name, value, more=""):
        lines.append(f"vllm:{name}{{{more}{labels}}} {value!r}{stamp}")

    def histogram(name, values):
        lines.append(f"# TYPE vllm:{name} histogram")
        for edge in (*EDGES, float("inf")):
            text = "+Inf" if edge == float("inf") else repr(edge)
            sample(f"{name}_bucket", float((values <= edge).sum()), f'le="{text}",')
        sample(f"{name}_sum", float(values.sum()))
        sample(f"{name}_count", float(len(values)))

    done = slice(since, upto)
    gaps = np.repeat(sent.tpot[done], np.maximum(sent.outputs[done] - 1, 0).astype(int))
    histogram("time_to_first_token_seconds", sent.ttft[done])
    histogram("time_per_output_token_seconds" if old else "inter_token_latency_seconds", gaps)
    histogram("e2e_request_latency_seconds", sent.e2e[done])
    histogram("request_prompt_tokens", sent.inputs[done])
    histogram("request_generation_tokens", sent.outputs[done])
    if not old:
        histogram("request_time_per_output_token_seconds", sent.tpot[done][sent.second[done]])
    sample("request_success_total", float(upto - since), 'finished_reason="length",')
    sample("num_requests_running", float(running))
    sample("num_requests_waiting", float(waiting))
    sample("gpu_cache_usage_perc" if old else "kv_cache_usage_perc", 0.41)
    sample("num_preemptions_total", 0.0)
    return "\n".join(lines) + "\n"


def write(path, value):
    """Text as it is; lists of objects as JSON lines; an object as JSON, indented as the tools do."""
    if isinstance(value, list):
        value = "".join(json.dumps(each) + "\n" for each in value)
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1), encoding="utf-8")
    return path
