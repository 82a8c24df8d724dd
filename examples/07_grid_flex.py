"""Grid flexibility of 40 H100: what 0 to 50 % less power costs in P99 TTFT, for good and for 15 minutes.

Two levers: a cap on the requests that an engine runs at a time, and replicas switched off. Two sources: the model and
the simulator. They agree on the power. For good, a capped fleet has no P99 (the queue grows without end); an event
has one, because it ends: it is the queue that 15 minutes build up. The model takes that queue for a fluid, so an error
of 1 % in what a batch serves is 5 % of the queue where only a tenth of the load is too much.
"""

import tempfile
from pathlib import Path

import jax
import matplotlib

jax.config.update("jax_enable_x64", True)
matplotlib.use("Agg")

import jaxsim  # noqa: E402
import optim  # noqa: E402
from jaxsim.energy import design_power  # noqa: E402
from optim.power_flex import flexibility  # noqa: E402
from optim.power_plots import plot_flex  # noqa: E402

design = jaxsim.FleetDesign.of(jaxsim.profile("h100-80gb"), replicas=[40], upper_tokens=[8192])
workload = jaxsim.workload("azure").limited(8192, "reject")
SHARES = {"cap": [0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5], "off": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}

found = [
    flexibility(
        design,
        workload,
        200.0,
        design_power(design.profile),
        shares=shares,
        event_s=900.0,
        slo=optim.SLO(ttft_p99_s=0.5),
        lever=lever,
    )
    for lever, shares in SHARES.items()
]
for one in found:
    print(f"lever {one.lever}: {float(one.now.watts) / 1e3:.2f} kW now, {one.most:.1%} of it can be taken away")
    for level in one.levels:
        held = level.setting.caps or level.setting.replicas
        event = level.event.ttft_p99_s
        print(
            f"{level.share:4.0%}{' ' if level.reachable else '*'} held to {held[0]:3.0f}: {level.delivered:5.1%} by "
            f"the model, {1 - level.event.watts / one.undisturbed.watts:5.1%} simulated; P99 TTFT sustained "
            f"{level.ttft_p99_s:.3f} s, event {level.event_ttft_p99_s:7.3f} s, simulated {event.value:7.3f} s"
        )
    safe = one.event_safe
    print(f"safe for the event: {safe.safe:.1%}, and {safe.unsafe:.1%} is not. (* out of reach: the most there is)")
print("A cap bites only below the batch that the load needs: then less is served than arrives, and power falls less")
print("than service, since an idle H100 draws half of a full one. Fewer, fuller replicas serve the same for less.")
path = Path(tempfile.gettempdir()) / "grid_flex.png"
plot_flex(found, path, title="40 x H100, azure at 200 req/s: less power, sustained and for 15 minutes")
print(f"plot: {path}")
