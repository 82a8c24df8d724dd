"""The predictions of `blind.py`: engine runs through the formula and the simulator, with constants of other runs."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from _engine_kernels import covered, fit_added, with_engine
from _engine_law import (
    CLIENTS,
    DATASHEET,
    MOST_SEQUENCES,
    Columns,
    Constants,
    columns,
    fit_client,
    fit_law,
    kv_blocks,
    laws,
    loops,
    through_loop,
)
from _engine_runs import Run
from _report import progress

import des
import jaxsim
from jaxsim.fleet import FleetDesign
from jaxsim.physics import StepLaw
from jaxsim.profiles import Profile

REQUESTS_A_CLIENT = 10
CLIENT_SAMPLE = 150
"""Runs of each kind of client that are simulated to find its two constants."""


class Predicted(NamedTuple):
    """Seconds, one entry a run, by the simulator and by the formula."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    formula_ttft_s: np.ndarray
    formula_tpot_s: np.ndarray

    @classmethod
    def empty(cls, number: int) -> Predicted:
        """To be filled."""
        return cls(*(np.full(number, np.nan) for _ in cls._fields))

    def put(self, chosen: np.ndarray, found: Predicted) -> None:
        """Fill in the chosen runs."""
        for mine, theirs in zip(self, found, strict=True):
            mine[chosen] = theirs


def lengths(run: Run, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of prompts and outputs, drawn as the benchmark's client draws them."""
    rng = np.random.default_rng(0)
    shortest = (1.0 - run.spread) / (1.0 + run.spread)

    def drawn(most: int) -> np.ndarray:
        return np.floor(rng.uniform(shortest * most, most + 1e-9 if run.spread == 0.0 else most + 1.0, number))

    return drawn(run.input_tokens), drawn(run.output_tokens)


def simulate(run: Run, law: StepLaw) -> tuple[float, float]:
    """Mean TTFT and mean TPOT in the simulator, of all requests from a synchronised start."""
    number = REQUESTS_A_CLIENT * run.clients
    profile = Profile(
        **law._asdict(),
        chunk_tokens=float(run.budget),
        max_num_seqs=float(min(run.clients, MOST_SEQUENCES)),
        kv_blocks=kv_blocks(run),
        block_tokens=16.0,
        calibration_context=8192.0,
        usd_per_gpu_hour=0.0,
        gpus_per_replica=float(run.shape.tp),
        name="run",
        gpu=run.shape.gpu.name,
        source="datasheets",
    )
    whole = run.budget if run.scheduling == "chunked" else max(run.budget, run.input_tokens)
    result = des.simulate(
        FleetDesign.of(profile, [1.0], [run.input_tokens + run.output_tokens + 1.0]),
        jaxsim.Workload.from_lengths(*lengths(run, number)),
        concurrency=run.clients,
        num_requests=number,
        replications=1,
        warmup_fraction=0.0,
        serving=des.Serving(scheduling=run.scheduling, max_num_batched_tokens=whole, kv="grow"),
    )
    return float(np.mean(result.ttft.groups[0])), float(np.mean(result.tpot.groups[0]))


def simulated(runs: list[Run], found: StepLaw, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the chosen runs: TTFT, without what the client adds, and TPOT."""
    both = [simulate(runs[k], StepLaw(*(float(column[k]) for column in found))) for k in chosen]
    return np.array([first for first, _ in both]), np.array([each for _, each in both])


def predict(runs: list[Run], rows: Columns, constants: Constants, chosen: np.ndarray) -> Predicted:
    """The chosen runs with these constants."""
    found = jax.device_get(laws(constants, rows))
    ttft, tpot = simulated(runs, found, chosen)
    loop_ttft, loop_tpot = (np.asarray(value)[chosen] for value in loops(constants, rows))
    kind = rows.client[chosen].astype(int)
    held = np.array([runs[k].held_steps for k in chosen])
    client, steps = np.asarray(constants.client_s)[kind], held + np.asarray(constants.lag_steps)[kind]
    return Predicted(ttft + client + steps * tpot, tpot, loop_ttft + client + steps * loop_tpot, loop_tpot)


def fitted(runs: list[Run], rows: Columns, used: np.ndarray) -> Constants:
    """The constants, from the used runs alone; a client that none of them has is taken to be like all."""
    constants = fit_law(rows, used)
    found = jax.device_get(laws(constants, rows))
    rng = np.random.default_rng(0)
    pairs = np.zeros((len(CLIENTS), 2))
    for kind in range(len(CLIENTS)):
        own = used & (rows.client == kind)
        sample = rng.permutation(np.flatnonzero(own if own.any() else used))[:CLIENT_SAMPLE]
        ttft, tpot = simulated(runs, found, sample)
        held, measured = (np.array([getattr(runs[k], name) for k in sample]) for name in ("held_steps", "ttft_s"))
        pairs[kind] = fit_client(ttft + held * tpot, tpot, measured)
    return constants._replace(client_s=pairs[:, 0], lag_steps=pairs[:, 1])


def held_out(runs: list[Run], rows: Columns, labels: np.ndarray) -> tuple[Predicted, dict[str, Constants]]:
    """Each run predicted with constants from the runs of all other labels."""
    answer, constants = Predicted.empty(len(runs)), {}
    for label in dict.fromkeys(labels):
        progress(f"fitted without {label}")
        constants[label] = fitted(runs, rows, labels != label)
        chosen = np.flatnonzero(labels == label)
        answer.put(chosen, predict(runs, rows, constants[label], chosen))
    return answer, constants


class Predictions(NamedTuple):
    """Predictions of all runs by scheme, and the constants of each fit."""

    runs: list[Run]
    predicted: dict[str, Predicted]
    constants: dict[str, dict[str, Constants]]


def predictions(runs: list[Run]) -> Predictions:
    """All three."""
    progress(f"{len(runs)} runs")
    rows = columns(runs)
    everyone = np.arange(len(runs))
    found = {"datasheet": predict(runs, rows, DATASHEET, everyone)}
    constants: dict[str, dict[str, Constants]] = {}
    for scheme, labels in (
        ("other_systems", np.array([run.system for run in runs])),
        ("other_models", np.array([run.shape.model.name.replace("-r1", "-v3") for run in runs])),
    ):
        found[scheme], constants[scheme] = held_out(runs, rows, labels)
    return Predictions(runs, found, constants)


class ByKernels(NamedTuple):
    """Runs that kernel tables cover: which, and their predictions with a law from those, of other models' constants."""

    places: np.ndarray
    predicted: Predicted


def by_kernels(table: Predictions) -> ByKernels:
    """Kernels measured, what the engine adds from the runs of other models, the client as in ``other_models``."""
    progress("laws from kernel tables")
    found = covered(table.runs)
    runs = [table.runs[k] for k in found.places]
    rows = columns(runs)
    layers = np.array([float(run.shape.model.num_layers) for run in runs])
    labels = np.array([run.shape.model.name for run in runs])
    answer = Predicted.empty(len(runs))
    for label in dict.fromkeys(labels):
        own = labels == label
        added = fit_added(found.kernels, layers, rows, (~own).astype(float))
        law = jax.device_get(with_engine(found.kernels, added, layers, rows.engine))
        ttft, tpot = simulated(runs, law, np.flatnonzero(own))
        loop_ttft, loop_tpot = (np.asarray(value)[own] for value in jax.vmap(through_loop)(law, rows))
        constants = table.constants["other_models"][label]
        kind = rows.client[own].astype(int)
        client, lag = constants.client_s[kind], constants.lag_steps[kind]
        answer.put(own, Predicted(ttft + client + lag * tpot, tpot, loop_ttft + client + lag * loop_tpot, loop_tpot))
    return ByKernels(found.places, answer)
