"""Frames without the data source, in this process instead of Spark's."""

from __future__ import annotations

from typing import cast

from pyspark.sql import SparkSession

from pravega_spark import StreamManager, read_frame, write_frame
from tests.harness.inline_spark import InlineSpark
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
