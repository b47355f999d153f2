"""On a cluster of two workers each job does what it does in one process, and sinks write once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pravega_spark import (
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
)
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.jobs import maintenance
from pravega_spark.jobs.signals import StopSignal
from tests.harness.launch_lines import SCHEDULED
from tests.harness.s3_server import S3Server
from tests.harness.spark_cluster import PROJECT, SPARK_HOME, Cluster, cluster, environment, run
from tests.harness.tiers import only_long

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

OF_TIMES = {
    "seconds",
    "compaction_bytes_read",
    "compaction_bytes_written",
    "sweeping_bytes",
    "sweeping_pending_bytes",
}
"""Sums of a job that differ by times and ids, which are stored compressed."""
KINDS = ("kept", "many", "open", "wide")
STREAMS = [f"s/{KINDS[n % 4]}-{n}" for n in range(40)]
JOBS = {
    "maintenance": {"kept", "many", "open", "wide"},
    "retention": {"kept"},
    "scaling": {"wide"},
    "transactions": {"open"},
    "compaction": {"many"},
}
"""By job: the kinds of streams that it changes."""
COPIES = ("import_stream", "export_stream")
WHOLE_CLUSTER = " ".join(
    f"--conf {setting}"
    for setting in (
        "spark.scheduler.minRegisteredResourcesRatio=1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime=60s",
        "spark.cores.max=2",
    )
)
"""The driver waits for both workers; else the first one may take every task."""


def kind_of(stream: str) -> str:
    return stream[2:].partition("-")[0]


class AnHourAgo(Runtime):
    """Neither compaction nor retention takes what was written just now."""

    def now_ms(self) -> int:
        return super().now_ms() - 3_600_000


def fill(root: str, **options: Any) -> None:
    """Make forty streams: with what to truncate, to merge, to commit, and segments to join."""
    manager = StreamManager(root, storage_options=options or None, runtime=AnHourAgo())
    manager.create_scope("s")
    for stream in STREAMS:
        kind = kind_of(stream)
        manager.create_stream(
            stream,
            StreamConfiguration(
                ScalingPolicy.fixed(3 if kind == "wide" else 1),
                RetentionPolicy.by_size(1) if kind == "kept" else None,
            ),
        )
        with manager.create_writer(stream) as writer:
            for number in range(24 if kind == "many" else 3):
                writer.write_event(b"%d" % number, f"k{number % 5}")
                writer.flush()
        if kind == "many":
            manager.seal_stream(stream)
        if kind == "wide":
            policy = ScalingPolicy.by_event_rate(1_000)
            manager.update_stream(stream, StreamConfiguration(policy))
    for stream in STREAMS:
        if kind_of(stream) == "open":
            transaction = manager.create_transactional_writer(stream).begin_transaction()
            transaction.write_event(b"decided", "k")
            transaction.commit(wait=False)


def filled(root: str | Path, **options: Any) -> StreamManager:
    """Fill a root in a process that is killed once its transactions are decided."""
    code = f"import tests.jobs.test_cluster as made; made.fill({str(root)!r}, **{options!r}); "
    end = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", code + end], env=environment(), check=False)
    assert done.returncode == -signal.SIGKILL
    return StreamManager(root, storage_options=options or None)


def state(manager: StreamManager) -> dict[str, Any]:
    """Return what a job leaves of each stream, without times and ids."""
    found = {}
    for stream in STREAMS:
        info = manager.stream_info(stream)
        events = [(e.segment_id, e.offset, e.routing_key, e.data) for e in manager.read(stream)]
        found[stream] = (
            (info.state, info.epoch, info.segments, str(info.head), str(info.tail)),
            (info.files.files, info.version, len(manager.list_transactions(stream))),
            sorted(events, key=str),
        )
    return found


@dataclass
class Submitted:
    """A job that was started by ``deploy/spark/submit.sh`` on a master."""

    master: str
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def start(self, job: str, *words: object) -> subprocess.Popen[str]:
        events = self.folder / f"events-{job}"
        events.mkdir()
        log = f"--conf spark.eventLog.enabled=true --conf spark.eventLog.dir=file://{events}"
        log += " --conf spark.eventLog.compress=false"
        whole = WHOLE_CLUSTER if self.master.startswith("spark:") else ""
        return subprocess.Popen(
            ["sh", str(PROJECT / "deploy/spark/submit.sh"), job, *map(str, words)],
            env={
                **environment(),
                "PATH": f"{SPARK_HOME / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "SPARK_MASTER": self.master,
                "SPARK_ARGUMENTS": f"{log} {whole}",
                **self.variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, job: str, *words: object) -> dict[str, Any]:
        """Run a job to its end; return its last line."""
        return finished(self.start(job, *words))

    def executors(self, job: str) -> set[str]:
        """Return the executors that ran tasks of the longest stage, that of the streams."""
        took: dict[int, dict[str, int]] = {}
        for file in (self.folder / f"events-{job}").rglob("*"):
            if not file.is_file() or file.name.startswith(("appstatus", ".")):
                continue
            for event in map(json.loads, file.read_text().splitlines()):
                if event["Event"] == "SparkListenerTaskEnd":
                    task, by = event["Task Info"], took.setdefault(event["Stage ID"], {})
                    took_ms = task["Finish Time"] - task["Launch Time"]
                    by[task["Executor ID"]] = by.get(task["Executor ID"], 0) + took_ms
        longest = max(took.values(), key=lambda by: sum(by.values()))
        return set(longest)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err[-4_000:]
    found = json.loads(out.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Cluster]:
    """A cluster whose workers reach the S3 server, too."""
    with cluster(tmp_path_factory.mktemp("cluster"), s3.environment) as found:
        yield found


@dataclass(frozen=True)
class Written:
    """A root into which an application of the cluster has written, and what it printed."""

    root: Path
    found: dict[str, Any]


@pytest.fixture(scope="module")
def written(started: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Written:
    root = tmp_path_factory.mktemp("written") / "root"
    return Written(root, run("cluster_app.py", started.url, str(root)))


def test_retried_and_speculative_tasks_of_a_cluster_write_every_event_once(
    written: Written,
) -> None:
    found = written.found
    assert found["failure"] is None
    assert found["executors"] == 2
    assert found["batch"] == 2_000
    for name in ("retried", "speculated", "copied"):
        events = found[name]
        assert sorted(events) == list(range(2_000)), name
        for key in range(7):
            held = [n for n in events if n % 7 == key]
            assert held == sorted(held), name


def test_failed_and_slower_attempts_are_not_in_the_transaction(written: Written) -> None:
    found = written.found["transaction"]
    assert found["before"] == []
    assert sorted(found["events"]) == list(range(2_000))
    for key in range(7):
        held = [n for n in found["events"] if n % 7 == key]
        assert held == sorted(held)
    staged = written.root.glob(f"s/a/events/data/t-{found['id']}/*.parquet")
    attempts = {file.name.split("-")[0] for file in staged}
    assert len(attempts) > 4, "more attempts than tasks have staged chunks"


@pytest.mark.long
@only_long(
    "the tests above write from both workers, tests/jobs/test_maintenance.py does each kind of "
    "work in tasks, and tests/jobs/test_launchers.py submits a job"
)
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("on_s3", [False, True])
def test_job_on_a_cluster_leaves_what_it_leaves_in_one_process(
    spark: SparkSession,
    started: Cluster,
    s3: S3Server,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    job: str,
    on_s3: bool,
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    root = f"s3://{s3.bucket}/cluster-{job}" if on_s3 else str(tmp_path / "root")
    local, remote = filled(tmp_path / "local"), filled(root, **(s3.options if on_s3 else {}))
    before = state(local)
    assert state(remote) == before
    words = ["--once"]
    if on_s3:  # by the storage's own clock nothing there is an hour old
        time.sleep(61)
        words += ["--cooldown", "1 s"] if job in ("maintenance", "scaling") else []
    parsed = SCHEDULED[job].parse(["--root", str(tmp_path / "local"), *words])
    capfd.readouterr()
    assert maintenance.maintain(parsed, spark, StopSignal()) == 0
    expected = json.loads(capfd.readouterr().out.splitlines()[-1])
    given = Submitted(started.url, there, s3.environment)
    found = given.run(job, "--root", root, *words)
    assert given.executors(job) == {"0", "1"}
    told = {name: expected[name] for name in expected if name not in OF_TIMES}
    assert {name: found[name] for name in told} == told
    after = state(local)
    assert state(remote) == after
    changed = [stream for stream in STREAMS if after[stream] != before[stream]]
    assert changed == [stream for stream in STREAMS if kind_of(stream) in JOBS[job]]


@pytest.mark.long
@only_long("tests/jobs/test_file_copies.py copies the same in one process")
@pytest.mark.parametrize("on_s3", [False, True])
def test_copies_on_a_cluster_are_those_of_one_process(
    started: Cluster, s3: S3Server, tmp_path: Path, on_s3: bool
) -> None:
    root = f"s3://{s3.bucket}/cluster-copies" if on_s3 else str(tmp_path / "root")
    manager = StreamManager(root, storage_options=s3.options if on_s3 else None)
    lines = tmp_path / "lines"
    lines.mkdir()
    for file in range(4):
        text = "".join(f'{{"n":{n}}}\n' for n in range(100 * file, 100 * file + 100))
        (lines / f"{file}.json").write_text(text)
    manager.create_scope("s")
    given = Submitted(started.url, tmp_path, s3.environment)
    words = "--root", root, "--checkpoint", tmp_path / "in", "--path", lines
    assert given.run("import_stream", *words, "--stream", "s/a", "--from", "json")["rows"] == 400
    assert sorted(json.loads(e.data)["n"] for e in manager.read("s/a")) == [*range(400)]
    out = tmp_path / "out"
    words = "--root", root, "--checkpoint", tmp_path / "to", "--path", out
    assert given.run("export_stream", *words, "--stream", "s/a", "--to", "json")["rows"] == 400
    rows = [json.loads(row) for file in out.glob("*.json") for row in file.read_text().splitlines()]
    assert sorted(json.loads(row["event"])["n"] for row in rows) == [*range(400)]


@pytest.mark.long
@only_long("the first test runs the same tasks on both workers")
def test_worker_that_is_killed_in_a_round_costs_no_stream(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    local, remote = filled(tmp_path / "local"), filled(tmp_path / "root")
    here = tmp_path / "here"
    here.mkdir()
    expected = Submitted("local[2]", here).run("maintenance", "--root", tmp_path / "local")
    with cluster(tmp_path_factory.mktemp("cluster")) as two:
        given = Submitted(two.url, tmp_path)
        running = given.start("maintenance", "--root", tmp_path / "root", "--once")
        before = state(remote)
        until = time.monotonic() + 120
        while state(remote) == before and running.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert running.poll() is None, "the round ended before the worker was killed"
        two.workers[0].send_signal(signal.SIGKILL)
        found = finished(running)
    assert (found["failed"], found["streams"]) == (0, len(STREAMS))
    assert state(remote) == state(local)
    assert expected["streams"] == found["streams"]
