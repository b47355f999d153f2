"""A group of two readers of which one catches up and one falls behind, on a clock of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pravega_spark import ScalingPolicy, StreamConfiguration
from tests.harness.counted_store import CountedRoot

QUICK, SLOW = "quick", "slow"


@contextmanager
def two_readers(root: CountedRoot, look: Callable[[], object]) -> Iterator[None]:
    """Let the readers of ``nyc/g`` read, while somebody looks 14 times, 10 s after each other.

    Of the segment of ``quick`` 20 events are written each time, and it reads 60; 50 of that of
    ``slow``, and it reads 10. ``look`` moves the clock.
    """
    root.manager.create_stream("nyc/f", StreamConfiguration(ScalingPolicy.fixed(2)))
    root.manager.create_reader_group("nyc/g", ["nyc/f"])
    handle = root.manager.reader_group("nyc/g")
    keys = {}
    with root.manager.create_writer("nyc/f") as writer:
        for number in range(16):
            pointer = writer.write_event(b"x", str(number)).result()
            keys[pointer.segment_id] = str(number)
    with handle.create_reader(QUICK) as quick, handle.create_reader(SLOW) as slow:
        owned: dict[str, str] = {}
        while len(owned) < 2:  # until each has a segment
            for reader, name in ((quick, QUICK), (slow, SLOW)):
                if (event := reader.read_next_event(timeout=0).event) is not None:
                    owned[name] = keys[event.pointer.segment_id]
            root.runtime.sleep(1)
        assert owned[QUICK] != owned[SLOW]
        with root.manager.create_writer("nyc/f") as writer:
            writer.write_events([b"x"] * 900, routing_key=owned[QUICK])
            for _ in range(14):
                writer.write_events([b"x"] * 20, routing_key=owned[QUICK])
                writer.write_events([b"x"] * 50, routing_key=owned[SLOW])
                writer.flush()
                for reader, events in ((quick, 60), (slow, 10)):
                    for _ in range(events):
                        reader.read_next_event(timeout=0)
                look()
        yield
