"""Functions that tests of retention run in processes: they write, scale, consume and retain."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from random import Random
from unittest import mock

from pravega_spark.engine.log import sweep
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidStreamCut, NoSuchSubscriber, TruncatedData
from pravega_spark.manager import StreamManager, root_of
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
"""The most bytes in one commit: it may include the waiting batch of the other writer."""
EXPIRE_SECONDS = 1.5
STEPS = {"slow": 6, "fast": 1_000, "back": 40, "late": 20, "idle": 0}
"""How many events each subscriber consumes before it publishes; 0: it never publishes."""

PLAIN = "nightly-batch"


def write(root: str, name: str, stop: str, *, scales: bool) -> None:
    """Write events of EVENT_BYTES in batches until ``stop`` exists; scale sometimes."""
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
    """Act as all subscribers in turn; "late" joins later, "back" is reset to the head sometimes.

    The subscriber PLAIN has no group: it reads some events, publishes, and sometimes leaves.
    """
    manager, dice = StreamManager(root), Random(root)
    begun, groups = time.monotonic(), dict[str, ReaderGroup]()
    while not Path(stop).exists():
        for name, step in STEPS.items():
            if name not in groups and (name != "late" or time.monotonic() > begun + 2):
                groups[name] = subscriber(manager, name)
            elif step and name in groups:
                publish(groups[name], step)
        consume_plainly(manager, leaves=dice.random() < 0.05)
        if dice.random() < 0.1:
            with contextlib.suppress(TruncatedData, InvalidStreamCut):  # a run moved the head
                groups["back"].reset({STREAM: manager.head(STREAM)})
        time.sleep(0.05)


def consume_plainly(manager: StreamManager, *, leaves: bool) -> None:
    """Subscribe if that is not so yet, and consume some events as a batch job does."""
    if leaves:
        manager.unsubscribe(STREAM, PLAIN)
    manager.subscribe(STREAM, PLAIN)
    with contextlib.suppress(NoSuchSubscriber):  # a run removed it as idle
        stream = open_stream(root_of(manager).store, STREAM)
        view = stream.view()
        record = view.subscriber(PLAIN)
        if record is not None and record.bound is not None:
            held = raised(view, record.bound.cut(STREAM, view.life))
            manager.publish(STREAM, PLAIN, cuts.next_cut(view, held, 15))


def subscriber(manager: StreamManager, name: str) -> ReaderGroup:
    """Create a group that holds the stream from its head on."""
    return manager.create_reader_group(f"s/{name}", [STREAM], retention="manual")


def publish(group: ReaderGroup, step: int) -> None:
    """Consume some more events; a subscriber that expired subscribes again."""
    stream = open_stream(group._lifecycle.store, STREAM)
    view = stream.view()
    record = view.subscriber(group.name)
    if record is None or record.bound is None:
        group.reset()
        return
    consumed = cuts.next_cut(view, raised(view, record.bound.cut(STREAM, view.life)), step)
    with contextlib.suppress(NoSuchSubscriber):
        group.publish({STREAM: consumed})


def change(root: str, verb: str, kill: str) -> None:
    """Create or delete the group ``s/slow``; killed at the failpoint ``kill``, if any."""
    failpoints.kill_at(kill)
    manager = StreamManager(root)
    if verb == "create":
        subscriber(manager, "slow")
    else:
        manager.delete_reader_group("s/slow")


def retain(
    root: str, kill: str, grace: float, retain: float, cleanup_wait: float, expire: float | None
) -> None:
    """Run retention once; killed at the failpoint ``kill``, if any.

    ``cleanup_wait``: seconds between a commit-deletion mark and the deletion of commits.
    """
    failpoints.kill_at(kill)
    mock.patch.object(sweep, "CLEANUP_WAIT_SECONDS", cleanup_wait).start()
    retention = StreamManager(root).retention(STREAM)
    retention.run(sample_every=0.001, expire=expire, grace=grace, retain=retain)
