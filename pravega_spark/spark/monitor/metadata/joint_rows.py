"""The metadata table ``JointTransactions``: one row for each transaction over several streams.

A transaction has a row from its begin until all of its streams and reader groups hold its outcome.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, TimestampType

from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.errors import NoSuchStream, StaleIdentity
from pravega_spark.manager import StreamManager
from pravega_spark.model import TransactionStatus
from pravega_spark.reader_groups.position_settlement import GroupPositions
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    schema,
    utc_time,
)
from pravega_spark.transactions import settlement
from pravega_spark.transactions.decision_log import JointRecord, open_decisions


def _rows(manager: StreamManager) -> Iterator[Row]:
    decisions = open_decisions(manager._store, manager._runtime)
    records = decisions.read()
    if not records:
        return
    positions = GroupPositions(manager._store, manager._runtime)
    ages = VersionAges.read(decisions.log, keep=False)
    for token, record in sorted(records.items(), key=lambda item: item[1].version):
        created_ms = ages.written_ms(record.version)
        pending = [name for name, _ in record.participants if _is_pending(manager, record, name)]
        prepared = positions.prepared_readers(token, record.groups)
        pending += sorted({group for group, _ in prepared})
        yield {
            "transaction": token,
            "status": _status(record, pending).value,
            "streams": [name for name, _ in record.participants],
            "groups": record.groups,
            "pending": pending,
            "created": utc_time(created_ms),
            "age_seconds": max(0.0, (ages.now_ms - created_ms) / 1_000),
            "limit_seconds": record.limit_ms / 1_000,
            "decision": record.order,
        }


def _is_pending(manager: StreamManager, record: JointRecord, name: str) -> bool:
    """Return whether a stream's part is open: its log does not hold the outcome yet."""
    try:
        view = open_stream(manager.root, name).view(life=record.life_of(name))
    except (NoSuchStream, StaleIdentity):  # the end of the life settled the part
        return False
    return settlement.part_of(view, record.token) is not None


def _status(record: JointRecord, pending: list[str]) -> TransactionStatus:
    if record.order is None:
        return TransactionStatus.OPEN
    return TransactionStatus.COMMITTING if pending else TransactionStatus.COMMITTED


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
