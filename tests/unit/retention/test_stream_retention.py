from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.errors import CorruptLog, InvalidConfiguration, NoSuchStream, TooBusy
from pravega_spark.model import StreamCut
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.retention.retention_run import ROW_SCHEMA, RetentionResult
from pravega_spark.retention.stream_retention import options, rows_of, within
from pravega_spark.retention.truncation_decision import RetentionRule
from tests.harness.failpoints import at_failpoint


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    """A stream of 100 events of ten bytes that keeps 500 of them."""
    made = StreamManager(tmp_path)
    made.create_scope("s")
    policy = RetentionPolicy.by_size(500)
    made.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(1), policy))
    for n in range(10):
        with made.create_writer("s/t") as writer:
            writer.write_events([b"%010d" % (10 * n + i) for i in range(10)])
    return made


def test_a_stream_explains_what_would_go_and_lets_it_go(manager: StreamManager) -> None:
    retention = manager.retention("s/t")
    found = retention.explain()
    assert (found.rule, found.goes.events, found.stays.events) == (RetentionRule.MINIMUM, 50, 50)
    assert "held by minimum: 50 events, 500 B" in str(found)
    done = retention.run(grace="0 s", retain="0 s")
    assert done.truncated is not None
    assert done.truncated.events == 50
    assert done.sampled
    assert done.swept is not None
    assert retention.explain().cut is None
    assert len(list(manager.read("s/t"))) == 50
    with pytest.raises(NoSuchStream):
        manager.retention("s/none")
    with pytest.raises(InvalidConfiguration):
        retention.run(expire="soon")


def test_a_stream_gives_a_row_whether_it_is_only_looked_at_or_not(manager: StreamManager) -> None:
    for dry_run, version in ((True, False), (False, True)):
        (row,) = rows_of(
            manager.root, "s/t", options=options(sweep=False), dry_run=dry_run, limit_seconds=60.0
        )
        assert set(row) == set(ROW_SCHEMA.names)
        assert (row["goes_events"], row["goes_bytes"], row["stays_bytes"]) == (50, 500, 500)
        assert (row["version"] is not None) is version


def test_work_that_takes_too_long_is_left_and_told() -> None:
    stop = threading.Event()

    def work() -> RetentionResult:
        stop.wait(60)
        raise AssertionError

    with pytest.raises(TooBusy, match=r"s/t took longer than its limit of 0\.05 s"):
        within(0.05, work, "s/t")
    stop.set()


def test_an_error_of_the_work_is_the_callers() -> None:
    def work() -> RetentionResult:
        raise CorruptLog("torn")

    with pytest.raises(CorruptLog, match="torn"):
        within(60, work, "s/t")


class Died(BaseException):
    """The process ends here."""


def die() -> None:
    raise Died


KEEPING = ReaderGroupConfiguration(["s/t"], retention="manual")
POINTS = ("group.create.row", "group.change.noted", "group.change.subscribed", "group.change.done")


def at(offset: int) -> StreamCut:
    return StreamCut("s/t", 1, {0: offset})


@pytest.fixture
def consumed(manager: StreamManager) -> StreamManager:
    """The stream lets go what is consumed, which for one subscriber is all of it."""
    policy = RetentionPolicy.by_consumption()
    manager.update_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(1), policy))
    fast = manager.create_reader_group("s/fast", ["s/t"], retention="manual")
    fast.publish({"s/t": at(100)})
    return manager


def dies(point: str, call: Callable[[], object]) -> None:
    with at_failpoint(point, die), pytest.raises(Died):
        call()


@pytest.mark.parametrize("point", POINTS)
def test_run_keeps_what_a_group_reads_whose_creator_died(
    consumed: StreamManager, point: str
) -> None:
    dies(point, lambda: consumed.create_reader_group("s/g", {"s/t": at(30)}, retention="manual"))
    done = consumed.retention("s/t").run()
    assert done.explanation.held_by == "subscriber s/g"
    assert consumed.head("s/t") == at(30)
    assert consumed.reader_group("s/g").lag().events == 70


@pytest.mark.parametrize("point", POINTS[1:])
def test_run_keeps_what_a_group_reads_whose_reset_died(consumed: StreamManager, point: str) -> None:
    group = consumed.create_reader_group("s/g", ["s/t"], retention="manual")
    group.publish({"s/t": at(80)})
    dies(point, lambda: group.reset({"s/t": at(40)}))
    consumed.retention("s/t").run()
    assert consumed.head("s/t") == at(40)


@pytest.mark.parametrize("point", POINTS[1:])
def test_run_lets_go_what_a_group_held_whose_deletion_died(
    consumed: StreamManager, point: str
) -> None:
    group = consumed.create_reader_group("s/g", ["s/t"], retention="manual")
    dies(point, lambda: consumed.delete_reader_group(group.name))
    consumed.retention("s/t").run()
    assert consumed.head("s/t") == at(100)
    assert consumed.list_reader_groups("s") == ["s/fast"]


def test_group_that_cannot_be_finished_does_not_stop_the_others(consumed: StreamManager) -> None:
    for name in ("s/a", "s/b"):
        dies("group.create.row", partial(consumed._group_lifecycle(name).create, KEEPING))
    broken = Path(consumed.root.removeprefix("file://"), "s", "_reader_groups", "a", "_delta_log")
    broken.mkdir(parents=True)
    (broken / f"{0:020d}.json").write_text("{")
    (error,) = consumed.repair_reader_groups().items()
    assert error[0] == "s/a"
    assert error[1].startswith("CorruptLog: ")
    assert {found.group for found in consumed.list_subscribers("s/t")} == {"s/b", "s/fast"}
