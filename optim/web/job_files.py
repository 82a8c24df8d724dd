"""The folder of a job: a plan file that the command line takes as well, what it points to, and what came of it."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

from jaxsim.profiles import Profile
from optim.profile_file import profile_toml
from optim.web.choices import Resolved, distinct, profile_asked
from optim.web.question import JobAsked, Question

PLAN_FILE = "plan.toml"
JOB_FILE = "job.json"
OUT = "out"
RESULTS = {"plan": "plan.json", "verify": "simulation.json"}
"""The document that each kind of job writes into `OUT`."""

COMMANDS = {"plan": "plan", "verify": "simulate"}

DOWNLOADS = ("report.html", "report.txt", "plan.toml", "result.json", "inputs.zip")
"""What can be fetched of a job; nothing else can be named."""


def write_inputs(folder: Path, asked: JobAsked, resolved: Resolved, upload: dict[str, Any] | None, trace: Path) -> None:
    """The plan file and what it points to, and `JOB_FILE` for the process that does the work.

    Args:
        folder: of the job, made here.
        asked: kind and question.
        resolved: the same with its names looked up.
        upload: the row of the uploaded trace, None for a workload of the package.
        trace: its file.
    """
    folder.mkdir(parents=True)
    (folder / OUT).mkdir()
    question = asked.question
    workload: dict[str, Any] = {"name": question.workload.name}
    if upload is not None:
        name = f"workload{upload['ending']}"
        _link(trace, folder / name)
        workload = {"trace": name, **{key: value for key, value in upload["options"].items() if value is not None}}
    workload["rate"] = resolved.problem.rate
    slo = {"ttft_p99_ms": question.ttft_p99_ms, "tpot_p99_ms": question.tpot_p99_ms}
    fleet: dict[str, Any] = {"max_context": resolved.problem.context, "long_requests": "reject"}
    fleet["model"] = question.model
    text = [_table("workload", workload), _table("slo", slo)]
    if asked.kind == "plan":
        names = _profile_names(folder, planned_profiles(question, resolved), question)
        fleet |= {"profiles": list(names.values()), "max_pools": question.max_pools, "max_gpus": question.max_gpus}
        text.append(_table("fleet", fleet))
    else:
        names = _profile_names(folder, resolved.problem.profiles, question)
        text.append(_table("fleet", fleet))
        last = resolved.num_pools - 1
        for at, (one, count, upper) in enumerate(
            zip(resolved.profiles, resolved.replicas, resolved.upper_tokens, strict=True)
        ):
            pool = {"profile": names[str(one.name)], "replicas": count, "max_context": upper}
            text.append(_table("fleet.pools", pool | ({} if at == last else {"upper_tokens": upper}), row=True))
    (folder / PLAN_FILE).write_text("\n".join(text), encoding="utf-8")
    job = {"kind": asked.kind, "seed": question.seed, "trace_label": None if upload is None else upload["label"]}
    (folder / JOB_FILE).write_text(json.dumps(job), encoding="utf-8")


def planned_profiles(question: Question, resolved: Resolved) -> tuple[Profile, ...]:
    """The hardware to plan with, at the prices given.

    Raises:
        RefusalError: an unknown profile.
    """
    if question.profiles is None:
        return resolved.problem.profiles
    prices = question.usd_per_gpu_hour
    return distinct(profile_asked(name, usd_per_gpu_hour=prices.get(name)) for name in question.profiles)


def download(folder: Path, kind: str, name: str) -> bytes | None:
    """A file of a job by its name in `DOWNLOADS`; None where there is none."""
    if name == "inputs.zip":
        return _zipped(folder) if folder.is_dir() else None
    path = (
        folder / PLAN_FILE if name == "plan.toml" else folder / OUT / (RESULTS[kind] if name == "result.json" else name)
    )
    return path.read_bytes() if path.is_file() else None


def command(kind: str, seed: int) -> list[str]:
    """What to type beside the downloaded plan file to have the same again."""
    seeded = ["--seed", str(seed)] if seed else []
    return ["fleetgrad", COMMANDS[kind], PLAN_FILE, *seeded, "--out", "output"]


def _zipped(folder: Path) -> bytes:
    """The plan file, the profiles with prices of one's own and the uploaded trace."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.iterdir()):
            if path.is_file() and (path.name == PLAN_FILE or path.name.startswith(("profile-", "workload."))):
                archive.write(path, path.name)
    return packed.getvalue()


def _profile_names(folder: Path, profiles: tuple[Profile, ...], question: Question) -> dict[str, str]:
    """How the plan file names each profile: one whose price was given is a file of its own."""
    names = {}
    for at, one in enumerate(profiles, start=1):
        name = str(one.name)
        names[name] = name
        if name in question.usd_per_gpu_hour:
            names[name] = f"profile-{at}.toml"
            (folder / names[name]).write_text(profile_toml(one), encoding="utf-8")
    return names


def _table(title: str, values: dict[str, Any], *, row: bool = False) -> str:
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
    head = f"[[{title}]]" if row else f"[{title}]"
    return "\n".join([head, *lines, ""])


def _toml(value: Any) -> str:
    """Text, numbers, lists of text and tables of text; JSON's escapes are TOML's, but for the one it does not need."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    return repr(value)


def _link(source: Path, target: Path) -> None:
    """The same file under a second name, or a copy: removing an upload leaves the job whole."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
