"""An open stream: its log, immutable typed views of it, and its chunks by offset.

Times of commits never decrease. So after one commit by a host whose clock is ahead, the log's time
lies in the future until that time has come, in any process. When the newest commit was really made
is therefore told apart from its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from pravega_spark.engine.chunks.chunk import ChunkRef, first_gap
from pravega_spark.engine.chunks.footer import checked_digest
from pravega_spark.engine.chunks.format import EventFormat
from pravega_spark.engine.chunks.large_event import checked_attachment
from pravega_spark.engine.chunks.recent import RecentChunks, recent_chunks
from pravega_spark.engine.key_management import ChunkKey
from pravega_spark.engine.kinds import log_title
from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.commit import Committed, Log, Proposal
from pravega_spark.engine.log.files import OFFSET_COLUMN, SEGMENT_COLUMN
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.tail import LogTail
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.open_objects import OpenObjects
from pravega_spark.engine.store.root_marker import way_on
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog, DataLoss, NoSuchStream, TruncatedData
from pravega_spark.values.limits import (
    CHUNK_CACHE_READ_SECONDS,
    CLOCK_SKEW_MS,
    OPEN_STREAM_BYTES,
)
from pravega_spark.values.names import split_log
from pravega_spark.values.segments import SegmentRange

Sizes = dict[tuple[int, int], int]
"""Bytes of a segment before an offset, by both."""


def events_path(name: str) -> str:
    """Return the key of a stream's events table."""
    return f"{name}/events"


_Kept = TypeVar("_Kept")
_Value = TypeVar("_Value")

LOOK_UPS_OF_A_MOVING_HEAD = 32
"""How often a call looks again because the head has moved; each time, another call truncated."""


class StreamLog:
    """An open stream of one process: thread-safe. A forked child must open it again."""

    def __init__(self, store: Store, name: str, runtime: Runtime = SYSTEM) -> None:
        """Take the stream's name; nothing is read before it is needed."""
        split_log(name)
        self.name = name
        self.store = store
        self.path = events_path(name)
        self.runtime = runtime
        self.log = Log(store, self.path, runtime)
        self.log.maintain = checkpoint.maintain_in_background
        self.tail = LogTail(self.log)
        self._view: StreamView | None = None
        self._past = partial(_past_layout, store, name, runtime)
        self.shared: WeakValueDictionary[object, object] = WeakValueDictionary()
        """What users of the open stream share in this process, as long as one of them holds it."""
        self._kept: dict[type, object] = {}
        self.recent = recent_chunks(store)
        """What this process keeps of the store's chunks; None if that is nothing."""
        self._read_at = -math.inf

    def note_read(self) -> None:
        """Note that a reader of this process reads chunks now."""
        self._read_at = self.runtime.monotonic()

    @property
    def recent_of_writes(self) -> RecentChunks | None:
        """Where chunks go that this process stores: nowhere while none of its readers is here."""
        if self.recent is None:
            return None
        since = self.runtime.monotonic() - self._read_at
        return self.recent if since < CHUNK_CACHE_READ_SECONDS or self.tail.is_awaited else None

    def kept(self, kind: type[_Kept], make: Callable[[], _Kept]) -> _Kept:
        """Return what a room above keeps with the open stream, one of each kind; made once.

        It may refer to the stream: in a mapping with weak keys that would keep the key forever.
        """
        found = self._kept.get(kind)
        if found is None:
            found = self._kept.setdefault(kind, make())  # of two threads, the first one
        assert isinstance(found, kind)
        return found

    def now_ms(self) -> int:
        """Return the time of a commit that is made now, in ms since 1970."""
        return self.log.clock.now_ms()

    @property
    def root_url(self) -> str:
        """The root by which another process can open the same stream."""
        return self.store.url

    def view(self, refresh: bool = True, *, life: int | None = None) -> StreamView:
        """Return the newest view (one storage call if it is known), or the last known one.

        Raises NoSuchStream if the stream does not exist, StaleIdentity if it is not in ``life``,
        CorruptLog if it has no log and ``life`` shows that it had one, and what :meth:`newest`
        raises.
        """
        snapshot = self.log.snapshot
        if refresh or snapshot is None:
            snapshot = self.newest()
        return self._checked(snapshot, life)

    def newest(self) -> Snapshot | None:
        """Return the newest snapshot, durably, or None if there is no log.

        Raises CorruptLog if the log that was read before is gone from a local disk: it would look
        like one in which nothing changes. On an object store that would cost another request.
        """
        log, known = self.log, self.log.snapshot
        found = log.refresh(durable=True)
        if known is None or found is not known or not self.store.is_local:
            return found
        if self.store.change_token(log.reader.key(known.version)) is None:
            raise CorruptLog(
                f"{log.reader.where}: version {known.version} of the log, which this process has "
                "read, does not exist any more: its folder was removed or moved. Restore it from a "
                "copy.",
                path=log.reader.where,
                version=known.version,
            )
        return found

    def current_view(self) -> StreamView | None:
        """Return the newest view in any state, also DELETED, or None if there is no log."""
        snapshot = self.newest()
        return None if snapshot is None else StreamView(snapshot)

    def view_after_wait(self, life: int | None = None, *, durable: bool = True) -> StreamView:
        """Return the last known view, whose commits are durable; raises as :meth:`view` does.

        For those that waited at the tail, and so need not ask the storage for a newer version.
        Without ``durable`` the caller ends the wait for the disk with :meth:`ensure_durable`.
        """
        snapshot = None if durable else self.log.snapshot
        return self._checked(snapshot or self.log.known_durable(), life)

    def ensure_durable(self, view: StreamView) -> None:
        """Return when no power cut can take back what the view shows; raise StoreError if not."""
        self.log.durable.ensure(view.version)

    def _checked(self, snapshot: Snapshot | None, life: int | None) -> StreamView:
        if snapshot is None:
            raise self.absent() if life is None else self.lost(life)
        view = self.view_of(snapshot)
        view.check_exists()
        if life is not None:
            view.check_life(life)
        return view

    def known_view(self) -> StreamView:
        """Return the last known view, also a deleted one; NoSuchStream if it has none."""
        snapshot = self.log.snapshot or self.log.refresh()
        if snapshot is None:
            raise self.absent()
        return self.view_of(snapshot)

    @property
    def chunk_key(self) -> ChunkKey | None:
        """The key that chunks are encrypted with, by the last known view; None without one."""
        policy = self.known_view().record.configuration.encryption
        return None if policy is None else ChunkKey(self.name, policy.key)

    @property
    def event_format(self) -> EventFormat:
        """The columns of the stream's events by the last known view.

        That has the columns of every chunk that :meth:`known_chunks` returned before.
        """
        return self.known_view().event_format

    def on_newest(
        self,
        look_up: Callable[[StreamView], _Value],
        *,
        life: int | None = None,
        view: StreamView | None = None,
    ) -> _Value:
        """Return what ``look_up`` finds on the newest view, and look again if the head has moved.

        ``view`` is a view that the caller has just taken.

        A look-up reads chunks that another process may truncate after the view was taken. So its
        TruncatedData is raised only if the head is still that of its view, or if the head has
        moved during each of many look-ups. Raises what :meth:`view` raises.
        """
        view = view or self.view(life=life)
        for _ in range(LOOK_UPS_OF_A_MOVING_HEAD):
            try:
                return look_up(view)
            except TruncatedData:
                newest = self.view(life=view.life)
                if newest.head == view.head:
                    raise
                view = newest
        return look_up(view)

    def view_of(self, snapshot: Snapshot) -> StreamView:
        """Return the view of a snapshot; all callers share the view of the newest snapshot.

        So the values that a commit needs can be computed before the log is locked for it.
        """
        known = self._view
        if known is None or known.snapshot is not snapshot:
            known = self._view = StreamView(snapshot, self._past)
        return known

    def absent(self) -> NoSuchStream:
        """Return the error for a stream without a log."""
        ending = f" under {self.root_url}: check the name and the root, or create it."
        return NoSuchStream(
            f"{log_title(self.name)} does not exist{way_on(self.store, ending)}", stream=self.name
        )

    def lost(self, life: int) -> CorruptLog:
        """Return the error for a stream without a log of which somebody has seen a life.

        No deletion removes a log, so none says that this life has ended.
        """
        where = self.log.reader.where
        return CorruptLog(
            f"{where}: stream {self.name} has lost its log: life {life} of it is known, and no "
            "commit exists. Put its folder back as it was; or put it back from a backup, and call "
            "restore_stream. If there is no copy, delete the rest of the folder, and "
            "create the stream: it begins a new life, which is empty.",
            stream=self.name,
            path=where,
            version=0,
        )

    def life_of(self, life: int | None) -> int:
        """Return the life that a call is made for: the given one, or the present one."""
        return self.view().life if life is None else life

    def commit(
        self,
        decide: Callable[[StreamView], Proposal[_Value]],
        *,
        life: int,
        yields: bool = False,
    ) -> Committed[_Value]:
        """Commit the proposal of ``decide`` on the newest view of one life of the stream.

        ``life`` is the one that the caller saw when its call began: nothing is committed after
        that life has ended, even if the process was paused in between. If it ``yields``, it
        leaves the next version to all others (see :meth:`Log.commit`). Raises StaleIdentity,
        NoSuchStream, and what ``decide`` and :meth:`Log.commit` raise.
        """

        def decide_on(snapshot: Snapshot | None) -> Proposal[_Value]:
            if snapshot is None:
                raise self.lost(life)
            view = self.view_of(snapshot)
            view.check_life(life)
            return decide(view)

        return self.log.commit(decide_on, yields=yields)

    def chunks(self, rng: SegmentRange) -> list[ChunkRef]:
        """Return the chunks that hold the range, in offset order.

        The last known version is used; it is refreshed if it lacks some events. Raises
        TruncatedData for a range that begins below the head, even if a chunk still holds it;
        DataLoss for events that the log does not have; StaleIdentity or NoSuchStream for a life
        that has ended.
        """
        if rng.start >= rng.end:
            return []
        view = self.view(refresh=False)
        if view.life != rng.life:  # a restored copy has the same segments in its next life
            view = self.view(life=rng.life)
        if view.is_truncated(rng.segment_id, rng.start):
            raise truncated(view, rng)
        return self._all_chunks(rng)

    def _all_chunks(self, rng: SegmentRange) -> list[ChunkRef]:
        """Return the chunks as :meth:`chunks` does, also below the head while chunks remain."""
        refs = self.known_chunks(rng)
        if first_gap(rng, refs) is None:
            return refs
        view = self.view(life=rng.life)
        refs = self.known_chunks(rng)
        gap = first_gap(rng, refs)
        if gap is None:
            return refs
        if view.is_truncated(rng.segment_id, gap.start):
            raise truncated(view, rng)
        end = view.segment(rng.segment_id).next_offset
        raise DataLoss(
            f"{rng} cannot be read: the log of version {view.version} has no chunk with offset "
            f"{gap.start}; the segment's next offset is {end}. Restore the table from a copy.",
            lost=gap,
            stream=self.name,
            path=self.log.reader.where,
        )

    def known_chunks(self, rng: SegmentRange) -> list[ChunkRef]:
        """Return the chunks of the last known version that hold any event of the range."""
        with self.log.files() as files:
            where = self.log.reader.where
            return [chunk_ref(add, where) for add in files.find(rng.segment_id, rng.start, rng.end)]

    def bytes_at(self, segment_id: int, offset: int, view: StreamView | None = None) -> int:
        """Return the exact cumulative bytes of the segment's events before ``offset``.

        Works below the head while the chunk at the offset remains; then raises TruncatedData.
        """
        found = self._bytes_or_chunk(segment_id, offset, view or self.view(refresh=False))
        return found if isinstance(found, int) else self._bytes_inside(found, offset)

    def readable_bytes(self, view: StreamView) -> int:
        """Return the exact bytes of the events between a view's head and tail.

        Raises TruncatedData as :meth:`bytes_at` does, if the head has moved since.
        """
        head, tail = view.located_head, view.located_tail
        return head.bytes_to(tail, partial(self.bytes_at, view=view))

    def bytes_of(self, offsets: Collection[tuple[int, int]], view: StreamView) -> Sizes:
        """Return :meth:`bytes_at` for many (segment id, offset); chunks are read in parallel."""
        found = {offset: self._bytes_or_chunk(*offset, view) for offset in offsets}
        inside = [(offset, ref) for offset, ref in found.items() if isinstance(ref, ChunkRef)]
        sizes = self.runtime.each(lambda item: self._bytes_inside(item[1], item[0][1]), inside)
        recorded = {offset: size for offset, size in found.items() if isinstance(size, int)}
        return recorded | {offset: size for (offset, _), size in zip(inside, sizes, strict=True)}

    def _bytes_or_chunk(self, segment_id: int, offset: int, view: StreamView) -> int | ChunkRef:
        """Return the bytes before an offset if the log records them, or the chunk to read."""
        record = view.segment(segment_id)
        if offset <= 0:
            return 0
        if offset >= record.next_offset:
            return record.size_bytes
        head = view.record
        if head.head.get(segment_id) == offset and segment_id in head.head_sizes:
            return head.head_sizes[segment_id]
        rng = SegmentRange(
            self.name, life=view.life, segment_id=segment_id, start=offset, end=offset + 1
        )
        (ref,) = self._all_chunks(rng)
        return ref.base_bytes if ref.base_offset == offset else ref

    def _bytes_inside(self, ref: ChunkRef, offset: int) -> int:
        from pravega_spark.engine.chunks import search  # late: planners read no chunk

        return search.bytes_before(self.store, self.path, ref, offset)

    def offset_after(self, rng: SegmentRange, size_bytes: int) -> tuple[int, int]:
        """Return the first offset of a range with at least ``size_bytes`` before it, and the bytes.

        Bytes are the segment's, from its creation. A range that ends earlier returns its end.
        """
        from pravega_spark.engine.chunks import search  # late: planners read no chunk

        for ref in self._all_chunks(rng):
            if ref.base_bytes + ref.event_bytes >= size_bytes:
                left = size_bytes - ref.base_bytes
                offset, size = search.offset_after(self.store, self.path, ref, left)
                if offset < rng.end:
                    return offset, ref.base_bytes + size
        return rng.end, self.bytes_at(rng.segment_id, rng.end)


def _past_layout(
    store: Store, name: str, runtime: Runtime, view: StreamView, number: int
) -> Layout | None:
    from pravega_spark.engine.stream.past_epochs import past_layout  # late: few cuts need it

    return past_layout(StreamLog(store, name, runtime), view, number)


def truncated(view: StreamView, rng: SegmentRange) -> TruncatedData:
    """Return the error for a range that begins below the head; only what is below it is lost."""
    end = rng.end
    if view.has_segment(rng.segment_id):
        end = min(end, view.head_offset(rng.segment_id))
    lost = replace(rng, end=end)
    return TruncatedData(
        f"{lost} was truncated{view.truncated_by}; continue from the head, {view.head}.",
        head=view.head,
        lost=(lost,),
    )


def chunk_ref(add: Add, where: str) -> ChunkRef:
    """Return the chunk of a file in the log of the table at ``where``."""
    try:
        tags = add.tags or {}
        return ChunkRef(
            path=add.path,
            segment_id=int(add.partition[SEGMENT_COLUMN]),
            base_offset=int(add.partition[OFFSET_COLUMN]),
            rows=int(tags["rows"]),
            size=add.size,
            event_bytes=int(tags["bytes"]),
            base_bytes=int(tags["baseBytes"]),
            min_timestamp_us=int(tags["minTimestamp"]),
            max_timestamp_us=int(tags["maxTimestamp"]),
            footer=checked_digest(tags.get("footer", "")),
            attachment=checked_attachment(tags.get("attachment", "")),
        )
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{where}: the log's file {add.path} is not a chunk: {error!r}. Restore the log from a "
            "copy.",
            path=f"{where}/{add.path}",
        ) from error


def clock_ahead_seconds(stream: StreamLog, view: StreamView) -> float:
    """Return how far the log's time lies in the future; 0 within the usual skew of clocks."""
    ahead_ms = view.timestamp_ms - stream.runtime.now_ms()
    return ahead_ms / 1_000 if ahead_ms > CLOCK_SKEW_MS else 0.0


def committed_ms(stream: StreamLog, view: StreamView) -> int:
    """Return the time of the newest commit; that of its object if the log's lies in the future.

    Only then this asks the storage, once.
    """
    if not clock_ahead_seconds(stream, view):
        return view.timestamp_ms
    dated_ms = stream.store.modified_ms(stream.log.reader.key(view.version))
    return view.timestamp_ms if dated_ms is None else dated_ms


_open = OpenObjects(StreamLog, lambda stream: stream.log.held_bytes, OPEN_STREAM_BYTES)


def open_stream(root: str | Store, name: str, runtime: Runtime = SYSTEM) -> StreamLog:
    """Return this process's stream of that root and name; it need not exist yet.

    Streams with another runtime than the system's are not kept.
    """
    store = open_store(root) if isinstance(root, str) else root
    return _open.get(store, name) if runtime is SYSTEM else StreamLog(store, name, runtime)


def known_version(store: Store, name: str) -> int:
    """Return the newest version that this process has seen of an open stream; -1 of another one."""
    stream = _open.known(store, name)
    snapshot = None if stream is None else stream.log.snapshot
    return -1 if snapshot is None else snapshot.version
