"""Calls that look up chunks while another call moves the head of the stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pravega_spark import RetentionPolicy, StreamManager
from pravega_spark.engine.stream import stream_log, truncation
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import TruncatedData
from pravega_spark.manager import manager_over
from pravega_spark.values.segments import StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.simulated_kills import Killed, kill
from tests.harness.spy_store import Spy

S, GROUP = "s/t", "s/g"
CHUNKS, ROWS = 24, 4


def at(offset: int) -> StreamCut:
    return StreamCut(S, 1, {0: offset})


def made(store: Spy | None = None) -> StreamManager:
    """A manager with a stream of one segment whose head lies within its first chunk."""
    runtime = FakeRuntime()
    manager = manager_of(runtime) if store is None else manager_over(store, runtime)
    manager.create_scope("s")
    manager.create_stream(S)
    for n in range(CHUNKS):
        with manager.create_writer(S) as writer:
            writer.write_events([b"%d" % (n * ROWS + i) for i in range(ROWS)])
    manager.truncate_stream(S, at(1))
    return manager


def move_head_after_each_view(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Truncate one chunk further whenever a call has taken a view; return the heads left to set.

    So does another thread of the process, which has the same log.
    """
    take = StreamLog.view
    heads = [1 + n * ROWS for n in range(times, 0, -1)]
    moving = list[bool]()

    def view(self: StreamLog, refresh: bool = True, *, life: int | None = None) -> StreamView:
        found = take(self, refresh, life=life)
        if self.name == S and refresh and heads and not moving:
            moving.append(True)
            truncation.truncate(self, at(heads.pop()), past_subscribers=True)
            moving.pop()
        return found

    monkeypatch.setattr(StreamLog, "view", view)
    return heads


def record_no_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make heads without their bytes, as a truncation does that cannot read its chunks."""
    monkeypatch.setattr(truncation, "_sizes", lambda *_: {})


CALLS: dict[str, Callable[[StreamManager], object]] = {
    "stream_info": lambda m: m.stream_info(S).events,
    "distance": lambda m: m.distance(S, "earliest", "latest"),
    "cut_at": lambda m: m.create_reader(S).cut_at(0),
    "subscribe": lambda m: m.subscribe(S, "job"),
    "subscribe earliest": lambda m: m.subscribe(S, "job", "earliest"),
    "create_reader_group": lambda m: m.create_reader_group(GROUP, [S], retention="manual"),
    "explain": lambda m: m.retention(S).explain(policy=RetentionPolicy.by_size("1 KB")),
    "run": lambda m: m.retention(S).run(),
}


@pytest.mark.medium
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_call_whose_head_is_truncated_looks_again(
    call: str, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not recorded:
        record_no_sizes(monkeypatch)
    manager = made()
    manager.update_stream(S, retention=RetentionPolicy.by_consumption(maximum="30 b"))
    left = move_head_after_each_view(monkeypatch, 9)
    CALLS[call](manager)
    monkeypatch.undo()
    assert len(left) < 9, "no truncation came in between"
    if "subscribe" in call or "group" in call:
        (held,) = manager.list_subscribers(S)
        assert held.cut is not None
        assert held.cut.positions[0] >= 1 + ROWS


def test_truncation_during_every_look_up_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    record_no_sizes(monkeypatch)
    manager = made()
    monkeypatch.setattr(stream_log, "LOOK_UPS_OF_A_MOVING_HEAD", 4)
    left = move_head_after_each_view(monkeypatch, 20)
    with pytest.raises(TruncatedData):
        manager.distance(S, "earliest", "latest")
    assert 0 < len(left) <= 16


def test_start_that_is_truncated_is_refused_after_one_look() -> None:
    manager = made()
    with pytest.raises(TruncatedData) as refused:
        manager.distance(S, at(0), "latest")
    assert refused.value.head == at(1)


def test_bytes_before_the_head_come_from_its_record() -> None:
    store = Spy()
    manager = made(store)
    size = sum(len(b"%d" % n) for n in range(1, CHUNKS * ROWS))
    store.calls.clear()
    assert manager.stream_info(S).size_bytes == size
    assert manager.distance(S, "earliest", "latest")[1] == size
    assert not [key for _, key in store.calls if key.endswith(".parquet")]


@pytest.mark.parametrize("next_call", ["lag", "reader_group", "create_reader_group"])
def test_group_whose_creation_ended_before_its_subscription_is_repaired(next_call: str) -> None:
    manager = made()
    with at_failpoint("group.change.noted", kill), pytest.raises(Killed):
        manager.create_reader_group(GROUP, [S], retention="manual")
    assert manager.list_reader_groups("s") == [GROUP]
    assert manager.list_subscribers(S) == []
    if next_call == "create_reader_group":
        manager.create_reader_group(GROUP, [S], retention="manual")
    else:
        group = manager.reader_group(GROUP)
        assert next_call == "reader_group" or group.lag()
    assert [found.name for found in manager.list_subscribers(S)] == [GROUP]
