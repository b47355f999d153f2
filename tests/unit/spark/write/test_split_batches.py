"""Batches of several streams that were stopped between two commits, and are written again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.writing.identity import NumberedBatch
from pravega_spark.engine.writing.split_batch import (
    FOLDER,
    LEFT_KEPT,
    read_split_batch,
    split_batch_key,
)
from pravega_spark.errors import BatchConflict, CorruptLog
from pravega_spark.manager import StreamManager
from tests.harness.failpoints import at_failpoint, register
from tests.harness.query_checkpoints import Query
from tests.harness.small_streams import write

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
    if target == "s/other":  # a copy of all rows of a complete batch
        with pytest.raises(BatchConflict, match=r"1 of .* is in s/ma, s/mb, by.*not in s/other"):
            other.write(1, both(2).drop_columns("stream"))
    else:
        other.write(1, both(2).drop_columns("stream"))  # its streams have it: a repetition
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
    assert (held.number, held.rows) == (1, {"s/ma": 1, "s/mb": 1})
    assert {part.life for part in held.parts.values()} == {1}


def test_damaged_record_of_a_batch_is_refused_by_name(query: Query) -> None:
    query.write(0, both())
    store = open_store(query.root)
    key = split_batch_key("spark.q-1")
    store.put(key, json.dumps({"number": 0}).encode())
    with pytest.raises(CorruptLog, match=f"{key} is damaged.*delete it, if the query"):
        restarted(query).write(1, both(2))


ELSEWHERE = {
    "all to the stream that has it": ("s/ma", "s/ma", "s/ma"),
    "all to the one that lacks it": ("s/mb", "s/mb", "s/mb"),
    "all to a new one": ("s/mc", "s/mc", "s/mc"),
    "one to a new one": ("s/ma", "s/mb", "s/mc"),
    "one more to the one that lacks it": ("s/mb", "s/mb", "s/ma"),
    "one is left out": ("s/mb", "s/ma"),
    "none is left": (),
}


@pytest.mark.parametrize("sink", ["write", "save"])
@pytest.mark.parametrize("streams", ELSEWHERE.values(), ids=ELSEWHERE)
def test_replay_whose_rows_go_elsewhere_is_refused_before_any_commit(
    query: Query, sink: str, streams: tuple[str, ...]
) -> None:
    def write(by: Query, number: int, rows: pa.RecordBatch) -> None:
        query.plan(number, {"end": number})
        getattr(by, sink)(number, rows)

    before = named("s/ma", "s/ma", "s/mb", first=2)
    write(query, 0, both())
    stopped(write, query, 1, before)
    other = restarted(query)
    with pytest.raises(BatchConflict) as caught:
        write(other, 1, named(*streams, first=2))
    text = str(caught.value)
    writer = "spark.q-1" if sink == "write" else "txn:app"
    assert f"number 1 of '{writer}' was stopped when it was in s/ma and not in s/mb" in text
    assert "It had rows 2 for s/ma, 1 for s/mb; this write of it has " in text
    shown = [f"{streams.count(name)} for {name}" for name in sorted(set(streams))]
    assert (f"has rows {', '.join(shown)}." if shown else "has no rows.") in text
    assert "set the option acceptReplay=1" in text
    assert [events(query, n) for n in ("s/ma", "s/mb", "s/mc")] == [[b"0", b"2", b"3"], [b"1"], []]
    write(other, 1, before)
    write(other, 2, named(*streams, first=9))
    assert events(query, "s/mb")[:2] == [b"1", b"4"]


@pytest.mark.parametrize("accepted", ["0", "1"])
def test_option_accepts_the_rows_of_one_replay(query: Query, accepted: str) -> None:
    query.write(0, both())
    stopped(query.write, 1, named("s/ma", "s/ma", "s/mb", first=2))
    given = restarted(query, options={**query.options, "acceptreplay": accepted})
    rows = named("s/mb", "s/mc", "s/ma", first=2)
    if accepted == "0":
        with pytest.raises(BatchConflict, match="acceptReplay=1"):
            given.write(1, rows)
        return
    stopped(given.write, 1, rows)  # the record has the rows of now
    restarted(query, run="run-3").write(1, rows)
    assert events(query, "s/ma") == [b"0", b"2", b"3"]
    assert (events(query, "s/mb"), events(query, "s/mc")) == ([b"1", b"2"], [b"3"])


def test_rows_that_changed_places_are_warned_of(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """Numbers of rows agree: only their values differ, which they may."""
    stopped(query.write, 0, both())
    with caplog.at_level(logging.WARNING):
        restarted(query).write(0, named("s/mb", "s/ma"))
    assert "number 0 of spark.q-1 is in stream s/ma with other rows" in caplog.text
    assert events(query, "s/ma") == events(query, "s/mb") == [b"0"]
    caplog.clear()
    query.plan(1, {"end": 2})
    stopped(query.write, 1, both())
    with caplog.at_level(logging.WARNING):
        restarted(query).write(1, both())
    assert "with other rows" not in caplog.text


def test_batch_that_is_in_no_stream_or_in_all_of_them_is_no_replay(query: Query) -> None:
    def stop() -> None:
        raise RuntimeError("stopped")

    with at_failpoint("many_streams.recorded", stop), pytest.raises(RuntimeError):
        query.write(0, both())
    moved = named("s/mb", "s/mc")
    restarted(query).write(0, moved)  # nothing of it was in a stream
    restarted(query, run="run-3").write(0, named("s/mc", "s/mb", "s/mb"))  # all have it: skipped
    assert [events(query, n) for n in ("s/ma", "s/mb", "s/mc")] == [[], [b"0"], [b"1"]]
    with pytest.raises(BatchConflict, match=r"in s/mb, s/mc\. It had rows 1 for s/mb, 1 for s/mc"):
        restarted(query, run="run-4").write(0, named("s/ma"))


def test_record_of_a_write_that_reached_no_stream_counts_no_more(query: Query) -> None:
    def stop() -> None:
        raise RuntimeError("stopped")

    with at_failpoint("many_streams.recorded", stop), pytest.raises(RuntimeError):
        query.write(0, both())
    one = named("s/ma", "s/ma")
    restarted(query).write(0, one)
    restarted(query, run="run-3").write(0, one)
    assert (events(query, "s/ma"), events(query, "s/mb")) == ([b"0", b"1"], [])


def test_bad_row_that_new_code_mends_is_not_in_two_streams(typed_query: Query) -> None:
    query = typed_query
    stopped(query.write, 0, typed(1, 2**40))
    for rows in (typed(1, 2), typed(1), typed(2**40), typed(1).slice(1)):
        with pytest.raises(BatchConflict, match="It had rows 1 for s/a, 1 for s/a-dlq"):
            restarted(query).write(0, rows)
    restarted(query).write(0, typed(1, 2**40))
    assert [len(events(query, name)) for name in ("s/a", "s/a-dlq")] == [1, 1]


@pytest.mark.parametrize("sink", ["write", "save"])
@pytest.mark.parametrize(("before", "now"), [(1, 2**40), (2**40, 1)])
def test_batch_of_one_stream_is_not_written_into_the_other_one(
    typed_query: Query, sink: str, before: int, now: int
) -> None:
    """Its commit was not acknowledged; no record says for which streams it was."""
    query = typed_query
    getattr(query, sink)(0, typed(before))
    with pytest.raises(BatchConflict, match="no record says that it had rows for s/a") as caught:
        getattr(restarted(query), sink)(0, typed(now))
    has, lacks = ("s/a", "s/a-dlq") if before == 1 else ("s/a-dlq", "s/a")
    assert f" is in {has}, and no record says that it had rows for {lacks};" in str(caught.value)
    getattr(restarted(query), sink)(0, typed(before))
    assert [len(events(query, name)) for name in (has, lacks)] == [1, 0]


@pytest.mark.parametrize("now", [("s/mb",), ("s/ma", "s/mb"), ("s/mc",)])
def test_batch_of_one_named_stream_is_not_written_into_another(
    query: Query, now: tuple[str, ...]
) -> None:
    query.write(0, both())  # its record names the streams of the query
    query.write(1, named("s/ma", first=2))
    with pytest.raises(BatchConflict, match=r"is in s/ma, and no record says that it had rows for"):
        restarted(query).write(1, named(*now, first=2))
    restarted(query).write(1, named("s/ma", first=2))
    restarted(query).write(2, named(*now, first=3))


def test_number_without_an_origin_is_known_by_the_number_alone(query: Query) -> None:
    """Version 0.1.0 wrote it, and no record either."""
    query.write(0, both())
    stream = open_stream(str(query.root), "s/ma")
    write(stream, [("k", b"2")], NumberedBatch("spark.q-1", 1))
    restarted(query).write(1, both(2))
    assert (events(query, "s/ma"), events(query, "s/mb")) == ([b"0", b"2"], [b"1", b"3"])


@pytest.mark.parametrize("stop", range(4))
def test_frames_of_one_id_into_different_streams_are_no_replays_of_each_other(
    query: Query, stop: int
) -> None:
    commits = iter(range(4))

    def count() -> None:
        if next(commits) == stop:
            raise RuntimeError("stopped")

    def batch(by: Query, number: int) -> None:
        by.save(number, named("s/ma", "s/mb", first=4 * number))
        by.save(number, named("s/mc", "s/md", first=4 * number + 2))

    batch(query, 0)
    register("many_streams.committed", count)
    try:
        with pytest.raises(RuntimeError):
            batch(query, 1)
    finally:
        register("many_streams.committed", None)
    batch(restarted(query), 1)
    batch(restarted(query), 2)
    found = [events(query, f"s/m{name}") for name in "abcd"]
    assert found == [[b"%d" % (at + 4 * n) for n in range(3)] for at in range(4)]


def test_frame_with_a_stream_of_another_one_is_refused_at_once(query: Query) -> None:
    query.save(0, named("s/mb", "s/mc"))
    with pytest.raises(BatchConflict):
        query.save(0, named("s/ma", "s/mc", first=2))
    assert events(query, "s/ma") == []


@pytest.mark.parametrize("is_restored", [True, False])
def test_replay_into_streams_that_lack_a_batch_for_another_reason(
    query: Query, tmp_path: Path, is_restored: bool
) -> None:
    """A copy may have a batch in one of its streams; and a stream may have been created again."""
    query.write(0, both())
    manager = StreamManager(query.root)
    if is_restored:
        stopped(query.write, 1, both(2))
        manager.backup(tmp_path / "copy")
        assert not StreamManager(tmp_path / "copy").restore().failed
        query.root = tmp_path / "copy"  # without the record
        query.write(1, both(2))
        assert (events(query, "s/ma"), events(query, "s/mb")) == ([b"0", b"2"], [b"1", b"3"])
        return
    query.write(1, both(2))
    manager.seal_stream("s/mb")
    manager.delete_stream("s/mb")
    restarted(query).write(1, both(2))
    assert (events(query, "s/ma"), events(query, "s/mb")) == ([b"0", b"2"], [b"3"])


def test_later_batches_of_a_run_read_no_record(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.write(0, both())
    read: list[str] = []
    get: Callable[[LocalStore, str], bytes] = LocalStore.get

    def counted(store: LocalStore, key: str) -> bytes:
        read.append(key)
        return get(store, key)

    monkeypatch.setattr(LocalStore, "get", counted)
    query.write(1, both(2))
    assert [key for key in read if key.startswith(FOLDER)] == []
    restarted(query).write(2, both(4))
    assert [key for key in read if key.startswith(FOLDER)] == [split_batch_key("spark.q-1")]


def of_script(query: Query, run: str | None) -> Query:
    """A plain script, whose job group is its run; a query goes to no lower number."""
    return restarted(query, run=run, query_id=None)


@pytest.mark.parametrize("run", [None, "group"])
@pytest.mark.parametrize("is_passed_by_letters_alone", [True, False])
def test_number_that_a_later_one_passed_in_the_stream_that_lacks_it_is_refused(
    typed_query: Query, run: str | None, is_passed_by_letters_alone: bool
) -> None:
    query = of_script(typed_query, run)
    query.save(1, typed(1, 2**40))
    torn = typed(2, 2**41)
    stopped(query.save, 2, torn)
    query.save(3, typed(2**42) if is_passed_by_letters_alone else typed(3, 2**42))
    query.save(4, typed(4, 2**43))
    before = [len(events(query, name)) for name in ("s/a", "s/a-dlq")]
    for rows in (torn, typed(2)):
        with pytest.raises(BatchConflict) as caught:
            query.save(2, rows)
        text = str(caught.value)
        assert "number 2 of 'txn:app' was stopped before it was in s/a-dlq (rows 1)" in text
        assert "Write the rows of that stream under another txnAppId" in text
        assert "acceptReplay=2" in text
    query.save(4, typed(4, 2**43))
    query.save(2, torn, acceptreplay="2")
    query.save(2, torn)  # it is ended
    assert [len(events(query, name)) for name in ("s/a", "s/a-dlq")] == before


@pytest.mark.parametrize("run", [None, "group"])
def test_such_a_number_is_refused_by_a_write_without_dead_letters(
    typed_query: Query, run: str | None
) -> None:
    query = of_script(typed_query, run)
    query.save(1, typed(1, 2**40))
    stopped(query.save, 2, typed(2, 2**41))
    query.save(3, typed(3, 2**42))
    with pytest.raises(BatchConflict, match="number 2 of 'txn:app' was stopped before it was in"):
        of_script(restarted(query, options={"path": "s/a"}), run).save(2, typed(2))


def test_number_that_later_ones_passed_in_other_streams_is_written_where_it_lacks(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    query = of_script(query, None)
    query.save(0, both())
    stopped(query.save, 1, both(2))
    with caplog.at_level(logging.WARNING):
        query.save(2, named("s/ma", "s/mc", first=4))
    assert "number 1 of txn:app was stopped before it was in s/mb, and number 2 is" in caplog.text
    query.save(1, both(2))
    query.save(3, both(6))
    query.save(1, both(2))
    assert events(query, "s/mb") == [b"1", b"3", b"7"]


def test_record_keeps_the_highest_numbers_that_were_left(query: Query) -> None:
    query.save(0, both())
    for number in range(1, LEFT_KEPT + 3):
        stopped(query.save, number, both())
    held = read_split_batch(open_store(query.root), "txn:app")
    assert held is not None
    assert list(held.left) == list(range(2, LEFT_KEPT + 2))
    assert {tuple(parts) for parts in held.left.values()} == {("s/mb",)}


def test_batch_of_dead_letters_alone_is_not_written_by_mended_code_without_them(
    typed_query: Query,
) -> None:
    query = typed_query
    query.write(0, typed(2**40))
    fail = restarted(query, options={"path": "s/a"})
    with pytest.raises(BatchConflict, match=r"number 0 of 'spark\.q-1' is in s/a-dlq"):
        fail.write(0, typed(1))
    restarted(query).write(0, typed(2**40))
    fail.write(1, typed(1))
    assert [len(events(query, name)) for name in ("s/a", "s/a-dlq")] == [1, 1]


@pytest.mark.parametrize("rows", [("s/ma", "s/ma"), ("s/mc",), ()])
@pytest.mark.parametrize("stop", ["many_streams.committed", "many_streams.recorded"])
def test_replay_that_leaves_a_stream_out_ends_the_batch(
    query: Query, rows: tuple[str, ...], stop: str
) -> None:
    """By the option; or without it, where the batch had reached no stream."""

    def end() -> None:
        raise RuntimeError("stopped")

    query.write(0, both())
    with at_failpoint(stop, end), pytest.raises(RuntimeError):
        query.write(1, both(2))
    accepted = {"acceptreplay": "1"} if stop == "many_streams.committed" else {}
    replay = named(*rows, first=2)
    restarted(query, options={**query.options, **accepted}).write(1, replay)
    restarted(query, run="run-3").write(1, replay)
    one = of_target(query, "s/ma")
    one.write(2, both(4).drop_columns("stream"))
    assert events(query, "s/ma")[-2:] == [b"4", b"5"]
    assert events(query, "s/mb") == [b"1"]
