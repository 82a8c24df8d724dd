"""The event loop on streams and fleets given as plain numbers: records in order of number."""

from typing import NamedTuple

import numpy as np

from des import _state
from des.lower import Fleet, kinds_table
from des.play import Stream, play
from jaxsim.physics import RequestWork, StepLaw


class Played(NamedTuple):
    """What became of each request (`_state.FINISHED`, by number), and what the loop counted."""

    records: np.ndarray
    totals: np.ndarray
    gaps: np.ndarray


def play_parts(fleet, kinds, parts, rules=None, **settings):
    """Play a stream given in parts. Every request must come back exactly once, and in its own row."""
    rows = np.concatenate([np.asarray(part.row) for part in parts])
    records = np.zeros(len(rows), dtype=_state.FINISHED)
    seen = np.zeros(len(rows), dtype=int)

    def sink(finished):
        records[finished["number"]] = finished
        np.add.at(seen, finished["number"], 1)

    totals = play(fleet, kinds, parts, sink, rules, **settings)
    assert np.all(seen == 1)
    np.testing.assert_array_equal(records["row"], rows)
    return Played(records, totals.windows, totals.gaps)


def play_one(fleet, kinds, arrival_s, row=None, rules=None, **settings):
    """Play requests for pool 0, all of row 0 unless told."""
    number = len(arrival_s)
    row = np.zeros(number, dtype=int) if row is None else np.asarray(row)
    stream = Stream(np.asarray(arrival_s, dtype=float), row, np.zeros(number, dtype=int))
    return play_parts(fleet, kinds, [stream], rules, **settings)


def one_pool(base_s=0.01, max_active=4, kv_blocks=10**6, replicas=1):
    """Engines whose steps take `base_s` and the requests' own work."""
    law = StepLaw(*(np.array([v]) for v in (base_s, 0.0, 0.0, 0.0, 0.0, 0.0)))
    whole = (np.array([v]) for v in (16, max_active, kv_blocks, replicas, _state.SERVES))
    return Fleet(law, np.array([512.0]), *whole)


def kinds_of(work, blocks=1):
    """The kinds table of one pool: rows with this work, whose outputs are as long as they decode."""
    shape = np.shape(work.last_s)
    outputs = np.broadcast_to(work.decode_steps, shape) + 1
    return kinds_table(work, blocks, np.ones(shape), outputs)[None]


def flat_work(prefill, decode, work_s):
    """Requests that add the same work in all their steps."""
    prefill, decode, work_s = np.broadcast_arrays(*(np.asarray(v, float) for v in (prefill, decode, work_s)))
    zero = np.zeros_like(work_s)
    return RequestWork(prefill - 1.0, work_s, zero, work_s, decode, work_s, zero)
