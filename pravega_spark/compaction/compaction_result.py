"""What a compaction did with a stream, or would do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pravega_spark.compaction.merge_range import MergeRange
from pravega_spark.units import count_text, size_text


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """A range that was left as it is, and why."""

    range: MergeRange
    reason: str
    is_damaged: bool = False
    """Whether a chunk of the range is damaged or lost: restore it from a copy."""

    def __str__(self) -> str:
        """Return the range and the reason."""
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
        """Return a line for people."""
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
