"""A prefix cache that holds a share of each prompt: by hand, model and simulator, gradient, plan files, refusals."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import figures, make_profile, problem, small_workload, two_pools

import des
import jaxsim
from jaxsim.disagg import decode_workload, prefill_workload
from jaxsim.evaluate import pool_laws, tabulate
from jaxsim.latency import log_tail
from jaxsim.workload import PrefixBlocks, Workload
from optim.build import fleet_request, plan_request
from optim.config import ConfigError, read_settings
from optim.figures import lengths_alone
from optim.scenario_batch import Future, scaled_problem

TOY = make_profile()
DESIGN = two_pools((2.0, 2.0), (1500.0, 7900.0), (TOY, TOY))
RATE = 40.0


def cached(hit_rate):
    return small_workload().with_prefix_cache(hit_rate)


def simulated(hit_rate, workload=None, *, rate=RATE, number=120_000, **rules):
    workload = cached(hit_rate) if workload is None else workload.with_prefix_cache(hit_rate)
    return des.simulate(DESIGN, workload, rate=rate, num_requests=number, seed=5, **rules)


def test_cached_tokens_are_a_share_of_the_prompt_and_one_is_always_computed():
    prompts = np.array([1.0, 2.0, 10.0, 1000.0])
    assert cached(0.0).prefix_cache_hit_rate is None and cached(0.0).cached_tokens(prompts) == 0.0
    np.testing.assert_allclose(cached(0.25).cached_tokens(prompts), [0.0, 0.5, 2.5, 250.0])
    np.testing.assert_allclose(cached(1.0).cached_tokens(prompts), [0.0, 1.0, 9.0, 999.0])


@pytest.mark.parametrize("rate", [-0.1, 1.01, float("nan"), 40])
def test_a_hit_rate_is_a_share(rate):
    with pytest.raises(ValueError, match=r"prefix_cache_hit_rate must be in \[0, 1\], got .*; it is a share"):
        cached(rate)


def test_no_hits_change_nothing():
    """Bit for bit, also from a leaf of 0 that a gradient has put there."""
    plain = figures(DESIGN, RATE)
    zero = eqx.tree_at(
        lambda w: w.prefix_cache_hit_rate, small_workload(), np.asarray(0.0), is_leaf=lambda x: x is None
    )
    for other in (figures(DESIGN, RATE, workload=cached(0.0)), figures(DESIGN, RATE, workload=zero)):
        for one, two in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(one, two)
    alone, none = (simulated(h, number=8_000, replications=1).ttft.groups[0] for h in (0.0, 1e-12))
    plain = des.simulate(DESIGN, small_workload(), rate=RATE, num_requests=8_000, replications=1, seed=5)
    np.testing.assert_array_equal(alone, plain.ttft.groups[0])
    np.testing.assert_allclose(none, alone, rtol=1e-9)


def test_a_lone_prompt_by_hand():
    """1,500 tokens of which 40 % are held: two chunks of what is left, each with the whole context before it."""
    workload = Workload.from_lengths([1500.0], [1.0]).with_prefix_cache(0.4)
    design = jaxsim.FleetDesign.of(replace(TOY, overhead_s=0.0), [1.0], [2000.0])
    base = 0.01
    steps = []
    for tokens, context in ((512.0, 600.0 + 512.0), (900.0 - 512.0, 1500.0)):
        compute = (base**4 + (2e-5 * tokens) ** 4) ** 0.25
        steps.append(compute + 1e-9 * tokens * context + 2e-5 + 5e-8 * context)
    for serving in (des.Serving(), des.Serving(scheduling="chunked", max_num_batched_tokens=512)):
        found = des.simulate(
            design, workload, rate=1e-3, num_requests=50, replications=1, serving=serving, keep="requests"
        )
        np.testing.assert_allclose(found.ttft.groups[0], sum(steps), rtol=1e-9)
        assert set(found.requests_table()["steps"]) == {2}


def test_a_warm_cache_of_blocks_is_the_same():
    """Prompts of two blocks of which all share the first, in a cache of blocks and as a share of one half."""
    number = 200
    ids = np.stack([np.zeros(number, dtype=int), 1 + np.arange(number)], axis=1).ravel()
    blocks = PrefixBlocks(ids, 2 * np.arange(number + 1), 500)
    arrivals = np.append(0.0, 100.0 + 0.03 * np.arange(number - 1))  # the first one, alone, warms the cache
    lengths = np.full(number, 1000.0), np.full(number, 20.0)
    real = Workload.from_lengths(*lengths, arrival_s=arrivals, prefix_blocks=blocks)
    said = Workload.from_lengths(*lengths, arrival_s=arrivals, prefix_cache_hit_rate=0.5)
    design = jaxsim.FleetDesign.of(TOY, [1.0], [2000.0])
    cache = des.Serving(prefix_cache_blocks=number + 1)
    with_blocks = des.simulate(design, real, arrivals="trace", serving=cache, warmup_fraction=0.5)
    with_share = des.simulate(design, said, arrivals="trace", warmup_fraction=0.5)
    np.testing.assert_allclose(with_blocks.ttft.groups[0], with_share.ttft.groups[0], rtol=1e-9)
    whole = des.simulate(design, said.with_prefix_cache(0.0), arrivals="trace", warmup_fraction=0.5)
    assert with_share.ttft.mean().value < 0.8 * whole.ttft.mean().value


def test_what_is_held_takes_its_room():
    """Blocks are reserved as without a cache: as many requests fit as before."""
    few = jaxsim.FleetDesign.of(replace(TOY, kv_blocks=600.0), [1.0, 0.0], [7900.0, 7900.0])
    plain, held = (figures(few, 1.0, workload=cached(h)).pools.concurrency_limit[0] for h in (0.0, 0.8))
    assert float(held) == pytest.approx(float(plain), rel=0.1)
    results = [
        des.simulate(few, cached(h), rate=500.0, num_requests=4_000, replications=1, seed=2).pools[0].mean_active
        for h in (0.0, 0.8)
    ]
    assert results[1] == pytest.approx(results[0], rel=0.1)


@pytest.mark.parametrize("hit_rate", [0.3, 0.7])
def test_model_and_simulator_agree(hit_rate):
    """Both fall from that without a cache, and agree as rows with prefill do."""
    model = figures(DESIGN, RATE, workload=cached(hit_rate))
    found = simulated(hit_rate)
    assert not found.overloaded
    assert float(model.ttft_p99_s) == pytest.approx(found.ttft.quantile(0.99).value, rel=0.12)
    assert float(model.tpot_p99_s) == pytest.approx(found.tpot.quantile(0.99).value, rel=0.12)
    for index, pool in enumerate(found.pools):
        assert float(model.pools.active_batch[index]) == pytest.approx(pool.mean_active / 2.0, rel=0.03)


def test_latency_and_load_fall_as_more_is_held():
    rates = (0.0, 0.25, 0.5, 0.75, 1.0)
    models = [figures(DESIGN, RATE, workload=cached(h)) for h in rates]
    for name in ("ttft_p99_s", "ttft_p50_s", "utilization"):
        values = np.array([float(getattr(m, name)) for m in models])
        assert np.all(np.diff(values) < 0.0), name
    played = [simulated(h, number=20_000).ttft.quantile(0.99).value for h in rates]
    assert np.all(np.diff(played) < 0.0)


def test_budgets_and_preemption_take_it_too():
    """Whole prompts in a budget of tokens, and prompts that are computed again after a preemption."""
    for serving in (
        des.Serving(scheduling="prefill-first", max_num_batched_tokens=8192),
        des.Serving(scheduling="decode-first", max_num_batched_tokens=8192),
        des.Serving(scheduling="chunked", max_num_batched_tokens=1024, kv="grow"),
    ):
        plain, held = (simulated(h, number=20_000, serving=serving).ttft.quantile(0.99).value for h in (0.0, 0.6))
        assert held < 0.85 * plain, serving
    tight = jaxsim.FleetDesign.of(replace(TOY, kv_blocks=700.0), [1.0], [7900.0])
    grow = des.Serving(kv="grow")
    ends = []
    for h in (0.0, 0.6):
        found = des.simulate(
            tight, cached(h), rate=6.0, num_requests=4_000, replications=1, seed=1, serving=grow, keep="requests"
        )
        table = found.requests_table()
        assert np.all(table["status"] == 0) and table["preemptions"].sum() > 0
        ends.append(np.nanmean(table["end_s"] - table["sent_s"]))
    assert ends[1] < ends[0]


def test_the_gradient_is_the_central_difference():
    """Between the rates at which some prompt takes a chunk less."""
    few = replace(TOY, chunk_tokens=8192.0)
    design = two_pools((1.0, 2.0), (1500.0, 7900.0), (few, few))

    def tail(hit_rate):
        tables = tabulate(small_workload().with_prefix_cache(hit_rate), design.profile)
        laws = pool_laws(design, tables, jnp.asarray(50.0))
        return log_tail((laws.share * laws.ttft_tail(jnp.asarray(0.2))).sum())

    slope_at = jax.jit(jax.value_and_grad(tail))
    for h in (0.3, 0.6):
        step = 1e-6
        (_, slope), (above, _), (below, _) = (slope_at(x) for x in (h, h + step, h - step))
        assert float(slope) < 0.0
        assert float(slope) == pytest.approx(float(above - below) / (2.0 * step), rel=1e-5)
    assert np.isfinite(slope_at(0.0)[1]) and np.isfinite(slope_at(1.0)[1])


def test_what_becomes_of_a_workload_keeps_its_cache():
    given = cached(0.4)
    router = des.CompressRouter(gamma=1.5)
    future = Future(*(jnp.asarray(v) for v in (10.0, np.ones((1, 6)), 1.2, 1.0, given.weight)))
    made = {
        "truncated": given.limited(2000.0, "truncate"),
        "rejected": given.limited(2000.0, "reject"),
        "compressed": router.expected_workload(given, DESIGN),
        "prompts": prefill_workload(given),
        "plain": lengths_alone(given),
        "scaled": scaled_problem(problem(workload=given), future, "longer").workload,
    }
    for name, workload in made.items():
        assert float(workload.prefix_cache_hit_rate) == 0.4, name
    assert decode_workload(given)[0].prefix_cache_hit_rate is None


def test_refusals():
    with pytest.raises(ValueError, match=r'prefix_cache_hit_rate must be left out, .*model="step"'):
        jaxsim.evaluate(DESIGN, cached(0.2), 1.0, model="kimura")
    with pytest.raises(ValueError, match="prefix_cache_hit_rate must be left out in convention='kimura'"):
        simulated(0.2, number=100, convention="kimura")
    blocks = PrefixBlocks(np.array([0]), np.array([0, 1]), 16)
    both = Workload.from_lengths([20.0], [2.0], prefix_blocks=blocks, prefix_cache_hit_rate=0.2)
    with pytest.raises(ValueError, match="prefix_cache_hit_rate and prefix_cache_blocks cannot be given together"):
        des.simulate(DESIGN, both, rate=1.0, serving=des.Serving(prefix_cache_blocks=4))


FILE = """
[workload]
name = "azure-conversation"
rate = 20.0
prefix_cache_hit_rate = 0.35
[slo]
ttft_p99_ms = 500
[fleet]
profiles = ["h100-80gb"]
max_context = 16384
[[fleet.pools]]
profile = "h100-80gb"
replicas = 1
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_a_plan_file_and_a_flag_give_it(file):
    for request in (plan_request, fleet_request):
        asked = request(read_settings(file, {}))
        workload = asked.problem.limited if request is plan_request else asked.workload
        assert float(workload.prefix_cache_hit_rate) == 0.35
        assert asked.inputs["prefix_cache_hit_rate"].value == 0.35
        assert asked.inputs["prefix_cache_hit_rate"].source == "given in mine.toml"
    none = plan_request(read_settings(file, {"workload.prefix_cache_hit_rate": 0.0}))
    assert none.problem.workload.prefix_cache_hit_rate is None
    file.write_text(FILE.replace("prefix_cache_hit_rate = 0.35", ""), encoding="utf-8")
    entry = plan_request(read_settings(file, {})).inputs["prefix_cache_hit_rate"]
    assert (entry.value, entry.source) == (0.0, "default: every prompt is computed whole")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0.35", "35", "mine.toml: workload.prefix_cache_hit_rate must be <= 1"),
        ("max_context", 'model = "kimura"\nmax_context', "workload.prefix_cache_hit_rate is for the default model"),
    ],
)
def test_bad_files(file, old, new, words):
    file.write_text(FILE.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        plan_request(read_settings(file, {}))
