"""The schema of a stream's table in its Delta metadata, and each one that the stream had."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark import StreamSchema
from pravega_spark.engine.chunks.format import RAW
from pravega_spark.engine.log.snapshot import PROTOCOL, Snapshot, new_table
from pravega_spark.engine.stream.table_schema import (
    EVENT_COLUMNS,
    SchemaVersion,
    schema_domain,
    schema_versions,
    table_format,
    with_schema,
)
from pravega_spark.errors import CorruptLog

RAW_TABLE = new_table(EVENT_COLUMNS, [], "id", "s/t", 0)
SCHEMA = StreamSchema.of(
    pa.schema([pa.field("n", pa.int64(), False, {"comment": "a number"}), ("t", pa.string())])
)


def test_the_metadata_of_a_raw_table_stays_the_same() -> None:
    assert with_schema(RAW_TABLE, None) == RAW_TABLE
    assert table_format(RAW_TABLE, "s/t") is RAW


def test_a_schema_is_read_as_it_was_declared_and_every_column_is_nullable_for_delta() -> None:
    declared = with_schema(RAW_TABLE, SCHEMA)
    assert table_format(declared, "s/t").schema == SCHEMA
    fields = json.loads(declared["schemaString"])["fields"]
    assert [field["name"] for field in fields] == [
        "segment_id", "base_offset", "offset_delta", "routing_key", "timestamp", "n", "t"
    ]  # fmt: skip
    assert all(field["nullable"] for field in fields)
    assert fields[5]["metadata"] == {"comment": "a number", "pravega.required": True}
    assert {**declared, "schemaString": ""} == {**RAW_TABLE, "schemaString": ""}
    assert with_schema(declared, None) == RAW_TABLE


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{",
        "[]",
        '{"fields":[]}',
        '{"fields":[{"name":"n","type":"long"}]}',
        with_schema(RAW_TABLE, SCHEMA)["schemaString"].replace('"long"', '"void"'),
        with_schema(RAW_TABLE, SCHEMA)["schemaString"].replace('"name":"t"', '"name":"offset"'),
    ],
)
def test_a_schema_that_we_never_write_is_damage(text: Any) -> None:
    with pytest.raises(CorruptLog, match="s/t: the schema of the table"):
        table_format({**RAW_TABLE, "schemaString": text}, "s/t")


def snapshot(domains: dict[str, str]) -> Snapshot:
    return Snapshot.of(9, 0, "", PROTOCOL, RAW_TABLE, domains).at("s/t")


def test_schemas_are_listed_by_their_versions() -> None:
    domains: dict[str, str | None] = {}
    for version in (10, 9):
        domains |= schema_domain(version, 1_000 * version, SCHEMA)
    found = schema_versions(snapshot({k: v for k, v in domains.items() if v is not None}))
    assert found == [SchemaVersion(9, 9_000, SCHEMA), SchemaVersion(10, 10_000, SCHEMA)]
    assert schema_versions(snapshot({})) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("1", "[]"), ("1", '{"created":"x","schema":{}}'), ("x", '{"created":1,"schema":{}}')],
)
def test_a_damaged_record_of_a_schema_is_an_error(name: str, value: str) -> None:
    with pytest.raises(CorruptLog, match="s/t: the schema"):
        schema_versions(snapshot({f"pravega.schema.{name}": value}))
