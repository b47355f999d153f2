"""The units of work of a compaction: frozen values that travel as JSON between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.delta_stats import ColumnBounds
from pravega_spark.model import SegmentRange


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
        return SegmentRange(self.stream, self.life, self.segment_id, self.start, self.end)

    def __str__(self) -> str:
        """Return the range as errors name it."""
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
