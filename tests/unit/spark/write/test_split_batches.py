"""Batches of several streams that were stopped between two commits, and are written again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.engine.store import open_store
from pravega_spark.engine.writing.split_batch import FOLDER, read_split_batch, split_batch_key
from pravega_spark.errors import BatchConflict, CorruptLog
from pravega_spark.manager import StreamManager
from pravega_spark.policies import StreamConfiguration
from tests.harness.failpoints import at_failpoint
from tests.harness.query_checkpoints import Query

NAMED = {"stream": "string", "routing_key": "string", "event": "string"}
TYPED = {"routing_key": "string", "n": "long"}
TIMED = {**TYPED, "at": "timestamp"}
SCHEMA = pa.schema([("n", pa.int16())])
DLQ = {"path": "s/a", "badrecords": "dlq"}


def named(*streams: str, first: int = 0) -> pa.RecordBatch:
    numbers = [str(first + at) for at in range(len(streams))]
    return pa.record_batch([list(streams), numbers, numbers], names=list(NAMED))


def typed(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([[str(n) for n in numbers], list(numbers)], names=list(TYPED))


def timed(n: int, at: int | None) -> pa.RecordBatch:
    return typed(n).append_column("at", pa.array([at], pa.timestamp("us", "UTC")))


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "root", tmp_path / "checkpoint", columns=NAMED, options={"scope": "s"})


@pytest.fixture
def typed_query(tmp_path: Path) -> Query:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(schema=SCHEMA))
    return Query(tmp_path / "root", tmp_path / "checkpoint", columns=TYPED, options=DLQ)


def restarted(query: Query, **changes: Any) -> Query:
    return Query(**{**query.__dict__, "run": "run-2", **changes})


def stopped(write: Any, *given: Any, **options: Any) -> None:
    """Write, and stop after the first commit."""

    def stop() -> None:
        raise RuntimeError("stopped")

    with at_failpoint("many_streams.committed", stop), pytest.raises(RuntimeError, match="stopped"):
        write(*given, **options)


def events(query: Query, name: str) -> list[Any]:
    manager = StreamManager(query.root)
    return [e.data for e in manager.read(name)] if manager.stream_exists(name) else []


def of_target(query: Query, stream: str) -> Query:
    columns = {"routing_key": "string", "event": "string"}
    return restarted(query, columns=columns, options={"path": stream})


def both(first: int = 0) -> pa.RecordBatch:
    return named("s/ma", "s/mb", first=first)


@pytest.mark.parametrize("target", ["s/ma", "s/mb", "s/other"])
def test_other_target_is_refused_while_a_stream_lacks_the_batch(query: Query, target: str) -> None:
    query.plan(0, {"end": 1})
    query.write(0, both())
    query.plan(1, {"end": 2})
    stopped(query.write, 1, both(2))
    other = of_target(query, target)
    with pytest.raises(BatchConflict) as caught:
        other.write(1, both(2).drop_columns("stream"))
    text = str(caught.value)
    assert "number 1 of 'spark.q-1' is for the streams s/ma, s/mb" in text
    assert "was stopped before it was in s/mb" in text
    assert f"stream={target}" in text
    assert "scope=s" in text
    restarted(query).write(1, both(2))
    other.write(1, both(2).drop_columns("stream"))  # its streams have it: a repetition or a copy
    other.plan(2, {"end": 3})
    other.write(2, named("-", first=9).drop_columns("stream"))
    assert events(query, target)[-1:] == [b"9"]
    assert events(query, "s/mb") == [b"1", b"3"] + (
        [b"2", b"3", b"9"][2:] if target == "s/mb" else []
    )


def test_stop_before_the_first_commit_is_like_one_after_it(query: Query) -> None:
    def stop() -> None:
        raise RuntimeError("stopped")

    with at_failpoint("many_streams.recorded", stop), pytest.raises(RuntimeError):
        query.write(0, both())
    with pytest.raises(BatchConflict, match=r"stopped before it was in s/ma, s/mb"):
        of_target(query, "s/ma").write(0, both().drop_columns("stream"))


def test_bad_row_is_not_lost_when_dead_letters_are_switched_off(typed_query: Query) -> None:
    query = typed_query
    stopped(query.write, 0, typed(1, 2**40))
    fail = restarted(query, options={"path": "s/a"})
    with pytest.raises(BatchConflict, match=r"badRecords=dlq.*before it was in s/a-dlq"):
        fail.write(0, typed(1))
    restarted(query).write(0, typed(1, 2**40))
    fail.write(0, typed(1))
    assert [len(events(query, name)) for name in ("s/a", "s/a-dlq")] == [1, 1]


def test_row_without_a_time_is_not_lost_when_the_times_column_changes(typed_query: Query) -> None:
    query = typed_query
    query.options, query.columns = {**DLQ, "eventtime": "at"}, TIMED
    stopped(query.write, 0, timed(1, 1), timed(2, None))
    with pytest.raises(BatchConflict, match="eventTime=at"):
        restarted(query, options={"path": "s/a"}, columns=TYPED).write(0, typed(1, 2))


def test_batch_write_with_dead_letters_writes_those_that_are_missing(typed_query: Query) -> None:
    query = typed_query
    stopped(query.save, 0, typed(1, 2**40))
    restarted(query).save(0, typed(1, 2**40))
    assert [len(events(query, name)) for name in ("s/a", "s/a-dlq")] == [1, 1]
    (message,) = restarted(query, run="run-3").save(0, typed(1, 2**40))
    assert message.parts == {}
    query.save(1, typed(3))
    (message,) = restarted(query).save(1, typed(3))
    assert list(message.parts) == ["s/a"], "whether a bad row is missing, only its rows can say"
    assert [len(events(query, name)) for name in ("s/a", "s/a-dlq")] == [2, 1]


def test_write_with_dead_letters_of_two_frames_is_refused_in_one_run(typed_query: Query) -> None:
    typed_query.save(0, typed(1, 2**40))
    typed_query.save(0, typed(2**40, 1))
    with pytest.raises(BatchConflict, match="with other rows"):
        typed_query.save(0, typed(2, 2**40))


def test_other_write_of_the_same_batch_is_not_held_up(query: Query) -> None:
    alone = Query(**{**query.__dict__, "columns": {"routing_key": "string", "event": "string"}})
    alone.options = {"path": "s/x"}
    alone.save(0, both().drop_columns("stream"))
    stopped(query.save, 0, both())
    of_target(query, "s/x").save(0, both().drop_columns("stream"))
    restarted(query).save(0, both())
    assert [len(events(query, name)) for name in ("s/x", "s/ma", "s/mb")] == [2, 1, 1]


@pytest.mark.parametrize("is_restored", [True, False])
def test_restored_streams_lack_the_batch_and_streams_that_were_created_again_do_not(
    query: Query, is_restored: bool
) -> None:
    stopped(query.write, 0, both())
    manager = StreamManager(query.root)
    if is_restored:
        assert not manager.restore().failed
        with pytest.raises(BatchConflict, match="before it was in s/mb"):
            of_target(query, "s/ma").write(0, both().drop_columns("stream"))
        return
    manager.seal_stream("s/mb")
    manager.delete_stream("s/mb")
    manager.create_stream("s/mb")
    of_target(query, "s/ma").write(0, both().drop_columns("stream"))


def test_batch_of_one_stream_puts_nothing(query: Query) -> None:
    query.write(0, named("s/ma", "s/ma"))
    store = open_store(query.root)
    assert store.list(FOLDER) == []
    query.write(1, both())
    assert [entry.key for entry in store.list(FOLDER)] == [split_batch_key("spark.q-1")]
    held = read_split_batch(store, "spark.q-1")
    assert held is not None
    assert (held.number, held.streams) == (1, {"s/ma": 1, "s/mb": 1})


def test_damaged_record_of_a_batch_is_refused_by_name(query: Query) -> None:
    query.write(0, both())
    store = open_store(query.root)
    key = split_batch_key("spark.q-1")
    store.put(key, json.dumps({"number": 0}).encode())
    with pytest.raises(CorruptLog, match=f"{key} is damaged.*delete it, if the query"):
        restarted(query).write(1, both(2))
