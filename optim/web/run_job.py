"""The process of one job: `python -m optim.web.run_job FOLDER`.

It runs the plan file of the folder as the command line would, and says on standard output, a JSON object a line, what
it is doing and how it ended. It ends when its standard input does, which is when the server has gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from optim.web.job_files import JOB_FILE, OUT, PLAN_FILE, command

NICENESS = 5
"""The page stays quick while a job runs."""

Told = Callable[[str], None]


def main(folder: Path) -> None:
    """Do the work and say how it went."""
    from optim.cli import prepare_jax

    threading.Thread(target=_end_with_server, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    prepare_jax()
    job = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    work = run_plan if job["kind"] == "plan" else run_verify
    try:
        work(folder, job, lambda words: _say(progress=words))
    except (ValueError, OSError) as error:
        from optim.web.refusals import from_error

        _say(failed=from_error(ValueError(str(error).replace(str(folder), ""))).body)
        return
    _say(done=True)


def run_plan(folder: Path, job: dict[str, Any], told: Told) -> None:
    """`fleetgrad plan`, with its files in the folder's `OUT`."""
    from optim.build import plan_request
    from optim.commands.plan import write_plan
    from optim.config import read_settings
    from optim.documents import plan_document
    from optim.inputs import Input
    from optim.plan import PRECISION
    from optim.plan import plan as find
    from optim.report import plan_report
    from optim.web.uploads import named

    told("reading the workload")
    request = plan_request(read_settings(folder / PLAN_FILE, {}), power=True)
    if job["trace_label"] is not None:
        workload = named(request.problem.workload, job["trace_label"])
        request = replace(request, problem=replace(request.problem, workload=workload))
        request.inputs["workload"] = Input(workload.name, "uploaded")
    inputs = {
        **request.inputs,
        "seed": _seed(job),
        "precision": Input(PRECISION, "default"),
        "simulate": Input(True, "default"),
    }
    found = find(request.problem, seed=job["seed"], progress=told)
    told("writing the report")
    document, report = plan_document(found, request, inputs), plan_report(found, request, inputs)
    write_plan(folder / OUT, found, document, report, command("plan", job["seed"]))


def run_verify(folder: Path, job: dict[str, Any], told: Told) -> None:
    """`fleetgrad simulate`, likewise."""
    import des
    from optim.build import fleet_request
    from optim.commands.simulate import SimulationFiles
    from optim.config import read_settings
    from optim.figures import model_figures
    from optim.inputs import Input
    from optim.simulation_document import simulation_document
    from optim.simulation_report import simulation_report
    from optim.verify import judge
    from optim.web.uploads import named

    told("reading the workload")
    request = fleet_request(read_settings(folder / PLAN_FILE, {}))
    if job["trace_label"] is not None:
        request = replace(request, workload=named(request.workload, job["trace_label"]))
        request.inputs["workload"] = Input(request.workload.name, "uploaded")
    told("simulating")
    result = des.simulate(
        request.design,
        request.workload,
        rate=request.rate,
        seed=job["seed"],
        convention=request.model,
        **request.rules.arguments,
    )
    told("evaluating the model")
    analytic = model_figures(request.design, request.workload, result.rate, request.rules, model=request.model)
    inputs = {
        **request.inputs,
        "requests": Input(result.num_requests, "default"),
        "replications": Input(len(result.replications), "default"),
        "warmup_fraction": Input(result.warmup_fraction, "default"),
        "seed": _seed(job),
    }
    verdict = None if request.slo is None else judge(result, request.slo).verdict
    told("writing the report")
    document = simulation_document(request, result, inputs, analytic, verdict)
    report = simulation_report(request, result, inputs, analytic, verdict)
    files = SimulationFiles(request, result, document, report, verdict, modelled=analytic is not None)
    files.write(folder / OUT, command("verify", job["seed"]))


def _seed(job: dict[str, Any]) -> Any:
    from optim.inputs import Input

    return Input(job["seed"], "given on the page" if job["seed"] else "default")


def _say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _end_with_server() -> None:
    """Nothing is ever written to it: the read returns when the other end is closed.

    Of the descriptor, since a thread that waits in `sys.stdin` keeps the interpreter from ending.
    """
    os.read(0, 1)
    os._exit(3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
