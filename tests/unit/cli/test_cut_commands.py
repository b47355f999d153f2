"""``pravega-spark cut``: saved cuts, and what a cut says."""

from __future__ import annotations

import json

import pytest

from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.manager import root_of
from pravega_spark.values.segments import StreamCut
from tests.harness.small_streams import scale, write
from tests.unit.cli.conftest import Shell


@pytest.fixture
def stream(shell: Shell) -> str:
    """A stream with ten events of five bytes, of which two are truncated."""
    shell.manager.create_stream("s/a")
    write(open_stream(root_of(shell.manager).store, "s/a"), [("k", b"12345")] * 10)
    shell.manager.truncate_stream("s/a", "s/a@1:0#0=2")
    return "s/a"


def test_positions_are_saved_listed_and_deleted(shell: Shell, stream: str) -> None:
    assert shell.ok("cut", "save", stream, "now") == "Saved s/a@1:0#0=10 as now.\n"
    shell.ok("cut", "save", stream, "third", "--at", "+1")
    assert shell.manager.saved_cut(stream, "third").cut == StreamCut(stream, 1, {0: 3})
    assert "ConfigMismatch" in shell.failed("cut", "save", stream, "third")
    made = shell.json("cut", "save", stream, "third", "--at", "s/a@1:0#0=4", "--replace")
    assert (made["cut"], made["version"]) == (
        "s/a@1:0#0=4",
        shell.manager.stream_info(stream).version,
    )
    lines = [line.split() for line in shell.ok("cut", "ls", stream).splitlines()]
    assert lines[0] == ["NAME", "SAVED", "AFTER-IT", "CUT"]
    assert [(line[0], line[-2], line[-1]) for line in lines[1:]] == [
        ("now", "0", "s/a@1:0#0=10"),
        ("third", "6", "s/a@1:0#0=4"),
    ]
    assert shell.json("cut", "ls", stream, "-q") == ["now", "third"]
    assert "Pass --yes" in shell.failed("cut", "delete", stream, "now")
    assert shell.ok("cut", "delete", stream, "now", "-y") == "Deleted now.\n"
    assert [saved.name for saved in shell.manager.list_saved_cuts(stream)] == ["third"]
    assert "it has third" in shell.failed("cut", "delete", stream, "now", "-y")


def test_a_saved_cut_is_a_position_of_other_commands(shell: Shell, stream: str) -> None:
    shell.manager.save_cut(stream, "mark", "s/a@1:0#0=7")
    assert len(shell.ok("stream", "read", stream, "-o", "mark").splitlines()) == 3
    shell.ok("subscriber", "subscribe", stream, "archive", "--start", "start")
    shell.ok("subscriber", "publish", stream, "archive", "mark")
    (info,) = shell.manager.list_subscribers(stream)
    assert str(info.cut) == "s/a@1:0#0=7"
    group = shell.manager.create_reader_group("s/g", [stream])
    shell("reader-group", "reset", "s/g", "--to-offset", "mark", "--execute")
    assert str(group.stream_cuts()[stream]) == "s/a@1:0#0=7"
    assert "NoSuchCut" in shell.failed("reader-group", "reset", "s/g", "--to-offset", "other")
    assert "NoSuchCut" in shell.failed("stream", "read", stream, "-o", "other")


def test_a_cut_says_what_lies_before_and_after_it(shell: Shell, stream: str) -> None:
    found = shell.json("cut", "parse", "s/a@1:0#0=5")
    assert found == {
        "stream": "s/a",
        "cut": "s/a@1:0#0=5",
        "life": 1,
        "valid": True,
        "reason": None,
        "lost_events": 0,
        "events_before": 3,
        "bytes_before": 15,
        "events_after": 5,
        "bytes_after": 25,
        "segments": [
            {"segment": "0#0", "offset": 5, "head": 2, "tail": 10, "before": 3, "after": 5}
        ],
    }
    shown = shell.ok("cut", "parse", "s/a@1:0#0=5")
    assert "BEFORE-IT  3 events, 15 B\nAFTER-IT   5 events, 25 B\n" in shown
    assert [line.split() for line in shown.splitlines()[-2:]] == [
        ["SEGMENT", "OFFSET", "HEAD", "TAIL", "BEFORE-IT", "AFTER-IT"],
        ["0#0", "5", "2", "10", "3", "5"],
    ]
    shell.manager.save_cut(stream, "mark", "s/a@1:0#0=5")
    named = shell.json("cut", "show", stream, "mark")
    assert (named["name"], named["cut"]) == ("mark", "s/a@1:0#0=5")
    assert {**named, **found} == named
    assert "NAME       mark" in shell.ok("cut", "show", stream, "mark")


def test_a_cut_over_a_scale_and_below_the_head_is_told(shell: Shell, stream: str) -> None:
    scale(open_stream(root_of(shell.manager).store, stream), [0], [(0.0, 0.5), (0.5, 1.0)])
    write(open_stream(root_of(shell.manager).store, stream), [(f"k{n}", b"x") for n in range(8)])
    found = shell.json("cut", "parse", "s/a@1:0#0=9,1#1=future,2#1=future")
    assert [segment["offset"] for segment in found["segments"]] == [9, "future", "future"]
    assert (found["events_before"], found["events_after"]) == (7, 9)
    assert [segment["before"] for segment in found["segments"]] == [7, 0, 0]
    below = shell.json("cut", "parse", "s/a@1:0#0=1")
    assert (below["lost_events"], below["events_before"], below["events_after"]) == (1, 0, 16)
    assert "TRUNCATED  1 event after it" in shell.ok("cut", "parse", "s/a@1:0#0=1")


def test_a_cut_that_is_none_of_its_stream_says_why(shell: Shell, stream: str) -> None:
    for text, reason in (
        ("s/a@1:0#0=11", "0#0"),
        ("s/a@2:0#0=1", "life"),
        ("s/none@1:0#0=1", "does not exist"),
    ):
        status, out, _ = shell("cut", "parse", text, "--output", "json")
        found = json.loads(out)
        assert (status, found["valid"], reason in found["reason"]) == (1, False, True), found
        assert found["segments"][0]["segment"] == "0#0"
        status, out, _ = shell("cut", "parse", text)
        assert (status, "INVALID" in out) == (1, True)


@pytest.mark.parametrize(
    "argv",
    [
        ("parse", "here"),
        ("parse", "latest"),
        ("show", "s/a", "none"),
        ("save", "s/a", "end"),
        ("save", "s/a", "mark", "--at", "s/a@1:0#0=1"),
        ("save", "s/a", "mark", "--at", "@yesterday"),
        ("save", "s/none", "mark"),
        ("ls", "s/none"),
    ],
)
def test_misuse_saves_nothing(shell: Shell, stream: str, argv: tuple[str, ...]) -> None:
    shell.failed("cut", *argv)
    assert shell.manager.list_saved_cuts(stream) == []
