"""Builds a commit on top of one version: the chunks that it adds and the epochs that it begins.

The file actions of many chunks, as the lines of a commit: no Python object for each file. A
transaction may add thousands of chunks in one commit, and a truncation may remove very many. Their
lines are formatted from the few values that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, overload

from pravega_spark.engine.attached_objects import stored_bytes_of
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.layout.epochs import Layout, Lineage
from pravega_spark.engine.log.actions import ActionLines, Add, Body, Remove
from pravega_spark.engine.log.files import OFFSET_COLUMN, SEGMENT_COLUMN, FileCell
from pravega_spark.engine.runtime.json_codec import quoted
from pravega_spark.engine.stream.records import (
    EPOCH_PREFIX,
    SEGMENT_PREFIX,
    STREAM_DOMAIN,
    SegmentRecord,
    StreamRecord,
    encode_epoch,
)
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.values.segments import Epoch, StreamCut, segment_text


class PlacedChunk(NamedTuple):
    """A chunk with its first offset in its segment, and the segment's bytes before it."""

    chunk: StagedChunk
    base_offset: int
    base_bytes: int


class AddedChunks(ActionLines[Add]):
    """The ``add`` actions of a commit's chunks."""

    def __init__(self, now_ms: int) -> None:
        """Begin without chunks; ``now_ms`` is their time in the log."""
        self._now_ms = now_ms
        self.placed: list[PlacedChunk] = []

    def __len__(self) -> int:
        return len(self.placed)

    @overload
    def __getitem__(self, index: int) -> Add: ...

    @overload
    def __getitem__(self, index: slice) -> list[Add]: ...

    def __getitem__(self, index: int | slice) -> Add | list[Add]:
        if isinstance(index, slice):
            return [chunk_add(*placed, self._now_ms) for placed in self.placed[index]]
        return chunk_add(*self.placed[index], self._now_ms)

    @property
    def paths(self) -> Sequence[str]:
        """The paths of the chunks."""
        return [placed.chunk.path for placed in self.placed]

    @property
    def size_bytes(self) -> int:
        """The size of the chunks' files, with the objects of large events."""
        return sum(stored_bytes_of(one.chunk.path, one.chunk.size) for one in self.placed)

    def lines(self) -> Iterable[str]:
        """Return the actions as JSON texts."""
        time = f'"modificationTime":{self._now_ms},"dataChange":true'
        return [
            f'{{"add":{{"path":{quoted(chunk.path)},"partitionValues":{{"{SEGMENT_COLUMN}":'
            f'"{chunk.segment_id}","{OFFSET_COLUMN}":"{offset}"}},"size":{chunk.size},{time},'
            f'"stats":{chunk.stats_json()},"tags":{{"rows":"{chunk.rows}",'
            f'"bytes":"{chunk.event_bytes}","baseBytes":"{base_bytes}",'
            f'"minTimestamp":"{chunk.min_timestamp_us}",'
            f'"maxTimestamp":"{chunk.max_timestamp_us}"{_tags(chunk)}}}}}}}'
            for chunk, offset, base_bytes in self.placed
        ]


class RemovedChunks(ActionLines[Remove]):
    """The ``remove`` actions of the chunks below a new head."""

    def __init__(self, now_ms: int) -> None:
        """Begin without chunks; ``now_ms`` is the time of the removal."""
        self._now_ms = now_ms
        self.cells: list[tuple[int, FileCell]] = []
        """The chunks, each with its segment."""

    def __len__(self) -> int:
        return len(self.cells)

    @overload
    def __getitem__(self, index: int) -> Remove: ...

    @overload
    def __getitem__(self, index: slice) -> list[Remove]: ...

    def __getitem__(self, index: int | slice) -> Remove | list[Remove]:
        if isinstance(index, slice):
            return [self._remove(*cell) for cell in self.cells[index]]
        return self._remove(*self.cells[index])

    def _remove(self, segment_id: int, cell: FileCell) -> Remove:
        base_offset, _, _, path, size = cell
        partition = {SEGMENT_COLUMN: str(segment_id), OFFSET_COLUMN: str(base_offset)}
        return Remove(path, self._now_ms, partition, size)

    @property
    def paths(self) -> Sequence[str]:
        """The paths of the chunks."""
        return [cell[3] for _, cell in self.cells]

    @property
    def size_bytes(self) -> int:
        """The size of the chunks' files, with the objects of large events."""
        return sum(stored_bytes_of(cell[3], cell[4]) for _, cell in self.cells)

    @property
    def event_bytes(self) -> int:
        """The bytes of the chunks' events."""
        return sum(cell[2] for _, cell in self.cells)

    def lines(self) -> Iterable[str]:
        """Return the actions as JSON texts."""
        time = f'"deletionTimestamp":{self._now_ms},"dataChange":true'
        return [
            f'{{"remove":{{"path":{quoted(path)},{time},"extendedFileMetadata":true,'
            f'"partitionValues":{{"{SEGMENT_COLUMN}":"{segment_id}","{OFFSET_COLUMN}":"{base}"}},'
            f'"size":{size}}}}}'
            for segment_id, (base, _, _, path, size) in self.cells
        ]


def chunk_add(
    chunk: StagedChunk,
    base_offset: int,
    base_bytes: int,
    now_ms: int,
    *,
    data_change: bool = True,
) -> Add:
    """Return the action that adds a chunk at an offset of its segment."""
    return Add(
        path=chunk.path,
        partition={SEGMENT_COLUMN: str(chunk.segment_id), OFFSET_COLUMN: str(base_offset)},
        size=chunk.size,
        modified_ms=now_ms,
        stats=chunk.stats(),
        tags={
            "rows": str(chunk.rows),
            "bytes": str(chunk.event_bytes),
            "baseBytes": str(base_bytes),
            "minTimestamp": str(chunk.min_timestamp_us),
            "maxTimestamp": str(chunk.max_timestamp_us),
            **({"footer": chunk.footer} if chunk.footer else {}),
            **({"attachment": chunk.attachment} if chunk.attachment else {}),
        },
        data_change=data_change,
    )


def _tags(chunk: StagedChunk) -> str:
    """Return the tags that not every chunk has."""
    text = f',"footer":"{chunk.footer}"' if chunk.footer else ""
    return f'{text},"attachment":"{chunk.attachment}"' if chunk.attachment else text


class CommitBuilder:
    """A view with the changes of the next commit; an ``epochs.Layout``, as the view is.

    Chunks keep the order of the calls. A switch to a new epoch seals the segments that the epoch
    does not have, so chunks that are appended later lie after it.
    """

    def __init__(self, view: StreamView, now_ms: int) -> None:
        self._view = view
        self._segments: dict[int, SegmentRecord] = {}
        self._epochs: dict[int, Epoch] = {}
        self.active = view.active
        self.record: StreamRecord = view.record
        if view.kind.never_goes_back:
            now_ms = max(now_ms, view.timestamp_ms)
        self.added_ms = now_ms
        """The time of the added chunks in the log."""
        self.adds = AddedChunks(now_ms)
        self._growing: dict[int, _Growth] = {}
        """Segments with appended chunks that are open; a record for each chunk would be slow."""
        self._grown: dict[int, _Growth] = {}
        """Segments with appended chunks that a later switch of this commit sealed."""

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.record.stream

    @property
    def life(self) -> int:
        """The stream's life."""
        return self.record.life

    @property
    def oldest_epoch(self) -> int:
        """The oldest epoch that is kept."""
        return self.record.oldest_epoch

    @property
    def head(self) -> StreamCut:
        """The cut below which everything is truncated."""
        return self._view.head

    @property
    def truncated_by(self) -> str:
        """The author and time of the last truncation."""
        return self._view.truncated_by

    def since(self, number: int) -> Layout | None:
        """Return None: a commit does not ask what a cut has lost."""
        return None

    @property
    def lineage(self) -> Lineage:
        """The successors and predecessors of segments, with the changes so far."""
        return Lineage(self)

    def epoch(self, number: int) -> Epoch:
        """Return a kept epoch or a new one of this commit."""
        return self._epochs.get(number) or self._view.epoch(number)

    @property
    def rows(self) -> dict[int, int]:
        """Appended events by segment."""
        return {s: grown.end - grown.start for s, grown in self._all_grown()}

    @property
    def size_bytes(self) -> dict[int, int]:
        """Appended event bytes by segment."""
        return {s: grown.end_bytes - grown.start_bytes for s, grown in self._all_grown()}

    def _all_grown(self) -> Iterable[tuple[int, _Growth]]:
        return (*self._grown.items(), *self._growing.items())

    @property
    def open_ends(self) -> dict[int, int]:
        """The next offsets of the active segments: the tail after the changes so far."""
        return {s: self.segment(s).next_offset for s in self.active.segment_ids}

    def has_segment(self, segment_id: int) -> bool:
        """Return True if the segment has a record, or gets one in this commit."""
        return segment_id in self._segments or self._view.has_segment(segment_id)

    def segment(self, segment_id: int) -> SegmentRecord:
        """Return a segment's record with the changes so far; raise NoSuchSegment if it has none."""
        grown = self._growing.get(segment_id)
        if grown is not None:
            return grown.record(segment_id)
        return self._segments.get(segment_id) or self._view.segment(segment_id)

    def append_chunks(self, chunks: Iterable[StagedChunk]) -> None:
        """Append chunks to their open segments, in order."""
        growing, placed = self._growing, self.adds.placed
        for chunk in chunks:
            grown = growing.get(chunk.segment_id)
            if grown is None:
                record = self.segment(chunk.segment_id)
                assert not record.is_sealed, f"chunk {chunk.path} is appended to a sealed segment"
                grown = growing[chunk.segment_id] = _Growth(record)
            assert chunk.rows > 0, f"chunk {chunk.path} is empty"
            placed.append(PlacedChunk(chunk, grown.end, grown.end_bytes))
            grown.end += chunk.rows
            grown.end_bytes += chunk.event_bytes

    def switch(self, epoch: Epoch) -> None:
        """Make ``epoch`` active: seal the segments that it does not have, and open new ones."""
        assert epoch.number == self.active.number + 1, (epoch.number, self.active.number)
        after, before = set(epoch.segment_ids), set(self.active.segment_ids)
        for segment_id in before - after:
            sealed = replace(self.segment(segment_id), sealed_epoch=epoch.number)
            self._segments[segment_id] = sealed
            if segment_id in self._growing:
                self._grown[segment_id] = self._growing.pop(segment_id)
        for segment_id in after - before:
            self._segments[segment_id] = SegmentRecord(segment_id)
        self._epochs[epoch.number] = self.active = epoch
        highest = max(segment.number for segment in epoch.segments)
        self.record = replace(
            self.record,
            active_epoch=epoch.number,
            next_segment_number=max(self.record.next_segment_number, highest + 1),
        )

    def body(self, operation: str, parameters: Mapping[str, object] | None = None) -> Body:
        """Return the body of the commit."""
        domains: dict[str, str | None] = {}
        if self.record is not self._view.record:
            domains[STREAM_DOMAIN] = self.record.encode()
        for number, epoch in self._epochs.items():
            domains[f"{EPOCH_PREFIX}{number}"] = encode_epoch(epoch)
        grown = {s: growing.record(s) for s, growing in self._growing.items()}
        for segment_id, record in {**self._segments, **grown}.items():
            domains[f"{SEGMENT_PREFIX}{segment_id}"] = record.encode()
        metrics: dict[str, object] = {}
        if self.adds:
            metrics = {
                "numOutputRows": sum(self.rows.values()),
                "numOutputBytes": sum(self.size_bytes.values()),
                "numFiles": len(self.adds),
                "rowsBySegment": _by_segment(self.rows),
                "bytesBySegment": _by_segment(self.size_bytes),
            }
        return Body(operation, {**(parameters or {})}, metrics, domains, self.adds)


class _Growth:
    """How far chunks of one commit extend a segment, in events and in bytes."""

    __slots__ = ("end", "end_bytes", "start", "start_bytes")

    def __init__(self, record: SegmentRecord) -> None:
        self.start = self.end = record.next_offset
        self.start_bytes = self.end_bytes = record.size_bytes

    def record(self, segment_id: int) -> SegmentRecord:
        """Return the segment's record with the chunks so far; it is open."""
        return SegmentRecord(segment_id, self.end, self.end_bytes)


def _by_segment(numbers: Mapping[int, int]) -> str:
    """Return numbers by segment as the history shows them: ``0#0=12,1#0=3``."""
    return ",".join(f"{segment_text(s)}={n}" for s, n in sorted(numbers.items()))
