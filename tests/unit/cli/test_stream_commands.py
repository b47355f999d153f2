"""Scopes and streams on the command line: what is printed, and what has changed."""

from __future__ import annotations

import json

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy
from pravega_spark.values.segments import StreamCut
from tests.unit.cli.conftest import Shell


def test_scopes_are_created_listed_and_deleted(shell: Shell) -> None:
    assert shell.ok("scope", "create", "nyc") == "Created scope nyc.\n"
    assert shell.ok("scope", "create", "nyc") == "Scope nyc exists.\n"
    shell.manager.create_stream("nyc/a")
    assert shell.ok("scope", "ls", "-q") == "nyc\nother\ns\n"
    assert shell.json("scope", "describe", "nyc")["streams"] == 1
    assert "ScopeNotEmpty" in shell.failed("scope", "delete", "nyc")
    assert "Pass --yes" in shell.failed("scope", "delete", "nyc", "--recursive")
    assert shell.ok("scope", "delete", "nyc", "--recursive", "-y") == "Deleted scope nyc.\n"
    assert shell.manager.list_scopes() == ["other", "s"]
    assert "scope nyc does not exist" in shell.failed("scope", "delete", "nyc")
    assert "nyc" in shell.failed("scope", "describe", "nyc")


def test_a_stream_is_created_with_its_configuration_and_described(shell: Shell) -> None:
    policies = ("--scaling", "events:100,minimum=2", "--retention", "consumption:1h..7d")
    others = ("--create-scope", "--tag", "gold", "--setting", "grace=2 hours")
    shell.ok("stream", "create", "new/a", *policies, *others)
    assert shell.ok("stream", "create", "new/a") == (
        "Stream new/a exists with another configuration, and is as it was: see pravega-spark "
        "stream describe new/a, and stream update to change it.\n"
    )
    found = shell.manager.stream_info("new/a").configuration
    assert found.scaling == ScalingPolicy.by_event_rate(100, minimum=2)
    assert found.retention == RetentionPolicy.by_consumption("1 hour", "7 days")
    assert found.tags == {"gold"}
    (record,) = shell.json("stream", "describe", "new/a")
    assert (record["state"], record["events"], len(record["segment_list"])) == ("ACTIVE", 0, 2)
    assert record["settings"] == {"grace": "2 hours"}
    text = shell.ok("stream", "describe", "new/a")
    assert "RETENTION  consumption:1 hour..7 days" in text
    assert text.splitlines()[-3].split()[:4] == ["SEGMENT", "KEYS", "STATE", "HEAD"]
    assert shell.ok("stream", "ls", "-q", "--tag", "gold") == "new/a\n"
    assert shell.ok("stream", "ls", "-q", "--tag", "none") == ""
    assert [row["stream"] for row in shell.json("stream", "ls")] == ["new/a"]


def test_an_update_changes_only_what_is_named(shell: Shell) -> None:
    shell.ok("stream", "create", "s/a", "-p", "2", "--retention", "time:1d", "--tag", "old")
    shell.ok("stream", "update", "s/a", "--scaling", "fixed:3", "--add-tag", "new")
    found = shell.manager.stream_info("s/a")
    assert len(found.segments) == 3
    assert found.configuration.tags == {"old", "new"}
    assert found.configuration.retention == RetentionPolicy.by_time("1 day")
    shell.ok("stream", "update", "s/a", "--retention", "none", "--setting", "grace=1 hour")
    assert shell.manager.stream_info("s/a").configuration.retention is None
    shell.ok("stream", "update", "s/a", "--setting", "grace=")
    assert not shell.manager.stream_info("s/a").configuration.settings
    assert "configured so already" in shell.ok("stream", "update", "s/a", "--retention", "none")
    version = str(found.configuration_version)
    error = shell.failed(
        "stream", "update", "s/a", "--scaling", "fixed:9", "--expected-version", version
    )
    assert "ConfigurationConflict" in error


def test_a_stream_is_scaled_by_splits_merges_and_ranges(shell: Shell) -> None:
    shell.ok("stream", "create", "s/a", "-p", "2")
    shell.ok("stream", "scale", "s/a", "--split", "0", "--into", "4")
    widths = [s.key_range.high - s.key_range.low for s in shell.manager.segments("s/a")]
    assert widths == [0.125] * 4 + [0.5]
    shell.ok("stream", "scale", "s/a", "--merge", "3,2#1")
    shell.ok("stream", "scale", "s/a", "--seal", "1", "--range", "0.5-0.75", "--range", "0.75-1")
    assert len(shell.manager.segments("s/a")) == 5
    assert "no active segment '77'" in shell.failed("stream", "scale", "s/a", "--split", "77")
    assert "LOW-HIGH" in shell.failed("stream", "scale", "s/a", "--seal", "1", "--range", "x")
    assert "Give --split" in shell.failed("stream", "scale", "s/a")
    first = str(shell.manager.segments("s/a")[0])
    for one in (first, f"{first},{first}"):
        assert "a merge needs two" in shell.failed("stream", "scale", "s/a", "--merge", one)


def test_a_stream_is_truncated_only_after_yes_and_a_dry_run_changes_nothing(shell: Shell) -> None:
    shell.ok("stream", "create", "s/a", "--retention", "consumption")
    shell.ok("stream", "append", "s/a", stdin=b"1\n2\n3\n4\n")
    shell.manager.subscribe("s/a", "slow")
    record = shell.json("stream", "truncate", "s/a", "--before", "+3", "--dry-run")
    assert (record["events"], record["held_by"]) == (3, ["slow"])
    assert "Pass --yes" in shell.failed("stream", "truncate", "s/a", "--before", "+3")
    assert "HeldBySubscriber" in shell.failed("stream", "truncate", "s/a", "--before", "+3", "-y")
    assert shell.manager.stream_info("s/a").events == 4
    shell.ok("stream", "truncate", "s/a", "--before", "+3", "-y", "--past-subscribers")
    assert shell.manager.head("s/a") == StreamCut("s/a", 1, {0: 3})


def test_a_stream_is_sealed_and_deleted_only_after_yes(shell: Shell) -> None:
    shell.ok("stream", "create", "s/a")
    assert "Pass --yes" in shell.failed("stream", "seal", "s/a")
    assert "StreamNotSealed" in shell.failed("stream", "delete", "s/a", "-y")
    assert shell.ok("stream", "seal", "s/a", "-y") == "Sealed stream s/a.\n"
    assert shell.ok("stream", "seal", "s/a", "-y") == "Stream s/a was sealed before.\n"
    shell.ok("stream", "create", "s/b")
    shell.ok("stream", "delete", "s/b", "--seal", "-y")
    assert shell.manager.list_streams("s") == ["s/a"]
    assert "NoSuchStream" in shell.failed("stream", "delete", "s/b", "-y")


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (("create", "s/a", "-p", "0"), "above 0"),
        (("create", "s/a", "-p", "2", "--scaling", "fixed:1"), "exclude each other"),
        (("create", "s/a", "--retention", "soon"), "'soon' is not a valid retention policy"),
        (("create", "s/a", "--setting", "grace"), "NAME=VALUE"),
        (("create", "none/a",), "scope none does not exist"),
        (("create", "a"), "scope/stream"),
        (("describe", "s/none"), "s/none"),
        (("crate", "s/a"), "Did you mean 'create'?"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line_that_names_it(
    shell: Shell, argv: tuple[str, ...], part: str
) -> None:
    assert part in shell.failed("stream", *argv)
    assert shell.manager.list_streams("s") == []


def test_compaction_reports_what_it_would_do(shell: Shell) -> None:
    shell.ok("stream", "create", "s/a")
    assert shell.json("stream", "compact", "s/a", "--dry-run")["files_before"] == 0
    text = shell.ok("stream", "compact", "s/a", "--output", "yaml")
    assert "stream: s/a" in text.splitlines()
    assert json.loads(shell("stream", "describe", "x/y", "--output", "json")[2])["error"]["type"]
