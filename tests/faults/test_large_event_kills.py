"""Processes that are killed while they write large events, and damage that a kill may leave."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import StoreFull
from pravega_spark.manager import root_of
from tests.harness import failpoints
from tests.harness.large_event_processes import KEYS, STREAM, key_of, payload
from tests.harness.large_streams import objects, retained_versions
from tests.harness.warm_children import WarmChild

EVENTS = 7


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
    return manager


def run(root: Path, kind: str, crash: str = "") -> int:
    given = filter(None, [str(root), str(EVENTS), kind])
    return WarmChild("tests.harness.large_event_processes", *given, crash=crash).wait(240)


def check(manager: StreamManager) -> None:
    """Each event is there once, in order by key; each retained version has its objects."""
    found: dict[str, list[bytes]] = {key: [] for key in KEYS}
    for event in manager.read(STREAM):
        assert event.routing_key is not None
        found[event.routing_key].append(event.data)
    for key in KEYS:
        numbers = [n for n in range(1, EVENTS + 1) if key_of(n) == key]
        assert found[key] == [payload(n) for n in numbers], key
    retained_versions(open_stream(root_of(manager).store, STREAM))


@pytest.mark.parametrize(
    ("kind", "crash"),
    [
        ("", "large.piece:3"),
        ("", "large.piece:12"),
        ("", "large.object"),
        ("", "large.object:2"),
        ("", "large.chunk"),
        ("", "append.staged:2"),
        ("", "append.staged:3"),
        ("transactions", "large.piece:3"),
        ("transactions", "large.object"),
        ("transactions", "large.chunk:2"),
        ("transactions", "txn.deciding"),
        ("transactions", "txn.decided"),
        ("transactions", "txn.committed"),
    ],
)
def test_a_killed_writer_loses_and_repeats_nothing(
    manager: StreamManager, tmp_path: Path, kind: str, crash: str
) -> None:
    assert run(tmp_path, kind, crash) == -signal.SIGKILL, "the failpoint is reached"
    retained_versions(open_stream(root_of(manager).store, STREAM))
    assert run(tmp_path, kind) == 0
    manager.sweep_transactions(STREAM)
    check(manager)
    live = {
        key
        for v in retained_versions(open_stream(root_of(manager).store, STREAM))
        for key in v.named
    }
    assert len(live) == EVENTS // 3
    left = objects(root_of(manager).store, STREAM) - live
    if crash in ("large.object", "large.chunk"):
        assert left or kind, "the payload of the killed process is stored, and named by no commit"


def test_a_failed_rename_leaves_neither_object_nor_event(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with manager.create_writer(STREAM, large_events=True) as writer:

        def full() -> None:
            raise StoreFull("no space", url="here")

        failpoints.register("large.piece", full)
        try:
            with pytest.raises(StoreFull):
                writer.write_event(payload(3), "a")
        finally:
            failpoints.register("large.piece", None)
        assert objects(root_of(manager).store, STREAM) == set()
        writer.write_event(payload(3), "a").result()
    (event,) = manager.read(STREAM)
    assert event.data == payload(3)
