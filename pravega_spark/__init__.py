"""Pravega's streams as open Delta tables, without servers: the public names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pravega_spark.values.package import __version__ as __version__

if TYPE_CHECKING:
    from pravega_spark import errors
    from pravega_spark.backup.copy import CopiedTable
    from pravega_spark.backup.restore import RestoredTable
    from pravega_spark.backup.root_backup import BackupResult
    from pravega_spark.backup.root_restore import RestoreResult
    from pravega_spark.byte_streams.reader import ByteStreamReader
    from pravega_spark.byte_streams.writer import ByteStreamWriter
    from pravega_spark.compaction.result import CompactionResult, MergeRange, SkippedRange
    from pravega_spark.config.descriptions import (
        FileTotals,
        MaintenanceInfo,
        MaintenanceKind,
        StreamInfo,
        SubscriberInfo,
        TimeWindow,
        TransactionInfo,
        TransactionStatus,
        Watermark,
        WriterMark,
    )
    from pravega_spark.config.encryption import EncryptionPolicy
    from pravega_spark.config.policies import (
        LimitUnit,
        RetentionPolicy,
        RetentionType,
        ScalingPace,
        ScalingPolicy,
        ScalingType,
        StreamConfiguration,
        Unchanged,
    )
    from pravega_spark.config.root_settings import (
        EffectiveSettings,
        SettingOrigin,
        StreamSettings,
    )
    from pravega_spark.config.stream_schema import StreamSchema
    from pravega_spark.engine.key_management import set_kms
    from pravega_spark.engine.log.sweep import PendingFiles, SweepResult
    from pravega_spark.engine.runtime.principal import set_principal
    from pravega_spark.engine.stream.saved_cuts import SavedCut
    from pravega_spark.engine.stream.stored_bytes import StorageInfo, StorageKind, StoragePart
    from pravega_spark.engine.stream.table_schema import SchemaVersion
    from pravega_spark.engine.stream.truncation import TruncationResult
    from pravega_spark.engine.writing.append import ExpectedPosition
    from pravega_spark.engine.writing.encode import Serializer, json_serializer
    from pravega_spark.engine.writing.futures import WriteFuture
    from pravega_spark.engine.writing.outcomes import EventPointers
    from pravega_spark.errors import PravegaSparkError
    from pravega_spark.event_reader import EventReader, json_deserializer
    from pravega_spark.event_time.stream_time import StreamTime
    from pravega_spark.event_time.update import WatermarkUpdate
    from pravega_spark.event_writer import EventStreamWriter
    from pravega_spark.key_value.change_log import KeyChange, KeyChanges, TableChangeLog
    from pravega_spark.key_value.configuration import KeyValueTableConfiguration
    from pravega_spark.key_value.description import KeyValueTableInfo
    from pravega_spark.key_value.entry import KeyVersion, PutFuture, TableEntry
    from pravega_spark.key_value.key_value_table import KeyValueTable
    from pravega_spark.key_value.keys import KeyType
    from pravega_spark.key_value.reader import TableIterator, TableReader
    from pravega_spark.key_value.updates import TableInsert, TablePut, TableRemove
    from pravega_spark.maintenance.result import KindResult, MaintenanceResult, WorkOutcome
    from pravega_spark.manager import StreamManager
    from pravega_spark.metrics.prometheus import (
        ProcessMetrics,
        RootMetrics,
        root_metrics,
        start_metrics,
    )
    from pravega_spark.reader_groups.checkpoint_future import CheckpointFuture, GroupCheckpoint
    from pravega_spark.reader_groups.configuration import (
        GroupAcknowledgement,
        GroupRetention,
        ReaderGroupConfiguration,
        StreamCutRange,
    )
    from pravega_spark.reader_groups.description import (
        EndOfDataNotification,
        GroupLag,
        Notification,
        SegmentLag,
        SegmentNotification,
    )
    from pravega_spark.reader_groups.position import EventRead, EventsRead, Position
    from pravega_spark.reader_groups.reader import EventStreamReader
    from pravega_spark.reader_groups.reader_group import ReaderGroup
    from pravega_spark.reader_groups.state import SegmentKey
    from pravega_spark.retention.decision import RetentionEntry, RetentionRule
    from pravega_spark.retention.explanation import (
        DataAmount,
        PassedSubscriber,
        RetentionClaim,
        RetentionExplanation,
    )
    from pravega_spark.retention.run import RetentionResult
    from pravega_spark.retention.stream_retention import StreamRetention
    from pravega_spark.scaling.auto import StreamScaling
    from pravega_spark.schemas.fit import BadRow
    from pravega_spark.serializers import deserializer, serializer
    from pravega_spark.shared_state.revisioned_stream import (
        Revision,
        RevisionedStream,
        RevisionedValue,
    )
    from pravega_spark.shared_state.state_synchronizer import StateSynchronizer
    from pravega_spark.spark.frames.ranges import for_each_range
    from pravega_spark.spark.frames.reading import read_frame
    from pravega_spark.spark.frames.writing import write_frame
    from pravega_spark.spark.key_value.frame import key_value_frame, upsert_batches
    from pravega_spark.spark.lossless_json import row_json
    from pravega_spark.spark.monitor.lag_listener import StreamLagListener
    from pravega_spark.spark.monitor.query_lag import (
        QueryLag,
        QuerySegmentLag,
        SourceLag,
        query_lag,
    )
    from pravega_spark.spark.native.catalog import register
    from pravega_spark.spark.native.frame import frame, stream_frame
    from pravega_spark.spark.read.watermark import with_stream_watermark
    from pravega_spark.stream import Stream
    from pravega_spark.txn.joint import JointTransaction, JointWriter
    from pravega_spark.txn.sweeper import TransactionSweepResult
    from pravega_spark.txn.transaction import Transaction
    from pravega_spark.txn.writer import TransactionalWriter
    from pravega_spark.values.events import Deserializer, Event
    from pravega_spark.values.segments import (
        Epoch,
        EventPointer,
        KeyRange,
        Segment,
        SegmentInfo,
        SegmentRange,
        StreamCut,
    )


def session(builder: Any = None, *, delta: Any = True, **conf: Any) -> Any:
    """Return a SparkSession with the data source ``pravega``, and with Delta unless that is False.

    See :func:`pravega_spark.spark.session.session`; Spark is imported when this is called.
    """
    from pravega_spark.spark.session import session as make

    return make(builder, delta=delta, **conf)


__all__ = [
    "BackupResult",
    "BadRow",
    "ByteStreamReader",
    "ByteStreamWriter",
    "CheckpointFuture",
    "CompactionResult",
    "CopiedTable",
    "DataAmount",
    "Deserializer",
    "EffectiveSettings",
    "EncryptionPolicy",
    "EndOfDataNotification",
    "Epoch",
    "Event",
    "EventPointer",
    "EventPointers",
    "EventRead",
    "EventReader",
    "EventStreamReader",
    "EventStreamWriter",
    "EventsRead",
    "ExpectedPosition",
    "FileTotals",
    "GroupAcknowledgement",
    "GroupCheckpoint",
    "GroupLag",
    "GroupRetention",
    "JointTransaction",
    "JointWriter",
    "KeyChange",
    "KeyChanges",
    "KeyRange",
    "KeyType",
    "KeyValueTable",
    "KeyValueTableConfiguration",
    "KeyValueTableInfo",
    "KeyVersion",
    "KindResult",
    "LimitUnit",
    "MaintenanceInfo",
    "MaintenanceKind",
    "MaintenanceResult",
    "MergeRange",
    "Notification",
    "PassedSubscriber",
    "PendingFiles",
    "Position",
    "PravegaSparkError",
    "ProcessMetrics",
    "PutFuture",
    "QueryLag",
    "QuerySegmentLag",
    "ReaderGroup",
    "ReaderGroupConfiguration",
    "RestoreResult",
    "RestoredTable",
    "RetentionClaim",
    "RetentionEntry",
    "RetentionExplanation",
    "RetentionPolicy",
    "RetentionResult",
    "RetentionRule",
    "RetentionType",
    "Revision",
    "RevisionedStream",
    "RevisionedValue",
    "RootMetrics",
    "SavedCut",
    "ScalingPace",
    "ScalingPolicy",
    "ScalingType",
    "SchemaVersion",
    "Segment",
    "SegmentInfo",
    "SegmentKey",
    "SegmentLag",
    "SegmentNotification",
    "SegmentRange",
    "Serializer",
    "SettingOrigin",
    "SkippedRange",
    "SourceLag",
    "StateSynchronizer",
    "StorageInfo",
    "StorageKind",
    "StoragePart",
    "Stream",
    "StreamConfiguration",
    "StreamCut",
    "StreamCutRange",
    "StreamInfo",
    "StreamLagListener",
    "StreamManager",
    "StreamRetention",
    "StreamScaling",
    "StreamSchema",
    "StreamSettings",
    "StreamTime",
    "SubscriberInfo",
    "SweepResult",
    "TableChangeLog",
    "TableEntry",
    "TableInsert",
    "TableIterator",
    "TablePut",
    "TableReader",
    "TableRemove",
    "TimeWindow",
    "Transaction",
    "TransactionInfo",
    "TransactionStatus",
    "TransactionSweepResult",
    "TransactionalWriter",
    "TruncationResult",
    "Unchanged",
    "Watermark",
    "WatermarkUpdate",
    "WorkOutcome",
    "WriteFuture",
    "WriterMark",
    "deserializer",
    "errors",
    "for_each_range",
    "frame",
    "json_deserializer",
    "json_serializer",
    "key_value_frame",
    "query_lag",
    "read_frame",
    "register",
    "root_metrics",
    "row_json",
    "serializer",
    "session",
    "set_kms",
    "set_principal",
    "start_metrics",
    "stream_frame",
    "upsert_batches",
    "with_stream_watermark",
    "write_frame",
]

_HOMES = {
    "BackupResult": "backup.root_backup",
    "BadRow": "schemas.fit",
    "ByteStreamReader": "byte_streams.reader",
    "ByteStreamWriter": "byte_streams.writer",
    "CheckpointFuture": "reader_groups.checkpoint_future",
    "CompactionResult": "compaction.result",
    "CopiedTable": "backup.copy",
    "DataAmount": "retention.explanation",
    "Deserializer": "values.events",
    "EffectiveSettings": "config.root_settings",
    "EncryptionPolicy": "config.encryption",
    "EndOfDataNotification": "reader_groups.description",
    "Epoch": "values.segments",
    "Event": "values.events",
    "EventPointer": "values.segments",
    "EventPointers": "engine.writing.outcomes",
    "EventRead": "reader_groups.position",
    "EventReader": "event_reader",
    "EventStreamReader": "reader_groups.reader",
    "EventStreamWriter": "event_writer",
    "EventsRead": "reader_groups.position",
    "ExpectedPosition": "engine.writing.append",
    "FileTotals": "config.descriptions",
    "GroupAcknowledgement": "reader_groups.configuration",
    "GroupCheckpoint": "reader_groups.checkpoint_future",
    "GroupLag": "reader_groups.description",
    "GroupRetention": "reader_groups.configuration",
    "JointTransaction": "txn.joint",
    "JointWriter": "txn.joint",
    "KeyChange": "key_value.change_log",
    "KeyChanges": "key_value.change_log",
    "KeyRange": "values.segments",
    "KeyType": "key_value.keys",
    "KeyValueTable": "key_value.key_value_table",
    "KeyValueTableConfiguration": "key_value.configuration",
    "KeyValueTableInfo": "key_value.description",
    "KeyVersion": "key_value.entry",
    "KindResult": "maintenance.result",
    "LimitUnit": "config.policies",
    "MaintenanceInfo": "config.descriptions",
    "MaintenanceKind": "config.descriptions",
    "MaintenanceResult": "maintenance.result",
    "MergeRange": "compaction.result",
    "Notification": "reader_groups.description",
    "PassedSubscriber": "retention.explanation",
    "PendingFiles": "engine.log.sweep",
    "Position": "reader_groups.position",
    "PravegaSparkError": "errors",
    "ProcessMetrics": "metrics.prometheus",
    "PutFuture": "key_value.entry",
    "QueryLag": "spark.monitor.query_lag",
    "QuerySegmentLag": "spark.monitor.query_lag",
    "ReaderGroup": "reader_groups.reader_group",
    "ReaderGroupConfiguration": "reader_groups.configuration",
    "RestoreResult": "backup.root_restore",
    "RestoredTable": "backup.restore",
    "RetentionClaim": "retention.explanation",
    "RetentionEntry": "retention.decision",
    "RetentionExplanation": "retention.explanation",
    "RetentionPolicy": "config.policies",
    "RetentionResult": "retention.run",
    "RetentionRule": "retention.decision",
    "RetentionType": "config.policies",
    "Revision": "shared_state.revisioned_stream",
    "RevisionedStream": "shared_state.revisioned_stream",
    "RevisionedValue": "shared_state.revisioned_stream",
    "RootMetrics": "metrics.prometheus",
    "SavedCut": "engine.stream.saved_cuts",
    "ScalingPace": "config.policies",
    "ScalingPolicy": "config.policies",
    "ScalingType": "config.policies",
    "SchemaVersion": "engine.stream.table_schema",
    "Segment": "values.segments",
    "SegmentInfo": "values.segments",
    "SegmentKey": "reader_groups.state",
    "SegmentLag": "reader_groups.description",
    "SegmentNotification": "reader_groups.description",
    "SegmentRange": "values.segments",
    "Serializer": "engine.writing.encode",
    "SettingOrigin": "config.root_settings",
    "SkippedRange": "compaction.result",
    "SourceLag": "spark.monitor.query_lag",
    "StateSynchronizer": "shared_state.state_synchronizer",
    "StorageInfo": "engine.stream.stored_bytes",
    "StorageKind": "engine.stream.stored_bytes",
    "StoragePart": "engine.stream.stored_bytes",
    "Stream": "stream",
    "StreamConfiguration": "config.policies",
    "StreamCut": "values.segments",
    "StreamCutRange": "reader_groups.configuration",
    "StreamInfo": "config.descriptions",
    "StreamLagListener": "spark.monitor.lag_listener",
    "StreamManager": "manager",
    "StreamRetention": "retention.stream_retention",
    "StreamScaling": "scaling.auto",
    "StreamSchema": "config.stream_schema",
    "StreamSettings": "config.root_settings",
    "StreamTime": "event_time.stream_time",
    "SubscriberInfo": "config.descriptions",
    "SweepResult": "engine.log.sweep",
    "TableChangeLog": "key_value.change_log",
    "TableEntry": "key_value.entry",
    "TableInsert": "key_value.updates",
    "TableIterator": "key_value.reader",
    "TablePut": "key_value.updates",
    "TableReader": "key_value.reader",
    "TableRemove": "key_value.updates",
    "TimeWindow": "config.descriptions",
    "Transaction": "txn.transaction",
    "TransactionInfo": "config.descriptions",
    "TransactionStatus": "config.descriptions",
    "TransactionSweepResult": "txn.sweeper",
    "TransactionalWriter": "txn.writer",
    "TruncationResult": "engine.stream.truncation",
    "Unchanged": "config.policies",
    "Watermark": "config.descriptions",
    "WatermarkUpdate": "event_time.update",
    "WorkOutcome": "maintenance.result",
    "WriteFuture": "engine.writing.futures",
    "WriterMark": "config.descriptions",
    "deserializer": "serializers",
    "for_each_range": "spark.frames.ranges",
    "frame": "spark.native.frame",
    "json_deserializer": "event_reader",
    "json_serializer": "engine.writing.encode",
    "key_value_frame": "spark.key_value.frame",
    "query_lag": "spark.monitor.query_lag",
    "read_frame": "spark.frames.reading",
    "register": "spark.native.catalog",
    "root_metrics": "metrics.prometheus",
    "row_json": "spark.lossless_json",
    "serializer": "serializers",
    "set_kms": "engine.key_management",
    "set_principal": "engine.runtime.principal",
    "start_metrics": "metrics.prometheus",
    "stream_frame": "spark.native.frame",
    "upsert_batches": "spark.key_value.frame",
    "with_stream_watermark": "spark.read.watermark",
    "write_frame": "spark.frames.writing",
}
"""The module of each name; a name is imported on first use, since a Spark worker needs few."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name == "errors":
            return importlib.import_module("pravega_spark.errors")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"pravega_spark.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
