"""The sink of key-value tables: frames of puts and removals, each in one commit and exactly once.

It is the sink of the change log with other columns. Spark gives the rows of a frame no order, so
two rows of one key in one write are refused, unless the caller says that the last one wins. Tasks
stage the hashes of their keys for that, if these are many; the driver deletes them, or a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import (
    BinaryType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.root_marker import is_away
from pravega_spark.engine.stream.stream_log import events_path, open_stream
from pravega_spark.engine.writing.append import read_staged
from pravega_spark.errors import InvalidInput, NoSuchTable, StoreError
from pravega_spark.key_value.changes import decode_change
from pravega_spark.key_value.entry import translated
from pravega_spark.key_value.keys import TableKey
from pravega_spark.key_value.shared_table import key_codec
from pravega_spark.spark.key_value.columns import UpsertColumns
from pravega_spark.spark.key_value.key_hashes import (
    KeyHashes,
    StoredRun,
    hashes_that_come_twice,
)
from pravega_spark.spark.key_value.settings import TableWriteSettings, configuration_of
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.versions import WriterCommitMessage
from pravega_spark.spark.write.messages import TaskCommitMessage, complete
from pravega_spark.spark.write.plan import StagingPlan
from pravega_spark.spark.write.sink import PravegaBatchWriter, PravegaStreamWriter
from pravega_spark.spark.write.target import FramePlan

_Write = Callable[[Iterator[pa.RecordBatch]], TaskCommitMessage]
_SUSPECTS = 65_536
"""Hashes whose keys are looked for at a time, so that few keys are in memory."""
_EVENTS = StructType(
    [
        StructField("routing_key", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("event", BinaryType()),
    ]
)


@dataclass
class UpsertMessage(TaskCommitMessage):
    """The chunks that one task staged, and the hashes of the keys in them."""

    hashes: bytes = b""
    runs: list[StoredRun] = field(default_factory=list)
    """Those that are stored, since they are many."""


class _Upsert:
    """What both writers have in common: rows become events, and their keys must differ."""

    def __init__(self, settings: TableWriteSettings, schema: StructType) -> None:
        self.sink: WriteSettings = replace(
            settings.sink, routing_key="routing_key", event_time="timestamp"
        )
        self._table = settings.table
        self._is_last_winner = settings.is_last_winner
        self._frame = schema
        self._found: UpsertColumns | None = None
        try:
            self._found = self._find()
        except NoSuchTable:  # as of a stream, the tasks know whether its root must be there
            if not is_away(open_store(self.sink.root)):
                raise

    def _find(self) -> UpsertColumns:
        configuration = configuration_of(self.sink.root, self.sink.stream)
        return UpsertColumns.of(self._frame, self._table, configuration)

    @property
    def _columns(self) -> UpsertColumns:
        self._found = self._found or self._find()
        return self._found

    def stage(
        self, write: _Write, rows: Iterator[pa.RecordBatch], plan: StagingPlan
    ) -> UpsertMessage:
        """Stage a task's rows as events by the sink's ``write``, which follows the plan."""
        folder = f"{events_path(plan.stream)}/data/{plan.folder}"
        hashes = KeyHashes(open_store(plan.root), folder)
        with translated():
            done = write(self._events(rows, hashes))
            few = hashes.finish()
        return UpsertMessage(
            done.life, done.version, done.chunks, task=done.task, hashes=few, runs=hashes.runs
        )

    def _events(
        self, rows: Iterator[pa.RecordBatch], hashes: KeyHashes
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as events, and add the hashes of their keys to the others."""
        for batch in rows:
            if not batch.num_rows:
                continue
            events, keys = self._columns.changes(batch)
            if not self._is_last_winner:
                hashes.add(keys)
            yield events

    def check(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        found = [message for message in complete(messages) if isinstance(message, UpsertMessage)]
        store, runs = open_store(self.sink.root), [run for m in found for run in m.runs]
        twice = hashes_that_come_twice(store, [message.hashes for message in found], runs)
        parts = (
            part[at : at + _SUSPECTS] for part in twice for at in range(0, len(part), _SUSPECTS)
        )
        keys = (self._first_twice(found, part) for part in parts)
        key = next((key for key in keys if key is not None), None)
        if runs:
            with suppress(StoreError):  # a sweep deletes them
                store.delete([run.key for run in runs])
        if key is None:
            return
        codec = key_codec(self._table, self._columns.configuration)
        name: Any = codec.decode(key.primary)
        raise InvalidInput(
            "the frame has two rows of one key, such as "
            f"{name!r}{f' with secondary key {key.secondary!r}' if codec.has_secondary else ''}, "
            f"and Spark gives rows no order; nothing was written to table {self._table}. Keep one "
            "row for each key, such as groupBy(key).agg(max_by(value, time)); or set "
            "duplicateKeys to last if the last one in the order of the frame's partitions is to "
            "win."
        )

    def _first_twice(
        self, messages: Sequence[UpsertMessage], hashes: NDArray[np.uint64]
    ) -> TableKey | None:
        """Return a key that is there twice, read from the staged chunks.

        None if different keys have one hash.
        """
        seen, suspects = set[TableKey](), set(hashes.tolist())
        stream = open_stream(self.sink.root, self.sink.stream)
        view = stream.view()
        for chunk in (chunk for message in messages for chunk in message.chunks):
            for batch in read_staged(stream, view, chunk, ["event"]):
                for payload in batch.column("event"):
                    key, _ = decode_change(payload.as_py())
                    if self._columns.hash_of(key) in suspects:
                        if key in seen:
                            return key
                        seen.add(key)
        return None


class TableBatchWriter(PravegaBatchWriter):
    """Writes a frame of changes in one commit; with txnAppId and txnVersion at most once."""

    def __init__(self, settings: TableWriteSettings, schema: StructType) -> None:
        """Check the frame's columns and make the plan, on the driver."""
        self._upsert = _Upsert(settings, schema)
        with translated():
            super().__init__(self._upsert.sink, _EVENTS)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """Stage one partition; runs in a task."""
        with translated():
            self._plan = self._in_task()
        return self._upsert.stage(super().write, iterator, self._plan.staging)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the changes of all partitions, in the order of the partitions."""
        with translated():
            self._upsert.check(messages)
            super().commit(messages)


class TableStreamWriter(PravegaStreamWriter):
    """Writes the micro-batches of a streaming query, each in one commit and exactly once."""

    def __init__(self, settings: TableWriteSettings, schema: StructType) -> None:
        """Check the frame's columns."""
        self._upsert = _Upsert(settings, schema)
        super().__init__(self._upsert.sink, _EVENTS)

    def _on_driver(self) -> FramePlan | None:
        with translated():
            return super()._on_driver()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """Stage one partition of a micro-batch; runs in a task."""
        with translated():
            self._plan = self._in_task()
        return self._upsert.stage(super().write, iterator, self._plan.staging)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch; skip one that the table already has."""
        with translated():
            self._upsert.check(messages)
            super().commit(messages, batchId)
