"""Random schemas and rows by every way of writing, through every way of reading, after maintenance.

What was written is the value: each reader returns exactly those rows, whole and with any filter, of
the stream and of its Delta table, also after the schema grew, a scale, and a merge of the files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import types

from pravega_spark import StreamConfiguration, StreamManager
from pravega_spark.compaction import plan
from pravega_spark.engine.chunks import encoder
from pravega_spark.errors import InvalidSchema
from pravega_spark.schemas.column_types import shared_paths
from tests.harness import delta_engines
from tests.harness.tiers import IS_LONG, sized
from tests.harness.typed_rows import SCHEMAS, TYPES
from tests.harness.typed_world import COMPARISONS, ID, Row, S, World, holds, step, stored

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]


def whole_reads(world: World, duck: Any) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of each reader."""
    manager = world.manager
    yield "read", [event.data for event in manager.read(S)]
    yield "read_table", manager.read_table(S).to_pylist()
    found = (batch for _, batch in manager.create_reader(S).batches())
    yield "batches", [row for batch in found for row in batch.to_pylist()]
    yield "delta-rs", DeltaTable(world.path).to_pyarrow_table().to_pylist()
    yield (
        "duckdb",
        duck.execute(f"SELECT * FROM delta_scan('{world.path}')").to_arrow_table().to_pylist(),
    )


def filtered_reads(
    world: World, duck: Any, name: str, comparison: str, value: Any
) -> Iterator[tuple[str, list[int], bool]]:
    """Yield the numbers that each reader finds, and whether NaN is above all numbers for it."""
    manager, column = world.manager, pc.field(name)
    if value is None:
        where = column.is_null() if comparison == "=" else column.is_valid()
        sql, bound = f"IS {'' if comparison == '=' else 'NOT'} NULL", []
    else:
        where = COMPARISONS[comparison](column, pa.scalar(value, world.schema.field(name).type))
        sql, bound = f"{comparison} $1", [value]
    yield "read_table", manager.read_table(S, columns=["id"], where=where)["id"].to_pylist(), False
    whole = manager.read_table(S, where=where)
    yield "read_table of all columns", whole["id"].to_pylist(), False
    found = (b for _, b in manager.create_reader(S).batches(columns=["id"], where=where))
    yield "batches", [n for batch in found for n in batch["id"].to_pylist()], False
    dataset = DeltaTable(world.path).to_pyarrow_dataset()
    yield "delta-rs", dataset.to_table(columns=["id"], filter=where)["id"].to_pylist(), False
    if "." in name:  # DuckDB's reader of Delta takes it for the path of a nested column
        return
    quoted = name.replace('"', '""')
    query = f"SELECT id FROM delta_scan('{world.path}') WHERE \"{quoted}\" {sql}"
    yield "duckdb", [row[0] for row in duck.execute(query, bound).fetchall()], True


def check(world: World, data: st.DataObject, duck: Any) -> None:
    expected = world.of(world.rows)
    for reader, found in whole_reads(world, duck):
        assert world.of(found) == expected, reader
    for _ in range(2):
        field = data.draw(st.sampled_from(list(world.schema)), "the column of a filter")
        there = [row.get(field.name) for row in world.rows]
        is_nested = types.is_nested(field.type)
        picks = st.none() if is_nested or not there else st.none() | st.sampled_from(there)
        value = data.draw(picks, "its value")
        names = ["=", "<>"] if value is None or types.is_boolean(field.type) else [*COMPARISONS]
        comparison = data.draw(st.sampled_from(names), "its comparison")
        if types.is_floating(field.type) and field.type.bit_width == 32 and value is not None:
            value = float(np.float32(value))
        for reader, numbers, nan_is_most in filtered_reads(
            world, duck, field.name, comparison, value
        ):
            wanted = [
                n
                for n, row in enumerate(world.rows)
                if holds(
                    comparison, stored(field, row.get(field.name)), value, nan_is_most=nan_is_most
                )
            ]
            assert sorted(numbers) == wanted, (reader, field.name, comparison, value)


@settings(
    max_examples=sized(7, 2_000, "TYPED_ROWS_EXAMPLES"),
    derandomize=not IS_LONG,
    deadline=None,
    suppress_health_check=[*HealthCheck],
)
@given(st.data())
def test_rows_come_back_as_they_were_through_every_reader(data: st.DataObject) -> None:
    schema = data.draw(SCHEMAS, "schema").insert(0, ID)
    if data.draw(st.booleans(), "a dot in the name of a nested column"):
        schema = schema.append(pa.field("x.y", pa.list_(data.draw(TYPES, "its elements"))))
    given_schema = StreamConfiguration(schema=schema)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(plan, "COMPACT_SETTLE_MS", -1),
        patch.object(encoder, "ROW_GROUP_EVENTS", 4),
        delta_engines.connect_duckdb() as duck,
    ):
        if shared_paths(schema):
            manager = StreamManager(folder)
            manager.create_scope("s")
            with pytest.raises(InvalidSchema):
                manager.create_stream(S, given_schema)
            return
        world = World(folder, schema, data.draw(st.integers(1, 3), "segments"))
        for _ in range(data.draw(st.integers(1, 6), "steps")):
            step(world, data)
        check(world, data, duck)
        world.manager.compact_stream(S)
        check(world, data, duck)
