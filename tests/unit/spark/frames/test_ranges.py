"""The loop over ranges: exactly once over kills, moved tails, scales, losses and groups."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from pravega_spark import StreamManager, errors
from pravega_spark.engine.stream.stream_log import StreamLog
from tests.harness.copying_loops import Copies, fill
from tests.harness.failpoints import at_failpoint
from tests.harness.inline_spark import InlineSpark
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import created, scale

Make = Callable[..., StreamLog]


@pytest.fixture
def root(tmp_path: Path) -> str:
    folder = tmp_path / "root"
    StreamManager(folder).create_scope("s")
    return str(folder)


@pytest.fixture
def make(root: str) -> Make:
    def make(segments: int = 1) -> StreamLog:
        return created(root, "s/a", segments)

    return make


@pytest.fixture
def copies(root: str, tmp_path: Path) -> Copies:
    return Copies(cast("SparkSession", InlineSpark()), root, tmp_path)


def test_ranges_obey_limits_and_a_restart_goes_on(make: Make, copies: Copies) -> None:
    stream = make()
    fill(stream, 0, 25)
    assert copies.run(maxOffsetsPerTrigger=10) == 3
    assert copies.events() == list(range(25))
    assert copies.run() == 0
    fill(stream, 25, 30)
    assert copies.run() == 1
    assert (copies.numbers, copies.events()) == ([0, 1, 2, 3], list(range(30)))


def test_loop_that_begins_at_the_tail_misses_nothing_after_a_first_run_without_news(
    make: Make, copies: Copies
) -> None:
    stream, latest = make(), dict[str, Any](startingOffsets="latest")
    fill(stream, 0, 5)
    assert copies.run(**latest) == 0
    fill(stream, 5, 10)
    with at_failpoint("range.planned", kill), pytest.raises(Killed):
        copies.run(**latest)
    fill(stream, 10, 12)
    assert copies.run(**latest) == 2
    assert copies.events() == list(range(5, 12))


def test_first_range_from_the_tail_is_repeated_from_where_it_began(
    make: Make, copies: Copies
) -> None:
    stream, stop = make(), threading.Event()
    fill(stream, 0, 5)

    def news() -> None:
        fill(stream, 5, 10)
        kill()

    latest: dict[str, Any] = {"startingOffsets": "latest", "available_now": False}
    with at_failpoint("range.planned", news), pytest.raises(Killed):
        copies.run(**latest)

    def last(frame: DataFrame, number: int) -> None:
        copies.write(frame, number)
        stop.set()

    assert copies.run(last, stop=stop, **latest) == 1
    assert copies.events() == list(range(5, 10))


@pytest.mark.parametrize("step", ["range.planned", "append.staged", "range.ran", "range.finished"])
def test_loop_that_is_killed_between_steps_repeats_the_range_over_a_tail_that_moved(
    make: Make, copies: Copies, step: str
) -> None:
    stream = make()
    fill(stream, 0, 10)
    with at_failpoint(step, kill) as reached, pytest.raises(Killed):
        copies.run()
    assert reached.hits == 1
    fill(stream, 10, 15)
    copies.run()
    assert copies.events() == list(range(15)), "none is lost or doubled"


def test_error_of_the_function_ends_the_loop_and_the_same_rows_come_again(
    make: Make, copies: Copies
) -> None:
    stream, seen = make(), []
    fill(stream, 0, 10)

    def failing(frame: DataFrame, number: int) -> None:
        seen.append((number, sorted(int(row.event) for row in frame.collect())))
        if len(seen) == 1:
            raise RuntimeError("once")

    with pytest.raises(RuntimeError, match="once"):
        copies.run(failing)
    fill(stream, 10, 12)
    assert copies.run(failing) == 2
    assert seen == [(0, list(range(10))), (0, list(range(10))), (1, [10, 11])]


def test_scale_in_the_loop_keeps_the_order_of_each_key(make: Make, copies: Copies) -> None:
    stream, found = make(segments=2), dict[str, list[int]]()
    fill(stream, 0, 50)

    def collect(frame: DataFrame, number: int) -> None:
        for row in frame.collect():
            found.setdefault(row.routing_key, []).append(int(row.event))
        if number == 0:
            scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
            fill(stream, 50, 100)

    copies.run(collect, maxOffsetsPerTrigger=30)
    copies.run(collect, maxOffsetsPerTrigger=30)
    assert all(events == sorted(events) for events in found.values())
    assert sorted(event for events in found.values() for event in events) == list(range(100))


def test_small_scales_share_a_range_with_a_key_in_one_task_and_in_order(
    make: Make, copies: Copies
) -> None:
    stream, found = make(), list[list[tuple[str, int]]]()
    fill(stream, 0, 20)
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    fill(stream, 20, 40)

    def collect(frame: Any, number: int) -> None:
        found.extend([(r.routing_key, int(r.event)) for r in part] for part in frame.partitions())

    assert copies.run(collect, minPartitions=4) == 1
    assert len(found) == 4
    for key in (f"k{number}" for number in range(5)):
        (events,) = filter(None, ([n for its, n in part if its == key] for part in found))
        assert events == list(range(int(key[1:]), 40, 5))


def test_truncation_of_unread_events_is_an_error(make: Make, copies: Copies) -> None:
    stream = make()
    fill(stream, 0, 10)
    copies.run()
    fill(stream, 10, 20)
    manager = StreamManager(copies.root)
    manager.truncate_stream("s/a", manager.stream_info("s/a").tail)
    fill(stream, 20, 25)
    with pytest.raises(errors.TruncatedData, match="were truncated"):
        copies.run()
    copies.run(failOnDataLoss=False)
    assert copies.events() == [*range(10), *range(20, 25)]


def test_truncation_of_a_planned_range_is_an_error(make: Make, copies: Copies) -> None:
    fill(make(), 0, 10)
    with at_failpoint("range.planned", kill), pytest.raises(Killed):
        copies.run()
    manager = StreamManager(copies.root)
    manager.truncate_stream("s/a", manager.stream_info("s/a").tail)
    with pytest.raises(errors.TruncatedData, match="were truncated"):
        copies.run()


def test_stream_of_a_second_life_is_an_error(make: Make, copies: Copies) -> None:
    fill(make(), 0, 10)
    copies.run()
    manager = StreamManager(copies.root)
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    manager.create_stream("s/a")
    fill(make(), 0, 3)
    with pytest.raises(errors.StaleIdentity, match="was deleted and created again"):
        copies.run()


def test_reader_group_follows_the_ranges_that_are_done(make: Make, copies: Copies) -> None:
    stream, manager = make(), StreamManager(copies.root)
    fill(stream, 0, 20)
    group: dict[str, Any] = {
        "readerGroup": "s/g",
        "readerGroupMode": "subscriber",
        "maxOffsetsPerTrigger": 10,
    }
    stop = threading.Event()

    def first(frame: DataFrame, number: int) -> None:
        copies.write(frame, number)
        stop.set()

    assert copies.run(first, stop=stop, available_now=False, **group) == 1
    assert str(manager.reader_group("s/g").stream_cuts()["s/a"]).endswith("0#0=10")
    assert copies.run(**group) == 1
    found = manager.reader_group("s/g")
    assert found.stream_cuts()["s/a"] == manager.stream_info("s/a").tail
    assert copies.events() == list(range(20))


def test_loop_goes_on_until_it_is_stopped(make: Make, copies: Copies) -> None:
    stream, stop = make(), threading.Event()
    fill(stream, 0, 5)

    def step(frame: DataFrame, number: int) -> None:
        copies.write(frame, number)
        if number < 2:
            fill(stream, 5 * number + 5, 5 * number + 10)
        else:
            stop.set()

    assert copies.run(step, available_now=False, interval="100 ms", stop=stop) == 3
    assert copies.events() == list(range(15))


def test_second_loop_on_a_checkpoint_is_refused(make: Make, copies: Copies) -> None:
    fill(make(), 0, 5)
    with (
        at_failpoint("range.ran", copies.run),
        pytest.raises(errors.IllegalState, match="another loop has written commits/0"),
    ):
        copies.run()
    assert copies.events() == list(range(5))


def test_repeated_number_with_an_end_that_was_changed_is_refused(
    make: Make, copies: Copies
) -> None:
    stream = make()
    fill(stream, 0, 5)
    with at_failpoint("range.ran", kill), pytest.raises(Killed):
        copies.run()
    fill(stream, 5, 9)
    plan = copies.checkpoint / "offsets/0"
    head, about, text = plan.read_text().splitlines()
    end = json.loads(text)
    end["streams"]["s/a"]["cut"] = {"0#0": 9}
    plan.write_text("\n".join([head, about, json.dumps(end)]))
    with pytest.raises(errors.BatchConflict, match="its sources end elsewhere"):
        copies.run()


def test_two_frames_of_a_range_under_one_number_are_refused(make: Make, copies: Copies) -> None:
    fill(make(), 0, 10)

    def twice(frame: DataFrame, number: int) -> None:
        copies.write(frame, number)
        copies.write(frame, number)
        copies.write(frame.limit(1), number)

    with pytest.raises(errors.BatchConflict, match="repeats it with other rows"):
        copies.run(twice)
    assert copies.events() == list(range(10))


def test_finished_ranges_leave_the_checkpoint_after_a_hundred(make: Make, copies: Copies) -> None:
    stream = make()
    fill(stream, 0, 105)
    assert copies.run(lambda frame, number: None, maxOffsetsPerTrigger=1) == 105
    for folder in ("offsets", "commits"):
        kept = sorted(int(path.name) for path in (copies.checkpoint / folder).iterdir())
        assert kept == list(range(5, 105))


def test_rows_have_the_watermark_of_their_range(make: Make, copies: Copies) -> None:
    make()
    with StreamManager(copies.root).create_writer("s/a") as writer:
        writer.write_event(b"0")
        writer.note_time(1_356_998_400_000)
    times = list[datetime]()
    options: dict[str, Any] = {"includeWatermark": True, "columns": "event"}
    copies.run(lambda frame, number: times.extend(r.watermark for r in frame.collect()), **options)
    assert times == [datetime(2013, 1, 1, tzinfo=timezone.utc)]


def test_unusable_arguments_are_refused(copies: Copies, make: Make) -> None:
    make()
    with pytest.raises(errors.InvalidInput, match="available_now reads what is there"):
        copies.run(interval="1 s")
    with pytest.raises(errors.InvalidInput, match="function must take a frame and a number"):
        copies.run("s/b")  # type: ignore[arg-type]
    (copies.checkpoint / "offsets").mkdir(parents=True)
    (copies.checkpoint / "offsets/0").write_text('v1\n{}\n{"logOffset":0}')
    with pytest.raises(errors.InvalidInput, match="not of one source 'pravega'"):
        copies.run()
