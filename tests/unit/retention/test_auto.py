from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.errors import CorruptLog, InvalidConfiguration, NoSuchStream, TooBusy
from pravega_spark.retention.auto import options, rows_of, within
from pravega_spark.retention.decision import Rule
from pravega_spark.retention.run import ROW_SCHEMA, Done


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
    assert (found.rule, found.goes.events, found.stays.events) == (Rule.MINIMUM, 50, 50)
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

    def work() -> Done:
        stop.wait(60)
        raise AssertionError

    with pytest.raises(TooBusy, match=r"s/t took longer than its limit of 0\.05 s"):
        within(0.05, work, "s/t")
    stop.set()


def test_an_error_of_the_work_is_the_callers() -> None:
    def work() -> Done:
        raise CorruptLog("torn")

    with pytest.raises(CorruptLog, match="torn"):
        within(60, work, "s/t")
