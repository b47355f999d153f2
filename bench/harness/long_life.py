"""A stream's life on a simulated clock: everything that a root's processes do, for years.

One writer process follows the other. Writers with ids of their own and without come and go,
transactions commit, abort and expire, segments split and merge, a reader group and a subscriber
consume, streams beside it are created and deleted, settings and policies change, and one
maintenance process does its rounds. The load is quiet for most of a day and busy for an hour or
two, so that the scaling policy splits segments and merges them again. All of it is the package's
real code.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from bench.harness.counting_store import CountingStore
from bench.harness.life_writer import LifeWriter
from bench.harness.simulated_clock import SimulatedClock
from pravega_spark import (
    EventStreamReader,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    StreamCut,
    StreamManager,
)
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.root import Root
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import ReinitializationRequired, TruncatedData
from pravega_spark.stream import Stream
from pravega_spark.values.limits import STATE_FILE_COMMITS

SCOPE = "life"
STREAM = f"{SCOPE}/stream"
GROUP = f"{SCOPE}/group"
_PAYLOAD = b"x" * 100
_MERGED_BYTES = 110
"""The size of an event of 100 random bytes in a large file."""


@dataclass(frozen=True, slots=True)
class LifePace:
    """How often things happen, in appends; an append is half a minute, so a million are a year."""

    seconds: float = 30.0
    keep: str = "12 hours"
    """How long events, versions and outcomes are kept."""
    grace: str = "1 hour"
    turn: int = 16
    """Appends of one writer before the next one's turn; every other one is in another process."""
    reading: int = 64
    """The group reads so often, three times after each of its resets to the tail."""
    reset: int = 1_024
    transaction: int = 101
    session: int = 211
    maintenance: int = 480
    scaling: int = 20
    """The scaling policy decides so often; its averages are over 2 to 20 minutes."""
    busy: int = 160
    """The first appends of each cycle have BUSY_EVENTS events, the others one."""
    cycle: int = 2_400
    scope: int = 1_440
    policy: int = 20_160


BUSY_EVENTS = 150
"""Five events a second where an append is half a minute: too many for four segments."""
TARGET_RATE = 1
"""Events a second for each segment."""


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What one round of maintenance cost, and the compaction in it."""

    calls: int
    listed: int
    seconds: float
    compaction_calls: int
    compaction_seconds: float


class _KeptRoot(Root):
    """A root whose streams stay open."""

    def stream(self, name: str) -> StreamLog:
        known: dict[str, StreamLog] = self.__dict__.setdefault("known", {})
        if name not in known:
            known[name] = super().stream(name)
        return known[name]


class OneProcess(StreamManager):
    """A manager that keeps its streams open, as a process with the system's clock does."""

    def __init__(self, store: CountingStore, clock: SimulatedClock) -> None:
        super().__init__(store.url, runtime=clock)
        self._root = _KeptRoot(store, clock)

    def stream(self, name: str) -> Stream:
        made = super().stream(name)
        made._root = self._root
        return made


class LongLife:
    """The life of one stream, advanced append by append."""

    def __init__(self, inner: Store, clock: SimulatedClock, pace: LifePace = LifePace()) -> None:
        """Create the root, the stream, its group and its subscriber."""
        self.store, self.clock, self.pace = CountingStore(inner), clock, pace
        with maintained_in_foreground():
            self.manager = OneProcess(self.store, clock)
            self.manager.create_scope(SCOPE)
            self.manager.update_settings(
                grace=pace.grace, retain=pace.keep, keep_completed=pace.grace
            )
            scaling = ScalingPolicy.by_event_rate(TARGET_RATE, factor=2, minimum=2)
            self.manager.create_stream(STREAM, StreamConfiguration(scaling, self._policies[0]))
            self.stream = self.manager.stream(STREAM)
            self.group = self.manager.create_reader_group(
                GROUP, [STREAM], retention="automatic", checkpoint_interval="1 hour"
            )
            self.stream.subscribe("nightly")
            self.appends = self.appended_bytes = self.merged_events = self.splits = self.merges = 0
            self.rounds = deque[RoundCost](maxlen=64)
            self._processes = [self._process(), self._process()]
            self._writers = [self._named(number) for number in range(4)]
            self._reader = self.group.create_reader("reader", lease="1 day")

    @property
    def version(self) -> int:
        """The newest version of the stream's log."""
        return self.stream.info().version

    @property
    def amplification(self) -> float:
        """File bytes that appends and compactions wrote, over those of appends.

        Copies of one chunk compress to nothing, so a merged event counts as one of random bytes.
        """
        return 1 + self.merged_events * _MERGED_BYTES / self.appended_bytes

    @property
    def _policies(self) -> tuple[RetentionPolicy, ...]:
        keep = self.pace.keep
        return (
            RetentionPolicy.by_consumption(self.pace.grace, keep),
            RetentionPolicy.by_time(keep),
            RetentionPolicy.by_size("1 MB"),
        )

    def _process(self) -> StreamLog:
        return StreamLog(self.store, STREAM, self.clock)

    def _named(self, number: int) -> LifeWriter:
        return LifeWriter(self._processes[number % 2], f"writer-{number}")

    def live(self, appends: int) -> None:
        """Live for so many appends more."""
        with maintained_in_foreground():
            for _ in range(appends):
                self._step()

    def append(self) -> None:
        """Append one event, or those of a busy time, by the writer whose turn it is."""
        turn = self.appends // self.pace.turn % len(self._writers)
        is_busy = self.appends % self.pace.cycle < self.pace.busy
        self.appended_bytes += self._writers[turn].append(BUSY_EVENTS if is_busy else 1)

    def align(self) -> None:
        """Append until the newest state file is 100 versions old, so that openings compare."""
        with maintained_in_foreground():
            while self._processes[0].view().version % STATE_FILE_COMMITS != 100:
                self.append()

    def _step(self) -> None:
        pace, number = self.pace, self.appends
        self.clock.sleep(pace.seconds)
        self.append()
        self.appends = number = number + 1
        for every, act in (
            (pace.session, self._change_writers),
            (pace.transaction, self._transact),
            (pace.reading, self._read),
            (pace.scaling, self._scale),
            (pace.maintenance, self.maintain),
            (pace.scope, self._change_scope),
            (pace.policy, self._change_policy),
        ):
            if number % every == 0:
                act()

    def _change_writers(self) -> None:
        """A named writer is opened again, in a new process now and then; an anonymous one ends."""
        count = self.appends // self.pace.session
        number = count % 4
        if count % 16 == 0:
            self._processes[number % 2] = self._process()
            self._writers[number % 2 :: 2] = [self._named(n) for n in range(number % 2, 4, 2)]
        elif number == 3:
            self._writers[3] = LifeWriter(self._processes[1], None)
        else:
            self._writers[number] = self._named(number)
        with self.stream.create_writer() as writer:
            writer.write_event(_PAYLOAD, "visitor").result()

    def _transact(self) -> None:
        """Commit a transaction, abort another, and abandon a third one."""
        count = self.appends // self.pace.transaction
        name = f"transactions-{count % 3}" if count % 5 else None
        with self.stream.create_transactional_writer(name) as writer:
            done = writer.begin_transaction()
            done.write_events([_PAYLOAD] * 3, routing_key="together")
            done.commit()
            if count % 7 == 0:
                aborted = writer.begin_transaction()
                aborted.write_event(_PAYLOAD)
                aborted.abort()
            if count % 11 == 0:
                abandoned = writer.begin_transaction()
                abandoned.write_event(_PAYLOAD)
                abandoned.flush()

    def _read(self) -> None:
        """Read to the tail; a second reader comes and goes. Now and then begin at the tail."""
        since = self.appends % self.pace.reset
        if since == 0:
            self.group.reset({STREAM: StreamCut.LATEST})
            with contextlib.suppress(ReinitializationRequired):
                self._drain(self._reader)
            self._reader = self.group.create_reader("reader", lease="1 day")
        elif since <= 3 * self.pace.reading:
            with self.group.create_reader(f"visitor-{since}") as visitor:
                self._drain(self._reader)
                self._drain(visitor)

    @staticmethod
    def _drain(reader: EventStreamReader) -> None:
        while True:
            with contextlib.suppress(TruncatedData):
                found = reader.read_events(timeout=0)
                if found.checkpoint is None and not found.events.num_rows:
                    return

    def _scale(self) -> None:
        """Let the scaling policy decide, as its job does."""
        rows = self.stream.scaling().run()
        for action in ("split", "merge"):
            epochs = {row["epoch"] for row in rows if row["action"] == action}
            scales = len(epochs - {None})
            self.splits += scales if action == "split" else 0
            self.merges += scales if action == "merge" else 0

    def maintain(self) -> None:
        """Do a round of maintenance, as the root's one maintenance process does.

        The compaction is done before the round, which finds nothing to merge, to count its events.
        """
        self.stream.publish("nightly", self.group.stream_cuts()[STREAM])
        began, calls, listed = time.perf_counter(), self.store.total, self.store.listed
        self.merged_events += self.stream.compact().events
        compacted, compaction_calls = time.perf_counter(), self.store.total - calls
        done = self.manager.maintain(parallelism=1)
        assert not done.failures, done.failures
        cost = RoundCost(
            self.store.total - calls,
            self.store.listed - listed,
            time.perf_counter() - began,
            compaction_calls,
            compacted - began,
        )
        self.rounds.append(cost)

    def _change_scope(self) -> None:
        """Create a stream and a group beside it, change settings, and delete both again."""
        count = self.appends // self.pace.scope
        beside, group = f"{SCOPE}/beside-{count % 3}", f"{SCOPE}/group-{count % 3}"
        self.manager.create_stream(beside, StreamConfiguration(ScalingPolicy.fixed(1)))
        self.manager.create_reader_group(group, [beside])
        with self.manager.create_writer(beside) as writer:
            writer.write_event(_PAYLOAD).result()
        self.manager.delete_reader_group(group)
        self.manager.seal_stream(beside)
        self.manager.delete_stream(beside)
        self.manager.update_settings(sample_every=f"{30 + count % 2} minutes")
        self.stream.update(add_tags=[f"tag-{count % 4}"], remove_tags=[f"tag-{(count + 2) % 4}"])

    def _change_policy(self) -> None:
        policies = self._policies
        self.stream.update(retention=policies[self.appends // self.pace.policy % len(policies)])


@contextlib.contextmanager
def maintained_in_foreground() -> Iterator[None]:
    """Write state files and checkpoints in the thread that commits, so that runs are equal."""

    def maintain(log: Log, version: int) -> None:
        checkpoint.maintain(log.reader, version)

    with mock.patch.object(checkpoint, "maintain_in_background", maintain):
        yield
