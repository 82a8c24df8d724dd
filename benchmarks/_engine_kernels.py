"""Laws of engine runs from measured kernels of the same GPU, model and tensor-parallel degree, where there are tables.

The composed tables hold products, attention and all-reduces in 16 bits. What an engine adds, other kernels and the
host, is one constant for each layer and one for each sequence, found on the runs of other models.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _engine_law import ENGINES, ROBUST_TPOT, Columns, through_loop
from _engine_runs import Run
from _measured import Group, decode_groups, prefill_groups
from scipy.optimize import least_squares

import jaxsim
from jaxsim.fit.table import StepTable
from jaxsim.physics import StepLaw

TABLES = {"llama3.1-8b": "llama-3.1-8b", "llama3.1-70b": "llama-3.1-70b", "qwen3-32b": "qwen3-32b"}
COMPOSED = "aic"


class Covered(NamedTuple):
    """Runs that tables cover: where they are among all, and the law of the kernels of each."""

    places: np.ndarray
    kernels: StepLaw


def covered(runs: list[Run]) -> Covered:
    """Runs in 16 bits of a dense model, GPU and degree that are in both tables."""
    wanted = {(run.system, run.shape.model.name, run.shape.tp) for run in runs if run.precision == "bf16"}
    prompts = {_key(group): group.table for group in prefill_groups()}
    laws = {
        _key(group): jaxsim.fit_steps(_both(group.table, prompts[_key(group)])).law
        for group in decode_groups()
        if group.origin == COMPOSED and _key(group) in wanted and _key(group) in prompts
    }
    keys = [(run.system, run.shape.model.name, run.shape.tp) for run in runs]
    places = [k for k, run in enumerate(runs) if run.precision == "bf16" and keys[k] in laws]
    found = [laws[keys[k]] for k in places]
    return Covered(np.array(places, int), StepLaw(*(np.array(column, float) for column in zip(*found, strict=True))))


def _key(group: Group) -> tuple[str, str, int]:
    return group.gpu, TABLES.get(group.model, group.model), group.tp


def _both(decode: StepTable, prompts: StepTable) -> StepTable:
    names = ("num_active", "mean_context", "prompt_tokens", "token_contexts", "time_s")
    joined = {name: np.concatenate([getattr(decode, name), getattr(prompts, name)]) for name in names}
    return StepTable(**joined, source=f"{decode.source} and {prompts.source}")


def with_engine(kernels: StepLaw, added: np.ndarray, layers: np.ndarray, engine: np.ndarray) -> StepLaw:
    """The laws with seconds a layer and, by engine, a sequence added."""
    sequence = jnp.asarray(added)[1:][jnp.asarray(engine, int)]
    return kernels._replace(overhead_s=added[0] * layers, per_sequence_s=kernels.per_sequence_s + sequence)


@jax.jit
def _tpot(law: StepLaw, rows: Columns) -> jax.Array:
    return jax.vmap(through_loop)(law, rows)[1]


def fit_added(kernels: StepLaw, layers: np.ndarray, rows: Columns, used: np.ndarray) -> np.ndarray:
    """Seconds a layer, then a sequence of each engine, >= 0, from the used runs."""
    unit = np.array([1e-5, *[1e-5] * len(ENGINES)])

    def missed(x: np.ndarray) -> np.ndarray:
        law = with_engine(kernels, x * unit, layers, rows.engine)
        return used * np.log(np.asarray(_tpot(law, rows)) / rows.tpot_s)

    found = least_squares(missed, np.ones_like(unit), bounds=(0.0, 50.0), loss="soft_l1", f_scale=ROBUST_TPOT)
    return found.x * unit
