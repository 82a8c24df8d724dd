"""The table of power: laws of GPUs, PUE, prices, and what a plan makes of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from optim.table_types import NonNegative, Positive, Table, Text


class PowerLawRow(Table):
    """Power of one GPU running n requests: idle + (nominal - idle) / (1 + exp(-steepness (log2 n - log2_midpoint)))."""

    gpu: Text = Field(description="as the profiles name it, such as h200-sxm")
    idle_w: NonNegative = Field(description="watts with nothing running")
    nominal_w: Positive = Field(description="watts of an endless batch; above idle_w")
    steepness: Positive = Field(description="k, per doubling of the batch; the published H100's is 1.0")
    log2_midpoint: Annotated[float, Field(allow_inf_nan=False)] = Field(
        description="x0, log2 of the batch half-way up; the published H100's is 4.2"
    )


class PowerTable(Table):
    """Power, what it costs and what a plan makes of it (`fleetgrad plan`, `pareto`, `power`, `schedule`)."""

    pue: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = Field(
        None, description="power of the building over that of its GPUs; left out, the GPUs' alone"
    )
    usd_per_kwh: Positive | None = Field(None, description="price of electricity; left out, nothing is priced")
    kg_co2_per_kwh: NonNegative | None = Field(
        None, description="carbon intensity of the grid; left out, no emissions are given"
    )
    laws: list[PowerLawRow] | None = Field(
        None, min_length=1, description="of your GPUs; left out, the published constants (H100, A100, A10G)"
    )
    minimize: Literal["cost", "energy", "cost+electricity", "carbon"] | None = Field(
        None,
        description='what a plan is the least of: "cost" of the GPUs (default), "energy" in kW, "cost+electricity" '
        'together, or "carbon" of the electricity (plan, pareto)',
    )
    max_kw: Positive | None = Field(
        None, description="budget on the mean power at the meter, PUE included; default none (plan, pareto)"
    )
    max_kwh_per_million_tokens: Positive | None = Field(
        None, description="budget on the energy at the meter of a million output tokens; default none (plan, pareto)"
    )
