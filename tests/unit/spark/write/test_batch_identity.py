"""A query's batch is known by where its sources end, and a write in a run by its rows."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pravega_spark.engine.stream.records import NOTE_PREFIX
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import BatchConflict
from pravega_spark.manager import StreamManager
from pravega_spark.spark.write import batch_source
from pravega_spark.spark.write.batch_source import QueryCheckpoint
from pravega_spark.spark.write.numbered import FirstBatch
from tests.harness.query_checkpoints import Query, table_query
from tests.harness.spark_writing import read, rows


@pytest.fixture
def query(tmp_path: Path) -> Query:
    StreamManager(tmp_path / "root").create_scope("s")
    return Query(tmp_path / "root", tmp_path / "checkpoint")


def restarted(query: Query, run: str = "run-2", **changes: object) -> Query:
    return Query(**{**query.__dict__, "run": run, **changes})


def three_batches(query: Query) -> None:
    for number in range(3):
        query.plan(number, {"end": 10 * number + 10})
        query.write(number, rows(10 * number, 10 * number + 10))


def forget(query: Query, *numbers: int) -> None:
    """Remove batches from a checkpoint, as people do who go back."""
    for number in numbers:
        (query.checkpoint / f"offsets/{number}").unlink()


def test_batch_that_a_crash_repeats_is_skipped_whatever_its_rows(query: Query) -> None:
    three_batches(query)
    again = restarted(query)
    again.plan(2, {"end": 30})
    again.write(2, rows(20, 25))
    again.plan(3, {"end": 40})
    again.write(3, rows(30, 40))
    assert read(query.root) == list(range(40))


def test_batch_whose_offsets_were_deleted_is_refused_with_both_identities(query: Query) -> None:
    three_batches(query)
    forget(query, 2)
    again = restarted(query)
    again.plan(2, {"end": 35})
    with pytest.raises(BatchConflict) as caught:
        again.write(2, rows(20, 35))
    text = str(caught.value)
    assert "stream s/a has number 2 of 'spark.q-1' from batch 2 of query q-1 (ends " in text
    assert text.count("(ends ") == 2
    assert "run run-1" in text
    assert "run run-2" in text
    assert "give the query a new checkpoint" in text
    assert (caught.value.number, caught.value.last) == (2, 2)
    assert read(query.root) == list(range(30))


def test_number_below_the_last_one_is_refused(query: Query) -> None:
    three_batches(query)
    forget(query, 1, 2)
    again = restarted(query)
    again.plan(1, {"end": 20})
    with pytest.raises(BatchConflict, match=r"number 1 from .*the query went back"):
        again.write(1, rows(10, 20))


def test_copied_checkpoint_is_refused_once_its_original_went_on(query: Query) -> None:
    three_batches(query)
    copied = restarted(query, checkpoint=query.checkpoint.with_name("copy"))
    shutil.copytree(query.checkpoint, copied.checkpoint)
    query.plan(3, {"end": 40})
    query.write(3, rows(30, 40))
    copied.plan(3, {"end": 33})
    with pytest.raises(BatchConflict, match="its sources end elsewhere"):
        copied.write(3, rows(30, 33))
    copied.plan(4, {"end": 50})  # its batch 3 had no rows
    with pytest.raises(BatchConflict, match="it was copied or changed since"):
        copied.write(4, rows(33, 50))
    query.plan(4, {"end": 50})
    query.write(4, rows(40, 50))
    assert read(query.root) == list(range(50))


def test_offsets_can_be_put_back_from_the_history(query: Query) -> None:
    three_batches(query)
    file = query.checkpoint / "offsets/2"
    version, conf, *ends = file.read_text().splitlines()
    stream = open_stream(str(query.root), "s/a")
    commit = stream.log.reader.commit(stream.view().version, light=True)
    assert commit is not None
    kept = json.loads(commit.info["operationParameters"]["offsets"])
    assert kept == ends
    file.write_text("\n".join([version, conf, *kept]))
    restarted(query).write(2, rows(20, 30))
    assert read(query.root) == list(range(30))


@pytest.mark.parametrize("form", ["v1", "v2"])
def test_metadata_of_a_batch_is_no_part_of_its_identity(tmp_path: Path, form: str) -> None:
    query = Query(tmp_path / "root", tmp_path / "checkpoint")
    query.plan(0)
    lines = ['{"end":1}', "-"] if form == "v1" else ['0:{"end":1}', "named:-"]
    texts = ["\n".join([form, conf, *lines]) for conf in ('{"a":1}', '{"a":2}')]
    found = []
    for text in texts:
        (query.checkpoint / "offsets/0").write_text(text)
        found.append(QueryCheckpoint(str(query.checkpoint)).ends(0))
    assert found[0] == found[1]
    assert found[0].lines == tuple(lines)


def put_files(query: Query, at: int, *names: str, compact: bool = False) -> None:
    folder = query.checkpoint / "sources/0"
    folder.mkdir(parents=True, exist_ok=True)
    entries = [json.dumps({"path": name, "timestamp": 1, "batchId": at}) for name in names]
    (folder / f"{at}{'.compact' if compact else ''}").write_text("\n".join(["v1", *entries]))


def test_file_source_is_known_by_the_files_between_its_ends(query: Query) -> None:
    put_files(query, 0, "a.csv")
    query.plan(0, {"logOffset": 0})
    query.save(0, rows(0, 5), knows_checkpoint=True)
    put_files(query, 1, "b.csv")
    query.plan(1, {"logOffset": 1})
    query.save(1, rows(5, 10), knows_checkpoint=True)
    restarted(query).save(1, rows(5, 10), knows_checkpoint=True)
    put_files(query, 1, "c.csv", "d.csv")
    with pytest.raises(BatchConflict, match="its sources end elsewhere"):
        restarted(query).save(1, rows(10, 14), knows_checkpoint=True)
    assert read(query.root) == list(range(10))


def test_files_that_spark_has_joined_are_the_same(query: Query) -> None:
    for at in range(3):
        put_files(query, at, f"{at}.csv")
        query.plan(at, {"logOffset": at})
    checkpoint = QueryCheckpoint(str(query.checkpoint))
    before = [checkpoint.ends(at) for at in range(3)]
    lines = ["v1"]
    for at in range(3):
        file = query.checkpoint / f"sources/0/{at}"
        lines += file.read_text().splitlines()[1:]
        file.unlink()
    (query.checkpoint / "sources/0/2.compact").write_text("\n".join(lines))
    assert [checkpoint.ends(at) for at in range(3)] == before


def test_unreadable_checkpoint_warns_once_a_run_and_the_number_alone_counts(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            query.write(number, rows(10 * number, 10 * number + 10))
    assert caplog.text.count("cannot read where the sources of batch") == 1
    restarted(query).write(2, rows(20, 35))
    assert read(query.root) == list(range(30))


def test_folder_of_another_query_is_not_taken(query: Query) -> None:
    query.plan(0, {"end": 1})
    other = restarted(query, run="run-1", query_id="q-2")
    other.write(0, rows(0, 10))
    note = open_stream(str(query.root), "s/a").view().snapshot.domains[f"{NOTE_PREFIX}spark.q-2"]
    assert json.loads(json.loads(note)[0])[3] is None


def test_two_frames_under_one_number_are_refused_in_one_run(query: Query) -> None:
    query.save(0, rows(0, 5))
    with pytest.raises(BatchConflict, match=r"with other rows .*txnAppId='app/good'"):
        query.save(0, rows(5, 10))
    query.save(0, rows(5, 10), txnappid="app/bad")
    assert read(query.root) == list(range(10))


def test_same_rows_in_another_order_and_other_partitions_are_skipped(query: Query) -> None:
    query.save(0, rows(0, 5), rows(5, 10))
    query.save(0, rows(5, 10), rows(0, 5))
    query.save(0, rows(0, 10))
    assert len(read(query.root)) == 10


def test_number_across_runs_is_skipped_and_not_staged(query: Query) -> None:
    query.save(3, rows(0, 5))
    (message,) = restarted(query).save(3, rows(5, 10))
    assert message.chunks == []
    later = restarted(query, application="app-2")
    later.save(4, rows(5, 10), txnversion="3")  # a later batch, such as a fixed number
    assert read(query.root) == list(range(5))


def test_job_group_is_a_run_in_its_application_alone(query: Query) -> None:
    nightly = restarted(query, run="nightly", query_id=None)
    nightly.save(3, rows(0, 5))
    (message,) = restarted(nightly, run="nightly", application="app-2").save(3, rows(5, 10))
    assert message.chunks == []
    group = r"from job group nightly of application app-1, and this .* a separate job group"
    with pytest.raises(BatchConflict, match=group):
        nightly.save(3, rows(5, 10))
    assert read(query.root) == list(range(5))


def test_numbers_that_fall_within_a_batch_are_refused(query: Query) -> None:
    query.save(1, rows(0, 5), txnversion="3")
    with pytest.raises(BatchConflict, match="numbers must increase"):
        query.save(1, rows(5, 10), txnversion="2")


def test_known_number_from_another_query_is_refused(query: Query) -> None:
    query.save(1, rows(0, 5))
    other = restarted(query, query_id="q-2")
    with pytest.raises(BatchConflict, match="it is of another query"):
        other.save(0, rows(5, 10))
    other.save(2, rows(5, 10))
    assert read(query.root) == list(range(10))


def test_rolled_back_batch_in_foreach_batch_is_refused(query: Query) -> None:
    for number in range(3):
        query.plan(number, {"end": number})
        query.save(number, rows(5 * number, 5 * number + 5), knows_checkpoint=True)
    forget(query, 2)
    again = restarted(query)
    again.plan(2, {"end": 7})
    with pytest.raises(BatchConflict, match="its sources end elsewhere"):
        again.save(2, rows(10, 20), knows_checkpoint=True)
    with pytest.raises(BatchConflict, match="the query went back"):
        again.save(1, rows(10, 20))


def test_two_frames_into_one_transaction_are_refused_in_one_run(query: Query) -> None:
    query.save(0, rows(0, 1), txnappid="first")  # creates the stream
    manager = StreamManager(query.root)
    with manager.create_transactional_writer("s/a") as writer:
        txn = writer.begin_transaction()
        query.save(1, rows(1, 5), transaction=txn.id)
        query.save(1, rows(1, 5), transaction=txn.id)
        with pytest.raises(BatchConflict, match=r"transaction .* with other rows"):
            query.save(1, rows(5, 10), transaction=txn.id)
        with pytest.raises(BatchConflict, match="it is of another query"):
            restarted(query, query_id="q-2").save(0, rows(5, 10), transaction=txn.id)
        (message,) = restarted(query).save(1, rows(5, 10), transaction=txn.id)
        assert message.chunks == []
        txn.commit()
    assert read(query.root) == list(range(5))


def test_two_frames_into_one_table_are_refused_in_one_run(tmp_path: Path) -> None:
    query = table_query(tmp_path)

    def puts(*keys: bytes) -> pa.RecordBatch:
        return pa.record_batch([list(keys), list(keys)], names=["key", "value"])

    query.save(0, puts(b"a"))
    query.save(0, puts(b"a"))
    with pytest.raises(BatchConflict, match="with other rows"):
        query.save(0, puts(b"b"))
    query.plan(1, {"end": 1})
    query.write(1, puts(b"c"))
    forget(query, 1)
    query.plan(1, {"end": 2})
    with pytest.raises(BatchConflict, match="its sources end elsewhere"):
        restarted(query).write(1, puts(b"d"))


def test_one_read_of_the_checkpoint_a_batch(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    three_batches(query)
    keys: list[str] = []
    from pravega_spark.engine.store.local import LocalStore

    get: Callable[[LocalStore, str], bytes] = LocalStore.get

    def counted(store: LocalStore, key: str) -> bytes:
        if store.url.endswith("checkpoint") or "_batches" in key:
            keys.append(key)
        return get(store, key)

    monkeypatch.setattr(LocalStore, "get", counted)
    query.plan(3, {"end": 40})
    query.write(3, rows(30, 40))
    assert keys == ["offsets/3"]


def test_checkpoint_by_a_file_url(query: Query) -> None:
    three_batches(query)
    (query.checkpoint / "offsets/2").unlink()
    again = restarted(query)
    again.plan(2, {"end": 35})
    again.location = f"file://{query.checkpoint}"
    with pytest.raises(BatchConflict, match="its sources end elsewhere"):
        again.write(2, rows(20, 35))


@pytest.mark.parametrize("url", ["hdfs://namenode:8020/q", "dbfs:/q", "s3://bucket/q"])
def test_checkpoint_that_only_hadoop_reaches_holds_up_no_batch(
    query: Query, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The endpoint takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setattr(batch_source, "_TIMEOUT_SECONDS", 0.2)
        query.location = url
        began = time.monotonic()
        for number in range(3):
            query.write(number, rows(number, number + 1))
        assert time.monotonic() - began < 60
    assert caplog.text.count(f"(checkpoint {url}: ") == 1
    assert read(query.root) == [0, 1, 2]


def test_two_frames_are_compared_whatever_job_group_is_set_between_them(query: Query) -> None:
    query.save(0, rows(0, 5))
    query.run = "counting"
    query.execution = "run-1.0"
    with pytest.raises(BatchConflict, match="with other rows"):
        query.save(0, rows(5, 10))
    query.save(0, rows(0, 5))
    assert read(query.root) == list(range(5))


@pytest.mark.parametrize("version", ["2", "3"])
def test_batch_that_runs_again_under_the_same_job_group_is_skipped(
    query: Query, version: str
) -> None:
    grouped = restarted(query, run="counting", execution="7")
    grouped.save(1, rows(0, 2), txnversion="2")
    grouped.save(1, rows(2, 5), txnversion="3")
    again = restarted(query, run="counting", execution="9")
    (message,) = again.save(1, rows(5, 10), txnversion=version)
    assert message.chunks == []
    assert read(query.root) == list(range(5))


@pytest.mark.parametrize("version", ["2", "3"])
def test_later_batch_under_a_known_number_is_refused_in_one_application(
    query: Query, version: str
) -> None:
    query.save(3, rows(0, 5))
    with pytest.raises(BatchConflict, match=r"with other rows|numbers must increase"):
        query.save(4, rows(5, 10), txnversion=version)


def test_first_batch_of_a_run_alone_reads_what_a_run_begins_with(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    monkeypatch.setattr(FirstBatch, "check", lambda first: checked.append(first.number))
    for number in range(3):
        query.plan(number, {"end": number})
        query.save(number, rows(number, number + 1), knows_checkpoint=True)
    assert checked == [0]


def in_thread(query: Query, application: str = "app-1") -> Query:
    query.plan(0)
    return restarted(query, is_in_thread=True, application=application)


def test_thread_with_the_checkpoint_is_of_its_query(query: Query, tmp_path: Path) -> None:
    thread = in_thread(query)
    thread.save(0, rows(0, 5), knows_checkpoint=True)
    thread.save(0, rows(0, 5), knows_checkpoint=True)
    with pytest.raises(BatchConflict, match=r"a batch of query q-1 .* with other rows"):
        thread.save(0, rows(5, 10), knows_checkpoint=True)
    (message,) = in_thread(query, application="app-2").save(0, rows(5, 10), knows_checkpoint=True)
    assert message.chunks == []
    other = Query(query.root, tmp_path / "new", query_id="q-2")
    with pytest.raises(BatchConflict, match="it is of another query"):
        in_thread(other).save(0, rows(5, 10), knows_checkpoint=True)
    assert read(query.root) == list(range(5))


@pytest.mark.parametrize("is_first", [True, False])
def test_frame_in_a_thread_is_compared_with_one_beside_it(query: Query, is_first: bool) -> None:
    thread = in_thread(query)
    first, second = (thread, query) if is_first else (query, thread)
    first.save(0, rows(0, 5), knows_checkpoint=True)
    with pytest.raises(BatchConflict, match="with other rows"):
        second.save(0, rows(5, 10), knows_checkpoint=True)


@pytest.mark.parametrize("is_thread", [True, False])
def test_checkpoint_folder_that_is_used_again_is_that_of_the_new_query(
    query: Query, is_thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def run(query: Query) -> str:
        query.plan(0, {"end": 1})
        writer = in_thread(query) if is_thread else query
        writer.save(0, rows(0, 5), knows_checkpoint=True, txnappid=str(query.query_id))
        note = f"{NOTE_PREFIX}txn:{query.query_id}"
        found = json.loads(open_stream(str(query.root), "s/a").view().snapshot.domains[note])[0]
        return str(json.loads(found)[0 if is_thread else 3])

    ends = run(query)
    shutil.rmtree(query.checkpoint)
    again = run(restarted(query, query_id="q-2"))
    assert again == ("q-2" if is_thread else ends)
    assert not caplog.records
