"""The analytical side of the accuracy scoreboard: what `step` and `kimura` say of each point, batched.

Workloads are padded to few numbers of rows, and all points go through the law at once: a changed law compiles once and
is judged in seconds (with ``JAX_COMPILATION_CACHE_DIR`` set, only what changed is compiled).

Dispatch, as `jaxsim.engine.latency` takes it, but by numbers, so that all points go through one program: random and
round robin are a single engine with its share of the rate, round robin with an index of dispersion of 1/n. `kimura`
knows one shared queue and no dispatch.

`kimura` is given the limit as its slots (its own arithmetic would cut them down to what fits the longest request at its
calibration), so that what differs is the law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _accuracy_design import Case
from _accuracy_sims import FIGURES, LEVELS, Simulated

import jaxsim
from jaxsim.engine import latency
from jaxsim.evaluate import PoolDemand, PoolLaws, Tables, metrics, pool_demands, pool_law, tabulate
from jaxsim.latency import StepLatency, log_tail


class Said(NamedTuple):
    """What a model says of points, arrays with a leading axis of points.

    Attributes:
        figures: by name, those of `FIGURES`.
        log_tails: by name of the level, ln P(TTFT > t) at the simulated quantile t.
    """

    figures: dict[str, np.ndarray]
    log_tails: dict[str, np.ndarray]


def said(model: str, rows: Sequence[Simulated], made: Sequence[Case]) -> Said:
    """What a model says of the points."""
    times = {name: jnp.asarray([row.figures[f"ttft_{name}"].value for row in rows]) for name in LEVELS}
    tables: dict[tuple[str, str, str], Tables] = {}
    demands, engines, dispersions = [], [], []
    for case in made:
        point, design = case.point, _as_seen(case, model)
        alone = model == "step" and point.dispatch in ("random", "round-robin")
        engines.append(1.0 if alone else float(point.replicas))
        dispersions.append(1.0 / point.replicas if point.dispatch == "round-robin" else 1.0)
        key = (point.workload, point.profile, point.group)
        if key not in tables:
            tables[key] = _tables(padded(case.workload), design.profile, model=model)
        rate = jnp.asarray(case.rate / point.replicas * engines[-1])
        demands.append(_demand(design, tables[key], rate, model=model))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *demands)
    law = _step_said if model == "step" else _kimura_said
    figures, log_tails = law(stacked, jnp.asarray(engines), jnp.asarray(dispersions), times)
    return Said({name: np.asarray(figures[name]) for name in FIGURES}, jax.tree.map(np.asarray, log_tails))


def _as_seen(case: Case, model: str) -> jaxsim.FleetDesign:
    """The design without names; for `kimura` with as many slots as the limit."""
    profile = case.design.profile.unnamed()
    if model == "kimura":
        scaled = case.point.limit * case.design.max_context / profile.calibration_context
        profile = eqx.tree_at(lambda p: p.max_num_seqs, profile, np.nextafter(scaled, np.inf))
    return eqx.tree_at(lambda d: d.profile, case.design, profile)


def padded(workload: jaxsim.Workload) -> jaxsim.Workload:
    """The same law of lengths, without names and with rows of weight 0 up to a power of 4."""
    rows = len(workload.weight)
    size = 4 ** math.ceil(math.log(rows, 4))
    more = 2 * size - len(workload.knots)
    return jaxsim.Workload(
        input_tokens=np.pad(workload.input_tokens, (0, size - rows), mode="edge"),
        output_tokens=np.pad(workload.output_tokens, (0, size - rows), mode="edge"),
        weight=np.pad(workload.weight, (0, size - rows)),
        knots=np.concatenate([workload.knots, workload.knots[-1] + 1.0 + np.arange(more)]),
        rows_to_knot=np.pad(workload.rows_to_knot, (0, more), mode="edge"),
    )


@eqx.filter_jit
def _tables(workload: jaxsim.Workload, profile: jaxsim.Profile, *, model: str) -> Tables:
    return tabulate(workload, profile, model=model)


@eqx.filter_jit
def _demand(design: jaxsim.FleetDesign, tables: Tables, rate: jax.Array, *, model: str) -> PoolDemand:
    return pool_demands(design, tables, rate, model=model)


def _laws(demand: PoolDemand, engines: jax.Array) -> PoolLaws:
    return jax.vmap(pool_law)(demand, engines[None])


def _figures(laws: PoolLaws, waiting: jax.Array) -> dict[str, jax.Array]:
    m = metrics(laws)
    ttft = {f"ttft_{name}": getattr(m, f"ttft_{name}_s") for name in LEVELS}
    return ttft | {
        "mean_active": m.pools.active_batch[0],
        "tpot_mean": m.tpot_mean_s,
        "wait_probability": waiting,
        "tpot_p99": m.tpot_p99_s,
    }


def _latency(demand: PoolDemand, engines: jax.Array, dispersion: jax.Array) -> StepLatency:
    return latency(demand.requests, demand.profile, arrival_rate=demand.rate, replicas=engines, dispersion=dispersion)[
        0
    ]


@eqx.filter_jit
def _step_said(demands: PoolDemand, engines: jax.Array, dispersions: jax.Array, times: dict[str, jax.Array]) -> Any:
    def one(demand: PoolDemand, count: jax.Array, dispersion: jax.Array, at: dict[str, jax.Array]) -> Any:
        law = jax.vmap(lambda one: _latency(one, count, dispersion))(demand)
        laws = eqx.tree_at(lambda inner: inner.latency, _laws(demand, count), law)
        tails = {name: log_tail(laws.ttft_tail(t)[0]) for name, t in at.items()}
        return _figures(laws, law.state.wait_probability[0]), tails

    return jax.vmap(one)(demands, engines, dispersions, times)


@eqx.filter_jit
def _kimura_said(demands: PoolDemand, engines: jax.Array, dispersions: jax.Array, times: dict[str, jax.Array]) -> Any:
    del dispersions

    def one(demand: PoolDemand, count: jax.Array, at: dict[str, jax.Array]) -> Any:
        laws = _laws(demand, count)
        tails = {name: log_tail(laws.ttft_tail(t)[0]) for name, t in at.items()}
        waiting = jax.vmap(lambda law: jnp.where(law.overloaded, 1.0, jnp.exp(law.log_wait_tail(0.0))))(laws.latency)
        return _figures(laws, waiting[0]), tails

    return jax.vmap(one)(demands, engines, times)
