"""Pravega's streams as open Delta tables, without servers: the public names."""

from __future__ import annotations

from typing import Any

from pravega_spark import errors
from pravega_spark.config import (
    RetentionPolicy,
    ScalingPace,
    ScalingPolicy,
    StreamConfiguration,
)
from pravega_spark.engine.records import SegmentRecord
from pravega_spark.engine.sweeping import SweepResult
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
    TransactionInfo,
    TransactionStatus,
)
from pravega_spark.reader import EventReader, json_deserializer
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
    "Epoch",
    "Event",
    "EventPointer",
    "EventReader",
    "EventStreamWriter",
    "KeyRange",
    "PravegaSparkError",
    "RetentionPolicy",
    "ScalingPace",
    "ScalingPolicy",
    "Segment",
    "SegmentRange",
    "SegmentRecord",
    "StreamConfiguration",
    "StreamCut",
    "StreamInfo",
    "StreamManager",
    "SweepResult",
    "Tended",
    "Transaction",
    "TransactionInfo",
    "TransactionStatus",
    "TransactionalWriter",
    "errors",
    "json_deserializer",
    "json_serializer",
    "session",
]
