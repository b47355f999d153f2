from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pravega_spark.errors import (
    InvalidOption,
    NoSuchStream,
    ReinitializationRequired,
    StaleIdentity,
)
from pravega_spark.manager import StreamManager
from pravega_spark.spark.groups.query_reader_group import QueryMembership
from pravega_spark.spark.settings import read_settings
from pravega_spark.spark.source_offsets import OffsetOwner, StreamOffset
from pravega_spark.values.segments import StreamCut
from tests.harness.failpoints import at_failpoint

GROUP = "s/g"


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    for name in ("s/a", "s/b"):
        manager.create_stream(name)
        with manager.create_writer(name) as writer:
            for number in range(20):
                writer.write_event(b"%d" % number)
    return manager


class Query:
    """A query of ``s/a`` as its source sees it, on a clock that the test moves."""

    def __init__(self, manager: StreamManager, **options: str) -> None:
        given = {"root": manager.root, "stream": "s/a", "readerGroup": GROUP, **options}
        self.settings = read_settings(given)
        self.now = 0.0
        assert self.settings.group is not None
        self.member = QueryMembership(self.settings, self.settings.group, lambda: self.now)

    def at(self, offset: int, origin: int = 0) -> dict[str, StreamOffset]:
        first, cut = (StreamCut("s/a", 1, {0: o}) for o in (origin, offset))
        return {"s/a": StreamOffset("id", first, cut)}

    def cuts(self, offset: int) -> dict[str, StreamCut]:
        return {name: found.cut for name, found in self.at(offset).items()}


@pytest.fixture
def query(manager: StreamManager) -> Iterator[Query]:
    query = Query(manager)
    yield query
    query.member.leave()


def lag(manager: StreamManager) -> int:
    return manager.reader_group(GROUP).lag().events


def test_group_is_created_where_the_query_begins_and_continues_there(
    manager: StreamManager, query: Query
) -> None:
    assert query.member.group_cuts() is None
    query.member.check(query.at(5), None)
    assert lag(manager) == 15
    query.member.finish_batch(query.at(9))
    query.member.leave()
    again = Query(manager, startingOffsets="latest")
    assert again.member.group_cuts() == query.cuts(9)
    again.member.leave()


def test_group_of_a_query_with_a_checkpoint_is_created_at_its_offset(
    manager: StreamManager, query: Query
) -> None:
    query.member.check(query.at(7), None)
    assert lag(manager) == 13
    assert query.member.owner == OffsetOwner(manager.root, GROUP, 0, 1)


def test_group_does_not_skip_events_that_its_query_never_read(
    manager: StreamManager, query: Query
) -> None:
    manager.create_reader_group(GROUP, {"s/a": query.cuts(5)["s/a"]})
    for owner in (None, OffsetOwner(manager.root, "s/other", 0, 1)):
        with pytest.raises(InvalidOption, match="has still to read the events between"):
            query.member.check(query.at(15, origin=8), owner)
        assert manager.reader_group(GROUP).online_readers() == []
    query.member.check(query.at(15, origin=4), None)
    query.member.finish_batch(query.at(15, origin=4))
    assert lag(manager) == 5


def test_new_group_begins_no_earlier_than_the_head(manager: StreamManager, query: Query) -> None:
    manager.truncate_stream("s/a", query.cuts(6)["s/a"])
    query.member.check(query.at(2), None)
    assert manager.reader_group(GROUP).stream_cuts() == query.cuts(6)
    query.member.finish_batch(query.at(2))


def test_checkpoint_may_lack_a_stream_but_not_have_another(manager: StreamManager) -> None:
    both = Query(manager, stream="", subscribe="s/a,s/b")
    both.member.check(both.at(5), None)
    assert {n: dict(c.positions) for n, c in (both.member.group_cuts() or {}).items()} == {
        "s/a": {0: 5},
        "s/b": {0: 0},
    }
    both.member.leave()
    one = Query(manager, stream="s/b", readerGroup="s/one")
    with pytest.raises(InvalidOption, match="has offsets of s/a, which the query no longer names"):
        one.member.check(one.at(5), None)
    assert manager.list_reader_groups("s") == [GROUP]


def test_deleted_stream_of_the_checkpoint_can_be_left_behind(manager: StreamManager) -> None:
    manager.create_reader_group(GROUP, ["s/a", "s/b"])
    both = {"stream": "", "subscribe": "s/a,s/b"}
    first, lax = Query(manager, **both), Query(manager, **both, failOnDataLoss="false")
    start = first.at(5)
    start["s/b"] = StreamOffset("id", StreamCut("s/b", 1, {0: 0}), StreamCut("s/b", 1, {0: 3}))
    manager.seal_stream("s/b")
    manager.delete_stream("s/b")
    with pytest.raises(NoSuchStream):
        first.member.check(start, None)
    first.member.leave()
    lax.member.check(start, None)
    lax.member.finish_batch(start, last=True)
    assert manager.reader_group(GROUP).stream_cuts()["s/a"] == first.cuts(5)["s/a"]


def test_new_group_of_a_query_over_a_stream_that_was_created_again_begins_at_its_head(
    manager: StreamManager,
) -> None:
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    manager.create_stream("s/a")
    strict, lax = Query(manager), Query(manager, failOnDataLoss="false")
    with pytest.raises(StaleIdentity, match="Start the query with a new checkpoint folder"):
        strict.member.check(strict.at(5), None)
    assert manager.list_reader_groups("s") == []
    lax.member.check(lax.at(5), None)
    lax.member.finish_batch(lax.at(5), last=True)
    assert manager.reader_group(GROUP).stream_cuts()["s/a"] == manager.head("s/a")


def test_group_of_an_earlier_life_does_not_stop_a_query_that_may_go_on(
    manager: StreamManager,
) -> None:
    manager.create_reader_group(GROUP, ["s/a"])
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    manager.create_stream("s/a")
    lax = Query(manager, failOnDataLoss="false")
    lax.member.check(lax.at(5), None)
    lax.member.leave()


def test_no_group_is_created_over_a_deleted_stream(manager: StreamManager) -> None:
    manager.seal_stream("s/b")
    manager.delete_stream("s/b")
    both = {"stream": "", "subscribe": "s/a,s/b"}
    with pytest.raises(NoSuchStream):
        Query(manager, **both).member.check({}, None)
    lax = Query(manager, **both, failOnDataLoss="false")
    with pytest.raises(InvalidOption, match="cannot be created over stream s/b, which does not"):
        lax.member.check(lax.at(5), None)
    assert manager.list_reader_groups("s") == []


def test_finished_batches_are_reported_at_most_once_in_the_interval(
    manager: StreamManager, query: Query
) -> None:
    query.member.check(query.at(0), None)
    query.member.finish_batch(query.at(2))
    query.member.finish_batch(query.at(4))
    assert lag(manager) == 18
    query.now = 5.0
    query.member.finish_batch(query.at(6))
    assert lag(manager) == 14
    query.member.finish_batch(query.at(8), last=True)
    assert lag(manager) == 12
    assert manager.reader_group(GROUP).online_readers() == []


def test_checkpoint_from_before_a_reset_is_refused(manager: StreamManager, query: Query) -> None:
    query.member.check(query.at(0), None)
    old = query.member.owner
    query.member.finish_batch(query.at(9), last=True)
    manager.reader_group(GROUP).reset(query.cuts(3))
    with pytest.raises(ReinitializationRequired, match="of generation 0, the group is in gener"):
        query.member.check(query.at(9), old)
    query.member.check(query.at(3), None)
    query.member.leave()
    manager.delete_reader_group(GROUP)
    again = Query(manager)
    with pytest.raises(ReinitializationRequired, match="s/g was deleted, and with it the posit"):
        again.member.check(again.at(9), old)
    assert manager.list_reader_groups("s") == []


def test_query_joins_again_after_an_update_and_continues(
    manager: StreamManager, query: Query
) -> None:
    query.member.check(query.at(0), None)
    first = query.member.owner
    query.member.finish_batch(query.at(4))
    manager.reader_group(GROUP).update(retention="automatic")
    query.now = 5.0
    query.member.finish_batch(query.at(9))
    assert lag(manager) == 11
    manager.reader_group(GROUP).update(refresh="1 s")
    query.now = 10.0
    query.member.check(query.at(9), first)  # its lease lasts, so it reads nothing
    query.member.finish_batch(query.at(12))
    query.member.check(query.at(12), first)
    assert (query.member.owner.generation, lag(manager)) == (2, 8)
    query.member.leave()
    restarted = Query(manager)
    restarted.member.check(query.at(12), first)
    restarted.member.finish_batch(query.at(14), last=True)
    assert lag(manager) == 6
    (held,) = manager.list_subscribers("s/a")
    assert held.cut == query.cuts(14)["s/a"]


def test_query_ends_if_an_update_changes_its_streams(manager: StreamManager, query: Query) -> None:
    query.member.check(query.at(0), None)
    first = query.member.owner
    query.member.finish_batch(query.at(4))
    group = manager.reader_group(GROUP)
    group.update(add=["s/b"])
    query.now = 5.0
    with pytest.raises(ReinitializationRequired, match="with a new checkpoint folder"):
        query.member.finish_batch(query.at(9))
    both = Query(manager, stream="", subscribe="s/a,s/b")
    with pytest.raises(ReinitializationRequired, match="or streams were added to it"):
        both.member.check(query.at(9), first)
    fresh = Query(manager, stream="", subscribe="s/a,s/b")
    assert fresh.member.group_cuts() == {**query.cuts(4), "s/b": StreamCut("s/b", 1, {0: 0})}
    group.update(remove=["s/a"])
    with pytest.raises(InvalidOption, match="the group reads s/b, and the query s/a, s/b"):
        fresh.member.finish_batch(fresh.at(9))
    assert group.stream_cuts() == {"s/b": StreamCut("s/b", 1, {0: 0})}


def test_query_whose_group_is_reset_after_an_update_does_not_continue(
    manager: StreamManager, query: Query
) -> None:
    query.member.check(query.at(0), None)
    group = manager.reader_group(GROUP)
    group.update(refresh="1 s")
    query.now = 5.0
    resets = at_failpoint("group.query.updated", lambda: group.reset(query.cuts(3)))
    with resets, pytest.raises(ReinitializationRequired, match="was updated"):
        query.member.finish_batch(query.at(9))
    assert group.stream_cuts() == query.cuts(3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readerGroupMode": "subscriber"}, "exists with retention 'none'"),
        ({"stream": "", "subscribe": "s/a,s/b"}, "the group reads s/a, and the query s/a, s/b"),
        ({"stream": "s/b"}, "the group reads s/a, and the query s/b"),
    ],
)
def test_group_that_does_not_fit_the_query_is_refused(
    manager: StreamManager, options: dict[str, str], message: str
) -> None:
    manager.create_reader_group(GROUP, ["s/a"])
    with pytest.raises(InvalidOption, match=message):
        Query(manager, **options).member.group_cuts()
    other = Query(manager, readerGroupMode="observer")
    other.member.group_cuts()
    other.member.leave()


def test_group_with_an_end_cut_is_refused(manager: StreamManager, query: Query) -> None:
    manager.create_reader_group(GROUP, {"s/a": (None, query.cuts(5)["s/a"])})
    with pytest.raises(InvalidOption, match="the group has an end cut of s/a"):
        query.member.group_cuts()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readerGroup": "g", "scope": ""}, "named 'scope/group'"),
        ({"readerGroup": "", "readerGroupMode": "observer"}, "readerGroupMode needs readerGroup"),
        ({"readerGroupMode": "owner"}, "must be one of observer, subscriber"),
        ({"stream": "", "subscribePattern": "s/.*"}, "instead of subscribePattern"),
    ],
)
def test_contradicting_options_are_refused(
    manager: StreamManager, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        Query(manager, **options)


def test_group_name_without_a_scope_takes_that_of_the_option(manager: StreamManager) -> None:
    given = {"root": manager.root, "stream": "a", "scope": "s", "consumerId": "g"}
    assert read_settings(given).group == GROUP
