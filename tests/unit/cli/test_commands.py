"""The command line: its output, exit status and imports."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from pravega_spark.cli import main
from pravega_spark.cli.commands import commands
from pravega_spark.cli.exit_status import FAILED, MISUSED
from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.engine.state.maintenance_table import MaintenanceTable, open_maintenance
from pravega_spark.engine.stream import stream_log
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.jobs.maintenance import parse as parse_job
from pravega_spark.maintenance.round import RoundStop
from pravega_spark.maintenance.rounds import KindSchedule
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.spark.monitor.checkpoint_folder import last_committed_batch
from pravega_spark.spark.source_offsets import OffsetOwner, StreamOffset, encode
from pravega_spark.values.segments import StreamCut
from tests.harness.folder_state import wait_for_maintenance, write_times
from tests.harness.small_streams import created, write


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    manager = StreamManager(tmp_path / "root")
    for scope in ("s", "other"):
        manager.create_scope(scope)
    return manager


@pytest.fixture
def run(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Run a command line and return its status, output and errors."""
    monkeypatch.setenv("PRAVEGA_SPARK_ROOT", manager.root)

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(argv)
        return status, *capsys.readouterr()

    return run


def fill(stream: StreamLog, count: int) -> None:
    write(stream, [(f"k{i}", b"12345") for i in range(count)])


# ------------------------------------------------------------------------------- ls and describe


def test_groups_are_listed_by_scope_as_table_names_and_json(
    run: Any, manager: StreamManager
) -> None:
    created(manager.root)
    manager.create_reader_group("s/g", ["s/a"], retention="manual")
    manager.create_reader_group("other/h", ["s/a"])
    assert run("reader-group", "ls", "-q") == (0, "other/h\ns/g\n", "")
    assert run("reader-group", "ls", "s", "-q", "--output", "json")[1] == '[\n  "s/g"\n]\n'
    lines = run("reader-group", "ls", "s")[1].splitlines()
    assert [line.split() for line in lines] == [
        ["GROUP", "STATE", "GENERATION", "RETENTION", "MEMBERS", "STREAMS"],
        ["s/g", "ACTIVE", "0", "manual", "0", "s/a"],
    ]
    (shown,) = json.loads(run("reader-group", "ls", "other", "--output=json")[1])
    assert (shown["group"], shown["streams"], shown["readers"]) == ("other/h", ["s/a"], [])


def test_group_is_described_with_its_lag_by_segment(run: Any, manager: StreamManager) -> None:
    stream = created(manager.root)
    fill(stream, 10)
    created(manager.root, "other/b")
    group = manager.create_reader_group("s/g", ["s/a", "other/b"])
    with group.create_reader("reader-1") as reader:
        for _ in range(4):
            assert reader.read_next_event(timeout=5.0).event is not None
        reader.close()
    fill(stream, 2)
    manager.truncate_stream("s/a", StreamCut("s/a", 1, {0: 1}))
    status, text, _ = run("reader-group", "describe", "s/g")
    summary, _, segments = text.partition("\n\n")
    shown = dict(line.split(maxsplit=1) for line in summary.splitlines())
    assert (status, shown["GROUP"], shown["STATE"], shown["MEMBERS"]) == (0, "s/g", "ACTIVE", "0")
    assert shown["TOTAL-LAG"].startswith("8 events, 40 B, ")
    assert shown["CHECKPOINT"] == "-"
    rows = [line.split() for line in segments.splitlines()]
    assert rows[0] == [
        *("STREAM", "SEGMENT", "CURRENT-OFFSET", "HEAD", "TAIL"),
        *("LAG", "LAG-BYTES", "LAG-TIME", "OWNER"),
    ]
    assert rows[1] == ["other/b", "0#0", "0", "0", "0", "0", "0", "B", "0.0", "s", "-"]
    assert rows[2][:8] == ["s/a", "0#0", "4", "1", "12", "8", "40", "B"]
    assert "SEGMENT" not in run("reader-group", "describe", "-s", "s/g")[1]
    (record,) = json.loads(run("reader-group", "describe", "s/g", "--output", "json")[1])
    assert (record["lag"], record["lag_bytes"]) == (8, 40)
    assert [s["current_offset"] for s in record["segments"]] == [0, 4]


def test_a_group_is_described_with_the_maintenance_that_is_overdue(
    run: Any, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = StreamConfiguration(retention=RetentionPolicy.by_time("7 days"))
    manager.create_stream("s/kept", kept)
    manager.create_reader_group("s/g", ["s/kept"])
    assert "OVERDUE" not in run("reader-group", "describe", "s/g")[1]
    record = open_maintenance(root_of(manager).store)
    now_ms = root_of(manager).store.time_ms()
    record.finish_now(MaintenanceKind.RETENTION, (None,), "job", now_ms, 2)
    monkeypatch.setattr(MaintenanceTable, "about_now_ms", lambda table: now_ms + 2 * 86_400_000)
    shown = run("reader-group", "describe", "s/g")[1]
    (line,) = (line for line in shown.splitlines() if line.startswith("OVERDUE"))
    assert line.split(maxsplit=1)[1] == "s/kept: retention has not run for 2.0 days"
    (found,) = json.loads(run("reader-group", "describe", "s/g", "--output", "json")[1])
    assert found["overdue"] == {"s/kept": ["retention has not run for 2.0 days"]}


def test_errors_are_one_line_or_one_object_with_a_stable_status(
    run: Any, manager: StreamManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    created(manager.root)
    manager.create_reader_group("s/none", ["s/a"])
    manager.delete_reader_group("s/none")
    status, out, err = run("reader-group", "describe", "s/none")
    assert (status, out) == (FAILED, "")
    assert err.startswith("pravega-spark: NoSuchReaderGroup: reader group s/none does not exist")
    assert err.count("\n") == 1
    status, out, err = run("reader-group", "describe", "s/none", "--output", "json")
    assert (status, out) == (FAILED, "")
    assert json.loads(err)["error"]["type"] == "NoSuchReaderGroup"
    assert run("reader-group", "ls", "none")[0] == FAILED
    for wrong in (
        ("reader-group", "describe", "no slash"),
        ("reader-group", "describe"),
        ("reader-group", "lst"),
        ("reader-group", "ls", "--root", str(tmp_path / "nothing")),
    ):
        status, _, err = run(*wrong, "--output=json")
        assert (status, set(json.loads(err)["error"])) == (MISUSED, {"type", "message"}), wrong
    monkeypatch.delenv("PRAVEGA_SPARK_ROOT")
    assert "PRAVEGA_SPARK_ROOT" in run("reader-group", "ls")[2]
    assert run("--help")[0] == 0


@pytest.mark.medium
def test_spark_is_neither_started_nor_imported(manager: StreamManager, tmp_path: Path) -> None:
    fill(created(manager.root), 3)
    manager.create_reader_group("s/g", ["s/a"])
    folder = checkpoint(tmp_path, [finished(manager, {0: 2})], commits=1)
    code = (
        "import sys; from pravega_spark.cli import main\n"
        "for line in sys.argv[1:]: assert main(line.split()) == 0, line\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    root = f"--root {manager.root}"
    lines = (
        f"reader-group ls {root}",
        f"reader-group describe s/g {root}",
        f"reader-group sync --checkpoint {folder}",
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *lines],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()[-1].split()) & {"pyspark", "py4j"} == set()


# ------------------------------------------------------------------------------------------ sync


def finished(
    manager: StreamManager, cells: dict[int, int], group: str | None = "s/g", generation: int = 0
) -> dict[str, Any]:
    """The offset of a query of a group on s/a."""
    cut = StreamCut("s/a", 1, cells)
    owner = OffsetOwner(manager.root, group, generation)
    return encode({"s/a": StreamOffset("id", StreamCut("s/a", 1, {0: 0}), cut)}, owner)


def checkpoint(
    folder: Path,
    batches: Sequence[dict[str, Any] | None],
    *,
    commits: int,
    version: str = "v1",
) -> str:
    """A checkpoint folder as Spark 4.2 writes it, of a query with a Kafka source and ours."""
    conf = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {"a:b": "1"}}
    for number, offset in enumerate(batches):
        ours = "-" if offset is None else json.dumps(offset)
        lines = [version, json.dumps(conf), '{"topic":{"0":17}}', ours]
        if version == "v2":
            lines[2:] = [f"1:{lines[2]}", f"flights:{ours}"]
        _put(folder / "c/offsets" / str(number), "\n".join(lines))
        if number < commits:
            _put(folder / "c/commits" / str(number), 'v1\n{"nextBatchWatermarkMs":0}')
    return str(folder / "c")


def _put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.with_name(f".{file.name}.crc").write_bytes(b"crc")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_sync_acknowledges_the_last_batch_that_was_committed(
    run: Any, manager: StreamManager, tmp_path: Path, version: str
) -> None:
    fill(created(manager.root), 20)
    group = manager.create_reader_group("s/g", ["s/a"], retention="automatic")
    batches = [None, *(finished(manager, {0: n}) for n in (4, 11, 19))]
    folder = checkpoint(tmp_path, batches, commits=3, version=version)
    before = write_times(tmp_path)
    status, out, _ = run("reader-group", "sync", "--checkpoint", folder, "--dry-run")
    assert (status, write_times(tmp_path)) == (0, before)
    cut = StreamCut("s/a", 1, {0: 11})
    assert out.splitlines()[1].split(maxsplit=5) == [
        *("s/g", "0", "2", "s/a", str(cut)),
        "would be acknowledged",
    ]
    shown = run("reader-group", "sync", f"--checkpoint=file://{folder}", "--output=json")[1]
    assert json.loads(shown) == {
        "batch": 2,
        "dry_run": False,
        "groups": [
            {
                "group": "s/g",
                "generation": 0,
                "cuts": {"s/a": str(cut)},
                "outcome": "acknowledged",
            }
        ],
    }
    assert group.lag().events == 9
    assert [s.cut for s in manager.list_subscribers("s/a")] == [cut], "the stream may let it go"
    for way in ((), ("--dry-run",)):
        assert run("reader-group", "sync", "--checkpoint", folder, *way)[1].endswith("known\n")


def test_sync_never_moves_back_and_ignores_a_newer_generation(
    run: Any, manager: StreamManager, tmp_path: Path
) -> None:
    fill(created(manager.root), 20)
    group = manager.create_reader_group("s/g", ["s/a"])
    later = checkpoint(tmp_path / "later", [finished(manager, {0: 15})], commits=1)
    earlier = checkpoint(tmp_path / "earlier", [finished(manager, {0: 5})], commits=1)
    assert run("reader-group", "sync", "--checkpoint", later)[0] == 0
    assert run("reader-group", "sync", "--checkpoint", earlier)[1].endswith("known\n")
    assert group.lag().events == 5
    group.update(refresh="1 s")
    last = checkpoint(tmp_path / "last", [finished(manager, {0: 17})], commits=1)
    assert run("reader-group", "sync", "--checkpoint", last, "--dry-run")[1].endswith("edged\n")
    assert run("reader-group", "sync", "--checkpoint", last)[1].endswith("acknowledged\n")
    assert group.lag().events == 3, "its position continues"
    group.reset({"s/a": StreamCut.EARLIEST})
    for way in ((), ("--dry-run",)):
        status, out, _ = run("reader-group", "sync", "--checkpoint", later, *way)
        assert (status, out.endswith("ignored: the group is in generation 2\n")) == (0, True)
    assert group.lag().events == 20


def test_sync_uses_the_given_group_and_root_for_queries_without_them(
    run: Any, manager: StreamManager, tmp_path: Path
) -> None:
    fill(created(manager.root), 20)
    group = manager.create_reader_group("s/g", ["s/a"])
    group.reset()
    plain = finished(manager, {0: 7}, group=None)
    del plain["root"]
    folder = checkpoint(tmp_path, [plain], commits=1)
    status, _, err = run("reader-group", "sync", "--checkpoint", folder)
    assert (status, "--group" in err) == (MISUSED, True)
    assert run("reader-group", "sync", "--checkpoint", folder, "--group", "s/g")[0] == 0
    assert group.lag().events == 13
    named = checkpoint(tmp_path / "named", [finished(manager, {0: 9})], commits=1)
    status, _, err = run("reader-group", "sync", "--checkpoint", named, "--group", "s/h")
    assert (status, "leave out --group" in err) == (MISUSED, True)


def test_sync_without_a_finished_batch_does_nothing(
    run: Any, manager: StreamManager, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path, [finished(manager, {0: 7})], commits=0)
    status, out, _ = run("reader-group", "sync", "--checkpoint", folder)
    assert status == 0
    assert out == f"{folder} has no finished batch: there is nothing to acknowledge.\n"
    out = run("reader-group", "sync", "--checkpoint", folder, "--output=json")[1]
    assert json.loads(out) == {"batch": None, "dry_run": False, "groups": []}


def test_sync_refuses_unknown_checkpoints(run: Any, manager: StreamManager, tmp_path: Path) -> None:
    for folder, message in (
        (str(tmp_path / "none"), "is not the checkpoint of a streaming query"),
        (checkpoint(tmp_path / "foreign", [None], commits=1), "no pravega source"),
        (checkpoint(tmp_path / "new", [None], commits=1, version="v9"), "format 'v9'"),
    ):
        status, _, err = run("reader-group", "sync", "--checkpoint", folder)
        assert (status, message in err) == (MISUSED, True), err


def test_sync_refuses_a_stream_that_several_sources_read(
    run: Any, manager: StreamManager, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path, [finished(manager, {0: 7})], commits=1)
    file = Path(folder) / "offsets/0"
    file.write_text(f"{file.read_text()}\n{json.dumps(finished(manager, {0: 3}))}")
    batch = last_committed_batch(folder)
    assert batch is not None
    assert len(batch.offsets) == 2
    status, _, err = run("reader-group", "sync", "--checkpoint", folder)
    assert (status, "with several sources" in err) == (MISUSED, True)


# ---------------------------------------------------------------------------------------- storage


def test_storage_of_streams_is_shown_by_kind_with_the_reason(
    manager: StreamManager, run: Callable[..., tuple[int, str, str]]
) -> None:
    created(manager.root, "s/a")
    with manager.create_writer("s/a") as writer:
        writer.write_event(b"x", "k")
    manager.truncate_stream("s/a", manager.tail("s/a"))
    with manager.create_writer("s/a") as writer:
        writer.write_event(b"y", "k")
    wait_for_maintenance()  # of the first state file
    status, out, _ = run("storage", "s/a")
    assert status == 0
    lines = {row[1]: row for row in (re.split(" {2,}", line) for line in out.splitlines())}
    assert (lines["KIND"][2:4], lines["live"][2]) == (["FILES", "SIZE"], "1")
    assert lines["retained"][2] == "1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", lines["retained"][4])
    assert lines["retained"][5].startswith("Time travel: versions younger than 30 days (retain)")
    assert "staged" not in lines
    found = json.loads(run("storage", "s/a", "--output=json")[1])
    info = manager.stream_storage("s/a")
    assert [(row["kind"], row["files"], row["size_bytes"]) for row in found] == [
        (part.kind.value, part.files, part.size_bytes) for part in info.parts
    ]
    assert lines["total"][2] == f"{info.total.files:,}"
    assert run("storage")[0] == MISUSED
    assert run("storage", "s/none")[0] == FAILED


# --------------------------------------------------------------------------------------- settings


def test_settings_of_a_root_and_of_streams_are_shown_with_their_origin(
    run: Any, manager: StreamManager
) -> None:
    created(manager.root)
    manager.update_settings(grace="2 hours", expire="30 days")
    manager.update_stream("s/a", settings={"expire": "never"})
    lines = [re.split(" {2,}", line) for line in run("settings")[1].splitlines()]
    assert lines[0] == ["STREAM", "SETTING", "VALUE", "ORIGIN", "DEFAULT"]
    assert ["-", "grace", "2 hours", "root", "1 day"] in lines
    assert ["-", "scaling_interval", "60 s", "default", "60 s"] in lines
    found = json.loads(run("settings", "s/a", "--output=json")[1])
    shown = {row["setting"]: (row["value"], row["origin"]) for row in found}
    assert shown["grace"] == ("2 hours", "root")
    assert shown["expire"] == ("never", "stream")
    assert "scaling_interval" not in shown
    assert run("settings", "s/none")[0] == FAILED


# ----------------------------------------------------------------------------------- maintain


def test_a_round_of_maintenance_ends_with_one_json_object(run: Any, manager: StreamManager) -> None:
    manager.create_stream("s/kept", StreamConfiguration(retention=RetentionPolicy.by_size(1)))
    with manager.create_writer("s/kept") as writer:
        for data in (b"first", b"last"):
            writer.write_event(data, "k").result()
    status, out, err = run("maintain", "--dry-run", "--kinds", "retention")
    record = json.loads(out.splitlines()[-1])
    assert (status, err, record["dry_run"], record["retention_events"]) == (0, "", True, 1)
    assert "transactions_aborted" not in record
    status, out, err = run("maintain", "--once", "--limit", "60 s")
    record = json.loads(out.splitlines()[-1])
    assert (status, err, record["failed"], record["streams"], record["rounds"]) == (0, "", 0, 1, 1)
    assert out.splitlines()[0].split() == ["STREAM", "KIND", "DONE"]
    assert out.splitlines()[1].startswith("s/kept  retention  truncated 1 event")
    assert [event.data for event in manager.read("s/kept")] == [b"last"]
    (log,) = Path(manager.root.removeprefix("file://")).glob("s/kept/events/_delta_log")
    (log / f"{0:020d}.json").write_text("garbage")
    for hint in log.parent.glob("_pravega/**/*.json"):
        hint.unlink()
    stream_log._open.reset()
    status, out, err = run("maintain", "--full", "--kinds", "retention,scaling")
    assert (status, json.loads(out.splitlines()[-1])["failed"]) == (FAILED, 2)
    assert "maintain: scaling, retention of stream s/kept: CorruptLog" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        ("--kinds", "cleaning"),
        ("--once", "--interval"),
        ("--interval", "0s"),
        ("--interval", "soon"),
        ("--limit", "0 s"),
        ("--parallelism", "0"),
        ("--stream", "kept"),
        ("--root", "/nowhere/at/all"),
        ("--root", "/etc/passwd"),
        ("--root", "bogus://x"),
        ("--scope", "none"),
        ("--stream", "s/none"),
        ("--scope", "none", "--interval"),
        ("--stream", "s/none", "--interval", "1h"),
        ("--kinds", "retention", "cleaning"),
        ("retention",),
    ],
)
def test_misuse_of_maintain_has_status_2(run: Any, wrong: Sequence[str]) -> None:
    status, out, err = run("maintain", *wrong)
    assert (status, out) == (MISUSED, "")
    assert err.startswith("pravega-spark: ")


def test_root_that_vanished_is_tried_less_and_less_often_and_warned_of_once(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manager.create_stream("s/t")
    manager.update_settings(scaling_interval="1 s")
    root = Path(manager.root.removeprefix("file://"))
    away, pauses = root.with_name("away"), list[float]()

    def wait(stop: RoundStop, seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 1:
            root.rename(away)
        if len(pauses) == 9:
            away.rename(root)
        if len(pauses) == stop_after:
            stop.request()
        return stop.is_set

    monkeypatch.setattr(RoundStop, "wait", wait)
    stop_after = 10
    assert main(["maintain", "--root", manager.root, "--kinds", "scaling", "--interval"]) == 0
    out, err = capsys.readouterr()
    assert pauses[1:9] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert err.count("RootChanged") == len(err.splitlines()) == 1
    assert json.loads(out.splitlines()[-1])["failed"] == 0
    pauses.clear()
    stop_after = 5
    argv = ["maintain", "--root", manager.root, "--interval", "3 s"]
    assert main(argv) == FAILED, "the root is still away"
    assert pauses[1:] == [1.0, 2.0, 3.0, 3.0]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"] == 1


def test_stream_that_is_deleted_while_maintain_runs_is_no_failure(
    run: Any, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.create_stream("s/t")
    manager.create_scope("u")
    rounds = list[int]()

    def wait(stop: RoundStop, seconds: float) -> bool:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            manager.seal_stream("s/t")
            manager.delete_stream("s/t")
            manager.delete_scope("u")
        if len(rounds) == 2:
            stop.request()
        return stop.is_set

    monkeypatch.setattr(RoundStop, "wait", wait)
    monkeypatch.setattr(KindSchedule, "due", lambda self, recorded: self._kinds)
    status, out, err = run("maintain", "--stream", "s/t", "--scope", "u", "--interval", "1s")
    record = json.loads(out.splitlines()[-1])
    assert (status, err) == (0, "")
    assert (record["rounds"], record["streams"], record["failed"]) == (2, 1, 0)


@pytest.mark.parametrize(
    "given", [["retention,scaling"], ["retention", "scaling"], ["scaling", "--kinds", "retention"]]
)
def test_kinds_are_separated_by_commas_or_spaces_or_repeated(
    run: Any, given: Sequence[str]
) -> None:
    status, out, _ = run("maintain", "--kinds", *given)
    record = json.loads(out.splitlines()[-1])
    assert (status, "retention_events" in record, "scaling_splits" in record) == (0, True, True)
    assert "sweeping_files" not in record
    argv = ["--root", "r", "--kinds", *given]
    assert [kind.value for kind in parse_job(argv).request.kinds] == ["scaling", "retention"]


def test_help_of_the_interval_says_that_each_kind_has_its_own(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [run("maintain", "--help")[1]]
    with pytest.raises(SystemExit):
        parse_job(["--help"])
    texts.append(capsys.readouterr().out)
    for text in texts:
        shown = " ".join(text.split())
        assert "each kind when its interval in the settings has passed" in shown
        assert "a pause of TIME" in shown
        assert "start a round every TIME" not in shown


@pytest.mark.parametrize("option", ["--interval", "--limit"])
def test_time_of_0_is_too_short(run: Any, option: str) -> None:
    assert "longer than 0 s" in run("maintain", option, "0")[2]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_rounds_with_the_sums_and_status_0(
    manager: StreamManager, number: signal.Signals
) -> None:
    manager.create_stream("s/t")
    command = [sys.executable, "-m", "pravega_spark.cli", "maintain", "--root", manager.root]
    process = subprocess.Popen(
        [*command, "--interval"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "1 stream" in process.stdout.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    record = json.loads(out.splitlines()[-1])
    assert (record["streams"], record["failed"], record["rounds"]) == (1, 0, 1)


def test_each_command_is_found_and_has_a_help() -> None:
    context = click.Context(commands)
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help


def test_a_misspelt_command_names_the_nearest(run: Any) -> None:
    status, _, error = run("reader-gruop", "ls")
    assert status == MISUSED
    assert "Did you mean 'reader-group'?" in error


@pytest.mark.medium
@pytest.mark.parametrize(
    ("words", "expected"),
    [("pravega-spark str", "plain,stream\n"), ("pravega-spark stream tr", "plain,truncate\n")],
)
def test_a_shell_completes_commands_and_their_verbs(words: str, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pravega_spark.cli"],
        env=os.environ | {
            "_PRAVEGA_SPARK_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (expected, "")
