from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.layout import epoch_changes
from pravega_spark.engine.stream.records import (
    SampleRecord,
    SegmentRecord,
    SizedCut,
    StreamRecord,
    StreamState,
    SubscriberRecord,
    WriterRecord,
    decode_epoch,
    decode_sample,
    decode_segment,
    decode_stream,
    decode_subscriber,
    decode_writer,
    encode_epoch,
)
from pravega_spark.errors import CorruptLog

COUNTS = st.integers(0, 2**62)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
CONFIGURATIONS = st.builds(
    StreamConfiguration,
    st.sampled_from([ScalingPolicy.fixed(3), ScalingPolicy.by_event_rate(5, 2, 1)]),
    st.none() | st.just(RetentionPolicy.by_time("1 hour", "2 days")),
    st.frozensets(TEXT, max_size=3),
)
STREAMS = st.builds(
    StreamRecord, st.just("s/t"), TEXT, COUNTS, st.sampled_from(StreamState), CONFIGURATIONS,
    COUNTS, COUNTS, COUNTS, st.dictionaries(COUNTS, COUNTS, max_size=3), COUNTS,
    st.none() | COUNTS,
)  # fmt: skip


@given(STREAMS)
def test_stream_record_reads_back_as_it_was_written(record: StreamRecord) -> None:
    read = decode_stream(record.encode())
    assert read == record
    assert read.configuration.tags == record.configuration.tags


@given(st.builds(SegmentRecord, COUNTS, COUNTS, COUNTS, st.none() | COUNTS))
def test_segment_record_reads_back_as_it_was_written(record: SegmentRecord) -> None:
    read = decode_segment(record.segment_id, record.encode())
    assert read == record
    assert read.is_sealed is (record.sealed_epoch is not None)


@given(st.builds(WriterRecord, TEXT, COUNTS, COUNTS, COUNTS, st.none() | TEXT, COUNTS))
def test_writer_record_reads_back_as_it_was_written(record: WriterRecord) -> None:
    if record.note is None:
        record = replace(record, note_number=0)
    assert decode_writer(record.writer_id, record.encode(), record.encode_note()) == record


def test_note_in_a_record_of_an_older_version_is_the_newer_one() -> None:
    old = '[3,7,9,"theirs",6]'
    assert decode_writer("w", old) == WriterRecord("w", 3, 7, 9, "theirs", 6)
    assert decode_writer("w", old, '["ours",5]').note == "theirs"
    assert decode_writer("w", "[3,7,9,null,0]", '["ours",5]').note == "ours"


@given(st.integers(1, 40), st.integers(0, 1000), st.integers(0, 1000), COUNTS)
def test_epoch_reads_back_as_it_was_written(count: int, first: int, number: int, ms: int) -> None:
    epoch = epoch_changes.first_epoch(count, first, number, ms)
    assert decode_epoch(number, encode_epoch(epoch)) == epoch


def test_epoch_that_does_not_tile_the_key_space_is_refused() -> None:
    text = encode_epoch(epoch_changes.first_epoch(4, 0, 0, 1)).replace("0.25", "0.26", 1)
    with pytest.raises(CorruptLog, match="gap"):
        decode_epoch(0, text)


def test_error_for_a_newer_format_asks_for_an_upgrade() -> None:
    record = StreamRecord("s/t", "id", 1, StreamState.ACTIVE, StreamConfiguration(), 0, 0, 1, {}, 0)
    newer = record.encode().replace('"format":1', '"format":2')
    with pytest.raises(CorruptLog, match=r"format 2.*knows 1.*upgrade"):
        decode_stream(newer)


MARKS = st.dictionaries(COUNTS, st.integers(-2, 2**62), max_size=3)


def sized(positions: dict[int, int]) -> SizedCut:
    return SizedCut(positions, {s: 2 * o for s, o in positions.items() if o >= 0})


CUTS = st.builds(sized, MARKS)


@given(
    st.builds(
        SubscriberRecord, st.just("s/g"), COUNTS, COUNTS, COUNTS, st.none() | CUTS,
        st.none() | CUTS, st.none() | COUNTS, st.sampled_from(["", "idle"]),
    )
)  # fmt: skip
def test_subscriber_record_reads_back_as_it_was_written(record: SubscriberRecord) -> None:
    assert decode_subscriber("s/g", record.encode()) == record


@given(st.builds(SampleRecord, COUNTS, COUNTS, COUNTS, CUTS))
def test_sample_record_reads_back_as_it_was_written(record: SampleRecord) -> None:
    assert decode_sample(record.version, record.encode()) == record


def test_stream_record_without_sizes_of_its_head_is_read() -> None:
    record = StreamRecord("s/t", "id", 1, StreamState.ACTIVE, StreamConfiguration(), 0, 0, 1, {}, 0)
    text = record.encode()
    older = text.replace(',"headBytes":{},"goneBytes":0', "")
    assert older != text
    assert decode_stream(older) == record
