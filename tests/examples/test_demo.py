"""The demo from end to end, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from flights import demo
from flights.nycflights import load_flights
from pravega_spark import StreamManager
from pravega_spark.spark.jars import delta_package
from pravega_spark.spark.versions import spark_release
from tests.harness import warm_workers
from tests.harness.launched import Launched, launched
from tests.harness.s3_server import S3Server
from tests.harness.tiers import only_long

pytestmark = pytest.mark.extended

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "examples" / "demo.py"
CHECKS = ("exactly_once", "in_order", "aggregate_matches", "retention_exact")
PNG = b"\x89PNG\r\n\x1a\n"
LIMIT, LATE = 4_000, 80

Done = subprocess.CompletedProcess[str]


def run(
    folder: Path, *arguments: str, submit: bool = False, env: dict[str, str] | None = None
) -> Done:
    """Run the demo in a folder, with spark-submit as ``make demo`` does, or as a plain script."""
    environment = {**os.environ, **(env or {})}
    environment.pop("PYSPARK_PYTHON", None)
    command = [sys.executable]
    if submit:
        environment |= warm_workers.variables()
        command = [str(Path(sys.executable).parent / "spark-submit"), "--packages"]
        command.append(str(delta_package(spark_release())))
    return subprocess.run(
        [*command, str(DEMO), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Launched]:
    """Run the demo on unusable input in a folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def refused(*arguments: str) -> Launched:
        done = launched(demo.main, arguments, capfd)
        assert done.status == 2
        assert done.out == ""
        assert "Traceback" not in done.err
        return done

    return refused


def summary(done: Done) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.mark.spark
@pytest.mark.slow
def test_flights_are_in_the_stream_once_and_in_order_although_the_ingest_was_killed(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, "--limit", str(LIMIT), submit=True)
    found = summary(done)
    assert found["events"] == LIMIT
    assert [found[check] for check in (*CHECKS, "typed_matches")] == [True] * (len(CHECKS) + 1)
    assert found["killed"] == "ingest"
    assert found["events_per_second"] > 0
    assert found["seconds"] >= found["replay_seconds"] > 0
    assert Path(found["picture"]).read_bytes().startswith(PNG)
    manager = StreamManager(found["root"])
    assert found["splits"] >= 1
    assert found["segments"] == 4
    assert len(manager.segments(found["stream"])) == 4 + found["splits"]
    files = found["compaction"]
    assert files["files_before"] >= files["files_after"] > 0
    assert found["retention"] == {
        "truncated_events": LIMIT - LATE + 1,
        "kept_events": LATE,
        "holder": "subscriber nyc/dashboards",
    }
    kept = [json.loads(event.data)["_row"] for event in manager.read(found["stream"])]
    assert sorted(kept) == sorted(load_flights(LIMIT).split()[1].rows["_row"].to_pylist())
    flights = manager.read_table("nyc/flights-typed", columns=["carrier"]).column("carrier")
    source = load_flights(LIMIT).rows["carrier"]
    assert sorted(flights.to_pylist()) == sorted(source.to_pylist())
    delays = pa.table(DeltaTable(found["table"]).to_pyarrow_table())
    assert pc.sum(delays["events"]).as_py() == LIMIT - LATE


@pytest.mark.spark
@pytest.mark.long
@only_long(
    "tests/examples/test_dataset.py reads files of users, the test above replays, and tests/spark "
    "and tests/s3 use buckets"
)
@pytest.mark.s3
def test_csv_of_the_users_own_with_odd_names_is_replayed_into_a_bucket(
    tmp_path: Path, s3: S3Server
) -> None:
    folder = tmp_path / "my files"
    folder.mkdir()
    rows = [f"{i % 5},2024-01-{1 + i % 28:02d} 10:{i % 60:02d}:00,v{i},,x" for i in range(1_000)]
    (folder / "own.csv").write_text("\n".join(["sensor,at,a value,b.c,d`[e]", *rows]) + "\n")
    root = f"s3://{s3.bucket}/demo"
    own = ("--input", "own.csv", "--key", "sensor", "--time", "at")
    options = ("--root", root, "--segments", "2", "--stream", "lab/sensors")
    found = summary(run(folder, *own, *options, env=s3.environment))
    assert found["events"] == 1_000
    assert [found[check] for check in CHECKS] == [True] * len(CHECKS)
    assert found["stream"] == "lab/sensors"
    assert found["typed_seconds"] is None
    manager = StreamManager(root, storage_options=s3.options)
    assert manager.stream_info("lab/sensors").events == found["retention"]["kept_events"] == 20
    again = run(folder, *own, *options, env=s3.environment)
    assert again.returncode == 2
    assert "exists in" in again.stderr


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--input", "none.csv", "--key", "a", "--time", "b"), "none.csv does not exist"),
        (("--input", "own.csv", "--key", "a", "--time", "b"), "row 2: 'soon' in column 'b'"),
        (("--input", "own.csv", "--key", "a"), "--input needs --key and --time"),
        (("--key", "a"), "--input, which is missing"),
        (("--limit", "0"), "must be a whole number above 0"),
        (("--segments", "1000000", "--limit", "9"), "at most 10000 segments"),
        (("--stream", "flights", "--limit", "9"), "'scope/stream', with one slash"),
        (("--root", "memory://x", "--limit", "9"), "visible to one process only"),
        (("--root", "out/demo/x", "--limit", "9"), "which the demo empties"),
        (("--root", "own.csv", "--limit", "9"), "is a file, not a folder"),
    ],
)
def test_bad_input_is_one_clear_error_and_leaves_nothing(
    refused: Callable[..., Launched], tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "own.csv").write_text("a,b\n1,2024-01-01\n2,soon\n")
    assert says in refused(*arguments).err
    assert os.listdir(tmp_path) == ["own.csv"]


def test_folder_that_is_not_the_demos_own_is_not_emptied(
    refused: Callable[..., Launched], tmp_path: Path
) -> None:
    mine = tmp_path / "out" / "demo" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")
    assert "was not made by the demo" in refused("--limit", "9").err
    assert mine.read_text() == "years of work"


@pytest.mark.medium
@pytest.mark.parametrize("stream", ["nyc/flights", "nyc/flights-typed"])
def test_stream_that_exists_in_a_root_of_the_users_own_is_left_alone(
    refused: Callable[..., Launched], tmp_path: Path, stream: str
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_stream(stream)
    version = manager.stream_info(stream).version
    done = refused("--root", "root", "--limit", "9")
    assert f"{stream} exists in root already" in done.err
    assert manager.stream_info(stream).version == version
    assert manager.list_streams("nyc") == [stream]
    assert os.listdir(tmp_path) == ["root"]


def test_reader_group_that_exists_in_a_root_of_the_users_own_is_left_alone(
    refused: Callable[..., Launched], tmp_path: Path
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_stream("nyc/other")
    group = manager.create_reader_group("nyc/dashboards", ["nyc/other"])
    done = refused("--root", "root", "--limit", "9")
    assert "reader group nyc/dashboards exists in root already" in done.err
    assert manager.list_streams("nyc") == ["nyc/other"]
    assert group.generation == 0
    assert os.listdir(tmp_path) == ["root"]


@pytest.mark.spark
def test_under_spark_submit_an_error_goes_to_stderr_and_the_status_is_kept(tmp_path: Path) -> None:
    done = run(tmp_path, "--input", "none.csv", "--key", "a", "--time", "b", submit=True)
    assert done.returncode == 2
    assert "demo: --input none.csv does not exist." in done.stderr
    assert done.stdout == ""
