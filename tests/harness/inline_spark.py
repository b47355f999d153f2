"""A session without Spark: ``mapInArrow`` runs in this process, one partition after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

Part = Callable[[], list[pa.RecordBatch]]
Map = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


class InlineFrame:
    """A frame of partitions, each computed again by every action, as in Spark."""

    def __init__(self, schema: StructType, parts: list[Part]) -> None:
        self.schema, self._parts = schema, parts

    def mapInArrow(self, function: Map, schema: StructType | str) -> InlineFrame:
        sent = cloudpickle.dumps(function)

        def mapped(part: Part) -> Part:
            return lambda: list(cloudpickle.loads(sent)(iter(part())))

        if isinstance(schema, str):
            schema = StructType([StructField(schema.split()[0], BinaryType())])
        return InlineFrame(schema, [mapped(part) for part in self._parts])

    def select(self, *names: str) -> InlineFrame:
        def selected(part: Part) -> Part:
            return lambda: [batch.select(list(names)) for batch in part()]

        fields = [self.schema[name] for name in names]
        return InlineFrame(StructType(fields), [selected(part) for part in self._parts])

    @property
    def columns(self) -> list[str]:
        return self.schema.names

    def toDF(self, *names: str) -> InlineFrame:
        def renamed(part: Part) -> Part:
            return lambda: [batch.rename_columns(list(names)) for batch in part()]

        fields = [
            StructField(n, f.dataType, f.nullable) for n, f in zip(names, self.schema, strict=True)
        ]
        return InlineFrame(StructType(fields), [renamed(part) for part in self._parts])

    def partitions(self) -> list[list[Row]]:
        return [
            [Row(**row) for batch in part() for row in batch.to_pylist()] for part in self._parts
        ]

    def collect(self) -> list[Row]:
        return [row for part in self.partitions() for row in part]

    def limit(self, count: int) -> InlineFrame:
        """Return the first rows of each partition."""

        def limited(part: Part) -> Part:
            return lambda: [batch.slice(0, count) for batch in part()]

        return InlineFrame(self.schema, [limited(part) for part in self._parts])


class InlineSpark:
    """As much of a session as frames by ``mapInArrow`` need."""

    def range(self, start: int, end: int, step: int, partitions: int) -> InlineFrame:
        assert end - start in (0, partitions), "a row in each partition"

        def part(number: int) -> Part:
            return lambda: [pa.RecordBatch.from_pydict({"id": [number]})]

        schema = StructType([StructField("id", LongType(), False)])
        return InlineFrame(schema, [part(number) for number in range(start, end)])

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"frames by mapInArrow do not need {name} of a session")
