"""The metadata tables of a root: its groups, joint transactions, tables and maintenance.

The metadata table ``JointTransactions``: one row for each transaction over several streams. A
transaction has a row from its begin until all of its streams and reader groups hold its outcome.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from functools import partial

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
)

from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.overdue_maintenance import overdue_maintenance
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.errors import Damaged, NoSuchStream, NoSuchTable
from pravega_spark.key_value.keys import KeyType
from pravega_spark.key_value.snapshot import TableSnapshot, table_snapshot
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.reader_groups import description
from pravega_spark.reader_groups.description import GroupVersion, SegmentPosition
from pravega_spark.reader_groups.settlement import GroupPositions
from pravega_spark.spark.monitor.metadata.table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
    utc_time,
)
from pravega_spark.txn.decision_log import open_decisions
from pravega_spark.txn.joint_sweep import joint_transactions
from pravega_spark.values.names import split_table, table_log


def _group_row(store: Store, group: GroupVersion, streams: Sequence[str]) -> Iterator[Row]:
    state = group.state
    yield {
        "scope": state.group.partition("/")[0],
        "group": state.group,
        "generation": state.generation,
        "state": state.phase.value,
        "retention": state.configuration.retention.value,
        "streams": sorted(state.lives),
        "readers": sorted(state.readers),
        "assigned": len(state.assigned),
        "unassigned": len(state.unassigned),
        "future": len(state.future),
        "at_end": state.is_at_end,
        "last_checkpoint": None if state.last_checkpoint is None else state.last_checkpoint.name,
        "checkpoints_under_way": sum(not c.is_complete for c in state.checkpoints),
        "version": group.version,
        "updated": utc_time(group.updated_ms),
        "configuration": json.dumps(state.configuration.to_json()),
    }


READER_GROUPS = MetadataTable(
    schema(
        scope=StringType(),
        group=StringType(),
        generation=LongType(),
        state=StringType(),
        retention=StringType(),
        streams=ArrayType(StringType()),
        readers=ArrayType(StringType()),
        assigned=IntegerType(),
        unassigned=IntegerType(),
        future=IntegerType(),
        at_end=BooleanType(),
        last_checkpoint=StringType(),
        checkpoints_under_way=IntegerType(),
        version=LongType(),
        updated=TimestampType(),
        configuration=StringType(),
    ),
    rows_of_group=_group_row,
)


def _lag_rows(store: Store, group: GroupVersion, streams: Sequence[str]) -> Iterator[Row]:
    state = description.with_heartbeats(store, group.state)
    opened = partial(open_stream, store)

    def look(stream: str) -> tuple[str | None, list[SegmentPosition]]:
        overdue = _overdue(opened(stream))
        return overdue, description.segment_positions(state, stream, opened)

    found = in_rounds(store, look, streams)
    for stream, (overdue, positions) in zip(streams, found, strict=True):
        for segment in positions:
            yield {
                "group": group.state.group,
                **name_columns(stream),
                "segment_id": segment.segment_id,
                **segment.to_record(),
                "overdue": overdue,
            }


def _overdue(stream: StreamLog) -> str | None:
    """Return which maintenance of a stream is overdue; None if none is, or without a stream."""
    try:
        texts = overdue_maintenance(stream, stream.view())
    except (NoSuchStream, Damaged):
        return None
    return "; ".join(texts.values()) or None


LAG = MetadataTable(
    schema(
        group=StringType(),
        scope=StringType(),
        stream=StringType(),
        segment=StringType(),
        segment_id=LongType(),
        state=StringType(),
        reader=StringType(),
        current_offset=LongType(),
        head_offset=LongType(),
        next_offset=LongType(),
        lag=LongType(),
        lag_bytes=LongType(),
        lag_seconds=DoubleType(),
        overdue=StringType(),
    ),
    rows_of_group=_lag_rows,
)


def _joint_rows(manager: StreamManager) -> Iterator[Row]:
    root = root_of(manager)
    for found in joint_transactions(open_decisions(*root), GroupPositions(*root)):
        yield {
            "transaction": found.transaction_id,
            "status": found.status.value,
            "streams": list(found.streams),
            "groups": list(found.groups),
            "pending": list(found.pending),
            "created": utc_time(found.created_ms),
            "age_seconds": found.age_seconds,
            "limit_seconds": found.limit_seconds,
            "decision": found.order,
        }


JOINT_TRANSACTIONS = MetadataTable(
    schema(
        transaction=StringType(),
        status=StringType(),
        streams=ArrayType(StringType()),
        groups=ArrayType(StringType()),
        pending=ArrayType(StringType()),
        created=TimestampType(),
        age_seconds=DoubleType(),
        limit_seconds=DoubleType(),
        decision=LongType(),
    ),
    rows_of_root=_joint_rows,
)


def _key_value_rows(manager: StreamManager) -> Iterator[Row]:
    store = open_store(manager.root)

    def row(table: str) -> Row | None:
        name = split_table(table)
        with contextlib.suppress(NoSuchTable):  # deleted since the names were listed
            return _row(*name, table_snapshot(open_stream(store, table_log(*name))))
        return None

    found = in_rounds(store, row, root_of(manager).in_scopes(manager.list_key_value_tables))
    yield from filter(None, found)


def _row(scope: str, table: str, found: TableSnapshot) -> Row:
    configuration = found.configuration
    folded = None if found.folded is None else found.folded.record
    return {
        "scope": scope,
        "table": table,
        "state": found.view.record.state.value,
        "key_type": KeyType(configuration.key_type).value,
        "secondary_key_length": configuration.secondary_key_length,
        "ttl": configuration.ttl,
        "tags": sorted(configuration.tags),
        "partitions": len(found.view.active.segments),
        "version": found.view.version,
        "unfolded_changes": found.changes,
        "unfolded_bytes": found.changed_bytes,
        "folded_version": None if folded is None else folded.log_version,
        "folded_at": None if folded is None else utc_time(folded.folded_ms),
        "folded_entries": 0 if folded is None else folded.rows,
        "folded_files": 0 if folded is None else folded.files,
        "folded_bytes": 0 if folded is None else folded.size_bytes,
    }


KEY_VALUE_TABLES = MetadataTable(
    schema(
        scope=StringType(),
        table=StringType(),
        state=StringType(),
        key_type=StringType(),
        secondary_key_length=LongType(),
        ttl=StringType(),
        tags=ArrayType(StringType()),
        partitions=LongType(),
        version=LongType(),
        unfolded_changes=LongType(),
        unfolded_bytes=LongType(),
        folded_version=LongType(),
        folded_at=TimestampType(),
        folded_entries=LongType(),
        folded_files=LongType(),
        folded_bytes=LongType(),
    ),
    rows_of_root=_key_value_rows,
)


def _maintenance_rows(manager: StreamManager) -> Iterator[Row]:
    for info in manager.maintenance():
        started_ms, finished_ms, until_ms = (
            info.started_ms,
            info.finished_ms,
            info.claimed_until_ms,
        )
        yield {
            "kind": info.kind.value,
            "scope": info.scope,
            "overdue": info.is_overdue,
            "started": None if started_ms is None else utc_time(started_ms),
            "finished": None if finished_ms is None else utc_time(finished_ms),
            "age_seconds": info.age_seconds,
            "interval_seconds": info.interval_seconds,
            "by": info.by,
            "streams": info.streams,
            "failed": info.failed,
            "failures": json.dumps(dict(info.failures)),
            "claimed_by": info.claimed_by,
            "claimed_until": None if until_ms is None else utc_time(until_ms),
            "streams_so_far": info.streams_so_far,
        }


MAINTENANCE = MetadataTable(
    schema(
        kind=StringType(),
        scope=StringType(),
        overdue=BooleanType(),
        started=TimestampType(),
        finished=TimestampType(),
        age_seconds=DoubleType(),
        interval_seconds=DoubleType(),
        by=StringType(),
        streams=LongType(),
        failed=LongType(),
        failures=StringType(),
        claimed_by=StringType(),
        claimed_until=TimestampType(),
        streams_so_far=LongType(),
    ),
    rows_of_root=_maintenance_rows,
)
