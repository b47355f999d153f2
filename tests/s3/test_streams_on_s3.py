"""Whole streams on a real S3 server: life, idle cost, races, unknown outcomes, other readers."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from pravega_spark import (
    Event,
    EventReader,
    EventStreamWriter,
    ScalingPolicy,
    StreamConfiguration,
    StreamCut,
    StreamManager,
)
from pravega_spark.engine import hygiene
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.fault_plans import Rule, Rules
from pravega_spark.engine.store.faults import Fault, FaultyStore
from pravega_spark.engine.store.probe import MARKER_KEY
from pravega_spark.engine.stream import Stream
from pravega_spark.errors import CommitUnknown, NoSuchStream, WriterFenced
from tests.s3server import S3Server

pytestmark = pytest.mark.s3

STREAM = "nyc/flights"
_roots = itertools.count(1)


@pytest.fixture
def manager(s3: S3Server) -> StreamManager:
    """A root of its own, with a stream of two segments."""
    root = f"s3://{s3.bucket}/streams-{next(_roots)}"
    manager = StreamManager(root, storage_options=s3.options)
    assert manager.create_scope("nyc")
    assert manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
    return manager


def anew(manager: StreamManager) -> StreamManager:
    """The same root as another process would open it."""
    copy: StreamManager = pickle.loads(pickle.dumps(manager))
    return copy


def keys(manager: StreamManager, folder: str = "") -> list[str]:
    return [entry.key for entry in manager._store.list(folder)]


class Patient(Runtime):
    """Time that passes by waiting for it only."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += seconds


def test_stream_lives_from_probe_to_deletion(manager: StreamManager) -> None:
    assert MARKER_KEY in keys(manager)
    assert not any(key.startswith("_probe/") for key in keys(manager))
    assert not manager.create_scope("nyc")
    assert not manager.create_stream(STREAM)

    with manager.create_writer(STREAM, writer_id="ingest") as writer:
        pointer = writer.write_event(b"first", "UA").result()
        writer.write_events([b"one", b"two"], "UA").result()
        writer.write_event("ünïcödé 🚀".encode()).result()
        writer.flush(note="row 4")
    other = anew(manager)
    assert other.fetch_event(pointer).data == b"first"
    with other.create_writer(STREAM, writer_id="ingest") as writer:
        assert (writer.last_event_number, writer.last_note) == (4, "row 4")
        writer.write_event(bytes(8 << 20), "large").result()
    events = list(manager.read(STREAM))
    assert [event.data for event in events if event.routing_key == "UA"] == [
        b"first",
        b"one",
        b"two",
    ]
    assert len(events) == len(list(other.follow(STREAM, StreamCut.EARLIEST, timeout=0.1))) == 5

    assert manager.seal_stream(STREAM)
    assert len(list(other.follow(STREAM, StreamCut.EARLIEST))) == 5
    assert manager.delete_stream(STREAM)
    assert not any(key.endswith(".parquet") for key in keys(manager, f"{STREAM}/events"))
    assert not other.stream_exists(STREAM)
    with pytest.raises(NoSuchStream):
        other.create_writer(STREAM)
    assert other.create_stream(STREAM)
    assert manager.stream_info(STREAM).life == 2
    assert manager.delete_scope("nyc", recursive=True)
    assert manager.list_scopes() == []


def test_state_files_and_checkpoint_serve_who_comes_next(manager: StreamManager) -> None:
    with manager.create_writer(STREAM) as writer:
        for number in range(12):
            writer.write_event(b"%d" % number, f"key {number}").result()
            if number in {4, 8}:
                stream = manager._stream(STREAM)
                version = stream.view().version
                hygiene.maintain(stream.log.reader, version, checkpoint=True)
    calls: list[str] = []
    store = FaultyStore(manager._store, lambda operation, key: calls.append(operation))
    reader = EventReader(Stream(store, STREAM))
    assert sorted(int(event.data) for event in reader.events()) == list(range(12))


def test_idle_follower_asks_the_store_at_most_once_a_second(manager: StreamManager) -> None:
    with manager.create_writer(STREAM) as writer:
        writer.write_event(b"only").result()
    runtime = Patient()
    calls: list[tuple[float, str, str]] = []
    store = FaultyStore(
        manager._store, lambda operation, key: calls.append((runtime.elapsed, operation, key))
    )
    reader = EventReader(Stream(store, STREAM, runtime))
    events = list(reader.follow(StreamCut.EARLIEST, timeout=60.0))
    assert [event.data for event in events] == [b"only"]
    assert runtime.elapsed >= 60.0

    settled = [(operation, key) for at, operation, key in calls if at > 5.0]
    assert 20 <= len(settled) <= runtime.elapsed - 5.0
    assert set(settled) == {("get", f"{STREAM}/events/_delta_log/{2:020d}.json")}
    unsettled = [operation for at, operation, _ in calls if 0.0 < at <= 5.0]
    assert len(unsettled) <= 6


RACERS, BATCHES, BATCH_EVENTS = 8, 2, 25


def _race(manager: StreamManager, racer: int, start: Any) -> None:
    assert manager.stream_exists(STREAM)  # so that connecting takes no part in the race
    start.wait()
    with manager.create_writer(STREAM, writer_id=f"racer-{racer}") as writer:
        for batch in range(BATCHES):
            for number in range(batch * BATCH_EVENTS, (batch + 1) * BATCH_EVENTS):
                writer.write_event(b"%d:%d" % (racer, number), f"key {number % 3}")
            writer.flush()


def test_racing_writers_write_every_event_once_and_in_order(
    manager: StreamManager, s3: S3Server
) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(RACERS, timeout=120)
    racers = [
        context.Process(target=_race, args=(manager, racer, start)) for racer in range(RACERS)
    ]
    for process in racers:
        process.start()
    for process in racers:
        process.join(200)
        assert process.exitcode == 0
        process.close()

    events = list(anew(manager).read(STREAM))
    total = BATCHES * BATCH_EVENTS
    written = Counter(
        b"%d:%d" % (racer, number) for racer in range(RACERS) for number in range(total)
    )
    assert Counter(event.data for event in events) == written
    last: dict[tuple[str | None, int], int] = {}
    for event in events:
        racer, number = map(int, event.data.split(b":"))
        assert event.routing_key == f"key {number % 3}"
        assert last.get((event.routing_key, racer), -1) < number
        last[event.routing_key, racer] = number
    by_segment: dict[int, list[int]] = {}
    for event in events:
        by_segment.setdefault(event.segment_id, []).append(event.offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_segment.values())
    for racer in range(RACERS):
        with manager.create_writer(STREAM, writer_id=f"racer-{racer}") as writer:
            assert writer.last_event_number == total
    assert_delta_rs_agrees(manager, s3, events)


def delta_rs_options(s3: S3Server) -> dict[str, str]:
    return {**s3.environment, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}


def assert_delta_rs_agrees(manager: StreamManager, s3: S3Server, events: list[Event]) -> None:
    url = f"{manager.root}/{STREAM}/events"
    table = DeltaTable(url, storage_options=delta_rs_options(s3)).to_pyarrow_table()
    names = ["segment_id", "base_offset", "offset_delta", "routing_key", "event"]
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    assert Counter(
        (segment, base + delta, *rest) for segment, base, delta, *rest in rows
    ) == Counter(
        (event.segment_id, event.offset, event.routing_key, event.data) for event in events
    )


def test_delta_rs_reads_every_version_and_may_not_write(
    manager: StreamManager, s3: S3Server
) -> None:
    with manager.create_writer(STREAM) as writer:
        for number in range(5):
            writer.write_event(b"%d" % number).result()
    stream = manager._stream(STREAM)
    hygiene.maintain(stream.log.reader, 3, checkpoint=True)
    assert_delta_rs_agrees(manager, s3, list(manager.read(STREAM)))
    url, options = f"{manager.root}/{STREAM}/events", delta_rs_options(s3)
    counts = [
        DeltaTable(url, version=version, storage_options=options).to_pyarrow_table().num_rows
        for version in range(6)
    ]
    assert counts == [0, 1, 2, 3, 4, 5]
    before = keys(manager, f"{STREAM}/events/_delta_log")
    rows = DeltaTable(url, storage_options=options).to_pyarrow_table()
    for write in (
        lambda: write_deltalake(url, rows, mode="append", storage_options=options),
        lambda: DeltaTable(url, storage_options=options).delete(),
    ):
        with pytest.raises(CommitFailedError, match="pravega-stream"):
            write()
    assert keys(manager, f"{STREAM}/events/_delta_log") == before
    scope = DeltaTable(f"{manager.root}/nyc/_scope", storage_options=options)
    assert scope.to_pyarrow_table(columns=["name"]).to_pylist() == [{"name": "flights"}]
    assert isinstance(rows, pa.Table)


def writer_on(manager: StreamManager, rules: Rules) -> tuple[EventStreamWriter, FaultyStore]:
    store = FaultyStore(manager._store, rules)
    return EventStreamWriter(Stream(store, STREAM, Patient()), "ingest"), store


def test_lost_answer_to_a_commit_is_not_a_second_commit(manager: StreamManager) -> None:
    rules = Rules()
    writer, store = writer_on(manager, rules)
    with writer:
        rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", "*/_delta_log/*", nth=1))
        rules.add(Rule(Fault.LOSE_REQUEST, "put_if_absent", "*/_delta_log/*", nth=2))
        for number in range(3):
            writer.write_event(b"%d" % number, "UA").result()
    assert len(store.fired) == 2
    assert [event.data for event in manager.read(STREAM)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("fault", "landed"),
    [(Fault.LOSE_ANSWER, 2), (Fault.LOSE_REQUEST, 1), (Fault.DELAY, 1)],
    ids=lambda value: value.value if isinstance(value, Fault) else "",
)
def test_unknown_commit_is_settled_by_whoever_opens_the_writer_next(
    manager: StreamManager, fault: Fault, landed: int
) -> None:
    rules = Rules()
    writer, store = writer_on(manager, rules)
    writer.write_event(b"0", "UA").result()
    # From here on this process gets no answer any more, whatever it asks about the log.
    rules.add(Rule(fault, "put_if_absent", "*/_delta_log/*"))
    rules.add(Rule(Fault.REFUSE, "get", "*/_delta_log/*"))
    unknown = writer.write_event(b"1", "UA")
    with pytest.raises(CommitUnknown, match=r"nobody can tell whether version 3 was committed"):
        unknown.result(timeout=60)
    with pytest.raises(CommitUnknown):
        writer.write_event(b"2", "UA")

    with anew(manager).create_writer(STREAM, writer_id="ingest") as next_writer:
        assert next_writer.last_event_number == landed
        store.deliver()  # what was on its way arrives at last, and comes too late
        for number in range(landed, 3):
            next_writer.write_event(b"%d" % number, "UA").result()
    rules.clear()
    assert [event.data for event in anew(manager).read(STREAM)] == [b"0", b"1", b"2"]


def test_zombie_of_a_writer_id_is_fenced(manager: StreamManager) -> None:
    zombie = manager.create_writer(STREAM, writer_id="ingest")
    zombie.write_event(b"0", "UA").result()
    with anew(manager).create_writer(STREAM, writer_id="ingest") as heir:
        with pytest.raises(WriterFenced):
            zombie.write_event(b"lost", "UA").result()
        heir.write_event(b"1", "UA").result()
    assert [event.data for event in manager.read(STREAM)] == [b"0", b"1"]
