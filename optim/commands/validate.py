"""`fleetgrad validate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optim.commands import _common as common
from optim.commands._common import Exit

if TYPE_CHECKING:
    from jaxsim.observed import Observed
    from jaxsim.workload import Workload
    from optim.export_plan import ExportFleet
    from optim.inputs import Inputs

PlanJson = Annotated[Path, typer.Argument(metavar="PLAN.json", help="What `plan` or `simulate` wrote with --json.")]
Metrics = Annotated[
    list[Path],
    typer.Argument(
        metavar="METRICS...",
        help="A benchmark's results, or Prometheus scrapes in pairs, the older one first: a pair for each server.",
    ),
]
PoolName = Annotated[str | None, typer.Option("--pool", help="Which pool of the plan was measured, such as pool-0.")]
Replicas = Annotated[
    int | None, typer.Option(min=1, help="Replicas that the metrics are of; else counted by their labels, or one.")
]
Seconds = Annotated[float | None, typer.Option(help="Seconds between the scrapes of a pair, or of a benchmark's run.")]
Served = Annotated[str | None, typer.Option("--served-model", help="Label model_name, where a server has several.")]
Run = Annotated[int | None, typer.Option("--run", min=1, help="Which run of a benchmark's file that has several.")]
Clients = Annotated[
    int | None, typer.Option("--concurrency", min=1, help="Clients of a benchmark whose file does not say.")
]
StepTolerance = Annotated[
    float | None, typer.Option("--tolerance", help="Step times within this of the profile's hold; default 0.1.")
]
OtherTolerance = Annotated[
    float | None, typer.Option("--ttft-tolerance", help="TTFT and percentiles within this hold too; default 0.25.")
]
Columns = Annotated[
    list[str] | None, typer.Option("--map", metavar="OURS=THEIRS", help="Key of the benchmark; repeatable.")
]
NoSimulate = Annotated[bool, typer.Option("--no-simulate", help="Judge by the model alone, without scatter.")]
PlanToml = Annotated[Path | None, typer.Option("--plan-file", metavar="FILE.toml", help="With the plan's workload.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Also write JSON, CSV, the report and a refitted profile.")
]


def validate(
    plan: PlanJson,
    metrics: Metrics,
    pool: PoolName = None,
    replicas: Replicas = None,
    seconds: Seconds = None,
    served_model: Served = None,
    run: Run = None,
    concurrency: Clients = None,
    columns: Columns = None,
    plan_file: PlanToml = None,
    workload: common.WorkloadName = None,
    trace: common.TracePath = None,
    cdf: common.CdfPath = None,
    output_share: common.OutputShare = None,
    time_unit: common.TimeUnit = None,
    failed: common.Failed = None,
    tolerance: StepTolerance = None,
    ttft_tolerance: OtherTolerance = None,
    no_simulate: NoSimulate = False,
    seed: common.Seed = 0,
    as_json: common.AsJson = False,
    out: Out = None,
) -> None:
    """Hold a plan against a running fleet: does its profile still hold, is its SLO met, when is a replica due?

    Two scrapes of /metrics (vLLM, SGLang, TensorRT-LLM), or a benchmark's results. The profile is tried at the
    measured rate and lengths, and refitted where it no longer holds. Exit status: 0 it holds, 2 bad input, 4 it does
    not, or cannot be judged.
    """
    parameters = dict(locals())
    folder = common.folder(out)
    if seconds is not None:
        common.positive("--seconds", seconds)
    wanted = {"step": tolerance, "other": ttft_tolerance}
    for flag, value in zip(("--tolerance", "--ttft-tolerance"), wanted.values(), strict=True):
        if value is not None and not 0 < value < 1:
            common.fail(f"{flag} must be in (0, 1), got {value}; a tenth is 0.1")

    from optim.documents import to_json
    from optim.export_plan import read_fleet_file
    from optim.profile_file import profile_toml
    from optim.validate import validate as hold
    from optim.validate_compare import Tolerances
    from optim.validate_document import figure_rows, validation_document
    from optim.validate_load import load_of, pool_named
    from optim.validate_report import validation_report

    with common.clean_errors():
        fleet = read_fleet_file(plan)
        chosen = pool_named(fleet, pool)
        seen = _seen(metrics, seconds, served_model, run, concurrency, common.mapping(columns))
        lengths = _workload(fleet, plan_file, common.flags({**parameters, "columns": None}))
        load = load_of(fleet, chosen, seen, lengths, replicas=replicas)
        allowed = Tolerances(**{key: value for key, value in wanted.items() if value is not None})
        with common.progress("comparing") as told:
            found = hold(fleet, load, seen, simulate=not no_simulate, tolerances=allowed, seed=seed, progress=told)
    inputs = _inputs(parameters, allowed.step, allowed.other) | load.inputs
    document, report = validation_document(found, inputs), validation_report(found, inputs)
    made = found.refit
    refitted = "" if made is None else profile_toml(made.profile, made.errors)
    if folder is not None:
        common.write_report(folder / "report.txt", report)
        (folder / "validation.json").write_text(to_json(document) + "\n", encoding="utf-8")
        if found.rows:
            common.write_csv(folder / "figures.csv", figure_rows(found))
        if refitted:
            (folder / "profile.toml").write_text(refitted, encoding="utf-8")
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report)
        if refitted:
            typer.echo(f"\nThe refitted profile, for `fleetgrad plan --profile FILE.toml`:\n\n{refitted}", nl=False)
    if not found.holds:
        raise typer.Exit(Exit.REFUSED)


def _seen(
    files: Sequence[Path],
    seconds: float | None,
    served_model: str | None,
    run: int | None,
    concurrency: int | None,
    columns: dict[str, str] | None,
) -> Observed:
    """What the files show: pairs of scrapes, or one benchmark."""
    from jaxsim._checks import invalid
    from jaxsim.bench_files import Kind, read_benchmark, read_served, recognise
    from jaxsim.observed import observed_run

    for path in files:
        if not path.exists():
            raise FileNotFoundError(f"metrics not found: {path}; check the path")
    scrapes = [path for path in files if recognise(path) is Kind.SCRAPE]
    if scrapes:
        if len(scrapes) < len(files):
            other = next(path.name for path in files if path not in scrapes)
            raise invalid(
                "METRICS", other, f"Prometheus scrapes as {scrapes[0].name} is", "validate one kind at a time"
            )
        if len(files) % 2:
            names = ", ".join(path.name for path in files)
            raise invalid("METRICS", names, "scrapes in pairs", "counters are differenced: an older and a later scrape")
        for flag, value in (("--run", run), ("--concurrency", concurrency), ("--map", columns)):
            if value is not None:
                raise invalid(flag, value, "left out for scrapes", "it is for a benchmark's results")
        return read_served(list(zip(files[::2], files[1::2], strict=True)), duration_s=seconds, model=served_model)
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise invalid("METRICS", names, "one benchmark's results", "validate each, or fit them all: `fleetgrad fit`")
    if served_model is not None:
        raise invalid("--served-model", served_model, "left out for a benchmark", "it is for scrapes of several models")
    runs = read_benchmark(files[0], columns=columns, concurrency=concurrency)
    if run is None and len(runs) > 1:
        labels = ", ".join(f"{k} ({each.place})" for k, each in enumerate(runs, start=1))
        raise invalid("--run", run, f"a number from 1 to {len(runs)}", f"{files[0].name} has several runs: {labels}")
    if run is not None and run > len(runs):
        raise invalid("--run", run, f"a number from 1 to {len(runs)}", f"{files[0].name} has no more runs")
    return observed_run(runs[(run or 1) - 1], duration_s=seconds)


def _workload(fleet: ExportFleet, file: Path | None, flags: dict[str, Any]) -> Workload | None:
    """The plan's workload: as given, else by its name among those of the package; None where it is neither."""
    from optim.workload_settings import workload_again

    return workload_again(fleet.input, file, flags)


def _inputs(parameters: dict[str, Any], step: float, other: float) -> Inputs:
    """What the command line said."""
    from optim.inputs import flag

    seconds = parameters["seconds"]
    return {
        "plan": flag(parameters["plan"].name, given=True),
        "metrics": flag([path.name for path in parameters["metrics"]], given=True),
        "seconds": flag(seconds, given=seconds is not None, default="default: as the files say"),
        "step_time_tolerance": flag(step, given=parameters["tolerance"] is not None),
        "ttft_tolerance": flag(other, given=parameters["ttft_tolerance"] is not None),
        "simulate": flag(not parameters["no_simulate"], given=parameters["no_simulate"]),
        "seed": flag(parameters["seed"], given=parameters["seed"] != 0),
    }
