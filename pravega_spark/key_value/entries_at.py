"""A table as of one version of its change log: the newest changes over the folded rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Final, Protocol

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.key_value.change_codec import Change
from pravega_spark.key_value.change_reader import read_value
from pravega_spark.key_value.table_key import TableKey
from pravega_spark.model import StreamCut, segment_epoch

IN_CHUNK: Final = bytes(bytearray(b"this value is in its chunk alone"))
"""Stands for a value that is not kept in memory; compared by identity."""


class FoldedRows(Protocol):
    """One version of the folded table: the newest change of each key before a cut of the log."""

    @property
    def cut(self) -> StreamCut:
        """The cut of the change log that the rows reflect."""

    @property
    def log_version(self) -> int:
        """The version of the change log whose tail the cut is."""

    @property
    def life(self) -> int:
        """The life of the change log."""

    def get(self, keys: Sequence[TableKey]) -> Mapping[TableKey, Change]:
        """Return the rows of those of the keys that have one."""

    def entries(
        self, low: TableKey | None, high: TableKey | None
    ) -> Iterator[tuple[TableKey, Change]]:
        """Yield the rows of the keys of [low, high), in order."""


class FoldedSource(Protocol):
    """The folded table of a key-value table."""

    def read(self) -> FoldedRows | None:
        """Return the newest version of it; None if there is none."""

    def mark(self, view: StreamView) -> str | None:
        """Return a text in the change log that changes when a newer version was folded."""


class FoldedPart:
    """Tells which changes the folded rows reflect already."""

    __slots__ = ("_epoch", "_offsets")

    def __init__(self, cut: StreamCut) -> None:
        """Take the cut, which is the tail of some version."""
        self._offsets = cut.positions
        self._epoch = max(map(segment_epoch, cut.positions), default=-1)
        """Segments of an epoch up to it that the cut does not name were sealed before the cut."""

    def holds(self, change: Change) -> bool:
        """Return whether a change lies before the cut."""
        offset = self._offsets.get(change.segment_id)
        if offset is not None:
            return change.offset < offset
        return segment_epoch(change.segment_id) <= self._epoch


class EntriesAtVersion:
    """What a table holds at one version. Not changed any more, so any thread may read it."""

    def __init__(
        self,
        stream: StreamLog,
        view: StreamView,
        changes: Mapping[TableKey, Change],
        folded: FoldedRows | None,
        now_ms: int | None = None,
        ttl_ms: int | None = None,
    ) -> None:
        """Take the newest change of each key since the fold, the rows of the fold, and the time."""
        self.stream = stream
        self.view = view
        self._changes = changes
        self._folded = folded
        self._expired_us = expiry_us(now_ms, ttl_ms)

    @property
    def version(self) -> int:
        """The version of the change log."""
        return self.view.version

    def find(self, keys: Iterable[TableKey]) -> dict[TableKey, Change]:
        """Return the entries of those of the keys that exist."""
        return look_up(self._changes, self._folded, keys, self._expired_us)

    def value(self, change: Change) -> bytes:
        """Return the value of an entry, read from its chunk if it is not in memory."""
        return value_of(self.stream, self.view.life, change)

    def scan(
        self, low: TableKey | None, high: TableKey | None
    ) -> Iterator[tuple[TableKey, Change]]:
        """Yield the entries of the keys of [low, high), in order."""
        changed = sorted(
            key
            for key in self._changes
            if (low is None or key >= low) and (high is None or key < high)
        )
        newest = ((key, 0, self._changes[key]) for key in changed)
        older: Iterator[tuple[TableKey, int, Change]] = iter(())
        if self._folded is not None:
            rows = self._folded.entries(low, high)
            older = ((key, 1, change) for key, change in rows)
        last: TableKey | None = None
        for key, _, change in merge(newest, older, key=itemgetter(0, 1)):
            if key == last:
                continue
            last = key
            if is_alive(change, self._expired_us):
                yield key, change


def expiry_us(now_ms: int | None, ttl_ms: int | None) -> int | None:
    """Return the time up to which entries have expired now; None if they never do."""
    return None if ttl_ms is None or now_ms is None else (now_ms - ttl_ms) * 1_000


def is_alive(change: Change | None, expired_us: int | None) -> bool:
    """Return whether a change is an entry: no removal, and not expired."""
    if change is None or change.value is None:
        return False
    return expired_us is None or change.timestamp_us > expired_us


def look_up(
    changes: Mapping[TableKey, Change],
    folded: FoldedRows | None,
    keys: Iterable[TableKey],
    expired_us: int | None,
) -> dict[TableKey, Change]:
    """Return the entries of those of the keys that exist."""
    found: dict[TableKey, Change] = {}
    cold = list[TableKey]()
    for key in keys:
        change = changes.get(key)
        if change is not None:
            found[key] = change
        elif folded is not None:
            cold.append(key)
    if cold and folded is not None:
        found.update(folded.get(cold))
    return {key: change for key, change in found.items() if is_alive(change, expired_us)}


def value_of(stream: StreamLog, life: int, change: Change) -> bytes:
    """Return the value of an entry, read from its chunk if it is not in memory."""
    value = change.value
    if value is IN_CHUNK:
        value = read_value(stream, life, change)
    assert value is not None
    return value
