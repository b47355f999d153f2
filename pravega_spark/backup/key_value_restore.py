"""Restores the folded table of a key-value table to a version that fits its change log.

The change log is restored first, and begins its next life. The folded table follows it into that
life by the last commit of its own restore. Until then the table cannot be opened, since its change
log says that there are folds.
"""

from __future__ import annotations

from dataclasses import replace

from pravega_spark.backup.new_life import continued_lives
from pravega_spark.backup.restore_point import IntactVersion
from pravega_spark.backup.table_restore import RestoredTable, restore_table
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.folded_record import FOLDED_DOMAIN, FoldedRecord, completes
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import InvalidStreamCut
from pravega_spark.names import folded_path


def restore_folded(
    store: Store, log_name: str, runtime: Runtime, change_log: RestoredTable
) -> RestoredTable:
    """Restore a folded table after its change log, and take it into the new life.

    Its version is the newest intact one that reflects nothing which the change log has dropped,
    and holds all that the change log was truncated by. Safe to kill and to repeat. Raises
    CorruptLog if there is none.
    """
    failpoint("restore.folded")
    path, life = folded_path(log_name), change_log.life
    if life is None:  # deleted, so its rows are of no use
        return restore_table(store, path, runtime)
    log = StreamLog(store, log_name, runtime)
    view = log.view()
    continued = continued_lives(log, view)

    def renewed(record: FoldedRecord | None) -> FoldedRecord | None:
        """Return the record in the new life; None if it tells nothing about it."""
        if record is None or record.is_ended:
            return None
        newest = continued.get(record.life, -1)
        return replace(record, life=life) if record.log_version <= newest else None

    def fits(snapshot: Snapshot) -> bool:
        try:
            return completes(renewed(FoldedRecord.of(snapshot)), view)
        except InvalidStreamCut:  # of a lost life that earlier releases gave the same number
            return False

    def is_done(snapshot: Snapshot) -> bool:
        record = FoldedRecord.of(snapshot)
        return renewed(record) in (None, record)

    def complete(
        intact: IntactVersion, body: Body, version: int, now_ms: int
    ) -> tuple[list[str], int | None]:
        record = renewed(FoldedRecord.of(intact.snapshot))
        if record is not None:
            body.domains = {FOLDED_DOMAIN: record.encode()}
        return [], None

    return restore_table(store, path, runtime, complete, fits, is_done)
