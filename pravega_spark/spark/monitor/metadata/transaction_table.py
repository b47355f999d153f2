"""The metadata table ``Transactions``: one row for each open or recently completed transaction."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, TimestampType

from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.manager import StreamManager
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
    utc_time,
)
from pravega_spark.transactions import transaction_leases, transaction_lifecycle


def _transaction_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    stream = open_stream(manager.root, name)
    view = begun_view(stream)
    extended_ms, now_ms = transaction_leases.extended_ms(stream, view), stream.now_ms()
    for info in [*manager.list_transactions(name), *manager.list_completed_transactions(name)]:
        row = {
            **name_columns(name),
            "transaction": info.transaction_id,
            "status": info.status.value,
            "writer": info.writer_id,
            "epoch": transaction_lifecycle.epoch_of(info.transaction_id),
            "created": utc_time(info.created_ms),
            "events": info.events,
            "size_bytes": info.size_bytes,
            "reason": info.reason,
        }
        if info.ended_ms:
            row |= {"ended": utc_time(info.ended_ms), "version": info.version}
        elif info.transaction_id in view.transactions:
            opened = view.transactions[info.transaction_id]
            row["lease_seconds"] = opened.lease_ms / 1_000
            row["joint"] = opened.token if opened.is_joint else None
        if info.transaction_id in extended_ms:
            age_ms = now_ms - extended_ms[info.transaction_id]
            row["lease_age_seconds"] = max(0.0, age_ms / 1_000)
        yield row


TRANSACTIONS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        transaction=StringType(),
        status=StringType(),
        writer=StringType(),
        epoch=IntegerType(),
        created=TimestampType(),
        ended=TimestampType(),
        lease_seconds=DoubleType(),
        lease_age_seconds=DoubleType(),
        events=LongType(),
        size_bytes=LongType(),
        version=LongType(),
        reason=StringType(),
        joint=StringType(),
    ),
    rows_of_stream=_transaction_rows,
)
