"""Writing down the records of requests that have left, compiled."""

from __future__ import annotations

import numpy as np

from des._jit import entry


@entry
def write(finished, place, pool_of_replica, output_tokens, pool, sent_s, wait_s, ttft_s, tpot_s, e2e_s, steps, prefill):
    """Put the figures of record ``i`` into entry ``place[i]`` of the arrays; a TPOT of one token is NaN."""
    for i in range(finished.size):
        record = finished[i]
        at = place[i]
        sent = record["sent_s"]
        gaps = output_tokens[record["row"]] - 1.0
        decode_admit = record["decode_admit_s"]
        sent_s[at] = sent
        pool[at] = pool_of_replica[record["replica"]]
        wait_s[at] = record["admit_s"] - sent if decode_admit < 0.0 else decode_admit - record["arrive_s"]
        ttft_s[at] = record["first_s"] - sent
        e2e_s[at] = record["end_s"] - sent
        tpot_s[at] = (record["end_s"] - record["first_s"]) / gaps if gaps > 0.0 else np.nan
        steps[at] = record["steps"]
        prefill[at] = record["prefill_steps"]
