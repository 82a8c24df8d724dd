"""Routers: each rule by hand, the price of not knowing a length, compression, and what holds for all of them."""

import dataclasses
import math
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from fleets import figures, make_profile, small_workload
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from des.knowledge import InputOnly, InputPlusMax, Knowledge, Predicted, Total
from des.router import DISPATCH, check_knows
from des.routers import (
    KNOWLEDGE,
    ROUTERS,
    AnyRouter,
    CompressRouter,
    LengthRouter,
    ModelRouter,
    SpilloverRouter,
)
from des.routing import ANY_POOL, NO_POOL, REASONS, capability
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload

BEYOND, CONTEXT, KV, EMPTY = range(4)


def design_of(upper, *, replicas=None, max_context=None, kv_blocks=1000):
    """Pools of one profile with 16-token blocks and a KV cache of 16,000 tokens."""
    replicas = [1.0] * len(upper) if replicas is None else replicas
    return FleetDesign.of(make_profile(kv_blocks=kv_blocks), replicas, upper, max_context=max_context)


def limits(design):
    """What a replica of each pool admits under the step convention."""
    profile = design.profile
    return {
        "max_active": np.asarray(profile.max_num_seqs).astype(np.int64),
        "free_blocks": np.asarray(profile.kv_blocks).astype(np.int64),
    }


def table_of(router, workload, design):
    served = router.served(workload, design)
    return router.table(served, capability(design, served, **limits(design)))


def route_rows(router, workload, design, *, rows=None, seed=0):
    """Each row once, or the rows given."""
    rows = np.arange(len(workload.weight)) if rows is None else np.asarray(rows)
    table = table_of(router, workload, design)
    return table, table.route(rows.astype(np.int32), np.random.default_rng(seed))


def slow_pool(design, known, total):
    """(pool, pool that was meant, reason) of one request, by the words of the documents."""
    for p in range(design.num_pools):
        if known <= design.upper_tokens[p]:
            if total > design.max_context[p]:
                return NO_POOL, p, CONTEXT
            if math.ceil(total / 16) > design.profile.kv_blocks[p]:
                return NO_POOL, p, KV
            return (p, p, -1) if design.replicas[p] >= 1 else (NO_POOL, p, EMPTY)
    return NO_POOL, -1, BEYOND


def found_pools(routed):
    """The same of each routed request."""
    return list(zip(routed.pool.tolist(), routed.meant.tolist(), routed.reason.tolist(), strict=True))


ROWS = Workload.from_lengths([100, 900, 1000, 3000, 19_000, 30_000], [50, 100, 24, 800, 900, 3000])
"""Totals 150, 1000, 1024, 3800, 19900, 33000."""


# --- by length ---------------------------------------------------------------------------------------------


def test_by_length_to_the_first_pool_that_takes_it_or_why_not():
    design = design_of([1000, 4000, 30_000], replicas=[1.0, 0.0, 2.0])
    table, routed = route_rows(LengthRouter(), ROWS, design)
    assert routed.pool.tolist() == [0, 0, NO_POOL, NO_POOL, NO_POOL, NO_POOL]
    assert routed.meant.tolist() == [0, 0, 1, 1, 2, -1]
    assert routed.reason.tolist() == [-1, -1, EMPTY, EMPTY, KV, BEYOND]
    assert routed.row.tolist() == list(range(6))
    assert not table.draws
    assert table.holds[:, 1].tolist() == [True, False, True]


def test_a_threshold_above_max_context_rejects_by_context():
    _, routed = route_rows(LengthRouter(), ROWS, design_of([4000, 40_000], max_context=[3500, 40_000], kv_blocks=9000))
    assert routed.reason.tolist() == [-1, -1, -1, CONTEXT, -1, -1]
    assert routed.pool.tolist() == [0, 0, 0, NO_POOL, 1, 1]


def test_capability_names_the_first_reason():
    design = design_of([1000, 40_000], replicas=[0.0, 0.0], max_context=[500, 40_000])
    reasons = capability(design, ROWS, **limits(design))
    assert reasons.tolist() == [[EMPTY, *[CONTEXT] * 5], [EMPTY] * 4 + [KV, KV]]
    none = capability(design, ROWS, max_active=np.array([0, 1]), free_blocks=np.array([1, 10**6]))
    assert none.tolist() == [[KV, *[CONTEXT] * 5], [EMPTY] * 6]


POOLS = st.lists(st.tuples(*(st.integers(low, high) for low, high in ((1, 110), (0, 2), (1, 110), (1, 7)))), min_size=1)
"""Of each pool: threshold, replicas, max_context, KV blocks; so that some requests are rejected for each reason."""
REQUESTS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=12)


def fleet_of(requests, pools):
    """A workload and a design."""
    upper, replicas, context, blocks = zip(*pools[:4], strict=True)
    design = FleetDesign.of(
        [make_profile(kv_blocks=b) for b in blocks], [float(r) for r in replicas], sorted(upper), max_context=context
    )
    return Workload.from_lengths(*zip(*requests, strict=True)), design


@settings(max_examples=150, deadline=None)
@given(REQUESTS, POOLS)
def test_an_oracle_routes_as_the_documents_say(requests, pools):
    workload, design = fleet_of(requests, pools)
    table, routed = route_rows(LengthRouter(), workload, design)
    assert found_pools(routed) == [slow_pool(design, total, total) for total in workload.total_tokens]
    assert routed.row.tolist() == list(range(len(workload.weight)))
    assert not table.draws


@settings(max_examples=100, deadline=None)
@given(REQUESTS, POOLS, st.sampled_from(["input", "max"]))
def test_what_is_known_decides_and_the_truth_rejects(requests, pools, what):
    workload, design = fleet_of(requests, pools)
    knows = InputOnly() if what == "input" else InputPlusMax(max_tokens=40)
    _, routed = route_rows(LengthRouter(knows=knows), workload, design)
    known = workload.input_tokens + (0 if what == "input" else 40)
    assert found_pools(routed) == [slow_pool(design, k, t) for k, t in zip(known, workload.total_tokens, strict=True)]


# --- the price of not knowing --------------------------------------------------------------------------------


def test_the_price_of_knowing_the_input_alone():
    """Row 2 (1000 + 24) fits the short pool by its input, and outgrows it; so does row 3 the second pool."""
    design = design_of([1000, 3500, 40_000], kv_blocks=9000)
    table, routed = route_rows(LengthRouter(knows=InputOnly()), ROWS, design)
    assert routed.meant.tolist() == [0, 0, 0, 1, 2, 2]
    assert routed.reason.tolist() == [-1, -1, CONTEXT, CONTEXT, -1, -1]
    assert table.tally(routed) == (0, 2, 0)
    expected = table.expected()
    assert (expected.too_short, expected.too_long) == pytest.approx((2 / 6, 0))
    assert expected.rejected[CONTEXT].tolist() == pytest.approx([1 / 6, 1 / 6, 0, 0])
    roomy = design_of([1000, 3500, 40_000], max_context=[4000, 4000, 40_000], kv_blocks=9000)
    _, routed = route_rows(LengthRouter(knows=InputOnly()), ROWS, roomy)
    assert routed.pool.tolist() == [0, 0, 0, 1, 2, 2]


def test_the_price_of_knowing_only_the_cap():
    """Nothing goes to too short a pool, and the longest is refused though it would fit."""
    design = design_of([1000, 4000, 33_000], kv_blocks=9000)
    table, routed = route_rows(LengthRouter(knows=InputPlusMax(max_tokens=3001)), ROWS, design)
    assert routed.meant.tolist() == [1, 1, 2, 2, 2, -1]
    assert routed.reason.tolist() == [-1] * 5 + [BEYOND]
    assert table.tally(routed) == (0, 0, 5)
    assert table.expected().too_long == pytest.approx(5 / 6)
    assert table.expected().rejected[BEYOND, -1] == pytest.approx(1 / 6)


def test_a_predicted_length_is_log_normal_about_the_truth():
    workload, design = Workload.from_lengths([500], [400]), design_of([700, 900, 1500], max_context=[1500] * 3)
    table, routed = route_rows(LengthRouter(knows=Predicted(error=0.5)), workload, design, rows=np.zeros(200_000))
    chances = np.diff(stats.norm.cdf(np.log(np.array([200, 400, 1000]) / 400) / 0.5), prepend=0, append=1)
    expected = table.expected()
    np.testing.assert_allclose(expected.weight[:3, 0], chances[:3], rtol=1e-12)
    assert expected.rejected[BEYOND, -1] == pytest.approx(chances[3])
    assert (expected.too_short, expected.too_long) == pytest.approx((chances[0], chances[2] + chances[3]))
    found = np.bincount(np.where(routed.meant < 0, 3, routed.meant), minlength=4) / 200_000
    np.testing.assert_allclose(found, chances, atol=4 * 0.5 / math.sqrt(200_000))
    tally = table.tally(routed)
    assert (tally.too_short, tally.too_long) == (
        np.sum(routed.meant == 0),
        np.sum((routed.meant == 2) | (routed.meant < 0)),
    )


def test_a_prediction_without_error_is_the_truth_and_error_costs():
    """Also for a total that equals its threshold."""
    workload, design = small_workload(), design_of([500, np.median(small_workload().total_tokens[:-1]), 7900])
    shares = []
    for error in (0.0, 1e-9, 0.1, 0.3, 1.0):
        table, routed = route_rows(LengthRouter(knows=Predicted(error=error)), workload, design)
        expected = table.expected()
        shares.append(expected.too_short + expected.too_long)
        if error == 0.0:
            _, oracle = route_rows(LengthRouter(knows=Total()), workload, design)
            for one, other in zip(routed, oracle, strict=True):
                np.testing.assert_array_equal(one, other)
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] > 0.14


# --- compression ---------------------------------------------------------------------------------------------


def test_compression_cuts_the_prompt_to_the_threshold():
    """Band of 1000: up to 1500. 1200 + 100 keeps 900 + 100; 20 + 1100 has no prompt to spare; 1400 + 101 is beyond."""
    workload = Workload.from_lengths([900, 1200, 1400, 20, 1400, 4400], [100, 100, 100, 1100, 101, 100])
    design = design_of([1000, 4000])
    router = CompressRouter(gamma=1.5, success=1.0)
    table, routed = route_rows(router, workload, design)
    before = np.stack([workload.input_tokens, workload.output_tokens], axis=1).tolist()
    served = table.served
    after = np.stack([served.input_tokens, served.output_tokens], axis=1)[routed.row].tolist()
    changed = {tuple(b): tuple(a) for b, a in zip(before, after, strict=True) if a != b}
    assert changed == {(1200, 100): (900, 100), (1400, 100): (900, 100)}
    assert np.all(served.total_tokens[served.num_given :] == 1000)
    assert served.source[routed.row].tolist() == list(range(6))
    pools = {tuple(b): p for b, p in zip(before, routed.pool.tolist(), strict=True)}
    assert pools == {(900, 100): 0, (1200, 100): 0, (1400, 100): 0, (20, 1100): 1, (1400, 101): 1, (4400, 100): NO_POOL}
    assert table.tally(routed) == (2, 0, 0)
    assert table.expected().compressed == pytest.approx(2 / 6)


def test_one_prompt_token_must_be_left():
    design = design_of([100, 400])
    left = {}
    for prompt, output in ((51, 99), (50, 100)):
        workload = Workload.from_lengths([prompt], [output])
        table, routed = route_rows(CompressRouter(gamma=2.0), workload, design)
        left[output] = table.served.input_tokens[routed.row].tolist()
    assert left == {99: [1.0], 100: [50.0]}


def test_the_threshold_next_below_counts_and_an_equal_one_leads_to_its_first_pool():
    workload, design = Workload.from_lengths([1000], [100]), design_of([500, 1000, 1000.5, 4000])
    table, routed = route_rows(CompressRouter(gamma=3.0), workload, design)
    assert (routed.pool.tolist(), routed.row.tolist()) == ([1], [1])
    assert table.served.total_tokens[1] == 1000


def test_compression_goes_by_what_is_known():
    """Known 1000 + 200: 200 tokens too many, so the prompt becomes 800, though 50 more would have fitted."""
    workload, design = Workload.from_lengths([1000], [150]), design_of([1000, 4000])
    table, _ = route_rows(CompressRouter(gamma=1.5, knows=InputPlusMax(max_tokens=200)), workload, design)
    assert table.served.input_tokens.tolist() == [1000, 800]
    table, routed = route_rows(CompressRouter(gamma=1.5, knows=InputOnly()), workload, design)
    assert not table.draws and routed.reason.tolist() == [CONTEXT]  # its input is not above the threshold


@pytest.mark.parametrize(
    ("router", "chance"),
    [
        (CompressRouter(gamma=2.0), 1.0),
        (CompressRouter(gamma=2.0, success=0.5), 0.5),
        (CompressRouter(gamma=2.0, success=0.5, compressible=0.5), 0.25),
        (CompressRouter(gamma=2.0, compressible={"rag": (0.5, 0.8), "prose": (0.3, 0.4), "code": (0.2, 0.0)}), 0.52),
        (CompressRouter(gamma=2.0, compressible={"all": (1.0, 1.0)}), 1.0),
        (CompressRouter(gamma=2.0, compressible={}), 0.0),
        (CompressRouter(gamma=1.0), 0.0),
    ],
)
def test_compression_succeeds_as_often_as_told(router, chance):
    workload, design = Workload.from_lengths([100, 1200], [100, 100]), design_of([1000, 4000])
    table, routed = route_rows(router, workload, design, rows=np.ones(50_000))
    compressed = table.tally(routed).compressed / 50_000
    assert compressed == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / 50_000))
    assert table.expected().compressed == pytest.approx(chance / 2)
    np.testing.assert_array_equal(routed.pool == 0, routed.row >= 2)


def test_compressed_requests_are_in_the_service_law_of_the_short_pool():
    """A published fleet simulator adds them to the rate and not to the service law, and is at 0.93 for 0.85."""
    workload, design = small_workload(), design_of([1500, 7900], replicas=[4.0, 4.0], kv_blocks=16_384)
    router = CompressRouter(gamma=1.5, success=0.8)
    becomes = router.expected_workload(workload, design)
    assert float(np.sum(becomes.weight)) == pytest.approx(1.0)
    assert becomes.mean(becomes.output_tokens) == pytest.approx(workload.mean(workload.output_tokens))
    assert becomes.mean(becomes.input_tokens) < workload.mean(workload.input_tokens)
    assert "compressed" in becomes.notes[-1]
    table = table_of(router, workload, design)
    expected = table.expected()
    moved = becomes.share_above(1500) - workload.share_above(1500)
    assert moved == pytest.approx(-expected.compressed)
    shares = becomes.split(jnp.array([1500.0, 7900.0]))
    served = expected.weight[:2]
    np.testing.assert_allclose(shares.share, served.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(
        shares.mean_input_tokens, served @ table.served.input_tokens / served.sum(axis=1), rtol=1e-12
    )
    total, steps = table.served.total_tokens, np.ceil(table.served.input_tokens / 512) + table.served.output_tokens
    told = figures(design, 20.0, model="kimura", workload=becomes).pools
    for p, slots in enumerate((174, 33)):  # 16,384 blocks over 94 and over 494
        service_s = steps * (0.01 + (2e-5 + 5e-8 * total) * slots)
        assert told.utilization[p] == pytest.approx(20.0 * served[p] @ service_s / (4 * slots), rel=1e-9)


def test_what_becomes_of_a_workload_that_nothing_changes_is_itself():
    workload, design = small_workload(), design_of([1500, 7900])
    for router in (LengthRouter(), AnyRouter(), CompressRouter(gamma=1.0), CompressRouter(gamma=2.0, success=0.0)):
        assert router.expected_workload(workload, design) is workload


# --- spill-over, models, any pool ------------------------------------------------------------------------------


def test_spill_over_is_length_routing_until_the_loop_looks_at_pressure():
    workload, design = small_workload(), design_of([500, 1500, 7900])
    router = SpilloverRouter(pressure=0.9)
    assert router.spill_pressure == 0.9
    assert LengthRouter().spill_pressure == math.inf
    _, spill = route_rows(router, workload, design)
    _, plain = route_rows(LengthRouter(), workload, design)
    for one, other in zip(spill, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_empty_pool_spills_over_always():
    totals = Workload.from_lengths([10, 110, 210, 310], [1, 1, 1, 1])
    pools = {}
    for replicas in ([0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0], [0.0] * 4):
        design = design_of([100, 200, 300, 400], replicas=replicas)
        _, routed = route_rows(SpilloverRouter(pressure=1.0), totals, design)
        pools[tuple(replicas)] = routed.pool.tolist()
        assert routed.meant.tolist() == [0, 1, 2, 3]
        assert np.all(routed.reason[routed.pool == NO_POOL] == EMPTY)
    assert list(pools.values()) == [[1, 1, 2, 3], [2, 2, 2, NO_POOL], [NO_POOL] * 4]


def test_each_model_has_its_pool():
    design = design_of([30_000] * 2, max_context=[2000, 30_000])
    router = ModelRouter(pool_of_model=(0, 1), model_of_row=np.array([0, 1, 1, 0, 1, 1]))
    table, routed = route_rows(router, ROWS, design)
    assert routed.pool.tolist() == [0, 1, 1, NO_POOL, NO_POOL, NO_POOL]
    assert routed.reason.tolist() == [-1, -1, -1, CONTEXT, KV, BEYOND]
    assert routed.meant.tolist() == [0, 1, 1, 0, 1, -1]
    assert table.tally(routed) == (0, 0, 0)


@pytest.mark.parametrize("shares", [[0.7, 0.3], [[0.7, 0.3]] * 6])
def test_models_may_share_a_row(shares):
    design = design_of([40_000] * 2, kv_blocks=9000)
    router = ModelRouter(pool_of_model=(1, 0), model_share=np.array(shares))
    table, routed = route_rows(router, ROWS, design, rows=np.full(20_000, 2))
    np.testing.assert_allclose(table.expected().weight.sum(axis=1), [0.3, 0.7, 0.0])
    assert np.mean(routed.pool == 1) == pytest.approx(0.7, abs=0.02)


def test_any_pool_or_why_none():
    """Where none holds it the reason is that of the pool that came nearest."""
    design = design_of([1000, 40_000], max_context=[1000, 20_000], replicas=[1.0, 0.0])
    table, routed = route_rows(AnyRouter(), ROWS, design)
    assert routed.pool.tolist() == [ANY_POOL, ANY_POOL, NO_POOL, NO_POOL, NO_POOL, NO_POOL]
    assert routed.reason.tolist() == [-1, -1, EMPTY, EMPTY, KV, CONTEXT]
    assert routed.meant.tolist() == [-1, -1, 1, 1, 1, 1]
    assert table.holds[:, :2].tolist() == [[True, True], [False, False]]
    expected = table.expected()
    assert expected.weight.sum(axis=1).tolist() == pytest.approx([0, 0, 2 / 6])
    assert expected.rejected.sum() == pytest.approx(4 / 6)


def test_beyond_the_last_threshold_no_router_takes_a_request():
    workload, design = Workload.from_lengths([900], [101]), design_of([500, 1000], max_context=[2000, 2000])
    for router in (LengthRouter(), SpilloverRouter(pressure=1.0), CompressRouter(gamma=3.0), AnyRouter(), models(2)):
        _, routed = route_rows(router, workload, design)
        assert (routed.pool.tolist(), routed.meant.tolist(), routed.reason.tolist()) == ([NO_POOL], [-1], [BEYOND])


# --- what holds for all ----------------------------------------------------------------------------------------


def models(num_pools):
    """Two models in the first and the last pool."""
    return ModelRouter(pool_of_model=(0, num_pools - 1), model_share=np.array([0.6, 0.4]))


def all_routers(num_pools):
    return (
        LengthRouter(),
        LengthRouter(knows=InputPlusMax(max_tokens=1000)),
        LengthRouter(knows=InputOnly()),
        LengthRouter(knows=Predicted()),
        SpilloverRouter(pressure=0.8, knows=Predicted(error=1.0)),
        CompressRouter(gamma=1.5, success=0.6, compressible=0.9),
        CompressRouter(gamma=2.0, compressible={"prose": (0.5, 0.9)}, knows=InputOnly()),
        models(num_pools),
        AnyRouter(dispatch="round-robin"),
    )


@settings(max_examples=60, deadline=None)
@given(REQUESTS, POOLS, st.integers(0, len(all_routers(1)) - 1), st.integers(0, 2**32))
def test_every_request_is_routed_or_rejected_once(requests, pools, which, seed):
    workload, design = fleet_of(requests, pools)
    router = all_routers(design.num_pools)[which]
    table = table_of(router, workload, design)
    rows = np.random.default_rng(seed).integers(0, len(workload.weight), 300).astype(np.int32)
    routed = table.route(rows, np.random.default_rng(seed))
    accepted = routed.reason == -1
    np.testing.assert_array_equal(accepted, routed.pool != NO_POOL)
    np.testing.assert_array_equal(table.served.source[routed.row], rows)
    reasons = capability(design, table.served, **limits(design))
    fixed = accepted & (routed.pool >= 0)
    assert np.all(reasons[routed.pool[fixed], routed.row[fixed]] == -1)
    assert np.all(table.holds[:, routed.row[accepted & ~fixed]].any(axis=0))
    assert np.all(routed.meant[fixed] <= routed.pool[fixed])
    rejected = ~accepted & (routed.meant >= 0)
    if not isinstance(router, SpilloverRouter):
        np.testing.assert_array_equal(reasons[routed.meant[rejected], routed.row[rejected]], routed.reason[rejected])
    assert np.all(routed.reason[~accepted & (routed.meant < 0)] == BEYOND)
    expected = table.expected()
    assert expected.weight.sum() + expected.rejected.sum() == pytest.approx(1.0)
    assert np.all(expected.weight >= 0) and np.all(expected.rejected >= 0)
    assert table.served.weight.sum() == pytest.approx(1.0)
    assert np.all(table.served.input_tokens >= 1)
    assert {column.dtype.name for column in routed} <= {"int32", "int16"}


@pytest.mark.parametrize("which", range(len(all_routers(3))))
def test_a_stream_may_be_cut_anywhere(which):
    workload, design = small_workload(), design_of([500, 1500, 7900])
    table = table_of(all_routers(3)[which], workload, design)
    rows = np.random.default_rng(1).integers(0, len(workload.weight), 5000).astype(np.int32)
    whole = table.route(rows, np.random.default_rng(7))
    generator = np.random.default_rng(7)
    parts = [table.route(part, generator) for part in np.split(rows, [0, 1, 7, 1000, 4999])]
    for name, column in whole._asdict().items():
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), column)


@pytest.mark.parametrize("which", range(len(all_routers(3))))
def test_the_expectation_is_what_happens_on_average(which):
    workload, design = small_workload(), design_of([500, 1500, 7900], max_context=[600, 1500, 7900])
    table = table_of(all_routers(3)[which], workload, design)
    number = 100_000
    rows = np.random.default_rng(3).choice(len(workload.weight), number, p=workload.weight).astype(np.int32)
    routed, expected = table.route(rows, np.random.default_rng(4)), table.expected()
    pool = np.where(routed.pool == ANY_POOL, 3, routed.pool)[routed.reason == -1]
    close = {"atol": 4 * 0.5 / math.sqrt(number)}
    np.testing.assert_allclose(np.bincount(pool, minlength=4) / number, expected.weight.sum(axis=1), **close)
    rejected = np.zeros_like(expected.rejected)
    gone = routed.reason >= 0
    np.add.at(rejected, (routed.reason[gone], routed.meant[gone]), 1 / number)
    np.testing.assert_allclose(rejected, expected.rejected, **close)
    shares = (expected.compressed, expected.too_short, expected.too_long)
    np.testing.assert_allclose(np.array(table.tally(routed)) / number, shares, **close)


def test_designs_see_the_same_numbers():
    """A higher threshold moves requests one way only: each keeps its prediction, and its luck in compression."""
    workload = small_workload()
    rows = np.random.default_rng(1).integers(0, len(workload.weight), 5000)
    low, high = (design_of([t, 7900], max_context=[7900, 7900]) for t in (900, 1100))
    for knows in (Predicted(), Predicted(error=1.0)):
        router = LengthRouter(knows=knows)
        _, one = route_rows(router, workload, low, rows=rows)
        _, two = route_rows(router, workload, high, rows=rows)
        assert np.all(np.where(two.meant < 0, 2, two.meant) <= np.where(one.meant < 0, 2, one.meant))
    compress = [table_of(CompressRouter(gamma=2.0, success=s), workload, low) for s in (0.4, 0.5)]
    one, two = (t.route(rows, np.random.default_rng(0)).row >= len(workload.weight) for t in compress)
    assert np.all(two[one]) and two.sum() > one.sum()


# --- words and errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", all_routers(2), ids=lambda r: type(r).__name__)
def test_a_router_describes_itself(router):
    text = router.describe()
    assert text.endswith("requests") or router.dispatch != "least-loaded"
    assert "  " not in text and "{" not in text
    assert pickle.loads(pickle.dumps(router)).describe() == text
    assert dataclasses.replace(router, dispatch="random").describe().endswith("a replica at random")


def test_an_oracle_says_that_it_is_one_and_compression_warns():
    assert "oracle" in LengthRouter().describe()
    assert "oracle" not in LengthRouter(knows=InputOnly()).describe()
    assert LengthRouter().warnings == ()
    assert "P99" in CompressRouter(gamma=1.5).warnings[0]
    affinity = AnyRouter(dispatch="prefix-affinity", affinity_slack=4)
    assert "4 requests more" in affinity.describe()


def test_names_of_a_plan_file():
    assert set(ROUTERS) == {"length", "spillover", "compress", "model", "any"}
    assert set(KNOWLEDGE) == {"total", "input-plus-max", "input", "predicted"}
    assert DISPATCH == ("least-loaded", "random", "round-robin", "power-of-two", "prefix-affinity")
    assert LengthRouter() == LengthRouter(knows=Total()) != LengthRouter(knows=InputOnly())


TWO = (0, 1)
BAD = {
    "dispatch": (lambda: LengthRouter(dispatch="least-load"), "unknown dispatch 'least-load'; did you mean 'least-lo"),
    "no slack": (
        lambda: AnyRouter(dispatch="prefix-affinity"),
        "affinity_slack must be given for dispatch='prefix-aff",
    ),
    "slack": (lambda: AnyRouter(affinity_slack=3), "and only then, got 3 with 'least-loaded'"),
    "negative slack": (
        lambda: AnyRouter(dispatch="prefix-affinity", affinity_slack=-1),
        "affinity_slack must be a whole number >= 0, got -1",
    ),
    "knows": (
        lambda: check_knows("total", Knowledge),
        "knows must be Total(), InputPlusMax(max_tokens=...), InputOnly() or",
    ),
    "class": (lambda: check_knows(Total, Knowledge), "knows must be Total(), "),
    "predicted": (
        lambda: CompressRouter(gamma=2.0, knows=Predicted()),
        "or InputOnly(), got Predicted(error=0.3); how",
    ),
    "pressure 0": (lambda: SpilloverRouter(pressure=0.0), "pressure must be > 0 and finite, got 0.0; it is (active"),
    "pressure nan": (lambda: SpilloverRouter(pressure=math.nan), "pressure must be > 0 and finite, got nan"),
    "gamma": (lambda: CompressRouter(gamma=0.9), "gamma must be >= 1 and finite, got 0.9"),
    "gamma inf": (lambda: CompressRouter(gamma=math.inf), "gamma must be >= 1 and finite, got inf"),
    "success": (lambda: CompressRouter(gamma=2.0, success=1.1), "success must be in [0, 1], got 1.1"),
    "compressible": (lambda: CompressRouter(gamma=2.0, compressible=-0.1), "compressible must be in [0, 1], got -0.1"),
    "both": (
        lambda: CompressRouter(gamma=2.0, success=0.5, compressible={"a": (0.5, 0.5)}),
        "success must be left out where compressible has categories with their own, got 0.5",
    ),
    "pair": (
        lambda: CompressRouter(gamma=2.0, compressible={"a": 0.5}),
        "compressible['a'] must be a pair (share of requests, chance of success), got 0.5",
    ),
    "share": (
        lambda: CompressRouter(gamma=2.0, compressible={"a": (1.5, 0.5)}),
        "share of compressible['a'] must be in [0, 1], got 1.5",
    ),
    "chance": (
        lambda: CompressRouter(gamma=2.0, compressible={"a": (0.5, 2.0)}),
        "success of compressible['a'] must be in [0, 1], got 2.0",
    ),
    "shares": (
        lambda: CompressRouter(gamma=2.0, compressible={"a": (0.75, 1.0), "b": (0.5, 1.0)}),
        "sum of the shares of compressible must be <= 1, got 1.25; the rest is not compressible",
    ),
    "error": (lambda: Predicted(error=-0.1), "error must be >= 0 and finite, got -0.1; it is the standard deviation"),
    "cap": (lambda: InputPlusMax(max_tokens=0), "max_tokens must be a whole number >= 1, got 0"),
    "fraction": (lambda: InputPlusMax(max_tokens=10.5), "max_tokens must be a whole number >= 1, got 10.5"),
    "low cap": (
        lambda: LengthRouter(knows=InputPlusMax(max_tokens=2999)).served(ROWS, design_of([4000])),
        "max_tokens must be >= 3000, the workload's longest output, got 2999; it caps every output",
    ),
    "no model": (
        lambda: ModelRouter(pool_of_model=(), model_share=np.ones(1)),
        "pool_of_model must be one pool a model",
    ),
    "pool": (
        lambda: ModelRouter(pool_of_model=(0, -1), model_share=np.ones(2) / 2),
        "pool_of_model[1] must be a whole number >= 0, got -1",
    ),
    "no labels": (
        lambda: ModelRouter(pool_of_model=TWO),
        "one of model_of_row and model_share must be given, got none",
    ),
    "labels and shares": (
        lambda: ModelRouter(pool_of_model=TWO, model_of_row=np.zeros(6, int), model_share=np.ones(2) / 2),
        "must be given, got both",
    ),
    "label": (
        lambda: ModelRouter(pool_of_model=TWO, model_of_row=np.array([0, 2])),
        "model_of_row must be from 0 to 1, the models, got 2",
    ),
    "label type": (
        lambda: ModelRouter(pool_of_model=TWO, model_of_row=np.array([0.5])),
        "model_of_row must be one whole number a workload row, got shape (1,) of float64",
    ),
    "too few labels": (
        lambda: ModelRouter(pool_of_model=TWO, model_of_row=np.array([0, 1])).served(ROWS, design_of([10, 20])),
        "model_of_row must have one entry per workload row (6), got 2",
    ),
    "too few shares": (
        lambda: ModelRouter(pool_of_model=TWO, model_share=np.ones((2, 2)) / 2).served(ROWS, design_of([10, 20])),
        "model_share must have one entry per workload row (6), got 2",
    ),
    "shape of shares": (
        lambda: ModelRouter(pool_of_model=TWO, model_share=np.ones(3) / 3),
        "model_share must be 2 shares, one a model, or a line of them a row, got shape (3,)",
    ),
    "negative share": (
        lambda: ModelRouter(pool_of_model=TWO, model_share=np.array([1.5, -0.5])),
        "model_share must be >= 0, got -0.5",
    ),
    "sum": (
        lambda: ModelRouter(pool_of_model=TWO, model_share=np.array([0.5, 0.25])),
        "sum of model_share must be 1, got 0.75",
    ),
    "no such pool": (
        lambda: ModelRouter(pool_of_model=(0, 2), model_share=np.ones(2) / 2).served(ROWS, design_of([10, 20])),
        "pool_of_model[1] must be < 2, the pools, got 2",
    ),
}


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, (make, _) in BAD.items()])
def test_bad_rules_are_refused(make, request):
    with pytest.raises(ValueError) as error:
        make()
    name = request.node.callspec.id
    assert BAD[name][1] in str(error.value)


def test_reasons_are_a_contract():
    assert REASONS == (
        "longer than the last threshold",
        "longer than max_context",
        "larger than the KV cache",
        "empty pool",
    )
