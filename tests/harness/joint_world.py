"""Two or three streams with joint transactions, in several processes, and what they show."""

from __future__ import annotations

from collections.abc import Sequence

from pravega_spark.engine.log.clock import read_clock
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.records import OUTCOME_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.reader_groups.settlement import GroupPositions
from pravega_spark.txn import lifecycle
from pravega_spark.txn.decision_log import DecisionLog
from pravega_spark.txn.joint import JointTransaction, find_joint_record, open_joint_transaction
from pravega_spark.txn.joint_sweep import sweep_joint_transactions
from pravega_spark.txn.transaction import Transaction
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_streams import all_events, make_stream
from tests.harness.spy_store import Spy
from tests.harness.transaction_world import LEASE_MS


class JointProcess:
    """One process: its own copies of the streams and of the decision log."""

    def __init__(self, store: Store, runtime: FakeRuntime) -> None:
        self.store, self.runtime = store, runtime
        self.decisions = DecisionLog(store, runtime)
        self.decisions.log.maintain = None
        self.positions = GroupPositions(store, runtime)
        self._streams: dict[str, StreamLog] = {}

    def stream(self, name: str) -> StreamLog:
        if name not in self._streams:
            self._streams[name] = StreamLog(self.store, name, self.runtime)
            self._streams[name].log.maintain = None
        return self._streams[name]

    def begin(self, *names: str, readers: Sequence[EventStreamReader] = ()) -> JointTransaction:
        """Begin a joint transaction, without a thread that keeps it alive."""
        tied = [reader.participant for reader in readers]
        lives = {name: self.stream(name).view().life for name in names}
        token, limit_ms = self.runtime.token(), 100 * LEASE_MS
        for one in tied:
            one.begin(token)
        pairs = [(one.group, one.reader_id) for one in tied]
        record = self.decisions.begin(token, lives, limit_ms, pairs)
        parts = {}
        for name, life in lives.items():
            opened = lifecycle.begin(
                self.stream(name),
                life,
                lease_ms=LEASE_MS,
                execution_ms=limit_ms,
                joint_token=token,
            )
            parts[name] = Transaction(self.stream(name), opened.transaction_id)
        return JointTransaction(self.decisions, record, parts, self.runtime, self.positions, tied)

    def written(self, events: dict[str, bytes]) -> JointTransaction:
        """Begin a transaction over the streams, and write one event to each."""
        txn = self.begin(*events)
        for name, event in events.items():
            txn.write_event(name, event, "key")
        return txn

    def open(self, token: str) -> JointTransaction:
        record = find_joint_record(self.decisions, token)
        streams = [self.stream(name) for name, _ in record.participants]
        return open_joint_transaction(self.decisions, record, streams, self.positions)

    def sweep(self) -> int:
        now = read_clock(self.store, self.runtime)
        return sweep_joint_transactions(self.decisions, self.stream, now, self.positions)


class JointWorld:
    """Streams on a store that records its calls and fails by rules."""

    def __init__(self, *names: str) -> None:
        self.runtime = FakeRuntime()
        self.store = Spy(memory(self.runtime))
        for name in names:
            make_stream(self.store.inner, self.runtime, 1, name)

    def process(self, *, faulty: bool = False) -> JointProcess:
        return JointProcess(self.store if faulty else self.store.inner, self.runtime)

    def events(self, name: str) -> list[bytes]:
        return [event for _, event in all_events(self.process().stream(name))]

    def open_parts(self, name: str) -> list[str]:
        return sorted(self.process().stream(name).view().transactions)

    def outcomes(self, name: str) -> dict[str, bool]:
        """Return whether each ended transaction of a stream was committed, by its token."""
        view = self.process().stream(name).view()
        ids = [n.removeprefix(OUTCOME_PREFIX) for n in view.snapshot.names(OUTCOME_PREFIX)]
        found = {one: view.outcome(one) for one in ids}
        return {one[8:]: outcome.committed for one, outcome in found.items() if outcome}
