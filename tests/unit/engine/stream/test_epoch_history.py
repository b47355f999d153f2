"""The epochs of a life and their segments, in the state and in the history, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import epoch_history
from pravega_spark.engine.stream.history import HistoryRow, append_history, history_log
from pravega_spark.engine.stream.records import encode_epoch
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import (
    CorruptLog,
    DataLoss,
    InvalidInput,
    NoSuchSegment,
    NoSuchStream,
    TruncatedData,
)
from pravega_spark.manager import StreamManager, manager_over, root_of
from pravega_spark.values.segments import Epoch, Segment, StreamCut
from tests.harness.drawn_lives import DRAWN
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill
from tests.harness.spy_store import Spy

S = "s/t"
HALVES, WHOLE = [(0.0, 0.5), (0.5, 1.0)], [(0.0, 1.0)]


class World:
    """A stream, and each epoch that it has had in its present life, as it was returned."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.store = Spy(memory(self.runtime))
        self.manager = manager_over(self.store, self.runtime)
        self.manager.create_scope("s")
        self.expected: list[Epoch] = []
        self.create()

    def create(self) -> None:
        self.manager.create_stream(S, StreamConfiguration(ScalingPolicy.by_event_rate(1)))
        self.expected = [self.manager.epochs(S)[-1]]

    def scale(self, times: int) -> None:
        """Split and merge in turn, an event before and a minute after each scale."""
        for _ in range(times):
            self.write()
            active = self.manager.segments(S)
            ranges = HALVES if len(active) == 1 else WHOLE
            seal = [s.segment_id for s in active]
            self.expected.append(self.manager.scale_stream(S, seal, ranges))
            self.runtime.sleep(60)

    def write(self) -> None:
        with self.manager.create_writer(S) as writer:
            writer.write_event(b"event", "k").result()

    def truncate(self) -> None:
        self.manager.truncate_stream(S, StreamCut.LATEST)

    @property
    def oldest(self) -> int:
        """The oldest epoch of the state."""
        return root_of(self.manager).stream(S).view().oldest_epoch

    def numbers(self, *args: int | None, **options: int | None) -> list[int]:
        return [epoch.number for epoch in self.manager.epochs(S, *args, **options)]

    def history_reads(self) -> int:
        return sum("/metadata/" in key for _, key in self.store.calls)


@pytest.fixture
def world() -> World:
    """Seven epochs: 0 to 3 left the state in two truncations, 4 to 6 are in it."""
    made = World()
    made.runtime.sleep(60)
    made.scale(2)
    made.truncate()
    made.scale(2)
    made.truncate()
    made.scale(2)
    assert made.oldest == 4
    return made


def test_every_epoch_is_found_as_it_was(world: World) -> None:
    found = world.manager.epochs(S)
    assert list(found) == world.expected
    assert [(epoch.splits, epoch.merges) for epoch in found] == [(0, 0), *[(1, 0), (0, 1)] * 3]
    assert world.manager.stream(S).epochs() == found
    assert [len(epoch.segments) for epoch in found] == [1, 2, 1, 2, 1, 2, 1]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, range(7)),
        (0, None, range(7)),
        (2, 3, range(2, 4)),
        (3, 5, range(3, 6)),
        (5, 5, range(5, 6)),
        (None, 1, range(2)),
        (6, 100, range(6, 7)),
        (7, None, range(0)),
        (0, 0, range(1)),
    ],
)
def test_epochs_by_number(
    world: World, start: int | None, end: int | None, expected: range
) -> None:
    assert world.numbers(start, end) == list(expected)


def test_epochs_by_time_are_those_that_were_active(world: World) -> None:
    created = [epoch.created_ms for epoch in world.expected]
    for first in range(7):
        for last in range(first, 7):
            between = list(range(first, last + 1))
            for late in (0, 1):
                start_ms, end_ms = created[first] + late, created[last] + late
                assert world.numbers(start_ms=start_ms, end_ms=end_ms) == between
        assert world.numbers(start_ms=created[first]) == list(range(first, 7))
        assert world.numbers(end_ms=created[first]) == list(range(first + 1))
    assert world.numbers(start_ms=created[2] - 1, end_ms=created[2]) == [1, 2]
    assert world.numbers(start_ms=0, end_ms=created[6] + 10**12) == list(range(7))
    assert world.numbers(start_ms=0, end_ms=created[0] - 1) == [0], "as in Pravega, the first"
    assert world.numbers(start_ms=created[6] + 10**12) == [6]


def test_history_is_read_only_for_epochs_that_left_the_state(world: World) -> None:
    created = [epoch.created_ms for epoch in world.expected]
    calls: list[dict[str, Any]] = [
        {"start": 4},
        {"start": 5, "end": 6},
        {"start_ms": created[4]},
        {"start_ms": created[5] + 1, "end_ms": created[6]},
    ]
    for options in calls:
        world.store.calls.clear()
        world.numbers(**options)
        assert world.history_reads() == 0, options
    world.store.calls.clear()
    assert world.numbers(start=3)[0] == 3
    assert world.history_reads() > 0
    untouched = World()
    untouched.scale(3)
    untouched.store.calls.clear()
    assert untouched.numbers() == [0, 1, 2, 3]
    assert untouched.history_reads() == 0


@pytest.mark.medium
def test_newest_files_of_a_long_history_suffice_for_its_newest_epochs() -> None:
    world = World()
    for _ in range(20):
        world.scale(1)
        world.truncate()
    assert world.numbers() == list(range(21))
    world.store.calls.clear()
    assert world.numbers(start=18)[0] == 18
    files = {key for _, key in world.store.calls if "/metadata/data/" in key}
    with history_log(root_of(world.manager).stream(S)).files() as live:
        every = [add for add in live.all() if add.partition["record"] == "epoch"]
    assert len(files) <= 9 < len(every)


def test_epochs_of_other_lives_are_left_out(world: World) -> None:
    first = world.manager.epochs(S)
    world.runtime.wall_ms -= 3_600_000  # the clock of the next creation is behind
    for _ in range(2):
        world.manager.seal_stream(S)
        world.manager.delete_stream(S)
        with pytest.raises(NoSuchStream):
            world.manager.epochs(S)
        world.create()
        world.scale(3)
        world.truncate()
        found = world.manager.epochs(S)
        assert list(found) == world.expected
        assert found[0].number > first[-1].number
        first = found


@pytest.mark.medium
def test_history_of_an_earlier_life_is_not_read() -> None:
    world = World()
    for _ in range(20):
        world.scale(1)
        world.truncate()
    world.manager.seal_stream(S)
    world.manager.delete_stream(S)
    world.create()
    world.scale(1)
    world.store.calls.clear()
    assert list(world.manager.epochs(S)) == world.expected
    assert world.history_reads() == 0
    world.truncate()
    world.store.calls.clear()
    assert list(world.manager.epochs(S)) == world.expected
    assert len({key for _, key in world.store.calls if "/metadata/data/" in key}) <= 9


def test_epoch_that_a_restore_dropped_is_not_taken_for_its_successor() -> None:
    world = World()
    world.scale(2)
    stream = root_of(world.manager).stream(S)
    dropped = world.expected[0]
    append_history(stream, [HistoryRow("epoch", 1, "pravega.epoch.1", encode_epoch(dropped))])
    world.truncate()
    assert world.oldest == 2
    assert list(world.manager.epochs(S)) == world.expected


def test_epoch_that_a_late_process_of_another_life_wrote_is_not_of_this_one(world: World) -> None:
    other = {**json.loads(encode_epoch(world.expected[3])), "life": 77, "ends": {}}
    late = HistoryRow("epoch", 999, "pravega.epoch.1", json.dumps(other))
    append_history(root_of(world.manager).stream(S), [late])
    assert list(world.manager.epochs(S)) == world.expected


def test_truncation_that_was_killed_after_its_history_adds_nothing(world: World) -> None:
    with at_failpoint("truncate.history", kill), pytest.raises(Killed):
        world.truncate()
    assert world.oldest == 4
    assert list(world.manager.epochs(S)) == world.expected
    world.truncate()
    assert world.oldest == 6
    assert list(world.manager.epochs(S)) == world.expected


def test_epochs_of_a_restored_copy_reach_back_to_the_first(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream(S)
    manager.scale_stream(S, [0], HALVES)
    manager.scale_stream(S, [1, 2], WHOLE)
    manager.truncate_stream(S, StreamCut.LATEST)
    manager.backup(tmp_path / "copy")
    copy = StreamManager(tmp_path / "copy")
    copy.restore()
    assert copy.stream_info(S).life > DRAWN
    assert copy.epochs(S) == manager.epochs(S)
    assert len(copy.epochs(S)) == 3


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"start": -1}, "start of epochs must be a whole number of at least 0, got -1"),
        ({"end": True}, "end of epochs must be a whole number"),
        ({"start_ms": 1.5}, "start_ms of epochs must be"),
        ({"start": 1, "end_ms": 5}, "by numbers .* or by times"),
        ({"start": 3, "end": 2}, "start of epochs, 3, lies after the end, 2"),
        ({"start_ms": 3, "end_ms": 2}, "start of epochs, 3, lies after the end, 2"),
    ],
)
def test_impossible_bounds_are_refused(bounds: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        World().manager.epochs(S, **bounds)


def test_segments_of_a_time_and_of_an_epoch_are_two_questions(world: World) -> None:
    with pytest.raises(InvalidInput, match="give one of the two"):
        world.manager.segments(S, time_ms=world.expected[1].created_ms, epoch=1)


def _history_keys(world: World) -> Iterator[str]:
    stream = open_stream(world.store, S, world.runtime)
    log = history_log(stream)
    log.refresh()
    with log.files() as files:
        for add in files.all():
            if add.partition["record"] == "epoch":
                yield f"{log.path}/{add.path}"


def test_missing_or_damaged_file_of_the_history_is_named(world: World) -> None:
    newest = sorted(_history_keys(world))[-1]
    sound = world.store.get(newest)
    world.store.put(newest, b"no parquet")
    with pytest.raises(CorruptLog, match="is not a file of the stream's history"):
        world.manager.epochs(S)
    world.store.delete([newest])
    with pytest.raises(DataLoss, match="the history of the stream names it") as lost:
        world.manager.epochs(S)
    assert lost.value.path == newest
    world.store.put(newest, sound)
    assert world.numbers() == list(range(7))


def test_history_that_begins_late_gives_what_it_has(world: World) -> None:
    stream = root_of(world.manager).stream(S)
    view = stream.view()
    for key in [key for key in world.store.inner._objects if "/metadata/" in key]:  # type: ignore[attr-defined]
        world.store.delete([key])
    assert [e.number for e in epoch_history.epochs_between(stream, view)] == [4, 5, 6]
    assert [e.number for e in epoch_history.epochs_during(stream, view, 0, 1)] == [4]


# ---------------------------------------------------------- their segments, also below the head


def forget(world: World) -> None:
    """Lose the history of the stream."""
    log = history_log(root_of(world.manager).stream(S))
    inner = world.store.inner
    assert isinstance(inner, MemoryStore)
    inner.delete([key for key in inner._objects if key.startswith(f"{log.path}/")])
    world.manager = manager_over(world.store, world.runtime)


def layouts_of(world: World) -> list[tuple[Segment, ...]]:
    return [epoch.segments for epoch in world.expected]


def test_segments_of_every_epoch_and_time_are_those_that_were_open(world: World) -> None:
    manager, created = world.manager, [epoch.created_ms for epoch in world.expected]
    for number, expected in enumerate(layouts_of(world)):
        assert manager.segments(S, epoch=number) == expected
        for late in (0, 1, 59_999):
            assert manager.segments(S, time_ms=created[number] + late) == expected
        if number > 0:
            before = manager.segments(S, time_ms=created[number] - 1)
            assert before == world.expected[number - 1].segments
    for time_ms in (1, created[0] - 1):
        assert manager.segments(S, time_ms=time_ms) == world.expected[0].segments
    head = manager.segments(S, time_ms=0)
    assert [str(s) for s in head] == ["6#4"]
    with pytest.raises(InvalidInput, match="epoch 7 is not one of them"):
        manager.segments(S, epoch=7)


@pytest.mark.medium
def test_neighbours_of_every_segment_are_those_of_the_epochs_beside_it(world: World) -> None:
    manager, layouts = world.manager, layouts_of(world)
    for before, layout, after in zip([(), *layouts], layouts, [*layouts[1:], ()], strict=False):
        for segment in layout:
            for name in (segment, segment.segment_id, str(segment)):
                assert manager.predecessors(S, name) == tuple((s, layout) for s in before)
                assert manager.successors(S, name) == tuple((s, layout) for s in after)
    last = layouts[-1][0]
    assert manager.predecessors(S, last.number) == manager.stream(S).predecessors(str(last))
    for unknown in ("0#1", "9#0", "10#6", "9#99"):
        for call in (manager.predecessors, manager.successors, manager.segment):
            with pytest.raises(NoSuchSegment, match=rf"{unknown}.*Take segments from"):
                call(S, unknown)
    with pytest.raises(InvalidInput, match="segment"):
        manager.predecessors(S, None)  # type: ignore[arg-type]


def test_segment_has_its_keys_times_and_bytes_also_below_the_head(world: World) -> None:
    manager = world.manager
    for epoch, after in zip(world.expected, [*world.expected[1:], None], strict=True):
        found = [manager.segment(S, segment) for segment in epoch.segments]
        for info, segment in zip(found, epoch.segments, strict=True):
            assert (info.segment_id, info.key_range) == (segment.segment_id, segment.key_range)
            assert info.created_ms == epoch.created_ms
            assert info.size_bytes == 5 * info.next_offset
            assert info.sealed_epoch == (after and after.number)
            assert info.sealed_ms == (after and after.created_ms)
            assert (info.hot, info.cold) == (None, None)
        events = sum(info.next_offset for info in found)
        assert events == (0 if after is None else 1)
    manager.seal_stream(S)
    sealed = manager.segment(S, world.expected[-1].segments[0])
    assert (sealed.sealed_epoch, sealed.is_sealed) == (6, True)
    assert sealed.sealed_ms is not None
    assert abs(sealed.sealed_ms - world.runtime.wall_ms) < 1_000


def test_segment_that_outlived_its_epoch_says_when_it_was_created() -> None:
    world = World()
    world.scale(1)  # 1#1 and 2#1
    created = world.expected[-1].created_ms
    world.manager.scale_stream(S, ["1#1"], [(0.0, 0.5)])
    world.runtime.sleep(60)
    world.manager.scale_stream(S, ["3#2"], [(0.0, 0.5)])
    world.runtime.sleep(60)
    world.manager.scale_stream(S, ["2#1"], [(0.5, 1.0)])
    world.truncate()
    assert world.oldest == 3
    old = world.manager.segment(S, "2#1")  # of an epoch that is kept, and of two that are not
    assert (old.created_ms, old.sealed_epoch) == (created, 4)
    assert [str(s) for s, _ in world.manager.successors(S, "2#1")] == ["5#4"]
    ((before, after),) = world.manager.predecessors(S, "2#1")
    assert (str(before), [str(s) for s in after]) == ("0#0", ["1#1", "2#1"])
    forget(world)
    assert world.manager.segment(S, "2#1").created_ms is None
    assert [str(s) for s, _ in world.manager.successors(S, "2#1")] == ["5#4"]
    with pytest.raises(NoSuchSegment, match=r"2#1.*epochs before 3 were truncated"):
        world.manager.predecessors(S, "2#1")


def test_what_even_the_history_has_lost_is_refused(world: World) -> None:
    created = [epoch.created_ms for epoch in world.expected]
    forget(world)
    manager = world.manager
    for time_ms in (1, created[0], created[3], created[4] - 1):
        with pytest.raises(TruncatedData, match=r"segments at .* begins with epoch 4") as lost:
            manager.segments(S, time_ms=time_ms)
        assert lost.value.head == manager.head(S)
    assert manager.segments(S, time_ms=created[4]) == world.expected[4].segments
    with pytest.raises(TruncatedData, match=r"epoch 3 any more.* begins with epoch 4"):
        manager.segments(S, epoch=3)
    for call in (manager.segment, manager.successors, manager.predecessors):
        with pytest.raises(NoSuchSegment, match="4#3: epochs before 4 were truncated"):
            call(S, "4#3")
    with pytest.raises(NoSuchSegment, match="6#4: epochs before 4 were truncated"):
        manager.predecessors(S, "6#4")
    assert len(manager.successors(S, "6#4")) == 2


def test_segments_of_other_lives_are_not_of_this_one(world: World) -> None:
    old = world.expected[-1]
    world.manager.seal_stream(S)
    world.manager.delete_stream(S)
    world.create()
    world.scale(3)
    first = world.expected[0].segments[0]
    for _ in range(2):
        assert world.manager.predecessors(S, first) == ()
        assert world.manager.segments(S, time_ms=1) == (first,)
        for number in (0, old.number):
            with pytest.raises(InvalidInput, match="is not one of"):
                world.manager.segments(S, epoch=number)
        with pytest.raises(NoSuchSegment):
            world.manager.segment(S, old.segments[0])
        world.truncate()
    assert world.oldest > world.expected[0].number


def test_segments_of_a_restored_copy_are_those_of_the_original(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream(S)
    with manager.create_writer(S) as writer:
        writer.write_event(b"event").result()
    manager.scale_stream(S, [0], HALVES)
    manager.truncate_stream(S, StreamCut.LATEST)
    manager.backup(tmp_path / "copy")
    copy = StreamManager(tmp_path / "copy")
    copy.restore()
    assert manager.segment(S, 0).size_bytes == 5
    for stream in (manager.stream(S), copy.stream(S)):
        assert stream.segment(0) == manager.segment(S, 0)
        assert stream.successors(0) == manager.successors(S, 0) != ()
        assert [str(s) for s in stream.segments(epoch=0)] == ["0#0"]


def test_row_of_a_segment_that_does_not_fit_its_epochs_is_not_believed(world: World) -> None:
    stream, right = root_of(world.manager).stream(S), world.manager.segment(S, "0#0")
    late = HistoryRow("segment", 999, "pravega.segment.0", "[77,385,1]")  # of another copy's writer
    append_history(stream, [late])
    assert world.manager.segment(S, "0#0") == right


def test_history_is_read_only_for_segments_that_left_the_state(world: World) -> None:
    created = [epoch.created_ms for epoch in world.expected]
    manager, kept = world.manager, world.expected[5].segments[0]
    first = world.expected[4].segments[0]
    calls: dict[str, Callable[[], object]] = {
        "segment": lambda: manager.segment(S, kept),
        "oldest": lambda: manager.segment(S, first),
        "successors": lambda: manager.successors(S, first),
        "predecessors": lambda: manager.predecessors(S, kept),
        "epoch": lambda: manager.segments(S, epoch=4),
        "time": lambda: manager.segments(S, time_ms=created[4]),
        "head": lambda: manager.segments(S, time_ms=0),
    }
    world.store.calls.clear()
    manager.segments(S)
    look = list(world.store.calls)
    for name, call in calls.items():
        world.store.calls.clear()
        call()
        assert world.store.calls == look, name
    world.store.calls.clear()
    manager.segment(S, world.expected[6].segments[0])
    assert len(world.store.calls) == len(look) + 1, "the rates of an open segment"


def test_segment_is_hot_or_cold_as_the_last_run_of_scaling_found_it() -> None:
    world = World()
    policy = ScalingPolicy.by_event_rate(1)
    world.manager.update_stream(S, scaling=policy)
    assert (world.manager.segment(S, 0).hot, world.manager.segment(S, 0).cold) == (None, None)
    for _ in range(3):
        with world.manager.create_writer(S) as writer:
            writer.write_events([b"event"] * 1_000)
        world.runtime.sleep(60)
    world.manager.scaling(S).run()
    found = world.manager.segment(S, 0)
    assert (found.hot, found.cold) == (True, False)
