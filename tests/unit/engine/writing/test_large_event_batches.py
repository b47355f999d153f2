"""A large event is a batch of its own, which the notes and flushes behind it share."""

from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.watermarks import mark_of
from pravega_spark.event_writer import EventStreamWriter, queue_of
from tests.harness.large_streams import lower_limits
from tests.harness.small_streams import all_events, make_stream

WAIT = 120.0
LARGE = bytes(range(256)) * 3


@pytest.mark.parametrize("closes", [False, True])
def test_a_note_a_time_and_a_close_behind_a_large_event_are_of_its_commit(
    monkeypatch: pytest.MonkeyPatch, *, closes: bool
) -> None:
    lower_limits(monkeypatch)
    stream = make_stream(MemoryStore(), SYSTEM, segments=1)
    with EventStreamWriter(stream, "w", large_events=True) as writer:
        before = stream.view().version
        queue_of(writer).is_idle = False  # all is queued before a thread looks
        futures: list[Any] = [writer.write_event(b"first", "k"), writer.write_event(LARGE, "k")]
        futures.append(writer.note_time(5_000))
        futures.append(queue_of(writer).add_barrier(None if closes else "noted", close=closes))
        if not closes:
            futures.append(writer.write_event(b"behind", "k"))
        queue_of(writer).is_idle = True
        queue_of(writer).wake()
        for future in futures:
            future.result(WAIT)
    view = stream.view()
    mark, record = mark_of(view, "w"), view.writer("w")
    assert mark is not None
    assert record is not None
    assert (mark.time_us, mark.is_alive) == (5_000_000, False)
    assert (record.note, record.note_number) == ((None, 0) if closes else ("noted", 2))
    # The first event, and the large one with what follows it; then "behind", and the close.
    assert view.version - before == (2 if closes else 4)
    assert len(all_events(stream)) == (2 if closes else 3)
