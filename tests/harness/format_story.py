"""A story that writes every object, domain and operation of docs/FORMAT.md at least once."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from pravega_spark import (
    EncryptionPolicy,
    KeyValueTableConfiguration,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    StreamCut,
    StreamManager,
    TableInsert,
    TablePut,
)
from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.root_settings import AUTO
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.log import checkpoint, sweep_record
from pravega_spark.engine.state.due_hints import basis_of
from pravega_spark.engine.state.maintenance_table import JOB, MaintenanceTable, RunProgress
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.identity import BatchOrigin, BatchSource, NumberedBatch
from pravega_spark.engine.writing.split_batch import SplitBatch, StreamPart
from pravega_spark.errors import TxnFailed
from pravega_spark.event_time import update as watermark_update
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.maintenance.work import stream_hints
from pravega_spark.manager import manager_over, root_of
from pravega_spark.scaling import auto
from pravega_spark.spark.key_value.key_hashes import KeyHashes
from pravega_spark.values.limits import MAX_EVENT_BYTES, MESSAGE_KEYS
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import DatedDisk, FakeRuntime
from tests.harness.offering import commit_offers, offer
from tests.harness.small_streams import write

STREAM, GROUP = "nyc/flights", "nyc/dashboards"
FARES = "nyc/fares"
HOUR = 3_600
ROOT, COPY, RESTORED = "streams", "backup", "restored"


class Clock(FakeRuntime):
    """Clocks that the story moves, and tokens as the package makes them, from a seed."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens = random.Random(7)

    def token(self) -> str:
        return self._tokens.randbytes(12).hex()

    def boot_id(self) -> str:
        return "5e4b2a6c-90d1-4f0e-8a57-3c1d8b6e2f90"


@dataclass
class Story:
    """What was written: by root and key, every content that an object has had, in order."""

    folder: Path
    written: dict[tuple[str, str], list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def of(self, key: str, root: str = ROOT) -> list[bytes]:
        return self.written.get((root, key), [])

    def commits(self, table: str, root: str = ROOT) -> Iterator[list[dict[str, Any]]]:
        """The commits of a table as they were written, as lists of actions."""
        prefix = f"{table}/_delta_log/"
        for (found, key), contents in self.written.items():
            if found == root and key.startswith(prefix) and key.endswith(".json"):
                for content in contents:
                    yield [json.loads(line) for line in content.splitlines()]

    def tables(self) -> set[tuple[str, str]]:
        """Every table that has a log, by root and path."""
        logs = ((root, key.partition("/_delta_log/")) for root, key in self.written)
        return {(root, path) for root, (path, found, _) in logs if found}

    def domains(self) -> dict[str, list[str]]:
        """Every domain that a commit set, with its values."""
        found: dict[str, list[str]] = defaultdict(list)
        for root, table in sorted(self.tables()):
            for actions in self.commits(table, root):
                for action in actions:
                    record = action.get("domainMetadata")
                    if record is not None and not record["removed"]:
                        found[record["domain"]].append(record["configuration"])
        return found

    def operations(self) -> dict[str, list[dict[str, Any]]]:
        """The ``commitInfo`` of every commit, by operation."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for root, table in sorted(self.tables()):
            for actions in self.commits(table, root):
                found[actions[0]["commitInfo"]["operation"]].append(actions[0]["commitInfo"])
        return found


@contextmanager
def _recorded(story: Story) -> Iterator[None]:
    """Record every put on a local disk below the story's folder."""
    put, stage, put_if_absent = LocalStore.put, LocalStore.stage, LocalStore.put_if_absent
    writer = LocalStore.writer

    def note(store: LocalStore, key: str, data: Any) -> None:
        root = Path(store.url.removeprefix("file://")).relative_to(story.folder)
        story.written[str(root), key].append(bytes(data))

    def noted_put(store: LocalStore, key: str, data: Any, **options: Any) -> None:
        put(store, key, data, **options)
        note(store, key, data)

    def noted_stage(store: LocalStore, objects: Any) -> None:
        stage(store, objects)
        for key, data in objects:
            note(store, key, data)

    def noted_create(store: LocalStore, key: str, data: bytes, **options: Any) -> Any:
        answer = put_if_absent(store, key, data, **options)
        if answer.value == "created":
            note(store, key, data)
        return answer

    @contextmanager
    def noted_writer(store: LocalStore, key: str) -> Iterator[Any]:
        with writer(store, key) as file:
            yield file
        note(store, key, store.get(key))

    with (
        patch.object(LocalStore, "put", noted_put),
        patch.object(LocalStore, "stage", noted_stage),
        patch.object(LocalStore, "writer", noted_writer),
        patch.object(LocalStore, "put_if_absent", noted_create),
    ):
        yield


def write_story(folder: Path) -> Story:
    """Write everything once; return what was written."""
    story = Story(folder)
    with _recorded(story):
        clock = Clock()
        manager = manager_over(DatedDisk(folder / ROOT, clock), clock)
        _begin(manager, clock)
        _transact(manager, clock)
        _read_in_a_group(manager, clock)
        _scale_and_truncate(manager, clock)
        _compact(manager, clock)
        _write_large_events(manager)
        _sweep(manager, clock)
        _state_in_several_files(manager)
        _maintain(manager, clock)
        _note_times(manager, clock)
        _copy(manager, clock, folder)
        _truncate_bytes(manager)
        _end(manager, clock)
        _share(manager)
        _keep_values(manager)
        _transact_jointly(manager)
        _encrypt(manager)
        _type(manager)
        _write_batches(manager)
    return story


class _FromQuery(BatchSource):
    """A batch of a query whose one source is Kafka."""

    parameters = {"offsets": ['{"flights":{"0":1204}}']}  # noqa: RUF012

    def origin(self, known: BatchOrigin | None) -> BatchOrigin:
        """Return where it comes from, with ids as Spark makes them."""
        query, run = "27bd005e-8398-4357-849f-26c4857a5e03", "e4a47027-ab29-4d04-9f11-df229e9d1aef"
        return BatchOrigin(query, run, 2, "5d27b2c1a7cb6d10d38f1c6f1bdb2b0e")


def _write_batches(manager: StreamManager) -> None:
    """A batch of a query, and one of several streams."""
    writer_id = "spark.27bd005e-8398-4357-849f-26c4857a5e03"
    parts = {"nyc/arrivals": StreamPart(1, 1), "nyc/delays": StreamPart(1, 1)}
    for name in parts:
        manager.create_stream(name)
    SplitBatch(writer_id, 2, parts, {"scope": "nyc", "eventTime": "at"}).put(root_of(manager).store)
    for name in parts:
        stream = StreamLog(root_of(manager).store, name, root_of(manager).runtime)
        write(stream, [("UA", b"UA1545")], NumberedBatch(writer_id, 2, _FromQuery()))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let no other thread run until this one waits: what it writes before is one commit."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _begin(manager: StreamManager, clock: Clock) -> None:
    manager.create_scope("nyc")
    manager.update_settings(grace="2 hours", expire="30 days")
    manager.update_settings(expire="never", grace=None)
    scaling = ScalingPolicy.by_event_rate(1_000, minimum=2)
    retention = RetentionPolicy.by_consumption(maximum="7 days")
    manager.create_stream(STREAM, StreamConfiguration(scaling, retention, {"demo"}))
    with manager.create_writer(STREAM, writer_id="ingest-1") as writer, _one_thread():
        for line in (b"UA1545", b"B6 725", b"DL 461", b"UA1714"):
            writer.write_event(line, routing_key=line[:2].decode())
        writer.flush(note="flights.csv:4")
    with manager.create_writer(STREAM) as guest:
        guest.write_event(b"AA1141", "AA").result()
    clock.sleep(60)


def _transact(manager: StreamManager, clock: Clock) -> None:
    with manager.create_transactional_writer(STREAM, "rebooking") as writer:
        several = [writer.begin_transaction(lease="60 s") for _ in range(18)]
        for number, transaction in enumerate(several):
            transaction.write_event(b"UA1545: seat %d" % number, "UA")
        youngest, second, *others = reversed(several)
        youngest.ping()  # writes the lease
        youngest.commit("bookings.csv:18")  # not among the oldest, so it is announced
        second.flush()
        second.prepare()
        second.commit()
        for transaction in others:
            transaction.abort()
    clock.sleep(60)


def _read_in_a_group(manager: StreamManager, clock: Clock) -> None:
    group = manager.create_reader_group(GROUP, [STREAM], retention="automatic")
    with group.create_reader("reader-1") as reader:
        for _ in range(3):
            assert reader.read_next_event(timeout=1.0).event
        clock.sleep(30)
        future = group.initiate_checkpoint("evening")
        for _ in range(8):
            reader.read_next_event(timeout=1.0)
            clock.sleep(30)
        assert future.done()
        clock.sleep(90)
        assert group.expire_readers() == [], "the first judge records that the reader is silent"
    clock.sleep(60)


def _scale_and_truncate(manager: StreamManager, clock: Clock) -> None:
    auto.run_scaling(StreamLog(root_of(manager).store, STREAM, clock))
    middle = manager.tail(STREAM)
    manager.scale_stream(STREAM, seal=[0], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
    with manager.create_writer(STREAM, writer_id="ingest-1") as writer:
        writer.write_events([b"UA1696", b"UA 303"], "UA").result()
    manager.truncate_stream(STREAM, middle, past_subscribers=True)
    manager.retention(STREAM).run(sweep=False)
    manager.delete_reader_group(GROUP)
    clock.sleep(60)


def _compact(manager: StreamManager, clock: Clock) -> None:
    """A merge of many small chunks, and a rewrite of the chunk at the head."""
    manager.create_stream("nyc/sensors")
    with manager.create_writer("nyc/sensors", "meter") as writer:
        for number in range(40):
            writer.write_event(b"%d kWh" % number, "meter").result()
    clock.sleep(120)
    manager.compact_stream("nyc/sensors")
    clock.sleep(120)
    manager.truncate_stream("nyc/sensors", StreamCut("nyc/sensors", 1, {0: 30}))
    manager.compact_stream("nyc/sensors")
    manager.seal_stream("nyc/sensors")
    manager.delete_stream("nyc/sensors")
    clock.sleep(60)


def _write_large_events(manager: StreamManager) -> None:
    """An event above 8 MiB, alone and in a transaction."""
    manager.create_stream("nyc/webcams")
    picture = random.Random(11).randbytes(MAX_EVENT_BYTES + 1_000)
    with manager.create_writer("nyc/webcams", large_events=True) as writer:
        writer.write_event(picture, "gate 7").result()
    with (
        manager.create_transactional_writer("nyc/webcams", large_events=True) as transactional,
        transactional.begin_transaction() as transaction,
    ):
        transaction.write_event(picture, "gate 8")


def _sweep(manager: StreamManager, clock: Clock) -> None:
    """Three sweeps, hours apart: marks, a checkpoint and state files, records that move."""
    with patch.object(sweep_record, "SWEEP_SEGMENT_FILES", 3):
        _sweep_thrice(manager, clock)


def _sweep_thrice(manager: StreamManager, clock: Clock) -> None:
    for number in range(3):
        clock.sleep(9 * HOUR)
        with manager.create_writer(STREAM) as guest:
            for _ in range(2):
                guest.write_event(b"B6 %d" % number, "B6").result()
        clock.sleep(9 * HOUR)
        manager.sweep_stream(STREAM, grace="2 hours", retain="8 hours", keep_records="6 hours")
        clock.sleep(2 * HOUR)


def _state_in_several_files(manager: StreamManager) -> None:
    policy = StreamConfiguration(ScalingPolicy.fixed(600), settings={"grace": "2 hours"})
    manager.create_stream("nyc/many", policy)
    group = manager.create_reader_group("nyc/all", ["nyc/many"], acknowledge="checkpoint")
    group.update(refresh="1 s")
    manager.subscribe("nyc/many", "nightly-batch")
    stream = StreamLog(root_of(manager).store, "nyc/many", root_of(manager).runtime)
    for _ in range(2):  # a state file, and for the few changes since then a part
        with manager.create_writer("nyc/many", "ingest-3") as writer:
            writer.write_event(b"UA1545", "UA").result()
        known = stream.view().snapshot
        checkpoint.maintain(stream.log.reader, known.version, known=known)


def _maintain(manager: StreamManager, clock: Clock) -> None:
    """A run of a job, and two shares of one by a process that does them beside its own work."""
    record, kind, every = (
        MaintenanceTable(root_of(manager).store, clock),
        MaintenanceKind.RETENTION,
        (None,),
    )
    began_ms = clock.now_ms()
    clock.sleep(60)
    record.finish_now(kind, every, JOB, began_ms, 2, {"nyc/many": "StoreError: disk full"})
    work = record.claim((kind,), every, AUTO)
    assert work is not None
    record.release(work, {kind: RunProgress(clock.now_ms()).add(STREAM, 1, {})})
    work = record.claim((kind,), every, AUTO)
    assert work is not None
    clock.sleep(30)
    assert record.extend(work)
    hints = stream_hints(root_of(manager).store, "nyc", ["flights"], basis_of({"grace": 7_200_000}))
    hints.note("flights", kind, 41, began_ms - 1_000, clock.now_ms(), began_ms)
    hints.save()


def _note_times(manager: StreamManager, clock: Clock) -> None:
    """Watermarks, more than the log's state keeps, and marks that a job makes and removes."""
    manager.create_stream("nyc/weather", StreamConfiguration(ScalingPolicy.fixed(2)))
    time = manager.event_time("nyc/weather")
    with (
        patch.object(watermark_update, "MAX_WATERMARKS", 4),
        manager.create_writer("nyc/weather", "station-1") as writer,
    ):
        for _ in range(6):
            writer.write_event(b"21 C", "station-1")
            writer.note_time(clock.now_ms() - HOUR * 1_000).result()
            time.update()
            clock.sleep(HOUR)
    time.note("station-2", clock.now_ms())
    time.remove_mark("station-2")
    time.update()


def _copy(manager: StreamManager, clock: Clock, folder: Path) -> None:
    """A backup, and a restore of a copy that lacks the newest chunk."""
    manager.backup(folder / COPY)
    shutil.copytree(folder / COPY, folder / RESTORED)
    copy = StreamManager(folder / RESTORED, runtime=clock)
    with copy.create_writer(STREAM) as writer:
        writer.write_event(b"lost", "UA").result()
    newest = max((folder / RESTORED / STREAM / "events/data").rglob("*.parquet"), key=_written)
    newest.unlink()
    copy.restore()


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns


def _truncate_bytes(manager: StreamManager) -> None:
    """Blocks of bytes, and a head inside one of them."""
    manager.create_stream("nyc/camera")
    with manager.create_byte_writer("nyc/camera", "upload-1") as writer:
        writer.write(bytes(5_000))
        writer.flush()
        writer.truncate_before(1_200)
    manager.seal_stream("nyc/camera")
    manager.delete_stream("nyc/camera")


def _end(manager: StreamManager, clock: Clock) -> None:
    stream = StreamLog(root_of(manager).store, STREAM, clock)
    for event in (b"offered by one", b"and by another writer"):
        offer(stream, [("UA", event)], view=stream.view())
    commit_offers(stream)
    stream.log.request()
    manager.seal_stream(STREAM)
    manager.delete_stream(STREAM)
    for _ in range(2):
        manager.sweep_scope("nyc", grace="2 hours", retain="8 hours")
        clock.sleep(9 * HOUR)


def _share(manager: StreamManager) -> None:
    """Streams whose appends are conditional and fenced, and a shared state."""
    manager.create_stream("nyc/tower")
    manager.fence("nyc/tower", "shift-7")
    manager.save_cut("nyc/tower", "end-of-shift-6")
    manager.save_cut("nyc/tower", "draft")
    manager.delete_cut("nyc/tower", "draft")
    with manager.create_writer("nyc/tower", fencing_token="shift-7") as leader:
        leader.write_event(b"runway 4L", expected=manager.tail("nyc/tower")).result()
    manager.create_stream("nyc/gates")
    with manager.state_synchronizer("nyc/gates", lambda gates, gate: [*gates, gate]) as gates:
        gates.initialize(["A1"])
        gates.update_state_unconditionally(["A2"])
        gates.compact()


def _keep_values(manager: StreamManager) -> None:
    """A key-value table with puts, and with updates on conditions."""
    configuration = KeyValueTableConfiguration("string", partitions=2, ttl="30 days")
    manager.create_key_value_table(FARES, configuration)
    with manager.key_value_table(FARES) as table:
        version = table.put("UA1545", b"227.00").result()
        table.update([TablePut("UA1545", b"231.50", version), TableInsert("B6 725", b"150.00")])
        table.remove("B6 725").result()
    log = StreamLog(root_of(manager).store, "nyc/_kv_tables/fares", root_of(manager).runtime)
    assert fold(log, folded_table(log, configuration)).is_published
    hashes = KeyHashes(log.store, f"{log.path}/data/{version_folder(log.view().version)}")
    hashes.add(np.arange(MESSAGE_KEYS + 1, dtype=np.uint64))
    hashes.finish()
    log.store.delete([run.key for run in hashes.runs])


def _transact_jointly(manager: StreamManager) -> None:
    """Commit over two streams, so late that nothing else is numbered or dated by it."""
    manager.create_scope("bank")
    streams = ["bank/moves", "bank/audit"]
    for name in streams:
        manager.create_stream(name)
    with manager.create_joint_writer(streams) as writer, writer.begin_transaction() as transaction:
        for name in streams:
            transaction.write_event(name, b"-100", "alice")
    _acknowledge_jointly(manager)


def _acknowledge_jointly(manager: StreamManager) -> None:
    """Commit what a reader has handed out, after an abort that left positions behind."""
    group = manager.create_reader_group("bank/auditors", ["bank/moves"], acknowledge="transaction")
    with (
        manager.create_joint_writer(["bank/audit"]) as writer,
        group.create_reader("reader-1", lease=None) as reader,
    ):
        transaction = writer.begin_transaction(readers=[reader])
        assert reader.read_next_event(10).event is not None
        abort = manager.joint_transaction(transaction.id).abort
        with at_failpoint("joint.prepared", abort), contextlib.suppress(TxnFailed):
            transaction.commit()
        with writer.begin_transaction(readers=[reader]) as transaction:
            assert reader.read_next_event(10).event is not None
            transaction.write_event("bank/audit", b"alice paid", "alice")


def _type(manager: StreamManager) -> None:
    """A typed stream, whose schema grows by a column."""
    columns = pa.schema(
        [pa.field("pair", pa.string(), False, {"comment": "ISO codes"}), ("rate", pa.float64())]
    )
    manager.create_stream("bank/rates", StreamConfiguration(schema=columns))
    with manager.create_writer("bank/rates") as writer:
        writer.write_event({"pair": "EURUSD", "rate": 1.25}, "EURUSD").result()
    manager.update_stream("bank/rates", schema=columns.append(pa.field("venue", pa.string())))


def _encrypt(manager: StreamManager) -> None:
    """Create a stream whose chunks are encrypted; a chunk of it is no example, as it is random."""
    manager.create_stream("bank/cards", StreamConfiguration(encryption=EncryptionPolicy("first")))
