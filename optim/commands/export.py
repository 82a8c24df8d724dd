"""`fleetgrad export`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optim.commands import _common as common
from optim.export_formats import ALL, FORMATS

if TYPE_CHECKING:
    from jaxsim.workload import Workload
    from optim.export_plan import ExportFleet
    from optim.export_text import ExportFile

Format = Enum("Format", {name.replace("-", "_").upper(): name for name in (*FORMATS, ALL)})

PlanJson = Annotated[
    Path | None, typer.Argument(metavar="PLAN.json", help="What `plan`, `disagg` or `simulate` wrote with --json.")
]
FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="; ".join(f"{name}: {what}" for name, what in FORMATS.items()) + "; all: each."),
]
Name = Annotated[str | None, typer.Option(help="What the names of all objects begin with; default fleet.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Of the engines; else the catalogue's of MODEL@GPU.")]
Image = Annotated[str | None, typer.Option(help="Container image with vLLM (kubernetes, llm-d).")]
DynamoImage = Annotated[str | None, typer.Option(help="Dynamo's vLLM runtime image (dynamo).")]
Memory = Annotated[float | None, typer.Option("--gpu-memory-utilization", help="Share of GPU memory for an engine.")]
NodeLabel = Annotated[
    list[str] | None, typer.Option(metavar="GPU=KEY=VALUE", help="Label of the nodes with a GPU; repeatable.")
]
Secret = Annotated[str | None, typer.Option(help="Secret with the key HF_TOKEN, for gated models.")]
Prometheus = Annotated[str | None, typer.Option(metavar="URL", help="Server with the engines' metrics (keda).")]
Headroom = Annotated[
    float | None, typer.Option(help="Share of the load at the SLO kept free (autoscaling, keda); default 0.1.")
]
PlanToml = Annotated[
    Path | None, typer.Option("--plan-file", metavar="FILE.toml", help="With the plan's workload (autoscaling, keda).")
]
Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON schema of routing tables and leave.")]
OutFolder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write the files there.")]


def export(
    plan: PlanJson = None,
    format: FormatOption = None,
    name: Name = None,
    model: ModelName = None,
    image: Image = None,
    dynamo_image: DynamoImage = None,
    gpu_memory_utilization: Memory = None,
    node_label: NodeLabel = None,
    hf_token_secret: Secret = None,
    prometheus: Prometheus = None,
    headroom: Headroom = None,
    plan_file: PlanToml = None,
    workload: common.WorkloadName = None,
    trace: common.TracePath = None,
    cdf: common.CdfPath = None,
    output_share: common.OutputShare = None,
    columns: common.Map = None,
    time_unit: common.TimeUnit = None,
    failed: common.Failed = None,
    schema: Schema = False,
    out: OutFolder = None,
) -> None:
    """Turn a plan into what is deployed: engine flags, Kubernetes, llm-d, Dynamo, routing table, scaling thresholds.

    What the plan does not know (image, node labels, often the model) is an option or a placeholder REPLACE_WITH_...,
    listed at the head of each file. Without --out files go to standard output. Exit status: 0, 2 bad input.
    """
    parameters = dict(locals())
    if schema:
        _show_schema()
        return
    if plan is None or format is None:
        missing = "PLAN.json" if plan is None else "--format"
        common.fail(f"{missing} is required, such as `fleetgrad export plan.json --format kubernetes`")
    wanted = str(format.value)
    if wanted == ALL and out is None:
        common.fail("--format all writes many files: give --out DIR")
    folder = common.folder(out)

    from optim.export import export_files
    from optim.export_autoscaling import HEADROOM
    from optim.export_options import ExportOptions
    from optim.export_options import node_label as labelled
    from optim.export_plan import read_fleet_file

    given = {
        key: parameters[key]
        for key in ("name", "model", "image", "dynamo_image", "gpu_memory_utilization", "hf_token_secret", "prometheus")
        if parameters[key] is not None
    }
    with common.clean_errors():
        labels = dict(labelled(text) for text in node_label or ())
        fleet = read_fleet_file(plan)
        options = ExportOptions(**given, node_labels=labels, command=_command(parameters))
        with common.progress("exporting"):
            found = export_files(
                fleet,
                options,
                wanted,
                workload=_workload(fleet, plan_file, common.flags(parameters | {"model": None})),
                headroom=HEADROOM if headroom is None else headroom,
                headroom_given=headroom is not None,
            )
    for what, why in found.left_out.items():
        typer.echo(f"{what}: not written: {why}", err=True)
    if folder is None:
        _print(found.files)
        return
    for file in found.files:
        path = folder / file.name
        path.write_text(file.text, encoding="utf-8")
        if file.name.endswith(".sh"):
            path.chmod(0o755)
        typer.echo(str(path))


def _show_schema() -> None:
    import json

    from optim.export_routes import routes_schema

    common.show_json(json.dumps(routes_schema(), indent=2))


def _print(files: tuple[ExportFile, ...]) -> None:
    """One file as it is; of JSON the first, whose schema --schema prints; several with their names between them."""
    if len(files) == 1 or files[0].name.endswith(".json"):
        typer.echo(files[0].text, nl=False)
        return
    for file in files:
        typer.echo(f"# file: {file.name}\n{file.text}")


def _workload(fleet: ExportFleet, file: Path | None, flags: dict[str, Any]) -> Callable[[], Workload]:
    """How the plan's workload is found: where it was given, else by its name among those of the package."""

    def found() -> Workload:
        from optim.workload_settings import workload_again

        if (again := workload_again(fleet.input, file, flags)) is None:
            raise ValueError(
                f"the plan's workload {fleet.input('workload')!r} must be given again, as a plan has none of its "
                "lengths: --plan-file with the plan's file, or --trace, --cdf"
            )
        return again

    return found


def _command(parameters: dict[str, Any]) -> str:
    """What was typed, paths without their folders."""
    words = ["fleetgrad", "export", parameters["plan"].name, "--format", str(parameters["format"].value)]
    flags = {"columns": "--map"}
    for key, value in parameters.items():
        if value is None or key in ("plan", "format", "out", "schema"):
            continue
        for each in value if isinstance(value, list) else [value]:
            shown = Path(each).name if key in ("plan_file", "trace", "cdf") else str(each)
            words += [flags.get(key, f"--{key.replace('_', '-')}"), shown]
    return shlex.join(words)
