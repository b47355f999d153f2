"""The root's decisions of transactions over several streams: one log, so all have one order.

A record is there from the begin of a transaction until its outcome is in the log of each of its
streams. A commit is decided by one commit of this log, which gives it its place in the order. An
abort is decided by the removal of an undecided record: a record that is absent can never be
decided to commit, so a process that finds none may abort (presumed abort). Nothing else decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Log, Proposal
from pravega_spark.engine.log.snapshot import PROTOCOL, Snapshot, new_table
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.state_table import OpenTables
from pravega_spark.engine.store import Store
from pravega_spark.errors import CorruptLog
from pravega_spark.primitives.process_locks import new_lock

DECISIONS_TABLE = "_transactions"
JOINT_PREFIX = "pravega.joint."
_COLUMNS = {"transaction": "string"}
"""The table has no rows: its state is the domains of its log."""


@dataclass(frozen=True, slots=True)
class JointRecord:
    """A transaction over several streams, from its begin until all of them hold its outcome.

    ``participants`` are the streams with their lives, ``readers`` pairs of a reader group and a
    reader of it whose positions the transaction acknowledges. ``version`` is that of the begin.
    ``order`` is the version that decided the commit; None while the transaction is undecided.
    """

    token: str
    participants: tuple[tuple[str, int], ...]
    version: int
    limit_ms: int
    order: int | None = None
    timestamp_us: int | None = None
    readers: tuple[tuple[str, str], ...] = ()

    def encode(self) -> str:
        """Return the JSON text."""
        streams = [list(participant) for participant in self.participants]
        readers = [[list(reader) for reader in self.readers]] if self.readers else []
        fields = [self.version, self.limit_ms, self.order, self.timestamp_us]
        return to_json([streams, *fields, *readers])

    @property
    def groups(self) -> list[str]:
        """The reader groups that take part, sorted."""
        return sorted({group for group, _ in self.readers})

    def life_of(self, stream: str) -> int | None:
        """Return the life of a stream that takes part, or None."""
        return dict(self.participants).get(stream)


def _decode(snapshot: Snapshot, token: str) -> JointRecord | None:
    record = snapshot.get(f"{JOINT_PREFIX}{token}")
    if record is None:
        return None
    try:
        streams, version, limit_ms, order, timestamp_us, *rest = record
        (readers,) = rest or [[]]
        pairs = tuple((str(group), str(reader)) for group, reader in readers)
        participants = tuple((str(name), int(life)) for name, life in streams)
        return JointRecord(
            token=token,
            participants=participants,
            version=version,
            limit_ms=limit_ms,
            order=order,
            timestamp_us=timestamp_us,
            readers=pairs,
        )
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{snapshot.where}: the log holds a damaged record of the transaction {token}: "
            f"{error!r}; restore it from a copy.",
            path=snapshot.where,
        ) from error


class DecisionLog:
    """The decisions of one root in one process; thread-safe."""

    def __init__(self, store: Store, runtime: Runtime = SYSTEM) -> None:
        """Name the log; nothing is read yet, and it need not exist."""
        self.store = store
        self.log = Log(store, DECISIONS_TABLE, runtime)
        self.log.maintain = checkpoint.maintain_in_background
        self._lock = new_lock()
        self._finished: set[str] = set()
        """Transactions whose outcome all their streams hold; their records can go."""
        self.owed: object | None = None
        """What this process decided and has not carried out (``owed``)."""

    def read(self) -> dict[str, JointRecord]:
        """Return the newest records, durably, by token; one storage call if nothing changed."""
        return self._records(self.log.refresh(durable=True))

    def find(self, token: str) -> JointRecord | None:
        """Return the newest record of a transaction; None if it was aborted, or ended."""
        snapshot = self.log.refresh(durable=True)
        return None if snapshot is None else _decode(snapshot, token)

    def decided(self) -> list[JointRecord]:
        """Return the known decisions to commit, in their order; no storage call."""
        found = self._records(self.log.snapshot).values()
        return sorted((r for r in found if r.order is not None), key=lambda r: r.order or 0)

    @staticmethod
    def _records(snapshot: Snapshot | None) -> dict[str, JointRecord]:
        if snapshot is None:
            return {}
        tokens = [name.removeprefix(JOINT_PREFIX) for name in snapshot.names(JOINT_PREFIX)]
        found = ((token, _decode(snapshot, token)) for token in tokens)
        return {token: record for token, record in found if record is not None}

    def begin(
        self,
        token: str,
        participants: Mapping[str, int],
        limit_ms: int,
        readers: Iterable[tuple[str, str]] = (),
    ) -> JointRecord:
        """Record a transaction over streams, which are given with their lives, and readers."""
        streams = tuple(sorted(participants.items()))

        def decide(snapshot: Snapshot | None) -> Proposal[JointRecord]:
            version = 0 if snapshot is None else snapshot.version + 1
            pairs = tuple(sorted(readers))
            record = JointRecord(token, streams, version=version, limit_ms=limit_ms, readers=pairs)
            body = self._body(snapshot, "BEGIN JOINT TRANSACTION", record)
            body.parameters = {"transaction": token, "streams": [name for name, _ in streams]}
            if record.readers:
                body.parameters["groups"] = record.groups
            return body, record

        return self.log.commit(decide).value

    def commit(self, token: str, timestamp_us: int | None = None) -> JointRecord | None:
        """Decide to commit, and return the decision; the same decision again does nothing.

        Returns None without a record: the transaction was aborted, or the logs of all its streams
        hold its outcome. Raises CommitUnknown if the outcome is unknown.
        """

        def decide(snapshot: Snapshot | None) -> Proposal[JointRecord | None]:
            record = None if snapshot is None else _decode(snapshot, token)
            if snapshot is None or record is None or record.order is not None:
                return None, record
            decided = replace(record, order=snapshot.version + 1, timestamp_us=timestamp_us)
            body = self._body(snapshot, "DECIDE JOINT TRANSACTION", decided)
            body.parameters = {"transaction": token, "outcome": "commit"}
            return body, decided

        return self.log.commit(decide).value

    def abort(self, token: str, reason: str) -> JointRecord | None:
        """Decide to abort unless a commit was decided; return that decision, or None if aborted."""
        if self.log.snapshot is None and self.log.refresh() is None:
            return None  # the root has no decisions yet

        def decide(snapshot: Snapshot | None) -> Proposal[JointRecord | None]:
            record = None if snapshot is None else _decode(snapshot, token)
            if record is None or record.order is not None:
                return None, record
            body = self._body(snapshot, "DECIDE JOINT TRANSACTION", None)
            body.domains = {**body.domains, f"{JOINT_PREFIX}{token}": None}
            body.parameters = {"transaction": token, "outcome": "abort", "reason": reason}
            return body, None

        return self.log.commit(decide).value

    def add_finished(self, token: str) -> None:
        """Let the next commit of this process remove what all streams have carried out."""
        with self._lock:
            self._finished.add(token)

    def remove_finished(self) -> None:
        """Remove the records of finished transactions, in a separate commit if there are any."""

        def decide(snapshot: Snapshot | None) -> Proposal[None]:
            body = self._body(snapshot, "FORGET JOINT TRANSACTIONS", None)
            body.parameters = {"transactions": sorted(_tokens(body.domains))}
            return (body if body.domains else None), None

        if self._finished:
            self.log.commit(decide)

    def _body(self, snapshot: Snapshot | None, operation: str, record: JointRecord | None) -> Body:
        """Return a commit that sets a record, and removes those of finished transactions."""
        body = Body(operation)
        if snapshot is None:
            now_ms, runtime = self.log.clock.now_ms(), self.log.runtime
            body.protocol = PROTOCOL
            body.metadata = new_table(_COLUMNS, [], runtime.token(), self.log.path, now_ms)
        domains: dict[str, str | None] = dict.fromkeys(self._removable(snapshot))
        if record is not None:
            domains[f"{JOINT_PREFIX}{record.token}"] = record.encode()
        body.domains = domains
        return body

    def _removable(self, snapshot: Snapshot | None) -> Iterable[str]:
        """Return the domains of finished transactions, and forget those that have none."""
        known: Collection[str] = () if snapshot is None else snapshot.domains
        with self._lock:
            self._finished = {t for t in self._finished if f"{JOINT_PREFIX}{t}" in known}
            return sorted(f"{JOINT_PREFIX}{token}" for token in self._finished)


def _tokens(domains: Iterable[str]) -> list[str]:
    return [name.removeprefix(JOINT_PREFIX) for name in domains]


_opened = OpenTables(DecisionLog)


def open_decisions(store: Store, runtime: Runtime = SYSTEM) -> DecisionLog:
    """Return this process's log of decisions of a root."""
    return _opened.get(store, runtime)
