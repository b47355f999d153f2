"""Byte readers of a stream that has large events, too: their payloads are bytes in order."""

from __future__ import annotations

import io

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.errors import CorruptChunk, DataLoss, SegmentTruncated
from pravega_spark.manager import StreamManager, manager_over, root_of
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.large_streams import WINDOW, lower_limits, objects
from tests.harness.spy_store import Spy

S = "s/bytes"
LARGE = bytes(n * 7 % 251 for n in range(5 * WINDOW + 11))
BEFORE, AFTER = b"blocks before, ", b" and blocks after"
ALL = BEFORE + LARGE + AFTER


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_limits(monkeypatch)


def filled() -> StreamManager:
    """Return a manager of a stream of blocks, a large event, and blocks."""
    manager = manager_of(FakeRuntime())
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    with manager.create_byte_writer(S) as writer:
        writer.write(BEFORE)
    with manager.create_writer(S, large_events=True) as events:
        events.write_event(LARGE, "key")
    with manager.create_byte_writer(S) as writer:
        assert writer.tell() == len(BEFORE) + len(LARGE)
        writer.write(AFTER)
    return manager


def test_the_payload_stands_between_the_blocks_around_it() -> None:
    manager = filled()
    with manager.create_byte_reader(S, follow=False) as reader:
        assert reader.read() == ALL
        expected = io.BytesIO(ALL)
        for at in (0, len(BEFORE), len(BEFORE) + WINDOW - 1, len(ALL) - len(AFTER), 3 * WINDOW):
            reader.seek(at)
            expected.seek(at)
            for size in (1, WINDOW, 7):
                assert reader.read(size) == expected.read(size), at


def test_a_read_fetches_windows_and_a_seek_only_those_it_needs() -> None:
    manager = filled()
    (key,) = objects(root_of(manager).store, S)
    sizes: list[int] = []

    def note(name: str, first: str) -> None:
        if name == "get_range" and first == key:
            sizes.append(1)

    spy = Spy(root_of(manager).store)
    spy.hook = note
    reader_of = manager_over(spy, FakeRuntime())
    with reader_of.create_byte_reader(S, follow=False) as reader:
        reader.seek(len(BEFORE) + 3 * WINDOW + 5)
        assert reader.read(10) == LARGE[3 * WINDOW + 5 :][:10]
        assert len(sizes) == 1
        reader.seek(0)
        assert reader.read() == ALL
        assert len(sizes) == 1 + 6


def test_a_reader_that_has_read_past_a_payload_reads_what_is_written_later() -> None:
    manager = filled()
    with manager.create_byte_reader(S, timeout=0) as reader:
        reader.seek(len(BEFORE) + 1)
        assert reader.read() == ALL[len(BEFORE) + 1 :]
        with manager.create_byte_writer(S) as writer:
            writer.write(b"later")
        assert reader.read() == b"later"


def test_a_truncation_inside_a_payload_is_exact() -> None:
    manager = filled()
    head = len(BEFORE) + WINDOW + 3
    with manager.create_byte_writer(S) as writer:
        writer.truncate_before(head)
        assert writer.fetch_head_offset() == head
    with manager.create_byte_reader(S, follow=False) as reader:
        assert reader.tell() == head
        assert reader.read() == ALL[head:]
        reader.seek(head - 1)
        with pytest.raises(SegmentTruncated) as raised:
            reader.read(1)
        assert raised.value.head_offset == head
    (event, *_) = manager.read(S)
    assert event.data == LARGE


def test_a_payload_that_is_truncated_during_its_read_is_named_so() -> None:
    manager = filled()
    (key,) = objects(root_of(manager).store, S)
    reader = manager.create_byte_reader(S, follow=False)
    reader.seek(len(BEFORE))
    assert reader.read(3) == LARGE[:3]
    with manager.create_byte_writer(S) as writer:
        writer.truncate_before(len(BEFORE) + len(LARGE) + 2)
    root_of(manager).store.delete([key])  # as a sweep does later
    with pytest.raises(SegmentTruncated) as raised:
        reader.read(len(LARGE))
    assert raised.value.head_offset == len(BEFORE) + len(LARGE) + 2
    reader.seek(raised.value.head_offset)
    assert reader.read() == AFTER[2:]


def test_a_damaged_or_lost_payload_is_never_bytes() -> None:
    manager = filled()
    (key,) = objects(root_of(manager).store, S)
    at = 2 * WINDOW
    root_of(manager).store.put(key, LARGE[:at] + b"\xff" + LARGE[at + 1 :])
    with manager.create_byte_reader(S, follow=False) as reader:
        reader.seek(len(BEFORE) + WINDOW)
        assert reader.read(WINDOW) == LARGE[WINDOW:at]
        with pytest.raises(CorruptChunk, match="other bytes"):
            reader.read(1)
        root_of(manager).store.delete([key])
        with pytest.raises(DataLoss, match="does not exist"):
            reader.read(1)
        reader.seek(len(BEFORE) + len(LARGE))
        assert reader.read() == AFTER
