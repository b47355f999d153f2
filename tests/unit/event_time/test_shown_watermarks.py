"""Whatever call shows a watermark, and whoever enters or leaves: it never goes back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta, timezone
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.descriptions import Watermark
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import MARK_PREFIX, WATERMARK_PREFIX
from pravega_spark.errors import InvalidInput, InvalidTime
from pravega_spark.manager import root_of
from pravega_spark.values.checks import MAX_TIME_US, MIN_TIME_US
from pravega_spark.values.segments import StreamCut
from tests.harness.fake_runtime import FakeRuntime, manager_of

S = "s/t"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class World:
    """A stream, what was shown of its event time so far, and what happens to it."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.manager = manager_of(self.runtime)
        self.manager.create_scope("s")
        self.manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2)))
        self.last: Watermark | None = None
        self.cuts: dict[int, StreamCut] = {}

    @property
    def view(self) -> StreamView:
        return open_stream(root_of(self.manager).store, S, self.runtime).view()

    def note(self, writer: int, time: int) -> None:
        with suppress(InvalidTime):
            self.manager.event_time(S).note(f"w{writer}", time)

    def write(self, writer: int, time: int) -> None:
        with self.manager.create_writer(S, f"w{writer}") as opened:
            opened.write_event(b"1", str(time))
            with suppress(InvalidTime):
                opened.note_time(time).result()
                self.check()

    def commit(self, writer: int, time: int) -> None:
        opened = self.manager.create_transactional_writer(S, f"w{writer}")
        with opened, opened.begin_transaction() as transaction:
            transaction.write_event(b"1", str(time))
            transaction.commit(timestamp=EPOCH + timedelta(milliseconds=time))

    def remove(self, writer: int, time: int) -> None:
        self.manager.event_time(S).remove_mark(f"w{writer}")

    def update(self, writer: int, time: int) -> None:
        self.manager.event_time(S).update()

    def wait(self, writer: int, time: int) -> None:
        self.runtime.sleep(60.0 * time)

    def check(self) -> None:
        time = self.manager.event_time(S)
        shown, known = time.watermark(), time.watermarks()
        assert self.manager.stream_info(S).watermark == shown
        assert known[-1:] == ([] if shown is None else [shown])
        window = time.window_at(self.manager.tail(S))
        assert window.lower_us == (None if shown is None else shown.lower_us)
        if self.last is not None:
            assert shown is not None
            assert shown.lower_us >= self.last.lower_us
            assert shown.upper_us >= self.last.upper_us
            view = self.view
            assert locate(view, shown.cut).is_at_or_after(locate(view, self.last.cut))
        assert [one.lower_us for one in known] == sorted(one.lower_us for one in known)
        for asked in range(10):
            cut, before = time.cut_at(asked), self.cuts.get(asked)
            if before is not None:
                assert cut is not None
                view = self.view
                assert locate(view, cut).is_at_or_after(locate(view, before))
            if cut is not None:
                self.cuts[asked] = cut
        self.last = shown


ACTIONS = (World.note, World.write, World.commit, World.remove, World.update, World.wait)
HISTORIES = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 4), st.integers(0, 9)), max_size=14
)


@pytest.mark.medium
@given(HISTORIES)
def test_what_is_shown_never_goes_back(
    history: list[tuple[Callable[[World, int, int], None], int, int]],
) -> None:
    world = World()
    try:
        for action, writer, time in history:
            action(world, writer, time)
            world.check()
    finally:
        world.manager.close()


NEWCOMERS = [World.note, World.write, World.commit]


@pytest.fixture
def world() -> World:
    return World()


def lower_ms(world: World) -> int | None:
    found = world.manager.event_time(S).watermark()
    return None if found is None else found.lower_us // 1_000


@pytest.mark.parametrize("enter", NEWCOMERS)
def test_a_new_writer_holds_the_next_watermark_and_keeps_what_was_shown(
    world: World, enter: Callable[[World, int, int], None]
) -> None:
    world.note(0, 9)
    world.check()
    before = world.manager.event_time(S).watermark()
    assert before is not None
    enter(world, 1, 5)
    world.check()
    (recorded,) = world.manager.event_time(S).watermarks()
    assert (recorded.lower_us, recorded.cut) == (before.lower_us, before.cut)
    world.manager.close()


def test_the_last_mark_that_is_removed_leaves_what_it_showed(world: World) -> None:
    world.note(0, 9)
    assert world.manager.event_time(S).remove_mark("w0")
    assert lower_ms(world) == 9
    world.note(0, 3)  # it comes back
    assert lower_ms(world) == 9


def test_notes_of_writers_that_are_there_or_ahead_record_nothing(world: World) -> None:
    world.note(0, 5)
    world.note(1, 5)
    world.note(0, 7)
    world.note(1, 9)
    world.note(2, 7)
    assert list(world.view.snapshot.names(WATERMARK_PREFIX)) == []
    world.note(3, 6)
    assert len(list(world.view.snapshot.names(WATERMARK_PREFIX))) == 1


def test_watermarks_that_newcomers_record_do_not_outgrow_the_state(world: World) -> None:
    with ExitStack() as stack:
        for module in ("engine.stream.watermarks", "event_time.update"):
            stack.enter_context(patch(f"pravega_spark.{module}.MAX_WATERMARKS", 4))
        for n in range(1, 10):
            world.note(0, 10 * n)
            world.note(n, 1)
            world.check()
            assert lower_ms(world) == 10 * n
            assert world.manager.event_time(S).remove_mark(f"w{n}")
            assert len(list(world.view.snapshot.names(WATERMARK_PREFIX))) == min(n, 4)


# ------------------------------------------------------------------------------ times without dates


@pytest.mark.parametrize("time", [10**18, 10**30, -(10**14), MAX_TIME_US // 1_000 + 1])
def test_a_time_beyond_all_dates_is_refused(world: World, time: int) -> None:
    with world.manager.create_writer(S, "w") as writer:
        with pytest.raises(InvalidInput, match=rf"{time} ms since 1970.*divide") as raised:
            writer.note_time(time)
        assert "years 1 to 9999" in str(raised.value)
        with pytest.raises(InvalidInput):
            world.manager.event_time(S).note("job", time)
        writer.note_time(MAX_TIME_US // 1_000).result()
    (mark,) = world.manager.event_time(S).marks()
    assert mark.time is not None
    assert mark.time.year == 9999


@pytest.mark.parametrize(
    "time",
    [
        datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))),
    ],
)
def test_a_timestamp_of_a_commit_beyond_all_dates_is_refused(world: World, time: datetime) -> None:
    opened = world.manager.create_transactional_writer(S, "tx")
    with opened, opened.begin_transaction() as transaction:
        with pytest.raises(InvalidInput, match="beyond the years"):
            transaction.commit(timestamp=time)
        transaction.abort()


def test_stored_times_beyond_all_dates_count_as_the_last_date(world: World) -> None:
    stored: dict[str, str | None] = {
        f"{MARK_PREFIX}late": f"[{10**33},1,true,[[0,0],[1,0]]]",
        f"{MARK_PREFIX}early": f"[-{10**33},1,true,[[0,0],[1,0]]]",
        f"{WATERMARK_PREFIX}1": f"[-{10**33},{10**21},[[0,0],[1,0]]]",
    }

    def decide(view: StreamView) -> Proposal[None]:
        return Body("TEST", {}, domains=stored), None

    open_stream(root_of(world.manager).store, S, world.runtime).commit(decide, life=1)
    time = world.manager.event_time(S)
    assert [mark.time_us for mark in time.marks()] == [MIN_TIME_US, MAX_TIME_US]
    shown = time.watermark()
    assert shown is not None
    assert (shown.lower_us, shown.upper_us) == (MIN_TIME_US, MAX_TIME_US)
    assert shown.upper is not None
    assert time.remove_mark("late")
    assert time.remove_mark("early")
    world.note(0, 5)
    assert lower_ms(world) == 5, "the stream's time goes on"


def test_a_writer_that_left_and_comes_back_keeps_what_was_shown(world: World) -> None:
    world.write(0, 5)
    world.note(1, 9)
    assert lower_ms(world) == 9, "the one that left holds nothing"
    world.note(0, 6)
    assert lower_ms(world) == 9
    assert len(list(world.view.snapshot.names(WATERMARK_PREFIX))) == 1
    world.manager.close()
