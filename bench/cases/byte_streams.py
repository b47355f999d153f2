"""A large file through a byte stream, against a plain file with the same fsyncs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave, timed
from bench.harness.page_cache import forget_pages
from bench.harness.registry import benchmark

_MIB = 1 << 20
_FSYNC_BLOCKS = 32
"""The stream commits at most so many MiB together, with two fsyncs; the file has one for them."""


@benchmark()
def byte_stream_as_a_file(context: Context) -> Iterator[Figure]:
    """Write and read random bytes by 1 MiB; both are read from the disk, not from memory."""
    blocks, rounds = context.size(2_048, 64), context.size(3, 1)
    plain, names = context.folder / "plain", itertools.count()
    plain.mkdir()
    meters = {name: CpuMeter() for name in ("write", "plain write", "read", "plain read")}
    stream, source = "", plain

    def write() -> None:
        nonlocal stream
        stream = context.create(f"bytes-{next(names)}")
        with meters["write"], context.manager.create_byte_writer(stream) as writer:
            for _ in range(blocks):
                writer.write(block)

    def write_plain() -> None:  # a new one: memory of a file that was truncated is at hand
        nonlocal source
        source = plain / str(next(names))
        with meters["plain write"], source.open("xb", buffering=0) as file:
            for number in range(1, blocks + 1):
                file.write(block)
                if number % _FSYNC_BLOCKS == 0:
                    os.fsync(file)
            os.fsync(file)

    def read() -> None:
        with meters["read"], context.manager.create_byte_reader(stream, follow=False) as reader:
            assert _drain(reader, blocks) == blocks * _MIB

    def read_plain() -> None:
        with meters["plain read"], source.open("rb", buffering=0) as file:
            assert _drain(file, blocks) == blocks * _MIB

    def side(action: object, folder: Path | None = None) -> Side:
        def run() -> float:
            if folder is not None:
                forget_pages(folder)
            return blocks / timed(action)  # type: ignore[arg-type]

        return run

    block = os.urandom(_MIB)
    written = interleave(rounds, {"ours": side(write), "plain": side(write_plain)})
    folder = context.folder
    found = interleave(rounds, {"ours": side(read, folder), "plain": side(read_plain, folder)})
    yield Figure.of_rounds(
        f"byte stream written, {blocks} MiB",
        written["ours"],
        "MiB/s",
        "a new plain file, an fsync for 32 MiB",
        written["plain"],
        note=compare(meters["write"], meters["plain write"]),
        limited_by="the checksum of pages, and two durable writes for each commit",
    ).within(ratio_at_least=0.7)
    yield Figure.of_rounds(
        f"byte stream read from the disk, {blocks} MiB",
        found["ours"],
        "MiB/s",
        "a plain file",
        found["plain"],
        note=compare(meters["read"], meters["plain read"]),
        limited_by="a digest of each page, and a copy from the page into the caller's buffer",
    ).within(ratio_at_least=0.7)


def _drain(file: object, blocks: int) -> int:
    buffer, total = bytearray(_MIB), 0
    while size := file.readinto(buffer):  # type: ignore[attr-defined]
        total += size
    return total
