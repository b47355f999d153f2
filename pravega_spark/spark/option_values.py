"""Parsers of option texts: numbers, flags, lists, timestamps, offsets, stream cuts. No I/O."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pravega_spark.errors import InvalidConfiguration, InvalidInput, InvalidOption
from pravega_spark.values.checks import shown
from pravega_spark.values.names import is_cut_name, is_number, split_stream
from pravega_spark.values.segments import StreamCut, parse_segment
from pravega_spark.values.units import parse_duration_ms, parse_size_bytes

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1
"""As in the JSON offsets of Spark's Kafka source."""

Parse = Callable[[str, str], Any]
"""From an option's name and text to its value; raises InvalidOption."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option with its parser, its default as text, and its meaning (a row of docs/spark.md)."""

    name: str
    parse: Parse
    default: str
    meaning: str
    aliases: tuple[str, ...] = ()


SegmentOffsets = dict[str, dict[int, int]]
"""By stream: segment id to offset, EARLIEST_OFFSET or LATEST_OFFSET."""


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


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time: absolute, or ``ago_ms`` before the moment at which it is resolved."""

    absolute_us: int = 0
    ago_ms: int | None = None

    def resolve_us(self) -> int:
        """Return the time in microseconds since 1970."""
        if self.ago_ms is None:
            return self.absolute_us
        return time.time_ns() // 1_000 - self.ago_ms * 1_000


def timestamp(name: str, text: str) -> Timestamp:
    """Parse epoch milliseconds, an ISO-8601 time or date (UTC by default), or ``-1h``."""
    text = text.strip()
    if is_number(text):
        return Timestamp(int(text) * 1_000)
    try:
        if text.startswith("-"):
            return Timestamp(ago_ms=parse_duration_ms(name, text[1:]))
        found = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except (ValueError, InvalidInput):
        raise InvalidOption(
            f"option {name}: {shown(text)} is not a time; write milliseconds since 1970, "
            "'2026-03-01T12:00:00Z', '2026-03-01', or '-1h' for an hour ago."
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    since = found - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return Timestamp((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


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
    try:
        record = json.loads(text)
        return {_stream(stream): _offsets(offsets) for stream, offsets in record.items()}
    except (ValueError, AttributeError, TypeError, InvalidInput) as error:
        raise InvalidOption(
            f"option {name} is 'earliest', 'latest' or JSON such as "
            f'{{"scope/stream": {{"0#0": 120, "1#0": -1}}}}; got {shown(text)} ({error}).'
        ) from None


def _stream(name: str) -> str:
    split_stream(name)
    return name


def _offsets(offsets: Mapping[str, int]) -> dict[int, int]:
    found = {int(s) if is_number(s) else parse_segment(s): offset for s, offset in offsets.items()}
    for offset in found.values():
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST_OFFSET:
            raise InvalidInput(f"{offset!r} is not an offset")
    return found


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
