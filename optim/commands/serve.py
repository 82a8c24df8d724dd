"""`fleetgrad serve`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from optim.commands import _common as common

NEEDED = ("fastapi", "uvicorn")

Host = Annotated[str, typer.Option(help="Address to listen on; other machines reach it only if you say so here.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="Where uploads, plans and their states are kept.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="Another name that the page is opened by; repeatable."),
]
MaxUploadMb = Annotated[float, typer.Option("--max-upload-mb", help="Largest trace that is taken, megabytes.")]
MaxQueued = Annotated[int, typer.Option("--max-queued", min=1, help="Jobs that may wait.")]
JobMinutes = Annotated[float, typer.Option("--job-minutes", help="Longest time of a job.")]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8765,
    data_dir: DataDir = None,
    allow_host: AllowHost = None,
    max_upload_mb: MaxUploadMb = 64.0,
    max_queued: MaxQueued = 8,
    job_minutes: JobMinutes = 60.0,
) -> None:
    """A page in your browser: sliders over rate, objectives, thresholds and replicas; plans and simulations as jobs.

    Everything runs on this machine and nothing leaves it. There is no login: whoever reaches the address can use it.
    Needs the extra: pip install 'fleetgrad[serve]'.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        common.fail(f"serve needs {' and '.join(missing)}; install them with: pip install 'fleetgrad[serve]'")
    common.positive("--max-upload-mb", max_upload_mb)
    common.positive("--job-minutes", job_minutes)

    from optim.web.app import create_app
    from optim.web.listen import listen
    from optim.web.settings import LOOPBACK, MEGABYTE, Limits, ServerSettings, data_folder
    from optim.web.store import BusyError

    limits = Limits(upload_bytes=max(int(max_upload_mb * MEGABYTE), 1), queued=max_queued, job_s=job_minutes * 60.0)
    names = tuple(
        dict.fromkeys(
            [*LOOPBACK, *([] if host in ("0.0.0.0", "::") else [host]), *(name.lower() for name in allow_host or [])]
        )
    )
    settings = ServerSettings(data_dir or data_folder(), names, limits)
    try:
        app = create_app(settings)
    except (BusyError, OSError) as error:
        common.fail(str(error))
    if host not in LOOPBACK:
        typer.echo(
            f"warning: {host} can be reached from other machines, and there is no login: anyone there can use this "
            "page, read the uploads and run jobs",
            err=True,
        )
    try:
        listen(app, host, port, lambda url: typer.echo(f"fleetgrad: {url}\nkept in: {settings.data}\nCtrl-C ends it."))
    except OSError as error:
        common.fail(f"--port {port}: cannot listen on {host} ({error.strerror}); choose another with --port")
