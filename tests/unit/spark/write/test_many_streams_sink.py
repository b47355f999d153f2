"""Rows of one frame into several streams, as Spark's processes write them, without Spark."""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    InvalidOption,
    SchemaMismatch,
    StreamSealed,
)
from pravega_spark.manager import StreamManager
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.write.many_streams import (
    ManyStreamsBatchWriter,
    ManyStreamsMessage,
    ManyStreamsStreamWriter,
)
from pravega_spark.spark.write.task_run import TaskRun
from tests.harness.failpoints import at_failpoint
from tests.harness.small_streams import scale
from tests.harness.spark_writing import read, schema

NAMED = {"stream": "string", "routing_key": "string", "event": "string"}


def source(root: str, **options: str) -> PravegaDataSource:
    return PravegaDataSource({"root": root, **options})


def batch_writer(
    root: str, columns: dict[str, str] | None = None, /, **options: str
) -> ManyStreamsBatchWriter:
    writer = source(root, **options).writer(schema(**(columns or NAMED)), False)
    copy = pickle.loads(pickle.dumps(writer))
    assert isinstance(copy, ManyStreamsBatchWriter)
    return copy


def query_writer(root: str, **options: str) -> ManyStreamsStreamWriter:
    writer = source(root, **options).streamWriter(schema(**NAMED), False)
    assert isinstance(writer, ManyStreamsStreamWriter)
    return writer


def rows(first: int, last: int, names: tuple[str | None, ...] = ("s/a", "s/b")) -> pa.RecordBatch:
    """Return numbered events, whose streams take turns."""
    numbers = range(first, last)
    return pa.record_batch(
        [
            pa.array([names[i % len(names)] for i in numbers], pa.string()),
            pa.array([f"k{i % 5}" for i in numbers]),
            pa.array([str(i) for i in numbers]),
        ],
        names=list(NAMED),
    )


def staged(root: str, first: int, last: int, **options: str) -> list[Any]:
    message = query_writer(root, **options).write(iter([rows(first, last)]))
    message.task = TaskRun("q")
    return [pickle.loads(pickle.dumps(message))]


def versions(root: str) -> list[int]:
    return [open_stream(root, name).view().version for name in ("s/a", "s/b")]


def test_each_row_is_in_its_stream_in_order_by_one_commit(root: str) -> None:
    writer = batch_writer(root, numsegments="1")
    messages = [writer.write(iter([rows(10 * p, 10 * p + 10)])) for p in range(4)]
    before = versions(root)
    writer.commit(pickle.loads(pickle.dumps(messages)))
    assert read(Path(root), "s/a") == list(range(0, 40, 2))
    assert read(Path(root), "s/b") == list(range(1, 40, 2))
    assert versions(root) == [version + 1 for version in before]


def test_bare_names_take_the_scope_of_the_option_or_of_the_column(root: str) -> None:
    writer = batch_writer(root, scope="s")
    writer.commit([writer.write(iter([rows(0, 4, ("a", "s/b"))]))])
    columns = {"scope": "string", **NAMED}
    both = rows(4, 8, ("a", "b"))
    scoped = both.add_column(0, "scope", pa.array(["s", "t", "s", "t"]))
    writer = batch_writer(root, columns)
    writer.commit([writer.write(iter([scoped]))])
    found = {name: read(Path(root), name) for name in ("s/a", "s/b", "t/b")}
    assert found == {"s/a": [0, 2, 4, 6], "s/b": [1, 3], "t/b": [5, 7]}


def test_kafkas_topic_names_the_stream_unless_the_write_names_one(root: str) -> None:
    columns = {"key": "binary", "value": "binary", "Topic": "string"}
    found = pa.record_batch(
        [
            pa.array([b"k", b"k"]),
            pa.array([b"0", b"1"]),
            pa.array(["s/a", "s/b"]),
        ],
        names=list(columns),
    )
    writer = batch_writer(root, columns, columnnames="kafka")
    writer.commit([writer.write(iter([found]))])
    named: Any = source(root, columnnames="kafka", topic="s/c").writer(schema(**columns), False)
    named.commit([named.write(iter([found]))])
    assert [read(Path(root), name) for name in ("s/a", "s/b", "s/c")] == [[0], [1], [0, 1]]


def test_replayed_batch_is_in_each_stream_once_wherever_its_commit_died(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    query_writer(root).commit(staged(root, 0, 20), 0)

    def die() -> None:
        raise RuntimeError("killed")

    with at_failpoint("many_streams.committed", die), pytest.raises(RuntimeError, match="killed"):
        query_writer(root).commit(staged(root, 20, 40), 1)
    assert Counter(len(read(Path(root), name)) for name in ("s/a", "s/b")) == {20: 1, 10: 1}
    with caplog.at_level(logging.WARNING):
        query_writer(root).commit(staged(root, 20, 40), 1)
    assert "skipped a duplicate write: stream s/a has number 1 of spark.q" in caplog.text
    for _ in range(2):
        query_writer(root).commit(staged(root, 40, 60), 2)
    assert read(Path(root), "s/a") == list(range(0, 60, 2))
    assert read(Path(root), "s/b") == list(range(1, 60, 2))


def test_version_of_an_application_is_in_each_stream_once(root: str) -> None:
    options = {"txnappid": "etl", "txnversion": "7"}
    for last in (10, 10):
        writer = batch_writer(root, **options)
        writer.commit([writer.write(iter([rows(0, last)]))])
    assert sorted(read(Path(root), "s/a") + read(Path(root), "s/b")) == list(range(10))


def test_tasks_that_planned_at_different_versions_are_committed_together(root: str) -> None:
    first = staged(root, 0, 10)
    stream = open_stream(root, "s/a")
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    second = staged(root, 10, 20)
    query_writer(root).commit([*first, *second], 0)
    assert sorted(read(Path(root), "s/a")) == list(range(0, 20, 2))


def test_stream_that_was_sealed_since_leaves_all_streams_as_they_are(root: str) -> None:
    messages = staged(root, 0, 10)
    StreamManager(root).seal_stream("s/b")
    with pytest.raises(StreamSealed):
        query_writer(root).commit(messages, 0)
    assert read(Path(root), "s/a") == []


def test_write_that_fails_between_two_streams_says_which_have_it(root: str) -> None:
    writer = batch_writer(root)
    message = writer.write(iter([rows(0, 10)]))

    def seal() -> None:
        StreamManager(root).seal_stream("s/b")

    with (
        at_failpoint("many_streams.committed", seal),
        pytest.raises(IllegalState, match=r"is already in s/a, and not in stream s/b .* txnAppId"),
    ):
        writer.commit([message])


def test_task_without_rows_commits_nothing(root: str) -> None:
    writer = batch_writer(root)
    writer.commit([writer.write(iter([]))])
    with pytest.raises(IllegalState, match="1 of 2 tasks sent no commit message"):
        writer.commit([ManyStreamsMessage(), None])
    assert list(StreamManager(root).list_streams("s")) == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("s/a", None), "column stream is null in 5 of 10 rows, the first of which is row 1"),
        (("s/a", "no/such/name"), "column stream has 'no/such/name' in row 1, which names no str"),
        (("bare",), "column stream has 'bare' in row 0, .* option scope"),
    ],
)
def test_row_without_a_stream_is_refused_and_nothing_is_written(
    root: str, names: tuple[str | None, ...], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        batch_writer(root).write(iter([rows(0, 10, names)]))
    assert [e for n in StreamManager(root).list_streams("s") for e in read(Path(root), n)] == []


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"event": "string"}, {}, r"no stream is named: .*add a column stream"),
        ({"event": "string", "stream": "long"}, {}, "stream must be a string .* but is bigint"),
        (NAMED, {"transaction": "0" * 32}, "is of one stream: name it"),
        ({**NAMED, "EVENT": "string", "event": "string"}, {"eventtimedelay": "1s"}, "needs event"),
    ],
)
def test_unsuitable_frame_is_refused_with_the_next_step(
    root: str, columns: dict[str, str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        batch_writer(root, columns, **options)


TYPED = {"stream": "string", "carrier": "string", "flight": "long", "routing_key": "string"}


@pytest.fixture
def typed(root: str) -> StreamManager:
    """A root whose stream ``s/a`` needs a carrier, and whose flights have 8 bits."""
    manager = StreamManager(root)
    narrow = pa.schema([pa.field("carrier", pa.string(), False), ("flight", pa.int8())])
    manager.create_stream("s/a", StreamConfiguration(schema=narrow))
    return manager


def flights(*numbers: int, carrier: str | None = "UA") -> pa.RecordBatch:
    """Return flights; those from 1,000 on are of the stream ``s/wide``."""
    streams = ["s/a" if number < 1_000 else "s/wide" for number in numbers]
    return pa.record_batch(
        [
            pa.array(streams),
            pa.array([carrier] * len(numbers), pa.string()),
            pa.array(numbers, pa.int64()),
            pa.array(["k"] * len(numbers)),
        ],
        names=list(TYPED),
    )


def write_flights(
    root: str, *batches: pa.RecordBatch, columns: dict[str, str] | None = None, **options: str
) -> None:
    writer = batch_writer(root, columns or TYPED, **options)
    writer.commit([writer.write(iter(batches))])


def test_rows_of_a_frame_go_to_typed_streams_by_their_columns(
    root: str, typed: StreamManager
) -> None:
    write_flights(root, flights(1, 1_000, 2, 2_000), schema="infer")  # creates s/wide
    assert {name: [event.data for event in typed.read(name)] for name in ("s/a", "s/wide")} == {
        "s/a": [{"carrier": "UA", "flight": flight} for flight in (1, 2)],
        "s/wide": [{"carrier": "UA", "flight": flight} for flight in (1_000, 2_000)],
    }
    typed.create_stream("s/raw")
    with pytest.raises(InvalidOption, match="the frame has no column 'event'"):
        write_flights(root, flights(1).set_column(0, "stream", pa.array(["s/raw"])))


@pytest.mark.parametrize(
    ("batches", "columns", "error", "message"),
    [
        (
            [flights(1, 1_000, 2), flights(1_000, 3, 1_000, 300)],
            TYPED,
            SchemaMismatch,
            r"stream s/a: partition 0 of the frame: row 6, column flight: .*; got 300\. Nothing",
        ),
        (
            [flights(1_000, 1_000), flights(1_000, 7, carrier=None)],
            TYPED,
            SchemaMismatch,
            r"s/a: .* row 3, column carrier: null, and the column is required; got None",
        ),
        (
            [flights(1_000, 1).rename_columns(["stream", "x", "flight", "routing_key"])],
            {"stream": "string", "x": "string", "flight": "long", "routing_key": "string"},
            SchemaMismatch,
            r"s/a: the required column carrier is missing; the frame has x, flight, routing_key",
        ),
        (
            [flights(1).append_column("gate", pa.array(["A"]))],
            {**TYPED, "gate": "string"},
            SchemaMismatch,
            r"s/a: the schema has no column 'gate'; it has carrier, flight",
        ),
        (
            [flights(1).set_column(2, "flight", pa.array([1.5]))],
            {**TYPED, "flight": "double"},
            SchemaMismatch,
            r"s/a: column flight: double is not int8",
        ),
        (
            [flights(1).set_column(0, "stream", pa.array(["s/raw"]))],
            TYPED,
            InvalidOption,
            "schema=infer: stream s/raw exists, and its events are bytes",
        ),
    ],
)
def test_row_or_frame_that_does_not_fit_its_typed_stream_writes_to_none(
    root: str,
    typed: StreamManager,
    batches: list[pa.RecordBatch],
    columns: dict[str, str],
    error: type[Exception],
    message: str,
) -> None:
    typed.create_stream("s/raw")
    with pytest.raises(error, match=message):
        write_flights(root, *batches, columns=columns, schema="infer")
    assert [e for name in typed.list_streams("s") for e in typed.read(name)] == []
