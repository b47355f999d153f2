"""Verbs beside a writer that always commits while they decide: they get their turn by a request.

The other writer commits inside the log's own decision, so that each verb loses as often as it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.log import retained
from pravega_spark.engine.log.actions import REQUEST
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.state.state_table import StateTable, TableChange, TableState
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.values.limits import REQUEST_AFTER
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.small_streams import reopen, write

MOST_COMMITS = 16
STREAM = "s/t"


class Crowd:
    """A writer that commits after each decision of others, unless they requested the version.

    Each decision of the others takes so many seconds.
    """

    def __init__(
        self, stream: StreamLog, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0
    ) -> None:
        self.stream = stream
        self.versions: set[int] = set()
        """The versions that it committed."""
        self._is_writing = False
        original = Log._decide
        path = stream.log.path

        def decide(log: Log, *args: Any, **options: Any) -> Any:
            decided = original(log, *args, **options)
            if log.path == path and not self._is_writing:
                log.runtime.sleep(seconds)
                self.write()
            return decided

        monkeypatch.setattr(Log, "_decide", decide)

    def write(self) -> None:
        self._is_writing = True
        self.stream.log.refresh()
        if self.stream.log._follower.left_to_requester(None) <= 0:
            self.versions.add(write(self.stream, [("k", b"x")]).version)
        self._is_writing = False


def manager_with_stream() -> StreamManager:
    manager = manager_of(FakeRuntime())
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
    with manager.create_writer(STREAM) as writer:
        writer.write_events([b"a", b"b"], "k").result()
    return manager


def scale(manager: StreamManager) -> Callable[[], object]:
    old = manager.segments(STREAM)[0]
    return lambda: manager.scale_stream(STREAM, [old], [(0.0, 0.25), (0.25, 0.5)])


def truncate(manager: StreamManager) -> Callable[[], object]:
    tail = manager.tail(STREAM)
    return lambda: manager.truncate_stream(STREAM, tail)


def update(manager: StreamManager) -> Callable[[], object]:
    return lambda: manager.update_stream(STREAM, add_tags=["a"])


def publish(manager: StreamManager) -> Callable[[], object]:
    manager.subscribe(STREAM, "reports")
    tail = manager.tail(STREAM)
    return lambda: manager.publish(STREAM, "reports", tail)


def commit(manager: StreamManager) -> Callable[[], object]:
    transaction = manager.create_transactional_writer(STREAM).begin_transaction()
    transaction.write_event(b"t", "k")
    transaction.flush()
    return transaction.commit


def abort(manager: StreamManager) -> Callable[[], object]:
    transaction = manager.create_transactional_writer(STREAM).begin_transaction()
    transaction.write_event(b"t", "k")
    return transaction.abort


def begin(manager: StreamManager) -> Callable[[], object]:
    writer = manager.create_transactional_writer(STREAM)
    return writer.begin_transaction


def open_writer(manager: StreamManager) -> Callable[[], object]:
    return lambda: manager.create_writer(STREAM, writer_id="w").close()


def write_with_note(manager: StreamManager) -> Callable[[], object]:
    writer = manager.create_writer(STREAM, writer_id="w")

    def flush() -> None:
        writer.write_event(b"n", "k")
        writer.flush("a note is never offered")

    return flush


def seal(manager: StreamManager) -> Callable[[], object]:
    return lambda: manager.seal_stream(STREAM)


def save_cut(manager: StreamManager) -> Callable[[], object]:
    tail = manager.tail(STREAM)
    return lambda: manager.save_cut(STREAM, "night", tail)


def pin(manager: StreamManager) -> Callable[[], object]:
    log = manager.stream(STREAM)._log().log
    return lambda: retained.pin(log, "copy", keep_ms=60_000)


def add_row(table: StateTable, name: str) -> None:
    def decide(state: TableState) -> tuple[TableChange, None]:
        return TableChange("ADD", {**state.rows, name: {"name": name}}), None

    table.change(decide)


VERBS = [scale, truncate, update, publish, commit, abort, begin, open_writer, write_with_note, seal]
VERBS += [save_cut, pin]


@pytest.mark.parametrize("seconds", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("prepare", VERBS, ids=lambda verb: verb.__name__)
def test_verb_that_loses_every_race_waits_for_few_commits(
    prepare: Callable[[StreamManager], Callable[[], object]],
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = manager_with_stream()
    verb = prepare(manager)
    other = reopen(open_stream(manager.root, STREAM))
    before = other.view().version
    crowd = Crowd(other, monkeypatch, seconds)
    verb()
    monkeypatch.undo()
    commits = list(other.log.reader.span(before, other.view().version))
    assert len(crowd.versions) >= (1 if seconds else REQUEST_AFTER), "it lost no race"
    wait, waits = 0, []
    for commit in commits:
        if commit.operation == REQUEST or commit.version in crowd.versions:
            wait += 1
        else:
            waits.append(wait)
            wait = 0
    assert waits
    assert max(waits) <= MOST_COMMITS


@pytest.mark.parametrize("seconds", [0.0, 0.5, 5.0])
def test_change_of_a_state_table_that_loses_every_race_gets_its_turn(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes add rows to one table; the other one commits while this one decides."""
    runtime = FakeRuntime()
    store = MemoryStore(clock_ms=runtime.now_ms)
    schema = pa.schema([("name", pa.string())])
    mine, other = (StateTable(store, "s/_t", schema, "name", runtime) for _ in "ab")
    original, lost = Log._decide, 0

    def decide(log: Log, *args: Any, **options: Any) -> Any:
        nonlocal lost
        decided = original(log, *args, **options)
        if log is mine.log:
            runtime.sleep(seconds)
            other.log.refresh()
            if other.log._follower.left_to_requester(None) <= 0:
                lost += 1
                add_row(other, f"other-{lost}")
        return decided

    add_row(other, "first")
    monkeypatch.setattr(Log, "_decide", decide)
    add_row(mine, "mine")
    assert lost == (1 if seconds else REQUEST_AFTER)
    assert set(mine.read().rows) == {"first", "mine", *(f"other-{n + 1}" for n in range(lost))}


def test_verb_that_changes_nothing_decides_twice_at_most_while_others_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = manager_with_stream()
    manager.update_stream(STREAM, add_tags=["a"])
    stream = open_stream(manager.root, STREAM)
    other = reopen(stream)
    catch_up, decisions = Log._catch_up, 0

    def write_first(log: Log) -> None:
        """Commit while the log is read on, as fast as it can be read."""
        if log is stream.log:
            write(other, [("k", b"x")])
        catch_up(log)

    monkeypatch.setattr(Log, "_catch_up", write_first)

    def decide(snapshot: Any) -> tuple[None, int]:
        nonlocal decisions
        decisions += 1
        assert decisions < 10
        return None, snapshot.version

    newest = other.view().version
    found = stream.log.commit(decide)
    assert decisions == 2
    assert found.value > newest, "decided on what was the newest version within the call"
