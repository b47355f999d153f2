"""One module has all that differs by Spark's version, and the sources refuse an unknown one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


@pytest.mark.medium
def test_no_other_module_asks_for_what_differs_by_version() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        if "pyspark" in (text := path.read_text())
        for name in names_used(ast.parse(text))
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


class _Loader:
    """The classes of a JVM, each with the number of parameters of its constructors."""

    def __init__(self, **parameters: int) -> None:
        self._parameters = parameters

    def getResource(self, name: str) -> str | None:
        return name if self._of(name.removesuffix(".class").replace("/", ".")) else None

    def loadClass(self, name: str) -> Any:
        made = SimpleNamespace(getParameterCount=lambda: self._of(name))
        return SimpleNamespace(getConstructors=lambda: [made])

    def _of(self, name: str) -> int:
        package, _, simple = name.rpartition(".")
        return self._parameters.get(
            f"runtime_{simple}" if package.endswith("runtime") else simple, 0
        )


@pytest.mark.parametrize(
    ("classes", "package", "given"),
    [
        ({"DataSource": 8, "StreamingRelation": 3}, "streaming.Streaming", 8),
        ({"DataSource": 8, "runtime_StreamingRelation": 3}, "streaming.runtime.Streaming", 8),
        ({"DataSource": 9, "runtime_StreamingRelation": 4}, "streaming.runtime.Streaming", 9),
    ],
    ids=["4.0", "4.1", "4.2"],
)
def test_java_names_the_classes_of_the_jvm_and_gives_them_their_parameters(
    classes: dict[str, int], package: str, given: int
) -> None:
    thread = SimpleNamespace(getContextClassLoader=lambda: _Loader(**classes))
    jvm = SimpleNamespace(Thread=SimpleNamespace(currentThread=lambda: thread))
    source = (PACKAGE / "spark/native/ChunkReads.java").read_text()
    made = versions.java_for(SimpleNamespace(jvm=jvm), source)
    assert re.findall(r"import .*execution\.(streaming\..*Streaming)Relation;", made) == [package]
    ((call, relation),) = re.findall(
        r"super\((.*?)\);.*new StreamingRelation\((.*?)\);", made, re.S
    )
    assert len(call.split(",")) == given
    assert ("apply$default$4" in relation) == (given == 9)
    assert (made == source) == (given == 9)
