"""Every request as one row: what it was, what became of it, and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars

from des.ledger import Ledger
from des.routing import NOWHERE, REASONS

INSTANTS = ("sent_s", "admit_s", "first_s", "end_s", "prefill_end_s", "decode_admit_s")
COUNTS = ("replica", "prefill_replica", "preemptions", "retries", "steps")
STATUS = ("finished", *REASONS)


def requests_table(
    replications: Sequence[Any], lengths: tuple[np.ndarray, np.ndarray], pool_of_replica: np.ndarray
) -> dict[str, np.ndarray]:
    """Columns, one entry per request in order of arrival, replication after replication.

    Instants are seconds from the start of its run: `due_s` when it arrives, `sent_s` (later only where its client had
    to wait), `queued_s` when it reached the replica it ended on, `admit_s`, `first_s` (first token), `end_s` (last
    token), and in a disaggregated fleet `prefill_end_s` and `decode_admit_s`; NaN where there is none. Counts are -1
    where there is none. `status` is an index in `STATUS`: 0 for finished, else why it was rejected. `measured` says
    that it came after the warm-up.

    Raises:
        ValueError: requests were not kept.
    """
    tables = [_of_run(run, index, lengths, pool_of_replica) for index, run in enumerate(replications)]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _of_run(
    run: Any, index: int, lengths: tuple[np.ndarray, np.ndarray], pool_of_replica: np.ndarray
) -> dict[str, np.ndarray]:
    if not isinstance(run.kept, Ledger) or run.kept.records is None or run.drawn is None:
        raise ValueError("requests were not kept; use simulate(..., keep='requests')")
    arrival_s, routed = run.drawn
    served = routed.reason == NOWHERE
    records = run.kept.records
    table = {
        "replication": np.full(len(served), index, dtype=np.int32),
        "due_s": arrival_s,
        "input_tokens": lengths[0][routed.row].astype(np.int64),
        "output_tokens": lengths[1][routed.row].astype(np.int64),
        "status": np.where(served, 0, routed.reason + 1).astype(np.int8),
        "pool": _spread(pool_of_replica[records["replica"]].astype(np.int32), served, -1),
        "queued_s": _spread(np.where(records["arrive_s"] < 0, records["sent_s"], records["arrive_s"]), served, np.nan),
    }
    table |= {name: _spread(_set(records[name]), served, np.nan) for name in INSTANTS}
    table |= {name: _spread(records[name], served, -1) for name in COUNTS}
    sent = np.maximum.accumulate(np.where(served, table["sent_s"], arrival_s))  # a rejected one with those before it
    return table | {"measured": sent >= run.start_s}


def _set(instants: np.ndarray) -> np.ndarray:
    return np.where(instants < 0, np.nan, instants)


def _spread(values: np.ndarray, served: np.ndarray, missing: float) -> np.ndarray:
    spread = np.full(len(served), missing, dtype=values.dtype)
    spread[served] = values
    return spread


def write_parquet(table: dict[str, np.ndarray], path: Path) -> None:
    """The table as a parquet file, `status` in words."""
    columns: dict[str, Any] = dict(table)
    columns["status"] = np.array(STATUS)[table["status"]]
    polars.DataFrame(columns).write_parquet(path)
