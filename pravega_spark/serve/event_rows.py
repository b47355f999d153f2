"""Events as rows of a page: keys, beginnings of payloads, and typed columns, all bounded."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, Field

from pravega_spark.engine.chunks.format import payload_names
from pravega_spark.engine.chunks.reader import marked_ref, row_events
from pravega_spark.engine.stream.read import events_in
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import KeyUnavailable
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.schemas.row_json import plain_value
from pravega_spark.values.events import Event
from pravega_spark.values.segments import EventPointer, SegmentRange, segment_text

SHOWN_BYTES: Final = 1_024
"""Of a payload in a list."""
SHOWN_KEY: Final = 256
"""Characters of a routing key in a list."""
SHOWN_COLUMNS: Final = 50
SHOWN_CELL: Final = 200
"""Characters of a typed column in a list."""
LARGE_READS: Final = 2
"""Large events of a list of which the beginning is read: that costs a window of 8 MiB each."""


class EventRow(BaseModel):
    """An event; ``text`` is its beginning if that is UTF-8, else ``base64``."""

    pointer: str
    segment: str
    offset: int
    routing_key: str | None
    is_key_cut: bool = Field(description="Whether the key is longer than what is shown.")
    timestamp_ms: int
    size_bytes: int | None
    text: str | None
    base64: str | None
    is_cut: bool = Field(description="Whether the payload is longer than what is shown.")
    cells: list[str | None] | None = Field(
        default=None, description="Of a typed stream: the beginnings of its columns, null for null."
    )
    unread: str | None = Field(default=None, description="Why the payload is not shown.")


class EventRows:
    """Makes rows of the events of a stream: of all, of those of a key, or of those with a text.

    Of a text the case counts. Of a large event the beginning is searched, as far as it is read.
    """

    def __init__(
        self,
        log: StreamLog,
        view: StreamView,
        *,
        key: str | None = None,
        contains: str | None = None,
        shown_bytes: int = SHOWN_BYTES,
        shown_key: int = SHOWN_KEY,
        large_reads: int = LARGE_READS,
    ) -> None:
        """Take what is wanted; nothing is read."""
        self._log, self._view = log, view
        self._key = None if key is None else key.encode(errors="surrogatepass")
        self._contains = contains
        self._shown_bytes, self._shown_key = shown_bytes, shown_key
        self._lock = new_lock()
        self._large_left = large_reads
        self.partly_searched = 0
        """Large events of which not all bytes were searched."""

    @property
    def is_selective(self) -> bool:
        """Whether events may be left out."""
        return self._key is not None or self._contains is not None

    @property
    def columns(self) -> list[str]:
        """The columns of a typed stream."""
        events = self._view.event_format
        return [] if events.is_raw else list(events.payload)

    def rows(self, rng: SegmentRange, batch: pa.RecordBatch) -> Iterator[tuple[int, EventRow]]:
        """Yield the wanted events of a batch."""
        if marked_ref(batch) is not None:
            yield from self._large(rng, batch)
            return
        keys = batch.column("routing_key").cast(pa.binary())
        if self._key is not None:
            wanted = pc.fill_null(pc.equal(keys, pa.scalar(self._key, pa.binary())), False)
            batch, keys = batch.filter(wanted), keys.filter(wanted)
        if not batch.num_rows:
            return
        if not self._view.event_format.is_raw:
            yield from self._typed(rng, batch, keys)
            return
        if self._contains is not None:
            wanted = pc.match_substring(batch.column("event"), self._contains)
            batch, keys = batch.filter(wanted), keys.filter(wanted)
        payloads, times = batch.column("event"), batch.column("timestamp").view(pa.int64())
        for at, offset in enumerate(batch.column("offset").to_pylist()):
            payload = payloads[at].as_buffer()
            beginning = payload[: self._shown_bytes].to_pybytes()
            row = self._row(rng, offset, keys[at].as_py(), times[at].as_py(), payload.size)
            yield offset, with_payload(row, beginning, is_cut=payload.size > len(beginning))

    def locked_rows(
        self, rng: SegmentRange, batch: pa.RecordBatch, error: KeyUnavailable
    ) -> Iterator[tuple[int, EventRow]]:
        """Yield all events of a batch, without keys and payloads."""
        why = f"encrypted with the key {error.key!r}, which this server cannot use"
        times = batch.column("timestamp").view(pa.int64()).to_pylist()
        for offset, time_us in zip(batch.column("offset").to_pylist(), times, strict=True):
            row = self._row(rng, offset, None, time_us, None)
            row.unread = why
            yield offset, row

    def _typed(
        self, rng: SegmentRange, batch: pa.RecordBatch, keys: pa.Array
    ) -> Iterator[tuple[int, EventRow]]:
        names = payload_names(batch.schema)[:SHOWN_COLUMNS]
        nameless = batch.set_column(
            batch.schema.get_field_index("routing_key"),
            "routing_key",
            pa.nulls(batch.num_rows, pa.string()),
        )
        events = row_events(nameless, rng.stream, rng.life, rng.segment_id)
        for event, key in zip(events, keys, strict=True):
            data = plain_value(event.data)
            text = json.dumps(data, ensure_ascii=False)
            if self._contains is not None and self._contains not in text:
                continue
            row = self._row(rng, event.offset, key.as_py(), event.timestamp_us, event.size_bytes)
            encoded = text.encode(errors="surrogatepass")
            shown = encoded[: self._shown_bytes]
            row = with_payload(row, shown, is_cut=len(encoded) > len(shown))
            row.cells = [_cell(data[name]) for name in names]
            yield event.offset, row

    def _large(self, rng: SegmentRange, batch: pa.RecordBatch) -> Iterator[tuple[int, EventRow]]:
        (event,) = events_in(self._log, rng, batch, None)
        key = None if event.routing_key is None else event.routing_key.encode()
        if self._key is not None and key != self._key:
            return
        row = self._row(rng, event.offset, key, event.timestamp_us, event.size_bytes)
        if self._contains is None and not self._may_read():
            row.is_cut, row.unread = True, "a large event: open it to see its beginning"
            yield event.offset, row
            return
        beginning = self._beginning(event)
        if self._contains is not None:
            with self._lock:
                self.partly_searched += len(beginning) < event.size_bytes
            if self._contains.encode() not in beginning:
                return
        shown = beginning[: self._shown_bytes]
        yield event.offset, with_payload(row, shown, is_cut=event.size_bytes > len(shown))

    def _may_read(self) -> bool:
        with self._lock:
            self._large_left -= 1
            return self._large_left >= 0

    def _beginning(self, event: Event) -> bytes:
        most = self._shown_bytes if self._contains is None else LARGE_SEARCHED_BYTES
        with event.open() as payload:
            found: bytes = payload.read(most)
        return found

    def _row(
        self, rng: SegmentRange, offset: int, key: bytes | None, time_us: int, size: int | None
    ) -> EventRow:
        pointer = EventPointer(rng.stream, rng.life, rng.segment_id, offset)
        text = None if key is None else key.decode(errors="backslashreplace")
        return EventRow(
            pointer=str(pointer),
            segment=segment_text(rng.segment_id),
            offset=offset,
            routing_key=None if text is None else text[: self._shown_key],
            is_key_cut=text is not None and len(text) > self._shown_key,
            timestamp_ms=time_us // 1_000,
            size_bytes=size,
            text=None,
            base64=None,
            is_cut=False,
        )


LARGE_SEARCHED_BYTES: Final = 1 << 20
"""Of a large event, in a search."""


def with_payload(row: EventRow, beginning: bytes, *, is_cut: bool) -> EventRow:
    """Return a row with the beginning of its payload: as text if it is that, else as base64."""
    row.text = text_of(beginning, is_cut=is_cut)
    row.base64 = None if row.text is not None else base64.b64encode(beginning).decode()
    row.is_cut = is_cut
    return row


def text_of(data: bytes, *, is_cut: bool) -> str | None:
    """Return bytes as text if they are UTF-8; a cut may lie inside a character."""
    for dropped in range(4 if is_cut else 1):
        try:
            return data[: len(data) - dropped].decode()
        except UnicodeDecodeError:
            continue
    return None


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CELL else f"{text[:SHOWN_CELL]}…"
