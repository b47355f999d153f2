"""The buffer of a transaction's handle: events in memory, then chunks that await a manifest."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import StagedChunk, encode_events
from pravega_spark.engine.chunks.routing import Router
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.batch_committer import RoutedEvents, stage_routed
from pravega_spark.errors import InvalidInput
from pravega_spark.limits import WRITER_BATCH_BYTES, WRITER_BATCH_EVENTS
from pravega_spark.model import Segment, segment_text
from pravega_spark.transactions.transaction_paths import chunk_folder


class TransactionBuffer:
    """Events that one handle accepted and that no manifest is known to name; not thread-safe.

    Errors lose nothing: staged chunks stay until the handle knows that a manifest names them, and
    events that could not be staged stay in memory, so every call can be repeated.
    """

    def __init__(
        self, stream: StreamLog, transaction_id: str, epoch: int, segments: Sequence[Segment]
    ) -> None:
        """Begin empty; the events are routed to ``segments``, those of the epoch."""
        self._stream = stream
        self._id = transaction_id
        self._epoch = epoch
        self._segments = segments
        self.drop()

    def drop(self) -> None:
        """Drop everything."""
        self.staged: list[StagedChunk] = []
        """Chunks in the transaction's folder, in the order of the events."""
        self._forget_events()

    def _forget_events(self) -> None:
        self._events: list[bytes] = []
        self._keys: list[str | None] = []
        self._times_us: list[int] = []
        self._size_bytes = 0

    @property
    def unstaged(self) -> int:
        """The number of events that are in memory only."""
        return len(self._events)

    @property
    def is_empty(self) -> bool:
        """Whether it holds neither events nor chunks."""
        return not self._events and not self.staged

    @property
    def is_full(self) -> bool:
        """Whether it must be flushed before it accepts more events."""
        full = len(self._events) >= WRITER_BATCH_EVENTS
        return full or self._size_bytes >= WRITER_BATCH_BYTES

    def add(self, events: list[bytes], routing_key: str | None, time_us: int) -> None:
        """Add events with one routing key and time, in order."""
        self._events += events
        self._keys += [routing_key] * len(events)
        self._times_us += [time_us] * len(events)
        self._size_bytes += sum(map(len, events))

    def check(self, chunks: Sequence[StagedChunk]) -> None:
        """Raise InvalidInput for chunks that a commit of this transaction could not append.

        One commit ends all decided transactions: such a chunk would block every one of them.
        """
        folder = f"data/{chunk_folder(self._id)}/"
        segment_ids = {segment.segment_id for segment in self._segments}
        for chunk in chunks:
            inside = chunk.path.startswith(folder) and chunk.rows > 0
            if not inside or (segment_ids and chunk.segment_id not in segment_ids):
                raise InvalidInput(
                    f"{chunk.path} ({chunk.rows} events of segment "
                    f"{segment_text(chunk.segment_id)}) does not belong to transaction {self._id}, "
                    f"whose chunks are staged in {folder}, for the segments of epoch {self._epoch}."
                )

    def stage(self) -> None:
        """Stage the events in memory as chunks."""
        if not self._events:
            return
        events = encode_events(self._keys, self._times_us, self._events)
        router = Router(self._segments)
        # Events without a key share one segment: the transaction's id routes them.
        keys = [self._id if key is None else key for key in self._keys]
        indexes = router.segment_indexes(pa.array(keys, pa.string()), start=0)
        routed = RoutedEvents(router.segment_ids, indexes)
        staged = stage_routed(self._stream, chunk_folder(self._id), events, routed)
        for chunk in staged:
            chunk.stats_json()
        self.staged += staged
        self._forget_events()
