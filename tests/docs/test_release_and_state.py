"""Processes of release 0.1.0 beside code that writes parts of a state, and moves old records."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from pravega_spark import StreamManager
from pravega_spark.config.root_settings import EffectiveSettings
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.integrity.root_integrity import check_root
from pravega_spark.manager import root_of
from tests.harness.releases import run_release, start_release

STREAM = "s/t"

WRITE = """
import sys
import pravega_spark
from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.integrity.root_integrity import check_root
root, copy, what = sys.argv[1:]
manager = pravega_spark.StreamManager(root)
with manager.create_writer("s/t", writer_id="mine") as writer:
    print(writer.last_event_number)
    for number in range(5):
        writer.write_event(b"old %d" % number, routing_key="k").result()
stream = StreamLog(manager._store, "s/t")
version = stream.view().version
if what == "state":
    checkpointing.maintain(stream.log.reader, version, checkpoint=True)
else:
    checkpointing.maintain(stream.log.reader, version)  # none is due
damage = [d for found in check_root(manager._store) for d in found.damage]
print(len(list(manager.read("s/t"))), damage)
manager.sweep_stream("s/t", grace=0)
manager.backup(copy)
restored = pravega_spark.StreamManager(copy)
restored.restore()
print(len(list(restored.read("s/t"))))
"""


def _write(manager: StreamManager, number: int) -> StreamLog:
    """Write by this code, which keeps the state up after each few commits."""
    stream = StreamLog(root_of(manager).store, STREAM)
    for _ in range(number):
        with manager.create_writer(STREAM, writer_id="mine") as writer:
            writer.write_event(b"new", routing_key="k").result()
        known = stream.view().snapshot
        checkpoint.maintain(stream.log.reader, known.version, known=known)
    return stream


@pytest.mark.medium
def test_release_reads_writes_sweeps_and_copies_beside_parts(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream(STREAM)
    ids: dict[str, str | None] = {f"pravega.writer.{n}": "[1,1,1]" for n in range(2_000)}
    StreamLog(root_of(manager).store, STREAM).commit(
        lambda view: (Body("TEST", domains=ids), None), life=1
    )
    stream = _write(manager, 5)
    reader = stream.log.reader
    assert reader.hint().parts
    before = reader.hint()

    output = run_release("0.1.0", WRITE, tmp_path / "root", tmp_path / "first", "none")
    assert output == "5\n10 []\n10\n"
    assert reader.hint() == before, "0.1.0 wrote no state file, and kept what the hint names"
    assert _write(manager, 3).view().writer("mine").last == 13  # type: ignore[union-attr]
    assert reader.hint().parts

    output = run_release("0.1.0", WRITE, tmp_path / "root", tmp_path / "second", "state")
    assert output == "13\n18 []\n18\n"
    assert reader.hint().parts == (), "its own state file is behind all of them"
    assert _write(manager, 2).view().writer("mine").last == 20  # type: ignore[union-attr]
    assert reader.hint().parts

    fresh = StreamManager(tmp_path / "root")
    assert len(list(fresh.read(STREAM))) == 20
    assert [
        found.damage for found in check_root(open_store(tmp_path / "root")) if found.damage
    ] == []


def test_copy_brings_the_parts_and_a_restore_drops_those_of_lost_versions(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream(STREAM)
    ids: dict[str, str | None] = {f"pravega.writer.{n}": "[1,1,1]" for n in range(2_000)}
    StreamLog(root_of(manager).store, STREAM).commit(
        lambda view: (Body("TEST", domains=ids), None), life=1
    )
    _write(manager, 5)
    manager.backup(tmp_path / "copy")
    copied = StreamLog(open_store(tmp_path / "copy"), STREAM).log.reader
    assert copied.hint().parts
    copy = StreamManager(tmp_path / "copy")
    lost = _write(copy, 1).view().version
    assert copied.hint().newest == lost
    newest = max((tmp_path / "copy/s/t/events/data").rglob("*.parquet"), key=_written)
    newest.unlink()
    copy.restore()
    assert [event.data for event in copy.read(STREAM)] == [b"new"] * 5
    view = StreamLog(open_store(tmp_path / "copy"), STREAM).view()
    assert view.writer("mine").last == 5  # type: ignore[union-attr]
    assert all(span.version < lost for span in copied.spans())
    assert _write(copy, 3).view().writer("mine").last == 8  # type: ignore[union-attr]


RACE = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
with manager.create_writer("s/t", writer_id="old") as writer:
    for number in range(160):
        writer.write_event(b"old %d" % number, routing_key="k").result()
print(writer.last_event_number)
"""


@pytest.mark.medium
def test_release_races_with_writers_that_keep_a_large_state(tmp_path: Path) -> None:
    """Whoever commits the 256th version keeps the state up, and it stays that of the commits."""
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(STREAM)
    ids: dict[str, str | None] = {f"pravega.writer.{n}": "[1,1,1]" for n in range(6_000)}
    stream = StreamLog(root_of(manager).store, STREAM)
    stream.commit(lambda view: (Body("TEST", domains=ids), None), life=1)
    checkpoint.maintain(stream.log.reader, stream.view().version)
    process = start_release("0.1.0", RACE, tmp_path)
    with manager.create_writer(STREAM, writer_id="new") as writer:
        for number in range(160):
            writer.write_event(b"new %d" % number, routing_key="k").result()
            if number % 60 == 0:
                known = StreamLog(open_store(tmp_path), STREAM).view()
                assert len(list(known.snapshot.names("pravega.writer."))) >= 6_000
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (0, "160\n"), errors
    for _ in range(2):
        _write(manager, 1)
    fresh = StreamLog(open_store(tmp_path), STREAM)
    state = fresh.view().snapshot
    assert fresh.log.reader.hint().parts
    for entry in fresh.store.list(f"{fresh.path}/_pravega"):
        fresh.store.delete([entry.key])
    assert StreamLog(open_store(tmp_path), STREAM).view().snapshot == state
    assert len(list(StreamManager(tmp_path).read(STREAM))) == 322


RETURN = """
import sys
import time
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
stays = manager.create_writer("s/t", writer_id="stays")
stays.write_event(b"0", routing_key="k").result()
print("ready", flush=True)
sys.stdin.readline()
with manager.create_writer("s/t", writer_id="comes-back") as writer:
    print(writer.last_event_number)
    writer.write_event(b"2", routing_key="k").result()
try:
    stays.write_event(b"1", routing_key="k").result()
except pravega_spark.errors.WriterForgotten:
    with manager.create_writer("s/t", writer_id="stays") as again:
        print("forgotten", again.last_event_number)
"""


def test_release_continues_a_writer_whose_record_left_the_state_by_the_setting(
    tmp_path: Path,
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(STREAM)
    with manager.create_writer(STREAM, writer_id="comes-back") as writer:
        writer.write_event(b"0", routing_key="k").result()
        writer.write_event(b"1", routing_key="k").result()
    process = start_release("0.1.0", RETURN, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(3):
        with manager.create_writer(STREAM) as other:
            other.write_event(b"x", routing_key="k").result()
    manager.update_settings(keep_records="1 minute")
    with patch.object(EffectiveSettings, "records_ms", lambda settings: 0):
        manager.sweep_stream(STREAM, grace=0, retain=0)
    view = StreamLog(root_of(manager).store, STREAM).view()
    assert view.writer("comes-back") is None
    assert view.writer("stays") is None
    output, errors = process.communicate("go on\n", timeout=120)
    assert process.returncode == 0, errors
    assert output == "2\nforgotten 1\n"


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns
