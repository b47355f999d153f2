"""The retention job, in the tests' Spark session."""

from __future__ import annotations

import json
import re
import shlex
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.jobs import job_runner, retention
from pravega_spark.values.segments import StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.folder_state import folder_state
from tests.harness.launched import launched
from tests.harness.simulated_kills import Killed, kill

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL, READ, UNREAD, FREE = "s/small", "s/read", "t/unread", "t/free"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def made(manager: StreamManager, name: str, policy: RetentionPolicy | None) -> None:
    """A stream with ten commits, each with ten events of ten bytes."""
    manager.create_scope(name.split("/", maxsplit=1)[0])
    manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(1), policy))
    with manager.create_writer(name) as writer:
        for n in range(10):
            writer.write_events([b"%010d" % (10 * n + i) for i in range(10)])
            writer.flush()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Streams that keep 300 bytes, what two subscribers need, what no group consumed, and all."""
    manager = StreamManager(tmp_path / "root")
    made(manager, SMALL, RetentionPolicy.by_size(300))
    made(manager, READ, RetentionPolicy.by_consumption())
    made(manager, UNREAD, RetentionPolicy.by_consumption())
    made(manager, FREE, None)
    stream = open_stream(manager.root, READ)
    for group, offset in (("s/fast", 80), ("s/slow", 45)):
        subscribe(stream, group, 0)
        publish(stream, group, 0, StreamCut(READ, 1, {0: offset}))
    return tmp_path / "root"


def head(root: Path, stream: str) -> int:
    return StreamManager(root).head(stream).positions[0]


def heads(root: Path) -> list[int]:
    return [head(root, stream) for stream in (SMALL, READ, UNREAD, FREE)]


def run(
    capsys: pytest.CaptureFixture[str], spark: SparkSession, root: Path, *arguments: str
) -> tuple[int, dict[str, Any], str]:
    """Run the job in the tests' session; return status, last line and whole output."""
    parsed = retention.parse(["--root", str(root), *arguments])
    status = job_runner.rounds(
        "retention",
        parsed,
        spark,
        lambda *found: retention.retain_streams(parsed, *found),
        retention.counts((), dry_run=False),
    )
    out = capsys.readouterr()
    return status, json.loads(out.out.splitlines()[-1]), out.out + out.err


def test_each_stream_is_truncated_by_its_policy_and_its_subscribers_and_sampled(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StreamManager(root).subscribe(SMALL, "nightly")
    status, found, text = run(capsys, spark, root)
    assert status == 0, text
    assert found.pop("seconds") > 0
    assert found == {
        "streams": 4,
        "policies": 3,
        "truncated": 2,
        "events": 115,
        "bytes": 1_150,
        "sampled": 3,
        "passed": 1,
        "expired": 0,
        "swept_files": 0,
        "pending_files": 11,
        "unmoved": 4,
        "failed": 0,
        "dry_run": False,
        "rounds": 1,
        "repeated": 0,
        "settings": "",
    }
    assert heads(root) == [70, 45, 0, 0]
    flat = re.sub(r"\s+", " ", text)
    parts = (
        "the stream has no retention policy",
        "no subscriber has",
        "subscriber s/slow",
        "nightly",
    )
    for part in parts:
        assert part in flat

    status, found, _ = run(capsys, spark, root)
    assert (status, found["truncated"], found["sampled"]) == (0, 0, 0)
    assert heads(root) == [70, 45, 0, 0]


def test_dry_run_explains_and_changes_nothing(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_state(root)
    status, found, text = run(capsys, spark, root, "--dry-run", "--expire", "1 ms")
    assert status == 0, text
    assert (found["truncated"], found["dry_run"], found["expired"]) == (1, True, 1)
    after = folder_state(root)
    assert after == before


def test_decisions_have_a_row_for_each_stream(spark: SparkSession, root: Path) -> None:
    parsed = retention.parse(["--root", str(root), "--dry-run"])
    found = retention.decisions(
        parsed, spark, job_runner.RoundInput(str(root), [SMALL, READ, "s/none"])
    )
    rows = {row["stream"]: row for row in found}
    assert set(rows) == {SMALL, READ}
    row = rows[READ]
    assert (row["goes_events"], row["goes_bytes"], row["stays_events"]) == (45, 450, 55)
    assert row["held_by"].startswith("subscriber s/slow: 55 events, 550 B")
    assert row["error"] is None


def test_only_the_named_streams_and_scopes_are_changed(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found, _ = run(capsys, spark, root, "--scope", "t", "--stream", READ, "--no-sweep")
    assert (found["streams"], found["truncated"]) == (3, 1)
    assert heads(root) == [0, 45, 0, 0]


def test_broken_stream_does_not_stop_the_others_and_fails_the_job(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for commit in (root / UNREAD / "events" / "_delta_log").glob("*.json"):
        commit.write_bytes(commit.read_bytes()[:-30])
    status, found, text = run(capsys, spark, root)
    assert status == 1
    assert (found["streams"], found["failed"], found["truncated"]) == (4, 1, 2)
    assert f"retention: stream {UNREAD}: CorruptLog: " in text
    assert [head(root, stream) for stream in (SMALL, READ)] == [70, 45]


def test_interrupted_groups_are_completed_first_and_a_broken_one_fails_the_job(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(root)
    for name in ("s/late", "s/broken"):
        with at_failpoint("group.change.noted", kill), pytest.raises(Killed):
            manager.create_reader_group(name, [READ], retention="manual")
    for commit in (root / "s" / "_reader_groups" / "broken" / "_delta_log").glob("*.json"):
        commit.write_bytes(commit.read_bytes()[:-30])
    assert run(capsys, spark, root, "--dry-run")[1]["truncated"] == 2
    status, found, text = run(capsys, spark, root)
    assert (status, found["failed"], found["truncated"]) == (1, 1, 1)
    assert "retention: reader group s/broken: CorruptLog: " in text
    assert heads(root) == [70, 0, 0, 0]
    assert {held.name for held in manager.list_subscribers(READ)} >= {"s/late"}


def test_stream_slower_than_its_limit_fails_the_job_and_is_finished_later(
    spark: SparkSession,
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parse = retention.parse

    def parsed(words: Sequence[str]) -> Namespace:
        """Parse, and give a limit that nothing keeps: a millisecond, the least, may be enough."""
        found = parse(words)
        found.limit = 1e-9
        return found

    with monkeypatch.context() as patch:
        patch.setattr(retention, "parse", parsed)
        status, found, text = run(capsys, spark, root, "--stream", SMALL)
    assert (status, found["failed"], found["truncated"]) == (1, 1, 0)
    assert f"stream {SMALL}: TooBusy: retention of stream {SMALL} exceeded its limit" in text
    assert run(capsys, spark, root)[0] == 0
    assert heads(root) == [70, 45, 0, 0]


def test_two_rounds_at_once_truncate_once(spark: SparkSession, root: Path) -> None:
    parsed = retention.parse(["--root", str(root)])

    def round_() -> job_runner.Report:
        given = job_runner.RoundInput(str(root), [SMALL, READ, UNREAD, FREE])
        return retention.retain_streams(parsed, spark, given)

    with ThreadPoolExecutor(2) as pool:
        reports = [future.result() for future in [pool.submit(round_) for _ in range(2)]]
    assert [report.failures for report in reports] == [{}, {}]
    assert sum(report.counts["truncated"] for report in reports) == 2
    assert sum(report.counts["events"] for report in reports) == 115
    assert heads(root) == [70, 45, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "the following arguments are required: --root"),
        (("--root", "{root}", "--stream", "s/none"), "stream s/none does not exist"),
        (("--root", "{root}", "--expire", "soon"), "is not a valid duration"),
        (("--root", "{root}", "--limit", "0s"), "longer than 0 s"),
    ],
)
def test_bad_input_is_one_clear_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    StreamManager(tmp_path).create_scope("s")
    done = launched(retention.main, [text.format(root=tmp_path) for text in arguments], capfd)
    assert (done.status, done.out) == (2, "")
    assert says in done.err
    assert "Traceback" not in done.err


def test_every_command_on_the_page_is_parsed() -> None:
    page = (REPOSITORY / "docs" / "retention.md").read_text()
    lines = re.findall(r"jobs\.retention( --root.*)", page)
    assert len(lines) == 3, "two by hand, and to confirm a clock"
    for line in lines:
        assert retention.parse(shlex.split(line, comments=True)).root == "/tmp/streams"
