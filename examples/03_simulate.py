"""Simulate a fleet, step by step and request by request, and watch it overload."""

import jax

jax.config.update("jax_enable_x64", True)

import des  # noqa: E402
import jaxsim  # noqa: E402

workload = jaxsim.workload("azure-conversation")
design = jaxsim.FleetDesign.of(jaxsim.profile("h100-80gb"), [3], [16384])

for rate in (150.0, 200.0, 220.0, 240.0):
    result = des.simulate(design, workload, rate=rate, num_requests=100_000, seed=0)
    p99 = result.ttft.quantile(0.99)
    share = result.attainment(ttft_s=0.5, tpot_s=0.06)
    verdict = f"OVERLOADED, load {result.pools[0].load:.2f}" if result.overloaded else "keeps up"
    print(
        f"{rate:.0f} req/s: P99 TTFT {1e3 * p99.value:,.1f} ms [{1e3 * p99.low:,.1f}, {1e3 * p99.high:,.1f}], "
        f"{share:.1%} met the SLO; {verdict}"
    )
    for warning in result.warnings:
        print(f"    {warning}")
