"""The readers that tests compare. Each returns the rows of one version of a table."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pravega_spark import StreamCut
from pravega_spark.engine.log.snapshot import Snapshot, first_snapshot
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.view import StreamView
from tests.harness.story import STREAM, Row, Story

COLUMNS = ["segment_id", "base_offset", "offset_delta", "routing_key", "timestamp", "event"]


def package_rows(story: Story, snapshot: Snapshot) -> Counter[Row]:
    """Return the rows that this package reads up to the tail of a version."""
    view = StreamView(snapshot)
    if view.record.state is StreamState.DELETED:
        return Counter()
    reader = story.manager.create_reader(STREAM)
    rows: Counter[Row] = Counter()
    for rng, batch in reader.batches(StreamCut.EARLIEST, view.tail):
        columns = [
            batch.column("offset"),
            batch.column("routing_key"),
            batch.column("timestamp").cast(pa.int64()),
            batch.column("event"),
        ]
        rows.update((rng.segment_id, *row) for row in zip(*map(_values, columns), strict=True))
    return rows


def snapshots(story: Story, after: Snapshot | None = None) -> Iterator[Snapshot]:
    """Yield the snapshots of all versions in order, or of those after ``after``."""
    snapshot = after
    start = -1 if after is None else after.version
    for commit in story.stream.log.reader.span(start, story.version):
        snapshot = snapshot.apply(commit) if snapshot else first_snapshot(commit, story.table)
        yield snapshot


def spark_frame(spark: SparkSession, table: str, **options: Any) -> DataFrame:
    """Return a table as a DataFrame of Delta Spark."""
    return spark.read.format("delta").options(**options).load(table)


def spark_rows(spark: SparkSession, table: str, version: int) -> Counter[Row]:
    """Return the rows that Delta Spark reads."""
    return rows_of(spark_frame(spark, table, versionAsOf=version).select(COLUMNS).toArrow())


def deltalake_rows(table: str, version: int) -> Counter[Row]:
    """Return the rows that delta-rs reads."""
    return rows_of(DeltaTable(table, version=version).to_pyarrow_table(columns=COLUMNS))


def duckdb_rows(table: str, version: int) -> Counter[Row]:
    """Return the rows that DuckDB reads."""
    query = f"SELECT {', '.join(COLUMNS)} FROM delta_scan('{table}', version={version})"
    with connect_duckdb() as connection:
        return rows_of(connection.execute(query).to_arrow_table())


def duckdb_domains(table: str, version: int) -> dict[str, str]:
    """Return the domain metadata that DuckDB reads."""
    query = f"SELECT * FROM delta_domain_metadata('{table}', version={version})"
    with connect_duckdb() as connection:
        return dict(connection.execute(query).fetchall())


def connect_duckdb() -> duckdb.DuckDBPyConnection:
    """Return a DuckDB with the Delta extension of the installed package, without a download."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"LOAD '{_extension()}'")
    return connection


@functools.cache
def _extension() -> Path:
    (folder,) = duckdb_extension_delta.__path__
    (file,) = Path(folder).glob(f"extensions/v{duckdb.__version__}/delta.duckdb_extension")
    return file


def rows_of(table: pa.Table) -> Counter[Row]:
    """Return the events of a table with the columns ``COLUMNS``."""
    offsets = pc.add(table.column("base_offset"), table.column("offset_delta").cast(pa.int64()))
    times = table.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    columns = [
        table.column("segment_id"),
        offsets,
        table.column("routing_key"),
        times,
        table.column("event"),
    ]
    return Counter(zip(*map(_values, columns), strict=True))


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


class DeltaQuery:
    """A streaming query with Delta's source over the events table; each run continues."""

    def __init__(self, spark: SparkSession, table: str, checkpoint: Path) -> None:
        self._spark, self._table, self._checkpoint = spark, table, checkpoint
        self.batches: list[Counter[Row]] = []

    def run(self, **options: Any) -> Counter[Row]:
        """Return the rows of this run."""
        self.batches.clear()
        frame = self._spark.readStream.format("delta").options(**options).load(self._table)
        writer = frame.writeStream.foreachBatch(self._take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return sum(self.batches, Counter())

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        self.batches.append(rows_of(frame.select(COLUMNS).toArrow()))
