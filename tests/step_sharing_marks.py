"""The mixes of requests of the reference table: constant work per step, from traces and from seeded laws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

from jaxsim.step_sharing import Groups, Load, Requests, exact_moments, state
from jaxsim.step_sharing.groups import decode_bins
from jaxsim.step_sharing.response import mean_tpot_s, mean_wait_s, tpot_tail, ttft_tail, wait_tail

CHUNK = 1024
TOY = np.array([[1, 100, 500, 0.5], [2, 200, 1500, 0.3], [8, 400, 8000, 0.2]])
TRACES = {"azure23_conv", "azure23_code", "mooncake_conv"}


def lengths(kind, folder):
    """Input and output tokens; `folder` of the traces is needed for `TRACES` alone."""
    random = np.random.default_rng(11)
    if kind == "det":
        return np.full(8, 1200.0), np.full(8, 200.0)
    if kind == "lnheavy":  # squared coefficients of variation 1.5 and 4, correlation of the logs 0.3
        z = random.standard_normal((20_000, 2))
        z[:, 1] = 0.3 * z[:, 0] + np.sqrt(1 - 0.09) * z[:, 1]
        spread_in, spread_out = np.sqrt(np.log(2.5)), np.sqrt(np.log(5.0))
        inputs = 2000 * np.exp(spread_in * z[:, 0] - spread_in**2 / 2)
        outputs = 300 * np.exp(spread_out * z[:, 1] - spread_out**2 / 2)
        return np.ceil(np.clip(inputs, 1, 65536)), np.ceil(np.clip(outputs, 1, 8192))
    frame = pl.read_parquet(folder / "data" / "traces" / f"{kind}.parquet")
    return tuple(np.maximum(frame[c].to_numpy().astype(float), 1) for c in ("input_tokens", "output_tokens"))


def marks(name, folder=None):
    """Prefill steps, decode steps, work per step and weight of the rows of a mix."""
    if name == "toy":
        prefill, decode, tokens, weight = TOY.T
        return prefill, decode, 2e-5 + 4e-8 * tokens, weight
    kind, hardware = name.split("/")
    inputs, outputs = lengths(kind, folder)
    work = 2e-05 + 4e-08 * (inputs + 0.5 * outputs) if hardware == "H100" else 0.00032 / 8192 * (inputs + outputs)
    return np.ceil(inputs / CHUNK), outputs, work, np.full(len(inputs), 1.0 / len(inputs))


@functools.cache
def mix(name, folder=None):
    """Moments of a mix, and its groups: one per number of prefill steps, and the decode bins."""
    prefill, decode, work, weight = (jnp.asarray(v) for v in marks(name, folder))
    moments = jax.jit(exact_moments)(Requests.constant(prefill, decode, work), weight)
    steps, index = np.unique(np.asarray(prefill), return_inverse=True)
    share = np.bincount(index, weight)
    member = np.asarray(decode_bins(decode, work, weight)) * np.asarray(weight)[:, None]
    total = np.maximum(member.sum(0), 1e-300)
    mean = np.asarray(work) @ member / total
    variance = np.maximum(np.asarray(work) ** 2 @ member / total - mean**2, 0.0)
    groups = Groups(
        prefill_share=jnp.asarray(share),
        prefill_steps=jnp.asarray(steps),
        prefill_steps_spread=jnp.zeros(len(steps)),
        prefill_work_s=jnp.asarray(np.bincount(index, weight * work * prefill) / share),
        prefill_work_spread_s=jnp.zeros(len(steps)),
        decode_share=jnp.asarray(member.sum(0)),
        decode_steps=jnp.asarray(np.asarray(decode) @ member / total),
        decode_work_s=jnp.asarray(mean),
        decode_work_variance_s2=jnp.asarray(variance),
        decode_prefill_steps=jnp.asarray(np.asarray(prefill) @ member / total),
        decode_chunk_s=jnp.asarray(mean),
        decode_chunk_variance_s2=jnp.asarray(variance),
    )
    return moments, groups


def _quantile(tail, level, longest):
    """The t at which a falling function is `level`, by halving."""

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        above = tail(middle) > level
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    low, high = jax.lax.fori_loop(0, 60, halve, (jnp.zeros(()), longest))
    return 0.5 * (low + high)


@jax.jit
def figures(moments, groups, rate, base_s, limit):
    """Figures of one engine under the names of the reference table, and its state."""
    found = state(moments, Load.of(rate, base_s, limit))
    longest = 1e3 * (found.full_step_s + found.queue.scales_s.max())
    f = found.fluctuations
    values = {
        "a": f.branching,
        "z": f.count_ratio,
        "n_step": f.running,
        "var_n_step": f.running_variance,
        "cov_nS": f.covariance_s,
        "var_S": f.work_variance_s2,
        "n_time_unlimited": f.running_in_time,
        "Tc": f.correlation_steps,
        "P_wait": found.wait_probability,
        "n_active": found.running,
        "wait_mean": mean_wait_s(found),
        "e2e_mean": mean_wait_s(found) + found.running / rate,
        "tpot_mean": mean_tpot_s(found, groups),
    }
    for name, tail in (
        ("wait", lambda t: wait_tail(found, t)),
        ("ttft", lambda t: ttft_tail(found, groups, t)),
        ("tpot", lambda t: tpot_tail(found, groups, t)),
    ):
        for percent in (50, 95, 99):
            values[f"{name}{percent}"] = _quantile(tail, 1.0 - percent / 100.0, longest)
    return values, found
