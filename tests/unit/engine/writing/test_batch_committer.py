from __future__ import annotations

import pytest

from pravega_spark.engine.chunk_paths import staged_version, version_folder
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.stream.records import WRITER_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing import committer as writing_committer
from pravega_spark.engine.writing.batch import Entries, WriteBatch
from pravega_spark.engine.writing.committer import BatchCommitter
from pravega_spark.engine.writing.futures import EventOutcomes, PendingWrites, WriteFuture
from pravega_spark.errors import CommitUnknown
from pravega_spark.values.segments import EventPointer
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import all_events, events_of, make_stream, scale, write
from tests.harness.spy_store import Spy


class Batch(WriteBatch):
    """A batch with the futures of its events."""

    __slots__ = ("futures",)
    futures: list[WriteFuture[EventPointer]]


def pending(events: list[tuple[str | None, bytes]]) -> Batch:
    outcomes = EventOutcomes(PendingWrites())
    entries = Entries()
    futures = []
    for number, (key, event) in enumerate(events):
        future: WriteFuture[EventPointer] = WriteFuture()
        future._outcomes, future._number = outcomes, number
        futures.append(future)
        entries.extend((event, key, 1, number, outcomes))
    batch = Batch.of(entries)
    assert isinstance(batch, Batch)
    assert batch.entries == len(events)
    batch.futures = futures
    return batch


def keyed(count: int, tag: str = "") -> list[tuple[str | None, bytes]]:
    return [(f"k{i % 5}" if i % 3 else None, f"{tag}{i}".encode()) for i in range(count)]


def commit(committer: BatchCommitter, batch: WriteBatch) -> None:
    batch.complete(committer.commit(batch))


def check_pointers(stream: StreamLog, batch: Batch) -> None:
    found: dict[int, list[tuple[str | None, bytes]]] = {}
    for index, event in enumerate(batch.events):
        at = batch.futures[index].result(0)
        assert isinstance(at, EventPointer)
        segment = found.setdefault(at.segment_id, events_of(stream, at.segment_id))
        assert segment[at.offset] == (batch.keys[index], event)


@pytest.mark.medium
@pytest.mark.parametrize("segments", [1, 3, 300])
def test_pointers_lead_to_the_events(segments: int) -> None:
    stream = make_stream(segments=segments)
    committer = BatchCommitter(stream, None)
    for n in range(3):
        batch = pending(keyed(40, f"{n}-"))
        commit(committer, batch)
        check_pointers(stream, batch)
        write(stream, [("k1", b"another writer")])


def test_pointers_are_right_after_a_scale_between_batches_and_during_one() -> None:
    store = Spy()
    stream = make_stream(store)
    committer = BatchCommitter(stream, "w")
    commit(committer, pending(keyed(20)))
    scale(stream, [0], [(0, 0.5), (0.5, 1)])
    second = pending(keyed(20, "b"))
    commit(committer, second)
    check_pointers(stream, second)

    a, _ = stream.view().active.segment_ids

    def scale_while_staging(operation: str, key: str) -> None:
        if operation == "put" and "/data/" in key:
            store.hook = None
            scale(stream, [a], [(0, 0.25), (0.25, 0.5)])

    store.hook = scale_while_staging
    third = pending(keyed(20, "c"))
    commit(committer, third)
    check_pointers(stream, third)
    assert len(all_events(stream)) == 60


def test_events_without_a_key_are_routed_round_robin() -> None:
    stream = make_stream(segments=4)
    committer = BatchCommitter(stream, None)
    for n in range(8):
        commit(committer, pending([(None, b"%d" % n)]))
    assert [len(events_of(stream, s)) for s in range(4)] == [2, 2, 2, 2]


def test_chunks_staged_below_the_horizon_are_staged_again() -> None:
    stream = make_stream()
    committer = BatchCommitter(stream, None)
    commit(committer, pending([("k", b"0")]))
    for n in range(4):
        write(stream, [("k", b"x%d" % n)])
    raise_horizon(stream.log, 1)
    commit(committer, pending([("k", b"1")]))
    paths = [add.path for c in stream.log.reader.span(0, stream.view().version) for add in c.adds]
    assert paths[0].startswith(f"data/{version_folder(0)}/")
    assert int(paths[-1].split("/")[1][1:]) >= 1
    assert len(all_events(stream)) == 6


def test_staging_folder_advances_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing_committer, "RESTAGE_VERSIONS", 3)
    stream = make_stream()
    committer = BatchCommitter(stream, None)
    for n in range(9):
        commit(committer, pending([("k", b"%d" % n)]))
    paths = [add.path for commit in stream.log.reader.span(0, 9) for add in commit.adds]
    assert {staged_version(path) for path in paths} == {0, 4, 8}


def test_event_numbers_advance_only_after_a_commit() -> None:
    store = Spy()
    stream = make_stream(store)
    committer = BatchCommitter(stream, "w")
    commit(committer, pending(keyed(3)))
    assert committer.last == 3
    store.rules.add(Rule(Fault.LOSE_REQUEST, "put_if_absent"))
    with pytest.raises(CommitUnknown):
        commit(committer, pending(keyed(2)))
    assert committer.last == 3
    store.rules.clear()
    assert BatchCommitter(stream, "w").last == 3


@pytest.mark.parametrize("written", [0, 3])
def test_idle_writer_without_an_id_continues_after_a_sweep_dropped_its_record(written: int) -> None:
    stream = make_stream()
    committer = BatchCommitter(stream, None)
    if written:
        commit(committer, pending(keyed(written, "before-")))
    for n in range(5):
        write(stream, [("k", b"other %d" % n)])
    newest = stream.view()
    domain = f"{WRITER_PREFIX}{committer.writer_id}"
    raise_horizon(stream.log, newest.version, drop=lambda snapshot: [domain])

    late = pending(keyed(4, "after-"))
    commit(committer, late)

    check_pointers(stream, late)
    assert committer.last == written + 4
    mine = [event for event in all_events(stream) if b"-" in event[1]]
    assert len(mine) == written + 4
