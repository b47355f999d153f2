"""Where a reader is in its segments, and what a call of it returns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import immutables
import pyarrow as pa

from pravega_spark.engine.actions import to_json
from pravega_spark.errors import InvalidInput
from pravega_spark.model import Event
from pravega_spark.readers.rows import decode_positions, encode_positions
from pravega_spark.readers.state import Key


@dataclass(frozen=True, slots=True)
class Position:
    """The offsets of the next events of all segments that a reader has; immutable.

    Give it to ``close_at`` or ``reader_offline`` to say how far the events were processed.
    """

    offsets: Mapping[Key, int]

    def __str__(self) -> str:
        """Return the text that :meth:`parse` reads."""
        return to_json(encode_positions(self.offsets))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read what ``str`` gave; raise InvalidInput for anything else."""
        try:
            return cls(immutables.Map(decode_positions(json.loads(text))))
        except (ValueError, AttributeError, KeyError, TypeError):
            raise InvalidInput(f"{text!r} is no position of a reader.") from None

    @classmethod
    def of(cls, position: Position | str) -> Position:
        """Return a position as it is, or read its text."""
        return cls.parse(position) if isinstance(position, str) else position


class EventRead(NamedTuple):
    """What ``read_next_event`` returns: an event, a checkpoint's marker, or nothing in time.

    ``is_completed`` says that everything the group is to read was read.
    """

    event: Event | None
    position: Position
    checkpoint: str | None = None
    is_completed: bool = False


class EventsRead(NamedTuple):
    """What ``read_events`` returns: events of one segment as Arrow, or the same as EventRead.

    Columns: stream, segment_id, offset, routing_key, timestamp (us, UTC), event.
    """

    events: pa.RecordBatch
    position: Position
    checkpoint: str | None = None
    is_completed: bool = False
