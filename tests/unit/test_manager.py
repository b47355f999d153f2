from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.state import scopes
from pravega_spark.engine.state.scopes import Scope
from pravega_spark.engine.state.state_table import TableChange
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import (
    ConfigMismatch,
    CorruptChunk,
    CorruptLog,
    DataLoss,
    ForeignTable,
    InvalidConfiguration,
    InvalidInput,
    InvalidName,
    InvalidStreamCut,
    NoSuchEvent,
    NoSuchReaderGroup,
    NoSuchScope,
    NoSuchSegment,
    NoSuchStream,
    ScopeNotEmpty,
    StaleIdentity,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StreamNotSealed,
    StreamSealed,
    TruncatedData,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager, manager_over, root_of
from pravega_spark.values.names import table_log
from pravega_spark.values.segments import EventPointer, SegmentRange, StreamCut
from tests.harness.drawn_lives import DRAWN
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import created, make_stream
from tests.harness.spy_store import Spy

TWO = StreamConfiguration(ScalingPolicy.fixed(2), tags=frozenset({"two"}))


def manager_of(store: Store) -> StreamManager:
    """A manager as another process has it, without any state in memory."""
    return manager_over(store, FakeRuntime())


@pytest.fixture
def store() -> Spy:
    made = Spy()
    manager_of(made).create_scope("s")
    return made


@pytest.fixture
def manager(store: Spy) -> StreamManager:
    return manager_of(store)


def filled(manager: StreamManager, name: str = "s/t", count: int = 5) -> list[EventPointer]:
    manager.create_stream(name)
    with manager.create_writer(name) as writer:
        return list(writer.write_events([b"%d" % n for n in range(count)], "k").result())


# --------------------------------------------------------------------------------------- scopes


def test_scopes_are_created_listed_and_deleted(manager: StreamManager) -> None:
    assert manager.create_scope("a.b-1")
    assert not manager.create_scope("a.b-1")
    assert manager.list_scopes() == ["a.b-1", "s"]
    assert manager.scope_exists("a.b-1")
    assert not manager.scope_exists("none")
    assert manager.delete_scope("a.b-1")
    assert not manager.delete_scope("a.b-1")
    assert not manager.delete_scope("none", recursive=True)
    assert manager.list_scopes() == ["s"]


def test_foreign_folders_under_the_root_are_no_scopes(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    for name in ("my_folder", "plain", ".git", "_x"):
        (tmp_path / name).mkdir()
    assert manager.list_scopes() == ["s"]


def test_scope_with_streams_is_deleted_only_recursively(manager: StreamManager) -> None:
    filled(manager, "s/a")
    filled(manager, "s/b")
    manager.seal_stream("s/b")
    with pytest.raises(ScopeNotEmpty, match=r"s still holds 2 streams \(a, b\)"):
        manager.delete_scope("s")
    assert manager.list_streams("s") == ["s/a", "s/b"]

    assert manager.delete_scope("s", recursive=True)
    assert not manager.scope_exists("s")
    for name in ("s/a", "s/b"):
        assert not manager.stream_exists(name)
        with pytest.raises(NoSuchScope, match="scope s does not exist; create it first"):
            manager.create_stream(name)
    manager.create_scope("s")
    assert manager.list_streams("s") == []
    assert manager.create_stream("s/a")
    assert manager.stream_info("s/a").life > DRAWN


@pytest.mark.parametrize("point", ["delete.committed", "delete.row", "sweep.delete"])
def test_killed_recursive_deletion_is_finished_by_the_next_one(store: Spy, point: str) -> None:
    manager = manager_of(store)
    for name in ("s/a", "s/b"):
        filled(manager, name)
    with at_failpoint(point, kill), pytest.raises(Killed):
        manager.delete_scope("s", recursive=True)
    with pytest.raises(NoSuchScope, match="is being deleted"):
        manager_of(store).create_stream("s/new")

    assert manager_of(store).delete_scope("s", recursive=True)
    assert not manager_of(store).scope_exists("s")
    assert store.list("s/a/events/data") == store.list("s/b/events/data") == []


def test_two_concurrent_recursive_deletions_both_succeed(store: Spy) -> None:
    filled(manager_of(store), "s/a")
    other = manager_of(store)
    with at_failpoint("delete.row", lambda: other.delete_scope("s", recursive=True)):
        manager_of(store).delete_scope("s", recursive=True)
    assert not manager_of(store).scope_exists("s")


def test_recursive_deletion_deletes_a_half_made_stream(store: Spy) -> None:
    with at_failpoint("create.row", kill), pytest.raises(Killed):
        manager_of(store).create_stream("s/t")
    assert manager_of(store).delete_scope("s", recursive=True)
    assert not manager_of(store).scope_exists("s")


# ----------------------------------------------------------------------------- creating streams


def test_stream_is_created_once(manager: StreamManager) -> None:
    assert not manager.stream_exists("s/t")
    assert manager.create_stream("s/t", TWO)
    assert not manager.create_stream("s/t")
    assert manager.stream_exists("s/t")
    info = manager.stream_info("s/t")
    assert (info.stream, info.life, info.state, len(info.segments)) == ("s/t", 1, "ACTIVE", 2)
    assert (info.events, info.size_bytes) == (0, 0)
    assert info.head == info.tail == manager.head("s/t") == manager.tail("s/t")


def test_concurrent_creators_converge_on_the_stream_of_one_of_them(store: Spy) -> None:
    results: dict[int, bool] = {}
    start = threading.Barrier(6)

    def create(count: int) -> None:
        configuration = StreamConfiguration(ScalingPolicy.fixed(count), tags={f"t{count}"})
        manager = manager_of(store)
        start.wait()
        results[count] = manager.create_stream("s/t", configuration)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (winner,) = [count for count, created in results.items() if created]
    info = manager_of(store).stream_info("s/t")
    assert len(info.segments) == winner
    commits = open_stream(store, "s/t").log.reader.span(-1, info.version)
    # A creator that finds the winner's row without a log draws the stream's life before.
    assert [c.operation for c in commits] in (["CREATE STREAM"], ["DRAW LIFE", "CREATE STREAM"])
    assert manager_of(store).list_streams("s", tag=f"t{winner}") == ["s/t"]


@pytest.mark.parametrize("next_one", ["create", "writer", "seal", "update"])
def test_creation_killed_after_its_row_is_finished_by_the_next_call(
    store: Spy, next_one: str
) -> None:
    with at_failpoint("create.row", kill), pytest.raises(Killed):
        manager_of(store).create_stream("s/t", TWO)
    manager = manager_of(store)
    if next_one == "create":
        assert not manager.create_stream("s/t")  # its row exists already
    elif next_one == "writer":
        manager.create_writer("s/t").close()
    elif next_one == "seal":
        assert manager.seal_stream("s/t")
    else:
        assert not manager.update_stream("s/t", TWO)
    info = manager.stream_info("s/t")
    assert (info.life > DRAWN, len(info.segments)) == (True, 2)
    assert manager.list_streams("s", tag="two") == ["s/t"]


def test_creator_whose_stream_was_finished_by_another_call_returns_true(store: Spy) -> None:
    other = manager_of(store)
    with at_failpoint("create.row", lambda: other.create_writer("s/t").close()):
        assert manager_of(store).create_stream("s/t", TWO)
    assert len(manager_of(store).stream_info("s/t").segments) == 2


def test_creator_that_is_stalled_for_a_whole_life_creates_nothing(store: Spy) -> None:
    other = manager_of(store)

    def live() -> None:
        other.create_writer("s/t").close()
        other.seal_stream("s/t")
        other.delete_stream("s/t")

    with at_failpoint("create.row", live):
        manager_of(store).create_stream("s/t")
    assert not manager_of(store).stream_exists("s/t")
    assert manager_of(store).list_streams("s") == []


def test_lost_answers_do_not_create_twice(store: Spy) -> None:
    store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent"))
    manager = manager_of(store)
    assert manager.create_stream("s/t")
    assert not manager.create_stream("s/t")
    assert manager.stream_info("s/t").version == 0


# --------------------------------------------------------------------- sealing, deleting, again


def test_only_a_sealed_stream_is_deleted_and_its_name_can_be_created_again(
    manager: StreamManager,
) -> None:
    (first, *_) = filled(manager)
    with pytest.raises(StreamNotSealed, match=r"s/t is ACTIVE.*seal it first"):
        manager.delete_stream("s/t")
    assert manager.seal_stream("s/t")
    assert not manager.seal_stream("s/t")
    assert manager.delete_stream("s/t")
    assert not manager.delete_stream("s/t")
    assert manager.list_streams("s") == []
    for call in (manager.seal_stream, manager.stream_info, manager.create_writer, manager.tail):
        with pytest.raises(NoSuchStream, match=r"s/t does not exist"):
            call("s/t")

    assert manager.create_stream("s/t")
    assert list(manager.read("s/t")) == []
    assert [s.number for s in manager.segments("s/t")] == [1]
    with pytest.raises(StaleIdentity, match=r"life \d{16}.*life 1"):
        manager.fetch_event(first)


@pytest.mark.parametrize("point", ["delete.committed", "delete.row"])
@pytest.mark.parametrize("next_one", ["delete", "create", "exists"])
def test_deletion_killed_before_its_row_was_dropped_is_finished_by_the_next_call(
    store: Spy, point: str, next_one: str
) -> None:
    manager = manager_of(store)
    filled(manager)
    manager.seal_stream("s/t")
    with at_failpoint(point, kill), pytest.raises(Killed):
        manager.delete_stream("s/t")
    manager = manager_of(store)
    if next_one == "delete":
        assert not manager.delete_stream("s/t")
    elif next_one == "exists":
        assert not manager.stream_exists("s/t")
    else:
        assert manager.create_stream("s/t")
        assert manager.stream_info("s/t").life > DRAWN
        assert manager.list_streams("s") == ["s/t"]
        return
    assert manager.list_streams("s") == []
    assert manager.delete_scope("s")


def test_deletion_that_is_stalled_until_the_name_is_created_again_leaves_the_new_life(
    store: Spy,
) -> None:
    manager = manager_of(store)
    filled(manager)
    manager.seal_stream("s/t")
    other = manager_of(store)
    with at_failpoint("delete.row", lambda: other.create_stream("s/t")):
        assert manager.delete_stream("s/t")
    assert manager_of(store).list_streams("s") == ["s/t"]
    assert manager_of(store).stream_info("s/t").life > DRAWN
    with pytest.raises(ScopeNotEmpty):
        manager_of(store).delete_scope("s")


def test_segment_numbers_continue_over_ten_lives(manager: StreamManager) -> None:
    numbers = []
    for _ in range(10):
        assert manager.create_stream("s/t", TWO)
        numbers.append([segment.number for segment in manager.segments("s/t")])
        manager.seal_stream("s/t")
        manager.delete_stream("s/t")
    assert numbers == [[2 * n, 2 * n + 1] for n in range(10)]


def test_writer_of_an_earlier_life_writes_nothing(manager: StreamManager) -> None:
    manager.create_stream("s/t")
    writer = manager.create_writer("s/t", "w")
    manager.seal_stream("s/t")
    manager.delete_stream("s/t")
    manager.create_stream("s/t")
    assert isinstance(writer.write_event(b"late").exception(30), StaleIdentity)
    writer.close()
    assert list(manager.read("s/t")) == []


# ------------------------------------------------------------------------------ tags and updates


def test_streams_are_listed_by_their_newest_tags(manager: StreamManager) -> None:
    manager.create_stream("s/a", TWO)
    manager.create_stream("s/b", StreamConfiguration(tags=frozenset({"two", "b"})))
    manager.create_stream("s/c")
    assert manager.list_streams("s") == ["s/a", "s/b", "s/c"]
    assert manager.list_streams("s", tag="two") == ["s/a", "s/b"]
    assert manager.update_stream("s/a", StreamConfiguration(TWO.scaling, tags=frozenset({"new"})))
    assert not manager.update_stream("s/a", StreamConfiguration(TWO.scaling, tags={"new"}))
    assert manager.tags("s/a") == {"new"}
    assert manager.list_streams("s", tag="two") == ["s/b"]
    assert manager.list_streams("s", tag="new") == ["s/a"]
    assert manager.list_streams("s", tag="none") == []


def test_row_of_a_killed_update_is_written_by_the_next_one(store: Spy) -> None:
    manager = manager_of(store)
    manager.create_stream("s/t")
    with at_failpoint("update.row", kill), pytest.raises(Killed):
        manager.update_stream("s/t", TWO)
    assert not manager_of(store).update_stream("s/t", TWO)
    assert manager_of(store).list_streams("s", tag="two") == ["s/t"]


def test_slow_update_does_not_hide_the_tags_of_a_newer_one(store: Spy) -> None:
    manager_of(store).create_stream("s/t")
    other = manager_of(store)
    tagged = [StreamConfiguration(tags=frozenset({name})) for name in ("old", "new")]
    with at_failpoint("update.row", lambda: other.update_stream("s/t", tagged[1])):
        manager_of(store).update_stream("s/t", tagged[0])
    assert manager_of(store).tags("s/t") == {"new"}
    assert manager_of(store).list_streams("s", tag="new") == ["s/t"]


def test_update_during_a_deletion_leaves_no_row(store: Spy) -> None:
    manager = manager_of(store)
    manager.create_stream("s/t")
    other = manager_of(store)

    def end() -> None:
        other.seal_stream("s/t")
        other.delete_stream("s/t")

    with at_failpoint("update.row", end):
        assert manager.update_stream("s/t", TWO)
    assert manager_of(store).list_streams("s") == []


def test_sealed_stream_accepts_new_tags_and_retention_but_no_new_scaling(
    manager: StreamManager,
) -> None:
    manager.create_stream("s/t")
    manager.seal_stream("s/t")
    with pytest.raises(StreamSealed, match="s/t is sealed: its scaling policy cannot be updated"):
        manager.update_stream("s/t", TWO)
    assert manager.update_stream("s/t", StreamConfiguration(tags={"old"}))
    assert manager.list_streams("s", tag="old") == ["s/t"]


def test_sealed_stream_that_was_truncated_to_its_end_still_reports_its_end(
    manager: StreamManager,
) -> None:
    filled(manager)
    group = manager.create_reader_group("s/g", ["s/t"], retention="automatic")
    manager.seal_stream("s/t")
    assert manager.truncate_stream("s/t", "latest", past_subscribers=True).events == 5
    assert list(manager.read("s/t")) == []
    assert list(manager.follow("s/t", "earliest")) == []
    with group.create_reader("one") as reader:
        with pytest.raises(TruncatedData):
            reader.read_next_event(timeout=0)
        assert reader.read_next_event(timeout=0).is_completed


# --------------------------------------------------------------------------- reading, pickling


def test_events_are_read_with_their_pointers(manager: StreamManager) -> None:
    pointers = filled(manager)
    events = list(manager.read("s/t"))
    assert [event.data for event in events] == [b"%d" % n for n in range(5)]
    assert [event.pointer for event in events] == pointers
    assert manager.fetch_event(pointers[3]).data == b"3"
    info = manager.stream_info("s/t")
    assert (info.events, info.size_bytes) == (5, 5)


def test_manager_is_pickled_by_its_root(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    filled(manager)
    copy = pickle.loads(pickle.dumps(manager))
    assert copy.root == manager.root == f"file://{tmp_path}"
    assert len(list(copy.read("s/t"))) == 5


def test_scope_is_swept_without_its_streams(manager: StreamManager, store: Spy) -> None:
    for n in range(4):
        manager.create_stream(f"s/t{n}")
        manager.update_stream(f"s/t{n}", TWO)
    wait_for_maintenance()
    before = len(store.list("s/_scope/data"))
    commits = [store.list(f"s/t{n}/events") for n in range(4)]

    root_of(manager).runtime.sleep(60)
    result = manager.sweep_scope("s", grace=0, retain=0)
    assert (result.files, result.records) == (before - 1, 0)
    assert len(store.list("s/_scope/data")) == 1
    assert [store.list(f"s/t{n}/events") for n in range(4)] == commits
    assert manager_of(store).list_streams("s", tag="two") == [f"s/t{n}" for n in range(4)]


def test_scope_that_does_not_exist_is_not_swept(manager: StreamManager) -> None:
    manager.create_scope("gone")
    manager.delete_scope("gone")
    for scope in ("none", "gone"):
        with pytest.raises(NoSuchScope, match=f"scope {scope} does not exist; create it first"):
            manager.sweep_scope(scope)
    with pytest.raises(InvalidConfiguration, match="grace 'soon' is not a valid duration"):
        manager.sweep_scope("s", grace="soon")


def test_creating_a_stream_costs_the_same_in_a_scope_ten_times_as_large() -> None:
    costs = []
    for count in (600, 6_000):
        spy = Spy()
        manager = manager_over(spy)
        manager.create_scope("s")
        table = root_of(manager).scope("s").table
        row = {"kind": "stream", "life": 1, "version": -1, "tags": [], "configuration": "{}"}
        rows = {name: {"name": name, **row} for name in (f"n{i:05d}" for i in range(count))}
        filled = TableChange("FILL", rows)
        table.change(lambda state, change=filled: (change, None))  # type: ignore[misc]
        wait_for_maintenance()
        spy.calls.clear()
        assert manager.create_stream("s/new")
        assert spy.count("get", "_scope/data/") == 0
        costs.append([call for call, key in spy.calls if "/_scope/" in key])
        assert len(manager_of(spy).list_streams("s")) == count + 1
    assert costs[0] == costs[1]


def filled_scope(store: Spy, count: int) -> None:
    """Create scope s with one stream, t, and rows of so many others, as another process does."""
    manager = manager_of(store)
    manager.create_scope("s")
    manager.create_stream("s/t")
    row = {"kind": "stream", "life": 1, "version": -1, "tags": [], "configuration": "{}"}
    changes = {name: {"name": name, **row} for name in (f"n{i:05d}" for i in range(count))}
    filled = TableChange("FILL", changes=changes)
    Scope(store, "s").table.change(lambda state: (filled, None))


def test_the_second_group_of_a_process_costs_the_same_in_a_scope_ten_times_as_large() -> None:
    costs = []
    for count in (600, 6_000):
        spy = Spy()
        filled_scope(spy, count)
        manager_over(spy).create_reader_group("s/first", ["s/t"])
        calls = []
        for act in (
            lambda manager: manager.create_reader_group("s/g", ["s/t"]),
            lambda manager: manager.delete_reader_group("s/g"),
        ):
            wait_for_maintenance()
            spy.calls.clear()
            act(manager_over(spy))  # another manager of the same process
            assert spy.count("get", "_scope/data/") == 0, "the rows are known"
            calls.append(sorted(call for call, key in spy.calls if "/_scope/" in key))
        costs.append(calls)
    assert costs[0] == costs[1]


@pytest.mark.medium
def test_a_handle_of_a_group_keeps_no_rows_of_its_scope() -> None:
    spy = Spy()
    filled_scope(spy, 600)
    group = manager_over(spy).create_reader_group("s/g", ["s/t"])
    group.online_readers()
    scope = weakref.ref(scopes.open_scope(spy, "s"))
    assert scope() is not None
    scopes._open.reset()
    gc.collect()
    assert scope() is None
    assert group.online_readers() == []


# ------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("name", ["t", "s/t/u", "s/", "/t", "s/a_b", "s_x/t", "s/..", 7, None,
                                  "s/" + "x" * 251])  # fmt: skip
def test_invalid_stream_name_is_refused_everywhere_with_the_rule(
    manager: StreamManager, name: Any
) -> None:
    for call in (
        manager.create_stream, manager.stream_exists, manager.seal_stream, manager.delete_stream,
        manager.stream_info, manager.create_writer, manager.head, manager.create_reader,
    ):  # fmt: skip
        with pytest.raises(InvalidName, match=r"named 'scope/stream'|is not allowed|at most 250"):
            call(name)
    assert manager.list_streams("s") == []


@pytest.mark.parametrize("name", ["a_b", "", "a/b", "..", 7, "x" * 256])
def test_invalid_scope_name_is_refused_before_any_storage_call(name: Any) -> None:
    store = MemoryStore()
    with pytest.raises(InvalidName, match="scope name"):
        manager_of(store).create_scope(name)
    assert store.list("") == []


@pytest.mark.parametrize("segments", [0, -1, 10_001, "2", 1.5, True])
def test_bad_number_of_segments_is_refused(segments: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="segments"):
        ScalingPolicy.fixed(segments)


@pytest.mark.parametrize(
    "tags", [{""}, {"x" * 257}, {str(n) for n in range(129)}, "text", {7}, 7, {"\ud800"}]
)
def test_bad_tags_are_refused(tags: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="tag"):
        StreamConfiguration(tags=tags)


def test_error_of_a_missing_scope_or_stream_gives_advice(manager: StreamManager) -> None:
    with pytest.raises(NoSuchScope, match="scope none does not exist; create it first"):
        manager.create_stream("none/t")
    with pytest.raises(NoSuchScope, match="none"):
        manager.list_streams("none")
    assert not manager.stream_exists("none/t")
    assert not manager.delete_stream("none/t")
    assert not manager.delete_stream("s/none")
    for call in (manager.create_writer, manager.read, manager.seal_stream, manager.tail):
        with pytest.raises(
            NoSuchStream,
            match=r"s/none does not exist under .*: check the name and the root",
        ):
            call("s/none")
    with pytest.raises(NoSuchStream):
        manager.update_stream("s/none", TWO)


def test_log_without_its_scope_is_not_taken_for_a_stream_or_table_that_exists(
    tmp_path: Path,
) -> None:
    manager = StreamManager(tmp_path)
    for name in ("s/t", table_log("s", "t")):
        make_stream(root_of(manager).store, SYSTEM, name=name)
    with pytest.raises(CorruptLog, match="scope s has lost its log"):
        manager.create_stream("s/t")
    with pytest.raises(CorruptLog, match="scope s has lost its log"):
        manager.create_key_value_table("s/t", KeyValueTableConfiguration())


def test_cuts_of_another_stream_or_life_and_a_start_after_the_end_are_refused(
    manager: StreamManager,
) -> None:
    filled(manager)
    filled(manager, "s/other")
    foreign, tail = manager.tail("s/other"), manager.tail("s/t")
    with pytest.raises(InvalidStreamCut, match="s/other"):
        list(manager.read("s/t", foreign))
    with pytest.raises(InvalidStreamCut, match="lies after the end"):
        list(manager.read("s/t", tail, manager.head("s/t")))
    with pytest.raises(InvalidStreamCut):
        list(manager.read("s/t", StreamCut("s/t", 2, dict(tail.positions))))
    with pytest.raises(InvalidStreamCut):
        list(manager.read("s/t", StreamCut("s/t", 1, {0: 99})))


OTHER_TYPES: dict[str, tuple[type[Exception], Callable[[StreamManager], Any]]] = {
    "read": (InvalidStreamCut, lambda m: m.read("s/t", "xx")),
    "read a number": (InvalidStreamCut, lambda m: m.read("s/t", end=7)),  # type: ignore[arg-type]
    "follow": (InvalidStreamCut, lambda m: m.follow("s/t", "x")),
    "ranges": (InvalidStreamCut, lambda m: m.segment_ranges("s/t", "x")),
    "distance": (InvalidStreamCut, lambda m: m.distance("s/t", "earliest", "s/t@1:0#0=x")),
    "between": (InvalidStreamCut, lambda m: m.segments_between("s/t", "s/t@1:0=1", "latest")),
    "long": (InvalidStreamCut, lambda m: m.read("s/t", "s/t@1:0#0=" + "9" * 5_000)),
    "fetch": (InvalidInput, lambda m: m.fetch_event("x")),
    "fetch a number": (InvalidInput, lambda m: m.fetch_event(7)),  # type: ignore[arg-type]
    "create": (InvalidConfiguration, lambda m: m.create_stream("s/u", {"segments": 2})),  # type: ignore[arg-type]
    "create from nothing": (InvalidConfiguration, lambda m: m.create_stream("s/u", {})),  # type: ignore[arg-type]
    "update": (InvalidConfiguration, lambda m: m.update_stream("s/t", 7)),  # type: ignore[arg-type]
    "root": (InvalidInput, lambda m: StreamManager(None)),  # type: ignore[arg-type]
    "positions": (InvalidStreamCut, lambda m: StreamCut("s/t", 1, {0: "x"})),  # type: ignore[dict-item]
    "no positions": (InvalidStreamCut, lambda m: StreamCut("s/t", 1, [1])),  # type: ignore[arg-type]
    "mark": (InvalidStreamCut, lambda m: StreamCut.from_json("s/t", 1, {"0#0": "soon"})),
    "no number": (InvalidStreamCut, lambda m: StreamCut.from_json("s/t", 1, {"0#0": 1.5})),  # type: ignore[dict-item]
    "segment": (InvalidStreamCut, lambda m: StreamCut.from_json("s/t", 1, {"0": 1})),
}


@pytest.mark.parametrize("what", OTHER_TYPES)
def test_arguments_of_other_types_or_texts_are_refused(manager: StreamManager, what: str) -> None:
    error, call = OTHER_TYPES[what]
    filled(manager)
    with pytest.raises(error) as raised:
        call(manager)
    assert type(raised.value) is error
    assert manager.list_streams("s") == ["s/t"]


def test_cuts_and_pointers_are_accepted_as_texts(manager: StreamManager) -> None:
    pointers = filled(manager)
    assert [event.data for event in manager.read("s/t", "s/t@1:0#0=3", "latest")] == [b"3", b"4"]
    assert [event.data for event in manager.follow("s/t", "s/t@1:0#0=4", timeout=0)] == [b"4"]
    assert manager.distance("s/t", "earliest", str(manager.tail("s/t"))) == (5, 5)
    assert manager.fetch_event(str(pointers[2])).data == b"2"


def test_unknown_events_and_segments_are_named_in_the_error(manager: StreamManager) -> None:
    filled(manager)
    for segment, offset in ((0, 5), (7, 0)):
        with pytest.raises(NoSuchEvent, match=f"={offset}"):
            manager.fetch_event(EventPointer("s/t", 1, segment, offset))
    with pytest.raises(NoSuchSegment, match=r"no segment 9#0; its active ones are 0#0"):
        manager.segment("s/t", 9)
    with pytest.raises(InvalidInput, match="epoch 5 is not one of them"):
        manager.segments("s/t", epoch=5)


# --------------------------------------------------------------------------------------- faults


class Overwriting(MemoryStore):
    """A store whose creates overwrite."""

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> Any:
        from pravega_spark.engine.store import PutOutcome

        self.put(key, data)
        return PutOutcome.CREATED


def test_store_without_exclusive_create_is_refused_by_name_with_the_reason() -> None:
    store = Overwriting()
    with pytest.raises(StoreRefused, match=r"memory://.* cannot hold streams.*Use a local"):
        manager_of(store).create_scope("s")
    assert store.list("") == []


def test_hdfs_is_refused_with_the_reason() -> None:
    with pytest.raises(StoreRefused, match=r"hdfs://.*no exclusive create"):
        StreamManager("hdfs://host/x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_root_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreReadOnly):
        StreamManager(tmp_path).create_scope("s")


@pytest.mark.parametrize("error", [StoreFull("no space left"), StoreReadOnly("read-only")])
@pytest.mark.parametrize("nth", range(1, 4))
def test_refusal_of_any_write_leaves_nothing_half_made(
    store: Spy, error: Exception, nth: int
) -> None:
    manager = manager_of(store)
    store.rules.add(Rule(error, "put*", nth=nth))
    with contextlib.suppress(type(error)):
        manager.create_stream("s/t", TWO)
    store.rules.clear()

    again = manager_of(store)
    again.create_stream("s/t", TWO)
    assert len(again.stream_info("s/t").segments) == 2
    assert again.list_streams("s") == ["s/t"]


def test_foreign_delta_table_at_the_path_of_a_scope_or_stream_is_left_alone(
    tmp_path: Path,
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    for place in ("x/_scope", "s/t/events"):
        deltalake.write_deltalake(str(tmp_path / place), pa.table({"a": [1]}))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.json")}
    with pytest.raises(ForeignTable, match=r"x/_scope is a Delta table.*nothing was changed"):
        manager.create_scope("x")
    for call in (manager.create_stream, manager.stream_info, manager.delete_stream):
        with pytest.raises(ForeignTable, match=r"s/t/events is a Delta table.*Name another"):
            call("s/t")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.json")} == before
    assert manager.list_streams("s") == []


def test_damaged_log_or_chunk_is_named_and_the_rest_is_readable(
    manager: StreamManager, store: Spy
) -> None:
    filled(manager)
    (chunk,) = store.list("s/t/events/data")
    whole = store.get(chunk.key)
    store.put(chunk.key, whole[: len(whole) // 2])
    root = store.url.rstrip("/")
    path = f"{root}/{chunk.key}"
    with pytest.raises(CorruptChunk, match=r"bytes; the log records .*Restore the file") as damaged:
        list(manager_of(store).read("s/t"))
    assert (damaged.value.stream, damaged.value.path) == ("s/t", path)
    assert path in str(damaged.value)
    store.delete([chunk.key])
    with pytest.raises(DataLoss, match=r"file .* does not exist; restore the") as missing:
        list(manager_of(store).read("s/t"))
    assert (missing.value.stream, missing.value.path) == ("s/t", path)
    assert path in str(missing.value)
    assert missing.value.lost == SegmentRange("s/t", 1, 0, 0, 5)
    store.put(chunk.key, whole)
    assert len(list(manager_of(store).read("s/t"))) == 5

    store.put("s/t/events/_delta_log/" + "0" * 19 + "1.json", b"torn")
    with pytest.raises(CorruptLog, match=r"s/t/events: version 1 .*Restore it") as torn:
        manager_of(store).stream_info("s/t")
    assert (torn.value.stream, torn.value.path) == ("s/t", f"{root}/s/t/events")


def test_clock_that_jumps_back_breaks_nothing(store: Spy) -> None:
    runtime = FakeRuntime()
    manager = manager_over(store, runtime)
    for hour in range(4):
        runtime.wall_ms -= hour * 3_600_000
        filled(manager, "s/t", 3)
    view = root_of(manager).stream("s/t").current_view()
    assert view is not None
    times = [
        commit.timestamp_ms for commit in root_of(manager).stream("s/t").log.reader.span(-1, 4)
    ]
    assert times == sorted(set(times))
    assert len(list(manager.read("s/t"))) == 12


def test_scope_of_the_system_clock_and_a_fake_one_are_the_same(store: Spy) -> None:
    assert Scope(store, "s", SYSTEM).rows() == Scope(store, "s", FakeRuntime()).rows() == {}


# ------------------------------------------------------------------------------- reader groups


def test_reader_groups_are_created_listed_opened_and_deleted(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    with pytest.raises(NoSuchScope):
        manager.create_reader_group("nyc/board", ["nyc/flights"])
    manager.create_scope("nyc")
    manager.create_stream("nyc/flights")
    with manager.create_writer("nyc/flights") as writer:
        writer.write_event(b"UA1545", "UA")
    group = manager.create_reader_group("nyc/board", ["nyc/flights"])
    assert manager.list_reader_groups("nyc") == ["nyc/board"]
    with group.create_reader("one") as reader:
        read = reader.read_next_event(timeout=10)
        assert read.event is not None
        assert read.event.data == b"UA1545"
    assert manager.reader_group("nyc/board").online_readers() == []
    assert manager.create_reader_group("nyc/board", ["nyc/flights"]).generation == group.generation
    with pytest.raises(ConfigMismatch, match="nyc/board exists with another configuration"):
        manager.create_reader_group("nyc/board", ["nyc/flights"], refresh="1 s")
    assert manager.delete_reader_group("nyc/board")
    assert not manager.delete_reader_group("nyc/board")
    assert manager.list_reader_groups("nyc") == []
    with pytest.raises(NoSuchReaderGroup):
        manager.reader_group("nyc/board")


def test_scope_with_a_group_is_deleted_only_recursively_and_swept_with_it(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("nyc")
    manager.create_stream("nyc/flights")
    group = manager.create_reader_group("nyc/board", ["nyc/flights"])
    before = len(list((tmp_path / "nyc" / "_reader_groups" / "board" / "data").rglob("*.parquet")))
    for name in ("a", "b", "c"):
        group.create_reader(name).close()
    manager.sweep_scope("nyc", grace="0 s", retain="0 s")
    manager.sweep_scope("nyc", grace="0 s", retain="0 s")
    after = len(list((tmp_path / "nyc" / "_reader_groups" / "board" / "data").rglob("*.parquet")))
    assert after <= before + 2
    manager.seal_stream("nyc/flights")
    manager.delete_stream("nyc/flights")
    with pytest.raises(ScopeNotEmpty, match=r"nyc still holds 1 group \(board\)"):
        manager.delete_scope("nyc")
    assert manager.delete_scope("nyc", recursive=True)
    assert not manager.scope_exists("nyc")


@pytest.mark.parametrize("next_one", ["create", "open", "delete", "reset"])
def test_group_creation_killed_after_its_row_is_finished_by_the_next_call(
    store: Spy, next_one: str
) -> None:
    filled(manager_of(store))
    with at_failpoint("group.create.row", kill), pytest.raises(Killed):
        manager_of(store).create_reader_group("s/g", ["s/t"], retention="manual")
    manager = manager_of(store)
    assert manager.list_reader_groups("s") == ["s/g"]
    assert manager.list_subscribers("s/t") == []
    if next_one == "delete":
        assert manager.delete_reader_group("s/g")
        assert manager.list_reader_groups("s") == []
        assert manager.list_subscribers("s/t") == []
        return
    if next_one == "create":
        with pytest.raises(ConfigMismatch):  # the dead one's row has it
            manager.create_reader_group("s/g", ["s/t"])
    elif next_one == "reset":
        assert manager.reader_group("s/g").reset() == 1
    assert manager.reader_group("s/g").is_at_end() is False
    assert [found.name for found in manager.list_subscribers("s/t")] == ["s/g"]


def test_scope_with_a_group_that_is_being_created_is_not_deleted(store: Spy) -> None:
    manager, other = manager_of(store), manager_of(store)
    filled(manager)
    manager.create_scope("groups")

    def deletes() -> None:
        with pytest.raises(ScopeNotEmpty, match=r"groups still holds 1 group \(g\)"):
            other.delete_scope("groups")
        assert other.delete_scope("groups", recursive=True)

    with at_failpoint("group.create.row", deletes):
        created = manager.create_reader_group("groups/g", ["s/t"], retention="manual")
    with pytest.raises(NoSuchReaderGroup):  # it was created and deleted in between
        created.stream_cuts()
    assert not manager.scope_exists("groups")
    assert manager.list_subscribers("s/t") == []
    with pytest.raises(NoSuchScope, match="groups does not exist"):
        manager.create_reader_group("groups/g", ["s/t"])
    manager.create_scope("groups")
    assert manager.list_reader_groups("groups") == []
    assert manager.create_reader_group("groups/g", ["s/t"]).generation == 2


def test_group_whose_stream_was_deleted_during_its_creation_is_not_created(store: Spy) -> None:
    manager, other = manager_of(store), manager_of(store)
    filled(manager)

    def vanishes() -> None:
        other.seal_stream("s/t")
        other.delete_stream("s/t")
        with pytest.raises(NoSuchReaderGroup):
            other.reader_group("s/g")
        assert other.list_reader_groups("s") == []
        filled(other)

    with at_failpoint("group.create.row", vanishes):
        created = manager.create_reader_group("s/g", ["s/t"])
    with pytest.raises(NoSuchReaderGroup):  # its number was used up
        created.stream_cuts()
    assert manager.create_reader_group("s/g", ["s/t"]).generation == 1

    manager.delete_reader_group("s/g")
    with at_failpoint("group.create.row", kill), pytest.raises(Killed):
        manager_of(store).create_reader_group("s/g", ["s/t"])
    manager.seal_stream("s/t")
    manager.delete_stream("s/t")
    with pytest.raises(NoSuchReaderGroup):
        manager_of(store).reader_group("s/g")
    assert manager.delete_scope("s")


def test_group_deletion_killed_before_its_row_was_dropped_is_finished(store: Spy) -> None:
    manager = manager_of(store)
    filled(manager)
    manager.create_reader_group("s/g", ["s/t"])
    with at_failpoint("group.change.done", kill), pytest.raises(Killed):
        manager_of(store).delete_reader_group("s/g")
    with pytest.raises(NoSuchReaderGroup):
        manager_of(store).reader_group("s/g")
    assert manager.list_reader_groups("s") == []
    assert manager.create_reader_group("s/g", ["s/t"]).generation == 2
    assert manager.list_reader_groups("s") == ["s/g"]


def raced(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Run calls concurrently; return the outcome of each."""
    outcome, start = dict[str, str](), threading.Barrier(len(calls))

    def attempt(name: str, call: Callable[[], object]) -> None:
        start.wait()
        try:
            call()
            outcome[name] = "done"
        except (NoSuchScope, ScopeNotEmpty) as error:
            outcome[name] = type(error).__name__

    threads = [threading.Thread(target=attempt, args=call) for call in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


@pytest.mark.parametrize("recursive", [False, True])
def test_group_creation_and_scope_deletion_race_and_one_of_them_wins(
    store: Spy, *, recursive: bool
) -> None:
    filled(manager_of(store))
    allowed = {("NoSuchScope", "done"), ("done", "done" if recursive else "ScopeNotEmpty")}
    for scope in (f"race-{number}" for number in range(12)):
        manager, creator, deleter = (manager_of(store) for _ in range(3))
        manager.create_scope(scope)
        group = f"{scope}/g"
        create = partial(creator.create_reader_group, group, ["s/t"], retention="manual")
        delete = partial(deleter.delete_scope, scope, recursive=recursive)
        outcome = raced({"create": create, "delete": delete})
        assert (outcome["create"], outcome["delete"]) in allowed
        held = {found.name for found in manager.list_subscribers("s/t")}
        if outcome["delete"] == "done":
            assert not manager.scope_exists(scope)
            assert group not in held
        else:
            assert manager.list_reader_groups(scope) == [group]
            assert group in held


def test_records_are_kept_for_ever_without_an_age_that_the_log_can_know(
    tmp_path: Path,
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    stream = created(str(tmp_path))
    longer = r"keep_records '2 days' \(flag\) is longer than retain '1 day' \(flag\)"
    with pytest.raises(InvalidConfiguration, match=longer):
        manager.sweep_stream(stream.name, retain="1 day", keep_records="2 days")
    with manager.create_writer(stream.name, writer_id="w") as writer:
        writer.write_event(b"x", routing_key="k")
    with manager.create_writer(stream.name) as writer:
        for _ in range(3):
            writer.write_event(b"y")
            writer.flush()
    manager.sweep_stream(stream.name, grace=0, retain=0)
    assert stream.view().writer("w") is not None
    manager.sweep_stream(stream.name, grace=0, retain=0, keep_records=0)
    assert stream.view().writer("w") is None
    with manager.create_writer(stream.name, writer_id="w") as writer:
        assert writer.last_event_number == 1
