"""The story of a stream's layout as rows of its history: each epoch and each segment of its lives.

A row says all that is known of one epoch or segment, and the newest row of a name counts. A scale
adds its rows after its commit, and the process of a rolling commit does it in the background, since
a transaction does not wait for that. So a process that is killed in between leaves rows out, as
releases up to 0.1.0 leave out all of them. A copy of the table may also have rows of epochs that
the copy of the log lacks. Therefore every append to a history compares the rows with the log, adds
what is missing, and marks as void what the log does not have. So does each sweep.

The table's log says up to which epoch the rows are known to be right (``Noted``). Mostly the stream
has only gone on from there, and then no row is read. Else all rows are read and compared. Nothing
in this package decides by these rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.epoch_history import epochs_between
from pravega_spark.engine.stream.history import (
    Addition,
    HistoryRow,
    append_history,
    read_history,
)
from pravega_spark.engine.stream.records import EPOCH_PREFIX, SEGMENT_PREFIX, StreamState
from pravega_spark.engine.stream.segment_history import sealed_ms
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import NoSuchStream, PravegaSparkError, StaleIdentity
from pravega_spark.values.limits import LAYOUT_ROWS_SECONDS
from pravega_spark.values.segments import Epoch, Segment, segment_epoch

LAYOUT = "layout"
"""The kind of these rows."""
LAYOUT_DOMAIN = "pravega.layout"
"""Domain of a history: the state of the stream up to which its rows of this kind are right."""

logger = own_logger(__name__)

Values = dict[str, list[Any]]
"""The values of rows, by their names; the first item of a value is its kind."""


class Noted(NamedTuple):
    """The newest epoch that the rows have, when it began and was sealed, and the newest version."""

    life: int
    epoch: int
    created_ms: int
    sealed_ms: int | None
    version: int

    @classmethod
    def of(cls, view: StreamView, version: int) -> Noted:
        """Return what rows of a view have."""
        record, active = view.record, view.active
        sealed = record.sealed_ms if record.state is StreamState.SEALED else None
        return cls(view.life, active.number, active.created_ms, sealed, version)

    @property
    def is_sealed(self) -> bool:
        """Whether nothing follows in this life."""
        return self.sealed_ms is not None

    @property
    def age(self) -> tuple[int, int, bool]:
        """What grows while a stream goes on."""
        return self.life, self.epoch, self.is_sealed

    def leads_to(self, view: StreamView) -> bool:
        """Return whether the view is of the same life, later, and still has the epoch."""
        if self.life != view.life or self.is_sealed:
            return False
        if not view.oldest_epoch <= self.epoch <= view.active.number:
            return False
        return view.epoch(self.epoch).created_ms == self.created_ms


def append_rows(
    stream: StreamLog, view: StreamView, rows: Sequence[HistoryRow], log: Log | None = None
) -> None:
    """Append rows to a stream's history in one commit, with the rows of the layout that it lacks.

    If it cannot be found out which ones it lacks, the given rows are appended all the same. ``log``
    is that of the history, if it is open.
    """

    def missing(snapshot: Snapshot | None) -> Addition:
        try:
            return _missing(stream, view, snapshot)
        except (PravegaSparkError, *DECODE_ERRORS) as error:
            _report(stream, error)
            return (), {}

    append_history(stream, rows, missing, log)


def note_layout(stream: StreamLog, view: StreamView, log: Log | None = None) -> None:
    """Append the rows of the layout that the stream's history lacks; commit nothing without any.

    A failure is a line of the log: the commits that the rows are about are valid anyway, and the
    next append to the history makes up for it.
    """
    failpoint("layout.committed")
    try:
        append_history(stream, (), partial(_missing, stream, view), log)
    except (PravegaSparkError, *DECODE_ERRORS) as error:
        _report(stream, error)


def note_layout_later(stream: StreamLog, life: int) -> None:
    """Do the same about a second later in the background, on the view that is newest then.

    Meanwhile the stream may be closed: it is not kept open for that.
    """
    store, name, runtime = stream.store, stream.name, stream.runtime

    def note() -> None:
        stream = open_stream(store, name, runtime)
        try:
            note_layout(stream, stream.view(life=life))
        except PravegaSparkError as error:  # its life has ended, or the storage does not answer
            _report(stream, error)

    runtime.later(LAYOUT_ROWS_SECONDS, note)


def _report(stream: StreamLog, error: Exception) -> None:
    is_over = isinstance(error, (NoSuchStream, StaleIdentity))  # deleted meanwhile
    logger.log(
        logging.DEBUG if is_over else logging.WARNING,
        "the history of stream %s may lack rows of its layout until the next scale or sweep: %s",
        stream.name,
        error,
        extra=log_fields("append history", stream.name),
    )


def _missing(stream: StreamLog, view: StreamView, snapshot: Snapshot | None) -> Addition:
    cells = None if snapshot is None else snapshot.get(LAYOUT_DOMAIN)
    noted = None if cells is None else Noted(*cells)
    if noted is not None and noted.age > Noted.of(view, 0).age:
        view = stream.view()  # rows follow their commit: now the view has it, or the log never had
    version = view.version if noted is None else max(view.version, noted.version + 1)
    reached = Noted.of(view, version)
    if noted is not None and noted[:-1] == reached[:-1]:
        return (), {}
    values = _since(view, noted) if noted is not None and noted.leads_to(view) else None
    if values is None:
        values = _differences(stream, view)
    rows = [HistoryRow(LAYOUT, version, name, to_json(value)) for name, value in values.items()]
    return rows, {LAYOUT_DOMAIN: to_json(list(reached))}


def _since(view: StreamView, noted: Noted) -> Values | None:
    """Return what changed since an epoch; None if the state lacks the time of a segment."""
    later = [view.epoch(number) for number in range(noted.epoch + 1, view.active.number + 1)]
    before = view.epoch(noted.epoch)
    ended = [s for s in before.segments if view.segment(s.segment_id).is_sealed]
    opened = [s for epoch in later for s in epoch.segments if s.epoch == epoch.number]
    if any(segment.epoch < view.oldest_epoch for segment in ended):
        return None
    values = {_epoch_name(epoch.number): _epoch_value(view.life, epoch) for epoch in later}
    times = {number: view.epoch(number).created_ms for number in _kept_numbers(view)}
    return values | {_segment_name(s): _kept_value(view, s, times) for s in (*ended, *opened)}


def _kept_numbers(view: StreamView) -> range:
    return range(view.oldest_epoch, view.active.number + 1)


def _differences(stream: StreamLog, view: StreamView) -> Values:
    """Return the values that differ from the newest rows, after reading all of them."""
    known = _newest_values(stream)
    epochs = epochs_between(stream, view)
    wanted = dict(_whole_story(view, epochs, known))
    first, life = epochs[0].number, view.life
    for name, value in known.items():
        is_told = value[0] != "void" and value[1] >= life and _epoch_of(name) >= first
        if is_told and name not in wanted:
            wanted[name] = ["void", life]
    return {name: value for name, value in wanted.items() if value != known.get(name)}


def _newest_values(stream: StreamLog) -> Values:
    newest = dict[str, HistoryRow]()
    for rows in read_history(stream, LAYOUT):
        for row in rows:
            if row.name not in newest or newest[row.name].version < row.version:
                newest[row.name] = row
    return {name: json.loads(row.value) for name, row in newest.items()}


def _whole_story(
    view: StreamView, epochs: Sequence[Epoch], known: Values
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the rows of all epochs of a life, oldest first, and of their segments.

    The state does not have the segments of the oldest epochs any more, with their sizes; a row that
    agrees on when the segment was sealed has them.
    """
    times = {epoch.number: epoch.created_ms for epoch in epochs}
    for epoch in epochs:
        yield _epoch_name(epoch.number), _epoch_value(view.life, epoch)
    for epoch, following in pairwise(epochs):
        after = set(following.segment_ids)
        for segment in epoch.segments:
            if segment.segment_id not in after and not view.has_segment(segment.segment_id):
                name = _segment_name(segment)
                sealed = following.number, following.created_ms
                value = _segment_value(view.life, segment, times, sealed, (None, None))
                yield name, _with_sizes(value, known.get(name))
    kept = {s.segment_id: s for epoch in epochs for s in epoch.segments}
    for segment_id, segment in kept.items():
        if view.has_segment(segment_id):
            yield _segment_name(segment), _kept_value(view, segment, times)


def _with_sizes(value: list[Any], known: list[Any] | None) -> list[Any]:
    is_same = known is not None and known[2:9] == value[2:9]
    return [*value[:9], *known[9:]] if known is not None and is_same else value


def _kept_value(view: StreamView, segment: Segment, times: Mapping[int, int]) -> list[Any]:
    """Return the row of a segment that the state has."""
    record = view.segment(segment.segment_id)
    if record.sealed_epoch is None:
        return _segment_value(view.life, segment, times, (None, None), (None, None))
    ended_ms = sealed_ms(view, segment.segment_id, record.sealed_epoch, times)
    sealed, sizes = (record.sealed_epoch, ended_ms), (record.next_offset, record.size_bytes)
    return _segment_value(view.life, segment, times, sealed, sizes)


Pair = tuple[int | None, int | None]


def _segment_value(
    life: int, segment: Segment, times: Mapping[int, int], sealed: Pair, sizes: Pair
) -> list[Any]:
    low, high = segment.key_range.low, segment.key_range.high
    begun = segment.segment_id, segment.epoch, low, high, times.get(segment.epoch)
    return ["segment", life, *begun, *sealed, *sizes]


def _epoch_value(life: int, epoch: Epoch) -> list[Any]:
    made = epoch.created_ms, epoch.splits, epoch.merges
    return ["epoch", life, epoch.number, epoch.reference, *made]


def _epoch_name(number: int) -> str:
    return f"{EPOCH_PREFIX}{number}"


def _segment_name(segment: Segment) -> str:
    return f"{SEGMENT_PREFIX}{segment.segment_id}"


def _epoch_of(name: str) -> int:
    """Return the epoch that a row of an epoch or of a segment begins with."""
    if name.startswith(EPOCH_PREFIX):
        return int(name.removeprefix(EPOCH_PREFIX))
    return segment_epoch(int(name.removeprefix(SEGMENT_PREFIX)))
