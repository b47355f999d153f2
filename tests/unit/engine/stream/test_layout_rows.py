"""The rows of a stream's layout in its history: true after scales, kills, copies and second lives.

They are for SQL, and nothing in the package reads them, so this test looks at the table itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream import truncation
from pravega_spark.engine.stream.history import (
    HistoryRow,
    append_history,
    history_log,
    read_history,
)
from pravega_spark.engine.stream.layout_rows import LAYOUT
from pravega_spark.errors import StoreUnavailable
from pravega_spark.manager import manager_over, root_of
from pravega_spark.values.segments import StreamCut
from tests.harness.backup_world import copy_objects
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill
from tests.harness.spy_store import Spy

S = "s/t"
HALVES, THIRDS, WHOLE = [(0.0, 0.5), (0.5, 1.0)], [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)], [(0.0, 1.0)]


class World:
    """A stream in memory whose rows are compared with what the package says of it."""

    def __init__(self, store: Spy | None = None, runtime: FakeRuntime | None = None) -> None:
        self.runtime = runtime or FakeRuntime()
        self.store = store or Spy(memory(self.runtime))
        self.manager = manager_over(self.store, self.runtime)
        if store is None:
            self.manager.create_scope("s")
            self.create()

    def create(self) -> None:
        self.manager.create_stream(S, StreamConfiguration(ScalingPolicy.by_event_rate(1)))

    def copy(self) -> World:
        """Return a copy of the root, of which no program knows."""
        store = Spy(memory(self.runtime))
        copy_objects(self.store, store)
        return World(store, self.runtime)

    def again(self) -> World:
        """Return the root as another process opens it."""
        return World(self.store, self.runtime)

    def scale(self, ranges: list[tuple[float, float]] | None = None) -> None:
        """Write an event and scale, by default to halves and to one segment in turn."""
        self.write()
        self.runtime.sleep(60)
        active = self.manager.segments(S)
        ranges = ranges or (HALVES if len(active) == 1 else WHOLE)
        self.manager.scale_stream(S, [s.segment_id for s in active], ranges)

    def killed_scale(self) -> None:
        with pytest.raises(Killed), at_failpoint("layout.committed", kill):
            self.scale()

    def write(self) -> None:
        with self.manager.create_writer(S) as writer:
            writer.write_event(b"event", "k").result()

    def sweep(self) -> None:
        self.manager.sweep_stream(S)

    def roll(self) -> None:
        """Commit a transaction that was begun before a scale of its segment."""
        with self.manager.create_transactional_writer(S) as writer:
            transaction = writer.begin_transaction()
            transaction.write_event(b"late", "k")
            transaction.flush()
            self.scale()
            self.runtime.sleep(60)
            before = len(self.store.calls)
            transaction.commit()
            put = [key for op, key in self.store.calls[before:] if op.startswith("put")]
            # Of the scale before, the table's state file may still be written in the background.
            assert not [key for key in put if "/metadata/" in key and "/_pravega/" not in key]

    def recreate(self) -> None:
        self.manager.seal_stream(S)
        self.manager.delete_stream(S)
        self.create()

    def rows(self) -> list[HistoryRow]:
        """Return the newest row of each name: two of one version would be a contradiction."""
        newest = dict[str, HistoryRow]()
        for part in read_history(root_of(self.manager).stream(S), LAYOUT):
            for row in part:
                known = newest.setdefault(row.name, row)
                assert known is row or known.version != row.version
                newest[row.name] = max(known, row, key=lambda one: one.version)
        return sorted(newest.values(), key=lambda row: row.name)

    def values(self, kind: str) -> list[list[Any]]:
        """Return the values of one kind in the newest life, as a query finds them."""
        found = [json.loads(row.value) for row in self.rows()]
        lives = [value[1] for value in found if value[0] != "void"]
        return sorted(v[1:] for v in found if v[0] == kind and v[1] == max(lives))

    def all_rows(self) -> int:
        return sum(map(len, read_history(root_of(self.manager).stream(S), LAYOUT)))

    def voids(self) -> int:
        return sum(json.loads(row.value)[0] == "void" for row in self.rows())


def story(world: World) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return the epochs and segments of the present life as the manager tells them."""
    manager = world.manager
    life = root_of(manager).stream(S).view().life
    found = manager.epochs(S)
    epochs = [[life, e.number, e.reference, e.created_ms, e.splits, e.merges] for e in found]
    segments = {s.segment_id: s for epoch in found for s in epoch.segments}
    cells = []
    for segment_id, segment in sorted(segments.items()):
        info, low_high = manager.segment(S, segment_id), segment.key_range
        sealed = info.sealed_epoch, info.sealed_ms
        sizes = (
            (info.next_offset, info.size_bytes) if info.sealed_epoch is not None else (None,) * 2
        )
        begun = segment_id, segment.epoch, low_high.low, low_high.high, info.created_ms
        cells.append([life, *begun, *sealed, *sizes])
    return epochs, cells


def assert_true(world: World) -> None:
    epochs, segments = story(world)
    assert world.values("epoch") == epochs
    assert world.values("segment") == segments


@pytest.fixture
def world() -> World:
    return World()


def test_each_scale_has_its_rows_at_once(world: World) -> None:
    for _ in range(5):
        world.scale()
        assert_true(world)
    world.scale(THIRDS)
    assert_true(world)
    assert world.voids() == 0


def test_an_update_that_scales_has_its_rows_at_once(world: World) -> None:
    world.manager.update_stream(S, StreamConfiguration(ScalingPolicy.fixed(3)))
    assert_true(world)
    before = world.all_rows()
    tagged = StreamConfiguration(ScalingPolicy.fixed(3), tags=frozenset({"a"}))
    assert world.manager.update_stream(S, tagged)
    assert world.all_rows() == before


def test_a_sweep_adds_the_rows_of_a_creation_once(world: World) -> None:
    world.sweep()
    assert_true(world)
    for _ in range(3):
        world.sweep()
    assert world.all_rows() == 2


def test_a_rolling_commit_has_its_rows_a_second_later_and_makes_no_call_for_them(
    world: World,
) -> None:
    world.roll()
    assert len(world.values("epoch")) == 2
    world.runtime.run_later(1)
    assert len(world.values("epoch")) == 4
    assert_true(world)


def killed(world: World) -> None:
    world.killed_scale()


def killed_twice(world: World) -> None:
    world.killed_scale()
    world.killed_scale()


def killed_roll(world: World) -> None:
    world.roll()  # and its process ends before it has waited


def killed_while_appending(world: World) -> None:
    with pytest.raises(Killed), at_failpoint("history.staged", kill):
        world.scale()


CRASHES: list[Callable[[World], None]] = [killed, killed_twice, killed_roll, killed_while_appending]


def by_scale(world: World) -> None:
    world.scale(THIRDS)


def by_sweep(world: World) -> None:
    world.sweep()


def by_truncation(world: World) -> None:
    world.write()
    world.manager.truncate_stream(S, StreamCut.LATEST)


@pytest.mark.parametrize("repair", [by_scale, by_sweep, by_truncation])
@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("before", [0, 2])
def test_rows_of_a_killed_process_are_added_by_the_next_writer_of_the_table(
    world: World, before: int, crash: Callable[[World], None], repair: Callable[[World], None]
) -> None:
    for _ in range(before):
        world.scale()
    crash(world)
    other = world.again()
    assert len(other.values("epoch")) < len(other.manager.epochs(S)) if before else True
    repair(other)
    assert_true(other)


def test_a_repetition_of_a_killed_scale_adds_its_rows(world: World) -> None:
    segments = [s.segment_id for s in world.manager.segments(S)]
    with pytest.raises(Killed), at_failpoint("layout.committed", kill):
        world.manager.scale_stream(S, segments, HALVES)
    other = world.again()
    other.manager.scale_stream(S, segments, HALVES)
    assert_true(other)


def test_a_scale_between_another_ones_commit_and_rows_adds_both(world: World) -> None:
    other = world.again()
    with at_failpoint("layout.committed", other.scale):
        world.scale()
    assert len(world.manager.epochs(S)) == 3
    assert_true(world)
    assert world.all_rows() == 3 + 4  # segment 0, and the halves twice: opened and sealed


def test_truncated_segments_keep_their_rows(world: World) -> None:
    for _ in range(4):
        world.scale()
    world.write()
    before = world.values("epoch"), world.values("segment")
    world.manager.truncate_stream(S, StreamCut.LATEST)
    assert (world.values("epoch"), world.values("segment")) == before
    world.scale()
    assert_true(world)


def test_a_segment_that_lives_longer_than_its_epoch_keeps_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.scale()
    left, right = world.manager.segments(S)
    world.runtime.sleep(60)
    world.manager.scale_stream(S, [left.segment_id], [(0.0, 0.25), (0.25, 0.5)])
    with pytest.raises(Killed), at_failpoint("layout.committed", kill):
        world.manager.scale_stream(S, [right.segment_id], [(0.5, 1.0)])
    # Release 0.1.0 truncates without a look at these rows.
    monkeypatch.setattr(
        truncation, "append_rows", lambda log, view, rows: append_history(log, rows)
    )
    other = world.again()
    cut = {s.segment_id: 0 for s in other.manager.segments(S)}
    other.manager.truncate_stream(S, StreamCut(S, 1, cut))
    view = root_of(other.manager).stream(S).view()
    assert view.oldest_epoch == 2
    assert view.has_segment(right.segment_id)
    other.sweep()
    assert_true(other)


def test_a_sealed_stream_has_no_open_segment_in_its_rows_after_a_sweep(world: World) -> None:
    world.scale()
    world.manager.seal_stream(S)
    world.sweep()
    assert all(value[6] is not None for value in world.values("segment"))
    assert_true(world)


def test_a_second_life_does_not_show_the_first_one(world: World) -> None:
    for _ in range(3):
        world.scale()
    world.recreate()
    assert len(world.values("epoch")) == 1
    assert_true(world)
    world.sweep()
    assert_true(world)
    world.scale()
    assert_true(world)
    assert world.voids() == 0
    assert len([row for row in world.rows() if row.name.startswith("pravega.epoch.")]) == 6


def older_log(world: World, after: Callable[[World], None]) -> World:
    """Return a copy whose history is newer than its log, by what was done meanwhile."""
    early = world.copy()
    after(world)
    for entry in list(early.store.list(f"{S}/metadata")):
        early.store.delete([entry.key])
    for entry in world.store.list(f"{S}/metadata"):
        early.store.put(entry.key, world.store.get(entry.key))
    return early


def two_scales(world: World) -> None:
    world.scale()
    world.scale()


def a_seal(world: World) -> None:
    world.manager.seal_stream(S)
    world.sweep()


def another_life(world: World) -> None:
    world.recreate()
    world.sweep()


VOIDS = {"two_scales": 5, "a_seal": 0, "another_life": 2}
"""Rows of epochs and segments that the log of the copy lacks."""


@pytest.mark.parametrize("after", [two_scales, a_seal, another_life])
@pytest.mark.parametrize("how", ["copied", "restored", "one stream restored"])
def test_rows_of_versions_that_a_copy_lacks_do_not_count(
    world: World, how: str, after: Callable[[World], None]
) -> None:
    for _ in range(3):
        world.scale()
    copy = older_log(world, after)
    if how == "restored":
        assert copy.manager.restore().failed == {}
    elif how == "one stream restored":
        copy.manager.restore_stream(S)
    else:
        copy.sweep()
        assert copy.voids() == VOIDS[after.__name__]
    assert_true(copy)
    copy.scale(THIRDS)
    copy.scale()
    assert_true(copy)


def test_rows_of_a_copy_count_where_its_log_went_on_differently(world: World) -> None:
    for _ in range(3):
        world.scale()
    copy = older_log(world, two_scales)
    with pytest.raises(Killed), at_failpoint("layout.committed", kill):
        copy.scale(THIRDS)
    with pytest.raises(Killed), at_failpoint("layout.committed", kill):
        copy.scale([(0.0, 0.1), (0.1, 1.0)])
    other = copy.again()
    other.sweep()
    assert_true(other)


def test_a_restored_stream_keeps_the_rows_from_below_its_head(world: World) -> None:
    for _ in range(4):
        world.scale()
    world.write()
    world.manager.truncate_stream(S, StreamCut.LATEST)
    world.scale()
    before = [value[1:] for value in world.values("segment")]
    copy = world.copy()
    copy.manager.restore()
    assert [value[1:] for value in copy.values("segment")] == before
    assert_true(copy)


def test_a_lost_table_is_made_again_as_far_as_the_log_goes(world: World) -> None:
    for _ in range(3):
        world.scale()
    for entry in list(world.store.list(f"{S}/metadata")):
        world.store.delete([entry.key])
    other = world.again()
    other.sweep()
    assert_true(other)


def test_a_scale_reads_no_rows_however_many_there_are(world: World) -> None:
    calls = list[int]()
    for _ in range(30):
        before = len(world.store.calls)
        world.scale()
        made = [(op, key) for op, key in world.store.calls[before:] if "/metadata/" in key]
        assert not [key for op, key in made if op.startswith("get") and key.endswith(".parquet")]
        calls.append(sum(op.startswith("put") for op, key in made if "/_pravega/" not in key))
    assert set(calls) == {2}  # a file of rows, and the commit


def test_a_scale_succeeds_where_its_rows_cannot_be_written(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.scale()

    def refuse(operation: str, key: str) -> None:
        if "/metadata/" in key and operation.startswith("put"):
            raise StoreUnavailable("no answer")

    world.store.hook = refuse
    with caplog.at_level(logging.WARNING):
        world.scale()
    world.store.hook = None
    assert len(world.manager.epochs(S)) == 3
    assert f"the history of stream {S} may lack rows of its layout" in caplog.text
    world.sweep()
    assert_true(world)


def test_merged_files_keep_the_rows(world: World) -> None:
    for _ in range(20):
        world.scale()
    world.runtime.sleep(100 * 24 * 3_600)
    world.sweep()
    log = history_log(root_of(world.manager).stream(S))
    assert log.refresh() is not None
    with log.files() as files:
        assert len(list(files.all())) < 20
    assert_true(world)
