"""The columns of a read: names, types, selection."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pravega_spark.errors import (
    InvalidOption,
)
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.versions import arrow_schema
from tests.harness.small_streams import created
from tests.harness.spark_reading import batch_reader, fill, rows


def test_batches_have_exactly_the_arrow_schema_that_spark_checks(root: str) -> None:
    fill(created(root), 0, 5)
    for options in ({}, {"columnnames": "kafka"}, {"columns": "event,offset"}):
        source = PravegaDataSource({"root": root, "path": "s/a", **options})
        reader = source.reader(source.schema())
        (partition,) = reader.partitions()
        (found,) = reader.read(partition)
        assert isinstance(found, pa.RecordBatch)
        assert found.schema.equals(arrow_schema(source.schema()))
        found.validate(full=True)


def test_kafka_names_have_the_same_values(root: str) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 20)
    pravega, kafka = batch_reader(root), batch_reader(root, columnnames="kafka")
    found = rows(kafka, kafka.partitions())
    for one, other in zip(rows(pravega, pravega.partitions()), found, strict=True):
        assert other["topic"] == f"{one['scope']}/{one['stream']}"
        assert other["key"] == one["routing_key"].encode()
        assert (other["value"], other["offset"]) == (one["event"], one["offset"])
        assert other["partition"] == one["segment_id"]


def test_unknown_columns_are_refused(root: str) -> None:
    with pytest.raises(
        InvalidOption, match="option columns names color, but the columns are scope"
    ):
        batch_reader(root, columns="color")


def test_users_schema_may_select_columns_but_not_change_types(root: str) -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    fill(created(root), 0, 3)
    source = PravegaDataSource({"root": root, "path": "s/a"})
    reader = source.reader(StructType([StructField("offset", LongType())]))
    assert rows(reader, reader.partitions()) == [{"offset": i} for i in range(3)]
    with pytest.raises(InvalidOption, match=r"no column offset string.*offset bigint"):
        source.reader(StructType([StructField("offset", StringType())]))
