"""Processes that write events and note their times: ``python -m`` with this module."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from pravega_spark.manager import StreamManager
from tests.harness.writer_processes import STREAM


def write_on(root: str, name: str, ledger: str, end: str) -> None:
    """Write events and note times under one writer id, until the file ``end`` exists.

    No event is earlier than the time that was noted last, be it by an earlier process of the id.
    An event is its time; each acknowledged note is added to the ledger.
    """
    manager = StreamManager(root)
    stream_time, chance = manager.event_time(STREAM), random.Random(ledger)
    (now,) = [one.time_us // 1_000 for one in stream_time.marks() if one.writer_id == name]
    with (
        open(ledger, "a", buffering=1, encoding="utf-8") as acknowledged,
        manager.create_writer(STREAM, name) as writer,
    ):
        print("ready", flush=True)
        while not Path(end).exists():
            for _ in range(chance.randint(1, 5)):
                event = str(now + chance.randint(0, 9)).encode()
                writer.write_event(event, routing_key=str(chance.randint(0, 99)))
            now += chance.randint(0, 5)
            writer.note_time(now).result(120)
            acknowledged.write(f"{now}\n")
            if chance.random() < 0.2:
                stream_time.update()


if __name__ == "__main__":
    write_on(*sys.argv[1:])
