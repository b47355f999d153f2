"""One event at a time beside a real Kafka broker: acknowledged, and at a reader's."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.measure import percentile, percentile_ratio, timed
from bench.harness.registry import benchmark
from bench.harness.tail_reader import KAFKA_READER, STREAM_READER, TailReader, stamped

_PAUSE_SECONDS = 0.005
_JVM = ("-Xmx512m",)
OURS, SYNCED, UNSYNCED = "ours", "with an fsync for each event", "without fsync"


@dataclass
class _Side:
    """A log with a reader at its tail, and how long its events took, in milliseconds."""

    write: Callable[[bytes], object]
    """Writes an event, and returns when it is acknowledged."""
    reader: TailReader
    acknowledged: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)


@benchmark()
def kafka_latency(context: Context) -> Iterator[Figure]:
    """Events in turn to a stream and to two topics of Kafka, each with a reader in a process.

    One broker on the same disk; the producers have ``acks=all`` and ``linger.ms=0``. One topic has
    ``flush.messages=1``, which is what an acknowledgement means here; the other leaves fsync to the
    system, as Kafka does by default. It needs the broker's jars, which ``make setup`` fetches, and
    has no figure without them.
    """
    from tests.harness.kafka_broker import running_broker
    from tests.harness.spark_jars import jars

    if not jars("broker") or importlib.util.find_spec("confluent_kafka") is None:
        context.console.print("  no figure: Kafka's jars or confluent-kafka are missing")
        return
    rounds, calls = context.size(8, 2), context.size(60, 10)
    with (
        running_broker(within=context.folder, jvm=_JVM) as servers,
        contextlib.ExitStack() as stack,
    ):
        sides = _sides(context, servers, 1 + rounds * calls, stack)
        _run(sides, rounds * calls)
    for share, name in ((0.50, "p50"), (0.99, "p99")):
        for what, times in (
            ("one event acknowledged, local", {n: s.acknowledged for n, s in sides.items()}),
            ("writer to reader in two processes", {n: s.arrived for n, s in sides.items()}),
        ):
            yield _figure(f"{what}, {name}", times, share, calls)


def _sides(
    context: Context, servers: str, count: int, stack: contextlib.ExitStack
) -> dict[str, _Side]:
    stream = context.create("beside-kafka")
    writer = stack.enter_context(context.manager.create_writer(stream))
    reader = stack.enter_context(TailReader(STREAM_READER, context.root, stream, count))
    sides = {OURS: _Side(lambda event: writer.write_event(event, "key").result(), reader)}
    for name, topic, settings in (
        (SYNCED, "synced", {"flush.messages": "1"}),
        (UNSYNCED, "unsynced", {}),
    ):
        write = _producer(servers, topic, settings)
        sides[name] = _Side(
            write, stack.enter_context(TailReader(KAFKA_READER, servers, topic, count))
        )
    return sides


def _producer(servers: str, topic: str, settings: dict[str, str]) -> Callable[[bytes], object]:
    """Create a topic of one partition; return what writes an event and awaits its report."""
    from confluent_kafka import Message, Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([NewTopic(topic, 1, 1, config=settings)])
    made[topic].result(60)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "socket.nagle.disable": True,
            "log_level": 0,  # errors are in the reports
        }
    )
    reports: list[object] = []

    def report(error: object, message: Message) -> None:
        assert error is None, error
        reports.append(message.offset())

    def write(event: bytes) -> None:
        expected = len(reports) + 1
        producer.produce(topic, event, "key", on_delivery=report)
        while len(reports) < expected:
            producer.poll(1.0)

    return write


def _run(sides: dict[str, _Side], count: int) -> None:
    for side in sides.values():
        side.write(stamped())
        side.reader.wait_until_it_reads()
    randomness = random.Random(1)
    names = list(sides)
    for _ in range(count):
        for name in names:
            time.sleep(_PAUSE_SECONDS * randomness.uniform(0.5, 1.5))
            side = sides[name]
            side.acknowledged.append(1e3 * timed(partial(side.write, stamped())))
        names.reverse()
    for side in sides.values():
        side.arrived = side.reader.delays_ms()


def _figure(name: str, times: dict[str, list[float]], share: float, calls: int) -> Figure:
    ours, synced = times[OURS], times[SYNCED]
    return Figure(
        name,
        percentile(ours, share),
        "ms",
        f"Kafka 4.1 {SYNCED}",
        percentile(synced, share),
        percentile_ratio(ours, synced, share, calls),
        note=f"Kafka {UNSYNCED}: {percentile(times[UNSYNCED], share):.2f} ms; an event about "
        f"every {1e3 * _PAUSE_SECONDS:.0f} ms, to each in turn",
    )
