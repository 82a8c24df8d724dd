r"""Mean TTFT and TPOT of one engine at a fixed concurrency: what a benchmark of closed-loop clients measures.

K clients send their next request when the last one ended, so K requests are outstanding, n = min(K, slots) of them
running. A request takes S steps and adds work w to them in all; once the clients have lost step, each of the others
is in any of its steps alike, so a step takes base + (n - 1) E[w] / E[S] and what the request itself adds:

$$\text{TPOT} = \text{base} + (n-1)\frac{E[w]}{E[S]} + E[\overline{w}_\text{decode}], \qquad
\text{TTFT} = \text{wait} + E[S_\text{prefill}] \left(\text{base} + (n-1)\frac{E[w]}{E[S]}\right)
+ E[w_\text{prefill}]$$

The wait is Little's: K - n requests queue, n are served in the time of one. Prefill of the others is in every TPOT.

Clients that start together are in step at first: all prompts are computed at once, and no TPOT has prefill in it,

$$\text{TPOT} = \text{base} + n\,E[\overline{w}_\text{decode}], \qquad
\text{TTFT} = E[S_\text{prefill}]\,\text{base} + n\,E[w_\text{prefill}]$$

A share `in_step` of the requests are taken to be such: one in ten where each client sends ten requests of various
lengths, all where the lengths are all the same, which keeps clients in step for good.

Against the simulator at prompts of 128 to 8,192 tokens and 1 to 128 clients (``tests/test_fit_runs.py``), TPOT is
within 2 % and TTFT within 5 %; against published benchmarks of real engines, see `jaxsim.fit.runs.fit_runs`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxsim._ops import maximum, minimum
from jaxsim.physics import (
    StepLaw,
    decode_work,
    prefill_steps,
    prefill_work,
    step_base_s,
    step_work,
    total_steps,
)

INPUT_NODES, OUTPUT_NODES = 8, 3


class Runs(NamedTuple):
    """Benchmark runs: columns of one length, of floats. A run of weight 0 does not count.

    `concurrency` clients on one replica; prompts and outputs of so many tokens on average, each uniform within
    `spread` of that (a fraction); a share `in_step` of the requests sent while clients are in step; `chunk_tokens` of
    a prompt computed in a step; `slots` requests running at most; means of TTFT and TPOT, of which the TTFT counts
    only with `ttft_weight` 1.
    """

    concurrency: Any
    input_tokens: Any
    output_tokens: Any
    spread: Any
    in_step: Any
    chunk_tokens: Any
    slots: Any
    ttft_s: Any
    tpot_s: Any
    ttft_weight: Any
    weight: Any


def closed_loop(law: StepLaw, runs: Runs) -> tuple[Any, Any]:
    """Mean TTFT and mean TPOT, seconds, of each run."""
    inputs, outputs = _lengths(runs)
    work = step_work(law, runs.chunk_tokens[:, None], inputs, outputs)
    before, prefill = prefill_steps(work).mean(axis=1), prefill_work(work).mean(axis=1)
    after, decode = work.decode_steps.mean(axis=1), (decode_work(work) / maximum(work.decode_steps, 1.0)).mean(axis=1)
    each = (prefill_work(work) + decode_work(work)).mean(axis=1) / total_steps(work).mean(axis=1)
    running, base = minimum(runs.concurrency, runs.slots), step_base_s(law)
    step = base + (running - 1.0) * each
    tpot = step + decode + runs.in_step * (base + running * decode - step - decode)
    steady = before * step + prefill
    first = steady + runs.in_step * (before * base + running * prefill - steady)
    wait = (runs.concurrency - running) / running * (first + after * tpot)
    return wait + first, tpot


def _lengths(runs: Runs) -> tuple[Any, Any]:
    """Lengths of equal weight, one row a run: every pair of the middles of equal parts of both ranges."""
    first, second = (np.linspace(-1.0, 1.0, 2 * number + 1)[1::2] for number in (INPUT_NODES, OUTPUT_NODES))
    inputs = runs.input_tokens[:, None] * (1.0 + runs.spread[:, None] * np.repeat(first, OUTPUT_NODES)[None, :])
    outputs = runs.output_tokens[:, None] * (1.0 + runs.spread[:, None] * np.tile(second, INPUT_NODES)[None, :])
    return maximum(inputs, 1.0), maximum(outputs, 1.0)
