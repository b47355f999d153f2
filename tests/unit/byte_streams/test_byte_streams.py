"""Writers and readers of bytes as files, their waits, and what ends them."""

from __future__ import annotations

import csv
import gc
import io
import os
import pickle
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pravega_spark.byte_streams.positions import ByteSegment
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import (
    FencingTokenMismatch,
    HeldBySubscriber,
    IllegalState,
    InvalidInput,
    InvalidName,
    NoSuchStream,
    SegmentTruncated,
    StaleIdentity,
    StreamSealed,
    TruncatedData,
    WriterFenced,
)
from pravega_spark.manager import StreamManager, manager_over, root_of
from pravega_spark.values.limits import BLOCK_BYTES, PREFETCH_CHUNKS
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.page_examples import REPOSITORY
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized

S = "s/bytes"
ONE = StreamConfiguration(ScalingPolicy.fixed(1))


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    return filled(StreamManager(tmp_path / "root"))


def filled(made: StreamManager) -> StreamManager:
    made.create_scope("s")
    made.create_stream(S, ONE)
    return made


def bytes_of(manager: StreamManager) -> bytes:
    with manager.create_byte_reader(S, follow=False) as reader:
        return reader.read() or b""


# --------------------------------------------------------------------------------------- as files


def test_copyfileobj_copies_both_ways(manager: StreamManager, tmp_path: Path) -> None:
    data = os.urandom(3 * BLOCK_BYTES + 17)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(data)
    with source.open("rb") as file, manager.create_byte_writer(S) as writer:
        shutil.copyfileobj(file, writer)
    manager.seal_stream(S)
    with manager.create_byte_reader(S) as reader, target.open("wb") as copy:
        shutil.copyfileobj(reader, copy)
    assert target.read_bytes() == data


def test_buffers_and_text_of_io_wrap_both(manager: StreamManager) -> None:
    with io.TextIOWrapper(io.BufferedWriter(manager.create_byte_writer(S)), "utf-8") as text:
        rows = csv.writer(text)
        for number in range(1_000):
            rows.writerow([number, "größer"])
    manager.seal_stream(S)
    with io.TextIOWrapper(io.BufferedReader(manager.create_byte_reader(S)), newline="") as text:
        found = list(csv.reader(text))
    assert found == [[str(number), "größer"] for number in range(1_000)]


def test_pandas_writes_and_reads_csv(manager: StreamManager) -> None:
    frame = pd.DataFrame({"a": range(100), "b": ["x"] * 100})
    with manager.create_byte_writer(S) as writer:
        frame.to_csv(writer, index=False)
    with manager.create_byte_reader(S, follow=False) as reader:
        pd.testing.assert_frame_equal(pd.read_csv(reader), frame)


def test_parquet_and_zip_files_are_written_and_read_at_any_place(manager: StreamManager) -> None:
    table = pa.table({"a": range(300_000), "b": [f"text {n}" for n in range(300_000)]})
    with manager.create_byte_writer(S) as writer:
        pq.write_table(table, writer, row_group_size=50_000)
    with manager.create_byte_reader(S) as reader:
        assert pq.read_table(reader).equals(table)
        assert pq.ParquetFile(reader).read_row_group(3).equals(table.slice(150_000, 50_000))
    manager.create_stream("s/zip", ONE)
    with manager.create_byte_writer("s/zip") as writer, zipfile.ZipFile(writer, "w") as packed:
        packed.writestr("one.txt", b"1" * 100_000)
        packed.writestr("two.txt", b"2" * 100_000)
    with (
        manager.create_byte_reader("s/zip", follow=False) as reader,
        zipfile.ZipFile(reader) as packed,
    ):
        assert packed.read("two.txt") == b"2" * 100_000


def test_seeks_and_skips_are_those_of_a_file(manager: StreamManager) -> None:
    with manager.create_byte_writer(S) as writer:
        writer.write(b"0123456789")
    with manager.create_byte_reader(S, timeout=0) as reader:
        assert (reader.readable(), reader.seekable(), reader.writable()) == (True, True, False)
        assert reader.seek(4) == 4
        assert reader.read(2) == b"45"
        assert reader.seek(-3, os.SEEK_CUR) == 3
        assert reader.read(1) == b"3"
        assert reader.seek(-2, os.SEEK_END) == 8
        assert (reader.available(), reader.read(0), reader.readinto(bytearray())) == (2, b"", 0)
        assert (reader.skip(1), reader.skip(5), reader.skip(5), reader.tell()) == (1, 1, 0, 10)
        assert reader.read(1) is None
        assert reader.readinto(bytearray(3)) is None
        assert reader.read() is None
        for wrong in ((-1, 0), (-11, 2), (0, 3), (1.5, 0)):
            with pytest.raises(InvalidInput):
                reader.seek(*wrong)
        with pytest.raises(io.UnsupportedOperation):
            reader.truncate(3)


def test_closed_ones_refuse_everything_and_none_pickles(manager: StreamManager) -> None:
    writer, reader = manager.create_byte_writer(S), manager.create_byte_reader(S)
    for one in (writer, reader):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(one)
        one.close()
        one.close()
        for call in (one.tell, one.fetch_head_offset, one.fetch_tail_offset):
            with pytest.raises(ValueError, match="closed"):
                call()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"x")
    with pytest.raises(ValueError, match="closed"):
        reader.read(1)


# ------------------------------------------------------------------------------------- at the tail


def test_readers_wait_for_bytes_and_end_with_the_seal(manager: StreamManager) -> None:
    writer, reader = manager.create_byte_writer(S), manager.create_byte_reader(S)
    found: list[bytes | None] = []
    thread = threading.Thread(target=lambda: found.extend(iter(lambda: reader.read(100), b"")))
    thread.start()
    for part in (b"one", b"two", b"three"):
        writer.write(part)
        writer.flush()
    writer.close_and_seal()
    thread.join(30)
    assert not thread.is_alive()
    assert b"".join(part for part in found if part is not None) == b"onetwothree"


def test_reads_time_out_or_do_not_wait() -> None:
    runtime = FakeRuntime()
    manager = filled(manager_of(runtime))
    reader = manager.create_byte_reader(S, timeout=5)
    before = runtime.monotonic()
    with pytest.raises(TimeoutError, match=r"byte 0 of stream s/bytes .* within 5 s"):
        reader.read(1)
    assert 5 <= runtime.monotonic() - before < 10
    before = runtime.monotonic()
    assert manager.create_byte_reader(S, timeout=0).read(1) is None
    assert runtime.monotonic() == before
    assert not reader.wait_for_data(3)
    with manager.create_byte_writer(S) as writer:
        writer.write(b"x")
    assert reader.wait_for_data(0)
    assert reader.read(1) == b"x"


def test_a_read_that_times_out_has_consumed_nothing() -> None:
    manager = filled(manager_of(FakeRuntime()))
    writer = manager.create_byte_writer(S)
    writer.write(b"12\n345")
    writer.flush()
    for call in (
        lambda reader: reader.read(),
        lambda reader: reader.readall(),
        lambda reader: reader.readlines(),
        list,
    ):
        reader = manager.create_byte_reader(S, timeout=5)
        with pytest.raises(TimeoutError, match="byte 6 of stream s/bytes"):
            call(reader)
        # An iteration has handed out the first line.
        assert reader.tell() in (0, 3)
        if reader.tell() == 0:
            assert reader.readline() == b"12\n"
        with pytest.raises(TimeoutError):
            reader.readline()
        assert reader.read(10) == b"345"
    reader = manager.create_byte_reader(S, timeout=5)
    buffered = io.BufferedReader(reader)
    for read in (buffered.read, buffered.readlines):
        start = buffered.tell()
        with pytest.raises(TimeoutError):
            read()
        assert buffered.seek(start) == 0
    assert buffered.read(6) == b"12\n345"
    late = manager.create_byte_reader(S, timeout=5)
    with pytest.raises(TimeoutError):
        late.read()
    writer.write(b"\n")
    writer.close_and_seal()
    assert late.read() == b"12\n345\n"


def test_a_reader_that_does_not_follow_ends_at_the_tail_of_its_beginning(
    manager: StreamManager,
) -> None:
    with manager.create_byte_writer(S) as writer:
        writer.write(b"first")
        writer.flush()
        reader = manager.create_byte_reader(S, follow=False)
        writer.write(b"second")
        writer.flush()
        assert (reader.read(), reader.read(1), reader.fetch_tail_offset()) == (b"first", b"", 5)
        assert reader.seek(-1, 2) == 4
        assert writer.fetch_tail_offset() == 11


# ------------------------------------------------------------------------------------ durability


def test_a_flush_is_durable_and_a_lone_write_needs_none(manager: StreamManager) -> None:
    writer = manager.create_byte_writer(S)
    writer.write(b"lone")
    with manager.create_byte_reader(S, timeout=30) as reader:
        assert reader.read(4) == b"lone"
    writer.write(b" and more")
    writer.flush()
    assert (writer.tell(), writer.acknowledged_bytes) == (13, 13)
    assert bytes_of(StreamManager(root_of(manager).store.url)) == b"lone and more"


def test_short_writes_share_blocks_while_a_commit_is_under_way(manager: StreamManager) -> None:
    with manager.create_byte_writer(S) as writer:
        for number in range(50_000):
            writer.write(b"%07d\n" % number)
    assert bytes_of(manager) == b"".join(b"%07d\n" % n for n in range(50_000))
    info = manager.stream_info(S)
    assert info.events < 2_500


def test_a_buffer_may_be_used_again_after_a_write(manager: StreamManager) -> None:
    buffer = bytearray(b"a" * (2 * BLOCK_BYTES + 5))
    with manager.create_byte_writer(S) as writer:
        writer.write(buffer)
        buffer[:] = b"b" * len(buffer)
        writer.write(memoryview(buffer)[::2])
    assert bytes_of(manager) == b"a" * len(buffer) + b"b" * (BLOCK_BYTES + 3)


def test_writes_wait_while_the_buffer_is_full(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pravega_spark.byte_streams.writer.BYTE_BUFFER_BYTES", 1)
    writer = manager.create_byte_writer(S)
    writer._queue._buffer_bytes = writer._queue.limit_bytes = 2 * BLOCK_BYTES
    most = 0
    for _ in range(20):
        writer.write(bytes(BLOCK_BYTES))
        most = max(most, writer._queue.accepted_bytes - writer._queue._completed_bytes)
    writer.close()
    assert most <= 3 * BLOCK_BYTES
    assert len(bytes_of(manager)) == 20 * BLOCK_BYTES


@pytest.mark.medium
def test_a_writer_that_is_dropped_or_whose_process_ends_loses_nothing(tmp_path: Path) -> None:
    manager = filled(StreamManager(tmp_path / "root"))
    writer = manager.create_byte_writer(S)
    for _ in range(1_000):
        writer.write(b"dropped\n")
    del writer
    gc.collect()
    with manager.create_byte_reader(S, timeout=30) as reader:
        found = b""
        while len(found) < 8_000:
            found += reader.read(8_000) or b""
    assert found == b"dropped\n" * 1_000
    code = (
        "import sys; from pravega_spark.manager import StreamManager\n"
        f"w = StreamManager(sys.argv[1]).create_byte_writer('{S}')\n"
        "for _ in range(1000): w.write(b'ended..\\n')\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "root")],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=True,
        timeout=120,
    )
    assert bytes_of(manager) == b"dropped\n" * 1_000 + b"ended..\n" * 1_000


# ---------------------------------------------------------------------------- writers beside others


def test_writers_interleave_whole_writes_and_learn_their_positions(manager: StreamManager) -> None:
    one, two = manager.create_byte_writer(S), manager.create_byte_writer(S)

    def write(writer: Any, letter: bytes) -> None:
        for _ in range(200):
            writer.write(letter * 10)
        writer.flush()

    threads = [
        threading.Thread(target=write, args=pair)
        for pair in ((one, b"a"), (two, b"b"), (one, b"c"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    data = bytes_of(manager)
    pieces = [data[n : n + 10] for n in range(0, len(data), 10)]
    assert {piece: pieces.count(piece) for piece in set(pieces)} == {
        letter * 10: 200 for letter in (b"a", b"b", b"c")
    }
    one.flush()
    two.flush()
    assert max(one.tell(), two.tell()) == len(data) == 6_000
    assert (one.acknowledged_bytes, two.acknowledged_bytes) == (4_000, 2_000)


def test_a_writer_id_continues_behind_its_durable_bytes_and_fences(manager: StreamManager) -> None:
    source = os.urandom(500_000)
    first = manager.create_byte_writer(S, "upload")
    first.write(source[:200_000])
    first.flush()
    with manager.create_byte_writer(S) as other:
        other.write(b"of another writer")
    second = manager.create_byte_writer(S, "upload")
    assert (second.writer_id, second.acknowledged_bytes) == ("upload", 200_000)
    assert second.tell() == 200_017
    first.write(b"late")
    with pytest.raises(WriterFenced):
        first.flush()
    second.write(source[second.acknowledged_bytes :])
    second.close()
    assert bytes_of(manager) == source[:200_000] + b"of another writer" + source[200_000:]
    with manager.create_writer(S, "upload") as events:
        assert events.last_event_number == 0, "ids of event writers are others"
    with pytest.raises(InvalidName):
        manager.create_byte_writer(S, "up load")


def test_a_fencing_token_stops_the_older_writer(manager: StreamManager) -> None:
    with pytest.raises(FencingTokenMismatch):
        manager.create_byte_writer(S, fencing_token="1")
    manager.fence(S, "1")
    for writer_id in (None, "mine"):
        with manager.create_byte_writer(S, writer_id, fencing_token="1") as writer:
            writer.write(b"first")
            writer.flush()
    older = manager.create_byte_writer(S, fencing_token="1")
    manager.fence(S, "2")
    older.write(b"late")
    with pytest.raises(FencingTokenMismatch):
        older.flush()
    older.close()
    assert bytes_of(manager) == b"firstfirst"
    with pytest.raises(InvalidInput):
        manager.create_byte_writer(S, fencing_token="x" * 37)


def test_events_are_payloads_to_byte_readers_and_blocks_are_events_to_others(
    manager: StreamManager,
) -> None:
    with manager.create_writer(S) as events:
        events.write_event(b"event", "key").result()
        events.write_event(b"").result()
    with manager.create_byte_writer(S) as writer:
        assert writer.tell() == 5
        writer.write(b"x" * (BLOCK_BYTES + 1))
    assert bytes_of(manager) == b"event" + b"x" * (BLOCK_BYTES + 1)
    found = [(event.routing_key, len(event.data)) for event in manager.read(S)]
    assert found[:2] == [("key", 5), (None, 0)]
    assert sum(length for _, length in found) == BLOCK_BYTES + 6
    assert manager.distance(S, "earliest", "latest")[1] == BLOCK_BYTES + 6


# ------------------------------------------------------------------------- truncation, seal, scale


def test_a_truncation_is_exact_inside_a_block(manager: StreamManager) -> None:
    writer, reader = manager.create_byte_writer(S), manager.create_byte_reader(S, timeout=0)
    data = os.urandom(3 * BLOCK_BYTES)
    writer.write(data)
    writer.flush()
    for position in (10, BLOCK_BYTES + 10, BLOCK_BYTES + 11, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES):
        writer.truncate_before(position)
        assert writer.fetch_head_offset() == reader.fetch_head_offset() == position
        reader.seek(position - 1)
        with pytest.raises(SegmentTruncated) as raised:
            reader.readinto(bytearray(4))
        assert isinstance(raised.value, TruncatedData)
        assert raised.value.head_offset == position
        copy = pickle.loads(pickle.dumps(raised.value))
        assert copy.head_offset == position
        reader.seek(position)
        assert reader.read() == (data[position:] or None)
        assert manager.create_byte_reader(S).tell() == position
    writer.truncate_before(0)
    assert writer.fetch_head_offset() == 3 * BLOCK_BYTES
    with pytest.raises(InvalidInput, match=r"durable bytes end at 3145728\. Flush first"):
        writer.truncate_before(3 * BLOCK_BYTES + 1)
    writer.write(b"next")
    writer.flush()
    assert reader.read() == b"next"


def test_an_event_truncation_past_the_byte_head_counts(manager: StreamManager) -> None:
    with manager.create_byte_writer(S) as writer:
        for _ in range(3):
            writer.write(b"0123456789")
            writer.flush()
        writer.truncate_before(5)
        assert [event.offset for event in manager.read(S)] == [0, 1, 2], "the event stays whole"
        manager.truncate_stream(S, f"{S}@1:0#0=2")
        assert writer.fetch_head_offset() == 20
        assert bytes_of(manager) == b"0123456789"


def test_a_truncation_waits_for_subscribers_of_whole_events(manager: StreamManager) -> None:
    with manager.create_byte_writer(S) as writer:
        for _ in range(2):
            writer.write(b"0123456789")
            writer.flush()
        manager.subscribe(S, "nightly", "earliest")
        writer.truncate_before(5)
        with pytest.raises(HeldBySubscriber):
            writer.truncate_before(15)
        assert writer.fetch_head_offset() == 5
        writer.truncate_before(15, past_subscribers=True)
        assert writer.fetch_head_offset() == 15


def test_concurrent_truncations_leave_the_highest_head(manager: StreamManager) -> None:
    with manager.create_byte_writer(S) as writer:
        for _ in range(20):
            writer.write(b"0123456789")
            writer.flush()
    positions = [n * 7 % 200 for n in range(40)]

    def truncate(part: list[int]) -> None:
        with StreamManager(root_of(manager).store.url).create_byte_writer(S) as own:
            for position in part:
                own.truncate_before(position)
                assert own.fetch_head_offset() >= position

    threads = [threading.Thread(target=truncate, args=(positions[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with manager.create_byte_reader(S) as reader:
        assert reader.tell() == max(positions)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_a_truncation_that_another_one_passes_during_its_look_up_does_nothing(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    with manager.create_byte_writer(S) as writer:
        for _ in range(3):
            writer.write(b"0123456789")
            writer.flush()
        look_up = ByteSegment._event_at

        def passed(self: ByteSegment, view: Any, position: int) -> tuple[int, int]:
            monkeypatch.undo()
            with StreamManager(root_of(manager).store.url).create_byte_writer(S) as other:
                other.truncate_before(25)
            if is_known:  # another thread of this process has read the newer head
                return look_up(self, self.view(), position)
            self.view()
            return look_up(self, view, position)

        monkeypatch.setattr(ByteSegment, "_event_at", passed)
        writer.truncate_before(5)
        assert ByteSegment._event_at is look_up, "the other truncation came in between"
        assert writer.fetch_head_offset() == 25


def test_a_reader_whose_chunk_is_truncated_and_swept_during_its_look_up_learns_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = FakeRuntime()
    manager = filled(manager_of(runtime))
    with manager.create_byte_writer(S) as writer:
        for _ in range(3):
            writer.write(bytes(5 << 20))  # whose footer a look-up reads
            writer.flush()
    reader = manager.create_byte_reader(S, timeout=0)
    look_up = ByteSegment.chunk_at

    def swept(self: ByteSegment, view: Any, position: int) -> Any:
        found = look_up(self, view, position)
        monkeypatch.undo()
        other = StreamManager(root_of(manager).store.url, runtime=runtime)
        with other.create_byte_writer(S) as truncating:
            truncating.truncate_before(10 << 20)
        runtime.sleep(10)
        assert other.sweep_stream(S, grace="1 s", retain="1 s")
        return found

    monkeypatch.setattr(ByteSegment, "chunk_at", swept)
    with pytest.raises(SegmentTruncated) as raised:
        reader.read(1)
    assert raised.value.head_offset == 10 << 20


def test_sealed_streams_take_no_bytes_and_may_be_truncated_to_their_end(
    manager: StreamManager,
) -> None:
    writer, late = manager.create_byte_writer(S), manager.create_byte_writer(S)
    writer.write(b"0123")
    assert writer.seal() is True
    assert writer.close_and_seal() is False
    with pytest.raises(StreamSealed):
        manager.create_byte_writer(S)
    late.truncate_before(4)
    late.write(b"x")
    with pytest.raises(StreamSealed):
        late.flush()
    with pytest.raises(StreamSealed):
        late.write(b"y")
    with manager.create_byte_reader(S) as reader:
        assert (reader.tell(), reader.read(1)) == (4, b"")


def test_streams_of_several_segments_are_refused_and_scales_end_both(
    manager: StreamManager,
) -> None:
    writer, reader = manager.create_byte_writer(S), manager.create_byte_reader(S)
    writer.write(b"before")
    writer.flush()
    writer.truncate_before(2)  # a head of segment 0 alone
    manager.scale_stream(S, [0], [(0, 0.5), (0.5, 1)])
    reader.seek(2)
    assert reader.read(100) == b"fore"
    with pytest.raises(IllegalState, match="was scaled: its bytes end at 6"):
        reader.read(1)
    writer.write(b"after")
    with pytest.raises(IllegalState, match="was scaled"):
        writer.flush()
    for create in (manager.create_byte_writer, manager.create_byte_reader):
        with pytest.raises(IllegalState, match="has 2 segments"):
            create(S)
    manager.scale_stream(S, [1, 2], [(0, 1)])
    assert [event.data for event in manager.read(S)] == [b"before"]
    with manager.create_byte_writer(S) as again:
        assert again.tell() == again.fetch_head_offset() == 0, "positions are of the segment"
        again.write(b"again")
    assert bytes_of(manager) == b"again"


def test_each_life_has_its_own_bytes(manager: StreamManager) -> None:
    writer, reader = manager.create_byte_writer(S), manager.create_byte_reader(S)
    writer.write(b"first life")
    writer.flush()
    writer.truncate_before(3)
    manager.seal_stream(S)
    manager.delete_stream(S)
    with pytest.raises(NoSuchStream):
        reader.fetch_tail_offset()
    manager.create_stream(S, ONE)
    for call in (reader.fetch_head_offset, lambda: writer.truncate_before(1), reader.available):
        with pytest.raises(StaleIdentity):
            call()
    writer.write(b"x")
    with pytest.raises(StaleIdentity):
        writer.close()
    with manager.create_byte_writer(S) as again:
        again.write(b"second")
        assert again.fetch_head_offset() == 0
    assert bytes_of(manager) == b"second"


def test_wrong_arguments_are_named(manager: StreamManager) -> None:
    with pytest.raises(InvalidInput, match="compression of a byte writer is one of none"):
        manager.create_byte_writer(S, compression="gzip")
    with pytest.raises(InvalidInput):
        manager.create_byte_reader(S, timeout=-1)
    with manager.create_byte_writer(S) as writer:
        with pytest.raises(TypeError):
            writer.write("text")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            writer.truncate_before(-1)
    for compression in ("none", "snappy", "zstd"):
        with manager.create_byte_writer(S, compression=compression) as writer:
            writer.write(bytes(BLOCK_BYTES))
    assert bytes_of(manager) == bytes(3 * BLOCK_BYTES)


# ---------------------------------------------------------------------------------- what it costs


def calls_to_seek(chunks: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return the storage calls, and the look-ups in the log, of one read in the middle."""
    runtime = FakeRuntime()
    manager = filled(manager_of(runtime))
    with manager.create_byte_writer(S) as writer:
        for number in range(chunks):
            writer.write(b"x" * (1 + number % 13))
            writer.flush()
    spy = Spy(root_of(manager).store)
    other = manager_over(spy, runtime)
    reader = other.create_byte_reader(S, timeout=0)
    assert reader.read(1) == b"x"  # the log is open
    look_ups = 0
    chunks_of = StreamLog.chunks

    def counted(self: Any, rng: Any) -> Any:
        nonlocal look_ups
        look_ups += 1
        return chunks_of(self, rng)

    monkeypatch.setattr(StreamLog, "chunks", counted)
    before = len(spy.calls)
    reader.seek(-3 * chunks, os.SEEK_END)
    assert reader.read(5) == b"xxxxx"
    monkeypatch.undo()
    return len(spy.calls) - before, look_ups


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_a_seek_costs_the_same_in_a_stream_of_ten_times_as_many_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = calls_to_seek(sized(60, 150), monkeypatch)
    many = calls_to_seek(sized(600, 1_500), monkeypatch)
    assert max(few[0], many[0]) <= 2 * PREFETCH_CHUNKS + 8, (few, many)
    assert many[1] <= few[1] + 4, (few, many)
