"""Workloads that come with the package: four public traces and three published CDFs of total tokens.

A trace is kept as the joint table of its lengths without loss: each (input, output) pair with its count, in
order of total tokens. Its arrival times are not kept, only its mean rate.
`scripts/make_workloads.py` makes the tables. Sources and licences are in `data/workloads.toml`.
"""

from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from jaxsim._checks import unknown
from jaxsim.workload import Workload

_DATA = files("jaxsim") / "data"


def workload_names() -> tuple[str, ...]:
    """Names of the embedded workloads."""
    return tuple(_catalogue())


def workload(name: str, *, output_share: float | None = None) -> Workload:
    """An embedded workload by name.

    Args:
        name: one of `workload_names`.
        output_share: share of the total that is output, for a CDF of total tokens; left out, the convention
            it was published with. A trace has measured outputs, so there it is refused.

    Raises:
        ValueError: unknown name, or an output share that does not apply.
    """
    if name not in _catalogue():
        raise unknown("workload", name, _catalogue(), "a trace of your own: Workload.from_trace(path)")
    entry = _catalogue()[name]
    if entry["kind"] == "trace":
        if output_share is not None:
            raise ValueError(
                f"output_share must be left out for workload {name!r}, got {output_share!r}; it is a trace "
                "with measured output tokens"
            )
        return _trace(name)
    return _cdf(name, output_share)


@cache
def _catalogue() -> dict[str, Any]:
    return tomllib.loads((_DATA / "workloads.toml").read_text(encoding="utf-8"))


def _source(entry: dict[str, Any]) -> str:
    return f"{entry['source']}; {entry['licence']}"


@cache
def _trace(name: str) -> Workload:
    entry = _catalogue()[name]
    with (_DATA / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as table:
        total = np.cumsum(table["total_step"], dtype=np.int64)
        outputs, count = table["output_tokens"].astype(np.int64), table["count"]
    return Workload.from_lengths(
        total - outputs,
        outputs,
        weight=count,
        rate=entry.get("rate"),
        name=name,
        source=_source(entry),
        notes=(f"{entry['num_requests']} requests", *entry["quirks"]),
    )


@cache
def _cdf(name: str, output_share: float | None) -> Workload:
    entry = _catalogue()[name]
    points = json.loads((_DATA / "cdfs.json").read_text(encoding="utf-8"))[name]
    share = entry["output_share"] if output_share is None else output_share
    note = f"output share {share:g} is the published convention of this CDF, not measured"
    if output_share is not None:
        note = f"output share {share:g} was given; the CDF does not know it"
    return Workload.from_cdf(
        points,
        output_share=share,
        name=name,
        source=_source(entry),
        notes=("CDF of total tokens", note, *entry["quirks"]),
    )
