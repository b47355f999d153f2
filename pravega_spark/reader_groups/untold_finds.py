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
from pravega_spark.reader_groups.segment_selector import SegmentSelector, view_in_life


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
        """Raise NoSuchStream for a deleted stream, or TruncatedData for a stream's lost ranges.

        Each call tells the finds of one stream, so that the error has its head.
        """
        if not self.untold:
            return
        first = min(self.untold.values(), key=_order)
        mine = {n: f for n, f in self.untold.items() if _order(f) == _order(first)}
        lost = [found.lost for found in mine.values() if found.lost is not None]
        error = self._truncated(lost) if lost else self._deleted(first.stream)
        self._has_told(mine)
        raise error

    def _deleted(self, stream: str) -> NoSuchStream:
        return NoSuchStream(
            f"reader group {self._membership.state.group}: {stream} was deleted; the next call "
            "continues with the other streams. Update the group: remove it, and add it to read "
            "the stream that was created, or restored from a copy, under its name.",
            stream=stream,
        )

    def _truncated(self, lost: Sequence[SegmentRange]) -> TruncatedData:
        stream, life = lost[0].stream, lost[0].life
        # The newest view: a reader that took a loss over may know of no version that has it.
        view = view_in_life(self._streams(stream), life)
        truncated = stream if view is None else f"{stream}{view.truncated_by}"
        return TruncatedData(
            f"reader group {self._membership.state.group}: events were truncated before they were "
            f"read, in {truncated} ({ranges_text(lost)}); the next call continues at the head.",
            head=None if view is None else view.head,
            lost=tuple(lost),
        )


def _order(found: Find) -> tuple[bool, str, int]:
    """Return whether a find is a loss, and its stream and life: deletions are told first."""
    return found.lost is not None, found.stream, 0 if found.lost is None else found.lost.life
