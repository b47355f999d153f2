"""A process that writes small and large events by a writer id, for tests that kill it.

``python -m tests.harness.large_event_processes <root> <events> [transactions]``: continues after
the last event that the log holds, so that a run that was killed is simply run again.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

from pravega_spark import StreamManager
from pravega_spark.event_writer import EventStreamWriter

STREAM = "s/t"
KEYS = ("a", "b")
LARGE_BYTES = (8 << 20) + 3
"""Of every third event."""


def payload(number: int) -> bytes:
    """Return the bytes of an event by its number, from 1."""
    head = b"%d," % number
    return head * -(-LARGE_BYTES // len(head)) if number % 3 == 0 else head


def key_of(number: int) -> str:
    """Return the routing key of an event by its number."""
    return KEYS[number % len(KEYS)]


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield a payload in pieces of 3 MB."""
    for at in range(0, len(data), 3_000_000):
        yield data[at : at + 3_000_000]


def write(writer: EventStreamWriter, first: int, last: int) -> None:
    """Write events by number, large ones in each of the ways."""
    for number in range(first, last + 1):
        data = payload(number)
        ways = (data, io.BytesIO(data), pieces(data))
        event = ways[number // 3 % 3] if number % 3 == 0 else data
        writer.write_event(event, key_of(number))


def main(root: str, events: int, kind: str = "") -> None:
    """Write what is missing of so many events."""
    manager = StreamManager(root)
    if kind == "transactions":
        with manager.create_transactional_writer(STREAM, "ingest", large_events=True) as several:
            done = int(several.last_note or 0)
            while done < events:
                last = min(events, done + 4)
                with several.begin_transaction() as transaction:
                    for number in range(done + 1, last + 1):
                        transaction.write_event(payload(number), key_of(number))
                    transaction.commit(note=str(last))
                done = last
        return
    with manager.create_writer(STREAM, "ingest", large_events=True) as writer:
        write(writer, writer.last_event_number + 1, events)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
