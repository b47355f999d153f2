"""A Kafka broker, the C client and Spark's connector: with an fsync of each write, and without."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.tail_reader import KAFKA_READER
from bench.peers import delta_readers, events, servers, spark
from bench.peers.peer import (
    Absent,
    Found,
    Limit,
    Peer,
    latency,
    rate,
    rows_then_aggregate,
)
from bench.peers.processes import follow, writers

_JVM = ("-Xmx1g",)
_PARTITIONS = 4
_RECEIVE = 10_000
_SECONDS = 60.0
_IN_TRANSACTIONS = {"isolation.level": "read_committed"}
_AT_ONCE = {"linger.ms": 0, "socket.nagle.disable": True}
_IN_BATCHES = {
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "compression.type": "zstd",
    "queue.buffering.max.messages": 1_000_000,
}
_SPARK_SINK = {
    "kafka.linger.ms": "20",
    "kafka.batch.size": "262144",
    "kafka.compression.type": "zstd",
    "kafka.acks": "all",
}
_WRITER = """
from bench.peers.kafka import producer_of, write_one
producer = producer_of(arguments[0], {"linger.ms": 0, "socket.nagle.disable": True})
def write(event):
    write_one(producer, arguments[1], event, key)
"""


def producer_of(servers: str, settings: dict[str, Any]) -> Any:
    """Return a producer whose acknowledgements are those of all replicas, of which there is one."""
    from confluent_kafka import Producer

    given = {"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True}
    return Producer({**given, "log_level": 0, **settings})


def write_one(producer: Any, topic: str, event: bytes, key: str = "key") -> None:
    """Write an event and wait for its report."""
    reports: list[object] = []
    producer.produce(topic, event, key, on_delivery=lambda error, _: reports.append(error))
    while not reports:
        producer.poll(1.0)
    assert reports == [None], reports


class _Broker:
    """The run's only broker, which both peers use."""

    def __init__(self, context: Context) -> None:
        from tests.harness.kafka_broker import running_broker

        self._stack = contextlib.ExitStack()
        self.folder = context.folder / "kafka"
        self.folder.mkdir()
        broker = running_broker(_PARTITIONS, within=self.folder, jvm=_JVM)
        self.servers = self._stack.enter_context(broker)
        self.process = servers.below(os.getpid(), "kafka.Kafka")

    def log(self, topic: str) -> list[Path]:
        """Return the folders of a topic's partitions."""
        return list(self.folder.rglob(f"{topic}-[0-9]"))

    def close(self) -> None:
        self._stack.close()


class _Kafka(Peer):
    _topic: ClassVar[dict[str, str]]

    def start(self) -> None:
        from tests.harness.spark_jars import has_kafka

        if not has_kafka():
            raise Absent("Kafka's jars were not fetched: python -m tests.harness.spark_jars")
        self._broker: _Broker = self.place.context.shared("kafka broker", _Broker)
        self._numbers = count()

    def stop(self) -> None:
        if "_broker" in self.__dict__:
            self._broker.close()

    def versions(self) -> str:
        import confluent_kafka

        client = f"confluent-kafka {confluent_kafka.__version__}"
        return f"Kafka 4.1.0, {client}, librdkafka {confluent_kafka.libversion()[0]}"

    def fill(self) -> None:
        self._filled = self._create("filled")
        producer = self._producer(_IN_BATCHES)
        for block in events.blocks(self.place):
            self._produce(producer, self._filled, *events.lists(block), len(block))

    def append(self, limit: Limit) -> Found:
        producer, topic = self._producer(_AT_ONCE), self._create("append")
        write_one(producer, topic, EVENT)
        return latency(lambda: write_one(producer, topic, EVENT), limit)

    def end_to_end(self, limit: Limit) -> Found:
        producer, topic = self._producer(_AT_ONCE), self._create("tail", 1)
        return follow(
            KAFKA_READER,
            self._broker.servers,
            topic,
            lambda event: write_one(producer, topic, event),
            limit,
        )

    def pipelined(self, limit: Limit) -> Found:
        producer, topic = self._producer(_IN_BATCHES), self._create("pipelined")
        keys, values = events.pool()
        return rate(limit.calls, lambda: self._produce(producer, topic, keys, values, limit.calls))

    def writers(self, limit: Limit) -> Found:
        return writers(_WRITER, [self._broker.servers, self._create("writers")], limit)

    def transaction(self, limit: Limit) -> Found:
        topic = self._create("transactions")
        producer = self._producer({**_AT_ONCE, "transactional.id": topic})
        producer.init_transactions(_SECONDS)
        keys, values = events.lists(events.hundred())

        def commit() -> None:
            producer.begin_transaction()
            for key, value in zip(keys, values, strict=True):
                producer.produce(topic, value, key)
            producer.commit_transaction(_SECONDS)

        commit()
        return latency(commit, limit)

    def catch_up(self, limit: Limit) -> Found:
        return rate(self.place.rows, lambda: self._consume(self._filled, self.place.rows))

    def single_rows(self, limit: Limit) -> Found:
        producer, topic = self._producer(_AT_ONCE), self._create("rows")
        written = count()

        def write() -> None:
            next(written)
            write_one(producer, topic, EVENT)

        def aggregate() -> int:
            return sum(self._consume(topic, next(written)).values())

        return rows_then_aggregate(write, aggregate, limit, 0)

    def stored(self, limit: Limit) -> Found:
        segments = [
            file
            for folder in self._broker.log(self._filled)
            for file in folder.iterdir()
            if file.suffix == ".log"  # indexes are allocated ahead
        ]
        return {"bytes": sum(file.stat().st_size for file in segments) / self.place.rows}

    def idle(self, limit: Limit) -> Found:
        return servers.idle(self._broker.process, limit)

    def spark_write(self, limit: Limit) -> Found:
        topic = self._create("frame")
        return spark.write(self.place, lambda rows: self._sink(_records(rows).write, topic).save())

    def spark_read(self, limit: Limit) -> Found:
        return spark.read(self.place, self._source(self._spark().read, self._filled))

    def backlog(self, limit: Limit) -> Found:
        return spark.backlog(self.place, self._source(self._spark().readStream, self._filled))

    def micro_batch(self, limit: Limit) -> Found:
        source, target = self._create("source", 1), self._create("target", 1)
        producer = self._producer(_IN_BATCHES)
        keys, values = events.lists(events.hundred())
        for _ in range(limit.calls):
            self._produce(producer, source, keys, values, len(values))
        reader = self._spark().readStream.option("maxOffsetsPerTrigger", spark.BATCH_ROWS)
        rows = self._source(reader, source).select("key", "value")
        at_once = {"kafka.linger.ms": "0"}
        return spark.micro_batches(
            self.place, rows, lambda w: self._sink(w, target).options(**at_once), limit
        )

    def to_delta(self, limit: Limit) -> Found:
        """Through a query of Spark that copies the topic, as often as it can."""
        topic = self._create("to-delta", 1)
        producer = self._producer(_AT_ONCE)
        path = str(self.place.folder / f"delta-of-{topic}")
        rows = self._source(self._spark().readStream, topic).selectExpr(
            "cast(key as string) routing_key", "timestamp", "value event"
        )
        with spark.running(self.place, rows, lambda w: w.format("delta").option("path", path)):
            return delta_readers.delays(
                self.place, path, lambda event: write_one(producer, topic, event), limit
            )

    def _producer(self, settings: dict[str, Any]) -> Any:
        return producer_of(self._broker.servers, settings)

    def _create(self, name: str, partitions: int = _PARTITIONS) -> str:
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        topic = f"{'synced' if self._topic else 'plain'}-{name}-{next(self._numbers)}"
        admin = AdminClient({"bootstrap.servers": self._broker.servers, "log_level": 0})
        made = admin.create_topics([NewTopic(topic, partitions, 1, config=self._topic)])
        made[topic].result(_SECONDS)
        return topic

    def _produce(
        self, producer: Any, topic: str, keys: list[str], values: list[bytes], rows: int
    ) -> None:
        """Write so many events without a wait, then wait for all reports."""
        reports: Counter[object] = Counter()

        def report(error: object, _: object) -> None:
            reports[error] += 1

        for number in range(rows):
            key, value = keys[number % len(keys)], values[number % len(keys)]
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=report)
                    break
                except BufferError:  # the queue is full
                    producer.poll(0.01)
            if number % 1_000 == 0:
                producer.poll(0)
        producer.flush(_SECONDS)
        assert reports == {None: rows}, reports

    def _consume(self, topic: str, rows: int) -> Counter[bytes]:
        """Read so many events from the beginning; count them by key."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {"group.id": topic, "enable.auto.commit": False, "fetch.wait.max.ms": 5}
        given = {"bootstrap.servers": self._broker.servers, **_IN_TRANSACTIONS, **settings}
        consumer = Consumer({**given, "queued.max.messages.kbytes": 262_144})
        found: Counter[bytes] = Counter()
        try:
            consumer.assign([TopicPartition(topic, n, 0) for n in range(_PARTITIONS)])
            deadline, seen = time.monotonic() + _SECONDS, 0
            while seen < rows:
                assert time.monotonic() < deadline, f"{seen} of {rows} events of {topic}"
                messages = consumer.consume(_RECEIVE, 0.1)
                found.update(message.key() or b"" for message in messages)
                seen += len(messages)
        finally:
            consumer.close()
        return found

    def _spark(self) -> Any:
        from tests.harness.spark_jars import add_connector

        def add(context: Context) -> Any:
            add_connector(context.spark)
            return context.spark

        return self.place.context.shared("spark with kafka", add)

    def _source(self, reader: Any, topic: str) -> Any:
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        given = {"kafka.bootstrap.servers": self._broker.servers, **options}
        return reader.format("kafka").options(**given).load()

    def _sink(self, writer: Any, topic: str) -> Any:
        self._spark()
        given = {"kafka.bootstrap.servers": self._broker.servers, "topic": topic}
        return writer.format("kafka").options(**_SPARK_SINK, **given)


class KafkaSynced(_Kafka):
    name = "Kafka, fsync"
    acknowledged = "the broker has fsynced the batch (flush.messages=1)"
    caveats = (
        "One broker and one replica, on the same machine; producers compress with zstd where they "
        "send batches.",
        "Its log of transactions is not fsynced.",
        "Its reader is confluent-kafka's, which makes a Python object of each event.",
    )
    _topic: ClassVar[dict[str, str]] = {"flush.messages": "1"}


class Kafka(_Kafka):
    name = "Kafka"
    acknowledged = "the broker has the batch in memory; the system writes it later"
    caveats = ("Kafka's default, which counts on replicas in place of fsync: here is one.",)
    _topic: ClassVar[dict[str, str]] = {}


def _records(rows: Any) -> Any:
    return rows.selectExpr("cast(routing_key as binary) key", "event value")
