"""Streams on a real S3 server: lifecycle, idle cost, races, unknown outcomes, other readers."""

from __future__ import annotations

import gzip
import itertools
import pickle
import threading
from collections import Counter
from pathlib import Path
from typing import Any

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
from pravega_spark.cli import main
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import BatchConflict, CommitUnknown, NoSuchStream, WriterFenced
from pravega_spark.manager import root_of
from tests.harness.drawn_lives import DRAWN
from tests.harness.fault_plans import Rule, Rules
from tests.harness.faulty_store import Fault, FaultyStore
from tests.harness.query_checkpoints import Query
from tests.harness.s3_server import S3Server
from tests.harness.spark_writing import rows
from tests.harness.warm_children import FORKED

pytestmark = pytest.mark.s3

_streams = itertools.count(1)


@pytest.fixture(scope="module")
def manager(s3: S3Server) -> StreamManager:
    """A manager of a root, which the server's tests share."""
    manager = StreamManager(f"s3://{s3.bucket}/streams", storage_options=s3.options)
    assert manager.create_scope("nyc")
    return manager


@pytest.fixture
def stream(manager: StreamManager) -> str:
    """A new stream of two segments."""
    name = f"nyc/flights-{next(_streams)}"
    assert manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(2)))
    return name


def reopen(manager: StreamManager) -> StreamManager:
    """Open the same root as another process would."""
    copy: StreamManager = pickle.loads(pickle.dumps(manager))
    return copy


def keys(manager: StreamManager, folder: str = "") -> list[str]:
    return [entry.key for entry in root_of(manager).store.list(folder)]


class SleepOnlyRuntime(Runtime):
    """A runtime whose time passes only in ``sleep`` and in waits, which nothing ends early."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += seconds

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        assert seconds is not None
        self.elapsed += seconds


def test_stream_passes_through_its_whole_lifecycle(manager: StreamManager, stream: str) -> None:
    assert MARKER_KEY in keys(manager)
    assert not any(key.startswith("_probe/") for key in keys(manager))
    assert not manager.create_scope("nyc")
    assert not manager.create_stream(stream)
    assert f"{stream}/events/_delta_log/{0:020d}.json" in keys(manager, stream)

    with manager.create_writer(stream, writer_id="ingest") as writer:
        pointer = writer.write_event(b"first", "UA").result()
        writer.write_events([b"one", b"two"], "UA").result()
        writer.write_event("ünïcödé 🚀".encode()).result()
        writer.flush(note="row 4")
    other = reopen(manager)
    assert other.fetch_event(pointer).data == b"first"
    with other.create_writer(stream, writer_id="ingest") as writer:
        assert (writer.last_event_number, writer.last_note) == (4, "row 4")
        writer.write_event(bytes(8 << 20), "large").result()
    events = list(manager.read(stream))
    by_key = [event.data for event in events if event.routing_key == "UA"]
    assert by_key == [b"first", b"one", b"two"]
    assert len(events) == len(list(other.follow(stream, StreamCut.EARLIEST, timeout=0.1))) == 5

    assert manager.seal_stream(stream)
    assert len(list(other.follow(stream, StreamCut.EARLIEST))) == 5
    assert manager.delete_stream(stream)
    assert not any(key.endswith(".parquet") for key in keys(manager, f"{stream}/events"))
    assert not other.stream_exists(stream)
    with pytest.raises(NoSuchStream):
        other.create_writer(stream)
    assert other.create_stream(stream)
    assert manager.stream_info(stream).life > DRAWN
    assert manager.create_scope("sfo")
    assert manager.create_stream("sfo/flights")
    assert manager.list_scopes() == ["nyc", "sfo"]
    assert manager.delete_scope("sfo", recursive=True)
    assert manager.list_scopes() == ["nyc"]


def test_new_reader_starts_from_state_files_and_checkpoint(
    manager: StreamManager, stream: str
) -> None:
    with manager.create_writer(stream) as writer:
        for number in range(12):
            writer.write_event(b"%d" % number, f"key {number}").result()
            if number in {4, 8}:
                log = root_of(manager).stream(stream).log
                snapshot = log.refresh()
                assert snapshot is not None
                checkpoint.maintain(log.reader, snapshot.version, checkpoint=True)
    calls: list[str] = []
    store = FaultyStore(root_of(manager).store, lambda operation, key: calls.append(key))
    reader = EventReader(StreamLog(store, stream))
    assert sorted(int(event.data) for event in reader.events()) == list(range(12))
    fetched = {int(key[-25:-5]) for key in calls if "_delta_log/" in key and key.endswith(".json")}
    assert fetched
    assert min(fetched) >= 9  # the version of the last state file and checkpoint


def test_idle_follower_polls_the_store_at_most_once_a_second(
    manager: StreamManager, stream: str
) -> None:
    with manager.create_writer(stream) as writer:
        writer.write_event(b"only").result()
    runtime = SleepOnlyRuntime()
    calls: list[tuple[float, str, str]] = []
    store = FaultyStore(
        root_of(manager).store,
        lambda operation, key: calls.append((runtime.elapsed, operation, key)),
    )
    reader = EventReader(StreamLog(store, stream, runtime))
    events = list(reader.follow(StreamCut.EARLIEST, timeout=60.0))
    assert [event.data for event in events] == [b"only"]
    assert runtime.elapsed >= 60.0

    steady = [(operation, key) for at, operation, key in calls if at > 10.0]
    assert 20 <= len(steady) <= runtime.elapsed - 10.0
    assert set(steady) == {("get", f"{stream}/events/_delta_log/{2:020d}.json")}
    assert sum(0.0 < at <= 10.0 for at, *_ in calls) <= 100  # more often at first


RACERS, BATCHES, BATCH_EVENTS = 8, 2, 25


def _race(manager: StreamManager, stream: str, racer: int, start: Any) -> None:
    assert manager.stream_exists(stream)  # connect before the race starts
    start.wait()
    with manager.create_writer(stream, writer_id=f"racer-{racer}") as writer:
        for batch in range(BATCHES):
            for number in range(batch * BATCH_EVENTS, (batch + 1) * BATCH_EVENTS):
                writer.write_event(b"%d:%d" % (racer, number), f"key {number % 3}")
            writer.flush()


def test_racing_writers_write_each_event_once_in_order(
    manager: StreamManager, stream: str, s3: S3Server
) -> None:
    start = FORKED.Barrier(RACERS, timeout=120)
    racers = [
        FORKED.Process(target=_race, args=(manager, stream, racer, start))
        for racer in range(RACERS)
    ]
    for process in racers:
        process.start()
    for process in racers:
        process.join(200)
        assert process.exitcode == 0
        process.close()

    events = list(reopen(manager).read(stream))
    total = BATCHES * BATCH_EVENTS
    written = [b"%d:%d" % cell for cell in itertools.product(range(RACERS), range(total))]
    assert sorted(event.data for event in events) == sorted(written)
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
        with manager.create_writer(stream, writer_id=f"racer-{racer}") as writer:
            assert writer.last_event_number == total
    assert_delta_rs_agrees(manager, stream, s3, events)


def assert_delta_rs_agrees(
    manager: StreamManager, stream: str, s3: S3Server, events: list[Event]
) -> None:
    url = f"{manager.root}/{stream}/events"
    table = DeltaTable(url, storage_options=s3.delta_rs_options).to_pyarrow_table()
    names = ["segment_id", "base_offset", "offset_delta", "routing_key", "event"]
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    seen = Counter((segment, base + delta, key, data) for segment, base, delta, key, data in rows)
    assert seen == Counter(
        (event.segment_id, event.offset, event.routing_key, event.data) for event in events
    )


def test_delta_rs_reads_every_version_and_may_not_write(
    manager: StreamManager, stream: str, s3: S3Server
) -> None:
    with manager.create_writer(stream) as writer:
        for number in range(5):
            writer.write_event(b"%d" % number).result()
    log = root_of(manager).stream(stream).log
    checkpoint.maintain(log.reader, 3, checkpoint=True)
    assert_delta_rs_agrees(manager, stream, s3, list(manager.read(stream)))
    url, options = f"{manager.root}/{stream}/events", s3.delta_rs_options
    counts = [
        DeltaTable(url, version=version, storage_options=options).to_pyarrow_table().num_rows
        for version in range(6)
    ]
    assert counts == [0, 1, 2, 3, 4, 5]
    before = keys(manager, f"{stream}/events/_delta_log")
    rows = DeltaTable(url, storage_options=options).to_pyarrow_table()
    for write in (
        lambda: write_deltalake(url, rows, mode="append", storage_options=options),
        lambda: DeltaTable(url, storage_options=options).delete(),
    ):
        with pytest.raises(CommitFailedError, match="pravega-stream"):
            write()
    assert keys(manager, f"{stream}/events/_delta_log") == before
    scope = DeltaTable(f"{manager.root}/nyc/_scope", storage_options=options)
    names = scope.to_pyarrow_table(columns=["name"]).column("name").to_pylist()
    assert sorted(f"nyc/{name}" for name in names) == manager.list_streams("nyc")


def writer_on(
    manager: StreamManager, stream: str, rules: Rules
) -> tuple[EventStreamWriter, FaultyStore]:
    store = FaultyStore(root_of(manager).store, rules)
    return EventStreamWriter(StreamLog(store, stream, SleepOnlyRuntime()), "ingest"), store


def test_lost_answer_to_a_commit_causes_no_second_commit(
    manager: StreamManager, stream: str
) -> None:
    rules = Rules()
    writer, store = writer_on(manager, stream, rules)
    with writer:
        rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", "*/_delta_log/*", nth=1))
        rules.add(Rule(Fault.LOSE_REQUEST, "put_if_absent", "*/_delta_log/*", nth=2))
        for number in range(3):
            writer.write_event(b"%d" % number, "UA").result()
    assert len(store.fired) == 2
    assert [event.data for event in manager.read(stream)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("fault", "landed"),
    [(Fault.LOSE_ANSWER, 2), (Fault.LOSE_REQUEST, 1), (Fault.DELAY, 1)],
    ids=lambda value: value.value if isinstance(value, Fault) else "",
)
def test_next_session_of_the_writer_resolves_an_unknown_commit(
    manager: StreamManager, stream: str, fault: Fault, landed: int
) -> None:
    rules = Rules()
    writer, store = writer_on(manager, stream, rules)
    writer.write_event(b"0", "UA").result()
    # From now on this process gets no answer about the log.
    rules.add(Rule(fault, "put_if_absent", "*/_delta_log/*"))
    rules.add(Rule(Fault.REFUSE, "get", "*/_delta_log/*"))
    unknown = writer.write_event(b"1", "UA")
    with pytest.raises(CommitUnknown, match=r"unknown whether version 3 was committed"):
        unknown.result(timeout=60)
    with pytest.raises(CommitUnknown):
        writer.write_event(b"2", "UA")

    with reopen(manager).create_writer(stream, writer_id="ingest") as next_writer:
        assert next_writer.last_event_number == landed
        store.deliver()  # the delayed put arrives too late
        for number in range(landed, 3):
            next_writer.write_event(b"%d" % number, "UA").result()
    rules.clear()
    assert [event.data for event in reopen(manager).read(stream)] == [b"0", b"1", b"2"]


def test_older_session_of_a_writer_id_is_fenced(manager: StreamManager, stream: str) -> None:
    old_writer = manager.create_writer(stream, writer_id="ingest")
    old_writer.write_event(b"0", "UA").result()
    with reopen(manager).create_writer(stream, writer_id="ingest") as new_writer:
        with pytest.raises(WriterFenced):
            old_writer.write_event(b"lost", "UA").result()
        new_writer.write_event(b"1", "UA").result()
    assert [event.data for event in manager.read(stream)] == [b"0", b"1"]


def test_settings_of_a_root_are_those_of_every_process(manager: StreamManager) -> None:
    other = reopen(manager)
    before = other.settings()
    manager.update_settings(grace="2 hours")
    assert other.settings().text("grace") == "2 hours"
    other.update_settings(retain="3 days")
    assert manager.settings().summary(["grace", "retain"]) == (
        "grace=2 hours (root), retain=3 days (root)"
    )
    manager.update_settings(grace=None, retain=None)
    assert other.settings() == before


def test_sink_reads_its_querys_checkpoint_on_s3(
    manager: StreamManager, s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    query = Query(tmp_path / "root", tmp_path / "checkpoint")
    query.location = f"s3a://{s3.bucket}/checkpoint"
    store = open_store(query.location)

    def write(number: int, end: int) -> None:
        query.plan(number, {"end": end})
        for file in query.checkpoint.rglob("*"):
            if file.is_file():
                store.put(str(file.relative_to(query.checkpoint)), file.read_bytes())
        query.write(number, rows(number, end))

    write(0, 3)
    write(0, 3)
    (query.checkpoint / "offsets/0").unlink()
    with pytest.raises(BatchConflict, match="its sources end elsewhere"):
        write(0, 5)


def test_append_reads_a_file_of_the_bucket(
    s3: S3Server, stream: str, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"".join(b"%d\n" % number for number in range(1_000))
    store = open_store(f"s3://{s3.bucket}/files", **s3.options)
    store.put("lines.log.gz", gzip.compress(lines))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
    url = f"s3://{s3.bucket}/files/lines.log.gz"
    assert main(["stream", "append", stream, url, "--root", manager.root]) == 0
    assert sum(event.data is not None for event in manager.read(stream)) == 1_000
