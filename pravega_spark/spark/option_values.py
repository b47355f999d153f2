"""Parsers of options: names, numbers, flags, lists, timestamps, offsets, stream cuts. No I/O."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pravega_spark.errors import InvalidConfiguration, InvalidInput, InvalidOption
from pravega_spark.values.checks import shown
from pravega_spark.values.limits import CHUNK_EVENTS
from pravega_spark.values.names import is_cut_name, is_number, split_stream
from pravega_spark.values.segments import StreamCut, parse_segment
from pravega_spark.values.times import Timestamp, parse_timestamp
from pravega_spark.values.units import parse_duration_ms, parse_size_bytes

if TYPE_CHECKING:
    from pravega_spark.key_value.key_value_table import KeyValueTable
    from pravega_spark.stream import Stream

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1
"""As in the JSON offsets of Spark's Kafka source."""

Parse = Callable[[str, str], Any]
"""From an option's name and text to its value; raises InvalidOption."""


_Value = TypeVar("_Value")

KEY_ENCODINGS = ("utf8", "percent")
"""How binary keys become routing keys: `key_encoding` has both."""

SegmentOffsets = dict[str, dict[int, int]]
"""By stream: segment id to offset, EARLIEST_OFFSET or LATEST_OFFSET."""

AssignedSegments = Mapping[str, tuple[int, ...]]
"""By stream: the ids of the segments that a read is limited to."""

BEFORE_ALL_US = -(1 << 62)
AFTER_ALL_US = 1 << 62
"""Times before and after those of all events: what -2 and -1 mean in place of a time."""


def named(
    one: str | Stream | KeyValueTable, root: str | os.PathLike[str] | None
) -> tuple[str, str | None]:
    """Return a name and the root that were given as texts or by a handle, which has both.

    The storage options of a handle stay with it: they may be secret, and plans are shown. Raises
    InvalidInput for what is neither.
    """
    if root is not None and not isinstance(root, (str, os.PathLike)):
        raise InvalidInput(f"root is a path or a URL, got {shown(root)}.")
    given = None if root is None else os.fspath(root)
    if isinstance(one, str):
        return one, given
    name, own = getattr(one, "name", None), getattr(one, "root", None)
    if not isinstance(name, str) or not isinstance(own, str):
        raise InvalidInput(f"give a name as scope/name, or its handle, got {shown(one)}.")
    if given is not None and given != own:
        raise InvalidInput(f"{one!r} has a root of its own: leave out root={given}.")
    return name, own


def positive_integer(name: str, text: str) -> int:
    """Parse a whole number above 0."""
    if not re.fullmatch(r"\+?[0-9]+", text.strip()) or int(text) < 1:
        raise InvalidOption(f"option {name} must be a whole number above 0, got {shown(text)}.")
    return int(text)


def non_negative_integer(name: str, text: str) -> int:
    """Parse a whole number, 0 or more."""
    if not re.fullmatch(r"[0-9]+", text.strip()):
        raise InvalidOption(f"option {name} must be a whole number, 0 or more, got {shown(text)}.")
    return int(text)


def rows_of_a_file(name: str, text: str) -> int:
    """Parse a whole number above 0; a file has at most CHUNK_EVENTS rows."""
    return min(CHUNK_EVENTS, positive_integer(name, text))


def life_list(name: str, text: str) -> frozenset[int]:
    """Parse lives of streams, separated by commas."""
    if not re.fullmatch(r"\s*[1-9][0-9]*\s*(,\s*[1-9][0-9]*\s*)*", text):
        raise InvalidOption(
            f"option {name} is a list of lives, separated by commas, such as '1,2'; got "
            f"{shown(text)}."
        )
    return frozenset(map(int, text.split(",")))


def boolean(name: str, text: str) -> bool:
    """Parse ``true`` or ``false``."""
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise InvalidOption(f"option {name} must be true or false, got {shown(text)}.")
    return value


def size_bytes(name: str, text: str) -> int:
    """Parse ``256m``, ``1 GB`` or a number of bytes, above 0."""
    try:
        value = parse_size_bytes(f"option {name}", text)
    except InvalidConfiguration as error:
        raise InvalidOption(str(error)) from None
    if value < 1:
        raise InvalidOption(f"option {name} must be above 0, got {shown(text)}.")
    return value


def duration_ms(name: str, text: str) -> int:
    """Parse ``15m``, ``90 s`` or a number of milliseconds, as Kafka's source does."""
    text = f"{text} ms" if is_number(text.strip()) else text
    try:
        return parse_duration_ms(f"option {name}", text)
    except InvalidConfiguration as error:
        raise InvalidOption(str(error)) from None


def name_list(name: str, text: str) -> tuple[str, ...]:
    """Parse a list separated by commas, without duplicates."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found or len(set(found)) < len(found):
        raise InvalidOption(
            f"option {name} is a list such as 'a,b', each name once; got {shown(text)}."
        )
    return found


def key_list(name: str, text: str) -> tuple[str, ...]:
    """Parse routing keys: ``UA,DL``, or a JSON list of texts if a key has a comma or spaces."""
    if not text.strip().startswith("["):
        return name_list(name, text)
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(k, str) for k in found):
        raise InvalidOption(
            f"option {name} begins with [, so it must be a JSON list of texts such as "
            f'["UA", "a,b"]; got {shown(text)}.'
        )
    return tuple(dict.fromkeys(found))


def one_of(*choices: str) -> Parse:
    """Return a parser that accepts one of the choices, in any case."""

    def parse(name: str, text: str) -> str:
        for choice in choices:
            if choice.lower() == text.strip().lower():
                return choice
        raise InvalidOption(
            f"option {name} must be one of {', '.join(choices)}; got {shown(text)}."
        )

    return parse


def any_text(name: str, text: str) -> str:
    """Return the text unchanged."""
    return text


def regular_expression(name: str, text: str) -> str:
    """Return the text, which must be a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOption(
            f"option {name}: {shown(text)} is not a regular expression: {error}."
        ) from None
    return text


def timestamp(name: str, text: str) -> Timestamp:
    """Parse epoch milliseconds, an ISO-8601 time or date (UTC by default), or ``-1h``."""
    try:
        return parse_timestamp(f"option {name}", text)
    except InvalidInput as error:
        raise InvalidOption(str(error)) from None


@dataclass(frozen=True, slots=True)
class LogVersion:
    """The position after the commit of a version; -1 is before the first one."""

    version: int


def segment_offsets(name: str, text: str) -> str | SegmentOffsets:
    """Parse ``earliest``, ``latest`` or ``{"scope/stream": {"0#0": 120, "1#0": -1}}``.

    -2 is the earliest and -1 the latest offset of a segment, as in Kafka's source. A segment is
    written ``number#epoch``, or as the number in the column ``segment_id``.
    """
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    form = '{"scope/stream": {"0#0": 120, "1#0": -1}}'
    return _by_stream(name, text, _offsets, f"'earliest', 'latest' or JSON such as {form};")


def assigned_segments(name: str, text: str) -> AssignedSegments:
    """Parse ``{"scope/stream": [0, "1#0"]}``: the numbers of segments in epoch 0, or their ids."""
    form = 'JSON such as {"scope/stream": [0, "1#0"]}, the segments to read;'
    return _by_stream(name, text, _segments, form, may_be_empty=False)


@dataclass(frozen=True, slots=True)
class TimesBySegment:
    """A time for each segment, in us since 1970, by stream; a bound of a read."""

    by_stream: Mapping[str, Mapping[int, int]]

    def of(self, stream: str) -> tuple[int, Mapping[int, int]] | None:
        """Return the earliest time of a stream and those of its segments; None if it has none.

        A segment for which no time is given, such as a successor, takes the earliest one, so that
        nothing is left out.
        """
        found = self.by_stream.get(stream)
        return None if found is None else (min(found.values()), found)


def times_by_segment(name: str, text: str) -> TimesBySegment:
    """Parse ``{"scope/stream": {"0#0": 1500000000000, "1#0": -1}}``: milliseconds since 1970.

    -2 is before all events of the segment and -1 after them, as in Kafka's protocol.
    """
    form = '{"scope/stream": {"0#0": 1500000000000, "1#0": -1}}, in milliseconds since 1970;'
    times = _by_stream(name, text, _times, f"JSON such as {form}", may_be_empty=False)
    return TimesBySegment(times)


def _by_stream(
    name: str, text: str, parse: Callable[[Any], _Value], form: str, *, may_be_empty: bool = True
) -> dict[str, _Value]:
    """Parse a JSON object by streams; ``form`` says what the option is, for the error."""
    try:
        record = json.loads(text)
        found = {_stream(stream): parse(value) for stream, value in record.items()}
        if not found and not may_be_empty:
            raise InvalidInput("it names no stream")
    except (ValueError, AttributeError, TypeError, InvalidInput) as error:
        raise InvalidOption(f"option {name} is {form} got {shown(text)} ({error}).") from None
    return found


def _stream(name: str) -> str:
    split_stream(name)
    return name


def _offsets(offsets: Mapping[str, int]) -> dict[int, int]:
    found = {int(s) if is_number(s) else parse_segment(s): offset for s, offset in offsets.items()}
    for offset in found.values():
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST_OFFSET:
            raise InvalidInput(f"{offset!r} is not an offset")
    return found


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
    found = {_segment(name): _time_us(time_ms) for name, time_ms in times.items()}
    if not found:
        raise InvalidInput("it names no segment")
    return found


def _time_us(time_ms: object) -> int:
    if not isinstance(time_ms, int) or isinstance(time_ms, bool) or time_ms < EARLIEST_OFFSET:
        raise InvalidInput(f"{time_ms!r} is not a time")
    special = {EARLIEST_OFFSET: BEFORE_ALL_US, LATEST_OFFSET: AFTER_ALL_US}
    return special.get(time_ms, min(time_ms * 1_000, AFTER_ALL_US))


@dataclass(frozen=True, slots=True)
class CutName:
    """The name of a cut that each stream of a read has saved."""

    name: str


def stream_cuts(name: str, text: str) -> str | CutName | dict[str, StreamCut]:
    """Parse ``earliest``, ``latest``, a saved cut's name, or texts of cuts, separated by ``;``."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    if is_cut_name(text.strip()):
        return CutName(text.strip())
    try:
        found = [StreamCut.parse(part.strip()) for part in text.split(";") if part.strip()]
    except InvalidInput as error:
        raise InvalidOption(f"option {name}: {error}") from None
    by_stream = {cut.stream: cut for cut in found}
    if not found or len(by_stream) < len(found) or "" in by_stream:
        raise InvalidOption(
            f"option {name} takes one cut for each stream, separated by ';', or 'earliest' or "
            f"'latest' alone; got {shown(text)}."
        )
    return by_stream
