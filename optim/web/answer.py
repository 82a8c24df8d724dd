"""Figures while sliders move: one compiled program for each number of pools and size of workload.

What a slider changes (rate, objectives, thresholds, replicas, prices) is an argument of the program, so a move
compiles nothing. What would compile is prepared by a thread of its own, and the page is told to ask again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from jaxsim.units import HOURS_PER_YEAR, MS_PER_S
from optim.cases import Case, case_metrics, choice_of, sized_designs
from optim.documents import Document, analytic_entry, design_entry, document, profile_warnings
from optim.problem import PlanProblem
from optim.sizing import Targets, whole_replicas
from optim.validity_document import validity_notes
from optim.web.choices import Resolved, uppers
from optim.web.refusals import RefusalError

POINTS = 64
"""Thresholds of a curve: one batch of `optim.cases.sized_designs`."""

MOST_CASES = 8
MOST_PENDING = 8

COMPILING: Document = {"status": "compiling"}

ASSUMED = (
    "arrivals are Poisson",
    "a request goes to the pool of its total tokens, as if its output were known, and there to the least loaded "
    "replica",
    "requests above the longest context are rejected",
    "figures of the model, not simulated: verify before you buy",
)


class Answerer:
    """Answers questions, or says that their program is being made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cases: OrderedDict[tuple[Any, ...], Case] = OrderedDict()
        self._ready: set[tuple[Any, ...]] = set()
        self._pending: dict[tuple[Any, ...], Future[None]] = {}
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="fleetgrad-compile")

    def close(self) -> None:
        """Wait for nothing more."""
        self._maker.shutdown(wait=False, cancel_futures=True)

    def answer(self, resolved: Resolved) -> Document:
        """The figures of the fleet of a question; `COMPILING` where they must be asked for again."""
        if not self._prepared(("answer", resolved.key, resolved.num_pools, resolved.question.model), resolved):
            return COMPILING
        start = perf_counter()
        figures = jax.tree.map(np.asarray, self._figures(resolved))
        return answer_entry(resolved, figures) | {"compute_ms": (perf_counter() - start) * MS_PER_S}

    def curve(self, resolved: Resolved) -> Document:
        """The least cost that meets the objectives at each threshold between two pools, by the model.

        Raises:
            RefusalError: another number of pools.
        """
        if resolved.num_pools != 2:
            raise RefusalError("pools", resolved.num_pools, allowed="2: a curve is over the threshold between them")
        if not self._prepared(("curve", resolved.key, resolved.question.model), resolved):
            return COMPILING
        start = perf_counter()
        return self._curve(resolved) | {"compute_ms": (perf_counter() - start) * MS_PER_S}

    def _prepared(self, key: tuple[Any, ...], resolved: Resolved) -> bool:
        with self._lock:
            if key in self._ready:
                return True
            task = self._pending.get(key)
            if task is None:
                if len(self._pending) >= MOST_PENDING:
                    hint = "wait a little"
                    raise RefusalError("programs being compiled", len(self._pending), hint=hint, status=429)
                self._pending[key] = self._maker.submit(self._prepare, key, resolved)
                return False
            if not task.done():
                return False
            del self._pending[key]
        task.result()  # what went wrong is the answer
        return True

    def _prepare(self, key: tuple[Any, ...], resolved: Resolved) -> None:
        make = self._figures if key[0] == "answer" else self._curve
        jax.block_until_ready(make(resolved))
        with self._lock:
            self._ready.add(key)

    def _figures(self, resolved: Resolved) -> Metrics:
        replicas = jnp.asarray(np.asarray(resolved.replicas, dtype=float))
        found: Metrics = case_metrics(self._case(resolved), replicas, uppers(resolved), model=resolved.question.model)
        return found

    def _curve(self, resolved: Resolved) -> Document:
        case, context = self._case(resolved), resolved.problem.context
        shortest = float(np.asarray(resolved.problem.limited.total_tokens)[0])
        cuts = np.floor(np.geomspace(min(shortest + 1.0, context), context, POINTS))
        rows = np.stack([cuts, np.full(POINTS, context)], axis=1)
        sized = sized_designs(case, rows, model=resolved.question.model)
        replicas = whole_replicas(sized.replicas)
        usd = replicas @ np.asarray(case.profile.usd_per_hour)
        points = [
            {
                "threshold_tokens": float(cut),
                "feasible": bool(feasible),
                "cost_usd_per_hour": float(cost) if feasible else None,
                "replicas": [int(n) for n in number] if feasible else None,
            }
            for cut, feasible, cost, number in zip(cuts, sized.feasible, usd, replicas, strict=True)
        ]
        good = [at for at, point in enumerate(points) if point["feasible"]]
        best = min(good, key=lambda at: (points[at]["cost_usd_per_hour"], at), default=None)
        return document("curve", "ok" if good else "infeasible", points=points, best=best)

    def _case(self, resolved: Resolved) -> Case:
        """The workload tabulated for the profiles, at the question's rate, objectives and prices."""
        problem = resolved.problem
        names = tuple(str(one.name) for one in resolved.profiles)
        key = (resolved.key, names, problem.model)
        with self._lock:
            case = self._cases.get(key)
        if case is None:
            case = choice_of(problem, resolved.profiles).case
        with self._lock:
            self._cases[key] = case
            self._cases.move_to_end(key)
            while len(self._cases) > MOST_CASES:
                self._cases.popitem(last=False)
        return _at(case, problem, resolved)


def _at(case: Case, problem: PlanProblem, resolved: Resolved) -> Case:
    """A case under the question's numbers; arrays of the same shapes, so the same program."""
    pools, tpot = resolved.num_pools, problem.slo.tpot_p99_s
    limits = (problem.slo.ttft_p99_s, np.inf if tpot is None else tpot)
    targets = Targets(*(jnp.asarray(np.full(pools, value)) for value in limits))
    prices = np.asarray([float(one.usd_per_gpu_hour) for one in resolved.profiles])
    numbers = (jnp.asarray(problem.rate, dtype=float), targets, jnp.asarray(problem.context), prices)
    return eqx.tree_at(lambda c: (c.rate, c.targets, c.longest, c.profile.usd_per_gpu_hour), case, numbers)


def answer_entry(resolved: Resolved, figures: Metrics) -> Document:
    """The figures of a fleet, whether they meet each objective, and what was taken for granted."""
    problem, question = resolved.problem, resolved.question
    design = FleetDesign.of(list(resolved.profiles), list(resolved.replicas), list(resolved.upper_tokens))
    usd = float(figures.usd_per_hour)
    warnings = [*profile_warnings(problem.profiles), *validity_notes(figures)] if problem.model == "step" else []
    limits = {"ttft_p99_ms": question.ttft_p99_ms, "tpot_p99_ms": question.tpot_p99_ms}
    slo = {name: _objective(figures, name, limit) for name, limit in limits.items()}
    return document(
        "answer",
        "overloaded" if figures.overloaded else "ok",
        model=problem.model,
        inputs=inputs_entry(resolved),
        assumed=list(ASSUMED),
        design=design_entry(design),
        cost_usd_per_hour=usd,
        cost_usd_per_year=usd * HOURS_PER_YEAR,
        cost_usd_per_million_output_tokens=float(figures.usd_per_million_output_tokens),
        analytic=analytic_entry(figures),
        slo={**slo, "met": all(entry["met"] is not False for entry in slo.values())},
        warnings=warnings,
    )


def _objective(figures: Metrics, name: str, limit: float | None) -> Document:
    """A P99 of the fleet and of its worst pool, which must meet the objective too."""
    field = f"{name.removesuffix('_ms')}_s"
    value = float(getattr(figures, field)) * MS_PER_S
    served = np.asarray(figures.pools.share) > 0
    worst = float(np.max(np.asarray(getattr(figures.pools, field)), where=served, initial=0.0)) * MS_PER_S
    met = None if limit is None else bool(worst <= limit)
    return {"limit": limit, "value": value, "worst_pool": worst, "met": met}


def inputs_entry(resolved: Resolved) -> Document:
    """Every input and where it came from."""
    question, problem = resolved.question, resolved.problem
    given = "given on the page"
    prices = question.usd_per_gpu_hour

    def entry(value: Any, there: bool, default: str) -> Document:
        return {"value": value, "source": given if there else default}

    return {
        "workload": entry(problem.workload.name, True, ""),
        "rate_rps": entry(problem.rate, not resolved.rate_is_own, "the workload's own rate"),
        "ttft_p99_ms": entry(question.ttft_p99_ms, True, ""),
        "tpot_p99_ms": entry(question.tpot_p99_ms, question.tpot_p99_ms is not None, "default: no objective"),
        "max_context_tokens": entry(
            problem.context, question.max_context is not None, "default: the longest request of the workload"
        ),
        "model": entry(question.model, "model" in question.model_fields_set, "default"),
        **{
            f"usd_per_gpu_hour {one.name}": entry(
                float(one.usd_per_gpu_hour), str(one.name) in prices, "the profile's own price"
            )
            for one in problem.profiles
        },
    }
