"""A topic of a real Kafka broker on this machine, which Spark reads by its own connector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.harness.context import Context
from bench.harness.spark_frames import event_rows

_TOPIC = "events"


@contextmanager
def filled_topic(context: Context, rows: int) -> Iterator[dict[str, str] | None]:
    """Run a broker with a topic of two partitions; yield the options that read all of its events.

    Yield None, and say so, where the jars are missing that ``make setup`` fetches.
    """
    from tests.harness.kafka_broker import running_broker
    from tests.harness.spark_jars import add_connector, has_kafka

    if not has_kafka():
        context.console.print("  no figure: Kafka's jars are missing")
        yield None
        return
    with running_broker() as servers:
        add_connector(context.spark)
        kafka = {"kafka.bootstrap.servers": servers}
        frame = event_rows(context, rows).selectExpr(
            "cast(routing_key as binary) key", "event value"
        )
        frame.write.format("kafka").options(**kafka, topic=_TOPIC).save()
        yield {**kafka, "startingOffsets": "earliest", "subscribe": _TOPIC}


def topic_stream(context: Context, options: dict[str, str]) -> Any:
    """Return a topic as a streaming frame."""
    return context.spark.readStream.format("kafka").options(**options).load()
