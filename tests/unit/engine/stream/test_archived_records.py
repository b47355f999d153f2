"""Records that a sweep archived, and writers and groups that return later."""

from __future__ import annotations

import pytest

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.log.files import RecentLayer
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.log.stored_state import encode_state
from pravega_spark.engine.log.sweep import SweepResult
from pravega_spark.engine.stream import archived_records, lifecycle, subscribers
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.stream_sweep import sweep_deleted_stream, sweep_stream
from pravega_spark.engine.writing.identity import NumberedBatch, SessionBatch, open_session
from pravega_spark.errors import CommitUnknown, CorruptLog
from pravega_spark.txn import lifecycle as txn_lifecycle
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.spy_store import Spy

HOUR_MS = 3_600_000


class Old:
    """A stream that a writer, a query and a group used long ago, with newer commits."""

    def __init__(self, others: int = 0) -> None:
        self.runtime = FakeRuntime()
        self.store = Spy(memory(self.runtime))
        self.stream = make_stream(self.store, self.runtime)
        open_session(self.stream, 1, "w")
        write(self.stream, [("k", b"1")], SessionBatch("w", 1, 0, 3, "note"))
        write(self.stream, [("k", b"1")], NumberedBatch("a query / of 1", 7))
        subscribers.subscribe(self.stream, "s/g", 4)
        subscribers.unsubscribe(self.stream, "s/g", 5)
        for n in range(others):
            open_session(self.stream, 1, f"other{n}")
        self.later()

    def later(self) -> None:
        self.runtime.sleep(10 * 3_600)
        write(self.stream, [("k", b"later")])
        write(self.stream, [("k", b"later")])
        self.runtime.sleep(3 * 3_600)

    def process(self) -> StreamLog:
        return reopen(self.stream)

    def sweep(self, hours: int | None = 6) -> SweepResult:
        ages_ms = {"grace_ms": 2 * HOUR_MS, "retain_ms": 8 * HOUR_MS, "completed_ms": HOUR_MS}
        records_ms = None if hours is None else hours * HOUR_MS
        return sweep_stream(self.process(), **ages_ms, records_ms=records_ms)

    def archives(self, name: str) -> list[str]:
        """Return the keys of the archives of a record."""
        folder = archived_records.archive_folder(self.stream.path)
        keys = [entry.key for entry in self.store.list(folder)]
        return [key for key in keys if b'"name":"%b"' % name.encode() in self.store.get(key)]

    def domains(self) -> set[str]:
        prefixes = ("pravega.writer", "pravega.note", "pravega.subscriber")
        return {n for n in self.process().view().snapshot.domains if n.startswith(prefixes)}


def test_no_record_is_archived_by_default() -> None:
    old = Old()
    before = old.domains()
    assert len(before) == 4
    assert old.sweep(None).records == 0
    assert old.domains() == before
    assert old.sweep(100).records == 0
    assert old.domains() == before


def test_state_does_not_grow_with_writers_that_do_not_return() -> None:
    sizes = []
    for others in (20, 200):
        old = Old(others)
        assert old.sweep().records == others + 3
        sizes.append(
            len(encode_state(old.process().view().snapshot, RecentLayer(-1), FileTotals()))
        )
    assert abs(sizes[0] - sizes[1]) < 20


def test_writer_that_returns_continues_from_its_record() -> None:
    old = Old()
    old.sweep()
    assert old.domains() == set()
    record = open_session(old.process(), 1, "w")
    assert (record.session, record.last, record.note, record.note_number) == (2, 3, "note", 3)
    write(old.process(), [("k", b"x")], SessionBatch("w", 2, 3, 4))
    old.later()
    old.sweep()  # archives it again; the newer record counts
    record = open_session(old.process(), 1, "w")
    assert (record.session, record.last, record.note) == (3, 4, "note")


def test_open_writer_whose_record_was_archived_is_refused() -> None:
    old = Old()
    old.sweep()
    with pytest.raises(CommitUnknown, match="open a new writer"):
        write(old.stream, [("k", b"x")], SessionBatch("w", 1, 3, 4))
    with pytest.raises(CommitUnknown, match="open a new writer"):
        write(old.stream, [("k", b"x")], SessionBatch("w", 1, 0, 3))


def test_repeated_batch_of_an_archived_query_is_a_duplicate() -> None:
    old = Old()
    old.sweep()
    assert write(old.stream, [("k", b"x")], NumberedBatch("a query / of 1", 7)).duplicate
    assert not write(old.stream, [("k", b"x")], NumberedBatch("a query / of 1", 8)).duplicate
    assert write(old.process(), [("k", b"x")], NumberedBatch("a query / of 1", 8)).duplicate
    assert not write(old.stream, [("k", b"x")], NumberedBatch("another", 1)).duplicate


def test_generation_of_a_removed_group_continues() -> None:
    old = Old()
    old.sweep()
    assert subscribers.subscribe(old.stream, "s/g", 5) == 5
    assert old.stream.view().subscriber("s/g") is None, "it is not newer than the archived one"
    assert not subscribers.unsubscribe(old.stream, "s/g", 5)
    assert not subscribers.unsubscribe(old.stream, "s/g"), "it was removed before"
    assert subscribers.subscribe(old.stream, "s/g") == 6


def test_writer_with_an_open_transaction_and_a_present_subscriber_are_kept() -> None:
    old = Old()
    record = open_session(old.stream, 1, "w")
    txn_lifecycle.begin(old.stream, 1, lease_ms=1, execution_ms=10, writer=record)
    subscribers.subscribe(old.stream, "s/g", 6)
    old.later()
    old.sweep()
    assert old.domains() == {"pravega.writer.w", "pravega.note.w", "pravega.subscriber.s/g"}


def test_writer_that_returns_during_a_sweep_is_kept() -> None:
    old = Old()
    with at_failpoint("sweep.history", lambda: open_session(old.process(), 1, "w")):
        old.sweep()
    assert {"pravega.writer.w", "pravega.note.w"} <= old.domains()
    write(old.process(), [("k", b"x")], SessionBatch("w", 2, 3, 4))


def test_sweep_that_is_killed_before_its_commit_changes_no_record() -> None:
    old = Old()

    with at_failpoint("sweep.history", kill), pytest.raises(Killed):
        old.sweep()
    assert len(old.domains()) == 4
    write(old.process(), [("k", b"x")], SessionBatch("w", 1, 3, 4))
    old.later()
    old.sweep()
    assert open_session(old.process(), 1, "w").last == 4


def test_archived_records_do_not_reach_the_next_life() -> None:
    old = Old()
    old.sweep()
    configuration = old.stream.view().record.configuration
    lifecycle.seal(old.stream)
    lifecycle.delete(old.stream)
    lifecycle.create(old.stream, 2, configuration)
    assert open_session(old.process(), 2, "w").session == 1


def test_sweep_of_a_deleted_stream_deletes_its_archive() -> None:
    old = Old()
    old.sweep()
    assert old.store.list(archived_records.archive_folder(old.stream.path))
    lifecycle.seal(old.stream)
    lifecycle.delete(old.stream)
    now = VersionAges.read(old.stream.log).now
    sweep_deleted_stream(old.process(), grace_ms=HOUR_MS, retain_ms=HOUR_MS, now=now)
    assert not old.store.list(archived_records.archive_folder(old.stream.path))


def test_damaged_record_is_reported() -> None:
    old = Old()
    old.sweep()
    for entry in old.store.list(f"{old.stream.path}/_pravega/moved"):
        old.store.put(entry.key, old.store.get(entry.key).replace(b"3", b"2"))
    with pytest.raises(CorruptLog, match="restore it from a copy"):
        open_session(old.process(), 1, "w")


def test_streams_without_archived_records_are_not_searched() -> None:
    old = Old()
    old.store.calls.clear()
    open_session(old.stream, 1, "new")
    assert old.store.count("list") == 0
    old.sweep()
    assert archived_records.MOVED_DOMAIN in old.process().view().snapshot.domains


def test_record_that_is_archived_again_and_again_has_one_object() -> None:
    old = Old()
    old.sweep()
    for last in range(3, 9):
        session = open_session(old.process(), 1, "w").session
        write(old.process(), [("k", b"x")], SessionBatch("w", session, last, last + 1))
        old.later()
        old.later()
        old.sweep()
        assert open_session(old.process(), 1, "w").last == last + 1
        assert len(old.archives("pravega.writer.w")) == 1
    assert old.archives("pravega.subscriber.s/g"), "other records stay"


def test_archive_that_a_retained_version_needs_is_kept() -> None:
    old = Old()
    old.sweep()
    (first,) = old.archives("pravega.writer.w")
    without = old.process().view().snapshot
    session = open_session(old.process(), 1, "w").session
    write(old.process(), [("k", b"x")], SessionBatch("w", session, 3, 4))
    old.later()
    ages_ms = dict.fromkeys(("grace_ms", "completed_ms"), HOUR_MS)
    sweep_stream(old.process(), **ages_ms, retain_ms=80 * HOUR_MS, records_ms=6 * HOUR_MS)
    assert old.archives("pravega.writer.w")[0] == first
    assert len(old.archives("pravega.writer.w")) == 2
    known = archived_records.read_archived_writers(old.store, old.stream.path, without, 1)
    assert known["pravega.writer.w"] == "[1,3,2]"


@pytest.mark.parametrize("point", ["sweep.archived", "sweep.history"])
def test_sweep_that_is_killed_while_it_archives_again_loses_no_record(point: str) -> None:
    old = Old()
    old.sweep()
    session = open_session(old.process(), 1, "w").session
    write(old.process(), [("k", b"x")], SessionBatch("w", session, 3, 4))
    for _ in range(2):
        old.later()
    with at_failpoint(point, kill), pytest.raises(Killed):
        old.sweep()
    assert open_session(old.process(), 1, "w").last == 4
    for _ in range(2):
        old.later()
    with at_failpoint("sweep.archived", old.sweep):  # another sweep at the same time
        old.sweep()
    assert open_session(old.process(), 1, "w").last == 4
    assert len(old.archives("pravega.writer.w")) == 1


def test_look_up_that_a_sweep_overtakes_finds_the_newer_record() -> None:
    old = Old()
    old.sweep()

    def overtake(operation: str, key: str) -> None:
        if operation == "get" and "/moved/" in key:  # the archive is listed, but not read
            old.store.hook = None
            session = open_session(old.process(), 1, "w").session
            write(old.process(), [("k", b"x")], SessionBatch("w", session, 3, 4))
            old.later()
            old.later()
            old.sweep()

    view = old.stream.view()
    old.store.hook = overtake
    found = archived_records.find_writer(old.stream, view, "w")
    assert found is not None
    assert found.last == 4
