"""Every Delta type that needs no table feature has a place; others are refused with a way on."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.errors import InvalidSchema
from pravega_spark.schemas.column_types import RESERVED_NAMES, canonical_schema


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64()),
        (pa.binary(16), pa.binary()),
        (pa.float16(), pa.float32()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ms", "America/New_York"), pa.timestamp("us", "UTC")),
        (pa.decimal256(20, 3), pa.decimal128(20, 3)),
        (pa.large_list(pa.large_binary()), pa.list_(pa.binary())),
        (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.list_(pa.field("x", pa.int8(), False), 3), pa.list_(pa.int8())),
        (pa.map_(pa.large_string(), pa.date64()), pa.map_(pa.string(), pa.date32())),
        (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
    ],
    ids=str,
)
def test_other_encodings_have_the_type_of_their_values(
    given: pa.DataType, canonical: pa.DataType
) -> None:
    assert canonical_schema(pa.schema([("c", given)])).field("c").type == canonical


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (pa.timestamp("us"), r"use pa.timestamp\('us', 'UTC'\)"),
        (pa.timestamp("ns", "UTC"), r"use pa.timestamp\('us', 'UTC'\)"),
        (pa.uint8(), "use pa.int16"),
        (pa.uint16(), "use pa.int32"),
        (pa.uint32(), "use pa.int64"),
        (pa.uint64(), r"use pa.decimal128\(20, 0\)"),
        (pa.null(), "use the type of the values"),
        (pa.time64("us"), "microseconds since midnight"),
        (pa.duration("s"), "with the unit in the column's name"),
        (pa.month_day_nano_interval(), "with the unit in the column's name"),
        (pa.dense_union([pa.field("a", pa.int8())]), "one nullable column for each alternative"),
        (pa.decimal256(50, 2), "a decimal of 1 to 38 digits"),
        (pa.decimal128(10, -2), "a decimal of 1 to 38 digits"),
        (pa.uuid(), "use its storage type"),
        (pa.map_(pa.map_(pa.int8(), pa.int8()), pa.int8()), "a key that is not a map"),
    ],
    ids=str,
)
def test_type_that_delta_lacks_is_refused_with_the_column_and_another_type(
    kind: pa.DataType, way: str
) -> None:
    for given, path in ((kind, "at"), (pa.list_(pa.struct([("x", kind)])), "at.element.x")):
        with pytest.raises(InvalidSchema, match=rf"column {path}.* of type .*{way}") as found:
            canonical_schema(pa.schema([("id", pa.int64()), ("at", given)]))
        assert found.value.column == "at"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a", "A"], "two columns are named 'a', or differ only in case"),
        (["a b"], "character that Delta refuses, .* use 'a_b'"),
        (["a=b"], "use 'a_b'"),
        ([""], "has 1 to 255 characters"),
        (["x" * 256], "has 1 to 255 characters"),
        ([], "at least one column"),
    ],
)
def test_name_that_delta_or_sql_cannot_tell_is_refused(names: list[str], reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        canonical_schema(pa.schema([(name, pa.int8()) for name in names]))
    inner = pa.struct([(name, pa.int8()) for name in names])
    with pytest.raises(InvalidSchema, match="column outer" if names else "without fields"):
        canonical_schema(pa.schema([("outer", inner)]))


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_name_of_a_column_of_ours_is_refused_in_any_case_but_not_inside_of_a_struct(
    name: str,
) -> None:
    for clash in (name, name.upper()):
        with pytest.raises(InvalidSchema, match=r"rename it\. Reserved: base_offset"):
            canonical_schema(pa.schema([(clash, pa.int8())]))
    canonical_schema(pa.schema([("c", pa.struct([(name, pa.int8())]))]))


def test_schemas_have_limits() -> None:
    deep = pa.int8()
    for _ in range(40):
        deep = pa.list_(deep)
    with pytest.raises(InvalidSchema, match="more than 32 levels deep"):
        canonical_schema(pa.schema([("c", deep)]))
    with pytest.raises(InvalidSchema, match="at most 2000 columns, nested ones included, got 2001"):
        canonical_schema(pa.schema([(f"c{number}", pa.int8()) for number in range(2_001)]))


def test_a_comment_that_is_not_utf_8_is_refused() -> None:
    field = pa.field("c", pa.int8(), metadata={"comment": b"Z\xfcrich"})
    with pytest.raises(InvalidSchema, match=r"the comment of column c is not UTF-8: b'Z") as found:
        StreamSchema.of(pa.schema([field]))
    assert found.value.column == "c"


def test_a_decimal_of_avro_with_too_many_digits_is_refused() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}
    record = {"type": "record", "name": "r", "fields": [{"name": "d", "type": kind}]}
    with pytest.raises(InvalidSchema, match=r"column d .* a decimal of 1 to 38 digits"):
        StreamSchema.from_avro(record)
