"""A process of the previous release and this code write to one stream, and both read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark import SettingOrigin, StreamConfiguration, StreamManager, __version__
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.state.scopes import Scope
from pravega_spark.engine.state.state_table import TableChange
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.errors import IllegalState
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.integrity.root_integrity import check_root
from pravega_spark.maintenance.auto import VARIABLE
from pravega_spark.txn.open_look import look_at
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.releases import run_release
from tests.harness.transaction_world import killed_after_deciding

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


CHANGE_GROUPS = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
for number in range(4):
    manager.create_reader_group(f"s/old-{number}", ["s/t"])
manager.delete_reader_group("s/new-0")
manager.delete_reader_group("s/old-0")
manager.create_stream("s/old")
print(len(manager.list_streams("s")), manager.list_reader_groups("s"))
"""
LIST_GROUPS = """
import sys
import pravega_spark
print(pravega_spark.StreamManager(sys.argv[1]).list_reader_groups("s"))
"""


@pytest.mark.medium
def test_a_scope_that_stays_open_follows_what_the_previous_release_changes(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    row = {"kind": "stream", "life": 1, "version": -1, "tags": [], "configuration": "{}"}
    rows = {name: {"name": name, **row} for name in (f"n{number:04d}" for number in range(1_300))}
    filled = TableChange("FILL", changes=rows)
    Scope(open_store(tmp_path), "s").table.change(lambda state: (filled, None))
    for number in range(3):
        manager.create_reader_group(f"s/new-{number}", ["s/t"])
    seen = ["s/new-1", "s/new-2", "s/old-1", "s/old-2", "s/old-3"]
    assert run_release("0.1.0", CHANGE_GROUPS, tmp_path) == f"1302 {seen}\n"
    assert manager.list_reader_groups("s") == seen
    assert manager.delete_reader_group("s/old-1")
    assert not manager.delete_reader_group("s/old-0")
    manager.create_reader_group("s/old-0", ["s/t"])
    after = ["s/new-1", "s/new-2", "s/old-0", "s/old-2", "s/old-3"]
    assert manager.list_reader_groups("s") == after
    assert run_release("0.1.0", LIST_GROUPS, tmp_path) == f"{after}\n"
    assert manager.stream_exists("s/old")


READ_COPY = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
print([event.data.decode() for event in manager.read("s/t")], manager.list_streams("s"))
with manager.create_writer("s/t") as writer:
    writer.write_event(b"old", routing_key="k").result()
print([event.data.decode() for event in manager.read("s/t")])
"""


def test_previous_release_reads_and_writes_a_copy_that_was_brought_up_to_date(
    tmp_path: Path,
) -> None:
    manager, copy = StreamManager(tmp_path / "root"), tmp_path / "copy"
    manager.create_scope("s")
    manager.create_stream("s/t")
    for number in range(3):
        with manager.create_writer("s/t") as writer:
            writer.write_event(b"%d" % number, routing_key="k").result()
        manager.backup(copy, update=True)
    found = run_release("0.1.0", READ_COPY, copy)
    assert found == "['0', '1', '2'] ['s/t']\n['0', '1', '2', 'old']\n"
    with pytest.raises(IllegalState, match="the copy was written to since it was made"):
        manager.backup(copy, update=True)


COPY = """
import sys
import pravega_spark
pravega_spark.StreamManager(sys.argv[1]).backup(sys.argv[2])
"""


def test_copy_of_the_previous_release_is_not_brought_up_to_date(tmp_path: Path) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/t")
    run_release("0.1.0", COPY, root, copy)
    with pytest.raises(IllegalState, match="or made by an earlier release"):
        manager.backup(copy, update=True)
    assert StreamManager(copy).list_streams("s") == ["s/t"]


DECIDE = """
import os, sys
import pravega_spark
writer = pravega_spark.StreamManager(sys.argv[1]).create_transactional_writer("s/t")
txn = writer.begin_transaction(lease="10 s")
txn.write_event(b"decided by the old one")
txn.commit(wait=False)
os._exit(0)
"""
CARRY_OUT = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
with manager.create_transactional_writer("s/t") as writer, writer.begin_transaction() as txn:
    txn.write_event(b"old")
print([event.data.decode() for event in manager.read("s/t")])
"""


def test_either_release_carries_out_what_a_dead_process_of_the_other_decided(
    tmp_path: Path,
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    assert run_release("0.1.0", DECIDE, tmp_path) == ""
    runtime = FakeRuntime()
    stream = StreamLog(open_store(str(tmp_path)), "s/t", runtime)
    look_at(stream)
    stream.view()
    runtime.run_later(15)
    killed_after_deciding(stream.store, b"new")
    expected = ["decided by the old one", "new", "old"]
    assert run_release("0.1.0", CARRY_OUT, tmp_path) == f"{expected}\n"


TIMES = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
time = manager.event_time("s/t")
print([(one.lower_us, one.upper_us, str(one.cut)) for one in time.watermarks()])
with manager.create_writer("s/t", writer_id="w") as writer:
    writer.write_event(b"old").result()
    writer.note_time(1_000_000).result()
    print(time.update().watermark.lower_us)
"""


def test_previous_release_goes_on_from_the_watermarks_that_writers_record(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    runtime = FakeRuntime()
    store = open_store(str(tmp_path))
    with EventStreamWriter(StreamLog(store, "s/t", runtime), "w") as writer:
        for second in range(1, 8):
            writer.write_event(b"new").result()
            writer.note_time(1_000 * second).result()
            runtime.sleep(5)
    ours = manager.event_time("s/t").watermarks()
    recorded = [one.lower_us for one in ours if one.version is not None]
    assert len(recorded) == 3
    theirs, updated = run_release("0.1.0", TIMES, tmp_path).splitlines()
    assert theirs == str([(one.lower_us, one.upper_us, str(one.cut)) for one in ours])
    assert int(updated) == 1_000_000_000
    after = manager.event_time("s/t").watermarks()
    assert [one.lower_us for one in after if one.version is not None][:3] == recorded
    assert after[-1].lower_us == 1_000_000_000
    assert [one.damage for one in check_root(store, deep=True) if one.damage] == []


SET_UP = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
print(manager.settings().summary())
print(manager.stream_settings("s/off").summary(["maintain"]))
with manager.create_writer("s/off") as writer:
    writer.write_event(b"old", routing_key="k").result()
manager.update_stream("s/off", settings={"grace": "2 hours"})
print(manager.maintain().failures, manager.update_settings(grace="3 hours").summary())
manager.backup(sys.argv[2])
copy = pravega_spark.StreamManager(sys.argv[2])
print(copy.settings().summary(), copy.restore().failed)
"""


def test_previous_release_opens_a_root_whose_applications_maintain_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    root = tmp_path / "root"
    manager = StreamManager(root, maintain="off")
    manager.create_scope("s")
    manager.create_stream("s/off", StreamConfiguration(settings={"maintain": "off"}))
    assert run_release("0.1.0", SET_UP, root, tmp_path / "copy").splitlines() == [
        "maintain=auto (root)",
        "maintain=off (stream)",
        "{} grace=3 hours (root), maintain=auto (root)",
        "grace=3 hours (root) {}",
    ]
    kept = StreamManager(root, maintain="off")
    assert kept.settings().summary() == "grace=3 hours (root)"
    assert kept.settings().origin("maintain") is SettingOrigin.SET_UP
    given = kept.stream_info("s/off").configuration.settings
    assert given == {"maintain": "off", "grace": 7_200_000}
    assert [found.damage for found in check_root(open_store(str(root))) if found.damage] == []
    assert StreamManager(tmp_path / "copy").settings().maintain == "off"


BESIDE_STATE_FILES = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
with manager.create_writer("s/t") as writer:
    for number in range(257):
        writer.write_event(b"old", routing_key="k").result()
print(sum(event.data == b"new" for event in manager.read("s/t")), manager.sweep_stream("s/t").files)
"""


@pytest.mark.medium
def test_state_files_of_both_releases_serve_both(tmp_path: Path) -> None:
    """Ours tell sweeps what their commits removed; those of 0.1.0 do not, and leave it out."""
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        for _ in range(4):
            writer.write_event(b"new", routing_key="k").result()
    manager.truncate_stream("s/t", manager.create_reader("s/t").next_cut(manager.head("s/t"), 1))
    stream = open_stream(open_store(tmp_path), "s/t")
    log = stream.log
    maintain(log.reader, stream.view().version)
    ours = log.reader.state(log.reader.hint().state)
    assert ours is not None
    assert ours.passed is not None
    assert len(ours.passed.removed) == 1
    assert run_release("0.1.0", BESIDE_STATE_FILES, tmp_path) == "3 0\n"
    theirs = log.reader.state(log.reader.hint().state)
    assert theirs is not None
    assert theirs.version > ours.version
    assert theirs.passed is None
    (pending,) = manager.sweep_stream("s/t", dry_run=True).pending
    assert pending.files == 1
    manager.sweep_stream("s/t")
    assert manager.sweep_stream("s/t", retain=0, grace=0).files == 1
    assert sum(1 for _ in manager.read("s/t")) == 3 + 257
    assert [found.damage for found in check_root(open_store(tmp_path)) if found.damage] == []
