"""Bursts: a trace that comes in waves, and a day with a peak, each beside Poisson arrivals at the same mean rate."""

import os
import sys
import tempfile
from pathlib import Path

import jax
import matplotlib
import numpy as np

jax.config.update("jax_enable_x64", True)
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402

import des  # noqa: E402
import jaxsim  # noqa: E402
from des.rate_table import read_rate_table  # noqa: E402

data = Path(os.environ.get("FLEETGRAD_DATA", Path(__file__).parents[2] / "shared")) / "data" / "traces"
if not data.is_dir():
    sys.exit(f"reference traces not found in {data}; set FLEETGRAD_DATA to the folder that holds data/traces")
code = jaxsim.Workload.from_trace(data / "azure23_code.parquet")  # Azure 2023, code completion, 57 minutes
chat = jaxsim.workload("azure-conversation")
table = read_rate_table(data / "servegen_rate_10min.csv.gz", only={"category": "m-large"})  # ServeGen, two weeks
day = des.PiecewiseRate(start_s=table.start_s[:144], rate=table.rate[:144], end_s=86_400.0)
one, two = (jaxsim.FleetDesign.of(jaxsim.profile("a10g"), [replicas], [16384]) for replicas in (1, 2))
cv = float(np.std(np.diff(code.arrival_s)) / np.mean(np.diff(code.arrival_s)))
waves = des.Renewal(law="gamma", cv=cv)
whole = {"warmup_fraction": 0.0, "windows": 144}  # nothing is left out: the peak may come first

results = {
    "code: Poisson": des.simulate(one, code, rate=10.0),
    f"code: gamma gaps, cv² {cv**2:.0f}": des.simulate(one, code, rate=10.0, arrivals=waves),
    "code: the trace": des.simulate(one, code, rate=10.0, arrivals="trace", **whole),
    "day: Poisson": des.simulate(two, chat, rate=15.0),
    "day: ten-minute rates": des.simulate(two, chat, rate=15.0, arrivals=day, **whole),
}
print(f"azure-code, gaps with cv² = {cv**2:.0f}, at 10 req/s on 1 A10G; a day of m-large at 15 req/s on 2 A10Gs")
for name, result in results.items():
    p99, busy = result.ttft.quantile(0.99), result.pools[0].utilization
    print(f"{name:<28} P99 TTFT {p99.value:7.3f} s [{p99.low:.3f}, {p99.high:.3f}], {busy:.0%} of its sequences in use")

figure, (bars, rates) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained", width_ratios=(2, 3))
drawn = bars.barh(list(results), [r.ttft.quantile(0.99).value for r in results.values()], color="#1f6fb4")
bars.bar_label(drawn, fmt="%.3g s", padding=3)
bars.invert_yaxis()
bars.set(xscale="log", xlim=(0.1, 60), xlabel="P99 TTFT, s", title="the same mean rate, other arrivals")
hours = np.append(day.start_s, day.end_s) / 3600
rates.stairs(np.array(day.rate) * 15.0 / np.mean(day.rate), hours, color="#d9730d")
rates.set(xlabel="hour of the day", title="ten-minute rates (line), who waits (bars)", xlim=(0, 24), ylim=(0, 35))
rates.set_ylabel("req/s", color="#d9730d")
waiting = rates.twinx()
waiting.stairs(results["day: ten-minute rates"].time_series().queued[0], hours, color="#1f6fb4", fill=True, alpha=0.5)
waiting.set_ylabel("waiting requests, mean of ten minutes", color="#1f6fb4")
figure.savefig(Path(tempfile.gettempdir()) / "bursts.png", dpi=130)
print(f"plot: {Path(tempfile.gettempdir()) / 'bursts.png'}")
