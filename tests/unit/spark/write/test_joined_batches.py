"""Spark sends 10,000 rows at a time; a task checks and routes many such batches at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.errors import SchemaMismatch
from pravega_spark.manager import StreamManager
from pravega_spark.schemas import column_casts
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.write import joined_batches
from pravega_spark.values.limits import MAX_ROUTING_KEY_LENGTH
from tests.harness.spark_writing import batch_writer, schema

FRAME = {"carrier": "string", "flight": "long"}
BATCHES, ROWS = 50, 20


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    columns = pa.schema([("carrier", pa.string()), ("flight", pa.int64())])
    scaling = ScalingPolicy.fixed(4)
    for name in ("s/a", "s/b"):
        manager.create_stream(name, StreamConfiguration(scaling=scaling, schema=columns))
    return manager


def batches(**more: list[Any]) -> Iterator[pa.RecordBatch]:
    """Yield numbered rows."""
    for at in range(0, BATCHES * ROWS, ROWS):
        numbers = list(range(at, at + ROWS))
        yield pa.RecordBatch.from_pydict(
            {"carrier": [f"C{n % 7}" for n in numbers], "flight": numbers, **more}
        )


def flights(manager: StreamManager, name: str) -> list[int]:
    return sorted(event.data["flight"] for event in manager.read(name))


def conformed() -> Any:
    """Count the columns that are compared with a schema."""
    return patch.object(column_casts, "_fit", wraps=column_casts._fit)


def test_small_batches_are_checked_together(manager: StreamManager, tmp_path: Path) -> None:
    writer = batch_writer(tmp_path, FRAME, routingKey="carrier")
    with conformed() as fits:
        message = writer.write(batches())
    assert fits.call_count == len(FRAME)
    writer.commit([message])
    assert flights(manager, "s/a") == list(range(BATCHES * ROWS))
    of_key = [e.data["flight"] for e in manager.read("s/a") if e.routing_key == "C3"]
    assert of_key == sorted(of_key)


def test_small_batches_of_several_streams_are_checked_together(
    manager: StreamManager, tmp_path: Path
) -> None:
    columns = {**FRAME, "stream": "string"}
    writer: Any = PravegaDataSource({"root": str(tmp_path)}).writer(schema(**columns), False)
    with conformed() as fits:
        message = writer.write(batches(stream=["s/a", "s/b"] * (ROWS // 2)))
    # Each stream is planned in the task, where the columns of the frame are compared, too.
    assert fits.call_count == 2 * 2 * len(FRAME)
    writer.commit([message])
    assert flights(manager, "s/a") == list(range(0, BATCHES * ROWS, 2))
    assert flights(manager, "s/b") == list(range(1, BATCHES * ROWS, 2))


def test_small_batches_with_dead_letters_are_checked_together(
    manager: StreamManager, tmp_path: Path
) -> None:
    writer: Any = PravegaDataSource(
        {"root": str(tmp_path), "path": "s/a", "badRecords": "dlq"}
    ).writer(schema(**FRAME), False)
    with conformed() as fits:
        message = writer.write(batches())
    assert fits.call_count == 2 * len(FRAME), "once to find what does not fit, once to take it"
    writer.commit([message])
    assert flights(manager, "s/a") == list(range(BATCHES * ROWS))


@pytest.mark.parametrize("most", [1, 1 << 24], ids=["alone", "together"])
def test_a_row_that_does_not_fit_has_its_number_in_the_task(
    manager: StreamManager, tmp_path: Path, most: int
) -> None:
    writer = batch_writer(tmp_path, FRAME, routingKey="carrier")
    given = list(batches())
    given[7] = pa.RecordBatch.from_pydict(
        {"carrier": ["x" * (MAX_ROUTING_KEY_LENGTH + 1)] * ROWS, "flight": [0] * ROWS}
    )
    with (
        patch.object(joined_batches, "ROUTE_BYTES", most),
        pytest.raises(SchemaMismatch, match="a routing key of more than") as found,
    ):
        writer.write(iter(given))
    assert found.value.row == 7 * ROWS


def test_batches_are_joined_up_to_a_size_and_empty_ones_are_left_out() -> None:
    given = [pa.RecordBatch.from_pydict({"x": list(range(n))}) for n in (0, 100, 100, 0, 900, 1)]
    with patch.object(joined_batches, "ROUTE_BYTES", 2_000):
        found = list(joined_batches.joined(given))
    assert [batch.num_rows for batch in found] == [200, 900, 1]
    assert found[1] is given[4], "a large batch is not copied"
