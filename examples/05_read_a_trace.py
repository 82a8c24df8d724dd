"""Read a request trace of one's own, see what the reader decided, and what a planner should know of it."""

import csv
import tempfile
from pathlib import Path

import numpy as np

import jaxsim
from jaxsim.trace_stats import trace_statistics
from jaxsim.traces import read_trace

rng = np.random.default_rng(0)
times = np.cumsum(rng.exponential(0.1, size=2000))
prompts, outputs = rng.integers(50, 4000, size=2000), rng.integers(1, 600, size=2000)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "mine.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["when", "prompt", "answer"])
        writer.writerows(zip(times.round(6), prompts, outputs, strict=True))

    try:
        read_trace(path)
    except ValueError as error:
        print(f"unknown names are an error:\n  {error}\n")

    columns = {"input_tokens": "prompt", "output_tokens": "answer", "timestamp": "when"}
    trace = read_trace(path, columns=columns, time_unit="s")
    workload = jaxsim.Workload.from_trace(path, columns=columns, time_unit="s")

for note in trace.notes:
    print(f"note: {note}")
statistics = trace_statistics(trace)
print(f"{statistics.num_requests} requests at {statistics.mean_rate:.2f} per second")
print(f"squared coefficient of variation of the gaps: {statistics.interarrival_cv2:.2f} (1 is Poisson)")
print(f"input P50 {statistics.input_tokens.p50:.0f}, P99 {statistics.input_tokens.p99:.0f} tokens")
print(f"{workload.share_above(4096):.1%} of the requests have more than 4,096 tokens")
