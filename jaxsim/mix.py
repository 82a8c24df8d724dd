"""Several streams of requests served by one fleet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsim._checks import require_positive
from jaxsim.workload import Workload


def mix(streams: Sequence[Workload], rates: Sequence[float]) -> Workload:
    """Several streams of requests served together, each at its own rate.

    Arrival times and prompt blocks do not carry over: nothing says how those of one stream fall among those of
    another. The rate of the mixture is the sum.

    Args:
        streams: one or more.
        rates: requests per second of each, > 0; only their proportions count for the lengths.

    Raises:
        ValueError: no stream, another number of rates, or a rate that is not finite and > 0.
    """
    each = np.asarray(rates, dtype=np.float64)
    if len(streams) == 0 or each.shape != (len(streams),):
        raise ValueError(f"rates must be one number for each of the streams, got {each.size} for {len(streams)}")
    require_positive("rates", each)
    shares = each / each.sum()
    parts = [
        f"{share:.3%} {one.name} at {rate:g} req/s" for one, share, rate in zip(streams, shares, each, strict=True)
    ]
    dropped = [one.name for one in streams if one.arrival_s is not None or one.prefix_blocks is not None]
    return Workload.from_lengths(
        np.concatenate([one.input_tokens for one in streams]),
        np.concatenate([one.output_tokens for one in streams]),
        weight=np.concatenate([share * one.weight for one, share in zip(streams, shares, strict=True)]),
        rate=float(each.sum()),
        name=" + ".join(one.name for one in streams),
        source="; ".join(dict.fromkeys(f"{one.name}: {one.source}" for one in streams)),
        notes=[
            f"a mix of {', '.join(parts)}",
            *([f"arrival times and prompt blocks of {' and '.join(dropped)} are not used in a mix"] if dropped else []),
            *(f"{one.name}: {note}" for one in streams for note in one.notes),
        ],
    )
