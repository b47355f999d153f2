"""The sink of badRecords=dlq: rows that fit go to the stream, the others to ``<stream>-dlq``.

Both are staged by the same tasks. The driver commits the rows and then the dead letters, each in
its own stream. With a number (a micro-batch, or txnAppId and txnVersion) each commit takes effect
once, however often the write is repeated: a driver that dies between the two leaves letters out
until Spark repeats the batch. A batch write without a number says in its error what is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pravega_spark.dead_letters import SUFFIX
from pravega_spark.errors import InvalidOption
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.versions import WriterCommitMessage
from pravega_spark.spark.write.columns import TypedColumns
from pravega_spark.spark.write.dead_letters import letters, plan_letters
from pravega_spark.spark.write.joined_batches import joined
from pravega_spark.spark.write.many_streams import (
    ManyStreamsMessage,
    commit_batch,
    commit_each,
    complete_parts,
)
from pravega_spark.spark.write.messages import TaskCommitMessage
from pravega_spark.spark.write.numbered import application_batch, check_repeated
from pravega_spark.spark.write.plan import StagingPlan
from pravega_spark.spark.write.sink import PravegaBatchWriter, PravegaStreamWriter
from pravega_spark.spark.write.staging import ChunkStager, StagingThreads
from pravega_spark.spark.write.target import FramePlan


class DeadLetterBatchWriter(PravegaBatchWriter):
    """Writes a frame into a typed stream, and what does not fit into the one of dead letters."""

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        """Check the frame's columns and make the plan, on the driver."""
        if settings.transaction is not None:
            raise InvalidOption(
                f"option badRecords=dlq: transaction {settings.transaction} is of one stream, and "
                "dead letters go to another. Set badRecords to fail, or split the frame first."
            )
        super().__init__(settings, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Stage one partition; runs in a task."""
        if self._is_skipped:
            return ManyStreamsMessage()
        return _stage(iterator, self._in_task(), self.settings)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows, and then the dead letters."""
        found = complete_parts(messages)
        identity = application_batch(self.settings, found, self._application)
        if self._known is not None and not any(message.parts for message in found):
            check_repeated(self.settings, self._written(), identity)
            self._log_skipped()
        commit_each(self.settings, found, identity)

    def _written(self) -> tuple[str, ...]:
        """Return both streams: dead letters may be missing where the rows are not."""
        return self.settings.stream, self.settings.stream + SUFFIX


class DeadLetterStreamWriter(PravegaStreamWriter):
    """Writes micro-batches into a typed stream, and what does not fit into the one of letters."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Stage one partition of a micro-batch; runs in a task."""
        return _stage(iterator, self._in_task(), self.settings)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the rows of a micro-batch, and then its dead letters; skip what is there."""
        what = f"a query's write to {self.settings.stream}"
        commit_batch(self.settings, complete_parts(messages), batchId, what)


def _stage(
    batches: Iterator[pa.RecordBatch], of_frame: FramePlan, settings: WriteSettings
) -> ManyStreamsMessage:
    """Stage a task's rows, and its dead letters if there are any."""
    plan, columns = of_frame.staging, of_frame.columns
    assert isinstance(columns, TypedColumns), "dead letters are of typed streams"
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    name = f"{os.urandom(8).hex()}-{number}"
    with StagingThreads() as threads:
        stagers: dict[str, tuple[StagingPlan, ChunkStager]] = {
            plan.stream: (plan, ChunkStager(plan, settings, name, number, threads))
        }
        of_letters: Any = None
        for batch in joined(batches):
            events, bad = columns.split(batch, columns.where(number))
            stagers[plan.stream][1].add(events)
            if not bad:
                continue
            if of_letters is None:
                of_letters, letter_plan = plan_letters(settings)
                stager = ChunkStager(letter_plan, of_letters, name, number, threads)
                stagers[letter_plan.stream] = letter_plan, stager
            stagers[of_letters.stream][1].add(letters(batch, columns, bad))
        staged = {
            stream: TaskCommitMessage(its.life, its.version, stager.finish())
            for stream, (its, stager) in stagers.items()
        }
    return ManyStreamsMessage({s: found for s, found in staged.items() if found.chunks})
