"""From a slider to its figures: milliseconds of one move of the page of `fleetgrad serve`, through HTTP.

Run ``python benchmarks/serve.py`` (a minute or two, most of which compiles; ``--json`` for one object a line,
``--moves`` for how many). A server is started as the command line starts it, on a free port and an empty folder; then
one client moves rate, objectives, threshold, replicas and price, each move a request that is answered before the next,
as the page does. For each number of pools: the time until the first answer, which is what "compiling" on the page
lasts, and the moves. The time is of the answer as the client has read it, without drawing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from _report import Row, print_json, print_table, progress

TARGET_MS = 100.0
PROFILE = "llama-3.1-70b@h100-sxm:tp4:fp8:vllm"
START = (
    "import sys; sys.argv = ['fleetgrad', 'serve', '--port', '0', '--data-dir', {!r}]; import optim.cli as c; c.main()"
)


@contextmanager
def server() -> Iterator[str]:
    """The address of a server of its own."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", START.format(folder)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            if "http://" not in line:
                raise SystemExit(f"the server did not start: {process.stderr.read()}")
            try:
                yield line.split()[-1]
            finally:
                process.terminate()
                process.wait()


def ask(url: str, question: dict[str, Any], what: str = "answer") -> dict[str, Any]:
    """One answer of the page's own request."""
    body = json.dumps(question).encode()
    with urlopen(Request(f"{url}api/{what}", body, {"content-type": "application/json"}), timeout=60) as found:
        answer: dict[str, Any] = json.load(found)
    return answer


def moved(at: int, pools: int) -> dict[str, Any]:
    """The state of the page after so many moves; neighbours differ in one slider or all."""
    wave = 0.5 + 0.5 * np.sin(0.37 * at)
    fleet = [{"profile": PROFILE, "replicas": 4 + (at + 3 * p) % 7} for p in range(pools)]
    for p in range(pools - 1):
        fleet[p]["upper_tokens"] = float(1000 * (p + 1) + (17 * at) % 900)
    return {
        "workload": {"name": "azure-conversation"},
        "rate_rps": 20.0 + 40.0 * wave,
        "ttft_p99_ms": 500.0 + 10.0 * (at % 50),
        "tpot_p99_ms": 50.0,
        "max_context": 16384.0,
        "pools": fleet,
        "usd_per_gpu_hour": {PROFILE: 2.0 + 0.01 * (at % 100)},
    }


def measured(url: str, pools: int, moves: int) -> Iterator[Row]:
    """Rows of one number of pools."""
    progress(f"{pools} pools: compiling")
    start = perf_counter()
    while ask(url, moved(0, pools))["status"] == "compiling":
        sleep(0.1)
    yield Row(f"pools_{pools}.first_answer", perf_counter() - start, "s")
    progress(f"{pools} pools: {moves} moves")
    times, inside = [], []
    for at in range(moves):
        before = perf_counter()
        answer = ask(url, moved(at, pools))
        times.append(1e3 * (perf_counter() - before))
        inside.append(answer["compute_ms"])
    p50, p95 = np.quantile(times, [0.5, 0.95])
    yield Row(f"pools_{pools}.compute_p50", float(np.median(inside)), "ms")
    yield Row(f"pools_{pools}.answer_p50", float(p50), "ms")
    yield Row(f"pools_{pools}.answer_p95", float(p95), "ms", TARGET_MS, bool(p95 < TARGET_MS))
    yield Row(f"pools_{pools}.answer_max", float(max(times)), "ms")
    if pools == 2:
        yield curve(url)


def curve(url: str) -> Row:
    """The line of cost over the threshold, which is drawn when the sliders rest."""
    progress("the curve: compiling, and 10 of them")
    while ask(url, moved(0, 2), "curve")["status"] == "compiling":
        sleep(0.1)
    times = []
    for at in range(10):
        before = perf_counter()
        ask(url, moved(at, 2), "curve")
        times.append(1e3 * (perf_counter() - before))
    return Row("curve_p50", float(np.median(times)), "ms")


def main() -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--moves", type=int, default=300, help="moves of each number of pools (300)")
    parser.add_argument("--pools", type=int, nargs="+", default=[1, 2], help="numbers of pools (1 2)")
    given = parser.parse_args()
    with server() as url:
        rows = (row for pools in given.pools for row in measured(url, pools, given.moves))
        if given.json:
            print_json(rows)
        else:
            print_table(rows, title="From a slider to its figures, through HTTP")


if __name__ == "__main__":
    main()
