"""A stream with every kind of commit, and a record of what each version must hold."""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from pravega_spark import (
    EventStreamWriter,
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
)
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import encode_events
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.log import checkpoint as log_checkpoint
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import root_of
from pravega_spark.values.limits import MAX_EVENT_BYTES
from tests.harness.small_streams import scale

SCOPE, STREAM = "nyc", "nyc/flights"
START_US = 1_357_016_400_000_000  # 2013-01-01 05:00 UTC: far from the files' times

Row = tuple[int, int, str | None, int, bytes]
"""(segment id, offset, routing key, timestamp in us, event)."""


class Clock(Runtime):
    """A wall clock that advances by each reading, and can be set."""

    def __init__(self, start_us: int = START_US) -> None:
        self.set(start_us)

    def set(self, now_us: int) -> None:
        """Set the next time."""
        self._ticks = itertools.count(now_us, 333)

    def now_ns(self) -> int:
        """Return the next time, a multiple of a microsecond."""
        return next(self._ticks) * 1_000

    def now_ms(self) -> int:
        """Return the next time in milliseconds."""
        return self.now_us() // 1_000


@dataclass
class Story:
    """A stream and its history; ``rows`` has the events of the versions that are known exactly."""

    root: Path
    manager: StreamManager
    clock: Clock
    operations: list[tuple[str, str | None]] = field(default_factory=list)
    rows: dict[int, Counter[tuple[int, int, str | None, bytes]]] = field(default_factory=dict)
    checkpoints: list[int] = field(default_factory=list)
    written: Counter[str] = field(default_factory=Counter)

    @property
    def table(self) -> str:
        return f"{self.root}/{STREAM}/events"

    @property
    def scope_table(self) -> str:
        return f"{self.root}/{SCOPE}/_scope"

    @property
    def stream(self) -> StreamLog:
        return StreamLog(root_of(self.manager).store, STREAM, self.clock)

    @property
    def version(self) -> int:
        return len(self.operations) - 1

    def record(
        self,
        operation: str,
        writer: str | None = None,
        rows: Sequence[tuple[int, int, str | None, bytes]] = (),
    ) -> None:
        """Record the operation of the new commits, and the rows that they add."""
        snapshot = self.stream.log.refresh()
        assert snapshot is not None
        known = self.rows.get(self.version, Counter())
        made = snapshot.version - self.version
        assert made == 1 if operation != "APPEND" else made >= 1, (operation, made)
        self.operations += [(operation, writer)] * made
        self.rows[self.version] = known + Counter(rows)
        if writer is not None:
            self.written[writer] += len(rows)

    def write_together(
        self, writer: EventStreamWriter, name: str, events: Sequence[bytes], key: str
    ) -> None:
        pointers = writer.write_events(events, key).result()
        written = [
            (pointer.segment_id, pointer.offset, key, event)
            for pointer, event in zip(pointers, events, strict=True)
        ]
        self.record("APPEND", name, written)

    def write(
        self,
        writer: EventStreamWriter,
        name: str | None,
        events: Sequence[tuple[bytes, str | None]],
    ) -> None:
        futures = [writer.write_event(event, key) for event, key in events]
        writer.flush()
        pointers = [future.result() for future in futures]
        written = [
            (pointer.segment_id, pointer.offset, key, event)
            for pointer, (event, key) in zip(pointers, events, strict=True)
        ]
        self.record("APPEND", name, written)

    def maintain_log(self, *, checkpoint: bool) -> None:
        """Write a state file of the newest version, and with ``checkpoint`` a checkpoint."""
        log_checkpoint.maintain(self.stream.log.reader, self.version, checkpoint=checkpoint)
        if checkpoint:
            self.checkpoints.append(self.version)


KEYS: Sequence[str | None] = [
    *(f"carrier-{number}" for number in range(12)),
    None,
    "",
    "Zürich ⇄ 東京",
    "🛫" * 50,
    'nul\0 and "quotes", %25 / back\\slash',
    None,
]


def create_story(root: Path, *, sealed: bool = True) -> Story:
    """Create a stream, write, scale, write, and seal it."""
    clock = Clock()
    manager = StreamManager(root, runtime=clock)
    story = Story(root, manager, clock)
    assert manager.create_scope(SCOPE)
    configuration = StreamConfiguration(ScalingPolicy.fixed(4), tags={"flights", "été"})
    assert manager.create_stream(STREAM, configuration)
    story.record("CREATE STREAM")
    assert manager.create_stream("nyc/other")  # replaces the rows of the scope's table

    with manager.create_writer(STREAM, writer_id="ingest") as ingest:
        story.record("OPEN WRITER", "ingest")
        story.write(ingest, "ingest", [(f"first {key}".encode(), key) for key in KEYS])
        story.maintain_log(checkpoint=False)
        story.write(ingest, "ingest", [(b"", "carrier-1")])
        clock.set(START_US + 3_600_000_000)
        story.write(ingest, "ingest", [("ünïcödé 🚀 ".encode() * 9, None)])
        story.maintain_log(checkpoint=True)
    with manager.create_writer(STREAM) as guest:
        large = random.Random(7).randbytes(MAX_EVENT_BYTES)
        story.write(guest, "guest", [(large, "carrier-2")])
        story.write(guest, "guest", [(bytes([0, 255, n]), None) for n in range(9)])
    story.maintain_log(checkpoint=True)

    segments = manager.segments(STREAM)
    first, *_, third, fourth = segments
    low, high = first.key_range.low, first.key_range.high
    middle = (low + high) / 2
    scale(
        story.stream,
        [first.segment_id, third.segment_id, fourth.segment_id],
        [(low, middle), (middle, high), (third.key_range.low, fourth.key_range.high)],
    )
    story.record("SCALE STREAM")
    clock.set(START_US - 3_600_000_000)  # a clock that is set back: commit times still rise
    with manager.create_writer(STREAM, writer_id="ingest") as ingest:
        story.record("OPEN WRITER", "ingest")
        story.write(ingest, "ingest", [(f"second {key}".encode(), key) for key in KEYS])
        story.write_together(ingest, "ingest", [b"one", b"two", b"three"], "carrier-3")
    assert manager.update_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(4), tags={"eu"}))
    story.record("UPDATE STREAM")
    story.maintain_log(checkpoint=False)
    with manager.create_writer(STREAM) as guest:
        story.write(guest, "guest", [(f"third {n}".encode(), f"key-{n}") for n in range(100)])
    view = story.stream.view()
    events = encode_events([None], [START_US], [b"never committed"])
    stage(
        story.stream.store,
        story.stream.path,
        version_folder(view.version),
        0,
        events,
        name="left-behind",
    )
    if sealed:
        assert manager.seal_stream(STREAM)
        story.record("SEAL STREAM")
    return story


def start_next_life(story: Story) -> int:
    """Delete the stream, create it again and write; return the version of the deletion."""
    manager = story.manager
    assert manager.delete_stream(STREAM)
    story.rows[story.version] = Counter()
    story.record("DELETE STREAM")
    deleted = story.version
    assert manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
    story.operations.append(("DRAW LIFE", None))
    story.rows[story.version] = Counter()
    story.record("CREATE STREAM")
    with manager.create_writer(STREAM, writer_id="ingest") as ingest:
        story.record("OPEN WRITER", "ingest")
        story.write(ingest, "ingest", [(f"again {key}".encode(), key) for key in KEYS])
    story.maintain_log(checkpoint=True)
    with manager.create_writer(STREAM) as guest:
        story.write(guest, "guest", [(b"last", None)])
    return deleted


def copy_story(story: Story, root: Path) -> Story:
    """Copy the story and its storage to another root, where a test may change it."""
    shutil.copytree(story.root, root)
    clock = Clock(story.clock.now_us())
    manager = StreamManager(root, runtime=clock)
    return Story(
        root, manager, clock, list(story.operations), dict(story.rows), list(story.checkpoints)
    )


def digests(root: Path) -> dict[str, str]:
    """Return the digest of every file below a folder, by its path."""
    return {
        str(path.relative_to(root)): xxhash.xxh3_128_hexdigest(path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
