"""The work of a task whose rows go to several streams: a plan and chunks for each of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.types import StructType

from pravega_spark.limits import STAGING_THREADS, TASK_BYTES
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.commit_messages import TaskCommitMessage
from pravega_spark.spark.write.frame_target import FrameColumns, plan_frame
from pravega_spark.spark.write.input_columns import InputColumns
from pravega_spark.spark.write.staging_plan import StagingPlan
from pravega_spark.spark.write.stream_column import StreamColumn
from pravega_spark.spark.write.task_staging import ChunkStager, events_of


@dataclass(slots=True)
class _StreamStaging:
    plan: StagingPlan
    columns: FrameColumns
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
    with ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="pravega-staging") as pool:
        for batch in batches:
            for name, rows, numbers in names.split(batch, columns):
                if name not in streams:
                    of_stream = replace(settings, stream=name)
                    plan, _, of_frame = plan_frame(of_stream, names.without_names(frame))
                    stager = ChunkStager(
                        plan, of_stream, f"{token}-{partition_id}", partition_id, pool
                    )
                    streams[name] = _StreamStaging(plan, of_frame, stager)
                its = streams[name]
                its.stager.add(events_of(rows, its.columns, partition_id, first + numbers))
            first += batch.num_rows
            stagers = [found.stager for found in streams.values()]
            while sum(stager.size for stager in stagers) > TASK_BYTES:
                max(stagers, key=lambda stager: stager.size).drain_largest()
        return {
            name: TaskCommitMessage(found.plan.life, found.plan.version, found.stager.finish())
            for name, found in streams.items()
        }
