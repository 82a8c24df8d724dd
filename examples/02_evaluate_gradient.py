"""Every figure of a fleet has a gradient: here, of P99 TTFT in the replicas, the threshold and the rate."""

import equinox as eqx
import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402

import jaxsim  # noqa: E402

workload = jaxsim.workload("azure")
profile = jaxsim.profile("h100-80gb")


def ttft_p99_ms(replicas, threshold, rate):
    """P99 TTFT of the whole fleet: a short pool up to the threshold, and a long one above it."""
    upper = jnp.stack([threshold, jnp.asarray(65536.0)])
    design = jaxsim.FleetDesign.of(profile, [1.0, 1.0], [4096.0, 65536.0])
    design = eqx.tree_at(lambda d: (d.replicas, d.upper_tokens, d.max_context), design, (replicas, upper, upper))
    return 1e3 * jaxsim.evaluate(design, workload, rate).ttft_p99_s


point = jnp.array([2.0, 3.0]), jnp.array(4096.0), jnp.array(80.0)
compile_fast = {"xla_backend_optimization_level": 0}  # this program runs once
value, slopes = jax.jit(jax.value_and_grad(ttft_p99_ms, argnums=(0, 1, 2)), compiler_options=compile_fast)(*point)
print(f"P99 TTFT {value:.1f} ms")
print(f"one replica more in the short pool: {slopes[0][0]:+.2f} ms, in the long pool: {slopes[0][1]:+.2f} ms")
print(f"a threshold 100 tokens higher:      {100 * slopes[1]:+.2f} ms")
print(f"one request per second more:        {slopes[2]:+.3f} ms")
