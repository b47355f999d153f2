"""What a compaction did with a stream, or would do, range by range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pravega_spark.engine.chunks.chunk import ColumnBounds, StagedChunk
from pravega_spark.values.segments import SegmentRange
from pravega_spark.values.units import count_text, size_text


@dataclass(frozen=True, slots=True)
class MergeRange:
    """A range of one segment whose chunks one process merges into one.

    ``is_head``: the range is the readable part of the chunk in which the head lies, and the merge
    drops what was truncated.
    """

    stream: str
    life: int
    segment_id: int
    start: int
    end: int
    files: int
    """Its chunks when it was planned."""
    size_bytes: int
    """Their sizes."""
    is_head: bool = False

    @property
    def events(self) -> SegmentRange:
        """The events that the merged chunk holds."""
        return SegmentRange(
            self.stream, life=self.life, segment_id=self.segment_id, start=self.start, end=self.end
        )

    def __str__(self) -> str:
        return str(self.events)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> MergeRange:
        """Decode the result of :meth:`to_json`."""
        return cls(**record)


@dataclass(frozen=True, slots=True)
class MergedRange:
    """What became of a range: a staged chunk that awaits its commit, or why there is none.

    Commit it soon: a sweep with a shorter grace deletes staged chunks that no commit names.
    """

    range: MergeRange
    chunk: StagedChunk | None = None
    staging_version: int = 0
    """The version whose folder holds the chunk."""
    inputs: tuple[str, ...] = ()
    """The paths of the chunks that it replaces, in offset order."""
    base_bytes: int = 0
    """Bytes of the segment's events before the range."""
    bytes_read: int = 0
    reason: str = ""
    """Why the range was left as it is."""
    is_damaged: bool = False
    """Whether that is because a chunk is damaged or lost."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> MergedRange:
        """Decode the result of :meth:`to_json`."""
        values = {**record, "range": MergeRange.from_json(record["range"])}
        values["inputs"] = tuple(record["inputs"])
        if record["chunk"] is not None:
            values["chunk"] = _chunk(record["chunk"])
        return cls(**values)


def _chunk(record: Mapping[str, Any]) -> StagedChunk:
    columns = record["columns"]
    return StagedChunk(**{**record, "columns": columns and ColumnBounds(*columns)})


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """A range that was left as it is, and why."""

    range: MergeRange
    reason: str
    is_damaged: bool = False
    """Whether a chunk of the range is damaged or lost: restore it from a copy."""

    def __str__(self) -> str:
        return f"{self.range}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did with one stream; of a dry run, what it would do."""

    stream: str
    dry_run: bool = False
    ranges: int = 0
    """Merged chunks, those at the head included."""
    heads: int = 0
    """Of these, the chunks at the head that were rewritten without their truncated events."""
    events: int = 0
    """Events in the merged chunks."""
    files_before: int = 0
    """Live chunks between head and tail before the run."""
    files_after: int = 0
    """The same without the chunks that the merged ones replace, and with these."""
    bytes_read: int = 0
    """Sizes of the chunks that were read."""
    bytes_written: int = 0
    """Sizes of the merged chunks; of a dry run, about what they would be."""
    appended_bytes: int = 0
    """Sizes of the files in which the merged events were appended."""
    lifetime_bytes: int = 0
    """Sizes of all files that were written for them: by appends, this run and earlier ones."""
    versions: tuple[int, ...] = ()
    """The versions of the log that the run committed."""
    skipped: tuple[SkippedRange, ...] = ()
    """Ranges that were planned and left as they are, such as those that another run merged."""

    @property
    def files_removed(self) -> int:
        """How many files the table has fewer."""
        return self.files_before - self.files_after

    @property
    def amplification(self) -> float:
        """Write amplification of the merged events: all bytes written over those of appends."""
        return self.lifetime_bytes / self.appended_bytes if self.appended_bytes else 1.0

    @property
    def damaged(self) -> tuple[SkippedRange, ...]:
        """The skipped ranges with a damaged or lost chunk."""
        return tuple(skipped for skipped in self.skipped if skipped.is_damaged)

    def plus(self, other: CompactionResult) -> CompactionResult:
        """Return what this and the next commit of the same run did together."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMMED}
        return replace(self, **sums)

    def __str__(self) -> str:
        verb = "would merge" if self.dry_run else "merged"
        text = (
            f"{self.stream}: {verb} {count_text(self.events, 'event')}; files "
            f"{self.files_before:,} -> "
            f"{self.files_after:,}; "
        )
        read, written = size_text(self.bytes_read), size_text(self.bytes_written)
        text += (
            f"would read {read}, and write about {written}"
            if self.dry_run
            else f"read {read}, wrote {written}"
        )
        return f"{text}; {len(self.skipped):,} ranges skipped" if self.skipped else text

    def row(self) -> dict[str, Any]:
        """Return the result as a flat JSON object, for the tables of jobs."""
        return {
            "stream": self.stream,
            "dry_run": self.dry_run,
            "ranges": self.ranges,
            "heads": self.heads,
            "events": self.events,
            "files_before": self.files_before,
            "files_after": self.files_after,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "amplification": round(self.amplification, 3),
            "versions": list(self.versions),
            "skipped": [str(skipped) for skipped in self.skipped],
            "damaged": len(self.damaged),
        }


_SUMMED = (
    "ranges",
    "heads",
    "events",
    "files_before",
    "files_after",
    "bytes_read",
    "bytes_written",
    "appended_bytes",
    "lifetime_bytes",
    "versions",
    "skipped",
)
