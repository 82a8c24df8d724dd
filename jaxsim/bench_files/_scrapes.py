"""Two scrapes of a vLLM server's metrics as a run: the requests that ended between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jaxsim._checks import require_positive
from jaxsim._trace_columns import refusal
from jaxsim.bench_files._exposition import Scrape
from jaxsim.bench_files._histograms import ENGINE, MODEL, Difference, Histogram
from jaxsim.benchmark_doctor import Benchmark
from jaxsim.benchmark_run import BenchmarkRun, Percentile

TOOL = "two scrapes of vLLM's metrics"

TTFT = ("vllm:time_to_first_token_seconds",)
TPOT = ("vllm:request_time_per_output_token_seconds",)
ITL = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
E2E = ("vllm:e2e_request_latency_seconds", "vllm:request_latency_seconds")
INPUT, OUTPUT = ("vllm:request_prompt_tokens",), ("vllm:request_generation_tokens",)
PROMPT_TOTAL = ("vllm:prompt_tokens_total", "vllm:prompt_tokens")
GENERATION_TOTAL = ("vllm:generation_tokens_total", "vllm:generation_tokens")
SUCCESS = ("vllm:request_success_total", "vllm:request_success")
PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
RUNNING, WAITING = ("vllm:num_requests_running",), ("vllm:num_requests_waiting",)
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""Names of each metric, the newer one first."""

FAILED_REASONS = ("abort", "error")
QUANTILES = (0.5, 0.99)


class _Ended(NamedTuple):
    completed: int
    failed: int


def runs_between(before: Scrape, after: Scrape, duration_s: float | None) -> tuple[BenchmarkRun, ...]:
    """A run for each model of the server that ended requests in between.

    Raises:
        ValueError: no such model, counters that went down, or scrapes whose times are the wrong way round.
    """
    if duration_s is not None:
        require_positive("duration_s", duration_s)
    duration, how = _duration(before, after, duration_s)
    samples = after.values.items()
    models = sorted({dict(labels).get(MODEL, "") for name, of in samples if name.startswith("vllm:") for labels in of})
    if not models:
        raise refusal(after.file, "no metric of vLLM (vllm:...)", "scrape the server that generates, at /metrics")
    found, idle = [], []
    for model in models:
        difference = Difference(before, after, model)
        ttft = difference.histogram(*TTFT)
        if ttft is None or ttft.number <= 0 or ttft.mean is None:
            idle.append(model or "no name")
        else:
            found.append((difference, ttft))
    if not found:
        what = f"no request of {' or '.join(idle)} got its first token between {before.file} and {after.file}"
        raise refusal(after.file, what, "two scrapes with load between them are needed")
    passed_over = [f"passed over, since it served nothing in between: {', '.join(idle)}"] if idle else []
    return tuple(_run(each, ttft, duration, (how, *passed_over)) for each, ttft in found)


def _duration(before: Scrape, after: Scrape, given: float | None) -> tuple[float | None, str]:
    if given is not None:
        return given, f"{given:g} s between the scrapes, as given"
    if before.time_s is None or after.time_s is None:
        return None, "the scrapes carry no times: no rate is known; say how many seconds lie between them"
    length = after.time_s - before.time_s
    if length <= 0:
        raise refusal(after.file, f"taken {-length:g} s before {before.file}", "give the older scrape first")
    return length, f"{length:g} s between the scrapes, by the times in them"


def _run(difference: Difference, ttft: Histogram, duration_s: float | None, notes: tuple[str, ...]) -> BenchmarkRun:
    before, after = difference.before, difference.after
    request_tpot, itl, e2e = (difference.histogram(*names) for names in (TPOT, ITL, E2E))
    tpot = request_tpot or itl
    more = []
    if tpot is not None and request_tpot is None:
        more.append("TPOT is not among the metrics: the mean gap between tokens stands for it")
    ended = _ended(difference, ttft, e2e)
    inputs = _lengths(difference, INPUT, PROMPT_TOTAL, ended.completed, more)
    outputs = _lengths(difference, OUTPUT, GENERATION_TOTAL, ended.completed, more)
    early, late = _flying(difference, before), _flying(difference, after)
    arrived = None
    if early is not None and late is not None:
        arrived = max(round(ended.completed + ended.failed + late - early), 0)
        more.append(f"{early:g} requests in the server at the first scrape, {late:g} at the second")
    if preempted := difference.total(*PREEMPTIONS):
        more.append(f"{preempted:,.0f} preemptions in between: the KV cache was full")
    if usage := difference.levels(after, *KV_USAGE):
        more.append(f"KV-cache usage at the second scrape: {', '.join(f'{level:.0%}' for level in usage)}")
    histograms = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
    engines = len({dict(labels).get(ENGINE, "") for labels in difference.of_model(after, f"{TTFT[0]}_count")}) or 1
    if engines > 1:
        more.append(f"{engines} engines, added up")
    return BenchmarkRun(
        file=after.file,
        place=f"since {before.file}" + (f", model {difference.model}" if difference.model else ""),
        tool=TOOL,
        model=difference.model or None,
        summary=Benchmark(
            completed=ended.completed,
            duration_s=duration_s,
            mean_ttft_s=ttft.mean or 0.0,
            mean_e2e_s=None if e2e is None else e2e.mean,
            mean_itl_s=None if itl is None else itl.mean,
            total_output_tokens=None if outputs is None else round(outputs * ended.completed),
            offered_rate=None,
            failed=ended.failed,
            arrived=arrived,
        ),
        mean_tpot_s=None if tpot is None else tpot.mean,
        mean_input_tokens=inputs,
        mean_output_tokens=outputs,
        percentiles=tuple(_percentiles(histograms)),
        in_flight=None if early is None or late is None else 0.5 * (early + late),
        engines=engines,
        notes=(*notes, *more),
    )


def _ended(difference: Difference, ttft: Histogram, e2e: Histogram | None) -> _Ended:
    """Requests that ended well, and that did not; without a counter of them, those whose E2E or TTFT was observed."""
    added = difference.counter(*SUCCESS)
    if added is None:
        return _Ended(round(ttft.number if e2e is None else e2e.number), 0)
    bad = sum(value for labels, value in added.items() if dict(labels).get("finished_reason") in FAILED_REASONS)
    return _Ended(round(sum(added.values()) - bad), round(bad))


def _lengths(
    difference: Difference, names: tuple[str, ...], totals: tuple[str, ...], completed: int, notes: list[str]
) -> float | None:
    """Mean tokens of a request; from the counter of all tokens where requests' own are not among the metrics."""
    histogram = difference.histogram(*names)
    if histogram is not None and histogram.mean is not None:
        return histogram.mean
    total = difference.total(*totals)
    if total is None or not completed:
        return None
    notes.append(f"{names[0]} has no sum: tokens of a request are those of {totals[0]} over the requests that ended")
    return total / completed


def _flying(difference: Difference, scrape: Scrape) -> float | None:
    """Requests running and waiting."""
    running, waiting = (difference.gauge(scrape, *names) for names in (RUNNING, WAITING))
    return None if running is None or waiting is None else running + waiting


def _percentiles(histograms: dict[str, Histogram | None]) -> Iterator[Percentile]:
    for figure, histogram in histograms.items():
        for q in QUANTILES:
            edges = None if histogram is None else histogram.quantile(q)
            if edges is not None:
                yield Percentile(figure, q, *edges)
