"""The INFO log: one line for each event that an operator looks for."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log import commit
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.values.segments import KeyRange, StreamCut
from tests.harness.fake_runtime import SkippingRuntime
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.group_world import expired_after

CONSUMED = StreamConfiguration(ScalingPolicy.fixed(1), RetentionPolicy.by_consumption())


class LogLines:
    """The lines since the last check."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def lines(self) -> list[str]:
        wait_for_maintenance()
        records = [r for r in self._caplog.records if r.name.startswith("pravega_spark")]
        self._caplog.clear()
        unmaintained = [r for r in records if "has no effect: nothing maintains" in r.getMessage()]
        records = [record for record in records if record not in unmaintained]
        assert {record.levelname for record in records} <= {"INFO"}
        return [record.getMessage() for record in records]

    def expect(self, *patterns: str) -> None:
        """Each pattern matches one line, in this order, and there are no other lines."""
        found = self.lines()
        assert len(found) == len(patterns), found
        for line, pattern in zip(found, patterns, strict=True):
            assert re.search(pattern, line), f"{pattern!r} is not in {line!r}"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[LogLines]:
    with caplog.at_level(logging.INFO, logger="pravega_spark"):
        yield LogLines(caplog)


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    return StreamManager(tmp_path / "root")


def write(manager: StreamManager, events: int = 4) -> None:
    with manager.create_writer("s/a") as writer:
        writer.write_events([b"0123456789"] * events, routing_key="k")


def test_streams_life_is_logged(manager: StreamManager, log: LogLines) -> None:
    manager.create_scope("s")
    log.expect(
        "probed file:.*: its creates are exclusive",
        "CREATE SCOPE of file:.*/s/_scope, version 0: scope=s",
    )
    manager.create_stream("s/a", CONSUMED)
    log.expect(r"CREATE STREAM of file:.*/s/a/events, version 0: stream=s/a, life=1, segments=1")
    manager.update_stream("s/a", StreamConfiguration())
    log.expect("UPDATE STREAM of .*, version 1: .*configuration=")
    write(manager)
    log.expect()
    manager.scale_stream("s/a", seal=[0], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
    log.expect(r"SCALE STREAM of .*, version 3: .*sealed=\[.0#0.\], opened=.*1#1.*2#1")
    manager.seal_stream("s/a")
    log.expect("SEAL STREAM of .*, version 4")
    manager.delete_stream("s/a")
    log.expect("DELETE STREAM of .*, version 5: .*life=1, removedBytes=[1-9]")
    manager.create_stream("s/a")
    life = manager.stream_info("s/a").life
    log.expect(
        f"DRAW LIFE of .*, version 6: .*life={life}",
        f"CREATE STREAM of .*, version 7: .*life={life}",
    )


@pytest.fixture
def stream(manager: StreamManager, log: LogLines) -> StreamManager:
    """A stream with four events, whose creation was logged before."""
    manager.create_scope("s")
    manager.create_stream("s/a", CONSUMED)
    write(manager)
    log.lines()
    return manager


def test_truncation_retention_and_sweep_log_what_they_deleted_and_why(
    stream: StreamManager, log: LogLines
) -> None:
    write(stream)
    opened = open_stream(stream.root, "s/a")
    life = stream.tail("s/a").life
    stream.truncate_stream("s/a", StreamCut("s/a", life, {0: 4}))
    log.expect(
        "TRUNCATE STREAM of .*, version 3: head=.*, by=user, numTruncatedEvents=4, "
        "numRemovedFiles=1, removedBytes=[1-9]"
    )
    subscribe(opened, "s/slow", 0, protect=True)
    subscribe(opened, "s/fast", 0)
    publish(opened, "s/fast", 0, StreamCut("s/a", life, {0: 6}))
    log.expect("SUBSCRIBE of .*, version 4: .*s/slow", "SUBSCRIBE of .*, version 5: .*s/fast")
    time.sleep(0.01)
    stream.retention("s/a").run(expire="1 ms", sweep=False)
    log.expect(
        "retention of stream s/a follows the flags expire=1 ms",
        "(TRUNCATE STREAM|SAMPLE) of .*, version 7: .*expired=.*s/slow",
    )
    stream.sweep_stream("s/a", grace=0, retain=0)
    stream.sweep_stream("s/a", grace=0, retain=0)
    lines = log.lines()
    assert any(re.search("SWEEP of .*, version .*: horizon=", line) for line in lines)
    assert any(re.search(r"swept .*: deleted 1 files of \d+ bytes", line) for line in lines)


def test_load_that_requires_a_split_is_logged(stream: StreamManager, log: LogLines) -> None:
    halves = KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)
    scale_stream(open_stream(stream.root, "s/a"), [0], halves, automatic=True)
    log.expect("SCALE STREAM of .*automatic=true")


def test_fenced_writers_and_swept_transactions_are_logged_and_ordinary_ones_are_not(
    stream: StreamManager, log: LogLines
) -> None:
    with stream.create_writer("s/a", writer_id="w"):
        log.expect("OPEN WRITER of .*: writer=w, session=1")
        with stream.create_writer("s/a", writer_id="w"):
            log.expect("OPEN WRITER of .*: writer=w, session=2")
    with stream.create_transactional_writer("s/a", writer_id="t") as writer:
        log.lines()
        with writer.begin_transaction() as txn:
            txn.write_event(b"x", "k")
        log.expect()
        left = writer.begin_transaction()
        left.ping()
        left.prepare()
        folder = Path(stream.root.removeprefix("file://"), "s/a/transactions", left.id)
        for file in folder.iterdir():
            os.utime(file, (time.time() - 10_000,) * 2)
        stream.sweep_transactions("s/a", prepared_limit=0)
        log.expect(
            "sweep of transactions of stream s/a follows the flags prepared_limit=0 s",
            f"aborted transaction {left.id} of stream s/a: it was prepared .* not decided since",
            f"ABORT TRANSACTION of .*: .*{left.id}",
        )


def test_groups_readers_and_checkpoints_are_logged(stream: StreamManager, log: LogLines) -> None:
    seldom = "1 day"  # a busy machine may take as long as the default between two checkpoints
    group = stream.create_reader_group(
        "s/g", ["s/a"], retention="automatic", checkpoint_interval=seldom
    )
    found = log.lines()
    (line,) = (line for line in found if line.startswith("CREATE READER GROUP of "))
    assert re.search("/s/_reader_groups/g, version 0: streams=s/a, .*retention=automatic", line)
    assert any(re.search("SUBSCRIBE of .*/s/a/events, .*s/g", line) for line in found)
    with group.create_reader("r1") as reader:
        log.expect("JOIN of .*/g, version .*: reader=r1$")
        assert reader.read_next_event(timeout=1).event
        log.expect()
        asked = group.initiate_checkpoint("cp")
        while not asked.done():
            reader.read_next_event(timeout=0.1)
        log.expect("completed checkpoint cp of reader group s/g, generation 0")
        group.initiate_checkpoint("late")
        group.cancel_outstanding_checkpoints()
        log.expect("CANCEL CHECKPOINTS of .*/g")
    log.expect("LEAVE of .*/g, version .*: reader=r1$")
    lost = group.create_reader("r2")
    group.reader_offline("r2")
    log.expect("JOIN of .*reader=r2$", "READER OFFLINE of .*/g, version .*: reader=r2$")
    dead = group.create_reader("r3", max_poll_interval=None)
    log.lines()
    for lease in Path(stream.root.removeprefix("file://")).glob("s/_reader_groups/g/_leases/r3*"):
        os.utime(lease, (time.time() - 10_000,) * 2)
    group._leases._runtime = clock = SkippingRuntime()
    assert expired_after(group, 61, clock.skip) == ["r3"]
    log.expect("TAKE OVER of .*/g, version .*: readers=r3")
    places = (
        (None, "the last checkpoint"),
        (asked.result(), "checkpoint cp"),  # leaving readers may have completed a later one
        (None, "the configured start"),
        ({"s/a": "earliest"}, '{"s/a":"earliest"}'),
        (ReaderGroupConfiguration(["s/a"], retention="automatic"), '{"streams":{"s/a":.*'),
    )
    for generation, (to, where) in enumerate(places, 1):
        group.reset(to)
        found = [line for line in log.lines() if line.startswith("RESET READER GROUP of ")]
        assert len(found) == 1
        assert re.search(f": generation={generation}, to={where}$", found[0]), found
    stream.delete_reader_group("s/g")
    found = log.lines()
    assert any(re.search("DELETE READER GROUP of .*, version [0-9]+$", line) for line in found)
    assert any(re.search("UNSUBSCRIBE of .*s/g", line) for line in found)
    for reader in (lost, dead):
        reader.close()


def test_settings_and_fencing_tokens_are_logged(stream: StreamManager, log: LogLines) -> None:
    stream.update_settings(grace="2 hours")
    log.expect("SET SETTINGS of .*/_settings, version 0: .*grace")
    stream.stream("s/a").fence("leader-2")
    log.expect("FENCE STREAM of .*/s/a/events, version [0-9]+")


def test_long_parameter_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="pravega_spark"):
        body = Body("APPEND", {"cut": "x" * 1_000, "none": []})
        commit.log_commit("root/s/a", 7, body, "s/a")
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert record.getMessage() == f"APPEND of root/s/a, version 7: cut={'x' * 200}..."
