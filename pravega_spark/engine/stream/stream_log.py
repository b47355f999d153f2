"""One open stream: its log, immutable typed views of it, and its chunks by offset."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from pravega_spark.engine.chunks import chunk_reader
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.log.actions import DECODE_ERRORS, Add
from pravega_spark.engine.log.commit_log import Committed, Log, Proposal
from pravega_spark.engine.log.file_index import OFFSET_COLUMN, SEGMENT_COLUMN
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    CorruptLog,
    DataLoss,
    NoSuchStream,
    TruncatedData,
)
from pravega_spark.model import (
    SegmentRange,
)
from pravega_spark.names import split_stream

Sizes = dict[tuple[int, int], int]
"""Bytes of segments before offsets."""


def events_path(name: str) -> str:
    """Return the key of a stream's table of events."""
    return f"{name}/events"


_Value = TypeVar("_Value")


class StreamLog:
    """An open stream of one process: thread-safe; a forked child must open its own."""

    def __init__(self, store: Store, name: str, runtime: Runtime = SYSTEM) -> None:
        """Name the stream; nothing is read until it is needed."""
        split_stream(name)
        self.name = name
        self.store = store
        self.path = events_path(name)
        self.runtime = runtime
        self.log = Log(store, self.path, runtime)
        self.log.maintain = checkpointing.maintain_in_background
        self._view: StreamView | None = None

    def now_ms(self) -> int:
        """Return the time for what is committed now, in ms since 1970."""
        return self.log.clock.now_ms()

    @property
    def root_url(self) -> str:
        """The root, from which another process can open the same stream."""
        return self.store.url

    def view(self, refresh: bool = True, *, life: int | None = None) -> StreamView:
        """Return the newest view (one storage call if nothing is new), or the last known one.

        Raises NoSuchStream if the stream does not exist, StaleIdentity if it is not in ``life``.
        """
        snapshot = self.log.snapshot
        if refresh or snapshot is None:
            snapshot = self.log.refresh(durable=True)
        if snapshot is None:
            raise self.absent()
        view = self.view_of(snapshot)
        view.check_exists()
        if life is not None:
            view.check_life(life)
        return view

    def view_of(self, snapshot: Snapshot) -> StreamView:
        """Return the view of a snapshot: one for all who ask for the newest snapshot.

        What a commit needs to know can so be worked out before the log is held for it.
        """
        known = self._view
        if known is None or known.snapshot is not snapshot:
            known = self._view = StreamView(snapshot)
        return known

    def absent(self) -> NoSuchStream:
        """Return the error that a stream without a log raises."""
        return NoSuchStream(
            f"stream {self.name} does not exist under {self.root_url}: check the name and the "
            "root, or create the stream.",
            stream=self.name,
        )

    def life_of(self, life: int | None) -> int:
        """Return the life that a call was made for: the one it names, or the present one."""
        return self.view().life if life is None else life

    def commit(
        self, decide: Callable[[StreamView], Proposal[_Value]], *, life: int
    ) -> Committed[_Value]:
        """Commit what ``decide`` proposes on the newest view of one life of the stream.

        ``life`` is the one that the caller saw when its call began: after that one has ended
        nothing is committed, however long the call was stopped in between. Raises StaleIdentity,
        NoSuchStream, what ``decide`` raises, and what :meth:`Log.commit` does.
        """

        def decide_on(snapshot: Snapshot | None) -> Proposal[_Value]:
            if snapshot is None:
                raise self.absent()
            view = self.view_of(snapshot)
            view.check_life(life)
            return decide(view)

        return self.log.commit(decide_on)

    def chunks(self, rng: SegmentRange) -> list[ChunkRef]:
        """Return the chunks that cover exactly the range, in offset order.

        Raises TruncatedData for a range that begins below the head as it is known here, even if a
        chunk still holds it; DataLoss for events that the log does not have, StaleIdentity or
        NoSuchStream for a life that ended.
        """
        if rng.start >= rng.end:
            return []
        view = self.view(refresh=False)
        if view.life == rng.life and view.is_truncated(rng.segment_id, rng.start):
            raise _truncated(view, rng)
        return self._all_chunks(rng)

    def _all_chunks(self, rng: SegmentRange) -> list[ChunkRef]:
        """Do what :meth:`chunks` does, and below the head, too, while chunks remain there."""
        refs = self.known_chunks(rng)
        if chunk_reader.first_gap(rng, refs) is None:
            return refs
        view = self.view(life=rng.life)
        refs = self.known_chunks(rng)
        gap = chunk_reader.first_gap(rng, refs)
        if gap is None:
            return refs
        if view.is_truncated(rng.segment_id, gap.start):
            raise _truncated(view, rng)
        end = view.segment(rng.segment_id).next_offset
        raise DataLoss(
            f"{rng} cannot be read: the log of version {view.version} has no chunk with offset "
            f"{gap.start}; the segment's next offset is {end}.",
            lost=gap,
        )

    def known_chunks(self, rng: SegmentRange) -> list[ChunkRef]:
        """Return the chunks of the last known version that hold any event of the range."""
        with self.log.files() as files:
            return [chunk_ref(add) for add in files.find(rng.segment_id, rng.start, rng.end)]

    def bytes_at(self, segment_id: int, offset: int, view: StreamView | None = None) -> int:
        """Return the cumulative bytes of the segment's events before ``offset``, exactly.

        Below the head as well, while a chunk is left that tells; else raises TruncatedData.
        """
        found = self._bytes_or_chunk(segment_id, offset, view or self.view(refresh=False))
        return found if isinstance(found, int) else self._bytes_inside(found, offset)

    def bytes_of(self, places: Collection[tuple[int, int]], view: StreamView) -> Sizes:
        """Do what :meth:`bytes_at` does for many segments; several chunks are read at once."""
        found = {place: self._bytes_or_chunk(*place, view) for place in places}
        inside = [(place, ref) for place, ref in found.items() if isinstance(ref, ChunkRef)]
        sizes = self.runtime.each(lambda item: self._bytes_inside(item[1], item[0][1]), inside)
        told = {place: size for place, size in found.items() if isinstance(size, int)}
        return told | {place: size for (place, _), size in zip(inside, sizes, strict=True)}

    def _bytes_or_chunk(self, segment_id: int, offset: int, view: StreamView) -> int | ChunkRef:
        """Return the bytes before an offset if the log tells them, or the chunk that does."""
        record = view.segment(segment_id)
        if offset <= 0:
            return 0
        if offset >= record.next_offset:
            return record.size_bytes
        rng = SegmentRange(self.name, view.life, segment_id, offset, offset + 1)
        (ref,) = self._all_chunks(rng)
        return ref.base_bytes if ref.base_offset == offset else ref

    def _bytes_inside(self, ref: ChunkRef, offset: int) -> int:
        return chunk_reader.bytes_before(self.store, self.path, ref, offset)

    def offset_after(self, rng: SegmentRange, size_bytes: int) -> tuple[int, int]:
        """Return the first offset of a range with so many bytes of the segment before it.

        And how many there are. The end of the range, if it does not have so many.
        """
        for ref in self._all_chunks(rng):
            if ref.base_bytes + ref.event_bytes >= size_bytes:
                left = size_bytes - ref.base_bytes
                offset, size = chunk_reader.offset_after(self.store, self.path, ref, left)
                if offset < rng.end:
                    return offset, ref.base_bytes + size
        return rng.end, self.bytes_at(rng.segment_id, rng.end)


def _truncated(view: StreamView, rng: SegmentRange) -> TruncatedData:
    return TruncatedData(
        f"{rng} was truncated{view.truncated_by} up to the head {view.head}; go on at the head.",
        head=view.head,
        lost=(rng,),
    )


def chunk_ref(add: Add) -> ChunkRef:
    """Return a file of the log as a chunk."""
    try:
        tags = add.tags or {}
        return ChunkRef(
            add.path,
            int(add.partition[SEGMENT_COLUMN]),
            int(add.partition[OFFSET_COLUMN]),
            int(tags["rows"]),
            add.size,
            int(tags["bytes"]),
            int(tags["baseBytes"]),
            int(tags["minTimestamp"]),
            int(tags["maxTimestamp"]),
        )
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"the log's file {add.path} is no chunk: {error!r}.", path=add.path
        ) from error
