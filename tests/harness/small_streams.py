"""Small streams in any store: create, write, scale, and read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import StagedChunk, encode_events
from pravega_spark.engine.chunks.reader import read_range
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.layout import epoch_changes
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import AppendResult, append
from pravega_spark.engine.writing.identity import BatchIdentity
from pravega_spark.manager import StreamManager
from pravega_spark.values.segments import KeyRange, SegmentRange
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.small_tables import commit


def make_stream(
    store: Store | None = None, runtime: Runtime | None = None, segments: int = 1, name: str = "s/t"
) -> StreamLog:
    """Create a stream without background maintenance of its log."""
    runtime = runtime or FakeRuntime()
    stream = StreamLog(store or MemoryStore(clock_ms=runtime.now_ms), name, runtime)
    stream.log.maintain = None
    lifecycle.create(stream, 1, StreamConfiguration(ScalingPolicy.fixed(segments)))
    return stream


def reopen(stream: StreamLog, store: Store | None = None) -> StreamLog:
    """Open the same stream as another process would."""
    opened = StreamLog(store or stream.store, stream.name, stream.runtime)
    opened.log.maintain = None
    return opened


def staged(
    stream: StreamLog,
    events: Sequence[tuple[str | None, bytes]],
    version: int | None = None,
    times_us: Sequence[int] | None = None,
) -> list[StagedChunk]:
    """Stage events as chunks, by the newest known view; their times are by default the present."""
    view = stream.view(refresh=False)
    keys, data = [key for key, _ in events], [event for _, event in events]
    table = encode_events(keys, times_us or [stream.runtime.now_us()] * len(events), data)
    at = view.version if version is None else version
    return [
        chunk
        for segment, part in split(table, Router(view.active.segments))
        for chunk in stage(
            stream.store,
            stream.path,
            version_folder(at),
            segment,
            part,
            name=f"{stream.runtime.token()}-{segment}",
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
    """Create a stream under a root, in an existing scope."""
    policy = StreamConfiguration(scaling=ScalingPolicy.fixed(segments))
    StreamManager(root).create_stream(name, policy)
    return open_stream(root, name)


def scale(
    stream: StreamLog, seal: Iterable[int], ranges: Iterable[tuple[float, float]]
) -> StreamView:
    """Replace segments by others in one commit, regardless of the policy's minimum."""
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
    """Return all events of a segment in order, read from its chunks."""
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
    """Return all events, segment by segment in the order of creation."""
    names = stream.view().snapshot.names(SEGMENT_PREFIX)
    ids = sorted(int(name.removeprefix(SEGMENT_PREFIX)) for name in names)
    return [event for segment_id in ids for event in events_of(stream, segment_id)]
