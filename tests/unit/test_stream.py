"""Stream: the handle costs nothing, travels, and its verbs are the manager's."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pravega_spark.errors import InvalidInput, InvalidName, NoSuchScope, NoSuchStream, RootChanged
from pravega_spark.manager import StreamManager, manager_over
from pravega_spark.stream import Stream
from pravega_spark.values.segments import EventPointer, KeyRange, SegmentInfo
from tests.harness.folder_state import remove
from tests.harness.spy_store import Spy

OWN_NAMES = {
    "create": "create_stream",
    "restore": "restore_stream",
    "exists": "stream_exists",
    "info": "stream_info",
    "update": "update_stream",
    "settings": "stream_settings",
    "storage": "stream_storage",
    "seal": "seal_stream",
    "delete": "delete_stream",
    "truncate": "truncate_stream",
    "sweep": "sweep_stream",
    "compact": "compact_stream",
    "scale": "scale_stream",
    "subscribers": "list_subscribers",
    "saved_cuts": "list_saved_cuts",
    "transactions": "list_transactions",
    "completed_transactions": "list_completed_transactions",
}
"""Verbs whose name on StreamManager is another one, mostly Pravega's."""


def verbs() -> dict[str, str]:
    """Each verb of Stream, with its name on StreamManager."""
    found = inspect.getmembers(Stream, inspect.isfunction)
    return {name: OWN_NAMES.get(name, name) for name, _ in found if not name.startswith("_")}


@pytest.mark.parametrize(("verb", "name"), verbs().items())
def test_manager_calls_the_verb_with_all_its_arguments(verb: str, name: str) -> None:
    manager = StreamManager("memory://stream-verbs")
    mine = inspect.signature(getattr(Stream, verb))
    theirs = inspect.signature(getattr(StreamManager, name))
    arguments: dict[str, Any] = {p: object() for p in list(mine.parameters)[1:]}
    is_by_pointer = "pointer" in arguments
    if is_by_pointer:
        arguments["pointer"] = EventPointer("s/t", 1, 0, 5)
    named = {} if is_by_pointer else {"stream": "s/t"}
    with patch.object(Stream, verb, autospec=True, return_value="its result") as called:
        assert getattr(manager, name)(**named, **arguments) == "its result"
    (stream, *positional), by_name = called.call_args
    assert stream.name == "s/t"
    bound = mine.bind(stream, *positional, **by_name).arguments
    assert {p: value for p, value in bound.items() if p != "self"} == arguments
    assert mine.return_annotation == theirs.return_annotation
    for parameter in arguments:
        assert mine.parameters[parameter] == theirs.parameters[parameter]
    help_text = getattr(StreamManager, name).__doc__ or ""
    assert is_by_pointer or help_text == getattr(Stream, verb).__doc__


def test_making_a_handle_asks_no_storage() -> None:
    store = Spy()
    manager = manager_over(store)
    handle = manager.stream("none/yet")
    assert repr(handle) == f"Stream('none/yet', root={store.url!r})"
    assert handle.name == "none/yet"
    assert store.calls == []
    with pytest.raises(InvalidName):
        manager.stream("no-slash")


def test_handle_works_as_the_manager_does_and_travels(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    stream = manager.stream("s/t")
    assert not stream.exists()
    with pytest.raises(NoSuchStream):
        stream.info()
    with pytest.raises(NoSuchScope):
        manager.stream("none/t").info()
    manager.create_stream("s/t")
    with stream.create_writer() as writer:
        writer.write_events([b"a", b"bc"])
    there: Stream = pickle.loads(pickle.dumps(stream))
    assert there.info() == stream.info() == manager.stream_info("s/t")
    assert [event.data for event in there.read()] == [b"a", b"bc"]
    created_ms = there.info().created_ms
    whole = KeyRange(0.0, 1.0)
    assert there.segment(0) == SegmentInfo(0, 2, 3, key_range=whole, created_ms=created_ms)
    assert there.seal()
    assert there.segment(0).is_sealed
    assert there.delete()
    assert not stream.exists()


def test_handle_of_a_root_that_was_replaced_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    stream = StreamManager(root).stream("s/t")
    StreamManager(root).create_scope("s")
    StreamManager(root).create_stream("s/t")
    stream.info()
    pickled = pickle.dumps(stream)
    remove(root)
    StreamManager(root).create_scope("s")
    with pytest.raises(RootChanged):
        pickle.loads(pickled)
    with pytest.raises(RootChanged):
        stream.info()


@pytest.mark.parametrize("given", ["false", "no", 1, None])
def test_only_true_passes_subscribers(given: Any) -> None:
    manager = StreamManager(f"memory://only-true-{given}")
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"kept").result(30)
    stream = manager.stream("s/t")
    with pytest.raises(InvalidInput, match="past_subscribers is True or False"):
        stream.truncate(stream.tail(), past_subscribers=given)
    assert [event.data for event in stream.read()] == [b"kept"]


def test_segments_are_named_by_id_text_or_number_and_by_nothing_else() -> None:
    manager = StreamManager("memory://named-segments")
    manager.create_scope("s")
    manager.create_stream("s/t")
    stream = manager.stream("s/t")
    assert stream.segment(0) == stream.segment("0#0") == manager.segment("s/t", "0#0")
    assert stream.successors("0#0") == ()
    for wrong in (None, 1.5, True, [0], -1, "x"):
        with pytest.raises(InvalidInput, match="segment"):
            stream.segment(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="segment"):
            stream.successors(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [float("nan"), "5 s", [1], True])
def test_following_with_what_is_no_timeout_is_refused(timeout: Any) -> None:
    manager = StreamManager(f"memory://timeout-{timeout}")
    manager.create_scope("s")
    manager.create_stream("s/t")
    with pytest.raises(InvalidInput, match="timeout of follow"):
        manager.stream("s/t").follow(timeout=timeout)
