from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.stream.time_limit import run_within
from pravega_spark.errors import CorruptLog, InvalidConfiguration, NoSuchStream, TooBusy
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.retention.decision import RetentionRule
from pravega_spark.retention.run import RetentionResult
from pravega_spark.values.segments import StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.simulated_kills import Killed, kill


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    """A manager with a stream of 100 events of ten bytes, whose policy keeps 500 bytes."""
    made = StreamManager(tmp_path)
    made.create_scope("s")
    policy = RetentionPolicy.by_size(500)
    made.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(1), policy))
    for n in range(10):
        with made.create_writer("s/t") as writer:
            writer.write_events([b"%010d" % (10 * n + i) for i in range(10)])
    return made


def test_run_truncates_what_explain_reports(manager: StreamManager) -> None:
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


def test_record_of_a_run_has_its_amounts(manager: StreamManager) -> None:
    row = manager.retention("s/t").run(sweep=False).row()
    assert (row["goes_events"], row["goes_bytes"], row["stays_bytes"]) == (50, 500, 500)
    assert row["version"] is not None


def test_samples_are_the_tails_that_runs_recorded_and_that_the_head_has_not_passed() -> None:
    runtime = FakeRuntime()
    manager = manager_of(runtime)
    manager.create_scope("s")
    policy = RetentionPolicy.by_time("2 days")
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(2), policy))
    retention, tails = manager.retention("s/t"), []
    assert retention.samples() == []
    for n in range(4):
        with manager.create_writer("s/t") as writer:
            writer.write_events([b"%04d" % n] * 5)
        tails.append((runtime.wall_ms, 20 * (n + 1), manager.tail("s/t")))
        retention.run(sweep=False)
        runtime.sleep(86_400)
    found = retention.samples()
    assert len(found) == 2  # the first two were truncated
    for sample, (time_ms, size_bytes, tail) in zip(found, tails[2:], strict=True):
        assert abs(sample.time_ms - time_ms) < 1_000
        assert (sample.size_bytes, sample.cut) == (size_bytes, tail)
        assert manager.cut_at("s/t", sample.version) == tail
    manager.truncate_stream("s/t", found[0].cut)
    assert retention.samples() == found[1:]


def test_run_that_exceeds_its_limit_raises_too_busy() -> None:
    stop = threading.Event()

    def run() -> RetentionResult:
        stop.wait(60)
        raise AssertionError

    with pytest.raises(TooBusy, match=r"s/slow exceeded its limit of 0\.05 s"):
        run_within(0.05, run, "s/slow")
    stop.set()


def test_error_of_a_run_reaches_the_caller() -> None:
    def run() -> RetentionResult:
        raise CorruptLog("torn")

    with pytest.raises(CorruptLog, match="torn"):
        run_within(60, run, "s/t")


KEEPING = ReaderGroupConfiguration(["s/t"], retention="manual")
POINTS = ("group.create.row", "group.change.noted", "group.change.subscribed", "group.change.done")


def at(offset: int) -> StreamCut:
    return StreamCut("s/t", 1, {0: offset})


@pytest.fixture
def consumed(manager: StreamManager) -> StreamManager:
    """The stream keeps unconsumed events only; one subscriber has consumed all."""
    policy = RetentionPolicy.by_consumption()
    manager.update_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(1), policy))
    fast = manager.create_reader_group("s/fast", ["s/t"], retention="manual")
    fast.publish({"s/t": at(100)})
    return manager


def killed_at(point: str, call: Callable[[], object]) -> None:
    with at_failpoint(point, kill), pytest.raises(Killed):
        call()


@pytest.mark.parametrize("point", POINTS)
def test_run_keeps_the_data_of_a_group_whose_creation_was_killed(
    consumed: StreamManager, point: str
) -> None:
    killed_at(
        point, lambda: consumed.create_reader_group("s/g", {"s/t": at(30)}, retention="manual")
    )
    done = consumed.retention("s/t").run()
    assert done.explanation.held_by == "subscriber s/g"
    assert consumed.head("s/t") == at(30)
    assert consumed.reader_group("s/g").lag().events == 70


@pytest.mark.parametrize("point", POINTS[1:])
def test_run_keeps_the_data_of_a_group_whose_reset_was_killed(
    consumed: StreamManager, point: str
) -> None:
    group = consumed.create_reader_group("s/g", ["s/t"], retention="manual")
    group.publish({"s/t": at(80)})
    killed_at(point, lambda: group.reset({"s/t": at(40)}))
    consumed.retention("s/t").run()
    assert consumed.head("s/t") == at(40)


@pytest.mark.parametrize("point", POINTS[1:])
def test_run_truncates_the_data_of_a_group_whose_deletion_was_killed(
    consumed: StreamManager, point: str
) -> None:
    group = consumed.create_reader_group("s/g", ["s/t"], retention="manual")
    killed_at(point, lambda: consumed.delete_reader_group(group.name))
    consumed.retention("s/t").run()
    assert consumed.head("s/t") == at(100)
    assert consumed.list_reader_groups("s") == ["s/fast"]


def test_group_that_cannot_be_repaired_does_not_stop_the_others(consumed: StreamManager) -> None:
    for name in ("s/a", "s/b"):
        killed_at("group.create.row", partial(consumed._group_lifecycle(name).create, KEEPING))
    broken = Path(consumed.root.removeprefix("file://"), "s", "_reader_groups", "a", "_delta_log")
    broken.mkdir(parents=True)
    (broken / f"{0:020d}.json").write_text("{")
    (error,) = consumed.repair_reader_groups().items()
    assert error[0] == "s/a"
    assert error[1].startswith("CorruptLog: ")
    assert {found.name for found in consumed.list_subscribers("s/t")} == {"s/b", "s/fast"}
