"""The work of a task whose rows go to several streams: a plan and chunks for each of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from pravega_spark.limits import STAGING_THREADS, TASK_BYTES
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.commit_messages import TaskCommitMessage
from pravega_spark.spark.write.input_columns import InputColumns
from pravega_spark.spark.write.staging_plan import StagingPlan, plan_staging
from pravega_spark.spark.write.stream_column import StreamColumn
from pravega_spark.spark.write.task_staging import ChunkStager


@dataclass(slots=True)
class _StreamStaging:
    plan: StagingPlan
    stager: ChunkStager


def stage_many(
    batches: Iterable[pa.RecordBatch],
    names: StreamColumn,
    columns: InputColumns,
    settings: WriteSettings,
    partition_id: int,
) -> dict[str, TaskCommitMessage]:
    """Stage a task's rows; return for each of their streams what to commit.

    The driver cannot know the streams, so the task makes the plans, and creates streams that are
    missing if the settings allow it. All streams together buffer as much as one would.
    """
    token = os.urandom(8).hex()
    streams: dict[str, _StreamStaging] = {}
    with ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="pravega-staging") as pool:
        for batch in batches:
            for name, events in names.split(batch, columns):
                if name not in streams:
                    of_stream = replace(settings, stream=name)
                    plan, view = plan_staging(of_stream)
                    view.check_raw("the rows of a frame that names its streams")
                    stager = ChunkStager(
                        plan, of_stream, f"{token}-{partition_id}", partition_id, pool
                    )
                    streams[name] = _StreamStaging(plan, stager)
                streams[name].stager.add(pa.Table.from_batches([events]))
            stagers = [found.stager for found in streams.values()]
            while sum(stager.size for stager in stagers) > TASK_BYTES:
                max(stagers, key=lambda stager: stager.size).drain_largest()
        return {
            name: TaskCommitMessage(found.plan.life, found.plan.version, found.stager.finish())
            for name, found in streams.items()
        }
