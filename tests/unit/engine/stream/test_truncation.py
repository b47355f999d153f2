from __future__ import annotations

import pytest

from pravega_spark.engine.layout import located_cut
from pravega_spark.engine.layout.cut_validation import validate
from pravega_spark.engine.layout.epochs import Lineage
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.history import history_log
from pravega_spark.engine.stream.positions import TimeSearch
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.stream_sweep import sweep_stream
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.engine.stream.truncation import TruncationResult, truncate
from pravega_spark.engine.writing.append import append
from pravega_spark.errors import (
    IllegalState,
    InvalidStreamCut,
    NoSuchSegment,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.txn import lifecycle as txn_lifecycle
from pravega_spark.txn import sweeper
from pravega_spark.values.segments import END, SegmentRange, StreamCut, make_segment_id
from tests.harness import stream_cuts as cuts
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import events_of, make_stream, reopen, scale, staged, write
from tests.harness.spy_store import Spy

DAY_MS = 86_400_000


def cut_of(stream: StreamLog, **marks: int) -> StreamCut:
    view = stream.view()
    positions = {int(name[1:]): mark for name, mark in marks.items()}
    return StreamCut(view.stream, view.life, positions)


def filled(segments: int = 1, chunks: int = 4, rows: int = 3) -> StreamLog:
    """A stream with chunks of events in its first segment."""
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime, segments=segments)
    for n in range(chunks):
        write(stream, [(None, b"%d" % (n * rows + i)) for i in range(rows)])
    return stream


def live(stream: StreamLog) -> int:
    with stream.log.files() as files:
        return sum(1 for _ in files.all())


def test_one_commit_moves_the_head_and_removes_the_chunks_below_it() -> None:
    stream = filled()
    before = stream.view().version
    done = truncate(stream, cut_of(stream, s0=7), by="a test")
    view = stream.view()
    assert view.version == before + 1 == done.version
    assert view.head == done.head == cut_of(stream, s0=7)
    assert (done.events, done.chunks, live(stream)) == (7, 2, 2)
    assert [event for _, event in events_of(stream, 0)] == [b"%d" % n for n in range(7, 12)]
    assert view.segment(0).next_offset == 12  # offsets and sizes do not change


@pytest.mark.parametrize("offset", range(1, 9))
def test_each_event_from_the_head_on_is_readable_wherever_in_a_chunk_the_head_lies(
    offset: int,
) -> None:
    stream = filled(chunks=3)
    truncate(stream, cut_of(stream, s0=offset))
    assert [event for _, event in events_of(stream, 0)] == [b"%d" % n for n in range(offset, 9)]


def test_one_truncation_proves_each_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = filled()
    subscribe(stream, "s/readers", 1, protect=True)
    publish(stream, "s/readers", 1, cut_of(stream, s0=10))
    proved: list[StreamCut] = []

    def counted(lineage: Lineage, cut: StreamCut) -> object:
        proved.append(cut)
        return validate(lineage, cut)

    monkeypatch.setattr(located_cut, "validate", counted)
    truncate(reopen(stream), cut_of(stream, s0=7))
    assert sorted(map(str, proved)) == ["s/t@1:0#0=0", "s/t@1:0#0=10", "s/t@1:0#0=7"]


def test_same_cut_again_commits_nothing_also_from_another_process() -> None:
    stream = filled()
    truncate(stream, cut_of(stream, s0=7))
    version = stream.view().version
    assert truncate(reopen(stream), str(cut_of(stream, s0=7))).chunks == 0
    assert stream.view().version == version


def test_unknown_outcome_does_not_truncate_twice() -> None:
    stream = filled()
    spy = Spy(stream.store)
    other = reopen(stream, spy)
    other.view()
    spy.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1))
    truncate(other, cut_of(stream, s0=4))
    assert stream.view().head == cut_of(stream, s0=4)
    assert stream.view().version == 5


def test_head_never_moves_back_and_invalid_cuts_are_refused() -> None:
    stream = filled()
    truncate(stream, cut_of(stream, s0=7))
    with pytest.raises(
        InvalidStreamCut, match=r"s/t cannot be truncated at .*=6: .*below the head"
    ):
        truncate(stream, cut_of(stream, s0=6))
    with pytest.raises(InvalidStreamCut):
        truncate(stream, cut_of(stream, s0=13))
    with pytest.raises(InvalidStreamCut):
        truncate(stream, StreamCut("s/other", 1, {0: 8}))
    assert stream.view().head == cut_of(stream, s0=7)


def test_sealed_stream_is_truncated_up_to_its_end_and_readers_get_the_end() -> None:
    stream = filled()
    scale(stream, [0], [(0, 0.5), (0.5, 1)])
    left, right = stream.view().active.segment_ids
    write(stream, [(f"key{n}", b"%d" % n) for n in range(20)])
    lifecycle.seal(stream)
    assert truncate(stream, StreamCut("s/t", 1, {left: 2, right: 1})).events == 12 + 2 + 1
    assert truncate(stream, StreamCut("s/t", 1, {left: 2, right: 1})).chunks == 0
    view = stream.view()
    assert truncate(stream, StreamCut.LATEST).events == 20 - 3
    view = reopen(stream).view()
    assert view.head == view.tail == StreamCut("s/t", 1, {left: END, right: END})
    assert live(stream) == 0
    assert cuts.next_step(view, view.head, view.tail).ranges == ()
    assert TimeSearch(stream, 0).cut(view).cut == view.tail
    assert truncate(stream, StreamCut.LATEST).version == view.version
    with pytest.raises(InvalidStreamCut, match="below the head"):
        truncate(stream, StreamCut("s/t", 1, {left: 2, right: 1}))
    with pytest.raises(TruncatedData):
        stream.chunks(SegmentRange("s/t", 1, left, 0, 1))


def test_stream_that_is_being_sealed_is_not_truncated() -> None:
    stream = filled()
    txn_lifecycle.begin(stream, 1, lease_ms=60_000, execution_ms=60_000)

    def during() -> None:
        with pytest.raises(IllegalState, match=r"is being sealed .* cannot be truncated before"):
            truncate(reopen(stream), cut_of(stream, s0=7))

    with at_failpoint("seal.sealing", during):
        lifecycle.seal(stream, sweeper.end_all_transactions)
    assert truncate(stream, cut_of(stream, s0=7)).events == 7


def test_later_life_is_not_truncated_by_a_cut_of_an_earlier_one() -> None:
    stream = filled()
    cut, configuration = cut_of(stream, s0=7), stream.view().record.configuration
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    lifecycle.create(stream, 2, configuration)
    with pytest.raises(InvalidStreamCut, match="life 1"):
        truncate(stream, cut)


def test_life_that_ends_during_a_truncation_is_not_truncated() -> None:
    stream = filled()
    other = reopen(stream)

    def recreate() -> None:
        configuration = stream.view().record.configuration
        lifecycle.seal(other)
        lifecycle.delete(other)
        lifecycle.create(other, 2, configuration)

    with at_failpoint("truncate.history", recreate), pytest.raises(StaleIdentity):
        truncate(stream, cut_of(stream, s0=7))


def test_two_concurrent_truncations_end_at_the_later_cut() -> None:
    stream = filled()
    other = reopen(stream)
    later = cut_of(stream, s0=9)
    with (
        at_failpoint("truncate.history", lambda: truncate(other, later)),
        pytest.raises(InvalidStreamCut, match="below the head"),
    ):
        truncate(stream, cut_of(stream, s0=7))
    assert stream.view().head == later


WHO = (
    r"segment 0#0 \[1, [57]\) was truncated by the retention job at version 5 "
    r"\(2023-11-14 22:13:20 UTC\).* the head,? s/t@1:0#0=7"
)


def test_readers_below_the_head_get_the_lost_range_and_the_author() -> None:
    stream = filled()
    reader = reopen(stream)
    view = reader.view()
    truncate(stream, cut_of(stream, s0=7), by="the retention job")
    rng = SegmentRange("s/t", view.life, 0, 1, 5)
    reader.log.refresh()
    with pytest.raises(TruncatedData, match=WHO):
        reader.chunks(rng)
    with pytest.raises(TruncatedData, match=WHO):
        cuts.next_step(reader.view(), cut_of(stream, s0=1), StreamCut.LATEST)


def test_epochs_and_segments_before_the_head_become_history() -> None:
    stream = filled(chunks=1)
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    left, right = make_segment_id(1, 1), make_segment_id(2, 1)
    scale(stream, [left], [(0.0, 0.25), (0.25, 0.5)])
    a, b = make_segment_id(3, 2), make_segment_id(4, 2)
    truncate(stream, StreamCut("s/t", 1, {a: 0, b: 0, right: 0}))
    view = stream.view()
    assert view.oldest_epoch == 1  # its right half is still current
    assert not view.has_segment(0)
    assert view.has_segment(left)
    with pytest.raises(NoSuchSegment):
        view.segment(0)
    with pytest.raises(TruncatedData):
        stream.chunks(SegmentRange("s/t", 1, 0, 0, 3))
    scale(stream, [right], [(0.5, 1.0)])
    truncate(stream, stream.view().tail)
    view = stream.view()
    assert view.oldest_epoch == 2
    assert not view.has_segment(left)
    with history_log(stream).files() as files:
        kinds = sorted(add.partition["record"] for add in files.all())
    assert kinds == ["epoch", "epoch", "layout", "layout", "segment", "segment"]


def test_bytes_since_creation_include_truncated_events() -> None:
    stream = filled(chunks=1)
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    left, right = make_segment_id(1, 1), make_segment_id(2, 1)
    write(stream, [("a", b"12"), ("b", b"345"), ("c", b"6")])
    before = stream.view().total_bytes
    truncate(stream, StreamCut("s/t", 1, {left: 0, right: 0}))
    view = stream.view()
    assert not view.has_segment(0)
    assert view.total_bytes == before == 9


def test_bytes_before_the_head_are_recorded_if_its_chunks_can_be_read() -> None:
    stream = filled()
    truncate(stream, cut_of(stream, s0=4))
    assert stream.view().record.head_sizes == {0: 4}
    stream.store.delete([entry.key for entry in stream.store.list(f"{stream.path}/data")])
    truncate(stream, cut_of(stream, s0=8))
    assert stream.view().record.head_sizes == {}


def test_segment_that_is_kept_but_before_the_head_counts_as_truncated() -> None:
    stream = filled(chunks=1)
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    left, right = make_segment_id(1, 1), make_segment_id(2, 1)
    append(stream, 1, stream.view().version, staged(stream, [("key", b"x")]))
    holder = next(s for s in (left, right) if stream.view().segment(s).next_offset)
    low, high = (0.0, 0.5) if holder == left else (0.5, 1.0)
    after = scale(stream, [holder], [(low, high)])
    other = left if holder == right else right
    new = next(s.segment_id for s in after.active.segments if s.epoch == 2)
    truncate(stream, StreamCut("s/t", 1, {new: 0, other: 0}))
    assert stream.view().has_segment(holder)
    with pytest.raises(TruncatedData):
        stream.chunks(SegmentRange("s/t", 1, holder, 0, 1))


def test_epoch_of_an_open_transaction_is_kept() -> None:
    stream = filled(chunks=1)
    opened = txn_lifecycle.begin(stream, 1, lease_ms=60_000, execution_ms=60_000)
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    truncate(stream, stream.view().tail)
    view = stream.view()
    assert view.oldest_epoch == opened.epoch == 0
    assert view.epoch(0).segment_ids == (0,)
    assert cuts.distance_events(view, view.head, view.tail) == 0


def test_only_a_sweep_deletes_removed_chunks() -> None:
    stream = filled()
    truncate(stream, cut_of(stream, s0=7))
    data = f"{stream.path}/data"
    assert len(stream.store.list(data)) == 4
    stream.runtime.wall_ms += DAY_MS  # type: ignore[attr-defined]
    for _ in range(2):
        write(stream, [(None, b"more")])
    assert sweep_stream(stream, grace_ms=0, retain_ms=0, completed_ms=0).files == 2
    assert len(stream.store.list(data)) == 4
    assert [event for _, event in events_of(stream, 0)][:2] == [b"7", b"8"]


def test_truncation_costs_the_same_for_any_number_of_chunks() -> None:
    small, large = filled(chunks=4), filled(chunks=60)
    calls = []
    for stream, offset in ((small, 9), (large, 177)):
        spy = Spy(stream.store)
        other = reopen(stream, spy)
        other.view()
        with other.log.files():
            pass
        spy.calls.clear()
        truncate(other, cut_of(stream, s0=offset))
        calls.append(len(spy.calls))
    assert calls[0] == calls[1]


@pytest.mark.parametrize("offset", [12, END])
def test_repeated_truncation_does_nothing_after_it_forgot_a_segment(offset: int) -> None:
    stream = filled()
    scale(stream, [0], [(0, 0.5), (0.5, 1)])
    cut = StreamCut("s/t", 1, {0: offset})
    assert truncate(stream, cut).events == 12
    view = stream.view()
    assert not view.has_segment(0)
    assert truncate(stream, cut) == TruncationResult(view.version, view.head)
    write(stream, [(f"key{n}", b"x") for n in range(20)])
    truncate(stream, StreamCut.LATEST)
    with pytest.raises(InvalidStreamCut, match="below the head"):
        truncate(stream, cut)


def test_cut_in_a_forgotten_segment_is_behind_the_head_unless_it_equals_the_head() -> None:
    stream = filled(segments=2)
    scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    scale(stream, [1], [(0.5, 1.0)])
    write(stream, [(f"key-{n}", b"x") for n in range(40)])
    view = stream.view()
    *halves, right = view.active.segment_ids
    old = StreamCut("s/t", 1, {0: 5, right: 0})
    truncate(stream, StreamCut("s/t", 1, {**dict.fromkeys(halves, 0), right: 0}))
    head = stream.view().head
    assert not stream.view().has_segment(0)
    assert truncate(stream, old).head == head
    with pytest.raises(InvalidStreamCut, match="below the head"):
        truncate(stream, StreamCut("s/t", 1, {0: 5, right: 1}))
    assert stream.view().head == head
