"""The replications of one experiment: carried out anywhere, kept when finished, and read back."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numba
import numpy as np
import polars as pl
from numpy.lib.recfunctions import repack_fields

from des.digest import digest, sources
from des.execution import Execution
from des.experiment import Drawn, Experiment
from des.parts import Parts, kept
from des.results import Replication
from des.routing import Routed


@dataclass(frozen=True)
class Replay:
    """Plays replications of `number` requests, by their place; see `Experiment.run`."""

    experiment: Experiment
    number: int
    batches: int

    def __call__(self, replication: int) -> Replication:
        """One of them."""
        return self.experiment.run(self.number, replication, batches=self.batches)


def replications(
    experiment: Experiment, *, number: int, count: int, batches: int, execution: Execution
) -> list[Replication]:
    """`count` replications of `number` requests, in order.

    With a folder, each is kept as ``NUMBER-PLACE.parquet`` (of statistics ``NUMBER-BATCHES-PLACE.parquet``) when it is
    finished, and one that is there is read instead of played. So the same experiment with other numbers of requests or
    replications shares the folder.

    Raises:
        ValueError: the folder has the replications of another experiment.
    """
    replay = Replay(experiment, number, batches)
    runs: list[Any] = [None] * count
    if execution.folder is None:
        for place, run in execution.map(replay, range(count), threads=True):
            runs[place] = run
        return runs
    with kept(execution.folder, lambda: _request(experiment)) as parts:
        length = f"{number}-{batches}" if experiment.setting.keep == "statistics" else f"{number}"
        names = [f"{length}-{place:05d}" for place in range(count)]
        missing = [place for place, name in enumerate(names) if not parts.has(name)]
        for at, run in execution.map(replay, missing, threads=True):
            parts.write(names[missing[at]], table(arrays_of(run)))
            runs[missing[at]] = run
        for place in sorted(set(range(count)) - set(missing)):
            runs[place] = _read(parts, names[place], replay)
        parts.finish()
    return runs


def _request(experiment: Experiment) -> dict[str, Any]:
    return {
        "kind": "replications",
        "inputs": digest(experiment),
        "code": sources("jaxsim", "des"),
        "versions": {library.__name__: library.__version__ for library in (jax, numba, np, pl)},
    }


def _read(parts: Parts, name: str, replay: Replay) -> Replication:
    try:
        return replication_of(arrays_in(parts.read(name)), replay)
    except (KeyError, TypeError, pl.exceptions.ColumnNotFoundError) as error:
        raise ValueError(
            f"{parts.path(name)} must be a replication that this run wrote, got one without {error}; remove it, and "
            "it is played again"
        ) from error


_NUMBERS = ("simulated", "offered", "start_s", "window_s")
_ARRAYS = ("rejected", "astray", "offered_steps", "replica_s", "totals", "levels")


def arrays_of(run: Replication) -> dict[str, np.ndarray]:
    """All that a replication holds, by name."""
    held = {name: np.asarray(run.__dict__[name]) for name in _NUMBERS + _ARRAYS}
    if run.gaps is not None:
        held["gaps"] = run.gaps
    if run.drawn is not None:
        arrival_s, routed = run.drawn
        held |= {"drawn.arrival_s": arrival_s} | {f"drawn.{name}": v for name, v in routed._asdict().items()}
    return held | {f"kept.{name}": values for name, values in run.kept.arrays().items()}


def replication_of(held: Mapping[str, np.ndarray], replay: Replay) -> Replication:
    """The replication that `arrays_of` took apart."""
    numbers: dict[str, Any] = {name: held[name].item() for name in _NUMBERS}
    start = numbers["start_s"]
    sink = replay.experiment.empty((start, start + numbers["window_s"]), replay.batches)
    arrays: dict[str, Any] = {name: held[name] for name in _ARRAYS}
    drawn = None
    if "drawn.arrival_s" in held:
        routed = Routed(*(held[f"drawn.{name}"] for name in Routed._fields))
        drawn = Drawn(held["drawn.arrival_s"], routed)
    return Replication(
        kept=sink.fill({name.removeprefix("kept."): v for name, v in held.items() if name.startswith("kept.")}),
        gaps=held.get("gaps"),
        drawn=drawn,
        **numbers,
        **arrays,
    )


def table(held: Mapping[str, np.ndarray]) -> pl.DataFrame:
    """Arrays of any type and shape, a row for each; of records without the bytes between fields, which are noise."""
    held = {name: repack_fields(values) if values.dtype.names else values for name, values in held.items()}
    return pl.DataFrame(
        {
            "name": list(held),
            "dtype": [repr(np.lib.format.dtype_to_descr(values.dtype)) for values in held.values()],
            "shape": [list(values.shape) for values in held.values()],
            "data": [np.ascontiguousarray(values).tobytes() for values in held.values()],
        },
        schema={"name": pl.String, "dtype": pl.String, "shape": pl.List(pl.Int64), "data": pl.Binary},
    )


def arrays_in(made: pl.DataFrame) -> dict[str, np.ndarray]:
    """The arrays that `table` wrote down; bit for bit."""
    return {
        name: np.frombuffer(data, np.lib.format.descr_to_dtype(ast.literal_eval(dtype))).reshape(shape).copy()
        for name, dtype, shape, data in made.select("name", "dtype", "shape", "data").iter_rows()
    }
