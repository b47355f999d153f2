"""Who has read a segment of a group: its last owners, and where each of them began.

By these records a reader can be taken back to a position that it returned a while ago, or a caller
learns why not: another reader has had the segment since, or no record says that none had. A record
is of one segment and one generation; updates of the group keep it, a reset begins it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pravega_spark.values.limits import KEPT_OWNERS


class Owner(NamedTuple):
    """A reader that acquired a segment: the number of that ownership, and where it began."""

    reader: str
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Owners:
    """The last owners of a segment, oldest first; all of those whose number is at least ``since``.

    One from which the next owner took over at the offset where it began itself has acknowledged
    nothing, and is left out. So the offsets ascend.
    """

    last: tuple[Owner, ...] = ()
    since: int = 0

    def acquired(self, owner: Owner) -> Owners:
        """Return the record after another acquisition, with no more owners than are kept."""
        known = (*self.back_at(owner.offset).last, owner)
        dropped = known[:-KEPT_OWNERS]
        since = dropped[-1].number + 1 if dropped else self.since
        return Owners(known[-KEPT_OWNERS:], since)

    def back_at(self, offset: int) -> Owners:
        """Return the record after the group went back to an offset: who began later has no part."""
        return Owners(tuple(owner for owner in self.last if owner.offset < offset), self.since)

    def run_of(self, reader: str) -> int | None:
        """Return the offset from which this reader alone has had the segment, up to the present."""
        found = None
        for owner in reversed(self.last):
            if owner.reader != reader:
                break
            found = owner.offset
        return found

    def had_by(self, reader: str, start: int, reached: int) -> list[tuple[int, int]]:
        """Return what a reader has had from an offset on, in a segment that was read so far.

        Nobody knows who had the events before the first owner, so they count.
        """
        ends = [*(owner.offset for owner in self.last), reached]
        pairs = zip(self.last, ends[1:], strict=True)
        had = [(0, ends[0]), *((o.offset, end) for o, end in pairs if o.reader == reader)]
        return [(max(first, start), end) for first, end in had if max(first, start) < end]

    def begun(self, reader: str, number: int) -> int | None:
        """Return where the reader's first ownership with this number or a later one began."""
        later = (o.offset for o in self.last if o.reader == reader and o.number >= number)
        return next(later, None)

    def is_only(self, reader: str) -> bool:
        """Return whether nobody else has ever had the segment."""
        return not self.since and all(owner.reader == reader for owner in self.last)
