"""This project: its writers, readers and native frames, always with fsync."""

from __future__ import annotations

from itertools import count

from bench.harness.context import SCOPE
from bench.harness.dataset import EVENT, fill
from bench.harness.tail_reader import STREAM_READER
from bench.peers import delta_readers, events, spark
from bench.peers.library import Library
from bench.peers.peer import Found, Limit, folder_bytes, latency, rate, rows_then_aggregate
from bench.peers.processes import follow, writers
from pravega_spark import frame, stream_frame
from pravega_spark.values.package import __version__

_SEGMENTS = 4
_WRITER = """
from pravega_spark import StreamManager
writer = StreamManager(arguments[0]).create_writer(arguments[1])
def write(event):
    writer.write_event(event, key).result()
"""


class Ours(Library):
    name = "pravega_spark"
    acknowledged = "chunk and commit are fsynced, and every reader sees them"
    caveats = ("A library: readers and writers share a folder, or a bucket, and no server.",)

    def start(self) -> None:
        self._context = self.place.context
        self._numbers = count()

    def versions(self) -> str:
        return f"pravega_spark {__version__}"

    def fill(self) -> None:
        self._filled = fill(self._context, self._create("filled"), self.place.rows)

    def append(self, limit: Limit) -> Found:
        with self._context.manager.create_writer(self._create("append")) as writer:
            return latency(lambda: writer.write_event(EVENT, "key").result(), limit)

    def end_to_end(self, limit: Limit) -> Found:
        stream = self._create("tail", 1)
        with self._context.manager.create_writer(stream) as writer:
            return follow(
                STREAM_READER,
                self._context.root,
                stream,
                lambda event: writer.write_event(event, "key").result(),
                limit,
            )

    def pipelined(self, limit: Limit) -> Found:
        keys, values = events.pool()
        with self._context.manager.create_writer(self._create("pipelined")) as writer:

            def write() -> None:
                for number in range(limit.calls):
                    writer.write_event(values[number % len(values)], keys[number % len(keys)])
                writer.flush()

            return rate(limit.calls, write)

    def writers(self, limit: Limit) -> Found:
        return writers(_WRITER, [self._context.root, self._create("writers")], limit)

    def transaction(self, limit: Limit) -> Found:
        stream = self._context.manager.stream(self._create("transactions"))
        keys, values = events.lists(events.hundred())
        with stream.create_transactional_writer() as writer:

            def commit() -> None:
                transaction = writer.begin_transaction()
                for key, value in zip(keys, values, strict=True):
                    transaction.write_event(value, key)
                transaction.commit()

            return latency(commit, limit)

    def catch_up(self, limit: Limit) -> Found:
        def read() -> None:
            found = self._context.manager.create_reader(self._filled).batches()
            assert sum(batch.num_rows for _, batch in found) == self.place.rows

        return rate(self.place.rows, read)

    def single_rows(self, limit: Limit) -> Found:
        stream = self._context.manager.stream(self._create("rows"))
        with stream.create_writer() as writer:
            return rows_then_aggregate(
                lambda: writer.write_event(EVENT, "key").result(),
                lambda: events.by_key(stream.read_table(columns=["routing_key"])),
                limit,
                0,
            )

    def stored(self, limit: Limit) -> Found:
        return {"bytes": folder_bytes(f"{self._context.root}/{self._filled}") / self.place.rows}

    def spark_write(self, limit: Limit) -> Found:
        name, root = f"{SCOPE}/peers-frame-{next(self._numbers)}", self._context.root
        return spark.write(
            self.place,
            lambda rows: (
                rows.write.format("pravega")
                .mode("append")
                .option("root", root)
                .option("numSegments", _SEGMENTS)
                .save(name)
            ),
        )

    def spark_read(self, limit: Limit) -> Found:
        session, root = self._context.spark, self._context.root
        return spark.read(self.place, frame(session, self._filled, root=root))

    def backlog(self, limit: Limit) -> Found:
        given = {"root": self._context.root, "startingOffsets": "earliest"}
        return spark.backlog(self.place, stream_frame(self._context.spark, self._filled, **given))

    def micro_batch(self, limit: Limit) -> Found:
        source, target = self._create("source", 1), self._create("target", 1)
        _, values = events.lists(events.hundred())
        with self._context.manager.create_writer(source) as writer:
            for _ in range(limit.calls):
                writer.write_events(values, "key").result()
        options = {"root": self._context.root, "stream": target}
        reader = self._context.spark.readStream.format("pravega").option("root", options["root"])
        reader = reader.option("startingOffsets", "earliest")
        return spark.micro_batches(
            self.place,
            reader.option("maxOffsetsPerTrigger", spark.BATCH_ROWS).load(source),
            lambda w: w.format("pravega").options(**options),
            limit,
        )

    def to_delta(self, limit: Limit) -> Found:
        stream = self._create("to-delta", 1)
        with self._context.manager.create_writer(stream) as writer:
            return delta_readers.delays(
                self.place,
                f"{self._context.root}/{stream}/events",
                lambda event: writer.write_event(event, "key").result(),
                limit,
            )

    def _create(self, name: str, segments: int = _SEGMENTS) -> str:
        return self._context.create(f"peers-{name}-{next(self._numbers)}", segments)
