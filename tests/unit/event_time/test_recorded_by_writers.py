"""Writers record the watermark about every 10 s, in commits of notes that they make anyway."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import watermarks_of
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.txn.writer import TransactionalWriter
from pravega_spark.values import limits
from tests.harness.fake_runtime import FakeRuntime, manager_of

S = "s/t"
SECONDS = 10.0
NOTES_SECONDS = limits.AUTOMATIC_NOTE_SECONDS
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class World:
    """A stream, whose writers are those of several processes, by one clock."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.manager: StreamManager = manager_of(self.runtime)
        self.manager.create_scope("s")
        self.manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2)))
        self.noted = 0

    def process(self) -> StreamLog:
        return StreamLog(root_of(self.manager).store, S, self.runtime)

    @property
    def view(self) -> StreamView:
        return self.process().view()

    @property
    def lowers(self) -> list[int]:
        return [one.lower_us for one in watermarks_of(self.view)]

    def note(self, *writers: EventStreamWriter) -> None:
        """Let each writer note the next second."""
        self.noted += 1
        for writer in writers:
            writer.note_time(EPOCH + timedelta(seconds=self.noted)).result()

    def work(self, seconds: float, *writers: EventStreamWriter) -> None:
        for _ in range(int(seconds / NOTES_SECONDS)):
            self.runtime.sleep(NOTES_SECONDS)
            self.note(*writers)


@pytest.fixture
def world() -> World:
    return World()


def test_writer_records_about_every_ten_seconds_and_makes_no_commit_more(world: World) -> None:
    with EventStreamWriter(world.process(), "w") as writer:
        before = world.view.version
        world.work(60 + NOTES_SECONDS, writer)
        notes = int(60 / NOTES_SECONDS) + 1
        assert world.view.version == before + notes
        assert len(world.lowers) == 60 / SECONDS
    gaps = {after - first for first, after in zip(world.lowers, world.lowers[1:], strict=False)}
    assert gaps == {SECONDS / NOTES_SECONDS * 1_000_000}, "one of two notes is recorded"


def test_process_that_lives_for_less_than_ten_seconds_records_none(world: World) -> None:
    with EventStreamWriter(world.process(), "w") as writer:
        world.work(2 * NOTES_SECONDS, writer)
    assert world.lowers == []


def test_what_is_recorded_is_what_the_marks_showed_before(world: World) -> None:
    time = world.manager.event_time(S)
    with EventStreamWriter(world.process(), "w") as writer:
        while not world.lowers:
            shown = time.watermark()
            world.work(NOTES_SECONDS, writer)
        (recorded,) = watermarks_of(world.view)
    assert shown is not None
    assert (recorded.lower_us, recorded.upper_us) == (shown.lower_us, shown.upper_us)
    assert recorded.cut == shown.cut


def test_writers_of_several_processes_share_the_pace(world: World) -> None:
    writers = [EventStreamWriter(world.process(), f"w{n}") for n in range(5)]
    world.work(120, *writers)
    assert 120 / (2 * SECONDS) - 1 <= len(world.lowers) <= 120 / SECONDS
    for writer in writers:
        writer.close()


def test_writer_that_is_behind_holds_what_is_recorded(world: World) -> None:
    """Nothing follows without a clock: its silence is a matter of maintenance."""
    slow, fast = (EventStreamWriter(world.process(), name) for name in ("slow", "fast"))
    world.note(slow, fast)
    world.work(120, fast)
    assert world.lowers == [1_000_000]
    slow.close()
    fast.close()


def test_full_state_gets_none_until_maintenance_has_thinned_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("engine.stream.watermarks", "event_time.update"):
        monkeypatch.setattr(f"pravega_spark.{module}.MAX_WATERMARKS", 8)
    with EventStreamWriter(world.process(), "w") as writer:
        world.work(200, writer)
        assert len(world.lowers) == 8
        full = world.lowers
        world.manager.event_time(S).update()
        assert len(world.lowers) < 8
        world.work(200, writer)
        assert len(world.lowers) == 8
        assert world.lowers[-1] > full[-1]


def test_reach_of_a_full_state_is_that_of_the_page() -> None:
    assert limits.MAX_WATERMARKS * SECONDS // 60 == 42
    assert SECONDS - limits.RECORD_WATERMARK_SECONDS < NOTES_SECONDS


def by_transactions(world: World) -> Callable[[int], Any]:
    writer = TransactionalWriter(world.process(), "w")

    def note(second: int) -> None:
        txn = writer.begin_transaction()
        txn.write_event(b"1")
        txn.commit(timestamp=EPOCH + timedelta(seconds=second))

    return note


def by_hand(world: World) -> Callable[[int], Any]:
    time = world.manager.event_time(S)
    return lambda second: time.note("w", EPOCH + timedelta(seconds=second))


@pytest.mark.parametrize("note_with", [by_transactions, by_hand])
def test_each_commit_that_notes_a_time_may_record(
    world: World, note_with: Callable[[World], Callable[[int], Any]]
) -> None:
    note = note_with(world)
    for second in range(1, 14):
        note(second)
        world.runtime.sleep(NOTES_SECONDS)
    assert len(world.lowers) == 60 / SECONDS
