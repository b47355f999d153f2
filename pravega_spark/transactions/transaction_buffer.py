"""Events on their way into a transaction: taken, then staged, then entered by a manifest."""

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
from pravega_spark.transactions.manifests import chunk_folder


class TransactionBuffer:
    """What one handle took and does not know to be in the transaction; not for several threads.

    Nothing leaves it by an error: what is staged stays until the handle knows that it was
    entered, and what could not be staged stays as it is, so every call can be made again.
    """

    def __init__(
        self, stream: StreamLog, transaction_id: str, epoch: int, segments: Sequence[Segment]
    ) -> None:
        """Begin empty; ``segments`` are those of the epoch, by which the events are routed."""
        self._stream = stream
        self._id = transaction_id
        self._epoch = epoch
        self._segments = segments
        self.drop()

    def drop(self) -> None:
        """Forget all."""
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
        """How many events are in memory alone."""
        return len(self._events)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in it."""
        return not self._events and not self.staged

    @property
    def is_full(self) -> bool:
        """Whether it is to be flushed before it takes more."""
        full = len(self._events) >= WRITER_BATCH_EVENTS
        return full or self._size_bytes >= WRITER_BATCH_BYTES

    def add(self, events: list[bytes], routing_key: str | None, time_us: int) -> None:
        """Take events with one routing key and time, in order."""
        self._events += events
        self._keys += [routing_key] * len(events)
        self._times_us += [time_us] * len(events)
        self._size_bytes += sum(map(len, events))

    def check(self, chunks: Sequence[StagedChunk]) -> None:
        """Raise InvalidInput for chunks that no commit of this transaction could place.

        A commit carries out all that is decided: one that cannot be placed would stop them all.
        """
        here = f"data/{chunk_folder(self._id)}/"
        segment_ids = {segment.segment_id for segment in self._segments}
        for chunk in chunks:
            inside = chunk.path.startswith(here) and chunk.rows > 0
            if not inside or (segment_ids and chunk.segment_id not in segment_ids):
                raise InvalidInput(
                    f"{chunk.path} ({chunk.rows} events of segment "
                    f"{segment_text(chunk.segment_id)}) is no chunk of transaction {self._id}: "
                    f"such are staged in {here}, for the segments of epoch {self._epoch}."
                )

    def stage(self) -> None:
        """Store what is in memory."""
        if not self._events:
            return
        events = encode_events(self._keys, self._times_us, self._events)
        router = Router(self._segments)
        # Events without a key stay together: they are routed by the transaction's id.
        keys = [self._id if key is None else key for key in self._keys]
        places = router.segment_indexes(pa.array(keys, pa.string()), start=0)
        routed = RoutedEvents(router.segment_ids, places)
        folder = chunk_folder(self._id)
        self.staged += stage_routed(self._stream, self._epoch, events, routed, folder=folder)
        self._forget_events()
