"""Refreshes in real threads: a group's table that hangs or fails delays no reading.

The refreshes are a part of the reader: a test waits for them there, and reads no clock for it.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.engine.stream.subscribers import listed
from pravega_spark.errors import ForkedProcess, ReinitializationRequired, StoreError
from pravega_spark.reader_groups.membership import RefreshInput
from pravega_spark.reader_groups.reader import EventStreamReader
from tests.harness.fake_runtime import SkippingRuntime
from tests.harness.fault_plans import Rule
from tests.harness.group_world import NAME, World, expired_after, membership_of

TABLE = "_reader_groups/g/"
READER = threading.main_thread().name


class SlowTable:
    """A world whose group table hangs in background threads until the test lets it continue."""

    def __init__(self, segments: int = 1) -> None:
        self.clock = SkippingRuntime()
        self.clock.has_threads = False  # nothing but the readers' calls extends a lease
        self.world = World(segments, clock=self.clock)
        self.begun, self.may_go = threading.Event(), threading.Event()
        self.hangs_at = ""
        self.calls: list[tuple[str, str, str]] = []
        """Thread, operation and key of each call on the group's table."""
        self.world.store.hook = self._hook

    def _hook(self, operation: str, key: str) -> None:
        thread = threading.current_thread().name
        if TABLE in key:
            self.calls.append((thread, operation, key))
        if self.hangs_at and self.hangs_at in key and thread == "pravega-background":
            self.begun.set()
            assert self.may_go.wait(60)

    def hang(self, part: str = TABLE) -> None:
        self.begun.clear()
        self.may_go.clear()
        self.hangs_at = part

    def go_on(self) -> None:
        self.hangs_at = ""
        self.may_go.set()

    def go_on_later(self, seconds: float = 0.2) -> None:
        threading.Timer(seconds, self.go_on).start()

    def refreshing(self, reader: EventStreamReader) -> EventStreamReader:
        """Let a refresh of the reader begin, and hang."""
        self.hang()
        self.clock.skip(3.1)
        assert read(reader)
        assert self.begun.wait(240)
        return reader

    def own_calls(self) -> list[tuple[str, str]]:
        """The calls on the table by the reading thread."""
        return [(operation, key) for thread, operation, key in self.calls if thread == READER]


@pytest.fixture
def table() -> Iterator[SlowTable]:
    made = SlowTable()
    yield made
    made.go_on()


def read(reader: EventStreamReader) -> bytes:
    found = reader.read_next_event(0).event
    assert found is not None
    data: bytes = found.data
    return data


def adopted(reader: EventStreamReader) -> bool:
    return not membership_of(reader).refreshes.is_running


def finish_refresh(reader: EventStreamReader) -> None:
    if not adopted(reader):
        membership_of(reader).refreshes.wait()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_table_that_hangs_delays_no_event_while_the_lease_lasts(table: SlowTable) -> None:
    events = table.world.write(50)
    group = table.world.created()
    reader = group.create_reader("a", lease="30 s")
    assert read(reader) == events[0]
    table.refreshing(reader)
    for n in range(2, 50):
        table.clock.skip(0.5)
        assert read(reader) == events[n]
    assert not adopted(reader)
    began = time.monotonic()
    assert reader.read_next_event(0).event is None
    assert time.monotonic() - began < 50.0, "a call with no event does not wait for a refresh"
    table.go_on()
    table.world.write(1)
    assert reader.read_next_event(5).event is not None
    lease = membership_of(reader).lease
    wait_for(  # the refresh that hung proves an old heartbeat only; the next one extends the lease
        lambda: reader.read_next_event(0) and lease.ends_at > table.clock.monotonic() + 20
    )


def test_reader_waits_for_its_table_when_its_lease_has_ended(table: SlowTable) -> None:
    table.world.write(50)
    group = table.world.created()
    reader = group.create_reader("a", lease="30 s")
    read(reader)
    table.refreshing(reader)
    table.clock.skip(29)
    assert expired_after(table.world.group(), 31, table.clock.skip) == ["a"]
    table.go_on_later()
    with pytest.raises(ReinitializationRequired):
        reader.read_next_event(0)
    assert table.may_go.is_set(), "it handed out nothing before the table answered"


def test_reader_raises_what_its_refresh_met_when_its_lease_has_ended(table: SlowTable) -> None:
    events = table.world.write(50)
    reader = table.world.created().create_reader("a", lease="30 s")
    read(reader)
    table.refreshing(reader)
    table.world.store.rules.add(Rule(StoreError("down"), "*", f"*{TABLE}*"))
    table.clock.skip(31)
    table.go_on_later()
    with pytest.raises(StoreError, match="down"):
        reader.read_next_event(0)
    table.world.store.rules.clear()
    assert read(reader) == events[2]


def test_failed_refresh_is_logged_once_and_repeated(
    table: SlowTable, caplog: pytest.LogCaptureFixture
) -> None:
    events = table.world.write(50)
    reader = table.world.created().create_reader("a", lease="60 s")
    read(reader)
    table.world.store.rules.add(Rule(StoreError("down"), "*", f"*{TABLE}*"))
    for n in range(1, 31):
        table.clock.skip(0.6)
        assert read(reader) == events[n]
        time.sleep(0.005)
    (record,) = caplog.records
    assert "failed to refresh reader a of reader group s/g" in record.getMessage()
    assert len([call for call in table.calls if call[0] != READER]) > 5
    table.world.store.rules.clear()
    table.clock.skip(1.1)
    wait_for(
        lambda: reader.read_next_event(0) and not membership_of(reader).refreshes.is_unreachable
    )


def test_judges_of_leases_learn_that_a_refresh_failed(table: SlowTable) -> None:
    """Also one that only reads the state."""
    table.world.write(1)
    reader = table.world.created().create_reader("a", lease="30 s")
    assert read(reader)
    finish_refresh(reader)
    refreshes, watch = membership_of(reader).refreshes, watch_of(table.world.store)
    refreshes.run(0.0, RefreshInput(None))
    assert watch.outage_ended(30) == -math.inf
    began = table.clock.monotonic()
    table.world.store.rules.add(Rule(StoreError("down"), "*", f"*{TABLE}*"))
    with pytest.raises(StoreError):
        refreshes.run(0.0, RefreshInput(None))
    table.world.store.rules.clear()
    assert watch.outage_ended(30) >= began


def test_unexpected_error_of_a_refresh_is_raised_by_the_next_call(table: SlowTable) -> None:
    table.world.write(5)
    reader = table.world.created().create_reader("a")
    read(reader)
    table.refreshing(reader)
    table.world.store.rules.add(Rule(ZeroDivisionError("bug"), "*", f"*{TABLE}*"))
    table.go_on()
    membership_of(reader).refreshes.wait()
    with pytest.raises(ZeroDivisionError, match="bug"):
        reader.read_next_event(0)
    table.world.store.rules.clear()
    read(reader)


def test_reading_thread_makes_no_call_on_the_table_if_nothing_changes(table: SlowTable) -> None:
    table.world.write(500)
    reader = table.world.created().create_reader("a", lease="30 s")
    read(reader)
    table.world.store.rules.clear()
    table.calls.clear()
    for _ in range(10):
        table.clock.skip(11)
        read(reader)
        finish_refresh(reader)
        read(reader)
    assert len([c for c in table.calls if c[1] == "put" and c[2].endswith("a.json")]) == 10
    assert {operation for operation, _ in table.own_calls()} <= {"exists"}, "polls of a local disk"


def test_state_is_adopted_between_events_and_only_its_commit_delays_the_reader(
    table: SlowTable,
) -> None:
    world = table.world = World(4, clock=table.clock)
    world.store.hook = table._hook
    world.write(400)
    group = world.created()
    a = group.create_reader("a")
    read(a)
    world.group().create_reader("b")
    table.refreshing(a)
    table.calls.clear()
    table.go_on()
    membership_of(a).refreshes.wait()
    assert len(a.position.offsets) == 4, "nothing changes between two calls"
    assert group.distribution() == {"a": 4, "b": 0, None: 0}
    table.calls.clear()
    read(a)
    assert len(a.position.offsets) == 2
    assert group.distribution() == {"a": 2, "b": 0, None: 2}
    assert [op for op, key in table.own_calls() if op == "put_if_absent"] == ["put_if_absent"]


def test_close_waits_for_a_refresh_and_no_heartbeat_remains(table: SlowTable) -> None:
    table.world.write(50)
    group = table.world.created()
    reader = group.create_reader("a", lease="6 s")
    read(reader)
    table.refreshing(reader)
    assert any("_leases/a.json" in key for _, _, key in table.calls[-1:]), "amid a heartbeat"
    table.go_on_later()
    reader.close()
    assert table.may_go.is_set()
    assert group.online_readers() == []
    assert table.world.store.inner.list(f"s/{TABLE}_leases") == []


def test_close_after_a_refresh_that_failed_leaves_the_group(table: SlowTable) -> None:
    table.world.write(50)
    group = table.world.created()
    reader = group.create_reader("a")
    read(reader)
    table.refreshing(reader)
    table.world.store.rules.add(Rule(StoreError("down"), "*", f"*{TABLE}*"))
    table.go_on()
    membership_of(reader).refreshes.wait()
    table.world.store.rules.clear()
    reader.close()
    assert group.online_readers() == []


def test_checkpoint_is_published_in_the_background(table: SlowTable) -> None:
    world = table.world
    world.write(50)
    group = world.created(retention="automatic")
    reader = group.create_reader("a")
    read(reader)
    future = group.initiate_checkpoint("one")
    table.clock.skip(6)
    wait_for(lambda: reader.read_next_event(0).checkpoint == "one")
    table.hang("s/t/events/_delta_log")
    read(reader)
    assert future.done()
    assert table.begun.wait(30)
    for _ in range(5):
        read(reader)
    table.go_on_later()
    cut = future.result(0).stream_cuts[NAME]
    (found,) = listed(world.stream.view())
    assert found.cut == cut
    reader.close()


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_that_is_forked_during_a_refresh_is_refused_and_ends(table: SlowTable) -> None:
    table.world.write(50)
    reader = table.world.created().create_reader("a")
    read(reader)
    table.refreshing(reader)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            reader.read_next_event(0)
        except ForkedProcess:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    table.go_on()
    read(reader)


EXIT = """
import sys, threading
from tests.unit.reader_groups.test_background_refresh import SlowTable, read
table = SlowTable()
table.world.write(50)
reader = table.world.created().create_reader("a"{options})
read(reader)
table.refreshing(reader)
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "options"),
    [
        ("", ""),
        ("table.go_on_later(0.3)", ""),
        ("del reader", ""),
        ("", ", lease='5 s', max_poll_interval='10 s'"),
    ],
)
def test_process_that_exits_during_a_refresh_ends_soon_with_its_own_status(
    end: str, options: str
) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", EXIT.format(end=end, options=options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 30
