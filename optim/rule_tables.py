"""Each of the simulator's tables of a plan file as an object of `des`, and its values with their sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import des
from des.rate_table import read_rate_table
from jaxsim.roofline_names import kv_bytes_per_token
from jaxsim.units import MS_PER_S, SECONDS_PER_HOUR
from jaxsim.workload import Workload
from optim.config import FLAGS, Settings
from optim.inputs import Input, Inputs

DEFAULTS: dict[str, Any] = {
    "serving.scheduling": "independent",
    "serving.kv": "reserve",
    "serving.preemption": "recompute",
    "arrivals.process": "poisson",
    "router.kind": "length",
    "router.knows": "total",
    "router.dispatch": "least-loaded",
    "router.error": 0.3,
    "router.pressure": 1.0,
    "router.gamma": 1.5,
    "router.success": 1.0,
    "router.compressible": 1.0,
    "router.affinity_slack": 2,
}
"""What a choice that the file leaves open is."""

BYTES_PER_GB = 1e9

_NAMES = {
    "router.kind": "router",
    "arrivals.process": "arrivals",
    "arrivals.map": "rate_table_map",
    "arrivals.only": "rate_table_only",
    "arrivals.repeat": "rate_table_repeat",
    "arrivals.zeros": "rate_table_zeros",
}
"""What the echoed inputs call keys whose names say too little without their table."""


def choice_of(settings: Settings, key: str) -> Any:
    """A value of the file or flags, else the default."""
    value = settings.value(key)
    return DEFAULTS[key] if value is None else value


def note(settings: Settings, inputs: Inputs, key: str, *, default: str = "default", value: Any = None) -> Any:
    """Write down a key's value and source, and return the value."""
    found = settings.value(key)
    if found is None:
        found = DEFAULTS.get(key, value)
    inputs[_NAMES.get(key, key.partition(".")[2])] = Input(found, settings.source(key, default))
    return found


def _required(settings: Settings, key: str, choice: str, such_as: str) -> Any:
    value = settings.value(key)
    if value is None:
        also = f"(or {FLAGS[key]}) " if key in FLAGS and settings.file is not None else ""
        chosen = f"{choice.partition('.')[2]} = {choice_of(settings, choice)!r}"
        raise settings.error(key, f"{also}is required for {chosen}, such as {such_as}")
    return value


def serving_rules(settings: Settings, workload: Workload, inputs: Inputs) -> des.Serving:
    """How engines serve."""
    table = settings.tables.serving
    scheduling = note(settings, inputs, "serving.scheduling")
    kv = note(settings, inputs, "serving.kv")
    if scheduling != "independent":
        _required(settings, "serving.max_num_batched_tokens", "serving.scheduling", "8192")
        note(settings, inputs, "serving.max_num_batched_tokens")
    preemption = note(settings, inputs, "serving.preemption") if kv == "grow" else "recompute"
    swap = 0.0
    if preemption == "swap":
        speed = _required(settings, "serving.swap_gb_per_s", "serving.preemption", "25.0 for PCIe 4")
        size = _required(settings, "serving.kv_bytes_per_token", "serving.preemption", "131072.0")
        for key in ("serving.swap_gb_per_s", "serving.kv_bytes_per_token"):
            note(settings, inputs, key)
        swap = size / (speed * BYTES_PER_GB)
    blocks = 0
    if table.prefix_cache_tokens is not None:
        blocks = _cache_blocks(settings, workload, table.prefix_cache_tokens)
        note(settings, inputs, "serving.prefix_cache_tokens")
    return des.Serving(
        scheduling=scheduling,
        max_num_batched_tokens=table.max_num_batched_tokens,
        kv=kv,
        preemption=preemption,
        swap_s_per_token=swap,
        prefix_cache_blocks=blocks,
    )


def _cache_blocks(settings: Settings, workload: Workload, tokens: int) -> int:
    if workload.prefix_blocks is None:
        raise settings.error(
            "serving.prefix_cache_tokens",
            f"needs a trace that lists block hashes (hash_ids, as Mooncake's); workload {workload.name!r} has none",
        )
    if workload.prefix_cache_hit_rate is not None:
        problem = "must be left out beside workload.prefix_cache_hit_rate: the cache finds out its own hits"
        raise settings.error("serving.prefix_cache_tokens", problem)
    blocks = tokens // workload.prefix_blocks.tokens
    if blocks < 1:
        raise settings.error(
            "serving.prefix_cache_tokens", f"must be >= {workload.prefix_blocks.tokens}, one block, got {tokens}"
        )
    return blocks


def arrival_process(settings: Settings, workload: Workload, inputs: Inputs) -> des.ArrivalProcess:
    """When requests arrive."""
    table = settings.tables.arrivals
    name = note(settings, inputs, "arrivals.process")
    if name in ("gamma", "weibull"):
        cv = _required(settings, "arrivals.cv", "arrivals.process", "3.0")
        note(settings, inputs, "arrivals.cv")
        return des.Renewal(law=name, cv=cv)
    if name == "markov-modulated":
        rates = _required(settings, "arrivals.rates", "arrivals.process", "[1.0, 5.0]")
        stays = _required(settings, "arrivals.mean_stay_s", "arrivals.process", "[300.0, 60.0]")
        for key in ("arrivals.rates", "arrivals.mean_stay_s"):
            note(settings, inputs, key)
        return des.MarkovModulated(rates=tuple(rates), mean_stay_s=tuple(stays))
    if name == "piecewise":
        file = _required(settings, "arrivals.rate_table", "arrivals.process", '"day.csv"')
        for key in ("arrivals.rate_table", *(f"arrivals.{k}" for k in ("only", "map") if getattr(table, k))):
            note(settings, inputs, key)
        repeat = note(settings, inputs, "arrivals.repeat", value=False)
        zeros = note(settings, inputs, "arrivals.zeros", value="missing")
        path = settings.path("arrivals.rate_table", file)
        try:
            return read_rate_table(path, columns=table.map, only=table.only, repeat=repeat, zeros=zeros)
        except (ValueError, OSError) as error:
            several = "is it one table?" in str(error) and table.only is None
            hint = "; arrivals.only keeps the rows of one" if several else ""
            raise settings.error("arrivals.rate_table", ValueError(f"{error}{hint}")) from error
    if name == "trace" and workload.arrival_s is None:
        raise settings.error(
            "arrivals.process",
            f"'trace' needs a workload with arrival times; workload {workload.name!r} has none: give a trace file "
            "with a time column",
        )
    return des.Trace() if name == "trace" else des.Poisson()


def router_of(settings: Settings, workload: Workload, inputs: Inputs, kind: str, knows: str) -> des.Router:
    """A router by length of a kind and a knowledge, with the plan file's parameters."""
    known = _knowledge(settings, workload, inputs, knows)
    common: dict[str, Any] = {"knows": known, "dispatch": choice_of(settings, "router.dispatch")}
    if common["dispatch"] == "prefix-affinity":
        common["affinity_slack"] = slack_of(settings, inputs)
    if kind == "spillover":
        return des.SpilloverRouter(pressure=float(note(settings, inputs, "router.pressure")), **common)
    if kind == "compress":
        gamma, success, share = (note(settings, inputs, f"router.{k}") for k in ("gamma", "success", "compressible"))
        return des.CompressRouter(gamma=float(gamma), success=float(success), compressible=float(share), **common)
    return des.LengthRouter(**common)


def slack_of(settings: Settings, inputs: Inputs) -> int:
    """Requests by which the replica with a prompt's prefix may exceed the least loaded one."""
    return int(note(settings, inputs, "router.affinity_slack"))


def router_rules(settings: Settings, workload: Workload, inputs: Inputs) -> des.Router:
    """Who goes where."""
    kind = note(settings, inputs, "router.kind")
    if settings.tables.transfer is not None and (kind != "length" or settings.tables.router.knows is not None):
        raise settings.error(
            "router.kind", "and knows must be left out beside [transfer]: each request goes to pool 0, then to pool 1"
        )
    dispatch = note(settings, inputs, "router.dispatch")
    if kind == "any":
        slack = slack_of(settings, inputs) if dispatch == "prefix-affinity" else None
        return des.AnyRouter(dispatch=dispatch, affinity_slack=slack)
    knows = note(settings, inputs, "router.knows")
    if kind == "compress" and knows == "predicted":
        problem = "must be 'total', 'input-plus-max' or 'input' for kind = 'compress', got 'predicted'"
        raise settings.error("router.knows", f"{problem}: how much to cut must follow from the request")
    return router_of(settings, workload, inputs, kind, knows)


def _knowledge(settings: Settings, workload: Workload, inputs: Inputs, name: str) -> Any:
    if name == "input-plus-max":
        longest = int(np.max(workload.output_tokens))
        most = note(settings, inputs, "router.max_tokens", value=longest, default="default: the longest output")
        if most < longest:
            problem = f"must be >= {longest}, the workload's longest output, got {most}; it caps every output"
            raise settings.error("router.max_tokens", problem)
        return des.InputPlusMax(max_tokens=float(most))
    if name == "predicted":
        return des.Predicted(error=float(note(settings, inputs, "router.error")))
    return des.Total() if name == "total" else des.InputOnly()


def transfer_link(settings: Settings, profiles: Sequence[str], inputs: Inputs) -> des.KvTransfer | None:
    """The link from prefill to decode; None without. `profiles` are the names of what it links."""
    table = settings.tables.transfer
    if table is None:
        return None
    latency, per_token = table.latency_ms or 0.0, table.kv_bytes_per_token
    source = settings.source("transfer") + ("" if table.latency_ms is not None else "; latency_ms default")
    if per_token is None:
        per_token = _kv_bytes(settings, profiles)
        source += f"; kv_bytes_per_token of {profiles[0].partition('@')[0]}"
    inputs["transfer"] = Input(
        {"kv_bytes_per_token": per_token, "gb_per_s": table.gb_per_s, "latency_ms": latency}, source
    )
    return des.KvTransfer(
        kv_bytes_per_token=per_token,
        bytes_per_s=table.gb_per_s * BYTES_PER_GB,
        latency_s=latency / MS_PER_S,
    )


def _kv_bytes(settings: Settings, profiles: Sequence[str]) -> float:
    """KV cache of a token of the one model that all profiles name."""
    if not all("@" in name for name in profiles):
        raise settings.error(
            "transfer.kv_bytes_per_token",
            "is required: only MODEL@GPU profiles say what a token's KV cache takes; 131072 is that of Llama 3 8B",
        )
    found = {kv_bytes_per_token(name) for name in profiles}
    if len(found) > 1:
        raise settings.error(
            "transfer.kv_bytes_per_token",
            f"is required: the profiles differ in it ({', '.join(map(str, sorted(found)))})",
        )
    return found.pop()


def failure_rules(settings: Settings, inputs: Inputs) -> des.Failures | None:
    """Failures of replicas; None without."""
    table = settings.tables.failures
    if table is None:
        return None
    repair = table.repair or "exponential"
    inputs["failures"] = Input(
        {"mean_up_hours": table.mean_up_hours, "mean_repair_minutes": table.mean_repair_minutes, "repair": repair},
        settings.source("failures") + ("" if table.repair is not None else "; repair default"),
    )
    return des.Failures(
        mean_up_s=table.mean_up_hours * SECONDS_PER_HOUR, mean_repair_s=table.mean_repair_minutes * 60.0, repair=repair
    )


def schedule_rows(settings: Settings, num_pools: int, inputs: Inputs) -> des.Schedule | None:
    """Replicas over time; None without."""
    rows = settings.tables.schedule
    if rows is None:
        return None
    pools = settings.tables.fleet.pools or []
    starts = {row.startup_s for row in rows if row.startup_s is not None}
    if len(starts) > 1:
        raise settings.error("schedule.startup_s", f"must be one value for all rows, got {sorted(starts)}")
    for k, row in enumerate(rows):
        key = f"schedule[{k}]"
        if row.pool >= num_pools:
            raise settings.error(f"{key}.pool", f"must be < {num_pools}, the number of pools, got {row.pool}")
        if row.replicas > pools[row.pool].replicas:
            most = pools[row.pool].replicas
            hint = "give the pool the most that the schedule asks for"
            raise settings.error(f"{key}.replicas", f"must be <= {most}, pool {row.pool}'s, got {row.replicas}; {hint}")
        if k and row.time_s < rows[k - 1].time_s:
            raise settings.error(
                f"{key}.time_s", f"must be >= {rows[k - 1].time_s:g}, the row before, got {row.time_s:g}"
            )
    startup = next(iter(starts), 0.0)
    source = settings.source("schedule")
    listed = [{"time_s": row.time_s, "pool": row.pool, "replicas": row.replicas} for row in rows]
    inputs["schedule"] = Input(listed, source)
    inputs["startup_s"] = Input(startup, source if starts else "default")
    return des.Schedule(
        time_s=tuple(row.time_s for row in rows),
        pool=tuple(row.pool for row in rows),
        replicas=tuple(row.replicas for row in rows),
        startup_s=startup,
    )
