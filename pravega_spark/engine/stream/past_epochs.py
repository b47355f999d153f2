"""A stream's version with epochs that a truncation moved to its history: what cuts there have lost.

An epoch in the history says its life, and the ends of its sealed segments; in both, it is final.
Releases up to 0.1.0 wrote neither, and the ends are in separate rows, which have no life. Such
rows are believed only in the first life of a name, where no other life can have written them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pravega_spark.engine.layout.epochs import Layout, Lineage, no_such_segment
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json, typed
from pravega_spark.engine.stream.history import HistoryOwner, HistoryRow, read_history
from pravega_spark.engine.stream.records import (
    EPOCH_PREFIX,
    SEGMENT_PREFIX,
    SegmentRecord,
    decode_epoch,
    decode_segment,
)
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog, DataLoss
from pravega_spark.primitives.lazy_property import lazy_property
from pravega_spark.values.segments import Epoch

FIRST_LIFE = 1


def epoch_row(view: StreamView, number: int) -> HistoryRow:
    """Return the row with which an epoch leaves the state of a stream."""
    name = f"{EPOCH_PREFIX}{number}"
    records = (view.segment(s) for s in view.epoch(number).segment_ids)
    ends = {str(r.segment_id): r.next_offset for r in records if r.is_sealed}
    value = {**json.loads(view.snapshot.domains[name]), "life": view.life, "ends": ends}
    return HistoryRow("epoch", view.version, name, to_json(value))


def life_of(row: HistoryRow) -> int | None:
    """Return the life of an epoch's row; None in one of a release up to 0.1.0."""
    life: int | None = json.loads(row.value).get("life")
    return life


class PastLayout:
    """A version of a stream with epochs of its history, up to the oldest one that it keeps."""

    def __init__(
        self, view: StreamView, epochs: Mapping[int, Epoch], ends: Mapping[int, int]
    ) -> None:
        """Take the epochs from the oldest one up to those of the view, and segments' ends."""
        self._view, self._epochs = view, epochs
        self.stream, self.life, self.oldest_epoch = view.stream, view.life, min(epochs)
        self.active, self.head, self.truncated_by = view.active, view.head, view.truncated_by
        self._records = dict[int, SegmentRecord]()
        for number in sorted(epochs):
            after = {s.segment_id for s in self.epoch(number + 1).segments}
            for segment in epochs[number].segments:
                segment_id = segment.segment_id
                if segment_id not in after and segment_id in ends:
                    end = ends[segment_id]
                    self._records[segment_id] = SegmentRecord(
                        segment_id=segment_id,
                        next_offset=end,
                        size_bytes=0,
                        sealed_epoch=number + 1,
                    )

    def epoch(self, number: int) -> Epoch:
        """Return an epoch of the view or of the history."""
        return self._epochs.get(number) or self._view.epoch(number)

    def segment(self, segment_id: int) -> SegmentRecord:
        """Return a segment's record, from the history without its bytes."""
        if self._view.has_segment(segment_id):
            return self._view.segment(segment_id)
        if segment_id not in self._records:
            raise no_such_segment(self, segment_id)
        return self._records[segment_id]

    def has_segment(self, segment_id: int) -> bool:
        """Return whether the view or the history has the segment's end."""
        return segment_id in self._records or self._view.has_segment(segment_id)

    @property
    def is_complete(self) -> bool:
        """Whether every segment of every epoch has a record."""
        return all(
            self.has_segment(segment_id)
            for epoch in self._epochs.values()
            for segment_id in epoch.segment_ids
        )

    def since(self, number: int) -> Layout | None:
        """Return this layout, which has all that the history has since its oldest epoch."""
        return self if number >= self.oldest_epoch else None

    @lazy_property
    def lineage(self) -> Lineage:
        """The successors and predecessors of segments."""
        return Lineage(self)


def past_layout(stream: HistoryOwner, view: StreamView, number: int) -> PastLayout | None:
    """Return a version of a stream with the epochs from a number on; None if one is unknown."""
    numbers = range(number, view.oldest_epoch)
    try:
        rows = {epoch_of(row): row.value for row in _epoch_rows(stream, view, numbers)}
        layout = layout_with(stream, view, rows) if len(rows) == len(numbers) else None
    except (CorruptLog, DataLoss, *DECODE_ERRORS):
        return None
    return layout if layout is not None and layout.is_complete else None


def layout_with(stream: HistoryOwner, view: StreamView, rows: Mapping[int, str]) -> PastLayout:
    """Return a version of a stream with the epochs of rows: their values, by number."""
    found = dict[int, Epoch]()
    ends = dict[int, int]()
    for number, value in rows.items():
        found[number] = decode_epoch(number, value)
        given = json.loads(value).get("ends")
        if given is None:
            given = _old_ends(stream, found[number])
        ends |= {int(s): typed(end, int) for s, end in given.items()}
    return PastLayout(view, found, ends)


def epoch_of(row: HistoryRow) -> int:
    """Return the number of the epoch that a row has."""
    return int(row.name.removeprefix(EPOCH_PREFIX))


def _epoch_rows(stream: HistoryOwner, view: StreamView, numbers: range) -> Iterator[HistoryRow]:
    """Yield one row for each of these epochs of the view's life that the history has."""
    wanted = set(numbers)
    for rows in read_history(stream, "epoch"):
        for row in rows:
            if epoch_of(row) in wanted and (life_of(row) or FIRST_LIFE) == view.life:
                wanted.remove(epoch_of(row))
                yield row
        if not wanted:
            return


def _old_ends(stream: HistoryOwner, epoch: Epoch) -> dict[str, int]:
    """Return the ends of an epoch's segments that have separate rows."""
    ends = dict[str, int]()
    names = {f"{SEGMENT_PREFIX}{s}": s for s in epoch.segment_ids}
    for rows in read_history(stream, "segment"):
        for row in rows:
            segment_id = names.pop(row.name, None)
            if segment_id is not None:
                ends[str(segment_id)] = decode_segment(segment_id, row.value).next_offset
        if not names:
            break
    return ends
