"""Revision: a place between two values of a revisioned stream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering

from pravega_spark.arguments import shown
from pravega_spark.errors import InvalidInput
from pravega_spark.model import EventPointer


@total_ordering
@dataclass(frozen=True, slots=True)
class Revision:
    """How many values a revisioned stream had: its ``offset`` is the next value's.

    Revisions of one life of a stream are ordered. They travel between processes, pickled or as
    text, and carry the life, so none is ever valid for a stream that was created again.
    """

    stream: str
    life: int
    segment_id: int
    offset: int

    def __str__(self) -> str:
        """Return the canonical text, that of an event pointer."""
        return str(self.pointer)

    def __lt__(self, other: object) -> bool:
        """Compare by age; raise InvalidInput for a revision of another stream or life."""
        if not isinstance(other, Revision):
            return NotImplemented
        if self._log() != other._log():
            raise InvalidInput(
                f"the revisions {self} and {other} have no order: they are of different streams, "
                "lives or segments."
            )
        return self.offset < other.offset

    @property
    def pointer(self) -> EventPointer:
        """The pointer of the next value."""
        return EventPointer(self.stream, self.life, self.segment_id, self.offset)

    @classmethod
    def of(cls, revision: Revision | str) -> Revision:
        """Return a revision unchanged, or parse its text; raise InvalidInput for anything else."""
        if isinstance(revision, cls):
            return revision
        if not isinstance(revision, str):
            raise InvalidInput(f"a revision is a Revision or its text, got {shown(revision)}.")
        found = EventPointer.parse(revision)
        return cls(found.stream, found.life, found.segment_id, found.offset)

    def _log(self) -> tuple[str, int, int]:
        return self.stream, self.life, self.segment_id
