"""Dead letters: the rows of a write that do not fit its typed stream, as events of another one.

The stream ``<name>-dlq`` has bytes. An event of it is JSON, such as
``{"reason": "...", "column": "fare", "value": "...", "row": {...}}``, with the routing key of its
row. The order of the rows is that of the frame.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidOption, NoSuchStream
from pravega_spark.limits import MAX_EVENT_BYTES, MAX_ROUTING_KEY_LENGTH
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.schemas.table_fit import BadRow
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.staging_plan import StagingPlan, plan_staging
from pravega_spark.spark.write.typed_columns import TypedColumns

SUFFIX: Final = "-dlq"


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
    if not found.event_format.is_raw:
        raise InvalidOption(
            f"option badRecords=dlq: stream {name} is typed, and dead letters are bytes. Delete "
            "it, or set badRecords to fail."
        )
    encryption = view.record.configuration.encryption
    if encryption is not None and found.record.configuration.encryption is None:
        raise InvalidOption(
            f"option badRecords=dlq: stream {settings.stream} is encrypted, and stream {name} is "
            "not. Create that one with encryption, or set badRecords to fail."
        )


def plan_letters(settings: WriteSettings) -> tuple[WriteSettings, StagingPlan]:
    """Return the settings and the plan for the dead letters of a write; create their stream."""
    written = existing_view(open_stream(settings.root, settings.stream))

    def new() -> StreamConfiguration:
        segments = ScalingPolicy.fixed(len(written.active.segment_ids))
        encryption = written.record.configuration.encryption
        return StreamConfiguration(scaling=segments, encryption=encryption)

    of_letters = replace(settings, stream=settings.stream + SUFFIX)
    return of_letters, plan_staging(of_letters, new)[0]


def letters(batch: pa.RecordBatch, columns: TypedColumns, bad: Sequence[BadRow]) -> pa.Table:
    """Return the bad rows of a frame's batch as events."""
    rows = batch.take(pa.array([found.row for found in bad]))
    keys = columns.keys(rows)
    is_short = pc.less_equal(pc.utf8_length(keys), MAX_ROUTING_KEY_LENGTH)
    keys = pc.if_else(is_short, keys, pa.scalar(None, pa.string()))
    now = replace(columns, timestamp=None).times(rows)
    given = columns.times(rows)
    times = given if not given.null_count else given.fill_null(now[0])
    events = [_letter(rows.slice(at, 1), found) for at, found in enumerate(bad)]
    arrays = [keys, times, pa.array(events, pa.binary())]
    return pa.Table.from_arrays(arrays, schema=EVENT_SCHEMA)


def _letter(row: pa.RecordBatch, bad: BadRow) -> bytes:
    record = {"reason": bad.reason, "column": bad.column, "value": bad.value}
    values = {name: _value(row.column(name)) for name in row.schema.names}
    text = json.dumps({**record, "row": values}, ensure_ascii=False, allow_nan=False, default=_text)
    data = text.encode(errors="replace")
    if len(data) <= MAX_EVENT_BYTES:
        return data
    return json.dumps({**record, "row": None, "row_bytes": len(data)}).encode()


def _value(column: pa.Array) -> Any:
    try:
        return _plain(column[0].as_py())
    except (ValueError, OverflowError):  # a time that Python cannot hold
        return str(column.cast(pa.int64())[0])


def _plain(value: Any) -> Any:
    """Return a value of Arrow as one of JSON, as far as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)
