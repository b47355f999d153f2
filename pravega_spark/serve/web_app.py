"""The web application: Pravega's REST API, our own, and the page, behind one guard."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from pravega_spark.manager import StreamManager
from pravega_spark.serve.access_guard import AccessGuard
from pravega_spark.serve.answer_cache import AnswerCache
from pravega_spark.serve.rest_health import ServerHealth, health_routes
from pravega_spark.serve.rest_reader_groups import reader_group_routes
from pravega_spark.serve.rest_scopes import scope_routes
from pravega_spark.serve.rest_streams import stream_routes
from pravega_spark.serve.serve_options import ServeOptions
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.web_problems import add_handlers

_DESCRIPTION = """\
The streams of one root. `/v1` is Pravega's REST API with its paths and JSON; `/api` is what the
page is made of. Without `--allow-changes` every verb but GET answers 403."""


def create_app(manager: StreamManager, options: ServeOptions, *, version: str = "") -> ASGIApp:
    """Return the application for a root; nothing is read before the first request."""
    root, cache = ServedRoot(manager), AnswerCache()
    app = FastAPI(
        title="pravega_spark",
        version=version or "unknown",
        description=_DESCRIPTION,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    add_handlers(app)
    for routes in (
        health_routes(ServerHealth(root, cache)),
        scope_routes(root),
        stream_routes(root),
        reader_group_routes(root),
    ):
        app.include_router(routes)
    return AccessGuard(app, options)
