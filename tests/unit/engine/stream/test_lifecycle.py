from __future__ import annotations

import threading

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.identity import open_session
from pravega_spark.errors import NoSuchStream, StoreError, StreamNotSealed, StreamSealed
from pravega_spark.values.segments import END
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import all_events, make_stream, reopen, scale, write
from tests.harness.spy_store import Spy

TWO = StreamConfiguration(ScalingPolicy.fixed(2))


def fresh(store: MemoryStore | Spy | None = None) -> StreamLog:
    stream = StreamLog(store or MemoryStore(), "s/t", FakeRuntime())
    stream.log.maintain = None
    return stream


def test_created_stream_has_equal_ranges_an_empty_head_and_one_commit() -> None:
    stream = fresh()
    assert lifecycle.create(stream, 1, TWO)
    view = stream.view()
    assert (view.version, view.life, view.record.state) == (0, 1, StreamState.ACTIVE)
    assert [(s.key_range.low, s.key_range.high) for s in view.active.segments] == [
        (0.0, 0.5),
        (0.5, 1.0),
    ]
    assert view.head == view.tail


def test_of_many_creators_one_creates() -> None:
    store = MemoryStore()
    results: list[bool] = []
    start = threading.Barrier(8)

    def create(count: int) -> None:
        stream = fresh(store)
        start.wait()
        configuration = StreamConfiguration(ScalingPolicy.fixed(count))
        results.append(lifecycle.create(stream, 1, configuration))

    threads = [threading.Thread(target=create, args=(n + 1,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(results) == [False] * 7 + [True]
    view = fresh(store).view()
    assert view.version == 0
    assert len(view.active.segments) == view.record.configuration.scaling.minimum


def test_segment_numbers_and_epochs_continue_over_ten_creations() -> None:
    stream = fresh()
    firsts: list[int] = []
    ids: list[int] = []
    for life in range(1, 11):
        assert lifecycle.create(stream, life, TWO)
        view = stream.view()
        firsts.append(view.active.segments[0].number)
        ids += view.active.segment_ids
        write(stream, [("a", b"x"), ("b", b"y")])
        lifecycle.seal(stream)
        assert lifecycle.delete(stream)

    assert firsts == list(range(0, 20, 2))
    assert len(set(ids)) == 20
    assert stream.current_view().record.stream_id  # type: ignore[union-attr]


def test_creation_of_a_life_that_has_begun_or_is_over_changes_nothing() -> None:
    stream = fresh()
    lifecycle.create(stream, 1, TWO)
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    version = stream.current_view().version  # type: ignore[union-attr]
    late = reopen(stream)
    assert not lifecycle.create(late, 1, TWO)  # a creator that was paused since the first life
    assert stream.current_view().version == version  # type: ignore[union-attr]
    assert not lifecycle.create(late, 3, TWO)
    assert lifecycle.create(late, 2, TWO)


def test_only_a_sealed_stream_is_deleted() -> None:
    stream = make_stream()
    with pytest.raises(StreamNotSealed, match=r"s/t is ACTIVE.*seal it first"):
        lifecycle.delete(stream)
    assert stream.view().version == 0


def test_deletion_removes_all_state_and_data_except_the_identity() -> None:
    stream = make_stream(segments=2)
    write(stream, [("a", b"x"), ("b", b"y")])
    open_session(stream, 1, "w")
    lifecycle.seal(stream)
    stream_id = stream.view().record.stream_id
    assert lifecycle.delete(stream)

    view = reopen(stream).current_view()
    assert view is not None
    assert sorted(view.snapshot.domains) == ["pravega.log", "pravega.stream"]
    assert (view.record.state, view.record.stream_id) == (StreamState.DELETED, stream_id)
    assert view.snapshot.horizon == view.snapshot.retention_mark == view.version
    assert view.snapshot.commit_deletion_mark == view.version
    assert stream.store.list(f"{stream.path}/data") == []
    with pytest.raises(NoSuchStream, match="does not exist"):
        stream.view()
    assert not lifecycle.delete(stream)
    assert not lifecycle.delete(fresh())


def test_files_of_a_deletion_that_was_killed_are_deleted_by_the_next() -> None:
    store = Spy()
    stream = make_stream(store)
    write(stream, [("a", b"x")])
    lifecycle.seal(stream)
    store.rules.add(Rule(Fault.LOSE_REQUEST, "delete", nth=1))
    with pytest.raises(StoreError):
        lifecycle.delete(stream)
    assert len(store.list(f"{stream.path}/data")) == 1
    assert not lifecycle.delete(reopen(stream))
    assert store.list(f"{stream.path}/data") == []


def test_seal_is_one_final_commit_that_keeps_the_data() -> None:
    stream = make_stream(segments=2)
    write(stream, [("a", b"x"), ("b", b"y"), ("c", b"z")])
    assert lifecycle.seal(stream)
    assert not lifecycle.seal(reopen(stream))
    view = stream.view()
    assert view.version == 2
    assert set(view.tail.positions.values()) == {END}
    assert len(all_events(stream)) == 3


@pytest.mark.parametrize("sealed_first", [True, False])
def test_seal_races_an_append_and_either_wins_cleanly(sealed_first: bool) -> None:
    store = Spy()
    stream = make_stream(store)
    other = reopen(stream)
    other.view()

    def go(operation: str, key: str) -> None:
        if operation == "put_if_absent" and key == other.log.reader.key(1):
            store.hook = None
            _ = lifecycle.seal(other) if sealed_first else write(other, [("k", b"theirs")])

    store.hook = go
    if sealed_first:
        with pytest.raises(StreamSealed):
            write(stream, [("k", b"ours")])
        assert all_events(stream) == []
    else:
        assert lifecycle.seal(stream)
        assert all_events(stream) == [("k", b"theirs")]


def test_update_replaces_policies_and_tags_except_the_scaling_of_a_sealed_stream() -> None:
    stream = make_stream()
    tagged = StreamConfiguration(ScalingPolicy.by_event_rate(10), tags=frozenset({"a"}))
    assert lifecycle.update(stream, tagged)
    assert not lifecycle.update(stream, tagged)
    assert lifecycle.update(stream, StreamConfiguration(tagged.scaling, tags=frozenset({"b"})))
    assert stream.view().record.configuration.tags == {"b"}
    lifecycle.seal(stream)
    epoch = stream.view().active
    with pytest.raises(StreamSealed, match="scaling policy cannot be updated"):
        lifecycle.update(stream, TWO)
    shorter = StreamConfiguration(tagged.scaling, RetentionPolicy.by_time("1 h"), {"c"})
    assert lifecycle.update(stream, shorter)
    assert not lifecycle.update(stream, shorter)
    assert stream.view().record.configuration.retention == shorter.retention
    assert (stream.view().record.configuration.tags, stream.view().active) == (
        frozenset({"c"}),
        epoch,
    )
    scaled = make_stream()
    scale(scaled, [0], [(0, 0.5), (0.5, 1)])
    lifecycle.seal(scaled)
    assert lifecycle.update(scaled, StreamConfiguration(tags={"wide"}))
    assert len(scaled.view().active.segments) == 2
    with pytest.raises(NoSuchStream):
        lifecycle.update(fresh(), TWO)


def test_sealed_segments_of_earlier_epochs_stay_sealed_by_them() -> None:
    stream = make_stream()
    scale(stream, [0], [(0, 0.5), (0.5, 1)])
    lifecycle.seal(stream)
    view = stream.view()
    assert view.segment(0).sealed_epoch == 1
    assert {view.segment(s).sealed_epoch for s in view.active.segment_ids} == {1}
