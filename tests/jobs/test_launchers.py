"""Each job as a process of its own: by python -m, by spark-submit, and by the wheel's command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from pravega_spark.spark.jars import delta_package
from pravega_spark.spark.versions import spark_release
from tests.harness import warm_workers
from tests.harness.jvm import clean_environment
from tests.harness.launch_lines import JOBS, REPOSITORY
from tests.harness.tiers import only_long

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

BIN = Path(sys.executable).parent
LAUNCHERS = ("module", "submit", "command")


def launch(
    by: str, job: str, *options: object, packages: str | None = None, **variables: str
) -> dict[str, object]:
    """Run a job to its end, and return its last line."""
    name = job.replace("_", "-")
    words = {
        "module": [sys.executable, "-m", f"pravega_spark.jobs.{job}"],
        "submit": [
            *(str(BIN / "spark-submit"), "--master", "local[1]"),
            *([] if packages is None else ["--packages", packages]),
            str(REPOSITORY / "jobs" / f"{job}.py"),
        ],
        "command": [str(BIN / f"pravega-spark-{name}")],
    }[by]
    done = subprocess.run(
        [*words, *map(str, options)],
        env=clean_environment(**warm_workers.variables(), PYTHONPATH=str(REPOSITORY), **variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    """A root with the stream s/in of 20 events."""
    made = StreamManager(tmp_path / "root")
    made.create_scope("s")
    made.create_stream("s/in")
    with made.create_writer("s/in") as writer:
        for n in range(20):
            writer.write_event(f"event {n}".encode(), routing_key=f"k{n % 3}")
    return made


@pytest.mark.long
@only_long(
    "the tests below run jobs by launchers, and tests/jobs/test_file_copies.py exports to Delta"
)
def test_export_to_delta_and_import_from_delta_by_two_launchers(
    manager: StreamManager, tmp_path: Path
) -> None:
    given = ["--root", tmp_path / "root", "--path", tmp_path / "table", "--checkpoint"]
    words = [*given, tmp_path / "export", "--stream", "s/in", "--to", "delta"]
    assert launch("module", "export_stream", *words)["rows"] == 20
    words = [*given, tmp_path / "import", "--stream", "s/back", "--from", "delta"]
    delta = delta_package(spark_release())
    assert launch("submit", "import_stream", *words, packages=delta)["rows"] == 20
    copied = sorted((e.routing_key, e.data) for e in manager.read("s/back"))
    assert copied == sorted((e.routing_key, e.data) for e in manager.read("s/in"))


@pytest.mark.long
@only_long(
    "the tests below run jobs by two launchers, tests/unit/jobs/test_entry_points.py has the third"
)
@pytest.mark.parametrize("by", LAUNCHERS)
@pytest.mark.parametrize("job", JOBS)
def test_job_runs_by_each_launcher(
    job: str, by: str, manager: StreamManager, tmp_path: Path
) -> None:
    words: list[object] = ["--root", tmp_path / "root"]
    if job in ("import_stream", "export_stream"):
        lines = tmp_path / "lines"
        lines.mkdir()
        (lines / "a.json").write_text('{"n":1}\n{"n":2}\n')
        words += ["--checkpoint", tmp_path / "checkpoint", "--path", lines, "--stream"]
        if job == "import_stream":
            assert launch(by, job, *words, "s/new", "--from", "json")["rows"] == 2
            assert [e.data for e in manager.read("s/new")] == [b'{"n":1}', b'{"n":2}']
        else:
            words[words.index(lines)] = tmp_path / "out"
            assert launch(by, job, *words, "s/in", "--to", "parquet")["rows"] == 20
        return
    found = launch(by, job, *words)
    assert (found["failed"], found["rounds"]) == (0, 1)
    assert found["streams"] == 1 if "streams" in found else True


@pytest.mark.versions(since="3.5")
def test_jobs_run_by_command_line_on_each_spark(manager: StreamManager, tmp_path: Path) -> None:
    root = "--root", tmp_path / "root"
    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "a.json").write_text('{"n":1}\n{"n":2}\n')
    words = *root, "--checkpoint", tmp_path / "import", "--path", lines, "--stream", "s/new"
    assert launch("module", "import_stream", *words, "--from", "json")["rows"] == 2
    assert [e.data for e in manager.read("s/new")] == [b'{"n":1}', b'{"n":2}']
    found = launch("submit", "maintenance", *root, "--once")
    assert (found["failed"], found["streams"], found["rounds"]) == (0, 2, 1)


def test_job_runs_over_spark_connect(manager: StreamManager, tmp_path: Path) -> None:
    given = "--root", tmp_path / "root"
    found = launch("module", "compaction", *given, SPARK_REMOTE="local[2]")
    assert (found["failed"], found["streams"]) == (0, 1)
