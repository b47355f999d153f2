"""Random schemas and rows through Spark's ways of writing and reading, with filters pushed down."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pravega_spark
from pravega_spark.compaction import plan
from pravega_spark.engine.chunks import encoder
from pravega_spark.schemas.column_types import shared_paths
from tests.harness.tiers import IS_LONG, sized
from tests.harness.typed_rows import SCHEMAS
from tests.harness.typed_world import COMPARISONS, ID, S, World, holds, step, stored, with_nan

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]


def frames(spark: SparkSession, world: World) -> dict[str, DataFrame]:
    """Return a new frame of each way of reading."""
    options = {"root": world.folder}
    return {
        "pravega": spark.read.format("pravega").options(**options).load(S),
        "pushFilters": spark.read.format("pravega").options(**options, pushFilters="true").load(S),
        "native": pravega_spark.frame(spark, S, root=world.folder),
        "delta": spark.read.format("delta").load(world.path),
    }


def check(spark: SparkSession, world: World, data: st.DataObject) -> None:
    expected = world.of(world.rows)
    for reader, frame in frames(spark, world).items():
        assert world.of(frame.toArrow().to_pylist()) == expected, reader
    field = data.draw(st.sampled_from(list(world.schema)), "the column of a filter")
    there = [row.get(field.name) for row in world.rows]
    is_nested = types.is_nested(field.type)
    value = data.draw(st.none() if is_nested else st.none() | st.sampled_from(there), "its value")
    names = ["=", "<>"] if value is None or types.is_boolean(field.type) else [*COMPARISONS]
    comparison = data.draw(st.sampled_from(names), "its comparison")
    condition: Any = F.col("`" + field.name.replace("`", "``") + "`")
    if value is None:
        condition = condition.isNull() if comparison == "=" else condition.isNotNull()
    else:
        value = stored(field, value)
        literal: Any = F.lit(value)
        if types.is_floating(field.type) and field.type.bit_width == 32:
            literal = F.lit(float(np.float32(value))).cast("float")
        condition = COMPARISONS[comparison](condition, literal)
    wanted = [
        n
        for n, row in enumerate(world.rows)
        if holds(comparison, stored(field, row.get(field.name)), value, nan_is_most=True)
    ]
    for reader, frame in frames(spark, world).items():
        found = sorted(row["id"] for row in frame.where(condition).select("id").collect())
        assert found == wanted, (reader, field.name, comparison, value)


def test_rows_come_back_as_they_were_through_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "COMPACT_SETTLE_MS", -1)
    monkeypatch.setattr(encoder, "ROW_GROUP_EVENTS", 4)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

    @settings(
        max_examples=sized(1, 60, "SPARK_ROWS_EXAMPLES"),
        derandomize=not IS_LONG,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        schema = data.draw(SCHEMAS.filter(lambda found: not shared_paths(found)), "schema")
        with tempfile.TemporaryDirectory() as folder:
            world = World(folder, schema.insert(0, ID), data.draw(st.integers(1, 3), "segments"))
            for _ in range(data.draw(st.integers(0, 3), "steps")):
                step(world, data)
            rows = st.lists(with_nan(world.schema), min_size=1, max_size=6)
            found = world.numbered(data.draw(rows, "rows of Spark"))
            frame = spark.createDataFrame(world.table(found))
            frame.write.format("pravega").option("root", folder).mode("append").save(S)
            check(spark, world, data)

    try:
        run()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
