"""What a truncation decision depends on: one version of a stream, and its retention set. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.model import StreamCut
from pravega_spark.policies import LimitUnit, RetentionPolicy
from pravega_spark.retention.cut_bounds import upper_bound_of


@dataclass(frozen=True, slots=True)
class RetentionEntry:
    """The tail of a stream at one version, with the time in the version's commit.

    ``time_ms`` is in ms since 1970, ``size_bytes`` counts all bytes written up to the version. The
    age of an entry follows from ``RetentionSet.written_ms``, not from ``time_ms``.
    """

    version: int
    time_ms: int
    size_bytes: int
    cut: StreamCut
    sizes: Mapping[int, int] = field(default_factory=dict)
    """The bytes of each of the cut's segments before the cut."""


class RetentionSet(Protocol):
    """The entries of a stream, ordered by version, and so by time, size and cut."""

    def partition(
        self, is_before: Callable[[RetentionEntry], bool]
    ) -> tuple[RetentionEntry | None, RetentionEntry | None]:
        """Return the newest entry that passes a test, and the oldest one that fails it.

        The test must hold for all entries up to some entry, and for none after it.
        """

    def written_ms(self, entry: RetentionEntry) -> int:
        """Return a time by which all events before the entry were written."""


@dataclass(frozen=True, slots=True)
class TruncationInputs:
    """All that a truncation decision depends on.

    ``lower_bound`` is that of the subscribers' cuts, never below the head, or None without a
    subscriber that holds data; only a policy by consumption needs it. ``bytes_at(segment_id,
    offset)`` returns the bytes of a segment before an offset. ``offset_after(segment_id, start,
    end, size_bytes)`` returns the first offset from start to end with at least this many bytes of
    the segment before it. ``shared_state`` is the cut before the newest state of a state
    synchronizer, which no policy may pass.
    """

    layout: Layout
    policy: RetentionPolicy
    entries: RetentionSet
    lower_bound: LocatedCut | None
    now_ms: int
    bytes_at: Callable[[int, int], int]
    offset_after: Callable[[int, int, int, int], int]
    shared_state: LocatedCut | None = None

    @property
    def head(self) -> LocatedCut:
        """The stream's head."""
        return locate(self.layout, self.layout.head)

    @property
    def tail(self) -> LocatedCut:
        """The stream's tail."""
        return locate(self.layout, StreamCut.LATEST)

    def limited_amount(self, entry: RetentionEntry) -> int:
        """Return the amount that the policy limits: an entry's age, or the bytes after it."""
        if self.policy.unit is LimitUnit.TIME_MS:
            return self.now_ms - self.entries.written_ms(entry)
        return self.bytes_after_both(entry, self.head)

    def bytes_after(self, cut: LocatedCut) -> int:
        """Return the bytes between a cut and the tail."""
        return cut.bytes_to(self.tail, self.bytes_at)

    def bytes_after_both(self, entry: RetentionEntry, cut: LocatedCut) -> int:
        """Return the bytes that are both after an entry and after a cut."""

        def bytes_at(segment_id: int, offset: int) -> int:
            is_known = segment_id in entry.sizes and entry.cut.positions[segment_id] == offset
            return entry.sizes[segment_id] if is_known else self.bytes_at(segment_id, offset)

        return upper_bound_of(cut, self.cut_of(entry)).bytes_to(self.tail, bytes_at)

    def cut_of(self, entry: RetentionEntry) -> LocatedCut:
        """Return the entry's cut, located in this version."""
        return locate(self.layout, entry.cut)
