"""Pravega's streams as open Delta tables, without servers: the public names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pravega_spark import errors
    from pravega_spark.backup.root_backup import BackupResult
    from pravega_spark.backup.root_restore import RestoreResult
    from pravega_spark.backup.table_backup import CopiedTable
    from pravega_spark.backup.table_restore import RestoredTable
    from pravega_spark.byte_streams.byte_reader import ByteStreamReader
    from pravega_spark.byte_streams.byte_writer import ByteStreamWriter
    from pravega_spark.compaction.compaction_result import CompactionResult, SkippedRange
    from pravega_spark.compaction.merge_range import MergeRange
    from pravega_spark.encryption_policy import EncryptionPolicy
    from pravega_spark.engine.key_management import set_kms
    from pravega_spark.engine.log.table_sweep import PendingFiles, SweepResult
    from pravega_spark.engine.principal import set_principal
    from pravega_spark.engine.stream.saved_cuts import SavedCut
    from pravega_spark.engine.stream.stored_bytes import StorageInfo, StorageKind, StoragePart
    from pravega_spark.engine.stream.table_schema import SchemaVersion
    from pravega_spark.engine.stream.truncation import TruncationResult
    from pravega_spark.engine.writing.append_condition import ExpectedPosition
    from pravega_spark.engine.writing.event_encoder import Serializer, json_serializer
    from pravega_spark.engine.writing.write_futures import WriteFuture
    from pravega_spark.engine.writing.write_outcomes import EventPointers
    from pravega_spark.errors import PravegaSparkError
    from pravega_spark.event_reader import EventReader, json_deserializer
    from pravega_spark.event_time.stream_time import StreamTime
    from pravega_spark.event_time.watermark_update import WatermarkUpdate
    from pravega_spark.event_writer import EventStreamWriter
    from pravega_spark.key_value.key_value_table import KeyValueTable
    from pravega_spark.key_value.put_future import PutFuture
    from pravega_spark.key_value.table_change_log import KeyChange, KeyChanges, TableChangeLog
    from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
    from pravega_spark.key_value.table_entry import KeyVersion, TableEntry
    from pravega_spark.key_value.table_key import KeyType
    from pravega_spark.key_value.table_reader import TableIterator, TableReader
    from pravega_spark.key_value.table_update import TableInsert, TablePut, TableRemove
    from pravega_spark.maintenance.maintenance_result import KindResult, MaintenanceResult
    from pravega_spark.maintenance.work_outcome import WorkOutcome
    from pravega_spark.manager import StreamManager
    from pravega_spark.metrics.prometheus_export import (
        ProcessMetrics,
        RootMetrics,
        root_metrics,
        start_metrics,
    )
    from pravega_spark.model import (
        Deserializer,
        Epoch,
        Event,
        EventPointer,
        FileTotals,
        KeyRange,
        MaintenanceInfo,
        MaintenanceKind,
        Segment,
        SegmentInfo,
        SegmentRange,
        StreamCut,
        StreamInfo,
        SubscriberInfo,
        TimeWindow,
        TransactionInfo,
        TransactionStatus,
        Watermark,
        WriterMark,
    )
    from pravega_spark.policies import (
        LimitUnit,
        RetentionPolicy,
        RetentionType,
        ScalingPace,
        ScalingPolicy,
        ScalingType,
        StreamConfiguration,
        Unchanged,
    )
    from pravega_spark.reader_groups.checkpoint_future import CheckpointFuture, GroupCheckpoint
    from pravega_spark.reader_groups.group_configuration import (
        GroupAcknowledgement,
        GroupRetention,
        ReaderGroupConfiguration,
        StreamCutRange,
    )
    from pravega_spark.reader_groups.group_lag import GroupLag, SegmentLag
    from pravega_spark.reader_groups.group_reader import EventStreamReader
    from pravega_spark.reader_groups.group_state import SegmentKey
    from pravega_spark.reader_groups.notifications import (
        EndOfDataNotification,
        Notification,
        SegmentNotification,
    )
    from pravega_spark.reader_groups.position import EventRead, EventsRead, Position
    from pravega_spark.reader_groups.reader_group import ReaderGroup
    from pravega_spark.retention.explanation import (
        DataAmount,
        PassedSubscriber,
        RetentionClaim,
        RetentionExplanation,
    )
    from pravega_spark.retention.retention_run import RetentionResult
    from pravega_spark.retention.stream_retention import StreamRetention
    from pravega_spark.retention.truncation_decision import RetentionRule
    from pravega_spark.root_settings import EffectiveSettings, SettingOrigin, StreamSettings
    from pravega_spark.scaling.stream_scaling import StreamScaling
    from pravega_spark.schemas.table_fit import BadRow
    from pravega_spark.serializers import deserializer, serializer
    from pravega_spark.shared_state.revision import Revision
    from pravega_spark.shared_state.revisioned_stream import RevisionedStream, RevisionedValue
    from pravega_spark.shared_state.state_synchronizer import StateSynchronizer
    from pravega_spark.spark.key_value.table_frame import key_value_frame, upsert_batches
    from pravega_spark.spark.lossless_json import row_json
    from pravega_spark.spark.monitor.lag_listener import StreamLagListener
    from pravega_spark.spark.monitor.query_lag import (
        QueryLag,
        QuerySegmentLag,
        SourceLag,
        query_lag,
    )
    from pravega_spark.spark.native.catalog_registration import register
    from pravega_spark.spark.native.native_frame import frame, stream_frame
    from pravega_spark.spark.read.stream_watermark import with_stream_watermark
    from pravega_spark.stream import Stream
    from pravega_spark.stream_schema import StreamSchema
    from pravega_spark.transactions.joint_transaction import JointTransaction
    from pravega_spark.transactions.joint_writer import JointWriter
    from pravega_spark.transactions.sweeper import TransactionSweepResult
    from pravega_spark.transactions.transaction import Transaction
    from pravega_spark.transactions.transactional_writer import TransactionalWriter

__version__ = "0.2.0"


def session(builder: Any = None, **conf: Any) -> Any:
    """Return a SparkSession with Delta and the data source ``pravega``.

    See :func:`pravega_spark.spark.session.session`; Spark is imported when this is called.
    """
    from pravega_spark.spark.session import session as make

    return make(builder, **conf)


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
    "frame",
    "json_deserializer",
    "json_serializer",
    "key_value_frame",
    "query_lag",
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
]

_HOMES = {
    "BackupResult": "backup.root_backup",
    "BadRow": "schemas.table_fit",
    "ByteStreamReader": "byte_streams.byte_reader",
    "ByteStreamWriter": "byte_streams.byte_writer",
    "CheckpointFuture": "reader_groups.checkpoint_future",
    "CompactionResult": "compaction.compaction_result",
    "CopiedTable": "backup.table_backup",
    "DataAmount": "retention.explanation",
    "Deserializer": "model",
    "EffectiveSettings": "root_settings",
    "EncryptionPolicy": "encryption_policy",
    "EndOfDataNotification": "reader_groups.notifications",
    "Epoch": "model",
    "Event": "model",
    "EventPointer": "model",
    "EventPointers": "engine.writing.write_outcomes",
    "EventRead": "reader_groups.position",
    "EventReader": "event_reader",
    "EventStreamReader": "reader_groups.group_reader",
    "EventStreamWriter": "event_writer",
    "EventsRead": "reader_groups.position",
    "ExpectedPosition": "engine.writing.append_condition",
    "FileTotals": "model",
    "GroupAcknowledgement": "reader_groups.group_configuration",
    "GroupCheckpoint": "reader_groups.checkpoint_future",
    "GroupLag": "reader_groups.group_lag",
    "GroupRetention": "reader_groups.group_configuration",
    "JointTransaction": "transactions.joint_transaction",
    "JointWriter": "transactions.joint_writer",
    "KeyChange": "key_value.table_change_log",
    "KeyChanges": "key_value.table_change_log",
    "KeyRange": "model",
    "KeyType": "key_value.table_key",
    "KeyValueTable": "key_value.key_value_table",
    "KeyValueTableConfiguration": "key_value.table_configuration",
    "KeyVersion": "key_value.table_entry",
    "KindResult": "maintenance.maintenance_result",
    "LimitUnit": "policies",
    "MaintenanceInfo": "model",
    "MaintenanceKind": "model",
    "MaintenanceResult": "maintenance.maintenance_result",
    "MergeRange": "compaction.merge_range",
    "Notification": "reader_groups.notifications",
    "PassedSubscriber": "retention.explanation",
    "PendingFiles": "engine.log.table_sweep",
    "Position": "reader_groups.position",
    "PravegaSparkError": "errors",
    "ProcessMetrics": "metrics.prometheus_export",
    "PutFuture": "key_value.put_future",
    "QueryLag": "spark.monitor.query_lag",
    "QuerySegmentLag": "spark.monitor.query_lag",
    "ReaderGroup": "reader_groups.reader_group",
    "ReaderGroupConfiguration": "reader_groups.group_configuration",
    "RestoreResult": "backup.root_restore",
    "RestoredTable": "backup.table_restore",
    "RetentionClaim": "retention.explanation",
    "RetentionExplanation": "retention.explanation",
    "RetentionPolicy": "policies",
    "RetentionResult": "retention.retention_run",
    "RetentionRule": "retention.truncation_decision",
    "RetentionType": "policies",
    "Revision": "shared_state.revision",
    "RevisionedStream": "shared_state.revisioned_stream",
    "RevisionedValue": "shared_state.revisioned_stream",
    "RootMetrics": "metrics.prometheus_export",
    "SavedCut": "engine.stream.saved_cuts",
    "ScalingPace": "policies",
    "ScalingPolicy": "policies",
    "ScalingType": "policies",
    "SchemaVersion": "engine.stream.table_schema",
    "Segment": "model",
    "SegmentInfo": "model",
    "SegmentKey": "reader_groups.group_state",
    "SegmentLag": "reader_groups.group_lag",
    "SegmentNotification": "reader_groups.notifications",
    "SegmentRange": "model",
    "Serializer": "engine.writing.event_encoder",
    "SettingOrigin": "root_settings",
    "SkippedRange": "compaction.compaction_result",
    "SourceLag": "spark.monitor.query_lag",
    "StateSynchronizer": "shared_state.state_synchronizer",
    "StorageInfo": "engine.stream.stored_bytes",
    "StorageKind": "engine.stream.stored_bytes",
    "StoragePart": "engine.stream.stored_bytes",
    "Stream": "stream",
    "StreamConfiguration": "policies",
    "StreamCut": "model",
    "StreamCutRange": "reader_groups.group_configuration",
    "StreamInfo": "model",
    "StreamLagListener": "spark.monitor.lag_listener",
    "StreamManager": "manager",
    "StreamRetention": "retention.stream_retention",
    "StreamScaling": "scaling.stream_scaling",
    "StreamSchema": "stream_schema",
    "StreamSettings": "root_settings",
    "StreamTime": "event_time.stream_time",
    "SubscriberInfo": "model",
    "SweepResult": "engine.log.table_sweep",
    "TableChangeLog": "key_value.table_change_log",
    "TableEntry": "key_value.table_entry",
    "TableInsert": "key_value.table_update",
    "TableIterator": "key_value.table_reader",
    "TablePut": "key_value.table_update",
    "TableReader": "key_value.table_reader",
    "TableRemove": "key_value.table_update",
    "TimeWindow": "model",
    "Transaction": "transactions.transaction",
    "TransactionInfo": "model",
    "TransactionStatus": "model",
    "TransactionSweepResult": "transactions.sweeper",
    "TransactionalWriter": "transactions.transactional_writer",
    "TruncationResult": "engine.stream.truncation",
    "Unchanged": "policies",
    "Watermark": "model",
    "WatermarkUpdate": "event_time.watermark_update",
    "WorkOutcome": "maintenance.work_outcome",
    "WriteFuture": "engine.writing.write_futures",
    "WriterMark": "model",
    "deserializer": "serializers",
    "frame": "spark.native.native_frame",
    "json_deserializer": "event_reader",
    "json_serializer": "engine.writing.event_encoder",
    "key_value_frame": "spark.key_value.table_frame",
    "query_lag": "spark.monitor.query_lag",
    "register": "spark.native.catalog_registration",
    "root_metrics": "metrics.prometheus_export",
    "row_json": "spark.lossless_json",
    "serializer": "serializers",
    "set_kms": "engine.key_management",
    "set_principal": "engine.principal",
    "start_metrics": "metrics.prometheus_export",
    "stream_frame": "spark.native.native_frame",
    "upsert_batches": "spark.key_value.table_frame",
    "with_stream_watermark": "spark.read.stream_watermark",
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
