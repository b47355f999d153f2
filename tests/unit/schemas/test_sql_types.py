"""Columns that are declared as in SQL are those that are printed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pravega_spark import StreamSchema
from pravega_spark.errors import InvalidSchema

WIDE = StreamSchema.of(
    pa.schema(
        [
            pa.field("carrier", pa.string(), False, {"comment": "it's a \\ IATA code,\nof two"}),
            ("a`b:c<d>", pa.int8()),
            ("größe", pa.int16()),
            ("delay", pa.int32()),
            ("n", pa.int64()),
            ("f", pa.float32()),
            ("speed", pa.float64()),
            ("price", pa.decimal128(38, 9)),
            ("day", pa.date32()),
            ("left", pa.timestamp("us", "UTC")),
            ("photo", pa.binary()),
            ("not", pa.bool_()),
            ("struct", pa.list_(pa.list_(pa.string()))),
            ("seats", pa.map_(pa.string(), pa.list_(pa.int32()))),
            (
                "crew",
                pa.struct(
                    [
                        pa.field("pilot", pa.string(), False, {"comment": "her name"}),
                        ("since", pa.map_(pa.date32(), pa.struct([("x", pa.int8())]))),
                    ]
                ),
            ),
        ]
    )
)


def test_what_is_printed_with_comments_is_the_schema() -> None:
    assert StreamSchema.from_ddl(WIDE.to_ddl()) == WIDE
    without = StreamSchema.from_ddl(str(WIDE))
    assert str(without) == str(WIDE)
    assert "comment" not in str(without)


def test_words_of_spark_and_of_delta_are_taken_in_any_case_and_spacing() -> None:
    text = " a  BIGINT NOT NULL COMMENT 'x',b long,c STRUCT < d : Decimal , e real not null >"
    text += ",f dec( 5 , 2 ),g numeric(4)"
    found = StreamSchema.from_ddl(text)
    assert str(found) == (
        "a bigint not null, b bigint, c struct<d:decimal(10,0),e:float not null>, "
        "f decimal(5,2), g decimal(4,0)"
    )
    assert found.fields[0].metadata == {b"comment": b"x"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at its end"),
        ("carrier", "at its end"),
        ("carrier string,", "at its end"),
        ("carrier string delay int", "at 'delay'"),
        ("carrier string not", "at its end"),
        ("carrier string comment two", "at 'two'"),
        ("carrier string comment 'two", 'at "\'two"'),
        ("a array<int", "at its end"),
        ("a array<int>>", "at '>'"),
        ("a map<string>", "at '>'"),
        ("a struct<>", "at '>'"),
        ("a struct<b>", "at '>'"),
        ("a decimal(5", "at its end"),
        ("a decimal(x)", "decimal"),
        ("a decimal(39,1)", "38 digits"),
        ("a varchar(20)", "at '('"),
        ("a text", "column a of type text has no place"),
        ("a timestamp_ntz", "to_utc_timestamp"),
        ("offset int", "cannot be named 'offset'"),
        ("a int, A int", "differ only in case"),
        ("`a b` int", "a character that Delta refuses"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "declares no columns"),
        ("a " + "array<" * 5_000, "declares no columns"),
    ],
)
def test_what_declares_no_columns_is_refused_where_it_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchema) as refused:
        StreamSchema.from_ddl(text)
    assert reason in str(refused.value)
