"""Pravega's streams as open Delta tables, without servers: the public names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pravega_spark import errors
    from pravega_spark.backup.copying import CopiedTable
    from pravega_spark.backup.restore import RestoreResult
    from pravega_spark.backup.restoring import RestoredTable
    from pravega_spark.backup.root import BackupResult
    from pravega_spark.config import (
        RetentionPolicy,
        ScalingPace,
        ScalingPolicy,
        StreamConfiguration,
    )
    from pravega_spark.engine.records import SegmentRecord
    from pravega_spark.engine.sweeping import SweepResult
    from pravega_spark.engine.truncation import Truncated
    from pravega_spark.errors import PravegaSparkError
    from pravega_spark.manager import StreamManager
    from pravega_spark.model import (
        Epoch,
        Event,
        EventPointer,
        KeyRange,
        Segment,
        SegmentRange,
        StreamCut,
        StreamInfo,
        SubscriberInfo,
        TransactionInfo,
        TransactionStatus,
    )
    from pravega_spark.reader import EventReader, json_deserializer
    from pravega_spark.readers.configuration import GroupRetention, ReaderGroupConfiguration
    from pravega_spark.readers.future import GroupCheckpoint
    from pravega_spark.readers.group import ReaderGroup
    from pravega_spark.readers.lag import GroupLag, SegmentLag
    from pravega_spark.readers.notifications import EndOfDataNotification, SegmentNotification
    from pravega_spark.readers.position import EventRead, EventsRead, Position
    from pravega_spark.readers.reader import EventStreamReader
    from pravega_spark.spark.lag import QueryLag, StreamLagListener, query_lag
    from pravega_spark.txn.tending import Tended
    from pravega_spark.txn.transaction import Transaction
    from pravega_spark.txn.writer import TransactionalWriter
    from pravega_spark.writer import EventStreamWriter, json_serializer

__version__ = "0.1.0"


def session(builder: Any = None, **conf: Any) -> Any:
    """Return a SparkSession that knows Delta and the data source ``pravega``.

    See :func:`pravega_spark.spark.session.session`; Spark is imported when this is called.
    """
    from pravega_spark.spark.session import session as make

    return make(builder, **conf)


__all__ = [
    "BackupResult",
    "CopiedTable",
    "EndOfDataNotification",
    "Epoch",
    "Event",
    "EventPointer",
    "EventRead",
    "EventReader",
    "EventStreamReader",
    "EventStreamWriter",
    "EventsRead",
    "GroupCheckpoint",
    "GroupLag",
    "GroupRetention",
    "KeyRange",
    "Position",
    "PravegaSparkError",
    "QueryLag",
    "ReaderGroup",
    "ReaderGroupConfiguration",
    "RestoreResult",
    "RestoredTable",
    "RetentionPolicy",
    "ScalingPace",
    "ScalingPolicy",
    "Segment",
    "SegmentLag",
    "SegmentNotification",
    "SegmentRange",
    "SegmentRecord",
    "StreamConfiguration",
    "StreamCut",
    "StreamInfo",
    "StreamLagListener",
    "StreamManager",
    "SubscriberInfo",
    "SweepResult",
    "Tended",
    "Transaction",
    "TransactionInfo",
    "TransactionStatus",
    "TransactionalWriter",
    "Truncated",
    "errors",
    "json_deserializer",
    "json_serializer",
    "query_lag",
    "session",
]

_HOMES = {
    "BackupResult": "backup.root",
    "CopiedTable": "backup.copying",
    "EndOfDataNotification": "readers.notifications",
    "Epoch": "model",
    "Event": "model",
    "EventPointer": "model",
    "EventRead": "readers.position",
    "EventReader": "reader",
    "EventStreamReader": "readers.reader",
    "EventStreamWriter": "writer",
    "EventsRead": "readers.position",
    "GroupCheckpoint": "readers.future",
    "GroupLag": "readers.lag",
    "GroupRetention": "readers.configuration",
    "KeyRange": "model",
    "Position": "readers.position",
    "PravegaSparkError": "errors",
    "QueryLag": "spark.lag",
    "ReaderGroup": "readers.group",
    "ReaderGroupConfiguration": "readers.configuration",
    "RestoreResult": "backup.restore",
    "RestoredTable": "backup.restoring",
    "RetentionPolicy": "config",
    "ScalingPace": "config",
    "ScalingPolicy": "config",
    "Segment": "model",
    "SegmentLag": "readers.lag",
    "SegmentRange": "model",
    "SegmentNotification": "readers.notifications",
    "SegmentRecord": "engine.records",
    "StreamConfiguration": "config",
    "StreamCut": "model",
    "StreamInfo": "model",
    "StreamLagListener": "spark.lag",
    "StreamManager": "manager",
    "SubscriberInfo": "model",
    "SweepResult": "engine.sweeping",
    "Tended": "txn.tending",
    "Transaction": "txn.transaction",
    "TransactionInfo": "model",
    "TransactionStatus": "model",
    "TransactionalWriter": "txn.writer",
    "Truncated": "engine.truncation",
    "json_deserializer": "reader",
    "json_serializer": "writer",
    "query_lag": "spark.lag",
}
"""Where each name is: imported when it is asked for, as a worker of Spark needs few of them."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # with it in sight, no type checker would miss a name that does not exist

    def __getattr__(name: str) -> Any:
        if name == "errors":
            return importlib.import_module("pravega_spark.errors")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"pravega_spark.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
