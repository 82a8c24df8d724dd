"""How many tasks are carried out: in this process, by local worker processes, or by a Ray cluster.

A task is a number or an array, and what is done with it a function that can be pickled. The seeds of a task follow
from its place, so the numbers are the same bit for bit whatever carries them out; only the order of arrival differs.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np

from jaxsim._checks import require, unknown

ENGINES = ("local", "ray")

RETRIES = 3
"""Times that Ray gives a task to another worker after the one that had it was lost."""

Done = Iterator[tuple[int, Any]]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Who carries out tasks, and where finished ones are kept.

    Attributes:
        workers: processes; None is this process, with a thread for each CPU where tasks can share one, and on Ray all
            CPUs of the cluster. 1 is this process, one task after another.
        engine: ``"local"`` processes of this machine (joblib's loky), or a ``"ray"`` cluster: the one that the
            environment variable RAY_ADDRESS names, else one started here for as long as the tasks take.
        folder: where every finished task is kept, so that a run that was stopped goes on from there (`des.parts`);
            None keeps nothing.

    Raises:
        ValueError: a number of workers below 1, an unknown engine, or one that is not installed.
    """

    workers: int | None = None
    engine: str = "local"
    folder: Path | None = None

    def __post_init__(self) -> None:
        workers = self.workers
        require(workers is None or (isinstance(workers, int) and workers >= 1), "workers", workers, "whole and >= 1")
        if self.engine not in ENGINES:
            raise unknown("engine", self.engine, ENGINES)
        if self.engine == "ray" and importlib.util.find_spec("ray") is None:
            raise ValueError(
                "engine 'ray' needs the package ray, which is not installed; pip install 'fleetgrad[ray]', or leave "
                "the engine at 'local'"
            )

    @property
    def alone(self) -> bool:
        """Whether all is done in this process."""
        return self.engine == "local" and self.workers in (None, 1)

    def within(self, name: str) -> Execution:
        """The same with a folder of that name inside its own, if it has one."""
        return self if self.folder is None else replace(self, folder=self.folder / name)

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, threads: bool = False) -> Done:
        """Carry out every task.

        Args:
            function: of a task; picklable where other processes take part.
            tasks: numbers or arrays.
            threads: whether several can run at once in this process.

        Yields:
            The place of each task with its result, as they are done.

        Raises:
            ChildProcessError: a worker process was lost (and on Ray its replacements too).
        """
        if self.alone:
            at_once = (os.cpu_count() or 1) if threads and self.workers is None else 1
            yield from _here(function, tasks, min(at_once, len(tasks)))
        elif tasks and self.engine == "local":
            yield from _processes(function, tasks, self.workers or 1)
        elif tasks:
            yield from _ray(function, tasks, self.workers)


HERE = Execution()
"""This process, and nothing kept."""


def _here(function: Callable[[Any], Any], tasks: Sequence[Any], at_once: int) -> Done:
    if at_once <= 1:
        yield from ((place, function(task)) for place, task in enumerate(tasks))
        return
    threads = ThreadPoolExecutor(at_once)
    try:
        places = {threads.submit(function, task): place for place, task in enumerate(tasks)}
        for done in as_completed(places):
            yield places.pop(done), done.result()
    finally:
        threads.shutdown(cancel_futures=True)


def _processes(function: Callable[[Any], Any], tasks: Sequence[Any], workers: int) -> Done:
    joblib: Any = importlib.import_module("joblib")
    lost = importlib.import_module("joblib.externals.loky.process_executor").TerminatedWorkerError
    packed = _packed(function)
    jobs = (joblib.delayed(_call)(*packed, place, task) for place, task in enumerate(tasks))
    try:
        yield from joblib.Parallel(workers, backend="loky", return_as="generator_unordered", batch_size=1)(jobs)
    except lost as error:
        raise _lost(error) from error


def _ray(function: Callable[[Any], Any], tasks: Sequence[Any], workers: int | None) -> Done:
    """Tasks of a worker that is lost go to another; a few more are handed out than can run at once."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = importlib.import_module("ray")
    started = not ray.is_initialized()
    own: dict[str, Any] = {}
    if started:
        own = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers, "include_dashboard": False}
        with warnings.catch_warnings():  # what it forks becomes another program at once
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            ray.init(logging_level="error", log_to_driver=False, **own)
    try:
        key, packed, x64 = _packed(function)
        shared, call = ray.put(packed), ray.remote(_call).options(max_retries=RETRIES)
        at_once = workers if workers and not own else 2 * (workers or int(ray.cluster_resources().get("CPU", 1)))
        running: list[Any] = []
        for place, task in enumerate(tasks):
            running.append(call.remote(key, shared, x64, place, task))
            if len(running) >= at_once:
                ready, running = ray.wait(running)
                yield ray.get(ready[0])
        while running:
            ready, running = ray.wait(running)
            yield ray.get(ready[0])
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        raise _lost(error) from error
    finally:
        if started:
            ray.shutdown()


def _lost(error: BaseException) -> ChildProcessError:
    said = str(error).split("\n")[0]
    return ChildProcessError(
        f"a worker process was lost before its task was done ({said}); it was killed, or memory ran out, for which "
        "fewer workers help"
    )


def _packed(function: Callable[[Any], Any]) -> tuple[str, np.ndarray, bool]:
    """A function for other processes, its digest, and JAX's precision, without which its arrays would not unpack.

    As an array of bytes: engines keep a large one in shared memory, once for all tasks.
    """
    pickled: bytes = cloudpickle.dumps(function)
    x64 = bool(jax.config.read("jax_enable_x64"))
    return hashlib.sha256(pickled).hexdigest(), np.frombuffer(pickled, dtype=np.uint8), x64


_unpacked: dict[str, Callable[[Any], Any]] = {}
"""The function of the last task of this worker process: what it prepared for one task serves the next."""


def _call(key: str, packed: np.ndarray, x64: bool, place: int, task: Any) -> tuple[int, Any]:
    """One task, in a worker process."""
    with jax.enable_x64(x64):
        if key not in _unpacked:
            _unpacked.clear()
            _unpacked[key] = cloudpickle.loads(packed.tobytes())
        return place, _unpacked[key](task)
