"""Readers of bytes against truncation, maintenance and deletion, in this process and in others.

Windows, blocks and row groups are so small that a read needs many. A reader in the process that
truncates returns nothing below the head; one of another process may return what it knew of, always
the bytes of its position; and an error says at which byte one can go on.
"""

# ruff: noqa: PT017  (a model judges whichever error comes)

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from pravega_spark.byte_streams import (
    positions,
)
from pravega_spark.byte_streams import (
    reader as byte_stream_reader,
)
from pravega_spark.byte_streams import (
    writer as byte_stream_writer,
)
from pravega_spark.byte_streams.reader import ByteStreamReader
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunks import encoder
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.errors import NoSuchStream, SegmentTruncated, StaleIdentity, StoreError
from pravega_spark.values.segments import SegmentRange, StreamCut
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.reading_world import Process
from tests.harness.sequences import Step, act, drawn_steps, play_shortest
from tests.harness.tiers import sized

S = "s/bytes"
BLOCK = 64
ONE_SEGMENT = StreamConfiguration(ScalingPolicy.fixed(1))


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_sizes(monkeypatch)


def lower_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_stream_writer, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(byte_stream_writer, "_PART_BYTES", 4 * BLOCK)
    monkeypatch.setattr(byte_stream_reader, "WINDOW_BYTES", 2 * BLOCK)
    monkeypatch.setattr(positions, "_SMALL_CHUNK_BYTES", 10 * BLOCK)
    monkeypatch.setattr(encoder, "ROW_GROUP_BYTES", 3 * BLOCK)


@dataclass
class Opened:
    """A reader, its process, and the life of the stream that it reads."""

    process: Process
    reader: ByteStreamReader
    life: int
    data: bytearray


class Bytes:
    """A stream of bytes, what it holds, and its readers."""

    def __init__(self) -> None:
        self.clock = FakeRuntime()
        store = memory(self.clock)
        self.processes = [Process(self.clock, store) for _ in range(2)]
        self.dice = random.Random(0)
        self.readers: list[Opened] = []
        self.life = 0
        self.processes[0].create_scope("s")
        self._create()

    def _create(self) -> None:
        self.processes[0].create_stream(S, ONE_SEGMENT)
        self.life += 1
        self.data, self.head, self.is_sealed = bytearray(), 0, False
        self.heads = {0}
        self.cuts: dict[int, StreamCut] = {}
        self.known = {id(process): 0 for process in self.processes}
        """The head that each process has set itself, or learnt from an error."""

    def process(self) -> Process:
        """Return a process that changes something: most often the second one."""
        return self.processes[self.dice.random() < 0.8]

    # ------------------------------------------------------------------------------- what changes

    def write(self) -> None:
        if self.is_sealed:
            return
        if self.dice.random() < 0.4:  # events of another program, in one chunk
            sizes = self.dice.choices((1, 7, BLOCK, 3 * BLOCK), k=self.dice.randint(2, 20))
            parts = []
            for size in sorted(sizes) if self.dice.random() < 0.5 else sizes:
                parts.append(self._next_bytes(size))
                self.data += parts[-1]
            with self.process().create_writer(S) as events:
                events.write_events(parts, routing_key="key")
            self.cuts[len(self.data)] = self.processes[0].tail(S)
            return
        with self.process().create_byte_writer(S) as writer:
            for _ in range(self.dice.randint(1, 3)):
                size = self.dice.choice((1, 7, BLOCK, 3 * BLOCK, 9 * BLOCK))
                data = self._next_bytes(size)
                writer.write(data)
                self.data += data
                if self.dice.random() < 0.5:
                    writer.flush()
        self.cuts[len(self.data)] = self.processes[0].tail(S)

    def _next_bytes(self, size: int) -> bytes:
        return bytes((len(self.data) + n) * 7 % 251 for n in range(size))

    def truncate(self) -> None:
        if self.is_sealed or self.head == len(self.data):
            return
        process = self.process()
        later = [at for at in self.cuts if at > self.head]
        if later and self.dice.random() < 0.4:
            at = self.dice.choice(later)
            process.truncate_stream(S, self.cuts[at])
        else:
            at = self.dice.randint(self.head + 1, len(self.data))
            self._truncate_at(process, at)
            return
        self._has_truncated(process, at)

    def _truncate_at(self, process: Process, at: int) -> None:
        with process.create_byte_writer(S) as writer:
            writer.truncate_before(at)
        self._has_truncated(process, at)

    def _has_truncated(self, process: Process, at: int) -> None:
        self.head = self.known[id(process)] = at
        self.heads.add(at)

    def overtake(self) -> None:
        """Let another process truncate, and write again, just below where a reader stands.

        Another thread of the reader's process may learn of it first, in the middle of the read.
        """
        if self.is_sealed or self.head == len(self.data):
            return
        opened = self._any_reader()
        if opened is None or opened.life != self.life:
            return
        far = next(process for process in self.processes if process is not opened.process)
        at = self.dice.randint(self.head + 1, len(self.data))
        self._truncate_at(far, at)
        self._maintain(far, sweeps=True)
        opened.reader.seek(min(len(self.data), at + self.dice.choice((0, 1, BLOCK, 4 * BLOCK))))
        if self.dice.random() < 0.5:
            self._read_on(opened)
            return
        with self._looking(opened.process, self.dice.choice((1, 1, 2))):
            self._read_on(opened)

    @contextmanager
    def _looking(self, process: Process, nth: int) -> Iterator[None]:
        """Let another thread of a process look at the stream before the nth look-up of a chunk."""
        log, left = process.log(S), nth
        chunks = log.chunks

        def look_first(rng: SegmentRange) -> list[ChunkRef]:
            nonlocal left
            left -= 1
            if not left:
                log.view()
            return chunks(rng)

        log.chunks = look_first  # type: ignore[method-assign]
        try:
            yield
        finally:
            del log.chunks

    def maintain(self) -> None:
        self._maintain(self.process(), sweeps=self.dice.random() < 0.7)

    def _maintain(self, process: Process, *, sweeps: bool) -> None:
        self.clock.sleep(10)
        process.compact_stream(S, head_after="1 s", include_newest=True)
        if sweeps:
            self.clock.sleep(10)
            process.sweep_stream(S, grace="1 s", retain="1 s")

    def seal(self) -> None:
        if not self.is_sealed and self.dice.random() < 0.4:
            self.process().seal_stream(S)
            self.is_sealed = True

    def delete(self) -> None:
        if self.dice.random() < 0.4:
            if not self.is_sealed:
                self.processes[0].seal_stream(S)
            self.processes[0].delete_stream(S)
            self._create()

    # ----------------------------------------------------------------------------- what is read

    def open(self) -> None:
        process = self.dice.choice(self.processes)
        reader = process.create_byte_reader(S, timeout=0)
        assert reader.tell() == self.head
        self.known[id(process)] = self.head
        self.readers.append(Opened(process, reader, self.life, self.data))

    def seek(self) -> None:
        if self.readers:
            opened = self.dice.choice(self.readers)
            size = len(opened.data)
            near = opened.reader.tell() + self.dice.randint(-2 * BLOCK, 3 * BLOCK)
            at = self.dice.choice((self.dice.randint(0, size), min(max(near, 0), size)))
            opened.reader.seek(at)

    def _any_reader(self) -> Opened | None:
        return self.dice.choice(self.readers) if self.readers else None

    def read(self) -> None:
        opened = self._any_reader()
        if opened is not None:
            self._read_on(opened)

    def _read_on(self, opened: Opened) -> None:
        for _ in range(self.dice.choice((1, 1, 3, 8))):
            if opened in self.readers:
                nth = self.dice.randint(1, 6) if self.dice.random() < 0.25 else 0
                self._read(
                    opened, self.dice.choice((1, 5, BLOCK, BLOCK, 3 * BLOCK, 20 * BLOCK)), nth
                )

    def _read(self, opened: Opened, size: int, nth: int) -> None:
        reader, at = opened.reader, opened.reader.tell()
        try:
            with opened.process.failing(nth, self.dice):
                if self.dice.random() < 0.5:
                    found = reader.read(size)
                else:
                    target = bytearray(size)
                    count = reader.readinto(target)
                    found = None if count is None else bytes(target[:count])
        except StoreError as error:
            assert nth, error
            assert reader.tell() == at
        except (NoSuchStream, StaleIdentity) as error:
            assert opened.life != self.life, error
            self.readers.remove(opened)
        except SegmentTruncated as error:
            assert reader.tell() == at
            self._check_truncated(opened, at, error)
        else:
            self._check_read(opened, at, size, found)

    def _check_truncated(self, opened: Opened, at: int, error: SegmentTruncated) -> None:
        head = error.head_offset
        if opened.life != self.life:
            return
        assert head in self.heads, f"{head} was never the head: {error}"
        assert at < head <= self.head, f"byte {at} may be read from {self.head} on: {error}"
        assert head >= self.known[id(opened.process)], f"the head is {self.head}: {error}"
        opened.reader.seek(head)

    def _check_read(self, opened: Opened, at: int, size: int, found: bytes | None) -> None:
        expected = bytes(opened.data[at : at + size])
        if opened.life != self.life:
            assert found == expected[: len(found or b"")] if found else not expected or not found
            return
        if not expected:
            assert found == (b"" if self.is_sealed else None), f"{found!r} at the tail"
            return
        assert found == expected, f"other bytes at {at}"
        assert at >= self.known[id(opened.process)], f"byte {at} is below the head {self.head}"

    def end(self) -> None:
        """Let each reader read on to the tail."""
        for opened in self.readers[:]:
            for _ in range(1_000):
                if opened not in self.readers or opened.reader.tell() >= len(opened.data):
                    break
                self._read(opened, 3 * BLOCK, 0)
                if opened.life != self.life:
                    break
            else:
                raise AssertionError("no end")


VERBS = (
    *(
        "write",
        "write",
        "truncate",
        "truncate",
        "maintain",
        "maintain",
        "open",
        "open",
        "seek",
        "seek",
    ),
    *("read", "read", "read", "overtake", "overtake", "overtake", "seal", "delete"),
)


def play(steps: Sequence[Step]) -> None:
    world = Bytes()
    act(world, steps)
    world.dice = random.Random(0)
    world.end()


@pytest.mark.long
def test_a_reader_returns_the_bytes_of_its_position_or_the_head() -> None:
    for seed in range(sized(20, 5_000, "BYTE_READERS_SEEDS")):
        play_shortest(seed, drawn_steps(seed, VERBS, 6 + seed % 40), play)
