"""What a reader group is created with, its defaults and limits."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from pravega_spark.errors import InvalidConfiguration
from pravega_spark.model import StreamCut
from pravega_spark.names import split_stream
from pravega_spark.units import parse_duration_ms

REFRESH = "3 s"
"""How often a reader looks what became of its group while nothing of its own makes it look."""
CHECKPOINT_INTERVAL = "30 s"
MIN_CHECKPOINT_MS = 100
"""Automatic checkpoints are commits of every reader: more often they would flood the log."""
MAX_OUTSTANDING_CHECKPOINTS = 3
READER_LEASE = "60 s"
MIN_READER_LEASE_MS, MAX_READER_LEASE_MS = 5_000, 86_400_000
NOTIFICATION_INTERVAL = REFRESH
"""How often who watches a group looks: one read if nothing is new. Readers look no oftener."""
MAX_STREAMS = 1_000


class GroupRetention(enum.Enum):
    """Whether the streams keep what the group has not read, up to the maximum of their policy."""

    NONE = "none"
    """The group observes: it holds no data."""
    MANUAL = "manual"
    """Data is let go up to the cuts that the user publishes."""
    AUTOMATIC = "automatic"
    """Data is let go up to the last completed checkpoint."""


class Span(NamedTuple):
    """The part of a stream that a group reads; an ``end`` of None is never reached."""

    start: StreamCut = StreamCut.EARLIEST
    end: StreamCut | None = None


@dataclass(frozen=True, slots=True, init=False)
class ReaderGroupConfiguration:
    """Streams with what of them to read, and how the readers keep in touch."""

    streams: Mapping[str, Span]
    retention: GroupRetention
    refresh_ms: int
    checkpoint_ms: int | None
    max_outstanding: int

    def __init__(
        self,
        streams: Iterable[str] | Mapping[str, Any],
        *,
        retention: GroupRetention | str = GroupRetention.NONE,
        refresh: str | float = REFRESH,
        checkpoint_interval: str | float | None = CHECKPOINT_INTERVAL,
        max_outstanding_checkpoints: int = MAX_OUTSTANDING_CHECKPOINTS,
    ) -> None:
        """Take names of streams, or a mapping from each to its start cut or (start, end).

        Cuts may be given as texts. ``checkpoint_interval`` None turns automatic checkpoints off.
        """
        try:
            retention = GroupRetention(retention)
        except ValueError:
            known = ", ".join(repr(kind.value) for kind in GroupRetention)
            raise InvalidConfiguration(
                f"a group's retention is one of {known}, got {retention!r}."
            ) from None
        refresh_ms = parse_duration_ms("the refresh time", refresh)
        checkpoint_ms = None
        if checkpoint_interval is not None:
            checkpoint_ms = parse_duration_ms("the checkpoint interval", checkpoint_interval)
            if checkpoint_ms < MIN_CHECKPOINT_MS:
                raise InvalidConfiguration(
                    f"the checkpoint interval is at least {MIN_CHECKPOINT_MS} ms, got "
                    f"{checkpoint_interval!r}; None turns automatic checkpoints off."
                )
        most = max_outstanding_checkpoints
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InvalidConfiguration(
                f"at least 1 checkpoint may be outstanding, got {max_outstanding_checkpoints!r}."
            )
        object.__setattr__(self, "streams", MappingProxyType(_spans(streams)))
        object.__setattr__(self, "retention", retention)
        object.__setattr__(self, "refresh_ms", refresh_ms)
        object.__setattr__(self, "checkpoint_ms", checkpoint_ms)
        object.__setattr__(self, "max_outstanding", most)

    def __hash__(self) -> int:
        """Hash by value."""
        return hash((tuple(self.streams.items()), self.retention))

    @property
    def holds(self) -> bool:
        """Whether the streams keep what the group has not read."""
        return self.retention is not GroupRetention.NONE

    @property
    def starts(self) -> dict[str, StreamCut]:
        """The cut of each stream where the group begins."""
        return {name: span.start for name, span in self.streams.items()}

    def to_json(self) -> dict[str, Any]:
        """Encode as JSON values."""
        spans = {
            name: [str(span.start), None if span.end is None else str(span.end)]
            for name, span in self.streams.items()
        }
        return {
            "streams": spans,
            "retention": self.retention.value,
            "refresh": self.refresh_ms,
            "checkpoint": self.checkpoint_ms,
            "outstanding": self.max_outstanding,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ReaderGroupConfiguration:
        """Decode what :meth:`to_json` wrote."""
        interval_ms = record["checkpoint"]
        return cls(
            {name: tuple(span) for name, span in record["streams"].items()},
            retention=record["retention"],
            refresh=record["refresh"] / 1_000,
            checkpoint_interval=None if interval_ms is None else interval_ms / 1_000,
            max_outstanding_checkpoints=record["outstanding"],
        )


def _spans(streams: Iterable[str] | Mapping[str, Any]) -> dict[str, Span]:
    if isinstance(streams, str) or not isinstance(streams, Iterable):
        raise InvalidConfiguration(f"a group reads a list of streams, got {streams!r}.")
    names = list(streams)
    for name in names:
        split_stream(name)
    given = streams if isinstance(streams, Mapping) else dict.fromkeys(names)
    if not 1 <= len(given) <= MAX_STREAMS:
        raise InvalidConfiguration(f"a group reads 1 to {MAX_STREAMS} streams, got {len(given)}.")
    return {name: _span(name, given[name]) for name in sorted(given)}


def _span(stream: str, given: Any) -> Span:
    if given is None:
        return Span()
    start, end = given if isinstance(given, tuple) else (given, None)
    span = Span(
        StreamCut.EARLIEST if start is None else StreamCut.of(start),
        None if end is None else StreamCut.of(end),
    )
    for what, cut in (("start", span.start), ("end", span.end)):
        if cut is not None and cut.is_bound and cut.stream != stream:
            raise InvalidConfiguration(f"the {what} of {stream} is a cut of {cut.stream}: {cut}.")
    if span.end == StreamCut.EARLIEST:
        raise InvalidConfiguration(f"a group that ends at the head of {stream} reads nothing.")
    return span
