"""``pravega-spark retention``: explain and run."""

from __future__ import annotations

import json

import pytest

from pravega_spark.cli.exit_status import FAILED, MISUSED
from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.manager import StreamManager, root_of
from tests.harness.small_streams import write
from tests.unit.cli.conftest import CommandLine


@pytest.fixture
def stream(manager: StreamManager) -> str:
    """A stream that keeps what its subscribers have not consumed: one of them is behind."""
    policy = StreamConfiguration(retention=RetentionPolicy.by_consumption())
    manager.create_stream("s/a", policy)
    write(open_stream(root_of(manager).store, "s/a"), [("k", b"12345")] * 10)
    manager.subscribe("s/a", "archive", "s/a@1:0#0=4")
    manager.create_stream("s/plain")
    return "s/a"


def test_retention_is_explained_and_changes_nothing(
    run: CommandLine, manager: StreamManager, stream: str
) -> None:
    status, out, _ = run("retention", "explain", stream)
    assert (status, out.partition(" at version ")[0]) == (0, "s/a")
    assert "goes:  4 events, 20 B" in out
    assert "held by subscriber archive: 6 events" in out
    (found,) = json.loads(run("retention", "explain", stream, "--output", "json")[1])
    assert (found["cut"], found["goes"]["events"]) == ("s/a@1:0#0=4", 4)
    assert [claim["holder"] for claim in found["claims"]] == ["subscriber archive"]
    every = json.loads(run("retention", "explain", "--output", "json")[1])
    assert [one["stream"] for one in every] == ["s/a", "s/plain"]
    assert len(json.loads(run("retention", "explain", "s", "--output", "json")[1])) == 2
    assert str(manager.head(stream)) == "s/a@1:0#0=0"


def test_a_policy_is_tried_before_it_is_set(
    run: CommandLine, manager: StreamManager, stream: str
) -> None:
    write(open_stream(root_of(manager).store, stream), [("k", b"12345")])
    tried = ("retention", "explain", stream, "--policy", "size:5", "--output", "json")
    (found,) = json.loads(run(*tried)[1])
    assert (found["policy"], found["goes"]["events"]) == ("by size, at least 5 B", 10)
    assert [lost["subscriber"] for lost in found["passed"]] == ["archive"]
    assert manager.stream_info(stream).configuration.retention == RetentionPolicy.by_consumption()
    for wrong in ("none", "week"):
        status, _, err = run("retention", "explain", stream, "--policy", wrong)
        assert (status, err.count("\n")) == (MISUSED, 1)


def test_a_run_shows_what_it_deletes_and_needs_yes(
    run: CommandLine, manager: StreamManager, stream: str
) -> None:
    for argv in (("--dry-run",), ()):
        status, out, err = run("retention", "run", "s", *argv)
        assert status == (0 if argv else MISUSED)
        rows = [line.split() for line in out.splitlines()]
        assert rows[0] == ["STREAM", "POLICY", "GOES", "WHY", "STAYS", "HELD-BY"]
        assert [row[0] for row in rows[1:]] == (["s/a", "s/plain"] if argv else ["s/a"])
        assert str(manager.head(stream)) == "s/a@1:0#0=0"
    assert "Delete 4 events (20 B) of 1 stream? Pass --yes" in err
    status, out, _ = run("retention", "run", "s", "--yes", "--output", "json")
    found = {one["stream"]: one for one in json.loads(out)}
    assert (status, found["s/a"]["truncated"]) == (0, manager.stream_info(stream).version)
    assert found["s/plain"]["truncated"] is None
    assert str(manager.head(stream)) == "s/a@1:0#0=4"
    assert len(list(manager.read(stream))) == 6
    assert run("retention", "run", "s")[0] == 0, "nothing is left to ask for"


def test_a_run_names_the_subscribers_that_lose_data(
    run: CommandLine, manager: StreamManager, stream: str
) -> None:
    write(open_stream(root_of(manager).store, stream), [("k", b"12345")])
    manager.update_stream(stream, retention=RetentionPolicy.by_size("5"))
    status, out, err = run("retention", "run", stream)
    assert (status, "some unread by archive" in err) == (MISUSED, True)
    assert "loses unread data: archive: " in out


@pytest.mark.parametrize(
    ("status", "argv"),
    [
        (FAILED, ("explain", "s/none")),
        (FAILED, ("explain", "none")),
        (MISUSED, ("run",)),
        (MISUSED, ("run", "s", "--expire", "soon", "--yes")),
    ],
)
def test_misuse_deletes_nothing(
    run: CommandLine, manager: StreamManager, stream: str, status: int, argv: tuple[str, ...]
) -> None:
    found = run("retention", *argv)
    assert (found[0], found[2].count("\n")) == (status, 1)
    assert str(manager.head(stream)) == "s/a@1:0#0=0"
