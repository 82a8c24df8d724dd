"""From a plan to what people deploy: every format by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from jaxsim._checks import unknown
from jaxsim.workload import Workload
from optim.export_autoscaling import HEADROOM, PoolLevels, autoscaling_document, autoscaling_file, pool_levels
from optim.export_commands import command_files
from optim.export_dynamo import dynamo_files
from optim.export_formats import ALL, FORMATS
from optim.export_keda import keda_file
from optim.export_kubernetes import kubernetes_files
from optim.export_llm_d import llm_d_files
from optim.export_options import ExportOptions
from optim.export_plan import ExportFleet
from optim.export_routes import routes_files
from optim.export_text import ExportFile

_OF_THE_FLEET: dict[str, Callable[[ExportFleet, ExportOptions], list[ExportFile]]] = {
    "vllm": partial(command_files, "vllm"),
    "sglang": partial(command_files, "sglang"),
    "tensorrt-llm": partial(command_files, "tensorrt-llm"),
    "kubernetes": kubernetes_files,
    "llm-d": llm_d_files,
    "dynamo": dynamo_files,
    "routes": routes_files,
}


@dataclass(frozen=True)
class Exported:
    """What was written, and what of "all" could not be.

    Attributes:
        files: in the order of `FORMATS`.
        left_out: a format and why there is nothing of it.
    """

    files: tuple[ExportFile, ...]
    left_out: dict[str, str] = field(default_factory=dict)


def export_files(
    fleet: ExportFleet,
    options: ExportOptions,
    wanted: str,
    *,
    workload: Callable[[], Workload],
    headroom: float = HEADROOM,
    headroom_given: bool = False,
) -> Exported:
    """The files of one format, or of all that can be written.

    Args:
        fleet: what to deploy.
        options: what the plan does not know.
        wanted: one of `FORMATS`, or `ALL`.
        workload: makes the plan's workload, for the formats about scaling; called only for these.
        headroom: share of the load kept free, for the same formats.
        headroom_given: whether somebody gave it.

    Raises:
        ValueError: an unknown format, or one that this fleet cannot be written in.
    """
    if wanted not in (*FORMATS, ALL):
        raise unknown("format", wanted, [*FORMATS, ALL])
    found: list[PoolLevels] = []

    def levels() -> tuple[PoolLevels, ...]:
        if not found:
            found.extend(pool_levels(fleet, workload(), headroom=headroom))
        return tuple(found)

    def files(name: str) -> list[ExportFile]:
        if name in _OF_THE_FLEET:
            return _OF_THE_FLEET[name](fleet, options)
        if name == "autoscaling":
            table = autoscaling_document(fleet, levels(), options, headroom=headroom, given=headroom_given)
            return [autoscaling_file(table)]
        return [keda_file(fleet, levels(), options, headroom=headroom, given=headroom_given)]

    if wanted != ALL:
        return Exported(tuple(files(wanted)))
    written: list[ExportFile] = []
    left_out: dict[str, str] = {}
    for name in FORMATS:
        try:
            written += files(name)
        except ValueError as error:
            left_out[name] = str(error)
    return Exported(tuple(written), left_out)
