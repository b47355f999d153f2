"""The declarative pipeline: its tables, and the stream that its sink writes.

``make long`` runs it for real, by Spark's own command; else its functions run one by one.
"""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

import pravega_spark as pravega
from tests.harness import warm_workers
from tests.harness.jvm import clean_environment
from tests.harness.local_spark import local_session
from tests.harness.tiers import only_long

PIPELINE = Path(__file__).parents[2] / "examples/pipeline"
CATALOG = ("--conf", "spark.sql.catalogImplementation=hive")
CARRIERS = ("UA", "DL", "B6")


class Pipeline:
    """What a definition gives to ``pyspark.pipelines``: tables, views, and a sink's options."""

    def __init__(self) -> None:
        self.made: dict[str, Callable[[], DataFrame]] = {}
        self.sink: tuple[str, dict[str, str]] | None = None

    def table(self, function: Callable[[], DataFrame]) -> None:
        self.made[function.__name__] = function

    materialized_view = table

    def append_flow(self, target: str) -> Callable[..., None]:
        return lambda function: self.made.update({target: function})

    def create_sink(self, name: str, kind: str, options: dict[str, str]) -> None:
        self.sink = kind, options


@pytest.mark.spark
def test_functions_of_the_pipeline_fill_its_tables_and_write_the_late_flights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "streams"
    events_with_delays(root, range(100))
    spark = local_session({"spark.pipeline.root": str(root)})
    made = Pipeline()
    monkeypatch.setattr(pyspark, "pipelines", made, raising=False)
    monkeypatch.setattr(SparkSession, "active", lambda: spark)
    runpy.run_path(str(PIPELINE / "transformations/late_flights.py"))
    assert made.sink is not None
    kind, options = made.sink

    def run(writer: Any, name: str) -> None:
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(100)

    writing = made.made["delayed_flights"]().writeStream.format(kind)
    run(writing.options(**options), "sink")
    events = pravega.StreamManager(root).read("nyc/delayed")
    assert sorted(json.loads(event.data)["delay"] for event in events) == list(range(60, 100))
    run(made.made["departures"]().writeStream.format("memory").queryName("departures"), "table")
    carriers = {row["carrier"]: row["count"] for row in made.made["carriers"]().collect()}
    assert carriers == {"UA": 34, "DL": 33, "B6": 33}


def events_with_delays(root: Path, delays: range) -> None:
    """Write a flight for each delay, of one carrier after the other."""
    manager = pravega.StreamManager(root)
    manager.create_scope("nyc")
    manager.create_stream("nyc/flights")
    with manager.create_writer("nyc/flights", serializer=pravega.json_serializer) as writer:
        for delay in delays:
            writer.write_event({"delay": delay}, routing_key=CARRIERS[delay % 3])


def run(folder: Path) -> str:
    """Run the pipeline in a folder; return what it printed."""
    done = subprocess.run(
        [Path(sys.executable).parent / "spark-pipelines", "run", *CATALOG],
        cwd=folder,
        # Any free port for Spark Connect, as Spark's own tests have it.
        env=clean_environment(**warm_workers.variables(), SPARK_TESTING="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
    return done.stdout


@pytest.mark.spark
@pytest.mark.long
@only_long("the test above runs what the pipeline declares; the command is Spark's")
def test_pipeline_fills_its_tables_and_writes_the_late_flights_once(tmp_path: Path) -> None:
    folder, root = tmp_path / "pipeline", tmp_path / "streams"
    shutil.copytree(PIPELINE, folder)
    specification = folder / "spark-pipeline.yml"
    text = specification.read_text()
    for documented, here in (
        ("/tmp/pipeline-storage", tmp_path / "storage"),
        ("/tmp/streams", root),
    ):
        assert documented in text
        text = text.replace(documented, str(here))
    specification.write_text(text)
    events_with_delays(root, range(100))

    assert "Run is COMPLETED" in run(folder)

    late = [
        json.loads(event.data)["delay"] for event in pravega.StreamManager(root).read("nyc/delayed")
    ]
    assert sorted(late) == list(range(60, 100))
    warehouse = folder / "spark-warehouse"
    departures = ds.dataset(warehouse / "departures", format="parquet").to_table()
    assert sorted(map(int, departures["delay"].to_pylist())) == list(range(100))
    assert (
        len(set(zip(*(departures[c].to_pylist() for c in ("segment_id", "offset")), strict=True)))
        == 100
    )
    carriers = ds.dataset(warehouse / "carriers", format="parquet").to_table().to_pylist()
    assert {row["carrier"]: row["count"] for row in carriers} == {"UA": 34, "DL": 33, "B6": 33}
