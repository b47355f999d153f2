"""Commits the blocks of a byte writer, whose numbers count bytes and not events."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pravega_spark.byte_streams.byte_positions import ByteSegment
from pravega_spark.engine.chunks.tiny_chunk import LoneEvent
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.fencing import check_token
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append_draft import AppendResult
from pravega_spark.engine.writing.batch_committer import BatchCommitter, BatchPositions
from pravega_spark.engine.writing.batch_identity import SessionBatch
from pravega_spark.engine.writing.batch_staging import RoutedEvents
from pravega_spark.engine.writing.write_batch import WriteBatch


class Acknowledged(NamedTuple):
    """How far the log holds a writer's bytes."""

    position: int
    """The byte of the stream after the writer's last one."""
    written: int
    """The bytes of the writer's id."""


class ByteCommitter(BatchCommitter):
    """Commits batches of blocks to one segment."""

    def __init__(
        self,
        segment: ByteSegment,
        writer_id: str | None,
        *,
        compression: str,
        fencing_token: str | None = None,
    ) -> None:
        """Open the writer; an id of the user's own costs a commit."""
        stream = segment.stream
        super().__init__(
            stream,
            writer_id,
            life=segment.life,
            fencing_token=fencing_token,
            compression=compression,
        )
        self._segment = segment
        tail = segment.tail(segment.view(refresh=False))
        self.acknowledged = Acknowledged(tail, self.last)

    def check_not_fenced(self, view: StreamView) -> None:
        """Raise unless the writer's session and its fencing token are the newest of a view.

        Raises WriterFenced, FencingTokenMismatch; WriterForgotten without a record of the writer.
        """
        if self._fencing_token is not None:
            check_token(view, self._fencing_token)
        if not self.is_anonymous:
            known = archived_records.find_writer(self._stream, view, self.writer_id)
            SessionBatch(self.writer_id, self._session, 0, 0).check_session(known, view)

    def _id_of(self, writer_id: str) -> str:
        return f"bytes:{super()._id_of(writer_id)}"

    def _numbers(self, batch: WriteBatch) -> int:
        return batch.event_bytes

    def _route(
        self, view: StreamView, events: pa.Table | LoneEvent | None, batch: WriteBatch
    ) -> RoutedEvents:
        scaled = self._segment.scaled(view)
        if scaled is not None:
            raise scaled
        return RoutedEvents((self._segment.segment_id,), np.zeros(batch.count, np.uint8))

    def _positions(self, routed: RoutedEvents, appended: AppendResult) -> BatchPositions:
        positions = super()._positions(routed, appended)
        if appended.ranges:
            self.acknowledged = Acknowledged(appended.ranges[-1].end_bytes, self.last)
        return positions
