"""The writers as Spark's processes use them, without Spark."""

from __future__ import annotations

import logging
import pickle
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    InvalidOption,
    NoSuchScope,
    NoSuchStream,
    StreamSealed,
)
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.spark.write import joined_batches
from pravega_spark.spark.write import staging as staging_module
from pravega_spark.spark.write.messages import TaskCommitMessage
from pravega_spark.spark.write.sink import PravegaStreamWriter
from pravega_spark.spark.write.task_run import TaskRun
from tests.harness.killed_processes import wait_until
from tests.harness.small_streams import scale
from tests.harness.spark_writing import TEXT, batch_writer, read, rows, schema, source
from tests.harness.transaction_world import killed_after_deciding

KAFKA = {"key": "binary", "value": "binary"}


def stream_writer(root: Path, **options: str) -> Any:
    """Return the writer that the tasks have; Spark pickles only that one."""
    writer = source(root, **options).streamWriter(schema(**TEXT), False)
    assert isinstance(writer, PravegaStreamWriter)
    return pickle.loads(pickle.dumps(writer))


def version(root: Path) -> int:
    return open_stream(str(root), "s/a").view().version


def test_batch_is_one_commit_in_the_order_of_the_partitions(tmp_path: Path) -> None:
    StreamManager(tmp_path).create_scope("s")
    writer = batch_writer(tmp_path)
    before = version(tmp_path)
    messages = [writer.write(iter([rows(10 * p, 10 * p + 10)])) for p in range(4)]
    assert read(tmp_path) == [], "nothing is visible before the commit"
    writer.commit(pickle.loads(pickle.dumps(messages)))
    assert read(tmp_path) == list(range(40))
    assert version(tmp_path) == before + 1


def test_only_the_attempts_that_spark_reports_are_committed(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path)
    writer.write(iter([rows(0, 10)]))
    again = writer.write(iter([rows(0, 10)]))
    writer.commit([again])
    assert read(tmp_path) == list(range(10))


def test_missing_message_commits_nothing(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path)
    with pytest.raises(IllegalState, match="1 of 2 tasks sent no commit message"):
        writer.commit([writer.write(iter([rows(0, 10)])), None])
    writer.abort([None])
    assert read(tmp_path) == []


def test_empty_write_makes_no_commit(tmp_path: Path) -> None:
    StreamManager(tmp_path).create_scope("s")
    writer = batch_writer(tmp_path)
    before = version(tmp_path)
    writer.commit([writer.write(iter([]))])
    writer.commit([])
    assert version(tmp_path) == before


def test_version_of_an_application_is_written_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"txnappid": "etl/with any text", "txnversion": "7"}
    first, racing = batch_writer(tmp_path, **options), batch_writer(tmp_path, **options)
    for writer in (first, racing):
        writer.commit([writer.write(iter([rows(0, 10)]))])
    with caplog.at_level(logging.WARNING):
        late = batch_writer(tmp_path, **options)
        message = late.write(iter([rows(0, 10)]))
        assert message.chunks == [], "a write that the stream has is not staged again"
        late.commit([message])
    assert "skipped a duplicate write: stream s/a has version 7 of txnAppId etl/with any text" in (
        caplog.text
    )
    assert read(tmp_path) == list(range(10))
    newer = batch_writer(tmp_path, txnappid="etl/with any text", txnversion="8")
    newer.commit([newer.write(iter([rows(10, 20)]))])
    other = batch_writer(tmp_path, txnappid="other", txnversion="1")
    other.commit([other.write(iter([rows(20, 30)]))])
    assert read(tmp_path) == list(range(30))


def commit(root: Path, messages: list[TaskCommitMessage], batch_id: int, **options: str) -> None:
    """Commit as Spark does: with a new writer, which makes no plan."""
    writer = source(root, **options).streamWriter(schema(**TEXT), False)
    writer.commit(messages, batch_id)  # type: ignore[arg-type]
    assert writer._plan is None  # type: ignore[attr-defined]


def staged(root: Path, first: int, last: int, query: str = "q-1") -> list[TaskCommitMessage]:
    message = stream_writer(root).write(iter([rows(first, last)]))
    message.task = TaskRun(query or None)
    return [message]


def test_replayed_batch_is_in_the_stream_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commit(tmp_path, staged(tmp_path, 0, 10), 0)
    with caplog.at_level(logging.WARNING):
        commit(tmp_path, staged(tmp_path, 0, 10), 0)
    assert "stream s/a has batch 0 of query spark.q-1" in caplog.text
    commit(tmp_path, staged(tmp_path, 10, 20), 1)
    commit(tmp_path, staged(tmp_path, 100, 110, query="q-2"), 0)
    assert read(tmp_path) == [*range(20), *range(100, 110)]


@pytest.mark.medium
def test_driver_carries_out_the_transaction_that_a_dead_process_has_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pravega_spark.txn.open_look.OPEN_LOOK_SECONDS", 0.02)
    messages = staged(tmp_path, 0, 1)
    killed_after_deciding(root_of(StreamManager(tmp_path)).store, b"1", "s/a")
    commit(tmp_path, messages, 0)
    wait_until(lambda: read(tmp_path) == [0, 1])


def test_abort_after_a_commit_that_took_effect_deletes_nothing(tmp_path: Path) -> None:
    messages = staged(tmp_path, 0, 10)
    commit(tmp_path, messages, 0)
    writer = source(tmp_path).streamWriter(schema(**TEXT), False)
    writer.abort([*messages, None], 0)
    commit(tmp_path, messages, 0)
    assert read(tmp_path) == list(range(10))


def test_query_id_falls_back_to_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    messages = staged(tmp_path, 0, 10, query="")
    with pytest.raises(InvalidOption, match="query's id is neither"):
        commit(tmp_path, messages, 0, checkpointlocation=str(checkpoint))
    (checkpoint / "metadata").write_text('{"id":"from-checkpoint"}')
    for _ in range(2):
        commit(tmp_path, messages, 0, checkpointlocation=str(checkpoint))
    assert read(tmp_path) == list(range(10))
    view = open_stream(str(tmp_path), "s/a").view()
    assert view.writer("spark.from-checkpoint") is not None


def test_scale_between_tasks_and_commit_does_not_disturb_the_query(tmp_path: Path) -> None:
    messages = staged(tmp_path, 0, 40)
    stream = open_stream(str(tmp_path), "s/a")
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    commit(tmp_path, messages, 0)
    assert sorted(read(tmp_path)) == list(range(40))
    assert len(stream.view().tail.positions) == 2


def test_missing_stream_is_created_unless_the_option_forbids_it(tmp_path: Path) -> None:
    with pytest.raises((NoSuchScope, NoSuchStream)):
        batch_writer(tmp_path, createifmissing="false").write(iter([]))
    assert not (tmp_path / "s").exists()
    batch_writer(tmp_path, numsegments="3").write(iter([]))
    assert len(StreamManager(tmp_path).segments("s/a")) == 3


def test_sealed_stream_is_refused_before_any_task(tmp_path: Path) -> None:
    batch_writer(tmp_path).write(iter([]))
    StreamManager(tmp_path).seal_stream("s/a")
    with pytest.raises(StreamSealed):
        batch_writer(tmp_path)


def test_refusal_of_a_querys_plan_is_raised_in_its_tasks(tmp_path: Path) -> None:
    """Spark makes a PicklingError of any error of pickling the writer."""
    batch_writer(tmp_path).write(iter([]))
    writer = source(tmp_path, routingkey="other").streamWriter(schema(**TEXT), False)
    copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer))))
    with pytest.raises(InvalidOption, match="routingKey names 'other'"):
        copy.write(iter([rows(0, 1)]))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            {"a": "string"},
            {},
            r"no column 'event'.*columns are a.*row_json\(frame\) \+ \" AS event",
        ),
        ({"event": "long"}, {}, "column event must be binary or string, but is bigint; cast"),
        ({"event": "string", "routing_key": "integer"}, {}, "routing_key must be string.*is int"),
        (TEXT, {"routingkey": "upper(x)"}, r"routingKey names 'upper\(x\)'.*not an expression"),
        (TEXT, {"eventtime": "event"}, "column event must be a timestamp, but is string"),
        (TEXT, {"columnnames": "kafka"}, "no column 'value'"),
        (
            {**KAFKA, "topic": "string", "partition": "integer", "offset": "long"},
            {"columnnames": "kafka"},
            r"column partition cannot be written.*\.select\(\"key\", \"value\"\)",
        ),
        (
            {**KAFKA, "headers": "binary"},
            {"columnnames": "kafka"},
            "column headers must be an array of structs, but is binary",
        ),
    ],
)
def test_unsuitable_frame_is_refused_with_the_next_step(
    tmp_path: Path, columns: dict[str, str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):  # a new root is left to the tasks
        batch_writer(tmp_path, columns, **options).write(iter([]))
    StreamManager(tmp_path).create_scope("s")
    with pytest.raises(InvalidOption, match=message):
        batch_writer(tmp_path, columns, **options)
    assert not StreamManager(tmp_path).stream_exists("s/a")


def test_kafka_columns_that_its_sink_ignores_are_ignored(tmp_path: Path) -> None:
    columns = {**KAFKA, "offset": "long", "timestamp": "timestamp", "timestampType": "integer"}
    batch_writer(tmp_path, columns, columnnames="kafka")


def test_every_mode_except_append_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"a stream is append-only.*\.mode\('append'\)"):
        source(tmp_path).writer(schema(**TEXT), True)
    with pytest.raises(InvalidOption, match="a stream is append-only"):
        source(tmp_path).streamWriter(schema(**TEXT), True)


def test_null_payload_is_refused_by_name(tmp_path: Path) -> None:
    found = pa.record_batch([pa.array(["k", "k"]), pa.array(["a", None])], names=list(TEXT))
    with pytest.raises(InvalidInput, match="column event is null in 1 of 2 rows"):
        batch_writer(tmp_path).write(iter([found]))


def test_key_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path, {"routing_key": "binary", "event": "binary"})
    found = pa.record_batch([pa.array([b"\xff"]), pa.array([b"a"])], names=list(TEXT))
    with pytest.raises(
        InvalidInput, match=r"in column routing_key, row 0 .* keyEncoding to percent"
    ):
        writer.write(iter([found]))


def test_key_that_is_too_long_is_refused_by_name(tmp_path: Path) -> None:
    found = pa.record_batch([pa.array([None, "k" * 65_537]), pa.array(["a", "b"])], list(TEXT))
    with pytest.raises(InvalidInput, match=r"column routing_key has a routing key of more than"):
        batch_writer(tmp_path).write(iter([found]))


def test_options_name_the_columns(tmp_path: Path) -> None:
    columns = {"carrier": "string", "at": "timestamp", "event": "binary", "more": "long"}
    writer = batch_writer(tmp_path, columns, routingkey="carrier", eventtime="at")
    at = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)
    found = pa.record_batch(
        [
            pa.array(["UA", None]),
            pa.array([at, at], pa.timestamp("us", "UTC")),
            pa.array([b"1", b"2"]),
            pa.array([1, 2]),
        ],
        names=list(columns),
    )
    writer.commit([writer.write(iter([found]))])
    events = list(StreamManager(tmp_path).read("s/a"))
    assert [(e.routing_key, e.timestamp, e.data) for e in events] == [
        ("UA", at, b"1"),
        (None, at, b"2"),
    ]


def test_files_are_bounded_in_rows_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = batch_writer(tmp_path, numsegments="2", maxrecordsperfile="30")
    message = writer.write(rows(i, i + 10, keys=50) for i in range(0, 200, 10))
    assert max(chunk.rows for chunk in message.chunks) <= 30
    monkeypatch.setattr(joined_batches, "ROUTE_BYTES", 100)
    monkeypatch.setattr(staging_module, "TASK_BYTES", 500)
    small = writer.write(rows(i, i + 10, keys=50) for i in range(200, 400, 10))
    assert len(small.chunks) > 10
    writer.commit([message, small])
    stream = open_stream(str(tmp_path), "s/a")
    for segment in stream.view().active.segments:
        held = [
            int(e.data)
            for e in StreamManager(tmp_path).read("s/a")
            if e.segment_id == segment.segment_id
        ]
        assert held == sorted(held)
    assert sorted(read(tmp_path)) == list(range(400))
