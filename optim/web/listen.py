"""Listening: a socket first, so that the address is known before anything is served."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn


def listen(app: Any, host: str, port: int, told: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Args:
        app: ASGI application.
        host, port: to listen on; port 0 takes a free one.
        told: the address, once it is open.

    Raises:
        OSError: it cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen()  # who asks as soon as the address is told waits until it is served
        number = opened.getsockname()[1]
        told(f"http://{f'[{host}]' if ':' in host else host}:{number}/")
        settings = uvicorn.Config(
            app, log_level="warning", server_header=False, access_log=False, timeout_graceful_shutdown=3, ws="none"
        )
        uvicorn.Server(settings).run(sockets=[opened])
