"""The web application: Pravega's REST API, our own, and the page, behind one guard."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from pravega_spark.manager import StreamManager
from pravega_spark.serve.access_guard import AccessGuard
from pravega_spark.serve.answer_cache import AnswerCache
from pravega_spark.serve.api import StreamAnswers, root_api, stream_api
from pravega_spark.serve.attention import Attention
from pravega_spark.serve.attention_routes import attention_routes
from pravega_spark.serve.events import WalkGate, event_routes
from pravega_spark.serve.groups import StreamReadersOf, group_routes
from pravega_spark.serve.live_updates import LiveUpdates, live_routes
from pravega_spark.serve.metrics_route import metrics_route
from pravega_spark.serve.openapi_document import describe_errors
from pravega_spark.serve.page_files import add_page
from pravega_spark.serve.rest import (
    ServerHealth,
    health_routes,
    reader_group_routes,
    scope_routes,
    stream_routes,
)
from pravega_spark.serve.serve_options import ServeOptions
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.tables import table_routes
from pravega_spark.serve.watch import RootWatch
from pravega_spark.serve.web_problems import add_handlers

_DESCRIPTION = """\
The streams of one root. `/v1` is Pravega's REST API with its paths and JSON; `/api` serves
the page. Without `--allow-changes` every verb but GET answers 403."""


class WebApplication:
    """The application as ASGI, which its server tells that it ends."""

    def __init__(self, app: ASGIApp, live: LiveUpdates) -> None:
        self._app = app
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._app(scope, receive, send)

    def end(self) -> None:
        """End what answers for as long as a page is open."""
        self._live.end()


def create_app(
    manager: StreamManager, options: ServeOptions, *, version: str = ""
) -> WebApplication:
    """Return the application for a root; nothing is read before the first request."""
    root = ServedRoot(manager)
    cache, watch = AnswerCache(root.runtime), RootWatch(root, options.poll_seconds)
    attention = Attention(watch)
    live = LiveUpdates(watch, attention)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await live.close()

    app = FastAPI(
        title="pravega_spark",
        version=version or "unknown",
        description=_DESCRIPTION,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    add_handlers(app, root.store.url)
    answers = StreamAnswers(watch, cache, StreamReadersOf(attention, watch))
    gate = WalkGate()
    for routes in (
        scope_routes(root),
        stream_routes(root),
        reader_group_routes(root),
        health_routes(ServerHealth(root, cache)),
        attention_routes(attention),
        group_routes(watch, attention),
        root_api(watch, attention, version=version, allow_changes=options.allow_changes),
        stream_api(answers),
        event_routes(answers, gate, hide_events=options.hide_events),
        *table_routes(watch, cache, gate, hide_events=options.hide_events),
        live_routes(live),
        metrics_route(manager),
    ):
        # As they are: `include_router` would build each a second time, at its first request.
        app.router.routes.extend(routes.routes)
    describe_errors(app, has_token=options.token is not None)
    add_page(app)
    return WebApplication(AccessGuard(app, options), live)
