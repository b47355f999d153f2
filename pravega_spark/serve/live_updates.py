"""Live updates by server-sent events: one poll of the root for all viewers, while there are any.

A poll makes a bounded number of looks and of storage calls: first at what has an open page, then
at the others in turn. Viewers get what has changed since the last poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.errors import PravegaSparkError, RootChanged, StoreError
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.api_models import StreamRow
from pravega_spark.serve.attention import Attention
from pravega_spark.serve.attention_models import AttentionAnswer
from pravega_spark.serve.group_models import GroupRow
from pravega_spark.serve.groups import group_row
from pravega_spark.serve.serve_options import MAX_VIEWERS
from pravega_spark.serve.watch import RootWatch
from pravega_spark.serve.web_problems import problem

logger = own_logger(__name__)

_HEARTBEAT_SECONDS: Final = 3.0
"""A page that hears nothing for three times as long says that the server does not answer."""
_WAITING_MESSAGES: Final = 8

StreamName = Annotated[str | None, Query(max_length=600)]


@dataclass(eq=False, slots=True)
class _Viewer:
    stream: str | None
    group: str | None
    messages: asyncio.Queue[str | None] = field(
        default_factory=lambda: asyncio.Queue(maxsize=_WAITING_MESSAGES)
    )

    def send(self, message: str) -> None:
        """Queue a message; a viewer that does not read is told to ask for everything again."""
        if self.messages.full():
            while not self.messages.empty():
                self.messages.get_nowait()
            message = _event("resync", {})
        self.messages.put_nowait(message)

    def end(self) -> None:
        """Let the viewer's messages end, also for a call that waits."""
        while not self.messages.empty():
            self.messages.get_nowait()
        self.messages.put_nowait(None)


class _Found(NamedTuple):
    """What a poll found."""

    streams: list[StreamRow]
    groups: dict[str, GroupRow]
    attention: AttentionAnswer
    gone: list[str]
    """The streams with an open page that the root does not list."""


class LiveUpdates:
    """The viewers of one server, and the task that polls for them; of one event loop."""

    def __init__(self, watch: RootWatch, attention: Attention) -> None:
        """Take what is watched; no task runs before the first viewer comes."""
        self._watch, self._attention = watch, attention
        self._viewers: set[_Viewer] = set()
        self._places = 0
        self._task: asyncio.Task[None] | None = None
        self._sent: dict[str, StreamRow] = {}
        self._sent_groups: dict[str, GroupRow] = {}
        self._sent_attention = ""
        self._sent_gone: list[str] = []

    @contextlib.contextmanager
    def place(self) -> Iterator[bool]:
        """Take one of the MAX_VIEWERS places meanwhile; yields whether one was free."""
        is_free = self._places < MAX_VIEWERS
        self._places += is_free
        try:
            yield is_free
        finally:
            self._places -= is_free

    async def messages(self, stream: str | None, group: str | None = None) -> AsyncIterator[str]:
        """Yield messages for one viewer, which may show a stream or a group, until it leaves."""
        viewer = _Viewer(stream, group)
        self._viewers.add(viewer)
        try:
            if self._task is None or self._task.done():
                self._sent, self._sent_groups, self._sent_attention = {}, {}, ""
                self._sent_gone = []
                self._task = asyncio.create_task(self._poll())
            yield _event("hello", {"poll_seconds": self._watch.poll_seconds})
            while True:
                try:
                    found = await asyncio.wait_for(viewer.messages.get(), _HEARTBEAT_SECONDS)
                except asyncio.TimeoutError:
                    yield ": still here\n\n"
                    continue
                if found is None:
                    return
                yield found
        finally:
            self._viewers.discard(viewer)

    def end(self) -> None:
        """End the messages of all viewers, so that the server can close their connections."""
        for viewer in self._viewers:
            viewer.end()

    async def close(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _poll(self) -> None:
        is_in_trouble = False
        while self._viewers:
            try:
                streams = frozenset(v.stream for v in self._viewers if v.stream)
                groups = frozenset(v.group for v in self._viewers if v.group)
                found = await run_in_threadpool(self._look, streams, groups)
            except (PravegaSparkError, OSError) as error:
                is_in_trouble = True
                self._publish_trouble(said(error, self._watch.root.store.url), error)
            except Exception as error:
                is_in_trouble = True
                logger.exception("a poll for the page failed", extra=log_fields("serve"))
                self._publish_trouble("the server failed; see its log.", error)
            else:
                self._watch.root.storage_answered()
                if is_in_trouble:
                    is_in_trouble = False
                    self._publish(_event("resync", {}))
                self._publish_rows(found.streams)
                self._publish_groups(found.groups)
                self._publish_attention(found.attention)
                self._publish_gone(found.gone)
            await asyncio.sleep(self._watch.poll_seconds)

    def _look(self, streams: frozenset[str], groups: frozenset[str]) -> _Found:
        """Return the rows of the streams of this round, and the rest; runs in a thread.

        What their rates need is read by what the looks leave of the poll's budget.
        """
        allowance, looked = self._attention.poll(streams, groups)
        with allowance.applied():
            rows = self._watch.rows(looked)
            gone = sorted(streams.difference(self._watch.names().streams))
        found = self._attention.groups
        group_rows = {name: group_row(name, one) for name, one in found.items()}
        return _Found(rows, group_rows, self._attention.answer(), gone)

    def _publish_trouble(self, message: str, error: Exception) -> None:
        """Tell what is wrong, and of a storage that does not answer, since when."""
        is_storage = isinstance(error, (StoreError, RootChanged, OSError))
        since_ms = self._watch.root.storage_failed() if is_storage else None
        self._publish(_event("trouble", {"message": message, "storage_since_ms": since_ms}))

    def _publish_rows(self, rows: list[StreamRow]) -> None:
        changed = [row for row in rows if self._sent.get(_name(row)) != row]
        if changed:
            self._publish(_event("streams", {"streams": [row.model_dump() for row in changed]}))
        self._sent |= {_name(row): row for row in changed}

    def _publish_groups(self, rows: dict[str, GroupRow]) -> None:
        changed = {n: row for n, row in rows.items() if _differ(row, self._sent_groups.get(n))}
        if changed:
            self._publish(_event("groups", {"groups": [r.model_dump() for r in changed.values()]}))
        self._sent_groups = rows

    def _publish_attention(self, found: AttentionAnswer) -> None:
        known = found.model_dump_json(exclude=_TIMES)
        if known != self._sent_attention:
            self._publish(_event("attention", found.model_dump(exclude={"findings"})))
        self._sent_attention = known

    def _publish_gone(self, names: list[str]) -> None:
        """Tell the pages of streams that are not listed to look whether theirs was deleted."""
        if names != self._sent_gone:
            self._publish(_event("gone", {"streams": names}))
        self._sent_gone = names

    def _publish(self, message: str) -> None:
        for viewer in self._viewers:
            viewer.send(message)


_TIMES: Final[Any] = {
    "now_ms": True,
    "names_ms": True,
    "maintenance_ms": True,
    "streams": {"oldest_ms"},
    "groups": {"oldest_ms"},
    "findings": {"__all__": {"looked_ms"}},
}
"""What changes with each poll, and says nothing new."""


def _name(row: StreamRow) -> str:
    return f"{row.scope}/{row.stream}"


def _differ(row: GroupRow, sent: GroupRow | None) -> bool:
    """Return whether a row says anything new beside when it was looked at."""
    return sent is None or row.model_copy(update={"looked_ms": sent.looked_ms}) != sent


def _event(kind: str, data: dict[str, Any]) -> str:
    """Return a server-sent event; JSON has no line breaks, so it is one line of data."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


class _Updates(StreamingResponse):
    """The messages of one viewer, or that there is no place for it."""

    def __init__(self, live: LiveUpdates, stream: str | None, group: str | None) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(live.messages(stream, group), 200, headers, "text/event-stream")
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._live.place() as is_free:
            if is_free:
                await super().__call__(scope, receive, send)
                return
        refused = problem(
            503, "TooManyViewers", f"{MAX_VIEWERS} pages are open; close one and try again."
        )
        refused.headers["Retry-After"] = "30"
        await refused(scope, receive, send)


def live_routes(live: LiveUpdates) -> APIRouter:
    """Return the route."""
    routes = APIRouter(tags=["Page"])

    @routes.get(
        "/api/live",
        operation_id="live",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}}, 503: {"description": "Full"}},
    )
    async def updates(stream: StreamName = None, group: StreamName = None) -> Response:
        """Send server-sent events: ``streams`` and ``groups`` with the rows that changed.

        ``attention`` counts what needs it, ``trouble`` tells of a storage that does not answer, and
        since when; after ``resync``, such as when it answers, a page asks for everything again.
        ``gone`` names streams with an open page that are not listed: deleted, or of a table.
        ``stream`` or ``group`` is the one whose page is open: it is looked at in every round.
        """
        return _Updates(live, stream, group)

    return routes
