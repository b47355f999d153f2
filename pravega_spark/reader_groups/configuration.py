"""The configuration of a reader group, with its defaults and limits."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.checks import is_whole, shown
from pravega_spark.values.limits import (
    CHECKPOINT_INTERVAL,
    GROUP_REFRESH,
    MAX_GROUP_REFRESH_MS,
    MAX_GROUP_STREAMS,
    MAX_OUTSTANDING_CHECKPOINTS,
    MIN_CHECKPOINT_MS,
    MOST_OUTSTANDING_CHECKPOINTS,
)
from pravega_spark.values.names import split_log
from pravega_spark.values.segments import StreamCut
from pravega_spark.values.units import parse_duration_ms

NOTIFICATION_INTERVAL = GROUP_REFRESH
"""How often notifications read the group's state: one storage read if nothing changed."""


class GroupRetention(enum.Enum):
    """Whether the streams keep what the group has not read, up to the maximum of their policy."""

    NONE = "none"
    """The group observes: it holds no data."""
    MANUAL = "manual"
    """The streams may truncate up to the cuts that the user publishes."""
    AUTOMATIC = "automatic"
    """The streams may truncate up to the last completed checkpoint."""


class GroupAcknowledgement(enum.Enum):
    """When an event that a reader handed out counts as processed."""

    NEXT = "next"
    """When the application asks for the next one."""
    CHECKPOINT = "checkpoint"
    """When the reader answers a checkpoint, or is closed, as in Pravega."""
    TRANSACTION = "transaction"
    """When a joint transaction of its reader commits, and never otherwise."""


class StreamCutRange(NamedTuple):
    """The part of a stream that a group reads; None as ``end`` means no end."""

    start: StreamCut = StreamCut.EARLIEST
    end: StreamCut | None = None


@dataclass(frozen=True, slots=True, init=False)
class ReaderGroupConfiguration:
    """The streams of a group, what to read of them, and the intervals of its readers."""

    streams: Mapping[str, StreamCutRange]
    retention: GroupRetention
    refresh_ms: int
    checkpoint_ms: int | None
    max_outstanding: int
    acknowledge: GroupAcknowledgement

    def __init__(
        self,
        streams: Iterable[str] | Mapping[str, Any],
        *,
        retention: GroupRetention | str = GroupRetention.NONE,
        refresh: str | float = GROUP_REFRESH,
        checkpoint_interval: str | float | None = CHECKPOINT_INTERVAL,
        max_outstanding_checkpoints: int = MAX_OUTSTANDING_CHECKPOINTS,
        acknowledge: GroupAcknowledgement | str = GroupAcknowledgement.NEXT,
    ) -> None:
        """Take stream names, or a mapping from each name to a start cut or (start, end).

        A table's change log is named by ``table.changelog.name``. A cut may be a text.
        ``checkpoint_interval=None`` turns automatic checkpoints off. Raises InvalidConfiguration.
        """
        retention = _choice(GroupRetention, "a group's retention", retention)
        acknowledge = _choice(GroupAcknowledgement, "a group's acknowledge", acknowledge)
        refresh_ms = parse_duration_ms("the refresh time", refresh)
        if refresh_ms > MAX_GROUP_REFRESH_MS:
            raise InvalidConfiguration(
                f"the refresh time is at most {MAX_GROUP_REFRESH_MS // 1000} s, got "
                f"{shown(refresh)}."
            )
        checkpoint_ms = None
        if checkpoint_interval is not None:
            checkpoint_ms = parse_duration_ms("the checkpoint interval", checkpoint_interval)
            if checkpoint_ms < MIN_CHECKPOINT_MS:
                raise InvalidConfiguration(
                    f"the checkpoint interval is at least {MIN_CHECKPOINT_MS} ms, got "
                    f"{shown(checkpoint_interval)}; None turns automatic checkpoints off."
                )
        most = max_outstanding_checkpoints
        if not is_whole(most) or not 1 <= most <= MOST_OUTSTANDING_CHECKPOINTS:
            raise InvalidConfiguration(
                "max_outstanding_checkpoints must be a whole number of at least 1 and at most "
                f"{MOST_OUTSTANDING_CHECKPOINTS}, got {shown(most)}."
            )
        object.__setattr__(self, "streams", MappingProxyType(_cut_ranges(streams)))
        object.__setattr__(self, "retention", retention)
        object.__setattr__(self, "refresh_ms", refresh_ms)
        object.__setattr__(self, "checkpoint_ms", checkpoint_ms)
        object.__setattr__(self, "max_outstanding", most)
        object.__setattr__(self, "acknowledge", acknowledge)

    def __hash__(self) -> int:
        return hash((tuple(self.streams.items()), self.retention))

    @property
    def holds_data(self) -> bool:
        """Whether the streams keep what the group has not read."""
        return self.retention is not GroupRetention.NONE

    @property
    def releases_at_checkpoints(self) -> bool:
        """Whether the streams keep what follows the last complete checkpoint, and no more."""
        return self.retention is GroupRetention.AUTOMATIC

    @property
    def acknowledges_at_checkpoints(self) -> bool:
        """Whether an event counts as processed only when its reader answers a checkpoint."""
        return self.acknowledge is GroupAcknowledgement.CHECKPOINT

    @property
    def acknowledges_in_transactions(self) -> bool:
        """Whether only the commit of a transaction of its reader acknowledges an event."""
        return self.acknowledge is GroupAcknowledgement.TRANSACTION

    @property
    def acknowledges_on_reading(self) -> bool:
        """Whether an event counts as processed when the application asks for the next one."""
        return self.acknowledge is GroupAcknowledgement.NEXT

    @property
    def starts(self) -> dict[str, StreamCut]:
        """The start cut of each stream."""
        return {name: cuts.start for name, cuts in self.streams.items()}

    def replaced(self, **given: Any) -> ReaderGroupConfiguration:
        """Return a configuration of these arguments of the constructor; others stay as here."""
        interval_ms = self.checkpoint_ms
        known = {
            "streams": self.streams,
            "retention": self.retention,
            "refresh": self.refresh_ms / 1_000,
            "checkpoint_interval": None if interval_ms is None else interval_ms / 1_000,
            "max_outstanding_checkpoints": self.max_outstanding,
            "acknowledge": self.acknowledge,
        }
        return ReaderGroupConfiguration(**{**known, **given})

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as JSON values; ``acknowledge`` is absent if it is "next"."""
        cut_ranges = {
            name: [str(cuts.start), None if cuts.end is None else str(cuts.end)]
            for name, cuts in self.streams.items()
        }
        acknowledge = {"acknowledge": self.acknowledge.value}
        return {
            "streams": cut_ranges,
            "retention": self.retention.value,
            "refresh": self.refresh_ms,
            "checkpoint": self.checkpoint_ms,
            "outstanding": self.max_outstanding,
            **({} if self.acknowledges_on_reading else acknowledge),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ReaderGroupConfiguration:
        """Decode the result of :meth:`to_json`; older versions had no upper limits."""
        interval_ms = record["checkpoint"]
        return cls(
            {name: tuple(cuts) for name, cuts in record["streams"].items()},
            retention=record["retention"],
            refresh=min(record["refresh"], MAX_GROUP_REFRESH_MS) / 1_000,
            checkpoint_interval=None if interval_ms is None else interval_ms / 1_000,
            max_outstanding_checkpoints=min(record["outstanding"], MOST_OUTSTANDING_CHECKPOINTS),
            acknowledge=record.get("acknowledge", GroupAcknowledgement.NEXT),
        )


_Choice = TypeVar("_Choice", bound=enum.Enum)


def _choice(kind: type[_Choice], what: str, given: object) -> _Choice:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(repr(choice.value) for choice in kind)
        raise InvalidConfiguration(f"{what} is one of {known}, got {shown(given)}.") from None


def _cut_ranges(streams: Iterable[str] | Mapping[str, Any]) -> dict[str, StreamCutRange]:
    if isinstance(streams, str) or not isinstance(streams, Iterable):
        raise InvalidConfiguration(f"a group reads a list of streams, got {shown(streams)}.")
    names = list(streams)
    for name in names:
        split_log(name)
    given = streams if isinstance(streams, Mapping) else dict.fromkeys(names)
    if not 1 <= len(given) <= MAX_GROUP_STREAMS:
        raise InvalidConfiguration(
            f"a group reads 1 to {MAX_GROUP_STREAMS} streams, got {len(given)}."
        )
    return {name: _cut_range(name, given[name]) for name in sorted(given)}


def _cut_range(stream: str, given: Any) -> StreamCutRange:
    if given is None:
        return StreamCutRange()
    start, end = given if isinstance(given, tuple) else (given, None)
    found = StreamCutRange(
        StreamCut.EARLIEST if start is None else StreamCut.of(start),
        None if end is None else StreamCut.of(end),
    )
    for what, cut in (("start", found.start), ("end", found.end)):
        if cut is not None and cut.is_bound and cut.stream != stream:
            raise InvalidConfiguration(f"the {what} of {stream} is a cut of {cut.stream}: {cut}.")
    if found.end == StreamCut.EARLIEST:
        raise InvalidConfiguration(
            f"a group that ends at the head of {stream} reads nothing; give a later end, or none."
        )
    return found
