"""The routes: a page, and the JSON that it asks for. `create_app` puts a server together."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from optim.documents import plain
from optim.web import choices, job_files
from optim.web.answer import Answerer
from optim.web.guard import REPORT_POLICY, Guard
from optim.web.jobs import Jobs
from optim.web.question import JobAsked, Question, WorkloadAsked
from optim.web.refusals import RefusalError, from_error, from_validation
from optim.web.settings import ServerSettings
from optim.web.store import Row, Store
from optim.web.uploads import ENDINGS, Uploads, facts_of, options_of

log = logging.getLogger("fleetgrad.serve")

ASSETS = {
    "app.css": "text/css",
    "app.js": "text/javascript",
    "fields.js": "text/javascript",
    "figures.js": "text/javascript",
    "jobs.js": "text/javascript",
    "server.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""All files of the page but index.html; no other name is served."""

_TYPES = {"html": "text/html", "txt": "text/plain", "toml": "text/plain", "json": "application/json"}

api = APIRouter(prefix="/api")
pages = APIRouter()


@dataclass(frozen=True)
class Service:
    """What the routes use."""

    settings: ServerSettings
    store: Store
    uploads: Uploads
    jobs: Jobs
    answerer: Answerer


def service(request: Request) -> Service:
    """That of the server that the request came to."""
    found: Service = request.app.state.service
    return found


class Strict(JSONResponse):
    """Strict JSON: non-finite numbers are strings, as in every document; ASCII, so that any text can be said."""

    def render(self, content: Any) -> bytes:
        return json.dumps(plain(content), allow_nan=False, separators=(",", ":")).encode()


def create_app(settings: ServerSettings, *, warm: bool = True) -> Guard:
    """A server over a data folder.

    Args:
        settings: folder, hosts and limits.
        warm: whether to compile what the page starts with at once.

    Raises:
        BusyError: another server has the folder.
    """
    store = Store(settings.data)
    uploads = Uploads(store, settings)
    parts = Service(settings, store, uploads, Jobs(store, settings, uploads), Answerer())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        parts.jobs.start()
        if warm:
            await run_in_threadpool(_warm, parts)
        yield
        await run_in_threadpool(parts.jobs.stop)
        parts.answerer.close()
        store.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan, redirect_slashes=False)
    app.state.service = parts
    app.include_router(api)
    app.include_router(pages)
    app.add_exception_handler(RefusalError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_such_route)
    app.add_exception_handler(Exception, _broken)
    return Guard(app, settings)


def _warm(parts: Service) -> None:
    parts.answerer.answer(choices.resolve(Question.model_validate(choices.EXAMPLE), parts.uploads))


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    return Strict(error.body, status_code=error.status)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _refused(request, from_validation(error.errors()))


def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        found = f"{request.method} {request.url.path}"
        return _refused(
            request, RefusalError("route", found, allowed="a route of this server", status=error.status_code)
        )
    return _refused(request, RefusalError("request", error.detail, allowed="readable", status=error.status_code))


def _broken(_: Request, error: Exception) -> Response:
    """What nobody thought of: its traceback stays in the server's log."""
    log.error("unexpected", exc_info=error)
    what = "the server met something unexpected; its log says what"
    return Strict(RefusalError(what, type(error).__name__).body, status_code=500)


@pages.get("/")
def page() -> Response:
    """The page."""
    return Response(_asset("index.html"), media_type="text/html")


@pages.get("/static/{name}")
def asset(name: str) -> Response:
    """A part of it, of a list of names."""
    if name not in ASSETS:
        raise RefusalError("asset", name, allowed=f"one of {', '.join(ASSETS)}", status=404)
    return Response(_asset(name), media_type=ASSETS[name])


def _asset(name: str) -> bytes:
    return resources.files("optim").joinpath("web", "static", name).read_bytes()


@api.get("/choices")
def get_choices(request: Request) -> Response:
    """Names to choose from, the example, and the server's limits."""
    limits = service(request).settings.limits
    return Strict(
        {
            **choices.choices(),
            "version": version("fleetgrad"),
            "endings": list(ENDINGS),
            "limits": {"upload_bytes": limits.upload_bytes, "queued": limits.queued, "job_s": limits.job_s},
        }
    )


@api.post("/workload")
def post_workload(request: Request, asked: WorkloadAsked) -> Response:
    """Facts of a workload."""
    _, workload = choices.workload_asked(asked, service(request).uploads)
    return Strict(facts_of(workload))


@api.get("/profile")
def get_profile(name: str) -> Response:
    """Facts of a profile."""
    if not 0 < len(name) <= 120:
        raise RefusalError("name", name, allowed="1 to 120 characters")
    return Strict(choices.profile_facts(choices.profile_asked(name)))


@api.post("/answer")
def post_answer(request: Request, question: Question) -> Response:
    """Figures of the sliders' fleet, or that they are being prepared (status 202)."""
    parts = service(request)
    return _figures(parts.answerer.answer, choices.resolve(question, parts.uploads))


@api.post("/curve")
def post_curve(request: Request, question: Question) -> Response:
    """Least cost at each threshold between two pools, likewise."""
    parts = service(request)
    return _figures(parts.answerer.curve, choices.resolve(question, parts.uploads))


def _figures(answer: Any, resolved: choices.Resolved) -> Response:
    try:
        found = answer(resolved)
    except ValueError as error:
        raise from_error(error) from error
    return Strict(found, status_code=202 if found["status"] == "compiling" else 200)


@api.get("/uploads")
def get_uploads(request: Request) -> Response:
    """Uploaded traces."""
    return Strict({"uploads": service(request).uploads.all()})


@api.post("/uploads")
async def post_upload(request: Request) -> Response:
    """A trace as the body; its name and how to read it are in the query."""
    parts = service(request)
    asked = dict(request.query_params)
    label = asked.pop("name", "")
    options = options_of(asked)
    try:
        path = await parts.uploads.receive(label, request.headers.get("content-length"), request.stream())
    except ClientDisconnect as error:
        raise RefusalError("upload", "cut short", allowed="sent whole", status=400) from error
    return Strict(await run_in_threadpool(parts.uploads.keep, path, label, options), status_code=201)


@api.delete("/uploads/{key}")
def delete_upload(request: Request, key: str) -> Response:
    """Forget it."""
    service(request).uploads.remove(key)
    return Strict({"removed": key})


@api.get("/jobs")
def get_jobs(request: Request) -> Response:
    """All jobs, oldest first."""
    return Strict({"jobs": service(request).jobs.all()})


@api.post("/jobs")
def post_job(request: Request, asked: JobAsked) -> Response:
    """Plan, or verify the sliders' fleet."""
    return Strict(service(request).jobs.submit(asked), status_code=201)


@api.get("/jobs/{key}")
def get_job(request: Request, key: str) -> Response:
    """One job."""
    return Strict(service(request).jobs.get(key))


@api.post("/jobs/{key}/cancel")
def cancel_job(request: Request, key: str) -> Response:
    """End it."""
    return Strict(service(request).jobs.cancel(key))


@api.delete("/jobs/{key}")
def delete_job(request: Request, key: str) -> Response:
    """Forget it."""
    service(request).jobs.remove(key)
    return Strict({"removed": key})


@api.get("/jobs/{key}/files/{name}")
def get_file(request: Request, key: str, name: str, view: bool = False) -> Response:
    """A file of a job, to keep; the report also to look at."""
    jobs = service(request).jobs
    row: Row = jobs.get(key)
    if name not in job_files.DOWNLOADS:
        raise RefusalError("file", name, allowed=f"one of {', '.join(job_files.DOWNLOADS)}", status=404)
    content = job_files.download(jobs.folder(row["id"]), row["kind"], name)
    if content is None:
        hint = f"the job is {row['state']}"
        raise RefusalError("file", name, allowed="written, which it is not", hint=hint, status=404)
    stem, _, ending = name.rpartition(".")
    shown = f"{row['kind']}-{row['id'][:8]}-{stem}.{ending}"
    headers = {} if view else {"content-disposition": f'attachment; filename="{shown}"'}
    headers["content-security-policy"] = REPORT_POLICY
    return Response(content, media_type=_TYPES.get(ending, "application/octet-stream"), headers=headers)
