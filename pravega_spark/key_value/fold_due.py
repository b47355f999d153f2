"""When a table is due to be folded: by how much its log has changed, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from pravega_spark.engine.stream.folded_record import FoldedRecord
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.limits import FOLD_AGE_MS, FOLD_CHANGED_BYTES, FOLD_CHANGED_PART

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


def fold_due(
    view: StreamView, record: FoldedRecord | None, ttl_ms: int | None, now_ms: int
) -> FoldDue:
    """Decide by the newest version of the change log, and what the folded table reflects.

    A fold is due when the changes are many, or older than FOLD_AGE_MS: they are younger than the
    last fold. With a ttl it is due from time to time also without any change.
    """
    if record is None or record.life != view.life or record.cut is None:
        changed, since_ms = view.total_bytes, view.record.created_ms
        is_behind = any(offset > 0 for _, offset in view.tail)
    else:
        changed, since_ms = view.total_bytes - record.log_bytes, record.folded_ms
        is_behind = dict(view.tail.positions) != dict(record.cut)
    size = 0 if record is None else record.size_bytes
    if is_behind and changed >= max(FOLD_CHANGED_BYTES, FOLD_CHANGED_PART * size):
        return FoldDue(True, now_ms, changed)
    times = [NEVER]
    if is_behind:
        times.append(since_ms + FOLD_AGE_MS)
    if ttl_ms is not None and record is not None and record.rows:
        times.append(record.folded_ms + max(FOLD_AGE_MS, ttl_ms // EXPIRED_PART))
    at_ms = min(times)
    return FoldDue(at_ms <= now_ms, at_ms, changed)
