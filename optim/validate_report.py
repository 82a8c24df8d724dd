"""What people read of a validation: the answer first, then load and latencies beside the plan, then what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jaxsim.observed import MEAN
from optim.inputs import Inputs
from optim.report import bullets, inputs_table, sources, table
from optim.validate import Objective, Validation, ValidationStatus
from optim.validate_compare import OTHER_REASON, STEP_REASON, Row
from optim.validate_document import load_rows, planned, sentence, warnings
from optim.validate_refit import Refit
from optim.words import given, ms, number, percent, whole

_STYLES = {
    ValidationStatus.HOLDS: "bold green",
    ValidationStatus.TAILS_OFF: "bold yellow",
    ValidationStatus.DOES_NOT_HOLD: "bold red",
    ValidationStatus.NOT_JUDGED: "bold yellow",
}
_TITLES = {
    "rate": "requests/s, a replica",
    "mean_input": "mean prompt, tokens",
    "mean_output": "mean output, tokens",
    "utilization": "utilisation at full batch",
    "running": "running, a replica",
    "in_flight": "running + waiting, a replica",
    "waiting": "waiting, a replica",
    "kv_share": "KV cache filled",
}


def validation_report(found: Validation, inputs: Inputs) -> Group:
    """A validation as a page."""
    load = found.load
    text = sentence(found)
    parts: list[RenderableType] = [Text(f"{text[0].upper()}{text[1:]}.", style=_STYLES[found.status])]
    parts += [Text(line) for line in (*_objectives(found), *_due(found))]
    parts += ["", Text(_measured(found)), "", _load_table(found)]
    if found.rows:
        parts += ["", _figures_table(found), *bullets("Allowed", _tolerances(found))]
    if found.refit is not None:
        parts += ["", *_refit(found.refit)]
    elif found.no_refit:
        parts += ["", Text(f"Not refitted: {found.no_refit}.")]
    parts += ["", inputs_table(inputs), "", *sources((load.pool.profile,)), *bullets("Notes", warnings(found))]
    return Group(*parts)


def _measured(found: Validation) -> str:
    seen, load = found.seen, found.load
    at = f"{seen.concurrency} clients" if seen.concurrency is not None else f"{number(seen.rate)} requests/s"
    return (
        f"Measured: {seen.source} ({seen.tool}): {whole(seen.completed)} requests in {number(seen.seconds)} s at {at}, "
        f"{load.covered} of {load.replicas} replicas of {load.pool.label}."
    )


def _objectives(found: Validation) -> Iterator[str]:
    for each in found.objectives:
        name, limit = f"P99 {each.figure.upper()}", given(round(each.limit_s * 1e3, 9))
        if each.verdict is None:
            yield f"SLO now: {name} was not measured; its objective is {limit} ms."
        else:
            yield f"SLO now: {name} {_between(each)} ms of {limit} ms: {each.verdict.value}."


def _between(each: Objective) -> str:
    if math.isinf(each.high_s):
        return f"> {ms(each.low_s)}"
    return ms(each.low_s) if each.low_s == each.high_s else f"{ms(each.low_s)} to {ms(each.high_s)}"


def _due(found: Validation) -> Iterator[str]:
    load, room = found.load, found.due
    if room is None:
        if found.fleet.slo is not None and found.status is not ValidationStatus.NOT_JUDGED:
            yield "No number of replicas meets the SLO at the measured lengths, by the model."
        return
    which = "refitted profile" if found.refit is not None else "plan's profile"
    due = room.fleet_due_rate
    if math.isinf(due):
        yield f"By the model with the {which} no replica is due, however high the rate."
        return
    each = f"{number(due / load.replicas)} requests/s a replica"
    if room.spare < 0:
        yield (
            f"By the model with the {which} the SLO at this load needs {room.required[0]} replicas, and there are "
            f"{load.replicas}: the next was due at {number(due)} requests/s ({each}), {percent(-room.spare)} below it."
        )
    else:
        yield (
            f"By the model with the {which} the next replica is due at {number(due)} requests/s ({each}), "
            f"{percent(room.spare)} above the measured {number(load.rate)}."
        )


def _load_table(found: Validation) -> Table:
    made = table("load", "planned", "planned, simulated", "model", "simulated", "measured", left=("load",))
    for row in load_rows(found):
        values = (row[key] for key in ("planned", "planned_simulated", "model", "simulated", "measured"))
        made.add_row(_TITLES[row["name"]], *map(_figure, values))
    return made


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return "< 0.001" if 0.0 < value < 1e-3 else number(value)


def _figures_table(found: Validation) -> Table:
    columns = ("latency, ms", "planned", "model", "simulated", "measured", "known to", "allowed")
    made = table(*columns, "agrees", left=("latency, ms", "agrees"))
    for column in made.columns:
        column.no_wrap = True
    for row in found.rows:
        if row.part is None and row.key != ("e2e", MEAN):
            continue
        plan = [number(value) for value in planned(found, row) if value is not None]
        known, allowed, agrees = _known_to(row), *_judged(row)
        value = "" if row.reading.bucket and math.isinf(row.high_s) else ms(row.reading.value_s)
        figures = (_ms(row.model_s), _ms(row.simulated_s), value, known, allowed)
        made.add_row(_title(row), " / ".join(plan) or "-", *figures, agrees)
    return made


def _title(row: Row) -> str:
    figure, statistic = row.key
    return f"{figure.upper()} {'mean' if statistic == 'mean' else statistic.upper()}"


def _judged(row: Row) -> tuple[str, str]:
    if row.part is None:
        return "-", "-"
    return f"{_ms(row.least_s)} to {_ms(row.most_s)}", "yes" if row.agrees else "no"


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else ms(seconds)


def _known_to(row: Row) -> str:
    low, high = row.low_s, row.high_s
    if math.isinf(high):
        return f"> {ms(low)}"
    ends = "()" if row.reading.bucket else "[]"
    return "-" if low == high else f"{ends[0]}{ms(low)}, {ms(high)}{ends[1]}"


def _tolerances(found: Validation) -> list[str]:
    step, other = (percent(value) for value in (found.tolerances.step, found.tolerances.other))
    return [
        f"what steps {step} longer or shorter show at this load: {STEP_REASON}",
        f"of TTFT and percentiles {other} either way at least: {OTHER_REASON}",
        "measured figures are known to the 95 % scatter of windows of so many requests, in brackets; quantiles of a "
        "histogram to its buckets, in parentheses",
        "planned is at the plan's own load, by the model / simulated; model and simulated are at the measured load",
    ]


def _refit(made: Refit) -> Iterator[RenderableType]:
    yield Text(f"Refitted: {made.text}.", style="bold")
    off = [f"{_title(row)} is still {number(row.ratio)} times" for row in made.rows if row.agrees is False]
    yield Text(f"With it {', '.join(off)} what it predicts." if off else "With it every figure agrees.")
