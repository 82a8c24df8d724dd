"""The event engine against a slow and obvious simulator that runs every step of every replica, token by token.

The stepper knows nothing of the engine's laws as series of work: it looks at what each request holds in each
step and adds up the step time from the law's own words.
"""

import math
from collections import deque
from dataclasses import dataclass, field

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from des import lower
from des.routing import REASONS, route_by_length
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.workload import Workload

EXAMPLES = 15 if numba.config.DISABLE_JIT else 150


@dataclass
class Request:
    arrival: float
    input: int
    output: int
    prompt_done: int = 0
    generated: int = 0
    replica: int = -1
    admit: float = math.nan
    first: float = math.nan
    end: float = math.nan
    reason: str = ""


@dataclass
class Engine:
    profile: Profile
    convention: str
    limit: int
    index: int
    last_change: int
    active: list = field(default_factory=list)
    queue: deque = field(default_factory=deque)
    boundary: float = -1.0
    step_end: float = math.inf

    @property
    def load(self):
        return len(self.active) + len(self.queue)

    def blocks(self, request):
        return -(-(request.input + request.output) // int(self.profile.block_tokens))

    def fits(self, request):
        if len(self.active) >= self.limit:
            return False
        reserved = sum(self.blocks(r) for r in self.active)
        return self.convention == "kimura" or reserved + self.blocks(request) <= int(self.profile.kv_blocks)

    def work(self, request):
        """Seconds that the request adds to the step that is about to run."""
        p = self.profile
        chunk = min(int(p.chunk_tokens), request.input - request.prompt_done)
        if self.convention == "kimura":
            held = float(p.per_sequence_s + p.per_token_s * (request.input + request.output))
            return held + max(float(p.prefill_per_token_s) * chunk - float(p.base_s), 0.0)
        base, compute = float(p.base_s), float(p.prefill_per_token_s) * chunk
        context = request.prompt_done + chunk if chunk > 0 else request.input + request.generated
        extra = (base**4 + compute**4) ** 0.25 - base + float(p.prefill_per_token2_s) * chunk * context
        return float(p.per_sequence_s) + float(p.per_token_s) * context + (extra if chunk > 0 else 0.0)

    def begin_step(self, now):
        self.boundary = now
        self.step_end = math.inf
        if self.active:
            self.step_end = now + float(self.profile.base_s) + sum(self.work(r) for r in self.active)

    def take_queue(self, now):
        while self.queue and self.fits(self.queue[0]):
            request = self.queue.popleft()
            request.admit = now
            self.active.append(request)

    def finish_step(self, now):
        """Every active request gets its chunk or its token; returns how many left."""
        for r in self.active:
            if r.prompt_done < r.input:
                r.prompt_done += min(int(self.profile.chunk_tokens), r.input - r.prompt_done)
                if r.prompt_done == r.input:
                    r.first = now
                    r.generated = 1 if self.convention == "step" else 0
            else:
                r.generated += 1
        gone = [r for r in self.active if r.prompt_done == r.input and r.generated == r.output]
        for r in gone:
            r.end = now
            self.active.remove(r)
        return len(gone)


def reject_reason(design, pool, request, limits, convention):
    total = request.input + request.output
    if pool is None:
        return REASONS[0]
    if total > design.max_context[pool]:
        return REASONS[1]
    blocks = -(-total // int(design.profile.block_tokens[pool]))
    if limits[pool] < 1 or (convention == "step" and blocks > design.profile.kv_blocks[pool]):
        return REASONS[2]
    return REASONS[3] if design.replicas[pool] == 0 else ""


def slot_limit(design, pool, convention):
    p = design.profile
    if convention == "step":
        return int(p.max_num_seqs[pool])
    context = int(design.max_context[pool])
    per_request = -(-context // int(p.block_tokens[pool]))
    return min(
        int(p.kv_blocks[pool]) // per_request,
        int(p.max_num_seqs[pool]) * int(p.calibration_context[pool]) // context,
    )


def step_by_step(design, convention, requests):
    """Run `requests` (in order of arrival) through the fleet, one step of one replica at a time."""
    limits = [slot_limit(design, p, convention) for p in range(design.num_pools)]
    engines, pool_of = [], []
    for pool in range(design.num_pools):
        for _ in range(int(design.replicas[pool])):
            index = len(engines)
            engines.append(Engine(design.profile.at(pool), convention, limits[pool], index, last_change=index - 10**6))
            pool_of.append(pool)
    changes = 0
    waiting = deque(requests)
    while True:
        running = min(engines, key=lambda e: (e.step_end, e.index), default=None)
        event = running.step_end if running is not None else math.inf
        if waiting and waiting[0].arrival < event:
            r = waiting.popleft()
            total = r.input + r.output
            pool = next((p for p in range(design.num_pools) if total <= design.upper_tokens[p]), None)
            r.reason = reject_reason(design, pool, r, limits, convention)
            if r.reason:
                continue
            mates = [e for e in engines if pool_of[e.index] == pool]
            e = min(mates, key=lambda e: (e.load, e.last_change))
            r.replica, e.last_change = e.index, changes
            changes += 1
            e.queue.append(r)
            if not e.active or e.boundary == r.arrival:
                e.take_queue(r.arrival)
                e.begin_step(r.arrival)
        elif event < math.inf:
            if running.finish_step(event):
                running.last_change = changes
                changes += 1
            running.take_queue(event)
            running.begin_step(event)
        else:
            return


def play_both(design, workload, convention):
    """The same requests through the stepper and through the engine; arrays over all requests of each."""
    rows = workload.arrival_row
    columns = (workload.arrival_s, workload.input_tokens[rows], workload.output_tokens[rows])
    slow = [Request(float(a), int(i), int(o)) for a, i, o in zip(*columns, strict=True)]
    step_by_step(design, convention, slow)
    fleet = lower.lower_fleet(design, convention)
    routing = route_by_length(design, workload, max_active=fleet.max_active, free_blocks=fleet.kv_blocks)
    kinds = lower.lower_kinds(design, workload, routing, convention)
    accepted = routing.pool[rows] >= 0
    history = lower.play(fleet, kinds, lower.Stream(workload.arrival_s[accepted], rows[accepted]))
    reasons = ["" if k < 0 else REASONS[k] for k in routing.reason[rows]]
    assert [r.reason for r in slow] == reasons
    kept = [r for r in slow if not r.reason]
    return kept, history


def assert_same_history(design, workload, convention, rtol=1e-9):
    kept, history = play_both(design, workload, convention)
    np.testing.assert_array_equal([r.replica for r in kept], history.replica)
    for name in ("admit", "first", "end"):
        expected = np.array([getattr(r, name) for r in kept])
        assert np.all(np.isfinite(expected))
        np.testing.assert_allclose(getattr(history, f"{name}_s"), expected, rtol=rtol, atol=0, err_msg=name)


def make_profile(**changes):
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
    }
    return Profile(**{**values, **changes})


@st.composite
def fleets(draw, exact):
    """Small fleets. `exact` ones have coefficients for which float arithmetic is exact, so that instants tie."""
    num_pools = draw(st.integers(1, 3))
    uppers = sorted(draw(st.lists(st.integers(10, 40), min_size=num_pools, max_size=num_pools)))
    profiles = []
    for _ in range(num_pools):
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        changes = {
            "chunk_tokens": draw(st.integers(1, 9)),
            "max_num_seqs": draw(st.integers(1, 6)),
            "kv_blocks": draw(st.integers(4, 30)),
            "block_tokens": draw(st.integers(1, 5)),
            "calibration_context": draw(st.integers(10, 60)),
        }
        if exact:
            changes["per_sequence_s"] = draw(st.sampled_from([0.0, 0.5, 1.0]))
            changes["per_token_s"] = draw(st.sampled_from([0.0, 0.25]))
        else:
            changes["base_s"] = rng.uniform(0.1, 1.0)
            changes["per_sequence_s"] = rng.uniform(0.001, 0.3)
            changes["per_token_s"] = rng.uniform(0.0001, 0.05)
            if draw(st.booleans()):
                changes["prefill_per_token_s"] = rng.uniform(0.01, 0.3)
                changes["prefill_per_token2_s"] = rng.uniform(0.0, 0.01)
        profiles.append(changes)
    replicas = [draw(st.sampled_from([1, 2, 3, 4, 0])) for _ in range(num_pools)]
    limits = [max(1, u + draw(st.integers(-3, 3))) for u in uppers]
    return profiles, replicas, uppers, limits


@st.composite
def workloads(draw, exact):
    number = draw(st.sampled_from([1, 4, 15, 40, 80]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    inputs = rng.integers(1, draw(st.sampled_from([3, 10, 30])), number)
    outputs = rng.integers(1, draw(st.sampled_from([2, 6, 12])), number)
    spread = draw(st.sampled_from([0.1, 1.0, 3.0])) * number
    if exact:
        arrivals = rng.integers(0, 1 + int(2 * spread), number) / 2.0
    else:
        arrivals = rng.uniform(0.0, spread, number)[np.sort(rng.integers(0, number, number))]
    return inputs, outputs, arrivals


def build(fleet, lengths):
    profiles, replicas, uppers, limits = fleet
    inputs, outputs, arrivals = lengths
    design = FleetDesign.of([make_profile(**p) for p in profiles], replicas, uppers, max_context=limits)
    return design, Workload.from_lengths(inputs, outputs, arrival_s=arrivals)


@pytest.mark.parametrize("convention", ["step", "kimura"])
@settings(max_examples=EXAMPLES, deadline=None)
@given(fleet=fleets(exact=False), lengths=workloads(exact=False))
def test_engine_equals_the_stepper_event_for_event(fleet, lengths, convention):
    assert_same_history(*build(fleet, lengths), convention)


@pytest.mark.parametrize("convention", ["step", "kimura"])
@settings(max_examples=EXAMPLES, deadline=None)
@given(fleet=fleets(exact=True), lengths=workloads(exact=True))
def test_ties_between_boundaries_and_arrivals_are_decided_by_the_rule(fleet, lengths, convention):
    assert_same_history(*build(fleet, lengths), convention)


def test_a_long_busy_period_agrees_too():
    """Thousands of events on replicas that never empty, with every kind of phase."""
    rng = np.random.default_rng(3)
    number = 150 if numba.config.DISABLE_JIT else 1500
    profile = make_profile(base_s=0.31, per_token_s=0.0007, max_num_seqs=8, kv_blocks=60, prefill_per_token_s=0.02)
    workload = Workload.from_lengths(
        rng.integers(1, 40, number),
        rng.integers(1, 25, number),
        arrival_s=rng.uniform(0, 0.5 * number, number),
    )
    assert_same_history(FleetDesign.of(profile, [2, 1], [30, 64]), workload, "step")
