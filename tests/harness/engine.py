"""What tests of the engine share: a clock of their own, small tables, and streams to break."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import StagedChunk, encode_events, stage
from pravega_spark.engine.chunks.chunk_reader import read_range
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.layout import epoch_changes
from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.log.actions import Add, Body, Remove
from pravega_spark.engine.log.checkpointing import maintain
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.horizon import raise_horizon
from pravega_spark.engine.log.log_cleanup import cleanup_mark_has_aged, delete_old_commits
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.table_definition import PROTOCOL, new_table
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Put, Store
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import AppendResult, append
from pravega_spark.engine.writing.batch_identity import BatchIdentity
from pravega_spark.limits import CLEANUP_WAIT_SECONDS
from pravega_spark.manager import StreamManager
from pravega_spark.model import KeyRange, SegmentRange
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from tests.harness.fault_plans import Rules
from tests.harness.faulty_store import FaultyStore, Plan

NOW_MS = 1_700_000_000_000
_tokens = itertools.count(1)


class FakeRuntime(Runtime):
    """Clocks that stand still until somebody sleeps, and randomness from a seed."""

    def __init__(self, seed: int = 0) -> None:
        self.wall_ms: float = NOW_MS
        self.elapsed = 1_000.0
        self._random = random.Random(seed)

    def now_ms(self) -> int:
        return int(self.wall_ms)

    def now_us(self) -> int:
        return int(self.wall_ms * 1_000)

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += seconds
        self.wall_ms += seconds * 1_000

    def token(self) -> str:
        return f"token{next(_tokens):08d}"

    def random(self) -> float:
        return self._random.random()

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [function(item) for item in items]


class Spy(FaultyStore):
    """A store that remembers its calls and fails by rules that a test adds."""

    def __init__(self, inner: Store | None = None, *, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.calls: list[tuple[str, str]] = []
        self.sent: list[tuple[str, bytes]] = []
        self.hook: Callable[[str, str], None] | None = None
        super().__init__(inner or MemoryStore(), self._plan)

    def _plan(self, operation: str, key: str) -> Any:
        self.calls.append((operation, key))
        if self.hook is not None:
            self.hook(operation, key)
        return self.rules(operation, key)

    def put_if_absent(self, key: str, data: bytes, *, after: str | None = None) -> Put:
        self.sent.append((key, data))
        return super().put_if_absent(key, data, after=after)

    def count(self, operation: str, part: str = "") -> int:
        return sum(op == operation and part in key for op, key in self.calls)


def memory(runtime: FakeRuntime) -> MemoryStore:
    return MemoryStore(clock_ms=runtime.now_ms)


def manager_of(runtime: FakeRuntime) -> StreamManager:
    """A manager of a new root in memory, whose objects are dated by the runtime's clock."""
    store = MemoryStore(f"dated-{next(_tokens)}", clock_ms=runtime.now_ms)
    return StreamManager(store.url, runtime=runtime)


class DatedDisk(LocalStore):
    """A local disk whose files are dated by a clock of the test's, which is the host's."""

    def __init__(self, path: Path, runtime: FakeRuntime) -> None:
        super().__init__(str(path))
        self.path, self.runtime = path, runtime

    def time_ms(self) -> int:
        return self.runtime.now_ms()

    def put_if_absent(self, key: str, data: bytes, *, after: str | None = None) -> Put:
        answer = super().put_if_absent(key, data, after=after)
        if answer is Put.CREATED:
            self._date(key)
        return answer

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        super().put(key, data, durable=durable)
        self._date(key)

    def _date(self, key: str) -> None:
        os.utime(self.path / key, ns=(0, self.runtime.now_ms() * 1_000_000))


def faulty(inner: Store, plan: Plan) -> FaultyStore:
    return FaultyStore(inner, plan)


def checkpointing_rests() -> None:
    """Wait until this process writes no state files and checkpoints in the background."""
    for worker in list(checkpointing._workers.values()):
        worker.submit(int).result()


def files_below(folder: Path) -> dict[Path, int]:
    """When each file below a folder was written last, once this process's log maintenance rests."""
    checkpointing_rests()
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def tree(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Everything below a folder: inode, time of the last write, digest; folders have no digest."""
    checkpointing_rests()
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.stat()
        digest = sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = stat.st_ino, stat.st_mtime_ns, digest
    return found


# ------------------------------------------------------------------------------- a small table


def table_log(store: Store, runtime: Runtime | None = None, path: str = "s/t/events") -> Log:
    """A log of a table with nothing in it; made unless it exists."""
    log = Log(store, path, runtime or FakeRuntime())

    def decide(snapshot: Snapshot | None) -> Body | None:
        if snapshot is not None:
            return None
        table = new_table({"a": "long"}, [], "id", path, NOW_MS)
        return Body("CREATE", protocol=PROTOCOL, metadata=table)

    commit(log, decide)
    return log


def commit(log: Log, body: Callable[[Snapshot | None], Body | None]) -> Snapshot:
    """Commit what ``body`` makes of the newest snapshot; return the snapshot afterwards."""
    return log.commit(lambda snapshot: (body(snapshot), None)).snapshot


def event_add(path: str, segment: int, base: int, rows: int, *, change: bool = True) -> Add:
    partition = {"segment_id": str(segment), "base_offset": str(base)}
    return Add(path, partition, 10, NOW_MS, None, {"rows": str(rows)}, change)


def put(log: Log, value: str | None, adds: Sequence[Add] = (), removes: Sequence[str] = ()) -> int:
    """Commit a value of the domain ``test`` and files; return the version."""
    gone = [Remove(path, NOW_MS) for path in removes]

    def decide(snapshot: Snapshot | None) -> Body:
        return Body("TEST", domains={"test": value}, adds=adds, removes=gone)

    return commit(log, decide).version


def clean(log: Log, runtime: FakeRuntime, mark: int) -> int:
    """Move the mark, wait as long as it takes, and delete what is below; two checkpoints first."""
    head = log.refresh()
    assert head is not None
    maintain(log.reader, mark, checkpoint=True)
    maintain(log.reader, head.version, checkpoint=True)
    raise_horizon(log, head.version, mark)
    cleanup_mark_has_aged(log, VersionAges.read(log, now_ms=runtime.now_ms() + 10**12))
    runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
    return delete_old_commits(log)


def versions(log: Log) -> list[int]:
    """The versions whose commits are stored."""
    names = [entry.key.rsplit("/", 1)[-1] for entry in log.store.list(log.reader.folder)]
    return [int(name[:20]) for name in names if name.endswith(".json") and name[0] != "_"]


# ----------------------------------------------------------------------------------- streams


def make_stream(
    store: Store | None = None, runtime: Runtime | None = None, segments: int = 1, name: str = "s/t"
) -> StreamLog:
    """A stream that exists, without background work."""
    runtime = runtime or FakeRuntime()
    stream = StreamLog(store or MemoryStore(clock_ms=runtime.now_ms), name, runtime)
    stream.log.maintain = None
    lifecycle.create(stream, 1, StreamConfiguration(ScalingPolicy.fixed(segments)))
    return stream


def again(stream: StreamLog, store: Store | None = None) -> StreamLog:
    """The same stream as another process would open it."""
    opened = StreamLog(store or stream.store, stream.name, stream.runtime)
    opened.log.maintain = None
    return opened


def staged(
    stream: StreamLog, events: Sequence[tuple[str | None, bytes]], version: int | None = None
) -> list[StagedChunk]:
    """Chunks of the events, by the newest view known."""
    view = stream.view(refresh=False)
    keys, data = [key for key, _ in events], [event for _, event in events]
    table = encode_events(keys, [stream.runtime.now_us()] * len(events), data)
    at = view.version if version is None else version
    return [
        chunk
        for segment, part in split(table, Router(view.active.segments))
        for chunk in stage(
            stream.store, stream.path, at, segment, part, name=f"{stream.runtime.token()}-{segment}"
        )
    ]


def write(
    stream: StreamLog,
    events: Sequence[tuple[str | None, bytes]],
    identity: BatchIdentity | None = None,
    **options: Any,
) -> AppendResult:
    """Append events in one commit."""
    view = stream.view()
    return append(stream, view.life, view.version, staged(stream, events), identity, **options)


def created(root: str, name: str = "s/a", segments: int = 1) -> StreamLog:
    """A new stream under a root, in a scope that exists."""
    policy = StreamConfiguration(scaling=ScalingPolicy.fixed(segments))
    StreamManager(root).create_stream(name, policy)
    return open_stream(root, name)


def scale(
    stream: StreamLog, seal: Iterable[int], ranges: Iterable[tuple[float, float]]
) -> StreamView:
    """Replace segments by others, in one commit, whatever the policy's minimum."""
    doomed, new = list(seal), [KeyRange(*r) for r in ranges]

    def decide(snapshot: Snapshot | None) -> Body:
        assert snapshot is not None
        view, now_ms = StreamView(snapshot), stream.runtime.now_ms()
        draft = CommitBuilder(view, now_ms)
        draft.switch(
            epoch_changes.scale(view, doomed, new, now_ms, view.record.next_segment_number)
        )
        return draft.body("SCALE STREAM")

    commit(stream.log, decide)
    return stream.view()


def events_of(stream: StreamLog, segment_id: int) -> list[tuple[str | None, bytes]]:
    """All events of a segment, in order, through its chunks."""
    view = stream.view()
    head = max(0, view.record.head.get(segment_id, 0))
    end = view.segment(segment_id).next_offset
    rng = SegmentRange(stream.name, view.life, segment_id, head, end)
    batches = list(read_range(stream.store, stream.path, stream.chunks(rng), rng))
    if not batches:
        return []
    rows = pa.Table.from_batches(batches)
    return list(
        zip(rows.column("routing_key").to_pylist(), rows.column("event").to_pylist(), strict=True)
    )


def all_events(stream: StreamLog) -> list[tuple[str | None, bytes]]:
    """All events, segment after segment in the order of creation."""
    names = stream.view().snapshot.names(SEGMENT_PREFIX)
    ids = sorted(int(name.removeprefix(SEGMENT_PREFIX)) for name in names)
    return [event for segment_id in ids for event in events_of(stream, segment_id)]
