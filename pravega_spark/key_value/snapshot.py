"""What a read of a whole table needs: folded rows and the changes after them.

Unlike the index (``index``) nothing is loaded: each read takes the parts that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pravega_spark.engine.log.reader import snapshot_at
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import TruncatedData
from pravega_spark.key_value.changes import check_version, expiry_us, ranges_from, unreadable
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import translated
from pravega_spark.key_value.fold import FoldDue, dated_entries, fold_due
from pravega_spark.key_value.folded_record import check_present, has_folds, unfolded_from
from pravega_spark.key_value.folded_table import FoldedState, FoldedTable, folded_table
from pravega_spark.key_value.index import TableClock
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.values.segments import SegmentRange, StreamCut, segment_epoch

_LOOKS = 8
"""How often a version is taken again because its changes were folded, and truncated, meanwhile."""


@dataclass(frozen=True, kw_only=True)
class TableSnapshot:
    """A table at one version of its change log."""

    stream: StreamLog
    view: StreamView
    configuration: KeyValueTableConfiguration
    folded: FoldedState | None
    start: StreamCut
    """The cut of the log after which the folded rows reflect nothing."""
    ranges: tuple[SegmentRange, ...]
    """The changes that the folded rows do not reflect, older segments first."""
    expired_us: int | None
    """The time up to which entries have expired; None if they never do."""

    @property
    def table(self) -> FoldedTable:
        """The folded table, which may not exist."""
        return folded_table(self.stream, self.configuration)

    @property
    def changes(self) -> int:
        """The number of changes after the fold."""
        return sum(map(len, self.ranges))

    @property
    def changed_bytes(self) -> int:
        """The bytes of the changes after the fold."""
        known = 0 if self.folded is None else self.folded.record.log_bytes
        return self.view.total_bytes - known

    @property
    def fold_due(self) -> FoldDue:
        """Whether the next round of maintenance folds the table, or when one does."""
        record = None if self.folded is None else self.folded.record
        return fold_due(self.view, record, self.configuration.ttl_ms, self.stream.now_ms())

    @property
    def expires(self) -> bool:
        """Whether entries expire."""
        return self.expired_us is not None

    def entries(self) -> Iterator[pa.Table]:
        """Yield the changes after the fold, as they lie in the log."""
        for rng in self.ranges:
            yield from dated_entries(
                self.stream, rng, has_ttl=self.configuration.ttl_ms is not None, shared=True
            )


def table_snapshot(stream: StreamLog, version: int | None = None) -> TableSnapshot:
    """Return a table at a version of its change log, by default at the newest one.

    Raises NoSuchTable, InvalidInput for a version that does not exist yet, and TruncatedData if it
    can no longer be read.
    """
    with translated():
        for _ in range(_LOOKS):
            view = begun_view(stream)
            try:
                return _at(stream, view) if version is None else _at_older(stream, view, version)
            except TruncatedData:
                if version is not None:
                    raise
        return _at(stream, begun_view(stream))


def _at(stream: StreamLog, view: StreamView) -> TableSnapshot:
    configuration = table_configuration(view)
    folded = _folded(stream, view, configuration)
    is_newest = folded is None or folded.log_version <= view.version
    if not is_newest:
        view = begun_view(stream)
    return _snapshot(stream, view, configuration, folded, is_newest=is_newest)


def _at_older(stream: StreamLog, newest: StreamView, version: int) -> TableSnapshot:
    check_version(version, newest)
    view = newest
    if version < newest.version:
        view = StreamView(snapshot_at(stream.log.reader, version))
    view.check_life(newest.life)
    configuration = table_configuration(view)
    folded = _folded(stream, newest, configuration)
    if folded is not None and folded.log_version > version:
        folded = folded_table(stream, configuration).read_before(version)
    found = _snapshot(stream, view, configuration, folded, view.timestamp_ms)
    if found.folded is None and any(
        offset > 0 or segment_epoch(segment) > 0 for segment, offset in view.head
    ):
        raise unreadable(version, newest, "its folded rows are no longer retained")
    return found


def _folded(
    stream: StreamLog, view: StreamView, configuration: KeyValueTableConfiguration
) -> FoldedState | None:
    """Return the folded rows of the life of a view; raise CorruptLog if they must be there."""
    found = folded_table(stream, configuration).read()
    if found is not None and found.life == view.life and not found.record.is_ended:
        return found
    if has_folds(view):
        begun_view(stream).check_life(view.life)
        check_present(view, stream.name)
    return None


def _snapshot(
    stream: StreamLog,
    view: StreamView,
    configuration: KeyValueTableConfiguration,
    folded: FoldedState | None,
    until_ms: int | None = None,
    *,
    is_newest: bool = False,
) -> TableSnapshot:
    if folded is not None and (folded.life != view.life or folded.record.is_ended):
        folded = None
    ttl_ms = configuration.ttl_ms
    start = view.head
    if folded is not None:
        start = unfolded_from(view, folded.cut, is_newest=is_newest)
    ranges = tuple(ranges_from(start, view))
    now_ms = None
    if ttl_ms is not None:
        now_ms = TableClock(stream.store, stream.runtime).now_ms()
        now_ms = now_ms if until_ms is None else min(now_ms, until_ms)
    expired_us = expiry_us(now_ms, ttl_ms)
    return TableSnapshot(
        stream=stream,
        view=view,
        configuration=configuration,
        folded=folded,
        start=start,
        ranges=ranges,
        expired_us=expired_us,
    )
