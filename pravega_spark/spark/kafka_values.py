"""Options of Spark's Kafka source and sink that a stream has, too, or that mean nothing here.

No I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.errors import InvalidInput, InvalidOption
from pravega_spark.spark.option_values import EARLIEST_OFFSET, LATEST_OFFSET
from pravega_spark.values.checks import shown
from pravega_spark.values.names import is_number, split_stream
from pravega_spark.values.segments import parse_segment

_Value = TypeVar("_Value")

logger = own_logger(__name__)

BEFORE_ALL_US = -(1 << 62)
AFTER_ALL_US = 1 << 62
"""Times before and after those of all events: what -2 and -1 mean in place of a time."""

KEY_ENCODINGS = ("utf8", "percent")
"""How binary keys become routing keys: `key_encoding` has both."""

_LEFTOVER = re.compile(
    r"kafka\..*|kafkaconsumer\..*|fetchoffset\..*|groupidprefix|includetimestamp|kafkaclusterid",
    re.IGNORECASE,
)
"""Options that Spark's Kafka source and sink take for their brokers and clients."""

AssignedSegments = dict[str, tuple[int, ...]]
"""By stream: the ids of the segments that a read is limited to."""


@dataclass(frozen=True, slots=True)
class TimesBySegment:
    """A time for each segment, in us since 1970, by stream; a bound of a read."""

    by_stream: Mapping[str, Mapping[int, int]]

    def of(self, stream: str) -> tuple[int, Mapping[int, int]] | None:
        """Return the earliest time of a stream and those of its segments; None if it has none.

        A segment that has no time of its own, such as a successor, takes the earliest one, so that
        nothing is left out.
        """
        found = self.by_stream.get(stream)
        return None if found is None else (min(found.values()), found)


def assigned_segments(name: str, text: str) -> AssignedSegments:
    """Parse ``{"scope/stream": [0, "1#0"]}``: the numbers of segments in epoch 0, or their ids."""
    form = '{"scope/stream": [0, "1#0"]}, the segments to read'
    return _by_stream(name, text, _segments, form)


def times_by_segment(name: str, text: str) -> TimesBySegment:
    """Parse ``{"scope/stream": {"0#0": 1500000000000, "1#0": -1}}``: milliseconds since 1970.

    -2 is before all events of the segment and -1 after them, as in Kafka's protocol.
    """
    form = '{"scope/stream": {"0#0": 1500000000000, "1#0": -1}}, in milliseconds since 1970'
    return TimesBySegment(_by_stream(name, text, _times, form))


def _by_stream(
    name: str, text: str, parse: Callable[[Any], _Value], form: str
) -> dict[str, _Value]:
    """Parse a JSON object by streams; ``form`` is an example of it for the error."""
    try:
        record = json.loads(text)
        found = {_stream(stream): parse(value) for stream, value in record.items()}
        if not found:
            raise InvalidInput("it names no stream")
    except (ValueError, AttributeError, TypeError, InvalidInput) as error:
        raise InvalidOption(
            f"option {name} is JSON such as {form}; got {shown(text)} ({error})."
        ) from None
    return found


def is_leftover(key: str) -> bool:
    """Return whether an option is one for Kafka's brokers and clients, which a stream lacks."""
    return _LEFTOVER.fullmatch(key) is not None


def warn_of_leftovers(names: Sequence[str], what: str) -> None:
    """Log one warning with the options that a read or a write of ``what`` ignores, if any."""
    if names:
        logger.warning(
            "%s: ignored the options %s: they are for Kafka's brokers and clients, and a stream "
            "has neither. Remove them.",
            what,
            ", ".join(sorted(names)),
            extra=log_fields("read options", what),
        )


def _stream(name: str) -> str:
    split_stream(name)
    return name


def _segment(name: object) -> int:
    if isinstance(name, int) and not isinstance(name, bool) and name >= 0:
        return name
    if isinstance(name, str):
        return int(name) if is_number(name) and int(name) >= 0 else parse_segment(name)
    raise InvalidInput(f"{name!r} is not a segment")


def _segments(names: Sequence[object]) -> tuple[int, ...]:
    if isinstance(names, str) or not names:
        raise InvalidInput(f"{names!r} is not a list of segments")
    return tuple(sorted({_segment(name) for name in names}))


def _times(times: Mapping[str, int]) -> dict[int, int]:
    found = {_segment(name): _time_us(time) for name, time in times.items()}
    if not found:
        raise InvalidInput("it names no segment")
    return found


def _time_us(time_ms: object) -> int:
    if not isinstance(time_ms, int) or isinstance(time_ms, bool) or time_ms < EARLIEST_OFFSET:
        raise InvalidInput(f"{time_ms!r} is not a time")
    special = {EARLIEST_OFFSET: BEFORE_ALL_US, LATEST_OFFSET: AFTER_ALL_US}
    return special.get(time_ms, min(time_ms * 1_000, AFTER_ALL_US))
