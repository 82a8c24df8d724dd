"""Step tables in files: CSV, parquet or JSON lines with a row for each measured step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxsim._trace_columns import INPUT, OUTPUT, TRACE, Vocabulary, plain, refusal
from jaxsim.fit.table import StepTable

if TYPE_CHECKING:
    from jaxsim._trace_files import TraceTable

NUM_ACTIVE, MEAN_CONTEXT, CONTEXT_TOKENS = "num_active", "mean_context", "context_tokens"
PROMPT_TOKENS, PROMPT_CONTEXT, GROUP = "prompt_tokens", "prompt_context", "group"
UNITS = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "time_ns": 1e-9}
"""Seconds in the unit of each column of times."""

TRACE_LENGTHS = (INPUT, OUTPUT)

_TIMES = ("time", "step_time", "step", "latency", "duration", "iteration", "iteration_time", "iter_time", "tpot", "t")
"""Names of a step's time without their unit."""

STEPS = Vocabulary(
    {
        NUM_ACTIVE: ("num_active", "n", "batch", "batch_size", "num_seqs", "num_sequences", "sequences", "num_running"),
        MEAN_CONTEXT: ("mean_context", "context", "ctx", "context_len", "context_length", "context_per_sequence",
                       "avg_context", "mean_ctx"),
        CONTEXT_TOKENS: ("context_tokens", "total_context", "total_context_tokens", "sum_context", "kv_tokens"),
        **{f"time_{unit}": tuple(f"{name}_{unit}" for name in _TIMES) for unit in ("s", "ms", "us", "ns")},
        PROMPT_TOKENS: ("prompt_tokens", "prefill_tokens", "num_prefill_tokens", "prompt_chunk", "prefill_chunk"),
        PROMPT_CONTEXT: ("prompt_context", "prefill_context"),
        GROUP: ("group", "label", "config", "configuration"),
    },
    ((NUM_ACTIVE,), (MEAN_CONTEXT, CONTEXT_TOKENS), ("time_ms", "time_s", "time_us", "time_ns")),
)  # fmt: skip
"""The columns of a table of steps."""


def read_steps(path: str | Path, *, columns: Mapping[str, str] | None = None) -> StepTable:
    """Read a table of measured steps.

    Columns are found by name: sequences in the step (`num_active`, `n`, `batch_size`, ...); tokens that each holds on
    average (`mean_context`, `context`, ...) or all of them together (`context_tokens`, ...); its time with the unit in
    the name (`time_ms`, `step_time_ms`, `latency_us`, ...); and, where there are such, `prompt_tokens` computed in it,
    the `prompt_context` at which its one piece of prompt ends, and a `group`. Without `prompt_context`, prompts are
    whole and one a step.

    Args:
        path: a CSV, parquet or JSON lines file.
        columns: our names to the file's, such as ``{"time_ms": "latency"}``, which says the unit too.

    Raises:
        FileNotFoundError: no such file.
        ValueError: anything else that stands between the file and its steps, with file, line and column, what was
            expected and how to map it.
    """
    from jaxsim._trace_files import open_table  # here, since it loads polars, which only readers need
    from jaxsim.fit._step_values import collected, groups_of, numbers_of

    path = Path(path)
    STEPS.check_mapping(columns)
    if not path.exists():
        raise FileNotFoundError(f"step table not found: {path}; check the path")
    table = open_table(path, columns, "steps")
    _refuse_trace(table, columns)
    _refuse_without_unit(table, columns)
    chosen = STEPS.resolve(table.names, columns, table.header)
    times = [name for name in UNITS if name in chosen]
    for several in (times, [name for name in (MEAN_CONTEXT, CONTEXT_TOKENS) if name in chosen]):
        if len(several) > 1:
            found = " and ".join(f"{table.names[chosen[name]]!r} ({name})" for name in several)
            how = f"say which: --map {several[0]}={table.names[chosen[several[0]]]}"
            raise refusal(table.header, f"more than one column says the same: {found}", f"{how}, and rename the other")
    frame = collected(table, chosen)
    values = {ours: numbers_of(table, frame, ours, at) for ours, at in chosen.items() if ours != GROUP}
    if not len(values[NUM_ACTIVE]):
        raise refusal(path.name, "no data rows: 0 steps", "a table needs a header and rows")
    groups = groups_of(table, frame) if GROUP in chosen else ()
    try:
        return StepTable.of(
            values[NUM_ACTIVE],
            values[times[0]] * UNITS[times[0]],
            mean_context=values.get(MEAN_CONTEXT),
            context_tokens=values.get(CONTEXT_TOKENS),
            prompt_tokens=values.get(PROMPT_TOKENS, 0.0),
            prompt_context=values.get(PROMPT_CONTEXT),
            groups=groups,
            source=path.name,
        )
    except ValueError as error:
        raise refusal(path.name, str(error)) from error


def join_steps(tables: Iterable[StepTable]) -> StepTable:
    """Tables as one; rows without a group are labelled by the table they are from."""
    parts = list(tables)
    if len(parts) == 1:
        return parts[0]
    groups = [part.groups or (part.source,) * len(part) for part in parts]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("num_active", "mean_context", "prompt_tokens", "token_contexts", "time_s")
    }
    return StepTable(
        **columns,
        groups=tuple(label for labels in groups for label in labels),
        source=", ".join(part.source for part in parts),
    )


def _refuse_trace(table: TraceTable, columns: Mapping[str, str] | None) -> None:
    """Requests have no step times, however their columns could be mapped."""
    ours = any(STEPS.knows(name, found) for name in (NUM_ACTIVE, *UNITS) for found in table.names)
    if columns or ours or not all(any(TRACE.knows(name, found) for found in table.names) for name in TRACE_LENGTHS):
        return
    found = ", ".join(map(repr, table.names))
    what = f"a request trace (columns {found}) has no times of steps, nothing that a law could be fitted to"
    raise refusal(table.file, what, "fleetgrad trace shows what is in it")


def _refuse_without_unit(table: TraceTable, columns: Mapping[str, str] | None) -> None:
    """A time whose name has no unit is not guessed."""

    def known(ours: str) -> bool:
        return ours in (columns or {}) or any(STEPS.knows(ours, name) for name in table.names)

    if not known(NUM_ACTIVE) or any(known(unit) for unit in UNITS):
        return
    for name in table.names:
        if plain(name) in {plain(each) for each in _TIMES}:
            what = f"column {name!r} is a time without a unit"
            how = f"say it: --map time_ms={name} or --map time_s={name} (Python: columns={{'time_ms': {name!r}}})"
            raise refusal(table.header, what, f"{how}, or name the column {name}_ms")
