"""The metadata table ``JointTransactions``: one row for each transaction over several streams.

A transaction has a row from its begin until all of its streams and reader groups hold its outcome.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, TimestampType

from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.position_settlement import GroupPositions
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    schema,
    utc_time,
)
from pravega_spark.transactions.decision_log import open_decisions
from pravega_spark.transactions.joint_listing import joint_transactions


def _rows(manager: StreamManager) -> Iterator[Row]:
    decisions = open_decisions(manager._store, manager._runtime)
    positions = GroupPositions(manager._store, manager._runtime)
    for found in joint_transactions(decisions, positions):
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
    rows_of_root=_rows,
)
