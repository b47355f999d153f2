"""What a reader group does often, on streams of very many segments."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from bench.harness.context import SCOPE, Context
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed
from bench.harness.registry import benchmark


class ManySegments:
    """A group with one reader on a stream of many segments, and its frequent operations."""

    def __init__(self, context: Context, segments: int) -> None:
        name = f"many-{segments}"
        self.stream, self.manager = context.create(name, segments), context.manager
        self.group = context.manager.create_reader_group(
            f"{SCOPE}/{name}", [self.stream], checkpoint_interval=None, retention="manual"
        )
        self.reader = self.group.create_reader("a")
        self._write()
        while self.reader.read_events(timeout=0.0).events.num_rows:
            pass

    def _write(self) -> None:
        """Write into every segment, so that the group's positions are in the middle of each."""
        with self.manager.create_writer(self.stream) as writer:
            count = 4 * len(self.manager.stream_info(self.stream).segments)
            writer.write_events([b"event"] * count)

    def _poll(self) -> str | None:
        """Poll the group's state now; a reader does so at most every 50 ms."""
        refreshes = self.reader._membership.refreshes
        refreshes._due = refreshes.poll_due = 0.0
        return self.reader.read_next_event(0.0).checkpoint

    def idle(self) -> float:
        return 1e3 * timed(self._poll)

    def checkpoint(self) -> float:
        def answered() -> None:
            asked = self.group.initiate_checkpoint()
            assert self._poll() is not None
            self._poll()
            asked.result(timeout=60.0)

        return 1e3 * timed(answered)

    def publish(self) -> float:
        cut = self.manager.tail(self.stream)
        self._write()
        milliseconds = 1e3 * timed(lambda: self.group.publish({self.stream: cut}))
        while self.reader.read_events(timeout=0.0).events.num_rows:
            pass
        return milliseconds

    def join(self) -> float:
        begun = time.perf_counter()
        reader = self.group.create_reader("b")
        milliseconds = 1e3 * (time.perf_counter() - begun)
        reader.close()
        return milliseconds


@benchmark()
def group_many_segments(context: Context) -> Iterator[Figure]:
    """Operations on 10, 100 and 1,000 segments, whose cost should grow no faster than linearly."""
    sizes = [context.size(full, quick) for full, quick in ((10, 2), (100, 4), (1_000, 8))]
    groups = {segments: ManySegments(context, segments) for segments in sizes}
    for what, reason in (
        ("publish", "one commit to the stream"),
        ("join", "one commit to the group, which writes all of its rows"),
        ("checkpoint", "two commits to the group, which write all of its rows"),
        ("idle", "two polls of whether anything has changed"),
    ):
        sides = {str(n): getattr(group, what) for n, group in groups.items()}
        found = interleave(context.size(7, 1), sides)
        few, some, many = (found[str(n)] for n in sizes)
        yield Figure.of_rounds(
            f"group of {sizes[-1]:,} segments: {what}, p50",
            many,
            "ms",
            f"the same of {sizes[-2]:,}",
            some,
            note=f"of {sizes[0]}: {statistics.median(few):.2f} ms",
            limited_by=reason,
        ).within(at_most=20.0)
