"""Where a transaction's events go when it commits: by metadata alone, whatever its size.

Its chunks were routed by the epoch in which it began. If each of the segments that it wrote to
lies within one that is active now, they go there as they are. Otherwise the commit *rolls*, as
Pravega's does: it repeats the old epoch, puts the late events there, and repeats the epoch that
was active. So they come after all that was there and before anything new, for every key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.layout import epochs
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.writing.reroute import targets
from pravega_spark.model import Epoch


class RollingCommit:
    """Puts transactions into a draft, one after the other."""

    def __init__(self, draft: CommitBuilder, now_ms: int) -> None:
        """Begin in the draft's active epoch."""
        self._draft = draft
        self._now_ms = now_ms
        self._interrupted: Epoch | None = None
        """The epoch that was active before the commit rolled."""
        self._holders: dict[int, int | None] = {}

    @property
    def rolled(self) -> bool:
        """Whether an older epoch had to be repeated."""
        return self._interrupted is not None

    def put(self, epoch: int, chunks: Iterable[StagedChunk]) -> list[StagedChunk]:
        """Place the chunks of a transaction of that epoch; return them with their segments."""
        chunks = list(chunks)
        moved = self._moved(chunks)
        if moved is None:
            if self._interrupted is None:
                self._interrupted = self._draft.active
            self._repeat(self._draft.epoch(epoch))
            moved = self._moved(chunks)
            assert moved is not None, f"epoch {epoch} does not hold its own segments"
        self._draft.append_chunks(moved)
        return moved

    def finish(self) -> None:
        """Go back to the layout that was active, after the last transaction."""
        interrupted = self._interrupted
        if interrupted is not None and self._draft.active.reference != interrupted.reference:
            self._repeat(interrupted)

    def _moved(self, chunks: Iterable[StagedChunk]) -> list[StagedChunk] | None:
        """Return the chunks in the active segments that hold all their keys, or None."""
        moved = []
        for chunk in chunks:
            segment_id = self._holder(chunk.segment_id)
            if segment_id is None:
                return None
            same = segment_id == chunk.segment_id
            moved.append(chunk if same else replace(chunk, segment_id=segment_id))
        return moved

    def _holder(self, segment_id: int) -> int | None:
        """Return the active segment that holds all keys of a segment, None if there is none."""
        if segment_id not in self._holders:
            found = targets(self._draft, segment_id)
            self._holders[segment_id] = found[0].segment_id if len(found) == 1 else None
        return self._holders[segment_id]

    def _repeat(self, source: Epoch) -> None:
        before = self._draft.active
        created_ms = max(self._now_ms, before.created_ms + 1)
        self._draft.switch(epochs.duplicate(source, before.number + 1, created_ms))
        self._holders.clear()
