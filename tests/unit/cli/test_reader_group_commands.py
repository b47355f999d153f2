"""``pravega-spark reader-group``: create, delete, reset and describe by pattern."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pravega_spark.cli import reader_group_listing
from pravega_spark.cli.exit_status import FAILED, MISUSED
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import NoSuchReaderGroup, ReinitializationRequired
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.values.segments import StreamCut
from tests.harness.small_streams import append, scale, staged, write
from tests.unit.cli.conftest import CommandLine

NAME = "s/g"


def filled(manager: StreamManager, name: str = "s/a", events: int = 10) -> None:
    """Create a stream of one segment with events."""
    manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(1)))
    write(open_stream(root_of(manager).store, name), [(f"k{n}", b"12345") for n in range(events)])


def cut(manager: StreamManager, stream: str = "s/a", group: str = NAME) -> str:
    """Return the recorded position of a group, as text."""
    return str(manager.reader_group(group).stream_cuts()[stream])


@pytest.fixture
def group(manager: StreamManager) -> str:
    """A group at the head of a stream with 10 events."""
    filled(manager)
    manager.create_reader_group(NAME, ["s/a"])
    return NAME


# ------------------------------------------------------------------------------- create, delete


def test_a_group_is_created_as_its_options_say(run: CommandLine, manager: StreamManager) -> None:
    filled(manager)
    filled(manager, "other/b")
    assert run("reader-group", "create", "s/g", "s/a")[:2] == (0, "Created reader group s/g.\n")
    assert run("reader-group", "create", "s/g", "s/a")[:2] == (0, "Reader group s/g exists.\n")
    options = ("--retention", "manual", "--acknowledge", "checkpoint", "--refresh", "1s")
    starts = ("--start", "latest", "--checkpoint-interval", "never", "--output", "json")
    status, out, _ = run("reader-group", "create", "s/h", "s/a", "other/b", *options, *starts)
    assert (status, json.loads(out)) == (0, {"group": "s/h", "created": True})
    made = manager.reader_group("s/h")
    configuration = made.configuration
    assert (configuration.retention.value, configuration.acknowledge.value) == (
        "manual",
        "checkpoint",
    )
    assert (configuration.refresh_ms, configuration.checkpoint_ms) == (1_000, None)
    assert made.stream_cuts() == {"s/a": manager.tail("s/a"), "other/b": manager.tail("other/b")}
    third = str(StreamCut("s/a", 1, {0: 3}))
    assert run("reader-group", "create", "s/i", "s/a", "other/b", "--start", third)[0] == 0
    assert manager.reader_group("s/i").lag().events == 17


def test_a_group_begins_and_stops_at_positions_of_the_command_line(
    run: CommandLine, manager: StreamManager
) -> None:
    filled(manager)
    filled(manager, "other/b")
    manager.save_cut("s/a", "mark", StreamCut("s/a", 1, {0: 7}))
    both = ("--start", "+3", "--end", "-2")
    assert run("reader-group", "create", "s/g", "s/a", "other/b", *both)[0] == 0
    assert dict(manager.reader_group("s/g").configuration.streams) == {
        name: (StreamCut(name, 1, {0: 3}), StreamCut(name, 1, {0: 8}))
        for name in ("s/a", "other/b")
    }
    assert run("reader-group", "create", "s/h", "s/a", "--start", "mark")[0] == 0
    assert manager.reader_group("s/h").lag().events == 3
    assert run("reader-group", "create", "s/i", "s/a", "--start", "@-1h", "--end", "end")[0] == 0
    assert manager.reader_group("s/i").lag().events == 10


def test_misuse_of_create_makes_no_group(run: CommandLine, group: str) -> None:
    third = "s/b@1:0#0=3"
    for status, argv in (
        (MISUSED, ("s/h",)),
        (MISUSED, ("h", "s/a")),
        (MISUSED, ("s/h", "s/a", "--retention", "all")),
        (MISUSED, ("s/h", "s/a", "--start", third)),
        (MISUSED, ("s/h", "s/a", "--start", "latest", "--start", "earliest")),
        (MISUSED, ("s/h", "s/a", "s/b", "--start", third, "--start", "+3")),
        (FAILED, ("s/h", "s/a", "--start", "no-such-mark")),
        (MISUSED, ("s/h", "s/a", "--checkpoint-interval", "soon")),
        (FAILED, ("s/h", "s/none")),
        (FAILED, ("none/h", "s/a")),
        (FAILED, ("s/g", "s/a", "--retention", "manual")),
    ):
        assert run("reader-group", "create", *argv)[0] == status, argv
    assert run("reader-group", "ls", "-q")[1] == "s/g\n"


def test_a_group_is_deleted_only_with_yes_and_without_live_readers(
    run: CommandLine, manager: StreamManager, group: str
) -> None:
    status, _, err = run("reader-group", "delete", group)
    assert (status, "--yes" in err) == (MISUSED, True)
    reader = manager.reader_group(group).create_reader("reader-1")
    status, _, err = run("reader-group", "delete", group, "--yes")
    assert (status, "is read by reader-1" in err) == (FAILED, True)
    assert manager.reader_group(group).online_readers() == ["reader-1"]
    assert run("reader-group", "delete", group, "-y", "--force")[:2] == (0, "Deleted s/g.\n")
    with pytest.raises(NoSuchReaderGroup):
        manager.reader_group(group)
    with pytest.raises(ReinitializationRequired):
        reader.read_next_event(timeout=0)
    assert run("reader-group", "delete", group, "-y")[0] == FAILED


# ---------------------------------------------------------------------------------------- reset


def test_a_reset_is_shown_and_done_only_with_execute(
    run: CommandLine, manager: StreamManager, group: str
) -> None:
    status, out, err = run("reader-group", "reset", group, "--to-latest")
    assert [line.split() for line in out.splitlines()] == [
        ["STREAM", "SEGMENT", "OLD-OFFSET", "NEW-OFFSET", "EVENTS"],
        ["s/a", "0#0", "0", "10", "+10"],
    ]
    assert (status, err) == (0, "Nothing was changed: --execute moves the group.\n")
    assert cut(manager) == "s/a@1:0#0=0"
    status, out, err = run("reader-group", "reset", group, "--to-latest", "--execute")
    assert (status, err) == (0, "Reset reader group s/g: generation 1.\n")
    assert cut(manager) == "s/a@1:0#0=10"
    found = json.loads(run("reader-group", "reset", group, "--to-earliest", "--output=json")[1])
    assert found == {
        "group": "s/g",
        "executed": False,
        "live_readers": [],
        "positions": [
            {"stream": "s/a", "segment": "0#0", "old_offset": 10, "new_offset": 0, "events": -10}
        ],
        "cuts": {"s/a": "s/a@1:0#0=0"},
    }


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (("--to-earliest",), 2),
        (("--to-latest",), 10),
        (("--to-current",), 4),
        (("--shift-by", "3"), 7),
        (("--shift-by", "0"), 4),
        (("--shift-by", "-1"), 3),
        (("--shift-by", "-100"), 2),
        (("--shift-by", "100"), 10),
        (("--to-offset", "6"), 6),
        (("--to-offset", "600"), 10),
        (("--to-offset", "s/a@1:0#0=5"), 5),
        (("--to-datetime", "2100-01-01"), 10),
        (("--to-datetime", "1999-12-31T12:00:00Z"), 2),
        (("--by-duration", "PT1H30M"), 2),
        (("--by-duration", "P1DT1S"), 2),
        (("--by-duration", "90 min"), 2),
        (("--by-duration", "0"), 10),
    ],
)
def test_each_form_of_a_reset_moves_to_its_position(
    run: CommandLine, manager: StreamManager, group: str, target: tuple[str, ...], offset: int
) -> None:
    manager.truncate_stream("s/a", "s/a@1:0#0=2")
    manager.reader_group(group).reset({"s/a": "s/a@1:0#0=4"})
    assert run("reader-group", "reset", group, *target, "--execute")[0] == 0
    assert cut(manager) == f"s/a@1:0#0={offset}"


def test_a_time_between_two_events_is_the_position_between_them(
    run: CommandLine, manager: StreamManager, group: str
) -> None:
    stream = open_stream(root_of(manager).store, "s/a")
    between = datetime.now(timezone.utc) + timedelta(hours=1)
    late_us = int((between + timedelta(hours=1)).timestamp() * 1e6)
    view = stream.view()
    append(stream, view.life, view.version, staged(stream, [("k", b"x")], times_us=[late_us]))
    target = ("--to-datetime", between.isoformat(), "--execute")
    assert run("reader-group", "reset", group, *target)[0] == 0
    assert cut(manager) == "s/a@1:0#0=10"


def test_a_reset_starts_from_what_readers_reported_and_is_refused_while_one_lives(
    run: CommandLine, manager: StreamManager, group: str
) -> None:
    with manager.reader_group(group).create_reader("reader-1") as reader:
        for _ in range(4):
            assert reader.read_next_event(timeout=5.0).event is not None
        status, out, err = run("reader-group", "reset", group, "--to-earliest")
        assert (status, "Readers of s/g are alive: reader-1." in err) == (0, True)
        status, out, err = run("reader-group", "reset", group, "--to-earliest", "--execute")
        assert (status, out, "--force" in err) == (FAILED, "", True)
        assert manager.reader_group(group).generation == 0
        forced = ("--execute", "--force")
        assert run("reader-group", "reset", group, "--to-earliest", *forced)[0] == 0
        assert manager.reader_group(group).online_readers() == []
    assert manager.reader_group(group).generation == 1


def test_exported_positions_are_read_back(
    run: CommandLine, manager: StreamManager, group: str, tmp_path: Path
) -> None:
    filled(manager, "other/b")
    manager.reader_group(group).update(add=["other/b"])
    cuts = {"s/a": "s/a@1:0#0=4", "other/b": "other/b@1:0#0=7"}
    manager.reader_group(group).reset(cuts)
    status, out, _ = run("reader-group", "reset", group, "--to-current", "--export")
    assert (status, sorted(out.splitlines())) == (0, sorted(cuts.values()))
    file = tmp_path / "positions.txt"
    file.write_text(f"# saved\n\n{out}")
    assert run("reader-group", "reset", group, "--to-latest", "--execute")[0] == 0
    assert run("reader-group", "reset", group, "--from-file", str(file), "--execute")[0] == 0
    assert (cut(manager), cut(manager, "other/b")) == (cuts["s/a"], cuts["other/b"])
    only = ("--stream", "other/b", "--to-latest", "--execute")
    assert run("reader-group", "reset", group, *only)[0] == 0
    assert (cut(manager), cut(manager, "other/b")) == (cuts["s/a"], "other/b@1:0#0=10")
    line = f"{cuts['other/b']}\n"
    assert run("reader-group", "reset", group, "--from-file", "-", "--execute", stdin=line)[0] == 0
    assert (cut(manager), cut(manager, "other/b")) == (cuts["s/a"], cuts["other/b"])


def test_a_reset_goes_to_another_group_or_the_last_checkpoint(
    run: CommandLine, manager: StreamManager, group: str
) -> None:
    other = manager.create_reader_group("other/h", {"s/a": "s/a@1:0#0=6"})
    assert run("reader-group", "reset", group, "--to-group", "other/h", "--execute")[0] == 0
    assert cut(manager) == "s/a@1:0#0=6"
    status, _, err = run("reader-group", "reset", group, "--to-checkpoint")
    assert (status, "no completed checkpoint" in err) == (MISUSED, True)
    other.initiate_checkpoint("c").result(timeout=60)
    other.reset({"s/a": "s/a@1:0#0=6"})
    other.initiate_checkpoint("c").result(timeout=60)
    with other.create_reader("r") as reader:
        assert reader.read_next_event(timeout=5.0).event is not None
        reader.read_next_event(timeout=0)
    assert run("reader-group", "reset", "other/h", "--to-checkpoint", "--execute")[0] == 0
    assert cut(manager, group="other/h") == "s/a@1:0#0=6"
    assert other.last_checkpoint() is not None, "as a reset of the library keeps it"


def test_a_reset_over_a_scale_names_every_segment_between(
    run: CommandLine, manager: StreamManager, group: str
) -> None:
    stream = open_stream(root_of(manager).store, "s/a")
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    write(stream, [(f"k{n}", b"x") for n in range(20)])
    out = run("reader-group", "reset", group, "--to-latest")[1]
    rows = [line.split() for line in out.splitlines()[1:]]
    assert rows[0] == ["s/a", "0#0", "0", "end", "+10"]
    assert [row[1:3] for row in rows[1:]] == [["1#1", "future"], ["2#1", "future"]]
    assert sum(int(row[4]) for row in rows) == 30
    assert run("reader-group", "reset", group, "--to-latest", "--execute")[0] == 0
    back = run("reader-group", "reset", group, "--to-earliest", "--output=json")[1]
    assert sum(row["events"] for row in json.loads(back)["positions"]) == -30


def test_a_stream_that_was_created_again_is_read_from_its_present_life(
    run: CommandLine, manager: StreamManager, group: str
) -> None:
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    filled(manager)
    out = run("reader-group", "reset", group, "--to-earliest")[1]
    assert out.splitlines()[1].split() == ["s/a", "1#1", "-", "0", "-"]
    status, _, err = run("reader-group", "reset", group, "--to-current", "--execute")
    assert (status, "StaleIdentity" in err) == (FAILED, True)
    assert run("reader-group", "reset", group, "--to-earliest", "--execute")[0] == 0
    assert cut(manager) == f"s/a@{manager.stream_info('s/a').life}:1#1=0"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ((), "Give one of --to-earliest"),
        (("--to-earliest", "--to-latest"), "Only one of --to-earliest, --to-latest"),
        (("--to-latest", "--dry-run", "--execute"), "exclude each other"),
        (("--to-latest", "--export", "--output", "json"), "--export prints lines"),
        (("--to-latest", "--stream", "s/b"), "does not read s/b; it reads s/a"),
        (("--to-datetime", "yesterday"), "is not a time"),
        (("--by-duration", "PT"), "is not a valid duration"),
        (("--to-offset", "s/a@here"), "is not a valid stream cut"),
        (("--to-offset", "other/b@1:0#0=1"), "is a cut of other/b"),
        (("--to-offset", "s/a@1:0#0=1", "--to-offset", "s/a@1:0#0=2"), "two cuts of one stream"),
        (("--to-offset", "latest"), "--to-latest"),
        (("--to-offset", "s/a@1:0#0=11"), "InvalidStreamCut"),
        (("--from-file", "-"), "no stream cut was given"),
    ],
)
def test_misuse_of_reset_moves_nothing(
    run: CommandLine, manager: StreamManager, group: str, argv: tuple[str, ...], text: str
) -> None:
    for act in ((), ("--execute",)):
        if "--execute" in argv and act:
            continue
        status, out, err = run("reader-group", "reset", group, *argv, *act)
        assert (status, out) == (MISUSED, "")
        assert text in err
        assert err.count("\n") == 1
    assert manager.reader_group(group).generation == 0
    assert run("reader-group", "reset", "s/none", "--to-latest")[0] == FAILED
    assert run("reader-group", "reset", group, "--from-file", "/nowhere")[::2] == (
        MISUSED,
        "pravega-spark: InvalidInput: --from-file /nowhere cannot be read: No such file or "
        "directory.\n",
    )


def test_a_dry_run_fails_where_the_reset_would(run: CommandLine, manager: StreamManager) -> None:
    filled(manager)
    manager.create_reader_group(NAME, ["s/a"], retention="automatic")
    manager.truncate_stream("s/a", "s/a@1:0#0=4", past_subscribers=True)
    argv = ("reader-group", "reset", NAME, "--to-offset", "s/a@1:0#0=2")
    shown, done = run(*argv), run(*argv, "--execute")
    assert (shown[0], done[0]) == (FAILED, FAILED)
    assert shown == done
    assert "TruncatedData" in shown[2]


# ------------------------------------------------------------------------------------- describe


def test_groups_are_described_by_pattern(
    run: CommandLine, manager: StreamManager, group: str
) -> None:
    manager.create_reader_group("other/h", ["s/a"])
    out = run("reader-group", "describe", "-s", "-r", ".*/[gh]")[1]
    assert re.findall(r"^GROUP +(\S+)$", out, re.MULTILINE) == ["other/h", "s/g"]
    found = json.loads(run("reader-group", "describe", "-r", "s/.", "--output", "json")[1])
    assert [record["group"] for record in found] == ["s/g"]
    for wrong in ("g", "("):
        status, _, err = run("reader-group", "describe", "-r", wrong)
        assert (status, err.count("\n")) == (MISUSED, 1)


def test_describe_names_the_reader_that_a_checkpoint_waits_for_and_what_expired(
    run: CommandLine, manager: StreamManager, group: str
) -> None:
    opened = manager.reader_group(group)
    opened.update(retention="manual")
    subscribers.unsubscribe(
        open_stream(root_of(manager).store, "s/a"), group, opened.generation + 1
    )
    with opened.create_reader("slow"):
        opened.initiate_checkpoint("c")
        out = run("reader-group", "describe", "-s", group)[1]
        assert re.search(r"^PENDING +c waits for reader slow$", out, re.MULTILINE)
        assert re.search(r"^EXPIRED +s/a keeps nothing for the group any more$", out, re.MULTILINE)
        (found,) = json.loads(run("reader-group", "describe", group, "--output", "json")[1])
        assert found["pending_checkpoints"] == {"c": ["slow"]}
        assert found["expired"] == ["s/a"]


def test_watch_shows_the_group_again_until_an_interrupt(
    run: CommandLine, manager: StreamManager, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        manager.reader_group(group).reset({"s/a": "latest"})
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(reader_group_listing, "sleep", sleep)
    status, out, _ = run("reader-group", "describe", group, "-s", "--watch", "5s")
    assert (status, pauses) == (0, [5.0, 5.0])
    lags = re.findall(r"^TOTAL-LAG +(\d+) events", out, re.MULTILINE)
    assert lags == ["10", "0"]
    assert run("reader-group", "describe", group, "--watch", "soon")[0] == MISUSED
