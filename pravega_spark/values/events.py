"""Events as they are read: data, routing key, time and pointer."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Final

from pravega_spark.errors import IllegalState
from pravega_spark.values.segments import EventPointer

_UTC_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
Deserializer = Callable[[bytes], Any]
"""Turns the bytes of an event into ``Event.data``."""


class Event:
    """An event that was read: data, routing key, time of writing and pointer."""

    is_large: ClassVar[bool] = False
    """Whether the payload is a separate object, which ``data`` reads when it is first used."""

    __slots__ = (
        "_life",
        "_size_bytes",
        "_stream",
        "data",
        "offset",
        "routing_key",
        "segment_id",
        "timestamp_us",
    )

    def __init__(
        self,
        stream: str,
        life: int,
        segment_id: int,
        offset: int,
        data: Any,
        routing_key: str | None,
        timestamp_us: int,
    ) -> None:
        """Take the values of a chunk's row; ``data`` is bytes, or deserialized."""
        self._stream = stream
        self._life = life
        self.segment_id = segment_id
        self.offset = offset
        self.data = data
        self.routing_key = routing_key
        self.timestamp_us = timestamp_us

    @property
    def timestamp(self) -> datetime:
        """The time of writing by the writer's clock, in UTC."""
        return _UTC_EPOCH + timedelta(microseconds=self.timestamp_us)

    @property
    def pointer(self) -> EventPointer:
        """The address of the event, for ``fetch_event``."""
        return EventPointer(self._stream, self._life, self.segment_id, self.offset)

    @property
    def size_bytes(self) -> int:
        """The size of the payload, also of an event that was deserialized."""
        known: int | None = getattr(self, "_size_bytes", None)
        return len(self.data) if known is None else known

    def open(self) -> io.IOBase:
        """Return the payload as a file with ``read`` and ``seek``; of a large event, not read yet.

        Raises IllegalState for an event that was deserialized, unless it is large.
        """
        if not isinstance(self.data, bytes):
            raise IllegalState(
                f"the event {self.pointer} was deserialized to {type(self.data).__name__}, and its "
                "bytes are gone; read it without a deserializer to open it as a file."
            )
        return io.BytesIO(self.data)

    def decode_with(self, deserializer: Deserializer) -> None:
        """Replace the bytes by what the deserializer makes of them."""
        self._size_bytes = len(self.data)
        self.data = deserializer(self.data)

    def __repr__(self) -> str:
        """Show pointer, key and data."""
        return f"Event({self.pointer}, key={self.routing_key!r}, data={self.data!r})"


class RowEvent(Event):
    """An event of a typed stream: ``data`` is a dict of its columns."""

    __slots__ = ()

    def __init__(
        self,
        stream: str,
        life: int,
        segment_id: int,
        offset: int,
        data: dict[str, Any],
        routing_key: str | None,
        timestamp_us: int,
        size_bytes: int,
    ) -> None:
        """Take the values of a chunk's row; ``size_bytes`` is the sum of their sizes."""
        super().__init__(stream, life, segment_id, offset, data, routing_key, timestamp_us)
        self._size_bytes = size_bytes

    def open(self) -> io.IOBase:
        """Raise IllegalState: the event has columns, and no bytes."""
        raise IllegalState(
            f"the event {self.pointer} is of a typed stream and has columns, not bytes: use its "
            "data, or one binary column of it."
        )

    def decode_with(self, deserializer: Deserializer) -> None:
        """Leave the data as it is: a deserializer is for the bytes of raw events."""
