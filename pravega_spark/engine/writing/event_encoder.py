"""Checks of what users pass to writers: events, tables of them, routing keys and notes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pravega_spark.arguments import check_flag, check_function, shown
from pravega_spark.engine.chunks.chunk import TIMESTAMP
from pravega_spark.engine.chunks.event_format import RAW, EventFormat, SmallEvent, TypedEvent
from pravega_spark.engine.chunks.large_event_writer import (
    is_payload_source,
    pieces_of,
    split_off,
    too_large_for_all,
)
from pravega_spark.engine.writing.event_times import EventTimes, LatestTime
from pravega_spark.engine.writing.table_rows import EventTable
from pravega_spark.engine.writing.typed_table import TypedTable
from pravega_spark.errors import EventTooLarge, InvalidInput, SchemaMismatch
from pravega_spark.limits import (
    MAX_ATOMIC_WRITE_BYTES,
    MAX_EVENT_BYTES,
    MAX_LARGE_EVENT_BYTES,
    MAX_NOTE_LENGTH,
    MAX_ROUTING_KEY_LENGTH,
    WRITER_BATCH_EVENTS,
)

Serializer = Callable[[Any], bytes]
"""Turns what is given to a writer into the bytes of an event."""


def json_serializer(event: Any) -> bytes:
    """Encode an event as compact JSON in UTF-8."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()


class EventEncoder:
    """Encodes and checks the events of one writer; tells their times if it notes these."""

    __slots__ = ("_name", "event_format", "large_events", "newest", "serializer", "times")

    def __init__(
        self,
        name: str,
        serializer: Serializer | None,
        *,
        large_events: bool = False,
        times: EventTimes | None = None,
        event_format: EventFormat = RAW,
    ) -> None:
        """Keep the stream's name for errors; without a serializer, raw events are bytes or str.

        Raises InvalidInput for what a typed stream does not take.
        """
        self._name = name
        self.newest: Callable[[], EventFormat] = lambda: event_format
        """Reads the format of the stream as it is now, which may have more columns."""
        self.event_format = event_format
        """The format that events are checked by: that of a later schema once it was needed."""
        self.times = times
        self.large_events = check_flag("large_events", large_events)
        self.serializer = check_function("a serializer", serializer)
        column = None if times is None else times.column
        if not event_format.is_raw:
            self._check_typed(column)
        elif column is not None:
            raise InvalidInput(
                f"stream {name} is raw, and its events have no column {shown(column)} for "
                "event_time: give a function that returns the time of an event."
            )

    def _check_typed(self, time_column: str | None) -> None:
        index = self.event_format.events.get_field_index(time_column or "")
        if time_column is not None and (
            index < 0 or self.event_format.events.field(index).type != TIMESTAMP
        ):
            raise InvalidInput(
                f"stream {self._name} has no column {shown(time_column)} of type {TIMESTAMP} for "
                f"event_time; its schema is {self.event_format.schema}."
            )
        if self.serializer is not None:
            raise InvalidInput(
                f"stream {self._name} is typed, and its events are rows of columns: write dicts, "
                "dataclasses, pydantic models or tables, without a serializer."
            )
        if self.large_events:
            raise InvalidInput(
                f"stream {self._name} is typed, and its events have at most {MAX_EVENT_BYTES} "
                "bytes (8 MiB): leave large_events out, and write large payloads to a raw stream."
            )

    def event(self, event: Any, number: int = 0) -> SmallEvent:
        """Return an event as bytes, or as a checked row of a typed stream, ``number`` in errors.

        Raises InvalidInput, SchemaMismatch, or EventTooLarge above 8 MiB.
        """
        data = self._bytes(event) if self.event_format.is_raw else self._row(event, number)
        if len(data) > MAX_EVENT_BYTES:
            raise self.too_large(len(data))
        return data

    def time_us(self, event: Any) -> int | None:
        """Return the time of an event, for ``accept``; None if times are not noted."""
        return None if self.times is None else self.times.of_event(event)

    def accept(self, latest_us: int | None) -> None:
        """Count the time of an event, or the latest of several: nothing refuses them any more."""
        if latest_us is not None and self.times is not None:
            self.times.add(latest_us)

    def noted_us(self, given_us: int | None) -> int | None:
        """Return the time that a commit notes: the one that is given, or that of the events."""
        return self.times.bound_us if given_us is None and self.times is not None else given_us

    def _row(self, event: Any, number: int) -> TypedEvent:
        """Return a row; if it does not fit, look whether the stream has a newer schema."""
        where = f"an event for stream {self._name}"
        schema = self.event_format.schema
        assert schema is not None
        try:
            return TypedEvent(*schema.check_row(event, where, number))
        except SchemaMismatch:
            newest = self.newest()
            if newest.schema is None or newest is self.event_format:
                raise
            self.event_format = newest
            return TypedEvent(*newest.schema.check_row(event, where, number))

    def table(self, table: object, routing_key: str | None, event_time: str | None) -> EventTable:
        """Return a checked table of events; ``routing_key`` and ``event_time`` name columns.

        Raises InvalidInput, SchemaMismatch or EventTooLarge, which name the first bad row.
        """
        needs_times, present = self.times is not None, self.event_format
        if present.is_raw:
            for option, name in (("routing_key", routing_key), ("event_time", event_time)):
                if name is not None:
                    raise InvalidInput(
                        f"write_table on stream {self._name}: {option}={name!r} names a column of "
                        "a typed stream, and this one is raw; give the columns event, routing_key "
                        "and timestamp."
                    )
            return EventTable(self._name, table, needs_times=needs_times)
        if event_time is None and self.times is not None:
            event_time = self.times.column
        named = {"routing_key": routing_key, "event_time": event_time}
        try:
            return TypedTable(self._name, table, present, **named, needs_times=needs_times)
        except SchemaMismatch:
            newest = self.newest()
            if newest is present:
                raise
            self.event_format = newest
            return TypedTable(self._name, table, newest, **named, needs_times=needs_times)

    def payload(self, event: Any) -> SmallEvent | Iterator[memoryview]:
        """Return an event as bytes, or the pieces of a large one; raise as :meth:`event` does.

        Without a serializer, a large event may be a file in binary mode or an iterable of bytes.
        One that turns out to be small is returned as bytes.
        """
        if not self.large_events:
            return self.event(event)
        if self.serializer is None and is_payload_source(event):
            data, pieces = split_off(pieces_of(event), MAX_EVENT_BYTES)
            return data if pieces is None else pieces
        is_plain = self.serializer is None and isinstance(event, (bytearray, memoryview))
        found = event if is_plain else self._bytes(event)
        if len(found) > MAX_LARGE_EVENT_BYTES:
            raise too_large_for_all(len(found))
        return pieces_of(found) if len(found) > MAX_EVENT_BYTES else bytes(found)

    def pieces(
        self, event: bytes | Iterator[memoryview], *, is_conditional: bool
    ) -> Iterator[memoryview]:
        """Return the pieces of an event above 8 MiB; raise EventTooLarge unless it may be large.

        Raises InvalidInput for a conditional write.
        """
        if isinstance(event, bytes) and not self.large_events:
            raise self.too_large(len(event))
        if is_conditional:
            raise InvalidInput(
                f"a large event of stream {self._name} is written without `expected`: write it, "
                "and then a small event with the condition."
            )
        if not isinstance(event, bytes):
            return event
        if len(event) > MAX_LARGE_EVENT_BYTES:
            raise too_large_for_all(len(event))
        return pieces_of(event)

    def each(self, events: object, latest: LatestTime) -> Iterator[SmallEvent]:
        """Return an iterator that encodes one event after the other, and adds its time to latest.

        Raises InvalidInput unless it is a list of events.
        """
        single = isinstance(events, (str, bytes, bytearray, memoryview, Mapping))
        if single or not isinstance(events, Iterable):
            raise InvalidInput(
                f"write_events on stream {self._name} takes a list of events, not "
                f"{type(events).__name__}: {shown(events)}; give a list, or one event to "
                "write_event."
            )
        if self.times is None:
            return map(self.event, events) if self.event_format.is_raw else self._rows(events)
        return (self._timed(event, latest, number) for number, event in enumerate(events))

    def _rows(self, events: Iterable[Any]) -> Iterator[SmallEvent]:
        return (self.event(event, number) for number, event in enumerate(events))

    def _timed(self, event: Any, latest: LatestTime, number: int) -> SmallEvent:
        data = self.event(event, number)
        latest.add(self.time_us(event))
        return data

    def too_large(self, size: int) -> EventTooLarge:
        """Return the error for an event of ``size`` bytes that must be a small one."""
        if self.large_events:
            way = "a large event is written alone, by write_event"
        elif self.event_format.is_raw:
            way = (
                "split it, or create the writer with large_events=True, which takes up to "
                f"{MAX_LARGE_EVENT_BYTES} bytes"
            )
        else:
            way = "split it, or store a part elsewhere and write a reference"
        return EventTooLarge(
            f"an event of {size} bytes for stream {self._name} is larger than {MAX_EVENT_BYTES} "
            f"bytes (8 MiB); {way}.",
            size_bytes=size,
            limit_bytes=MAX_EVENT_BYTES,
        )

    def _bytes(self, event: Any) -> bytes:
        if self.serializer is not None:
            data = self.serializer(event)
            if not isinstance(data, bytes):
                raise InvalidInput(
                    f"the serializer of the writer of {self._name} returned "
                    f"{type(data).__name__}, not bytes."
                )
            return data
        if isinstance(event, str):
            return self._utf8("an event", event)
        if isinstance(event, (bytes, bytearray, memoryview)):
            return bytes(event)
        way = (
            "give the writer a serializer, such as pravega_spark.json_serializer, or create the "
            "stream with a schema"
        )
        if is_payload_source(event):
            way += ", or large_events=True to write files and iterables of bytes"
        raise InvalidInput(
            f"an event for stream {self._name} must be bytes or str, not {type(event).__name__}; "
            f"{way}."
        )

    def check_atomic(self, events: int, size: int) -> None:
        """Raise EventTooLarge unless one atomic write takes so many events and bytes."""
        if size > MAX_ATOMIC_WRITE_BYTES:
            raise EventTooLarge(
                f"{events} events of {size} bytes for stream {self._name}: one atomic write takes "
                f"at most {MAX_ATOMIC_WRITE_BYTES} bytes; use a transaction for more.",
                size_bytes=size,
                limit_bytes=MAX_ATOMIC_WRITE_BYTES,
            )
        if events > WRITER_BATCH_EVENTS:
            raise EventTooLarge(
                f"{events} events for stream {self._name}: one atomic write takes at most "
                f"{WRITER_BATCH_EVENTS} events; use a transaction for more."
            )

    def check_key(self, routing_key: object) -> None:
        """Raise InvalidInput unless the routing key is None or a valid str.

        It has at most MAX_ROUTING_KEY_LENGTH characters, each of which UTF-8 can encode.
        """
        if routing_key is None:
            return
        if type(routing_key) is not str:
            raise InvalidInput(
                f"a routing key must be a str or None, not {type(routing_key).__name__}: "
                f"{shown(routing_key)}."
            )
        if len(routing_key) > MAX_ROUTING_KEY_LENGTH:
            raise InvalidInput(
                f"a routing key of {len(routing_key)} characters for stream {self._name} is longer "
                f"than {MAX_ROUTING_KEY_LENGTH}; use a part of it, or its hash."
            )
        if not routing_key.isascii():
            self._utf8("a routing key", routing_key)

    def check_note(self, note: object) -> None:
        """Raise InvalidInput unless the note is a str of at most MAX_NOTE_LENGTH characters."""
        if not isinstance(note, str) or len(note) > MAX_NOTE_LENGTH:
            raise InvalidInput(
                f"a note must be a str of at most {MAX_NOTE_LENGTH} characters, got {shown(note)}."
            )
        self._utf8("a note", note)

    def _utf8(self, what: str, text: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"{what} for stream {self._name} has no UTF-8 form: {error}; replace the lone "
                "surrogates in it."
            ) from None
