"""Plan a fleet: the cheapest that meets the SLO, checked by simulation."""

import jax

jax.config.update("jax_enable_x64", True)

import jaxsim  # noqa: E402
import optim  # noqa: E402

problem = optim.PlanProblem(
    workload=jaxsim.workload("azure-conversation"),
    rate=200.0,  # requests per second
    profiles=(jaxsim.profile("h100-80gb"),),
    slo=optim.SLO(ttft_p99_s=0.5, tpot_p99_s=0.06),
    max_pools=1,
    max_context=16384,
)
plan = optim.plan(problem, seed=0, precision=0.1)

print(plan.status.value)
for name, replicas, upper in zip(plan.design.profile.name, plan.design.replicas, plan.design.upper_tokens, strict=True):
    print(f"{replicas:.0f} x {name} for requests up to {upper:,.0f} tokens")
print(f"${plan.usd_per_hour:.2f}/h; no cheaper fleet than ${plan.certificate.lower_bound_usd_per_hour:.2f}/h exists")

modelled, simulated = plan.analytic.ttft_p99_s, plan.verification.ttft_p99_s
print(f"P99 TTFT: model {1e3 * modelled:.1f} ms, simulator {1e3 * simulated.value:.1f} ms")
print(f"          95 % interval [{1e3 * simulated.low:.1f}, {1e3 * simulated.high:.1f}] ms")
print(f"one more request per second costs ${plan.sensitivities.usd_per_hour_per_rps:.4f}/h")
