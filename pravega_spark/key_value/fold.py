"""Folds a table: when it is due, and the merge of its change log into the folded table.

The order makes it safe to kill, to repeat and to run twice at once: first the files, then one
commit of the folded table with the cut that it reflects, and only then the publish by which
retention may truncate the change log up to that cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pravega_spark.engine.kinds import FOLD_SUBSCRIBER, log_title
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.clock import read_clock
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.read import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    DataLoss,
    GenerationMismatch,
    InvalidStreamCut,
    NoSuchSubscriber,
    TooBusy,
    TruncatedData,
)
from pravega_spark.key_value.changes import ChangeTimes, ranges_from
from pravega_spark.key_value.folded_record import FoldedRecord, check_present, unfolded_from
from pravega_spark.key_value.folded_table import FoldedState, FoldedTable, FoldResult
from pravega_spark.key_value.rows import ChangeSorter, entries_of_events
from pravega_spark.values.limits import (
    FOLD_AGE_MS,
    FOLD_CHANGED_BYTES,
    FOLD_CHANGED_PART,
    FOLD_CHANGES,
    FOLD_RUN_BYTES,
)
from pravega_spark.values.segments import SegmentRange, StreamCut

NEVER = 1 << 62
"""Not due until the log has a newer version."""
EXPIRED_PART = 4
"""A fold is due each ttl / 4, and writes a file again whose oldest entry expired that long ago."""


@dataclass(frozen=True, slots=True)
class FoldDue:
    """Whether a fold is due now, and otherwise at which time if the log stays as it is."""

    is_due: bool
    at_ms: int
    changed_bytes: int = 0
    """The changes since the last fold, keys included."""
    changes: int = 0
    """How many there are."""


def fold_due(
    view: StreamView, record: FoldedRecord | None, ttl_ms: int | None, now_ms: int
) -> FoldDue:
    """Decide by the newest version of the change log, and what the folded table reflects.

    A fold is due when the changes are many, by number or by bytes, or older than FOLD_AGE_MS: they
    are younger than the last fold. With a ttl it is due from time to time also without any change.
    """
    if record is None or record.life != view.life or record.cut is None:
        changed, since_ms = view.total_bytes, view.record.created_ms
        is_behind = any(offset > 0 for _, offset in view.tail)
    else:
        changed, since_ms = view.total_bytes - record.log_bytes, record.folded_ms
        is_behind = dict(view.tail.positions) != dict(record.cut)
    rows, size = (0, 0) if record is None else (record.rows, record.size_bytes)
    changes = _changes_since(view, record) if is_behind else 0
    is_large = changed >= max(FOLD_CHANGED_BYTES, FOLD_CHANGED_PART * size)
    if is_behind and (is_large or changes >= max(FOLD_CHANGES, FOLD_CHANGED_PART * rows)):
        return FoldDue(True, at_ms=now_ms, changed_bytes=changed, changes=changes)
    times = [NEVER]
    if is_behind:
        times.append(since_ms + FOLD_AGE_MS)
    if ttl_ms is not None and record is not None and record.rows:
        times.append(record.folded_ms + max(FOLD_AGE_MS, ttl_ms // EXPIRED_PART))
    at_ms = min(times)
    return FoldDue(at_ms <= now_ms, at_ms=at_ms, changed_bytes=changed, changes=changes)


def _changes_since(view: StreamView, record: FoldedRecord | None) -> int:
    """Return how many changes the log has after the fold, which was read after the view."""
    start = view.located_head
    if record is not None and record.life == view.life and record.cut is not None:
        if record.log_version > view.version:
            return 0
        cut = StreamCut(view.stream, view.life, record.cut)
        start = locate(view, unfolded_from(view, cut, is_newest=True)).above_head()
    return start.events_to(view.located_tail)


_ATTEMPTS = 16
"""How often a fold begins again because another one has overtaken it."""


@dataclass(frozen=True, slots=True)
class FoldOutcome:
    """What a fold did; ``merge`` is None if there was nothing to fold."""

    cut: StreamCut
    merge: FoldResult | None = None
    events: int = 0
    """Changes of the log that were read."""
    is_published: bool = False


def fold(
    stream: StreamLog,
    table: FoldedTable,
    *,
    ttl_ms: int | None = None,
    life: int | None = None,
    run_bytes: int = FOLD_RUN_BYTES,
) -> FoldOutcome:
    """Fold the changes up to the tail of the log, in bounded memory, and let the log be truncated.

    ``ttl_ms`` is that of the table: an entry is dropped when it is older by the time that is
    believed for deletions (``log.clock``), so late and never early. ``life`` is the one that the
    call is made for. A fold that another one overtakes begins again or changes nothing. Raises
    NoSuchStream and StaleIdentity if the life has ended, CorruptChunk and DataLoss, which name the
    file, and TooBusy if it was overtaken each time.
    """
    for _ in range(_ATTEMPTS):
        view = stream.view(life=life)
        ensure_subscribed(stream, view)
        failpoint("fold.view")
        state = table.read()
        if state is not None and state.life == view.life and state.log_version > view.version:
            continue  # another fold has committed since the view
        try:
            return _fold(stream, table, view=view, state=state, ttl_ms=ttl_ms, run_bytes=run_bytes)
        except (TruncatedData, DataLoss):
            if state is None and table.record() is None:
                raise
            if state is not None and table.record() == state.record:
                raise
    raise TooBusy(
        f"{log_title(stream.name)} was folded by other processes during each of "
        f"{_ATTEMPTS} attempts to fold it. Nothing is lost; the next round of maintenance folds it."
    )


def _fold(
    stream: StreamLog,
    table: FoldedTable,
    view: StreamView,
    state: FoldedState | None,
    ttl_ms: int | None,
    run_bytes: int,
) -> FoldOutcome:
    """Fold what a view holds beyond a state, which was read after the view."""
    known = view
    if state is not None and (state.life != view.life or state.record.is_ended):
        view = stream.view(life=view.life)  # a later life has begun, or this is the first fold
    is_continued = state is not None and state.life == view.life and not state.record.is_ended
    if not is_continued:
        check_present(known, stream.name)
    folded = state.cut if state is not None and is_continued else view.head
    expired_us = _expired_us(stream, ttl_ms)
    expired = _expired_files(state, expired_us, ttl_ms) if is_continued else []
    done = None
    cut = view.tail
    events = 0
    if expired or not is_continued or folded.positions != cut.positions:
        start = unfolded_from(view, folded, is_newest=True)
        with ChangeSorter(run_bytes) as sorter:
            for rng in ranges_from(start, view):
                for entries in dated_entries(stream, rng, has_ttl=ttl_ms is not None):
                    events += entries.num_rows
                    sorter.add(table.layout.rows_of_entries(entries))
            failpoint("fold.read")
            reflects = FoldedRecord(
                view.life,
                log_version=view.version,
                cut=cut.positions,
                log_bytes=view.total_bytes,
            )
            done = table.merge_rows(
                state,
                sorter.sorted(),
                reflects,
                expired_us=expired_us,
                expired_files=expired,
                check=lambda: stream.view(life=view.life),
            )
        if not done.is_committed:
            return FoldOutcome(cut, done, events)
    failpoint("fold.publish")
    return FoldOutcome(cut, done, events, _publish(stream, cut))


def ensure_subscribed(stream: StreamLog, view: StreamView) -> None:
    """Make the fold a subscriber of the log, so that retention truncates nothing it needs."""
    known = view.subscriber(FOLD_SUBSCRIBER)
    if known is None or known.removed:
        subscribers.subscribe(stream, FOLD_SUBSCRIBER, protect=True, life=view.life)


def _publish(stream: StreamLog, cut: StreamCut) -> bool:
    """Publish that the log is not needed before a cut; a later fold may have done so already."""
    try:
        return subscribers.publish(stream, FOLD_SUBSCRIBER, None, cut, life=cut.life)
    except (InvalidStreamCut, NoSuchSubscriber, GenerationMismatch):
        return False


def dated_entries(
    stream: StreamLog, rng: SegmentRange, *, has_ttl: bool, shared: bool = False
) -> Iterator[pa.Table]:
    """Yield the changes of a range of the log; with a ttl their times are those of the commits.

    Unless it is ``shared`` with other readers of the process, the read is of the storage itself.
    """
    times = ChangeTimes(stream, rng) if has_ttl else None
    columns = "offset", "timestamp", "event"
    for batch in read_range(stream, rng, columns=columns, shared=shared):
        times_us = None if times is None else times.of(batch)
        yield entries_of_events(rng.segment_id, batch, times_us)


def _expired_us(stream: StreamLog, ttl_ms: int | None) -> int | None:
    """Return the time up to which entries have expired, by the time believed for deletions."""
    if ttl_ms is None:
        return None
    return (read_clock(stream.store, stream.runtime).earliest_ms - ttl_ms) * 1_000


def _expired_files(
    state: FoldedState | None, expired_us: int | None, ttl_ms: int | None
) -> list[str]:
    """Return the files that are worth writing again for their expired entries."""
    if state is None or expired_us is None or ttl_ms is None:
        return []
    long_ago_us = expired_us - ttl_ms * 1_000 // EXPIRED_PART
    return [
        file.path
        for file in state.files
        if file.max_timestamp_us <= expired_us or file.min_timestamp_us <= long_ago_us
    ]
