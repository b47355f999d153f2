"""Runs the web application in this process, until a signal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from pravega_spark.errors import InvalidOption
from pravega_spark.manager import StreamManager
from pravega_spark.serve.protocol import Connections
from pravega_spark.serve.serve_options import MAX_HEADER_BYTES, ConnectionLimits, ServeOptions
from pravega_spark.serve.web_app import WebApplication, create_app

_WAITING_CONNECTIONS: Final = 512
"""Those that the kernel keeps until they are accepted."""
_ACCEPTED_TOGETHER: Final = 16
"""Those that the event loop accepts before it looks whether they are too many."""
_MAX_READ_BYTES: Final = 8 * MAX_HEADER_BYTES
"""A longer header block ends the connection; one above MAX_HEADER_BYTES gets an answer."""
_SHUTDOWN_SECONDS: Final = 3


def serve(
    manager: StreamManager,
    options: ServeOptions,
    *,
    version: str,
    on_start: Callable[[str], None],
) -> None:
    """Listen and answer until SIGINT or SIGTERM; ``on_start`` gets the URL once it listens.

    Raises InvalidOption if the address cannot be listened at.
    """
    listener = _listen(options.host, options.port)
    try:
        on_start(_url(listener))
        app = create_app(manager, options, version=version)
        _Server(app, options.limits).run(sockets=[listener])
    finally:
        listener.close()


class _Server(uvicorn.Server):
    def __init__(self, app: WebApplication, limits: ConnectionLimits) -> None:
        self._app = app
        self._connections = Connections(limits)
        super().__init__(_config(app, self._connections))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._connections.on_loop_error)
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(_WAITING_CONNECTIONS)  # asyncio takes one number for both

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._connections.end()
        self._app.end()  # else the server would wait for pages to be closed
        await super().shutdown(sockets)


def _config(app: WebApplication, connections: Connections) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=connections.new,  # type: ignore[arg-type]  # what makes a protocol, as a class does
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=_ACCEPTED_TOGETHER,
        timeout_keep_alive=connections.limits.header_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        h11_max_incomplete_event_size=_MAX_READ_BYTES,
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidOption(f"the host {host!r} cannot be listened at: {error}.") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_WAITING_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise InvalidOption(
            f"port {port} of {host} cannot be listened at: {error.strerror}. Another server may "
            "run there; choose another one with --port, or 0 for any free one."
        ) from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    named = f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}/"
