"""Where a batch is that another process committed: its offsets, from the adds of its own chunks."""

from __future__ import annotations

from collections.abc import Sequence

from pravega_spark.engine.log.actions import Add, parse_commit
from pravega_spark.engine.log.file_index import OFFSET_COLUMN
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append_draft import AppendedRange, AppendResult, StagedBatch


def landed(stream: StreamLog, batch: StagedBatch, newest: tuple[int, bytes] | None) -> AppendResult:
    """Return the offsets of a batch that an earlier commit holds.

    Without offsets if that commit does not name its chunks, or is not stored any more. ``newest``
    is a version that the caller has read, with its commit, which saves a call.
    """
    view = stream.known_view()
    record = view.writer(batch.identity.writer_id)
    if record is None or record.last != batch.identity.last:
        return AppendResult(view.version, duplicate=True)
    found = {
        add.path: int(add.partition[OFFSET_COLUMN]) for add in _adds(stream, record.version, newest)
    }
    if not all(chunk.path in found for chunk in batch.chunks):
        return AppendResult(record.version, duplicate=True)
    ranges = (
        AppendedRange(chunk.segment_id, found[chunk.path], chunk.rows) for chunk in batch.chunks
    )
    return AppendResult(record.version, False, tuple(ranges))


def _adds(stream: StreamLog, version: int, newest: tuple[int, bytes] | None) -> Sequence[Add]:
    if newest is not None and newest[0] == version:
        return parse_commit(version, newest[1], stream.log.reader.where).adds
    found = stream.log.reader.commit(version, light=False)
    return () if found is None else found.adds
