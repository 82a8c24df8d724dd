"""Long runs: killed and resumed, in flat memory, by several workers.

Run ``python benchmarks/resume.py`` (about a quarter of an hour on two cores; ``--json`` for one object a line,
``--quick`` for a minute). The reference model, one pool of A100-80GB, Azure lengths; a design is a what-if, sized.

- **Sweep.** A million designs in parts, by two workers without interruption, and once more in one process that is
  killed (``SIGKILL``) half way and started again. Every file must be the same, and no finished part computed again.
- **Memory.** Peak resident memory of the process and of its largest worker, for a million designs and for ten.
- **Time of a design** (of the CPU), for traces of different lengths and for fleets of different sizes.
- **Replications.** 64 of them, killed and resumed likewise.
- **Workers.** 64 replications, twice as long and counted in bins, by one and by two workers that have played: the
  least wall time of five. Beside it what two processes that only count gain, on a machine that others use too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _report import Row, at_least, print_json, print_table, progress

SAME_MEMORY = 1.1
"""Peak memory of ten times as many designs over that of one, at the most."""
SAME_TIME = 1.5
"""Greatest over least CPU time of a design, at the most, on a machine that others use too."""
REPLICATIONS = 64
REPEATS = 5


class Effort(NamedTuple):
    """How much of everything to do."""

    rates: int
    objectives: int
    many: int
    requests: int
    trace_lengths: tuple[int, ...]
    fleet_rates: tuple[float, ...]


FULL = Effort(1000, 1000, 10, 6_400_000, (1_000, 30_000, 1_000_000), (100.0, 10_000.0, 1_000_000.0))
QUICK = Effort(200, 200, 2, 256_000, (100, 10_000), (100.0, 10_000.0))


# --- in a process of its own ------------------------------------------------------------------------------------


def problem(**changes: Any) -> Any:
    """One pool of the reference model."""
    import jaxsim
    import optim

    values = {
        "workload": jaxsim.workload("azure"),
        "rate": 100.0,
        "profiles": (jaxsim.profile("a100-80gb"),),
        "slo": optim.SLO(ttft_p99_s=0.5),
        "max_pools": 1,
        "max_context": 8192.0,
        "model": "kimura",
    }
    return optim.PlanProblem(**{**values, **changes})


def sweep(folder: Path, workers: int, rates: int, objectives: int, many: int) -> dict[str, float]:
    """A grid of rates and objectives."""
    import numpy as np

    import des
    import optim

    execution = des.Execution(folder=folder, workers=workers)
    found = optim.sweep(
        problem(),
        rate=np.linspace(1.0, 5_000.0, rates)[:, None, None],
        ttft_p99_s=np.geomspace(0.02, 2.0, objectives)[:, None],
        tpot_p99_s=np.linspace(0.02, 0.1, many),
        execution=execution,
    )
    return {"computed": found.computed, "parts": len(found.names), "feasible": found.feasible}


def replay(folder: Path | None, workers: int, requests: int) -> dict[str, float]:
    """A simulation of many replications; its time without what comes before the first."""
    import des
    import jaxsim
    from jaxsim.fleet import FleetDesign

    design = FleetDesign.of(jaxsim.profile("a100-80gb"), [8.0], [8192.0])
    execution = des.Execution(folder=folder, workers=workers)

    def play(number: int, execution: des.Execution) -> des.SimulationResult:
        return des.simulate(
            design,
            jaxsim.workload("azure"),
            rate=50.0,
            num_requests=number,
            replications=REPLICATIONS,
            convention="kimura",
            keep="statistics" if folder is None else "latencies",
            execution=execution,
        )

    if folder is None:  # every worker has compiled
        play(4_000 * REPLICATIONS, execution)
    seconds = []
    for _ in range(REPEATS if folder is None else 1):
        start = time.perf_counter()
        result = play(requests, execution)
        seconds.append(time.perf_counter() - start)
    return {"played_s": min(seconds), "p99_s": result.ttft.quantile(0.99).value, "requests": result.num_requests}


def count(number: int) -> int:
    """Work that shares nothing."""
    total = 0
    for k in range(number):
        total += k * k
    return total


def counted_per_s(processes: int) -> float:
    """What so many processes count a second, together, at best: what the machine has for them just now."""
    number, best = 5_000_000, 0.0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(count, [1000] * processes)
        for _ in range(REPEATS):
            before = time.perf_counter()
            pool.map(count, [number] * processes, chunksize=1)
            best = max(best, processes * number / (time.perf_counter() - before))
    return best


def design_times(trace_lengths: tuple[int, ...], fleet_rates: tuple[float, ...]) -> dict[str, float]:
    """CPU seconds of a design in a batch of 4,096, by the length of the trace and by the size of the fleet."""
    import jax
    import numpy as np

    from jaxsim.workload import Workload
    from optim.whatif_rows import RowSolver
    from optim.workers import Programs

    def seconds(rate: float, asked: Any) -> tuple[float, float]:
        rows = np.stack([np.linspace(0.5, 1.0, 4096) * rate, np.full(4096, 0.5), np.full(4096, np.inf)], axis=1)
        solver = RowSolver(asked, Programs.here())
        gpus = float(np.nanmax(jax.block_until_ready(solver(rows))["replicas"]))
        used = []
        for _ in range(REPEATS):
            before = time.process_time()
            solver(rows)
            used.append(time.process_time() - before)
        return min(used) / 4096, gpus

    found, random = {}, np.random.default_rng(0)
    for length in trace_lengths:
        inputs = np.ceil(random.lognormal(6.5, 0.9, length)).clip(1, 6000)
        outputs = np.ceil(random.lognormal(5.0, 0.8, length)).clip(1, 2000)
        trace = Workload.from_lengths(inputs, outputs)
        found[f"trace_{length}"], _ = seconds(1000.0, problem(workload=trace))
    for rate in fleet_rates:
        used, gpus = seconds(rate, problem())
        found[f"gpus_{gpus:.0f}"] = used
    return found


def child(job: str, arguments: list[Any]) -> None:
    """Do a job and say what it took."""
    import resource

    import jax

    jax.config.update("jax_enable_x64", True)
    start = time.perf_counter()
    if job == "sweep":
        said = sweep(Path(arguments[0]), *arguments[1:])
    elif job == "replay":
        said = replay(None if arguments[0] is None else Path(arguments[0]), *arguments[1:])
    else:
        said = design_times(*map(tuple, arguments))
    said["wall_s"] = time.perf_counter() - start
    if job != "times":
        from joblib.externals.loky import get_reusable_executor

        if arguments[1] > 1:
            get_reusable_executor().shutdown(wait=True)
    unit = 1024.0 if platform.system() != "Darwin" else 1.0
    said["own_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    said["worker_mib"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 2**20
    print(json.dumps(said))


# --- the judge ---------------------------------------------------------------------------------------------------


def start(job: str, *arguments: Any) -> subprocess.Popen[str]:
    """A job in a process of its own."""
    command = [sys.executable, __file__, "--child", json.dumps([job, arguments], default=str)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run(job: str, *arguments: Any) -> dict[str, float]:
    """What a job says of itself."""
    process = start(job, *arguments)
    said = process.communicate()[0]
    if process.returncode != 0:
        raise RuntimeError(f"{job} ended with status {process.returncode}")
    found: dict[str, float] = json.loads(said)
    return found


def kill_at(parts: int, folder: Path, job: str, *arguments: Any) -> int:
    """Start a job and kill it when so many parts are there; how many it left."""
    process = start(job, *arguments)
    while len(list(folder.glob("*.parquet"))) < parts:
        if process.poll() is not None:
            raise RuntimeError(f"{job} ended before it could be killed")
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return len(list(folder.glob("*.parquet")))


def digests(folder: Path) -> dict[str, str]:
    """Of every file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def resumed(name: str, parts: int, whole: Path, folder: Path, again: Callable[[], Any], left: int) -> Iterator[Row]:
    """What a resumed run kept of the killed one, and whether its files are those of the whole run."""
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}
    again()
    untouched = sum(path.stat().st_mtime_ns == moment for path, moment in kept.items())
    yield Row(f"{name}.parts", parts, "files")
    yield at_least(f"{name}.parts_left_by_the_killed_run_and_not_written_again", untouched, "files", left)
    yield at_least(f"{name}.files_identical", float(digests(folder) == digests(whole)), "bool", 1.0)


def rows(effort: Effort, scratch: Path) -> Iterator[Row]:
    """Every figure."""
    grid = (effort.rates, effort.objectives)
    designs = effort.rates * effort.objectives
    progress(f"sweep: {designs:,} designs by two workers")
    whole, folder = scratch / "whole", scratch / "killed"
    few = run("sweep", whole, 2, *grid, 1)
    yield Row("sweep.designs", designs, "designs")
    yield Row("sweep.two_workers", few["wall_s"], "s")
    progress("sweep: killed half way, and resumed")
    left = kill_at(int(few["parts"]) // 2, folder, "sweep", folder, 1, *grid, 1)
    before = time.perf_counter()
    yield from resumed("sweep", int(few["parts"]), whole, folder, lambda: run("sweep", folder, 1, *grid, 1), left)
    yield Row("sweep.resumed_in_one_process", time.perf_counter() - before, "s")
    yield from replications(effort, scratch)
    progress("time of a design")
    times = run("times", effort.trace_lengths, effort.fleet_rates)
    for kind in ("trace", "gpus"):
        found = {name: used for name, used in times.items() if name.startswith(f"{kind}_")}
        yield from (Row(f"design.{name}", used * 1e6, "us") for name, used in found.items())
        ratio = max(found.values()) / min(found.values())
        yield Row(f"design.{kind}.greatest_to_least", ratio, "ratio", SAME_TIME, ratio <= SAME_TIME)
    progress(f"memory: {designs * effort.many:,} designs by two workers")
    many = run("sweep", scratch / "many", 2, *grid, effort.many)
    for name, said, number in (("few", few, designs), ("many", many, designs * effort.many)):
        yield Row(f"memory.{name}.designs", number, "designs")
        yield Row(f"memory.{name}.wall", said["wall_s"], "s")
        yield Row(f"memory.{name}.process", said["own_mib"], "MiB")
        yield Row(f"memory.{name}.worker", said["worker_mib"], "MiB")
    for which in ("own", "worker"):
        ratio = many[f"{which}_mib"] / few[f"{which}_mib"]
        yield Row(f"memory.many_to_few.{which}", ratio, "ratio", SAME_MEMORY, ratio <= SAME_MEMORY)


def replications(effort: Effort, scratch: Path) -> Iterator[Row]:
    """Killed, resumed, and by several workers."""
    progress(f"replications: {REPLICATIONS}, killed half way, and resumed")
    whole, folder = scratch / "played", scratch / "stopped"
    played = run("replay", whole, 1, effort.requests)
    left = kill_at(REPLICATIONS // 2, folder, "replay", folder, 1, effort.requests)
    yield Row("replications.requests", played["requests"], "requests")
    yield from resumed(
        "replications", REPLICATIONS, whole, folder, lambda: run("replay", folder, 1, effort.requests), left
    )
    progress("workers")
    one, two = (run("replay", None, workers, 2 * effort.requests) for workers in (1, 2))
    yield Row("workers.one", one["played_s"], "s")
    yield Row("workers.two", two["played_s"], "s")
    ceiling = counted_per_s(2) / counted_per_s(1)
    yield Row("workers.speed_up", one["played_s"] / two["played_s"], "ratio")
    yield Row("workers.speed_up_of_processes_that_only_count", ceiling, "ratio")
    yield at_least("workers.same_p99", float(one["p99_s"] == two["p99_s"]), "bool", 1.0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, value, unit, target, ok")
    parser.add_argument("--quick", action="store_true", help="a minute instead of a quarter of an hour: a smoke test")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        job, arguments = json.loads(options.child)
        child(job, arguments)
        return
    with tempfile.TemporaryDirectory() as scratch:
        found = rows(QUICK if options.quick else FULL, Path(scratch))
        if options.json:
            print_json(found)
        else:
            notes = [f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"]
            print_table(found, title="Long runs", notes=notes)


if __name__ == "__main__":
    main()
