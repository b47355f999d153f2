"""Compaction of real streams: what stays the same, what becomes less, and what races do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.compaction import merge
from pravega_spark.compaction.merge import commit_merged, merge_range
from pravega_spark.compaction.plan import CompactionOptions, plan_compaction
from pravega_spark.compaction.result import MergedRange, MergeRange
from pravega_spark.compaction.run import run_compaction
from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunks import reader
from pravega_spark.engine.chunks.chunk import NO_BOUNDS, ChunkRef, ColumnBounds, StagedChunk
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.positions import TimeSearch
from pravega_spark.engine.stream.read import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    InvalidConfiguration,
    InvalidInput,
    NoSuchStream,
    StaleIdentity,
    StoreReadOnly,
    TruncatedData,
)
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.txn import sweeper
from pravega_spark.values.events import Event
from pravega_spark.values.segments import SegmentRange, StreamCut
from pravega_spark.values.units import parse_size_bytes
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, SkippingRuntime, manager_of, memory
from tests.harness.fault_plans import Rule
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import all_events, make_stream, reopen, scale, write
from tests.harness.spy_store import Spy

OPTIONS = CompactionOptions(root={"compact_target": parse_size_bytes("", "16 KiB")})
"""Small chunks of tests are merged, and a run reads no settings."""


def filled(chunks: int = 40, rows: int = 3, segments: int = 1) -> StreamLog:
    """A stream of many small chunks that are old enough to be merged."""
    runtime = FakeRuntime()
    stream = make_stream(Spy(memory(runtime)), runtime, segments)
    grow(stream, chunks, rows)
    return stream


def grow(stream: StreamLog, chunks: int, rows: int = 3) -> None:
    for n in range(chunks):
        write(stream, [(f"k{i}" if i else None, b"%d-%d" % (n, i)) for i in range(rows)])
        stream.runtime.sleep(1)
    stream.runtime.sleep(100)


def refs_of(stream: StreamLog, segment_id: int = 0) -> list[ChunkRef]:
    view = stream.view()
    end = view.segment(segment_id).next_offset
    return stream.known_chunks(SegmentRange(stream.name, view.life, segment_id, 0, end))


def compacted_long_ago(chunks: int = 40) -> StreamLog:
    """A stream with one merged chunk of 120 events, which readers at the tail do not read."""
    stream = filled(chunks)
    run_compaction(stream, OPTIONS)
    stream.runtime.sleep(100)
    return stream


def cut_at(stream: StreamLog, offset: int) -> StreamCut:
    return StreamCut(stream.name, stream.view().life, {0: offset})


def newest_commit(stream: StreamLog) -> Commit:
    commit = stream.log.reader.commit(stream.view().version, light=False)
    assert commit is not None
    return commit


def answers(stream: StreamLog) -> object:
    """What readers ask: events, and by offset cumulative bytes, times and events."""
    view = stream.view()
    tail, start = view.segment(0).next_offset, view.head_offset(0)
    times = [
        TimeSearch(stream, (stream.runtime.now_ms() - back) * 1_000).cut(view).cut
        for back in range(90_000, 160_000, 1_500)
    ]
    sizes = [stream.bytes_at(0, offset) for offset in range(start, tail + 1)]
    found = [
        next(
            iter(read_range(stream, SegmentRange(stream.name, view.life, 0, at, at + 1)))
        ).to_pylist()
        for at in range(start, tail)
    ]
    return all_events(stream), times, sizes, found


@pytest.mark.medium
def test_a_run_merges_small_chunks_and_every_answer_stays_the_same() -> None:
    stream = filled()
    before, size = answers(stream), stream.view().segment(0).size_bytes
    result = run_compaction(stream, OPTIONS)
    (ref,) = refs_of(stream)
    assert answers(stream) == answers(reopen(stream)) == before
    assert (ref.base_offset, ref.rows, ref.base_bytes, ref.event_bytes) == (0, 120, 0, size)
    assert (result.files_before, result.files_after, result.ranges, result.events) == (
        40,
        1,
        1,
        120,
    )
    assert result.bytes_written == ref.size < result.bytes_read
    assert 1 < result.amplification < 1.2
    again = run_compaction(stream, OPTIONS)
    assert (again.ranges, again.versions, again.files_before) == (0, (), 1)


def test_the_commit_is_no_change_of_data_and_has_its_figures() -> None:
    stream = filled()
    result = run_compaction(stream, OPTIONS)
    commit = newest_commit(stream)
    assert result.versions == (commit.version,)
    assert (commit.operation, commit.domains) == ("COMPACT", {})
    assert [add.data_change for add in commit.adds] == [False]
    assert commit.adds[0].path.startswith(f"data/v{commit.version - 1:020d}/")
    removes = [json.loads(line)["remove"] for line in lines(stream, commit) if b'{"remove"' in line]
    assert [remove["dataChange"] for remove in removes] == [False] * 40
    assert commit.info["operationMetrics"] == {
        "numRemovedFiles": "40",
        "numRemovedBytes": str(result.bytes_read),
        "numAddedFiles": "1",
        "numAddedBytes": str(result.bytes_written),
        "writeAmplification": f"{result.amplification:.2f}",
    }


def lines(stream: StreamLog, commit: Commit) -> list[bytes]:
    return stream.store.get(stream.log.reader.key(commit.version)).splitlines()


def test_a_dry_run_says_what_a_run_would_do_and_changes_nothing() -> None:
    stream = filled()
    calls = len(stream.store.sent)  # type: ignore[attr-defined]
    expected = run_compaction(stream, OPTIONS, dry_run=True)
    assert len(stream.store.sent) == calls  # type: ignore[attr-defined]
    done = run_compaction(stream, OPTIONS)
    assert expected.dry_run
    for name in ("ranges", "events", "files_before", "files_after", "bytes_read"):
        assert getattr(expected, name) == getattr(done, name), name
    assert "would merge 120 events" in str(expected)


def test_chunks_of_the_last_minute_are_left_alone() -> None:
    stream = filled()
    for n in range(5):
        write(stream, [(None, b"new %d" % n)])
    run_compaction(stream, OPTIONS)
    assert [ref.rows for ref in refs_of(stream)] == [120, 1, 1, 1, 1, 1]


def test_a_plan_without_work_makes_one_storage_call() -> None:
    stream = filled(chunks=3)
    run_compaction(stream, OPTIONS)
    spy = stream.store
    assert isinstance(spy, Spy)
    spy.calls.clear()
    run_compaction(stream, OPTIONS)
    assert len(spy.calls) <= 2


def test_readers_that_planned_before_the_merge_go_on_after_the_sweep_of_its_files() -> None:
    stream = filled()
    rng = SegmentRange(stream.name, 1, 0, 5, 117)
    refs = stream.chunks(rng)
    before = [row for batch in read_range(stream, rng, refs) for row in batch.to_pylist()]
    run_compaction(reopen(stream), OPTIONS)
    stream.store.delete([f"{stream.path}/{ref.path}" for ref in refs])
    assert [row for batch in read_range(stream, rng, refs) for row in batch.to_pylist()] == before


def test_chunks_of_a_transaction_and_of_sealed_segments_are_merged() -> None:
    manager = manager_of(FakeRuntime())
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(1)))
    stream = StreamLog(root_of(manager).store, "s/t", root_of(manager).runtime)
    with manager.create_transactional_writer("s/t") as writer:
        for n in range(5):
            with writer.begin_transaction() as transaction:
                transaction.write_event(b"%d" % n)
        kept = writer.begin_transaction()
        kept.write_event(b"open")
        kept.flush()
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    write(stream, [("a", b"later")])
    root_of(manager).runtime.sleep(100)
    before = all_events(stream)
    result = manager.compact_stream("s/t")
    assert (result.ranges, result.files_before, result.files_after) == (1, 6, 2)
    assert all_events(stream) == before
    assert sweeper.sweep_transactions(stream, prepared_limit_ms=60_000, life=1)


# ------------------------------------------------------------------------------------- races, steps


def truncated_inside(stream: StreamLog) -> None:
    truncate(stream, cut_at(stream, 31))


def truncated_before(stream: StreamLog) -> None:
    truncate(stream, cut_at(stream, 6))


def compacted(stream: StreamLog) -> None:
    run_compaction(stream, OPTIONS)


def appended(stream: StreamLog) -> None:
    write(stream, [(None, b"late")])


def scaled(stream: StreamLog) -> None:
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])


def above_horizon(stream: StreamLog) -> None:
    write(stream, [(None, b"late")])
    raise_horizon(stream.log, stream.view().version)


@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [
        (truncated_inside, "it was truncated"),
        (truncated_before, "it was truncated"),
        (compacted, "merged or truncated after they were planned"),
        (appended, ""),
        (scaled, ""),
        (above_horizon, "below the staging horizon"),
    ],
)
@pytest.mark.parametrize("point", ["compact.planned", "compact.written", "compact.commit"])
def test_a_range_that_others_touch_is_left_out_and_no_event_changes(
    meanwhile: Callable[[StreamLog], None], reason: str, point: str
) -> None:
    stream = filled()
    other = reopen(stream)
    with at_failpoint(point, lambda: meanwhile(other)) as reached:
        result = run_compaction(stream, OPTIONS)
    assert reached.hits
    expected = reason and not (meanwhile is above_horizon and point == "compact.planned")
    assert [bool(skipped.reason) for skipped in result.skipped] == ([True] if expected else [])
    assert all(reason in str(skipped) for skipped in result.skipped)
    assert result.ranges == (0 if expected else 1)
    head = stream.view().head_offset(0)
    events = [(f"k{i}" if i else None, b"%d-%d" % (n, i)) for n in range(40) for i in range(3)]
    late = [(None, b"late")] if meanwhile in (appended, above_horizon) else []
    assert all_events(reopen(stream)) == events[head:] + late


def test_a_race_loses_one_range_and_the_others_are_committed() -> None:
    stream = filled(segments=2)
    other = reopen(stream)
    plan = plan_compaction(stream, OPTIONS)
    assert [rng.segment_id for rng in plan] == [0, 1]
    merged = [merge_range(stream, rng) for rng in plan]
    commit_merged(other, merged[:1])
    result = commit_merged(stream, merged)
    assert (result.ranges, len(result.skipped)) == (1, 1)
    assert result.skipped[0].range == plan[0]
    assert [len(refs_of(stream, segment_id)) for segment_id in (0, 1)] == [1, 1]
    repeated = commit_merged(stream, merged)
    assert (repeated.ranges, len(repeated.skipped)) == (0, 2)


def test_the_three_steps_travel_as_json_and_do_what_a_run_does() -> None:
    stream = filled(segments=2)
    before = all_events(stream)
    sent = [json.dumps(rng.to_json()) for rng in plan_compaction(stream, OPTIONS)]
    done = [
        json.dumps(merge_range(reopen(stream), MergeRange.from_json(json.loads(text))).to_json())
        for text in sent
    ]
    result = commit_merged(stream, [decoded(text) for text in done])
    assert (result.files_before, result.files_after, result.ranges) == (80, 2, 2)
    assert all_events(stream) == before
    range_of_another = replace(
        decoded(done[0]), range=replace(decoded(done[0]).range, stream="s/o")
    )
    with pytest.raises(InvalidInput, match="s/o cannot be committed to stream s/t"):
        commit_merged(stream, [range_of_another])


def test_the_bounds_of_typed_columns_travel_with_a_merged_chunk() -> None:
    bounds = ColumnBounds('"n":1', '"n":2', '"n":0')
    for columns in (None, NO_BOUNDS, bounds):
        chunk = StagedChunk("p", 0, 1, 2, 3, 4, 5, 6, columns=columns)
        merged = MergedRange(MergeRange("s/t", 1, 0, 0, 1, 2, 3), chunk)
        assert decoded(json.dumps(merged.to_json())) == merged


def decoded(text: str) -> MergedRange:
    return MergedRange.from_json(json.loads(text))


def test_huge_compactions_are_several_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = filled(segments=3)
    monkeypatch.setattr(merge, "COMMIT_ACTIONS", 50)
    result = run_compaction(stream, OPTIONS)
    assert (len(result.versions), result.ranges, result.files_after) == (3, 3, 3)


@pytest.mark.parametrize(
    "point", ["compact.planned", "compact.written", "compact.staged", "compact.commit"]
)
def test_a_run_that_is_killed_has_done_nothing_and_the_next_one_does_it(point: str) -> None:
    stream = filled()
    before = all_events(stream)
    with at_failpoint(point, kill), pytest.raises(Killed):
        run_compaction(stream, OPTIONS)
    other = reopen(stream)
    assert (all_events(other), len(refs_of(other))) == (before, 40)
    run_compaction(other, OPTIONS)
    assert (all_events(other), len(refs_of(other))) == (before, 1)


def test_a_kill_after_the_commit_loses_only_the_result() -> None:
    stream = filled()
    before = all_events(stream)
    with at_failpoint("compact.committed", kill), pytest.raises(Killed):
        run_compaction(stream, OPTIONS)
    assert (all_events(reopen(stream)), len(refs_of(reopen(stream)))) == (before, 1)


@pytest.mark.parametrize("point", ["compact.planned", "compact.written", "compact.commit"])
@pytest.mark.parametrize("begins_again", [True, False])
def test_a_stream_that_is_deleted_meanwhile_is_not_changed(point: str, begins_again: bool) -> None:
    stream = filled()
    other = reopen(stream)

    def delete() -> None:
        lifecycle.seal(other, sweeper.end_all_transactions, life=1)
        lifecycle.delete(other, life=1)
        if begins_again:
            lifecycle.create(other, 2, StreamConfiguration(ScalingPolicy.fixed(1)))

    with (
        at_failpoint(point, delete),
        pytest.raises(StaleIdentity if begins_again else NoSuchStream),
    ):
        run_compaction(stream, OPTIONS)
    newest = other.log.refresh()
    assert newest is not None
    commit = other.log.reader.commit(newest.version, light=False)
    assert commit is not None
    assert commit.operation == ("CREATE STREAM" if begins_again else "DELETE STREAM")


# ------------------------------------------------------------------------------- damage, bad inputs


def lost(stream: StreamLog, key: str) -> None:
    stream.store.delete([key])


def torn(stream: StreamLog, key: str) -> None:
    stream.store.put(key, stream.store.get(key)[:-9])


def cut_short(stream: StreamLog, key: str) -> None:
    stream.store.put(key, stream.store.get(key)[:60])


def emptied(stream: StreamLog, key: str) -> None:
    stream.store.put(key, b"")


def flipped_data(stream: StreamLog, key: str) -> None:
    data = stream.store.get(key)
    stream.store.put(key, data[:40] + bytes([data[40] ^ 1]) + data[41:])


def flipped_footer(stream: StreamLog, key: str) -> None:
    data = stream.store.get(key)
    stream.store.put(key, data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])


def of_zeros(stream: StreamLog, key: str) -> None:
    stream.store.put(key, bytes(len(stream.store.get(key))))


def of_another_chunk(stream: StreamLog, key: str) -> None:
    other = next(ref for ref in refs_of(stream) if not key.endswith(ref.path))
    stream.store.put(key, stream.store.get(f"{stream.path}/{other.path}"))


DAMAGES = [
    lost,
    torn,
    cut_short,
    emptied,
    flipped_data,
    flipped_footer,
    of_zeros,
    of_another_chunk,
]


@pytest.mark.medium
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_chunk_among_many_is_left_alone_and_all_others_are_merged(
    damage: Callable[[StreamLog, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    stream = filled(segments=2)
    refs = refs_of(stream)
    ref = refs[17]
    rows = [row for other in refs if other != ref for row in rows_of_chunk(stream, other)]
    key = f"{stream.path}/{ref.path}"
    whole = stream.store.get(key)
    damage(stream, key)
    result = run_compaction(stream, OPTIONS)
    assert (result.files_before, result.files_after, len(result.damaged)) == (80, 4, 1)
    assert result.damaged[0].range.events == SegmentRange("s/t", 1, 0, ref.base_offset, ref.end)
    assert ref.path in result.damaged[0].reason
    assert "is not merged" in caplog.text
    left, same, right = refs_of(stream)
    assert same == ref
    assert [left.base_offset, left.end, right.base_offset] == [0, ref.base_offset, ref.end]
    assert rows_of_chunk(stream, left) + rows_of_chunk(stream, right) == rows

    grow(stream, 2)
    again = run_compaction(reopen(stream), OPTIONS)
    assert (again.ranges, again.skipped) == (0, ()), "once a day is enough to read it"
    stream.store.put(key, whole)
    stream.runtime.sleep(86_400)
    grow(stream, 60, rows=30)
    run_compaction(reopen(stream), OPTIONS)
    assert all(ref.path != other.path for other in refs_of(stream)), "it is merged once restored"


def rows_of_chunk(stream: StreamLog, ref: ChunkRef) -> list[dict[str, Any]]:
    batches = reader.read(stream.store, stream.path, ref, ref.base_offset, ref.end)
    return [row for batch in batches for row in batch.to_pylist()]


def test_several_damaged_chunks_leave_the_parts_between_them() -> None:
    stream = filled()
    refs = refs_of(stream)
    for at, damage in ((0, lost), (11, torn), (12, flipped_data), (14, emptied), (39, of_zeros)):
        damage(stream, f"{stream.path}/{refs[at].path}")
    result = run_compaction(stream, OPTIONS)
    assert [left.range.start for left in result.damaged] == [
        refs[at].base_offset for at in (0, 11, 12, 14, 39)
    ]
    found = refs_of(stream)
    assert [(ref.base_offset, ref.end) for ref in found] == [
        (0, 3), (3, 33), (33, 36), (36, 39), (39, 42), (42, 45), (45, 117), (117, 120),
    ]  # fmt: skip


def test_a_root_that_cannot_be_written_is_an_error_and_nothing_is_half_done() -> None:
    stream = filled()
    before = all_events(stream)
    spy = stream.store
    assert isinstance(spy, Spy)
    spy.rules.add(Rule(StoreReadOnly("the disk is read-only"), "writer"))
    with pytest.raises(StoreReadOnly):
        run_compaction(stream, OPTIONS)
    assert (all_events(stream), len(refs_of(stream))) == (before, 40)


def test_the_verb_checks_its_arguments() -> None:
    manager = manager_of(FakeRuntime())
    manager.create_scope("s")
    manager.create_stream("s/t")
    with pytest.raises(InvalidConfiguration, match=r"the argument target must be 16 KiB to 4 GiB"):
        manager.compact_stream("s/t", target="1 KB")
    with pytest.raises(InvalidConfiguration, match="is not a valid size"):
        manager.compact_stream("s/t", target="big")
    with pytest.raises(InvalidConfiguration, match="is not a valid duration"):
        manager.compact_stream("s/t", head_after="soon")
    with pytest.raises(InvalidInput, match="dry_run"):
        manager.compact_stream("s/t", dry_run="no")  # type: ignore[arg-type]
    with pytest.raises(NoSuchStream):
        manager.compact_stream("s/u")
    assert manager.compact_stream("s/t").ranges == 0


def test_target_is_a_setting_of_the_stream_and_of_the_root() -> None:
    manager = manager_of(FakeRuntime())
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration(settings={"compact_target": "64 MiB"}))
    manager.update_settings(compact_target="1 GiB")
    assert manager.stream_settings("s/t").compact_target_bytes == 64 << 20
    assert manager.settings().compact_target_bytes == 1 << 30
    assert manager.stream_settings("s/t").text("compact_target") == "64 MiB"


# ----------------------------------------------------------------------------------------- the head


def test_the_chunk_at_the_head_is_rewritten_once_half_of_it_is_dead() -> None:
    stream = compacted_long_ago()
    truncate(stream, cut_at(stream, 59))
    assert run_compaction(stream, OPTIONS).ranges == 0
    truncate(stream, cut_at(stream, 60))
    before, size = answers(stream), stream.bytes_at(0, 60)
    result = run_compaction(stream, OPTIONS)
    (ref,) = refs_of(stream)
    assert (ref.base_offset, ref.rows, ref.base_bytes) == (60, 60, size)
    assert answers(stream) == answers(reopen(stream)) == before
    assert (result.heads, result.ranges, result.events) == (1, 1, 60)
    assert result.amplification > 1
    with pytest.raises(TruncatedData):
        stream.bytes_at(0, 59)
    assert run_compaction(stream, OPTIONS).ranges == 0


def test_the_rewrite_of_a_head_removes_rows_by_delta_s_protocol_and_adds_none() -> None:
    stream = compacted_long_ago()
    truncate(stream, cut_at(stream, 100))
    grow(stream, 40)
    result = run_compaction(stream, OPTIONS)
    assert (len(result.versions), result.heads, result.ranges) == (2, 1, 2)
    (rewrite,) = (
        commit
        for version in result.versions
        if (commit := stream.log.reader.commit(version, light=False))
        and commit.operation == "REWRITE HEAD"
    )
    assert [add.data_change for add in rewrite.adds] == [False]
    (remove,) = (json.loads(line) for line in lines(stream, rewrite) if b'{"remove"' in line)
    assert remove["remove"]["dataChange"] is True
    assert json.loads(rewrite.info["operationParameters"]["head"]) == str(stream.view().head)


def test_a_head_that_stands_still_is_rewritten_after_the_option_s_time() -> None:
    stream = compacted_long_ago()
    truncate(stream, cut_at(stream, 1))
    assert run_compaction(stream, OPTIONS).ranges == 0
    stream.runtime.sleep(86_400)
    assert run_compaction(stream, OPTIONS).heads == 1
    assert refs_of(stream)[0].base_offset == 1


def test_a_head_that_moves_during_its_rewrite_is_left_out() -> None:
    stream = compacted_long_ago()
    truncate(stream, cut_at(stream, 60))
    other = reopen(stream)
    with at_failpoint("compact.commit", lambda: truncate(other, cut_at(other, 61))):
        result = run_compaction(stream, OPTIONS)
    assert (result.ranges, len(result.skipped)) == (0, 1)
    assert run_compaction(stream, OPTIONS).heads == 1
    assert refs_of(stream)[0].base_offset == 61


def test_the_divided_chunk_is_merged_with_no_other() -> None:
    stream = filled()
    truncate(stream, cut_at(stream, 1))
    run_compaction(stream, OPTIONS)
    assert [ref.base_offset for ref in refs_of(stream)] == [0, 3]


# ------------------------------------------------------------------- readers of the package, sweeps


def old_stream(chunks: int = 40) -> StreamManager:
    """A manager of a root in memory with one stream of many small chunks."""
    manager = manager_of(FakeRuntime())
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(1)))
    with manager.create_writer("s/t") as writer:
        for n in range(chunks):
            writer.write_event(b"%d" % n, "k").result()
    root_of(manager).runtime.sleep(100)
    return manager


def compact_and_sweep(manager: StreamManager) -> None:
    """Merge all chunks, and delete the files that they had."""
    assert manager.compact_stream("s/t").files_after == 1
    for _ in range(2):
        root_of(manager).runtime.sleep(3_600)
        with manager.create_writer("s/t") as writer:
            for _ in range(2):
                writer.write_event(b"late", "k").result()
        manager.sweep_stream("s/t", grace="1 minute", retain="1 minute")
    left = root_of(manager).store.list("s/t/events/data")
    assert len(left) == 1 + 4


def numbers_of(events: Iterable[Event]) -> list[bytes]:
    return [event.data for event in events]


EVERYTHING = [*(b"%d" % n for n in range(40)), *[b"late"] * 4]


@pytest.mark.medium
def test_followers_and_groups_go_on_over_a_merge_and_the_sweep_of_its_files() -> None:
    manager = old_stream()
    group = manager.create_reader_group("s/g", ["s/t"])
    member = group.create_reader("r")
    read = [member.read_next_event(timeout=1.0).event for _ in range(5)]
    follower = manager.create_reader("s/t").follow("earliest", timeout=0)
    followed = [next(follower) for _ in range(5)]
    pointer = followed[3].pointer
    compact_and_sweep(manager)
    assert numbers_of([*followed, *follower]) == EVERYTHING
    while (event := member.read_next_event(timeout=1.0).event) is not None:
        read.append(event)
    assert numbers_of(event for event in read if event is not None) == EVERYTHING
    assert manager.fetch_event(pointer).data == b"3"
    assert numbers_of(manager.read("s/t")) == EVERYTHING
    member.close()


def test_retention_by_size_and_lag_answer_the_same_after_a_merge() -> None:
    manager, other = old_stream(), old_stream()
    manager.compact_stream("s/t")
    for each in (manager, other):
        each.update_stream("s/t", retention=RetentionPolicy.by_size("20 bytes"))
        each.retention("s/t").run(sweep=False)
    assert manager.head("s/t") == other.head("s/t") != StreamCut("s/t", 1, {0: 0})
    tail = manager.tail("s/t")
    assert manager.distance("s/t", manager.head("s/t"), tail) == other.distance(
        "s/t", other.head("s/t"), tail
    )


def test_a_backup_and_a_restore_have_merged_chunks(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        for n in range(40):
            writer.write_event(b"%d" % n, "k").result()
    later = SkippingRuntime()
    later.skip(100)
    ahead = StreamManager(tmp_path / "root", runtime=later)
    assert ahead.compact_stream("s/t").files_after == 1
    manager.backup(tmp_path / "copy")
    copy = StreamManager(tmp_path / "copy")
    assert numbers_of(copy.read("s/t")) == EVERYTHING[:40]
    copy.restore()
    assert numbers_of(copy.read("s/t")) == EVERYTHING[:40]


def test_amplification_counts_every_merge_since_the_append() -> None:
    stream = filled(chunks=60)
    first = run_compaction(stream, OPTIONS)
    (merged,) = refs_of(stream)
    grow(stream, 3)
    scale(stream, [0], [(0.0, 1.0)])
    stream.runtime.sleep(100)
    result = run_compaction(stream, OPTIONS)
    ref, appended = refs_of(stream)[0], first.bytes_read + result.bytes_read - merged.size
    expected = (appended + merged.size + ref.size) / appended
    assert result.amplification == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"compact_target": 1}, "the argument target must be"),
        ({"compact_head_after": "soon"}, "the argument head_after 'soon' is not a valid duration"),
    ],
)
def test_error_of_an_option_names_the_argument(given: Any, text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=text):
        CompactionOptions.parse(**given)


@pytest.mark.parametrize(("limit", "writes"), [(39, True), (40, False)])
def test_run_that_replaces_many_files_lets_the_next_open_read_a_state_file(
    limit: int, writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "_REPLACED_FILES", limit)
    stream = filled(chunks=40)
    stream.log.maintain = lambda log, version: checkpoint.maintain(log.reader, version)
    done = run_compaction(stream, OPTIONS)
    assert done.files_removed == 39
    assert stream.log.reader.hint().state == (done.versions[-1] if writes else -1)
