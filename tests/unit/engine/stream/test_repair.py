"""A stream that a killed process left half made is repaired by those who use it.

Those who only look find that it never began, or was lost, and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.repair import existing_view, repair, repaired
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.errors import CorruptLog, NoSuchScope, NoSuchStream, RootChanged, StoreReadOnly
from pravega_spark.manager import StreamManager
from pravega_spark.spark.source import PravegaDataSource
from tests.harness.failpoints import at_failpoint
from tests.harness.folder_state import remove, wait_for_maintenance
from tests.harness.simulated_kills import Killed, kill
from tests.harness.spy_store import Spy

TWO = StreamConfiguration(ScalingPolicy.fixed(2))


@pytest.fixture(autouse=True)
def no_creator_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who find no log wait only a moment for its creator: there is none."""
    monkeypatch.setattr(lifecycle, "_PAUSES_S", (0.001,))


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with a scope whose stream ``s/t`` was left half made by its creator."""
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    with at_failpoint("create.row", kill), pytest.raises(Killed):
        manager.create_stream("s/t", TWO)
    return manager.root


def read_batch(root: str) -> list[Any]:
    source = PravegaDataSource({"root": root, "path": "s/t"})
    return list(source.reader(source.schema()).partitions())


def read_stream(root: str) -> Any:
    given = {"root": root, "path": "s/t", "startingoffsets": "earliest"}
    source = PravegaDataSource(given)
    return source.streamReader(source.schema()).initialOffset()


def read_metadata(root: str) -> Any:
    source = PravegaDataSource({"root": root, "path": "s/t", "metadata": "segments"})
    reader = source.reader(source.schema())
    return [row for partition in reader.partitions() for row in reader.read(partition)]


def write(root: str) -> Any:
    source = PravegaDataSource({"root": root, "path": "s/t"})
    return source.writer(StructType([StructField("event", BinaryType())]), overwrite=False)


def write_event(root: str) -> Any:
    with StreamManager(root).create_writer("s/t") as writer:
        return writer.write_event(b"x").result()


USES: dict[str, Callable[[str], Any]] = {
    "write": write,
    "writer": write_event,
    "create": lambda root: StreamManager(root).create_stream("s/t"),
    "update": lambda root: StreamManager(root).update_stream("s/t", TWO),
    "subscribe": lambda root: StreamManager(root).subscribe("s/t", "name"),
}
LOOKS: dict[str, Callable[[str], Any]] = {
    "batch": read_batch,
    "micro-batches": read_stream,
    "metadata": read_metadata,
    "lag": lambda root: StreamManager(root).stream("s/t").subscribers(),
    "reader": lambda root: list(StreamManager(root).create_reader("s/t").events()),
    "group": lambda root: StreamManager(root).create_reader_group("s/g", ["s/t"]),
    "info": lambda root: StreamManager(root).stream("s/t").info(),
    "exists": lambda root: StreamManager(root).stream_exists("s/t"),
    "cuts": lambda root: StreamManager(root).tail("s/t"),
    "sweep": lambda root: StreamManager(root).stream("s/t").sweep(),
    "read": lambda root: list(StreamManager(root).read("s/t")),
}


@pytest.mark.parametrize("call", USES.values(), ids=USES)
def test_any_first_use_finds_the_stream_with_the_configuration_of_its_creator(
    root: str, call: Callable[[str], Any]
) -> None:
    call(root)
    assert open_stream(root, "s/t").view().record.configuration == TWO


@pytest.mark.parametrize("call", LOOKS.values(), ids=LOOKS)
def test_no_look_begins_the_stream(root: str, tmp_path: Path, call: Callable[[str], Any]) -> None:
    """Its folder may be away: then what is written there would be in the way of it."""
    with pytest.raises(CorruptLog, match="stream s/t has lost its log, or its creation was killed"):
        call(root)
    assert not (tmp_path / "s/t").exists()
    write_event(root)
    call(root)


def test_maintenance_begins_no_stream(root: str) -> None:
    """The folder may be away. What uses the stream ends its creation."""
    (error,) = StreamManager(root).maintain(kinds=["retention"]).failures.values()
    assert "has lost its log, or its creation was killed" in error
    with pytest.raises(NoSuchStream):
        open_stream(root, "s/t").view()
    write_event(root)
    assert not StreamManager(root).maintain(kinds=["retention"]).failures


def test_work_on_a_stream_that_exists_costs_no_more_than_the_work(root: str) -> None:
    StreamManager(root).create_stream("s/u")
    costs = []
    for look in (StreamLog.view, StreamLog.view, existing_view):  # the first leaves a state file
        store = Spy(LocalStore(root.removeprefix("file://")))
        look(StreamLog(store, "s/u", SYSTEM))
        costs.append(list(store.calls))
        wait_for_maintenance()
    assert costs[1] == costs[2]


def test_stream_without_row_is_reported_as_missing(root: str) -> None:
    with pytest.raises(NoSuchStream) as missing:
        existing_view(open_stream(root, "s/none"))
    assert missing.value.stream == "s/none"
    with pytest.raises(NoSuchStream):
        existing_view(open_stream(root, "none/t"))
    with pytest.raises(NoSuchScope):
        repair(open_stream(root, "none/t"))


def test_caller_that_may_not_write_finds_no_stream(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreReadOnly("read only")

    monkeypatch.setattr("pravega_spark.engine.stream.lifecycle.create", refuse)
    with pytest.raises(NoSuchStream):
        existing_view(open_stream(root, "s/t"))


def test_row_that_a_killed_deletion_left_is_dropped(root: str) -> None:
    manager = StreamManager(root)
    manager.seal_stream("s/t")
    with at_failpoint("delete.row", kill), pytest.raises(Killed):
        manager.delete_stream("s/t")
    assert manager.list_streams("s") == ["s/t"]
    with pytest.raises(NoSuchStream):
        existing_view(open_stream(root, "s/t"))
    assert manager.list_streams("s") == []


def test_error_of_the_work_itself_is_raised_once(root: str) -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        repaired(open_stream(root, "s/t"), work)
    assert len(calls) == 1


LOST_CALLS: dict[str, Callable[[str], Any]] = {
    **USES,
    **LOOKS,
    "create": lambda root: StreamManager(root).create_stream("s/t", TWO),
    "delete": lambda root: StreamManager(root).delete_stream("s/t"),
    "sweep": lambda root: StreamManager(root).sweep_stream("s/t", grace=0),
    "writer": lambda root: StreamManager(root).create_writer("s/t"),
}


@pytest.mark.parametrize("lost", ["events/_delta_log", "events"])
@pytest.mark.parametrize("call", LOST_CALLS.values(), ids=LOST_CALLS)
def test_stream_that_lost_its_log_is_not_created_again(
    tmp_path: Path, lost: str, call: Callable[[str], Any]
) -> None:
    stream = lost_stream(tmp_path, lost)
    kept = files(stream)
    other = str(stream.parents[1])
    with pytest.raises(CorruptLog, match=r"s/t has lost its log.*restore_stream; or delete"):
        call(other)
    assert files(stream) == kept
    if call is LOST_CALLS["update"]:  # the advice of the error works
        remove(stream)
        call(other)
        assert not StreamManager(other).stream_info("s/t").events


@pytest.mark.parametrize("call", LOST_CALLS.values(), ids=LOST_CALLS)
def test_each_call_notices_that_the_log_of_an_open_stream_was_removed(
    tmp_path: Path, call: Callable[[str], Any]
) -> None:
    root = str(tmp_path / "root")
    with StreamManager(root) as manager:
        manager.create_scope("s")
        manager.create_stream("s/t", TWO)
        with manager.create_writer("s/t") as writer:
            writer.write_event(b"x", routing_key="k").result()
            wait_for_maintenance()
            remove(tmp_path / "root/s/t/events/_delta_log")
            kept = files(tmp_path / "root/s/t")
            with pytest.raises(CorruptLog, match=r"does not exist any more.*Restore it from"):
                call(root)
            late = writer.write_event(b"y", routing_key="k")
            # CorruptLog, if the work in the background has found the loss before
            with pytest.raises((RootChanged, CorruptLog), match=r"does not exist|has lost its log"):
                late.result()
    left = files(tmp_path / "root/s/t")
    assert {path: left.get(path) for path in kept} == kept
    assert not [path for path in left if "_delta_log" in path.parts]


def lost_stream(root: Path, lost: str) -> Path:
    """Make a stream with events and a transaction, lose a part of it, and return its folder."""
    with StreamManager(root / "first") as manager:
        manager.create_scope("s")
        manager.create_stream("s/t", TWO)
        with manager.create_writer("s/t") as writer:
            writer.write_events([b"x"], routing_key="k").result()
        transaction = manager.create_transactional_writer("s/t").begin_transaction()
        transaction.write_event(b"y", routing_key="k")
        transaction.flush()
    (root / "first").rename(root / "second")
    remove(root / "second/s/t" / lost)
    return root / "second/s/t"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_of_several_that_wait_for_a_slow_creator_one_says_that_it_went_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody was killed, and the line does not say so."""
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    late = iter(["second", "third"])

    def create_also() -> None:
        if next(late, None):
            with at_failpoint("create.drawn", create_also):
                StreamManager(open_store(str(tmp_path)).url).create_stream("s/t", TWO)

    with at_failpoint("create.row", create_also):
        manager.create_stream("s/t", TWO)
    said = [r.getMessage() for r in caplog.records if "its creation was killed" in r.getMessage()]
    assert len(said) == 1
    assert "its creation was killed or takes longer, or its folder was lost" in said[0]
    assert open_stream(manager.root, "s/t").view().record.configuration == TWO
