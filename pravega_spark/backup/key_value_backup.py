"""Copies a key-value table: its change log and its folded table, as of versions that fit.

The folded table is pinned first, so it reflects no later version of the change log than the one
that is copied. If a fold and a truncation came in between, the two versions do not fit, and both
are copied again; that costs little, since most files are there already.
"""

from __future__ import annotations

from pravega_spark.backup.table_backup import CopiedTable, TableCopier
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.log_reader import snapshot_at
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.version_pins import pin, release
from pravega_spark.engine.stream.folded_record import FoldedRecord, completes, has_folds
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import TooBusy

_ATTEMPTS = 16
"""How often a copy begins again because the change log was truncated between the two pins."""


def copy_key_value_table(copier: TableCopier, log: Log, folded: Log) -> tuple[CopiedTable, ...]:
    """Copy a change log and its folded table, if it has one, as ``copier`` copies one.

    The copy is exact at the version of the change log. Raises TooBusy if each time the change log
    was truncated in a moment, and what the copier raises.
    """
    seen = list[Snapshot]()
    for _ in range(_ATTEMPTS):
        kept = held = None
        if folded.refresh(durable=True) is not None:
            kept = copier.unchanged(folded)
            held = None if kept else pin(folded, copier.backup_id, keep_ms=copier.keep_ms)
        try:
            failpoint("backup.folded")
            done = copier.copy(log, seen=seen.append)
            at = kept or held
            version = None if at is None else at.version
            if not done.is_deleted and not _fit(seen[-1], folded, version):
                continue
            if version is None:
                return (done,)
            return done, kept or copier.copy(folded, held)
        finally:
            if held is not None:
                release(folded, held)
    raise TooBusy(
        f"{log.reader.where}: the table was folded, and its change log truncated, in each of "
        f"{_ATTEMPTS} moments between two commits of the backup. Run the backup again."
    )


def _fit(changes: Snapshot, folded: Log, version: int | None) -> bool:
    """Return whether the folded table holds at a version what the copied change log lacks."""
    view = StreamView(changes)
    if version is None:
        return not has_folds(view)
    return completes(FoldedRecord.of(snapshot_at(folded.reader, version)), view)
