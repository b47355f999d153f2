"""The epochs of a stream's life, also those that truncations moved to its history.

The state keeps the epochs from the oldest that the head needs. A truncation writes older ones to
the table ``metadata/`` before it drops them, so every epoch of the life is in one of the two. The
first epoch of a life has the time of the creation, and the others are later. The numbers go on over
lives; the last epoch of a life never gets into the history, so an earlier life's do not follow.
"""

from __future__ import annotations

from collections.abc import Iterator

from pravega_spark.engine.layout.epochs import epoch_at
from pravega_spark.engine.stream.history import read_history
from pravega_spark.engine.stream.past_epochs import life_of
from pravega_spark.engine.stream.records import EPOCH_PREFIX, decode_epoch
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput
from pravega_spark.values.checks import check_whole
from pravega_spark.values.segments import Epoch


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


def _newest_first(stream: StreamLog, view: StreamView, newest: int) -> Iterator[Epoch]:
    """Yield the epochs of the view's life from a number down to the first."""
    created_ms, oldest = view.record.created_ms, view.epoch(view.oldest_epoch)
    for number in range(min(newest, view.active.number), oldest.number, -1):
        yield view.epoch(number)
    yield oldest
    if oldest.created_ms > created_ms:
        for epoch in _forgotten(stream, view.life, oldest.number):
            yield epoch
            if epoch.created_ms == created_ms:
                return


def _forgotten(stream: StreamLog, life: int, below: int) -> Iterator[Epoch]:
    """Yield the epochs of the history from a number down, up to the first that is missing.

    An epoch that is in the history twice, because a truncation was repeated, is what was appended
    last. A restored stream has epochs of the life that was copied: those of another life count
    where the stream's own life has none, since a late process may have written them.
    """
    known, copied = dict[int, str](), dict[int, str]()
    for rows in read_history(stream, "epoch"):
        for row in rows:
            found = known if life_of(row) in (life, None) else copied
            found.setdefault(int(row.name.removeprefix(EPOCH_PREFIX)), row.value)
        while below - 1 in known:
            below -= 1
            yield decode_epoch(below, known.pop(below))
    known = copied | known
    while below - 1 in known:
        below -= 1
        yield decode_epoch(below, known.pop(below))
