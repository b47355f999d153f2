"""Rows of typed events come as dicts, or with an error that says where they are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pravega_spark import StreamSchema
from pravega_spark.engine.chunks.format import format_of
from pravega_spark.engine.chunks.reader import row_events
from pravega_spark.errors import CorruptChunk

FORMAT = format_of(StreamSchema.of(pa.schema([("city", pa.string())])))


def batch(cities: pa.Array) -> pa.RecordBatch:
    offsets, keys = pa.array([7, 8], pa.int64()), pa.nulls(2, pa.string())
    times = pa.array([1, 2], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays([offsets, keys, times, cities], schema=FORMAT.batch)


def test_rows_are_dicts_with_their_positions() -> None:
    found = list(row_events(batch(pa.array(["Ulm", None])), "nyc/flights", 0, 3))
    assert [(event.offset, event.data) for event in found] == [
        (7, {"city": "Ulm"}),
        (8, {"city": None}),
    ]


def test_a_stored_text_that_is_not_utf_8_is_named_with_its_place() -> None:
    stored = pa.array([b"Ulm", b"Z\xfcrich"])
    texts = pa.Array.from_buffers(pa.string(), 2, stored.buffers())
    place = r"stream nyc/flights, segment 3: .* offsets 7 to 8 .* b'Z\\xfcrich'.*read_table"
    with pytest.raises(CorruptChunk, match=place) as found:
        list(row_events(batch(texts), "nyc/flights", 0, 3))
    assert found.value.stream == "nyc/flights"
