"""The events of a stream: pages of them, a search, and one event with its payload.

With ``--hide-events`` every path here answers 403, whatever it is asked.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from pravega_spark.engine.chunk_paths import staged_version, transaction_of
from pravega_spark.engine.log.actions import Add, Commit
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    CorruptLog,
    InvalidInput,
    NoSuchEvent,
    TooBusy,
)
from pravega_spark.event_reader import EventReader
from pravega_spark.schemas.row_json import row_text
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.api import StreamAnswers
from pravega_spark.serve.event_rows import SHOWN_COLUMNS, EventRow, EventRows
from pravega_spark.serve.event_starts import HEAD, TAIL, WalkStart, place_of, route_of
from pravega_spark.serve.event_walk import Budget, Looked, OnRead, Unreadable, Walk
from pravega_spark.serve.found_damage import STREAM, Subject
from pravega_spark.serve.rest import NOT_FOUND, stream_name
from pravega_spark.serve.web_problems import Refused
from pravega_spark.values.events import Event, RowEvent
from pravega_spark.values.limits import MAX_ROUTING_KEY_LENGTH
from pravega_spark.values.segments import EventPointer, SegmentRange, segment_text
from pravega_spark.values.units import MIB

PAGE_BUDGET: Final = (256, 32 * MIB, 10.0)
"""Chunks, bytes and seconds that a page of events may cost."""
SEARCH_BUDGET: Final = (1_024, 64 * MIB, 4.0)
"""The same of one step of a search, or of a walk along a key."""
SEARCH_PART_EVENTS: Final = 16_384
TYPED_PART_EVENTS: Final = 4_096
"""Of a typed stream, whose rows are made one by one."""
SHOWN_EVENT_BYTES: Final = 64 * 1_024
"""Of the payload of one event that is opened."""
DOWNLOAD_BYTES: Final = 16 * MIB
"""The largest payload that is answered as a whole."""
SCANNED_COMMITS: Final = 128
"""The most commits that are read for the one that wrote an event."""
WALKS: Final = 4
"""Walks at the same time; others wait, and not for long."""
_WAIT_SECONDS: Final = 10.0


class LookedRow(BaseModel):
    """How far a page looked, in the direction of its order."""

    events: int = Field(description="Without those that could not be read.")
    lost: int = Field(description="Events on the way that could not be read.")
    chunks: int
    size_bytes: int
    from_ms: int | None = Field(description="The earliest time of these events.")
    to_ms: int | None = Field(description="The latest time of these events.")
    partly_searched: int = Field(
        default=0, description="Large events of which a part was searched."
    )


class LostRow(BaseModel):
    """Events that cannot be read, and why."""

    segment: str
    start: int
    end: int
    type: str
    message: str


class EventsAnswer(BaseModel):
    """A page of events, in the order of the request."""

    events: list[EventRow]
    columns: list[str] = Field(description="Of a typed stream: the columns of ``cells``.")
    omitted_columns: int
    lost: list[LostRow]
    order: str
    older: str = Field(description="The position from which older events follow: ``at``.")
    newer: str = Field(description="The position from which newer events follow: ``at``.")
    is_done: bool = Field(description="Whether no more events follow in the order of the page.")
    looked: LookedRow
    readable_events: int = Field(description="Of the whole stream: from its head to its tail.")
    version: int = Field(description="Of the stream's log, as the page read it.")


class CommitOfEvent(BaseModel):
    """The commit that made an event visible."""

    version: int
    time_ms: int
    operation: str
    writer: str | None


class EventDetails(BaseModel):
    """One event: what is known of it, and the first 64 KiB of its payload."""

    event: EventRow
    life: int
    chunk: str
    chunk_events: int
    chunk_bytes: int
    committed_ms: int
    transaction: str | None
    commit: CommitOfEvent | None = Field(description="Null if the log has it no longer.")


class WalkGate:
    """Lets few walks run at the same time: each may hold some tens of MiB."""

    def __init__(self, walks: int = WALKS) -> None:
        """Take how many."""
        self._free = threading.BoundedSemaphore(walks)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Wait for a turn; raise TooBusy after some seconds."""
        if not self._free.acquire(timeout=_WAIT_SECONDS):
            raise TooBusy(f"{WALKS} other pages or searches of events run; try again.")
        try:
            yield
        finally:
            self._free.release()


def refuse_hidden(*, hide_events: bool) -> Callable[[], None]:
    """Return what each path that shows keys or payloads depends on."""

    def refuse() -> None:
        if hide_events:
            raise Refused(403, "EventsHidden", "this server was started with --hide-events.")

    return refuse


def saved_as(data: bytes, name: str) -> Response:
    """Return an answer that a browser saves as a file; what no file may be called becomes ``-``."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return Response(
        data,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{plain}"'},
    )


HIDDEN: Final[dict[int | str, dict[str, Any]]] = {403: {"description": "Events are hidden"}}
Position = Annotated[
    str | None,
    Query(max_length=15_000, description="head, tail, a cut, or number#epoch=offset."),
]
Place = Annotated[str, Query(max_length=60, description="number#epoch=offset")]
KeyText = Annotated[str | None, Query(max_length=4_000)]
SearchText = Annotated[str | None, Query(max_length=200)]
Order = Literal["newest", "oldest"]
_LAST_MS: Final = 253_402_300_799_999


def event_routes(answers: StreamAnswers, gate: WalkGate, *, hide_events: bool) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(
        prefix="/api/streams/{scope}/{stream}",
        tags=["Page"],
        dependencies=[Depends(refuse_hidden(hide_events=hide_events))],
        responses={**NOT_FOUND, **HIDDEN},
    )
    _add_page(routes, answers, gate)
    _add_event(routes, answers)
    return routes


def _on_read(answers: StreamAnswers, name: str, view: StreamView) -> OnRead:
    """Return what takes of a stream's walk what could not be read, for the overview."""
    damage, subject = answers.watch.damage, Subject(STREAM, name)
    damage.follow(subject, view)
    return partial(damage.looked, subject)


def _add_page(routes: APIRouter, answers: StreamAnswers, gate: WalkGate) -> None:
    on_read = partial(_on_read, answers)

    @routes.get("/events", operation_id="streamEvents")
    def events(
        scope: str,
        stream: str,
        at: Position = None,
        time_ms: Annotated[int | None, Query(ge=-_LAST_MS, le=_LAST_MS)] = None,
        order: Order | None = None,
        segment: Annotated[str | None, Query(max_length=30)] = None,
        key: KeyText = None,
        key_of: Annotated[str | None, Query(max_length=60)] = None,
        contains: SearchText = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> EventsAnswer:
        """Return events from a position on, each with the first KiB of its payload.

        Without a position, from the end that ``order`` names; from a time on with ``time_ms``.
        ``key`` or ``key_of``, the place of another event with the key, goes along the segments of
        a key. ``contains`` is a text in the payload. A page reads a bounded number of chunks: the
        next one goes on at ``older`` or ``newer``.
        """
        name = stream_name(scope, stream)
        log = answers.watch.root.log(name)
        if at is not None and time_ms is not None:
            raise InvalidInput("give at or time_ms, not both: a page begins at one of them.")
        if (at, time_ms, order, segment, key, key_of, contains) == (None,) * 7:

            def newest(view: StreamView) -> EventsAnswer:
                with gate():
                    start = WalkStart(at=TAIL, time_us=None, segment=None, key=None, back=True)
                    return page_of_events(log, view, start, None, limit, on_read(name, view))

            return answers.of_version(("events", limit), name, newest)
        view = answers.watch.root.view(name)
        if key_of is not None:
            if key is not None:
                raise InvalidInput("give key or key_of, not both.")
            key = _key_at(log, view, key_of)
        is_from_start = time_ms is not None or at not in (None, TAIL)
        back = (order or ("oldest" if is_from_start else "newest")) == "newest"
        start = WalkStart(
            at=HEAD if not (is_from_start or at or back) else at,
            time_us=None if time_ms is None else time_ms * 1_000,
            segment=segment,
            key=key,
            back=back,
        )
        with gate():
            return page_of_events(log, view, start, contains or None, limit, on_read(name, view))


def _add_event(routes: APIRouter, answers: StreamAnswers) -> None:
    @routes.get("/event", operation_id="streamEvent")
    def one_event(scope: str, stream: str, at: Place) -> EventDetails:
        """Return one event with the first 64 KiB of its payload, and the commit that wrote it."""
        name = stream_name(scope, stream)
        log, view = answers.watch.root.log(name), answers.watch.root.view(name)
        rng = _one(view, at)
        return event_details(log, view, rng, _on_read(answers, name, view))

    @routes.get(
        "/event/payload",
        operation_id="streamEventPayload",
        response_class=Response,
        responses={
            200: {"content": {"application/octet-stream": {}}},
            413: {"description": "The payload has more than 16 MiB"},
        },
    )
    def payload(scope: str, stream: str, at: Place) -> Response:
        """Return the payload of one event, of at most 16 MiB, to be saved; a row as JSON."""
        name = stream_name(scope, stream)
        log, view = answers.watch.root.log(name), answers.watch.root.view(name)
        rng = _one(view, at)
        event = _event(log, view, rng)
        if event.size_bytes > DOWNLOAD_BYTES:
            raise Refused(
                413,
                "TooLarge",
                f"event {event.pointer} has {event.size_bytes} bytes, and a download has at most "
                f"{DOWNLOAD_BYTES}: read it with fetch_event({str(event.pointer)!r}).open().",
            )
        is_row = isinstance(event, RowEvent)
        data = row_text(event.data).encode() if is_row else event.data
        ending = "json" if is_row else "bin"
        return saved_as(data, f"{name}-{segment_text(rng.segment_id)}-{rng.start}.{ending}")


def page_of_events(
    log: StreamLog,
    view: StreamView,
    start: WalkStart,
    contains: str | None,
    limit: int,
    on_read: OnRead,
) -> EventsAnswer:
    """Return a page of events; raises what ``route_of`` does, and StoreError."""
    reader = EventRows(log, view, key=start.key, contains=contains)
    part_events = limit
    if reader.is_selective:
        part_events = SEARCH_PART_EVENTS if view.event_format.is_raw else TYPED_PART_EVENTS
    walk = Walk(
        log=log,
        view=view,
        route=route_of(log, view, start),
        reader=reader,
        back=start.back,
        limit=limit,
        part_events=part_events,
        budget=Budget(*(SEARCH_BUDGET if reader.is_selective else PAGE_BUDGET)),
        on_read=on_read,
    )
    found = walk.run()
    columns = reader.columns
    return EventsAnswer(
        events=found.rows,
        columns=columns[:SHOWN_COLUMNS],
        omitted_columns=max(0, len(columns) - SHOWN_COLUMNS),
        lost=[lost_row(lost, log.store.url) for lost in found.lost],
        order="newest" if start.back else "oldest",
        older=found.end if start.back else found.begin,
        newer=found.begin if start.back else found.end,
        is_done=found.is_done,
        looked=looked_row(found.looked, reader.partly_searched),
        readable_events=view.located_head.events_to(view.located_tail),
        version=view.version,
    )


def looked_row(looked: Looked, partly_searched: int = 0) -> LookedRow:
    """Return how far a walk looked."""
    return LookedRow(
        events=looked.events - looked.lost,
        lost=looked.lost,
        chunks=looked.chunks,
        size_bytes=looked.size_bytes,
        from_ms=None if looked.from_us is None else looked.from_us // 1_000,
        to_ms=None if looked.to_us is None else looked.to_us // 1_000,
        partly_searched=partly_searched,
    )


def lost_row(found: Unreadable, root_url: str) -> LostRow:
    """Return events that cannot be read."""
    return LostRow(
        segment=segment_text(found.lost.segment_id),
        start=found.lost.start,
        end=found.lost.end,
        type=type(found.error).__name__,
        message=said(found.error, root_url),
    )


def _one(view: StreamView, at: str) -> SegmentRange:
    segment, offset = place_of(view, at)
    pointer = EventPointer(view.stream, view.life, segment.segment_id, offset)
    if offset >= view.segment(segment.segment_id).next_offset:
        raise NoSuchEvent(
            f"{pointer} names no event of the stream; take positions from its pages.",
            pointer=pointer,
        )
    return SegmentRange(
        view.stream, life=view.life, segment_id=segment.segment_id, start=offset, end=offset + 1
    )


def _event(log: StreamLog, view: StreamView, rng: SegmentRange) -> Event:
    pointer = EventPointer(rng.stream, rng.life, rng.segment_id, rng.start)
    return EventReader(log, life=view.life).fetch(pointer)


def _key_at(log: StreamLog, view: StreamView, at: str) -> str:
    event = _event(log, view, _one(view, at))
    if event.routing_key is None:
        raise InvalidInput(f"the event {event.pointer} has no routing key.")
    return event.routing_key


def event_details(
    log: StreamLog, view: StreamView, rng: SegmentRange, on_read: OnRead
) -> EventDetails:
    """Return one event; raises what reading it raises, except that its key may be missing."""
    rows = EventRows(
        log,
        view,
        shown_bytes=SHOWN_EVENT_BYTES,
        shown_key=MAX_ROUTING_KEY_LENGTH,
        large_reads=1,
    )
    start = WalkStart(at=_place(rng), time_us=None, segment=None, key=None, back=False)
    found = Walk(
        log=log,
        view=view,
        route=route_of(log, view, start),
        reader=rows,
        back=False,
        limit=1,
        part_events=1,
        budget=Budget(*PAGE_BUDGET),
        on_read=on_read,
    ).run()
    for lost in found.lost:
        raise lost.error
    with log.log.files() as files:
        (add,) = files.find(rng.segment_id, rng.start, rng.end)
    return EventDetails(
        event=found.rows[0],
        life=view.life,
        chunk=add.path,
        chunk_events=int((add.tags or {}).get("rows", 0)),
        chunk_bytes=add.size,
        committed_ms=add.modified_ms,
        transaction=transaction_of(add.path),
        commit=_commit_of(log, view, add),
    )


def _place(rng: SegmentRange) -> str:
    return f"{segment_text(rng.segment_id)}={rng.start}"


def _commit_of(log: StreamLog, view: StreamView, add: Add) -> CommitOfEvent | None:
    """Return the commit that added a chunk: one of the next ones after it was staged."""
    staged = staged_version(add.path)
    if staged is None:
        return None
    first = max(staged, view.snapshot.commit_deletion_mark - 1)
    last = min(view.version, first + SCANNED_COMMITS)
    with contextlib.suppress(CorruptLog):  # cleaned up meanwhile
        for commit in log.log.reader.span(first, last):
            if any(each.path == add.path for each in commit.adds):
                return CommitOfEvent(
                    version=commit.version,
                    time_ms=commit.timestamp_ms,
                    operation=commit.operation,
                    writer=_writer_of(commit),
                )
    return None


def _writer_of(commit: Commit) -> str | None:
    given = commit.info.get("operationParameters") or {}
    try:
        found = json.loads(given["writer"])
    except DECODE_ERRORS:
        return None
    return found if isinstance(found, str) else None
