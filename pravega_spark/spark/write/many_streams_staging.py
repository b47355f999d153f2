"""The work of a task whose rows go to several streams: a plan and chunks for each of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.types import StructType

from pravega_spark.engine.store import ensure_probed, open_store
from pravega_spark.limits import TASK_BYTES
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.commit_messages import TaskCommitMessage
from pravega_spark.spark.write.frame_target import FramePlan, plan_in_task
from pravega_spark.spark.write.input_columns import InputColumns
from pravega_spark.spark.write.joined_batches import joined
from pravega_spark.spark.write.staging_plan import is_new_root
from pravega_spark.spark.write.staging_threads import StagingThreads
from pravega_spark.spark.write.stream_column import StreamColumn
from pravega_spark.spark.write.task_run import TaskRun
from pravega_spark.spark.write.task_staging import ChunkStager, events_of


@dataclass(slots=True)
class _StreamStaging:
    plan: FramePlan
    stager: ChunkStager


def stage_many(
    batches: Iterable[pa.RecordBatch],
    names: StreamColumn,
    frame: StructType,
    columns: InputColumns | None,
    settings: WriteSettings,
    partition_id: int,
) -> dict[str, TaskCommitMessage]:
    """Stage a task's rows; return for each of their streams what to commit.

    ``frame`` are the columns of the rows, and ``columns`` those of events of bytes, if it has them.
    The driver cannot know the streams, so the task makes the plans, and creates streams that are
    missing if the settings allow it. All streams together buffer as much as one would.
    """
    token, first = os.urandom(8).hex(), 0
    streams: dict[str, _StreamStaging] = {}
    with StagingThreads() as threads:
        for batch in joined(batches):
            for name, rows, numbers in names.split(batch, columns):
                if name not in streams:
                    of_stream = replace(settings, stream=name)
                    plan = plan_in_task(of_stream, names.without_names(frame))
                    stager = ChunkStager(
                        plan.staging, of_stream, f"{token}-{partition_id}", partition_id, threads
                    )
                    streams[name] = _StreamStaging(plan, stager)
                its = streams[name]
                events = events_of(rows, its.plan.columns, partition_id, first + numbers)
                its.stager.add(events)
            first += batch.num_rows
            stagers = [found.stager for found in streams.values()]
            while sum(stager.size for stager in stagers) > TASK_BYTES:
                max(stagers, key=lambda stager: stager.size).drain_largest()
        task = TaskRun.current()
        may_be_first = task.batch == 0 or (task.batch is None and settings.checkpoint is not None)
        is_first = not streams and may_be_first and settings.create_if_missing
        if is_first and is_new_root(settings, task):
            ensure_probed(open_store(settings.root))  # or the next batch would miss the root
        return {
            name: TaskCommitMessage(
                found.plan.staging.life, found.plan.staging.version, found.stager.finish()
            )
            for name, found in streams.items()
        }
