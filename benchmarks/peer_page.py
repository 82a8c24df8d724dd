"""The published scenarios of vllm-sr-sim beside our models and our simulator, on the same fleets and requests.

Run ``python benchmarks/peer_page.py`` (minutes; ``--quick`` for seconds on one fleet and one split). ``--write FILE``
writes the page of the documentation. Nothing is scored: the point is which figures of a published plan hold.

The fleets and what is reported of them are in `_peer_fleets`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _peer_fleets import (
    FLEETS,
    SOURCE,
    SPLIT_CONTEXT,
    SPLIT_INPUT,
    SPLIT_OUTPUT,
    SPLIT_RATE,
    SPLITS,
    PeerFleet,
    PeerSplit,
)
from _report import console, progress
from rich.markdown import Markdown

import des
import jaxsim
from des import Estimate, KvTransfer
from jaxsim.disagg import disagg_metrics, phases, reference_decode, reference_prefill
from jaxsim.fleet import FleetDesign

REQUESTS = 1_000_000
QUICK_REQUESTS = 40_000
SEED = 0
LINK = KvTransfer(kv_bytes_per_token=327_680, bytes_per_s=400e9, latency_s=5e-4)
"""Llama 3 70B: 80 layers x 8 KV heads x 128 x 2 (K and V) x 2 bytes; the peer's model has no link."""


class Row(NamedTuple):
    """What each says of the P99 TTFT of each pool, ms: the models, and the simulator in both conventions."""

    fleet: PeerFleet
    kimura: Sequence[float]
    step: Sequence[float]
    simulated_kimura: Sequence[Estimate]
    simulated_step: Sequence[Estimate]


class Split(NamedTuple):
    """The same of a disaggregated fleet; TTFT and TPOT."""

    split: PeerSplit
    reference_ms: tuple[float, float]
    needed: tuple[int, int]
    usd_per_hour: float
    step_ms: tuple[float, float]
    utilization: tuple[float, float]
    simulated: tuple[Estimate, Estimate]
    overloaded: bool


def looked_at(fleet: PeerFleet, requests: int) -> Row:
    """One fleet by both models and both conventions of the simulator."""
    workload = jaxsim.workload(fleet.workload)
    profiles = [jaxsim.profile(name) for name in fleet.profiles]
    design = FleetDesign.of(profiles, [float(n) for n in fleet.replicas], list(fleet.upper_tokens))
    said = {
        model: [1e3 * float(t) for t in jaxsim.evaluate(design, workload, fleet.rate, model=model).pools.ttft_p99_s]
        for model in ("kimura", "step")
    }
    found = {
        convention: [
            pool.ttft.quantile(0.99)
            for pool in des.simulate(
                design, workload, rate=fleet.rate, num_requests=requests, seed=SEED, convention=convention
            ).pools
        ]
        for convention in ("kimura", "step")
    }
    return Row(fleet, said["kimura"], said["step"], found["kimura"], found["step"])


def split_looked_at(split: PeerSplit, requests: int) -> Split:
    """One pair of pools by the reference model, the step model and the simulator."""
    before, after = jaxsim.profile(split.prefill), jaxsim.profile(split.decode)
    first = reference_prefill(before, SPLIT_INPUT, max_context=SPLIT_CONTEXT)
    then = reference_decode(after, SPLIT_OUTPUT, max_context=SPLIT_CONTEXT)
    needed = (math.ceil(SPLIT_RATE / float(first.rate)), math.ceil(SPLIT_RATE / float(then.rate)))
    workload = jaxsim.workload("azure").limited(SPLIT_CONTEXT, "reject")
    counts = [float(split.prefill_replicas), float(split.decode_replicas)]
    step = disagg_metrics(phases(before, after, workload, SPLIT_RATE, LINK), *map(jnp.asarray, counts))
    longest = float(np.max(workload.total_tokens))
    result = des.simulate(
        FleetDesign.of([before, after], counts, [longest, longest]),
        workload,
        rate=SPLIT_RATE,
        transfer=LINK,
        num_requests=requests,
        seed=SEED,
    )
    return Split(
        split=split,
        reference_ms=(1e3 * float(first.latency_s), 1e3 * float(then.latency_s)),
        needed=needed,
        usd_per_hour=needed[0] * float(before.usd_per_hour) + needed[1] * float(after.usd_per_hour),
        step_ms=(1e3 * float(step.ttft_p99_s), 1e3 * float(step.tpot_p99_s)),
        utilization=(float(step.prefill_utilization), float(step.decode_utilization)),
        simulated=(result.ttft.quantile(0.99), result.tpot.quantile(0.99)),
        overloaded=bool(result.overloaded),
    )


def _ms(value: float) -> str:
    if not math.isfinite(value):
        return "overload"
    return f"{value:,.0f}" if value >= 10.0 else f"{value:.1f}"


def _interval(found: Estimate) -> str:
    if not math.isfinite(found.high):
        return "overload"
    return f"{_ms(1e3 * found.value)} [{_ms(1e3 * found.low)}, {_ms(1e3 * found.high)}]"


def _meets(found: Iterable[Estimate], slo_ms: float) -> str:
    """Of all pools: what the simulated intervals say of the objective."""
    worst = max(found, key=lambda one: one.high)
    if 1e3 * worst.high <= slo_ms:
        return "met"
    return "missed" if any(1e3 * one.low > slo_ms for one in found) or not math.isfinite(worst.high) else "open"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _fleet_cells(row: Row) -> list[str]:
    fleet = row.fleet
    peer = " / ".join(map(_ms, fleet.peer_ttft_ms)) if fleet.peer_ttft_ms else "-"
    mark = "*" if fleet.sized else ""
    return [
        f"{fleet.workload}, {fleet.rate:g}/s",
        f"{fleet.pools}{mark}",
        str(fleet.peer_gpus),
        peer,
        " / ".join(map(_ms, row.kimura)),
        " / ".join(map(_interval, row.simulated_kimura)),
        " / ".join(map(_ms, row.step)),
        " / ".join(map(_interval, row.simulated_step)),
        f"{fleet.slo_ms:g} ms: {_meets(row.simulated_step, fleet.slo_ms)}",
    ]


FLEET_HEADINGS = (
    "requests",
    "fleet",
    "its GPUs",
    "it reports",
    "`kimura`",
    "simulated, `kimura` rules",
    "`step`",
    "simulated, step by step",
    "SLO, simulated",
)

SPLIT_HEADINGS = (
    "prefill + decode",
    "it reports: TTFT, TPOT, k$/year",
    "`kimura`: TTFT, TPOT",
    "least fleet at 100/s, k$/year",
    "utilisation by `step`",
    "`step`: P99 TTFT, TPOT",
    "simulated: P99 TTFT, TPOT",
)


def _split_cells(found: Split) -> list[str]:
    split = found.split
    a, b = (name.split("-")[0].upper() for name in (split.prefill, split.decode))
    return [
        f"{split.prefill_replicas} {a} + {split.decode_replicas} {b}",
        f"{split.ttft_ms:g}, {split.tpot_ms:g}, {split.kusd_per_year:g}",
        ", ".join(map(_ms, found.reference_ms)),
        f"{found.needed[0]} + {found.needed[1]}, {8.76 * found.usd_per_hour:.0f}",
        ", ".join(f"{value:.2f}" for value in found.utilization),
        ", ".join(map(_ms, found.step_ms)),
        "overload" if found.overloaded else ", ".join(map(_interval, found.simulated)),
    ]


HEAD = """# vllm-sr-sim and fleetgrad on the same fleets

Made by

    python benchmarks/peer_page.py --write docs/peer-comparison.md

with {requests:,} simulated requests a fleet and convention, seed {seed}. What vllm-sr-sim reports is quoted from its
published scenarios (puzzles 1, 2, 6 and 7):
[source]({source}).
Lengths: its distributions of total tokens, four fifths of each request being prompt. GPUs: its published constants,
*published, not measured*. So the fleets, the requests and the step times are the same, and only the models differ.

P99 TTFT in ms; of two pools, short / long. In brackets the 95 % interval. The columns:

- `kimura` is the reference model's formula, ours and its own: the P99 wait for a slot and a mean prefill at batch 1;
- "simulated, `kimura` rules" plays its engine request by request: as many slots as the pool's context allows, a request
  at its total length from its first step, steps as long as the batch that runs;
- `step` is our default model, and "simulated, step by step" the engine it describes, whose context grows.

*: it gives the total only; the pools are those of its own sizing rules, summed exactly. In P6 the splits follow from
its prices, and its thresholds, which it does not state, are taken as 4,096.
"""

SECTIONS = {
    "P1": (
        "Puzzle 1: where to split",
        """It reports its formula, which is our column `kimura`. They differ where its 3,000 samples of the lengths do:
summed over all lengths, a long pool for more than 4,096 tokens needs 6 A100, not 5. The formula does not see the steps
of the batch that runs, which both simulations do.""",
    ),
    "P2": (
        "Puzzle 2: agents on H100",
        """It reports its simulator, from one run without an interval: one pool misses the objective, two pools meet it.
Here both meet it, by both models and both simulations.""",
    ),
    "P6": (
        "Puzzle 6: mixed GPUs",
        """It reports its simulator, from one run without an interval.""",
    ),
}

P7 = """## Puzzle 7: prefill and decode apart

azure at {rate:g} requests/s, context {context:,.0f}. Its model has rates and no queue: TTFT is 1.8 times a prompt's
time in a full batch, TPOT the step of a full batch, at its stated means of {input:,.0f} and {output:,.0f} tokens. Ours
has both queues and a link of {gb:g} GB/s for the KV caches of a 70B model ({kv:,} bytes a token), and plays every
request.

Its rate of a decode worker is that of requests with a prompt of one token, so the steps of the decode pool do not read
the KV caches of the prompts. Ours do, and then the pool that it recommends is overloaded.

{table}

The presets have no prefill work per token: a prompt costs its number of chunks in steps. See
[the model](models/disaggregated.md).
"""


def page(rows: Sequence[Row], splits: Sequence[Split], requests: int) -> str:
    """The document."""
    parts = [HEAD.format(requests=requests, seed=SEED, source=SOURCE)]
    for puzzle, (title, text) in SECTIONS.items():
        chosen = [_fleet_cells(row) for row in rows if row.fleet.puzzle == puzzle]
        if chosen:
            parts.append(f"## {title}\n\n{text}\n\n{_table(FLEET_HEADINGS, chosen)}\n")
    table = _table(SPLIT_HEADINGS, map(_split_cells, splits))
    parts.append(
        P7.format(
            rate=SPLIT_RATE,
            context=SPLIT_CONTEXT,
            input=SPLIT_INPUT,
            output=SPLIT_OUTPUT,
            gb=LINK.bytes_per_s / 1e9,
            kv=int(LINK.kv_bytes_per_token),
            table=table,
        )
    )
    return "\n".join(parts)


def main() -> None:
    """Look at all of them and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one fleet and one split in seconds: a smoke test")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page")
    options = parser.parse_args()
    if options.write is not None and options.quick:
        parser.error("--write writes what all fleets say: it goes without --quick")
    jax.config.update("jax_enable_x64", True)
    fleets, requests = (FLEETS[:1], QUICK_REQUESTS) if options.quick else (FLEETS, REQUESTS)
    rows = []
    for fleet in fleets:
        progress(f"{fleet.puzzle}: {fleet.workload}, {fleet.pools}")
        rows.append(looked_at(fleet, requests))
    found = [split_looked_at(split, requests) for split in (SPLITS[:1] if options.quick else SPLITS)]
    text = page(rows, found, requests)
    if options.write is None:
        console().print(Markdown(text))
    else:
        options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
