"""The metadata table ``KeyValueTables``: one row for each key-value table of the root."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql.types import ArrayType, LongType, StringType, TimestampType

from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.errors import NoSuchTable
from pravega_spark.key_value.table_key import KeyType
from pravega_spark.key_value.table_snapshot import TableSnapshot, table_snapshot
from pravega_spark.manager import StreamManager
from pravega_spark.names import split_table, table_log
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    schema,
    utc_time,
)


def _rows(manager: StreamManager) -> Iterator[Row]:
    store = open_store(manager.root)

    def row(table: str) -> Row | None:
        name = split_table(table)
        with contextlib.suppress(NoSuchTable):  # deleted since the names were listed
            return _row(*name, table_snapshot(open_stream(store, table_log(*name))))
        return None

    found = in_rounds(store, row, manager._in_scopes(manager.list_key_value_tables))
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
    rows_of_root=_rows,
)
