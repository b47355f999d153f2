"""Reader groups of many streams, and names by a pattern: what a distant store is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store import open_store, opening
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import InvalidOption
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.manager import StreamManager
from pravega_spark.spark.groups.query_reader_group import QueryMembership
from pravega_spark.spark.read.discovery import matching_streams
from pravega_spark.spark.settings import read_settings
from pravega_spark.spark.source_offsets import StreamOffsets, decode, present
from pravega_spark.spark.versions import ReadAllAvailable
from pravega_spark.values.limits import CHECK_THREADS
from pravega_spark.values.segments import StreamCut
from tests.harness.distant_store import Distant
from tests.harness.tiers import sized

ONE = StreamConfiguration(ScalingPolicy.fixed(1))
Process = Callable[[str], Distant]


@pytest.fixture
def process(root: str, monkeypatch: pytest.MonkeyPatch) -> Process:
    """Return a function that forgets all, as a new process does; it takes the keys that count."""

    def begin(prefix: str) -> Distant:
        distant = Distant(root, prefix)
        monkeypatch.setattr(opening, "_open", lambda address, options: distant)
        return distant

    return begin


def streams(root: str, count: int) -> tuple[str, ...]:
    names = tuple(f"s/n{number:03}" for number in range(count))
    store = open_store(root)
    for name in names:
        lifecycle.create(StreamLog(store, name), 1, ONE)
    return names


def begun(root: str, names: tuple[str, ...], **options: str) -> tuple[Any, StreamOffsets]:
    """Return the reader of a query without a group, and its first offset."""
    from pravega_spark.spark.source import PravegaDataSource

    source = PravegaDataSource({"root": root, "subscribe": ",".join(names), **options})
    reader: Any = source.streamReader(source.schema())
    return reader, present(decode(reader.initialOffset()))


def membership(root: str, names: tuple[str, ...]) -> QueryMembership:
    given = {"root": root, "subscribe": ",".join(names), "readergroup": "s/group"}
    return QueryMembership(read_settings(given), "s/group")


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("count", [30, sized(100, 300)])
def test_group_of_a_query_is_created_over_many_streams_at_once(
    root: str, process: Process, count: int
) -> None:
    names = streams(root, count)
    distant = process("s/n")
    _, start = begun(root, names)
    distant.calls.clear()
    joined = membership(root, names)
    with distant.together(min(count, CHECK_THREADS)):
        joined.check(start, None)
    assert distant.asked() == {name: {"get": 3} for name in names}
    joined.leave()
    group = StreamManager(root).reader_group("s/group")
    assert sorted(group.stream_cuts()) == list(names)


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("count", [30, sized(100, 300)])
def test_query_that_joins_a_group_compares_where_both_began_in_many_streams_at_once(
    root: str, process: Process, count: int
) -> None:
    names = streams(root, count)
    manager = StreamManager(root)
    manager.create_reader_group("s/group", dict.fromkeys(names, StreamCut.EARLIEST))
    _, start = begun(root, names)
    distant = process("s/n")
    joined = membership(root, names)
    with distant.together(min(count, CHECK_THREADS)):
        joined.check(start, None)
    assert {frozenset(asked.items()) for asked in distant.asked().values()} == {
        frozenset({"get_many": 3, "list": 1}.items())
    }
    joined.leave()


def test_first_stream_by_name_of_which_a_query_skipped_events_is_named_and_it_leaves(
    root: str, process: Process
) -> None:
    names = streams(root, CHECK_THREADS + 8)
    manager = StreamManager(root)
    manager.create_reader_group("s/group", dict.fromkeys(names, StreamCut.EARLIEST))
    for name in (names[7], names[35]):
        with EventStreamWriter(StreamLog(open_store(root), name)) as writer:
            writer.write_event(b"x").result()
    reader, _ = begun(root, names, startingoffsets="latest")
    start = present(decode(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())))
    process("s/n")
    for _ in range(2):  # it has left, so that the next run need not wait for its lease
        with pytest.raises(InvalidOption, match=f"of {names[7]}, but the group is at"):
            membership(root, names).check(start, None)


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("count", [30, sized(100, 300)])
def test_names_of_many_scopes_are_listed_at_once(root: str, process: Process, count: int) -> None:
    manager = StreamManager(root)
    for number in range(count):
        manager.create_scope(f"n{number:03}")
    for name in ("n000/t", "n027/t"):
        manager.create_stream(name, ONE)
    distant = process("n")
    for most in (6, 2):
        with distant.together(min(count, CHECK_THREADS)):
            assert matching_streams(root, r"n\d+/t") == ["n000/t", "n027/t"]
        calls = [asked.total() for asked in distant.asked(1).values()]
        assert (len(calls), max(calls)) == (count, most)
