"""All that differs by Spark's version: the rest of the package asks for no version.

It asks for the facts below, and takes Spark's interface of data sources from here. What a Spark
lacks has a stand-in, so that every module imports on all of them. A fact is read from what this
Spark has and not from its number, since vendors give old numbers new parts.

===================================== === === === ===
what Spark has                        4.0 4.1 4.2 4.3
===================================== === === === ===
filters for a batch source             -  yes yes yes
a frame that keeps its source's plan   -  yes yes yes
its trigger and limits for a stream    -   -  yes yes
the internals that our Java names      -   -  yes yes
===================================== === === === ===

Spark 3.5 has no Python data sources at all. There the stand-ins let the readers and the sink be
imported, for programs that call them without ``format("pravega")``.
"""

from __future__ import annotations

import functools
import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyspark

from pravega_spark.errors import IllegalState

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import datasource
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        InputPartition,
        WriterCommitMessage,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType

__all__ = [
    "FIRST_SPARK",
    "HAS_DATA_SOURCES",
    "HAS_FILTERS",
    "HAS_TRIGGERS",
    "KEEPS_PLANS",
    "KNOWN_SPARKS",
    "LAST_SPARK",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "DataSourceStreamWriter",
    "DataSourceWriter",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
    "arrow_schema",
    "check_spark",
    "datasource",
    "error_condition",
    "java_for",
    "progress_fields",
    "spark_release",
    "spark_schema",
    "spark_version",
]

FIRST_SPARK: Final = (4, 0)
LAST_SPARK: Final = (4, 3)
KNOWN_SPARKS: Final = "{}.{} to {}.{}".format(*FIRST_SPARK, *LAST_SPARK)
"""The Sparks that the package is tested with."""


def spark_release() -> str:
    """Return the release of the PySpark that runs, such as ``4.2.0``."""
    return pyspark.__version__


def spark_version() -> tuple[int, int]:
    """Return the first two numbers of the release, such as (4, 2)."""
    found = re.match(r"(\d+)\.(\d+)", spark_release())
    if found is None:
        raise IllegalState(
            f"PySpark says that its version is {spark_release()!r}: install it anew."
        )
    return int(found[1]), int(found[2])


def check_spark() -> None:
    """Raise IllegalState if the data sources are not for this Spark."""
    if FIRST_SPARK <= spark_version() <= LAST_SPARK:
        return
    way_on = (
        "install one of these" if HAS_DATA_SOURCES else "Spark has Python data sources since 4.0"
    )
    raise IllegalState(
        f"format('pravega') and format('pravega_kvt') are for Spark {KNOWN_SPARKS}, and this is "
        f"Spark {spark_release()}: {way_on}."
    )


if not TYPE_CHECKING:
    try:
        from pyspark.sql import datasource
        from pyspark.sql.datasource import (
            DataSource,
            DataSourceArrowWriter,
            DataSourceReader,
            DataSourceStreamReader,
            DataSourceStreamWriter,
            DataSourceWriter,
            InputPartition,
            WriterCommitMessage,
        )
    except ImportError:  # Spark 3.5
        datasource = None
        DataSource = type("DataSource", (), {"__init__": lambda self, options: None})
        DataSourceReader = type("DataSourceReader", (), {})
        DataSourceStreamReader = type("DataSourceStreamReader", (), {})
        DataSourceWriter = type("DataSourceWriter", (), {})
        DataSourceArrowWriter = type("DataSourceArrowWriter", (DataSourceWriter,), {})
        DataSourceStreamWriter = type("DataSourceStreamWriter", (), {})

        class InputPartition:
            """What one task reads."""

            def __init__(self, value: Any) -> None:
                self.value = value

        class WriterCommitMessage:
            """What one task wrote."""

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # Spark 4.0 gives Arrow batches to any writer that is an Arrow writer

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """A streaming writer that takes Arrow batches."""

    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            ReadMinRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # Spark 4.0 and 4.1: our own planners alone use these

        class ReadLimit:
            """How much the next micro-batch may read."""

        @dataclass
        class ReadAllAvailable(ReadLimit):
            """All that there is."""

        @dataclass
        class ReadMinRows(ReadLimit):
            """At least so many rows."""

            min_rows: int

        @dataclass
        class ReadMaxRows(ReadLimit):
            """At most so many rows."""

            max_rows: int

        @dataclass
        class ReadMaxBytes(ReadLimit):
            """At most so many bytes."""

            max_bytes: int

        class SupportsTriggerAvailableNow(ABC):
            """A source that can end a run at the tails of its beginning."""

            @abstractmethod
            def prepareForTriggerAvailableNow(self) -> None:
                """Fix the end of the run at the present tails."""


HAS_DATA_SOURCES: Final = datasource is not None
"""Whether Spark has Python data sources."""
HAS_FILTERS: Final = hasattr(datasource, "Filter")
"""Whether Spark tells a batch source the conditions of a query (classes of ``datasource``)."""
HAS_TRIGGERS: Final = SupportsTriggerAvailableNow.__module__.startswith("pyspark.")
"""Whether Spark tells a streaming source its trigger, and where a micro-batch begins."""
KEEPS_PLANS: Final = HAS_FILTERS
"""Whether Spark keeps with a frame what its source planned, as it keeps the filters taken."""


@functools.cache
def _zone() -> dict[str, Any]:
    """Return how ``to_arrow_schema`` is told that timestamps are in UTC; old ones know no other."""
    import inspect

    from pyspark.sql.pandas.types import to_arrow_schema

    has_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return {"timezone": "UTC"} if has_zone else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of Spark's columns, with timestamps in UTC.

    Raises PySparkException for a type without one.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, **_zone())


def error_condition(error: PySparkException) -> str | None:
    """Return the condition of an error of Spark's; Spark 3.5 calls it the error's class."""
    condition = getattr(error, "getCondition", None) or error.getErrorClass
    found: str | None = condition()
    return found


def progress_fields(progress: Any) -> dict[str, Any]:
    """Return the fields of a query's progress; Spark 3.5 reports no more than them."""
    fields: dict[str, Any] = json.loads(progress.json) if hasattr(progress, "json") else progress
    return fields


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's columns of a schema of texts, numbers and truths; Sparks differ on others."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


_EXECUTION: Final = "org/apache/spark/sql/execution"
_RELATION: Final = f"{_EXECUTION}/streaming/runtime/StreamingRelation"
_NEWER_JAVA: Final = (
    (_RELATION, 1, "execution.streaming.runtime.", "execution.streaming."),
    (_RELATION, 4, ", StreamingRelation.apply$default$4()", ""),
    (f"{_EXECUTION}/datasources/DataSource", 9, ", Option.empty());", ");"),
)
"""A class, and with fewer parameters than these: text of our Java, and what it is instead."""


def java_for(gateway: Any, source: str) -> str:
    """Return Java of the package, which is written for Spark 4.2, for the JVM that runs."""
    loader = gateway.jvm.Thread.currentThread().getContextClassLoader()
    for name, parameters, text, older in _NEWER_JAVA:
        if text in source and _parameters(loader, name) < parameters:
            source = source.replace(text, older)
    return source


def _parameters(loader: Any, name: str) -> int:
    """Return how many parameters the constructor of a class has; 0 if there is no such class."""
    if loader.getResource(f"{name}.class") is None:
        return 0
    constructors = loader.loadClass(name.replace("/", ".")).getConstructors()
    return max(int(each.getParameterCount()) for each in constructors)
