"""Hypothesis draws of small serving fleets: design, requests, serving rules and run options that fit each other.

KV is tight and arrivals are dense, so queues and preemptions are common. Requests that their pool cannot hold are
left out. `exact` cases have binary fractions for all coefficients and instants, so that float arithmetic is
exact and instants tie; prompt compute is then 0 in the step convention, whose smooth maximum takes roots.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from hypothesis import strategies as st
from stepper import Options, Request, can_hold

from des.serving import KV_RULES, PREEMPTION, SCHEDULING, Serving
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile

CONVENTIONS = ("step", "kimura")
DISPATCHES = ("least-loaded", "random", "round-robin", "power-of-two", "prefix-affinity")
FEATURES = ("any", "spill", "closed", "transfer", "timeline", "prefix")
"""Requests that any pool may take; spill-over; closed loop; prefill and decode pools; failures; prefix cache."""


@dataclass
class Case:
    """One run: all that `stepper.run` takes. `requests()` are those that their pools can hold, not yet run.

    It is drawn as plain values and built when asked for: the type checks that building runs draw random numbers,
    which hypothesis forbids within a strategy.
    """

    convention: str
    serving: Serving
    options: Options
    features: frozenset
    exact: bool
    profiles: list
    replicas: list
    upper_tokens: list
    max_context: list
    table: list

    @cached_property
    def design(self):
        made = [make_profile(**changes) for changes in self.profiles]
        return FleetDesign.of(made, self.replicas, self.upper_tokens, max_context=self.max_context)

    @cached_property
    def rows(self):
        """Arguments of `Request` after its number, of each request that is accepted."""
        return [row for row in map(self.placed, self.table) if row is not None]

    def requests(self):
        return [Request(number, *row) for number, row in enumerate(self.rows)]

    def placed(self, row):
        """A drawn request with the pools that can hold it; None where it is to be rejected."""
        due, tokens, output, blocks = row
        transfer = self.options.transfer is not None
        r = Request(0, due, tokens, output)
        pools = range(len(self.replicas))
        able = tuple(p for p in pools if can_hold(self.design, self.convention, self.serving, p, r, transfer))
        if transfer:
            return (due, tokens, output, 0, (0,), blocks) if len(able) == 2 else None
        if "any" in self.features:
            return (due, tokens, output, -1, able, blocks) if able else None
        meant = next((p for p in pools if r.total <= self.upper_tokens[p]), None)
        return (due, tokens, output, meant, able, blocks) if meant in able else None


def make_profile(**changes):
    """A toy profile in which a step takes a second and a bit, changed as told."""
    values = {
        "base_s": 1.0,
        "per_sequence_s": 0.25,
        "per_token_s": 0.03125,
        "prefill_per_token_s": 0.0,
        "prefill_per_token2_s": 0.0,
        "chunk_tokens": 4,
        "max_num_seqs": 3,
        "kv_blocks": 12,
        "block_tokens": 4,
        "calibration_context": 32,
        "usd_per_gpu_hour": 1.0,
        "gpus_per_replica": 1,
        "name": "toy",
        "gpu": "toy",
        "source": "made up",
        "overhead_s": 0.0,
    }
    return Profile(**{**values, **changes})


def generator(draw):
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


def exact_seconds(draw, convention):
    """Coefficients whose sums and multiples are exact."""
    return {
        "overhead_s": draw(st.sampled_from([0.0, 0.5])),
        "per_sequence_s": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "per_token_s": draw(st.sampled_from([0.0, 0.25])),
        "prefill_per_token_s": draw(st.sampled_from([0.0, 0.5])) if convention == "kimura" else 0.0,
        "prefill_per_token2_s": draw(st.sampled_from([0.0, 0.125])),
    }


def any_seconds(draw):
    rng = generator(draw)
    prefill = draw(st.booleans())
    return {
        "overhead_s": draw(st.sampled_from([0.0, 0.07])),
        "base_s": rng.uniform(0.1, 1.0),
        "per_sequence_s": rng.uniform(0.001, 0.3),
        "per_token_s": rng.uniform(0.0001, 0.05),
        "prefill_per_token_s": rng.uniform(0.01, 0.3) if prefill else 0.0,
        "prefill_per_token2_s": rng.uniform(0.0, 0.01) if prefill else 0.0,
    }


@st.composite
def profiles(draw, *, exact, convention, longest):
    """Changes of a profile whose KV holds one to three requests of `longest` tokens, now and then not even one."""
    block_tokens = draw(st.integers(1, 5))
    blocks = -(-longest // block_tokens)
    spare = draw(st.sampled_from([0, 1, blocks // 2, blocks, 2 * blocks, -(blocks // 4)]))
    seconds = exact_seconds(draw, convention) if exact else any_seconds(draw)
    return {
        **seconds,
        "chunk_tokens": draw(st.integers(1, 9)),
        "max_num_seqs": draw(st.sampled_from([4, 3, 6, 2, 1, 8])),
        "kv_blocks": max(blocks + spare, 1),
        "block_tokens": block_tokens,
        "calibration_context": draw(st.sampled_from([longest, 2 * longest, longest + 7, max(longest // 2, 1)])),
    }


@st.composite
def lengths(draw, *, exact, most=40):
    """Inputs, outputs and instants of a burst or of a sparse stream, in order of coming."""
    number = draw(st.sampled_from([n for n in (4, 15, 40, 30, 1) if n <= most]))
    rng = generator(draw)
    inputs = rng.integers(1, draw(st.sampled_from([10, 4, 25])), number)
    outputs = rng.integers(1, draw(st.sampled_from([12, 25, 6, 2])), number)
    spread = draw(st.sampled_from([0.5, 0.1, 2.0])) * number
    if exact:
        due = rng.integers(0, 1 + int(2 * spread), number) / 2.0
    else:
        due = rng.uniform(0.0, spread, number)[rng.integers(0, number, number)]
    return inputs, outputs, np.sort(due)


@st.composite
def servings(draw, *, convention, most_seqs, exact, prefix, scheduling=None, kv=None, preemption=None):
    """Serving rules that the convention knows."""
    kimura = convention == "kimura"
    scheduling = scheduling or ("independent" if kimura else draw(st.sampled_from(SCHEDULING)))
    kv = kv or draw(st.sampled_from([k for k in ("grow", *KV_RULES) if not (kimura and k == "grow")]))
    preemption = preemption or (draw(st.sampled_from(PREEMPTION)) if kv == "grow" else "recompute")
    budget = None if scheduling == "independent" else most_seqs + draw(st.integers(0, 12))
    swap = draw(st.sampled_from([0.0, 0.25] if exact else [0.0, 0.013, 0.17])) if preemption == "swap" else 0.0
    return Serving(
        scheduling=scheduling,
        max_num_batched_tokens=budget,
        kv=kv,
        preemption=preemption,
        swap_s_per_token=swap,
        prefix_cache_blocks=draw(st.integers(1, 12)) if prefix else 0,
    )


def instant(draw, until, exact):
    """An instant in [0, until], on the grid of half seconds where exact."""
    number = draw(st.integers(0, 64))
    return np.floor(2.0 * until * number / 64.0) / 2.0 if exact else until * number / 64.0 + 1e-3


@st.composite
def timelines(draw, *, num_replicas, until, exact):
    """Up to five changes; in the end all replicas are up."""
    if num_replicas == 0:
        return ()
    events = []
    for _ in range(draw(st.integers(1, 5))):
        what = draw(st.sampled_from(["down", "up", "drain"]))
        events.append((float(instant(draw, until, exact)), draw(st.integers(0, num_replicas - 1)), what))
    events.sort(key=lambda event: event[0])
    return (*events, *((float(np.ceil(until)) + 1.0, e, "up") for e in range(num_replicas)))


def prefix_blocks(rng, inputs, block_tokens, families):
    """Ids of the prompts' whole blocks: shared within a family up to some depth, then the request's own."""
    rows = []
    for number, tokens in enumerate(inputs):
        family, depth = int(rng.integers(families)), int(rng.integers(1, 6))
        own = 1_000_000 + 100 * number
        rows.append(tuple(100 * family + j if j < depth else own + j for j in range(tokens // block_tokens)))
    return rows


@st.composite
def run_options(draw, *, features, num_replicas, until, exact, dispatch=None):
    """Options of the run for the features drawn."""
    transfer = None
    if "transfer" in features:
        latency = draw(st.sampled_from([0.0, 0.5] if exact else [0.0, 0.11]))
        transfer = (latency, draw(st.sampled_from([0.0, 0.25] if exact else [0.0, 0.037])))
    timeline = ()
    if "timeline" in features:
        timeline = draw(timelines(num_replicas=num_replicas, until=until, exact=exact))
    return Options(
        dispatch=dispatch or draw(st.sampled_from(DISPATCHES)),
        spill_pressure=draw(st.sampled_from([0.25, 0.5, 1.0, 2.0])) if "spill" in features else None,
        concurrency=draw(st.integers(1, 12)) if "closed" in features else None,
        transfer=transfer,
        timeline=timeline,
        seed=draw(st.integers(0, 2**31)),
        affinity_slack=draw(st.integers(0, 3)),
        prefix_block_tokens=draw(st.integers(1, 4)),
    )


def kept_features(draw, convention, allowed):
    """A subset of the allowed features that makes sense together."""
    features = {f for f in allowed if draw(st.integers(0, 2)) == 0}
    if convention == "kimura":
        features.discard("transfer")
    if "transfer" in features:
        features -= {"any", "spill"}
    if "any" in features:
        features.discard("spill")
    return frozenset(features)


@st.composite
def designs(draw, *, exact, convention, features, longest):
    """Arguments of a design of one to three pools; of two alike where one prefills for the other."""
    transfer = "transfer" in features
    num_pools = 2 if transfer else draw(st.integers(1, 3))
    made = [draw(profiles(exact=exact, convention=convention, longest=longest)) for _ in range(num_pools)]
    counts = [1, 2, 3] if transfer else [1, 2, 3, 1, 2, 4, 0]
    replicas = [draw(st.sampled_from(counts)) for _ in range(num_pools)]
    cuts = st.integers(max(longest // 4, 2), longest)
    uppers = [longest] * 2 if transfer else [*sorted(draw(cuts) for _ in range(num_pools - 1)), longest]
    limits = [max(1, upper + draw(st.sampled_from([0, 3, 5, -2]))) for upper in uppers]
    return {"profiles": made, "replicas": replicas, "upper_tokens": uppers, "max_context": limits}


@st.composite
def cases(
    draw,
    *,
    exact,
    convention=None,
    scheduling=None,
    kv=None,
    preemption=None,
    dispatch=None,
    features=FEATURES,
    most=40,
):
    """A whole case; what is given is fixed, the rest is drawn. Of `features` a subset is drawn."""
    convention = convention or draw(st.sampled_from(("step", "step", "step", "kimura")))
    features = kept_features(draw, convention, features)
    inputs, outputs, due = draw(lengths(exact=exact, most=most))
    longest = int((inputs + outputs).max())
    design = draw(designs(exact=exact, convention=convention, features=features, longest=longest))
    rules = {"scheduling": scheduling, "kv": kv, "preemption": preemption}
    most_seqs = max(changes["max_num_seqs"] for changes in design["profiles"])
    prefix = "prefix" in features
    serving = draw(servings(convention=convention, most_seqs=most_seqs, exact=exact, prefix=prefix, **rules))
    until, count = float(due[-1]) + 10.0, sum(design["replicas"])
    options = draw(run_options(features=features, num_replicas=count, until=until, exact=exact, dispatch=dispatch))
    blocks = [()] * len(inputs)
    if prefix:
        blocks = prefix_blocks(generator(draw), inputs, options.prefix_block_tokens, draw(st.integers(1, 4)))
    table = list(zip(due.tolist(), inputs.tolist(), outputs.tolist(), blocks, strict=True))
    return Case(convention, serving, options, features, exact, table=table, **design)
