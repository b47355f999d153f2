"""A root in memory behind the web application, for tests without a server process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.testclient import TestClient

from pravega_spark import StreamManager
from pravega_spark.serve.serve_options import ServeOptions
from pravega_spark.serve.web_app import create_app

TOKEN = "token-of-twenty-five-chars"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
_STREAM, _TABLE = "/api/streams/{scope}/{stream}", "/api/tables/{scope}/{table}"
HIDING = frozenset(
    {
        *(f"{_STREAM}/{path}" for path in ("events", "event", "event/payload")),
        *(f"{_TABLE}/{path}" for path in ("entries", "entry", "entry/value", "changes")),
    }
)
"""The paths that show payloads or keys, and so nothing with ``--hide-events``."""
_numbers = itertools.count()


def new_manager() -> StreamManager:
    """Return the manager of a new root in memory, with the scope ``nyc``."""
    manager = StreamManager(f"memory://web/{next(_numbers)}")
    manager.create_scope("nyc")
    return manager


@contextmanager
def web_client(
    manager: StreamManager, *, headers: dict[str, str] | None = None, **options: Any
) -> Iterator[TestClient]:
    """Yield a client of the application; an error that it does not handle is an answer, too."""
    app = create_app(manager, ServeOptions(**options), version="1.2.3")
    with TestClient(
        app, base_url="http://localhost:9091", headers=headers, raise_server_exceptions=False
    ) as client:
        yield client


@contextmanager
def web_server(manager: StreamManager, **options: Any) -> Iterator[str]:
    """Yield the URL of a server in a thread of this process: its clock is that of the manager."""
    app = create_app(manager, ServeOptions(**options), version="1.2.3")
    config = uvicorn.Config(app, port=0, ws="none", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield "http://127.0.0.1:{1}".format(*server.servers[0].sockets[0].getsockname())
    finally:
        app.end()
        server.should_exit = True
        thread.join()


@contextmanager
def changing_client(manager: StreamManager) -> Iterator[TestClient]:
    """Yield a client that may change the root."""
    with web_client(manager, headers=BEARER, token=TOKEN, allow_changes=True) as client:
        yield client
