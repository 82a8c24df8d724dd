"""The fleet in a document that `fleetgrad plan`, `disagg` or `simulate` wrote: what every export starts from."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxsim._checks import invalid
from jaxsim.physics import num_slots
from jaxsim.profiles import Profile
from jaxsim.units import MS_PER_S
from optim.documents import SCHEMA_VERSION, Document
from optim.problem import SLO
from optim.profile_file import NUMBERS, TEXTS

KINDS = ("plan", "disagg", "simulation")
ROLES = ("prefill", "decode")
_DEPLOYABLE = {"plan": ("verified", "unverified"), "disagg": ("verified", "unverified"), "simulation": ("ok",)}
_NO_FLEET = {
    "infeasible": "it has no fleet: relax the SLO or allow other hardware, and plan again",
    "refused": "the simulator said no to its last fleet: relax the SLO or lift the cap on GPUs, and plan again",
    "overloaded": "the fleet cannot keep up with its load: give it more replicas, and simulate again",
}


@dataclass(frozen=True)
class ExportPool:
    """Identical replicas to deploy.

    Attributes:
        label: "pool-0", ..., or the role.
        role: "prefill" or "decode" in a disaggregated fleet, else None.
        profile: every constant of a replica.
        replicas: whole, at least 1.
        lower_tokens, upper_tokens: shortest and longest total (input + output) of the pool's requests, both included.
        max_context: tokens above which the pool accepts nothing.
        max_num_seqs: requests that may run at once in a replica.
        share, rate: of all requests, and requests per second; None where the document does not say.
        place: where the document has the pool, such as "design.pools[0]".
    """

    label: str
    role: str | None
    profile: Profile
    replicas: int
    lower_tokens: int
    upper_tokens: int
    max_context: int
    max_num_seqs: int
    share: float | None
    rate: float | None
    place: str

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return int(self.profile.gpus_per_replica)


@dataclass(frozen=True)
class ExportFleet:
    """A fleet to deploy, and the document it is from.

    Attributes:
        document: the whole of it.
        file: its name, for people.
        pools: shortest requests first; prefill, then decode in a disaggregated fleet.
        rate: requests per second offered.
        slo: None where the document sets none.
        warnings: what a reader must know before deploying.
    """

    document: Document
    file: str
    pools: tuple[ExportPool, ...]
    rate: float | None
    slo: SLO | None
    warnings: tuple[str, ...]

    @property
    def disaggregated(self) -> bool:
        """Whether prompts and tokens are computed in pools of their own."""
        return self.pools[0].role is not None

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return str(self.document["kind"])

    @property
    def model(self) -> str:
        """Of the plan: "step" or "kimura"; disaggregated fleets are planned by the step model."""
        return _model(self.document)

    def input(self, key: str) -> Any:
        """An input of the plan; None where it has none of that name."""
        entry = self.document["inputs"].get(key)
        return None if entry is None else entry["value"]


def read_fleet_file(path: Path) -> ExportFleet:
    """The fleet in a JSON file.

    Raises:
        ValueError: not JSON, or as `fleet_of_document`.
        OSError: the file cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path.name} must be JSON that `fleetgrad plan --json` or --out wrote, got what is not JSON: {error}"
        ) from error
    return fleet_of_document(document, file=path.name)


def fleet_of_document(document: Any, *, file: str = "the plan") -> ExportFleet:
    """The fleet in a document, such as `optim.documents.plan_document` makes of a `Plan`.

    Args:
        document: of one of `KINDS`.
        file: what errors and headers call it.

    Raises:
        ValueError: another kind or schema version, a plan without a fleet that may be deployed, or a missing field.
    """
    if not isinstance(document, dict):
        raise invalid(file, type(document).__name__, "a JSON object", "the document of `fleetgrad plan --json`")
    version, kind, status = (document.get(key) for key in ("schema_version", "kind", "status"))
    if kind not in KINDS:
        hint = "export takes what `fleetgrad plan`, `disagg` or `simulate` wrote with --json or --out"
        raise invalid(f"{file}: kind", kind, f"one of {', '.join(KINDS)}", hint)
    if version != SCHEMA_VERSION:
        hint = f"this version of fleetgrad writes and reads {SCHEMA_VERSION}: make the document anew"
        raise invalid(f"{file}: schema_version", version, str(SCHEMA_VERSION), hint)
    status = str(getattr(status, "name", status)).lower()  # a document that was not written yet holds the status itself
    if status not in _DEPLOYABLE[kind]:
        raise invalid(f"{file}: status", status, f"one of {', '.join(_DEPLOYABLE[kind])}", _NO_FLEET.get(status, ""))
    try:
        return _fleet(document, file, status)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{file} must be a whole {kind} document, got one where this is missing or of another type: {error}; "
            "export what fleetgrad wrote, as it wrote it"
        ) from error


def _fleet(document: Document, file: str, status: str) -> ExportFleet:
    profiles = {entry["name"]: _profile(entry) for entry in document["profiles"]}
    inputs = document["inputs"]
    rows = _disaggregated_rows(document) if document["kind"] == "disagg" else _rows(document)
    analytic = (document.get("analytic") or {}).get("pools")
    pools, lower = [], 1
    for p, row in enumerate(rows):
        replicas, role = row["replicas"], row.get("role")
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
            raise invalid(f"{file}: {row['place']}.replicas", replicas, "a whole number >= 1")
        profile, context = profiles[row["profile"]], math.floor(row["max_context"])
        pools.append(
            ExportPool(
                label=role or f"pool-{p}",
                role=role,
                profile=profile,
                replicas=replicas,
                lower_tokens=1 if role else lower,
                upper_tokens=min(math.floor(row["upper_tokens"]), context),
                max_context=context,
                max_num_seqs=_max_num_seqs(profile, context, _model(document)),
                share=float(analytic[p]["share"]) if analytic else None,
                rate=float(analytic[p]["rate_rps"]) if analytic else None,
                place=row["place"],
            )
        )
        lower = math.floor(row["upper_tokens"]) + 1
    slo = None
    if inputs.get("ttft_p99_ms", {}).get("value") is not None:
        tpot = inputs.get("tpot_p99_ms", {}).get("value")
        slo = SLO(float(inputs["ttft_p99_ms"]["value"]) / MS_PER_S, None if tpot is None else float(tpot) / MS_PER_S)
    rate = inputs["rate_rps"]["value"]
    rate = None if rate is None or not math.isfinite(float(rate)) else float(rate)
    return ExportFleet(document, file, tuple(pools), rate, slo, tuple(_warnings(document, status)))


def _rows(document: Document) -> list[Document]:
    return [{**row, "place": f"design.pools[{p}]"} for p, row in enumerate(document["design"]["pools"])]


def _disaggregated_rows(document: Document) -> list[Document]:
    context = float(document["inputs"]["max_context_tokens"]["value"])
    return [
        {
            **document["disaggregated"][role],
            "role": role,
            "max_context": context,
            "upper_tokens": context,
            "place": f"disaggregated.{role}",
        }
        for role in ROLES
    ]


def _profile(entry: Document) -> Profile:
    fields: dict[str, Any] = {name: float(entry[name]) for name in NUMBERS}
    fields |= {name: str(entry[name]) for name in TEXTS}
    return Profile(**fields)


def _model(document: Document) -> str:
    return str(document.get("model", "step"))


def _max_num_seqs(profile: Profile, context: int, model: str) -> int:
    """What the model of the plan lets run at once in a replica."""
    if model == "kimura":
        law = (profile.kv_blocks, profile.block_tokens, profile.max_num_seqs, profile.calibration_context)
        return int(np.asarray(num_slots(*law, float(context))))
    return int(np.asarray(profile.max_num_seqs))


def _warnings(document: Document, status: str) -> list[str]:
    found = [str(warning) for warning in document.get("warnings", [])]
    if status == "unverified":
        found.insert(0, "the plan was not simulated: nothing but the model says that it meets the SLO")
    if document["kind"] == "disagg":
        found.insert(0, f"the plan's advice: {document['advice_text']}")
    verification = document.get("verification") or {}
    if document["kind"] == "simulation" and verification.get("slo_met") is not True:
        found.insert(0, "the simulated fleet does not meet an SLO: it misses it, may miss it, or none was set")
    return found
