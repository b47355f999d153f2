"""Where a frame is written to: a stream of bytes or a typed one, which is created if missing."""

from __future__ import annotations

from pyspark.sql.types import StructType

from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidOption
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.input_columns import InputColumns
from pravega_spark.spark.write.staging_plan import StagingPlan, plan_staging
from pravega_spark.spark.write.typed_columns import TypedColumns, inferred_schema
from pravega_spark.stream_schema import StreamSchema

FrameColumns = InputColumns | TypedColumns


def plan_frame(
    settings: WriteSettings, frame: StructType
) -> tuple[StagingPlan, StreamView, FrameColumns]:
    """Return the plan of a write, its view, and which of the frame's columns go where.

    A frame that does not fit creates no stream. Raises what ``plan_staging`` and the columns raise.
    """

    def new() -> StreamConfiguration:
        schema = inferred_schema(frame, settings) if settings.schema == "infer" else None
        columns_of(frame, settings, schema)
        scaling = ScalingPolicy.fixed(settings.segments)
        return StreamConfiguration(scaling=scaling, schema=schema)

    plan, view = plan_staging(settings, new)
    return plan, view, columns_of(frame, settings, plan.schema)


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
