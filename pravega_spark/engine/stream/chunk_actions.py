"""The file actions of many chunks, as the lines of a commit: no Python object for each file.

A transaction may add thousands of chunks in one commit, and a truncation may remove very many.
Their lines are formatted from the few values that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, overload

from pravega_spark.engine.attached_objects import stored_bytes_of
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.json_codec import quoted
from pravega_spark.engine.log.actions import ActionLines, Add, Remove
from pravega_spark.engine.log.file_index import OFFSET_COLUMN, SEGMENT_COLUMN, FileCell


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
        """Return the number of chunks."""
        return len(self.placed)

    @overload
    def __getitem__(self, index: int) -> Add: ...

    @overload
    def __getitem__(self, index: slice) -> list[Add]: ...

    def __getitem__(self, index: int | slice) -> Add | list[Add]:
        """Return the action of a chunk."""
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
        """Return the number of chunks."""
        return len(self.cells)

    @overload
    def __getitem__(self, index: int) -> Remove: ...

    @overload
    def __getitem__(self, index: slice) -> list[Remove]: ...

    def __getitem__(self, index: int | slice) -> Remove | list[Remove]:
        """Return the action of a chunk."""
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
        chunk.path,
        {SEGMENT_COLUMN: str(chunk.segment_id), OFFSET_COLUMN: str(base_offset)},
        chunk.size,
        now_ms,
        chunk.stats(),
        {
            "rows": str(chunk.rows),
            "bytes": str(chunk.event_bytes),
            "baseBytes": str(base_bytes),
            "minTimestamp": str(chunk.min_timestamp_us),
            "maxTimestamp": str(chunk.max_timestamp_us),
            **({"footer": chunk.footer} if chunk.footer else {}),
            **({"attachment": chunk.attachment} if chunk.attachment else {}),
        },
        data_change,
    )


def _tags(chunk: StagedChunk) -> str:
    """Return the tags that not every chunk has."""
    text = f',"footer":"{chunk.footer}"' if chunk.footer else ""
    return f'{text},"attachment":"{chunk.attachment}"' if chunk.attachment else text
