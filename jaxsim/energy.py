r"""Power and energy of a fleet at the load it really carries: the power law averaged over the running requests.

Mean power of an engine is $E[P(n)]$ over the law of its running requests n, never $P$ of one batch: an engine idles,
fills and empties, and $P$ bends. `active_law` is the only place that knows where that law comes from.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from jaxsim._checks import require_non_negative, require_positive, require_x64
from jaxsim._roots import decreasing_root
from jaxsim.evaluate import PoolDemand, PoolLaws, pool_demands, pool_law, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.latency import StepLatency
from jaxsim.power import PowerLaw, power_law, power_w
from jaxsim.profiles import Profile
from jaxsim.units import SECONDS_PER_HOUR, TOKENS_PER_MILLION
from jaxsim.workload import Workload

PerPool = Float[Array, " pools"]
Scalar = Float[Array, ""]

WATTS_PER_KW = 1_000.0
JOULES_PER_KWH = WATTS_PER_KW * SECONDS_PER_HOUR

NUMBERS = 513
"""Numbers running that a law is spread over: every whole one up to 512, beyond that equally spaced ones."""

_IMBALANCE = 0.28
"""Variance of the running requests of one engine of many that a dispatcher to the least loaded keeps alike: between the
0.25 of two neighbouring numbers and the 0.3 that simulations of 8 to 40 engines show."""

_TINY = 1e-9
_NEARLY_FULL = 0.999
"""Utilisation from which on the mean is drawn to the limit, so that it gets there, without a step, at 1."""


def active_law(pool: PoolLaws) -> tuple[Float[Array, " numbers"], Float[Array, " numbers"]]:
    r"""How many requests run in one engine of a pool, as numbers and their probabilities.

    The mean is that of the pool's occupancy. Where all slots are taken (with the probability that an arrival waits) the
    limit runs; else n is spread as $p_n \propto e^{\theta n} / n!^{\nu}$ (Conway and Maxwell 1962): $\theta$ gives the
    mean, and $\nu$, mean over variance, is 1 for a lone engine whose steps do not slow down, less where they do, and
    large where many engines share the load evenly. In overload the limit runs.

    Args:
        pool: of one pool (`pool_law`), of either model.
    """
    limit, engines = jnp.maximum(pool.concurrency_limit, _TINY), jnp.maximum(pool.replicas, 1.0)
    law, nearly = pool.latency, (pool.utilization - _NEARLY_FULL) / (1.0 - _NEARLY_FULL)
    if isinstance(law, StepLatency):
        mean, full = law.state.running, law.state.wait_probability
        stretch = 1.0 + law.state.fluctuations.work_s / law.state.base_s
    else:
        mean, full = law.arrival_rate * law.service_s / engines, jnp.exp(jnp.minimum(law.log_wait_tail(0.0), 0.0))
        stretch = jnp.ones(())
    drawn = jnp.clip(nearly, 0.0, 1.0)
    mean = jnp.clip(mean + drawn * (limit - mean), _TINY, limit)
    full = jnp.clip(full + drawn * (1.0 - full), 0.0, mean / limit)
    variance = mean * stretch / engines + (1.0 - 1.0 / engines) * mean * _IMBALANCE / (mean + _IMBALANCE)
    numbers = jnp.arange(float(NUMBERS)) * jnp.maximum(limit / (NUMBERS - 1.0), 1.0)
    rest = jnp.maximum(1.0 - full, _TINY)
    below = jnp.clip((mean - full * limit) / rest, _TINY, limit)
    spread = _count_law(numbers, below, mean / variance, limit)
    return jnp.append(numbers, limit), jnp.append((1.0 - full) * spread, full)


def _count_law(numbers: Array, mean: Scalar, ratio: Scalar, limit: Scalar) -> Array:
    """Conway-Maxwell law of that mean on the numbers up to a real limit; the one across it counts in part."""
    stride = numbers[1]
    room = jnp.clip((limit - numbers) / stride + 1.0, 0.0, 1.0)
    inside = room > 0.0
    weight = jnp.where(inside, jnp.log(jnp.where(inside, room, 1.0)), -jnp.inf)

    safe = jnp.where(inside, weight, 0.0)
    given = (mean, numbers, inside.astype(float), safe, ratio)
    top = ratio * jnp.log(limit + 1.0) + 60.0
    tilt = decreasing_root(_shortfall, given, -60.0 * jnp.maximum(ratio, 1.0), top)
    return _tilted(tilt, *given[1:])


def _tilted(tilt: Scalar, numbers: Array, inside: Array, share: Array, powers: Scalar) -> Array:
    exponent = tilt * numbers - powers * gammaln(numbers + 1.0) + share
    return jax.nn.softmax(jnp.where(inside > 0.0, exponent, -jnp.inf))


def _shortfall(tilt: Scalar, given: tuple[Any, ...]) -> Scalar:
    """Mean wanted less that of the law of that tilt."""
    wanted, numbers, *rest = given
    return wanted - (_tilted(tilt, numbers, *rest) * numbers).sum()


def mean_watts(law: PowerLaw, pool: PoolLaws) -> Scalar:
    """Watts of one GPU of a pool, averaged over the law of its running requests."""
    numbers, share = active_law(pool)
    return (share * power_w(law, numbers)).sum()


def design_power(profile: Profile) -> PowerLaw:
    """The published constants of the GPUs of stacked profiles, along the pool axis.

    Raises:
        ValueError: none are published for one of them.
    """
    gpus = (profile.gpu,) if isinstance(profile.gpu, str) else profile.gpu
    return stack_power([power_law(gpu) for gpu in gpus])


def stack_power(laws: list[PowerLaw]) -> PowerLaw:
    """Power laws along a new leading axis, one per pool."""
    return PowerLaw(*(jnp.asarray([float(v) for v in values]) for values in zip(*laws, strict=True)))


class PoolEnergy(eqx.Module):
    """Power of each pool.

    Attributes:
        gpus: of the pool.
        active: mean running requests of one engine.
        idle_share: share of the time that an engine runs nothing.
        watts_per_gpu, watts: mean, and of the whole pool.
        output_tokens_per_s: of the load that is served: what full batches yield where there is more.
    """

    gpus: PerPool
    active: PerPool
    idle_share: PerPool
    watts_per_gpu: PerPool
    watts: PerPool
    output_tokens_per_s: PerPool


class Energy(eqx.Module):
    """Power of a fleet's GPUs under a load; what the building adds comes with `electricity`.

    Attributes:
        pools: the same by pool.
        watts: of all GPUs, idle ones included.
        output_tokens_per_s: of all pools.
        tokens_per_joule: output tokens per joule, which is tokens a second per watt; 0 without output.
    """

    pools: PoolEnergy
    watts: Scalar
    output_tokens_per_s: Scalar
    tokens_per_joule: Scalar


def fleet_energy(laws: PoolLaws, power: PowerLaw, gpus_per_replica: Any) -> Energy:
    """Mean power of a fleet from its pools' laws.

    Args:
        laws: with a leading pool axis (`evaluate.pool_laws`).
        power: of one GPU of each pool (`design_power`, `stack_power`).
        gpus_per_replica: of each pool.
    """

    def one(pool: PoolLaws, law: PowerLaw) -> tuple[Scalar, Scalar, Scalar]:
        numbers, share = active_law(pool)
        idle = jnp.where(numbers == 0.0, share, 0.0).sum()
        return (share * numbers).sum(), idle, (share * power_w(law, numbers)).sum()

    active, idle, watts = jax.vmap(one)(laws, power)
    gpus = laws.replicas * jnp.asarray(gpus_per_replica)
    served = laws.rate / jnp.maximum(laws.utilization, 1.0)
    tokens = jnp.where(laws.rate > 0, served * laws.output_tokens, 0.0)
    total = (gpus * watts).sum()
    return Energy(
        pools=PoolEnergy(gpus, active, idle, watts, gpus * watts, tokens),
        watts=total,
        output_tokens_per_s=tokens.sum(),
        tokens_per_joule=tokens.sum() / jnp.maximum(total, _TINY),
    )


@eqx.filter_jit
def _energy(design: FleetDesign, workload: Workload, rate: Any, power: PowerLaw, model: str) -> Energy:
    demands = pool_demands(design, tabulate(workload, design.profile, model=model), rate, model=model)
    laws = jax.vmap(pool_law)(demands, jnp.asarray(design.replicas))
    return fleet_energy(laws, power, design.profile.gpus_per_replica)


def energy(
    design: FleetDesign, workload: Workload, rate: Any, *, power: PowerLaw | None = None, model: str = "step"
) -> Energy:
    """Mean power of a fleet design under a workload: pure, works under jit, vmap and grad.

    Args:
        design: pools; real replicas are allowed.
        workload: joint lengths.
        rate: requests per second, >= 0. At 0 every GPU idles.
        power: law of one GPU of each pool, stacked; left out, the published constants of their GPUs.
        model: "step" or "kimura".

    Raises:
        ValueError: no constants are published for a GPU, or a negative rate. RuntimeError: JAX is in float32 mode.
    """
    require_x64()
    require_non_negative("rate", rate)
    laws = design_power(design.profile) if power is None else power
    anonymous = eqx.tree_at(lambda d: d.profile, design, design.profile.unnamed())
    return _energy(anonymous, workload, jnp.asarray(rate, dtype=float), laws, model)


class Electricity(eqx.Module):
    """Energy of a fleet as its owner pays for it: at the meter, PUE included.

    Attributes:
        kilowatts: at the meter.
        kwh_per_million_tokens: output tokens; inf without output, as the next.
        usd_per_hour, usd_per_million_tokens: None without a price.
        kg_co2_per_hour, kg_co2_per_million_tokens: None without an intensity.
    """

    kilowatts: Scalar
    kwh_per_million_tokens: Scalar
    usd_per_hour: Scalar | None
    usd_per_million_tokens: Scalar | None
    kg_co2_per_hour: Scalar | None
    kg_co2_per_million_tokens: Scalar | None


def electricity(
    used: Energy, *, pue: Any, usd_per_kwh: Any | None = None, kg_co2_per_kwh: Any | None = None
) -> Electricity:
    """What a fleet's power comes to.

    Args:
        used: by its GPUs.
        pue: power of the building over that of what it is for, >= 1. Nothing here knows yours; 1 leaves the building
            out.
        usd_per_kwh: price; left out, nothing is priced.
        kg_co2_per_kwh: carbon intensity of the grid; left out, no emissions are given.
    """
    require_positive("pue", pue)
    kilowatts = used.watts * jnp.asarray(pue, dtype=float) / WATTS_PER_KW
    flowing = used.output_tokens_per_s > 0
    hourly = jnp.where(flowing, used.output_tokens_per_s, 1.0) * SECONDS_PER_HOUR / TOKENS_PER_MILLION
    kwh = jnp.where(flowing, kilowatts / hourly, jnp.inf)

    def times(factor: Any | None, amount: Scalar) -> Scalar | None:
        return None if factor is None else jnp.asarray(factor, dtype=float) * amount

    return Electricity(
        kilowatts=kilowatts,
        kwh_per_million_tokens=kwh,
        usd_per_hour=times(usd_per_kwh, kilowatts),
        usd_per_million_tokens=times(usd_per_kwh, kwh),
        kg_co2_per_hour=times(kg_co2_per_kwh, kilowatts),
        kg_co2_per_million_tokens=times(kg_co2_per_kwh, kwh),
    )


# --- grid flexibility


def capped(demand: PoolDemand, cap: Any) -> PoolDemand:
    """A pool (`step` model) whose engines run at most `cap` requests, real >= 1."""
    most = jnp.minimum(jnp.asarray(demand.profile.max_num_seqs), cap)
    return eqx.tree_at(lambda d: d.profile, demand, eqx.tree_at(lambda p: p.max_num_seqs, demand.profile, most))


def capped_watts(demand: PoolDemand, replicas: Any, power: PowerLaw, cap: Any) -> Scalar:
    """Watts of one GPU of a pool whose engines run at most `cap` requests."""
    return mean_watts(power, pool_law(capped(demand, cap), jnp.asarray(replicas, dtype=float)))


def cap_of_curtailment(demand: PoolDemand, replicas: Any, power: PowerLaw, share: Any) -> tuple[Scalar, Scalar]:
    """The real batch cap at which a pool draws `share` less than it draws now, and the most that a cap can take away.

    The inverse of `capped_watts`. "Now" is the occupancy that the load produces, not a nominal batch. A cap that still
    serves what arrives does the same work at the same mean batch and saves nothing (it costs up to 0.3 %: fewer swings
    of a curve that bends down); so every share above 0 is had in overload, with the cap below that mean.

    Args:
        demand: of one pool.
        replicas: engines.
        power: of one GPU.
        share: of the power drawn now, >= 0. At 0 the cap is the limit that is there anyway; beyond the most it is 1.
    """
    engines, wanted = jnp.asarray(replicas, dtype=float), jnp.asarray(share, dtype=float)
    free = pool_law(demand, engines)
    now, limit = mean_watts(power, free), jnp.maximum(free.concurrency_limit, 1.0)
    least = capped_watts(demand, engines, power, 1.0)

    def above(cap: Scalar, inner: tuple[PoolDemand, Scalar, PowerLaw, Scalar]) -> Scalar:
        pool, number, law, target = inner
        return target - capped_watts(pool, number, law, cap)

    target = (1.0 - wanted) * now
    cap = decreasing_root(above, (demand, engines, power, target), jnp.ones(()), limit)
    return jnp.where(wanted > 0.0, cap, limit), 1.0 - least / now
