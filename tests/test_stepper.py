"""The slow stepper by itself: cases worked out by hand, and what holds in any run."""

import math
from itertools import pairwise

import numba
import pytest
import serving_strategies
from hypothesis import assume, given, settings
from serving_strategies import make_profile
from stepper import Options, Replica, Request, ceil_div, run

from des._random import uniform
from des.serving import Serving
from jaxsim.fleet import FleetDesign

EXAMPLES = 15 if numba.config.DISABLE_JIT else 60
BUDGETED = ("chunked", "decode-first", "prefill-first")
SECOND = {"per_sequence_s": 0.0, "per_token_s": 0.0, "block_tokens": 2, "chunk_tokens": 10}
"""Changes of the profile that make every step last one second."""


def play(rows, *, convention="step", replicas=(1,), profiles=None, options=None, serving=None, **profile):
    """Run requests given as (due, input, output) or with more arguments of `Request`; returns them."""
    profiles = profiles or [make_profile(**{**SECOND, **profile})] * len(replicas)
    design = FleetDesign.of(profiles, replicas, [64] * len(replicas))
    requests = [Request(number, *row) for number, row in enumerate(rows)]
    run(design, convention, serving or Serving(), requests, options or Options())
    return requests


def column(requests, name):
    return [getattr(r, name) for r in requests]


LAW = {
    "per_sequence_s": 0.25,
    "per_token_s": 0.125,
    "prefill_per_token2_s": 0.0625,
    "overhead_s": 0.5,
    "chunk_tokens": 4,
    "kv_blocks": 99,
}


@pytest.mark.parametrize(
    ("convention", "scheduling", "first", "end", "steps"),
    [
        ("step", "independent", 3.25 + 2.6875, 3.25 + 2.6875 + 2.5 + 2.625, 4),
        ("step", "chunked", 3.25 + 2.6875, 3.25 + 2.6875 + 2.5 + 2.625, 4),
        ("step", "decode-first", 3.9375, 3.9375 + 2.5 + 2.625, 3),
        ("step", "prefill-first", 3.9375, 3.9375 + 2.5 + 2.625, 3),
        ("kimura", "independent", 2 * 2.75, 5 * 2.75, 5),
    ],
)
def test_one_request_alone(convention, scheduling, first, end, steps):
    """Prompt pieces 4 and 1 (or 5 whole) and decode contexts 6 and 7; the reference holds 8 in all 2 + 3 steps."""
    serving = Serving(scheduling=scheduling, max_num_batched_tokens=4 if scheduling in BUDGETED else None)
    (r,) = play([(1.0, 5, 3)], convention=convention, serving=serving, **LAW)
    assert (r.sent, r.admit, r.first - 1.0, r.end - 1.0, r.steps, r.replica) == (1.0, 1.0, first, end, steps, 0)


def test_two_prompts_share_a_chunk_budget():
    """Of 4 tokens: 3 and 1, then one decode and the other 2; the smooth maximum is over the step's prompt tokens."""
    serving = Serving(scheduling="chunked", max_num_batched_tokens=4)
    requests = play([(0.0, 3, 2), (0.0, 3, 2)], serving=serving, prefill_per_token_s=1.0)
    first, second = 257**0.25, 17**0.25
    assert column(requests, "first") == pytest.approx([first, first + second])
    assert column(requests, "end") == pytest.approx([first + second, first + second + 1.0])


@pytest.mark.parametrize(
    ("scheduling", "late_input", "early_end", "late_first"),
    [
        ("prefill-first", 2, 4.0, 2.0),  # the decode pauses in the second step
        ("decode-first", 2, 3.0, 2.0),  # both in one step
        ("decode-first", 4, 3.0, 4.0),  # the whole prompt does not fit beside the decode
        ("chunked", 4, 3.0, 3.0),  # three of it do
        ("independent", 4, 3.0, 2.0),
    ],
)
def test_a_prompt_comes_while_another_request_decodes(scheduling, late_input, early_end, late_first):
    serving = Serving(scheduling=scheduling, max_num_batched_tokens=4 if scheduling in BUDGETED else None)
    early, late = play([(0.0, 2, 3), (0.5, late_input, 1)], serving=serving)
    assert (early.end, late.first, late.end) == (early_end, late_first, late_first)
    assert (early.steps, late.steps) == (early_end, late_first - late.admit)  # a paused step is a step, too


def test_a_request_joins_at_the_instant_of_a_boundary_and_waits_within_a_step():
    requests = play([(0.0, 1, 4), (1.0, 1, 1), (1.5, 1, 1)])
    assert column(requests, "admit") == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("preemption", "chunk", "first", "end", "steps"),
    [
        ("recompute", 10, 1.0, 5.0, 4),  # one more step for its 5 tokens
        ("recompute", 1, 2.0, 10.0, 4 + 5),  # one step for each
        ("cached", 1, 2.0, 8.0, 4 + 3),  # its second block was reused, its first was not
        ("swap", 10, 1.0, 6.0, 4),  # 4 tokens out and 4 tokens in, an eighth of a second each
    ],
)
def test_growth_preempts_the_later_request(preemption, chunk, first, end, steps):
    """Two requests hold 2 of 4 blocks each; both want a third, so the later one goes until the earlier ends."""
    swap = 0.125 if preemption == "swap" else 0.0
    serving = Serving(kv="grow", preemption=preemption, swap_s_per_token=swap)
    early, late = play([(0.0, 2, 4), (0.0, 2, 4)], serving=serving, kv_blocks=4, chunk_tokens=chunk)
    assert (early.preemptions, early.end) == (0, first + 3.0 + 4 * swap)
    assert (late.preemptions, late.admit, late.first, late.end, late.steps) == (1, 0.0, first, end, steps)


@pytest.mark.parametrize(("kv", "admit", "first"), [("reserve", 1.0, 2.0), ("grow", 2.0, 3.0)])
def test_a_step_opened_for_decoding_takes_no_prompt(kv, admit, first):
    """Who comes at the instant of a boundary joins there; not where its tokens have been given their blocks."""
    serving = Serving(scheduling="prefill-first", max_num_batched_tokens=4, kv=kv)
    early, late = play([(0.0, 2, 3), (1.0, 2, 1)], serving=serving)
    assert (late.admit, late.first) == (admit, first)
    assert (early.first, early.end, early.steps) == (1.0, 4.0, 4)


def test_a_swapped_request_comes_back_when_its_next_token_has_room():
    """Its four tokens would fit the two blocks that are free at 3.0, but not the fifth, which it stores at once. So it
    waits for the early one to end at 5.5, swaps in for half a second, and nobody overtakes it."""
    serving = Serving(kv="grow", preemption="swap", swap_s_per_token=0.125)
    early, late, last = play([(0.0, 2, 5), (0.0, 2, 4), (3.0, 1, 1)], serving=serving, kv_blocks=5)
    assert (early.end, late.end, late.preemptions) == (5.5, 7.0, 1)
    assert (last.admit, last.end) == (5.5, 7.0)
    assert column([early, late, last], "steps") == [5, 4, 1]


def test_overflow_restarts_the_longest():
    """A small request takes the room of a large one, which starts again when the small one has left."""
    large, small = play([(0.0, 2, 6), (0.5, 1, 1)], serving=Serving(kv="overflow"), kv_blocks=4)
    assert (small.admit, small.end) == (1.0, 2.0)
    assert (large.preemptions, large.admit, large.first, large.end, large.steps) == (1, 2.0, 3.0, 8.0, 7)


@pytest.mark.parametrize(("totals", "victim"), [((8, 4), 0), ((4, 8), 1), ((6, 6), 1)])
def test_overflow_takes_the_longest_and_of_equals_the_later(totals, victim):
    rows = [(0.0, 2, total - 2) for total in totals] + [(0.5, 1, 1)]
    requests = play(rows, serving=Serving(kv="overflow"), kv_blocks=6)
    assert [r.number for r in requests if r.preemptions > 0] == [victim]


def test_a_request_that_overflow_preempted_waits_for_room():
    """No livelock: two requests that each need all blocks run one after the other."""
    one, two = play([(0.0, 2, 6), (0.5, 2, 6)], serving=Serving(kv="overflow"), kv_blocks=4)
    assert (one.preemptions, two.preemptions) == (1, 0)
    assert (two.end, one.end) == (7.0, 13.0)


def test_reserved_blocks_make_the_queue_wait():
    requests = play([(0.0, 2, 4), (0.0, 2, 2), (0.0, 1, 1)], kv_blocks=4)
    assert column(requests, "admit") == [0.0, 4.0, 4.0]


def test_one_link_moves_one_request_after_the_other():
    """Prompts end at 1; transfers take 2 s each; the third prompt waits for the first one's blocks."""
    rows = [(0.0, 2, 2), (0.0, 2, 2), (1.0, 2, 1)]
    options = Options(transfer=(1.0, 0.5))
    requests = play(rows, replicas=(1, 1), options=options, kv_blocks=2)
    assert column(requests, "prefill_end") == [1.0, 1.0, 4.0]
    assert column(requests, "transfer_end")[:2] == [3.0, 5.0]
    assert column(requests, "first") == [3.0, 5.0, 4.0]
    assert column(requests, "decode_admit")[:2] == [3.0, 5.0]
    assert column(requests, "end") == [4.0, 6.0, 4.0]
    assert column(requests, "replica") == [1, 1, 0]
    assert column(requests, "steps") == [2, 2, 1]


def test_a_closed_loop_of_one_client():
    requests = play([(0.0, 1, 1), (0.0, 1, 1), (5.0, 1, 2)], options=Options(concurrency=1))
    assert column(requests, "sent") == [0.0, 1.0, 5.0]
    assert column(requests, "end") == [1.0, 2.0, 7.0]


def test_a_failure_retries_elsewhere_and_a_fleet_that_is_down_holds():
    options = Options(timeline=((1.5, 0, "down"), (2.25, 1, "down"), (4.0, 0, "up")))
    (r,) = play([(0.0, 1, 3)], replicas=(2,), options=options)
    assert (r.retries, r.replica, r.admit, r.first, r.end) == (2, 0, 4.0, 5.0, 7.0)
    assert r.steps == 3  # those of the lives that were lost do not count


def test_draining_finishes_what_it_has():
    options = Options(timeline=((0.5, 0, "drain"), (3.5, 0, "up")))
    rows = [(0.0, 1, 9), (1.0, 1, 1), (2.0, 1, 1), (2.0, 1, 4), (4.0, 1, 1), (4.0, 1, 1)]
    requests = play(rows, replicas=(2,), options=options)
    assert column(requests, "replica") == [0, 1, 1, 1, 1, 0]  # who comes back is the latest of its load
    assert requests[0].end == 9.0


def test_shared_prefixes_are_not_computed_twice():
    """Two blocks of two tokens: 4 of 5 prompt tokens, 3 of 4, then only the first block survives a cache of one."""
    rows = [(0.0, 5, 1, 0, (0,), (7, 8)), (9.0, 5, 1, 0, (0,), (7, 8)), (19.0, 4, 1, 0, (0,), (7, 8))]
    options = Options(prefix_block_tokens=2)
    for capacity, prompt_steps in ((2, [5, 1, 1]), (1, [5, 3, 2]), (0, [5, 5, 4])):
        requests = play(rows, options=options, serving=Serving(prefix_cache_blocks=capacity), chunk_tokens=1)
        assert column(requests, "steps") == prompt_steps


# --- dispatch ---------------------------------------------------------------------------------------------------


def test_of_equally_loaded_replicas_the_one_unchanged_for_longest():
    requests = play([(0.0, 1, 9), (0.25, 1, 1), (0.5, 1, 1), (2.0, 1, 1), (2.0, 1, 1)], replicas=(3,))
    assert column(requests, "replica") == [0, 1, 2, 1, 2]


def test_round_robin_turns_through_the_members_and_the_last_takes_the_place_of_one_that_leaves():
    options = Options(dispatch="round-robin", timeline=((1.5, 0, "drain"),))
    requests = play([(float(due), 1, 1) for due in range(6)], replicas=(3,), options=options)
    assert column(requests, "replica") == [0, 1, 2, 1, 2, 1]


@pytest.mark.parametrize("dispatch", ["random", "power-of-two"])
def test_random_dispatch_takes_the_hash_of_the_request(dispatch):
    options = Options(dispatch=dispatch, seed=5)
    requests = play([(30.0 * n, 1, 1) for n in range(20)], replicas=(7,), options=options)
    assert column(requests, "replica") == [int(uniform(5, n, 0) * 7) for n in range(20)]


def test_a_full_pool_spills_over():
    rows = [(0.0, 1, 9, 0, (0, 1))] * 4 + [(0.0, 1, 9, 0, (0,))]
    requests = play(rows, replicas=(1, 1), options=Options(spill_pressure=0.5), max_num_seqs=4)
    assert column(requests, "replica") == [0, 0, 1, 1, 0]


def test_any_pool_means_the_least_full_one():
    profiles = [make_profile(**SECOND, max_num_seqs=seqs, kv_blocks=99) for seqs in (2, 4)]
    requests = play([(0.0, 1, 9, -1, (0, 1))] * 6, replicas=(1, 1), profiles=profiles)
    assert column(requests, "replica") == [0, 1, 1, 0, 1, 1]


def test_prefix_affinity_follows_the_prefix_until_the_load_is_too_uneven():
    rows = [(0.0, 4, 9, 0, (0,), (1, 2))] + [(1.0, 4, 9, 0, (0,), (1, 2))] * 3
    options = Options(dispatch="prefix-affinity", affinity_slack=2, prefix_block_tokens=2)
    serving = Serving(prefix_cache_blocks=8)
    requests = play(rows, replicas=(2,), options=options, serving=serving, max_num_seqs=8, kv_blocks=99)
    assert column(requests, "replica") == [0, 0, 0, 1]


# --- what holds in any run --------------------------------------------------------------------------------------


def finished(case):
    """The case's requests after a run."""
    requests = case.requests()
    assume(requests)
    run(case.design, case.convention, case.serving, requests, case.options)
    return requests


def holds(exact, **fixed):
    """A property of 60 drawn cases."""

    def decorate(test):
        return settings(max_examples=EXAMPLES, deadline=None)(
            given(serving_strategies.cases(exact=exact, **fixed))(test)
        )

    return decorate


def assert_history(r, case):
    if case.options.transfer is not None and r.output > 1:
        if r.decode_admit >= r.first:  # not restarted as a prompt in pool 1
            assert r.admit < r.prefill_end <= r.transfer_end <= r.decode_admit
        assert r.decode_admit < r.end
    assert r.due <= r.sent <= r.admit < r.first <= r.end < math.inf


@holds(exact=True)
def test_every_request_ends_after_it_began(case):
    for r in finished(case):
        assert_history(r, case)


@holds(exact=False)
def test_every_request_ends_after_it_began_at_any_instants(case):
    for r in finished(case):
        assert_history(r, case)


@holds(exact=False, scheduling="independent", features=("any", "spill", "closed"))
def test_an_undisturbed_request_takes_its_steps(case):
    for r in finished(case):
        if r.preemptions == 0:
            chunk = int(case.design.profile.chunk_tokens[replica_pool(case.design, r.replica)])
            assert r.steps == ceil_div(r.input, chunk) + r.output - (case.convention == "step")


def replica_pool(design, replica):
    ends = design.replicas.cumsum()
    return next(pool for pool, end in enumerate(ends) if replica < end)


@holds(exact=True, features=("closed", "any", "timeline", "transfer"))
def test_a_closed_loop_never_has_more_outstanding(case):
    assume(case.options.concurrency)
    requests = finished(case)
    for r in requests:
        outstanding = sum(other.sent <= r.sent < other.end and other.number <= r.number for other in requests)
        assert outstanding <= case.options.concurrency


@holds(exact=False, features=("transfer", "closed", "timeline"), convention="step")
def test_transfers_do_not_overlap(case):
    assume(case.options.transfer is not None)
    latency, per_token = case.options.transfer
    moved = sorted((r.transfer_end, r.input) for r in finished(case) if r.output > 1 and r.retries == 0)
    for (before, _), (after, tokens) in pairwise(moved):
        assert after - before >= (latency + tokens * per_token) - 1e-9


class Watched(Replica):
    """A replica that checks itself whenever it has decided on a step."""

    def start_step(self):
        super().start_step()
        self.check_limits()
        self.check_blocks()
        self.check_budget()
        self.check_order()

    def check_limits(self):
        assert len(self.running) <= self.law.limit
        assert len({r.number for r in [*self.running, *self.queue]}) == self.load
        assert all((r.piece > 0) != r.decoding for r in self.running)
        assert all(r.generated > 0 for r in self.decoders())
        if self.queue and not self.preempted:
            assert not self.fits(self.queue[0])
            assert self.running or self.prefill_only

    def check_blocks(self):
        """None is lost; a decoding request has its own, but for the coming token where decoding pauses."""
        held = sum(r.held for r in self.running)
        assert len(self.free) + held <= self.law.blocks
        assert self.prefill_only or len(self.free) + held == self.law.blocks
        assert all(r.held == 0 for r in self.queue if not self.prefill_only and r.replica == self.number)
        if self.serving.kv == "grow":
            for r in self.running:
                later = r.decoding and self.paused
                assert r.held >= ceil_div(self.context(r) - later, self.law.block_tokens)

    def check_budget(self):
        scheduling, most = self.serving.scheduling, self.serving.max_num_batched_tokens
        if scheduling == "independent":
            return
        pieces = [r for r in self.running if r.piece > 0]
        unfinished = [r for r in pieces if r.done + r.piece < r.prompt]
        assert len(unfinished) <= (1 if scheduling == "chunked" else 0)
        if len(pieces) > 1 or scheduling == "chunked":
            decoding = 0 if scheduling == "prefill-first" else len(self.decoders())
            came_back = any(r.transferred or self.serving.preemption == "swap" for r in self.decoders())
            assert came_back or sum(r.piece for r in pieces) + decoding <= most

    def check_order(self):
        """First come, first served, also among the preempted, where requests come in order of number."""
        in_order = self.options.transfer is None and not self.options.timeline
        if in_order and self.serving.kv != "overflow":
            numbers = [r.number for r in self.queue]
            assert numbers == sorted(numbers)
            assert max((r.number for r in self.running), default=-1) < min(numbers, default=math.inf)


@pytest.mark.parametrize("kv", ["reserve", "overflow", "grow"])
@pytest.mark.parametrize("scheduling", ["independent", *BUDGETED])
def test_replicas_keep_their_rules_in_every_step(scheduling, kv):
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(serving_strategies.cases(exact=True, convention="step", scheduling=scheduling, kv=kv))
    def check(case):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("stepper.Replica", Watched)
            assert all(math.isfinite(r.end) for r in finished(case))

    check()
