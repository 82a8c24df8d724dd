"""The load at which a pool of a plan is held against what was measured: its replicas, its rate, its lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jaxsim._checks import invalid, unknown
from jaxsim.fleet import FleetDesign
from jaxsim.observed import Observed
from jaxsim.profiles import Profile
from jaxsim.workload import Workload
from optim.export_autoscaling import MODEL_RULES
from optim.export_plan import ExportFleet, ExportPool
from optim.inputs import GIVEN, Input, Inputs
from optim.words import number, percent, whole

LEAST_ROWS = 100
"""Requests listed in the metrics from which on their own lengths are the workload."""

WORTH_A_WORD = 0.005
"""Share of prompt tokens in a prefix cache below which nothing is made of it."""

_PASSES = 60
_CLOSE = 1e-3


@dataclass(frozen=True)
class Load:
    """A pool under the load that was measured.

    Attributes:
        pool: of the plan.
        model: of the plan, "step" or "kimura".
        planned: the plan's own lengths in this pool.
        workload: lengths with the means that were measured.
        replicas: engines that share the load: of servers that run, those of the pool, or as many as were measured where
            these are more; of a benchmark, those that it was sent to.
        covered: of these, how many the measurement is of.
        rate: requests per second of all `replicas`.
        concurrency: clients of all `replicas` in a closed loop; None where requests come at the rate.
        context: longest request, tokens.
        computed_share: share of prompt tokens that no prefix cache had.
        inputs: everything that was given or assumed of it.
        notes: what was decided, one sentence each.
    """

    pool: ExportPool
    model: str
    planned: Workload
    workload: Workload
    replicas: int
    covered: int
    rate: float
    concurrency: int | None
    context: float
    computed_share: float
    inputs: Inputs
    notes: tuple[str, ...]

    @property
    def replica_rate(self) -> float:
        """Requests per second of one replica, as measured."""
        return self.rate / self.replicas

    def design(self, profile: Profile) -> FleetDesign:
        """The pool alone, with a profile."""
        return FleetDesign.of([profile], [float(self.replicas)], [self.context])


def pool_named(fleet: ExportFleet, name: str | None) -> ExportPool:
    """The pool that was measured.

    Raises:
        ValueError: a disaggregated fleet, no such pool, or no name where there are several.
    """
    if fleet.disaggregated:
        raise invalid(
            f"{fleet.file}: kind",
            fleet.kind,
            "a plan or a simulation whose pools serve whole requests",
            "prefill and decode pools show only a part of each request's time",
        )
    labels = [pool.label for pool in fleet.pools]
    if name is None:
        if len(labels) > 1:
            each = ", ".join(f"{p.label} (to {p.upper_tokens:,} tokens)" for p in fleet.pools)
            raise invalid("--pool", name, f"one of {', '.join(labels)}", f"say which the metrics are of: {each}")
        return fleet.pools[0]
    if name not in labels:
        raise unknown("pool", name, labels)
    return fleet.pools[labels.index(name)]


def load_of(
    fleet: ExportFleet, pool: ExportPool, seen: Observed, workload: Workload | None, *, replicas: int | None
) -> Load:
    """The pool under the measured load.

    Args:
        fleet: the plan.
        pool: the one that was measured.
        seen: what it showed.
        workload: the plan's; None where it is not known, and then the metrics must list requests.
        replicas: how many the metrics are of; None takes those that the files tell apart, else one.

    Raises:
        ValueError: no workload and too few listed requests, or lengths that the pool cannot serve.
    """
    covered, how = _covered(seen, replicas)
    notes: list[str] = []
    whole_pool = max(pool.replicas, covered) if seen.window else covered
    if covered > pool.replicas and seen.window:
        notes.append(f"{covered} replicas were measured, and the plan has {pool.replicas}: {covered} are taken")
    notes += [
        f"{key} {fleet.input(key)!r} of {fleet.file} is not used: simulated is {usual!r}, as in a plan"
        for key, usual in MODEL_RULES.items()
        if fleet.input(key) not in (None, usual)
    ]
    planned = None if workload is None else lengths_in_pool(fleet, pool, workload)
    context = float(min(pool.max_context, math.floor(float(pool.profile.kv_tokens))))
    served, lengths = _lengths(seen, planned, context, notes)
    cached, told = seen.cached_share, "measured"
    if cached is None:
        cached, told = float(fleet.input("prefix_cache_hit_rate") or 0.0), "the plan's; the measurement does not say"
    computed = 1.0
    if cached > WORTH_A_WORD:
        computed = max(1.0 - cached, 1e-6)
        notes.append(
            f"{percent(cached)} of the prompt tokens were in a prefix cache ({told}): prefill work is taken as "
            f"{percent(computed)} of the profile's"
        )
    inputs = {
        "pool": Input(pool.label, "the plan's"),
        "replicas_measured": Input(covered, how),
        "replicas": Input(whole_pool, "the measured ones" if whole_pool == covered else "the plan's"),
        "lengths": Input(served.name, lengths),
        "prompt_tokens_computed_share": Input(
            computed, told if computed < 1.0 else "default: no prefix cache hits known"
        ),
        "arrivals": Input(
            "poisson" if seen.concurrency is None else f"{seen.concurrency} clients",
            "assumed" if seen.concurrency is None else "measured: a closed loop",
        ),
        "scheduling": Input("independent", "assumed, as in a plan"),
    }
    scale = whole_pool / covered
    return Load(
        pool=pool,
        model=fleet.model,
        planned=served if planned is None else planned,
        workload=served,
        replicas=whole_pool,
        covered=covered,
        rate=seen.rate * scale,
        concurrency=None if seen.concurrency is None else round(seen.concurrency * scale),
        context=context,
        computed_share=computed,
        inputs=inputs,
        notes=tuple(notes),
    )


def _covered(seen: Observed, given: int | None) -> tuple[int, str]:
    if given is not None:
        return given, GIVEN
    if seen.replicas is not None:
        return seen.replicas, "counted by the labels and files of the metrics"
    return 1, "assumed: a benchmark is of one replica unless --replicas says otherwise"


def lengths_in_pool(fleet: ExportFleet, pool: ExportPool, workload: Workload) -> Workload:
    """The plan's requests that this pool serves.

    Raises:
        ValueError: none of them.
    """
    context, policy = fleet.input("max_context_tokens"), fleet.input("long_requests")
    known = workload if context is None or policy is None else workload.limited(float(context), str(policy))
    totals = np.asarray(known.total_tokens)
    inside = (totals >= pool.lower_tokens) & (totals <= pool.upper_tokens)
    if not inside.any():
        what = f"with requests of {pool.lower_tokens:,} to {pool.upper_tokens:,} tokens, those of {pool.label}"
        raise invalid("workload", workload.name, what, "give the workload that the plan was made for")
    columns = (np.asarray(each)[inside] for each in (known.input_tokens, known.output_tokens, known.weight))
    inputs, outputs, weight = columns
    return Workload.from_lengths(inputs, outputs, weight=weight, name=workload.name, source=workload.source)


def _lengths(seen: Observed, planned: Workload | None, context: float, notes: list[str]) -> tuple[Workload, str]:
    """Lengths as measured and where they are from."""
    if seen.requests is not None and seen.requests.counted.sum() >= LEAST_ROWS:
        counted = seen.requests.counted
        inputs, outputs = seen.requests.input_tokens[counted], seen.requests.output_tokens[counted]
        fits = (inputs >= 1) & (outputs >= 1) & (inputs + outputs <= context)
        if fits.sum() < LEAST_ROWS:
            raise invalid(
                f"{seen.source}: requests of 1 to {context:,.0f} tokens", int(fits.sum()), f">= {LEAST_ROWS}",
                "is it a benchmark of another model or pool?",
            )  # fmt: skip
        if not fits.all():
            notes.append(f"{(~fits).sum():,} listed requests do not fit in {context:,.0f} tokens and are left out")
        return Workload.from_lengths(inputs[fits], outputs[fits], name="measured"), "the requests in the metrics"
    if planned is None:
        raise ValueError(
            "the plan's workload must be given again, as a plan has none of its lengths and the metrics list fewer "
            f"than {LEAST_ROWS} requests: --plan-file with the plan's file, or --workload, --trace, --cdf"
        )
    if seen.mean_input_tokens is None or seen.mean_output_tokens is None:
        notes.append("mean lengths are not among the metrics: the plan's are taken, so a change of them is not seen")
        return planned, "assumed: the plan's"
    made = lengths_like(planned, seen.mean_input_tokens, seen.mean_output_tokens, context)
    means = [float(made.mean(np.asarray(each))) for each in (made.input_tokens, made.output_tokens)]
    wanted = (seen.mean_input_tokens, seen.mean_output_tokens)
    if any(abs(one / other - 1.0) > 0.01 for one, other in zip(means, wanted, strict=True)):
        notes.append(
            f"requests of at most {whole(context)} tokens with the plan's spread reach means of "
            f"{' and '.join(map(number, means))} tokens, not the measured {' and '.join(map(number, wanted))}"
        )
    return made, "the plan's lengths, scaled to the measured means"


def lengths_like(workload: Workload, mean_input: float, mean_output: float, longest: float) -> Workload:
    """The same requests with prompts and outputs multiplied so that their means are these.

    Whole numbers from 1; no total above `longest`, for which prompts are cut first. Where most requests are cut the
    means stay below what is wanted.
    """
    inputs, outputs, weight = (
        np.asarray(each, dtype=float) for each in (workload.input_tokens, workload.output_tokens, workload.weight)
    )
    factors = np.array([mean_input / (weight @ inputs), mean_output / (weight @ outputs)])
    made = np.stack([inputs, outputs])
    for _ in range(_PASSES):
        sized = np.maximum(np.round(np.stack([inputs, outputs]) * factors[:, None]), 1.0)
        sized[1] = np.minimum(sized[1], longest - 1.0)
        sized[0] = np.minimum(sized[0], longest - sized[1])
        made = sized
        missed = np.array([mean_input, mean_output]) / (made @ weight)
        if np.all(np.abs(missed - 1.0) < _CLOSE):
            break
        factors = factors * np.clip(missed, 0.5, 2.0)
    return Workload.from_lengths(made[0], made[1], weight=weight, name=workload.name, source=workload.source)
