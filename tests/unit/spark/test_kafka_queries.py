"""Options of a Kafka query: which segments, times by segment, and what has no meaning here."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from pravega_spark.errors import InvalidOption
from pravega_spark.spark.option_values import AFTER_ALL_US, BEFORE_ALL_US, TimesBySegment
from pravega_spark.spark.settings import read_settings, write_settings
from pravega_spark.spark.write.task_run import TaskRun
from tests.harness.small_streams import created
from tests.harness.spark_reading import batch_reader, events, fill, rows, stream_reader
from tests.harness.spark_writing import TEXT, batch_writer, schema, source
from tests.harness.spark_writing import rows as frame_rows

ROOT = {"root": "/data/streams"}
LEFTOVERS = {
    "kafka.bootstrap.servers": "broker:9092",
    "kafka.group.id": "g",
    "kafkaConsumer.pollTimeoutMs": "512",
    "groupIdPrefix": "p",
    "fetchOffset.numRetries": "3",
}


def test_assigned_segments_are_numbers_or_ids() -> None:
    found = read_settings({**ROOT, "assign": '{"s/a": [0, "1#0", "2", 0], "s/b": ["3#1"]}'})
    assert found.streams == ("s/a", "s/b")
    assert found.assigned == {"s/a": (0, 1, 2), "s/b": (4294967299,)}


def test_times_are_milliseconds_with_the_two_marks_of_kafka() -> None:
    text = '{"s/a": {"0": 1500, "1#0": -1, "2#0": -2}}'
    found = read_settings({**ROOT, "stream": "s/a", "startingOffsetsByTimestamp": text}).starting
    assert found is not None
    times = {0: 1_500_000, 1: AFTER_ALL_US, 2: BEFORE_ALL_US}
    assert found.value == TimesBySegment({"s/a": times})
    assert found.value.of("s/a") == (BEFORE_ALL_US, times)
    assert found.value.of("s/b") is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"assign": '{"a": [0]}'}, "option assign is JSON such as"),
        ({"assign": '{"s/a": []}'}, "not a list of segments"),
        ({"assign": '{"s/a": "0"}'}, "'0' is not a list of segments"),
        ({"assign": '{"s/a": [true]}'}, "True is not a segment"),
        ({"assign": "{}"}, "names no stream"),
        ({"assign": '{"s/a": [0]}', "subscribe": "s/a"}, "by subscribe and by assign"),
        ({"assign": '{"s/a": [0]}', "readerGroup": "s/g"}, "readerGroup=s/g reads whole streams"),
        ({"stream": "s/a", "startingOffsetsByTimestamp": "{"}, "OffsetsByTimestamp is JSON such"),
        ({"stream": "s/a", "endingOffsetsByTimestamp": '{"s/a": {"0": -3}}'}, "-3 is not a time"),
        ({"stream": "s/a", "endingOffsetsByTimestamp": '{"s/a": {}}'}, "names no segment"),
    ],
)
def test_bad_values_are_refused_with_the_next_step(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        read_settings({**ROOT, **given})


def test_time_of_the_stream_comes_before_times_of_segments_and_these_before_offsets() -> None:
    given = {**ROOT, "stream": "s/a", "startingOffsets": "latest"}
    given["startingOffsetsByTimestamp"] = '{"s/a": {"0": 1}}'
    found = read_settings(given).starting
    assert found is not None
    assert found.option == "startingOffsetsByTimestamp"
    found = read_settings({**given, "startingTimestamp": "5"}).starting
    assert found is not None
    assert found.option == "startingTimestamp"


def test_options_of_brokers_and_clients_are_no_error(root: str) -> None:
    assert set(read_settings({**ROOT, "stream": "s/a", **LEFTOVERS}).leftovers) == set(LEFTOVERS)
    assert set(write_settings({**ROOT, "stream": "s/a", **LEFTOVERS}).leftovers) == set(LEFTOVERS)
    with pytest.raises(InvalidOption, match="unknown option 'kafkaish'"):
        read_settings({**ROOT, "stream": "s/a", "kafkaish": "x"})


@pytest.mark.parametrize("side", ["batch read", "query", "batch write", "query's write"])
def test_ignored_options_are_named_in_one_warning(
    root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, side: str
) -> None:
    fill(created(root), 0, 3)
    with caplog.at_level(logging.WARNING):
        if side == "batch read":
            reader = batch_reader(root, **LEFTOVERS)
            assert len(rows(reader, reader.partitions())) == 3
        elif side == "query":
            query = stream_reader(root, **LEFTOVERS)
            start = query.initialOffset()
            end = query.latestOffset(start, query.getDefaultReadLimit())
            assert len(rows(query, query.partitions(start, end))) == 3
        elif side == "batch write":
            writer = batch_writer(tmp_path, None, **LEFTOVERS)
            writer.commit([writer.write(iter([frame_rows(0, 3)]))])
        else:
            for batch in range(3):  # a new writer for the tasks and for the commit of each batch
                made = source(tmp_path, **LEFTOVERS).streamWriter(schema(**TEXT), False)
                tasks = pickle.loads(pickle.dumps(made))
                message = tasks.write(iter([frame_rows(0, 3)]))
                message.task = TaskRun("q")
                driver = source(tmp_path, **LEFTOVERS).streamWriter(schema(**TEXT), False)
                driver.commit([message], batch)
    warnings = [r.getMessage() for r in caplog.records if "ignored the options" in r.getMessage()]
    assert len(warnings) == 1
    assert ", ".join(sorted(LEFTOVERS)) in warnings[0]


def test_columns_of_a_read_are_named_in_any_case(root: str) -> None:
    fill(created(root), 0, 3)
    reader = batch_reader(root, columns="EVENT,Offset")
    found = rows(reader, reader.partitions())
    assert [list(row) for row in found] == [["event", "offset"]] * 3
    assert events(found) == [0, 1, 2]


@pytest.mark.parametrize("names", ["kafka", "pravega"])
def test_headers_are_a_null_column_of_kafkas_type(root: str, names: str) -> None:
    fill(created(root), 0, 3)
    reader = batch_reader(root, includeheaders="true", columnnames=names)
    found = rows(reader, reader.partitions())
    assert [row["headers"] for row in found] == [None] * 3
    given = {"root": root, "path": "s/a", "includeheaders": "true", "columnnames": names}
    from pravega_spark.spark.source import PravegaDataSource

    kind = PravegaDataSource(given).schema()["headers"].dataType
    assert kind.simpleString() == "array<struct<key:string,value:binary>>"
