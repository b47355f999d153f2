"""Checkpoints that several Sparks continue, and what a Spark that tells its sources less does."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager
from pravega_spark.spark.versions import HAS_FILTERS, HAS_TRIGGERS
from tests.harness.jvm import clean_environment, variables
from tests.harness.small_streams import scale, write
from tests.harness.spark_copy_app import copy
from tests.harness.spark_environments import OLDER, REPOSITORY
from tests.spark.conftest import Load

pytestmark = pytest.mark.extended

Make = Callable[..., StreamLog]


def fill(stream: StreamLog, first: int, last: int) -> None:
    write(stream, [(f"k{i % 7}", b"%d" % i) for i in range(first, last)])


def copied(root: str, name: str) -> list[int]:
    """Return the numbers in a copy, in which those of each key are in order."""
    found = [int(event.data) for event in StreamManager(root).read(name)]
    for key in range(7):
        held = [number for number in found if number % 7 == key]
        assert held == sorted(held)
    return sorted(found)


class Copy:
    """A query over ``s/a``, whose runs are of this process's Spark or of another one."""

    def __init__(self, root: str, checkpoint: Path, target: str, **options: str) -> None:
        self.root, self.checkpoint, self.target = root, checkpoint, target
        self.options = options

    def run(self, spark: SparkSession) -> None:
        copy(spark, self.root, str(self.checkpoint), self.target, **self.options)

    def word(self) -> str:
        given = [f"{name}={value}" for name, value in self.options.items()]
        return ",".join((self.target, str(self.checkpoint), *given))

    def forget_last_commit(self) -> None:
        """Set the checkpoint back to after the sink's commit and before Spark recorded it."""
        commits = self.checkpoint / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
        for file in (commits / str(last), commits / f".{last}.crc"):
            file.unlink(missing_ok=True)


def run_with_another_spark(root: str, *copies: Copy) -> None:
    """Run queries with the Spark of ``.venv``, or with the older one if this is it."""
    python, environment = OLDER.python, OLDER.environment()
    if not HAS_TRIGGERS:
        venv = OLDER.folder.parents[1]
        python = venv / "bin/python"
        own = {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(REPOSITORY)}
        environment = clean_environment(**variables(venv), **own)
    words = [str(python), "-m", "tests.harness.spark_copy_app", root]
    done = subprocess.run(
        [*words, *(one.word() for one in copies)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]


@pytest.mark.versions
def test_checkpoint_goes_on_with_another_spark_and_back(
    spark: SparkSession, root: str, make: Make, tmp_path: Path
) -> None:
    source = make(segments=2)
    fill(source, 0, 60)
    limited = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "25", "readerGroup": "s/g"}
    whole = Copy(root, tmp_path / "b", "s/b", **limited)
    late = Copy(root, tmp_path / "c", "s/c", startingOffsets="latest")
    whole.run(spark)
    late.run(spark)
    whole.forget_last_commit()
    scale(source, [0, 1], [(0.0, 1.0)])
    fill(source, 60, 120)
    run_with_another_spark(root, whole, late)
    for one in (whole, late):
        one.forget_last_commit()
    fill(source, 120, 150)
    whole.run(spark)
    late.run(spark)
    assert copied(root, "s/b") == list(range(150))
    assert copied(root, "s/c") == list(range(60, 150))


@pytest.mark.versions
@pytest.mark.parametrize("option", ["false", "true"])
def test_limits_hold_from_the_first_batch_on_or_the_second(
    root: str, make: Make, follow: Load, tmp_path: Path, option: str
) -> None:
    source = make()
    fill(source, 0, 25)
    sizes = list[int]()

    def process(frame: DataFrame, _: int) -> None:
        sizes.append(frame.count())

    query = (
        follow(maxOffsetsPerTrigger="10", limitFirstBatch=option)
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        first = [10, 10, 5] if HAS_TRIGGERS or option == "true" else [25]
        assert sizes == first
        fill(source, 25, 50)
        query.processAllAvailable()
        assert sizes == [*first, 10, 10, 5]
    finally:
        query.stop()


@pytest.mark.versions
def test_filters_are_pushed_where_spark_tells_them(load: Load, make: Make) -> None:
    fill(make(), 0, 5)
    error = "DATA_SOURCE_PUSHDOWN_DISABLED" if HAS_FILTERS else r"InvalidOption.*needs Spark 4\.1"
    with pytest.raises(PySparkException, match=error):
        load(pushFilters="true").where("offset > 3").collect()
