"""Streams whose events are encrypted at rest: no plain byte on disk; errors name the key."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark import (
    CompactionResult,
    EncryptionPolicy,
    RetentionPolicy,
    ScalingPolicy,
    SegmentRange,
    StreamConfiguration,
    StreamCut,
    StreamManager,
    set_kms,
)
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import encode_events
from pravega_spark.engine.chunks.encoder import ChunkEncoder
from pravega_spark.engine.chunks.reader import read_range
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.key_management import KMS_VARIABLE
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import reroute
from pravega_spark.errors import (
    CorruptChunk,
    EventTooLarge,
    InvalidConfiguration,
    InvalidInput,
    KeyUnavailable,
    KmsUnavailable,
)
from pravega_spark.manager import root_of
from tests.harness import file_kms
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.file_kms import FileKms, MasterKeys
from tests.harness.offering import commit_offers, offer

S = "s/t"
MARK = b"MARKER"
TWO_SEGMENTS = ScalingPolicy.fixed(2)


def encrypted(key: str = "first", **fields: Any) -> StreamConfiguration:
    return StreamConfiguration(encryption=EncryptionPolicy(key), **fields)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MasterKeys]:
    monkeypatch.setenv(file_kms.VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv(KMS_VARIABLE, file_kms.FACTORY)
    set_kms(None)
    FileKms.calls.clear()
    yield MasterKeys(tmp_path / "keys.json")
    set_kms(None)


@pytest.fixture
def root(tmp_path: Path, keys: MasterKeys) -> Path:
    return tmp_path / "root"


@pytest.fixture
def manager(root: Path) -> StreamManager:
    made = StreamManager(root, runtime=FakeRuntime())
    made.create_scope("s")
    made.create_stream(S, encrypted(scaling=TWO_SEGMENTS))
    return made


def forget() -> None:
    """Have no key in memory, as after the lifetime of the cache, or in another process."""
    set_kms(None)


def data_of(manager: StreamManager, name: str = S) -> list[bytes]:
    return sorted(event.data for event in manager.read(name))


def with_mark(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if MARK in path.read_bytes()]


def compact(manager: StreamManager, name: str) -> CompactionResult:
    root_of(manager).runtime.sleep(100)  # younger chunks are for readers at the tail
    return manager.compact_stream(name, target="16 KB")


def write(manager: StreamManager, *texts: bytes, key: str | None = "MARKER-key") -> list[bytes]:
    with manager.create_writer(S) as writer:
        for text in texts:
            writer.write_event(MARK + text, key).result()
    return [MARK + text for text in texts]


def test_the_log_of_an_encrypted_typed_stream_has_no_values(
    manager: StreamManager, root: Path
) -> None:
    columns = pa.schema([("word", pa.string()), ("n", pa.int64())])
    manager.create_stream("s/typed", encrypted(schema=columns))
    with manager.create_writer("s/typed") as writer:
        writer.write_event({"word": MARK.decode(), "n": 31_415_926}).result()
    (word,) = [event.data["word"] for event in manager.read("s/typed")]
    assert word == MARK.decode()
    assert with_mark(root / "s/typed") == []
    commits = sorted((root / "s/typed/events/_delta_log").glob("*.json"))
    assert not [path for path in commits if b"31415926" in path.read_bytes()]
    texts = "".join(path.read_text() for path in commits)
    assert '"delta.dataSkippingStatsColumns":"timestamp"' in texts
    assert '\\"minValues\\":{\\"timestamp\\":\\"' in texts


def write_lone(manager: StreamManager) -> list[bytes]:
    return write(manager, b"1", b"2")


def write_many(manager: StreamManager) -> list[bytes]:
    texts = [MARK + b"%d" % n for n in range(100)]
    with manager.create_writer(S) as writer:
        writer.write_events(texts, "MARKER-key")
    return texts


def write_arrow_table(manager: StreamManager) -> list[bytes]:
    texts = [MARK + b"%d" % n for n in range(100)]
    names = [f"MARKER-{n % 7}" for n in range(100)]
    with manager.create_writer(S) as writer:
        writer.write_table(pa.table({"routing_key": names, "event": texts}))
    return texts


def commit_transaction(manager: StreamManager) -> list[bytes]:
    with (
        manager.create_transactional_writer(S) as writer,
        writer.begin_transaction() as transaction,
    ):
        for n in range(3):
            transaction.write_event(MARK + bytes([65 + n]) * (7 << 20), f"MARKER-{n}")
    return [MARK + bytes([65 + n]) * (7 << 20) for n in range(3)]


def commit_joint_transaction(manager: StreamManager) -> list[bytes]:
    manager.create_stream("s/other", encrypted("second"))
    with (
        manager.create_joint_writer([S, "s/other"]) as writer,
        writer.begin_transaction() as transaction,
    ):
        transaction.write_event(S, MARK, "MARKER-key")
        transaction.write_event("s/other", MARK, "MARKER-key")
    assert data_of(manager, "s/other") == [MARK]
    return [MARK]


def write_over_a_scale(manager: StreamManager) -> list[bytes]:
    """The chunks of an open transaction are cut again after a split."""
    with manager.create_transactional_writer(S) as writer:
        transaction = writer.begin_transaction()
        texts = [MARK + b"%d" % n for n in range(50)]
        for n, text in enumerate(texts):
            transaction.write_event(text, f"MARKER-{n}")
        transaction.flush()
        manager.scale_stream(S, seal=[0], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
        transaction.commit()
    return texts


def merge_chunks(manager: StreamManager) -> list[bytes]:
    texts = write(manager, *(b"%d" % n for n in range(20)))
    assert compact(manager, S).files_after < 20
    return texts


def share_commits(manager: StreamManager) -> list[bytes]:
    """Two writers of other processes store offers; a third one commits them without a key."""
    stream = StreamLog(root_of(manager).store, S)
    stream.view()
    for n in range(2):
        offer(stream, [("MARKER-key", MARK + b"%d-%d" % (n, k)) for k in range(3)])
    forget()
    commit_offers(stream)
    assert sum(FileKms.calls.values()) == 1
    return [MARK + b"%d-%d" % (n, k) for n in range(2) for k in range(3)]


def cut_again_after_a_scale(manager: StreamManager) -> list[bytes]:
    """A batch was staged for a segment that was split before its commit."""
    stream = StreamLog(root_of(manager).store, S)
    view = stream.view()
    texts = [MARK + b"%d" % n for n in range(50)]
    events = encode_events([f"MARKER-{n}" for n in range(50)], [1] * 50, texts)
    folder = version_folder(view.version)
    for segment_id, rows in split(events, Router(view.active.segments)):
        target = stream.store, stream.path, folder, segment_id
        staged = stage(*target, rows, name=f"batch-{segment_id}", key=stream.chunk_key)
        if segment_id == 0:
            manager.scale_stream(S, seal=[0], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
            assert len(reroute(stream, stream.view(), view.version, staged, {})) == 2
    return []


PATHS: list[Callable[[StreamManager], list[bytes]]] = [
    write_lone,
    write_many,
    write_arrow_table,
    commit_transaction,
    commit_joint_transaction,
    write_over_a_scale,
    merge_chunks,
    share_commits,
    cut_again_after_a_scale,
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_events_and_keys_are_read_back_and_nothing_on_disk_shows_them(
    path: Callable[[StreamManager], list[bytes]], manager: StreamManager, root: Path
) -> None:
    texts = path(manager)
    forget()
    other = StreamManager(root)
    assert data_of(other) == sorted(texts)
    assert all((event.routing_key or "").startswith("MARKER") for event in other.read(S))
    assert with_mark(root) == []
    assert list(root.rglob("*.parquet"))


def test_byte_stream_is_encrypted(manager: StreamManager, root: Path) -> None:
    manager.create_stream("s/bytes", encrypted())
    data = MARK * 1_000_000
    with manager.create_byte_writer("s/bytes") as writer:
        writer.write(data)
    with manager.create_byte_reader("s/bytes") as reader:
        assert reader.read(len(data)) == data
        reader.seek(3_000_001)
        assert reader.read(10) == data[3_000_001:3_000_011]
    assert with_mark(root) == []


def test_backup_holds_the_encrypted_bytes_and_restores_them(
    manager: StreamManager, tmp_path: Path
) -> None:
    texts = write_many(manager)
    set_kms(_refused)  # a backup needs no key
    manager.backup(str(tmp_path / "copy"))
    assert with_mark(tmp_path / "copy") == []
    restored = StreamManager(tmp_path / "copy")
    restored.restore()
    set_kms(None)
    assert data_of(restored) == sorted(texts)


def _refused(connection: object) -> object:
    raise AssertionError("no key is needed")


def test_what_needs_no_event_needs_no_key(manager: StreamManager) -> None:
    write_many(manager)
    middle = manager.tail(S)
    write(manager, b"later")
    set_kms(_refused)
    assert manager.stream_info(S).size_bytes
    stream = StreamLog(root_of(manager).store, S)
    segment_id, end = next(iter(middle.positions.items()))
    stream.view()
    rng = SegmentRange(S, 1, segment_id, 0, end)
    refs = stream.chunks(rng)
    columns = ["offset", "timestamp"]
    for batch in read_range(stream.store, stream.path, refs, rng, columns=columns):
        assert batch.num_rows
    manager.scale_stream(S, seal=[0], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
    assert manager.truncate_stream(S, middle)
    manager.update_stream(S, retention=RetentionPolicy.by_time("1 s"))
    manager.retention(S).run()
    manager.sweep_stream(S, grace="1 minute", retain="0 s")
    with pytest.raises(KmsUnavailable):
        data_of(manager)


def test_kms_is_asked_once_for_many_chunks(manager: StreamManager) -> None:
    write(manager, *(b"%d" % n for n in range(20)))
    forget()
    assert len(data_of(manager)) == 20
    assert FileKms.calls == {("wrap", "first"): 1, ("unwrap", "first"): 1}


def test_new_chunks_take_a_new_key_and_old_ones_keep_theirs(
    manager: StreamManager, keys: MasterKeys
) -> None:
    old = write(manager, b"old")
    assert manager.update_stream(S, encryption=EncryptionPolicy("second"))
    assert not manager.update_stream(S, encryption=EncryptionPolicy("second"))
    middle = manager.tail(S)
    new = write(manager, b"new")
    forget()
    assert data_of(manager) == sorted(old + new)
    keys.set(second="another secret")
    forget()
    assert [event.data for event in manager.read(S, middle)] == new
    with pytest.raises(KeyUnavailable) as error:
        data_of(manager)
    assert type(error.value) is KeyUnavailable
    assert (error.value.key, error.value.stream) == ("first", S)
    (chunk,) = [p for p in error.value.url.split("/") if p.endswith(".parquet")]  # type: ignore[union-attr]
    assert f"chunk data/v00000000000000000000/{chunk}" in str(error.value)
    assert "refuses the key 'first'" in str(error.value)


def write_under_two_keys(manager: StreamManager) -> None:
    """Four chunks with the first key, and four with the second one."""
    manager.create_stream("s/one", encrypted())
    for key in ("first", "second"):
        manager.update_stream("s/one", encryption=EncryptionPolicy(key))
        with manager.create_writer("s/one") as writer:
            for n in range(4):
                writer.write_event(MARK + b"%d" % n).result()
    manager.seal_stream("s/one")  # so that one run merges all that is small


def test_merged_chunks_have_the_new_key(manager: StreamManager, keys: MasterKeys) -> None:
    write_under_two_keys(manager)
    assert compact(manager, "s/one").files_after == 1
    keys.set(second="another secret")
    forget()
    assert len(data_of(manager, "s/one")) == 8


def test_chunks_without_a_key_are_left_alone(manager: StreamManager, keys: MasterKeys) -> None:
    write_under_two_keys(manager)
    keys.set(second="another secret")  # the first one is destroyed
    forget()
    result = compact(manager, "s/one")
    assert (result.files_after, len(result.damaged)) == (5, 4)
    assert all("refuses the key 'first'" in range_.reason for range_ in result.damaged)
    with pytest.raises(KeyUnavailable, match="first"):
        data_of(manager, "s/one")
    cut = StreamCut("s/one", 1, {0: 4})
    assert len(list(manager.read("s/one", cut))) == 4


def test_compaction_without_a_kms_says_so_and_reads_each_range_once(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_under_two_keys(manager)
    monkeypatch.delenv(KMS_VARIABLE)
    forget()
    result = compact(manager, "s/one")
    assert (result.ranges, result.damaged) == (0, ())
    assert ["no KMS" in range_.reason for range_ in result.skipped] == [True]


def test_process_without_a_kms_is_told_how_to_get_one(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(manager, b"1")
    monkeypatch.delenv(KMS_VARIABLE)
    forget()
    with pytest.raises(KmsUnavailable, match=r"s/t/events/data.*no KMS.*set_kms.*PRAVEGA"):
        data_of(manager)
    with (
        pytest.raises(KmsUnavailable, match="stream s/t cannot be written") as error,
        manager.create_writer(S) as writer,
    ):
        writer.write_event(b"2").result()
    assert (error.value.stream, error.value.key) == (S, "first")
    set_kms(file_kms.client)
    assert len(data_of(manager)) == 1


def test_wrong_key_is_told_from_damage(
    manager: StreamManager, keys: MasterKeys, root: Path
) -> None:
    write(manager, b"1", b"2")
    keys.set(first="no longer the secret")
    forget()
    with pytest.raises(KeyUnavailable, match="another key by the name 'first'"):
        data_of(manager)
    keys.set(first="a secret")
    forget()
    chunk = sorted((root / S / "events/data").rglob("*.parquet"))[0]
    data = bytearray(chunk.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    data[-footer - 20] ^= 1  # in the page of the event
    chunk.write_bytes(data)
    with pytest.raises(CorruptChunk, match=chunk.name):
        data_of(manager)


def test_stream_stays_encrypted_or_plain_for_its_life(manager: StreamManager) -> None:
    manager.create_stream("s/plain")
    with pytest.raises(InvalidConfiguration, match="s/t is encrypted, and stays so"):
        manager.update_stream(S, StreamConfiguration())
    with pytest.raises(InvalidConfiguration, match="s/t must be an EncryptionPolicy, got None"):
        manager.update_stream(S, encryption=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="s/plain is not encrypted, and stays so"):
        manager.update_stream("s/plain", encryption=EncryptionPolicy("first"))
    assert manager.update_stream(S, encrypted("second", scaling=TWO_SEGMENTS, tags={"a"}))
    assert manager.stream_info(S).configuration.encryption == EncryptionPolicy("second")
    assert manager.stream_info("s/plain").configuration.encryption is None


def test_large_events_are_refused(manager: StreamManager, root: Path) -> None:
    with (
        pytest.raises(EventTooLarge, match="s/t is encrypted") as error,
        manager.create_writer(S, large_events=True) as writer,
    ):
        writer.write_event(MARK * 2_000_000)
    assert error.value.limit_bytes == 8 << 20
    with (
        manager.create_transactional_writer(S, large_events=True) as transactions,
        transactions.begin_transaction() as transaction,
        pytest.raises(EventTooLarge, match="s/t is encrypted"),
    ):
        transaction.write_event(MARK * 2_000_000)
    assert with_mark(root) == []


@pytest.mark.parametrize("key", ["", "a b", "arn:aws:kms", "x" * 257, "k\n", None, 7])
def test_name_of_a_key_is_checked(key: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="the name of a key has 1 to 256 letters"):
        EncryptionPolicy(key)


@pytest.mark.parametrize(
    "value", ["tests.harness.file_kms", "no.such.module:client", "tests.harness.file_kms:VARIABLE"]
)
def test_variable_that_names_no_factory_is_refused(
    value: str, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(manager, b"1")
    monkeypatch.setenv(KMS_VARIABLE, value)
    with pytest.raises(InvalidInput, match="PRAVEGA_SPARK_KMS must name"):
        data_of(manager)


def test_factory_that_fails_or_is_none_is_reported(manager: StreamManager) -> None:
    write(manager, b"1")
    set_kms(lambda connection: 1 / 0)
    with pytest.raises(KmsUnavailable, match="the KMS client cannot be made: ZeroDivisionError"):
        data_of(manager)
    with pytest.raises(InvalidInput, match="must be callable or None, got 'module:name'"):
        set_kms("module:name")  # type: ignore[arg-type]


def test_many_threads_read_and_write_while_the_kms_is_slow(manager: StreamManager) -> None:
    write(manager, *(b"%d" % n for n in range(8)))
    go = threading.Event()

    class Slow(FileKms):
        def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
            assert go.wait(120)
            return super().unwrap_key(wrapped_key, master_key_identifier)

    set_kms(lambda connection: Slow(Path(os.environ[file_kms.VARIABLE])))
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(data_of(manager)))) for _ in "1234"]
    for thread in threads:
        thread.start()
    written = write(manager, b"while readers wait")
    go.set()
    for thread in threads:
        thread.join(120)
    assert len(found) == 4
    assert min(found) >= 8
    assert set(written) <= set(data_of(manager))


def test_child_of_a_fork_has_its_own_cache(manager: StreamManager) -> None:
    texts = write(manager, b"1")
    assert data_of(manager) == texts
    child = os.fork()
    if child == 0:
        FileKms.calls.clear()
        os._exit(0 if _reads(root_of(manager).store.url, texts) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _reads(root: str, texts: list[bytes]) -> bool:
    return data_of(StreamManager(root)) == texts and FileKms.calls == {("unwrap", "first"): 1}


def test_statistics_of_routing_keys_are_in_no_file(
    manager: StreamManager, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for the mark finds what it is there to find: an encoder without a key."""
    encode = ChunkEncoder.__init__

    def plain(self: ChunkEncoder, *args: Any, key: object = None, **options: Any) -> None:
        encode(self, *args, **options)

    monkeypatch.setattr(ChunkEncoder, "__init__", plain)
    write(manager, b"1")
    assert with_mark(root)
