"""Frames without the data source, in this process instead of Spark's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pravega_spark import StreamManager, errors, read_frame, write_frame
from tests.harness.inline_spark import InlineFrame, InlineSpark
from tests.harness.store_backends import ExclusiveMemoryFileSystem


class Handed(ExclusiveMemoryFileSystem):
    """A file system that a user made."""

    protocol = "handed"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol("memory://" + (path.partition("://")[2] or path))


def test_file_system_that_was_handed_in_goes_to_the_tasks() -> None:
    manager = StreamManager("handed://frames/root", filesystem=Handed())
    manager.create_scope("s")
    manager.create_stream("s/a")
    with manager.create_writer("s/a") as writer:
        for number in range(5):
            writer.write_event(b"%d" % number, "k")
    spark = cast("SparkSession", InlineSpark())
    frame = read_frame(spark, "s/a", root=manager.root).select("routing_key", "event")
    write_frame(frame, "s/b", root=manager.root, txn_app_id="app", txn_version=1)
    assert [event.data for event in manager.read("s/b")] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"txn_app_id": "a", "TxnAppID": "b", "txnVersion": 1}, ("txn_app_id='a'", "TxnAppID='b'")),
        ({"txn_app_id": "a", "txn_version": 1, "txnVersion": 1}, ("txn_version=1", "txnVersion=1")),
        ({"txnAppId": "a", "txnappid": "b", "txnVersion": 1}, ("txnAppId='a'", "txnappid='b'")),
        ({"Root": "/elsewhere"}, ("root=", "Root='/elsewhere'")),
        ({"path": "s/c"}, ("stream='s/b'", "path='s/c'")),
    ],
)
def test_option_that_is_set_twice_is_refused(
    tmp_path: Path, given: dict[str, Any], names: tuple[str, str]
) -> None:
    StreamManager(tmp_path).create_scope("s")
    frame = cast("DataFrame", InlineFrame(StructType().add("event", "string"), []))
    with pytest.raises(errors.InvalidOption, match="set one option: give one of them") as refused:
        write_frame(frame, "s/b", root=tmp_path, **given)
    assert all(name in str(refused.value) for name in names)


def test_id_without_a_number_is_refused(tmp_path: Path) -> None:
    frame = cast("DataFrame", InlineFrame(StructType().add("event", "string"), []))
    with pytest.raises(errors.InvalidOption, match="txnAppId and txnVersion need each other"):
        write_frame(frame, "s/b", root=tmp_path, txn_app_id="a")


def test_number_that_a_script_repeats_is_skipped_and_one_without_rows_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")

    def write(*events: str) -> None:
        batch = pa.RecordBatch.from_pydict({"event": pa.array(events, pa.string())})
        frame = InlineFrame(StructType().add("event", "string"), [lambda: [batch]])
        given: dict[str, Any] = {"root": tmp_path, "txn_app_id": "app", "txn_version": 1}
        write_frame(cast("DataFrame", frame), "s/b", **given)

    write()
    assert manager.stream_exists("s/b")
    write("first")
    assert "skipped" not in caplog.text
    write("other")
    assert "skipped a duplicate write: stream s/b has version 1 of txnAppId app" in caplog.text
    assert [event.data for event in manager.read("s/b")] == [b"first"]
