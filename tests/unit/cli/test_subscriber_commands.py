"""``pravega-spark subscriber``: who holds data of a stream."""

from __future__ import annotations

import json

import pytest

from pravega_spark.cli.exit_status import FAILED, MISUSED
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.values.segments import StreamCut
from tests.harness.small_streams import write
from tests.unit.cli.conftest import CommandLine


@pytest.fixture
def stream(manager: StreamManager) -> str:
    """A stream with ten events of five bytes."""
    manager.create_stream("s/a")
    write(open_stream(root_of(manager).store, "s/a"), [("k", b"12345")] * 10)
    return "s/a"


def test_subscribers_are_listed_with_what_they_hold(
    run: CommandLine, manager: StreamManager, stream: str
) -> None:
    assert run("subscriber", "ls", stream)[1].split()[:2] == ["SUBSCRIBER", "KIND"]
    manager.create_reader_group("other/g", [stream], retention="automatic")
    manager.subscribe(stream, "archive", "s/a@1:0#0=4")
    lines = [line.split() for line in run("subscriber", "ls", stream)[1].splitlines()]
    assert lines[0] == ["SUBSCRIBER", "KIND", "GENERATION", "HOLDS", "HOLDS-BYTES", "SILENT"]
    assert lines[1][:6] == ["archive", "plain", "0", "6", "30", "B"]
    assert lines[2][:7] == ["other/g", "reader", "group", "0", "10", "50", "B"]
    assert run("subscriber", "ls", stream, "-q")[1] == "archive\nother/g\n"
    found = json.loads(run("subscriber", "describe", stream, "archive", "--output=json")[1])
    assert (found["cut"], found["holds_events"]) == ("s/a@1:0#0=4", 6)
    assert found["published_ms"] is None
    assert "CUT          s/a@1:0#0=4" in run("subscriber", "describe", stream, "archive")[1]
    status, _, err = run("subscriber", "describe", stream, "archives")
    assert (status, "has archive, other/g" in err) == (FAILED, True)
    assert run("subscriber", "ls", "s/none")[0] == FAILED


def test_what_a_subscriber_holds_begins_at_the_head(
    run: CommandLine, manager: StreamManager, stream: str
) -> None:
    manager.subscribe(stream, "archive")
    manager.truncate_stream(stream, "s/a@1:0#0=7", past_subscribers=True)
    (found,) = json.loads(run("subscriber", "ls", stream, "--output", "json")[1])
    assert (found["cut"], found["holds_events"], found["holds_bytes"]) == ("s/a@1:0#0=0", 3, 15)


def test_a_job_subscribes_publishes_and_unsubscribes(
    run: CommandLine, manager: StreamManager, stream: str
) -> None:
    start = ("--start", "s/a@1:0#0=2")
    status, out, _ = run("subscriber", "subscribe", stream, "archive", *start)
    assert (status, out) == (0, "Subscriber archive of s/a: generation 0.\n")
    (info,) = manager.list_subscribers(stream)
    assert info.cut == StreamCut("s/a", 1, {0: 2})
    assert run("subscriber", "subscribe", stream, "archive")[0] == 0, "safe to repeat"
    publish = ("subscriber", "publish", stream, "archive")
    assert run(*publish, "s/a@1:0#0=5", "--generation", "0")[0] == 0
    again = run(*publish, "s/a@1:0#0=5", "--output", "json")[1]
    assert json.loads(again)["published"] is False
    assert run(*publish, "latest")[0] == 0
    (info,) = manager.list_subscribers(stream)
    assert info.cut == manager.tail(stream)
    status, _, err = run(*publish, "s/a@1:0#0=1")
    assert (status, "InvalidStreamCut" in err) == (MISUSED, True)
    status, _, err = run("subscriber", "unsubscribe", stream, "archive")
    assert (status, "--yes" in err) == (MISUSED, True)
    assert len(manager.list_subscribers(stream)) == 1
    assert run("subscriber", "unsubscribe", stream, "archive", "-y")[:2] == (
        0,
        "Removed archive from s/a.\n",
    )
    assert manager.list_subscribers(stream) == []
    assert run("subscriber", "unsubscribe", stream, "archive", "-y")[0] == 0
    assert run(*publish, "latest")[0] == FAILED


@pytest.mark.parametrize(
    ("status", "argv"),
    [
        (MISUSED, ("subscribe", "s/a", "s/group")),
        (FAILED, ("subscribe", "s/a", "archive", "--start", "unknown")),
        (MISUSED, ("subscribe", "s/a", "archive", "--start", "s/b@1:0#0=1")),
        (MISUSED, ("subscribe", "s/a", "archive", "--generation", "x")),
        (MISUSED, ("publish", "s/a", "archive")),
        (FAILED, ("publish", "s/a", "archive", "latest")),
        (FAILED, ("subscribe", "s/none", "archive")),
    ],
)
def test_misuse_changes_no_subscriber(
    run: CommandLine, manager: StreamManager, stream: str, status: int, argv: tuple[str, ...]
) -> None:
    found = run("subscriber", *argv)
    assert (found[0], found[2].count("\n")) == (status, 1)
    assert manager.list_subscribers(stream) == []
