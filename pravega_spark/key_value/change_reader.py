"""Reads the changes of a table's log between two of its versions; the newest one of each key."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.layout.read_plan import next_step
from pravega_spark.engine.stream.range_reader import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput, TruncatedData
from pravega_spark.key_value.change_codec import Change, decode_change
from pravega_spark.key_value.change_times import ChangeTimes
from pravega_spark.key_value.table_key import TableKey
from pravega_spark.model import SegmentRange, StreamCut
from pravega_spark.names import table_of_log

Changes = dict[TableKey, Change]
"""The newest change of each key."""


def ranges_since(known: StreamView, view: StreamView) -> Iterator[SegmentRange]:
    """Yield what a newer version of the log holds beyond a known one.

    Raises TruncatedData if some of it was truncated.
    """
    if known.record.active_epoch != view.record.active_epoch:
        yield from ranges_from(known.tail, view)
        return
    for segment_id in view.active.segment_ids:
        start = known.segment(segment_id).next_offset
        end = view.segment(segment_id).next_offset
        if start < end:
            yield SegmentRange(view.stream, view.life, segment_id, start, end)


def ranges_from(start: StreamCut, view: StreamView) -> Iterator[SegmentRange]:
    """Yield what a version of the log holds from a cut on; raise TruncatedData below the head."""
    here: LocatedCut = locate(view, start)
    while True:
        step = next_step(here, view.located_tail)
        yield from step.ranges
        if step.done:
            return
        here = step.end


def read_changes(
    stream: StreamLog, ranges: Iterator[SegmentRange], *, dated: bool = False
) -> Changes:
    """Return the newest change of each key in ranges of the log, older segments first.

    ``dated`` replaces the writers' times by those of the commits, as a table with a ttl needs.
    """
    found: Changes = {}
    for rng in ranges:
        times = ChangeTimes(stream, rng) if dated else None
        for batch in read_range(stream, rng):
            add_changes(found, rng.segment_id, batch, times)
    return found


def add_changes(
    found: Changes, segment_id: int, batch: pa.RecordBatch, times: ChangeTimes | None = None
) -> None:
    """Add the changes of a batch of a segment's events, which follow those before."""
    written = batch.column("timestamp").view(pa.int64()) if times is None else times.of(batch)
    for payload, offset, time_us in zip(
        batch.column("event").to_pylist(),
        batch.column("offset").to_pylist(),
        written.tolist(),
        strict=True,
    ):
        key, value = decode_change(payload)
        found[key] = Change(segment_id, offset, time_us, value)


def read_value(stream: StreamLog, life: int, change: Change) -> bytes | None:
    """Return the value of a change, read from its chunk; raise TruncatedData below the head."""
    segment_id, offset = change.segment_id, change.offset
    rng = SegmentRange(stream.name, life, segment_id, offset, offset + 1)
    (batch,) = read_range(stream, rng, columns=["event"])
    return decode_change(batch.column("event")[0].as_py())[1]


def check_version(version: int, newest: StreamView, oldest: int = 0) -> None:
    """Raise InvalidInput for a version of the log that does not exist yet.

    Raises TruncatedData for one before ``oldest``, or before the oldest that the log has.
    """
    if version > newest.version:
        raise InvalidInput(
            f"version {version} of table {table_of_log(newest.stream)} does not exist yet: the "
            f"newest one is {newest.version}."
        )
    oldest = max(newest.snapshot.commit_deletion_mark, oldest)
    if version < oldest:
        raise unreadable(version, newest, f"versions {oldest} to {newest.version} can")


def unreadable(version: int, newest: StreamView, why: str) -> TruncatedData:
    """Return the error of a version that can no longer be read."""
    return TruncatedData(
        f"version {version} of table {table_of_log(newest.stream)} cannot be read: {why}. Read a "
        "newer version.",
        head=newest.head,
    )
