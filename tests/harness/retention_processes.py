"""What the processes of a test of retention do: write, scale, consume, and retain."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from random import Random

from pravega_spark.engine.log import log_cleanup
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.errors import InvalidStreamCut, NoSuchSubscriber, TruncatedData
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.reader_group import ReaderGroup
from tests.harness import failpoints
from tests.harness import stream_cuts as cuts
from tests.harness.stream_cuts import raised
from tests.harness.writer_processes import STREAM

KEYS = tuple(f"k{n}" for n in range(8))
EVENT_BYTES = 10
BATCH = 6
"""Events that a writer flushes together."""
COMMIT_BYTES = 2 * BATCH * EVENT_BYTES
"""At most so much is in a commit: it may take along what the other writer has waiting."""
EXPIRE_SECONDS = 1.5
STEPS = {"slow": 6, "fast": 1_000, "back": 40, "late": 20, "dead": 0}
"""How many events a subscriber consumes before it publishes; the dead one never does."""


def write(root: str, name: str, stop: str, *, scales: bool) -> None:
    """Write events of EVENT_BYTES, some in each commit; scale now and then."""
    manager, dice, number = StreamManager(root), Random(name), 0
    with manager.create_writer(STREAM, name) as writer:
        while not Path(stop).exists():
            for _ in range(BATCH):
                writer.write_event(b"%s %07d" % (name.encode(), number), KEYS[number % len(KEYS)])
                number += 1
            writer.flush()
            if scales and number % 48 == 0:
                scale(manager, dice)
            time.sleep(0.02)


def scale(manager: StreamManager, dice: Random) -> None:
    """Split a segment in two, or merge the first two if there are many."""
    segments = manager.segments(STREAM)
    chosen = segments[:2] if len(segments) > 3 else [dice.choice(segments)]
    low, high = chosen[0].key_range.low, chosen[-1].key_range.high
    middle = (low + high) / 2
    ranges = [(low, high)] if len(chosen) > 1 else [(low, middle), (middle, high)]
    manager.scale_stream(STREAM, [s.segment_id for s in chosen], ranges)


def consume(root: str, stop: str) -> None:
    """Be all the subscribers in turn; the late one comes last, one goes back now and then."""
    manager, dice = StreamManager(root), Random(root)
    begun, groups = time.monotonic(), dict[str, ReaderGroup]()
    while not Path(stop).exists():
        for name, step in STEPS.items():
            if name not in groups and (name != "late" or time.monotonic() > begun + 2):
                groups[name] = subscriber(manager, name)
            elif step and name in groups:
                publish(groups[name], step)
        if dice.random() < 0.1:
            with contextlib.suppress(TruncatedData, InvalidStreamCut):  # the head moved meanwhile
                groups["back"].reset({STREAM: manager.head(STREAM)})
        time.sleep(0.05)


def subscriber(manager: StreamManager, name: str) -> ReaderGroup:
    """Let a group hold the stream from its head on."""
    return manager.create_reader_group(f"s/{name}", [STREAM], retention="manual")


def publish(group: ReaderGroup, step: int) -> None:
    """Consume some events more; a subscriber that was taken for idle comes back."""
    stream = open_stream(group._lifecycle.store, STREAM)
    view = stream.view()
    record = view.subscriber(group.name)
    if record is None or record.bound is None:
        group.reset()
        return
    place = cuts.next_cut(view, raised(view, record.bound.cut(STREAM, view.life)), step)
    with contextlib.suppress(NoSuchSubscriber):
        group.publish({STREAM: place})


def change(root: str, verb: str, crash: str) -> None:
    """Create or delete the group ``s/slow``, and die on the way at a crash point."""
    failpoints.kill_at(crash)
    manager = StreamManager(root)
    if verb == "create":
        subscriber(manager, "slow")
    else:
        manager.delete_reader_group("s/slow")


def retain(
    root: str, crash: str, grace: float, keep: float, mark_seconds: float, expire: float | None
) -> None:
    """Do one run of retention, and die on the way at a crash point.

    A clean-up mark stands ``mark_seconds`` before the log is cleaned.
    """
    failpoints.kill_at(crash)
    log_cleanup.CLEANUP_WAIT_SECONDS = mark_seconds
    retention = StreamManager(root).retention(STREAM)
    retention.run(sample_every=0.001, expire=expire, grace=grace, retain=keep)
