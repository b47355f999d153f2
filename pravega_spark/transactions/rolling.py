"""Rolling commit: append a transaction's chunks after scales, by metadata alone.

The epoch in which a transaction began routed its chunks. If one active segment covers each of
their segments, the chunks move to it unchanged. Otherwise the commit *rolls*, as in Pravega: it
duplicates the old epoch, appends the late events to it, and duplicates the epoch that was active.
So for every key they come after all earlier events and before all later ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.layout import epoch_changes
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.writing.reroute import targets
from pravega_spark.model import Epoch


class RollingCommit:
    """Appends transactions to a commit, one after the other."""

    def __init__(self, builder: CommitBuilder, now_ms: int) -> None:
        """Begin in the active epoch of the commit."""
        self._builder = builder
        self._now_ms = now_ms
        self._interrupted: Epoch | None = None
        """The epoch that was active when the commit began to roll."""
        self._covers: dict[int, int | None] = {}

    @property
    def rolled(self) -> bool:
        """Whether the commit duplicated an older epoch."""
        return self._interrupted is not None

    def append(self, epoch: int, chunks: Iterable[StagedChunk]) -> list[StagedChunk]:
        """Append the chunks of a transaction of an epoch; return them with their new segments."""
        chunks = list(chunks)
        moved = self._moved(chunks)
        if moved is None:
            if self._interrupted is None:
                self._interrupted = self._builder.active
            self._duplicate(self._builder.epoch(epoch))
            moved = self._moved(chunks)
            assert moved is not None, f"epoch {epoch} does not hold its own segments"
        self._builder.append_chunks(moved)
        return moved

    def finish(self) -> None:
        """After the last transaction, return to the layout that was active."""
        interrupted = self._interrupted
        if interrupted is not None and self._builder.active.reference != interrupted.reference:
            self._duplicate(interrupted)

    def _moved(self, chunks: Iterable[StagedChunk]) -> list[StagedChunk] | None:
        """Return the chunks in the active segments that cover theirs, or None."""
        moved = []
        for chunk in chunks:
            segment_id = self._cover(chunk.segment_id)
            if segment_id is None:
                return None
            same = segment_id == chunk.segment_id
            moved.append(chunk if same else replace(chunk, segment_id=segment_id))
        return moved

    def _cover(self, segment_id: int) -> int | None:
        """Return the one active segment that covers a segment's keys, or None."""
        if segment_id not in self._covers:
            found = targets(self._builder, segment_id)
            self._covers[segment_id] = found[0].segment_id if len(found) == 1 else None
        return self._covers[segment_id]

    def _duplicate(self, source: Epoch) -> None:
        before = self._builder.active
        created_ms = max(self._now_ms, before.created_ms + 1)
        self._builder.switch(epoch_changes.duplicate(source, before.number + 1, created_ms))
        self._covers.clear()
