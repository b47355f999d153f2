"""A command that only looks begins no stream whose whole folder is away, and says that it is lost.

The index of the scope lists the stream, as it lists one whose creation was killed. So does a round
of maintenance. What uses the stream begins it, as ever.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pravega_spark.cli import main
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.repair import begun_view, check_begun
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CorruptLog, NoSuchStream
from pravega_spark.manager import StreamManager
from pravega_spark.serve.served_root import ServedRoot
from tests.harness.failpoints import at_failpoint
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.simulated_kills import Killed, kill
from tests.harness.spy_store import Spy

LOOKS = (
    "check stream s/t",
    "cut ls s/t",
    "cut show s/t c",
    "maintain --once",
    "reader-group describe s/g",
    "reader-group reset s/g --to-latest",
    "reader-group reset s/g --to-latest --execute",
    "register s/*",
    "retention explain",
    "retention explain s/t",
    "retention run s/t --dry-run",
    "storage s/t",
    "stream compact s/t --dry-run",
    "stream describe s/t",
    "stream ls",
    "stream read s/t",
    "stream tail s/t",
    "stream truncate s/t --before end --dry-run",
    "subscriber describe s/t s/g",
    "subscriber ls s/t",
    "txn ls",
    "txn ls s/t",
)
TABLE_LOOKS = ("kvt describe s/k", "kvt get s/k a", "kvt ls", "kvt scan s/k")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root whose stream s/t and table s/k have lost their folders, which were moved away."""
    with StreamManager(tmp_path / "first") as manager:
        manager.create_scope("s")
        for name in ("s/t", "s/u"):
            manager.create_stream(name)
            with manager.create_writer(name) as writer:
                writer.write_event(b"x").result()
        manager.save_cut("s/t", "c")
        manager.create_reader_group("s/g", ["s/t", "s/u"], retention="automatic")
        manager.create_key_value_table("s/k")
        with manager.key_value_table("s/k") as table:
            table.put(b"a", b"1")
    root = (tmp_path / "first").rename(tmp_path / "second")  # no process has it open
    (root / "s/t").rename(tmp_path / "stream")
    (root / "s/_kv_tables/k").rename(tmp_path / "table")
    monkeypatch.setattr("pravega_spark.engine.stream.lifecycle._PAUSES_S", ())
    monkeypatch.setenv("PRAVEGA_SPARK_ROOT", str(root))
    return root


@pytest.mark.medium
@pytest.mark.parametrize("command", LOOKS)
def test_look_begins_no_stream_and_says_that_it_is_lost(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "table").rename(root / "s/_kv_tables/k")
    status = main(command.split())
    said = "".join(capsys.readouterr())
    assert status == (3 if command.startswith("check") else 1)
    assert "CorruptLog" in said
    assert "stream s/t has lost its log" in said
    assert "NoSuchStream" not in said
    assert not (root / "s/t").exists()
    (tmp_path / "stream").rename(root / "s/t")
    assert [event.data for event in StreamManager(root).read("s/t")] == [b"x"]


def test_lists_show_the_others_and_each_that_is_lost(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with StreamManager(root) as manager:
        manager.create_stream("s/w")
        manager.create_key_value_table("s/l")
        writer = manager.create_transactional_writer("s/u")
        transaction = writer.begin_transaction()
    wait_for_maintenance()
    root = root.rename(tmp_path / "third")  # no process has it open
    (root / "s/w").rename(tmp_path / "other")
    monkeypatch.setenv("PRAVEGA_SPARK_ROOT", str(root))
    lost = ["stream s/t has lost its log", "stream s/w has lost its log"]
    shown = {
        "stream ls": ("s/u", lost),
        "txn ls": (transaction.id, lost),
        "txn ls s": (transaction.id, lost),
        "retention explain": ("s/u", lost),
        "retention explain s": ("s/u", lost),
        "kvt ls": ("s/l", ["table s/k has lost its log"]),
    }
    for command, (other, errors) in shown.items():
        assert main([*command.split(), "--output", "json"]) == 1, command
        said, complaints = capsys.readouterr()
        assert other in json.dumps(json.loads(said)), command
        messages = [json.loads(line)["error"] for line in complaints.splitlines()]
        assert [error["type"] for error in messages] == ["CorruptLog"] * len(errors), command
        assert all(text in one["message"] for one, text in zip(messages, errors, strict=True))
        assert main(command.split()) == 1, command
        said, complaints = capsys.readouterr()
        assert other[:12] in said, command
        assert len(complaints.splitlines()) == len(errors), command
    assert main(["txn", "describe", transaction.id]) == 0
    assert transaction.id in capsys.readouterr().out
    assert main(["txn", "describe", f"{transaction.id[:-1]}x"]) == 1
    assert "stream s/t has lost its log" in capsys.readouterr().err, "it may be there"
    assert not (root / "s/t").exists()


def test_groups_are_listed_beside_one_that_is_damaged(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StreamManager(root) as manager:
        manager.create_reader_group("s/h", ["s/u"])
    wait_for_maintenance()
    root = root.rename(tmp_path / "third")
    (version,) = (root / "s/_reader_groups/g/_delta_log").glob("*00.json")
    version.write_text("{torn")
    assert main(["reader-group", "ls", "--root", str(root)]) == 1
    said, complaints = capsys.readouterr()
    assert "s/h" in said
    (line,) = complaints.splitlines()
    assert "CorruptLog" in line
    assert "s/_reader_groups/g: " in line


@pytest.mark.parametrize("command", TABLE_LOOKS)
def test_look_begins_no_table(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main(command.split()) == 1
    assert "CorruptLog" in (said := capsys.readouterr().err)
    assert "table s/k has lost its log" in said
    assert not (root / "s/_kv_tables/k").exists()
    (tmp_path / "table").rename(root / "s/_kv_tables/k")
    entry = StreamManager(root).key_value_table("s/k").get(b"a")
    assert entry is not None
    assert entry.value == b"1"


def test_use_begins_the_stream(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the error of a look advises, where there is no copy."""
    assert main(["stream", "describe", "s/t"]) == 1
    assert main(["stream", "create", "s/t"]) == 0
    assert main(["stream", "describe", "s/t"]) == 0
    assert list(StreamManager(root).read("s/t")) == []


def test_round_of_maintenance_fails_once_for_a_lost_stream_and_does_the_rest(root: Path) -> None:
    done = StreamManager(root).maintain()
    failed = [line for line in done.failure_lines if line.endswith(" of stream s/t")]
    assert len(failed) == 1, "all kinds of its work, by one error"
    assert "CorruptLog" in done.failure_lines[failed[0]]
    assert not [line for line in done.failure_lines if "s/u" in line]
    assert not (root / "s/t").exists()
    assert not (root / "s/_kv_tables/k").exists()


@pytest.mark.parametrize("lost", ["_delta_log", "all but the staged rows of a creation"])
def test_round_of_maintenance_fails_for_a_group_that_lost_its_log(
    root: Path, tmp_path: Path, lost: str
) -> None:
    """A killed creation of a group leaves rows for version 0 alone, which are no loss."""
    for name, folder in (("stream", "s/t"), ("table", "s/_kv_tables/k")):
        (tmp_path / name).rename(root / folder)
    group = root / "s/_reader_groups/g"
    for path in [group / "_delta_log"] if lost == "_delta_log" else list(group.iterdir()):
        if path.name != "data" or lost == "_delta_log":
            path.rename(tmp_path / f"away{path.name}")
    if lost != "_delta_log":
        for path in (group / "data").iterdir():
            if not path.name.endswith("v" + "0" * 20):
                path.rename(tmp_path / f"away{path.name}")
    failures = StreamManager(root).maintain().failures
    if lost == "_delta_log":
        found = failures["sweeping of table s/_reader_groups/g"]
        assert "CorruptLog" in found
        assert "reader group s/g has lost its log" in found
    else:
        assert failures == {}


def test_metrics_name_the_stream(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["metrics"]) == 0
    assert "stream s/t could not be measured" in caplog.text
    assert not (root / "s/t").exists()


def test_page_begins_no_stream(root: Path) -> None:
    served = ServedRoot(StreamManager(root))
    with pytest.raises(CorruptLog, match="stream s/t has lost its log, or its creation was killed"):
        served.view("s/t")
    assert not (root / "s/t").exists()


def test_state_file_of_a_log_that_was_lost_meanwhile_is_damage(tmp_path: Path) -> None:
    with pytest.raises(CorruptLog, match=r"s/t/events: version 0 of the log is missing"):
        checkpoint.maintain(StreamLog(LocalStore(str(tmp_path)), "s/t").log.reader, 2)


@pytest.mark.medium
def test_creation_that_goes_on_meanwhile_is_waited_for(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")

    class Pausing:
        """The clock of a look, in whose first pause the creator goes on."""

        def __getattr__(self, name: str) -> object:
            return getattr(stream_runtime, name)

        def sleep(self, _: float) -> None:
            manager.create_stream("s/t")

    with at_failpoint("create.row", kill), pytest.raises(Killed):
        manager.create_stream("s/t")
    store = LocalStore(str(tmp_path))
    stream_runtime = StreamLog(store, "s/t").runtime
    assert begun_view(StreamLog(store, "s/t", Pausing())).stream == "s/t"  # type: ignore[arg-type]


def test_look_at_a_stream_that_exists_costs_no_more_than_its_view(tmp_path: Path) -> None:
    with StreamManager(tmp_path) as manager:
        manager.create_scope("s")
        manager.create_stream("s/t")
    costs = []
    for look in (StreamLog.view, StreamLog.view, begun_view):  # the first leaves a state file
        store = Spy(LocalStore(str(tmp_path)))
        look(StreamLog(store, "s/t"))
        costs.append(list(store.calls))
        wait_for_maintenance()
    assert costs[1] == costs[2]


def test_stream_that_nothing_lists_is_missing(tmp_path: Path) -> None:
    StreamManager(tmp_path).create_scope("s")
    for name in ("s/none", "none/t"):
        stream = StreamLog(LocalStore(str(tmp_path)), name)
        check_begun(stream)
        with pytest.raises(NoSuchStream):
            begun_view(stream)
