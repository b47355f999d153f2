from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import anonymous_id
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.engine.writing.append import AppendResult, StagedBatch, append
from pravega_spark.engine.writing.group_commit import group_of
from pravega_spark.engine.writing.identity import NumberedBatch, SessionBatch, open_session
from pravega_spark.errors import (
    CommitUnknown,
    NoSuchStream,
    OutOfOrder,
    SegmentSealed,
    StaleIdentity,
    StoreFull,
    StreamSealed,
    WriterFenced,
)
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import (
    all_events,
    events_of,
    make_stream,
    reopen,
    scale,
    staged,
    write,
)
from tests.harness.spy_store import Spy


def batch(n: int, size: int = 1) -> list[tuple[str | None, bytes]]:
    return [("k", b"%d.%d" % (n, i)) for i in range(size)]


def payloads(stream: StreamLog) -> list[bytes]:
    return [event for _, event in all_events(reopen(stream))]


# -------------------------------------------------------------------------------------- offsets


def test_chunks_get_their_offsets_at_commit_without_gaps() -> None:
    stream = make_stream(segments=2)
    other = reopen(stream)
    early = staged(stream, [(f"k{i}", b"early") for i in range(8)])
    write(other, [(f"k{i}", b"first") for i in range(8)])

    appended = append(stream, 1, 0, early)

    assert appended.version == 2
    before = {s: sum(1 for _, e in events_of(stream, s) if e == b"first") for s in (0, 1)}
    assert [found[:2] for found in appended.ranges] == [(0, before[0]), (1, before[1])]
    assert sum(found.rows for found in appended.ranges) == 8


def test_bytes_of_a_segment_are_counted_since_its_creation() -> None:
    stream = make_stream()
    write(stream, [("k", b"12345")])
    write(stream, [("k", b"678"), ("k", b"")])
    record = stream.view().segment(0)
    assert (record.next_offset, record.size_bytes) == (3, 8)
    adds = [add for commit in stream.log.reader.span(0, 2) for add in commit.adds]
    assert [(add.tags or {})["baseBytes"] for add in adds] == ["0", "5"]


def test_append_to_several_segments_is_one_commit() -> None:
    stream = make_stream(segments=4)
    events: list[tuple[str | None, bytes]] = [(f"k{i}", b"x") for i in range(40)]
    version = write(stream, events).version
    assert version == stream.view().version == 1
    assert sorted(all_events(stream)) == sorted(events)


# ------------------------------------------------------------------------------- session batches


def test_repeated_batch_is_acknowledged_as_a_duplicate() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    first = SessionBatch("w", session, 0, 2)
    assert not write(stream, batch(1, 2), first).duplicate
    write(stream, batch(2, 1), SessionBatch("w", session, 2, 3))

    for repeated in (first, SessionBatch("w", session, 2, 3)):
        found = write(reopen(stream), batch(9), repeated)
        assert found == AppendResult(found.version, duplicate=True, ranges=())
    assert payloads(stream) == [b"1.0", b"1.1", b"2.0"]


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.RESEND, Fault.LOSE_REQUEST])
def test_batch_with_a_lost_answer_is_stored_once(fault: Fault) -> None:
    store = Spy()
    stream = make_stream(store)
    session = open_session(stream, 1, "w").session
    store.rules.add(Rule(fault, "put_if_absent", nth=1))
    write(stream, batch(1), SessionBatch("w", session, 0, 1))
    write(stream, batch(2), SessionBatch("w", session, 1, 2))
    assert payloads(stream) == [b"1.0", b"2.0"]


@pytest.mark.parametrize(("previous", "last"), [(1, 2), (5, 6), (0, 3)])
def test_gap_or_overlap_is_out_of_order_and_appends_nothing(previous: int, last: int) -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    known = {1: 0, 5: 0, 0: 2}[previous]
    if known:
        write(stream, batch(1, 2), SessionBatch("w", session, 0, 2))
    version = stream.view().version
    with pytest.raises(OutOfOrder, match=r"does not follow event \d, the last.*reopen"):
        write(stream, batch(9), SessionBatch("w", session, previous, last))
    assert stream.view().version == version


def test_batch_of_an_older_session_is_fenced_even_if_it_follows_the_last() -> None:
    stream = make_stream()
    zombie = open_session(stream, 1, "w").session
    write(stream, batch(1), SessionBatch("w", zombie, 0, 1))
    late = staged(stream, batch(2))
    newer = open_session(reopen(stream), 1, "w")
    assert (newer.session, newer.last) == (zombie + 1, 1)

    with pytest.raises(WriterFenced, match=rf"session {zombie} was fenced by session {zombie + 1}"):
        append(stream, 1, 1, late, SessionBatch("w", zombie, 1, 2))
    with pytest.raises(WriterFenced):  # a zombie gets no answer about earlier batches either
        write(stream, batch(1), SessionBatch("w", zombie, 0, 1))
    assert payloads(stream) == [b"1.0"]


def test_batch_of_a_writer_without_a_record_has_an_unknown_outcome() -> None:
    stream = make_stream()
    for identity in (SessionBatch("w", 1, 0, 1), SessionBatch(anonymous_id(0, "t"), 0, 3, 4)):
        with pytest.raises(CommitUnknown, match=r"has no record of it.*open a new writer"):
            write(stream, batch(1), identity)


def test_anonymous_writer_needs_no_session_unless_it_began_below_the_horizon() -> None:
    stream = make_stream()
    old = anonymous_id(stream.view().version, "t1")
    for n in range(3):
        write(stream, batch(n), SessionBatch(anonymous_id(n, f"x{n}"), 0, 0, 1))
    raise_horizon(stream.log, 2)
    with pytest.raises(CommitUnknown):
        write(stream, batch(9), SessionBatch(old, 0, 0, 1))
    assert len(payloads(stream)) == 3


def test_numbered_batches_at_or_below_the_stored_number_are_skipped() -> None:
    stream = make_stream()
    for number in (0, 7, 7, 3, 8, 0):
        write(stream, batch(number), NumberedBatch("query", number))
    assert payloads(stream) == [b"0.0", b"7.0", b"8.0"]
    assert stream.view().writer("query").last == 8  # type: ignore[union-attr]


def test_duplicate_is_acknowledged_only_after_the_first_batch_is_durable() -> None:
    store = Spy()
    stream = make_stream(store)
    write(stream, batch(1), NumberedBatch("query", 1))
    restarted = reopen(stream)
    store.calls.clear()
    assert write(restarted, batch(1), NumberedBatch("query", 1)).duplicate
    assert store.count("make_durable", stream.path) >= 1


def test_duplicate_is_acknowledged_even_on_a_sealed_stream() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    chunks = staged(stream, batch(1))
    append(stream, 1, 0, chunks, SessionBatch("w", session, 0, 1))
    lifecycle.seal(stream)
    assert append(stream, 1, 0, chunks, SessionBatch("w", session, 0, 1)).duplicate
    with pytest.raises(StreamSealed):
        append(stream, 1, 0, chunks, SessionBatch("w", session, 1, 2))


def test_note_and_its_event_number_stay_until_the_next_note() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    write(stream, batch(1, 2), SessionBatch("w", session, 0, 2, "here"))
    write(stream, batch(2), SessionBatch("w", session, 2, 3))
    opened = open_session(reopen(stream), 1, "w")
    assert (opened.last, opened.note, opened.note_number) == (3, "here", 2)


# ------------------------------------------------------------------------------ states and lives


def test_sealed_stream_accepts_no_event() -> None:
    stream = make_stream()
    late = staged(stream, batch(1))
    lifecycle.seal(reopen(stream))
    with pytest.raises(StreamSealed, match="s/t was sealed"):
        append(stream, 1, 0, late)
    assert payloads(stream) == []


def test_chunks_of_an_earlier_life_never_enter_a_later_one() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    late = staged(stream, batch(1))
    other = reopen(stream)
    lifecycle.seal(other)
    lifecycle.delete(other)
    with pytest.raises(NoSuchStream, match="was deleted"):
        append(stream, 1, 0, late, SessionBatch("w", session, 0, 1))
    lifecycle.create(other, 2, StreamConfiguration())
    for identity in (None, SessionBatch("w", session, 0, 1), NumberedBatch("q", 1)):
        for opened in (stream, reopen(stream)):
            with pytest.raises(StaleIdentity, match=r"life 2.*life 1.*[Oo]pen it again"):
                append(opened, 1, 0, late, identity)
    assert payloads(stream) == []


def test_refused_commit_leaves_the_log_unchanged() -> None:
    store = Spy()
    stream = make_stream(store)
    store.rules.add(Rule(StoreFull("full"), "put_if_absent", "*/_delta_log/*", nth=1))
    with pytest.raises(StoreFull):
        write(stream, batch(1))
    assert stream.view().version == 0
    write(stream, batch(2))
    assert payloads(stream) == [b"2.0"]


# --------------------------------------------------------------------------------------- scales


def keyed(count: int, tag: bytes = b"") -> list[tuple[str | None, bytes]]:
    return [(f"k{i % 7}", b"%b%d" % (tag, i)) for i in range(count)]


def per_key(events: list[tuple[str | None, bytes]]) -> dict[str | None, list[bytes]]:
    found: dict[str | None, list[bytes]] = {}
    for key, event in events:
        found.setdefault(key, []).append(event)
    return found


@pytest.mark.parametrize("steps", [1, 2])
def test_staged_chunks_of_a_split_segment_are_cut_again_in_order(steps: int) -> None:
    stream = make_stream()
    first = staged(stream, keyed(20))
    second = staged(stream, [*keyed(20, b"x"), (None, b"no key")])
    view = scale(reopen(stream), [0], [(0, 0.5), (0.5, 1)])
    if steps == 2:
        view = scale(reopen(stream), view.active.segment_ids[:1], [(0, 0.1), (0.1, 0.5)])

    append(stream, 1, 0, [*first, *second])

    assert events_of(stream, 0) == []
    found = per_key(all_events(stream))
    assert found.pop(None) == [b"no key"]
    assert found == per_key([*keyed(20), *keyed(20, b"x")])
    assert stream.view().version == 1 + steps


def test_staged_chunks_of_merged_segments_move_by_metadata_alone() -> None:
    store = Spy()
    stream = make_stream(store, segments=2)
    chunks = staged(stream, keyed(20))
    (merged,) = scale(reopen(stream), [0, 1], [(0, 1)]).active.segment_ids
    store.calls.clear()
    append(stream, 1, 0, chunks)
    assert store.count("put") == 0
    assert per_key(events_of(stream, merged)) == per_key(keyed(20))


def append_batch(stream: StreamLog, chunks: list[StagedChunk]) -> None:
    rows = sum(chunk.rows for chunk in chunks)
    identity = SessionBatch(anonymous_id(0, "w"), 0, 0, rows)
    group_of(stream).append(StagedBatch(1, 0, tuple(chunks), identity))


def test_batch_of_a_sealed_segment_is_reported_and_nothing_is_written() -> None:
    stream = make_stream()
    chunks = staged(stream, keyed(5))
    scale(reopen(stream), [0], [(0, 0.5), (0.5, 1)])
    with pytest.raises(SegmentSealed, match="0#0 was sealed by a scale"):
        append_batch(stream, chunks)
    assert stream.view().version == 1


@pytest.mark.parametrize("follow", [True, False])
def test_staged_chunks_of_a_truncated_segment_move_to_its_successors(follow: bool) -> None:
    stream = make_stream()
    chunks = staged(stream, keyed(20))
    other = reopen(stream)
    scale(other, [0], [(0, 0.5), (0.5, 1)])
    truncate(other, other.view().tail)
    assert not other.view().has_segment(0)
    if follow:
        append(stream, 1, 0, chunks)
        assert per_key(all_events(stream)) == per_key(keyed(20))
    else:
        with pytest.raises(SegmentSealed):
            append_batch(stream, chunks)


def test_append_that_loses_the_race_against_a_scale_leaves_the_sealed_segment_unchanged() -> None:
    store = Spy()
    stream = make_stream(store, FakeRuntime())
    other = reopen(stream)
    stream.view()

    def scale_first(operation: str, key: str) -> None:
        if operation == "put_if_absent" and key == stream.log.reader.key(1):
            store.hook = None
            scale(other, [0], [(0, 0.5), (0.5, 1)])

    store.hook = scale_first
    appended = write(stream, keyed(20))
    assert appended.version == 2
    assert events_of(stream, 0) == []
    assert per_key(all_events(stream)) == per_key(keyed(20))


def test_append_without_chunks_commits_its_note() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    identity: Any = SessionBatch("w", session, 0, 0, "only a note")
    append(stream, 1, stream.view().version, [], identity)
    assert open_session(stream, 1, "w").note == "only a note"


# --------------------------------------------------------------------------------------- notes


def test_only_a_commit_that_changes_the_note_writes_it() -> None:
    sizes: dict[int, int] = {}
    for length in (100, 10_000):
        store = Spy()
        stream = make_stream(store)
        open_session(stream, 1, "w")
        write(stream, [("k", b"x")], SessionBatch("w", 1, 0, 1, "n" * length))
        store.sent.clear()
        for n in range(1, 4):
            write(stream, [("k", b"x")], SessionBatch("w", 1, n, n + 1))
        sizes[length] = sum(len(data) for key, data in store.sent if "_delta_log" in key)
        known = reopen(stream).view().writer("w")
        assert known is not None
        assert (known.note, known.note_number, known.last) == ("n" * length, 1, 4)
        assert open_session(reopen(stream), 1, "w").note == "n" * length
    assert abs(sizes[100] - sizes[10_000]) < 100


def test_note_in_the_old_format_moves_to_its_own_domain_until_the_next_replaces_it() -> None:
    stream = make_stream()
    domains: dict[str, str | None] = {"pravega.writer.w": '[1,1,1,"old",1]'}
    stream.log.commit(lambda snapshot: (Body("TEST", domains=domains), None))
    write(stream, [("k", b"x")], SessionBatch("w", 1, 1, 2))
    snapshot = stream.view().snapshot
    assert snapshot.domains["pravega.writer.w"] == f"[1,2,{snapshot.version}]"
    assert snapshot.domains["pravega.note.w"] == '["old",1]'
    write(stream, [("k", b"x")], SessionBatch("w", 1, 2, 3, ""))
    known = stream.view().writer("w")
    assert known is not None
    assert (known.note, known.note_number) == ("", 3)
