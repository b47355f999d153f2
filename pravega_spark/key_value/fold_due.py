"""When a table is due to be folded: by how much its log has changed, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.folded_record import FoldedRecord, unfolded_from
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.limits import (
    FOLD_AGE_MS,
    FOLD_CHANGED_BYTES,
    FOLD_CHANGED_PART,
    FOLD_CHANGES,
)
from pravega_spark.model import StreamCut

NEVER = 1 << 62
"""Not due until the log has a newer version."""
EXPIRED_PART = 4
"""A fold is due each ttl / 4, and writes a file again whose oldest entry expired so long ago."""


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
        return FoldDue(True, now_ms, changed, changes)
    times = [NEVER]
    if is_behind:
        times.append(since_ms + FOLD_AGE_MS)
    if ttl_ms is not None and record is not None and record.rows:
        times.append(record.folded_ms + max(FOLD_AGE_MS, ttl_ms // EXPIRED_PART))
    at_ms = min(times)
    return FoldDue(at_ms <= now_ms, at_ms, changed, changes)


def _changes_since(view: StreamView, record: FoldedRecord | None) -> int:
    """Return how many changes the log has after the fold, which was read after the view."""
    start = view.located_head
    if record is not None and record.life == view.life and record.cut is not None:
        if record.log_version > view.version:
            return 0
        cut = StreamCut(view.stream, view.life, record.cut)
        start = locate(view, unfolded_from(view, cut, is_newest=True)).above_head()
    return start.events_to(view.located_tail)
