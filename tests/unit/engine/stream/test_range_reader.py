from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from pravega_spark.engine.chunks import reader as chunk_reader
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.log.actions import Body, Remove
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import read as stream_read
from pravega_spark.engine.stream.read import LOOK_UPS, fail, read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import DataLoss, PravegaSparkError, TruncatedData
from pravega_spark.manager import StreamManager
from pravega_spark.shared_state.revisioned_stream import RevisionedStream, RevisionedValue
from pravega_spark.values.limits import OBJECT_CALLS
from pravega_spark.values.segments import SegmentRange, StreamCut
from tests.harness.fake_runtime import NOW_MS
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.small_tables import commit
from tests.harness.spy_store import Spy
from tests.harness.truncating import truncate

S = "s/t"

Reports = list[tuple[int, int, type[PravegaSparkError]]]


def counted(stream: StreamLog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the chunks of each look-up."""
    found: list[int] = []
    real = stream.chunks

    def chunks(rng: SegmentRange) -> list[ChunkRef]:
        refs = real(rng)
        found.append(len(refs))
        return refs

    monkeypatch.setattr(stream, "chunks", chunks)
    return found


def chunked(count: int, events: int = 5) -> tuple[StreamLog, SegmentRange, list[ChunkRef]]:
    """A stream with one segment of ``count`` chunks, its whole range, and the chunks."""
    stream = make_stream(Spy())
    for n in range(count):
        write(stream, [("k", b"%d" % i) for i in range(n * events, (n + 1) * events)])
    rng = SegmentRange(stream.name, 1, 0, 0, count * events)
    return stream, rng, stream.chunks(rng)


def spy_of(stream: StreamLog) -> Spy:
    assert isinstance(stream.store, Spy)
    return stream.store


@pytest.mark.parametrize("ahead", [True, False])
def test_a_reader_ahead_fetches_the_next_chunk_while_its_batch_is_used(
    monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    stream, rng, refs = chunked(6)
    for name in ("READ_AHEAD_BYTES", "PREFETCH_CHUNKS"):
        monkeypatch.setattr(chunk_reader, name, 1)  # a call for each chunk
    monkeypatch.setattr(chunk_reader, "READ_AHEAD_PARTS", 4)
    begun = threading.Event()
    fourth = refs[3].path
    spy_of(stream).hook = lambda _, key: begun.set() if fourth in key else None
    batches = read_range(stream, rng, refs, batch_rows=5, ahead=ahead)
    found = next(batches).column("event").to_pylist()
    assert begun.wait(30 if ahead else 0) == ahead
    found += [event for batch in batches for event in batch.column("event").to_pylist()]
    assert found == [b"%d" % i for i in range(30)]


@pytest.mark.parametrize("lost", [0, 2, 5])
def test_a_chunk_that_vanished_is_looked_up_by_a_reader_ahead_too(
    monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    stream, rng, refs = chunked(6)
    monkeypatch.setattr(chunk_reader, "READ_AHEAD_BYTES", 1)
    stream.store.delete([f"{stream.path}/{refs[lost].path}"])
    reports: list[SegmentRange] = []
    batches = read_range(
        stream, rng, refs, on_loss=lambda part, _: reports.append(part), ahead=True
    )
    found = [int(event) for batch in batches for event in batch.column("event").to_pylist()]
    assert found == [i for i in range(30) if i // 5 != lost]
    assert [(part.start, part.end) for part in reports] == [(5 * lost, 5 * lost + 5)]


def read(
    stream: StreamLog, rng: SegmentRange, refs: list[ChunkRef] | None, *, strict: bool = False
) -> tuple[list[int], Reports]:
    """Read a range; return its events and the losses that were reported and skipped."""
    reports: Reports = []

    def skip(lost: SegmentRange, error: PravegaSparkError) -> None:
        reports.append((lost.start, lost.end, type(error)))

    batches = read_range(stream, rng, refs, columns=["event"], on_loss=fail if strict else skip)
    return [int(e) for batch in batches for e in batch.column("event").to_pylist()], reports


def edit(stream: StreamLog, refs: list[ChunkRef], *, moved: bool) -> None:
    """Take chunks out of the log, or give them other paths; delete the old files."""
    old = [f"{stream.path}/{ref.path}" for ref in refs]

    def decide(snapshot: Snapshot | None) -> Body:
        with stream.log.files() as files:
            found = [add for add in files.all() if add.path in {ref.path for ref in refs}]
        adds = [replace(add, path=f"{add.path}.new.parquet") for add in found] if moved else []
        for add, new in zip(found, adds, strict=False):
            data = stream.store.get(f"{stream.path}/{add.path}")
            stream.store.put(f"{stream.path}/{new.path}", data)
        return Body("TEST", adds=adds, removes=[Remove.of(add, NOW_MS) for add in found])

    stream.view()
    commit(stream.log, decide)
    stream.store.delete(old)


@pytest.mark.parametrize("count", [40, 400])
def test_first_event_needs_few_chunks_in_a_segment_of_any_length(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_read, "_FIRST_PAGE", 10)
    monkeypatch.setattr(stream_read, "_PAGE_CHUNKS", 20)
    stream, _, _ = chunked(count, 1)
    stream = reopen(stream)
    found = counted(stream, monkeypatch)
    batches = read_range(stream, SegmentRange(stream.name, 1, 0, 3, count))
    first = next(batches)
    assert found == [10]
    rest = [event for batch in batches for event in batch.column("event").to_pylist()]
    events = first.column("event").to_pylist() + rest
    assert events == [b"%d" % n for n in range(3, count)]
    assert max(found) <= 40
    assert sum(found) == count - 3


def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect how many chunks each call fetches from memory."""
    found: list[int] = []
    real = MemoryStore.get_many

    def get_many(store: MemoryStore, keys: Sequence[str]) -> list[bytes | None]:
        if keys and keys[0].endswith(".parquet"):
            found.append(len(keys))
        return real(store, keys)

    monkeypatch.setattr(MemoryStore, "get_many", get_many)
    return found


def round_trips(fetched: list[int]) -> int:
    """How often one waits for an object store that is asked for so many objects at once."""
    return sum(-(-files // OBJECT_CALLS) for files in fetched)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("count", "events"), [(15, 1), (17, 1), (70, 1), (400, 1), (70, 3), (100, 20), (6, 400)]
)
def test_the_first_of_many_tiny_chunks_comes_soon_and_all_of_them_as_soon_as_ever(
    count: int, events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, rng, _ = chunked(count, events)
    fetched = fetches(monkeypatch)
    whole = [batch.num_rows for batch in read_range(stream, rng)]
    waits = round_trips(fetched)
    fetched.clear()
    batches = read_range(stream, rng, soon=True)
    rows = [next(batches).num_rows]
    assert sum(fetched) <= 16
    rows += [batch.num_rows for batch in batches]
    assert sum(fetched) == count
    assert round_trips(fetched) == waits
    assert sum(rows) == sum(whole) == count * events
    assert len(rows) <= len(whole) + 3


def read_values(values: RevisionedStream) -> Iterator[RevisionedValue]:
    return values.read_from(values.fetch_oldest_revision())


def read_by_group(manager: StreamManager) -> object:
    group = manager.create_reader_group("s/g", [S])
    with group.create_reader("r") as reader:
        event = reader.read_next_event(5).event
        assert event is not None
        return event.data


@pytest.mark.parametrize(
    "first",
    [
        lambda manager: next(manager.read(S)).data,
        lambda manager: next(manager.follow(S, StreamCut.EARLIEST)).data,
        lambda manager: (
            next(manager.create_reader(S).read_range(manager.segment_ranges(S)[0])).data
        ),
        read_by_group,
        lambda manager: next(read_values(manager.revisioned_stream(S))).value,
    ],
    ids=["read", "follow", "range", "group", "revisioned"],
)
def test_who_reads_event_by_event_begins_with_few_chunks(
    first: Callable[[StreamManager], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = StreamManager(f"memory://{uuid.uuid4().hex}")
    manager.create_scope("s")
    manager.create_stream(S)
    with manager.create_writer(S) as writer:
        for number in range(60):
            writer.write_event(b"%d" % number, "k").result()
    fetched = fetches(monkeypatch)
    assert first(manager) == b"0"
    assert fetched == [16]


def test_known_chunks_are_read_without_any_call_to_the_log() -> None:
    stream, rng, refs = chunked(3)
    stream, spy = reopen(stream), spy_of(stream)
    spy.calls.clear()
    assert read(stream, rng, refs) == (list(range(15)), [])
    assert {key for _, key in spy.calls} == {f"{stream.path}/{ref.path}" for ref in refs}
    assert len(spy.calls) == len(refs)


def test_chunks_that_move_twice_during_a_read_are_found_again() -> None:
    stream, rng, refs = chunked(4)
    batches = read_range(reopen(stream), rng, refs, columns=["event"], batch_rows=5)
    events = next(batches).column("event").to_pylist()
    for _ in range(2):
        edit(stream, stream.chunks(rng), moved=True)
    events += [event for batch in batches for event in batch.column("event").to_pylist()]
    assert list(map(int, events)) == list(range(20))


@pytest.mark.parametrize("known", [True, False])
def test_lost_file_is_looked_up_a_bounded_number_of_times_and_then_is_data_loss(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, rng, refs = chunked(3)
    stream.store.delete([f"{stream.path}/{refs[1].path}"])
    stream = reopen(stream)
    found = counted(stream, monkeypatch)
    with pytest.raises(DataLoss, match=r"segment 0#0 \[5, 10\) is lost: .*restore"):
        read(stream, rng, refs if known else None, strict=True)
    assert len(found) == LOOK_UPS + (not known)


def test_policy_skips_a_lost_file_and_reads_the_chunks_around_it() -> None:
    stream, rng, refs = chunked(5)
    stream.store.delete(f"{stream.path}/{refs[n].path}" for n in (1, 3))
    rest = [*range(5), *range(10, 15), *range(20, 25)]
    for known in (refs, None):
        lost = [(5, 10, DataLoss), (15, 20, DataLoss)]
        assert read(reopen(stream), rng, known) == (rest, lost)


def test_policy_skips_exactly_the_events_that_no_chunk_of_the_log_holds() -> None:
    stream, rng, refs = chunked(5)
    edit(stream, [refs[1], refs[2], refs[4]], moved=False)
    rest = [*range(5), *range(15, 20)]
    for known in (refs, None):
        lost = [(5, 15, DataLoss), (20, 25, DataLoss)]
        assert read(reopen(stream), rng, known) == (rest, lost)
    with pytest.raises(DataLoss, match="no chunk with offset 5"):
        read(reopen(stream), rng, refs, strict=True)


def test_policy_skips_truncated_events_up_to_the_head() -> None:
    stream, rng, refs = chunked(5)
    truncate(stream, {0: 12})
    for known in (refs, None):
        assert read(reopen(stream), rng, known) == (
            list(range(12, 25)),
            [(0, 12, TruncatedData)],
        )
        with pytest.raises(TruncatedData, match="continue from the head"):
            read(reopen(stream), rng, known, strict=True)
