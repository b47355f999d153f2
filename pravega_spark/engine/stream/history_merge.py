"""Merge the small files of a stream's history, in a commit that changes no row.

A sweep does this after each 16 appends. It decides on the newest version, so of two sweeps at the
same time one finds nothing to merge; an append in between stays as it is. A process that is killed
leaves staged files, which a later sweep deletes. Replaced files stay as long as other removed ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import pyarrow as pa

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.log.actions import Add, Body, Remove
from pravega_spark.engine.log.commit_log import Log, Proposal
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.history_table import (
    APPENDS_DOMAIN,
    append_counts,
    read_rows,
    stage_rows,
)
from pravega_spark.engine.stream.history_tiers import in_order, order_of, plan_merges
from pravega_spark.errors import CorruptLog, DataLoss
from pravega_spark.limits import HISTORY_MERGE_FILES

logger = own_logger(__name__)


def merge_history(log: Log) -> None:
    """Merge small files of a history if its known snapshot shows enough appends since the last.

    Costs no storage call otherwise.
    """
    if _is_due(log.snapshot):
        log.commit(partial(_decide, log))


def _is_due(snapshot: Snapshot | None) -> bool:
    appends, merged = append_counts(snapshot)
    return appends - merged >= HISTORY_MERGE_FILES


def _decide(log: Log, snapshot: Snapshot | None) -> Proposal[None]:
    if snapshot is None or not _is_due(snapshot):
        return None, None
    with log.files() as files:
        live = sorted(in_order(files.all()), key=_kind)
    now_ms = log.clock.now_ms()
    adds: list[Add] = []
    removes: list[Remove] = []
    for kind, found in groupby(live, _kind):
        for group in plan_merges(list(found)):
            for inputs, rows in _intact(log, group):
                order = order_of(inputs[-1])
                adds.append(stage_rows(log, kind, rows, snapshot.version, now_ms, order=order))
                removes += [Remove.of(add, now_ms, data_change=False) for add in inputs]
    failpoint("history.merged")
    appends, _ = append_counts(snapshot)
    metrics = {
        "numRemovedFiles": len(removes),
        "numRemovedBytes": sum(remove.size for remove in removes),
        "numAddedFiles": len(adds),
        "numAddedBytes": sum(add.size for add in adds),
    }
    domains = {APPENDS_DOMAIN: to_json([appends, appends])}
    return Body("COMPACT", {}, metrics, domains, adds, removes), None


def _kind(add: Add) -> str:
    return add.partition["record"]


def _intact(log: Log, group: Sequence[Add]) -> Iterator[tuple[Sequence[Add], pa.Table]]:
    """Yield the files of a group with their rows; without damaged files, in several parts."""
    tables = log.runtime.each(partial(_rows_of, log), group)
    damaged = [at for at, table in enumerate(tables) if table is None]
    if not damaged:
        yield group, pa.concat_tables(tables)
        return
    start = 0
    for end in (*damaged, len(group)):
        for part in plan_merges(group[start:end]):
            yield from _intact(log, part)
        start = end + 1


def _rows_of(log: Log, add: Add) -> pa.Table | None:
    try:
        return read_rows(log, add)
    except (DataLoss, CorruptLog) as error:
        logger.warning(
            "left a file of %s as it is: %s",
            log.reader.where,
            error,
            extra=log_fields("sweep", log.path),
        )
        return None
