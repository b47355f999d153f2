"""Large events: one of 256 MiB written and read, against a plain file, and the memory."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.floor import sync_folder
from bench.harness.measure import interleave, timed
from bench.harness.registry import benchmark
from pravega_spark.values.segments import EventPointer

_PIECE = 1 << 20

_ROUND = """
import json, sys
from pravega_spark import StreamManager

def peak():  # getrusage would start at the parent's peak
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))

def written(size):
    piece = bytes(1 << 20)
    with manager.create_writer(sys.argv[2], large_events=True) as writer:
        pointer = writer.write_event((piece for _ in range(size >> 20)), "k").result()
    with manager.fetch_event(pointer).open() as file:
        while file.read(1 << 20):
            pass

manager = StreamManager(sys.argv[1])
written(1 << 20)
before = peak()
written(int(sys.argv[3]))
print(json.dumps([before, peak()]))
"""


def _plain_write(path: Path, piece: bytes, count: int) -> None:
    """Write a new file as the store does: unbuffered, fsynced with its folder."""
    with path.open("xb", buffering=0) as file:
        for _ in range(count):
            file.write(piece)
        os.fsync(file.fileno())
    sync_folder(str(path.parent))


def _plain_read(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(_PIECE):
            pass


@benchmark()
def large_events(context: Context) -> Iterator[Figure]:
    """One event of 256 MiB from an iterable, durable; then read as a file, in pieces of 1 MiB."""
    count = context.size(256, 16)
    name = context.create("large")
    piece = os.urandom(_PIECE)
    folder, numbers = Path(context.folder, "plain"), itertools.count()
    folder.mkdir()
    pointers: list[EventPointer] = []
    with context.manager.create_writer(name, large_events=True) as writer:

        def write() -> None:
            pointers.append(writer.write_event((piece for _ in range(count)), "k").result())

        def read() -> None:
            with context.manager.fetch_event(pointers[-1]).open() as file:
                while file.read(_PIECE):
                    pass

        def write_plain() -> None:
            _plain_write(folder / str(next(numbers)), piece, count)

        write_plain()
        write()
        plain = folder / "0"
        rounds = interleave(
            7,
            {
                "ours": lambda: timed(write),
                "file": lambda: timed(write_plain),
                "both": lambda: timed(write) + timed(read),
            },
        )
        yield Figure.of_rounds(
            f"writing a large event of {count} MiB from an iterable, durably",
            rounds["ours"],
            "s",
            "a new plain file, fsynced",
            rounds["file"],
            limited_by="the disk; besides it two digests of each byte, a small file and a commit",
        ).within(ratio_at_most=1.3)
        yield Figure.of_rounds(
            f"writing a large event of {count} MiB, and then reading it",
            rounds["both"],
            "s",
            "a new plain file, fsynced",
            rounds["file"],
            limited_by="the disk; besides it two digests of each byte, a small file and a commit",
        ).within(ratio_at_most=1.3)
        rounds = interleave(
            7, {"ours": lambda: timed(read), "file": lambda: timed(lambda: _plain_read(plain))}
        )
        yield Figure.of_rounds(
            f"reading one of {count} MiB as a file, in pieces of 1 MiB",
            rounds["ours"],
            "s",
            "the plain file; both from the page cache",
            rounds["file"],
            limited_by="a digest of each byte, and its copy out of a window",
        )
    command = [sys.executable, "-c", _ROUND, context.root, name, str(count << 20)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    before, peak = json.loads(output)
    yield Figure(
        f"memory for a large event of {count} MiB, beyond one of 1 MiB",
        peak - before,
        "MiB",
        "the process before",
        before,
        peak / before,
        limited_by="8 MiB of the source, and two windows of 8 MiB",
    ).within(at_most=64.0)
