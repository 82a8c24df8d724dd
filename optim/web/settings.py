"""What a server is started with: where it keeps things, whom it answers, and its limits."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from jaxsim._checks import invalid

MEGABYTE = 1_000_000
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Limits:
    """How much a client may ask for.

    Attributes:
        upload_bytes: of one file; it is refused while it arrives.
        unpacked_bytes: of a gzipped file once it is unpacked.
        trace_requests: rows of one trace.
        uploads: files kept.
        body_bytes: of any other request.
        queued: jobs that wait.
        kept: jobs that are remembered.
        job_s: wall time of one job.
    """

    upload_bytes: int = 64 * MEGABYTE
    unpacked_bytes: int = 500 * MEGABYTE
    trace_requests: int = 5_000_000
    uploads: int = 50
    body_bytes: int = 64_000
    queued: int = 8
    kept: int = 200
    job_s: float = 3600.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise invalid(name, value, "> 0")


@dataclass(frozen=True)
class ServerSettings:
    """Of one server.

    Attributes:
        data: folder of uploads, jobs and the database; nothing is written elsewhere.
        hosts: names that a request's Host header may have, without the port.
        limits: see `Limits`.
    """

    data: Path
    hosts: tuple[str, ...] = LOOPBACK
    limits: Limits = field(default_factory=Limits)

    @property
    def uploads(self) -> Path:
        """Where uploaded files lie, under names that the server makes."""
        return self.data / "uploads"

    @property
    def jobs(self) -> Path:
        """Where each job has its folder."""
        return self.data / "jobs"


def data_folder() -> Path:
    """Where a server keeps things unless it is told."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "fleetgrad" / "serve"
