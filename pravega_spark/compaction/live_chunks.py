"""The live chunks of a stream's segments, and what was written for them so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pravega_spark.compaction.merge_plan import LiveChunk
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.file_index import position_of, rows_of
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.model import SegmentRange

APPENDED_TAG, WRITTEN_TAG = "appendedBytes", "writtenBytes"
"""Tags of a merged chunk's file: bytes of the files in which its events were appended, and of all
files that were written for them, the file itself included."""


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Bytes of the files that were written for some events: by appends, and in all."""

    appended: int = 0
    written: int = 0

    def __add__(self, other: FileBytes) -> FileBytes:
        """Return the sum of both."""
        return FileBytes(self.appended + other.appended, self.written + other.written)

    @property
    def amplification(self) -> float:
        """All bytes over those of the appends; 1 if nothing was rewritten."""
        return self.written / self.appended if self.appended else 1.0

    @classmethod
    def of(cls, adds: Iterable[Add]) -> FileBytes:
        """Return what was written for the events of live files."""
        total = cls()
        for add in adds:
            tags = add.tags or {}
            appended, written = tags.get(APPENDED_TAG), tags.get(WRITTEN_TAG)
            total += cls(int(appended or add.size), int(written or add.size))
        return total


def live_chunks(stream: StreamLog, view: StreamView) -> Iterator[tuple[SegmentRange, list[Add]]]:
    """Yield each segment's readable range between head and tail, and the files that hold it.

    The files are those of the newest known version of the log, which may be later than the view.
    """
    for rng in view.located_head.ranges_to(view.located_tail):
        with stream.log.files() as files:
            yield rng, files.find(rng.segment_id, rng.start, rng.end)


def live_chunk(add: Add) -> LiveChunk:
    """Return what a plan needs to know of a live file."""
    return LiveChunk(position_of(add)[1], rows_of(add), add.size, add.modified_ms)


def live_count(stream: StreamLog) -> int:
    """Return the number of live files of the newest known version, by the log's own count."""
    with stream.log.files() as files:
        return files.totals().files
