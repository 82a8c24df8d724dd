"""The tables of a plan file: every key, its domain and what it means.

`[workload]`, `[slo]` and `[fleet]` are for every command, `[power]` for `fleetgrad plan`, `pareto`, `power` and
`schedule`, `[demand]`, `[scaling]` and `[defer]` for `schedule`, `[uncertainty]` for `robust`; the others are rules of
the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from optim.power_tables import PowerLawRow, PowerTable
from optim.table_types import Count, NonNegative, Positive, Share, Table, Text, Tokens


class StreamTable(Table):
    """Requests of one kind: exactly one of `name`, `trace`, `cdf`."""

    name: Text | None = Field(None, description="embedded workload; `fleetgrad profiles` lists them")
    trace: Text | None = Field(None, description="request trace: CSV, parquet or JSON lines; relative to this file")
    cdf: Text | None = Field(None, description="JSON list of [total tokens, cumulative share]; relative to this file")
    output_share: float | None = Field(
        None, gt=0, lt=1, allow_inf_nan=False, description="share of a request's total tokens that is output (cdf)"
    )
    rate: Positive | None = Field(None, description="requests per second; left out, the workload's own")
    map: dict[str, Text] | None = Field(None, description="our column names to the trace's")
    time_unit: Literal["s", "ms", "us", "ns"] | None = Field(None, description="of the trace's numeric timestamps")
    failed: Literal["drop", "keep"] | None = Field(None, description="trace requests with 0 output tokens")


class WorkloadTable(StreamTable):
    """What is served: one stream, or a `mix` of several; with a mix, `rate` is that of all, in their proportions."""

    mix: list[StreamTable] | None = Field(None, min_length=1, description="streams served together, each at its rate")
    prefix_cache_hit_rate: Share | None = Field(
        None, description="share of each prompt that a prefix cache holds and no engine computes; default 0"
    )


class SloTable(Table):
    """Objectives on the 99th percentile."""

    ttft_p99_ms: Positive | None = Field(None, description="P99 time to first token; required to plan")
    tpot_p99_ms: Positive | None = Field(None, description="P99 time per output token; left out, no objective")


class PoolTable(Table):
    """One pool of a fleet to simulate."""

    profile: Text = Field(description="preset or path of a profile.toml")
    replicas: Count = Field(description="engines")
    max_context: Tokens | None = Field(None, description="tokens above which it accepts nothing; else the fleet's")
    upper_tokens: Tokens | None = Field(None, description="routes totals up to here to this pool; the last has none")


class FleetTable(Table):
    """What it is served with: `profiles` to plan with, or `pools` to simulate."""

    profiles: list[Text] | None = Field(None, min_length=1, description="presets, or paths of profile.toml")
    max_pools: Annotated[int, Field(ge=1, le=6)] | None = Field(None, description="pools allowed; default 2")
    max_context: Tokens | None = Field(None, description="longest request in tokens; else the workload's longest")
    long_requests: Literal["reject", "truncate"] | None = Field(None, description='above max_context; "reject"')
    model: Literal["step", "kimura"] | None = Field(None, description='default "step"')
    max_gpus: Count | None = Field(None, description="cap on the GPUs of the whole fleet; default none")
    pools: list[PoolTable] | None = Field(None, min_length=1, description="for `fleetgrad simulate`")


class ServingTable(Table):
    """How an engine serves (simulator)."""

    scheduling: Literal["independent", "chunked", "decode-first", "prefill-first"] | None = Field(
        None,
        description='what a step is made of; default "independent": all that run, each prompt a chunk of its own',
    )
    max_num_batched_tokens: Count | None = Field(
        None, description="token budget of a step, for scheduling other than independent"
    )
    kv: Literal["reserve", "overflow", "grow"] | None = Field(
        None, description='how KV blocks are taken; default "reserve": all at admission, nobody is preempted'
    )
    preemption: Literal["recompute", "cached", "swap"] | None = Field(
        None, description='what kv = "grow" does with a victim; default "recompute"'
    )
    swap_gb_per_s: Positive | None = Field(None, description="bandwidth to CPU memory, GB (1e9 bytes) a second")
    kv_bytes_per_token: Positive | None = Field(None, description="KV cache of one token, all layers, for swapping")
    prefix_cache_tokens: Count | None = Field(
        None, description="prompt tokens that a replica keeps in whole blocks; needs a trace with hash_ids"
    )


class ArrivalsTable(Table):
    """When requests arrive (simulator)."""

    process: Literal["poisson", "gamma", "weibull", "markov-modulated", "piecewise", "trace"] | None = Field(
        None, description='default "poisson"; "trace" plays the workload\'s own arrivals'
    )
    cv: Annotated[float, Field(ge=0.01, le=20, allow_inf_nan=False)] | None = Field(
        None, description="standard deviation over mean of the gaps (gamma, weibull); 1 is Poisson"
    )
    rates: list[NonNegative] | None = Field(
        None, min_length=2, description="relative rate in each state (markov-modulated)"
    )
    mean_stay_s: list[Positive] | None = Field(
        None, min_length=2, description="mean stay in each state, seconds (markov-modulated)"
    )
    rate_table: Text | None = Field(
        None,
        description="CSV of windows with time_s and rate in requests per second (piecewise); relative to this file",
    )
    map: dict[str, Text] | None = Field(None, description="our column names (time_s, rate) to the table's")
    only: dict[str, Text] | None = Field(None, description='rows of the table to keep, such as {category = "m-large"}')
    repeat: bool | None = Field(None, description="whether the table starts anew at its end; default false")
    zeros: Literal["missing", "idle"] | None = Field(
        None, description='what a rate of 0 in the table means; default "missing": an error'
    )
    concurrency: Count | None = Field(
        None, description="requests that clients have outstanding at most (closed loop); default no limit"
    )


class RouterTable(Table):
    """Which pool and replica a request goes to (simulator)."""

    kind: Literal["length", "spillover", "compress", "any"] | None = Field(
        None, description='default "length": the first pool whose upper_tokens is at least the known length'
    )
    knows: Literal["total", "input-plus-max", "input", "predicted"] | None = Field(
        None, description='what is taken for the length; default "total": an oracle'
    )
    max_tokens: Count | None = Field(None, description="the cap on the output that clients send (input-plus-max)")
    error: NonNegative | None = Field(
        None, description="standard deviation of log(predicted / true output); default 0.3 (predicted)"
    )
    pressure: Positive | None = Field(
        None, description="(active + queued) / slots of a pool from which on its requests go to the next (spillover)"
    )
    gamma: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = Field(
        None, description="prompts up to gamma times a threshold may be cut to fit it (compress)"
    )
    success: Share | None = Field(None, description="chance that compressing succeeds; default 1 (compress)")
    compressible: Share | None = Field(None, description="share of requests that can be compressed; default 1")
    dispatch: Literal["least-loaded", "random", "round-robin", "power-of-two", "prefix-affinity"] | None = Field(
        None, description='which replica; default "least-loaded"'
    )
    affinity_slack: Annotated[int, Field(ge=0)] | None = Field(
        None, description="requests by which the replica with the prefix may exceed the least loaded (prefix-affinity)"
    )


class TransferTable(Table):
    """The link between two pools, prefill and decode (`simulate`, `disagg`)."""

    kv_bytes_per_token: Positive | None = Field(
        None, description="KV cache of one token, all layers, bytes; left out, that of the MODEL of MODEL@GPU profiles"
    )
    gb_per_s: Positive = Field(description="bandwidth of the link, GB (1e9 bytes) a second")
    latency_ms: NonNegative | None = Field(None, description="fixed time of a transfer; default 0")


class FailuresTable(Table):
    """Replicas that fail and are repaired (simulator)."""

    mean_up_hours: Positive = Field(description="mean time from repair to failure of a replica")
    mean_repair_minutes: NonNegative = Field(description="mean time from failure until it takes requests again")
    repair: Literal["exponential", "fixed"] | None = Field(None, description='default "exponential"')


class ScheduleRow(Table):
    """The replicas of one pool from an instant on (simulator)."""

    time_s: NonNegative = Field(description="seconds from the start of the run, ascending from row to row")
    pool: Annotated[int, Field(ge=0)] = Field(description="place in fleet.pools, from 0")
    replicas: Annotated[int, Field(ge=0)] = Field(description="from then on; at most the pool's own")
    startup_s: NonNegative | None = Field(
        None, description="until a new replica takes requests; one value for all rows; default 0"
    )


class DemandTable(Table):
    """Requests per second over a day (`fleetgrad schedule`): one of `table`, `rates_rps`, `from_trace`, `peak_rps`."""

    table: Text | None = Field(
        None, description="CSV with hour (or time_s) and rate, in requests per second; relative to this file"
    )
    rates_rps: list[NonNegative] | None = Field(None, min_length=2, description="requests per second in each interval")
    from_trace: bool | None = Field(None, description="whether the workload's own arrivals are counted in intervals")
    peak_rps: Positive | None = Field(None, description="highest rate of a cosine over 24 hours")
    trough_rps: NonNegative | None = Field(None, description="its lowest rate")
    peak_hour: Annotated[float, Field(ge=0, lt=24, allow_inf_nan=False)] | None = Field(
        None, description="hour of the day of its highest rate"
    )
    interval_minutes: Positive | None = Field(None, description="length of an interval, for all but a table")
    mean_rps: Positive | None = Field(None, description="mean that all rates are scaled to; left out, as they are")
    repeat: bool | None = Field(None, description="whether the same day follows for ever; default true")
    zeros: Literal["missing", "idle"] | None = Field(
        None, description='what a rate of 0 in the table means; default "missing": an error'
    )
    map: dict[str, Text] | None = Field(None, description="our column names to the table's")
    only: dict[str, Text] | None = Field(None, description='rows of the table to keep, such as {category = "m-large"}')
    grid_table: Text | None = Field(
        None, description="CSV with hour (or time_s) and usd_per_kwh or g_co2_per_kwh; relative to this file"
    )


class GpuPriceRow(Table):
    """Dollars per GPU-hour of the GPUs of one profile."""

    profile: Text = Field(description="as fleet.profiles or fleet.pools name it")
    on_demand_usd_per_gpu_hour: Positive | None = Field(None, description="left out, the profile's own price")
    reserved_usd_per_gpu_hour: Positive = Field(description="paid all the time")


class ScalingTable(Table):
    """How replicas come and go over a day, and at what prices (`fleetgrad schedule`)."""

    cold_start_s: NonNegative | None = Field(
        None, description="from the order of a replica to the first request it takes; default 300"
    )
    hold_minutes: NonNegative | None = Field(
        None, description="for which a replica that is not needed any more still takes requests; default 0"
    )
    spare_percent: NonNegative | None = Field(
        None, description="by which every rate is raised before it is sized; default 0"
    )
    on_demand_usd_per_gpu_hour: Positive | None = Field(None, description="left out, the profiles' own prices")
    reserved_usd_per_gpu_hour: Positive | None = Field(
        None, description="paid all the time, used or not; left out, nothing can be reserved"
    )
    prices: list[GpuPriceRow] | None = Field(None, min_length=1, description="for fleets of several profiles")


class DeferTable(Table):
    """Requests that may wait for a cheaper or cleaner hour (`fleetgrad schedule`)."""

    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(description="of every interval's requests")
    max_wait_hours: Positive = Field(description="longest wait")
    minimize: Literal["usd", "carbon"] | None = Field(None, description='default "usd"')


Pair = Annotated[list[Positive], Field(min_length=2, max_length=2)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
HalfWidth = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class ScenarioRow(Table):
    """One future among several; their probabilities sum to 1."""

    name: Text = Field(description="for people")
    probability: Probability = Field(description="of this future")
    rate: Positive | None = Field(None, description="requests per second; left out, the workload's")
    input_tokens_factor: Positive | None = Field(None, description="of every prompt; default 1")
    output_tokens_factor: Positive | None = Field(None, description="of every output; default 1")


class CoefficientsRow(Table):
    """Relative half-widths of a profile's coefficients: 0.1 is anything within 10 %, each by itself."""

    profile: Text = Field(description="as in fleet.profiles")
    base_s: HalfWidth | None = Field(None, description="of the time of a step whatever the batch")
    per_sequence_s: HalfWidth | None = Field(None, description="of the time for each running sequence")
    per_token_s: HalfWidth | None = Field(None, description="of the time for each context token")
    prefill_per_token_s: HalfWidth | None = Field(None, description="of the time for each prompt token")
    prefill_per_token2_s: HalfWidth | None = Field(None, description="of the time for each prompt and context token")
    overhead_s: HalfWidth | None = Field(None, description="of what the engine adds to a step")


class UncertaintyTable(Table):
    """What is not known (`fleetgrad robust`); what is left out is taken as known."""

    rate: Pair | None = Field(None, description="[low, high] requests per second, all as likely; or scenarios")
    rate_cv: Positive | None = Field(
        None, description="coefficient of variation of a log-normal rate around the workload's or a scenario's"
    )
    step_time_factor: Pair | None = Field(
        None, description="[low, high] of all step times at once, such as what a fit's held-out error says"
    )
    fit: bool | None = Field(
        None, description="draw coefficients from the errors that `fleetgrad fit --out` wrote into profile files"
    )
    input_tokens_factor: Pair | None = Field(None, description="[low, high] of every prompt's length")
    output_tokens_factor: Pair | None = Field(None, description="[low, high] of every output's length")
    length_sample: Count | None = Field(
        None, description="requests that the mix of lengths was seen in; it is drawn anew from them (bootstrap)"
    )
    scenarios: list[ScenarioRow] | None = Field(None, min_length=1, description="futures with probabilities")
    coefficients: list[CoefficientsRow] | None = Field(None, min_length=1, description="half-widths, by profile")


class PlanFile(Table):
    """A plan file of fleetgrad."""

    workload: WorkloadTable = Field(default_factory=WorkloadTable)  # type: ignore[arg-type]
    slo: SloTable = Field(default_factory=SloTable)  # type: ignore[arg-type]
    fleet: FleetTable = Field(default_factory=FleetTable)  # type: ignore[arg-type]
    serving: ServingTable = Field(default_factory=ServingTable)  # type: ignore[arg-type]
    arrivals: ArrivalsTable = Field(default_factory=ArrivalsTable)  # type: ignore[arg-type]
    router: RouterTable = Field(default_factory=RouterTable)  # type: ignore[arg-type]
    transfer: TransferTable | None = Field(None)
    failures: FailuresTable | None = Field(None)
    schedule: list[ScheduleRow] | None = Field(None, min_length=1, description="replicas over time")
    power: PowerTable = Field(default_factory=PowerTable)  # type: ignore[arg-type]
    demand: DemandTable = Field(default_factory=DemandTable)  # type: ignore[arg-type]
    scaling: ScalingTable = Field(default_factory=ScalingTable)  # type: ignore[arg-type]
    defer: DeferTable | None = Field(None, description="left out, nothing waits")
    uncertainty: UncertaintyTable = Field(default_factory=UncertaintyTable)  # type: ignore[arg-type]


TABLES: dict[str, type[Table]] = {
    "workload": WorkloadTable,
    "slo": SloTable,
    "fleet": FleetTable,
    "serving": ServingTable,
    "arrivals": ArrivalsTable,
    "router": RouterTable,
    "transfer": TransferTable,
    "failures": FailuresTable,
    "schedule": ScheduleRow,
    "power": PowerTable,
    "demand": DemandTable,
    "scaling": ScalingTable,
    "defer": DeferTable,
    "uncertainty": UncertaintyTable,
}

ROWS: dict[str, type[Table]] = {
    "workload.mix": StreamTable,
    "fleet.pools": PoolTable,
    "power.laws": PowerLawRow,
    "scaling.prices": GpuPriceRow,
    "uncertainty.scenarios": ScenarioRow,
    "uncertainty.coefficients": CoefficientsRow,
}
"""Tables within tables."""

OWN = {
    "power": "plan`, `pareto`, `power` and `schedule",
    "demand": "schedule",
    "scaling": "schedule",
    "defer": "schedule",
    "uncertainty": "robust",
}
"""Tables of a few commands, and those commands."""

SIMULATOR = ("serving", "arrivals", "router", "transfer", "failures", "schedule")
"""Tables that only the simulator uses."""

_TABLE = ("piecewise",)
CHOICES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "serving.scheduling": {"max_num_batched_tokens": ("chunked", "decode-first", "prefill-first")},
    "serving.kv": {"preemption": ("grow",), "swap_gb_per_s": ("grow",), "kv_bytes_per_token": ("grow",)},
    "serving.preemption": {"swap_gb_per_s": ("swap",), "kv_bytes_per_token": ("swap",)},
    "arrivals.process": {
        "cv": ("gamma", "weibull"),
        "rates": ("markov-modulated",),
        "mean_stay_s": ("markov-modulated",),
        "rate_table": _TABLE,
        "map": _TABLE,
        "only": _TABLE,
        "repeat": _TABLE,
        "zeros": _TABLE,
    },
    "router.kind": {
        "knows": ("length", "spillover", "compress"),
        "pressure": ("spillover",),
        "gamma": ("compress",),
        "success": ("compress",),
        "compressible": ("compress",),
    },
    "router.knows": {"max_tokens": ("input-plus-max",), "error": ("predicted",)},
    "router.dispatch": {"affinity_slack": ("prefix-affinity",)},
}
"""Keys that only some choices of another key take: choice -> key -> values of the choice that take it."""
