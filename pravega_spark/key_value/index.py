"""Follows the change log of a table in memory: the newest change of each key since the fold.

All handles of a table in one process share one index. It moves from one version of the log to a
newer one in one step, so a get without a lock never sees a part of a commit.

Lock order: the index, then the log.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator

from pravega_spark.engine.kinds import log_title
from pravega_spark.engine.log.clock import read_clock
from pravega_spark.engine.log.reader import snapshot_at
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.system import ProcessGuard, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import DataLoss, StaleIdentity, StoreReadOnly, TruncatedData
from pravega_spark.key_value.changes import (
    IN_CHUNK,
    Change,
    Changes,
    EntriesAtVersion,
    FoldedPart,
    FoldedRows,
    FoldedSource,
    check_version,
    expiry_us,
    look_up,
    ranges_from,
    ranges_since,
    read_changes,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.folded_record import check_present, has_folds, unfolded_from
from pravega_spark.key_value.keys import TableKey
from pravega_spark.primitives.process_locks import new_lock, new_rlock
from pravega_spark.values.limits import TABLE_CLOCK_SECONDS, TABLE_INDEX_VALUE_BYTES
from pravega_spark.values.names import table_of_log
from pravega_spark.values.segments import SegmentRange


class TableClock:
    """The time that is believed for deletions (ADR 14), so that no entry ends early; thread-safe.

    It is measured from time to time; the boot clock carries it on in between, without a call.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._lock = new_lock()
        self._measured: tuple[float, int] | None = None
        """The boot clock at the last measurement, and the believed time in ms."""
        self._has_warned = False

    def now_ms(self) -> int:
        """Return the believed time in ms since 1970; raise StoreError if it cannot be read."""
        known, elapsed = self._measured, self._runtime.monotonic()
        if known is None or elapsed - known[0] >= TABLE_CLOCK_SECONDS:
            with self._lock:
                known = self._measured
                if known is None or elapsed - known[0] >= TABLE_CLOCK_SECONDS:
                    known = self._measured = elapsed, self._read()
        return known[1] + max(0, int((elapsed - known[0]) * 1_000))

    def _read(self) -> int:
        warn, self._has_warned = not self._has_warned, True
        try:
            return read_clock(self._store, self._runtime, warn=warn).earliest_ms
        except StoreReadOnly:  # a root without a clock record, which nobody may write here
            return read_clock(self._store, self._runtime, keep=False, warn=warn).earliest_ms


_LOADS = 32
"""How often an index is loaded again because the log was truncated while it was read."""


class TableIndex:
    """The newest changes of one life of a table, as of one version of its log; thread-safe."""

    def __init__(
        self,
        stream: StreamLog,
        life: int,
        configuration: KeyValueTableConfiguration,
        source: FoldedSource,
        *,
        value_bytes: int = TABLE_INDEX_VALUE_BYTES,
    ) -> None:
        """Read nothing yet. At most ``value_bytes`` of values stay in memory."""
        self.stream = stream
        self.life = life
        self.lock = new_rlock()
        """Held while the index moves, and while conditional updates are decided."""
        self.tables: tuple[Changes, FoldedRows | None] = {}, None
        """The changes and the rows that they lie over; replaced, or changed, in one step."""
        self.snapshot: Snapshot | None = None
        """The snapshot of the log that the tables reflect."""
        self.due = float("-inf")
        """When a get must ask the storage for a newer version, by ``now``."""
        self.now: Callable[[], float] = stream.runtime.monotonic
        self.ttl_ms = configuration.ttl_ms
        self.clock = TableClock(stream.store, stream.runtime)
        self._staleness = configuration.staleness_ms / 1_000
        self._source = source
        self._fold_id: str | None = None
        self._looked_at = float("-inf")
        self._value_limit = value_bytes
        self._value_bytes = 0
        self._view: StreamView | None = None
        self.guard = ProcessGuard(f"table {table_of_log(stream.name) or stream.name}")
        _indexes.add(self)

    def expired_us(self) -> int | None:
        """Return the time up to which entries have expired by now; None if they never do."""
        return None if self.ttl_ms is None else expiry_us(self.clock.now_ms(), self.ttl_ms)

    def follow(self, *, fresh: bool = False) -> None:
        """Move to the newest version that this process knows; ask the storage if it is due.

        With ``fresh`` the version is one that was the newest at some moment of this call. Raises
        StaleIdentity and NoSuchStream if the life has ended, ForkedProcess in a forked child.
        """
        self.guard.check()
        asked = self.now()
        with self.lock:
            looked = self.now()
            if looked >= self.due or (fresh and self._looked_at <= asked):
                view = self.stream.view(life=self.life)
                self._looked_at, self.due = looked, looked + self._staleness
            else:
                view = self.stream.view_after_wait(self.life)
            self.move_to(view)

    def move_to(self, view: StreamView) -> None:
        """Move to a version, or to a newer one if that one cannot be read; the lock is held."""
        known = self._view
        if known is not None and known.snapshot is view.snapshot:
            return
        if known is None:
            self._load(view)
            return
        try:
            changes = self._read(ranges_since(known, view))
        except TruncatedData:  # it was folded since, and the fold let the log be truncated
            self._load(self.stream.view(life=self.life))
            return
        self.add(changes, view)
        if self._source.fold_id(view) != self._fold_id:
            self._take_fold(view)

    def add(self, changes: Changes, view: StreamView) -> None:
        """Add the changes that lead to the next version; the lock is held."""
        held = self.tables[0]
        self._value_bytes += _value_bytes(changes.values())
        held.update(changes)  # one step, so no get sees a part of a commit
        self._set_view(view)
        if self._value_bytes > self._value_limit:
            self._shed(held)

    def freeze(self, *, at_its_time: bool = False) -> EntriesAtVersion:
        """Return the present state, which later changes do not touch.

        Entries have expired by now, or ``at_its_time``, as for a version that is given.
        """
        with self.lock:
            assert self._view is not None
            changes, folded = self.tables
            now_ms = None if self.ttl_ms is None else self.clock.now_ms()
            if now_ms is not None and at_its_time:
                now_ms = min(self._view.timestamp_ms, now_ms)
            return EntriesAtVersion(
                stream=self.stream,
                view=self._view,
                changes=dict(changes),
                folded=folded,
                now_ms=now_ms,
                ttl_ms=self.ttl_ms,
            )

    def freeze_at(self, version: int) -> EntriesAtVersion:
        """Return the state of an older version, read from the log.

        Raises TruncatedData, InvalidInput for one that does not exist yet, and StaleIdentity for
        one of an earlier life.
        """
        with self.lock:
            assert self._view is not None
            newest, folded = self._view, self.tables[1]
        check_version(version, newest, 0 if folded is None else folded.log_version)
        view = StreamView(snapshot_at(self.stream.log.reader, version))
        if view.life != self.life:
            raise StaleIdentity(
                f"version {version} of {log_title(self.stream.name)} is of its life {view.life}, "
                "which ended: it was deleted and created again, or restored from a copy, and is "
                f"in life {self.life}. Give a version of that life; at().version is the newest.",
                name=self.stream.name,
                life=view.life,
                current_life=self.life,
            )
        start = view.head
        if folded is not None:
            start = unfolded_from(view, folded.cut, is_newest=False)
        changes = self._read(ranges_from(start, view))
        now_ms = None
        if self.ttl_ms is not None:
            now_ms = min(view.timestamp_ms, self.clock.now_ms())
        return EntriesAtVersion(
            stream=self.stream,
            view=view,
            changes=changes,
            folded=folded,
            now_ms=now_ms,
            ttl_ms=self.ttl_ms,
        )

    def find(self, keys: Collection[TableKey]) -> dict[TableKey, Change]:
        """Return the entries of those of the keys that exist, all of one version.

        If a file of the fold is gone, because a sweep followed a fold that this process has missed,
        the index moves to the newest version. Raises DataLoss if that one's file is gone.
        """
        while True:
            with self.lock:
                changes, folded = self.tables
                known = {key: changes[key] for key in keys if key in changes}
            try:
                return look_up(known, folded, keys, self.expired_us())
            except DataLoss:
                self.follow(fresh=True)
                with self.lock:
                    if self.tables[1] is folded and self._view is not None:
                        self._take_fold(self._view)  # its folder may have died before it published
                    if self.tables[1] is folded:
                        raise

    def _read(self, ranges: Iterator[SegmentRange]) -> Changes:
        return read_changes(self.stream, ranges, dated=self.ttl_ms is not None)

    def _set_view(self, view: StreamView) -> None:
        self._view, self.snapshot = view, view.snapshot

    def _load(self, view: StreamView) -> None:
        """Read all that the log holds since the newest fold."""
        for left in reversed(range(_LOADS)):
            folded = self._newest_fold(view)
            is_newest = folded is None or folded.log_version <= view.version
            if not is_newest:
                view = self.stream.view(life=self.life)
            start = view.head
            if folded is not None:
                start = unfolded_from(view, folded.cut, is_newest=is_newest)
            try:
                changes = self._read(ranges_from(start, view))
            except TruncatedData:
                if not left:
                    raise
                view = self.stream.view(life=self.life)
                continue
            self._value_bytes = _value_bytes(changes.values())
            if self._value_bytes > self._value_limit:
                self._shed(changes)
            self._fold_id = self._source.fold_id(view)
            self.tables = changes, folded
            self._set_view(view)
            return

    def _newest_fold(self, view: StreamView) -> FoldedRows | None:
        """Return the folded rows of this life; raise CorruptLog if they must be there."""
        found = self._source.read()
        if found is not None and found.life == self.life:
            return found
        if has_folds(view):
            self.stream.view(life=self.life)  # raises if the life has ended
            check_present(view, self.stream.name)
        return None

    def _take_fold(self, view: StreamView) -> None:
        """Drop the changes that a newer fold reflects."""
        folded = self._newest_fold(view)
        if folded is None or folded.log_version > view.version:
            return  # it reflects more than this version; a later move takes it
        part = FoldedPart(folded.cut)
        kept = {key: one for key, one in self.tables[0].items() if not part.holds(one)}
        self._value_bytes = _value_bytes(kept.values())
        self.tables = kept, folded
        self._fold_id = self._source.fold_id(view)

    def _shed(self, held: Changes) -> None:
        """Forget the values of the keys that came first, until half of the limit is held."""
        kept = 0
        for key in reversed(list(held)):
            change = held[key]
            size = 0 if change.value is None or change.value is IN_CHUNK else len(change.value)
            if size and kept + size > self._value_limit // 2:
                held[key] = change._replace(value=IN_CHUNK)
            else:
                kept += size
        self._value_bytes = kept


_indexes = weakref.WeakSet[TableIndex]()
"""The indexes of this process, for its forked children."""


def _end_in_child() -> None:
    """In a forked child: make each get follow its index, which refuses it.

    So a hot get need not ask for its process, and nobody waits for a lock of the parent's threads.
    """
    for index in list(_indexes):
        index.due = float("-inf")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_in_child)


def _value_bytes(changes: Iterable[Change]) -> int:
    return sum(
        len(change.value)
        for change in changes
        if change.value is not None and change.value is not IN_CHUNK
    )
