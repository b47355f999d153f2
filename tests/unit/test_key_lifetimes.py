"""How long a destroyed master key is used, and what a client or a file without a key leads to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pravega_spark import (
    EncryptionPolicy,
    SegmentRange,
    StreamConfiguration,
    StreamManager,
    set_kms,
)
from pravega_spark.engine import key_management
from pravega_spark.engine.chunks import encoder
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.open_file import open_chunk
from pravega_spark.engine.chunks.reader import read_together
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CorruptChunk, KeyUnavailable, KmsUnavailable
from pravega_spark.manager import root_of
from tests.harness import file_kms
from tests.harness.fake_runtime import FakeRuntime, SkippingRuntime
from tests.harness.file_kms import FileKms, MasterKeys

S, OTHER = "s/t", "s/other"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SkippingRuntime:
    """The clock of cached keys alone; pyarrow's own cache has the clock of the machine."""
    runtime = SkippingRuntime()
    monkeypatch.setattr(key_management, "SYSTEM", runtime)
    return runtime


@pytest.fixture
def keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SkippingRuntime
) -> Iterator[MasterKeys]:
    monkeypatch.setenv(file_kms.VARIABLE, str(tmp_path / "keys.json"))
    set_kms(file_kms.client, cache_lifetime="1 hour")
    FileKms.calls.clear()
    yield MasterKeys(tmp_path / "keys.json")
    set_kms(None)


@pytest.fixture
def manager(tmp_path: Path, keys: MasterKeys) -> StreamManager:
    made = StreamManager(tmp_path / "root", runtime=FakeRuntime())
    made.create_scope("s")
    for name in (S, OTHER):
        made.create_stream(name, StreamConfiguration(encryption=EncryptionPolicy("first")))
        write(made, name, b"old")
    return made


def write(manager: StreamManager, name: str, *texts: bytes) -> None:
    with manager.create_writer(name) as writer:
        writer.write_events(list(texts))


def data_of(manager: StreamManager, name: str = S) -> list[bytes]:
    return [event.data for event in manager.read(name)]


def chunks_of(manager: StreamManager) -> tuple[StreamLog, list[ChunkRef]]:
    stream = StreamLog(root_of(manager).store, S)
    stream.view()
    end = manager.tail(S).positions[0]
    return stream, list(stream.chunks(SegmentRange(S, 1, 0, 0, end)))


def test_destroyed_key_is_used_for_a_lifetime_at_most(
    manager: StreamManager, keys: MasterKeys, clock: SkippingRuntime
) -> None:
    """Old handles and new ones, streams that were read and those that were not."""
    writer = manager.create_writer(S)
    writer.write_event(b"by a writer that stays open").result()
    assert len(data_of(manager)) == 2
    keys.set(second="another secret")
    clock.skip(3_500)
    assert len(data_of(manager)) == 2
    assert data_of(manager, OTHER) == [b"old"]
    clock.skip(100)
    for opened in (manager, StreamManager(root_of(manager).store.url)):
        for name in (S, OTHER):
            with pytest.raises(KeyUnavailable, match="refuses the key 'first'") as error:
                data_of(opened, name)
            assert type(error.value) is KeyUnavailable
            with pytest.raises(KeyUnavailable, match=f"stream {name} cannot be written"):
                write(opened, name, b"new")
    with pytest.raises(KeyUnavailable, match=f"stream {S} cannot be written"):
        writer.write_event(b"new").result()
    writer.close()
    keys.set(first="a secret")
    assert len(data_of(manager)) == 2  # what was refused is not stored


def test_kms_is_asked_once_in_each_lifetime(manager: StreamManager, clock: SkippingRuntime) -> None:
    for lifetime in range(3):
        FileKms.calls.clear()
        for _ in range(3):
            data_of(manager)
            write(manager, S, b"new")
        asked = FileKms.calls["unwrap", "first"], FileKms.calls["wrap", "first"]
        # The first key-encryption key was wrapped before; each lifetime adds one of its own.
        assert asked == (lifetime + 1, min(lifetime, 1))
        clock.skip(3_600)


def test_lifetime_of_nothing_asks_for_each_file(manager: StreamManager) -> None:
    set_kms(file_kms.client, cache_lifetime=0)
    FileKms.calls.clear()
    assert data_of(manager) == data_of(manager) == [b"old"]
    assert FileKms.calls == {("unwrap", "first"): 2}


def test_file_that_is_open_is_read_to_its_end(
    manager: StreamManager, keys: MasterKeys, clock: SkippingRuntime
) -> None:
    texts = [b"%d" % n for n in range(20)]
    write(manager, S, *texts)
    stream, refs = chunks_of(manager)
    with open_chunk(stream.store, stream.path, refs[-1]) as chunk:
        parts = chunk.rows(0, 20, ["event"], batch_rows=5)
        found = next(parts)[1].column("event").to_pylist()
        keys.set(second="another secret")
        clock.skip(3_600)
        with pytest.raises(KeyUnavailable):
            data_of(manager)
        for _, batch in parts:
            found += batch.column("event").to_pylist()
    assert found == texts


class Wrong(FileKms):
    """A client that has a bug."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> Any:
        return None

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> Any:
        return ["the secret"]


CLIENTS: list[tuple[Callable[[Any], Any], str, str]] = [
    (lambda _: Wrong(Path(os.environ[file_kms.VARIABLE])), "returned list", "returned NoneType"),
    (lambda _: None, "of type NoneType", "of type NoneType"),
    (lambda _: FileKms, "TypeError", "TypeError"),  # the class instead of an object
]


@pytest.mark.parametrize(("factory", "reads", "writes"), CLIENTS, ids=["wrong", "none", "class"])
def test_client_with_a_bug_is_named(
    factory: Callable[[Any], Any], reads: str, writes: str, manager: StreamManager
) -> None:
    set_kms(factory)
    with pytest.raises(KmsUnavailable, match=f"s/t/events/data/.*{reads}") as error:
        data_of(manager)
    assert (error.value.stream, error.value.key) == (S, "first")
    assert "the secret" not in str(error.value)
    with pytest.raises(KmsUnavailable, match=f"stream s/t cannot be written.*{writes}") as error:
        write(manager, S, b"new")
    assert (error.value.stream, error.value.key) == (S, "first")
    set_kms(file_kms.client)
    assert data_of(manager) == [b"old"]


@pytest.mark.parametrize("rows", [1, 1_000])
def test_encrypted_file_that_names_no_key_is_refused(
    rows: int, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow ends a process that asks for the metadata of its events."""
    monkeypatch.setattr(encoder, "KEY_NAME", b"another name")
    write(manager, S, *(b"%099d" % n for n in range(rows)))
    stream, refs = chunks_of(manager)
    ref = refs[-1]
    assert ref.rows == rows
    with pytest.raises(CorruptChunk, match=r"footer does not name their key.*Restore"):
        data_of(manager)
    data = stream.store.get(f"{stream.path}/{ref.path}")
    assert read_together([(ref, data)], ["event"]) is None
    assert read_together([(ref, data)], ["timestamp"]) is None
    earlier = replace(ref, footer="")  # as of a chunk whose footer no log has a digest of
    for fetched in (None, data):
        with pytest.raises(CorruptChunk):
            _read_all(stream, earlier, fetched)


def _read_all(stream: StreamLog, ref: ChunkRef, data: bytes | None) -> None:
    with open_chunk(stream.store, stream.path, ref, data) as chunk:
        assert list(chunk.parts()) == [(0, ref.rows, None)]
        list(chunk.rows(0, ref.rows, ["event"]))
