"""The processes of a test of reader groups: readers keep ledgers, writers number events."""

from __future__ import annotations

import contextlib
import json
import threading
import time

from pravega_spark.errors import ReinitializationRequired, StreamSealed
from tests.harness.writer_processes import STREAM, manager_of

GROUP = "s/g"
KEYS = tuple(f"k{n}" for n in range(16))
LEASE = "5 s"


def read(root: str, reader_id: str, path: str, lease: str = LEASE) -> None:
    """Record each event and marker before asking for the next, and how the reader ended."""
    group = manager_of(root).reader_group(GROUP)
    with open(path, "w", buffering=1, encoding="utf-8") as ledger:
        try:
            with group.create_reader(reader_id, lease=lease) as reader:
                while not (found := reader.read_next_event()).is_completed:
                    now = time.monotonic_ns()
                    if found.event is None:
                        ledger.write(f"marker {now} {found.checkpoint} {found.position}\n")
                        continue
                    event = found.event
                    position = f"{event.segment_id} {event.offset} {event.routing_key}"
                    ledger.write(f"event {now} {position} {event.data.decode()}\n")
        except ReinitializationRequired:
            ledger.write("end evicted\n")
        else:
            ledger.write("end done\n")


def read_together(root: str, readers: dict[str, str], lease: str = LEASE) -> None:
    """Be a process with several readers, each in a thread; ``readers`` has their ledgers' paths."""
    threads = [
        threading.Thread(target=read, args=(root, reader_id, path, lease))
        for reader_id, path in readers.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_buffered(root: str, reader_id: str, path: str, lease: str = LEASE) -> None:
    """Keep events in a buffer; record them at each marker and before closing the reader.

    An error, a kill or an eviction loses the buffer.
    """
    group = manager_of(root).reader_group(GROUP)
    buffer: list[str] = []
    with open(path, "w", encoding="utf-8") as ledger:

        def flush(marker: str = "") -> None:
            now = time.monotonic_ns()
            ledger.write("".join(f"event {now} {line}\n" for line in buffer) + marker)
            ledger.flush()
            buffer.clear()

        try:
            with group.create_reader(reader_id, lease=lease) as reader:
                while not (found := reader.read_next_event()).is_completed:
                    if found.event is None:
                        now = time.monotonic_ns()
                        flush(f"marker {now} {found.checkpoint} {found.position}\n")
                        continue
                    event = found.event
                    position = f"{event.segment_id} {event.offset} {event.routing_key}"
                    buffer.append(f"{position} {event.data.decode()}")
                flush()
        except ReinitializationRequired:
            ledger.write("end evicted\n")
        else:
            ledger.write("end done\n")


def write(root: str, writer_id: str) -> None:
    """Write numbered events, 20 in each commit, until the stream is sealed."""
    with manager_of(root).create_writer(STREAM, writer_id) as writer:
        number = 0
        with contextlib.suppress(StreamSealed):
            while True:
                for _ in range(20):
                    writer.write_event(f"{writer_id} {number}", KEYS[number % len(KEYS)])
                    number += 1
                writer.flush()
                time.sleep(0.05)


def process_slowly(root: str, reader_id: str, path: str, seconds: float, options: str) -> None:
    """Read events, and work on the second one for some seconds between two calls.

    ``options`` are keywords of ``create_reader`` as JSON. With ``"keep_alive"`` among them the work
    calls ``keep_alive`` each second.
    """
    given = json.loads(options)
    keeps_alive = given.pop("keep_alive", False)
    with open(path, "w", buffering=1, encoding="utf-8") as ledger:
        try:
            with manager_of(root).reader_group(GROUP).create_reader(reader_id, **given) as reader:
                for number in range(4):
                    event = reader.read_next_event(30.0).event
                    assert event is not None
                    ledger.write(f"{event.data.decode()}\n")
                    until = time.monotonic() + (seconds if number == 1 else 0.0)
                    while time.monotonic() < until:
                        time.sleep(1.0)
                        if keeps_alive:
                            reader.keep_alive()
        except ReinitializationRequired:
            ledger.write("evicted\n")
        else:
            ledger.write("done\n")
