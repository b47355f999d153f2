"""Damage of every kind is found and named, and a stream in use is sound."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark.cli import main
from pravega_spark.config.encryption import EncryptionPolicy
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.key_management import KMS_VARIABLE, set_kms
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.state.scopes import Scope
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.archived_records import archive
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.integrity.log_integrity import Integrity
from pravega_spark.integrity.root_integrity import check_root
from pravega_spark.integrity.stream_integrity import check_stream
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.manager import StreamManager, root_of
from tests.harness import file_kms
from tests.harness.file_kms import MasterKeys
from tests.harness.folder_state import remove, wait_for_maintenance
from tests.harness.spy_store import Spy


@pytest.fixture
def root(tmp_path: Path) -> Path:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(ScalingPolicy.fixed(2)))
    with manager.create_writer("s/a") as writer:
        for i in range(40):
            writer.write_event(b"%d" % i, routing_key=str(i)).result()
    manager.scale_stream("s/a", [0], [(0.0, 0.25), (0.25, 0.5)])
    manager.truncate_stream("s/a", manager.create_reader("s/a").next_cut(manager.head("s/a"), 5))
    return tmp_path / "root"


def checked(root: Path, *, deep: bool = False) -> Integrity:
    manager = StreamManager(root)
    return check_stream(open_stream(manager.root, "s/a"), deep=deep)


def commit(root: Path, version: int) -> Path:
    return root / f"s/a/events/_delta_log/{version:020d}.json"


def chunk(root: Path) -> Path:
    """The chunk of the last append; those of the first events are below the head."""
    lines = map(json.loads, commit(root, 40).read_text().splitlines())
    (path,) = (line["add"]["path"] for line in lines if "add" in line)
    return root / "s/a/events" / path


def test_a_stream_that_was_scaled_and_truncated_is_sound(root: Path) -> None:
    found = checked(root, deep=True)
    assert found.damage == []
    assert found.events == StreamManager(root).stream_info("s/a").events < 40
    assert found.commits == (found.version or 0) + 1
    assert main(["fsck", "--root", str(root)]) == 0


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(4, len(data) // 2):  # a single bit may be one of a page's statistics
        data[at] ^= 0x55
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "deep", "reason"),
    [
        (Path.unlink, False, "is missing"),
        (_cut, False, "the log records"),
        (_flip, True, ""),
    ],
    ids=["removed", "cut", "flipped"],
)
def test_a_damaged_chunk_is_named(
    root: Path, spoil: Callable[[Path], None], deep: bool, reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = chunk(root)
    spoil(path)
    (damage,) = checked(root, deep=deep).damage
    assert str(path).endswith(damage.path)
    assert reason in damage.reason
    assert main(["fsck", "s/a", "--root", str(root), *(["--deep"] if deep else [])]) == 1
    assert path.name in capsys.readouterr().err


@pytest.mark.parametrize("spoil", [Path.unlink, _cut], ids=["removed", "cut"])
def test_a_damaged_commit_is_named(root: Path, spoil: Callable[[Path], None]) -> None:
    spoil(commit(root, 7))
    found = checked(root)
    assert any(
        f"{7:020d}.json" in damage.path or "version 7" in damage.reason for damage in found.damage
    )


def test_an_unknown_stream_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", "s/none", "--root", str(root)]) == 1
    assert "s/none" in capsys.readouterr().err


def test_all_streams_are_checked_and_reported_as_json(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fsck", "--root", str(root), "--output", "json"]) == 0
    assert '"damage": []' in capsys.readouterr().out


@pytest.fixture
def kinds(root: Path) -> Path:
    """The root, with a group and a folded key-value table."""
    manager = StreamManager(root)
    group = manager.create_reader_group("s/g", ["s/a"])
    group.create_reader("r").close()
    manager.create_key_value_table("s/k")
    with manager.key_value_table("s/k") as table:
        for number in range(20):
            table.put(b"%d" % number, b"value")
        table.flush()
        fold(table._stream, folded_table(table._stream, table.configuration))
    return root


def test_groups_tables_and_indexes_are_sound_and_counted(
    kinds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fsck", "--deep", "--root", str(kinds)]) == 0
    names = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == [
        *("(root)", "s (index)", "s/a", "s/a (history)", "s/g (reader group)"),
        *("s/k (table)", "s/k (folded table)"),
    ]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("folder", "pattern"),
    [
        ("s/_scope", "_delta_log/*0.json"),
        ("s/_reader_groups/g", "_delta_log/*0.json"),
        ("s/_kv_tables/k/events", "data/**/*.parquet"),
        ("s/_kv_tables/k/table", "**/*.parquet"),
    ],
)
@pytest.mark.parametrize("spoil", [Path.unlink, _cut, _flip], ids=["removed", "cut", "flipped"])
def test_damage_of_groups_tables_and_indexes_is_named_and_hides_no_stream(
    kinds: Path,
    folder: str,
    pattern: str,
    spoil: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = sorted((kinds / folder).glob(pattern))[-1]
    spoil(path)
    assert main(["fsck", "--deep", "--root", str(kinds)]) == 1
    text, error = capsys.readouterr()
    assert folder in error
    assert "s/a " in text


# ------------------------------------------------------------- all that FORMAT.md names


def fsck(root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    capsys.readouterr()
    status = main(["fsck", *options, "--root", str(root)])
    return status, capsys.readouterr().err


def _remove(path: Path) -> None:
    remove(path)


def _become_a_file(path: Path) -> None:
    remove(path)
    path.write_bytes(b"x")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("path", "spoil", "reason"),
    [
        ("s/a/events/_delta_log", _remove, "s/a/events"),
        ("s/a", _become_a_file, "a file is in the place"),
        ("s/a/events", _become_a_file, "s/a/events"),
        ("s/_scope", _remove, "the scope's index is lost"),
        ("s/_scope/_delta_log", _remove, "lost its log"),
        ("s/_reader_groups/g/_delta_log", _remove, "lost its log"),
        ("_settings/_delta_log", _remove, "lost its log"),
        ("_pravega_spark.json", _cut, "_pravega_spark.json"),
    ],
)
def test_what_is_lost_is_damage(
    kinds: Path,
    path: str,
    spoil: Callable[[Path], None],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    StreamManager(kinds).update_settings(grace="1 hour")
    assert fsck(kinds, capsys) == (0, "")
    spoil(kinds / path)
    status, error = fsck(kinds, capsys)
    assert status == 1
    assert reason in error


@pytest.mark.parametrize("pattern", ["_delta_log/*0.json", "data/**/*.parquet"])
def test_torn_settings_are_damage_and_a_torn_record_of_maintenance_is_said(
    root: Path, pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(root)
    manager.update_settings(grace="1 hour")
    manager.maintain()
    _cut(sorted((root / "_maintenance").glob(pattern))[-1])
    status, error = fsck(root, capsys)
    assert status == 0
    assert "_maintenance" in error
    assert "it is written again" in error
    _cut(sorted((root / "_settings").glob(pattern))[-1])
    assert fsck(root, capsys)[0] == 1


def test_torn_state_file_is_said_and_one_beyond_the_newest_commit_is_damage(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = open_stream(StreamManager(root).root, "s/a").log
    newest = log.refresh()
    assert newest is not None
    maintain(log.reader, newest.version)
    state = root / "s/a/events/_pravega/state" / f"{newest.version:020d}.json"
    whole = state.read_bytes()
    _cut(state)
    status, error = fsck(root, capsys)
    assert status == 0
    assert "it is torn, and not used" in error
    state.write_bytes(whole)
    for version in range(newest.version - 3, newest.version + 1):
        commit(root, version).unlink()
    (root / "s/a/events/_pravega/latest.json").unlink()
    status, error = fsck(root, capsys)
    assert status == 1
    assert "commits are lost" in error or "missing" in error


def test_torn_checkpoint_is_damage_until_the_daily_listing_of_a_sweep(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(root)
    log = open_stream(manager.root, "s/a").log
    newest = log.refresh()
    assert newest is not None
    maintain(log.reader, newest.version, checkpoint=True)
    (checkpoint,) = (root / "s/a/events/_delta_log").glob("*.checkpoint.parquet")
    _cut(checkpoint)
    status, error = fsck(root, capsys)
    assert status == 1
    assert "the newest checkpoint is damaged" in error
    manager.sweep_stream("s/a", grace=0)
    assert fsck(root, capsys) == (0, "")


def test_killed_creation_and_foreign_folder_are_no_alarm(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scope = Scope(root_of(StreamManager(root)).store, "s")
    scope.claim("half", 1, StreamConfiguration())
    (root / "notes").mkdir()
    (root / "notes" / "x.txt").write_text("x")
    (root / "notes" / "deep").mkdir()
    status, said = fsck(root, capsys)
    assert status == 0
    assert said.startswith("s/half: s/half: the index lists it, it has no object, and nothing else")
    assert main(["fsck", "s/half", "--root", str(root)]) == 0


def test_chunks_without_a_key_service_are_not_checked_and_a_refused_key_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(file_kms.VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv(KMS_VARIABLE, file_kms.FACTORY)
    set_kms(None)  # other tests have left a client of theirs
    keys, root = MasterKeys(tmp_path / "keys.json"), tmp_path / "root"
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(encryption=EncryptionPolicy("first")))
    with manager.create_writer("s/a") as writer:
        writer.write_event(b"x").result()

    def deep() -> Integrity:
        set_kms(None)  # no key is in memory, as in another process
        (found,) = (f for f in check_root(root_of(manager).store, deep=True) if f.name == "s/a")
        return found

    try:
        assert (deep().is_sound, deep().is_complete) == (True, True)
        keys.set(first="no longer the secret")
        (damage,) = deep().damage
        assert "another key by the name 'first'" in damage.reason
        assert deep().is_complete
        keys.path.unlink()  # the service does not answer
        assert (deep().is_sound, deep().is_complete) == (True, False)
        monkeypatch.delenv(KMS_VARIABLE)
        set_kms(None)
        status, error = fsck(root, capsys, "--deep")
        assert status == 1
        assert "not checked: " in error
        assert "no KMS" in error
        assert fsck(root, capsys) == (0, ""), "sizes need no key"
    finally:
        set_kms(None)


def test_manifests_and_chunks_of_open_transactions_are_checked(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(root)
    with manager.create_transactional_writer("s/a") as writer:
        transaction = writer.begin_transaction()
        transaction.write_event(b"x", routing_key="k")
        transaction.flush()
        assert fsck(root, capsys) == (0, "")
        (chunk,) = (root / "s/a/events/data").glob("t-*/*.parquet")
        held = chunk.read_bytes()
        chunk.unlink()
        status, error = fsck(root, capsys)
        assert status == 1
        assert f"the file of open transaction {transaction.id} of stream s/a is missing" in error
        chunk.write_bytes(held)
        manifest = root / f"s/a/transactions/{transaction.id}/00000000.json"
        kept = manifest.read_bytes()
        manifest.write_bytes(kept.replace(b"write", b"wrute"))
        status, error = fsck(root, capsys)
        assert status == 1
        assert "manifest 0" in error
        assert "is torn or was modified" in error
        manifest.write_bytes(kept)
        transaction.abort()
    assert fsck(root, capsys) == (0, "")


def test_archived_records_are_checked(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = open_stream(StreamManager(root).root, "s/a")
    archive(stream, stream.view().life, 1, "pravega.writer.gone", {"pravega.writer.gone": "[1]"})
    (archived,) = (root / "s/a/events/_pravega/moved").rglob("*.json")
    assert fsck(root, capsys) == (0, "")
    archived.write_bytes(archived.read_bytes().replace(b"gone", b"lost"))
    status, error = fsck(root, capsys)
    assert status == 1
    assert archived.name in error
    assert "is torn or was changed" in error


def test_a_check_reads_the_rows_of_the_indexes_once(tmp_path: Path) -> None:
    """However many names are given; of a whole root it also checks each index as a log."""
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    names = [f"s/t{number}" for number in range(8)]
    for name in names:
        manager.create_stream(name)
    wait_for_maintenance()

    def asked(*names: str) -> int:
        spy = Spy(LocalStore(str(tmp_path)))
        assert all(found.is_sound for found in check_root(spy, names))
        return sum("s/_scope/_delta_log/00" in key for _, key in spy.calls)

    once = asked(names[0])
    assert once == asked(*names)
    assert asked() < 4 * once, "each commit three times by the check, and once for its rows"
