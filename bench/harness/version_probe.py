"""Measures one Spark in a process of its own, beside that Spark's own Parquet and Delta.

``python -m bench.harness.version_probe JSON`` runs in an environment with the Spark. It measures
what each line of its input names, every side once, and prints the results of the line as one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.harness.context import Context
from bench.harness.cpu_time import cpu_seconds
from bench.harness.dataset import fill, table
from bench.harness.measure import timed
from bench.harness.spark_frames import cached_events, drain, median_batch_ms, run_to_end
from bench.harness.spark_tables import frame_copy
from pravega_spark import frame, stream_frame

NATIVE, PYTHON = "native", "python"
"""The sides that are ours: native frames, and ``format("pravega")``."""
PARQUET, DELTA = "parquet", "delta"
BATCH_ROWS = 100
BATCHES = 9


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a side: its seconds, and those of all its processors."""

    seconds: float
    processor: float


Sides = Mapping[str, Callable[[], float]]
"""Each runs one side, and returns its seconds."""


class Probe:
    """The sides of all measures in one session."""

    def __init__(self, context: Context, *, delta: bool) -> None:
        self._context = context
        self._spark = context.spark
        self._peers = (PARQUET, DELTA) if delta else (PARQUET,)
        self._numbers = count()
        self._sides: dict[str, Sides] = {}

    def measure(self, name: str) -> dict[str, Run]:
        """Run each side of a measure once; the first time also once before, and in turn after."""
        if name not in self._sides:
            self._sides[name] = MEASURES[name](self)
            self._run(self._sides[name])
        self._sides[name] = dict(reversed(list(self._sides[name].items())))
        return self._run(self._sides[name])

    def _run(self, sides: Sides) -> dict[str, Run]:
        found = {}
        for side, run in sides.items():
            before = cpu_seconds()
            seconds = run()
            found[side] = Run(seconds, cpu_seconds() - before)
        return found

    @cached_property
    def _stream(self) -> str:
        """A stream with a backlog."""
        context = self._context
        # In so many segments each file has one row group: Spark 4.0 splits none by rows.
        return fill(context, context.create("backlog", 8), rows(context))

    @cached_property
    def _small(self) -> str:
        """A stream with the rows of one micro-batch."""
        return self._fed("small", 1)

    def _fed(self, name: str, files: int) -> str:
        stream = self._context.create(name)
        self._feed(stream, files)
        return stream

    def _feed(self, stream: str, files: int) -> None:
        """Append files with the rows of a micro-batch each."""
        events = table(BATCH_ROWS).column("event").to_pylist()
        with self._context.manager.create_writer(stream) as writer:
            for _ in range(files):
                writer.write_events(events, "key").result()

    def _copies(self, stream: str) -> dict[str, str]:
        return {kind: frame_copy(self._context, stream, kind) for kind in self._peers}

    def _followed(self, side: str, source: str, **options: Any) -> Any:
        """Return a streaming frame: of a stream by its name, of a table by its path."""
        given = {"root": self._context.root, "startingOffsets": "earliest", **options}
        if side == NATIVE:
            return stream_frame(self._spark, source, **given)
        reader = self._spark.readStream.format("pravega" if side == PYTHON else side)
        if side == PYTHON:
            return reader.options(**given).load(source)
        if side == PARQUET:
            reader = reader.schema(self._spark.read.parquet(source).schema)
        return reader.options(**options).load(source)

    def read(self) -> Sides:
        """All columns of a batch frame."""
        root, spark, stream = self._context.root, self._spark, self._stream

        def copy(kind: str, path: str) -> float:
            return timed(lambda: drain(spark.read.format(kind).load(path)))

        def python() -> None:
            drain(spark.read.format("pravega").option("root", root).load(stream))

        return {
            NATIVE: lambda: timed(lambda: drain(frame(spark, stream, root=root))),
            PYTHON: lambda: timed(python),
            **{kind: partial(copy, kind, path) for kind, path in self._copies(stream).items()},
        }

    def write(self) -> Sides:
        """A cached frame, into four segments and by each peer's writer."""
        events = cached_events(self._context, rows(self._context))

        def ours() -> None:
            writer = events.write.format("pravega").mode("append")
            writer = writer.option("root", self._context.root).option("numSegments", 4)
            writer.save(f"bench/written-{next(self._numbers)}")

        def peer(kind: str) -> None:
            path = self._context.folder / f"written-{next(self._numbers)}"
            events.write.format(kind).option("compression", "zstd").save(str(path))

        return {
            PYTHON: lambda: timed(ours),
            **{kind: partial(timed, partial(peer, kind)) for kind in self._peers},
        }

    def backlog(self) -> Sides:
        """A query over all that is there, without a sink, from its start to its end."""
        sources = {NATIVE: self._stream, PYTHON: self._stream, **self._copies(self._stream)}

        def run(side: str, source: str) -> float:
            queries: list[Any] = []
            to = partial(run_to_end, self._context, self._followed(side, source), _nowhere)
            seconds = timed(lambda: queries.append(to()))
            assert _rows_of(queries[0]) == rows(self._context), side
            return seconds

        return {side: partial(run, side, source) for side, source in sources.items()}

    def micro_batch(self) -> Sides:
        """The median micro-batch of a query from a stream into a stream, from a table into one.

        The queries have no trigger that ends them: on Spark 4.0 and 4.1 such a run of
        ``format("pravega")`` is one micro-batch.
        """
        whole = self._fed("batches", BATCHES)
        copies = self._copies(whole)

        def ours(side: str) -> float:
            number = next(self._numbers)
            source = self._fed(f"source-{number}", 1)
            options = {"root": self._context.root, "stream": f"bench/target-{number}"}
            followed = self._followed(side, source, maxOffsetsPerTrigger=BATCH_ROWS)
            writer = followed.writeStream.format("pravega").options(**options)
            return self._batches(writer, lambda: self._feed(source, BATCHES - 1))

        def peer(kind: str) -> float:
            followed = self._followed(kind, copies[kind], maxFilesPerTrigger=1)
            path = self._context.folder / f"target-{next(self._numbers)}"
            return self._batches(followed.writeStream.format(kind).option("path", str(path)))

        sides = {side: partial(ours, side) for side in (NATIVE, PYTHON)}
        return {**sides, **{kind: partial(peer, kind) for kind in self._peers}}

    def _batches(self, writer: Any, feed: Callable[[], None] = lambda: None) -> float:
        query = writer.option("checkpointLocation", self._checkpoint()).start()
        query.processAllAvailable()
        feed()
        query.processAllAvailable()
        query.stop()
        return median_batch_ms(query, BATCHES, BATCH_ROWS) / 1e3

    def first_batch(self) -> Sides:
        """A query's first micro-batch, without a sink, from ``start()``."""
        sources = {NATIVE: self._small, PYTHON: self._small, **self._copies(self._small)}

        def run(side: str, source: str) -> float:
            writer = _nowhere(self._followed(side, source).writeStream)
            queries: list[Any] = []

            def start() -> None:
                queries.append(writer.option("checkpointLocation", self._checkpoint()).start())
                queries[0].processAllAvailable()

            seconds = timed(start)
            queries[0].stop()
            assert _rows_of(queries[0]) == BATCH_ROWS, side
            return seconds

        return {side: partial(run, side, source) for side, source in sources.items()}

    def _checkpoint(self) -> str:
        return str(self._context.folder / f"probe-checkpoint-{next(self._numbers)}")


def rows(context: Context) -> int:
    """Return the events of the backlog, and of a write."""
    return context.size(1_000_000, 4_000)


MEASURES: Mapping[str, Callable[[Probe], Sides]] = {
    "read": Probe.read,
    "write": Probe.write,
    "backlog": Probe.backlog,
    "micro-batch": Probe.micro_batch,
    "first batch": Probe.first_batch,
}


def _nowhere(writer: Any) -> Any:
    return writer.format("noop")


def _rows_of(query: Any) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def main(text: str) -> None:
    """Measure what the lines of the input name, until it ends."""
    given = json.loads(text)
    context = Context(
        given["quick"], Console(stderr=True), Path(given["folder"]), is_tenth=given["is_tenth"]
    )
    probe = Probe(context, delta=given["delta"])
    for line in sys.stdin:
        found = probe.measure(line.strip())
        runs = {side: [run.seconds, run.processor] for side, run in found.items()}
        print("\n" + json.dumps(runs), flush=True)
    context.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
