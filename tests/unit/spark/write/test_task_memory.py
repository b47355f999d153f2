"""What a task of a write holds in memory, and when it encodes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunks import encoder as chunk_encoder
from pravega_spark.engine.chunks import writer as chunk_writer
from pravega_spark.engine.chunks.arrow_arrays import own_memory
from pravega_spark.engine.chunks.encoder import ChunkEncoder
from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.errors import StoreFull
from pravega_spark.manager import StreamManager
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.write import joined_batches, many_streams, staging
from tests.harness.spark_writing import TEXT, batch_writer, schema

ROWS, EVENT = 100, 1_000
KEYS = [f"k{i}" for i in range(1_000)]
OFTEN = next(key for key in KEYS if position(key) < 0.25)
SELDOM = next(key for key in KEYS if position(key) > 0.75)


def small_limits(row_group: int = 1_000_000, most: int = 20_000_000) -> Any:
    """Patch the limits of a task, so that megabytes show what gigabytes do."""
    patches = ExitStack()
    for module in (chunk_encoder, chunk_writer):
        patches.enter_context(patch.object(module, "ROW_GROUP_BYTES", row_group))
    patches.enter_context(patch.object(chunk_writer, "CHUNK_BYTES", 4 * row_group))
    patches.enter_context(patch.object(joined_batches, "ROUTE_BYTES", ROWS * EVENT))
    for module in (staging, many_streams):
        patches.enter_context(patch.object(module, "TASK_BYTES", most))
    return patches


def sent(columns: dict[str, Any]) -> pa.RecordBatch:
    """Return a batch as Spark sends it: all columns in one buffer."""
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def allocated() -> int:
    """Return the bytes of Arrow in both of its pools that a task uses."""
    return int(pa.total_allocated_bytes() + pa.system_memory_pool().bytes_allocated())


def peak_of(writer: Any, batches: Iterator[pa.RecordBatch]) -> int:
    """Return the most bytes of Arrow between two batches of a write."""
    before, peak = allocated(), 0

    def watched() -> Iterator[pa.RecordBatch]:
        nonlocal peak
        for batch in batches:
            peak = max(peak, allocated() - before)
            yield batch

    writer.write(watched())
    return peak


def skewed(count: int, **more: str) -> Iterator[pa.RecordBatch]:
    """Yield batches whose events are of one segment, but for one event each."""
    keys = [OFTEN] * (ROWS - 1) + [SELDOM]
    columns = {name: [value] * ROWS for name, value in more.items()}
    for _ in range(count):
        yield sent({"routing_key": keys, "event": ["x" * EVENT] * ROWS, **columns})


@pytest.mark.medium
def test_a_rare_segment_does_not_keep_the_batches_of_its_events(tmp_path: Path) -> None:
    with small_limits():
        peaks = [
            peak_of(batch_writer(tmp_path / str(count), numsegments="4"), skewed(count))
            for count in (60, 600)
        ]
    assert peaks[1] < 12_000_000, "of 60 MB"
    assert peaks[1] < 2 * max(peaks[0], 4_000_000)


def test_columns_that_are_not_written_are_not_kept(tmp_path: Path) -> None:
    """A frame's columns come in one buffer, so one of them keeps the others in memory."""
    events = ({"routing_key": ["k"] * ROWS, "event": ["x" * 10] * ROWS} for _ in range(300))
    wide = (sent({**columns, "other": ["y" * EVENT] * ROWS}) for columns in events)
    columns = {**TEXT, "other": "string"}
    with small_limits():
        peak = peak_of(batch_writer(tmp_path, columns, schema="raw"), wide)
    assert peak < 6_000_000, "of 30 MB"


@pytest.mark.medium
def test_streams_of_a_frame_do_not_keep_its_batches(tmp_path: Path) -> None:
    names = ["s/a"] * (ROWS - 1) + ["s/b"]
    StreamManager(tmp_path).create_scope("s")
    columns = {**TEXT, "stream": "string"}
    batches = (
        sent({"routing_key": ["k"] * ROWS, "event": ["x" * EVENT] * ROWS, "stream": names})
        for _ in range(400)
    )
    writer = PravegaDataSource({"root": str(tmp_path)}).writer(schema(**columns), False)
    with small_limits():
        assert peak_of(writer, batches) < 12_000_000, "of 40 MB"


@pytest.mark.medium
def test_many_segments_hold_what_one_may(tmp_path: Path) -> None:
    """Parts are small where segments are many; each counts with what it costs."""
    writer = batch_writer(tmp_path, numsegments="64")
    batches = (
        sent({"routing_key": [KEYS[(7 * i + n) % 1_000] for n in range(ROWS)],
              "event": ["x" * EVENT] * ROWS})
        for i in range(200)
    )  # fmt: skip
    with small_limits(most=3_000_000):
        assert peak_of(writer, batches) < 8_000_000, "of 20 MB"


def test_row_groups_are_encoded_before_the_last_row_comes(tmp_path: Path) -> None:
    encoded: list[int] = []
    write = ChunkEncoder.write

    def counted(encoder: ChunkEncoder, events: pa.Table, size: int) -> None:
        write(encoder, events, size)
        encoded.append(events.num_rows)

    at_end: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield from skewed(100)
        at_end.append(len(encoded))

    writer = batch_writer(tmp_path, numsegments="4")
    with small_limits(), patch.object(ChunkEncoder, "write", counted):
        message = writer.write(batches())
    assert sum(encoded) == sum(chunk.rows for chunk in message.chunks) == 100 * ROWS
    assert at_end[0] >= 9 - 4, "nine are full, and at most four wait"
    writer.commit([message])
    assert len(list(StreamManager(tmp_path).read("s/a"))) == 100 * ROWS


def test_files_have_exactly_as_many_events_as_they_may(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path, maxrecordsperfile="2500")
    with small_limits():
        message = writer.write(skewed(100))
    assert [chunk.rows for chunk in message.chunks] == [2_500] * 4


def test_a_nan_begins_a_chunk_without_bounds_of_its_column(tmp_path: Path) -> None:
    columns = pa.schema([("k", pa.string()), ("x", pa.float64())])
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(ScalingPolicy.fixed(1), schema=columns))
    values = [float(n) for n in range(400)]
    values[150] = math.nan
    writer = batch_writer(tmp_path, {"k": "string", "x": "double"})
    with small_limits(), patch.object(chunk_writer, "ROW_GROUP_EVENTS", ROWS), patch.object(
        chunk_encoder, "ROW_GROUP_EVENTS", ROWS
    ), patch.object(joined_batches, "ROUTE_BYTES", 1):  # fmt: skip
        message = writer.write(
            sent({"k": ["k"] * ROWS, "x": values[i : i + ROWS]}) for i in range(0, 400, ROWS)
        )
    assert [chunk.rows for chunk in message.chunks] == [100, 300]
    bounds = [
        json.loads(json.loads(chunk.stats_json())).get("maxValues") for chunk in message.chunks
    ]
    assert bounds[0]["x"] == 99.0
    assert bounds[1] is None
    writer.commit([message])
    read = [event.data["x"] for event in manager.read("s/a")]
    assert [str(x) for x in read] == [str(x) for x in values]


def test_a_full_disk_ends_the_write_with_its_error(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path, numsegments="4")
    done = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal done
        for batch in skewed(1_000):
            done += 1
            yield batch

    full = patch.object(LocalStore, "put", side_effect=StoreFull("full"))
    with small_limits(), full, pytest.raises(StoreFull, match="full"):
        writer.write(batches())
    assert done < 500, "the task goes on though nothing can be stored"


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", None, "ccc", ""]),
        pa.array([[1, 2], None, [], [3]]),
        pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 2, "b": None}]),
        pa.array([[("k", 1)], [], None, [("l", None)]], pa.map_(pa.string(), pa.int64())),
        pa.array([True, None, False, True]),
        pa.nulls(4, pa.string()),
    ],
    ids=lambda values: str(values.type),
)
def test_own_memory_is_that_of_the_rows_alone(values: pa.Array) -> None:
    table = pa.table({"x": pa.concat_arrays([values] * 10_000), "n": range(40_000)})
    parts = [table.slice(101, 7), pa.concat_tables([table.slice(5, 3), table.slice(9_000, 4)])]
    for part in [*parts, table.slice(3, 0)]:
        mine = own_memory(part)
        assert mine.equals(part)
        assert mine.get_total_buffer_size() < 4_096
        mine.validate(full=True)
