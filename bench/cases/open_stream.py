"""A stream of very many commits, opened in a fresh process."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.long_stream import long_stream
from bench.harness.registry import benchmark

_OPEN = """
import json, sys, time
begun = time.perf_counter()
from pravega_spark import StreamCut, StreamManager
imported = time.perf_counter() - begun

manager, stream, how = StreamManager(sys.argv[1]), sys.argv[2], sys.argv[3]
begun = time.perf_counter()
if how == "append":
    writer = manager.create_writer(stream)
else:
    tail = manager.tail(stream)
    start = StreamCut(stream, tail.life, {s: max(0, end - 100) for s, end in tail})
    events = list(manager.read(stream, start, tail))
    assert len(events) == 100, len(events)
seconds = time.perf_counter() - begun
print(json.dumps([1e3 * seconds, 1e3 * imported]))
"""


def fresh(root: str, stream: str, how: str) -> tuple[float, float]:
    """Return the milliseconds that a new process needs to open a stream, and to import."""
    command = [sys.executable, "-c", _OPEN, root, stream, how]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    opened, imported = json.loads(found)
    return opened, imported


@benchmark()
def open_long_stream(context: Context) -> Iterator[Figure]:
    """The first call of a fresh process: it creates a writer, or reads the last 100 events."""
    commits = context.size(100_000, 600)
    streams = {"short": long_stream(context, context.size(10, 10) + 100)}
    streams["long"] = long_stream(context, commits)
    rounds = context.size(9, 2)
    imports: list[float] = []
    for how, limit, what in (
        ("append", 50.0, "opening for append"),
        ("tail", 300.0, "opening and reading the last 100 events"),
    ):
        found: dict[str, list[float]] = {name: [] for name in streams}
        for _ in range(rounds):
            for name, stream in streams.items():
                opened, imported = fresh(context.root, stream, how)
                found[name].append(opened)
                imports.append(imported)
        yield Figure.of_rounds(
            f"{what}, {commits:,} commits",
            found["long"],
            "ms",
            "a stream of 110 commits",
            found["short"],
            note=f"a fresh process; the import before it took {statistics.median(imports):.0f} ms",
            limited_by="the newest light state file, the commits since it and, for the tail, the "
            "files of its events, here with one event each",
        ).within(at_most=limit)
