"""Jobs: one at a time in a process of its own, with a queue, progress and cancelling; their states are kept on disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from time import monotonic
from typing import Any

from optim.web import job_files
from optim.web.choices import resolve
from optim.web.question import JobAsked
from optim.web.refusals import RefusalError
from optim.web.settings import ServerSettings
from optim.web.store import ENDED, Row, Store, now
from optim.web.summary import summary
from optim.web.uploads import Uploads

COMMAND = (sys.executable, "-P", "-m", "optim.web.run_job")
"""Followed by the folder of the job; nothing is imported from the folder that the server was started in."""

_ENDING_S = 5.0
"""For which a process may take to end before it is killed."""


class Jobs:
    """The queue of one data folder. A job that ran when a server died is `interrupted`, those that waited go on."""

    def __init__(self, store: Store, settings: ServerSettings, uploads: Uploads) -> None:
        self._store, self._settings, self._uploads = store, settings, uploads
        self._changed = threading.Condition()
        self._stopping = False
        self._process: tuple[str, subprocess.Popen[str]] | None = None
        settings.jobs.mkdir(parents=True, exist_ok=True)
        for row in store.all("jobs", "state = 'running'"):
            store.update("jobs", row["id"], {"state": "interrupted", "progress": _LOST, "ended": now()})
        known = {row["id"] for row in store.all("jobs")}
        for folder in settings.jobs.iterdir():  # what was being made when a server ended
            if folder.name not in known:
                shutil.rmtree(folder)
        self._thread = threading.Thread(target=self._work, name="fleetgrad-jobs", daemon=True)

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    def stop(self) -> None:
        """End the running job, which becomes `interrupted`, and take no other."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            running = self._process
        if running is not None:
            self._store.update("jobs", running[0], _interrupted(), only=("running",))
            _end(running[1])
        if self._thread.ident is not None:
            self._thread.join(2 * _ENDING_S)

    def submit(self, asked: JobAsked) -> Row:
        """Queue a job.

        Raises:
            RefusalError: a wrong question, or a limit on jobs.
        """
        limits = self._settings.limits
        resolved = resolve(asked.question, self._uploads)
        if asked.kind == "plan":
            job_files.planned_profiles(asked.question, resolved)
        key = asked.question.workload.upload
        upload = None if key is None else self._uploads.get(key)
        with self._changed:
            if len(self._store.all("jobs", "state = 'queued'")) >= limits.queued:
                hint = "wait for one to end, or cancel one"
                allowed = f"at most {limits.queued} that wait"
                raise RefusalError("jobs", limits.queued + 1, allowed=allowed, hint=hint, status=429)
            if len(self._store.all("jobs")) >= limits.kept:
                hint = "remove some that are not needed"
                allowed = f"at most {limits.kept} that are kept"
                raise RefusalError("jobs", limits.kept + 1, allowed=allowed, hint=hint, status=409)
            new = uuid.uuid4().hex
            trace = Path() if upload is None else self._uploads.path(upload)
            job_files.write_inputs(self.folder(new), asked, resolved, upload, trace)
            label = asked.label or f"{resolved.problem.workload.name}, {resolved.problem.rate:g} req/s"
            row: Row = {
                "id": new,
                "kind": asked.kind,
                "label": label,
                "state": "queued",
                "progress": "waits for its turn",
            }
            row |= {"question": asked.question.model_dump(mode="json", exclude_unset=True), "created": now()}
            self._store.insert("jobs", row)
            self._changed.notify_all()
        return self.get(new)

    def all(self) -> list[Row]:
        """All that are kept, oldest first."""
        return self._store.all("jobs")

    def get(self, key: str) -> Row:
        """One of them.

        Raises:
            RefusalError: there is none.
        """
        row = self._store.get("jobs", key)
        if row is None:
            raise RefusalError("job", key, allowed="the id of a job", status=404)
        return row

    def folder(self, key: str) -> Path:
        """Where its files lie."""
        return self._settings.jobs / key

    def cancel(self, key: str) -> Row:
        """End it, whether it waits or runs.

        Raises:
            RefusalError: there is none, or it has ended.
        """
        self.get(key)
        row = {"state": "cancelled", "progress": "cancelled", "ended": now()}
        if not self._store.update("jobs", key, row, only=("queued", "running")):
            state = self.get(key)["state"]
            raise RefusalError("job", state, allowed="queued or running to be cancelled", status=409)
        with self._changed:
            running = self._process
        if running is not None and running[0] == key:
            _end(running[1])
        return self.get(key)

    def remove(self, key: str) -> None:
        """Forget a job that has ended, with its files.

        Raises:
            RefusalError: there is none, or it has not ended.
        """
        state = self.get(key)["state"]
        if state not in ENDED:
            raise RefusalError("job", state, allowed=f"ended ({', '.join(ENDED)})", hint="cancel it first", status=409)
        with self._changed:
            if self._process is not None and self._process[0] == key:
                raise RefusalError("job", "ending", allowed="ended", hint="try again in a second", status=409)
        self._store.delete("jobs", key)
        shutil.rmtree(self.folder(key), ignore_errors=True)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and not self._store.all("jobs", "state = 'queued'"):
                    self._changed.wait()
                if self._stopping:
                    return
                row = self._store.all("jobs", "state = 'queued'")[0]
            started = {"state": "running", "progress": "starting", "started": now()}
            if self._store.update("jobs", row["id"], started, only=("queued",)):
                self._run(row)

    def _run(self, row: Row) -> None:
        """One job from its start to its end; nothing that happens in it ends the queue."""
        key, folder = row["id"], self.folder(row["id"])
        try:
            with (folder / "errors.log").open("wb") as log:
                process = subprocess.Popen(
                    [*COMMAND, str(folder)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    encoding="utf-8",
                    start_new_session=True,
                )
            with self._changed:
                self._process = key, process
                stopping = self._stopping
            if stopping or self.get(key)["state"] != "running":  # cancelled while it started
                _end(process)
            self._follow(row, process)
        except Exception as error:  # a full disk, a folder that was taken away: the job's end, not the queue's
            self._fail(key, {"what": f"the job could not be run: {type(error).__name__}"})
        finally:
            with self._changed:
                self._process = None

    def _follow(self, row: Row, process: subprocess.Popen[str]) -> None:
        """Keep what the process says, until it ends or has had its time."""
        key, limit = row["id"], self._settings.limits.job_s
        late = threading.Timer(limit, _end, [process])
        late.start()
        start = monotonic()
        last: dict[str, Any] = {}
        assert process.stdout is not None and process.stdin is not None
        for line in process.stdout:
            last = _said(line) or last
            if "progress" in last:
                self._store.update("jobs", key, {"progress": last["progress"]}, only=("running",))
        process.wait()
        late.cancel()
        process.stdin.close()
        process.stdout.close()
        if "failed" in last:
            self._fail(key, last["failed"])
        elif last.get("done") and process.returncode == 0:
            self._finish(row)
        elif monotonic() - start >= limit:
            self._fail(key, {"what": f"the job took longer than {limit:g} s and was ended"})
        elif self._stopping:
            self._store.update("jobs", key, _interrupted(), only=("running",))
        else:
            what = f"the process of the job ended unasked (status {process.returncode}); is there enough memory?"
            self._fail(key, {"what": what, "hint": f"its last words are in jobs/{key}/errors.log of the data folder"})

    def _finish(self, row: Row) -> None:
        path = self.folder(row["id"]) / job_files.OUT / job_files.RESULTS[row["kind"]]
        found = summary(row["kind"], json.loads(path.read_text(encoding="utf-8")))
        done = {"state": "done", "progress": "done", "summary": found, "ended": now()}
        self._store.update("jobs", row["id"], done, only=("running",))

    def _fail(self, key: str, error: dict[str, Any]) -> None:
        whole = {"what": "", "value": None, "allowed": "", "hint": ""} | error
        failed = {"state": "failed", "progress": "failed", "error": whole, "ended": now()}
        self._store.update("jobs", key, failed, only=("running",))


_LOST = "interrupted: the server ended while it ran; run it again"


def _interrupted() -> Row:
    return {"state": "interrupted", "progress": _LOST, "ended": now()}


def _said(line: str) -> dict[str, Any]:
    """An object of one line; {} of anything else that a library may print."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _end(process: subprocess.Popen[str]) -> None:
    """Ask a process and all that it started to end; kill them where they do not."""
    for name in ("SIGTERM", "SIGKILL"):
        if process.poll() is not None:
            return
        try:
            if os.name == "posix":
                os.killpg(process.pid, getattr(signal, name))
            else:
                process.kill()
        except ProcessLookupError:
            return
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            continue
