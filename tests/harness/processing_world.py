"""Processes that read a stream in a group and write a stream, in joint transactions."""

from __future__ import annotations

from pravega_spark.errors import TxnFailed
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.txn import sweeper
from pravega_spark.txn.joint import JointTransaction
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.group_world import OpenGroup, World
from tests.harness.joint_world import JointProcess
from tests.harness.small_streams import all_events
from tests.harness.transaction_world import LEASE_MS

IN, OUT = "s/in", "s/out"
READER_LEASE = 10.0


class Processor:
    """One process: its own copies of all logs, and a reader of the group."""

    def __init__(self, world: ProcessingWorld, reader: str) -> None:
        self.joint = JointProcess(world.store, world.runtime)
        self.group = world.group()
        self.reader: EventStreamReader = self.group.create_reader(reader, lease=READER_LEASE)

    def read(self, txn: JointTransaction, count: int = 10**9, to: str = OUT) -> int:
        """Write to the transaction what the reader hands out; return the number of events."""
        for number in range(count):
            event = self.reader.read_next_event(0).event
            if event is None:
                return number
            txn.write_event(to, event.data, "key")
        return count

    def begin(self, count: int = 0) -> JointTransaction:
        """Begin a transaction, and process some events in it."""
        txn = self.joint.begin(OUT, readers=[self.reader])
        self.read(txn, count)
        return txn

    def process(self, count: int) -> None:
        """Process some events, in one transaction."""
        self.begin(count).commit()

    def process_all(self) -> None:
        """Process everything that is left, some events in each transaction."""
        idle = 0
        while idle < 3:  # a reader that has released segments gets those of others later
            txn = self.joint.begin(OUT, readers=[self.reader])
            idle = 0 if self.read(txn, 3) else idle + 1
            try:
                txn.commit()
            except TxnFailed:
                idle = 0


class ProcessingWorld(World):
    """An input stream with events, an output stream, and a group that transactions acknowledge."""

    runtime: FakeRuntime

    def __init__(self, segments: int = 1, events: int = 10) -> None:
        super().__init__(segments, (IN, OUT))
        self.events = sorted(self.write(events, IN))
        self.created(streams=[IN], acknowledge="transaction")

    def created_configuration(self) -> ReaderGroupConfiguration:
        """A configuration of a group whose readers acknowledge by reading."""
        return ReaderGroupConfiguration([IN])

    def processor(self, reader: str) -> Processor:
        return Processor(self, reader)

    def processed(self) -> list[bytes]:
        """The output, sorted."""
        return sorted(event for _, event in all_events(self.joint().stream(OUT)))

    def joint(self) -> JointProcess:
        return JointProcess(self.store, self.runtime)

    def offset(self, group: OpenGroup | None = None) -> int:
        """The recorded offset of the input's only segment."""
        return (group or self.group()).stream_cuts()[IN].positions[0]

    def settle(self) -> None:
        """Do what a sweep of the output and of the root does, until leases have run out."""
        for _ in range(3):
            self.runtime.sleep(LEASE_MS / 1_000 + 1)
            sweeper.sweep_transactions(self.joint().stream(OUT), prepared_limit_ms=0)
            self.joint().sweep()

    def finish(self) -> None:
        """Settle everything, and process what is left by a reader that takes over."""
        for _ in range(3):
            self.runtime.sleep(READER_LEASE + 1)
            self.group().expire_readers()
        self.settle()
        self.processor("last").process_all()
