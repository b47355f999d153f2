"""Byte streams against io.BytesIO: whatever is written, truncated, merged and read in any order.

Every other stream is encrypted, which changes nothing but that it takes no large events.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_spark.byte_streams import positions, writer
from pravega_spark.byte_streams import reader as byte_stream_reader
from pravega_spark.config.encryption import EncryptionPolicy
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunks import encoder
from pravega_spark.engine.key_management import KMS_VARIABLE, set_kms
from pravega_spark.errors import EventTooLarge, SegmentTruncated
from pravega_spark.manager import StreamManager, root_of
from tests.harness import file_kms
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.file_kms import MasterKeys
from tests.harness.large_streams import THRESHOLD, lower_limits
from tests.harness.tiers import sized

S = "s/bytes"
BLOCK = 64


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, windows and row groups so small that a few hundred bytes have many of them."""
    monkeypatch.setattr(writer, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(writer, "_PART_BYTES", 4 * BLOCK)
    monkeypatch.setattr(byte_stream_reader, "WINDOW_BYTES", 2 * BLOCK)
    monkeypatch.setattr(positions, "_SMALL_CHUNK_BYTES", 2 * BLOCK)
    monkeypatch.setattr(encoder, "ROW_GROUP_BYTES", 3 * BLOCK)
    lower_limits(monkeypatch)


@pytest.fixture(autouse=True)
def kms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A KMS that knows the master key of encrypted streams."""
    MasterKeys(tmp_path / "keys.json")
    monkeypatch.setenv(file_kms.VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv(KMS_VARIABLE, file_kms.FACTORY)
    set_kms(None)
    yield
    set_kms(None)


class Model:
    """A byte stream, and what it should hold."""

    def __init__(self, is_encrypted: bool) -> None:
        self.runtime = FakeRuntime()
        self.manager = manager_of(self.runtime)
        self.manager.create_scope("s")
        self.is_encrypted = is_encrypted
        policy = EncryptionPolicy("first") if is_encrypted else None
        one_segment = StreamConfiguration(ScalingPolicy.fixed(1), encryption=policy)
        self.manager.create_stream(S, one_segment)
        self.held = io.BytesIO()
        """All bytes since the creation, truncated ones included."""
        self.head = 0
        self.next_byte = 0
        self.writer = self.manager.create_byte_writer(S)
        self.reader = self.manager.create_byte_reader(S, timeout=0)

    @property
    def size(self) -> int:
        return len(self.held.getvalue())

    def write(self, size: int, kind: int) -> None:
        data = bytes((self.next_byte + n) * 7 % 251 for n in range(size))
        self.next_byte += size
        given: Any = (data, bytearray(data), memoryview(data))[kind]
        assert self.writer.write(given) == size
        if kind == 1:
            given[:] = bytes(size)  # the caller may use its buffer again
        self.held.seek(0, 2)
        self.held.write(data)
        assert self.writer.tell() == self.size

    def flush(self) -> None:
        self.writer.flush()
        assert self.writer.fetch_tail_offset() == self.size
        assert self.writer.acknowledged_bytes <= self.size

    def event(self, size: int) -> None:
        """Another program writes an event, maybe a large one: its payload is part of the bytes."""
        self.flush()
        data = bytes(n * 11 % 241 for n in range(size))
        with self.manager.create_writer(S, large_events=True) as events:
            if self.is_encrypted and size > THRESHOLD:
                with pytest.raises(EventTooLarge):
                    events.write_event(data, "key")
                return
            events.write_event(data, "key")
        self.held.seek(0, 2)
        self.held.write(data)
        self.next_byte += size
        self.reopen_writer()

    def reopen_writer(self) -> None:
        self.writer.close()
        self.writer = self.manager.create_byte_writer(S)
        assert self.writer.tell() == self.size

    def reopen(self) -> None:
        """Go on as another process, with nothing in memory."""
        self.writer.close()
        self.reader.close()
        root = root_of(self.manager).store.url
        self.manager = StreamManager(root, runtime=self.runtime)
        self.writer = self.manager.create_byte_writer(S)
        self.reader = self.manager.create_byte_reader(S, timeout=0)
        assert self.reader.tell() == self.head

    def truncate(self, part: float) -> None:
        self.flush()
        at = self.head + int((self.size - self.head) * part)
        self.writer.truncate_before(at)
        self.head = at
        assert self.reader.fetch_head_offset() == at
        self.writer.truncate_before(max(0, at - 10))
        assert self.writer.fetch_head_offset() == at

    def maintain(self, seconds: int) -> None:
        self.flush()  # a sweep with so short a grace deletes what is staged
        self.runtime.sleep(seconds)
        self.manager.compact_stream(S, target="16 KiB", head_after="1 s")
        self.manager.sweep_stream(S, grace="1 s", retain="1 s")

    def read(self, part: float, size: int) -> None:
        self.flush()
        at = int(self.size * part)
        assert self.reader.seek(at) == at
        if at < self.head and size:
            with pytest.raises(SegmentTruncated) as raised:
                self.reader.read(size)
            assert raised.value.head_offset == self.head
            at = self.reader.seek(self.head)
        self.held.seek(at)
        wanted = self.held.read(size)
        if size and not wanted:
            assert self.reader.read(size) is None
        else:
            assert self.reader.read(size) == wanted
        assert self.reader.tell() == at + len(wanted)
        assert self.reader.available() == self.size - self.reader.tell()

    def read_on(self, size: int) -> None:
        at = max(self.reader.tell(), self.head)
        self.reader.seek(at)
        self.flush()
        assert self.reader.available() == self.size - at
        target = bytearray(size)
        count = self.reader.readinto(target)
        self.held.seek(at)
        wanted = self.held.read(size)
        assert (count or 0) == len(wanted)
        assert target[: len(wanted)] == wanted

    def finish(self) -> None:
        self.writer.close_and_seal()
        held = self.held.getvalue()
        with self.manager.create_byte_reader(S) as reader:
            assert reader.read() == held[self.head :]
            assert reader.read() == b""
            assert reader.seek(-min(9, len(held) - self.head), 2) <= len(held)
            assert reader.read() == held[self.head :][-9:]
        events = b"".join(event.data for event in self.manager.read(S))
        assert events.endswith(held[self.head :])
        assert len(events) <= len(held)


PARTS = st.floats(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 5 * BLOCK), st.integers(0, 2)),
    st.tuples(st.just("write"), st.integers(0, 30 * BLOCK), st.integers(0, 2)),
    st.tuples(st.just("event"), st.integers(0, 12 * BLOCK)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("reopen_writer")),
    st.tuples(st.just("truncate"), PARTS),
    st.tuples(st.just("maintain"), st.integers(1, 300)),
    st.tuples(st.just("read"), PARTS, st.integers(0, 6 * BLOCK)),
    st.tuples(st.just("read_on"), st.integers(0, 6 * BLOCK)),
)


@pytest.mark.long
@settings(max_examples=sized(20, 2_000, "BYTE_EXAMPLES"))
@given(st.booleans(), st.lists(STEPS, max_size=25))
def test_reads_are_those_of_a_file_with_the_same_bytes(
    is_encrypted: bool, steps: list[tuple[Any, ...]]
) -> None:
    model = Model(is_encrypted)
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
    model.finish()
