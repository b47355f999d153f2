"""Where a frame is written to: a stream of bytes or a typed one, which is created if missing."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StructType

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.errors import InvalidOption
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.columns import InputColumns, TypedColumns, inferred_schema
from pravega_spark.spark.write.dead_letters import check_letters
from pravega_spark.spark.write.plan import NewRoot, StagingPlan, plan_staging
from pravega_spark.spark.write.task_run import TaskRun

FrameColumns = InputColumns | TypedColumns


@dataclass(frozen=True, slots=True)
class FramePlan:
    """Where tasks stage the rows of a frame, and which of its columns go where."""

    staging: StagingPlan
    columns: FrameColumns


def plan_on_driver(settings: WriteSettings, frame: StructType) -> FramePlan | None:
    """Return the plan for the tasks of a write; None if each must plan, as the root is new."""
    try:
        return _plan(settings, frame, None)
    except NewRoot:
        return None


def plan_in_task(settings: WriteSettings, frame: StructType) -> FramePlan:
    """Return the plan of this task."""
    return _plan(settings, frame, TaskRun.current())


def _plan(settings: WriteSettings, frame: StructType, task: TaskRun | None) -> FramePlan:
    """Return the plan of a write; create the stream if it is missing, and if the frame fits.

    Raises what ``plan_staging`` and the columns raise.
    """

    def new() -> StreamConfiguration:
        schema = inferred_schema(frame, settings) if settings.schema == "infer" else None
        columns_of(frame, settings, schema)
        scaling = ScalingPolicy.fixed(settings.segments)
        return StreamConfiguration(scaling=scaling, schema=schema)

    staging, view = plan_staging(settings, new, task)
    columns = columns_of(frame, settings, staging.schema)
    if settings.bad_records == "dlq":
        check_letters(settings, view)
    return FramePlan(staging, columns)


def columns_of(
    frame: StructType, settings: WriteSettings, schema: StreamSchema | None
) -> FrameColumns:
    """Return which of the frame's columns go where in a stream; None is the schema of a raw one."""
    if schema is not None:
        return TypedColumns.of(frame, settings, schema)
    if settings.schema == "infer":
        raise InvalidOption(
            f"option schema=infer: stream {settings.stream} exists, and its events are bytes. "
            "Remove the option and write the column event, or name another stream."
        )
    if settings.bad_records == "dlq":
        raise InvalidOption(
            f"option badRecords=dlq: stream {settings.stream} has no schema that a row could fail "
            "to fit. Remove the option, or create the stream with a schema."
        )
    return InputColumns.of(frame, settings)
