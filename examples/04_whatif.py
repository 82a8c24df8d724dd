"""What if the load doubles, or the SLO tightens? A grid of optimal fleets in one compiled batch."""

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import jaxsim  # noqa: E402
import optim  # noqa: E402

problem = optim.PlanProblem(
    workload=jaxsim.workload("azure-conversation"),
    rate=100.0,
    profiles=(jaxsim.profile("h100-80gb"),),
    slo=optim.SLO(ttft_p99_s=0.5),
    max_pools=1,
    max_context=16384,
)
rates = np.array([50.0, 100.0, 200.0, 400.0])
objectives_s = np.array([0.03, 0.05, 0.1, 0.5])
grid = optim.whatif(problem, rate=rates[:, None], ttft_p99_s=objectives_s[None, :])

print("dollars per hour; rows: requests per second, columns: P99 TTFT objective")
print("        " + "".join(f"{1e3 * s:>9.0f} ms" for s in objectives_s))
for rate, row in zip(rates, grid.usd_per_hour, strict=True):
    cells = (f"{usd:>12.2f}" if np.isfinite(usd) else f"{'infeasible':>12}" for usd in row)
    print(f"{rate:>6.0f}  " + "".join(cells))
