"""Saved cuts: names for positions, in the log of their stream."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pravega_spark.engine.stream import saved_cuts
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import (
    ConfigMismatch,
    IllegalState,
    InvalidName,
    InvalidStreamCut,
    NoSuchCut,
    NoSuchStream,
    TruncatedData,
)
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.values.segments import StreamCut
from tests.harness.drawn_lives import DRAWN
from tests.harness.small_streams import scale, write

_roots = itertools.count()


@pytest.fixture
def manager() -> StreamManager:
    """A root with a stream of one segment and ten events."""
    made = StreamManager(f"memory://saved-cuts-{next(_roots)}")
    made.create_scope("s")
    made.create_stream("s/a")
    write(open_stream(root_of(made).store, "s/a"), [("k", b"12345")] * 10)
    return made


def test_a_saved_cut_is_found_by_its_name_in_every_process(manager: StreamManager) -> None:
    tail = manager.save_cut("s/a", "tail")
    fourth = manager.save_cut("s/a", "fourth", "s/a@1:0#0=4")
    assert (tail.cut, fourth.cut) == (manager.tail("s/a"), StreamCut("s/a", 1, {0: 4}))
    assert fourth.version == manager.stream_info("s/a").version
    other = StreamManager(manager.root)
    assert other.list_saved_cuts("s/a") == [fourth, tail]
    assert other.saved_cut("s/a", "fourth") == fourth
    assert len(list(other.read("s/a", other.saved_cut("s/a", "fourth").cut))) == 6
    with pytest.raises(NoSuchCut, match="it has fourth, tail") as raised:
        other.saved_cut("s/a", "fifth")
    assert (raised.value.stream, raised.value.name) == ("s/a", "fifth")


def test_a_name_keeps_its_cut_unless_it_is_replaced(manager: StreamManager) -> None:
    first = manager.save_cut("s/a", "mark", "earliest")
    version = manager.stream_info("s/a").version
    assert manager.save_cut("s/a", "mark", "earliest") == first
    assert manager.stream_info("s/a").version == version, "nothing is committed"
    with pytest.raises(ConfigMismatch, match="choose another name"):
        manager.save_cut("s/a", "mark")
    assert manager.saved_cut("s/a", "mark") == first
    assert manager.save_cut("s/a", "mark", replace=True).cut == manager.tail("s/a")


def test_a_deleted_name_is_free_again(manager: StreamManager) -> None:
    manager.save_cut("s/a", "mark", "earliest")
    assert manager.delete_cut("s/a", "mark")
    assert not manager.delete_cut("s/a", "mark")
    assert manager.list_saved_cuts("s/a") == []
    assert manager.save_cut("s/a", "mark").cut == manager.tail("s/a")


def test_what_is_no_position_or_no_name_is_not_saved(manager: StreamManager) -> None:
    manager.truncate_stream("s/a", "s/a@1:0#0=3")
    for name in ("earliest", "latest", "start", "end", "-5", "a b", "", "s/a@1:0#0=1", 5):
        with pytest.raises(InvalidName):
            manager.save_cut("s/a", name)  # type: ignore[arg-type]
    with pytest.raises(InvalidStreamCut):
        manager.save_cut("s/a", "mark", "s/a@1:0#0=11")
    with pytest.raises(TruncatedData):
        manager.save_cut("s/a", "mark", "s/a@1:0#0=2")
    with pytest.raises(NoSuchStream):
        manager.save_cut("s/none", "mark")
    assert manager.list_saved_cuts("s/a") == []


def test_a_stream_has_no_more_saved_cuts_than_the_limit(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_cuts, "MAX_SAVED_CUTS", 2)
    for name in ("one", "two"):
        manager.save_cut("s/a", name)
    with pytest.raises(IllegalState, match="delete one first"):
        manager.save_cut("s/a", "three")
    manager.save_cut("s/a", "two", "earliest", replace=True)
    manager.delete_cut("s/a", "one")
    manager.save_cut("s/a", "three")


def test_a_saved_cut_holds_no_data(manager: StreamManager) -> None:
    saved = manager.save_cut("s/a", "mark", "s/a@1:0#0=2")
    scale(open_stream(root_of(manager).store, "s/a"), [0], [(0.0, 0.5), (0.5, 1.0)])
    manager.truncate_stream("s/a", manager.tail("s/a"))
    assert manager.saved_cut("s/a", "mark") == saved
    with pytest.raises(TruncatedData):
        list(manager.read("s/a", saved.cut))


def test_a_sealed_stream_takes_cuts_and_a_deletion_removes_them(manager: StreamManager) -> None:
    manager.seal_stream("s/a")
    manager.save_cut("s/a", "mark")
    manager.delete_stream("s/a")
    with pytest.raises(NoSuchStream):
        manager.list_saved_cuts("s/a")
    manager.create_stream("s/a")
    assert manager.list_saved_cuts("s/a") == []


def test_a_restored_copy_keeps_saved_cuts_for_its_life(
    manager: StreamManager, tmp_path: Path
) -> None:
    manager.save_cut("s/a", "mark", "s/a@1:0#0=4")
    manager.backup(tmp_path / "copy")
    copy = StreamManager(tmp_path / "copy")
    copy.restore()
    cut = copy.saved_cut("s/a", "mark").cut
    assert cut.life == copy.stream_info("s/a").life > DRAWN
    assert len(list(copy.read("s/a", cut))) == 6
