"""A process of the previous release and this code write to one stream, and both read it."""

from __future__ import annotations

from pathlib import Path

from pravega_spark import StreamManager, __version__
from tests.harness.releases import run_release

WRITE = """
import sys
import pravega_spark
print(pravega_spark.__version__)
manager = pravega_spark.StreamManager(sys.argv[1])
with manager.create_writer("s/t", writer_id="old") as writer:
    writer.write_event(b"old", routing_key="k").result()
print(sorted(event.data.decode() for event in manager.read("s/t")))
"""


def test_previous_release_writes_and_reads_beside_this_one(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t", writer_id="new") as writer:
        writer.write_event(b"new", routing_key="k").result()
    assert run_release("0.1.0", WRITE, tmp_path) == "0.1.0\n['new', 'old']\n"
    assert __version__ != "0.1.0"
    assert [event.data for event in manager.read("s/t")] == [b"new", b"old"]
