"""Work of this package in Spark's tasks by ``mapInArrow``, on every Spark that has it.

So it runs on Spark 3.5, which has no Python data sources, with Spark Connect, and on serverless
compute. The parts of the work travel with the function and not as rows, so each task has exactly
the part of its number, in the order of the parts, without a shuffle.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_Part = TypeVar("_Part")


def in_tasks(
    spark: SparkSession,
    parts: Sequence[_Part],
    work: Callable[[_Part], Iterable[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    """Return a frame with the rows that ``work`` yields of each part, each in a task of its own.

    Parts and work must be picklable. Each action on the frame does the work again.
    """
    packed = [pickle.dumps(part) for part in parts]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(pickle.loads(packed[number]))

    numbers = spark.range(0, len(packed), 1, max(1, len(packed)))
    return numbers.mapInArrow(run, schema)
