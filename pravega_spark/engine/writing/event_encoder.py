"""Checks of what users pass to writers: events, routing keys and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pravega_spark.arguments import check_function, shown
from pravega_spark.errors import EventTooLarge, InvalidInput
from pravega_spark.limits import MAX_EVENT_BYTES, MAX_NOTE_LENGTH, MAX_ROUTING_KEY_LENGTH

Serializer = Callable[[Any], bytes]
"""Turns what is given to a writer into the bytes of an event."""


class EventEncoder:
    """Encodes and checks the events of one writer."""

    __slots__ = ("_name", "serializer")

    def __init__(self, name: str, serializer: Serializer | None) -> None:
        """Keep the stream's name for errors; without a serializer, events are bytes or str."""
        self._name = name
        self.serializer = check_function("a serializer", serializer)

    def event(self, event: Any) -> bytes:
        """Return an event as bytes; raise InvalidInput, or EventTooLarge above 8 MiB."""
        data = self._bytes(event)
        if len(data) > MAX_EVENT_BYTES:
            raise self.too_large(len(data))
        return data

    def events(self, events: object) -> list[bytes]:
        """Return a list of events as bytes; raise InvalidInput unless it is a list of events."""
        return list(self.each(events))

    def each(self, events: object) -> Iterator[bytes]:
        """Return an iterator that encodes one event after the other, as :meth:`events` does."""
        single = isinstance(events, (str, bytes, bytearray, memoryview, Mapping))
        if single or not isinstance(events, Iterable):
            raise InvalidInput(
                f"write_events on stream {self._name} takes a list of events, not "
                f"{type(events).__name__}: {shown(events)}; give a list, or one event to "
                "write_event."
            )
        return map(self.event, events)

    def too_large(self, size: int) -> EventTooLarge:
        """Return the error for an event of ``size`` bytes."""
        return EventTooLarge(
            f"an event of {size} bytes for stream {self._name} is larger than {MAX_EVENT_BYTES} "
            "bytes (8 MiB); split it, or store it elsewhere and write a reference.",
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
        raise InvalidInput(
            f"an event for stream {self._name} must be bytes or str, not {type(event).__name__}; "
            "give the writer a serializer, such as pravega_spark.json_serializer."
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
