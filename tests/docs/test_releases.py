"""A process of the previous release and this code write to one stream, and both read it."""

from __future__ import annotations

from pathlib import Path

from pravega_spark import StreamManager, __version__
from pravega_spark.engine.store import open_store
from pravega_spark.integrity.root_integrity import check_root
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


SWEEP = """
import sys
import pravega_spark
root, copy = sys.argv[1:]
manager = pravega_spark.StreamManager(root)
print([event.data.decode() for event in manager.read("s/t")])
with manager.create_writer("s/t") as writer:
    writer.write_event(b"old", routing_key="k").result()
manager.truncate_stream("s/t", manager.create_reader("s/t").next_cut(manager.head("s/t"), 1))
print(manager.sweep_stream("s/t", grace=0).files, manager.list_scopes())
manager.backup(copy)
restored = pravega_spark.StreamManager(copy)
restored.restore()
print([event.data.decode() for event in restored.read("s/t")])
"""


def test_previous_release_sweeps_and_copies_a_root_with_a_reserve(tmp_path: Path) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/t")
    manager.update_settings(retain=0)
    with manager.create_writer("s/t") as writer:
        for data in (b"first", b"second"):
            writer.write_event(data, routing_key="k").result()
    reserve = sorted(path.name for path in root.glob(".pravega_reserve-*"))
    assert reserve
    output = run_release("0.1.0", SWEEP, root, copy)
    assert output == "['first', 'second']\n1 ['s']\n['second', 'old']\n"
    assert sorted(path.name for path in root.glob(".pravega_reserve-*")) == reserve
    assert not list(copy.rglob(".pravega_reserve-*")), "a copy has nothing of the reserve"
    assert [event.data for event in manager.read("s/t")] == [b"second", b"old"]
    assert [found.damage for found in check_root(open_store(root), deep=True) if found.damage] == []
