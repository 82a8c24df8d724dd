"""The workload that a plan file and flags name: one stream of requests, or several mixed, each at its own rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jaxsim.embedded import workload as embedded
from jaxsim.embedded import workload_names
from jaxsim.mix import mix
from jaxsim.workload import Workload
from optim.config import ConfigError, Settings, read_settings
from optim.inputs import Input, Inputs
from optim.plan_file import StreamTable

_KINDS = ("name", "trace", "cdf")


def workload_of(settings: Settings) -> Workload:
    """The workload that a plan file and flags name, whole, with what a prefix cache is said to hold of its prompts.

    Raises:
        ConfigError: none or several are named, or it cannot be read; a prefix cache under the reference model.
    """
    hit_rate = settings.tables.workload.prefix_cache_hit_rate or 0.0
    if hit_rate and settings.tables.fleet.model == "kimura":
        hint = 'is for the default model; use model = "step", or leave it out'
        raise settings.error("workload.prefix_cache_hit_rate", hint)
    return _named(settings).with_prefix_cache(hit_rate)


def _named(settings: Settings) -> Workload:
    table = settings.tables.workload
    if table.mix is None:
        return _stream(settings, "workload", table)
    for name in (*_KINDS, "output_share", "map", "time_unit", "failed"):
        if getattr(table, name) is not None:
            raise settings.error(f"workload.{name}", "belongs in a row of [[workload.mix]], where there is a mix")
    rows = [(f"workload.mix[{k}]", row) for k, row in enumerate(table.mix)]
    streams = [_stream(settings, place, row) for place, row in rows]
    return mix(streams, [_own_rate(settings, *row, one) for row, one in zip(rows, streams, strict=True)])


def workload_again(planned: Callable[[str], Any], file: Path | None, flags: Mapping[str, Any]) -> Workload | None:
    """The workload of a written plan, which has none of its lengths; None where it is neither given nor embedded.

    Args:
        planned: the plan's inputs by their names; None where it has none of a name.
        file, flags: what was given anew, if anything.
    """
    if file is not None or flags:
        return workload_of(read_settings(file, flags))
    if (name := str(planned("workload"))) not in workload_names():
        return None
    again = embedded(name, output_share=planned("output_share"))
    return again.with_prefix_cache(planned("prefix_cache_hit_rate") or 0.0)


def rate_of(settings: Settings, workload: Workload) -> float:
    """Requests per second: what is given, else the workload's own.

    Raises:
        ConfigError: neither.
    """
    rate = settings.tables.workload.rate
    rate = workload.rate if rate is None else rate
    if rate is None:
        raise settings.missing("workload.rate", _no_rate(workload))
    return float(rate)


def load_inputs(
    settings: Settings, workload: Workload, rate: float | None, own: str = "the workload's own rate"
) -> Inputs:
    """The workload and its rate as inputs, each with its source."""
    table = settings.tables.workload
    kind = next(name for name in (*_KINDS, "mix") if getattr(table, name) is not None)
    shares = {}
    if table.output_share is not None:
        shares["output_share"] = Input(table.output_share, settings.source("workload.output_share"))
    return {
        "workload": Input(workload.name, settings.source(f"workload.{kind}")),
        **shares,
        "rate_rps": Input(rate, settings.source("workload.rate", own)),
        "prefix_cache_hit_rate": Input(
            table.prefix_cache_hit_rate or 0.0,
            settings.source("workload.prefix_cache_hit_rate", "default: every prompt is computed whole"),
        ),
    }


def _own_rate(settings: Settings, place: str, row: StreamTable, stream: Workload) -> float:
    rate = stream.rate if row.rate is None else row.rate
    if rate is None:
        raise settings.error(f"{place}.rate", f"is required: {_no_rate(stream)}")
    return float(rate)


def _no_rate(workload: Workload) -> str:
    return f"requests per second; workload {workload.name!r} has none of its own"


def _stream(settings: Settings, place: str, table: StreamTable) -> Workload:
    """What one table names."""
    given = [name for name in _KINDS if getattr(table, name) is not None]
    if len(given) != 1:
        found = f"got {' and '.join(given)}" if given else "got none"
        raise ConfigError(
            f"{settings.where(place)} must be exactly one of name (--workload), trace (--trace), cdf (--cdf), {found}; "
            'such as name = "azure-conversation"'
        )
    kind = given[0]
    for option in ("map", "time_unit", "failed"):
        if getattr(table, option) is not None and kind != "trace":
            raise settings.error(f"{place}.{option}", f"is for a trace; the workload is given by {kind}")
    if table.output_share is not None and kind == "trace":
        raise settings.error(f"{place}.output_share", "is for a cdf; a trace has measured output tokens")
    if table.name is not None:
        return _read(settings, f"{place}.name", lambda: embedded(str(table.name), output_share=table.output_share))
    if table.trace is not None:
        path = settings.path(f"{place}.trace", table.trace)
        columns, unit, failed = table.map, table.time_unit, table.failed or "drop"
        read = partial(Workload.from_trace, path, columns=columns, time_unit=unit, failed=failed)
        return _read(settings, f"{place}.trace", read)
    if table.output_share is None:
        hint = "a CDF of total tokens does not know it"
        if place != "workload":
            raise settings.error(f"{place}.output_share", f"is required; {hint}")
        raise settings.missing("workload.output_share", hint)
    share, path = table.output_share, settings.path(f"{place}.cdf", str(table.cdf))
    return _read(settings, f"{place}.cdf", lambda: Workload.from_cdf(path, output_share=share, name=path.stem))


def _read(settings: Settings, key: str, read: Callable[[], Workload]) -> Workload:
    try:
        return read()
    except (ValueError, OSError) as error:
        raise settings.error(key, error) from error
