"""Copies a key-value table: its change log and its folded table, as of versions that fit.

The folded table is pinned first, so it reflects no later version of the change log than the one
that is copied. If a fold and a truncation came in between, the two versions do not fit, and both
are copied again; that costs little, since most files are there already.
"""

from __future__ import annotations

from collections.abc import Callable

from pravega_spark.backup.table_backup import CopiedTable, copy_table
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.log_reader import LogReader, snapshot_at
from pravega_spark.engine.log.version_pins import Pin, pin, release
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.folded_record import FoldedRecord, completes, has_folds
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import TooBusy

_ATTEMPTS = 16
"""How often a copy begins again because the change log was truncated between the two pins."""


def copy_key_value_table(
    log: Log,
    folded: Log,
    target: Store,
    pin_id: str,
    *,
    keep_ms: int,
    check: Callable[[], None],
    has_group: Callable[[str], bool],
) -> tuple[CopiedTable, ...]:
    """Copy a change log and its folded table, if it has one, as :func:`copy_table` copies one.

    The copy is exact at the version of the change log. Raises TooBusy if each time the change log
    was truncated in a moment, and what copy_table raises.
    """

    def copied(one: Log, held: Pin | None = None) -> CopiedTable:
        return copy_table(
            one, target, pin_id, keep_ms=keep_ms, check=check, has_group=has_group, held=held
        )

    for _ in range(_ATTEMPTS):
        held = (
            None if folded.refresh(durable=True) is None else pin(folded, pin_id, keep_ms=keep_ms)
        )
        try:
            failpoint("backup.folded")
            done = copied(log)
            if not done.is_deleted and not _fit(target, done, held, folded):
                continue
            if held is None:
                return (done,)
            return done, copied(folded, held)
        finally:
            if held is not None:
                release(folded, held)
    raise TooBusy(
        f"{log.reader.where}: the table was folded, and its change log truncated, in each of "
        f"{_ATTEMPTS} moments between two commits of the backup. Run the backup again."
    )


def _fit(target: Store, done: CopiedTable, held: Pin | None, folded: Log) -> bool:
    """Return whether the pinned folded table holds what the copied change log lacks."""
    view = StreamView(snapshot_at(LogReader(target, done.path), done.version))
    if held is None:
        return not has_folds(view)
    return completes(FoldedRecord.of(snapshot_at(folded.reader, held.version)), view)
