"""What a look at a stream costs, and what it finds."""

from __future__ import annotations

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import NoSuchStream
from pravega_spark.manager import root_of
from pravega_spark.serve.watch import FIRST_COMMITS, StreamWatch
from tests.harness.spy_store import Spy
from tests.harness.web_world import new_manager


@pytest.fixture
def manager() -> StreamManager:
    made = new_manager()
    made.create_stream("nyc/f")
    return made


def write(manager: StreamManager, events: int) -> None:
    with manager.create_writer("nyc/f") as writer:
        writer.write_events([b"0123456789"] * events, routing_key="a")


def test_a_look_without_news_is_one_call_and_a_shared_one_is_none(manager: StreamManager) -> None:
    write(manager, 5)
    spy = Spy(root_of(manager).store)
    watch = StreamWatch(StreamLog(spy, "nyc/f"))
    watch.look()
    spy.calls.clear()
    view = watch.look()
    assert len(spy.calls) == 1
    assert spy.calls[0][1].endswith(f"_delta_log/{view.version + 1:020d}.json")
    spy.calls.clear()
    watch.look(max_age=60)
    watch.row(view)
    watch.segment_rates()
    assert spy.calls == []


def test_a_look_at_news_reads_each_new_commit_once(manager: StreamManager) -> None:
    spy = Spy(root_of(manager).store)
    watch = StreamWatch(StreamLog(spy, "nyc/f"))
    before = watch.look().version
    write(manager, 7)
    spy.calls.clear()
    view = watch.look()
    commits = [key for operation, key in spy.calls if operation == "get"]
    assert len(commits) == view.version - before + 1  # the last one is absent
    assert watch.row(view).events == 7


def test_the_first_look_knows_the_traffic_of_the_last_commits(manager: StreamManager) -> None:
    write(manager, 60)
    watch = StreamWatch(StreamLog(root_of(manager).store, "nyc/f"))
    row = watch.row(watch.look())
    assert row.events_per_second > 0
    assert sum(value or 0 for value in row.series) * 60 == pytest.approx(60)
    assert row.size_bytes == 600


def test_a_long_log_is_not_read_from_its_beginning(manager: StreamManager) -> None:
    with manager.create_writer("nyc/f") as writer:
        for _ in range(FIRST_COMMITS + 40):
            writer.write_event(b"x", routing_key="a").result()
    spy = Spy(root_of(manager).store)
    stream = StreamLog(spy, "nyc/f")
    stream.view()
    spy.calls.clear()
    view = StreamWatch(stream).look()
    read = {key for _, key in spy.calls if "_delta_log" in key}
    assert len(read) <= FIRST_COMMITS + 1
    assert view.version > FIRST_COMMITS


def test_later_traffic_is_counted_by_segment_over_a_scale(manager: StreamManager) -> None:
    watch = StreamWatch(StreamLog(root_of(manager).store, "nyc/f"))
    watch.look()
    write(manager, 10)
    manager.scale_stream("nyc/f", seal=[0], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
    write(manager, 20)
    view = watch.look()
    row, rates = watch.row(view), watch.segment_rates()
    assert (row.segments, row.events) == (2, 30)
    written = [number for number, (events, _) in rates.items() if events > 0]
    assert 0 in written
    assert len(written) == 2
    assert sum(value or 0 for value in row.series) * 60 == pytest.approx(30)


def test_a_stream_that_is_made_again_begins_anew(manager: StreamManager) -> None:
    write(manager, 10)
    watch = StreamWatch(StreamLog(root_of(manager).store, "nyc/f"))
    watch.look()
    manager.seal_stream("nyc/f")
    manager.delete_stream("nyc/f")
    with pytest.raises(NoSuchStream):
        watch.look()
    manager.create_stream("nyc/f")
    row = watch.row(watch.look())
    assert (row.events, row.size_bytes) == (0, 0)
    assert sum(value or 0 for value in row.series) == 0
