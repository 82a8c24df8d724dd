"""What stands before every route: who may ask, how much may be sent, and what a browser is told of each answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from optim.web.refusals import RefusalError
from optim.web.settings import ServerSettings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE = ("GET", "HEAD")
UPLOAD_PATH = "/api/uploads"

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A report carries its own script; it runs apart from the page, and can ask nobody for anything."""

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """An ASGI application around another.

    A page of another site can make a browser send requests here. It cannot read answers, since no answer allows it;
    a name of its own that resolves to this machine is refused by the Host header, a request that changes something
    by the Origin header, which browsers send with all of those.
    """

    def __init__(self, app: Application, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError("only HTTP is served")
        try:
            headers = _headers(scope)
            self._check(scope, headers)
        except RefusalError as error:
            await _refuse(error, send)
            return
        if scope["path"] == UPLOAD_PATH and scope["method"] == "POST":  # it counts by itself
            await self._app(scope, receive, _with_headers(send))
            return
        most, seen = self._settings.limits.body_bytes, 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise HTTPException(413, f"longer than {most} bytes")
            return message

        await self._app(scope, counted, _with_headers(send))

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        name = _hostname(host)
        if name not in self._settings.hosts:
            allowed = f"one of {', '.join(self._settings.hosts)}"
            hint = "open the address that the server printed; for another name start it with --allow-host"
            raise RefusalError("Host header", host, allowed=allowed, hint=hint, status=421)
        if scope["method"] in SAFE:
            return
        origin = headers.get("origin")
        same = origin is not None and urlsplit(origin).netloc == host and urlsplit(origin).scheme in ("http", "https")
        if origin is not None and not same:
            raise RefusalError("Origin header", origin, allowed=f"http://{host}", status=403)
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise RefusalError("Sec-Fetch-Site header", headers["sec-fetch-site"], allowed="same-origin", status=403)
        declared = headers.get("content-length", "0")
        most = self._settings.limits.body_bytes
        if scope["path"] != UPLOAD_PATH and declared.isdigit() and int(declared) > most:
            raise _too_long(int(declared), most)


def _too_long(size: int, most: int) -> RefusalError:
    return RefusalError("body", f"{size} bytes", allowed=f"at most {most} bytes", status=413)


def _headers(scope: Scope) -> dict[str, str]:
    """Names in lower case.

    Raises:
        RefusalError: two Host or Origin headers.
    """
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        if name in found and name in ("host", "origin", "content-length"):
            raise RefusalError(f"{name} header", "several", allowed="one", status=400)
        found[name] = value.decode("latin-1")
    return found


def _hostname(host: str) -> str | None:
    """The name of a Host header without its port; None of what is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None


def _with_headers(send: Send) -> Send:
    async def told(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            more = {**HEADERS, "content-security-policy": PAGE_POLICY}
            extra = [(n.encode(), v.encode()) for n, v in more.items() if n.encode() not in given]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return told


async def _refuse(error: RefusalError, send: Send) -> None:
    body = json.dumps(error.body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    start = {"type": "http.response.start", "status": error.status, "headers": headers}
    await _with_headers(send)(start)
    await send({"type": "http.response.body", "body": body})
