"""A loop over ranges that copies a stream to another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pravega_spark import StreamManager, for_each_range, write_frame
from pravega_spark.engine.stream.stream_log import StreamLog
from tests.harness.small_streams import write


def fill(stream: StreamLog, first: int, last: int, keys: int = 5) -> None:
    write(stream, [(f"k{i % keys}", b"%d" % i) for i in range(first, last)])


class Copies:
    """A loop that copies a stream to another one, each range under its number."""

    def __init__(self, spark: SparkSession, root: str, folder: Path, **options: Any) -> None:
        self.spark, self.root, self.checkpoint = spark, root, folder / "checkpoint"
        self.options = {"startingOffsets": "earliest", **options}
        self.numbers: list[int] = []

    def run(
        self,
        function: Callable[[DataFrame, int], object] | None = None,
        stream: Any = "s/a",
        **more: Any,
    ) -> int:
        given: dict[str, Any] = {
            "root": self.root,
            "checkpoint": self.checkpoint,
            "available_now": True,
        }
        given |= {**self.options, **more}
        return for_each_range(self.spark, stream, function or self.write, **given)

    def write(self, frame: DataFrame, number: int) -> None:
        self.numbers.append(number)
        rows = frame.select("routing_key", "event")
        write_frame(rows, "s/b", root=self.root, txn_app_id="copy", txn_version=number)

    def events(self) -> list[int]:
        return [int(event.data) for event in StreamManager(self.root).read("s/b")]
