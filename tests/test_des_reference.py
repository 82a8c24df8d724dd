"""The event engine against a slow and obvious simulator that runs every step of every replica, token by token."""

import numba
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from playing import play_parts
from serving_strategies import CONVENTIONS, FEATURES, Case, cases
from stepper import Options, as_arrays, run

from des import lower
from des._state import DOWN, DRAIN, TIMELINE, UP
from des.play import PrefixBlocks, Rules, Stream
from des.serving import PREEMPTION, SCHEDULING, Serving

EXAMPLES = 5 if numba.config.DISABLE_JIT else 60
WHAT = {"down": DOWN, "drain": DRAIN, "up": UP}


def rules_of(case, requests):
    options = case.options
    timeline = np.array([(t, r, WHAT[what]) for t, r, what in options.timeline], dtype=TIMELINE)
    ids = {block: i for i, block in enumerate(sorted({b for r in requests for b in r.blocks}))}
    counts = [len(r.blocks) for r in requests]
    blocks = PrefixBlocks(
        np.array([ids[b] for r in requests for b in r.blocks], dtype=np.int32),
        np.concatenate([[0], np.cumsum(counts)]),
        options.prefix_block_tokens,
    )
    return Rules(
        serving=case.serving,
        dispatch=options.dispatch,
        affinity_slack=options.affinity_slack,
        spill_pressure=np.inf if options.spill_pressure is None else options.spill_pressure,
        concurrency=options.concurrency or 0,
        transfer=options.transfer,
        timeline=timeline,
        blocks=blocks,
        seed=options.seed,
    )


def play_fast(case, requests, **settings):
    """The requests through the event engine: records in order of number."""
    disaggregated = case.options.transfer is not None
    fleet = lower.lower_fleet(case.design, case.convention, case.serving, disaggregated=disaggregated)
    pools = range(case.design.num_pools)
    holds = np.array([[p in r.pools or disaggregated for r in requests] for p in pools])
    due, pool, inputs, outputs = as_arrays(requests, "due", "pool", "input", "output")
    kinds = lower.lower_kinds(fleet, inputs.astype(float), outputs.astype(float), holds, case.serving)
    number = np.arange(len(requests))
    cut = len(requests) // 2  # the stream may come in parts
    parts = [Stream(due[s], number[s], pool[s]) for s in (slice(0, cut), slice(cut, None))]
    return play_parts(fleet, kinds, parts, rules_of(case, requests), **settings).records


def assert_same(case, **settings):
    slow = case.requests()
    run(case.design, case.convention, case.serving, slow, case.options)
    fast = play_fast(case, case.requests(), **settings)
    for name in ("replica", "preemptions", "retries", "steps"):
        np.testing.assert_array_equal(fast[name], as_arrays(slow, name)[0], err_msg=name)
    pairs = {"sent_s": "sent", "admit_s": "admit", "first_s": "first", "end_s": "end"}
    if case.options.transfer is not None:
        pairs |= {"prefill_end_s": "prefill_end", "decode_admit_s": "decode_admit"}
    for ours, theirs in pairs.items():
        expected = as_arrays(slow, theirs)[0]
        expected = np.where(np.isnan(expected), -1.0, expected)
        if ours == "prefill_end_s":
            expected = np.where(fast[ours] < 0, -1.0, expected)  # one output token: it ends there
        np.testing.assert_allclose(fast[ours], expected, rtol=1e-9, atol=1e-9, err_msg=ours)


KV = [("reserve", "recompute"), ("overflow", "recompute"), *(("grow", preemption) for preemption in PREEMPTION)]


@pytest.mark.parametrize(("kv", "preemption"), KV)
@pytest.mark.parametrize("scheduling", SCHEDULING)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data(), exact=st.booleans())
def test_engine_equals_the_stepper_event_for_event(data, exact, scheduling, kv, preemption):
    """Whole service and no further feature: every scheduling with every KV rule."""
    drawn = cases(
        exact=exact, convention="step", scheduling=scheduling, kv=kv, preemption=preemption, features=("prefix",)
    )
    case = data.draw(drawn)
    assume(case.rows)
    assert_same(case)


@pytest.mark.parametrize("convention", CONVENTIONS)
@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(data=st.data(), exact=st.booleans())
def test_engine_equals_the_stepper_with_every_feature(data, exact, convention):
    case = data.draw(cases(exact=exact, convention=convention, features=FEATURES))
    assume(case.rows)
    assert_same(case)


@pytest.mark.parametrize("feature", FEATURES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data(), exact=st.booleans())
def test_engine_equals_the_stepper_with_one_feature(data, exact, feature):
    case = data.draw(cases(exact=exact, convention="step", features=(feature,)))
    assume(case.rows)
    assert_same(case)


@pytest.mark.parametrize("kv", ["reserve", "grow"])
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_sums_computed_anew_change_nothing(data, kv):
    case = data.draw(cases(exact=False, convention="step", kv=kv))
    assume(case.rows)
    assert_same(case, refresh_steps=3)


@pytest.mark.parametrize(
    "serving",
    [Serving(), Serving(scheduling="chunked", max_num_batched_tokens=16, kv="grow", preemption="cached")],
    ids=["reserve", "grow"],
)
def test_a_long_busy_period_agrees_too(serving):
    """Thousands of events on replicas that never empty, with every kind of phase."""
    rng = np.random.default_rng(3)
    number = 150 if numba.config.DISABLE_JIT else 1500
    changes = {"base_s": 0.31, "per_token_s": 0.0007, "max_num_seqs": 8, "kv_blocks": 60, "prefill_per_token_s": 0.02}
    due = np.sort(rng.uniform(0, 0.5 * number, number))
    table = list(zip(due, rng.integers(1, 40, number), rng.integers(1, 25, number), [()] * number, strict=True))
    table = [(float(t), int(i), int(o), b) for t, i, o, b in table]
    case = Case("step", serving, Options(), frozenset(), False, [changes] * 2, [2, 1], [30, 64], [30, 64], table)
    assert_same(case)
