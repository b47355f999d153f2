"""The epochs of a stream's life, also those that truncations moved to its history.

The state keeps the epochs from the oldest that the head needs. A truncation writes older ones to
the table ``metadata/`` before it drops them, so every epoch of the life is in one of the two. The
first epoch of a life has the time of the creation, and the others are later. The numbers go on over
lives; the last epoch of a life never gets into the history, so an earlier life's do not follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from pravega_spark.engine.layout import epochs
from pravega_spark.engine.layout.epochs import Layout, epoch_at
from pravega_spark.engine.stream.history import read_history
from pravega_spark.engine.stream.past_epochs import epoch_of, layout_with, life_of
from pravega_spark.engine.stream.records import decode_epoch
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput, TruncatedData
from pravega_spark.values.checks import check_whole
from pravega_spark.values.segments import Epoch, Segment
from pravega_spark.values.times import utc_text


def is_by_time(
    start: int | None, end: int | None, start_ms: int | None, end_ms: int | None
) -> bool:
    """Return whether epochs are asked for by times; raise InvalidInput for impossible bounds."""
    given = {"start": start, "end": end, "start_ms": start_ms, "end_ms": end_ms}
    for name, value in given.items():
        if value is not None:
            check_whole(f"{name} of epochs", value)
    by_number, by_time = (start, end) != (None, None), (start_ms, end_ms) != (None, None)
    if by_number and by_time:
        raise InvalidInput(
            "epochs are asked for by numbers (start, end) or by times (start_ms, end_ms); give one "
            "of the two."
        )
    first, last = (start_ms, end_ms) if by_time else (start, end)
    if first is not None and last is not None and first > last:
        raise InvalidInput(
            f"the start of epochs, {first}, lies after the end, {last}; exchange them."
        )
    return by_time


def epochs_between(
    stream: StreamLog, view: StreamView, start: int | None = None, end: int | None = None
) -> tuple[Epoch, ...]:
    """Return the epochs of the view's life with numbers from ``start`` to ``end``, oldest first.

    None leaves a side open. The history is read only if the epochs begin before those of the view.
    """
    found = []
    for epoch in _newest_first(stream, view, view.active.number if end is None else end):
        if start is not None and epoch.number < start:
            break
        if end is None or epoch.number <= end:
            found.append(epoch)
        if start is not None and epoch.number == start:
            break
    return tuple(reversed(found))


def epochs_during(
    stream: StreamLog, view: StreamView, start_ms: int | None = None, end_ms: int | None = None
) -> tuple[Epoch, ...]:
    """Return the epochs that were active between two times in ms since 1970, oldest first.

    From the epoch at ``start_ms`` to that at ``end_ms``, both included (Pravega's scale metadata);
    before the creation of the stream the first epoch counts. None leaves a side open.
    """
    newest = view.active if end_ms is None else epoch_at(view, end_ms)
    found: list[Epoch] = []
    first = newest
    for epoch in _newest_first(stream, view, newest.number):
        first = epoch
        if end_ms is None or epoch.created_ms <= end_ms:
            found.append(epoch)
        if start_ms is not None and epoch.created_ms <= start_ms:
            break
    return tuple(reversed(found)) or (first,)


def segments_of(stream: StreamLog, view: StreamView, number: int) -> tuple[Segment, ...]:
    """Return the segments of an epoch of the view's life.

    Raises InvalidInput for an epoch that the life never had, and TruncatedData for one that even
    the history does not have.
    """
    if number >= view.oldest_epoch:
        return view.epoch(number).segments
    oldest = view.epoch(view.oldest_epoch)
    for epoch in _newest_first(stream, view, number):
        oldest = epoch
        if oldest.number == number:
            return oldest.segments
    if oldest.created_ms <= view.record.created_ms:
        raise InvalidInput(
            f"life {view.life} of stream {view.stream} begins with epoch {oldest.number}; epoch "
            f"{number} is not one of its own."
        )
    raise _forgotten_before(view, oldest, f"epoch {number}")


def segments_at(stream: StreamLog, view: StreamView, time_ms: int) -> tuple[Segment, ...]:
    """Return the segments that were open at a time in ms since 1970; time 0 means the head's.

    Before the creation of the stream the first epoch counts. Raises TruncatedData for a time of
    which even the history does not have the epoch.
    """
    if time_ms == 0:
        return epochs.segments_at(view, 0)
    wanted_ms = max(time_ms, view.record.created_ms)
    oldest = epoch_at(view, wanted_ms)
    if oldest.created_ms <= wanted_ms:
        return oldest.segments
    for epoch in _newest_first(stream, view, oldest.number):
        oldest = epoch
        if oldest.created_ms <= wanted_ms:
            return oldest.segments
    raise _forgotten_before(view, oldest, f"the segments at {utc_text(time_ms)} ({time_ms})")


def _forgotten_before(view: StreamView, oldest: Epoch, what: str) -> TruncatedData:
    created = f"{utc_text(oldest.created_ms)} ({oldest.created_ms})"
    return TruncatedData(
        f"stream {view.stream} does not know {what} any more: it was truncated, and its history "
        f"(the table metadata/) begins with epoch {oldest.number}, of {created}. Ask for that or a "
        "later one, or restore the table from a copy.",
        head=view.head,
    )


def epoch_times(
    stream: StreamLog, view: StreamView, numbers: Iterable[int | None]
) -> dict[int, int]:
    """Return when epochs began, by number, except for those that even the history does not have.

    The history is read only if one of them is not in the state.
    """
    wanted = {number for number in numbers if number is not None}
    older = [number for number in wanted if number < view.oldest_epoch]
    past = epochs_between(stream, view, min(older), view.oldest_epoch - 1) if older else ()
    kept = (view.epoch(number) for number in wanted if number >= view.oldest_epoch)
    return {epoch.number: epoch.created_ms for epoch in (*past, *kept)}


def layout_since(stream: StreamLog, view: StreamView, number: int) -> Layout | None:
    """Return a view with the epochs of its life from a number on; None if the history lacks one."""
    if number >= view.oldest_epoch:
        return view
    found = _forgotten(stream, view.life, view.oldest_epoch)
    rows = dict(takewhile(lambda row: row[0] >= number, found))
    return layout_with(stream, view, rows) if number in rows else None


def _newest_first(stream: StreamLog, view: StreamView, newest: int) -> Iterator[Epoch]:
    """Yield the epochs of the view's life from a number down to the first."""
    created_ms, oldest = view.record.created_ms, view.epoch(view.oldest_epoch)
    for number in range(min(newest, view.active.number), oldest.number, -1):
        yield view.epoch(number)
    yield oldest
    if oldest.created_ms > created_ms:
        for at, value in _forgotten(stream, view.life, oldest.number):
            epoch = decode_epoch(at, value)
            yield epoch
            if epoch.created_ms == created_ms:
                return


def _forgotten(stream: StreamLog, life: int, below: int) -> Iterator[tuple[int, str]]:
    """Yield numbers and rows of the history's epochs below one, up to the first that is missing.

    An epoch that is in the history twice, because a truncation was repeated, is what was appended
    last. A restored stream has epochs of the life that was copied: those of another life count
    where the stream's own life has none, since a late process may have written them.
    """
    known, copied = dict[int, str](), dict[int, str]()
    for rows in read_history(stream, "epoch"):
        for row in rows:
            found = known if life_of(row) in (life, None) else copied
            found.setdefault(epoch_of(row), row.value)
        while below - 1 in known:
            below -= 1
            yield below, known.pop(below)
    known = copied | known
    while below - 1 in known:
        below -= 1
        yield below, known.pop(below)
