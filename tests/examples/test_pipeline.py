"""The declarative pipeline runs for real: its tables, and the stream that its sink writes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import pravega_spark as pravega
from tests.harness.jvm import clean_environment
from tests.harness.tiers import only_long

PIPELINE = Path(__file__).parents[2] / "examples/pipeline"
CATALOG = ("--conf", "spark.sql.catalogImplementation=hive")
CARRIERS = ("UA", "DL", "B6")


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
        env=clean_environment(PYSPARK_PYTHON=sys.executable, SPARK_TESTING="1"),
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
@only_long
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
