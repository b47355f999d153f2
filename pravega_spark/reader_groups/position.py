"""A reader's position in its segments, and the results of its read calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import immutables
import pyarrow as pa

from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.errors import InvalidInput
from pravega_spark.reader_groups.state import SegmentKey
from pravega_spark.reader_groups.table import encode_positions
from pravega_spark.values.checks import shown
from pravega_spark.values.events import Event
from pravega_spark.values.names import split_log
from pravega_spark.values.segments import parse_segment

_NUMBER: Final = "number"
"""A field of a position's text; no stream is named so, since its name has a scope."""
_OFFSETS_END: Final = 1 << 63
"""Every offset is below this: offsets are signed 64-bit integers."""


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset of every segment of a reader; immutable.

    Pass it to ``close_at`` or ``reader_offline`` as the position up to which events are processed.
    Its ``number`` says which segments the reader has acquired since: those that the group gave away
    under this number or a later one. Texts of earlier releases have none.
    """

    offsets: Mapping[SegmentKey, int]
    number: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        record: dict[str, object] = dict(encode_positions(self.offsets))
        return to_json(record if self.number is None else {**record, _NUMBER: self.number})

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return the position of a text made by ``str``; raise InvalidInput for any other text."""
        if not isinstance(text, str):
            raise _refused(text)
        try:
            record = json.loads(text, object_pairs_hook=_distinct)
            number = record.pop(_NUMBER, None)
            cells = [
                (SegmentKey(stream, parse_segment(segment)), offset)
                for stream, segments in record.items()
                for segment, offset in segments.items()
            ]
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise _refused(text) from None
        return cls.of(cls(immutables.Map(cells), number))

    @classmethod
    def of(cls, position: Position | str) -> Position:
        """Return a position, or parse its text; raise InvalidInput for anything else."""
        if isinstance(position, str):
            return cls.parse(position)
        if not isinstance(position, cls) or not isinstance(position.offsets, Mapping):
            raise _refused(position)
        number = position.number
        if number is not None and (type(number) is not int or not 0 <= number < _OFFSETS_END):
            raise InvalidInput(
                f"a position has the number {shown(number)}; it is a whole number of the group."
            )
        for key, offset in position.offsets.items():
            if not isinstance(key, SegmentKey) or type(key.segment_id) is not int:
                raise InvalidInput(
                    "a position names segments as SegmentKey(stream, segment_id), got "
                    f"{shown(key)}."
                )
            split_log(key.stream)
            if type(offset) is not int or not 0 <= offset < _OFFSETS_END:
                raise InvalidInput(
                    f"a position has the offset {shown(offset)} for {key}; an offset is a "
                    "whole number of events, from 0."
                )
        return position


def _refused(given: object) -> InvalidInput:
    return InvalidInput(
        f"{shown(given)} is not a position of a reader: pass the position of an event that was "
        "read, or its text."
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise ValueError if it has a key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


class EventRead(NamedTuple):
    """The result of ``read_next_event``: an event, a checkpoint's marker, or neither in time.

    ``is_completed`` is True once the group has read everything that it will ever read.
    """

    event: Event | None
    position: Position
    checkpoint: str | None = None
    is_completed: bool = False


class EventsRead(NamedTuple):
    """The result of ``read_events``: as EventRead, with the events of one segment in Arrow.

    Columns: stream, segment_id, offset, routing_key, timestamp (us, UTC), event.
    """

    events: pa.RecordBatch
    position: Position
    checkpoint: str | None = None
    is_completed: bool = False
