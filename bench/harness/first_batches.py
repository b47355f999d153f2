"""First batches of queries over three sources in one JVM, whoever started it.

``python -m bench.harness.first_batches JSON`` measures in a JVM of its own.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bench.harness.cpu_time import CpuMeter
from bench.harness.empty_source import ARCHIVE, ROWS, EmptySource
from bench.harness.measure import interleave, timed

SIDES = ("ours", "delta", "empty")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the sources have their rows, and where queries have their checkpoints."""

    root: str
    stream: str
    delta: str
    folder: str


@dataclass(frozen=True, slots=True)
class FirstBatches:
    """The milliseconds and the processor seconds of each round, by side.

    ``from_archive`` tells whether Spark's Python imported PySpark from the zip archive.
    """

    ms: dict[str, list[float]]
    seconds: dict[str, list[float]]
    from_archive: bool

    def compare(self, ours: str, peer: str) -> str:
        """Return a note with the median processor time of two sides."""
        seconds = (statistics.median(self.seconds[side]) for side in (ours, peer))
        return "processor time {:.2f} s against {:.2f} s".format(*seconds)


def first_batches(spark: Any, place: Place, rounds: int, before: int = 1) -> FirstBatches:
    """Start queries in turn; measure each from ``start()`` until it has processed its rows.

    ``before`` queries of each side come first: a JVM compiles what runs often.
    """
    spark.dataSource.register(EmptySource)
    reader = spark.readStream
    frames = {
        "ours": reader.format("pravega")
        .option("root", place.root)
        .option("startingOffsets", "earliest")
        .load(place.stream),
        "delta": spark.readStream.format("delta").load(place.delta),
        "empty": spark.readStream.format(EmptySource.name()).load(),
    }
    numbers = count()
    last: dict[str, dict[str, Any]] = {}

    def start(side: str) -> float:
        checkpoint = str(Path(place.folder, f"checkpoint-{next(numbers)}"))
        writer = frames[side].writeStream.format("noop").option("checkpointLocation", checkpoint)
        queries: list[Any] = []

        def run() -> None:
            queries.append(writer.start())
            queries[0].processAllAvailable()

        with meters[side]:
            seconds = timed(run)
        queries[0].stop()
        progress = queries[0].recentProgress
        assert sum(each["numInputRows"] for each in progress) == ROWS, side
        last[side] = json.loads(queries[0].lastProgress["sources"][0]["endOffset"] or "{}")
        return 1e3 * seconds

    meters = {side: CpuMeter() for side in SIDES}
    for side in SIDES * before:
        start(side)
    meters = {side: CpuMeter() for side in SIDES}
    ms = interleave(rounds, {side: partial(start, side) for side in SIDES})
    seconds = {side: meter.seconds for side, meter in meters.items()}
    return FirstBatches(ms, seconds, last["empty"][ARCHIVE])


def own_session(settings: dict[str, str]) -> Any:
    """Start Spark by ``session()``."""
    from pravega_spark import session

    return session(**settings)


def others_session(settings: dict[str, str]) -> Any:
    """Start Spark as who knows nothing of this package."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main(text: str) -> None:
    """Print what was measured as the last line."""
    given = json.loads(text)
    start = own_session if given["is_own"] else others_session
    spark = start(given["settings"])
    print("\n" + json.dumps(asdict(first_batches(spark, Place(**given["place"]), given["rounds"]))))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
