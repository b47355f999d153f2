"""The cut of a version: what a reader of the Delta table has seen, as a position in the stream."""

from __future__ import annotations

import itertools

import pytest

from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidInput, TruncatedData
from pravega_spark.manager import StreamManager, root_of
from tests.harness.small_streams import scale, write

_roots = itertools.count()


@pytest.fixture
def manager() -> StreamManager:
    """A root with a stream of one segment."""
    made = StreamManager(f"memory://past-cuts-{next(_roots)}")
    made.create_scope("s")
    made.create_stream("s/a")
    return made


def test_the_cut_of_each_version_is_the_tail_that_it_had(manager: StreamManager) -> None:
    stream = open_stream(root_of(manager).store, "s/a")
    tails = {manager.stream_info("s/a").version: manager.tail("s/a")}
    for n in range(6):
        if n == 3:
            scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
        else:
            write(stream, [(f"k{m}", b"12345") for m in range(n + 1)])
        tails[manager.stream_info("s/a").version] = manager.tail("s/a")
    assert len(tails) == 7
    other = StreamManager(manager.root)
    assert {version: other.cut_at("s/a", version) for version in tails} == tails
    third = sorted(tails)[3]
    assert len(list(other.read("s/a", other.cut_at("s/a", third)))) == 5 + 6


def test_a_version_that_is_not_there_is_refused(manager: StreamManager) -> None:
    newest = manager.stream_info("s/a").version
    with pytest.raises(InvalidInput, match=f"version {newest + 1} .* the newest one is {newest}"):
        manager.cut_at("s/a", newest + 1)
    with pytest.raises(InvalidInput, match="a whole number, got '3'"):
        manager.cut_at("s/a", "3")  # type: ignore[arg-type]
    with pytest.raises(TruncatedData, match=r"version -1 of stream s/a is not retained"):
        manager.cut_at("s/a", -1)
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    manager.create_stream("s/a")
    with pytest.raises(TruncatedData, match=f"version {newest} of stream s/a is not retained"):
        manager.cut_at("s/a", newest)


def test_a_version_that_a_sweep_has_dropped_is_not_retained(manager: StreamManager) -> None:
    stream = open_stream(root_of(manager).store, "s/a")
    for _ in range(5):
        write(stream, [("k", b"12345")])
    old = stream.view().version
    write(stream, [("k", b"12345")])
    manager.sweep_stream("s/a", grace=0, retain=0)
    with pytest.raises(TruncatedData, match=f"version {old} .*are. Give a later one") as caught:
        manager.cut_at("s/a", old)
    assert caught.value.head == manager.head("s/a")
