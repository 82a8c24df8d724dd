"""`fleetgrad fit`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from optim.commands import _common as common

if TYPE_CHECKING:
    from jaxsim.bench_files import Kind
    from jaxsim.benchmark_run import BenchmarkRun
    from jaxsim.fit import Knee, StepFit, StepTable
    from jaxsim.profiles import Profile
    from jaxsim.request_doctor import Examination
    from optim.fit_document import FitReport

CHUNK_TOKENS = 2048

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Step tables, or benchmark results; scrapes in pairs, the older one first."),
]
Base = Annotated[
    str | None,
    typer.Option("--profile", metavar="BASE", help="Preset, MODEL@GPU or profile.toml: KV blocks, limits, price."),
]
OutFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the fitted profile; needs --profile.")
]
Columns = Annotated[list[str] | None, typer.Option("--map", metavar="OURS=THEIRS", help="Column or key; repeatable.")]
ChunkTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Prompt tokens a request prefills per step; the base's, else 2048 (runs only)."),
]
OverheadMs = Annotated[float, typer.Option(help="Known milliseconds of the engine in every step; 0.")]
HoldOut = Annotated[str, typer.Option(help="Rows held out together: settings (default) or groups.")]
Clients = Annotated[
    str | None,
    typer.Option("--concurrency", metavar="N,...", help="Clients of each run whose file does not say, in order."),
]
Seconds = Annotated[
    str | None, typer.Option("--seconds", metavar="S,...", help="Seconds between each pair of scrapes without times.")
]
Replicas = Annotated[int, typer.Option(min=1, help="Engines that shared each run's load; 1.")]


class _Read(NamedTuple):
    """What the files hold: a step table or examined runs, and each file with what it was read as."""

    steps: StepTable | None
    examined: tuple[Examination, ...]
    read_as: tuple[tuple[str, str], ...]


def fit(
    files: Files,
    profile: Base = None,
    out: OutFile = None,
    columns: Columns = None,
    chunk_tokens: ChunkTokens = None,
    overhead_ms: OverheadMs = 0.0,
    hold_out: HoldOut = "settings",
    concurrency: Clients = None,
    seconds: Seconds = None,
    replicas: Replicas = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of what is held out.")] = 0,
    as_json: common.AsJson = False,
) -> None:
    """Fit the step law to your own timings or benchmarks, with what is to be doubted; --out writes a profile.

    Step tables have columns for the sequences in a step (n), their context and its time (time_ms). Benchmark results
    are fitted through a model of a closed loop, after the doctor has looked at them. Exit status: 0 fitted, 2 bad
    input or too few runs that are steady.
    """
    if out is not None and profile is None:
        common.fail("--out needs --profile BASE: KV blocks, limits and price are not in the files")
    base = None if profile is None else _base(profile)
    read = _read(files, common.mapping(columns), _numbers("--concurrency", concurrency), _numbers("--seconds", seconds))
    if read.steps is not None and (chunk_tokens is not None or replicas != 1):
        common.fail("--chunk-tokens and --replicas are for benchmark runs; a step table says what was in each step")
    with common.progress("fitting"):
        report = _fitted(read, base, chunk_tokens, overhead_ms / 1e3, hold_out, replicas, seed, as_json)
    if out is not None and report.profile is not None:
        _write(report.profile, report.fit, out)
    _show(report, out, as_json)


def _base(name: str) -> Profile:
    from optim.profile_file import find_profile

    with common.clean_errors():
        try:
            return find_profile(name, Path(name))
        except ValueError as error:
            raise ValueError(f"--profile: {error}") from error


def _numbers(flag: str, text: str | None) -> list[float] | None:
    """Numbers > 0 with commas between them."""
    if text is None:
        return None
    found = []
    for part in text.split(","):
        try:
            found.append(common.positive(flag, float(part)))
        except ValueError:
            common.fail(f"{flag} must be numbers such as 1,8,32, got {text!r}")
    return found


def _read(
    files: Sequence[Path], columns: dict[str, str] | None, clients: list[float] | None, seconds: list[float] | None
) -> _Read:
    from jaxsim.bench_files import MAPPABLE, Kind, broken_document, recognise
    from jaxsim.fit import join_steps, read_steps

    for path in files:
        if not path.exists():
            common.fail(f"file not found: {path}; check the path")
    keys = {ours: theirs for ours, theirs in (columns or {}).items() if ours in MAPPABLE}
    kinds = {path: recognise(path, columns=keys) for path in files}
    tables = [path for path in files if kinds[path] is None]
    with common.clean_errors():
        for path in tables:
            if (broken := broken_document(path)) is not None:
                raise broken
    if tables and len(tables) < len(files):
        runs = ", ".join(path.name for path in files if kinds[path] is not None)
        common.fail(
            f"step tables ({', '.join(path.name for path in tables)}) and benchmark results ({runs}) are fitted in "
            "different ways: fit each kind by itself"
        )
    with common.clean_errors():
        if tables:
            if clients or seconds:
                common.fail("--concurrency and --seconds are for benchmark runs; these files are step tables")
            parts = []
            for path, name in zip(files, _names(files), strict=True):
                with _naming(path, name):
                    parts.append(replace(read_steps(path, columns=columns), source=name))
            read_as = tuple((part.source, f"a table of {len(part):,} steps") for part in parts)
            return _Read(join_steps(parts), (), read_as)
        read = _runs(files, kinds, columns, seconds)
        if all(kind is Kind.SCRAPE for kind in kinds.values()) and clients:
            common.fail("--concurrency is for results of clients; a server's scrapes say what was in flight")
        return _examined(read, clients)


def _runs(
    files: Sequence[Path], kinds: dict[Path, Kind | None], columns: dict[str, str] | None, seconds: list[float] | None
) -> list[tuple[str, str, tuple[BenchmarkRun, ...]]]:
    """Each file, or pair of scrapes, with what it was read as and its runs."""
    from jaxsim.bench_files import Kind, read_benchmark, read_scrapes

    scrapes = [path for path in files if kinds[path] is Kind.SCRAPE]
    if len(scrapes) % 2:
        given = ", ".join(path.name for path in scrapes)
        common.fail(f"Prometheus scrapes come in pairs, {len(scrapes)} given ({given}): an older and a later one a run")
    pairs = list(zip(scrapes[::2], scrapes[1::2], strict=True))
    if seconds is not None and len(seconds) != len(pairs):
        common.fail(f"--seconds gives {len(seconds)} numbers for {len(pairs)} pairs of scrapes")
    lengths: list[float | None] = [None] * len(pairs) if seconds is None else [*seconds]
    names = dict(zip(files, _names(files), strict=True))
    found = []
    for path, name in names.items():
        kind = kinds[path]
        if kind is not None and kind is not Kind.SCRAPE:
            with _naming(path, name):
                runs = read_benchmark(path, columns=columns)
            found.append((name, kind.value, tuple(replace(run, file=name) for run in runs)))
    for (before, after), duration in zip(pairs, lengths, strict=True):
        runs = tuple(replace(run, file=names[after]) for run in read_scrapes(before, after, duration_s=duration))
        found.append((f"{names[before]}, {names[after]}", "two Prometheus scrapes", runs))
    return found


def _names(files: Sequence[Path]) -> list[str]:
    """What files are called: their names, or where several have the same, the paths as they were given."""
    names = [path.name for path in files]
    several = {path.name for path in files if len({str(other) for other in files if other.name == path.name}) > 1}
    return [str(path) if name in several else name for path, name in zip(files, names, strict=True)]


@contextmanager
def _naming(path: Path, name: str) -> Iterator[None]:
    """A refusal under what the file is called."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace(path.name, name, 1)) from error


def _examined(read: list[tuple[str, str, tuple[BenchmarkRun, ...]]], clients: list[float] | None) -> _Read:
    from jaxsim.bench_files import with_load
    from jaxsim.request_doctor import examine

    runs = [run for _, _, of_file in read for run in of_file]
    if clients is not None:
        silent = [run.label for run in runs if _is_silent(run)]
        if len(silent) != len(clients):
            names = f": {', '.join(silent)}" if silent else ""
            common.fail(
                f"--concurrency gives {len(clients)} numbers for {len(silent)} runs that do not say theirs{names}"
            )
        given = iter(clients)
        runs = [with_load(run, concurrency=_whole(next(given))) if _is_silent(run) else run for run in runs]
    words = tuple((file, f"{kind}, {len(found)} run{'s' if len(found) > 1 else ''}") for file, kind, found in read)
    return _Read(None, tuple(examine(run) for run in runs), words)


def _is_silent(run: BenchmarkRun) -> bool:
    summary = run.summary
    return summary.max_concurrency is None and summary.offered_rate is None and summary.arrived is None


def _whole(value: float) -> int:
    if value != math.floor(value):
        common.fail(f"--concurrency must be whole numbers, got {value:g}")
    return int(value)


def _fitted(
    read: _Read,
    base: Profile | None,
    chunk_tokens: int | None,
    overhead_s: float,
    hold_out: str,
    replicas: int,
    seed: int,
    as_json: bool,
) -> FitReport:
    from jaxsim.fit import fit_runs, fit_steps, runs_of
    from optim.fit_document import FitReport, fitted_profile, use_warnings

    how: dict[str, Any] = {"overhead_s": overhead_s, "hold_out": hold_out, "seed": seed}
    runs, knee, knee_text = None, None, ""
    more: tuple[str, ...] = ()
    with common.clean_errors():
        if read.steps is not None:
            found = fit_steps(read.steps, **how)
            knee, knee_text = _knee(read.steps)
        else:
            default = CHUNK_TOKENS if base is None else float(base.chunk_tokens)
            chunk = float(default if chunk_tokens is None else chunk_tokens)
            slots = math.inf if base is None else float(base.max_num_seqs)
            try:
                runs = runs_of(read.examined, chunk_tokens=chunk, slots=slots, replicas=replicas)
            except ValueError as error:
                _refuse(str(error), read, as_json)
            found = fit_runs(runs.table, **how)
            if chunk_tokens is None:
                whose = "assumed" if base is None else f"as {base.name} has"
                more = (f"prompts in chunks of {chunk:,.0f} tokens, {whose}: --chunk-tokens says what the engine had",)
        profile = None if base is None else fitted_profile(found, base, chunk_tokens)
        return FitReport(
            fit=found,
            examined=read.examined,
            runs=runs,
            steps=read.steps,
            read_as=read.read_as,
            knee=knee,
            knee_text=knee_text,
            profile=profile,
            warnings=(*more, *use_warnings(found, read.steps, runs, base)),
        )


def _refuse(message: str, read: _Read, as_json: bool) -> NoReturn:
    """Too little to fit: what was read all the same, then why not."""
    from optim.documents import to_json
    from optim.fit_document import refused_document
    from optim.fit_report import read_report

    if as_json:
        common.show_json(to_json(refused_document(message, read.read_as, read.examined)))
    else:
        common.show(*read_report(read.read_as, read.examined), "")
    common.fail(message)


def _knee(steps: StepTable) -> tuple[Knee | None, str]:
    """Where the law ends, in a sentence."""
    from jaxsim.fit import knee

    try:
        found = knee(steps)
    except ValueError as error:
        return None, f"Knee: not looked for; {error}."
    if math.isinf(found.num_active):
        return found, "Knee: none; the law is linear in the batch over all that were measured."
    return found, (
        f"Knee: steps take {1e3 * found.excess_s:.3g} ms more for each sequence above {found.num_active:g} than the "
        f"line from below says (error {found.mean_error:.1%} without a kink, {found.mean_error_with_knee:.1%} with "
        "it): fit shorter batches only, or the batches that you will run."
    )


def _write(profile: Profile, fit: StepFit, out: Path) -> None:
    from optim.fit_errors import FitErrors
    from optim.profile_file import profile_toml

    try:
        out.write_text(profile_toml(profile, FitErrors.of(fit)), encoding="utf-8")
    except OSError as error:
        common.fail(f"--out {out}: cannot be written ({error.strerror}); give the path of a file")


def _show(report: FitReport, out: Path | None, as_json: bool) -> None:
    from optim.documents import to_json
    from optim.fit_document import fit_document
    from optim.fit_errors import FitErrors
    from optim.fit_report import fit_report
    from optim.profile_file import profile_toml

    if as_json:
        common.show_json(to_json(fit_document(report) | {"out": None if out is None else str(out)}))
        return
    common.show(fit_report(report))
    if report.profile is None:
        common.show("", "A profile to plan with: --profile BASE --out profile.toml, the base for KV blocks and price.")
    elif out is None:
        common.show_json(f"\n{profile_toml(report.profile, FitErrors.of(report.fit))}".rstrip())
    else:
        common.show("", f"Written to {out}: {report.profile.name}, {report.profile.source}.")
