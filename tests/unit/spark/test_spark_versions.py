"""One module has all that differs by Spark's version, and the sources refuse an unknown one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import pravega_spark
from pravega_spark.errors import IllegalState
from pravega_spark.spark import versions
from pravega_spark.spark.key_value.source import KeyValueDataSource
from pravega_spark.spark.source import PravegaDataSource

PACKAGE = Path(pravega_spark.__file__).parent
OF_VERSIONS = (
    "pyspark.__version__",
    "pyspark.sql.datasource",
    "pyspark.sql.pandas",
    "pyspark.sql.streaming.datasource",
    "pyspark.version",
)


def names_used(tree: ast.AST) -> Iterator[str]:
    """The modules that a module imports, what it takes of them, and attributes of names."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{name.name}" for name in names)
            case ast.Attribute(value=ast.Name(id=of), attr=attribute):
                yield f"{of}.{attribute}"


def test_no_other_module_asks_for_what_differs_by_version() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        for name in names_used(ast.parse(path.read_text()))
        if f"{name}.".startswith(tuple(f"{one}." for one in OF_VERSIONS))
    }
    assert {path for path, _ in found} == {"spark/versions.py"}


@pytest.mark.parametrize("source", [PravegaDataSource, KeyValueDataSource])
@pytest.mark.parametrize("release", ["3.5.9", "4.4.0", "5.0.0"])
def test_a_source_refuses_an_unknown_spark_in_one_sentence(
    source: type, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", release)
    with pytest.raises(IllegalState, match=rf"for Spark 4\.0 to 4\.3, and this is Spark {release}"):
        source({})


@pytest.mark.parametrize("release", ["4.0.0", "4.0.5", "4.1.4", "4.2.1", "4.3.0", "4.3.0.dev1"])
def test_a_source_takes_every_known_spark(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", release)
    PravegaDataSource({"root": "memory://x"})


def test_columns_have_the_same_arrow_types_by_every_spark() -> None:
    columns = StructType(
        [
            StructField("at", TimestampType(), False),
            StructField("local", TimestampNTZType()),
            StructField("all", ArrayType(TimestampType(), False)),
            StructField("map", MapType(StringType(), DecimalType(10, 2))),
            StructField("inner", StructType([StructField("at", TimestampType())])),
        ]
    )
    time = pa.timestamp("us", tz="UTC")
    assert versions.arrow_schema(columns).equals(
        pa.schema(
            [
                pa.field("at", time, nullable=False),
                pa.field("local", pa.timestamp("us")),
                pa.field("all", pa.list_(pa.field("element", time, nullable=False))),
                pa.field("map", pa.map_(pa.string(), pa.decimal128(10, 2))),
                pa.field("inner", pa.struct([("at", time)])),
            ]
        )
    )
    plain = StructType([StructField("name", StringType()), StructField("count", LongType())])
    assert versions.spark_schema(versions.arrow_schema(plain)) == plain
