"""Random queries of Spark over a stream, against the same queries over the same rows in memory.

A sequence writes rows in several ways, scales, merges and truncates, then asks ordinary batch
queries of each way of reading, and runs stateful streaming queries that stop and go on. A failure
prints the seed, the history and the query.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pravega_spark import (
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
    StreamSchema,
    frame,
    stream_frame,
)
from pravega_spark.compaction import plan
from tests.harness.local_spark import local_session
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.tiers import sized

SEQUENCES = sized(2, 400, "SPARK_QUERY_SEQUENCES")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("who", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
    ]
)
DDL = (
    "id BIGINT, who STRING, n INT, x DOUBLE, at TIMESTAMP, tags ARRAY<STRING>, "
    "place STRUCT<city: STRING, zip: INT>"
)
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
}
CONDITIONS = [
    "n > 0",
    "n IS NULL",
    "who IN ('a', 'c') OR who IS NULL",
    "x <= 0.5 AND n <> 3",
    "x = double('NaN')",
    "at >= TIMESTAMP'2026-01-01 00:00:40Z'",
    "place.city = 'Ulm' AND place.zip > 10",
    "NOT (n < 4 AND who = 'b')",
    "id % 7 = 2",
    "size(tags) > 1",
    "coalesce(n, 0) BETWEEN 1 AND 6",
]
BATCH: list[Callable[[DataFrame], DataFrame]] = [
    lambda f: f,
    lambda f: f.select("who", "n").distinct(),
    lambda f: f.groupBy("who").agg(F.count("*"), F.sum("n"), F.min("at"), F.max("x")),
    lambda f: f.groupBy("place.city").agg(F.countDistinct("who"), F.sort_array(F.collect_set("n"))),
    lambda f: f.orderBy(F.col("x").desc_nulls_last(), "id").limit(5),
    lambda f: f.selectExpr("id", "explode(tags) tag").groupBy("tag").count(),
    lambda f: f.selectExpr("id", "row_number() OVER (PARTITION BY who ORDER BY n, id) place"),
    lambda f: f.selectExpr("id", "lag(n) OVER (PARTITION BY who ORDER BY id) before"),
    lambda f: f.join(f.groupBy("who").agg(F.max("id").alias("last")), "who").where("id = last"),
    lambda f: f.alias("l").join(f.alias("r"), F.expr("l.n = r.id")).selectExpr("l.id", "r.who"),
    lambda f: f.where("n > 2").unionAll(f.where("n <= 2")),
    lambda f: f.rollup("who", "n").agg(F.count("*")),
    lambda f: f.agg(F.count("*"), F.count("n"), F.count_distinct("place")),
    lambda f: f.select(F.count_if(F.expr("who = 'a'")), F.max_by("who", "id")),
    lambda f: f.exceptAll(f.where("n = 1")),
]
STATEFUL: list[Callable[[DataFrame], DataFrame]] = [
    lambda f: f.groupBy("who").agg(F.count("*"), F.sum("n"), F.max("at")),
    lambda f: f.groupBy(F.window("at", "30 seconds"), "who").agg(F.count("*")),
    lambda f: f.dropDuplicates(["who", "n"]).groupBy().agg(F.count("*")),
    lambda f: f.selectExpr("explode(tags) tag").groupBy("tag").count(),
]

VERBS = (
    *("write", "write", "write_rows", "save", "commit"),
    *("scale", "merge_chunks", "truncate"),
)
Row = dict[str, object]
Rows = Counter[tuple[object, ...]]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    made = local_session(SETTINGS)
    made.sparkContext.setLogLevel("OFF")
    return made


class Sequence:
    """One stream, the rows that it should have, and what was done to it."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.spark = spark
        self.root = str(folder / "root")
        self.folder = folder
        self.manager = StreamManager(self.root)
        self.manager.create_scope("s")
        segments = self.random.randint(1, 3)
        schema = StreamSchema.of(SCHEMA)
        self.manager.create_stream(
            "s/a", StreamConfiguration(ScalingPolicy.fixed(segments), schema=schema)
        )
        self.rows: list[Row] = []
        self.ids = itertools.count()
        self.history = [f"{segments} segments"]

    def row(self) -> Row:
        draw = self.random
        number = next(self.ids)
        some = draw.choice([None, *range(-2, 9)])
        return {
            "id": number,
            "who": draw.choice(["a", "b", "c", "d", "é", "", None]),
            "n": some,
            "x": draw.choice([None, 0.0, -0.0, 0.5, 1e300, float("nan"), float("inf"), some]),
            "at": f"2026-01-01T00:{draw.randint(0, 1):02}:{draw.randint(0, 59):02}.000001Z",
            "tags": draw.choice([None, [], ["p"], ["p", None, "q"]]),
            "place": draw.choice([None, {"city": "Ulm", "zip": number}, {"city": None, "zip": 7}]),
        }

    def act(self, step: Step) -> None:
        verb, seed = step
        self.random = random.Random(seed)
        getattr(self, verb)()

    def _table(self) -> pa.Table:
        rows = [self.row() for _ in range(self.random.choice([1, 3, 20]))]
        self.rows += rows
        return _table(rows)

    def write(self) -> None:
        with self.manager.create_writer("s/a") as writer:
            writer.write_table(self._table(), routing_key="who").result()

    def write_rows(self) -> None:
        with self.manager.create_writer("s/a") as writer:
            for row in self._table().to_pylist():
                writer.write_event(row, row["who"])

    def commit(self) -> None:
        with self.manager.create_transactional_writer("s/a") as writer:
            done = writer.begin_transaction()
            done.write_table(self._table(), routing_key="who")
            done.commit()
            lost = writer.begin_transaction()
            lost.write_table(_table([self.row()]), routing_key="who")
            lost.abort()

    def save(self) -> None:
        given = _frame(self.spark, self._table())
        given.write.format("pravega").mode("append").options(root=self.root, routingKey="who").save(
            "s/a"
        )

    def scale(self) -> None:
        segments = self.manager.stream("s/a").segments()
        if len(segments) > 1 and self.random.random() < 0.5:
            first, second = segments[:2]
            self.manager.scale_stream(
                "s/a",
                [first, second],
                [(first.key_range.low, second.key_range.high)],
            )
            return
        chosen = self.random.choice(segments)
        low, high = chosen.key_range.low, chosen.key_range.high
        middle = (low + high) / 2
        self.manager.scale_stream("s/a", [chosen], [(low, middle), (middle, high)])

    def merge_chunks(self) -> None:
        with mock.patch.object(plan, "COMPACT_SETTLE_MS", -1):
            self.manager.compact_stream("s/a")

    def truncate(self) -> None:
        """Truncate to now, so that the model knows what is left: nothing."""
        if self.random.random() < 0.7:
            return
        self.manager.truncate_stream("s/a", self.manager.stream("s/a").tail())
        self.rows.clear()

    def frames(self) -> dict[str, DataFrame]:
        def load(**options: str) -> DataFrame:
            given = self.spark.read.format("pravega").options(root=self.root, **options)
            return given.load("s/a").select(*SCHEMA.names)

        native = frame(self.spark, "s/a", root=self.root).select(*SCHEMA.names)
        return {
            "pravega": load(),
            "pushed": load(pushFilters="true"),
            "parts": load(minPartitions="5"),
            "columns": load(columns=",".join(SCHEMA.names)),
            "native": native,
        }

    def check_batch(self, name: str, found: DataFrame, expected: DataFrame) -> None:
        condition = self.random.choice([None, *CONDITIONS])
        place = self.random.randrange(len(BATCH))
        self.history.append(f"query {place} where {condition} of {name}")
        if condition is not None:
            found, expected = found.where(condition), expected.where(condition)
        assert _rows(BATCH[place](found)) == _rows(BATCH[place](expected)), self.history

    def check_streaming(self) -> None:
        """A stateful query that stops twice has the answer of a batch over all rows."""
        place = self.random.randrange(len(STATEFUL))
        native = self.random.random() < 0.5
        limit = str(self.random.choice([20, 1_000]))
        checkpoint = str(self.folder / "checkpoint")
        answers: list[list[tuple[object, ...]]] = []
        for _ in range(2):
            self.history.append(f"stateful {place}, native {native}, limit {limit}")
            options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
            if native:
                source = stream_frame(self.spark, "s/a", root=self.root, **options)
            else:
                given = self.spark.readStream.format("pravega").options(root=self.root, **options)
                source = given.load("s/a")
            query = (
                STATEFUL[place](source.select(*SCHEMA.names))
                .writeStream.outputMode("complete")
                .foreachBatch(lambda f, _: answers.append([tuple(row) for row in f.collect()]))
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            expected = _rows(STATEFUL[place](_frame(self.spark, _table(self.rows))))
            if self.rows:
                assert Counter(map(_plain, answers[-1])) == expected, self.history
            self.write()
            self.history.append("write")


def _table(rows: list[Row]) -> pa.Table:
    columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
    columns["at"] = [str(value).removesuffix("Z") for value in columns["at"]]
    times = pa.array(columns.pop("at"), pa.string()).cast(pa.timestamp("us"))
    made = pa.table({n: pa.array(v, SCHEMA.field(n).type) for n, v in columns.items()})
    made = made.append_column("at", times.cast(pa.timestamp("us", "UTC")))
    return made.select(SCHEMA.names)


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    rows = [tuple(row.values()) for row in table.to_pylist()]
    return spark.createDataFrame(rows, DDL)


def _rows(found: DataFrame) -> Rows:
    return Counter(_plain(tuple(row)) for row in found.collect())


def _plain(row: tuple[object, ...]) -> tuple[object, ...]:
    """Return the row in a form in which equal rows are equal: NaN, -0.0, lists."""
    return tuple(repr(0.0 if value == 0.0 else value) for value in row)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_random_queries_answer_as_over_rows_in_memory(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    runs = itertools.count()

    def play(steps: Iterable[Step]) -> None:
        sequence = Sequence(spark, tmp_path / str(next(runs)), seed)
        for step in steps:
            sequence.act(step)
        sequence.random = random.Random(seed)
        expected = _frame(spark, _table(sequence.rows))
        for name, found in sequence.frames().items():
            sequence.check_batch(name, found, expected)
        sequence.check_streaming()

    play_shortest(seed, drawn_steps(seed, VERBS, 1 + seed % 6), play)
