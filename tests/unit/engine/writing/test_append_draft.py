"""Which batches the next commit takes, whoever commits it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import AppendDraft, StagedBatch
from pravega_spark.engine.writing.identity import SessionBatch, open_session
from pravega_spark.errors import (
    CommitUnknown,
    NoSuchStream,
    OutOfOrder,
    PravegaSparkError,
    SegmentSealed,
    StagedTooLate,
    StaleIdentity,
    StreamSealed,
    WriterFenced,
)
from tests.harness.offering import offer
from tests.harness.small_streams import make_stream, scale, write


def draft(stream: StreamLog) -> AppendDraft:
    return AppendDraft(stream.known_view(), 0)


def refusal(stream: StreamLog, batch: StagedBatch) -> type[Exception]:
    found = draft(stream)
    with pytest.raises(PravegaSparkError) as raised:
        found.add(batch)
    assert (found.batches, found.chunks) == (0, 0), "a refused batch changes nothing"
    return raised.type


def of(n: int) -> list[tuple[str | None, bytes]]:
    return [("k", b"%d" % n)]


def test_batches_of_several_writers_share_a_commit_and_its_offsets() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    found = draft(stream)
    ranges = [
        found.add(offer(stream, of(n), SessionBatch("w", session, n, n + 1))) for n in range(3)
    ]
    ranges.append(found.add(offer(stream, [*of(3), *of(4)])))
    found_ranges = [one[:3] for (one,) in filter(None, ranges)]
    assert found_ranges == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 2)]
    body = found.body()
    assert body.parameters == {"batches": 4}
    assert body.domains["pravega.writer.w"] == "[1,3,2]"
    assert body.domains["pravega.segment.0"] == "[5,5,null]"


def test_commit_of_one_batch_names_its_writer() -> None:
    stream = make_stream()
    batch = offer(stream, of(1))
    found = draft(stream)
    found.add(batch)
    assert found.body().parameters == {"writer": batch.identity.writer_id}


def test_batch_that_a_draft_or_the_log_holds_is_not_taken_again() -> None:
    stream = make_stream()
    batch = offer(stream, of(1))
    found = draft(stream)
    assert found.add(batch) is not None
    assert found.add(batch) is None
    assert found.add(replace(batch, chunks=offer(stream, of(1), batch.identity).chunks)) is None
    assert found.chunks == 1
    body = found.body()
    stream.log.commit(lambda snapshot: (body, None))
    assert draft(stream).add(batch) is None


def test_gap_in_a_writers_numbers_is_left_until_it_is_filled() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    second = offer(stream, of(2), SessionBatch("w", session, 1, 2))
    assert refusal(stream, second) is OutOfOrder
    write(stream, of(1), SessionBatch("w", session, 0, 1))
    assert draft(stream).add(second) is not None


def test_offers_of_an_older_session_are_fenced() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    batch = offer(stream, of(1), SessionBatch("w", session, 0, 1))
    open_session(stream, 1, "w")
    assert refusal(stream, batch) is WriterFenced


def test_offers_of_an_older_or_a_later_life_are_refused() -> None:
    stream = make_stream()
    batch = offer(stream, of(1))
    assert refusal(stream, replace(batch, life=2)) is StaleIdentity
    lifecycle.seal(stream)
    assert refusal(stream, batch) is StreamSealed
    lifecycle.delete(stream)
    assert refusal(stream, batch) is NoSuchStream


def test_offers_staged_below_the_horizon_are_void_although_their_writer_is_known() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    batch = offer(stream, of(1), SessionBatch("w", session, 0, 1))
    for n in range(3):
        write(stream, of(n))
    raise_horizon(stream.log, 2)
    assert refusal(stream, batch) is StagedTooLate


def test_offers_of_an_unknown_writer_are_taken_only_as_its_first_batch() -> None:
    stream = make_stream()
    batch = offer(stream, of(1))
    later = replace(batch.identity, previous=1, last=2)
    assert issubclass(refusal(stream, replace(batch, identity=later)), CommitUnknown)
    named = replace(batch.identity, writer_id="w", session=1)
    assert issubclass(refusal(stream, replace(batch, identity=named)), CommitUnknown)


def test_offer_with_any_chunk_for_a_sealed_segment_is_refused_as_a_whole() -> None:
    stream = make_stream(segments=2)
    batch = offer(stream, [(f"k{n}", b"x") for n in range(9)])
    assert len(batch.chunks) == 2
    scale(stream, [1], [(0.5, 0.75), (0.75, 1)])
    stream.view()
    assert refusal(stream, batch) is SegmentSealed
