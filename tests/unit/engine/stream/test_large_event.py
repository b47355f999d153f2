"""Large events through every reader, and through what moves, copies and deletes their objects.

Which objects are stored, damaged or orphaned no public call shows: the store is asked for them.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pytest

from pravega_spark import (
    StreamCut,
    StreamManager,
    json_deserializer,
)
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stored_bytes import StorageKind
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.writing.append import append
from pravega_spark.engine.writing.stage import store_large_event
from pravega_spark.errors import (
    CorruptChunk,
    DataLoss,
    EventTooLarge,
    IllegalState,
    InvalidInput,
    StagedTooLate,
    StreamSealed,
    TruncatedData,
)
from pravega_spark.manager import root_of
from pravega_spark.values.events import Event
from pravega_spark.values.limits import MAX_LARGE_EVENT_BYTES
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.large_streams import (
    BLOCK,
    THRESHOLD,
    lower_limits,
    objects,
    retained_versions,
    values,
)

STREAM = "s/t"
LARGE = bytes(range(256)) * 3
OTHER = b"other" * 100


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_limits(monkeypatch)


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def manager(runtime: FakeRuntime) -> StreamManager:
    manager = manager_of(runtime)
    manager.create_scope("s")
    manager.create_stream(STREAM)
    return manager


def write(manager: StreamManager, *events: Any, key: str | None = "k") -> list[Any]:
    with manager.create_writer(STREAM, large_events=True) as writer:
        futures = [writer.write_event(event, key) for event in events]
    return [future.result() for future in futures]


def sweep(manager: StreamManager, runtime: FakeRuntime) -> Any:
    """Sweep with the shortest grace, after enough time and commits."""
    runtime.sleep(10_000)
    write(manager, b"later")
    runtime.sleep(10_000)
    return manager.stream(STREAM).sweep(grace="1 minute", retain="1 minute")


def the_object(manager: StreamManager) -> str:
    (key,) = objects(root_of(manager).store, STREAM)
    return key


def test_every_reader_sees_one_event_between_its_neighbours(manager: StreamManager) -> None:
    pointers = write(manager, b"before", LARGE, b"after", OTHER)
    assert [pointer.offset for pointer in pointers] == [0, 1, 2, 3]
    expected = [b"before", LARGE, b"after", OTHER]
    assert values(manager.read(STREAM)) == expected
    assert [manager.fetch_event(str(pointer)).data for pointer in pointers] == expected
    (rng,) = manager.stream(STREAM).segment_ranges()
    assert values(manager.create_reader(STREAM).read_range(rng)) == expected
    batches = [batch for _, batch in manager.create_reader(STREAM).batches()]
    assert [v for batch in batches for v in batch.column("event").to_pylist()] == expected
    assert [v for batch in batches for v in batch.column("offset").to_pylist()] == [0, 1, 2, 3]
    assert all(not batch.schema.metadata for batch in batches)
    follower = manager.follow(STREAM, StreamCut.EARLIEST, timeout=0)
    assert values(follower) == expected
    group = manager.create_reader_group("s/g", [STREAM])
    with group.create_reader("r") as reader:
        reads = [reader.read_next_event(0) for _ in range(4)]
        assert values(read.event for read in reads) == expected
    group.reset({STREAM: "earliest"})
    with group.create_reader("r") as reader:
        found: list[bytes] = []
        while len(found) < 4:
            found += reader.read_events(timeout=0).events.column("event").to_pylist()
        assert found == expected


def test_events_say_whether_they_are_large_and_open_as_files(manager: StreamManager) -> None:
    write(manager, b"small", LARGE)
    small, large = manager.read(STREAM)
    assert (small.is_large, large.is_large) == (False, True)
    assert [event.size_bytes for event in (small, large)] == [len(b"small"), len(LARGE)]
    decoded = [e.size_bytes for e in manager.read(STREAM, deserializer=lambda data: data[:1])]
    assert decoded == [len(b"small"), len(LARGE)]
    assert f"{len(LARGE)} bytes" in repr(large)
    assert large.routing_key == "k"
    with large.open() as file:
        assert isinstance(file, io.RawIOBase)
        assert file.seekable()
        with pytest.raises(ValueError, match="must not be negative"):
            file.seek(-1)
        with pytest.raises(ValueError, match="whence"):
            file.seek(0, 7)
        for call in (lambda: file.write(b"x"), lambda: file.truncate(3)):
            with pytest.raises(io.UnsupportedOperation, match=r"truncate|reading only"):
                call()
        wrong: Any
        for wrong in (1.5, "x"):
            for call in (lambda: file.seek(wrong), lambda: file.read(wrong)):  # noqa: B023
                with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
                    call()
        assert file.tell() == 0
        assert file.readable()
        for at in (0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 7, len(LARGE) - 1, len(LARGE)):
            for size in (0, 1, BLOCK, 4 * BLOCK + 3, -1):
                assert file.seek(at) == at
                assert file.read(size) == LARGE[at : None if size < 0 else at + size]
        assert file.seek(-5, io.SEEK_END) == len(LARGE) - 5
        assert io.BufferedReader(file).read() == LARGE[-5:]
    for call in (file.read, lambda: file.write(b"x")):
        with pytest.raises(ValueError, match="closed"):
            call()
    with small.open() as file:
        assert file.read() == b"small"
    with pytest.raises(TypeError, match="pointer"):
        pickle.dumps(large)


def test_deserializers_get_the_bytes_when_the_data_is_used(manager: StreamManager) -> None:
    text = b"[" + b"1," * 100 + b"1]"
    write(manager, b"[0]", text)
    small, large = manager.read(STREAM, deserializer=json_deserializer)
    assert large.open().read() == text
    assert (small.data, large.data) == ([0], [1] * 101)
    with pytest.raises(IllegalState, match="without a deserializer"):
        small.open()
    group = manager.create_reader_group("s/g", [STREAM])
    with group.create_reader("r", deserializer=json_deserializer) as reader:
        events = [reader.read_next_event(0).event for _ in range(2)]
        assert [event.data for event in events if event is not None] == [[0], [1] * 101]


def test_a_payload_is_a_file_or_an_iterable_of_bytes(manager: StreamManager) -> None:
    def pieces() -> Iterator[bytes]:
        for at in range(0, len(LARGE), 7):
            yield LARGE[at : at + 7]

    sources = [
        LARGE,
        bytearray(LARGE),
        memoryview(LARGE),
        memoryview(LARGE)[::-1],
        io.BytesIO(LARGE),
        pieces(),
        [LARGE[:500], b"", LARGE[500:]],
        "é" * 200,
        io.BytesIO(b"short"),
        iter([b"sh", b"ort"]),
        [],
    ]
    write(manager, *sources)
    expected = [LARGE, LARGE, LARGE, LARGE[::-1], *[LARGE] * 3, "é".encode() * 200]
    events = list(manager.read(STREAM))
    assert values(events) == [*expected, b"short", b"short", b""]
    assert [event.is_large for event in events] == [True] * 8 + [False] * 3
    exact = [bytes(THRESHOLD), [bytes(THRESHOLD)], bytes(THRESHOLD + 1), [bytes(THRESHOLD), b"x"]]
    write(manager, *exact)
    assert [event.is_large for event in manager.read(STREAM)][-4:] == [False, False, True, True]


def test_what_is_no_payload_is_refused_and_leaves_nothing(manager: StreamManager) -> None:
    def fails() -> Iterator[bytes]:
        yield LARGE
        raise KeyError("of the caller")

    with manager.create_writer(STREAM, large_events=True) as writer:
        for wrong in (7, None, {"a": 1}, object()):
            with pytest.raises(InvalidInput, match="must be bytes or str"):
                writer.write_event(wrong)
        for wrong in ([LARGE, "text"], io.StringIO("x" * 500), [1, 2]):
            with pytest.raises(InvalidInput, match="iterable of bytes"):
                writer.write_event(wrong)
        with pytest.raises(KeyError, match="of the caller"):
            writer.write_event(fails())
        with pytest.raises(InvalidInput, match="routing key"):
            writer.write_event(LARGE, 7)  # type: ignore[arg-type]
        with pytest.raises(EventTooLarge, match="written alone, by write_event"):
            writer.write_events([b"a", LARGE])
        with pytest.raises(InvalidInput, match="without `expected`"):
            writer.write_event(LARGE, "k", expected=manager.stream(STREAM).tail())
        writer.write_event(b"still usable").result()
    assert values(manager.read(STREAM)) == [b"still usable"]
    assert objects(root_of(manager).store, STREAM) == set()
    with pytest.raises(InvalidInput, match="large_events"):
        manager.create_writer(STREAM, large_events="yes")  # type: ignore[arg-type]


def test_without_the_option_an_error_names_it(manager: StreamManager) -> None:
    with manager.create_writer(STREAM) as writer:
        with pytest.raises(EventTooLarge, match="large_events=True") as caught:
            writer.write_event(LARGE)
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (len(LARGE), THRESHOLD)
        with pytest.raises(InvalidInput, match="large_events=True"):
            writer.write_event(io.BytesIO(LARGE))
        with pytest.raises(EventTooLarge, match="large_events=True"):
            writer.write_events([LARGE])
    txn = manager.create_transactional_writer(STREAM).begin_transaction()
    with pytest.raises(EventTooLarge, match="large_events=True"):
        txn.write_event(LARGE)


def test_the_limit_holds_for_bytes_and_for_unknown_lengths(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_LARGE_EVENT_BYTES == 1 << 30
    lower_limits(monkeypatch, most=1_000)
    with manager.create_writer(STREAM, large_events=True) as writer:
        for source in (bytes(1_001), io.BytesIO(bytes(5_000)), (bytes(30) for _ in range(100))):
            with pytest.raises(EventTooLarge, match="1000 bytes") as caught:
                writer.write_event(source)
            assert caught.value.limit_bytes == 1_000
        writer.write_event(bytes(1_000)).result()
    assert len(objects(root_of(manager).store, STREAM)) == 1


def test_a_serializer_may_make_a_large_event(manager: StreamManager) -> None:
    def repeated(count: int) -> bytes:
        return b"x" * count

    with manager.create_writer(STREAM, serializer=repeated, large_events=True) as writer:
        writer.write_event(3)
        writer.write_event(500)
    assert values(manager.read(STREAM)) == [b"xxx", b"x" * 500]


def test_sizes_and_lag_count_the_whole_payload(manager: StreamManager) -> None:
    write(manager, b"ab", LARGE, b"c")
    stream = manager.stream(STREAM)
    size = 3 + len(LARGE)
    assert stream.segment(0).size_bytes == size
    assert stream.distance("earliest", "latest") == (3, size)
    assert manager.create_reader(STREAM).distance("s/t@1:0#0=1", "s/t@1:0#0=2") == (1, len(LARGE))
    live = stream.storage().part(StorageKind.LIVE)
    assert live.files == 3
    assert live.size_bytes > size
    stored = list(root_of(manager).store.list("s/t/events/data"))
    assert live.size_bytes == sum(entry.size for entry in stored)


def test_a_truncated_event_takes_its_object_along_and_no_sooner(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    write(manager, LARGE, b"kept")
    event = next(iter(manager.read(STREAM)))
    stream = manager.stream(STREAM)
    stream.truncate("s/t@1:0#0=1")
    assert len(objects(root_of(manager).store, STREAM)) == 1
    part = stream.storage().part(StorageKind.RETAINED)
    assert part.files == 1
    assert part.size_bytes > len(LARGE)
    swept = sweep(manager, runtime)
    assert swept.files == 1
    assert swept.size_bytes == part.size_bytes
    assert objects(root_of(manager).store, STREAM) == set()
    assert stream.storage().part(StorageKind.SWEPT).size_bytes == part.size_bytes
    with pytest.raises(TruncatedData):
        event.data  # noqa: B018
    with pytest.raises(TruncatedData):
        event.open().read(1)
    assert values(manager.read(STREAM)) == [b"kept", b"later"]


def test_sweeps_keep_live_objects_and_delete_those_without_a_commit(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    write(manager, LARGE)
    live = objects(root_of(manager).store, STREAM)
    log = open_stream(root_of(manager).store, STREAM, runtime)
    for _ in range(3):
        orphan = f"s/t/events/data/v{log.view().version:020d}/dead.event"
        root_of(manager).store.put(orphan, OTHER)
        root_of(manager).store.put(f"{orphan}-{len(OTHER)}.parquet", b"chunk")
        swept = sweep(manager, runtime)  # the first one lists all files, the others what is new
        assert objects(root_of(manager).store, STREAM) == live
        assert swept.size_bytes >= len(OTHER)
        retained_versions(log)
    (first, *_) = manager.read(STREAM)
    assert first.data == LARGE


def test_compaction_never_merges_a_large_event(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    for n in range(6):
        write(manager, b"a%d" % n)
    write(manager, LARGE)
    for n in range(6):
        write(manager, b"b%d" % n)
    write(manager, OTHER)
    write(manager, b"end")
    before, kept = values(manager.read(STREAM)), objects(root_of(manager).store, STREAM)
    runtime.sleep(1_000)
    result = manager.stream(STREAM).compact(target="16 KiB")
    assert result.ranges == 2
    assert result.files_after == 5
    assert values(manager.read(STREAM)) == before
    sweep(manager, runtime)
    assert objects(root_of(manager).store, STREAM) == kept
    assert values(manager.read(STREAM)) == [*before, b"later"]


def test_a_range_with_a_large_event_is_left_as_it_is(manager: StreamManager) -> None:
    from pravega_spark.compaction.merge import merge_range
    from pravega_spark.compaction.result import MergeRange

    write(manager, b"a", LARGE, b"b")
    stream = open_stream(root_of(manager).store, STREAM)
    merged = merge_range(stream, MergeRange(STREAM, 1, 0, 0, 3, 3, 0))
    assert merged.chunk is None
    assert merged.reason


def test_a_damaged_short_or_lost_object_is_named_and_gives_no_bytes(
    manager: StreamManager,
) -> None:
    write(manager, b"before", LARGE, b"after")
    key, store = the_object(manager), root_of(manager).store
    damaged = LARGE[:300] + b"\xff" + LARGE[301:]
    cases: list[tuple[bytes | None, type[Exception], str]] = [
        (damaged, CorruptChunk, r"other bytes in \[256, 320\)"),
        (LARGE[:-1], CorruptChunk, f"has {len(LARGE) - 1} bytes; the log records {len(LARGE)}"),
        (LARGE + b"x", CorruptChunk, f"has more than {len(LARGE)} bytes"),
        (b"", CorruptChunk, "has 0 bytes"),
        (None, DataLoss, "does not exist"),
    ]
    for data, kind, text in cases:
        if data is None:
            store.delete([key])
        else:
            store.put(key, data)
        reader = manager.create_reader(STREAM)
        events = list(reader.events())
        assert events[0].data == b"before"
        assert events[2].data == b"after"
        with pytest.raises(kind, match=text) as caught:
            events[1].data  # noqa: B018
        assert ".event" in str(caught.value)
        with pytest.raises(kind, match=text):
            events[1].open().read()
        with pytest.raises(kind, match=text):
            list(reader.batches())
        group = manager.create_reader_group(f"s/g{len(text)}", [STREAM])
        with group.create_reader("r") as member:
            member.read_events(1, timeout=0)
            with pytest.raises(kind, match=text):
                member.read_events(timeout=0)
    store.put(key, LARGE)
    assert values(manager.read(STREAM)) == [b"before", LARGE, b"after"]


def test_undamaged_blocks_of_a_damaged_object_can_be_read(manager: StreamManager) -> None:
    write(manager, LARGE)
    root_of(manager).store.put(the_object(manager), LARGE[:700] + b"\xff" + LARGE[701:])
    (event,) = manager.read(STREAM)
    with event.open() as file:
        assert file.read(500) == LARGE[:500]
        file.seek(690)
        with pytest.raises(CorruptChunk):
            file.read(1)


@pytest.mark.parametrize("left", [0, BLOCK, 5 * BLOCK, 6 * BLOCK, 7 * BLOCK])
def test_a_read_behind_the_end_of_a_short_object_tells_no_wrong_size(
    manager: StreamManager, left: int
) -> None:
    write(manager, LARGE)
    root_of(manager).store.put(the_object(manager), LARGE[:left])
    (event,) = manager.read(STREAM)
    with event.open() as file:
        file.seek(6 * BLOCK + 1)  # in the third window, which begins at 6 blocks
        found = f"{left}" if left > 6 * BLOCK else f"at most {6 * BLOCK}"
        with pytest.raises(CorruptChunk, match=f"has {found} bytes; the log records {len(LARGE)}"):
            file.read(10)


def test_a_chunk_that_names_another_object_is_corrupt(manager: StreamManager) -> None:
    write(manager, LARGE)
    (one,) = manager.read(STREAM)
    one._row = one._row.replace(b'"bytes":', b'"bytes":1')  # type: ignore[attr-defined]
    with pytest.raises(CorruptChunk, match="not a reference of a large event"):
        one.open()


def test_a_users_event_that_looks_like_a_reference_is_not_taken_for_one(
    manager: StreamManager,
) -> None:
    write(manager, LARGE)
    (event,) = manager.read(STREAM)
    copied: bytes = event._row[:THRESHOLD]  # type: ignore[attr-defined]
    write(manager, copied)
    *_, last = manager.read(STREAM)
    assert type(last) is Event
    assert last.data == copied


def test_deleting_the_stream_deletes_its_objects(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    write(manager, LARGE)
    manager.seal_stream(STREAM)
    manager.delete_stream(STREAM)
    runtime.sleep(10_000)
    manager.sweep_scope("s", grace="1 minute", retain="1 minute")
    assert objects(root_of(manager).store, STREAM) == set()
    manager.create_stream(STREAM)
    write(manager, OTHER)
    assert values(manager.read(STREAM)) == [OTHER]


def test_transactions_hold_large_events_in_order(manager: StreamManager) -> None:
    writer = manager.create_transactional_writer(STREAM, large_events=True)
    with writer.begin_transaction() as txn:
        txn.write_event(b"1", "k")
        txn.write_event(LARGE, "k")
        txn.write_event(b"2", "k")
        txn.write_event(iter([OTHER, b"x"]), "k")
        txn.write_events([b"3", b"4"], "k")
        txn.write_event(io.BytesIO(b"5"), "k")
        with pytest.raises(EventTooLarge, match="written alone"):
            txn.write_events([b"a", LARGE])
        assert values(manager.read(STREAM)) == []
    expected = [b"1", LARGE, b"2", OTHER + b"x", b"3", b"4", b"5"]
    assert values(manager.read(STREAM)) == expected
    size = sum(map(len, expected))
    assert manager.stream(STREAM).segment(0).size_bytes == size


def test_an_aborted_transaction_leaves_no_object(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    writer = manager.create_transactional_writer(STREAM, large_events=True)
    txn = writer.begin_transaction()
    txn.write_event(LARGE, "k")
    txn.flush()
    assert len(objects(root_of(manager).store, STREAM)) == 1
    part = manager.stream(STREAM).storage().part(StorageKind.OPEN_TRANSACTIONS)
    assert part.size_bytes > len(LARGE)
    txn.abort()
    manager.sweep_transactions(STREAM)
    assert objects(root_of(manager).store, STREAM) == set()


def test_objects_of_open_transactions_survive_sweeps(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    writer = manager.create_transactional_writer(STREAM, large_events=True)
    txn = writer.begin_transaction("600 s", max_execution="7 days")
    txn.write_event(LARGE, "k")
    txn.prepare()
    sweep(manager, runtime)
    txn.commit()
    assert values(manager.read(STREAM)) == [b"later", LARGE]
    sweep(manager, runtime)
    assert values(manager.read(STREAM))[:2] == [b"later", LARGE]


def test_a_split_during_the_upload_moves_the_event_without_a_copy(
    runtime: FakeRuntime,
) -> None:
    manager = manager_of(runtime)
    manager.create_scope("s")
    manager.create_stream(STREAM)
    writer = manager.create_writer(STREAM, large_events=True)

    def pieces() -> Iterator[bytes]:
        yield LARGE
        manager.scale_stream(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])

    writer.write_event(b"first", "k").result()
    pointer = writer.write_event(pieces(), "k").result()
    writer.close()
    assert pointer.segment_id != 0
    assert values(manager.read(STREAM)) == [b"first", LARGE]
    assert len(objects(root_of(manager).store, STREAM)) == 1


def test_a_transaction_that_a_scale_overtook_keeps_its_objects(manager: StreamManager) -> None:
    writer = manager.create_transactional_writer(STREAM, large_events=True)
    txn = writer.begin_transaction()
    txn.write_event(LARGE, "k")
    manager.scale_stream(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])
    write(manager, b"new")
    txn.commit()
    assert sorted(values(manager.read(STREAM))) == sorted([LARGE, b"new"])
    assert len(objects(root_of(manager).store, STREAM)) == 1


def test_writer_ids_continue_after_a_large_event(manager: StreamManager) -> None:
    with manager.create_writer(STREAM, "ingest", large_events=True) as writer:
        writer.write_event(b"1", "k")
        writer.write_event(LARGE, "k")
        writer.write_event(b"3", "k")
        writer.flush("three")
    with manager.create_writer(STREAM, "ingest", large_events=True) as writer:
        assert (writer.last_event_number, writer.last_note) == (3, "three")
        writer.write_event(OTHER, "k")
    assert values(manager.read(STREAM)) == [b"1", LARGE, b"3", OTHER]


def test_a_sealed_stream_reads_nothing_of_the_payload(manager: StreamManager) -> None:
    writer = manager.create_writer(STREAM, large_events=True)
    manager.seal_stream(STREAM)
    source = io.BytesIO(LARGE)
    with pytest.raises(StreamSealed):
        writer.write_event(source)
    assert objects(root_of(manager).store, STREAM) == set()


def test_a_horizon_that_overtakes_an_upload_fails_the_writer(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    writer = manager.create_writer(STREAM, large_events=True)

    def slow() -> Iterator[bytes]:
        yield LARGE
        write(manager, b"meanwhile")
        sweep(manager, runtime)

    future = writer.write_event(slow(), "k")
    with pytest.raises(StagedTooLate, match="write it again"):
        future.result()
    writer.close()
    runtime.sleep(90_000)  # a day later a sweep lists all folders again
    sweep(manager, runtime)
    assert objects(root_of(manager).store, STREAM) == set()
    assert values(manager.read(STREAM)) == [b"meanwhile", b"later", b"later"]


def test_a_backup_and_its_restore_hold_the_payloads(manager: StreamManager) -> None:
    write(manager, b"a", LARGE, OTHER, b"z")
    expected = values(manager.read(STREAM))
    target = MemoryStore.named("large-copy")

    def kill() -> None:
        raise KeyboardInterrupt

    with at_failpoint("backup.object", kill), pytest.raises(KeyboardInterrupt):
        manager.backup(target.url)
    for key in objects(target, STREAM):
        target.put(key, b"torn")
    manager.backup(target.url)
    assert objects(target, STREAM) == objects(root_of(manager).store, STREAM)
    copy = StreamManager(target.url)
    assert values(copy.read(STREAM)) == expected
    _, second, third, _ = copy.read(STREAM)
    target.delete([f"{STREAM}/events/{_object_of(third)}"])
    restored = copy.restore().streams[STREAM]
    assert restored.dropped_events == 2
    assert values(copy.read(STREAM)) == expected[:2]
    assert _object_of(second) != _object_of(third)


def test_a_backup_of_a_lost_payload_fails_and_names_it(manager: StreamManager) -> None:
    write(manager, LARGE)
    key = the_object(manager)
    root_of(manager).store.put(key, LARGE[:-1])
    with pytest.raises(DataLoss, match=f"has {len(LARGE) - 1} bytes instead of {len(LARGE)}"):
        manager.backup("memory://lost-copy")
    root_of(manager).store.delete([key])
    with pytest.raises(DataLoss, match="does not exist"):
        manager.backup("memory://lost-copy")


def _object_of(event: Any) -> str:
    path: str = json.loads(event._row)["large_event"]
    return path


def test_a_retained_version_keeps_the_objects_that_it_names(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    write(manager, LARGE)
    write(manager, b"kept")
    stream = manager.stream(STREAM)
    runtime.sleep(7_000)
    for _ in range(3):
        write(manager, b"more")
    stream.truncate("s/t@1:0#0=1")
    runtime.sleep(7_000)
    for _ in range(3):
        write(manager, b"more")
    runtime.sleep(90_000)  # the sweep lists all files, and only the truncation is not old enough
    stream.sweep(grace="1 minute", retain="2 days")
    log = open_stream(root_of(manager).store, STREAM, runtime)
    assert any(version.named for version in retained_versions(log))
    assert len(objects(root_of(manager).store, STREAM)) == 1


def test_a_staged_large_event_of_a_split_segment_moves_with_its_object(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    log = open_stream(root_of(manager).store, STREAM, runtime)
    view = log.view()
    stored = store_large_event(log, view.life, iter([memoryview(LARGE)]), "k")
    chunk = replace(stored.chunk, segment_id=0)
    manager.scale_stream(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])
    result = append(log, view.life, stored.staging_version, [chunk])
    (landed,) = result.ranges
    assert landed.segment_id != 0
    (event,) = manager.read(STREAM)
    assert (event.is_large, event.data, event.routing_key) == (True, LARGE, "k")
    assert len(objects(root_of(manager).store, STREAM)) == 1


@pytest.mark.parametrize("columns", [None, ["routing_key"], ["event"]])
def test_a_filter_over_the_event_compares_the_payload_of_a_large_one(
    manager: StreamManager, columns: list[str] | None
) -> None:
    write(manager, b"before", LARGE, b"after", OTHER)
    size = pc.binary_length(pc.field("event"))
    for where, wanted in (
        (size > 100, [LARGE, OTHER]),
        (size < 100, [b"before", b"after"]),
        (size > 10_000, []),
        (pc.field("event") == LARGE, [LARGE]),
        ((size > 100) & (pc.field("routing_key") == "other"), []),
        (pc.field("routing_key") == "other", []),
        (pc.field("offset") >= 2, [b"after", OTHER]),
    ):
        found = manager.read_table(STREAM, columns=columns, where=where)
        assert found.num_rows == len(wanted), where
        if "event" in found.schema.names:
            assert found.column("event").to_pylist() == wanted, where
