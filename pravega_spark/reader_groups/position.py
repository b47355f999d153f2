"""Where a reader is in its segments, and what a call of it returns."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import immutables
import pyarrow as pa

from pravega_spark.engine.log.actions import to_json
from pravega_spark.errors import InvalidInput
from pravega_spark.model import Event, parse_segment
from pravega_spark.names import split_stream
from pravega_spark.reader_groups.group_codec import encode_positions
from pravega_spark.reader_groups.group_state import Key

_OFFSETS_END: Final = 1 << 63
"""Offsets are 64-bit integers; all are below this."""


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
        if not isinstance(text, str):
            raise _refused(text)
        try:
            cells = [
                (Key(stream, parse_segment(segment)), offset)
                for stream, segments in json.loads(text, object_pairs_hook=_distinct).items()
                for segment, offset in segments.items()
            ]
        except (ValueError, AttributeError, RecursionError):
            raise _refused(text) from None
        return cls.of(cls(immutables.Map(cells)))

    @classmethod
    def of(cls, position: Position | str) -> Position:
        """Return a position as it is, or read its text; raise InvalidInput for anything else."""
        if isinstance(position, str):
            return cls.parse(position)
        if not isinstance(position, cls) or not isinstance(position.offsets, Mapping):
            raise _refused(position)
        for key, offset in position.offsets.items():
            if not isinstance(key, Key) or type(key.segment_id) is not int:
                raise InvalidInput(
                    f"a position names a Key(stream, segment_id), got {reprlib.repr(key)}."
                )
            split_stream(key.stream)
            if type(offset) is not int or not 0 <= offset < _OFFSETS_END:
                raise InvalidInput(
                    f"a position has the offset {reprlib.repr(offset)} for {key}; an offset is a "
                    "whole number of events, from 0."
                )
        return position


def _refused(given: object) -> InvalidInput:
    return InvalidInput(
        f"{reprlib.repr(given)} is no position of a reader: give the Position that an event came "
        "with, or its text."
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise ValueError if it has a key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


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
