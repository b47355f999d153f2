"""Readers at the tail, each in a process of its own, that note when each event arrives."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import TracebackType

SENT_BYTES = 20
"""An event begins with the time at which it was sent: ns of the monotonic clock, in digits."""

STREAM_READER = """
import json, sys, time
from pravega_spark import StreamCut, StreamManager

root, stream, count, options = json.loads(sys.argv[1])
manager, found = StreamManager(root, storage_options=options), []
for event in manager.follow(stream, StreamCut.EARLIEST, timeout=60.0):
    found.append((int(event.data[:20]), time.monotonic_ns()))
    if len(found) == 1:
        print("ready", flush=True)
    if len(found) == count:
        break
print(json.dumps(found))
"""

KAFKA_READER = """
import json, sys, time
from confluent_kafka import Consumer, TopicPartition

servers, topic, count, _ = json.loads(sys.argv[1])
consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False})
consumer.assign([TopicPartition(topic, 0, 0)])
found = []
while len(found) < count:
    message = consumer.poll(60.0)
    assert message is not None and message.error() is None, message
    found.append((int(message.value()[:20]), time.monotonic_ns()))
    if len(found) == 1:
        print("ready", flush=True)
print(json.dumps(found))
consumer.close()
"""


def stamped() -> bytes:
    """Return an event of 100 bytes that is sent now."""
    return b"%020d" % time.monotonic_ns() + b"e" * (100 - SENT_BYTES)


class TailReader:
    """A process that reads ``count`` events; the first one only shows that it reads."""

    def __init__(
        self,
        script: str,
        place: str,
        name: str,
        count: int,
        options: object = None,
        python: str = sys.executable,
    ) -> None:
        """Start it; ``place``, ``name`` and a storage's ``options`` say where it reads."""
        given = json.dumps([place, name, count, options])
        command = [python, "-c", script, given]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._output = self._process.stdout

    def __enter__(self) -> TailReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.wait()
        self._output.close()

    def wait_until_it_reads(self) -> None:
        """Wait for the first event, which must have been written."""
        assert self._output.readline() == "ready\n"

    def delays_ms(self) -> list[float]:
        """Wait for the end; return how long each event took from its writer, without the first."""
        found = json.loads(self._output.read())
        return [(seen - sent) / 1e6 for sent, seen in found[1:]]
