"""Rows as JSON: all that a row has is in the text, whatever the session's zone."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from pravega_spark import row_json

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

VALUES = {
    "CAST(NULL AS STRING)": "null",
    "TIMESTAMP'2020-01-01 00:00:00.123456Z'": '"2020-01-01T00:00:00.123456Z"',
    "TIMESTAMP_NTZ'2020-01-01 00:00:00.000001'": '"2020-01-01T00:00:00.000001"',
    "DATE'2020-01-01'": '"2020-01-01"',
    "123456789012345678.91BD": "123456789012345678.91",
    "0.1000BD": "0.1000",
    "9007199254740993": "9007199254740993",
    "DOUBLE('NaN')": '"NaN"',
    "FLOAT('-Infinity')": '"-Infinity"',
    "CAST(0.1 AS FLOAT)": "0.1",
    "X'ff'": '"/w=="',
    "named_struct('a', NULL, 'b', array(1, NULL))": '{"a":null,"b":[1,null]}',
    "map(X'ff01', NULL)": '{"/wE=":null}',
    "map(TIMESTAMP'2020-01-01 00:00:00.5Z', 1)": '{"2020-01-01T00:00:00.500000Z":1}',
    "map(DATE'2020-01-01', 1)": '{"2020-01-01":1}',
    "map(1.50BD, 1)": '{"1.50":1}',
    "map('\"a\"', 1)": r'{"\"a\"":1}',
    "map(named_struct('a', X'ff'), 1)": r'{"{\"a\":\"/w==\"}":1}',
    "array(named_struct('`m.n`', map('k', map(X'ff', 2))), NULL)":
        '[{"`m.n`":{"k":{"/w==":2}}},null]',
    "if(rand() > 2, named_struct('m', map(X'ff', 2)), NULL)": "null",
}  # fmt: skip


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_values_of_every_type_are_whole(spark: SparkSession, zone: str) -> None:
    kept = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        names = [f"c`{n}.x" for n in range(len(VALUES))]
        quoted = ["`" + name.replace("`", "``") + "`" for name in names]
        columns = (f"{sql} AS {name}" for sql, name in zip(VALUES, quoted, strict=True))
        frame = spark.sql(f"SELECT {', '.join(columns)}")
        (row,) = frame.selectExpr(f"{row_json(frame)} AS event").collect()
        wanted = (f'"{n}":{text}' for n, text in zip(names, VALUES.values(), strict=True))
        assert row["event"] == f"{{{','.join(wanted)}}}"
        (one,) = frame.selectExpr(f"{row_json(frame, names[4])} AS event").collect()
        found = json.loads(one["event"], parse_float=Decimal)
        assert found == {names[4]: Decimal("123456789012345678.91")}
    finally:
        spark.conf.set("spark.sql.session.timeZone", kept)
