"""The sink notes the times of what it commits: once for each micro-batch, for its own writer."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.config.descriptions import WriterMark
from pravega_spark.errors import InvalidOption
from pravega_spark.manager import StreamManager
from pravega_spark.spark.settings import write_settings
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.write.sink import PravegaStreamWriter
from pravega_spark.spark.write.task_run import TaskRun
from tests.harness.spark_writing import batch_writer, schema, source

COLUMNS = {"event": "string", "at": "timestamp"}
NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def batch(*minutes: int) -> pa.RecordBatch:
    events = pa.array([str(minute) for minute in minutes])
    times = pa.array([at(minute) for minute in minutes], pa.timestamp("us", "UTC"))
    return pa.record_batch([events, times], names=list(COLUMNS))


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[StreamManager]:
    made = StreamManager(str(tmp_path))
    yield made
    made.close()


def commit(root: Path, batch_id: int, *parts: pa.RecordBatch, **options: str) -> None:
    """Write a micro-batch as Spark does: the tasks have a pickled writer, the driver a new one."""
    given = {"eventtime": "at", "eventtimedelay": "2 minutes", **options}
    writers: list[Any] = []
    for _ in range(2):
        writer = source(root, **given).streamWriter(schema(**COLUMNS), False)
        assert isinstance(writer, PravegaStreamWriter)
        writers.append(writer)
    task = pickle.loads(pickle.dumps(writers[0]))
    messages = [task.write(iter([part] if part.num_rows else [])) for part in parts]
    for message in messages:
        message.task = TaskRun("q-1")
    writers[1].commit(messages, batch_id)


def marks(manager: StreamManager) -> list[WriterMark]:
    return manager.event_time("s/a").marks()


def test_a_micro_batch_notes_its_latest_time_less_the_delay_once(
    tmp_path: Path, manager: StreamManager
) -> None:
    commit(tmp_path, 0, batch(3, 9), batch(5))
    (mark,) = marks(manager)
    assert (mark.writer_id, mark.time, mark.is_alive) == ("spark.q-1", at(7), True)
    assert mark.cut == manager.tail("s/a")
    commit(tmp_path, 0, batch(30))
    assert marks(manager) == [mark], "a repeated batch notes nothing"
    commit(tmp_path, 1, batch())
    assert marks(manager) == [mark], "an empty one neither"
    commit(tmp_path, 2, batch(4))
    (later,) = marks(manager)
    assert (later.time, later.version) == (at(7), mark.version + 1), "no time goes back"
    commit(tmp_path, 3, batch(20), eventtimedelay="0")
    (last,) = marks(manager)
    assert last.time == at(20)


def test_without_the_option_nothing_is_noted(tmp_path: Path, manager: StreamManager) -> None:
    commit(tmp_path, 0, batch(3), eventtimedelay="")
    assert marks(manager) == []


def test_a_batch_write_notes_for_its_application(tmp_path: Path, manager: StreamManager) -> None:
    options = {"eventtime": "at", "eventtimedelay": "1m", "txnappid": "etl", "txnversion": "1"}
    for times in ((3, 9), (50,)):
        writer = batch_writer(tmp_path, COLUMNS, **options)
        writer.commit([writer.write(iter([batch(*times)]))])
    (mark,) = marks(manager)
    assert (mark.writer_id, mark.time) == ("txn:etl", at(8)), "a repeated version notes nothing"


def test_a_delay_needs_times_and_a_writer(tmp_path: Path) -> None:
    target = {"root": str(tmp_path), "path": "s/a", "eventTimeDelay": "1s"}
    with pytest.raises(InvalidOption, match="eventTimeDelay needs eventTime"):
        write_settings(target)
    transaction = {**target, "eventTime": "at", "transaction": "0" * 32}
    with pytest.raises(InvalidOption, match="commit notes a time"):
        write_settings(transaction)
    with pytest.raises(InvalidOption, match="only with txnAppId"):
        batch_writer(tmp_path, COLUMNS, eventtime="at", eventtimedelay="1s")


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"event": "string", "at": "timestamp_ntz"}, {"eventTime": "at"}),
        (
            {"event": "string", "at": "timestamp_ntz"},
            {"eventTime": "AT", "eventTimeDelay": "1s", "txnAppId": "a", "txnVersion": "1"},
        ),
        (
            {"value": "binary", "at": "timestamp_ntz"},
            {"columnNames": "kafka", "eventTime": "at", "keyEncoding": "percent"},
        ),
    ],
)
def test_times_without_a_zone_are_refused_with_the_cast(
    tmp_path: Path, columns: dict[str, str], options: dict[str, str]
) -> None:
    StreamManager(tmp_path).create_scope("s")
    with pytest.raises(InvalidOption, match=r"time zone.*CAST\(at AS TIMESTAMP\)"):
        batch_writer(tmp_path, columns, **options)


def test_times_without_a_zone_are_refused_for_rows_that_name_their_stream(tmp_path: Path) -> None:
    fields = {"stream": "string", "event": "string", "at": "timestamp_ntz"}
    given = PravegaDataSource({"root": str(tmp_path), "eventTime": "at"})
    with pytest.raises(InvalidOption, match=r"CAST\(at AS TIMESTAMP\)"):
        given.writer(schema(**fields), False)
