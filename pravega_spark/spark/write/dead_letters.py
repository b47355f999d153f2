"""Dead letters: the rows of a write that do not fit its typed stream, as events of another one.

The stream ``<name>-dlq`` has bytes. An event of it is a ``schemas.dead_letters``, with the routing
key of its row. The order of the rows is that of the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pravega_spark.dead_letters import SUFFIX, letter_configuration, letter_problem
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidOption, NoSuchStream
from pravega_spark.schemas.dead_letters import letter_of_row
from pravega_spark.schemas.fit import BadRow
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.columns import TypedColumns
from pravega_spark.spark.write.plan import StagingPlan, plan_staging
from pravega_spark.spark.write.task_run import TaskRun
from pravega_spark.values.limits import MAX_ROUTING_KEY_LENGTH


def check_letters(settings: WriteSettings, view: StreamView) -> None:
    """Raise InvalidOption unless the dead letters of a stream can go where they should.

    Their stream must be of bytes, and encrypted if the stream itself is.
    """
    name = settings.stream + SUFFIX
    try:
        found = existing_view(open_stream(settings.root, name))
    except NoSuchStream:
        if settings.create_if_missing:
            return
        raise
    problem = letter_problem(view, found)
    if problem is not None:
        raise InvalidOption(f"option badRecords=dlq: {problem}, or set badRecords to fail.")


def plan_letters(settings: WriteSettings) -> tuple[WriteSettings, StagingPlan]:
    """Return the settings and the plan for the dead letters of a write; create their stream."""
    written = existing_view(open_stream(settings.root, settings.stream))
    of_letters = replace(settings, stream=settings.stream + SUFFIX)
    plan, _ = plan_staging(of_letters, lambda: letter_configuration(written), TaskRun.current())
    return of_letters, plan


def letters(batch: pa.RecordBatch, columns: TypedColumns, bad: Sequence[BadRow]) -> pa.Table:
    """Return the bad rows of a frame's batch as events."""
    rows = batch.take(pa.array([found.row for found in bad]))
    keys = columns.keys(rows)
    is_short = pc.less_equal(pc.utf8_length(keys), MAX_ROUTING_KEY_LENGTH)
    keys = pc.if_else(is_short, keys, pa.scalar(None, pa.string()))
    now = replace(columns, timestamp=None).times(rows)
    given = columns.times(rows)
    times = given if not given.null_count else given.fill_null(now[0])
    events = [letter_of_row(rows.slice(at, 1), found) for at, found in enumerate(bad)]
    arrays = [keys, times, pa.array(events, pa.binary())]
    return pa.Table.from_arrays(arrays, schema=EVENT_SCHEMA)
