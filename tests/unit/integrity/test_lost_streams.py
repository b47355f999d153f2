"""What ``fsck`` says of streams without a folder, and of the small objects beside the logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from pravega_spark.cli import main
from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.log import sweep_record
from pravega_spark.engine.runtime.json_codec import to_digested_line
from pravega_spark.engine.state.due_hints import DUE_FOLDER
from pravega_spark.engine.state.scopes import Scope
from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.engine.stream.archived_records import archive
from pravega_spark.engine.writing.split_batch import SplitBatch, StreamPart
from pravega_spark.errors import CorruptLog
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.reader_groups.leases import Heartbeat
from tests.harness.folder_state import move, remove
from tests.unit.integrity.test_stream_integrity import fsck


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_scope("other")
    for name in ("s/a", "s/b"):
        manager.create_stream(name)
        with manager.create_writer(name) as writer:
            writer.write_event(b"x").result()
    return root


def by_group(manager: StreamManager) -> None:
    manager.create_reader_group("other/g", {"s/a": manager.tail("s/a")})


def by_joint_transaction(manager: StreamManager) -> None:
    manager.create_joint_writer(["s/a", "s/b"]).begin_transaction()


def by_batch(manager: StreamManager) -> None:
    part = StreamPart(1, 1)
    SplitBatch("q", 3, {"s/a": part, "s/b": part}, {}).put(root_of(manager).store)


def by_tags(manager: StreamManager) -> None:
    manager.update_stream("s/a", add_tags=["x"])


def by_life(manager: StreamManager) -> None:
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    manager.create_stream("s/a")


def by_maintenance(manager: StreamManager) -> None:
    hints = {"format": 1, "basis": "", "tables": {"a": [1, {"retention": [1, 2, 1]}]}}
    root_of(manager).store.put(f"{DUE_FOLDER}/s/streams-1-0.json", to_digested_line(hints))


NAMINGS: dict[Callable[[StreamManager], None], str] = {
    by_group: "reader group other/g",
    by_joint_transaction: "joint transaction",
    by_batch: "the batch of several streams in _batches/",
    by_tags: "its row in the index",
    by_life: "its row in the index",
    by_maintenance: "the maintenance of the root",
}


@pytest.mark.parametrize("name", NAMINGS, ids=lambda name: name.__name__)
def test_stream_without_a_folder_is_damage_if_anything_shows_that_it_existed(
    root: Path, capsys: pytest.CaptureFixture[str], name: Callable[[StreamManager], None]
) -> None:
    name(StreamManager(root))
    assert fsck(root, capsys) == (0, "")
    remove(root / "s/a")
    status, error = fsck(root, capsys)
    assert status == 1
    assert error.startswith(f"s/a: s/a: all of its objects are lost: {NAMINGS[name]}")
    assert "call restore_stream (docs/backup.md)" in error
    assert error.count("\n") == 1
    assert main(["fsck", "s/a", "--root", str(root)]) == 1
    assert main(["fsck", "s/b", "--root", str(root)]) == 0


def test_streams_of_a_scope_that_was_lost_are_named_by_a_group_of_another(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_group(StreamManager(root))
    remove(root / "s")
    status, error = fsck(root, capsys)
    assert status == 1
    assert "s/a: all of its objects are lost: reader group other/g" in error


def test_table_whose_change_log_was_lost_is_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(root)
    manager.create_key_value_table("s/k")
    manager.create_reader_group("s/g", ["s/_kv_tables/k"])
    remove(root / "s/_kv_tables/k")
    status, error = fsck(root, capsys)
    assert status == 1
    assert error.startswith("s/k (table): s/_kv_tables/k: all of its objects are lost")


def test_stream_that_nothing_names_is_said(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remove(root / "s/a")
    status, error = fsck(root, capsys)
    assert status == 0
    assert "nothing else names it: its creation was killed" in error


def test_deleted_stream_with_its_log_is_no_alarm(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(root)
    by_group(manager)
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    assert fsck(root, capsys) == (0, "")


def test_copy_that_is_put_back_and_restored_is_sound(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    by_group(StreamManager(root))
    move(root / "s/a", tmp_path / "copy")
    assert fsck(root, capsys)[0] == 1
    (tmp_path / "copy").rename(root / "s/a")
    StreamManager(root).restore_stream("s/a")
    assert fsck(root, capsys) == (0, "")


# ------------------------------------------------------------------------ beside the logs


def swept(manager: StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a sweep's record with a part of its own."""
    monkeypatch.setattr(sweep_record, "SWEEP_SEGMENT_FILES", 1)
    manager.sweep_stream("s/a", grace=0)


TORN = {
    "latest.json": "readers list the folders",
    "sweep.json": "the next sweep lists all files",
    "swept.json": "the count of swept files",
    "compaction.json": "the next plan looks at all chunks",
    "rates.json": "the scaling job computes the rates again",
}


@pytest.mark.parametrize("name", TORN)
def test_torn_hints_and_memories_are_said(
    root: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    note = root / "s/a/events/_pravega" / name
    note.parent.mkdir(exist_ok=True)
    note.write_bytes(b'{"version":')
    status, error = fsck(root, capsys)
    assert status == 0
    assert f"s/a: s/a/events/_pravega/{name}: it is torn, and not used: {TORN[name]}" in error


@pytest.mark.parametrize("is_torn", [False, True])
def test_part_of_a_sweeps_record_is_said(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_torn: bool
) -> None:
    swept(StreamManager(root), monkeypatch)
    assert fsck(root, capsys) == (0, "")
    part, *_ = (root / "s/a/events/_pravega/changes").iterdir()
    if is_torn:
        part.write_bytes(part.read_bytes()[:-1])
    else:
        part.unlink()
    status, error = fsck(root, capsys)
    assert status == 0
    assert f"{part.name}: it is {'torn' if is_torn else 'missing'}: a sweep that needs it" in error


def test_torn_lease_of_a_reader_is_said(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manager = StreamManager(root)
    manager.create_reader_group("s/g", ["s/a"])
    leases = root / "s/_reader_groups/g/_leases"
    leases.mkdir()
    (leases / "r.json").write_bytes(Heartbeat(1, {}, "").encode())
    (leases / "_clock.json").write_bytes(b"")
    assert fsck(root, capsys) == (0, "")
    (leases / "r.json").write_bytes(b"{")
    status, error = fsck(root, capsys)
    assert status == 0
    assert "_leases/r.json: it is torn: its reader writes it again" in error


def test_torn_lease_of_an_open_transaction_is_said(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(root)
    with manager.create_transactional_writer("s/a") as writer:
        transaction = writer.begin_transaction()
        lease = root / "s/a/transactions" / transaction.id / "lease.json"
        lease.parent.mkdir(parents=True, exist_ok=True)
        lease.write_bytes(b"{")
        status, error = fsck(root, capsys)
        assert status == 0
        assert "lease.json: it is torn: its date counts" in error
        transaction.abort()


def test_torn_record_of_a_batch_is_damage_and_a_torn_due_hint_is_said(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(root)
    by_batch(manager)
    by_maintenance(manager)
    (hint,) = (root / DUE_FOLDER).rglob("*.json")
    hint.write_bytes(hint.read_bytes()[:-9])
    status, error = fsck(root, capsys)
    assert status == 0
    assert f"{hint.name}: it is torn, and not used: the next round" in error
    (batch,) = (root / "_batches").iterdir()
    batch.write_bytes(batch.read_bytes()[:-9])
    status, error = fsck(root, capsys)
    assert status == 1
    assert f"_batches/{batch.name}: it is torn, and the first batch of the writer's next" in error


def test_torn_archive_of_an_earlier_life_is_damage(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(root)
    stream = root_of(manager).stream("s/a")
    name = "pravega.writer.w"
    archive(stream, 1, 1, name, {name: "[1,1,1]"})
    manager.restore_stream("s/a")
    assert fsck(root, capsys) == (0, "")
    (moved,) = (root / "s/a/events/_pravega/moved/1").rglob("*.json")
    moved.write_bytes(moved.read_bytes()[:-9])
    status, error = fsck(root, capsys)
    assert status == 1
    assert "moved/1/" in error


def test_row_of_a_creation_is_said_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Scope(root_of(StreamManager(root)).store, "s").claim("half", 1, StreamConfiguration())
    status, error = fsck(root, capsys)
    assert status == 0
    assert error.count("s/half:") == 2


@pytest.mark.medium
@pytest.mark.parametrize("is_copied", [True, False])
def test_the_way_back_of_a_table_without_its_log_can_be_followed(
    root: Path, capsys: pytest.CaptureFixture[str], is_copied: bool
) -> None:
    manager = StreamManager(root)
    manager.create_key_value_table("s/t")
    with manager.key_value_table("s/t") as table:
        table.put("k", b"v").result()
    root = root.rename(root.parent / "unknown")  # this process knows nothing of it
    folder = root / "s/_kv_tables/t"
    copytree(folder, root.parent / "copy")
    remove(folder / "events/_delta_log")
    status, error = fsck(root, capsys)
    assert (status, "table s/t has lost its log" in error) == (1, True)
    with pytest.raises(CorruptLog, match="table s/t has lost its log") as raised:
        StreamManager(root).key_value_table("s/t")
    assert "restore_stream" not in str(raised.value)
    assert "also call restore()" in str(raised.value)
    remove(folder)
    if is_copied:
        copytree(root.parent / "copy", folder)
    with StreamManager(root).key_value_table("s/t") as table:
        assert (table.get(b"k") is not None) == is_copied
    assert fsck(root, capsys) == (0, "")


def test_a_root_without_its_marker_is_damaged_and_a_folder_without_scopes_is_no_root(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / MARKER_KEY).unlink()
    status, error = fsck(root, capsys)
    assert (status, error.startswith(f"(root): {MARKER_KEY}: root ")) == (1, True)
    assert main(["fsck", "s/a", "--root", str(root)]) == 1
    assert main(["fsck", "--root", str(root.parent / "none")]) == 2
