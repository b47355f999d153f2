"""A frame's columns: their names, keys of any bytes, rows without an event, headers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pravega_spark.errors import InvalidInput, InvalidOption
from pravega_spark.manager import StreamManager
from tests.harness.spark_reading import batch_reader, rows
from tests.harness.spark_writing import batch_writer

KAFKA = {"key": "binary", "value": "binary"}
KEYS = [b"\xff\x00", b"50%", "ü".encode(), b"plain", None]


def kafka_batch(keys: list[bytes | None], values: list[bytes | None]) -> pa.RecordBatch:
    arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    return pa.record_batch(arrays, names=list(KAFKA))


def events(root: Path) -> list[tuple[str | None, bytes]]:
    return [(event.routing_key, event.data) for event in StreamManager(root).read("s/a")]


def test_columns_are_found_in_any_case(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path, {"EVENT": "string", "Routing_Key": "string"})
    found = pa.record_batch([pa.array(["a"]), pa.array(["k"])], names=["EVENT", "Routing_Key"])
    writer.commit([writer.write(iter([found]))])
    assert events(tmp_path) == [("k", b"a")]
    batch_writer(tmp_path, {"EVENT": "string", "Carrier": "string"}, routingkey="carrier")


def test_columns_that_differ_in_case_only_need_one_that_is_written_alike(tmp_path: Path) -> None:
    StreamManager(tmp_path).create_scope("s")
    batch_writer(tmp_path, {"event": "string", "EVENT": "long"})
    with pytest.raises(InvalidOption, match="columns Event, EVENT differ in case only"):
        batch_writer(tmp_path, {"Event": "string", "EVENT": "string"})


def test_keys_of_any_bytes_come_back_with_the_encoding_percent(tmp_path: Path) -> None:
    options = {"columnnames": "kafka", "keyencoding": "percent"}
    writer = batch_writer(tmp_path, KAFKA, **options)
    writer.commit([writer.write(iter([kafka_batch(KEYS, [b"x"] * 5)]))])
    assert [key for key, _ in events(tmp_path)] == ["%FF\0", "50%25", "ü", "plain", None]
    reader = batch_reader(str(tmp_path), **options)
    assert [row["key"] for row in rows(reader, reader.partitions())] == KEYS


def test_key_of_other_bytes_is_refused_with_its_row_and_the_way_on(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path, KAFKA, columnnames="kafka")
    found = kafka_batch([b"a", b"\xff"], [b"1", b"2"])
    with pytest.raises(InvalidInput, match=r"the key b'\\xff' in column key, row 1 .* keyEncoding"):
        writer.write(iter([found]))


@pytest.mark.parametrize(
    ("option", "expected"),
    [("skip", [("a", b"1"), ("c", b"3")]), ("empty", [("a", b"1"), ("b", b""), ("c", b"3")])],
)
def test_tombstones_are_left_out_or_empty(
    tmp_path: Path, option: str, expected: list[tuple[str, bytes]]
) -> None:
    writer = batch_writer(tmp_path, KAFKA, columnnames="kafka", nullvalues=option)
    found = kafka_batch([b"a", b"b", b"c"], [b"1", None, b"3"])
    writer.commit([writer.write(iter([found]))])
    assert events(tmp_path) == expected


def test_tombstone_is_refused_with_its_row_and_key(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path, KAFKA, columnnames="kafka")
    found = kafka_batch([b"a", b"b"], [b"1", None])
    message = r"value is null in 1 of 2 rows, .* row 1 with the key b'b'.*nullValues to skip"
    with pytest.raises(InvalidInput, match=message):
        writer.write(iter([found]))


def test_headers_are_refused_unless_every_row_has_none(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    element = {"type": "struct", "fields": []}
    columns = {**KAFKA, "headers": {"type": "array", "elementType": element, "containsNull": True}}
    writer = batch_writer(tmp_path, columns, columnnames="kafka")  # type: ignore[arg-type]
    empty = kafka_batch([b"a", b"b"], [b"1", b"2"]).append_column(
        "headers", pa.array([None, []], kind)
    )
    writer.commit([writer.write(iter([empty]))])
    assert [data for _, data in events(tmp_path)] == [b"1", b"2"]
    some = kafka_batch([b"a", b"b"], [b"3", b"4"]).append_column(
        "headers", pa.array([None, [{"key": "h", "value": b"1"}]], kind)
    )
    with pytest.raises(InvalidInput, match=r"headers is not empty in 1 of 2 rows, .* row 1"):
        writer.write(iter([some]))
