"""Mean power at the load's own occupancy: against the simulator, its law, its inverse, prices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import assert_finite, make_profile, small_workload, two_pools

import des
import jaxsim
from jaxsim.energy import (
    Energy,
    PoolEnergy,
    active_law,
    cap_of_curtailment,
    capped,
    capped_watts,
    design_power,
    electricity,
    energy,
    fleet_energy,
    stack_power,
)
from jaxsim.evaluate import pool_demands, pool_law, pool_laws, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.power import PowerLaw, power_law, power_w
from jaxsim.workload import Workload
from optim._compile import program
from optim.power_event import simulated_watts

H100, A100 = power_law("h100"), power_law("a100")
CHAT = "azure-conversation"


@functools.cache
def design_of(profile, workload, replicas):
    """One pool, and the workload that its KV cache holds."""
    made = jaxsim.profile(profile)
    lengths = jaxsim.workload(workload).limited(float(min(16384.0, made.kv_tokens)), "reject")
    longest = float(np.max(lengths.total_tokens))
    return FleetDesign.of(made, [float(replicas)], [longest]), lengths


@program
def at_load(design, workload, power, load):
    """Rate and energy at a utilisation."""
    tables = tabulate(workload, design.profile)
    rate = load / pool_laws(design, tables, 1.0).utilization.max()
    return rate, fleet_energy(pool_laws(design, tables, rate), power, design.profile.gpus_per_replica)


def loaded(design, lengths, load):
    """The same, one program for each shape of workload."""
    plain = Workload(lengths.input_tokens, lengths.output_tokens, lengths.weight, lengths.knots, lengths.rows_to_knot)
    anonymous = FleetDesign(design.profile.unnamed(), design.replicas, design.upper_tokens, design.max_context)
    rate, found = at_load(anonymous, plain, design_power(design.profile), jnp.asarray(load))
    return float(rate), found


# --- (d) against the simulator


LOADS = [
    ("h100-80gb", CHAT, 1, 0.3),
    ("h100-80gb", CHAT, 8, 0.7),
    ("h100-80gb", "azure-code", 2, 0.7),
    ("h100-80gb", "mooncake-conversation", 8, 0.3),
    ("h100-80gb", "sharegpt", 40, 0.05),
    ("a100-80gb", CHAT, 40, 0.3),
    ("a100-80gb", CHAT, 2, 0.9),
    ("a100-80gb", "azure-code", 8, 0.05),
    ("a10g", "sharegpt", 4, 0.5),
    ("llama-3.1-8b@h100-sxm:tp1:kernels", CHAT, 8, 0.3),
    ("llama-3.1-8b@h100-sxm:tp1:kernels", "sharegpt", 2, 0.7),
    ("llama-3.1-70b@a100-80gb-sxm:tp2:kernels", "sharegpt", 8, 0.3),
    ("llama-3.1-70b@a100-80gb-sxm:tp4:kernels", CHAT, 8, 0.7),
]


@pytest.mark.parametrize(("profile", "workload", "replicas", "load"), LOADS)
def test_mean_power_is_the_simulators_within_a_percent(profile, workload, replicas, load):
    design, lengths = design_of(profile, workload, replicas)
    rate, found = loaded(design, lengths, load)
    result = des.simulate(design, lengths, rate=rate, num_requests=100_000, seed=3, keep="statistics")
    gpus = np.asarray(design.profile.gpus_per_replica).tolist()
    watts = simulated_watts(result, gpus, design_power(design.profile))
    assert float(found.watts) == pytest.approx(watts, rel=0.01)


def test_power_of_two_pools_is_theirs_together():
    design = two_pools(replicas=(2.0, 3.0))
    found = energy(design, small_workload(), 100.0)
    result = des.simulate(design, small_workload(), rate=100.0, num_requests=100_000, seed=1, keep="statistics")
    assert float(found.watts) == pytest.approx(float(found.pools.watts.sum()), rel=1e-12)
    assert float(found.watts) == pytest.approx(
        simulated_watts(result, [1.0, 1.0], design_power(design.profile)), rel=0.01
    )


def test_it_is_the_power_of_the_law_and_not_of_its_mean():
    """On a lone engine the curve bends enough to tell them apart, and the simulator sides with the law."""
    design, lengths = design_of("a100-80gb", CHAT, 1)
    rate, found = loaded(design, lengths, 0.3)
    result = des.simulate(design, lengths, rate=rate, num_requests=200_000, seed=3, keep="statistics")
    watts = simulated_watts(result, [1.0], design_power(design.profile))
    at_mean = float(power_w(A100, found.pools.active[0]))
    assert abs(at_mean / watts - 1.0) > 0.005 > 5 * abs(float(found.watts) / watts - 1.0)


# --- the law of the running requests


@program
def demand_at(design, workload, load):
    """Demand of a single pool at a utilisation."""
    tables, replicas = tabulate(workload, design.profile), jnp.asarray(design.replicas)
    one = pool_law(jax.tree.map(lambda v: v[0], pool_demands(design, tables, 1.0)), replicas[0])
    return jax.tree.map(lambda v: v[0], pool_demands(design, tables, load / one.utilization))


law_of = program(lambda demand, replicas: pool_law(demand, replicas))
running = program(lambda demand, replicas: active_law(pool_law(demand, replicas)))
inverse = program(cap_of_curtailment)
forward = program(lambda *given: jax.vmap(lambda cap: capped_watts(*given[:3], cap))(given[3]))
utilization = program(lambda demand, n, caps: jax.vmap(lambda cap: pool_law(capped(demand, cap), n).utilization)(caps))


def pool_of(replicas, load):
    """Demand of a single pool of H100s at a utilisation."""
    profile = jaxsim.profile("h100-80gb").unnamed()
    return demand_at(FleetDesign.of(profile, [replicas], [8000.0]), small_workload(), jnp.asarray(load))


def arrays(law):
    """A power law as arrays, so that one program serves all."""
    return PowerLaw(*map(jnp.asarray, map(float, law)))


@pytest.mark.parametrize("load", [1e-4, 0.05, 0.5, 0.95, 0.9995, 1.3])
@pytest.mark.parametrize("replicas", [1.0, 2.5, 40.0])
def test_the_law_is_one_and_has_the_mean(load, replicas):
    demand = pool_of(replicas, load)
    pool, (numbers, share) = law_of(demand, jnp.asarray(replicas)), running(demand, jnp.asarray(replicas))
    assert float(share.sum()) == pytest.approx(1.0, abs=1e-12)
    assert np.all(np.asarray(share) >= 0.0)
    mean = float((numbers * share).sum())
    limit = float(pool.concurrency_limit)
    if load < 0.999:
        assert mean == pytest.approx(min(float(pool.latency.state.running), limit), rel=1e-6)
    if load > 1:
        assert mean == pytest.approx(limit, rel=1e-9)


def test_a_real_limit_counts_in_part():
    """Mean power over the cap has no step where the cap passes a whole number."""
    demand = pool_of(1.0, 0.6)
    watts = forward(demand, jnp.asarray(1.0), arrays(H100), jnp.array([99.999, 100.0, 100.001]))
    assert np.ptp(watts) < 1e-3


def test_no_load_is_idle_power():
    found = energy(two_pools(), small_workload(), 0.0)
    assert float(found.watts) == pytest.approx(4 * 300.0, rel=1e-6)
    assert float(found.tokens_per_joule) == 0.0
    np.testing.assert_allclose(found.pools.idle_share, 1.0, rtol=1e-6)


def test_overload_is_the_power_of_the_limit_and_of_what_is_served():
    found = energy(two_pools(replicas=(1.0, 1.0)), small_workload(), 5_000.0)
    limit = jaxsim.evaluate(two_pools(replicas=(1.0, 1.0)), small_workload(), 5_000.0)
    np.testing.assert_allclose(found.pools.watts_per_gpu, power_w(H100, limit.pools.concurrency_limit), rtol=1e-9)
    served = float((limit.pools.rate / limit.pools.utilization).sum())
    assert float(found.output_tokens_per_s) < served * 900.0


def test_gpus_of_a_replica_all_draw():
    one = FleetDesign.of(make_profile(gpu="a10g"), [2.0], [8000.0])
    four = FleetDesign.of(make_profile(gpu="a10g", gpus_per_replica=4), [2.0], [8000.0])
    small, large = (energy(design, small_workload(), 10.0) for design in (one, four))
    assert float(large.watts) == pytest.approx(4.0 * float(small.watts), rel=1e-12)
    assert float(large.pools.gpus[0]) == 8.0


def test_gradients_exist_and_agree_with_differences():
    design = two_pools(replicas=(2.0, 3.0))
    design = FleetDesign(design.profile.unnamed(), design.replicas, design.upper_tokens, design.max_context)
    workload, power = small_workload(), stack_power([H100, H100])

    def watts(rate, laws):
        tables = tabulate(workload, design.profile)
        return fleet_energy(pool_laws(design, tables, rate), laws, design.profile.gpus_per_replica).watts

    both = program(jax.value_and_grad(watts, argnums=(0, 1)))
    slope, slopes = both(jnp.asarray(100.0), power)[1]
    up, down = (float(both(jnp.asarray(rate), power)[0]) for rate in (100.1, 99.9))
    assert float(slope) == pytest.approx((up - down) / 0.2, rel=1e-4)
    assert float(slope) > 0
    for rate in (0.0, 1e-6, 5_000.0):
        assert_finite(both(jnp.asarray(rate), power)[1])
    np.testing.assert_allclose(slopes.idle_w, [2.0, 3.0], rtol=1e-9)


def test_the_reference_model_has_a_mean_power_too():
    found = energy(two_pools(), small_workload(), 50.0, model="kimura")
    assert 4 * 300.0 < float(found.watts) < 4 * 600.0


def test_a_gpu_without_constants_is_refused():
    design = FleetDesign.of(make_profile(gpu="h200-sxm"), [1.0], [8000.0])
    with pytest.raises(ValueError, match="unknown power law of GPU 'h200-sxm'"):
        energy(design, small_workload(), 1.0)


# --- electricity


def used(watts=10_000.0, tokens=50_000.0):
    """Power of a fleet, of which only the totals count here."""
    nothing = jnp.zeros(1)
    total, flow = jnp.asarray(watts), jnp.asarray(tokens)
    return Energy(PoolEnergy(*[nothing] * 6), total, flow, flow / total)


def test_electricity_by_hand():
    """10 kW at PUE 1.2 are 12 kW; 50,000 tokens a second are 180 million an hour."""
    bill = electricity(used(), pue=1.2, usd_per_kwh=0.1, kg_co2_per_kwh=0.4)
    assert float(bill.kilowatts) == pytest.approx(12.0)
    assert float(bill.kwh_per_million_tokens) == pytest.approx(12.0 / 180.0)
    assert float(bill.usd_per_hour) == pytest.approx(1.2)
    assert float(bill.usd_per_million_tokens) == pytest.approx(1.2 / 180.0)
    assert float(bill.kg_co2_per_hour) == pytest.approx(4.8)
    assert float(bill.kg_co2_per_million_tokens) == pytest.approx(4.8 / 180.0)


def test_what_is_not_given_is_left_out():
    bill = electricity(used(), pue=1.0)
    assert (bill.usd_per_hour, bill.usd_per_million_tokens) == (None, None)
    assert (bill.kg_co2_per_hour, bill.kg_co2_per_million_tokens) == (None, None)
    assert float(electricity(used(tokens=0.0), pue=1.0).kwh_per_million_tokens) == np.inf
    with pytest.raises(ValueError, match="pue must be > 0"):
        electricity(used(), pue=0.0)


# --- (b) the cap that delivers a share of what is drawn now


SHARES = [0.001, 0.01, 0.03, 0.05, 0.1, 0.15]
POOLS = {  # engines, utilisation, constants
    "one engine, busy": (1.0, 0.7, H100),
    "many engines, light": (40.0, 0.1, H100),
    "few engines, A100": (3.0, 0.4, A100),
}


def curtailed(name):
    """Demand, engines and power law of one of the pools, and what its GPUs draw now."""
    replicas, load, power = POOLS[name]
    given = pool_of(replicas, load), jnp.asarray(replicas), arrays(power)
    return given, float(forward(*given, jnp.array([1e6]))[0])


def share_of(share):
    """As an argument that compiles once."""
    return jnp.asarray(float(share))


@pytest.mark.parametrize("name", POOLS)
def test_x_percent_flex_delivers_x_percent(name):
    given, now = curtailed(name)
    most = float(inverse(*given, share_of(0.0))[1])
    assert 0.05 < most < 1.0
    shares = np.array([s for s in SHARES if s < most] + [0.5 * most, 0.999 * most])
    caps = np.array([float(inverse(*given, share_of(share))[0]) for share in shares])
    watts = np.asarray(forward(*given, jnp.asarray(caps)))
    np.testing.assert_allclose(watts, (1.0 - shares) * now, rtol=1e-9)
    back = [float(inverse(*given, share_of(1.0 - w / now))[0]) for w in watts]
    np.testing.assert_allclose(back, caps, rtol=1e-6)


def test_no_curtailment_is_no_cap_and_too_much_is_a_batch_of_one():
    given, _ = curtailed("few engines, A100")
    free = law_of(given[0], given[1])
    cap, most = inverse(*given, share_of(0.0))
    assert float(cap) == float(free.concurrency_limit)
    assert float(inverse(*given, share_of(float(most) + 0.05))[0]) == 1.0


@pytest.mark.parametrize("name", POOLS)
def test_a_cap_that_keeps_up_saves_nothing(name):
    """Stable, the same work is done at nearly the same batch; a cap bites from the load that it can no longer carry."""
    given, now = curtailed(name)
    caps = jnp.linspace(1.0, 256.0, 400)
    watts, load = np.asarray(forward(*given, caps)), np.asarray(utilization(given[0], given[1], caps))
    assert np.abs(watts[load < 1.0] / now - 1.0).max() < 0.003
    assert np.all(np.diff(watts[load > 1.0]) > 0.0)
    assert np.any(load < 1.0)


def test_a_cap_is_the_profile_with_fewer_sequences():
    demand, replicas = pool_of(2.0, 0.5), jnp.asarray(2.0)
    limits = [float(law_of(capped(demand, jnp.asarray(cap)), replicas).concurrency_limit) for cap in (40.0, 1e9)]
    assert limits == [40.0, float(law_of(demand, replicas).concurrency_limit)]


def test_the_cap_has_the_gradient_of_the_inverse():
    given, _ = curtailed("few engines, A100")
    slope = program(jax.grad(lambda share, *rest: cap_of_curtailment(*rest, share)[0]))
    central = sum(sign * float(inverse(*given, share_of(0.1 + sign * 1e-5))[0]) for sign in (1, -1)) / 2e-5
    assert float(slope(share_of(0.1), *given)) == pytest.approx(central, rel=1e-4)
    assert central < 0


def test_power_of_a_replica_of_a_profile():
    profile = make_profile(gpu="a10g", gpus_per_replica=4)
    assert float(power_w(profile, 8.0)) == pytest.approx(4.0 * float(power_w(power_law("a10g"), 8.0)))
