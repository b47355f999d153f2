"""Reader groups and plain subscribers as rows, with how far behind each is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.backlog import oldest_seconds
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidStreamCut, PravegaSparkError
from pravega_spark.model import SubscriberInfo
from pravega_spark.reader_groups.group_description import (
    GroupVersion,
    SegmentPosition,
    find_group,
    segment_positions,
    with_heartbeats,
)
from pravega_spark.serve.answer_cache import AnswerCache
from pravega_spark.serve.api_models import GroupRow, GroupSegmentRow, ReaderRow
from pravega_spark.serve.served_root import ServedRoot

_KEPT_SECONDS: Final = 3.0
SCANNED_GROUPS: Final = 500
"""The readers of a stream are looked for among so many groups of the root."""


class GroupRows:
    """The groups of a root; answers are shared for a few seconds."""

    def __init__(self, root: ServedRoot, cache: AnswerCache) -> None:
        """Take the root and the cache."""
        self._root = root
        self._cache = cache

    def find(self, name: str) -> GroupVersion | None:
        """Return a group as its state is now, with its readers' heartbeats; None without one."""
        return self._cache.get(("group", name), None, _KEPT_SECONDS, lambda: self._read(name))

    def positions(self, found: GroupVersion, stream: str) -> list[SegmentPosition]:
        """Return the segments of a group in a stream, and what is unread of each."""
        key = "positions", found.state.group, stream
        return self._cache.get(
            key, found.version, _KEPT_SECONDS, lambda: self._positions(found, stream)
        )

    def row(self, name: str) -> GroupRow | None:
        """Return a group as a row; None if there is none."""
        found = self.find(name)
        return None if found is None else self.row_of(found)

    def row_of(self, found: GroupVersion) -> GroupRow:
        """Return a group as a row."""
        state = found.state
        scope, _, group = state.group.partition("/")
        streams = sorted(state.lives)
        lag = _lag(p for stream in streams for p in self.positions(found, stream))
        return GroupRow(
            scope=scope,
            group=group,
            state=state.phase.value,
            generation=state.generation,
            retention=state.configuration.retention.value,
            streams=streams,
            readers=sorted(state.readers),
            segments=len(state.assigned) + len(state.unassigned),
            unassigned=len(state.unassigned),
            lag_events=lag[0],
            lag_bytes=lag[1],
            lag_seconds=lag[2],
            last_checkpoint=None if state.last_checkpoint is None else state.last_checkpoint.name,
            updated_ms=found.updated_ms,
        )

    def readers_of(self, view: StreamView, groups: Sequence[str]) -> list[ReaderRow]:
        """Return all groups and plain subscribers that read a stream, the furthest behind first."""
        names = list(groups[:SCANNED_GROUPS])
        known = {s.name: s for s in subscribers.listed(view)}
        found = [group for group in SYSTEM.each(self.find, names) if group is not None]
        rows = [
            self._reader(group, view.stream, known.get(group.state.group))
            for group in found
            if view.stream in group.state.lives
        ]
        rows += [_subscriber(view, info) for name, info in known.items() if "/" not in name]
        return sorted(rows, key=lambda row: (-(row.lag_events or 0), row.name))

    def _reader(
        self, group: GroupVersion, stream: str, subscriber: SubscriberInfo | None
    ) -> ReaderRow:
        state = group.state
        events, size_bytes, seconds = _lag(self.positions(group, stream))
        return ReaderRow(
            name=state.group,
            kind="reader group",
            state=state.phase.value,
            readers=sorted(state.readers),
            retention=state.configuration.retention.value,
            lag_events=events,
            lag_bytes=size_bytes,
            lag_seconds=seconds,
            cut=None if subscriber is None or subscriber.cut is None else str(subscriber.cut),
            published_ms=None if subscriber is None else subscriber.published_ms,
        )

    def _read(self, name: str) -> GroupVersion | None:
        found = find_group(self._root.store, name)
        if found is None:
            return None
        state = with_heartbeats(self._root.store, found.state)
        return GroupVersion(state, found.version, found.updated_ms)

    def _positions(self, found: GroupVersion, stream: str) -> list[SegmentPosition]:
        with contextlib.suppress(PravegaSparkError):  # such as a cut of a restored stream
            return segment_positions(found.state, stream, self._root.log)
        return []


def segment_rows(positions: Iterable[SegmentPosition]) -> list[GroupSegmentRow]:
    """Return segments of a group as rows."""
    return [
        GroupSegmentRow.model_validate({"stream": p.stream, **p.to_record()}) for p in positions
    ]


def _lag(positions: Iterable[SegmentPosition]) -> tuple[int | None, int | None, float | None]:
    """Return events, bytes and seconds behind; None if nothing is known."""
    known = [p for p in positions if p.events is not None]
    if not known:
        return None, None, None
    events = sum(p.events or 0 for p in known)
    size_bytes = sum(p.size_bytes or 0 for p in known)
    return events, size_bytes, oldest_seconds(p.seconds or 0.0 for p in known)


def _subscriber(view: StreamView, info: SubscriberInfo) -> ReaderRow:
    events = None
    with contextlib.suppress(InvalidStreamCut):
        if info.cut is not None:
            events = locate(view, info.cut).above_head().events_to(view.located_tail)
    return ReaderRow(
        name=info.name,
        kind="subscriber",
        state="ACTIVE",
        readers=[],
        retention="manual",
        lag_events=events,
        lag_bytes=None,
        lag_seconds=None,
        cut=None if info.cut is None else str(info.cut),
        published_ms=info.published_ms,
    )
