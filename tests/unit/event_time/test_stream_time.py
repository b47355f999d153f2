"""Times that writers note, in the log: marks, watermarks, windows and cuts, of real streams.

The log and the writers' queue are looked into: which commit holds a note, and which records stay,
no public call tells. The pause between automatic notes is shortened, as no test waits five seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.config.descriptions import TimeWindow, Watermark
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream.history import read_history
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.writing import noted_times
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    InvalidPosition,
    InvalidStreamCut,
    InvalidTime,
    NoSuchStream,
    StreamSealed,
    WriterFenced,
)
from pravega_spark.event_time import update as watermark_update
from pravega_spark.event_time.stream_time import StreamTime
from pravega_spark.event_writer import EventStreamWriter, queue_of
from pravega_spark.manager import root_of
from pravega_spark.values.segments import StreamCut
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.small_streams import make_stream, reopen
from tests.harness.spy_store import Spy

S, G = "s/t", "s/g"
MINUTE = 60.0


class World:
    def __init__(self, segments: int = 2) -> None:
        self.runtime = FakeRuntime()
        self.manager = manager_of(self.runtime)
        self.manager.create_scope("s")
        self.manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(segments)))

    @property
    def time(self) -> StreamTime:
        return self.manager.event_time(S)

    @property
    def log(self) -> StreamLog:
        return open_stream(root_of(self.manager).store, S, self.runtime)

    def writer(self, writer_id: str | None = None) -> EventStreamWriter:
        return self.manager.create_writer(S, writer_id)

    def domains(self, prefix: str) -> set[str]:
        names = self.log.view().snapshot.names(prefix)
        return {name.removeprefix(prefix) for name in names}

    def version(self) -> int:
        return self.log.view().version


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.manager.close()


def bounds(found: Watermark | None) -> tuple[int, int] | None:
    return None if found is None else (found.lower_us // 1_000, found.upper_us // 1_000)


# ---------------------------------------------------------------------------------------- notes


def calls_of(notes: bool) -> list[str]:
    """The storage calls of two flushes, without the names of what they write."""
    store = Spy()
    stream = make_stream(store, SYSTEM)
    with EventStreamWriter(reopen(stream), "w") as writer:
        writer.write_event(b"warm", "k").result()
        store.calls.clear()
        for n in range(2):
            with _held(writer):
                writer.write_event(b"event", "k")
                if notes:
                    writer.note_time(n)
            writer.flush()
        return [operation for operation, _ in store.calls]


class _held:
    """Keeps the writer's threads from taking a part of what is written in the block."""

    def __init__(self, writer: EventStreamWriter) -> None:
        self._queue = queue_of(writer)

    def __enter__(self) -> None:
        self._queue.is_idle = False

    def __exit__(self, *_: object) -> None:
        self._queue.is_idle = True
        self._queue.wake()


def test_a_note_beside_events_costs_no_storage_call() -> None:
    assert calls_of(notes=True) == calls_of(notes=False)


def test_a_note_is_in_the_commit_of_the_events_before_it(world: World) -> None:
    with world.writer("w") as writer:
        with _held(writer):
            written = writer.write_event(b"1", "k")
            noted = writer.note_time(100)
        assert noted.result() == ()
        (mark,) = world.time.marks()
        assert (mark.writer_id, mark.time_us, mark.is_alive) == ("w", 100_000, True)
        assert mark.version == world.version()
        assert mark.cut.positions[written.result().segment_id] == 1
        commit = world.log.log.reader.commit(mark.version, light=True)
        assert commit is not None
        assert commit.operation == "APPEND"


def test_an_unnoted_stream_has_no_time_at_all(world: World) -> None:
    with world.writer() as writer:
        writer.write_event(b"1")
    before = world.version()
    assert world.time.update() == (None, (), ())
    assert world.version() == before, "nothing is committed if nothing follows"
    assert (world.time.watermark(), world.time.watermarks(), world.time.marks()) == (None, [], [])
    assert world.domains("pravega.mark.") == world.domains("pravega.watermark.") == set()
    assert world.manager.stream_info(S).watermark is None
    assert world.time.window_at(world.manager.tail(S)) == TimeWindow(None, None)


def test_a_time_is_a_datetime_with_a_zone_or_whole_milliseconds(world: World) -> None:
    with world.writer("w") as writer:
        writer.note_time(datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))).result()
        (mark,) = world.time.marks()
        assert mark.time == datetime(2026, 7, 1, 10, tzinfo=timezone.utc)
        for wrong in (True, 1.5, "noon", None, datetime(2026, 7, 1)):
            with pytest.raises(InvalidInput, match="ms since 1970"):
                writer.note_time(wrong)  # type: ignore[arg-type]


def test_a_time_never_goes_back_also_not_over_a_restart(world: World) -> None:
    with world.writer("w") as writer:
        writer.note_time(100)
        writer.note_time(100).result()
        with pytest.raises(InvalidTime, match="100000 us and now 99000 us") as raised:
            writer.note_time(99)
        assert (raised.value.writer_id, raised.value.last_us) == ("w", 100_000)
    with world.writer("w") as writer:
        with pytest.raises(InvalidTime):
            writer.note_time(99)
        writer.note_time(101).result()
        writer.write_event(b"the writer works on").result()
    assert [mark.time_us for mark in world.time.marks()] == [101_000]


def test_a_writer_notes_the_time_by_itself_until_it_ends_or_the_application_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noted_times, "AUTOMATIC_NOTE_SECONDS", 0.001)
    before = set(threading.enumerate())
    writer = world.manager.create_writer(S, automatically_note_time=True)
    (thread,) = (
        one for one in set(threading.enumerate()) - before if one.name.startswith("pravega-times")
    )
    with pytest.raises(IllegalState, match="automatically"):
        writer.note_time(1)
    while not world.time.marks():
        time.sleep(0.001)
    (mark,) = world.time.marks()
    now_ms = world.runtime.now_ms()
    assert now_ms - 60_000 < mark.time_us / 1_000 < now_ms
    world.runtime.wall_ms -= 10_000  # the host's clock is set back
    writer.flush()
    version = world.version()
    time.sleep(0.02)  # many notes
    assert world.version() == version
    world.runtime.wall_ms += 20_000
    while world.time.marks()[0].time_us == mark.time_us:
        time.sleep(0.001)
    writer.close()
    thread.join(60)
    assert not thread.is_alive()
    assert not world.time.marks()[0].is_alive


def test_closing_says_that_the_writer_left(world: World) -> None:
    world.writer("quiet").close()
    with world.writer("w") as writer:
        writer.note_time(5)
    (mark,) = world.time.marks()
    assert (mark.time_us, mark.is_alive) == (5_000, False)
    with world.writer("w") as writer:
        writer.write_event(b"back").result()
        assert not world.time.marks()[0].is_alive, "it counts from its next note on"
        writer.note_time(6).result()
        assert world.time.marks()[0].is_alive


def seal(world: World) -> None:
    world.manager.seal_stream(S)


def delete(world: World) -> None:
    seal(world)
    world.manager.delete_stream(S)


def fence(world: World) -> None:
    world.writer("w")


@pytest.mark.parametrize("end", [seal, delete, fence])
def test_a_writer_that_cannot_say_that_it_leaves_is_closed_all_the_same(
    world: World, end: Callable[[World], None]
) -> None:
    writer = world.writer("w")
    writer.write_event(b"durable", "k")
    writer.note_time(1).result()
    end(world)
    writer.close()


def test_a_note_that_is_lost_is_an_error(world: World) -> None:
    writer = world.writer("w")
    fence(world)
    writer.note_time(1)
    with pytest.raises(WriterFenced):
        writer.close()


def test_a_note_survives_the_loss_of_the_writers_record(world: World) -> None:
    writer = world.writer()
    writer.write_event(b"1", "k")
    writer.note_time(5).result()
    first = writer.writer_id
    log = world.log
    gone = Body("TEST", domains={f"pravega.writer.{first}": None})
    log.commit(lambda view: (gone, None), life=1)
    writer.note_time(6).result()
    assert writer.writer_id != first
    assert [(mark.writer_id, mark.time_us) for mark in world.time.marks()] == [(first, 6_000)]
    writer.close()
    assert [mark.is_alive for mark in world.time.marks()] == [False]


# ----------------------------------------------------------------------------------- watermarks


def test_the_watermark_is_the_earliest_writers_and_is_recorded_once(world: World) -> None:
    with world.writer("a") as a, world.writer("b") as b:
        a.write_event(b"1", "x")
        a.note_time(100).result()
        b.write_event(b"2", "y")
        b.note_time(300).result()
        before = world.time.watermark()
        assert before is not None
        assert (bounds(before), before.version) == ((100, 300), None)
        assert world.time.update(dry_run=True).watermark == world.time.update().watermark
        version = world.version()
        (recorded,) = world.time.watermarks()
        assert (recorded.version, recorded.cut) == (version, before.cut)
        assert recorded.cut == world.manager.tail(S)
        assert world.manager.stream_info(S).watermark == recorded
        assert names_of(world.time.update().held_by) == {"a"}
        assert world.version() == version
        a.note_time(200).result()
        assert bounds(world.time.update().watermark) == (200, 300)
        assert [found.version for found in world.time.watermarks()] == [version, version + 2]


def names_of(marks: tuple[object, ...]) -> set[str]:
    return {mark.writer_id for mark in marks}  # type: ignore[attr-defined]


def test_a_writer_that_left_is_used_once_and_leaves_the_log(world: World) -> None:
    with world.writer("a") as a:
        a.note_time(100).result()
        with world.writer("b") as b:
            b.write_event(b"the last word", "k")
            b.note_time(50)
        update = world.time.update()
        assert (bounds(update.watermark), names_of(update.dropped)) == ((100, 100), {"b"})
        assert update.watermark is not None
        assert update.watermark.cut == world.manager.tail(S), "b's position counts in the cut"
        assert world.domains("pravega.mark.") == {"a"}
    assert names_of(world.time.update().dropped) == {"a"}
    assert world.domains("pravega.mark.") == set()
    version = world.version()
    assert world.time.update() == (None, (), ())
    assert world.version() == version


def test_a_silent_writer_is_dropped_late_and_may_come_back(world: World) -> None:
    world.manager.update_stream(S, settings={"timestamp_aggregation_timeout": "2 minutes"})
    silent, busy = world.writer("silent"), world.writer("busy")
    silent.note_time(100).result()
    busy.note_time(200).result()
    assert bounds(world.time.update().watermark) == (100, 200)
    busy.note_time(300).result()
    world.runtime.sleep(2 * MINUTE - 10)
    assert world.time.update().watermark is None
    world.runtime.sleep(11)
    busy.note_time(400).result()
    update = world.time.update()
    assert (bounds(update.watermark), names_of(update.dropped)) == ((400, 400), {"silent"})
    silent.note_time(150).result()  # back, with what is late
    busy.note_time(500).result()
    assert world.time.update().watermark is None, "it holds the next watermark"
    assert bounds(world.time.watermark()) == (400, 400)
    silent.note_time(450).result()
    assert bounds(world.time.update().watermark) == (450, 500)
    silent.close()
    busy.close()


def test_one_lie_about_the_future_moves_no_lower_bound_of_others(world: World) -> None:
    with world.writer("liar") as liar, world.writer("b") as b:
        far = 200_000_000_000_000
        b.note_time(100).result()
        liar.note_time(far).result()
        assert bounds(world.time.update().watermark) == (100, far)
        assert world.time.remove_mark("liar")
        b.note_time(200).result()
        assert bounds(world.time.update().watermark) == (200, far), "bounds never go back"
        assert world.domains("pravega.mark.") == {"b"}


def test_removing_a_mark_is_refused_by_a_note_at_the_same_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.writer("w") as writer, world.writer("other") as other:
        writer.write_event(b"1", "k")
        writer.note_time(1).result()
        removing = world.time

        def note_first(log: StreamLog, *arguments: Any, **options: Any) -> Any:
            monkeypatch.undo()
            writer.note_time(2).result()
            return log.commit(*arguments, **options)

        monkeypatch.setattr(StreamLog, "commit", note_first)
        assert not removing.remove_mark("w")
        assert [mark.time_us for mark in removing.marks()] == [2_000]
        assert not removing.remove_mark("nobody")
        assert removing.remove_mark("w")
        assert not removing.remove_mark("w")
        assert removing.marks() == []
        assert bounds(removing.watermark()) == (2, 2), "what was shown stays"
        other.note_time(3).result()
        found = removing.update().watermark
        assert found is not None
        assert found.cut == world.manager.tail(S), "the position of the removed mark counts"


def test_the_cut_stays_behind_the_position_of_a_removed_writer(world: World) -> None:
    with world.writer("old") as old, world.writer("w") as writer:
        writer.write_event(b"of the time 50", "k")
        writer.note_time(60).result()
        old.note_time(100).result()
        assert world.time.remove_mark("w")
        found = world.time.update().watermark
        assert found is not None
        assert (bounds(found), found.cut) == ((100, 100), world.manager.tail(S))


def test_a_job_notes_by_hand_and_only_forward(world: World) -> None:
    with world.writer() as writer:
        first = writer.write_event(b"1", "k").result()
        middle = world.manager.tail(S)
        writer.write_event(b"2", "k").result()
    tail, time = world.manager.tail(S), world.time
    mark = time.note("job", 100, position=middle)
    assert (mark.cut, mark.version) == (middle, world.version())
    with pytest.raises(InvalidTime):
        time.note("job", 99)
    assert time.note("job", 100).cut == tail
    with pytest.raises(InvalidPosition, match="behind that") as raised:
        time.note("job", 101, position=middle)
    assert (raised.value.position, raised.value.last) == (middle, tail)
    beyond = StreamCut(S, 1, {**tail.positions, first.segment_id: 7})
    with pytest.raises(InvalidStreamCut):
        time.note("job", 101, position=beyond)
    world.manager.seal_stream(S)
    with pytest.raises(StreamSealed):
        time.note("job", 102)
    assert bounds(time.update().watermark) == (100, 100)


def test_positions_by_hand_are_joined_at_the_furthest_of_every_key(world: World) -> None:
    with world.writer() as writer:
        for n in range(20):
            writer.write_event(b"%d" % n, f"k{n}").result()
    tail = world.manager.tail(S)
    low, high = tail.positions
    world.time.note("a", 1, StreamCut(S, 1, {low: 1, high: tail.positions[high]}))
    world.time.note("b", 2, StreamCut(S, 1, {low: tail.positions[low], high: 2}))
    found = world.time.update().watermark
    assert found is not None
    assert found.cut == tail


def test_marks_and_watermarks_end_with_the_life_of_their_stream(world: World) -> None:
    old = world.time
    with world.writer("w") as writer:
        writer.note_time(5)
    old.update()
    world.manager.seal_stream(S)
    world.manager.delete_stream(S)
    with pytest.raises(NoSuchStream):
        old.update()
    world.manager.create_stream(S)
    assert (world.time.marks(), world.time.watermarks()) == ([], [])
    with world.writer("w") as writer:
        writer.note_time(1).result()
        assert bounds(world.time.watermark()) == (1, 1)


# --------------------------------------------------------------------------------- transactions


def test_the_timestamp_of_a_commit_is_noted_at_the_merged_events(world: World) -> None:
    writer = world.manager.create_transactional_writer(S, "tw")
    one, two = writer.begin_transaction(), writer.begin_transaction()
    one.write_event(b"1", "k")
    two.write_event(b"2", "k")
    times = [datetime(2026, 7, 1, hour, tzinfo=timezone.utc) for hour in (1, 2)]
    one.commit(timestamp=times[1], wait=False)
    two.commit(timestamp=times[0])
    (mark,) = world.time.marks()
    assert (mark.writer_id, mark.time, mark.cut) == ("tw", times[1], world.manager.tail(S))
    late = writer.begin_transaction()
    late.write_event(b"3", "k")
    late.commit(timestamp=times[0])
    (mark,) = world.time.marks()
    assert (mark.time, mark.cut) == (times[1], world.manager.tail(S)), "a time never goes back"
    with writer.begin_transaction() as silent:
        silent.write_event(b"4", "k")
    writer.close()


def test_a_rolling_commit_notes_at_the_end_of_what_it_rolled(world: World) -> None:
    writer = world.manager.create_transactional_writer(S, "tw")
    late = writer.begin_transaction()
    late.write_event(b"late", "k")
    late.flush()
    world.manager.scale_stream(S, [0], [(0.0, 0.25), (0.25, 0.5)])
    late.commit(timestamp=datetime(2026, 7, 1, tzinfo=timezone.utc))
    (mark,) = world.time.marks()
    assert mark.cut == world.manager.tail(S)
    found = world.time.update().watermark
    assert found is not None
    read = [event.data for event in world.manager.read(S, "earliest", found.cut)]
    assert read == [b"late"]
    writer.close()


def test_a_transaction_without_a_writers_id_notes_nothing(world: World) -> None:
    writer = world.manager.create_transactional_writer(S)
    with writer.begin_transaction() as transaction:
        transaction.write_event(b"1", "k")
        transaction.commit(timestamp=datetime(2026, 7, 1, tzinfo=timezone.utc))
    assert world.time.marks() == []
    writer.close()


# --------------------------------------------------------------------------- windows and look-up


def test_the_window_of_a_reader_follows_the_watermarks_that_it_passed(world: World) -> None:
    with world.writer("w") as writer:
        for n in range(1, 5):
            writer.write_event(b"%d" % n, "k").result()
            writer.note_time(100 * n).result()
            world.time.update()
    reader = world.manager.create_reader(S)
    assert reader.current_time_window() == TimeWindow()
    found = []
    for _ in reader.events():
        window = reader.current_time_window()
        found.append((window.lower_us, window.upper_us))
    us = 100_000
    assert found == [(us, 2 * us), (2 * us, 3 * us), (3 * us, 4 * us), (4 * us, None)]
    follower = world.manager.create_reader(S)
    next(follower.follow("earliest"))
    assert follower.current_time_window().lower == datetime(1970, 1, 1, 0, 0, 0, us, timezone.utc)


def test_a_group_is_at_the_earliest_of_its_readers(world: World) -> None:
    with world.writer("w") as writer:
        for n in range(1, 4):
            for key in ("a", "b", "c", "d"):
                writer.write_event(b"%d" % n, key)
            writer.flush()
            writer.note_time(100 * n).result()
            world.time.update()
    group = world.manager.create_reader_group(G, [S])
    first = group.create_reader("first")
    with pytest.raises(InvalidInput, match="does not read stream"):
        first.current_time_window("s/other")
    assert first.current_time_window(S) == TimeWindow(None, 100_000)
    lowers = []
    for _ in range(12):
        assert first.read_next_event(0).event is not None
        lowers.append(first.current_time_window(S).lower_us)
    assert lowers == sorted(lowers, key=lambda time: time or 0)
    assert first.current_time_window(S) == TimeWindow(300_000, None)


def test_another_readers_position_holds_the_window_of_the_group(world: World) -> None:
    keys = [f"k{n}" for n in range(8)]
    with world.writer("w") as writer:
        for n in range(1, 3):
            for key in keys:
                writer.write_event(b"%d" % n, key)
            writer.flush()
            writer.note_time(100 * n).result()
            world.time.update()
    group = world.manager.create_reader_group(G, [S])
    fast, slow = group.create_reader("fast"), group.create_reader("slow")
    for _ in range(3):
        world.runtime.sleep(10)
        fast.read_next_event(0)
        slow.read_next_event(0)
    while fast.read_next_event(0).event is not None:
        pass
    assert len(fast.position.offsets) == len(slow.position.offsets) == 1
    window = TimeWindow(None, 200_000)
    assert fast.current_time_window(S) == window, "the first watermark is passed at some keys only"


def test_cuts_by_time_enclose_the_events_of_the_time(world: World) -> None:
    with world.writer("w") as writer:
        for n in range(1, 6):
            writer.write_event(b"%d" % (100 * n - 50), "k").result()
            writer.note_time(100 * n).result()
            world.time.update()
    time = world.time
    for asked, expected in (
        (0, []),
        (100, [50]),
        (101, [50, 150]),
        (500, [50, 150, 250, 350, 450]),
    ):
        cut = time.cut_at(asked)
        assert cut is not None
        read = [int(event.data) for event in world.manager.read(S, "earliest", cut)]
        assert read[: len(expected)] == expected
        assert [n for n in (50, 150, 250, 350, 450) if n < asked] == [n for n in read if n < asked]
    assert time.cut_at(501) is None
    assert time.cut_before(100) == world.manager.head(S)
    start = time.cut_before(301, stored_times=False)  # what is stored is the writer's clock
    read = [int(event.data) for event in world.manager.read(S, start)]
    assert read == [350, 450]
    assert time.cut_before(301) == world.manager.head(S), "all is stored as later"
    world.manager.truncate_stream(S, start)
    assert time.cut_at(100) == world.manager.head(S), "what is truncated is not returned"
    assert time.window_at(world.manager.head(S)).lower_us == 300_000


def write_times(writer: EventStreamWriter, *times: int) -> None:
    """Write events with these times, in ms since 1970, which are stored."""
    stamps = pa.array([1_000 * time for time in times], pa.timestamp("us", "UTC"))
    writer.write_table(pa.table({"event": [b"%d" % time for time in times], "timestamp": stamps}))
    writer.flush()


def test_cut_before_a_time_has_no_event_of_it_before_it_whatever_was_noted_by_then(
    world: World,
) -> None:
    with world.manager.create_writer(
        S,
        "late",
        event_time=lambda event: 0,
        event_time_delay="2 s",  # tables have the column
    ) as writer:
        write_times(writer, 1_000, 2_000)
        world.time.update()
        write_times(writer, 10_000, 13_000, 12_500)  # noted is 11,000
        world.time.update()
        early = world.time.cut_before(12_000)
        assert {int(e.data) for e in world.manager.read(S, early)} == {10_000, 13_000, 12_500}
        assert world.time.cut_before(13_001) == world.time.cut_before(20_000)
        assert world.time.cut_before(20_000) == world.manager.tail(S)


def test_cut_before_a_time_takes_what_another_writer_wrote_after_its_last_note(
    world: World,
) -> None:
    with world.writer("a") as a, world.writer("b") as b:
        write_times(a, 100)
        for writer in (a, b):
            writer.note_time(100).result()
        world.time.update()
        write_times(b, 900)  # and b notes nothing yet
        a.note_time(500).result()
        b.note_time(400).result()
        world.time.update()
        found = world.time.cut_before(800)
        assert [int(event.data) for event in world.manager.read(S, found)] == [900]


@pytest.mark.medium
def test_old_watermarks_get_sparse_and_go_to_the_history(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermark_update, "MAX_WATERMARKS", 8)
    with world.writer("w") as writer:
        for n in range(1, 40):
            writer.write_event(b"%d" % n, "k").result()
            writer.note_time(n).result()
            world.time.update()
            assert len(world.time.watermarks()) <= 8
        kept = [found.lower_us // 1_000 for found in world.time.watermarks()]
        assert kept[0] == 1
        assert kept[-4:] == [36, 37, 38, 39]
        rows = [row for part in read_history(world.log, "watermark") for row in part]
        assert len({row.name for row in rows} | world.domains("pravega.watermark.")) >= 39
        world.manager.truncate_stream(S, world.manager.tail(S))
        for n in range(40, 45):
            writer.write_event(b"%d" % n, "k").result()
            writer.note_time(n).result()
            world.time.update()
        assert world.time.watermarks()[0].lower_us == 39_000, "those below the head leave first"
