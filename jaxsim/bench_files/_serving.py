"""``vllm bench serve`` and ``sglang.bench_serving``, whose files are alike: the second script began as the first.

Keys that end in _ms are milliseconds, the lists with one entry a request seconds. A failed request stays in the lists,
with a TTFT of 0 and its error, and is in no mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from jaxsim.bench_files._entries import Entry
from jaxsim.bench_files._rows import is_bundled, mean_of, per_token_gap
from jaxsim.benchmark_doctor import Benchmark
from jaxsim.benchmark_run import MOST_SPREAD, BenchmarkRun, Percentile, RequestTable, spread_of
from jaxsim.units import s_from_ms

VLLM, SGLANG = "vLLM bench serve", "sglang bench_serving"

FIGURES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e", "e2e_latency": "e2e"}
"""Our names of latencies by those in keys."""

KEYS = (
    *("completed", "failed", "duration", "num_prompts", "request_rate", "max_concurrency", "model_id"),
    *("total_input_tokens", "total_output_tokens", "mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms"),
    *("mean_e2el_ms", "mean_e2e_latency_ms", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms", "p99_e2el_ms"),
    *("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors"),
)
"""Keys that another name can be mapped to."""


def is_sglang(record: Mapping[str, object]) -> bool:
    """Keys that only the sglang script writes."""
    marks = ("mean_e2e_latency_ms", "accept_length", "input_throughput", "random_range_ratio")
    return any(key in record for key in marks)


def is_serving(record: Mapping[str, object]) -> bool:
    """Keys that one of both scripts writes."""
    return any(key in record for key in ("completed", "mean_ttft_ms", "ttfts", "request_throughput", "mean_tpot_ms"))


def read_run(entry: Entry, place: str = "") -> BenchmarkRun:
    """One result of either script.

    Raises:
        ValueError: a figure that is missing, of a wrong type or out of its domain, with its place.
    """
    if "total_input_sequences" in entry.values:
        raise entry.refusal("total_input_sequences", entry.values["total_input_sequences"], "left out",
                            "this is a benchmark of embeddings, which generates no tokens")  # fmt: skip
    tool = SGLANG if is_sglang(entry.values) else VLLM
    completed = entry.count("completed")
    rows = _requests(entry)
    notes = [_what_it_holds(rows)]
    failed = _failed(entry, rows, completed)
    ttft, e2e, itl, tpot = _means(entry, rows, completed, notes)
    if completed and ttft is None:
        raise entry.missing("mean_ttft_ms", hint="without it or the list 'ttfts' there is no TTFT; measure a stream")
    inputs, outputs = (_tokens(entry, key, rows, completed) for key in ("input", "output"))
    limit = entry.known_count("max_concurrency")
    if limit == 0:
        raise entry.wrong("max_concurrency", "a whole number >= 1, or null for no limit")
    return BenchmarkRun(
        file=entry.file,
        place=place,
        tool=tool,
        model=entry.words("model_id") or entry.words("model"),
        summary=Benchmark(
            completed=completed,
            duration_s=entry.number("duration", positive=True),
            mean_ttft_s=math.nan if ttft is None else ttft,
            mean_e2e_s=e2e,
            mean_itl_s=itl,
            total_output_tokens=outputs,
            offered_rate=entry.rate("request_rate"),
            max_concurrency=limit,
            failed=failed,
        ),
        mean_tpot_s=tpot,
        mean_input_tokens=inputs / completed if completed and inputs is not None else None,
        mean_output_tokens=outputs / completed if completed and outputs is not None else None,
        spread=_spread(entry, rows, notes),
        percentiles=_percentiles(entry, completed),
        requests=rows,
        unsteady=_unsteady(entry),
        notes=(*notes, *_remarks(entry)),
    )


def _what_it_holds(rows: RequestTable | None) -> str:
    if rows is None:
        return "a summary without requests: --save-detailed (vLLM) or --output-details (sglang) saves them too"
    return "a summary in milliseconds, and its requests in seconds"


def _failed(entry: Entry, rows: RequestTable | None, completed: int) -> int:
    """As it is said, else as the rows or the number of prompts have it."""
    if entry.has("failed"):
        return entry.count("failed")
    if rows is not None:
        return int(rows.failed.sum())
    prompts = entry.known_count("num_prompts")
    return max(prompts - completed, 0) if prompts is not None else 0


def _means(
    entry: Entry, rows: RequestTable | None, completed: int, notes: list[str]
) -> tuple[float | None, float | None, float | None, float | None]:
    """TTFT, E2E, ITL and TPOT in seconds: as reported, else over the rows."""
    found = {name: _mean(entry, f"mean_{name}_ms", completed) for name in FIGURES}
    ttft, tpot, itl = found["ttft"], found["tpot"], found["itl"]
    e2e = found["e2el"] if found["e2el"] is not None else found["e2e_latency"]
    if rows is None and e2e is None:
        e2e = _mean_latency(entry, completed, notes)
    if rows is not None:
        means = {name: mean_of(rows, name) for name in ("ttft_s", "e2e_s", "tpot_s")}
        if e2e is None and means["e2e_s"] is not None:
            notes.append("the mean E2E is not reported: that of the requests is used")
        ttft, e2e = (means[f"{name}_s"] if value is None else value for name, value in (("ttft", ttft), ("e2e", e2e)))
        tpot = means["tpot_s"] if tpot is None else tpot
        if is_bundled(rows) and (gap := per_token_gap(rows)) is not None:
            notes.append(
                "some requests have fewer gaps than tokens, which came several at a time: the reported ITL is of "
                "gaps, and their sum over the tokens is used in its place"
            )
            itl = gap
    if tpot is None and itl is not None:
        notes.append("TPOT is not reported: the mean ITL stands for it")
        tpot = itl
    if tpot == 0:
        notes.append("a mean TPOT of 0 was not measured: no request has a second token, or nothing was streamed")
        tpot = None
    return ttft, e2e, itl, tpot


def _mean_latency(entry: Entry, completed: int, notes: list[str]) -> float | None:
    """Mean of the list of latencies, which some versions keep in a summary; a failed request has 0."""
    if not entry.has("latencies") or not completed:
        return None
    values = entry.column("latencies")
    good = values[values > 0]
    if len(good) != completed:
        return None
    notes.append("the mean E2E is not reported: that of the list of latencies is used")
    return float(good.mean())


def _mean(entry: Entry, key: str, completed: int) -> float | None:
    """A mean in seconds; None where it is not there, and for a run without requests, whose means are NaN."""
    if not completed and _is_nan(entry, key):
        return None
    value = entry.known(key)
    return None if value is None else s_from_ms(value)


def _is_nan(entry: Entry, key: str) -> bool:
    value = entry.values.get(key)
    return isinstance(value, float) and math.isnan(value)


def _tokens(entry: Entry, kind: str, rows: RequestTable | None, completed: int) -> int | None:
    """Tokens of all completed requests."""
    if entry.has(f"total_{kind}_tokens"):
        return entry.count(f"total_{kind}_tokens")
    if rows is None:
        return None
    column = getattr(rows, f"{kind}_tokens")[rows.counted]
    return None if np.isnan(column).any() else int(column.sum())


def _spread(entry: Entry, rows: RequestTable | None, notes: list[str]) -> float | None:
    """Of the rows' lengths, else as sglang's random data set draws them: evenly from ratio x length to length."""
    if rows is not None:
        columns = [column[rows.counted] for column in (rows.input_tokens, rows.output_tokens)]
        if not any(np.isnan(column).any() for column in columns):
            return spread_of(*columns)
    if not (entry.words("dataset_name") or "").startswith("random") or not entry.has("random_range_ratio"):
        return None
    ratio = entry.number("random_range_ratio")
    if ratio > 1:
        raise entry.wrong("random_range_ratio", "a number from 0 to 1")
    least = "all" if ratio == 1 else f"evenly from {ratio:g} of them to"
    notes.append(f"lengths are {least} random_input_len and random_output_len (random_range_ratio)")
    return min((1.0 - ratio) / (1.0 + ratio), MOST_SPREAD)


def _percentiles(entry: Entry, completed: int) -> tuple[Percentile, ...]:
    """Those that keys name, ``p99_ttft_ms`` and ``median_ttft_ms``; NaN, of a run without requests, is none."""
    found = []
    for key in entry.values:
        match = re.fullmatch(r"(?:median|p(\d+(?:\.\d+)?))_(\w+?)_ms", key)
        if not match or match[2] not in FIGURES or not entry.has(key) or (not completed and _is_nan(entry, key)):
            continue
        q = 0.5 if match[1] is None else float(match[1]) / 100.0
        if 0.0 < q < 1.0:
            value = s_from_ms(entry.number(key))
            found.append(Percentile(FIGURES[match[2]], q, value, value))
    return tuple(dict.fromkeys(found))


def _unsteady(entry: Entry) -> str:
    if entry.has("ramp_up_strategy"):
        start, end = (entry.known(f"ramp_up_{name}_rps") for name in ("start", "end"))
        span = f" from {start:g} to {end:g} requests/s" if start is not None and end is not None else ""
        return f"the rate was ramped up{span} during the run: its figures are of no one rate"
    return ""


def _remarks(entry: Entry) -> list[str]:
    notes = []
    burstiness = entry.known("burstiness")
    if burstiness not in (None, 1.0):
        notes.append(f"burstiness {burstiness:g}: gaps between arrivals are gamma of that shape, not Poisson's")
    for key in ("accept_length", "spec_decode_acceptance_length"):
        if (length := entry.known(key)) is not None and length > 1:
            notes.append(f"speculative decoding: a step yields {length:.3g} tokens; TPOT is per token, not per step")
    return notes


def _requests(entry: Entry) -> RequestTable | None:
    """The rows of the lists; None where the run was saved without them.

    Without `errors`, in older files, a request without output and without a TTFT is one that failed.
    """
    first = next((key for key in ("input_lens", "ttfts", "output_lens") if entry.has(key)), None)
    if first is None:
        return None
    rows = len(entry.items(first))
    nothing = np.full(rows, np.nan)

    def column(key: str, whole: bool = False) -> Float[np.ndarray, " rows"]:
        return entry.column(key, rows, whole=whole) if entry.has(key) else nothing

    outputs, ttft = column("output_lens", whole=True), column("ttfts")
    gaps, sums = _gaps(entry, rows)
    left_out = _reasons(entry, rows, outputs, ttft)
    failed = np.array([bool(reason) for reason in left_out], dtype=bool)
    e2e = column("latencies") if entry.has("latencies") else ttft + sums
    return RequestTable(
        start_s=column("start_times"),
        input_tokens=column("input_lens", whole=True),
        output_tokens=outputs,
        ttft_s=np.where(failed, np.nan, ttft),
        e2e_s=np.where(failed, np.nan, e2e),
        queue_s=column("queue_times"),
        itl_s=np.where(gaps > 0, sums / np.where(gaps > 0, gaps, 1.0), np.nan),
        num_gaps=gaps,
        left_out=left_out,
        failed=failed,
        word="request",
        numbers=np.arange(1, rows + 1),
    )


def _gaps(entry: Entry, rows: int) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
    """Number and sum of the gaps between each request's tokens; NaN without the list of lists."""
    if not entry.has("itls"):
        return np.full(rows, np.nan), np.full(rows, np.nan)
    lists = entry.items("itls")
    if len(lists) != rows:
        raise entry.refusal("itls", f"{len(lists)} entries", f"a list of {rows}, one for each request")
    counts, sums = np.zeros(rows), np.zeros(rows)
    for at, values in enumerate(lists):
        if not isinstance(values, list) or None in values:
            raise entry.refusal(f"itls[{at}]", values, "a list of the request's gaps in seconds")
        column = entry.numbers(f"itls[{at}]", values)
        counts[at], sums[at] = len(column), column.sum()
    return counts, sums


def _reasons(
    entry: Entry, rows: int, outputs: Float[np.ndarray, " rows"], ttfts: Float[np.ndarray, " rows"]
) -> tuple[str, ...]:
    """Why each request counts in no figure; "" where it counts."""
    if not entry.has("errors"):
        silent = (np.nan_to_num(outputs) == 0) & (np.nan_to_num(ttfts) == 0)
        return tuple("failed: neither output nor TTFT" if each else "" for each in silent)
    errors = entry.items("errors")
    if len(errors) != rows:
        raise entry.refusal("errors", f"{len(errors)} entries", f"a list of {rows}, one for each request")
    for at, text in enumerate(errors):
        if text is not None and not isinstance(text, str):
            raise entry.refusal(f"errors[{at}]", text, "text, empty where the request ended well")
    return tuple(f"failed: {' '.join(text.split())[:80]}" if text else "" for text in errors)
