"""What one reader has found and not told its application yet; see ``finds``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pravega_spark.engine.layout.located_cut import ranges_text
from pravega_spark.errors import NoSuchStream, TruncatedData
from pravega_spark.model import SegmentRange
from pravega_spark.reader_groups.finds import finds_of
from pravega_spark.reader_groups.group_state import Find, GroupState, SegmentKey
from pravega_spark.reader_groups.group_table import Streams
from pravega_spark.reader_groups.reader_membership import ReaderMembership
from pravega_spark.reader_groups.segment_selector import SegmentSelector


class UntoldFinds:
    """Keeps the finds of a reader until it has raised each of them once."""

    def __init__(
        self, streams: Streams, membership: ReaderMembership, selector: SegmentSelector
    ) -> None:
        """Begin without any."""
        self._streams, self._membership, self._selector = streams, membership, selector
        self.untold = dict[int, Find]()

    def keep(self, state: GroupState) -> None:
        """Keep the new finds of a state, before the reader holds what the state assigns to it.

        Losses of events that the reader has handed out count as told.
        """
        membership = self._membership
        for number, found in finds_of(state, membership.reader_id, membership.number).items():
            if number not in membership.told and number not in self.untold:
                unread = self._unread(found)
                if unread is None:
                    self._has_told({number})
                else:
                    self.untold[number] = unread

    def _unread(self, found: Find) -> Find | None:
        """Return what is lost after the events that were handed out; None if nothing is."""
        lost = found.lost
        reports = self._membership.state.configuration.acknowledges_on_reading
        if lost is None or not len(lost) or not reports:
            return found
        key = SegmentKey(lost.stream, lost.segment_id)
        start = max(lost.start, self._selector.next_offsets.get(key, lost.start))
        return replace(found, lost=replace(lost, start=start)) if start < lost.end else None

    def _has_told(self, numbers: Collection[int]) -> None:
        self._membership.told |= set(numbers)
        self.untold = {n: f for n, f in self.untold.items() if n not in numbers}

    def tell(self) -> None:
        """Raise NoSuchStream for deleted streams, or TruncatedData for lost ranges, if any."""
        if not self.untold:
            return
        deleted = {n: f.stream for n, f in self.untold.items() if f.lost is None}
        lost = [f.lost for f in self.untold.values() if f.lost is not None]
        error = self._deleted(sorted(set(deleted.values()))) if deleted else self._truncated(lost)
        self._has_told(deleted or set(self.untold))
        raise error

    def _deleted(self, streams: Sequence[str]) -> NoSuchStream:
        return NoSuchStream(
            f"reader group {self._membership.state.group}: {', '.join(streams)} was deleted; the "
            "next call continues with the other streams. Update the group: remove it, and add it "
            "to read the stream that was created, or restored from a copy, under its name.",
            stream=streams[0],
        )

    def _truncated(self, lost: Sequence[SegmentRange]) -> TruncatedData:
        lives = {rng.stream: rng.life for rng in lost}
        views = {stream: self._streams(stream).known_view() for stream in sorted(lives)}
        heads = [view.head for s, view in views.items() if view.life == lives[s]]
        truncated = ", ".join(f"{s}{view.truncated_by}" for s, view in views.items())
        return TruncatedData(
            f"reader group {self._membership.state.group}: events were truncated before they were "
            f"read, in {truncated} ({ranges_text(lost)}); the next call continues at the head.",
            head=heads[0] if len(views) == len(heads) == 1 else None,
            lost=tuple(lost),
        )
