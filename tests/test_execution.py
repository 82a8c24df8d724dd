"""Tasks are carried out in threads, processes or a cluster with the same numbers; finished parts outlive a kill -9."""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from fleets import make_profile

import des
from des import replays
from des.digest import digest
from des.execution import Execution
from des.parts import kept, whole_file
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module", autouse=True)
def no_workers_left():
    """The pool of worker processes outlives a test: the next one need not start it again."""
    yield
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


def simulated(**changes):
    """A small fleet of two pools."""
    design = FleetDesign.of([make_profile()] * 2, [1.0, 2.0], [600.0, 2000.0])
    workload = Workload.from_lengths([100.0, 500.0, 1500.0], [20.0, 200.0, 300.0])
    return des.simulate(design, workload, **{"rate": 5.0, "num_requests": 1600, "replications": 4, **changes})


def same(one, other):
    """Every array of every replication, bit for bit."""
    for run, again in zip(one.replications, other.replications, strict=True):
        held, also = replays.arrays_of(run), replays.arrays_of(again)
        assert held.keys() == also.keys()
        for name, values in held.items():
            assert values.dtype == also[name].dtype, name
            if values.dtype.names:
                assert np.array_equal(values, also[name]), name
            else:
                assert values.tobytes() == also[name].tobytes(), name
    assert one.ttft.quantile(0.99) == other.ttft.quantile(0.99)
    assert one.pools[1].load == other.pools[1].load or np.isnan(one.pools[1].load)


def contents(folder):
    """Bytes of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_threads_and_processes_play_what_one_process_does():
    alone = simulated(execution=Execution(workers=1))
    same(alone, simulated())
    same(alone, simulated(execution=Execution(workers=2)))
    assert len({run.window_s for run in alone.replications}) == 4  # each has seeds of its own


@pytest.mark.parametrize("keep", ["latencies", "requests", "statistics"])
def test_a_replication_that_was_kept_is_read_back_bit_for_bit(keep, tmp_path):
    asked = {"keep": keep, "itl": True, "execution": Execution(folder=tmp_path)}
    played = simulated(keep=keep, itl=True)
    same(played, simulated(**asked))
    before = contents(tmp_path)
    assert len(before) == 5
    same(played, simulated(**asked))
    assert contents(tmp_path) == before


def test_closed_loops_and_preemption_are_kept_too(tmp_path):
    asked = {"concurrency": 4, "rate": None, "serving": des.Serving(kv="grow")}
    played = simulated(**asked)
    for _ in range(2):
        same(played, simulated(**asked, execution=Execution(folder=tmp_path)))


def test_only_missing_replications_are_played(tmp_path, monkeypatch):
    simulated(execution=Execution(folder=tmp_path))
    before = contents(tmp_path)
    (tmp_path / "400-00002.parquet").unlink()
    played = []
    run = replays.Replay.__call__
    monkeypatch.setattr(replays.Replay, "__call__", lambda self, at: (played.append(at), run(self, at))[1])
    same(simulated(), simulated(execution=Execution(folder=tmp_path)))
    assert sorted(played) == [0, 1, 2, 2, 3]
    assert contents(tmp_path) == before


def test_more_replications_of_the_same_length_go_on_from_those_that_are_there(tmp_path):
    simulated(execution=Execution(folder=tmp_path))
    before = contents(tmp_path)
    more = simulated(num_requests=2400, replications=6, execution=Execution(folder=tmp_path))
    same(more, simulated(num_requests=2400, replications=6))
    kept_parts = {name: content for name, content in contents(tmp_path).items() if name in before}
    assert {name for name, content in kept_parts.items() if content != before[name]} == {"manifest.json"}


@pytest.mark.parametrize("changes", [{"seed": 1}, {"rate": 5.1}, {"itl": True}, {"warmup_fraction": 0.3}])
def test_replications_of_another_request_are_refused(changes, tmp_path):
    simulated(execution=Execution(folder=tmp_path))
    with pytest.raises(ValueError, match=r"must be of the same request, got inputs .* remove this one to begin anew"):
        simulated(**changes, execution=Execution(folder=tmp_path))


def test_a_replication_that_is_not_one_is_refused(tmp_path):
    simulated(execution=Execution(folder=tmp_path))
    part = tmp_path / "400-00001.parquet"
    part.write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"400-00001.parquet must be a part that this run wrote"):
        simulated(execution=Execution(folder=tmp_path))
    pl.DataFrame({"name": ["simulated"]}).write_parquet(part)
    with pytest.raises(ValueError, match=r"400-00001.parquet must be a replication that this run wrote"):
        simulated(execution=Execution(folder=tmp_path))


DIES_WRITING = """
import os, signal, sys
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
import polars as pl
written, write = [], pl.DataFrame.write_parquet

def write_half(table, path):
    if len(written) == int(sys.argv[1]):
        Path(path).write_bytes(b"PAR1 and no more")
        os.kill(os.getpid(), signal.SIGKILL)
    written.append(path)
    write(table, path)

pl.DataFrame.write_parquet = write_half
"""

SIMULATES = """
import des
from test_execution import simulated
simulated(execution=des.Execution(workers=1, folder=Path(sys.argv[2])))
"""


def killed_writing(script, written, *arguments):
    """Run a script that kills itself half-way through the parquet file after so many."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", DIES_WRITING + script, str(written), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_run_killed_while_it_writes_is_resumed_with_identical_files(tmp_path):
    killed_writing(SIMULATES, 2, tmp_path / "killed")
    left = {path.name for path in (tmp_path / "killed").iterdir()}
    assert {"manifest.json", "400-00000.parquet", "400-00001.parquet"} < left
    assert [name.startswith(".400-00002.parquet.") for name in sorted(left)] == [True, False, False, False]
    assert not json.loads((tmp_path / "killed" / "manifest.json").read_text())["complete"]
    finished = {name: (tmp_path / "killed" / name).stat().st_mtime_ns for name in left if name.endswith(".parquet")}
    resumed = simulated(execution=Execution(folder=tmp_path / "killed"))
    same(resumed, simulated(execution=Execution(folder=tmp_path / "whole")))
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert {name: (tmp_path / "killed" / name).stat().st_mtime_ns for name in finished} == finished
    assert json.loads((tmp_path / "killed" / "manifest.json").read_text())["complete"]


# --- parts -----------------------------------------------------------------------------------------------------


def test_one_run_at_a_time_writes_parts(tmp_path):
    with (
        kept(tmp_path, lambda: {"kind": "test"}),
        pytest.raises(ValueError, match="being written by another run"),
        kept(tmp_path, lambda: {"kind": "test"}),
    ):
        pass
    with kept(tmp_path, lambda: {"kind": "test"}) as parts:
        parts.write("a", pl.DataFrame({"x": [1]}))
    assert parts.has("a") and not parts.has("b")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"a.parquet": "x"}, "must have a manifest.json beside a.parquet, got none"),
        ({"manifest.json": "{"}, "must be a manifest of parts, got"),
        ({"manifest.json": "[]"}, "must be of the same request, got schema_version None instead of 1"),
        ({"manifest.json": '{"schema_version": 1, "kind": "tests"}'}, "got kind tests instead of test"),
    ],
)
def test_a_folder_of_something_else_is_refused(files, text, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=text), kept(tmp_path, lambda: {"kind": "test"}):
        pass
    assert {path.name for path in tmp_path.iterdir()} == set(files)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(OSError, match="disk full"), whole_file(tmp_path / "a") as beside:
        beside.write_text("half")
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []


@dataclasses.dataclass
class Something:
    number: float
    others: object


def test_digests_tell_values_apart_and_nothing_else():
    def one():
        return Something(1.5, {"b": np.arange(3), "a": (None, True, "x", Path("y"))})

    assert digest(one()) == digest(one())
    variants = [
        Something(np.nextafter(1.5, 2.0), one().others),
        Something(1.5, {**one().others, "b": np.arange(3.0)}),
        Something(1.5, {**one().others, "b": np.array([0, 1, 3])}),
        Something(1.5, {**one().others, "a": [None, True, "x", Path("y")]}),
        Something(1.5, {**one().others, "a": (None, 1, "x", Path("y"))}),
    ]
    assert len({digest(value) for value in [one(), *variants]}) == 6
    with pytest.raises(TypeError, match="has no digest"):
        digest(iter([]))


# --- engines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"workers": 0}, "workers must be whole and >= 1, got 0"),
        ({"engine": "rays"}, "unknown engine 'rays'; did you mean 'ray'"),
    ],
)
def test_bad_executions_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        Execution(**arguments)


def test_ray_that_is_not_installed_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"is not installed; pip install 'fleetgrad\[ray\]'"):
        Execution(engine="ray")


def test_threads_stop_at_an_error():
    def fails(task):
        raise ValueError(f"task {task}")

    with pytest.raises(ValueError, match="task"):
        list(Execution().map(fails, range(100), threads=True))


def dies(task):
    """The second task ends its process."""
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_lost_worker_process_is_an_error_that_says_so():
    with pytest.raises(ChildProcessError, match="a worker process was lost before its task was done"):
        list(Execution(workers=2).map(dies, range(4)))


ON_RAY = """
import os, signal, sys
from dataclasses import dataclass
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
sys.path.insert(0, sys.argv[1])
from test_execution import same, simulated
import des
from des import replays

LOST = Path(sys.argv[2])

@dataclass(frozen=True)
class Replay(replays.Replay):
    def __call__(self, replication):
        if replication == 5 and not LOST.exists():
            LOST.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.experiment.run(self.number, replication, batches=self.batches)

asked = {"num_requests": 4800, "replications": 12}
alone = simulated(**asked)
replays.Replay = Replay
same(alone, simulated(**asked, execution=des.Execution(workers=3, engine="ray")))
assert LOST.exists()
"""


@pytest.mark.slow
def test_a_ray_cluster_that_loses_a_worker_gives_the_same_numbers(tmp_path):
    """Three worker processes; the one that plays replication 5 is killed, and another plays it again."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'fleetgrad[ray]'")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", ON_RAY, str(ROOT / "tests"), str(tmp_path / "lost")]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
