"""Sections that the HTML reports of several commands share."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import version

from optim.documents import Document, to_json
from optim.html_charts import series_chart, tail_chart
from optim.html_page import Block, Chart, Code, Folded, Section, Words
from optim.html_tables import inputs_table, profile_words, profiles_table, validity_table
from optim.tails import Tails
from optim.validity_document import OF_THE_MODEL
from optim.words import percent

_LIBRARIES = ("jax", "numba", "numpy")
_MODEL = {
    "step": "what a continuously batching engine does, at the batch that the load produces",
    "kimura": "the published reference model: one pooled queue of slots, Kimura's tail",
}


def distributions(tails: Tails | None) -> list[Section]:
    """TTFT and TPOT, the model's over the simulator's; nothing of what was not simulated."""
    if tails is None:
        return []
    charts: list[Block] = [tail_chart(tails.ttft, "ttft")]
    if tails.tpot is not None:
        charts.append(tail_chart(tails.tpot, "tpot"))
    else:
        charts.append(Words(["No request had a second token, so there is no TPOT."]))
    return [Section("distributions", "TTFT and TPOT distributions", charts)]


def over_time(document: Document, pools: Sequence[str] | None = None) -> list[Section]:
    """Occupancy and queue of one replication; nothing of what was not simulated."""
    series = document.get("time_series")
    if series is None:
        return []
    names = [f"pool {p}" for p in range(len(series["pools"]))] if pools is None else list(pools)
    charts: Sequence[Chart] = series_chart(series, names)
    return [Section("time", "Occupancy and queue over time", list(charts))]


def inputs(document: Document) -> Section:
    """Everything that went in, with where it came from."""
    workload = document.get("workload")
    model = document.get("model")
    blocks: list[Block] = [inputs_table(document)]
    if model is not None:
        blocks.append(Words([f"Model {model}: {_MODEL[model]}."]))
    if workload is not None:
        blocks.append(Words([f"Workload {workload['name']}: {workload['source']}", *workload["notes"]], listed=True))
    if document.get("profiles"):
        blocks += [profile_words(document), profiles_table(document)]
    return Section("inputs", "Inputs and where they came from", blocks)


def simulated_words(document: Document) -> list[str]:
    """How much was simulated, and what of it is in no figure."""
    found = document["verification"]
    said = [
        f"simulated {found['simulated_requests']:,} requests with seed {document['seed']}, the first "
        f"{percent(found['warmup_fraction'])} of the time left out"
    ]
    if found["undefined_tpot"]:
        said.append(f"{found['undefined_tpot']:,} requests with one output token have no TPOT and are left out of it")
    return said


def validity(document: Document, further: Sequence[str] = ()) -> Section:
    """What to doubt."""
    blocks: list[Block] = []
    if (table := validity_table(document)) is not None:
        about = (
            "Absolute relative errors of the model's P99s against the simulator on fleets of the same region, median "
            "and 90th percentile (docs/accuracy-latency.md)."
        )
        blocks += [Words([about]), table]
    told = table is not None
    notes = [note for note in document["warnings"] if not (told and note.startswith(OF_THE_MODEL))] + list(further)
    blocks.append(Words(notes, listed=True) if notes else Words(["Nothing more is to be said against it."]))
    return Section("validity", "What to doubt", blocks)


def reproduction(document: Document, command: Sequence[str], name: str) -> Section:
    """Command, seed and versions, and the document itself."""
    made = ", ".join(f"{library} {version(library)}" for library in _LIBRARIES)
    lines = [f"fleetgrad {document['version']}, with {made} on Python {platform.python_version()}."]
    if "seed" in document:
        lines.append(f"Random seed {document['seed']}. The same command, files and versions give the same figures.")
    return Section(
        "reproduce",
        "How to reproduce it",
        [Code(shlex.join(command)), Words(lines), Folded(f"{name}: every figure of this page", to_json(document))],
    )
