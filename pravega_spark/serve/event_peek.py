"""The last events of a stream, for people: the beginnings of their payloads."""

from __future__ import annotations

import base64
from typing import Final

from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.engine.stream.newest_ranges import newest_ranges
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.event_reader import EventReader
from pravega_spark.model import Event, RowEvent, segment_text
from pravega_spark.schemas.row_json import row_text
from pravega_spark.serve.api_models import EventRow, EventsAnswer

SHOWN_BYTES: Final = 1_024
SHOWN_KEY: Final = 256


def last_events(reader: EventReader, log: StreamLog, view: StreamView, limit: int) -> EventsAnswer:
    """Return the newest ``limit`` events by time, whatever segments have them.

    Reads one or two chunks for each segment whose last events may be among them.
    """
    ranges = newest_ranges(log, view, limit)
    read = SYSTEM.each(lambda rng: list(reader.read_range(rng)), ranges)
    events = [event for found in read for event in found]
    events.sort(key=lambda event: (event.timestamp_us, event.segment_id, event.offset))
    return EventsAnswer(events=[_row(event) for event in reversed(events[-limit:])])


def _row(event: Event) -> EventRow:
    size = event.size_bytes
    shown, is_cut = _shown(event)
    text = _text(shown, is_cut=is_cut)
    return EventRow(
        pointer=str(event.pointer),
        segment=segment_text(event.segment_id),
        offset=event.offset,
        routing_key=None if event.routing_key is None else event.routing_key[:SHOWN_KEY],
        timestamp_ms=event.timestamp_us // 1_000,
        size_bytes=size,
        text=text,
        base64=None if text is not None else base64.b64encode(shown).decode(),
        is_cut=is_cut,
    )


def _shown(event: Event) -> tuple[bytes, bool]:
    """Return the beginning of an event, a row as JSON, and whether there is more of it."""
    if isinstance(event, RowEvent):
        text = row_text(event.data).encode()
        return text[:SHOWN_BYTES], len(text) > SHOWN_BYTES
    with event.open() as payload:
        shown: bytes = payload.read(SHOWN_BYTES)
    return shown, event.size_bytes > len(shown)


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """Return bytes as text if that is what they are; a cut may lie inside a character."""
    for dropped in range(4 if is_cut else 1):
        try:
            text = data[: len(data) - dropped].decode()
        except UnicodeDecodeError:
            continue
        return text if all(c.isprintable() or c in "\n\r\t" for c in text) else None
    return None
