"""Processes that count together by conditional appends.

``python -m tests.harness.conditional_processes`` starts one.
Each event is the number after the one that its writer found last in the segment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pravega_spark.errors import ConditionFailed
from pravega_spark.manager import StreamManager
from pravega_spark.values.segments import EventPointer
from tests.harness.writer_processes import STREAM


def count_up(root: str, name: str, ledger: str, end: str) -> None:
    """Append the next number again and again until the file ``end`` exists."""
    manager = StreamManager(root)
    (segment,) = manager.segments(STREAM)
    with (
        open(ledger, "a", buffering=1, encoding="utf-8") as acknowledged,
        manager.create_writer(STREAM, name) as writer,
    ):
        known = manager.segment(STREAM, segment.segment_id)
        at = EventPointer(STREAM, 1, segment.segment_id, known.next_offset)
        print("ready", flush=True)
        while not Path(end).exists():
            value = 0
            if at.offset:
                last = EventPointer(STREAM, 1, at.segment_id, at.offset - 1)
                value = int(manager.fetch_event(last).data.split()[0])
            try:
                found = writer.write_event(f"{value + 1} {name}", expected=at).result(120)
            except ConditionFailed as refused:
                actual = refused.actual
            else:
                assert found == at
                acknowledged.write(f"{value + 1} {name}\n")
                actual = EventPointer(STREAM, 1, at.segment_id, at.offset + 1)
            assert isinstance(actual, EventPointer)
            assert actual.offset > at.offset
            at = actual


def add(number: int, added: int) -> int:
    """Apply an update of the shared counter."""
    return number + added


def share(root: str, name: str, ledger: str, end: str) -> None:
    """Add 1 to a shared counter until the file ``end`` exists, and compact it now and then."""
    manager = StreamManager(root)

    def count(number: int, updates: list[int]) -> int:
        updates.append(1)
        return number + 1

    with (
        open(ledger, "a", buffering=1, encoding="utf-8") as acknowledged,
        manager.state_synchronizer(STREAM, add) as counter,
    ):
        counter.initialize(0)
        print("ready", flush=True)
        while not Path(end).exists():
            number = counter.update_state(count)
            acknowledged.write(f"{number} {name}\n")
            if number % 7 == 0:
                counter.compact()


if __name__ == "__main__":
    {"count_up": count_up, "share": share}[sys.argv[1]](*sys.argv[2:])
