"""The loop over ranges: exactly once over kills, moved tails, scales, losses and groups."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from pravega_spark import StreamManager, errors, write_frame
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
    with at_failpoint(step, kill, own=True) as reached, pytest.raises(Killed):
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


def test_reader_group_learns_what_was_done_before_an_error(make: Make, copies: Copies) -> None:
    stream, manager = make(), StreamManager(copies.root)
    fill(stream, 0, 20)
    group: dict[str, Any] = {"readerGroup": "s/g", "maxOffsetsPerTrigger": 5}

    def failing(frame: DataFrame, number: int) -> None:
        if number == 3:
            raise RuntimeError("the fourth")

    for _ in range(2):  # the second time at once
        with pytest.raises(RuntimeError, match="the fourth"):
            copies.run(failing, **group)
        assert str(manager.reader_group("s/g").stream_cuts()["s/a"]).endswith("0#0=15")
        assert not manager.reader_group("s/g").online_readers()


def test_error_of_the_loop_is_not_hidden_by_one_of_its_group(
    make: Make, copies: Copies, caplog: pytest.LogCaptureFixture
) -> None:
    fill(make(), 0, 20)

    def failing(frame: DataFrame, number: int) -> None:
        StreamManager(copies.root).delete_reader_group("s/g")
        raise RuntimeError("the first")

    with pytest.raises(RuntimeError, match="the first"):
        copies.run(failing, readerGroup="s/g")
    assert "could not tell reader group s/g of the ranges" in caplog.text


def test_loop_reads_no_further_than_its_end(make: Make, copies: Copies) -> None:
    fill(make(), 0, 20)
    end = {"s/a": {"0": 7}}
    assert copies.run(endingOffsets=json.dumps(end), maxOffsetsPerTrigger=5) == 2
    assert copies.events() == list(range(7))
    assert copies.run(endingOffsets=json.dumps(end)) == 0


def test_loop_reads_several_streams_and_a_pattern_and_takes_a_handle(
    make: Make, copies: Copies
) -> None:
    fill(make(), 0, 3)
    fill(created(copies.root, "s/c", 1), 3, 5)
    found = list[tuple[str, int]]()

    def collect(frame: DataFrame, number: int) -> None:
        found.extend((row.stream, int(row.event)) for row in frame.collect())

    all_rows = [("a", 0), ("a", 1), ("a", 2), ("c", 3), ("c", 4)]
    for named in ({"subscribe": "s/a,s/c"}, {"subscribePattern": "s/[ac]"}):
        found.clear()
        copies.run(collect, None, checkpoint=f"{copies.checkpoint}-{'-'.join(named)}", **named)
        assert sorted(found) == all_rows
    found.clear()
    copies.run(collect, StreamManager(copies.root).stream("s/c"), root=None)
    assert sorted(found) == all_rows[3:]


def test_keys_that_changed_give_an_unfinished_range_other_rows_and_a_warning(
    make: Make, copies: Copies, caplog: pytest.LogCaptureFixture
) -> None:
    fill(make(), 0, 10)
    found = list[tuple[int, list[int]]]()

    def collect(frame: DataFrame, number: int) -> None:
        found.append((number, [int(row.event) for row in frame.collect()]))

    with at_failpoint("range.ran", kill), pytest.raises(Killed):
        copies.run(collect, routingKeys="k1")
    assert copies.run(collect, routingKeys="k2") == 1
    assert found == [(0, [1, 6]), (0, [2, 7])]
    assert "option routingKeys has changed" in caplog.text


def test_function_gets_a_frame_without_rows_for_a_range_of_other_keys(
    make: Make, copies: Copies
) -> None:
    fill(make(), 0, 10, keys=1)
    rows = list[int]()
    assert copies.run(lambda frame, number: rows.append(len(frame.collect())), routingKeys="k7")
    assert rows == [0]


@pytest.mark.medium
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


@pytest.mark.parametrize("checkpoint", [None, "", 3])
def test_checkpoint_that_is_no_folder_is_refused(
    make: Make, copies: Copies, checkpoint: Any
) -> None:
    make()
    with pytest.raises(errors.InvalidInput, match=r"checkpoint must be a folder or a URL.* got"):
        copies.run(checkpoint=checkpoint)


def test_checkpoint_in_memory_is_refused(make: Make, copies: Copies) -> None:
    make()
    with pytest.raises(errors.InvalidInput, match=r"memory://loop is in the memory of one process"):
        copies.run(checkpoint="memory://loop")


@pytest.mark.parametrize("folder", ["", "s", "s/a", "s/a/events/new", "other"])
def test_checkpoint_in_the_root_is_refused(
    make: Make, copies: Copies, tmp_path: Path, folder: str
) -> None:
    make()
    (tmp_path / "link").symlink_to(copies.root)
    for root in (copies.root, f"file://{copies.root}", tmp_path / "link"):
        with pytest.raises(errors.InvalidInput, match=r"is in the root .* a folder outside of it"):
            copies.run(checkpoint=f"{root}/{folder}")
    assert not list(Path(copies.root).rglob("metadata"))
    assert copies.run(checkpoint=f"{copies.root}-loops") == 0


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


class Threads:
    """Ways in which a function writes in another thread: it names the loop, or takes it along."""

    @staticmethod
    def named(copies: Copies, frame: Any, number: int) -> None:
        rows = frame.select("routing_key", "event")
        given: dict[str, Any] = {"root": copies.root, "checkpointLocation": copies.checkpoint}
        with ThreadPoolExecutor(1) as pool:
            pool.submit(
                write_frame, rows, "s/b", txn_app_id="copy", txn_version=number, **given
            ).result()

    @staticmethod
    def taken_along(copies: Copies, frame: Any, number: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(copy_context().run, copies.write, frame, number).result()


Write = Callable[[Copies, Any, int], None]
in_threads = pytest.mark.parametrize("write", [Threads.named, Threads.taken_along])


@in_threads
def test_two_frames_under_one_number_in_threads_are_refused(
    make: Make, copies: Copies, write: Write
) -> None:
    fill(make(), 0, 10)

    def twice(frame: DataFrame, number: int) -> None:
        write(copies, frame, number)
        write(copies, frame, number)
        write(copies, frame.limit(1), number)

    with pytest.raises(errors.BatchConflict, match="repeats it with other rows"):
        copies.run(twice)
    assert copies.events() == list(range(10))


@in_threads
def test_thread_of_a_loop_whose_checkpoint_was_deleted_is_refused(
    make: Make, copies: Copies, write: Write
) -> None:
    stream = make()
    fill(stream, 0, 10)
    copies.run(lambda frame, number: write(copies, frame, number))
    fill(stream, 10, 20)
    shutil.rmtree(copies.checkpoint)
    with pytest.raises(errors.BatchConflict, match="it is of another query"):
        copies.run(lambda frame, number: write(copies, frame, number))
    assert copies.events() == list(range(10))


def test_lost_checkpoint_goes_on_from_a_cut_under_another_id(make: Make, copies: Copies) -> None:
    stream, manager = make(), StreamManager(copies.root)
    fill(stream, 0, 10)
    copies.run()
    cut = manager.stream_info("s/a").tail
    fill(stream, 10, 20)
    shutil.rmtree(copies.checkpoint)
    with pytest.raises(errors.BatchConflict, match="it is of another query"):
        copies.run()

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.select("routing_key", "event")
        write_frame(rows, "s/b", root=copies.root, txn_app_id="copy-2", txn_version=number)

    again = f"{copies.checkpoint}-2"
    assert copies.run(write, startingOffsets=None, startingStreamCut=cut, checkpoint=again) == 1
    assert copies.events() == list(range(20))


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
    with pytest.raises(errors.InvalidInput, match="available_now is True or False, got 'yes'"):
        copies.run(available_now="yes")
    for stop in (True, lambda: True):
        with pytest.raises(errors.InvalidInput, match=r"stop is a threading\.Event"):
            copies.run(stop=stop)
    with pytest.raises(errors.InvalidOption, match=r"CHECKPOINTLocation='/x' .* argument checkp"):
        copies.run(CHECKPOINTLocation="/x")
    (copies.checkpoint / "offsets").mkdir(parents=True)
    (copies.checkpoint / "offsets/0").write_text('v1\n{}\n{"logOffset":0}')
    with pytest.raises(errors.InvalidInput, match="not of one source 'pravega'"):
        copies.run()
