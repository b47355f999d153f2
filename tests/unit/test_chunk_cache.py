"""What readers of one process share of the chunks of an object store, by counted requests.

The handles of the store are the tests' own, since each process has its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pravega_spark import (
    EncryptionPolicy,
    Event,
    KeyValueTableConfiguration,
    ScalingPolicy,
    SegmentRange,
    StreamConfiguration,
    StreamManager,
    TablePut,
    set_kms,
)
from pravega_spark.engine.chunks import recent
from pravega_spark.engine.key_management import KMS_VARIABLE
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import stream_log
from pravega_spark.engine.stream.read import read_range
from pravega_spark.errors import CorruptChunk, StoreError, StoreUnavailable
from pravega_spark.integrity.root_integrity import check_root
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.manager import manager_over, root_of
from pravega_spark.values.segments import EventPointer
from pravega_spark.values.units import MIB
from tests.harness import file_kms
from tests.harness.counted_chunks import CountedChunks, process_on
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.file_kms import MasterKeys

S, FOLLOWERS = "s/a", 10
_BACKLOG = 20


@pytest.fixture
def disk() -> MemoryStore:
    """A root with a stream of twenty chunks, which another process has written."""
    store = MemoryStore()
    manager = manager_over(store)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    write(manager, *range(_BACKLOG))
    return store


def write(manager: StreamManager, *numbers: int) -> None:
    """Write an event, and a chunk, for each number."""
    with manager.create_writer(S) as writer:
        for number in numbers:
            writer.write_event(b"%d" % number, "key").result()


def read(manager: StreamManager) -> list[bytes]:
    return [event.data for event in manager.read(S)]


def kept_of(store: CountedChunks) -> recent.RecentChunks:
    found = recent.recent_chunks(store)
    assert found is not None
    return found


def chunks_in(disk: MemoryStore) -> dict[str, bytes]:
    keys = [entry.key for entry in disk.list(f"{S}/events/data")]
    return {key: disk.get(key) for key in keys}


@pytest.mark.parametrize("cache_bytes", [64 << 20, 0])
def test_followers_at_the_tail_send_one_get_for_each_new_chunk(
    disk: MemoryStore, cache_bytes: int
) -> None:
    ours, store = process_on(disk, cache_bytes)
    followed = [ours.follow(S, ours.tail(S), timeout=60.0) for _ in range(FOLLOWERS)]
    other = manager_over(disk)
    before = chunks_in(disk)
    for number in range(3):
        write(other, number)
        assert {next(each).data for each in followed} == {b"%d" % number}
    sizes = [len(data) for key, data in chunks_in(disk).items() if key not in before]
    times = 1 if cache_bytes else FOLLOWERS
    assert store.gets() == (3 * times, sum(sizes) * times)


@pytest.mark.parametrize("count", [1, FOLLOWERS])
def test_readers_that_catch_up_fetch_the_backlog_once(disk: MemoryStore, count: int) -> None:
    ours, store = process_on(disk)
    for _ in range(count):
        assert read(ours) == [b"%d" % number for number in range(_BACKLOG)]
    assert store.gets() == (_BACKLOG, sum(map(len, chunks_in(disk).values())))


def test_readers_of_every_kind_share_the_chunks(disk: MemoryStore) -> None:
    ours, store = process_on(disk)
    ours.create_stream("s/bytes", StreamConfiguration(ScalingPolicy.fixed(1)))
    with ours.create_byte_writer("s/bytes") as writer:
        writer.write(b"some bytes")
    assert read(ours) == read(ours)
    assert ours.read_table(S).num_rows == _BACKLOG
    assert ours.read_table(S, where=pc.field("offset") >= 0).num_rows == _BACKLOG
    ours.create_reader_group("s/g", [S])
    with ours.reader_group("s/g").create_reader("r") as reader:
        while reader.read_next_event(0).event is not None:
            pass
    assert store.gets()[0] == _BACKLOG
    for _ in range(2):
        with ours.create_byte_reader("s/bytes") as file:
            assert file.read(10) == b"some bytes"
    assert store.gets()[0] == 1
    ours.create_key_value_table("s/t", KeyValueTableConfiguration())
    table = ours.key_value_table("s/t")
    table.update([TablePut("k", b"v")])
    for _ in range(2):
        fresh = manager_over(store).key_value_table("s/t")
        assert [entry.value for entry in fresh.entries()] == [b"v"]
    assert store.gets()[0] <= 1


def test_a_process_that_reads_what_it_writes_fetches_nothing(disk: MemoryStore) -> None:
    ours, store = process_on(disk)
    followed = ours.follow(S, ours.tail(S), timeout=60.0)
    found: list[Event] = []
    thread = threading.Thread(target=lambda: found.append(next(followed)))
    thread.start()
    tail = root_of(ours).stream(S).tail
    while not tail.is_awaited:
        thread.join(0.001)
    write(ours, 7)
    thread.join(30)
    write(ours, 8)  # while the reader is busy with the event before it
    found.append(next(followed))
    with ours.create_transactional_writer(S) as writer, writer.begin_transaction() as transaction:
        transaction.write_table(pa.table({"event": [b"9"], "routing_key": ["key"]}))
        transaction.commit()
    found.append(next(followed))
    assert [event.data for event in found] == [b"7", b"8", b"9"]
    assert store.gets() == (0, 0)


def test_writes_fill_nothing_while_nobody_here_reads_the_stream(
    disk: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, store = process_on(disk)
    write(ours, 1)
    assert kept_of(store).size_bytes == 0
    read(ours)
    filled = kept_of(store).size_bytes
    write(ours, 2)
    assert kept_of(store).size_bytes > filled > 0
    filled = kept_of(store).size_bytes
    with ours.create_writer(S) as writer:  # a chunk of which readers fetch row groups
        writer.write_event(Random(1).randbytes(2 * MIB), "key").result()
    assert kept_of(store).size_bytes == filled
    monkeypatch.setattr(stream_log, "CHUNK_CACHE_READ_SECONDS", 0.0)  # the last read is long ago
    write(ours, 3)
    assert kept_of(store).size_bytes == filled


def test_memory_is_bounded_and_what_was_read_last_stays(disk: MemoryStore) -> None:
    sizes = [len(data) for data in chunks_in(disk).values()]
    ours, store = process_on(disk, cache_bytes=sum(sizes[-2:]) + 1_100)
    assert read(ours) == [b"%d" % number for number in range(_BACKLOG)]
    assert sum(sizes[-2:]) < kept_of(store).size_bytes <= store.cache_bytes
    store.gets()
    newest = [event.pointer for event in manager_over(disk).read(S)][-2:]
    assert [ours.fetch_event(pointer).data for pointer in newest] == [b"18", b"19"]
    assert store.gets() == (0, 0)


def test_chunk_that_was_used_longest_ago_goes_first_and_one_that_never_fits_drives_out_none(
    disk: MemoryStore,
) -> None:
    most = max(len(data) for data in chunks_in(disk).values())
    ours, store = process_on(disk, cache_bytes=2 * most + 1_100)
    pointers = [event.pointer for event in manager_over(disk).read(S)]
    with manager_over(disk).create_writer(S) as writer:
        pointers.append(writer.write_event(Random(1).randbytes(100_000), "key").result())

    def fetched(*numbers: int) -> int:
        for number in numbers:
            assert ours.fetch_event(pointers[number]).pointer == pointers[number]
        return store.gets()[0]

    assert fetched(1, 2, 1, 3) == 3
    assert fetched(1, 3) == 0, "the second one was used longest ago"
    assert fetched(_BACKLOG) == 1
    assert fetched(1, 3) == 0


class Waits:
    """Counts the readers that wait for another one's request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._waiting = threading.Semaphore(0)
        monkeypatch.setattr(recent, "SYSTEM", self)

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        self._waiting.release()
        SYSTEM.wait(event, seconds)

    def are(self, count: int) -> bool:
        return all(self._waiting.acquire(timeout=30) for _ in range(count))


def together(read_one: Callable[[], Any]) -> list[Any]:
    """Return what ten readers get, or the errors that they raise."""
    found: list[Any] = []

    def reader() -> None:
        try:
            found.append(read_one())
        except (StoreError, CorruptChunk) as error:
            found.append(error)

    threads = [threading.Thread(target=reader) for _ in range(FOLLOWERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def first_chunk_get(store: CountedChunks, waits: Waits, error: Exception | None = None) -> None:
    """Let the first request for a chunk wait until all other readers wait for it; then it fails."""
    first = threading.Lock()

    def hook(operation: str, key: str) -> None:
        if operation == "get_many" and "/events/data/" in key and first.acquire(blocking=False):
            assert waits.are(FOLLOWERS - 1)
            if error is not None:
                raise error

    store.hook = hook


def before_its_chunk(disk: MemoryStore) -> tuple[StreamManager, CountedChunks, EventPointer]:
    """Return a process that has opened the stream, its store, and the first event's pointer."""
    ours, store = process_on(disk)
    ours.tail(S)
    return ours, store, next(iter(manager_over(disk).read(S))).pointer


def test_readers_at_the_same_time_share_one_request(
    disk: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, store, pointer = before_its_chunk(disk)
    first_chunk_get(store, Waits(monkeypatch))
    assert together(lambda: ours.fetch_event(pointer).data) == [b"0"] * FOLLOWERS
    assert store.gets()[0] == 1


def test_an_outage_is_that_of_all_readers_and_is_not_kept(
    disk: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, store, pointer = before_its_chunk(disk)
    outage = StoreUnavailable("no answer.")
    first_chunk_get(store, Waits(monkeypatch), outage)
    found = together(lambda: ours.fetch_event(pointer).data)
    assert [type(each) for each in found] == [StoreUnavailable] * FOLLOWERS
    assert len({id(each) for each in found}) == FOLLOWERS
    assert store.gets() == (0, 0)
    assert ours.fetch_event(pointer).data == b"0"


def test_another_error_is_that_of_one_reader(
    disk: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, store, pointer = before_its_chunk(disk)
    first_chunk_get(store, Waits(monkeypatch), StoreError("refused."))
    found = together(lambda: ours.fetch_event(pointer).data)
    assert sorted(map(str, found)) == ["b'0'"] * (FOLLOWERS - 1) + ["refused."]
    assert store.gets()[0] == 1


def test_a_cut_answer_is_not_kept(disk: MemoryStore) -> None:
    ours, store = process_on(disk)
    store.rules.add(Rule(Fault.SHORT_READ, "get_many", "*/events/data/*", nth=2))
    with pytest.raises(CorruptChunk):
        read(ours)
    assert read(ours) == [b"%d" % number for number in range(_BACKLOG)]


def damaged(data: bytes) -> bytes:
    """Return a file with another byte just before its footer, at the end of its last event."""
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little") - 1
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("where", [None, pc.field("offset") >= 0])
def test_a_chunk_whose_damage_was_read_is_fetched_again(disk: MemoryStore, where: Any) -> None:
    ours, _ = process_on(disk)
    key, data = next(iter(chunks_in(disk).items()))
    disk.put(key, damaged(data))
    for _ in range(2):
        with pytest.raises(CorruptChunk):
            ours.read_table(S, where=where)
    disk.put(key, data)
    assert ours.read_table(S, where=where).num_rows == _BACKLOG


def test_deep_checks_and_compaction_see_what_the_storage_holds(disk: MemoryStore) -> None:
    ours, store = process_on(disk)
    read(ours)
    (first, data), *_, (last, whole) = chunks_in(disk).items()
    disk.put(first, damaged(data))
    disk.delete([last])
    assert len(read(ours)) == _BACKLOG  # from memory
    (found,) = (one for one in check_root(store, deep=True) if one.name == S)
    assert sorted(one.path for one in found.damage) == sorted([first, last])
    disk.put(last, whole)
    done = ours.compact_stream(S, include_newest=True)
    assert len(done.damaged) == 1


def test_backup_and_fold_read_the_storage(disk: MemoryStore, tmp_path: Path) -> None:
    ours, store = process_on(disk)
    ours.create_key_value_table("s/t", KeyValueTableConfiguration())
    table = ours.key_value_table("s/t")
    table.update([TablePut("k", b"v")])
    assert len(read(ours)) == _BACKLOG
    log = table._stream
    view = log.view()
    for segment_id in view.active.segment_ids:
        end = view.segment(segment_id).next_offset
        rng = SegmentRange(view.stream, life=view.life, segment_id=segment_id, start=0, end=end)
        assert len([*read_range(log, rng)]) <= 1  # now it is in memory
    store.calls.clear()
    ours.backup(tmp_path / "copy", S)
    assert store.count("get", "/events/data/") == _BACKLOG
    store.gets()
    assert fold(log, folded_table(log, table.configuration)).is_published
    assert store.gets()[0] == 1


def test_a_second_life_and_a_deleted_stream_are_not_served_from_the_first(
    disk: MemoryStore,
) -> None:
    ours, store = process_on(disk)
    assert read(ours)[-1] == b"19"
    other = manager_over(disk)
    other.seal_stream(S)
    other.delete_stream(S)
    other.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    write(other, 100)
    store.gets()
    assert read(ours) == [b"100"]
    assert store.gets()[0] == 1


def test_another_object_of_the_same_name_is_fetched(disk: MemoryStore) -> None:
    """No writer makes one; a root that was copied over another one may have it."""
    ours, store = process_on(disk)
    read(ours)
    stream = root_of(ours).stream(S)
    (rng,) = ours.stream(S).segment_ranges()
    ref = stream.chunks(rng)[0]
    kept = kept_of(store)
    store.gets()
    assert kept.get_many(store, stream.path, [ref]) == [disk.get(f"{stream.path}/{ref.path}")]
    assert store.gets()[0] == 0
    others = [replace(ref, footer=f"9{ref.footer}"), replace(ref, size=ref.size + 1)]
    kept.get_many(store, stream.path, others)
    assert store.gets()[0] == 2
    kept.get_many(store, stream.path, others)
    assert store.gets()[0] == 2  # those were not the chunks that the log records


def test_encrypted_chunks_stay_encrypted(
    disk: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(file_kms.VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv(KMS_VARIABLE, file_kms.FACTORY)
    set_kms(None)
    MasterKeys(tmp_path / "keys.json").set(first="secret")
    ours, store = process_on(disk)
    ours.create_stream("s/e", StreamConfiguration(encryption=EncryptionPolicy("first")))
    assert [*ours.read("s/e")] == []
    try:
        for number in range(2):  # one that was fetched, and one that was written
            with ours.create_writer("s/e") as writer:
                writer.write_event(b"MARKER", "MARKER-KEY").result()
            events = [(event.data, event.routing_key) for event in ours.read("s/e")]
            assert events == [(b"MARKER", "MARKER-KEY")] * (number + 1)
    finally:
        set_kms(None)
    kept = kept_of(store)._kept
    assert len(kept) == 2
    assert not [data for data in kept.values() if b"MARKER" in data]


def test_each_handle_of_a_store_has_its_own(disk: MemoryStore) -> None:
    first, second = process_on(disk), process_on(disk)
    read(first[0])
    assert len(read(second[0])) == _BACKLOG == second[1].gets()[0]
    assert recent.recent_chunks(disk) is None  # a disk has the cache of its system


def test_a_forked_child_fetches_itself(disk: MemoryStore) -> None:
    ours, store = process_on(disk)
    read(ours)
    child = os.fork()
    if child == 0:
        os._exit(kept_of(store).size_bytes)
    assert os.waitpid(child, 0)[1] == 0
    assert kept_of(store).size_bytes > 0
